"""Meshes, placements, layouts and what makes distributed tensors."""

import pickle

import pytest

import shard
from shard import Layout, Partial, ProcessMesh, Replicate, Shard

MESH = ProcessMesh([2, 2], ["dp", "tp"])


def values(x):
    """The elements of a plain tensor of float32, a flat list."""
    flat = shard.reshape(x, [x.size])
    return [shard.gather(flat, shard.full([1], i, dtype="int64")).item() for i in range(x.size)]


def iota(*shape):
    size = 1
    for n in shape:
        size *= n
    return shard.reshape(shard.arange(0, size, dtype="float32"), list(shape))


def test_equal_meshes_are_equal_and_survive_pickling():
    assert MESH == ProcessMesh((2, 2), dim_names=("dp", "tp"))
    assert hash(MESH) == hash(ProcessMesh([2, 2], ["dp", "tp"], [0, 1, 2, 3]))
    assert MESH != ProcessMesh([2, 2], ["a", "b"])
    assert MESH != ProcessMesh([2, 2], ["dp", "tp"], [3, 2, 1, 0])
    assert MESH != "dp"
    costly = ProcessMesh([2, 2], ["dp", "tp"], costs={"axes": {"dp": (1000.0, 2.0)}, "memory_cap": 64})
    assert costly != MESH
    assert costly.costs["axes"]["dp"] == (1000.0, 2.0) and costly.costs["memory_cap"] == 64
    for mesh in (MESH, costly, ProcessMesh([3], process_ids=[4, 1, 2])):
        assert pickle.loads(pickle.dumps(mesh)) == mesh


def test_a_mesh_tells_its_shape_names_and_ranks():
    assert (MESH.shape, MESH.dim_names, MESH.ndim, MESH.size) == ((2, 2), ("dp", "tp"), 2, 4)
    assert MESH.process_ids == (0, 1, 2, 3) and MESH.mesh == [[0, 1], [2, 3]]
    assert MESH.dim_size("tp") == 2 and len(MESH) == 4
    assert MESH.coordinate(2) == (1, 0) and MESH.coordinate(4) is None
    assert 3 in MESH and 4 not in MESH
    assert repr(MESH) == "ProcessMesh([2, 2], ['dp', 'tp'])"
    assert repr(ProcessMesh([2], ["x"], [5, 3])) == "ProcessMesh([2], ['x'], process_ids=[5, 3])"
    with pytest.raises(shard.OutOfRangeError, match="dp, tp"):
        MESH.dim_size("pp")


def test_a_flat_list_is_a_shape_and_a_nested_one_holds_ranks():
    assert ProcessMesh([2, 4]).size == 8
    assert ProcessMesh(3).shape == (3,)
    grid = ProcessMesh([[0, 1], [2, 3]], dim_names=["dp", "tp"])
    assert grid == MESH
    assert ProcessMesh([[4, 5, 6]]).shape == (1, 3)
    assert ProcessMesh(mesh=[4, 5]) == ProcessMesh([2], process_ids=[4, 5])
    numpy = pytest.importorskip("numpy")
    assert ProcessMesh(numpy.arange(4).reshape(2, 2), ["dp", "tp"]) == MESH
    assert ProcessMesh(mesh=numpy.array([1, 0])).process_ids == (1, 0)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (dict(shape=[2], process_ids=[0]), shard.ArgumentError, "mesh|axes|axis|process"),
        (dict(shape=[2], dim_names=["a", "b"]), shard.ArgumentError, "mesh|axes|axis|process"),
        (dict(shape=[2], process_ids=[1, 1]), shard.ArgumentError, "mesh|axes|axis|process"),
        (dict(shape=[[0, 1], [2]]), shard.ArgumentError, "different lengths"),
        (dict(shape=[[0, 1], 2]), shard.ArgumentError, "different depths"),
        (dict(shape=[0, [1, 2]]), shard.ArgumentError, "different depths"),
        (dict(shape=[[0]], process_ids=[0]), shard.ArgumentError, "process_ids"),
        (dict(shape=[2], mesh=[0, 1]), shard.ArgumentError, "either a shape or mesh"),
        (dict(), shard.ArgumentError, "either a shape or mesh"),
        (dict(shape="ab"), TypeError, "argument 'shape'"),
        (dict(shape=[2.5]), TypeError, "argument 'shape'"),
        (dict(shape=[True]), TypeError, "argument 'shape'"),
        (dict(shape=[2], dim_names="a"), TypeError, "argument 'dim_names'"),
        (dict(shape=[2], costs={"speed": 1}), shard.ArgumentError, "axes, copy_ns_per_byte and memory_cap"),
        (dict(shape=[2], dim_names=["x"], costs={"axes": {"y": (1, 1)}}), shard.ArgumentError, "'y'"),
    ],
)
def test_meshes_that_make_no_sense_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        ProcessMesh(**arguments)


