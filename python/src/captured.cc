// Scopes of parameters, and captured functions.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "autograd.h"
#include "programs.h"

namespace shard::python {
namespace {

using program::Scope;

/// Calls a Python function that takes a list of tensors and returns one.
program::Function python_function(nb::callable function, std::shared_ptr<Scope> scope) {
  return [call = SharedObject(std::move(function)), scope = std::move(scope)](const std::vector<Tensor>& inputs) {
    return called_back([&] {
      const nb::object results = call.get()(list_of(inputs));
      return tensors_of(results, "capture", "the result of the function");
    });
  };
}

program::PassObserver python_observer(nb::handle observer) {
  if (observer.is_none()) return {};
  return [call = SharedObject(nb::borrow(observer))](std::string_view pass, const program::Program& before,
                                                     const program::Program& after) {
    called_back([&] { call.get()(nb::str(pass.data(), pass.size()), hold(before), hold(after)); });
  };
}

program::ExecutorOptions executor_options(const nb::kwargs& options) {
  program::ExecutorOptions executor;
  executor.fuse_block = nb::cast<int64_t>(options["fuse_block"]);
  executor.parallel_ns = nb::cast<double>(options["parallel_ns"]);
  executor.keep_arguments = nb::cast<bool>(options["keep_arguments"]);
  executor.device_graphs = nb::cast<bool>(options["device_graphs"]);
  return executor;
}

/// All options are passed: shard/programs.py has their defaults and checks their types.
void construct(CapturedFunction* self, nb::callable function, std::shared_ptr<Scope> scope, const nb::kwargs& options) {
  CaptureOptions captured;
  captured.scope = scope.get();  // which the function holds
  captured.capacity = nb::cast<size_t>(options["capacity"]);
  captured.passes = nb::cast<bool>(options["passes"]);
  captured.skip = nb::cast<std::vector<std::string>>(options["skip"]);
  captured.memory_goal = nb::cast<int64_t>(options["memory_goal"]);
  captured.executor = executor_options(options);
  captured.observer = python_observer(options["observer"]);
  new (self) CapturedFunction(python_function(std::move(function), std::move(scope)), std::move(captured));
}

void register_functions_that_run(nb::module_& module) {
  nb::class_<CapturedFunction>(module, "_Captured")
      .def("__init__", &construct, nb::arg("function"), nb::arg("scope").none(), nb::arg("options"))
      .def(
          "__init__",
          [](CapturedFunction* self, const HeldProgram& loaded) {
            if (loaded.trace == nullptr)
              fail(ErrorCode::invalid_argument,
                   "[LoadedProgram] takes the program that trace() or load_program returns; this one was made of it "
                   "(forward, backward, optimized)");
            new (self) CapturedFunction(*loaded.trace);
          },
          nb::arg("loaded"))
      .def("__call__",
           [](CapturedFunction& x, nb::handle inputs) {
             const std::vector<Tensor> tensors = tensors_of(inputs, "captured", "inputs", Nones::allowed);
             const CallSite site = current_site();
             return list_of(released([&] { return x(tensors, site); }));
           })
      .def("trace",
           [](CapturedFunction& x, nb::handle inputs) {
             const std::vector<Tensor> tensors = tensors_of(inputs, "trace", "inputs", Nones::allowed);
             return hold(released([&] { return program::Trace(x.trace(tensors)); }));
           })
      .def("stats",
           [](const CapturedFunction& x) {
             const CaptureStats stats = x.stats();
             return dict_of({{"hits", static_cast<int64_t>(stats.hits)},
                             {"misses", static_cast<int64_t>(stats.misses)},
                             {"evictions", static_cast<int64_t>(stats.evictions)},
                             {"entries", static_cast<int64_t>(stats.entries)}});
           })
      .def("memory", [](CapturedFunction& x, nb::handle inputs) {
        const std::vector<Tensor> tensors = tensors_of(inputs, "memory", "inputs", Nones::allowed);
        const program::MemoryReport report = released([&] { return x.memory(tensors); });
        return dict_of({{"block", report.block},
                        {"live", report.live},
                        {"outputs", report.outputs},
                        {"reshard_peak", report.reshard_peak}});
      });
}

void set_all(Scope& scope, nb::handle tensors) {
  if (!nb::isinstance<nb::dict>(tensors))
    nb::raise_type_error("[Scope] argument 'tensors' must be dict[str, Tensor], not %s",
                         nb::inst_name(tensors).c_str());
  for (const auto& [name, value] : nb::borrow<nb::dict>(tensors)) {
    const Tensor* const tensor = services->tensor(value.ptr());
    if (tensor == nullptr || !nb::isinstance<nb::str>(name))
      nb::raise_type_error("[Scope] argument 'tensors' must be dict[str, Tensor], but it has %s: %s",
                           nb::inst_name(name).c_str(), nb::inst_name(value).c_str());
    scope.set(nb::cast<std::string>(name), *tensor);
  }
}

}  // namespace

void register_captured(nb::module_& module) {
  register_functions_that_run(module);
  nb::class_<Scope>(
      module, "Scope",
      "Parameters by name: names for what captured functions take from outside, and what loaded programs take.")
      .def(
          "__init__",
          [](Scope* self, nb::object tensors) {
            new (self) Scope();
            if (!tensors.is_none()) set_all(*self, tensors);
          },
          nb::arg("tensors") = nb::none(),
          nb::sig("def __init__(self, tensors: dict[str, Tensor] | None = None) -> None"))
      .def(
          "__setitem__", [](Scope& x, const std::string& name, const Tensor& tensor) { x.set(name, tensor); },
          nb::arg("name"), nb::arg("tensor"))
      .def(
          "__getitem__",
          [](const Scope& x, const std::string& name) {
            if (!x.has(name)) throw nb::key_error(name.c_str());
            return x.get(name);
          },
          nb::arg("name"))
      .def(
          "__contains__",
          [](const Scope& x, nb::handle name) {
            return nb::isinstance<nb::str>(name) && x.has(nb::cast<std::string>(name));
          },
          nb::arg("name"))
      .def("__len__", [](const Scope& x) { return x.names().size(); })
      .def(
          "__iter__", [](const Scope& x) { return nb::iter(nb::cast(x.names())); },
          nb::sig("def __iter__(self) -> Iterator[str]"))
      .def("keys", &Scope::names, "The names, in alphabetical order.")
      .def("update", &set_all, nb::arg("tensors"), nb::sig("def update(self, tensors: dict[str, Tensor]) -> None"),
           "Adds tensors, or replaces those of the same name.")
      .def(
          "name_of",
          [](const Scope& x, const Tensor& tensor) -> nb::object {
            const std::string name = x.name_of(tensor);
            return name.empty() ? nb::none() : nb::object(nb::cast(name));
          },
          nb::arg("tensor"), nb::sig("def name_of(self, tensor: Tensor) -> str | None"),
          "The name of a tensor; None where it has none.")
      .def("__repr__", [](const Scope& x) {
        std::string text = "Scope(";
        for (const std::string& name : x.names()) text += (text.back() == '(' ? "" : ", ") + name;
        return text + ")";
      });
}

}  // namespace shard::python
