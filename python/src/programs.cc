// Captured programs: their text, drawings, files, differences, passes and alias trees.
#include "programs.h"

#include "arrays.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace shard::python {

using program::Named;
using program::Program;
using program::Scope;
using program::Trace;

HeldProgram hold(Trace trace) {
  auto shared = std::make_shared<const Trace>(std::move(trace));
  return {.trace = shared, .program = std::shared_ptr<const Program>(shared, &shared->program)};
}

HeldProgram hold(Program program) {
  return {.trace = nullptr, .program = std::make_shared<const Program>(std::move(program))};
}

namespace {

nb::list named_values(const HeldProgram& owner, const std::vector<Named>& names, bool parameters = false) {
  nb::list values;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].value == 0) values.append(nb::none());
    else
      values.append(
          nb::cast(ProgramValue{owner, names[i].value, names[i].name, parameters ? static_cast<int>(i) : -1}));
  }
  return values;
}

nb::list ops_of(const HeldProgram& owner) {
  nb::list ops;
  for (size_t i = 0; i < owner.program->ops.size(); ++i) ops.append(nb::cast(ProgramOp{owner, i}));
  return ops;
}

const Trace& trace_of(const HeldProgram& held, const char* function) {
  if (held.trace == nullptr)
    fail(ErrorCode::invalid_argument,
         "[{}] only the program that trace() or load_program returns can be saved, because only that has its "
         "parameters and "
         "gradient; this one was made of it (forward, backward, optimized)",
         function);
  return *held.trace;
}

/// The forward or backward part of a trace. None where there is no gradient.
nb::object part_of(const HeldProgram& held, bool backward) {
  const Trace& trace = trace_of(held, backward ? "backward" : "forward");
  if (!trace.gradient || !trace.gradient->error.empty()) return backward ? nb::none() : nb::cast(held);
  program::Split parts = program::split(trace);
  return nb::cast(hold(backward ? std::move(parts.backward) : std::move(parts.forward)));
}

nb::list alias_trees(const HeldProgram& held) {
  const auto value = [&](program::ValueId id) { return nb::cast(ProgramValue{held, id, {}}); };
  nb::list trees;
  const program::AliasTrees found(*held.program);
  for (const program::AliasTree& tree : found.all()) {
    if (tree.members.size() < 2) continue;
    nb::list members, writes;
    for (const program::ValueId member : tree.members) members.append(value(member));
    for (const program::TreeWrite& write : tree.writes)
      writes.append(nb::cast(ProgramOp{held, static_cast<size_t>(write.op)}));
    nb::dict entry;
    entry["root"] = value(tree.root);
    entry["members"] = members;
    entry["writes"] = writes;
    trees.append(entry);
  }
  return trees;
}

void register_text(nb::class_<HeldProgram>& type) {
  type.def("__str__", [](const HeldProgram& x) { return to_text(*x.program); })
      .def("__repr__",
           [](const HeldProgram& x) {
             return "<shard.Program with " + std::to_string(x.program->inputs.size()) + " inputs, " +
                    std::to_string(x.program->parameters.size()) + " parameters, " +
                    std::to_string(x.program->ops.size()) + " ops, " + std::to_string(x.program->outputs.size()) +
                    " outputs>";
           })
      .def(
          "__len__", [](const HeldProgram& x) { return x.program->ops.size(); }, "The number of ops.")
      .def(
          "__iter__", [](const HeldProgram& x) { return nb::iter(ops_of(x)); },
          nb::sig("def __iter__(self) -> Iterator[ProgramOp]"),
          "Iterates over the ops, in the order in which they run.")
      .def(
          "__eq__",
          [](const HeldProgram& x, nb::handle other) {
            HeldProgram y;
            return nb::try_cast(other, y) && y.program != nullptr && program::diff(*x.program, *y.program).empty();
          },
          "Whether the programs are equal except for the numbers of their values.")
      .def("__hash__", [](const HeldProgram& x) { return x.program->ops.size(); })
      .def(
          "to_dot", [](const HeldProgram& x) { return released([&] { return program::to_dot(*x.program); }); },
          "The program as a graph in the language of Graphviz. Needs no Graphviz.")
      .def(
          "to_svg", [](const HeldProgram& x) { return released([&] { return program::to_svg(*x.program); }); },
          "The program as an SVG drawing, made by Graphviz. Raises ArgumentError, with what to install, where `dot` is "
          "not in PATH.")
      .def(
          "to_json", [](const HeldProgram& x) { return program::to_json(trace_of(x, "to_json")); },
          "The text that save() writes.")
      .def(
          "save",
          [](const HeldProgram& x, nb::object path) {
            const auto name = nb::cast<std::string>(nb::module_::import_("os").attr("fsdecode")(path));
            program::save(trace_of(x, "save"), name);
          },
          nb::arg("path"), nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
          "Writes the program to a file as JSON, without the values of its parameters. load_program reads it.\n\n"
          "Raises ArgumentError where the file cannot be written, for two parameters of one name, and for a program "
          "that was made\n"
          "of the captured one (forward, backward, optimized).")
      .def(
          "diff",
          [](const HeldProgram& x, const HeldProgram& other) { return program::diff(*x.program, *other.program); },
          nb::arg("other"),
          "A line for everything that only this program (-) or only the other one (+) has. Empty where both are "
          "equal.");
}