def test_placements_compare_by_value():
    assert Shard(0) == Shard(0) and Shard(0) != Shard(1)
    assert Replicate() == Replicate() != Partial()
    assert Partial() == Partial("sum") != Partial("max")
    assert len({Shard(0), Shard(0), Shard(1), Replicate(), Partial("avg"), Partial("avg")}) == 4
    assert [repr(p) for p in (Shard(-1), Replicate(), Partial())] == ["Shard(-1)", "Replicate()", "Partial('sum')"]
    assert Shard(2).dim == 2 and Partial("max").op == "max"
    assert Shard(1).is_shard() and Shard(1).is_shard(1) and not Shard(1).is_shard(0)
    assert Replicate().is_replicate() and Partial().is_partial()
    for each in (Shard(-1), Replicate(), Partial("min")):
        again = pickle.loads(pickle.dumps(each))
        assert again == each and type(again) is type(each)
    with pytest.raises(shard.ArgumentError, match="sum"):
        Partial("median")


def test_a_layout_is_placements_or_a_text():
    layout = Layout(MESH, [Shard(0), Replicate()], ndim=2)
    assert layout == Layout(MESH, "dp, -")
    assert hash(layout) == hash(Layout(MESH, {"dp": Shard(0)}, 2))
    assert layout.placements == (Shard(0), Replicate()) and layout.mesh == MESH and layout.ndim == 2
    assert isinstance(layout.placements[0], Shard)
    assert Layout(MESH, [Shard(-1), Partial("max")], 3).text == "[-, -, dp] max(tp)"
    assert Layout(MESH, [Shard(0), Shard(0)], 1) == Layout(MESH, "dp+tp")
    assert Layout(MESH, "tp+dp").text == "[tp+dp]"
    assert Layout(ProcessMesh(2), Shard(0), 1).text == "[a]"
    assert Layout(MESH, [Shard(0), Replicate()]).ndim is None
    for each in (layout, Layout(MESH, "tp+dp, - "), Layout(MESH, [Shard(-1), Partial()])):
        assert pickle.loads(pickle.dumps(each)) == each


def test_a_layout_tells_who_holds_what():
    layout = Layout(MESH, "dp, tp")
    assert [layout.shard_shape([5, 4], r) for r in range(4)] == [(3, 2), (3, 2), (2, 2), (2, 2)]
    assert [layout.shard_offset([5, 4], r) for r in range(5)] == [(0, 0), (0, 2), (3, 0), (3, 2), None]


def test_layouts_that_do_not_fit_are_refused():
    with pytest.raises(shard.LayoutError, match=r"1 placements for mesh\(dp=2, tp=2\).*dp, tp"):
        Layout(MESH, [Shard(0)])
    with pytest.raises(shard.LayoutError, match=r"Shard\(2\) on mesh dim 'tp': the tensor has 2 dims"):
        Layout(MESH, [Shard(0), Shard(2)], ndim=2)
    with pytest.raises(shard.OutOfRangeError, match="dp, tp"):
        Layout(MESH, {"pp": Shard(0)})
    with pytest.raises(shard.LayoutError, match="has no axis 'pp'"):
        Layout(MESH, "pp")
    with pytest.raises(TypeError, match="argument 'placements' must be a list"):
        Layout(MESH, [0, 1])
    with pytest.raises(TypeError, match="argument 'mesh'"):
        Layout([2, 2], [Shard(0), Shard(1)])
    with pytest.raises(shard.LayoutError, match="pass ndim"):
        shard.run(lambda: shard.zeros([4], layout=Layout(ProcessMesh(2), [Shard(-1)]).text), 2)


def test_creation_ops_take_layouts():
    def program():
        made = [
            shard.zeros([8, 4], layout=Layout(MESH, [Shard(0), Replicate()])),
            shard.ones([8, 4], layout=(MESH, [Shard(-1), Shard(0)])),
            shard.full([8, 4], 3.0, layout=Layout(MESH, "-, dp+tp")),
            shard.arange(0, 8, layout=Layout(MESH, [Shard(0), Replicate()])),
        ]
        return [(x.layout.text, x.local().shape) for x in made]

    for result in shard.run(program, 4):
        assert result == [("[dp, -]", (4, 4)), ("[tp, dp]", (4, 2)), ("[-, dp+tp]", (8, 1)), ("[dp]", (4,))]

    def wrong():
        return shard.zeros([8, 4], layout=Layout(MESH, "dp"))

    with pytest.raises(shard.LayoutError, match="1 dims, and this one has 2"):
        shard.run(wrong, 4)
    with pytest.raises(TypeError, match="layout"):
        shard.run(lambda: shard.zeros([8, 4], layout="dp"), 4)


