// Steps of a history that call Python: custom functions, and functions that are recomputed in backward.
#include <nanobind/stl/string.h>

#include "autograd.h"

namespace shard::python {
namespace {

/// Calls a Python function that returns a list of tensors, without the interpreter's lock before and after.
template <class... Lists>
std::vector<Tensor> call_python(const SharedObject& function, const std::string& name, const char* what, Nones nones,
                                const Lists&... lists) {
  return called_back([&] {
    // The list is freed before the tensors are returned: the library copies results whose buffers others refer to.
    const nb::object results = function.get()(list_of(lists)...);
    return tensors_of(results, name, what, nones);
  });
}

nb::list apply_custom(const std::string& name, nb::callable forward, nb::callable backward, nb::list inputs) {
  CustomFunction function;
  function.name = name;
  function.forward = [name, call = SharedObject(std::move(forward))](const std::vector<Tensor>& given) {
    return call_python(call, name, "the result of forward", Nones::refused, given);
  };
  function.backward = [name, call = SharedObject(std::move(backward))](const std::vector<Tensor>& given,
                                                                       const std::vector<Tensor>& outputs,
                                                                       const std::vector<Tensor>& grad_outputs) {
    return call_python(call, name, "the result of backward", Nones::allowed, given, outputs, grad_outputs);
  };
  const std::vector<Tensor> tensors = tensors_of(inputs, name, "inputs");
  const CallSite site = current_site();
  return list_of(released([&] { return apply(function, tensors, site); }));
}

nb::list recompute_python(nb::callable function, nb::list inputs) {
  const std::vector<Tensor> tensors = tensors_of(inputs, "checkpoint", "inputs");
  const CallSite site = current_site();
  const auto call = [function = SharedObject(std::move(function))](const std::vector<Tensor>& given) {
    return call_python(function, "checkpoint", "the result of the function", Nones::refused, given);
  };
  return list_of(released([&] { return recompute(call, tensors, site); }));
}

}  // namespace

void register_functions(nb::module_& module) {
  module.def("_apply", &apply_custom, nb::arg("name"), nb::arg("forward"), nb::arg("backward"), nb::arg("inputs"),
             "Calls forward(inputs), and backward(inputs, outputs, grad_outputs) in backward. Both return lists.");
  module.def("_recompute", &recompute_python, nb::arg("function"), nb::arg("inputs"));
}

}  // namespace shard::python
