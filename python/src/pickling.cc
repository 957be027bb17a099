// pickle and copy of tensors.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"

namespace shard::python {
namespace {

/// What pickle calls to make the tensor again.
Tensor rebuild(nb::handle data, const std::vector<int64_t>& shape, const std::string& dtype, const std::string& device,
               bool requires_grad) {
  const Tensor bytes = tensor_from_buffer(data, "pickle");
  const Meta meta{Dims(shape), parse_dtype(dtype)};
  if (!bytes.defined() || bytes.dtype() != DType::uint8 || bytes.meta().bytes() != meta.bytes()) {
    fail(ErrorCode::invalid_argument, "[pickle] the data of a tensor {} must be {} bytes", to_string(meta), meta.bytes());
  }
  const Device place = parse_device(device);
  Tensor tensor = released([&] { return to_device(Tensor(bytes.get().value.reinterpret(meta)), place); });
  if (requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

/// From protocol 5 on the bytes may be passed beside the pickle.
nb::object reduce(const Tensor& x, int protocol) {
  if (x.is_dist()) {
    fail(ErrorCode::layout,
         "[pickle] {} is distributed, and this rank has a shard only; pickle full_tensor() of it, or save a checkpoint",
         x.get().describe());
  }
  const DenseTensor host = released([&] { return readable_on_host(x, "pickle"); });
  const Meta bytes{{static_cast<int64_t>(host.meta().bytes())}, DType::uint8};
  const nb::object alias = wrap(Tensor(host.reinterpret(bytes)));
  const nb::object data = protocol >= 5 ? nb::module_::import_("pickle").attr("PickleBuffer")(alias)
                                        : nb::module_::import_("builtins").attr("bytes")(
                                              nb::steal(PyMemoryView_FromObject(alias.ptr())));
  const std::vector<int64_t> shape(x.dims().begin(), x.dims().end());
  return nb::make_tuple(nb::module_::import_("shard._pickling").attr("rebuild_tensor"),
                        nb::make_tuple(data, shape, to_string(x.dtype()), to_string(x.device()), x.requires_grad()));
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
  tensor.def("__reduce_ex__", &reduce, nb::arg("protocol"),
             "The values, dtype, device and requires_grad of a dense tensor. Tensors on one buffer get one each.");
  tensor.def("__copy__", [](const Tensor& x) { return x; }, "Another Python object for the same tensor.");
  tensor.def(
      "__deepcopy__", [](const Tensor& x, nb::handle) { return deep_copy(x); }, nb::arg("memo"),
      "A leaf with the same value, requires_grad and gradient. AutogradError for a tensor that is no leaf.");
}

}  // namespace shard::python