def test_shard_tensor_and_full_tensor_are_inverse():
    def program():
        x = shard.shard_tensor(iota(5, 4), MESH, [Shard(0), Shard(1)])
        assert x.is_dist and x.shape == (5, 4) and x.mesh == x.process_mesh == MESH
        assert x.placements == (Shard(0), Shard(1)) and x.layout == Layout(MESH, "dp, tp")
        assert x.to_local().shape == x.local().shape == x.layout.shard_shape(x.shape, shard.rank())
        return values(x.local()), values(x.full_tensor()), values(shard.full_tensor(x))

    results = shard.run(program, 4)
    assert all(full == again == list(range(20)) for _, full, again in results)
    assert [local for local, _, _ in results][3] == [14.0, 15.0, 18.0, 19.0]


def test_shard_tensor_takes_the_value_of_one_rank():
    def program():
        value = shard.full([4], float(shard.rank()))
        x = shard.shard_tensor(value, MESH, "dp", source=2)
        return values(x.full_tensor())

    assert shard.run(program, 4) == [[2.0] * 4] * 4
    with pytest.raises(TypeError, match="source"):
        shard.run(lambda: shard.shard_tensor(iota(4), MESH, "dp", source="first"), 4)
    with pytest.raises(shard.LayoutError, match="distributed already"):
        shard.run(lambda: shard.shard_tensor(shard.shard_tensor(iota(4), MESH, "dp"), MESH, "dp"), 4)


def test_dtensor_from_local_infers_the_shape():
    def program():
        local = shard.full([2, 3], float(shard.rank()))
        x = shard.dtensor_from_local(local, MESH, [Shard(0), Shard(1)])
        total = shard.dtensor_from_local(local, MESH, [Partial(), Replicate()])
        assert x.local().shares_buffer_with(local)
        uneven = shard.full([3 if shard.rank() < 2 else 2], 1.0)
        y = shard.dtensor_from_local(uneven, MESH, [Shard(0), Replicate()], global_shape=[5])
        return x.shape, values(x.full_tensor())[:4], values(total.full_tensor())[0], y.shape

    for rank, result in enumerate(shard.run(program, 4)):
        assert result == ((4, 6), [0.0, 0.0, 0.0, 1.0], 2.0 if rank in (0, 2) else 4.0, (5,))
    with pytest.raises(shard.ShapeError):
        shard.run(lambda: shard.dtensor_from_local(iota(3), MESH, "dp", global_shape=[5]), 4)
    with pytest.raises(shard.ArgumentError, match="global_shape and dtype"):
        shard.run(lambda: shard.dtensor_from_local(None, MESH, "dp"), 4)
    with pytest.raises(TypeError, match="argument 'local'"):
        shard.run(lambda: shard.dtensor_from_local(3, MESH, "dp"), 4)


def test_contributions_of_16_bits_are_held_in_float32():
    def program():
        local = shard.full([2], 1.0, dtype="bfloat16")
        x = shard.dtensor_from_local(local, MESH, [Partial(), Replicate()])
        y = shard.dtensor_from_local(shard.full([2], 1.0), MESH, [Partial(), Replicate()], dtype=shard.bfloat16)
        return x.dtype == y.dtype == shard.bfloat16, x.local().dtype, y.local().dtype

    assert shard.run(program, 4) == [(True, shard.float32, shard.float32)] * 4


def test_a_rank_outside_of_the_mesh_has_no_value():
    small = ProcessMesh([2], ["x"])

    def program():
        inside = shard.rank() in small
        x = shard.dtensor_from_local(iota(2) if inside else None, small, "x", global_shape=[4], dtype="float32")
        if not inside:
            with pytest.raises(shard.LayoutError):
                x.local()
        return x.full_tensor() is None

    assert shard.run(program, 3) == [False, False, True]


