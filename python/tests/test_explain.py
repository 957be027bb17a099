"""Explanations: tables of calls, and pictures of who holds what."""

import re

import pytest

import shard
from shard import Layout, ProcessMesh, plots

MESH = ProcessMesh([2, 2], ["dp", "tp"])


def multiply(x, w):
    return shard.relu(shard.matmul(x, w))


def made(text):
    return shard.ones([8, 8], layout=Layout(MESH, text))


def test_inside_of_a_rank_the_calls_are_listed():
    def program():
        report = shard.explain(multiply, made("dp, tp"), made("tp, -"))
        assert report.result.full_tensor().shape == (8, 8)
        return report.calls, report.bytes, str(report), [t[:3] for t in report.tensors], repr(report)

    results = shard.run(program, 4)
    assert results.count(results[0]) == 4  # every rank has the same table
    calls, total, text, tensors, name = results[0]
    assert [call["op"] for call in calls] == ["matmul", "relu"]
    assert calls[0]["inputs"] == "x [dp, tp]; y [tp, -]" and calls[0]["outputs"] == "out [dp, -] sum(tp)"
    assert "all_reduce" in calls[1]["reshards"] or "reduce_scatter" in calls[1]["reshards"]
    assert total == sum(call["bytes"] for call in calls) > 0
    head, *lines = text.splitlines()
    assert head.split() == ["op", "inputs", "reshards", "outputs", "aliases", "bytes"]
    assert lines[0].startswith("matmul") and lines[-1] == f"2 calls, {total} bytes sent by all ranks together"
    assert [t[0] for t in tensors] == ["argument 0", "argument 1", "result"]
    assert tensors[0] == ("argument 0", (8, 8), "[dp, tp] on mesh(dp=2, tp=2)")
    assert name == f"<Explanation: 2 calls, {total} bytes>"


def test_reshards_that_the_program_asks_for_are_listed():
    def program():
        def moved(x):
            return x.reshard(MESH, "-, tp").full_tensor()

        report = shard.explain(moved, made("dp, tp"))
        return [(call["op"], call["inputs"], call["outputs"], call["bytes"]) for call in report.calls]

    # 8 x 8 floats: each rank sends its quarter to the other one of its column, then its half to the other one of its row.
    assert shard.run(program, 4)[0] == [
        ("reshard", "tensor [dp, tp]", "out [-, tp]", 4 * 64),
        ("full_tensor", "tensor [-, tp]", "out [-, -]", 4 * 128),
    ]


def test_what_gradients_values_and_one_rank_send_is_listed():
    def program():
        mesh = ProcessMesh([2], ["dp"])
        w = shard.ones([4], layout=Layout(mesh, "-")).requires_grad_()
        x = shard.ones([8, 4], layout=Layout(mesh, "dp, -"))

        def step():
            shard.multiply(x, w).sum().backward()
            shard.shard_tensor(shard.ones([4]), mesh, [shard.Shard(0)], source=0)
            return shard.sum(x).item()

        report = shard.explain(step)
        assert report.result == 32.0
        return [(call["op"], call["reshards"], call["bytes"]) for call in report.calls]

    first, second = shard.run(program, 2)
    assert first == second
    reshards = [call for call in first if call[0] == "reshard"]
    assert any("all_reduce" in text and sent > 0 for _, text, sent in reshards), first  # the gradient of w
    assert [sent for op, _, sent in first if op == "shard_tensor"] == [16]
    [(_, text, sent)] = [call for call in first if call[0] == "item"]
    assert "all_reduce" in text and sent > 0


def test_views_name_what_they_alias():
    def program():
        return shard.explain(lambda x: shard.reshape(x, [4, 2, 8]), made("dp, -")).calls

    [call] = shard.run(program, 4)[0]
    assert call["op"] == "reshape" and "view" in call["aliases"]


def test_explanations_may_be_nested():
    def program():
        inner = []

        def outer(x):
            inner.append(shard.explain(lambda: x + x))
            return x * x

        report = shard.explain(outer, made("dp, -"))
        after = shard.explain(lambda: None)
        return [c["op"] for c in report.calls], [c["op"] for c in inner[0].calls], after.calls

    assert shard.run(program, 4)[0] == (["add", "multiply"], ["add"], [])


