// ProcessMesh: meshes of ranks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "layouts.h"

namespace shard::python {
namespace {

constexpr const char* kMeshDoc =
    "ProcessMesh(shape, dim_names=None, process_ids=None, costs=None, *, mesh=None)\n\n"
    "Ranks of the world in a grid. Equal meshes compare equal, also across processes.\n\n"
    "ProcessMesh([2, 4], [\"dp\", \"tp\"]) has ranks 0 to 7 in a grid of 2 x 4: a flat list of ints is always a shape, "
    "and an int\n"
    "is a mesh of one dim. ProcessMesh([[0, 1], [2, 3]], [\"dp\", \"tp\"]) names the ranks: a nested list, or an array "
    "of two or\n"
    "more dims, is the grid itself. ProcessMesh(mesh=[4, 5, 6, 7]) is the grid in every case.\n\n"
    "Args:\n"
    "  shape: the number of ranks along each mesh dim, or a nested list of ranks.\n"
    "  dim_names: names of the mesh dims. Default: \"a\", \"b\", ...\n"
    "  process_ids: the ranks in row-major order. Default: 0, 1, ...\n"
    "  costs: the planner's model, as a dict: {\"axes\": {\"dp\": (alpha_ns, ns_per_byte)}, \"copy_ns_per_byte\": "
    "float,\n"
    "    \"memory_cap\": int}. Axes may also be a list of pairs.\n"
    "  mesh: ranks as a list (of lists), in place of shape and process_ids.\n\n"
    "Raises ArgumentError for a wrong number of ranks or names, and for ranks that are negative or repeated.";

bool is_list(nb::handle object) { return nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object); }

/// The object itself, or the nested list of an array.
nb::object as_list(nb::handle object) {
  return nb::hasattr(object, "tolist") ? nb::object(object.attr("tolist")()) : nb::borrow(object);
}

int integer_of(nb::handle object, const char* argument) {
  int value = 0;
  if (nb::isinstance<nb::bool_>(object) || !nb::try_cast<int>(nb::handle(object), value))
    fail_argument("ProcessMesh", argument, "ints", object);
  return value;
}

std::vector<int> integers_of(nb::handle object, const char* argument) {
  const nb::object list = as_list(object);
  if (!is_list(list)) fail_argument("ProcessMesh", argument, "a list of ints", object);
  std::vector<int> values;
  for (const nb::handle each : list) values.push_back(integer_of(each, argument));
  return values;
}

/// Reads a grid of ranks. The lists of one level have the same length.
void read_grid(nb::handle grid, size_t level, std::vector<int>& shape, std::vector<int>& ids) {
  if (!is_list(grid)) {
    if (level != shape.size())
      fail(ErrorCode::invalid_argument, "[ProcessMesh] the nested lists of ranks have different depths");
    ids.push_back(integer_of(grid, "mesh"));
    return;
  }
  const int size = static_cast<int>(nb::len(grid));
  if (level == shape.size()) {
    if (!ids.empty())
      fail(ErrorCode::invalid_argument, "[ProcessMesh] the nested lists of ranks have different depths");
    shape.push_back(size);
  } else if (shape[level] != size) {
    fail(ErrorCode::invalid_argument, "[ProcessMesh] the nested lists of ranks have different lengths, {} and {}",
         shape[level], size);
  }
  for (const nb::handle each : nb::borrow<nb::object>(grid)) read_grid(each, level + 1, shape, ids);
}

bool is_nested(nb::handle list) {
  if (!is_list(list)) return false;
  for (const nb::handle each : nb::borrow<nb::object>(list)) {
    if (is_list(each)) return true;
  }
  return false;
}

AxisCost cost_of(nb::handle pair) {
  std::vector<double> values;
  if (!nb::try_cast(pair, values) || values.size() != 2)
    fail_argument("ProcessMesh", "costs", "pairs (alpha_ns, ns_per_byte) as \"axes\"", pair);
  return {values[0], values[1]};
}

MeshCosts costs_of(nb::handle object, const std::vector<std::string>& names, size_t axes) {
  MeshCosts costs;
  if (object.is_none()) return costs;
  if (!nb::isinstance<nb::dict>(object)) fail_argument("ProcessMesh", "costs", "dict | None", object);
  for (const auto [key, value] : nb::borrow<nb::dict>(object)) {
    const std::string name = nb::cast<std::string>(nb::str(key));
    if (name == "copy_ns_per_byte") {
      costs.copy_ns_per_byte = nb::cast<double>(value);
    } else if (name == "memory_cap") {
      costs.memory_cap = nb::cast<int64_t>(value);
    } else if (name == "axes" && nb::isinstance<nb::dict>(value)) {
      costs.axes.resize(axes);
      for (const auto [axis, cost] : nb::borrow<nb::dict>(value)) {
        const std::string axis_name = nb::cast<std::string>(nb::str(axis));
        const auto found = std::find(names.begin(), names.end(), axis_name);
        if (found == names.end())
          fail(ErrorCode::invalid_argument,
               "[ProcessMesh] costs: there is no mesh dim '{}'; pass dim_names that have it", axis_name);
        costs.axes[static_cast<size_t>(found - names.begin())] = cost_of(cost);
      }
    } else if (name == "axes") {
      for (const nb::handle each : nb::borrow<nb::object>(value)) costs.axes.push_back(cost_of(each));
    } else {
      fail(ErrorCode::invalid_argument,
           "[ProcessMesh] costs: unknown key '{}'; there are axes, copy_ns_per_byte and memory_cap", name);
    }
  }
  return costs;
}

nb::object costs_as_dict(const ProcessMesh& mesh) {
  nb::dict axes;
  for (int axis = 0; axis < mesh.rank(); ++axis)
    axes[mesh.name(axis).c_str()] = nb::make_tuple(mesh.cost(axis).alpha_ns, mesh.cost(axis).ns_per_byte);
  nb::dict costs;
  costs["axes"] = axes;
  costs["copy_ns_per_byte"] = mesh.costs().copy_ns_per_byte;
  costs["memory_cap"] = mesh.costs().memory_cap;
  return costs;
}

const ProcessMesh* make_mesh(nb::handle shape, nb::handle dim_names, nb::handle process_ids, nb::handle costs,
                             nb::handle mesh) {
  if (shape.is_none() == mesh.is_none())
    fail(ErrorCode::invalid_argument, "[ProcessMesh] pass either a shape or mesh=, the ranks as a list (of lists)");
  nb::object grid = as_list(mesh.is_none() ? shape : mesh);
  std::vector<int> sizes, ids;
  if (!mesh.is_none() || is_nested(grid)) {
    if (!process_ids.is_none())
      fail(ErrorCode::invalid_argument, "[ProcessMesh] process_ids goes with a shape, not with a list of ranks");
    if (!is_list(grid)) fail_argument("ProcessMesh", "mesh", "a list (of lists) of ints", mesh);
    read_grid(grid, 0, sizes, ids);
  } else {
    if (nb::isinstance<nb::int_>(grid) && !nb::isinstance<nb::bool_>(grid)) sizes = {integer_of(grid, "shape")};
    else sizes = integers_of(grid, "shape");
    if (!process_ids.is_none()) ids = integers_of(process_ids, "process_ids");
  }
  std::vector<std::string> names;
  if (!dim_names.is_none() && (nb::isinstance<nb::str>(dim_names) || !nb::try_cast(dim_names, names)))
    fail_argument("ProcessMesh", "dim_names", "a list of strings | None", dim_names);
  return ProcessMesh::make(sizes, ids, names, costs_of(costs, names, sizes.size()));
}

nb::object process_ids_nested(const ProcessMesh& mesh, int axis, size_t& next) {
  if (axis == mesh.rank()) return nb::int_(mesh.processes()[next++]);
  nb::list list;
  for (int i = 0; i < mesh.size(axis); ++i) list.append(process_ids_nested(mesh, axis + 1, next));
  return list;
}

nb::tuple names_of(const ProcessMesh& mesh) {
  nb::list names;
  for (int axis = 0; axis < mesh.rank(); ++axis) names.append(nb::str(mesh.name(axis).c_str()));
  return nb::tuple(names);
}

nb::tuple shape_of(const ProcessMesh& mesh) {
  std::vector<int> shape;
  for (int axis = 0; axis < mesh.rank(); ++axis) shape.push_back(mesh.size(axis));
  return tuple_of(shape);
}

std::string repr(const ProcessMesh& mesh) {
  std::string text = "ProcessMesh([";
  std::string names;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    text += fmt::format("{}{}", axis == 0 ? "" : ", ", mesh.size(axis));
    names += fmt::format("{}'{}'", axis == 0 ? "" : ", ", mesh.name(axis));
  }
  text += "], [" + names + "]";
  bool first_ranks = true;
  for (size_t i = 0; i < mesh.processes().size(); ++i) first_ranks &= mesh.processes()[i] == static_cast<int>(i);
  if (!first_ranks) {
    text += ", process_ids=[";
    for (size_t i = 0; i < mesh.processes().size(); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", mesh.processes()[i]);
    text += "]";
  }
  return text + ")";
}

nb::object coordinate_of(const ProcessMesh& mesh, int rank) {
  const std::optional<Coordinate> at = mesh.coordinate(rank);
  if (!at) return nb::none();
  return tuple_of(std::vector<int>(at->begin(), at->begin() + mesh.rank()));
}

}  // namespace

