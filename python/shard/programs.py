"""Captured functions: Python functions of tensors that run once, are recorded as programs, and then run as these."""

from __future__ import annotations

import copy
import functools
import html
import os
import shutil
import sys
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable

from . import _core
from ._core import ArgumentError, AutogradError, CaptureError, Program, Scope, Tensor
from ._errors import with_code
from ._structure import TENSOR, flatten, statics, unflatten

__all__ = ["CapturedFunction", "LoadedProgram", "capture", "load_program", "parse_program"]


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _scope_of(scope: Any, function: str, argument: str) -> Scope | None:
    if scope is None or isinstance(scope, Scope):
        return scope
    if isinstance(scope, dict):
        return Scope(scope)
    raise TypeError(f"[{function}] argument '{argument}' must be Scope | dict[str, Tensor] | None, not {_name(scope)}")


# The options of a capture: the type that each has, as messages have it, and its default.
_OPTIONS: dict[str, tuple[Any, str, Any]] = {
    "capacity": (int, "int", 16),
    "passes": (bool, "bool", True),
    "skip": ((list, tuple), "Sequence[str]", ()),
    "memory_goal": (int, "int", 0),
    "fuse_block": (int, "int", 8192),
    "parallel_ns": ((int, float), "float", 5000.0),
    "keep_arguments": (bool, "bool", True),
    "device_graphs": (bool, "bool", True),
}


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name, (accepted, text, _) in _OPTIONS.items():
        value = options[name]
        good = isinstance(value, accepted) and not (isinstance(value, bool) and accepted is not bool)
        if good and name == "skip":
            good = all(isinstance(each, str) for each in value)
        if not good:
            raise TypeError(f"[capture] argument '{name}' must be {text}, not {_name(value)}")
        if accepted is int and value < 0:
            raise with_code(ArgumentError(f"[capture] argument '{name}' must not be negative, but is {value}"), "invalid_argument")
    options["skip"] = list(options["skip"])
    options["parallel_ns"] = float(options["parallel_ns"])
    return options


class _Caller:
    """How C++ calls the function of a variant. C++ objects must not own it: the garbage collector does not see their references."""

    __slots__ = ("variant",)

    def __init__(self, variant: _Variant):
        self.variant = weakref.ref(variant)

    def __call__(self, tensors: list[Tensor]) -> list[Tensor]:
        variant = self.variant()
        if variant is None:
            raise with_code(AutogradError("[captured] create_graph calls the captured function again, but that was freed, or it has "
                                           "dropped what belongs to these arguments (structures); keep a reference to it"), "autograd")
        return variant.call(tensors)


class _Variant:
    """A captured function for one structure of its arguments."""

    __slots__ = ("__weakref__", "captured", "function", "name", "result", "structure")

    def __init__(self, owner: CapturedFunction, structure: Any):
        self.function = owner.__wrapped__
        self.name = owner.__name__
        self.structure = structure  # or the number of arguments that are all tensors
        self.result: Any = None
        self.captured = _core._Captured(_Caller(self), owner._scope, **owner._options)

    def call(self, tensors: list[Tensor]) -> list[Tensor]:
        """Calls the function while it is captured, and where it is called as usual (in another capture)."""
        if isinstance(self.structure, int):
            returned = self.function(*tensors)
        else:
            args, kwargs = unflatten(self.structure, iter(tensors))
            returned = self.function(*args, **kwargs)
        outputs: list[Tensor] = []
        result = flatten(returned, outputs)
        for place, value in statics(result):
            if not isinstance(value, (int, float, complex, str, bytes, type(None), _core.dtype)):
                raise TypeError(f"[capture] '{self.name}' must return tensors, numbers, strings and None, in tuples, lists and dicts, but "
                                f"its result{place} is {_name(value)}")
        if self.result is not None and self.result != result:
            raise with_code(CaptureError(f"[capture] '{self.name}' returns another structure, or other Python values, than it did for "
                                          "tensors of other shapes, dtypes or gradients; return the same structure for all of them, or "
                                          "pass what decides about it as a Python value"), "capture")
        self.result = result
        return outputs


class _Kept(threading.local):
    """The programs of a captured function for the calling thread, and what its dropped programs have counted.

    Each thread has its own, because calls of one program must not overlap, and a rank is a thread. They are freed with the thread.
    """

    def __init__(self) -> None:
        self.variants: OrderedDict[Any, _Variant] = OrderedDict()
        self.dropped = dict.fromkeys(("hits", "misses", "evictions"), 0)

    def drop(self, variant: _Variant) -> None:
        stats = variant.captured.stats()
        self.dropped["evictions"] += stats.pop("entries")
        for name, count in stats.items():
            self.dropped[name] += count


class _OfInstance:
    """The captured function of a method of one object, kept in the object's __dict__. Copies of the object capture their own."""

    function: CapturedFunction | None = None

    def __reduce__(self) -> tuple:
        return _OfInstance, ()


