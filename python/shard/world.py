"""Ranks: runs of Python functions on all ranks of a world, policies and random seeds of a rank."""

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading

from . import _core
from ._errors import with_code

__all__ = ["init", "run", "save_trace", "policies", "seed", "manual_seed", "local_map"]

_core._set_log(logging.getLogger("shard").warning)  # such as what the policy comm="warn" reports


def run(fn, nranks=4, *, args=(), kwargs=None, devices=None, timeout=None, seed=0, debug=False, trace=None):
    """Runs ``fn(*args, **kwargs)`` on every rank of a new world and returns the results, a list by rank.

    The ranks are threads of this process. In a job of MPI this process runs one of its ranks instead, ``nranks`` is
    ignored, and the list has that rank's result alone: the same script works with ``python`` and with ``mpirun``. An MPI
    that was initialised before (by mpi4py) is used, and left to its owner to finalize.

    In ``fn``, ``shard.rank()`` and ``shard.world_size()`` say where it runs. All ranks make the same calls on distributed
    tensors in the same order. When a rank raises, collectives of the others fail with CommunicationError, and the first
    exception is raised here, with the rank in a note. Ctrl-C stops all ranks.

    Args:
      nranks: the number of ranks.
      devices: the default devices of ranks 0, 1, ...: "cuda", or a list such as ["cuda:0", "cuda:1"], from the first again
        where there are fewer than ranks. Default: the environment variable SHARD_DEVICE, or the CPU.
      timeout: seconds that a collective waits for other ranks. Default: 30.
      seed: of the world's random generator.
      debug: compare before each collective what the ranks are about to do (local ranks always do).
      trace: a path: the collectives and calls of all ranks are written there, to open in https://ui.perfetto.dev. In a job
        of MPI each rank writes a file of its own, "step.rank3.json" for "step.json".

    Distributed tensors among the results tell their shape and layout, but only ranks of their own world can use them:
    return ``x.full_tensor()`` or ``x.local()`` for their values.
    """
    _check_callable("run", fn)
    if not isinstance(nranks, int) or isinstance(nranks, bool):
        raise TypeError(f"run(): argument 'nranks' must be int, not {type(nranks).__name__}")
    program = functools.partial(fn, *args, **(kwargs or {}))
    if trace is None:
        return _core._run(program, nranks, timeout, seed, devices, debug, False)
    try:
        return _core._run(program, nranks, timeout, seed, devices, debug, True)
    finally:
        if not _core.in_world():
            save_trace(trace)


def init(*, devices=None, timeout=None, seed=0, debug=False):
    """Makes the main thread of this process a rank, until the script ends: what ``shard.run`` does for a function, for a script.

    In a job of MPI (``mpirun -n 4 python script.py``) the process is its rank of the job, else the only rank of a world of one. Call it
    once, before the script uses distributed tensors; the arguments are those of ``shard.run``. At its end a script waits for those of
    the other ranks. An exception that ends the script is printed and fails the other ranks, so that the job ends.

    Raises ArgumentError in other threads, in ranks, and when it is called again.
    """
    if threading.current_thread() is not threading.main_thread():
        raise with_code(_core.ArgumentError("[init] call it in the main thread of the script"), "invalid_argument")
    _core._begin_script(timeout, seed, devices, debug)
    print_exception = sys.excepthook

    def end(kind, error, trace):
        print_exception(kind, error, trace)
        if not hasattr(sys, "ps1"):  # an interactive session goes on
            _core._end_script(f"{kind.__name__}: {error}")

    sys.excepthook = end
    atexit.register(_core._end_script, None)


def save_trace(path):
    """Writes what the ranks of the last world have sent, and with ``run(..., trace=path)`` also their calls, to a file that
    opens in https://ui.perfetto.dev. Returns the paths, more than one in a job of MPI. Raises ArgumentError inside of ranks.
    """
    return _core._save_trace(os.fspath(path))


@contextlib.contextmanager
def policies(**wanted):
    """Changes policies of this rank for a scope: ``with shard.policies(comm="forbid"):``.

    view: "strict", "sync" or "temporary"; inplace: "keep", "error" or "adopt"; comm: "allow", "warn", "forbid" or
    "forbid_reshards"; fallback: "error" or "replicate"; promotion: "error", "replicate" or "replicate_checked"; save:
    "original" or "resharded"; sums: "float32" or "rounded"; algorithms: "deterministic" or "fastest", which also
    allows algorithms that add up in another order in each run, or that make something else of NaN and infinity; a
    captured function cannot change it inside. See docs/semantics.md. With comm="warn" the logger "shard" of
    ``logging`` gets a warning for each call that communicates. Raises ArgumentError for other names, and
    LayoutError outside of ranks. All ranks set the same policies.
    """
    before = _core._set_policies(wanted)
    try:
        yield
    finally:
        _core._set_policies({name: before[name] for name in wanted})


def manual_seed(n):
    """Seeds the random numbers of this rank: of distributed calls, for which all ranks pass the same seed, and of calls on
    plain tensors. Outside of ranks, those of this thread.
    """
    key = (_seed_value(n), 0)
    _core._set_generator_state((key, key))


@contextlib.contextmanager
def seed(n):
    """Seeds random numbers as ``manual_seed`` does, and restores the generators at the end of the scope."""
    before = _core._generator_state()
    manual_seed(n)
    try:
        yield
    finally:
        _core._set_generator_state(before)


def local_map(function=None, in_layouts=None, out_layouts=None, *, name=None, outputs=None):
    """Makes of a function on local shards a function on distributed tensors.

    ``local_map(f, in_layouts, out_layouts)(x, y)`` reshards x and y to ``in_layouts``, passes f this rank's local shards,
    which are plain tensors that it must not write, and makes what f returns (a tensor or a tuple of them) the shards of
    distributed tensors in ``out_layouts``. Without ``function`` it is a decorator. Gradients pass through it.

    Args:
      in_layouts: a Layout for each argument; None passes the argument, or its existing shard, as it is.
      out_layouts: a Layout for each result. They need the number of dims, by ``ndim``, a text, or ``outputs``.
      name: the function's name in messages and traces.
      outputs: a list of (shape, dtype) of the whole results. Without it all ranks exchange the shapes of their shards.
    """
    if function is None:
        return functools.partial(local_map, in_layouts=in_layouts, out_layouts=out_layouts, name=name, outputs=outputs)
    _check_callable("local_map", function)
    ins = _layouts("in_layouts", in_layouts)
    outs = _layouts("out_layouts", out_layouts)
    called = name or getattr(function, "__name__", "local_map")

    @functools.wraps(function)
    def mapped(*tensors):
        return _core._local_map(function, list(tensors), ins, outs, called, outputs)

    return mapped


def _layouts(argument, layouts):
    if layouts is None:
        raise TypeError(f"local_map(): missing argument '{argument}'")
    return [layouts] if isinstance(layouts, _core.Layout) else list(layouts)


def _seed_value(n):
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"seed(): argument 'n' must be int, not {type(n).__name__}")
    return n % 2**64


def _check_callable(function, fn):
    if not callable(fn):
        raise TypeError(f"{function}(): argument 'fn' must be callable, not {type(fn).__name__}")