nb::tuple tuple_of(const std::vector<int>& values) {
  nb::list list;
  for (const int value : values) list.append(value);
  return nb::tuple(list);
}

nb::tuple tuple_of(const Dims& dims) {
  PyObject* const tuple = PyTuple_New(dims.rank());
  if (tuple == nullptr) nb::raise_python_error();
  for (int i = 0; i < dims.rank(); ++i) {
    PyObject* const size = PyLong_FromLongLong(dims[i]);
    if (size == nullptr) {
      Py_DECREF(tuple);
      nb::raise_python_error();
    }
    PyTuple_SetItem(tuple, i, size);
  }
  return nb::steal<nb::tuple>(tuple);
}

Dims dims_of(const std::vector<int64_t>& values) { return Dims(std::span<const int64_t>(values)); }

void fail_argument(const char* function, const char* argument, const char* accepts, nb::handle object) {
  const std::string type = nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__name__")));
  throw nb::type_error(
      fmt::format("{}(): argument '{}' must be {}, not {}", function, argument, accepts, type).c_str());
}

const ProcessMesh* mesh_of(nb::handle object, const char* function) {
  Mesh* mesh = nullptr;
  if (!nb::try_cast<Mesh*>(object, mesh, false) || mesh == nullptr)
    fail_argument(function, "mesh", "a ProcessMesh", object);
  return mesh->mesh;
}