def test_reshard_takes_layouts_in_every_form():
    def program():
        x = shard.shard_tensor(iota(4, 4), MESH, "dp, -")
        other = ProcessMesh([4], ["x"])
        results = [
            x.reshard(MESH, [Replicate(), Shard(1)]),
            x.reshard([Replicate(), Shard(1)]),
            x.reshard("-, tp"),
            x.reshard({"tp": Shard(1)}),
            x.reshard(Layout(MESH, "-, tp")),
            x.reshard((MESH, "-, tp")),
            shard.reshard(x, MESH, "-, tp"),
            x.reshard_async(MESH, "-, tp"),
            x.reshard(other, [Shard(1)], memory_cap=1 << 20),
        ]
        for y in results:
            assert values(y.full_tensor()) == list(range(16))
        with pytest.raises(shard.PolicyError):
            x.reshard(other, [Shard(1)], memory_cap=1)
        assert "64 B sent" in shard.explain_reshard(x, "-, tp")
        return [y.layout.text for y in results]

    for result in shard.run(program, 4):
        assert result == ["[-, tp]"] * 8 + ["[-, x]"]


def test_lists_are_resharded_together():
    def program():
        xs = [shard.shard_tensor(iota(4, 4) + i, MESH, "dp, -") for i in range(3)]
        same = shard.reshard(xs, MESH, "-, -")
        each = shard.reshard_async(xs, [Layout(MESH, "-, tp"), Layout(MESH, "tp, -"), Layout(MESH, "-, -")])
        with pytest.raises(shard.ArgumentError, match="2 layouts for 3 tensors"):
            shard.reshard(xs, [Layout(MESH, "-, tp"), Layout(MESH, "tp, -")])
        assert [values(y.full_tensor())[0] for y in same + each] == [0, 1, 2, 0, 1, 2]
        return [y.layout.text for y in same + each]

    assert shard.run(program, 4)[1] == ["[-, -]"] * 3 + ["[-, tp]", "[tp, -]", "[-, -]"]


def test_wrong_arguments_of_reshard_name_the_function():
    def program():
        x = shard.shard_tensor(iota(4), MESH, "dp")
        with pytest.raises(TypeError, match=r"reshard\(\): argument 'mesh'"):
            x.reshard(3)
        with pytest.raises(TypeError, match=r"reshard\(\): argument 'placements'"):
            x.reshard(MESH)
        with pytest.raises(TypeError, match=r"reshard\(\): argument 'x'"):
            shard.reshard(3, MESH, "dp")
        with pytest.raises(shard.LayoutError, match="is for tensors of 2 dims"):
            x.reshard(MESH, "dp, -")

    shard.run(program, 4)


def test_plain_tensors_have_no_layout():
    x = iota(4)
    assert not x.is_dist and x.layout is x.placements is x.mesh is x.process_mesh is None
    assert x.full_tensor() is x or values(x.full_tensor()) == values(x)
    with pytest.raises(shard.LayoutError):
        x.local()
    with pytest.raises(shard.LayoutError):
        x.reshard(MESH, "dp")


def test_local_map_runs_a_function_on_shards():
    rows = Layout(MESH, "dp, -")

    @shard.local_map(in_layouts=[rows, None], out_layouts=Layout(MESH, "dp, -"))
    def scaled(x, factor):
        assert not x.is_dist and x.shape == (2, 4)
        return x * factor

    def program():
        x = shard.shard_tensor(iota(4, 4), MESH, "-, tp")
        y = scaled(x, shard.full([1], 2.0))
        both = shard.local_map(lambda a: (a, shard.sum(a)), [rows], [rows, Layout(MESH, [Partial(), Replicate()], ndim=0)])
        z, total = both(x)
        return values(y.full_tensor()), y.layout.text, z.shape, total.full_tensor().item()

    for result in shard.run(program, 4):
        assert result == ([2.0 * i for i in range(16)], "[dp, -]", (4, 4), 120.0)


def test_errors_of_local_map_reach_the_caller():
    rows = Layout(MESH, "dp, -")

    def program(function, ins, outs, outputs=None):
        return shard.local_map(function, ins, outs, outputs=outputs)(shard.shard_tensor(iota(4, 4), MESH, "dp, -"))

    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        shard.run(program, 4, args=(fails, [rows], [rows]))
    with pytest.raises(TypeError, match="returns a Tensor"):
        shard.run(program, 4, args=(lambda x: 3, [rows], [rows]))
    with pytest.raises(shard.ArgumentError, match="2 layouts for 1 arguments"):
        shard.run(program, 4, args=(lambda x: x, [rows, rows], [rows]))
    with pytest.raises(shard.LayoutError, match="pass ndim"):
        shard.run(program, 4, args=(lambda x: x, [rows], [Layout(MESH, [Shard(0), Replicate()])]))
    [y] = {each.shape for each in shard.run(program, 4, args=(lambda x: x + 1, [rows], [(Layout(MESH, [Shard(0), Replicate()]))], [([4, 4], "float32")]))}
    assert y == (4, 4)
    with pytest.raises(TypeError, match="in_layouts"):
        shard.local_map(lambda x: x)
