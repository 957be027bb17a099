// What builtin functions of Python call: round, divmod, reversed, format, class.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>

#include "arrays.h"

namespace shard::python {
namespace {

/// round(x, digits), to even as Python does. Integers are as they are.
Tensor rounded(const Tensor& x, int digits) {
  const CallSite site = site_of(x);
  return released([&] {
    if (!is_floating(x.dtype())) return assign(x, site);
    if (digits == 0) return round(x, site);
    const double scale = std::pow(10.0, std::abs(digits));
    return digits > 0 ? round(x * scale) / scale : round(x / scale) * scale;
  });
}

/// The pair of two operators of Python, both of which may raise.
nb::object divided(nb::handle x, nb::handle y) {
  const nb::object quotient = nb::steal(PyNumber_FloorDivide(x.ptr(), y.ptr()));
  if (!quotient.is_valid()) nb::raise_python_error();
  const nb::object rest = nb::steal(PyNumber_Remainder(x.ptr(), y.ptr()));
  if (!rest.is_valid()) nb::raise_python_error();
  return nb::make_tuple(quotient, rest);
}

nb::object backwards(nb::handle self) {
  const Tensor& x = tensor_in(self.ptr());
  if (x.dims().rank() == 0) raise_type_error("a tensor without dims cannot be reversed");
  return nb::iter(wrap(released([&] { return flip(x, {0}); })));
}

nb::object formatted(nb::handle self, const std::string& spec) {
  if (spec.empty()) return nb::str(self);
  const Tensor& x = tensor_in(self.ptr());
  if (x.numel() != 1)
    raise_type_error(fmt::format(
        "format '{}' is for tensors of one element, and this one has {}: format its elements, as in x.tolist()", spec,
        x.numel()));
  return nb::module_::import_("builtins").attr("format")(self.attr("item")(), spec);
}

[[noreturn]] void refuse_subclass(nb::args, nb::kwargs) {
  raise_type_error(
      "shard.Tensor cannot be a base class, because ops return tensors of that class; keep a tensor as an attribute "
      "instead");
}

}  // namespace

void register_protocols(TensorClass& tensor) {
  tensor.def(
      "__round__", [](const Tensor& x, std::optional<int> digits) { return rounded(x, digits.value_or(0)); },
      nb::arg("digits") = nb::none(),
      "The elements rounded to even at that number of decimal digits, in the dtype of x.");
  tensor.def("__divmod__", &divided, nb::arg("other"), "(x // other, x % other)");
  tensor.def(
      "__rdivmod__", [](nb::handle self, nb::handle other) { return divided(other, self); }, nb::arg("other"));
  tensor.def("__reversed__", &backwards, "Iterates over x[-1], ..., x[0].");
  tensor.def("__format__", &formatted, nb::arg("spec"),
             "The number of a tensor of one element as format() writes it; without spec str(x).");
  const nb::object classmethod = nb::module_::import_("builtins").attr("classmethod");
  tensor.attr("__init_subclass__") = classmethod(nb::cpp_function(&refuse_subclass));
}

}  // namespace shard::python
