"""What a function does on a mesh: its calls with layouts, reshards and bytes, and who holds which part of its tensors."""

import html

from . import _core
from . import plots
from .dry_reports import world_size_of
from .world import _check_callable

__all__ = ["explain", "Explanation"]

_COLUMNS = ["op", "inputs", "reshards", "outputs", "aliases", "bytes"]
_MOST_PICTURES = 12


def explain(fn, *args, mesh=None, nranks=None, rank=0, **kwargs):
    """Runs ``fn(*args, **kwargs)`` and returns an Explanation: the table of its distributed calls.

    Inside of a rank, fn runs there as usual; all ranks call explain. Outside of ranks pass ``mesh`` (or ``nranks``): fn, which
    then makes its tensors itself, runs as one simulated rank without data, as in ``shard.dry_run``. Without either it runs
    on plain tensors, which have no layouts, and the table is empty.
    """
    _check_callable("explain", fn)
    if _core.in_world():
        return _observed(fn, args, kwargs)
    if mesh is not None or nranks is not None:
        size = world_size_of("explain", mesh, nranks)
        (result,) = _core._run_dry(lambda: _observed(fn, args, kwargs), size, rank, 0, None)
        return result
    return Explanation([], fn(*args, **kwargs), [], plain=True)


def _observed(fn, args, kwargs):
    calls = []
    observer = _core._CallObserver()
    observer.enter(calls)
    try:
        result = fn(*args, **kwargs)
    finally:
        observer.exit()
    return Explanation(calls, result, [*_tensors("argument", args), *_tensors("argument", kwargs), *_tensors("result", result)])


def _tensors(name, value):
    """The distributed tensors in a value: (name, shape, text of the layout, shards)."""
    if isinstance(value, _core.Tensor):
        if value.is_dist:
            yield name, value.shape, f"{value.layout.text} on {value.mesh}", _core._shards(value)
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _tensors(f"{name} {i}", each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(f"{name} {key}", each)


def _calls(calls):
    return f"{len(calls)} call" + ("" if len(calls) == 1 else "s")


class Explanation:
    """``str()`` is a table of the calls; notebooks show it as HTML, with a picture of the tensors.

    Attributes:
      calls: a list of dicts: op; inputs and outputs with their layouts; reshards, with steps and bytes; aliases; bytes, which
        all ranks send together.
      bytes: of all calls together.
      tensors: a list of (name, shape, layout, shards) of the distributed arguments and results; shards is a list of (rank,
        offset, shape).
      result: what the function returned.
    """

    def __init__(self, calls, result, tensors, plain=False):
        self.calls = calls
        self.result = result
        self.tensors = tensors
        self._plain = plain

    @property
    def bytes(self):
        return sum(call["bytes"] for call in self.calls)

    def __str__(self):
        if not self.calls:
            text = "no distributed calls"
            return text + ": pass mesh= to explain the function on a mesh, or call it inside of shard.run()" if self._plain else text
        return f"{plots.text_table(_COLUMNS, self.calls)}\n{_calls(self.calls)}, {self.bytes} bytes sent by all ranks together"

    def __repr__(self):
        return f"<Explanation: {_calls(self.calls)}, {self.bytes} bytes>"

    def _repr_html_(self):
        if not self.calls and not self.tensors:
            return f"<p>{html.escape(str(self))}</p>"
        pictures = "".join(self._picture(*each) for each in self.tensors[:_MOST_PICTURES])
        return f"{plots.html_table(_COLUMNS, self.calls)}<p>{self.bytes} bytes sent by all ranks together</p><div>{pictures}</div>"

    @staticmethod
    def _picture(name, shape, layout, shards):
        caption = html.escape(f"{name} {list(shape)} {layout}")
        return f"<figure style='display:inline-block;margin:8px'>{plots.shards_svg(shape, shards)}<figcaption>{caption}</figcaption></figure>"
