"""Scopes with and without recording, functions with gradients of their own, and functions that are recomputed in backward."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Sequence

from . import _core
from ._core import AutogradError, Tensor
from ._structure import flatten, unflatten

__all__ = ["Function", "FunctionContext", "checkpoint", "enable_grad", "no_grad", "recompute", "set_grad_enabled"]


def _error(text: str) -> AutogradError:
    error = AutogradError(text)
    error.code = "autograd"
    return error


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _GradMode:
    """Switches recording on or off in this thread: for a with block, or for the calls of a function that it decorates."""

    _enabled = True

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_core._set_grad_enabled(self._enabled))

    def __exit__(self, *error: Any) -> None:
        _core._set_grad_enabled(self._before.pop())

    def __call__(self, function: Callable) -> Callable:
        enabled, name = self._enabled, type(self).__name__
        if not callable(function):
            raise TypeError(f"[{name}] decorates functions, not {_name(function)}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"[{name}] cannot decorate an async function, which other tasks of the thread interrupt; "
                            "use a with block that contains no await")
        if inspect.isgeneratorfunction(function):
            return _decorated_generator(function, enabled)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = _core._set_grad_enabled(enabled)
            try:
                return function(*args, **kwargs)
            finally:
                _core._set_grad_enabled(before)

        return wrapper


def _decorated_generator(function: Callable, enabled: bool) -> Callable:
    """The mode holds while the generator runs, not while its caller does."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        resume: Callable = lambda: next(generator)  # noqa: E731
        while True:
            before = _core._set_grad_enabled(enabled)
            try:
                value = resume()
            except StopIteration as end:
                return end.value
            finally:
                _core._set_grad_enabled(before)
            try:
                sent = yield value
            except GeneratorExit:
                generator.close()
                raise
            except BaseException as error:
                resume = functools.partial(generator.throw, error)
            else:
                resume = functools.partial(generator.send, sent)

    return wrapper


class no_grad(_GradMode):
    """A with block, or a decorator of a function, in which nothing is recorded: results require no gradient, and leaves may be
    written in place. It holds for the calling thread.

        with shard.no_grad():
            w -= 0.1 * w.grad
    """

    _enabled = False


class enable_grad(_GradMode):
    """A with block, or a decorator of a function, in which calls are recorded, also inside of no_grad."""

    _enabled = True


class set_grad_enabled(_GradMode):
    """Switches recording in this thread on or off at once. As a with block or decorator, only there.

        shard.set_grad_enabled(False)
        with shard.set_grad_enabled(training):
            loss = model(x)
    """

    def __init__(self, enabled: bool):
        super().__init__()
        if not isinstance(enabled, bool):
            raise TypeError(f"[set_grad_enabled] argument 'enabled' must be bool, not {_name(enabled)}")
        self._enabled = enabled
        self._outside: bool | None = _core._set_grad_enabled(enabled)

    def __enter__(self) -> None:
        before = _core._set_grad_enabled(self._enabled)
        self._before.append(before if self._outside is None else self._outside)
        self._outside = None

    def __call__(self, function: Callable) -> Callable:
        if self._outside is not None:  # it was made to decorate
            _core._set_grad_enabled(self._outside)
            self._outside = None
        return super().__call__(function)


