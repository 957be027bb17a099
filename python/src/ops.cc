// The ops and values of captured programs.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <type_traits>

#include "programs.h"

namespace shard::python {

namespace {

template <class T>
nb::object object_of_each(const T& values) {
  nb::list list;
  for (const auto& value : values) list.append(object_of(Attr(typename T::value_type(value))));
  return list;
}

nb::object object_of_value(const Scalar& value) {
  return value.is_integer() ? nb::cast(value.to<int64_t>()) : nb::cast(value.to<double>());
}
nb::object object_of_value(const IntArray& values) {
  nb::list list;
  for (const int64_t value : values) list.append(value);
  return list;
}
template <class T>
nb::object object_of_value(const std::vector<T>& values) {
  return object_of_each(values);
}
template <class T>
nb::object object_of_value(const std::optional<T>& value) {
  return value ? nb::cast(*value) : nb::none();
}
template <class T>
nb::object object_of_value(const T& value) {
  return nb::cast(value);
}

nb::object value_of(const HeldProgram& owner, program::ValueId id) {
  return id == 0 ? nb::none() : nb::cast(ProgramValue{owner, id, {}});
}

nb::list values_of(const ProgramOp& op) {
  nb::list values;
  for (const program::Operand& input : op.op().inputs) values.append(value_of(op.owner, input.value));
  return values;
}

nb::list outputs_of(const ProgramOp& op) {
  nb::list values;
  for (const program::ValueId output : op.op().outputs) values.append(value_of(op.owner, output));
  return values;
}

/// Attributes by name. Those of reshards have none, and are called by their position.
nb::dict attributes_of(const ProgramOp& op) {
  nb::dict attributes;
  const program::Op& facts = op.op();
  for (size_t i = 0; i < facts.attrs.size(); ++i) {
    const std::string name =
        facts.kind == program::Kind::call ? std::string(facts.entry->op->attrs[i]) : std::to_string(i);
    attributes[name.c_str()] = object_of(facts.attrs[i]);
  }
  return attributes;
}

/// The line of the op in the text of its program, which has a line for each input and parameter first.
std::string line_of(const ProgramOp& op) {
  const program::Program& owner = *op.owner.program;
  const std::string& line =
      op.owner.text->lines(owner).at(1 + owner.inputs.size() + owner.parameters.size() + op.index);
  return line.substr(std::min<size_t>(2, line.size()));
}

nb::tuple shape_of(const ProgramValue& value) {
  nb::list shape;
  const Dims& dims = value.value().type.meta.dims;
  for (int i = 0; i < dims.rank(); ++i) shape.append(dims[i]);
  return nb::tuple(shape);
}

std::string text_of(const ProgramValue& value) {
  return (value.name.empty() ? "" : value.name + " ") + "%" + std::to_string(value.id) + ": " +
         to_string(value.value().type);
}

nb::object tensor_of(const ProgramValue& value) {
  if (value.parameter < 0 || value.owner.trace == nullptr) return nb::none();
  return wrap(value.owner.trace->parameters[static_cast<size_t>(value.parameter)].tensor);
}

void register_value(nb::module_& module) {
  nb::class_<ProgramValue>(module, "ProgramValue", "A value of a captured program: a place in a buffer.")
      .def_ro("number", &ProgramValue::id, "Its number in the text of the program.")
      .def_prop_ro(
          "name", [](const ProgramValue& x) { return x.name.empty() ? nb::none() : nb::object(nb::cast(x.name)); },
          "The name of an input, parameter or output; None for other values.", nb::sig("def name(self) -> str | None"))
      .def_prop_ro("shape", &shape_of, "The global shape.")
      .def_prop_ro("dtype", [](const ProgramValue& x) { return x.value().type.meta.dtype; })
      .def_prop_ro("device", [](const ProgramValue& x) { return x.value().type.device; })
      .def_prop_ro(
          "type", [](const ProgramValue& x) { return to_string(x.value().type); }, "Dtype, shape and layout as text.")
      .def_prop_ro(
          "source", [](const ProgramValue& x) { return value_of(x.owner, x.value().source); },
          nb::sig("def source(self) -> ProgramValue | None"), "The value whose buffer it shares, or None.")
      .def_prop_ro(
          "root", [](const ProgramValue& x) { return value_of(x.owner, x.value().root); },
          nb::sig("def root(self) -> ProgramValue"), "The value that owns the buffer.")
      .def_prop_ro(
          "op",
          [](const ProgramValue& x) {
            return x.value().op < 0 ? nb::none() : nb::cast(ProgramOp{x.owner, static_cast<size_t>(x.value().op)});
          },
          nb::sig("def op(self) -> ProgramOp | None"), "The op that makes it; None for an input or parameter.")
      .def_prop_ro(
          "tensor", &tensor_of, nb::sig("def tensor(self) -> Tensor | None"),
          "The tensor that a parameter of a captured function stands for. None for other values and for gradients.")
      .def("__repr__", &text_of)
      .def("__hash__", [](const ProgramValue& x) { return x.id; })
      .def("__eq__", [](const ProgramValue& x, nb::handle other) {
        ProgramValue y;
        return nb::try_cast(other, y) && x.owner == y.owner && x.id == y.id;
      });
}

}  // namespace

const std::vector<std::string>& ProgramText::lines(const program::Program& program) {
  std::call_once(once_, [&] {
    const std::string text = to_text(program);
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = std::min(text.find('\n', at), text.size());
      lines_.push_back(text.substr(at, end - at));
    }
  });
  return lines_;
}

