// Gradients: the members of Tensor, backward, grad, and hooks.
#include <nanobind/stl/string.h>

#include <mutex>
#include <optional>

#include "autograd.h"

namespace shard::python {

std::vector<Tensor> tensors_of(nb::handle sequence, const std::string& function, const char* argument, Nones nones) {
  const char* const accepted = nones == Nones::allowed ? "Tensor | None" : "Tensor";
  if (!nb::isinstance<nb::list>(sequence) && !nb::isinstance<nb::tuple>(sequence))
    nb::raise_type_error("[%s] argument '%s' must be Sequence[%s], not %s", function.c_str(), argument, accepted,
                         nb::inst_name(sequence).c_str());
  std::vector<Tensor> tensors;
  for (const nb::handle item : sequence) {
    const Tensor* const tensor = services->tensor(item.ptr());
    if (tensor == nullptr && !(item.is_none() && nones == Nones::allowed))
      nb::raise_type_error("[%s] argument '%s' must be Sequence[%s], but its item %zu is %s", function.c_str(),
                           argument, accepted, tensors.size(), nb::inst_name(item).c_str());
    tensors.push_back(tensor != nullptr ? *tensor : Tensor());
  }
  return tensors;
}

std::vector<Tensor> one_or_more(nb::handle object, const std::string& function, const char* argument, Nones nones) {
  if (const Tensor* const tensor = services->tensor(object.ptr())) return {*tensor};
  if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object))
    return tensors_of(object, function, argument, nones);
  nb::raise_type_error("[%s] argument '%s' must be Tensor | Sequence[Tensor], not %s", function.c_str(), argument,
                       nb::inst_name(object).c_str());
}

nb::list list_of(std::vector<Tensor> tensors) {
  nb::list list;
  for (Tensor& tensor : tensors) list.append(wrap(std::move(tensor)));
  return list;
}

namespace {

/// A tensor, or an undefined one for None.
Tensor optional_tensor(nb::handle object, const char* function, const char* argument) {
  if (object.is_none()) return {};
  if (const Tensor* const tensor = services->tensor(object.ptr())) return *tensor;
  nb::raise_type_error("[%s] argument '%s' must be Tensor | None, not %s", function, argument,
                       nb::inst_name(object).c_str());
}

/// A Python function that can be dropped before the C++ function that calls it.
class Droppable {
 public:
  explicit Droppable(nb::object function) : function_(SharedObject(std::move(function))) {}

  std::optional<SharedObject> get() {
    const std::lock_guard lock(mutex_);
    return function_;
  }
  void drop() {
    std::optional<SharedObject> dropped;  // freed without the lock, because that may run Python code
    const std::lock_guard lock(mutex_);
    dropped.swap(function_);
  }

 private:
  std::mutex mutex_;
  std::optional<SharedObject> function_;
};

/// Calls a hook with a gradient. Undefined: the hook keeps the gradient.
Tensor call_hook(Droppable& hook, const Tensor& gradient) {
  return called_back([&] {
    const std::optional<SharedObject> function = hook.get();
    if (!function) return Tensor();
    const nb::object result = function->get()(wrap(gradient));
    if (result.is_none()) return Tensor();
    if (const Tensor* const tensor = services->tensor(result.ptr())) return *tensor;
    nb::raise_type_error("[register_hook] a hook must return Tensor | None, not %s", nb::inst_name(result).c_str());
  });
}

/// What register_hook returns.
struct HookHandle {
  uint64_t id = 0;
  std::shared_ptr<Droppable> hook;
  nb::weakref tensor;  // the handle must not keep the tensor with its history