class FunctionContext:
    """What forward and backward of one call of a Function share. They may add attributes of their own."""

    #: For each argument of apply: whether it is a tensor that requires a gradient, where calls are recorded.
    needs_input_grad: tuple[bool, ...]

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self._saved: Sequence[Any] = ()
        self._constants: tuple[Tensor, ...] = ()
        self._values: tuple[list[Tensor], list[Tensor]] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for backward, which finds them in saved_tensors. A write to one of them before backward is an error there.

        Inputs and outputs keep their history for gradients of gradients; other tensors are constants for these.
        """
        for i, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(f"[save_for_backward] argument {i} must be Tensor | None, not {_name(tensor)}; "
                                "keep other values as attributes of ctx")
        self._saved = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Says of outputs of forward that they require no gradient."""
        self._constants = outputs

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of save_for_backward. Only backward may read it."""
        if self._values is None:
            raise _error("[saved_tensors] the saved tensors can be read only while backward runs")
        return tuple(self._saved_tensor(each) for each in self._saved)

    def _saved_tensor(self, saved: Any) -> Tensor | None:
        if saved is None:
            return None
        which, place, version = saved
        if which is not None:
            assert self._values is not None
            return self._values[which][place]
        if place.version != version:
            raise _error(f"[saved_tensors] a tensor of shape {place.shape} that forward has saved was written since: it was at "
                         f"version {version} and is at {place.version}. Save a copy, or write after backward")
        return place

    def _forget(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[bool]:
        """Replaces saved inputs and outputs by their places: a context must not own what owns it. Returns which outputs are
        differentiable."""
        differentiable = [not any(each is output for each in self._constants) for output in outputs]
        self._constants = ()
        saved = []
        for tensor in self._saved:
            found = None if tensor is None else (None, tensor, tensor.version)
            for which, candidates in ((1, outputs), (0, inputs)):
                for i, candidate in enumerate(candidates):
                    if candidate is tensor:
                        found = (which, i, 0)
            saved.append(found)
        self._saved = saved
        return differentiable


def _outputs_of(name: str, results: Any) -> tuple[Tensor, ...]:
    if isinstance(results, Tensor):
        return (results,)
    if not isinstance(results, (tuple, list)):
        raise TypeError(f"[{name}] forward must return Tensor | Sequence[Tensor], not {_name(results)}")
    for i, result in enumerate(results):
        if not isinstance(result, Tensor):
            raise TypeError(f"[{name}] forward must return Tensor | Sequence[Tensor], but its result {i} is {_name(result)}")
    return tuple(results)


def _run_backward(function: type[Function], ctx: FunctionContext, is_tensor: tuple[bool, ...], inputs: list[Tensor],
                  outputs: list[Tensor], grad_outputs: list[Tensor]) -> list[Tensor | None]:
    name = function.__name__
    ctx._values = inputs, outputs
    try:
        results = function.backward(ctx, *grad_outputs)
    finally:
        ctx._values = None  # outputs own this context
    gradients = list(results) if isinstance(results, (tuple, list)) else [results]
    count = len(is_tensor)
    if len(gradients) < count or any(each is not None for each in gradients[count:]):
        raise _error(f"[{name}] backward has returned {len(gradients)} gradients for {count} arguments of forward; return one for "
                     "each, None where there is none")
    for i, gradient in enumerate(gradients):
        if gradient is not None and not isinstance(gradient, Tensor):
            raise TypeError(f"[{name}] backward must return Tensor | None for each argument, but gradient {i} is {_name(gradient)}")
        if gradient is not None and not is_tensor[i]:
            raise _error(f"[{name}] backward has returned a gradient for argument {i}, which is no tensor; return None for it")
    return [gradient for gradient, tensor in zip(gradients, is_tensor) if tensor]


class Function:
    """A function with a gradient of its own: a class with the static methods forward and backward. Call `apply`.

        class Exp(shard.Function):
            @staticmethod
            def forward(ctx, x):
                y = shard.exp(x)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, grad_output):
                (y,) = ctx.saved_tensors
                return grad_output * y

        y = Exp.apply(x)

    forward gets the arguments of apply and runs without recording. Tensors that are arguments by themselves, not in lists, get
    gradients. backward gets the gradient of each output (zeros where nothing depends on it) and returns one for each argument of
    forward, None where there is none. It is recorded where gradients are differentiated again (create_graph).

    All inputs and outputs are version-checked: a write to one of them between forward and backward is an error in backward. A
    result whose buffer something else refers to, such as an attribute of ctx, is copied.
    """

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        raise NotImplementedError("a subclass of shard.Function needs the static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: FunctionContext, *grad_outputs: Tensor) -> Any:
        raise NotImplementedError("a subclass of shard.Function needs the static method backward(ctx, *grad_outputs)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls forward(ctx, *args), and records backward where a tensor among `args` requires a gradient.

        Returns a tensor where forward returns one, else a tuple.
        """
        is_tensor = tuple(isinstance(arg, Tensor) for arg in args)
        inputs = [arg for arg in args if isinstance(arg, Tensor)]
        recorded = _core.is_grad_enabled()
        ctx = FunctionContext(tuple(recorded and tensor and arg.requires_grad for tensor, arg in zip(is_tensor, args)))
        single = True
        differentiable: list[bool] = []

        def forward(_: list[Tensor]) -> list[Tensor]:
            nonlocal single, differentiable
            results = cls.forward(ctx, *args)
            single = isinstance(results, Tensor)
            outputs = _outputs_of(cls.__name__, results)
            differentiable = ctx._forget(inputs, outputs)
            return list(outputs)

        backward = functools.partial(_run_backward, cls, ctx, is_tensor)
        outputs = _core._apply(cls.__name__, forward, backward, inputs)
        outputs = [output if wanted else output.detach() for output, wanted in zip(outputs, differentiable)]
        return outputs[0] if single else tuple(outputs)


def checkpoint(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls function(*args, **kwargs) without keeping what its gradient needs: backward calls it again.

    Tensors may be in nested tuples, lists and dicts, in arguments and results. Tensors that the function takes from outside, such
    as parameters of a model, get gradients too. Both calls draw the same random numbers and have the same policies. The function
    must do the same both times, and must not write a tensor from outside; tensors that it reads must not be written before
    backward, which raises AutogradError then. An exception of the function in backward is raised there.
    """
    inputs: list[Tensor] = []
    structure = flatten((args, kwargs), inputs)
    result: Any = None

    def run(tensors: list[Tensor]) -> list[Tensor]:
        nonlocal result
        positional, named = unflatten(structure, iter(tensors))
        outputs: list[Tensor] = []
        result = flatten(function(*positional, **named), outputs)
        return outputs

    outputs = _core._recompute(run, inputs)
    return unflatten(result, iter(outputs))


def recompute(function: Callable) -> Callable:
    """A decorator: calls of the function are recomputed in backward, see checkpoint."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, **kwargs)

    return wrapper