class CapturedFunction:
    """A function whose calls run programs. shard.capture makes one."""

    def __init__(self, function: Callable, *, scope: Scope | dict[str, Tensor] | None = None,
                 observer: Callable[[str, Program, Program], None] | None = None, structures: int = 32, **options: Any):
        if not callable(function):
            raise TypeError(f"[capture] argument 'function' must be a callable, not {_name(function)}")
        if not isinstance(structures, int) or isinstance(structures, bool) or structures < 1:
            raise TypeError(f"[capture] argument 'structures' must be a positive int, not {structures!r}")
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise TypeError(f"[capture] has no argument '{unknown[0]}'; it has scope, observer, structures, {', '.join(_OPTIONS)}")
        self._name = getattr(function, "__name__", _name(function))
        functools.update_wrapper(self, function)
        self.__name__ = self._name
        self._scope = _scope_of(scope, "capture", "scope")
        self._options = _checked({name: options.get(name, default) for name, (_, _, default) in _OPTIONS.items()})
        self._options["observer"] = None if observer is None else _Observer(self)
        self._observer = observer
        self._structures = structures
        self._kept = _Kept()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        variant, tensors = self._find(args, kwargs)
        outputs = variant.captured(tensors)
        return outputs[0] if variant.result is TENSOR else unflatten(variant.result, iter(outputs))

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """The program for arguments like these, with its gradient. Captures the function where none is kept; runs nothing."""
        variant, tensors = self._find(args, kwargs)
        return variant.captured.trace(tensors)

    def memory(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """The bytes that the program for arguments like these needs.

        'block': those of the block that holds its buffers, 'live': the most that are in use at one time, 'outputs': those of its
        outputs, 'reshard_peak': the most that results of reshards take.
        """
        variant, tensors = self._find(args, kwargs)
        return variant.captured.memory(tensors)

    def stats(self) -> dict[str, int]:
        """Of the calls of this thread: 'hits' and 'misses' (calls that had to capture first), 'evictions', and 'entries', the
        programs kept."""
        kept = self._kept
        total = {**kept.dropped, "entries": 0}
        for variant in list(kept.variants.values()):
            for name, count in variant.captured.stats().items():
                total[name] += count
        return total

    def clear(self) -> None:
        """Frees the programs of this thread. Its next call captures the function again."""
        self._kept.variants.clear()

    def _find(self, args: tuple, kwargs: dict[str, Any]) -> tuple[_Variant, list[Tensor]]:
        tensors = list(args)
        structure: Any = len(args)
        for arg in kwargs or args:
            if type(arg) is not Tensor:
                tensors = []
                structure = flatten((args, kwargs), tensors)
                break
        kept = self._kept
        try:
            variant = kept.variants.get(structure)
        except TypeError:
            raise self._unhashable(structure) from None
        if variant is not None:
            kept.variants.move_to_end(structure)
            return variant, tensors
        variant = kept.variants[structure] = _Variant(self, structure)
        if len(kept.variants) > self._structures:
            kept.drop(kept.variants.popitem(last=False)[1])
        return variant, tensors

    def _unhashable(self, structure: Any) -> TypeError:
        args, kwargs = structure[2:]
        arguments = [*enumerate(args[2:]), *zip(kwargs[1], kwargs[2:])]
        for name, argument in arguments:
            for place, value in statics(argument):
                try:
                    hash(value)
                except TypeError:
                    return TypeError(f"[capture] argument {name!r}{place} of '{self._name}' must be a Tensor, or a hashable value that the "
                                     f"capture keeps as a constant, not {_name(value)}; shard.tensor makes a tensor of data")
        return TypeError(f"[capture] a key of a dict among the arguments of '{self._name}' cannot be hashed")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A decorated method: each object has a captured function of its own, which lives as long as the object."""
        if instance is None:
            return self
        functions = getattr(instance, "__dict__", None)
        if functions is None:
            raise TypeError(f"[capture] '{self._name}' is a method of {_name(instance)}, which has no __dict__ to keep its programs; "
                            "capture a function instead")
        own = functions.setdefault(f"_captured_{self._name}_{id(self)}", _OfInstance())
        if own.function is None:
            method = functools.update_wrapper(functools.partial(self.__wrapped__, instance), self.__wrapped__)
            own.function = self._copy(method)
        return own.function

    def _copy(self, function: Callable) -> CapturedFunction:
        options = {name: value for name, value in self._options.items() if name != "observer"}
        return CapturedFunction(function, scope=self._scope, observer=self._observer, structures=self._structures, **options)

    def __deepcopy__(self, memo: dict) -> CapturedFunction:
        """Captures anew: a copy of a model whose attribute is a captured method has one of its own."""
        return self._copy(copy.deepcopy(self.__wrapped__, memo))

    def __reduce__(self) -> str:
        """A function of a module is pickled by its name, as Python's are."""
        if getattr(sys.modules.get(self.__module__), self.__qualname__, None) is not self:
            raise TypeError(f"[pickle] the captured function '{self._name}' is no function of a module, which pickles could name; save a "
                            "program of it, as in f.trace(*args).save(path), and load it with shard.load_program(path)")
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<shard.CapturedFunction {self._name}>"


class _Observer:
    """How C++ calls an observer: without owning the function that has it."""

    __slots__ = ("owner",)

    def __init__(self, owner: CapturedFunction):
        self.owner = weakref.ref(owner)

    def __call__(self, name: str, before: Program, after: Program) -> None:
        owner = self.owner()
        if owner is not None and owner._observer is not None:
            owner._observer(name, before, after)


def capture(function: Callable | None = None, /, **options: Any) -> Any:
    """Makes a function run as a program: @shard.capture, @shard.capture(passes=False), or shard.capture(function, ...).

        @shard.capture
        def step(x, y):
            loss = shard.mean(shard.square(shard.matmul(x, w) - y))
            dw = shard.grad(loss, w)
            with shard.no_grad():
                shard.subtract_(w, 0.1 * dw)
            return loss

    The first call with arguments of a kind runs the function on tensors without values, and records what it does with them. Later
    calls run the program, and not the function: what it prints, and what it changes in Python, happens only while it is captured.
    Control flow that depends on values of tensors raises CaptureError.

    Arguments may have tensors in nested tuples, lists and dicts. All other values must be hashable, and are constants: other values
    are other programs, so pass a learning rate that changes as a tensor. The function returns tensors, or a nested structure of
    them, that has the same form for all shapes. Tensors that it takes from outside (parameters) are read anew by each run, and are
    written in place. Results have gradients, also for parameters. Each thread captures the function for itself, and so does each
    object for a decorated method.

    Options:
        scope: a shard.Scope, or a dict, with the names of parameters for files.
        capacity: how many programs to keep for each structure of arguments (16); structures: for how many structures (32).
        passes: whether programs are optimised (True); skip: names of passes to leave out, see shard.passes().
        memory_goal: bytes that the buffers of a program should fit in; values are recomputed for that. 0: no limit.
        observer: called as observer(name, before, after) with what each pass has done to a program.
        fuse_block: elements in a block of fused loops (8192; 0: no fusion). parallel_ns: how long kernels must take to run in parallel
        (5000; 0: never). keep_arguments: whether tensors of a run are held until the next (True). device_graphs: whether kernels
        are issued as graphs, on devices that have these (True).
    """
    if function is None:
        return lambda each: CapturedFunction(each, **options)
    return CapturedFunction(function, **options)


class LoadedProgram:
    """A program that was read from a file. Call it with tensors like those that it was captured with, in the same order."""

    def __init__(self, program: Program):
        #: The program that was read.
        self.program = program
        self._captured = _core._Captured(program)

    def __call__(self, *args: Any) -> Any:
        """Runs the program. Tensors in nested tuples, lists and dicts are taken in their order; None stands for an absent one.

        Returns a tensor where the program has one output, else a tuple. Raises ArgumentError for arguments of other types, with
        those that are expected.
        """
        tensors: list[Any] = []
        for place, value in statics(flatten(args, tensors)):
            if value is not None:
                raise TypeError(f"[LoadedProgram] argument {place} must be Tensor | None, not {_name(value)}: a file has no Python values")
        if any(arg is None for arg in args):
            tensors = list(args)
        outputs = self._captured(tensors)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def stats(self) -> dict[str, int]:
        return self._captured.stats()

    def memory(self, *args: Tensor) -> dict[str, int]:
        return self._captured.memory(list(args))

    def __repr__(self) -> str:
        return f"<shard.LoadedProgram {self.program!r}>"


def load_program(path: Any, parameters: Scope | dict[str, Tensor] | None = None) -> LoadedProgram:
    """Reads a program that Program.save has written.

    parameters: the tensors that its parameters stand for, by their names. Everything is checked before anything runs: raises
    ArgumentError with the path, the place in the file and what was expected there.
    """
    return LoadedProgram(_core._load(os.fsdecode(path), _scope_of(parameters, "load_program", "parameters") or Scope()))


def parse_program(text: str, parameters: Scope | dict[str, Tensor] | None = None) -> LoadedProgram:
    """The same for the text that Program.to_json returns."""
    if not isinstance(text, str):
        raise TypeError(f"[parse_program] argument 'text' must be str, not {_name(text)}")
    return LoadedProgram(_core._from_json(text, _scope_of(parameters, "parse_program", "parameters") or Scope()))


# In notebooks programs are drawings. Graphviz takes minutes for large ones, which are shown as text.
_MOST_OPS_DRAWN = 400


def _undrawn(program: Program) -> str | None:
    """Why a notebook shows the program as text; None where it draws it."""
    if len(program) > _MOST_OPS_DRAWN:
        return f"{len(program)} ops: to_svg() draws them"
    if shutil.which("dot") is None:
        return "install Graphviz (Debian package graphviz) to see this program as a drawing"
    return None


def _repr_svg_(self: Program) -> str | None:
    return self.to_svg() if _undrawn(self) is None else None


def _repr_html_(self: Program) -> str | None:
    why = _undrawn(self)
    return None if why is None else f"<pre>{html.escape(str(self))}</pre>\n<p><small>{html.escape(why)}</small></p>"


Program._repr_svg_ = _repr_svg_
Program._repr_html_ = _repr_html_