nb::object object_of(const Attr& attr) {
  return std::visit([](const auto& value) { return object_of_value(value); }, attr);
}

void register_ops(nb::module_& module) {
  register_value(module);
  nb::class_<ProgramOp>(module, "ProgramOp",
                        "An op of a captured program. str() is its line in the text of the program.")
      .def_ro("index", &ProgramOp::index, "Its position among the ops.")
      .def_prop_ro(
          "name", [](const ProgramOp& x) { return std::string(x.op().name()); }, "'matmul', 'add_', 'reshard'.")
      .def_prop_ro(
          "kind", [](const ProgramOp& x) { return std::string(to_string(x.op().kind)); },
          "'call' for an op of the library, or 'reshard', 'relayout', 'copy', 'distribute', 'full_tensor', 'clone', "
          "'alias'.")
      .def_prop_ro("inplace", [](const ProgramOp& x) { return x.op().inplace; })
      .def_prop_ro("inputs", &values_of, nb::sig("def inputs(self) -> list[ProgramValue | None]"),
                   "The values that it reads; None for absent ones.")
      .def_prop_ro("outputs", &outputs_of, nb::sig("def outputs(self) -> list[ProgramValue | None]"))
      .def_prop_ro(
          "writes", [](const ProgramOp& x) { return x.op().writes; },
          "For each output: whether the op has written a buffer that existed before.")
      .def_prop_ro("attributes", &attributes_of, nb::sig("def attributes(self) -> dict[str, Any]"))
      .def_prop_ro(
          "joins", [](const ProgramOp& x) { return x.op().joins; }, "Whether it runs together with the op before it.")
      .def_prop_ro(
          "cause", [](const ProgramOp& x) { return x.op().cause; }, "Of a reshard: the op and argument that need it.")
      .def_prop_ro(
          "file",
          [](const ProgramOp& x) -> std::optional<std::string> {
            return x.op().site.file == nullptr ? std::nullopt : std::optional<std::string>(x.op().site.file);
          },
          "The Python file of the call, for an op that writes; else None.")
      .def_prop_ro("line", [](const ProgramOp& x) { return x.op().site.line; })
      .def("__str__", &line_of)
      .def("__repr__", [](const ProgramOp& x) { return "<ProgramOp " + line_of(x) + ">"; });
}

}  // namespace shard::python