void register_parts(nb::class_<HeldProgram>& type) {
  type.def_prop_ro(
          "inputs", [](const HeldProgram& x) { return named_values(x, x.program->inputs); },
          nb::sig("def inputs(self) -> list[ProgramValue | None]"))
      .def_prop_ro(
          "parameters", [](const HeldProgram& x) { return named_values(x, x.program->parameters, true); },
          nb::sig("def parameters(self) -> list[ProgramValue | None]"),
          "The tensors from outside that the program reads or writes.")
      .def_prop_ro(
          "outputs", [](const HeldProgram& x) { return named_values(x, x.program->outputs); },
          nb::sig("def outputs(self) -> list[ProgramValue | None]"))
      .def_prop_ro("ops", &ops_of, nb::sig("def ops(self) -> list[ProgramOp]"),
                   "The ops, in the order in which they run.")
      .def_prop_ro("alias_trees", &alias_trees, nb::sig("def alias_trees(self) -> list[dict[str, Any]]"),
                   "The buffers with several values: dicts of 'root', 'members' (values) and 'writes' (ops).")
      .def_prop_ro(
          "forward", [](const HeldProgram& x) { return part_of(x, false); }, nb::sig("def forward(self) -> Program"),
          "What a call runs: the function, which also returns what backward needs.")
      .def_prop_ro(
          "backward", [](const HeldProgram& x) { return part_of(x, true); },
          nb::sig("def backward(self) -> Program | None"),
          "What a backward pass runs. None where no output requires a gradient.")
      .def(
          "optimized",
          [](const HeldProgram& x, std::vector<std::string> skip, int64_t memory_goal) {
            return hold(released([&] {
              return program::run_passes(*x.program, {.skip = std::move(skip), .memory_goal = memory_goal});
            }));
          },
          nb::arg("skip") = std::vector<std::string>(), nb::arg("memory_goal") = 0,
          nb::sig("def optimized(self, skip: Sequence[str] = (), memory_goal: int = 0) -> Program"),
          "The program after the standard passes, as a call runs it. skip: names of passes to leave out.\n\n"
          "Raises ArgumentError for a name in `skip` that no pass has; shard.passes() lists them.");
}

}  // namespace

void register_programs(nb::module_& module) {
  register_ops(module);
  nb::class_<HeldProgram> type(module, "Program",
                               "A captured program. str() is its text; notebooks show it as a drawing.");
  register_text(type);
  type.def("__reduce__", [](const HeldProgram&) -> nb::object {
    raise_type_error(
        "[pickle] programs are not pickled: save(path) writes one to a file, and shard.load_program(path) reads it");
  });
  register_parts(type);
  module.def("_load", [](const std::string& path, const Scope& scope) {
    return hold(released([&] { return program::load(path, scope); }));
  });
  module.def("_from_json",
             [](const std::string& text, const Scope& scope) { return hold(program::from_json(text, scope)); });
  module.def(
      "passes",
      [] {
        std::vector<std::string> names;
        for (const program::Pass& pass : program::standard_passes(1)) {
          if (std::find(names.begin(), names.end(), pass.name) == names.end()) names.emplace_back(pass.name);
        }
        return names;
      },
      "The names of the standard passes, in the order in which they run.");
  register_captured(module);
}

}  // namespace shard::python