def test_an_explanation_ends_with_an_error_of_the_function():
    def program():
        x = made("dp, -")
        with pytest.raises(shard.ShapeError):
            shard.explain(lambda: x + shard.ones([3, 3], layout=Layout(MESH, "-, -")))
        return shard.explain(lambda: None).calls

    assert shard.run(program, 4) == [[]] * 4


def test_outside_of_ranks_a_mesh_is_simulated():
    mesh = ProcessMesh([64, 64], ["dp", "tp"])

    def program():
        x = shard.gaussian([4096, 64], layout=Layout(mesh, "dp, tp"))
        return {"y": [shard.sum(x, axis=[1]).reshard("dp")]}

    report = shard.explain(program, mesh=mesh)
    assert [call["op"] for call in report.calls][:2] == ["gaussian", "sum"]
    [(name, shape, layout, shards)] = report.tensors
    assert name == "result y 0" and shape == (4096,) and layout.startswith("[dp] on mesh(dp=64")
    assert len(shards) == 4096 and shards[64] == (64, (64,), (64,))
    assert shard.explain(lambda: shard.world_size(), nranks=16, rank=3).result == 16


def test_plain_tensors_have_no_table():
    report = shard.explain(lambda x: x + x, shard.ones([2]))
    assert report.calls == [] and report.result.shape == (2,)
    assert "pass mesh=" in str(report) and "pass mesh=" in report._repr_html_()
    with pytest.raises(TypeError, match="argument 'fn'"):
        shard.explain(3)


def test_the_html_has_a_table_and_pictures():
    def program():
        return shard.explain(multiply, made("dp, tp"), made("tp, -"))._repr_html_()

    page = shard.run(program, 4)[0]
    assert page.count("<table>") == 1 and page.count("<svg") == 3
    assert "argument 1 [8, 8] [tp, -] on mesh(dp=2, tp=2)" in page


def rectangles(picture):
    """The frames in a picture: (x, y, width, height) -> the title's ranks."""
    found = {}
    for group in re.findall(r"<g>.*?</g>", picture):
        box = re.search(r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="none"', group)
        found[tuple(float(n) for n in box.groups())] = re.search(r"<title>rank (.*?)</title>", group).group(1)
    return found


def test_a_picture_has_a_rectangle_for_each_part():
    def program():
        return [plots.shards_svg((8, 8), shard._core._shards(made(text))) for text in ("dp, tp", "-, tp", "-, -")]

    both, columns, whole = shard.run(program, 4)[0]
    assert rectangles(both) == {(0, 0, 80, 60): "0", (80, 0, 80, 60): "1", (0, 60, 80, 60): "2", (80, 60, 80, 60): "3"}
    assert rectangles(columns) == {(0, 0, 80, 120): "0, 2", (80, 0, 80, 120): "1, 3"}
    assert list(rectangles(whole).values()) == ["0, 1, 2, 3"]
    assert plots.colour(0) in columns and plots.colour(2) in columns  # stripes of both owners


def test_pictures_of_all_shapes_are_well_formed():
    from xml.dom import minidom

    mesh = ProcessMesh([3], ["x"])

    def program():
        cases = [((), ""), ((7,), "x"), ((2, 5, 3), "-, -, x"), ((2, 5, 3), "-, x, -"), ((0, 3), "-, x"), ((2, 2), "x, -")]
        return [plots.shards_svg(s, shard._core._shards(shard.ones(list(s), layout=Layout(mesh, t)))) for s, t in cases]

    for picture in shard.run(program, 3)[0]:
        minidom.parseString(picture)


def test_tables_align_numbers_at_the_right():
    text = plots.text_table(["op", "bytes"], [{"op": "add", "bytes": 5}, {"op": "matmul", "bytes": 1024}])
    assert text.splitlines() == ["op      bytes", "add         5", "matmul   1024"]
    assert plots.html_table(["op"], [{"op": "a<b"}]).count("a&lt;b") == 1
