"""Dry runs: what one rank of a large mesh would compute, send and hold, without data."""

import functools
import html
import json

from . import _core
from . import plots
from .world import _check_callable

__all__ = ["dry_run", "DryReport"]


def dry_run(fn, mesh=None, *, nranks=None, rank=0, args=(), kwargs=None, seed=0, devices=None):
    """Runs ``fn(*args, **kwargs)`` as one simulated rank, without data, and returns a DryReport.

    Tensors have shapes, layouts, versions and aliases but no elements, kernels do not run, and collectives are counted but
    send nothing: a world of 4096 ranks takes no more than one of 4. Reading a value raises NoDataError.

    Args:
      mesh: the world has the ranks of this ProcessMesh (0 to its highest one).
      nranks: the number of ranks, where that is not given by ``mesh``.
      rank: the rank that is simulated.
    """
    _check_callable("dry_run", fn)
    size = world_size_of("dry_run", mesh, nranks)

    def program():
        result = fn(*args, **(kwargs or {}))
        return result, _core._dry_report()

    ((result, (text, report)),) = _core._run_dry(program, size, rank, seed, devices)
    return DryReport(text, report, result)


def world_size_of(function, mesh, nranks):
    if nranks is not None:
        return nranks
    if not isinstance(mesh, _core.ProcessMesh):
        raise TypeError(f"{function}(): pass mesh, a ProcessMesh, or nranks; not {type(mesh).__name__}")
    return max(mesh.process_ids) + 1


class DryReport:
    """What the simulated rank did. ``str()`` has it as tables, ``json()`` as a text for programs.

    Attributes:
      rank, world_size: which rank of how many.
      calls: a list of dicts (op, outputs, calls, collectives, bytes_sent), equal calls together.
      traffic: a list of dicts (mesh, axis, kind, collectives, bytes_sent, predicted_seconds); axis is "" for collectives over
        a whole mesh.
      collectives, bytes_sent: in total, of this rank.
      predicted_seconds: of all collectives one after the other, by the costs of the mesh.
      live_bytes, peak_bytes: of this rank's tensors at the end (of those that fn has returned, too), and at most.
      result: what fn returned. Its tensors have no data.
    """

    def __init__(self, text, report, result=None):
        self._text = text
        self._json = report
        self._data = json.loads(report)
        self.result = result

    rank = property(lambda self: self._data["rank"])
    world_size = property(lambda self: self._data["world_size"])
    calls = property(lambda self: [dict(each) for each in self._data["calls"]])
    collectives = property(lambda self: self._data["collectives"])
    bytes_sent = property(lambda self: self._data["bytes_sent"])
    predicted_seconds = property(lambda self: self._data["predicted_ns"] * 1e-9)
    live_bytes = property(lambda self: self._data["live_bytes"])
    peak_bytes = property(lambda self: self._data["peak_bytes"])

    @property
    def traffic(self):
        rows = [dict(each) for each in self._data["traffic"]]
        for row in rows:
            row["predicted_seconds"] = row.pop("predicted_ns") * 1e-9
        return rows

    def json(self):
        """The report as one JSON object. Times are in nanoseconds: "predicted_ns"."""
        return self._json

    def __str__(self):
        return self._text

    def __repr__(self):
        return f"<DryReport: {self._text.splitlines()[0]}>"

    def _repr_html_(self):
        head = html.escape(self._text.splitlines()[0])
        calls = plots.html_table(["op", "outputs", "calls", "collectives", "bytes_sent"], self.calls)
        columns = ["mesh", "axis", "kind", "collectives", "bytes_sent", "predicted_seconds"]
        return f"<p>{head}</p>{calls}{plots.html_table(columns, self.traffic)}"

    def plot(self, path=None):
        """Bars of bytes sent by op and by mesh axis, and of memory. Returns the figure of matplotlib; ``path`` saves it."""
        return plots.dry_report_figure(self, path)