void register_meshes(nb::module_& module) {
  nb::class_<Mesh>(module, "ProcessMesh", kMeshDoc)
      .def(
          "__init__",
          [](Mesh* self, nb::object shape, nb::object dim_names, nb::object process_ids, nb::object costs,
             nb::object mesh) { new (self) Mesh{make_mesh(shape, dim_names, process_ids, costs, mesh)}; },
          nb::arg("shape") = nb::none(), nb::arg("dim_names") = nb::none(), nb::arg("process_ids") = nb::none(),
          nb::arg("costs") = nb::none(), nb::kw_only(), nb::arg("mesh") = nb::none())
      .def_prop_ro(
          "shape", [](const Mesh& x) { return shape_of(*x.mesh); }, "The number of ranks along each mesh dim, a tuple.")
      .def_prop_ro(
          "dim_names", [](const Mesh& x) { return names_of(*x.mesh); }, "The names of the mesh dims, a tuple.")
      .def_prop_ro(
          "ndim", [](const Mesh& x) { return x.mesh->rank(); }, "The number of mesh dims.")
      .def_prop_ro(
          "size", [](const Mesh& x) { return x.mesh->size(); }, "The number of ranks.")
      .def_prop_ro(
          "process_ids", [](const Mesh& x) { return tuple_of(x.mesh->processes()); },
          "The ranks in row-major order, a tuple.")
      .def_prop_ro(
          "mesh",
          [](const Mesh& x) {
            size_t next = 0;
            return process_ids_nested(*x.mesh, 0, next);
          },
          "The ranks as a nested list.")
      .def_prop_ro(
          "costs", [](const Mesh& x) { return costs_as_dict(*x.mesh); },
          "The planner's model, as a dict that the constructor takes.")
      .def(
          "dim_size", [](const Mesh& x, const std::string& name) { return x.mesh->size(x.mesh->axis(name)); },
          nb::arg("dim_name"), "The number of ranks along the mesh dim of that name. Raises OutOfRangeError.")
      .def(
          "coordinate", [](const Mesh& x, int rank) { return coordinate_of(*x.mesh, rank); }, nb::arg("rank"),
          "The position of a rank, a tuple; None where it is not in the mesh.")
      .def("__contains__", [](const Mesh& x, int rank) { return x.mesh->coordinate(rank).has_value(); })
      .def("__len__", [](const Mesh& x) { return x.mesh->size(); })
      .def("__repr__", [](const Mesh& x) { return repr(*x.mesh); })
      .def("__str__", [](const Mesh& x) { return x.mesh->describe(); })
      .def("__hash__", [](const Mesh& x) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.mesh) >> 4); })
      .def("__eq__",
           [](const Mesh& x, nb::handle other) {
             Mesh* y = nullptr;
             return nb::try_cast<Mesh*>(other, y, false) && y != nullptr && x.mesh == y->mesh;
           })
      .def("__reduce__", [](const Mesh& x) {
        return nb::make_tuple(nb::type<Mesh>(), nb::make_tuple(shape_of(*x.mesh), names_of(*x.mesh),
                                                               tuple_of(x.mesh->processes()), costs_as_dict(*x.mesh)));
      });
}

}  // namespace shard::python
