// Distributed tensors from and to plain ones, reshards, and what a tensor says about its layout.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "layouts.h"

namespace shard::python {
namespace {

using Extra = std::optional<std::vector<int64_t>>;

/// The layout for `tensor`. Without a mesh, placements are on the mesh of the tensor: x.reshard([Shard(0)]).
const DistSpec* target_layout(const Tensor& tensor, nb::handle mesh, nb::handle placements, const char* function) {
  const int rank = tensor.dims().rank();
  const bool on_own_mesh = placements.is_none() &&
                           (nb::isinstance<nb::str>(mesh) || nb::isinstance<nb::list>(mesh) ||
                            nb::isinstance<nb::dict>(mesh) || nb::isinstance<Placement>(mesh) ||
                            (nb::isinstance<nb::tuple>(mesh) && !nb::isinstance<Mesh>(nb::borrow<nb::tuple>(mesh)[0])));
  if (!on_own_mesh) return resolve(placed_layout(mesh, placements, function, rank), rank);
  const nb::object own = nb::cast(Mesh{spec_of(tensor)->mesh()});
  return resolve(placed_layout(own, mesh, function, rank), rank);
}

Source source_of(nb::handle source) {
  if (source.is_none() || (nb::isinstance<nb::str>(source) && nb::cast<std::string>(source) == "same"))
    return same_on_all;
  int rank = 0;
  if (nb::isinstance<nb::bool_>(source) || !nb::try_cast(source, rank))
    fail_argument("shard_tensor", "source", "\"same\" | int (a rank of the mesh)", source);
  return from_rank(rank);
}

/// A tensor, or what shard.tensor() makes one of.
Tensor as_tensor(nb::handle object) {
  Tensor tensor;
  if (nb::try_cast(object, tensor)) return tensor;
  if (object.is_none()) fail_argument("shard_tensor", "x", "Tensor, or what shard.tensor() takes", object);
  return nb::cast<Tensor>(nb::module_::import_("shard._core").attr("tensor")(object));
}

Tensor shard_tensor(nb::handle value, nb::handle mesh, nb::handle placements, nb::handle source) {
  const Tensor x = as_tensor(value);
  if (x.is_dist()) {
    fail(ErrorCode::layout, "[shard_tensor] x is distributed already: use x.reshard(mesh, placements)");
  }
  const int rank = x.dims().rank();
  const DistSpec* const spec = resolve(placed_layout(mesh, placements, "shard_tensor", rank), rank);
  const Source from = source_of(source);
  return released([&] { return distribute(x, spec, from); });
}

/// The shape of a tensor of which every rank has a shard of shape `local`.
Dims whole_shape(const Dims& local, const DistSpec& spec) {
  Dims dims = local;
  for (int d = 0; d < dims.rank(); ++d) {
    for (int i = 0; i < spec.axes(d).size(); ++i) dims[d] *= spec.mesh()->size(spec.axes(d)[i]);
  }
  return dims;
}

Tensor dtensor_from_local(nb::handle local, nb::handle mesh, nb::handle placements, const Extra& global_shape,
                          nb::handle dtype) {
  Tensor shard;
  if (!local.is_none() && !nb::try_cast(local, shard))
    fail_argument("dtensor_from_local", "local", "Tensor | None", local);
  if (shard.defined() && shard.is_dist())
    fail(ErrorCode::layout,
         "[dtensor_from_local] local is a distributed tensor: pass a plain one, the shard of this rank");
  if (!shard.defined() && (!global_shape || dtype.is_none()))
    fail(ErrorCode::invalid_argument,
         "[dtensor_from_local] a rank outside of the mesh, which has no shard, passes global_shape and dtype");
  DType type = shard.defined() ? shard.dtype() : DType::float32;
  if (!dtype.is_none() && !dtype_of(dtype, type)) fail_argument("dtensor_from_local", "dtype", "dtype | None", dtype);
  const int rank = global_shape ? static_cast<int>(global_shape->size()) : shard.dims().rank();
  const DistSpec* const spec = resolve(placed_layout(mesh, placements, "dtensor_from_local", rank), rank);
  const Dims global = global_shape ? dims_of(*global_shape) : whole_shape(shard.dims(), *spec);
  return released([&] { return from_local(shard, spec, global, type); });
}

Tensor reshard_one(const Tensor& x, nb::handle mesh, nb::handle placements, int64_t memory_cap, bool async) {
  const DistSpec* const spec = target_layout(x, mesh, placements, "reshard");
  return released([&] { return async ? reshard_async(x, spec, memory_cap) : reshard(x, spec, memory_cap); });
}

nb::object reshard_any(nb::handle x, nb::handle mesh, nb::handle placements, int64_t memory_cap, bool async) {
  if (!nb::isinstance<nb::list>(x) && !nb::isinstance<nb::tuple>(x)) {
    Tensor one;
    if (!nb::try_cast(x, one)) fail_argument("reshard", "x", "Tensor | Sequence[Tensor]", x);
    return wrap(reshard_one(one, mesh, placements, memory_cap, async));
  }
  std::vector<Tensor> tensors;
  std::vector<const DistSpec*> specs;
  const bool one_each = placements.is_none() && nb::isinstance<nb::list>(mesh);  // a layout for each tensor
  if (one_each && nb::len(mesh) != nb::len(x))
    fail(ErrorCode::invalid_argument, "[reshard] {} layouts for {} tensors", nb::len(mesh), nb::len(x));
  for (const nb::handle each : nb::borrow<nb::object>(x)) {
    Tensor tensor;
    if (!nb::try_cast(each, tensor)) fail_argument("reshard", "x", "Tensor | Sequence[Tensor]", each);
    const nb::object layout = one_each ? nb::object(mesh[tensors.size()]) : nb::borrow(mesh);
    specs.push_back(target_layout(tensor, layout, placements, "reshard"));
    tensors.push_back(tensor);
  }
  std::vector<Tensor> results =
      released([&] { return async ? reshard_async(tensors, specs, memory_cap) : reshard(tensors, specs, memory_cap); });
  nb::list list;
  for (Tensor& each : results) list.append(wrap(std::move(each)));
  return list;
}

std::string explain_one(const Tensor& x, nb::handle mesh, nb::handle placements, int64_t memory_cap) {
  const DistSpec* const spec = target_layout(x, mesh, placements, "explain_reshard");
  return released([&] { return explain_reshard(x, spec, memory_cap); });
}

Tensor local_of(const Tensor& x) {
  return released([&] { return local(x); });
}

nb::object full_of(const Tensor& x) {
  if (!x.is_dist()) return wrap(x);
  return wrap(released([&] { return full_tensor(x); }));
}

nb::object mesh_object(const Tensor& x) { return x.is_dist() ? nb::cast(Mesh{spec_of(x)->mesh()}) : nb::none(); }

nb::object layout_object(const Tensor& x) {
  if (!x.is_dist()) return nb::none();
  const DistSpec* const spec = spec_of(x);
  return nb::cast(PlacedLayout{spec->mesh(), placements_of(*spec), spec});
}

constexpr const char* kReshardDoc =
    "reshard(x, mesh, placements=None, *, memory_cap=0)\n\nThe same value in another layout, on the same mesh or "
    "another one. Collective over the ranks of both.\n\n"
    "Args:\n  x: a distributed tensor of any shape and dtype, or a list of them: tensors whose reshards have equal "
    "steps share collectives.\n"
    "  mesh: a ProcessMesh with placements, or a Layout (for a list of tensors also a list of layouts), or placements "
    "alone, on the mesh of x.\n"
    "  memory_cap: bytes that the reshard may take on one rank; 0: no cap.\n\n"
    "Returns x itself where it has that layout, else a new tensor. Raises LayoutError, PolicyError and "
    "CommunicationError.";

constexpr const char* kShardTensorDoc =
    "shard_tensor(x, mesh, placements=None, *, source=\"same\")\n\nA distributed tensor with the value of x, a plain "
    "tensor of the whole shape.\n\n"
    "Args:\n  mesh, placements: a ProcessMesh and one placement for each of its dims, or a text such as \"dp, -\"; or "
    "a Layout alone.\n"
    "  source: \"same\": all ranks pass the same value, and nothing is sent. A rank: the value is that of this rank of "
    "the mesh, the others\n"
    "    pass a tensor of the same shape and dtype, and the call is collective over the mesh.\n\nRaises LayoutError; "
    "TypeError.";

constexpr const char* kFromLocalDoc =
    "dtensor_from_local(local, mesh, placements=None, *, global_shape=None, dtype=None)\n\nA distributed tensor of "
    "which `local` is the shard of this rank. Sends nothing, and\n"
    "shares the buffer of `local`.\n\n"
    "Args:\n  local: a plain tensor that has the shape of the shard of this rank, or the contribution of this rank to "
    "a pending reduction. None on a\n    rank outside of the mesh.\n"
    "  global_shape: the shape of the whole tensor. Without it all ranks have shards of the same shape; pass it where "
    "shards differ in size.\n"
    "  dtype: that of the whole tensor. Contributions to a pending sum of bfloat16 or float16 are held in float32, and "
    "may be passed in it.\n\n"
    "Raises ShapeError for another shape than that of the shard; LayoutError; TypeError.";

void register_functions(nb::module_& module) {
  module.def("shard_tensor", shard_tensor, nb::arg("x"), nb::arg("mesh"), nb::arg("placements") = nb::none(),
             nb::kw_only(), nb::arg("source") = "same", kShardTensorDoc);
  module.def("dtensor_from_local", dtensor_from_local, nb::arg("local").none(), nb::arg("mesh"),
             nb::arg("placements") = nb::none(), nb::kw_only(), nb::arg("global_shape") = nb::none(),
             nb::arg("dtype") = nb::none(), kFromLocalDoc);
  module.def(
      "reshard",
      [](nb::object x, nb::object mesh, nb::object placements, int64_t cap) {
        return reshard_any(x, mesh, placements, cap, false);
      },
      nb::arg("x"), nb::arg("mesh"), nb::arg("placements") = nb::none(), nb::kw_only(), nb::arg("memory_cap") = 0,
      kReshardDoc);
  module.def(
      "reshard_async",
      [](nb::object x, nb::object mesh, nb::object placements, int64_t cap) {
        return reshard_any(x, mesh, placements, cap, true);
      },
      nb::arg("x"), nb::arg("mesh"), nb::arg("placements") = nb::none(), nb::kw_only(), nb::arg("memory_cap") = 0,
      "Like reshard, but the collective of the last step is only started. The result waits for it when it is first "
      "read, and x when it is next written.");
  module.def("full_tensor", full_of, nb::arg("x"),
             "The whole value as a plain tensor on every rank of the mesh; None on other ranks. Collective over the "
             "mesh. A plain tensor is returned itself.");
  module.def("explain_reshard", explain_one, nb::arg("x"), nb::arg("mesh"), nb::arg("placements") = nb::none(),
             nb::kw_only(), nb::arg("memory_cap") = 0,
             "The plan of reshard() with these arguments as text: a line for each step, with bytes, predicted time and "
             "memory. Sends nothing.");
}

template <class F, class... Extras>
void def_method(const char* name, F f, const Extras&... extras) {
  const nb::handle type = nb::type<Tensor>();
  nb::setattr(type, name, nb::cpp_function(f, nb::name(name), nb::scope(type), nb::is_method(), extras...));
}

template <class F>
void def_property(const char* name, F f, const char* doc) {
  const nb::handle type = nb::type<Tensor>();
  const nb::object getter = nb::cpp_function(f, nb::name(name), nb::scope(type), nb::is_method());
  nb::setattr(type, name,
              nb::module_::import_("builtins").attr("property")(getter, nb::none(), nb::none(), nb::str(doc)));
}

void register_methods() {
  def_method(
      "reshard",
      [](const Tensor& x, nb::object mesh, nb::object placements, int64_t cap) {
        return reshard_one(x, mesh, placements, cap, false);
      },
      nb::arg("mesh"), nb::arg("placements") = nb::none(), nb::kw_only(), nb::arg("memory_cap") = 0, kReshardDoc);
  def_method(
      "reshard_async",
      [](const Tensor& x, nb::object mesh, nb::object placements, int64_t cap) {
        return reshard_one(x, mesh, placements, cap, true);
      },
      nb::arg("mesh"), nb::arg("placements") = nb::none(), nb::kw_only(), nb::arg("memory_cap") = 0,
      "See shard.reshard_async.");
  def_method("full_tensor", full_of, "See shard.full_tensor.");
  for (const char* const name : {"local", "to_local"}) {
    def_method(name, local_of,
               "The shard of this rank as a plain tensor on the same buffer. Raises LayoutError for a plain tensor, "
               "and on a rank outside of the mesh.");
  }
  def_property("layout", layout_object, "The Layout of a distributed tensor; None for a plain one.");
  def_property(
      "placements",
      [](const Tensor& x) {
        const nb::object layout = layout_object(x);
        return layout.is_none() ? layout : nb::object(layout.attr("placements"));
      },
      "One placement for each mesh dim, a tuple; None for a plain tensor.");
  for (const char* const name : {"mesh", "process_mesh"})
    def_property(name, mesh_object, "The ProcessMesh of a distributed tensor; None for a plain one.");
}

}  // namespace

void register_resharding(nb::module_& module) {
  register_functions(module);
  register_methods();
}

}  // namespace shard::python
