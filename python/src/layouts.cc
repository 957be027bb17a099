// Placements and layouts: which mesh dims shard which dims of a tensor.
#include "layouts.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace shard::python {
namespace {

constexpr const char* kAccepts =
    "a list with a Shard, Replicate or Partial for each mesh dim, a dict of them by names of mesh dims, or a text like "
    "'dp, tp | sum(pp)'";

std::string mesh_dims(const ProcessMesh& mesh) {
  std::string names;
  for (int axis = 0; axis < mesh.rank(); ++axis) names += (axis == 0 ? "" : ", ") + mesh.name(axis);
  return names;
}

bool read_placement(nb::handle object, Placement& placement) { return nb::try_cast(object, placement); }

std::vector<Placement> placement_list(const ProcessMesh& mesh, nb::handle object, const char* function) {
  std::vector<Placement> placements;
  Placement placement;
  if (read_placement(object, placement)) {
    placements.push_back(placement);
  } else if (nb::isinstance<nb::dict>(object)) {
    placements.resize(static_cast<size_t>(mesh.rank()));
    for (const auto [key, value] : nb::borrow<nb::dict>(object)) {
      if (!nb::isinstance<nb::str>(key) || !read_placement(value, placement))
        fail_argument(function, "placements", kAccepts, object);
      placements[static_cast<size_t>(mesh.axis(nb::cast<std::string>(key)))] = placement;
    }
    return placements;
  } else if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
    for (const nb::handle each : nb::borrow<nb::object>(object)) {
      if (!read_placement(each, placement)) fail_argument(function, "placements", kAccepts, each);
      placements.push_back(placement);
    }
  } else {
    fail_argument(function, "placements", kAccepts, object);
  }
  if (static_cast<int>(placements.size()) != mesh.rank()) {
    fail(ErrorCode::layout, "[{}] {} placements for {}: pass one for each mesh dim ({})", function, placements.size(),
         mesh.describe(), mesh_dims(mesh));
  }
  return placements;
}

/// The number of dims that the placements ask for.
int least_rank(const PlacedLayout& layout) {
  int rank = 1;
  for (const Placement& each : layout.placements) {
    if (each.kind != Placement::Kind::shard) continue;
    if (each.dim < 0) fail(ErrorCode::layout, "{} counts from the last dim: pass ndim to Layout", to_text(each));
    rank = std::max(rank, each.dim + 1);
  }
  return rank;
}

const DistSpec* make_spec(const ProcessMesh* mesh, const std::vector<Placement>& placements, int rank) {
  if (rank > kMaxRank) fail(ErrorCode::layout, "a layout of {} dims: a tensor has at most {}", rank, kMaxRank);
  shard::Layout layout(mesh, rank);
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& each = placements[axis];
    if (each.kind == Placement::Kind::partial) layout.partial[axis] = each.type;
    if (each.kind != Placement::Kind::shard) continue;
    const int dim = each.dim < 0 ? each.dim + rank : each.dim;
    if (dim < 0 || dim >= rank) {
      fail(ErrorCode::layout, "{} on mesh dim '{}': the tensor has {} dims", to_text(each),
           mesh->name(static_cast<int>(axis)), rank);
    }
    layout.dims[static_cast<size_t>(dim)].push_back(static_cast<int>(axis));
  }
  return DistSpec::make(layout);
}

PlacedLayout of_spec(const DistSpec* spec) { return {spec->mesh(), placements_of(*spec), spec}; }

nb::object spec_dims(const PlacedLayout& layout) {
  return layout.spec == nullptr ? nb::none() : nb::object(nb::int_(layout.spec->rank()));
}

struct ShardPlacement : Placement {};
struct ReplicatePlacement : Placement {};
struct PartialPlacement : Placement {};

nb::object as_object(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::shard: return nb::cast(ShardPlacement{placement});
    case Placement::Kind::replicate: return nb::cast(ReplicatePlacement{placement});
    case Placement::Kind::partial: return nb::cast(PartialPlacement{placement});
  }
  return nb::none();
}

nb::tuple placement_tuple(const std::vector<Placement>& placements) {
  nb::list list;
  for (const Placement& each : placements) list.append(as_object(each));
  return nb::tuple(list);
}

std::string repr_of(const PlacedLayout& layout) {
  if (layout.spec != nullptr) return fmt::format("Layout({}, '{}')", layout.mesh->describe(), layout.spec->text());
  std::string text;
  for (const Placement& each : layout.placements) text += (text.empty() ? "" : ", ") + to_text(each);
  return fmt::format("Layout({}, [{}])", layout.mesh->describe(), text);
}

bool same_layout(const PlacedLayout& x, const PlacedLayout& y) {
  if (x.spec != nullptr || y.spec != nullptr) return x.spec == y.spec;
  return x.mesh == y.mesh && x.placements == y.placements;
}

