"""Dry runs and their reports."""

import json
import subprocess
import sys

import pytest

import shard
from shard import Layout, ProcessMesh, Replicate, Shard

MESH = ProcessMesh([64, 64], ["dp", "tp"])


def layer(width=1024):
    x = shard.gaussian([4096, width], layout=Layout(MESH, "dp, -"))
    w = shard.gaussian([width, 4 * width], layout=Layout(MESH, "-, tp"))
    v = shard.gaussian([4 * width, width], layout=Layout(MESH, "tp, -"))
    y = shard.matmul(shard.relu(shard.matmul(x, w)), v)
    return y.reshard("dp, -")


def test_a_dry_run_of_4096_ranks_reports_calls_traffic_and_memory():
    report = shard.dry_run(layer, MESH, rank=7)
    assert (report.rank, report.world_size) == (7, 4096)
    assert report.result.shape == (4096, 1024) and report.result.layout.text == "[dp, -]"
    ops = {call["op"]: call for call in report.calls}
    assert ops["matmul"]["calls"] >= 1 and "f32" in ops["matmul"]["outputs"]
    [row] = report.traffic
    assert row["axis"] == "tp" and row["kind"] == "all_reduce" and row["collectives"] == 1
    assert report.collectives == 1 and report.bytes_sent == row["bytes_sent"] > 0
    assert report.predicted_seconds == pytest.approx(row["predicted_seconds"]) and 0 < report.predicted_seconds < 1
    result = 4096 // 64 * 1024 * 4
    assert result <= report.live_bytes <= report.peak_bytes


def test_simulated_ranks_send_what_real_ones_do():
    mesh = ProcessMesh([2, 2], ["dp", "tp"])

    def program():
        x = shard.ones([8, 8], layout=Layout(mesh, "dp, tp"))
        return shard.relu(shard.sum(x, axis=[1])).reshard("-")

    explanation = shard.run(lambda: shard.explain(program), 4)[0]
    reports = [shard.dry_run(program, mesh, rank=rank) for rank in range(4)]
    assert sum(report.bytes_sent for report in reports) == explanation.bytes > 0
    assert {report.result.shape for report in reports} == {(8,)}


def test_the_report_is_text_json_and_html():
    report = shard.dry_run(layer, nranks=4096, args=(512,))
    assert str(report).startswith("rank 0 of 4096: memory ")
    assert repr(report) == f"<DryReport: {str(report).splitlines()[0]}>"
    data = json.loads(report.json())
    assert data["bytes_sent"] == report.bytes_sent and data["predicted_ns"] == pytest.approx(report.predicted_seconds * 1e9)
    page = report._repr_html_()
    assert page.count("<table>") == 2 and "matmul" in page and "all_reduce" in page
    report.calls.clear()
    assert report.calls  # a copy was changed


def test_a_report_plots(tmp_path):
    pytest.importorskip("matplotlib")
    report = shard.dry_run(layer, MESH)
    figure = report.plot(tmp_path / "report.png")
    assert [axes.get_title() for axes in figure.axes] == ["memory of rank 0 of 4096", "bytes sent by mesh axis", "bytes sent by op"]
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    shard.dry_run(lambda: None, MESH).plot()


def test_plots_without_matplotlib_say_what_to_install():
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import shard\n"
        "report = shard.dry_run(lambda: None, nranks=2)\n"
        "try:\n    report.plot()\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "plots need matplotlib: pip install matplotlib", done.stderr


def test_values_of_a_dry_run_cannot_be_read():
    with pytest.raises(shard.NoDataError):
        shard.dry_run(lambda: shard.sum(shard.ones([4], layout=Layout(MESH, [Shard(0), Replicate()]))).item(), MESH)
    report = shard.dry_run(lambda: shard.zeros([1 << 40]), MESH)
    assert report.result.shape == (1 << 40,)
    with pytest.raises(shard.NoDataError):
        shard.dry_run(lambda: shard.zeros([1]), MESH).result.item()


def test_errors_of_the_program_are_raised():
    def program():
        raise KeyError(shard.rank())

    with pytest.raises(KeyError) as caught:
        shard.dry_run(program, MESH, rank=3)
    assert caught.value.args == (3,) and caught.value.__notes__ == ["raised by rank 3 of 4096"]


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(TypeError, match="argument 'fn'"):
        shard.dry_run(3, MESH)
    with pytest.raises(TypeError, match="pass mesh, a ProcessMesh, or nranks; not NoneType"):
        shard.dry_run(layer)
    with pytest.raises(shard.ArgumentError, match="no rank 4"):
        shard.dry_run(layer, nranks=4, rank=4)
    part = ProcessMesh([2], process_ids=[5, 9])
    assert shard.dry_run(lambda: shard.world_size(), part).result == 10


def test_a_dry_run_may_be_made_inside_of_a_rank():
    def program():
        report = shard.dry_run(layer, MESH, rank=1)
        return shard.rank(), report.world_size

    assert shard.run(program, 2) == [(0, 4096), (1, 4096)]