  void remove() {
    hook->drop();
    const nb::object alive = tensor();
    if (const Tensor* const found = alive.is_none() ? nullptr : services->tensor(alive.ptr())) remove_hook(*found, id);
  }
};

HookHandle register_hook(nb::handle self, nb::callable function) {
  const Tensor& tensor = nb::cast<const Tensor&>(self);
  auto hook = std::make_shared<Droppable>(std::move(function));
  const uint64_t id = add_hook(tensor, [hook](const Tensor& gradient) { return call_hook(*hook, gradient); });
  return {id, std::move(hook), nb::weakref(self)};
}

GradLayout grad_layout_of(const std::string& name) {
  if (name == "of_leaf") return GradLayout::of_leaf;
  if (name == "as_is") return GradLayout::as_is;
  fail(ErrorCode::invalid_argument, "[set_grad_layout] there is no gradient layout '{}'; pass 'of_leaf' or 'as_is'",
       name);
}

void register_leaves(nb::class_<Tensor>& tensor) {
  tensor.def_prop_rw(
      "requires_grad", [](const Tensor& x) { return x.requires_grad(); },
      [](const Tensor& x, bool wanted) { x.set_requires_grad(wanted); },
      "Whether gradients of this tensor are computed: set for a leaf, inherited by tensors that are computed from "
      "it.\n\n"
      "Setting it raises AutogradError for a tensor that was computed from such leaves, and for dtypes that are not "
      "floating point.");
  tensor.def(
      "requires_grad_",
      [](Tensor& x, bool wanted) -> Tensor& {
        x.set_requires_grad(wanted);
        return x;
      },
      nb::arg("requires_grad") = true, nb::rv_policy::reference, "Sets requires_grad and returns this tensor.");
  tensor.def_prop_rw(
      "grad", [](const Tensor& x) { return wrap(released([&] { return x.grad(); })); },
      [](const Tensor& x, nb::object gradient) { x.set_grad(optional_tensor(gradient, "grad", "gradient")); },
      nb::for_setter(nb::arg("gradient").none()),
      "The gradient that backward has accumulated in this leaf, of its shape, dtype and layout; None before.\n\n"
      "Set it to None to clear it. Raises ShapeError or DTypeError for another shape or dtype. A tensor that is not a "
      "leaf\n"
      "has one after retain_grad().");
  tensor.def_prop_ro(
      "is_leaf", [](const Tensor& x) { return x.is_leaf(); }, "Whether no recorded op has made this tensor.");
  tensor.def(
      "detach", [](const Tensor& x) { return x.detach(); }, "The same value in the same buffer, without history.");
  tensor.def(
      "retain_grad", [](const Tensor& x) { retain_grad(x); },
      "Keeps the gradient of a tensor that is not a leaf in its `grad` too, that of the latest backward.\n\n"
      "Raises AutogradError for a tensor that requires no gradient.");
}

void register_hooks(nb::module_& module, nb::class_<Tensor>& tensor) {
  nb::class_<HookHandle>(module, "HookHandle", "What Tensor.register_hook returns.")
      .def("remove", &HookHandle::remove, "Removes the hook and frees its function. Does nothing when called again.");
  tensor.def(
      "register_hook", [](nb::handle self, nb::callable hook) { return register_hook(self, std::move(hook)); },
      nb::arg("hook"), nb::sig("def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> HookHandle"),
      "Calls `hook(gradient)` with each gradient of the present value of this tensor in backward.\n\n"
      "The hook may return a replacement of the same shape and dtype, or None to keep the gradient. For a leaf it gets "
      "what\n"
      "is about to be added to `grad`. A write in place makes another value, whose gradients the hook does not get.\n"
      "A hook that holds this tensor itself is never freed, unless remove() is called on the handle: let it hold "
      "detach().\n"
      "An exception of the hook ends backward, and is raised there. Raises AutogradError for a tensor that requires no "
      "gradient.");
}

void register_backward(nb::module_& module, nb::class_<Tensor>& tensor) {
  tensor.def(
      "backward",
      [](const Tensor& x, nb::object gradient, bool retain_graph, bool create_graph) {
        const std::vector<Tensor> gradients = {optional_tensor(gradient, "backward", "gradient")};
        released([&] { backward({x}, gradients, {.retain_graph = retain_graph, .create_graph = create_graph}); });
      },
      nb::arg("gradient") = nb::none(), nb::arg("retain_graph") = false, nb::arg("create_graph") = false,
      nb::sig("def backward(self, gradient: Tensor | None = None, retain_graph: bool = False, create_graph: bool = "
              "False) -> None"),
      "Adds the gradients of this tensor to the `grad` of all leaves that it was computed from.\n\n"
      "gradient: where to start from, of this tensor's shape and dtype; may be left out for a tensor of one element.\n"
      "retain_graph: keeps what was saved for another backward over the same steps.\n"
      "create_graph: records the gradients, so that they can be differentiated; retains the graph.\n"
      "Raises AutogradError where nothing was recorded, where an earlier backward has freed the steps, and where a "
      "saved tensor\n"
      "was written since; the message names the lines of both.");
  module.def(
      "backward",
      [](nb::object outputs, nb::object grad_outputs, bool retain_graph, bool create_graph, int64_t bucket_bytes) {
        const std::vector<Tensor> from = one_or_more(outputs, "backward", "outputs"),
                                  gradients = grad_outputs.is_none() ? std::vector<Tensor>()
                                                                     : one_or_more(grad_outputs, "backward",
                                                                                   "grad_outputs", Nones::allowed);
        released([&] { backward(from, gradients, {retain_graph, create_graph, bucket_bytes}); });
      },
      nb::arg("outputs").none(), nb::arg("grad_outputs") = nb::none(), nb::arg("retain_graph") = false,
      nb::arg("create_graph") = false, nb::arg("bucket_bytes") = BackwardOptions().bucket_bytes,
      nb::sig("def backward(outputs: Tensor | Sequence[Tensor], grad_outputs: Tensor | Sequence[Tensor | None] | None "
              "= None, "
              "retain_graph: bool = False, create_graph: bool = False, bucket_bytes: int = 26214400) -> None"),
      "Adds the gradients of the sum of all elements of `outputs`, each times its `grad_outputs`, to the leaves.\n\n"
      "grad_outputs: one of the shape and dtype of each output; None for outputs of one element.\n"
      "bucket_bytes: gradients of distributed leaves are collected, and reduced together when they have this many "
      "bytes.\n"
      "Raises ArgumentError for another number of grad_outputs, and AutogradError as Tensor.backward does.");
}

nb::object grad_of(nb::handle outputs, nb::handle inputs, nb::handle grad_outputs, const BackwardOptions& options,
                   bool allow_unused) {
  const std::vector<Tensor> from = one_or_more(outputs, "grad", "outputs"), to = one_or_more(inputs, "grad", "inputs");
  const std::vector<Tensor> given = grad_outputs.is_none()
                                        ? std::vector<Tensor>()
                                        : one_or_more(grad_outputs, "grad", "grad_outputs", Nones::allowed);
  std::vector<Tensor> gradients = released([&] { return grad(from, to, given, options, allow_unused); });
  if (services->tensor(inputs.ptr()) != nullptr) return wrap(std::move(gradients[0]));
  return nb::tuple(list_of(std::move(gradients)));
}

void register_grad(nb::module_& module) {
  module.def(
      "grad",
      [](nb::object outputs, nb::object inputs, nb::object grad_outputs, bool retain_graph, bool create_graph,
         bool allow_unused) {
        return grad_of(outputs, inputs, grad_outputs, {.retain_graph = retain_graph, .create_graph = create_graph},
                       allow_unused);
      },
      nb::arg("outputs").none(), nb::arg("inputs").none(), nb::arg("grad_outputs") = nb::none(),
      nb::arg("retain_graph") = false, nb::arg("create_graph") = false, nb::arg("allow_unused") = false,
      nb::sig("def grad(outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor], grad_outputs: Tensor | "
              "Sequence[Tensor | None] | None = None, retain_graph: bool = False, create_graph: bool = False, "
              "allow_unused: bool = "
              "False) -> Tensor | tuple[Tensor | None, ...] | None"),
      "The gradients of `inputs`, each with its shape, dtype and layout; nothing is added to leaves.\n\n"
      "Returns a tensor where `inputs` is a tensor, else a tuple. An input that no output depends on raises "
      "AutogradError, or has\n"
      "the gradient None where allow_unused is set. The other arguments and errors are those of backward.");
  module.def(
      "set_grad_layout", [](const Tensor& x, const std::string& layout) { set_grad_layout(x, grad_layout_of(layout)); },
      nb::arg("leaf"), nb::arg("layout"),
      "The layout in which the gradient of a distributed leaf is kept.\n\n"
      "'of_leaf' (the initial one): reduced, in the layout of the leaf. 'as_is': a pending sum stays pending, so that "
      "several\n"
      "backward passes are reduced once. Raises AutogradError for a tensor that is not a leaf.");
  module.def(
      "is_grad_enabled", [] { return grad_enabled(); }, "Whether calls of this thread are recorded for gradients.");
  module.def(
      "_set_grad_enabled", [](bool enabled) { return std::exchange(this_thread.grad_enabled, enabled); },
      nb::arg("enabled"));
}

}  // namespace

void register_autograd(nb::module_& module) {
  nb::class_<Tensor> tensor = nb::borrow<nb::class_<Tensor>>(nb::type<Tensor>());
  register_leaves(tensor);
  register_hooks(module, tensor);
  register_backward(module, tensor);
  register_grad(module);
  register_functions(module);
}

}  // namespace shard::python