int64_t hash_of(const PlacedLayout& layout) {
  if (layout.spec != nullptr) return static_cast<int64_t>(reinterpret_cast<uintptr_t>(layout.spec) >> 4);
  int64_t hash = static_cast<int64_t>(reinterpret_cast<uintptr_t>(layout.mesh) >> 4);
  for (const Placement& each : layout.placements)
    hash = hash * 1000003 + static_cast<int64_t>(each.kind) * 257 + each.dim * 17 + static_cast<int64_t>(each.type);
  return hash;
}

nb::object reduced(const PlacedLayout& layout) {
  const nb::object mesh = nb::cast(Mesh{layout.mesh});
  if (layout.spec != nullptr)
    return nb::make_tuple(nb::type<PlacedLayout>(), nb::make_tuple(mesh, nb::str(layout.spec->text().c_str())));
  return nb::make_tuple(nb::type<PlacedLayout>(), nb::make_tuple(mesh, placement_tuple(layout.placements)));
}

void register_layout(nb::module_& module) {
  nb::class_<PlacedLayout>(
      module, "Layout",
      "Layout(mesh, placements, ndim=None)\n\n"
      "How a tensor lies on a mesh: one placement for each mesh dim, or a text with an entry for each dim of the\n"
      "tensor: \"dp, -\" shards dim 0 over dp, \"tp+dp, - | sum(pp)\" shards it over tp, then dp, and leaves a\n"
      "sum over pp pending. Ops that create tensors take it as layout=.\n\n"
      "Args:\n  ndim: the number of dims of the tensor; only for placements. Without it the layout is one for tensors "
      "of any\n"
      "    number of dims that has the sharded ones.\n\nRaises LayoutError.")
      .def(
          "__init__",
          [](PlacedLayout* self, nb::object mesh, nb::object placements, nb::object ndim) {
            const int rank = ndim.is_none() ? -1 : nb::cast<int>(ndim);
            if (placements.is_none()) fail_argument("Layout", "placements", kAccepts, placements);
            new (self) PlacedLayout(placed_layout(mesh, placements, "Layout", rank));
            if (rank >= 0) self->spec = resolve(*self, rank);
          },
          nb::arg("mesh"), nb::arg("placements"), nb::arg("ndim") = nb::none())
      .def_prop_ro("mesh", [](const PlacedLayout& x) { return Mesh{x.mesh}; })
      .def_prop_ro(
          "placements", [](const PlacedLayout& x) { return placement_tuple(x.placements); },
          "One for each mesh dim, a tuple.")
      .def_prop_ro("ndim", spec_dims, "The number of dims of the tensor; None where it is not known.")
      .def_prop_ro(
          "text", [](const PlacedLayout& x) { return resolve(x, -1)->text(); }, "Like \"[dp, -] sum(tp)\".")
      .def(
          "shard_shape",
          [](const PlacedLayout& x, const std::vector<int64_t>& shape, int rank) -> nb::object {
            const DistSpec* const spec = resolve(x, static_cast<int>(shape.size()));
            const std::optional<Coordinate> at = x.mesh->coordinate(rank);
            if (!at) return nb::none();
            return tuple_of(shard_box(spec->layout(), dims_of(shape), *at).dims);
          },
          nb::arg("shape"), nb::arg("rank"),
          "The shape of the local shard of a rank, of a tensor of this shape; None outside of the mesh.")
      .def(
          "shard_offset",
          [](const PlacedLayout& x, const std::vector<int64_t>& shape, int rank) -> nb::object {
            const DistSpec* const spec = resolve(x, static_cast<int>(shape.size()));
            const std::optional<Coordinate> at = x.mesh->coordinate(rank);
            if (!at) return nb::none();
            return tuple_of(shard_box(spec->layout(), dims_of(shape), *at).begin);
          },
          nb::arg("shape"), nb::arg("rank"), "Where that shard begins in the tensor.")
      .def("__repr__", repr_of)
      .def("__hash__", hash_of)
      .def("__eq__",
           [](const PlacedLayout& x, nb::handle other) {
             PlacedLayout* y = nullptr;
             return nb::try_cast<PlacedLayout*>(other, y, false) && y != nullptr && same_layout(x, *y);
           })
      .def("__reduce__", reduced);
}

template <class T>
nb::class_<T, Placement> placement_class(nb::module_& module, const char* name, const char* doc) {
  return nb::class_<T, Placement>(module, name, doc);
}

}  // namespace

std::string to_text(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::shard: return fmt::format("Shard({})", placement.dim);
    case Placement::Kind::replicate: return "Replicate()";
    case Placement::Kind::partial: return fmt::format("Partial('{}')", to_string(placement.type));
  }
  return "";
}

std::vector<Placement> placements_of(const DistSpec& spec) {
  std::vector<Placement> placements(static_cast<size_t>(spec.mesh()->rank()));
  for (int axis = 0; axis < spec.mesh()->rank(); ++axis) {
    Placement& each = placements[static_cast<size_t>(axis)];
    if (const int dim = spec.layout().dim_of(axis); dim >= 0) each = {Placement::Kind::shard, dim};
    else if (spec.partial(axis)) each = {Placement::Kind::partial, 0, *spec.partial(axis)};
  }
  return placements;
}

