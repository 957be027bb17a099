// pickle and copy of tensors.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "layouts.h"

namespace shard::python {
namespace {

/// What pickle calls to make the tensor again.
Tensor rebuild(nb::handle data, const std::vector<int64_t>& shape, const std::string& dtype, const std::string& device,
               bool requires_grad) {
  const Tensor bytes = tensor_from_buffer(data, "pickle");
  const Meta meta{Dims(shape), parse_dtype(dtype)};
  if (!bytes.defined() || bytes.dtype() != DType::uint8 || bytes.meta().bytes() != meta.bytes()) {
    fail(ErrorCode::invalid_argument, "[pickle] the data of a tensor {} must be {} bytes", to_string(meta),
         meta.bytes());
  }
  const Device place = parse_device(device);
  Tensor tensor = released([&] { return to_device(Tensor(bytes.get().value.reinterpret(meta)), place); });
  if (requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

/// The same on the rank of which the tensor had this shard; None stands for that of a rank outside of the mesh.
Tensor rebuild_shard(nb::handle local, const PlacedLayout& layout, const std::vector<int64_t>& shape,
                     const std::string& dtype, int id, bool requires_grad) {
  const Meta global{Dims(shape), parse_dtype(dtype)};
  const DistSpec* const spec = resolve(layout, global.dims.rank());
  const auto what = [&] {
    return fmt::format("this is what rank {} has of {}, layout {} on {}", id, to_string(global), spec->text(),
                       spec->mesh()->describe());
  };
  const Rank* const rank = current_rank_or_null();
  if (rank == nullptr) {
    fail(ErrorCode::wrong_rank,
         "[pickle] {}: unpickle it on that rank, inside World::run, or pickle full_tensor() instead", what());
  }
  if (rank->id() != id) {
    fail(ErrorCode::wrong_rank,
         "[pickle] {}, not rank {}: each rank unpickles what it has pickled, or pickle full_tensor() instead", what(),
         rank->id());
  }
  const Tensor shard = local.is_none() ? Tensor() : nb::cast<Tensor>(local);
  return released([&] {
    Tensor tensor = dist::from_local(shard, spec, global.dims, global.dtype);
    if (requires_grad) tensor.set_requires_grad(true);
    return tensor;
  });
}

nb::object function_for_pickles(const char* name) { return nb::module_::import_("shard._pickling").attr(name); }

std::vector<int64_t> shape_of(const Tensor& x) { return {x.dims().begin(), x.dims().end()}; }

/// The local shard is pickled as a tensor of its own. Meshes and layouts are values: equal ones are the same object again.
nb::object reduce_shard(const Tensor& x) {
  const DistTensorImpl& impl = dist_impl(x, "pickle");
  if (current_rank_or_null() != impl.owner)
    fail(ErrorCode::wrong_rank,
         "[pickle] {} belongs to a rank of a world, which pickles it: pickle it inside World::run", impl.describe());
  const nb::object local = impl.has_local_shard() ? wrap(released([&] { return dist::local(x); })) : nb::none();
  return nb::make_tuple(function_for_pickles("rebuild_shard"),
                        nb::make_tuple(local, PlacedLayout{impl.spec->mesh(), placements_of(*impl.spec), impl.spec},
                                       shape_of(x), to_string(x.dtype()), impl.owner->id(), x.requires_grad()));
}

/// From protocol 5 on the bytes may be passed beside the pickle.
nb::object reduce(const Tensor& x, int protocol) {
  if (x.is_dist()) return reduce_shard(x);
  const DenseTensor host = released([&] { return readable_on_host(x, "pickle"); });
  const Meta bytes{{static_cast<int64_t>(host.meta().bytes())}, DType::uint8};
  const nb::object alias = wrap(Tensor(host.reinterpret(bytes)));
  const nb::object data =
      protocol >= 5 ? nb::module_::import_("pickle").attr("PickleBuffer")(alias)
                    : nb::module_::import_("builtins").attr("bytes")(nb::steal(PyMemoryView_FromObject(alias.ptr())));
  return nb::make_tuple(
      function_for_pickles("rebuild_tensor"),
      nb::make_tuple(data, shape_of(x), to_string(x.dtype()), to_string(x.device()), x.requires_grad()));
}

Tensor deep_copy(const Tensor& x) {
  if (!x.is_leaf()) {
    fail(ErrorCode::autograd,
         "[deepcopy] {} was computed from leaves that require a gradient, and its history cannot be copied; use "
         "x.detach(), or x.clone() to record the copy",
         x.get().describe());
  }
  return released([&] {
    Tensor copy = assign(x.detach());
    if (x.requires_grad()) copy.set_requires_grad(true);
    if (const Tensor gradient = x.grad(); gradient.defined()) copy.set_grad(assign(gradient.detach()));
    return copy;
  });
}

}  // namespace

void register_pickling(nb::module_& module, TensorClass& tensor) {
  module.def("_rebuild_tensor", &rebuild, nb::arg("data"), nb::arg("shape"), nb::arg("dtype"), nb::arg("device"),
             nb::arg("requires_grad"));
  module.def("_rebuild_shard", &rebuild_shard, nb::arg("local").none(), nb::arg("layout"), nb::arg("shape"),
             nb::arg("dtype"), nb::arg("rank"), nb::arg("requires_grad"));
  tensor.def("__reduce_ex__", &reduce, nb::arg("protocol"),
             "The values, dtype, device and requires_grad, of a distributed tensor the local shard, layout and shape, "
             "for the same rank "
             "of a world. Tensors on one buffer get one each.");
  tensor.def(
      "__copy__", [](const Tensor& x) { return x; }, "Another Python object for the same tensor.");
  tensor.def(
      "__deepcopy__", [](const Tensor& x, nb::handle) { return deep_copy(x); }, nb::arg("memo"),
      "A leaf with the same value, requires_grad and gradient. AutogradError for a tensor that is no leaf.");
}

}  // namespace shard::python