const DistSpec* resolve(const PlacedLayout& layout, int rank) {
  if (layout.spec == nullptr) return make_spec(layout.mesh, layout.placements, rank >= 0 ? rank : least_rank(layout));
  if (rank >= 0 && layout.spec->rank() != rank)
    fail(ErrorCode::layout, "layout {} is for tensors of {} dims, and this one has {}", layout.spec->text(),
         layout.spec->rank(), rank);
  return layout.spec;
}

PlacedLayout placed_layout(nb::handle mesh, nb::handle placements, const char* function, int rank) {
  if (placements.is_none()) {
    PlacedLayout* layout = nullptr;
    if (nb::try_cast<PlacedLayout*>(mesh, layout, false) && layout != nullptr) return *layout;
    if (nb::isinstance<nb::tuple>(mesh) && nb::len(mesh) == 2) {
      const nb::tuple pair = nb::borrow<nb::tuple>(mesh);
      return placed_layout(pair[0], pair[1], function, rank);
    }
    if (nb::isinstance<Mesh>(mesh)) fail_argument(function, "placements", kAccepts, placements);
    fail_argument(function, "mesh", "a ProcessMesh, or a Layout without placements", mesh);
  }
  const ProcessMesh* const on = mesh_of(mesh, function);
  if (nb::isinstance<nb::str>(placements)) return of_spec(DistSpec::parse(on, nb::cast<std::string>(placements)));
  return {on, placement_list(*on, placements, function), nullptr};
}

const DistSpec* layout_of(nb::handle object, int rank) {
  PlacedLayout* layout = nullptr;
  if (nb::try_cast<PlacedLayout*>(object, layout, false) && layout != nullptr) return resolve(*layout, rank);
  if (!nb::isinstance<nb::tuple>(object) || nb::len(object) != 2 ||
      !nb::isinstance<Mesh>(nb::borrow<nb::tuple>(object)[0]))
    return nullptr;
  return resolve(placed_layout(object, nb::none(), "layout"), rank);
}

void register_placements(nb::module_& module) {
  nb::class_<Placement>(module, "Placement", "What a mesh dim does with a tensor: Shard, Replicate or Partial.")
      .def(
          "is_shard",
          [](const Placement& x, nb::object dim) {
            return x.kind == Placement::Kind::shard && (dim.is_none() || nb::cast<int>(dim) == x.dim);
          },
          nb::arg("dim") = nb::none(), "Whether it shards a dim, or the given one.")
      .def("is_replicate", [](const Placement& x) { return x.kind == Placement::Kind::replicate; })
      .def("is_partial", [](const Placement& x) { return x.kind == Placement::Kind::partial; })
      .def("__repr__", [](const Placement& x) { return to_text(x); })
      .def("__hash__",
           [](const Placement& x) {
             return static_cast<int64_t>(x.kind) * 1009 + x.dim * 17 + static_cast<int64_t>(x.type);
           })
      .def("__eq__", [](const Placement& x, nb::handle other) {
        Placement y;
        return read_placement(other, y) && x == y;
      });
  placement_class<ShardPlacement>(module, "Shard",
                                  "Shard(dim): the ranks along the mesh dim hold parts of a dim of the tensor. A "
                                  "negative dim counts from the last one.")
      .def(
          "__init__",
          [](ShardPlacement* self, int dim) {
            new (self) ShardPlacement{{Placement::Kind::shard, dim}};
          },
          nb::arg("dim"))
      .def_prop_ro("dim", [](const ShardPlacement& x) { return x.dim; })
      .def("__reduce__",
           [](const ShardPlacement& x) { return nb::make_tuple(nb::type<ShardPlacement>(), nb::make_tuple(x.dim)); });
  placement_class<ReplicatePlacement>(module, "Replicate",
                                      "Replicate(): the ranks along the mesh dim hold the same value.")
      .def("__init__", [](ReplicatePlacement* self) { new (self) ReplicatePlacement{}; })
      .def("__reduce__",
           [](const ReplicatePlacement&) { return nb::make_tuple(nb::type<ReplicatePlacement>(), nb::tuple()); });
  placement_class<PartialPlacement>(module, "Partial",
                                    "Partial(op='sum'): the ranks along the mesh dim hold contributions to a reduction "
                                    "that is pending. op is sum, avg, max, min, prod, any or all.")
      .def(
          "__init__",
          [](PartialPlacement* self, const std::string& op) {
            new (self) PartialPlacement{{Placement::Kind::partial, 0, parse_reduce_type(op)}};
          },
          nb::arg("op") = "sum")
      .def_prop_ro("op", [](const PartialPlacement& x) { return std::string(to_string(x.type)); })
      .def("__reduce__", [](const PartialPlacement& x) {
        return nb::make_tuple(nb::type<PartialPlacement>(), nb::make_tuple(to_string(x.type)));
      });
}

void register_layouts(nb::module_& module) {
  register_meshes(module);
  register_placements(module);
  register_layout(module);
  register_resharding(module);
  register_local_map(module);
}

}  // namespace shard::python
