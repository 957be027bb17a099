"""pickle and copy of tensors."""

import copy
import pickle
import sys

import numpy as np
import pytest

import shard
from grad_helpers import blocks_after

DTYPES = ["float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", DTYPES)
def test_pickle_keeps_values_dtype_and_device(protocol, dtype):
    for shape in [(), (3,), (2, 0), (2, 3)]:
        x = shard.tensor(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5).to(dtype)
        y = pickle.loads(pickle.dumps(x, protocol))
        assert (y.dtype, y.shape, y.device, y.tolist()) == (x.dtype, x.shape, x.device, x.tolist())
        assert not y.requires_grad and not y.shares_buffer_with(x)
        y.fill_(1)  # it is writable


def test_pickle_keeps_requires_grad():
    x = shard.tensor([1.0, 2.0], requires_grad=True)
    y = pickle.loads(pickle.dumps(x))
    assert y.requires_grad and y.tolist() == [1, 2]
    (y * 2.0).sum().backward()
    assert y.grad.tolist() == [2, 2] and x.grad is None
    z = pickle.loads(pickle.dumps(x * 3.0))  # its history is not kept
    assert z.requires_grad and z.tolist() == [3, 6]


def test_buffers_beside_the_pickle():
    x = shard.tensor(np.arange(1000.0))
    buffers = []
    text = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(text) < 500 and len(buffers) == 1 and memoryview(buffers[0]).nbytes == 8000
    y = pickle.loads(text, buffers=buffers)
    assert y.tolist() == x.tolist()
    y[0] = 5  # not the memory of x
    assert x[0].item() == 0


def test_pickles_that_were_changed():
    x = shard.tensor([1.0, 2.0])
    function, (data, shape, dtype, device, requires_grad) = x.__reduce_ex__(2)
    with pytest.raises(shard.ArgumentError, match=r"\[pickle\] the data of a tensor f32\[3\] must be 12 bytes"):
        function(data, [3], dtype, device, requires_grad)
    with pytest.raises(shard.ArgumentError, match="there is no device 'cuda:7'"):
        function(data, shape, dtype, "cuda:7", requires_grad)


def test_copy_is_the_same_tensor():
    x = shard.tensor([1.0, 2.0])
    y = copy.copy(x)
    y[0] = 5
    assert y is not x and x.tolist() == [5, 2]


def test_deepcopy_of_dense_tensors():
    x = shard.tensor([1.0, 2.0], requires_grad=True)
    (x * 3.0).sum().backward()
    model = {"w": x, "same": x, "n": shard.tensor([1])}
    copied = copy.deepcopy(model)
    y = copied["w"]
    assert copied["same"] is y and y.requires_grad and y.tolist() == [1, 2] and y.grad.tolist() == [3, 3]
    assert not y.shares_buffer_with(x) and not copied["n"].shares_buffer_with(model["n"])
    y.grad.fill_(0)
    assert x.grad.tolist() == [3, 3]
    with pytest.raises(shard.AutogradError, match=r"\[deepcopy\].*use x.detach\(\), or x.clone\(\) to record the copy"):
        copy.deepcopy(x * 2.0)


LAYOUTS = [
    ([4], "p, -", 1), ([4], "-, p", 1), ([4], "-, -", 1), ([2, 2], "p, q", 1), ([2, 2], "q+p, -", 1), ([2, 2], "q, - | sum(p)", 1),
    ([3], "p, -", 1), ([2], "-, - | max(p)", 1), ([4], "-, - | avg(p)", 1), ([2, 2], "-, - | prod(q)", 1), ([2], "p, -", 3),
]  # the shape of the mesh, a layout, and the step from one rank of the mesh to the next


def distributed(mesh, text, dtype, requires_grad=False):
    """A tensor of 5 x 7 of which each rank has other values, also where it is partial."""
    layout = shard.Layout(mesh, text)
    shape, local = layout.shard_shape([5, 7], shard.rank()), None
    if shape is not None:
        local = shard.tensor(np.arange(np.prod(shape)).reshape(shape) + 100.0 * shard.rank()).to(dtype)
    x = shard.dtensor_from_local(local, layout, global_shape=[5, 7], dtype=dtype)
    return x.requires_grad_() if requires_grad else x


def facts(x):
    local = None if shard.rank() not in x.mesh else x.local()
    values = None if local is None else (local.tolist(), local.dtype, local.shape)
    return x.is_dist, x.shape, x.dtype, x.mesh, x.layout, x.placements, x.requires_grad, values


@pytest.mark.parametrize("copied", ["pickle 2", "pickle 5", "deepcopy"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes, text, step", LAYOUTS)
def test_copies_of_distributed_tensors_have_the_same_shards(sizes, text, step, dtype, copied):
    def program():
        ids = [step * i for i in range(int(np.prod(sizes)))]
        mesh = shard.ProcessMesh(sizes, ["p", "q"][: len(sizes)], ids)
        for requires_grad in (False, True):
            x = distributed(mesh, text, dtype, requires_grad)
            with shard.policies(comm="forbid"):
                y = copy.deepcopy(x) if copied == "deepcopy" else pickle.loads(pickle.dumps(x, int(copied[-1])))
            assert facts(y) == facts(x)
            if shard.rank() in mesh:
                assert not y.shares_buffer_with(x)
            whole = x.full_tensor()
            assert whole is None or whole.tolist() == y.full_tensor().tolist()

    shard.run(program, nranks=4)


def test_pickles_of_ranks_in_the_next_world():
    def save():
        mesh = shard.ProcessMesh([2, 2], ["dp", "tp"], costs={"axes": {"dp": (1.0, 2.0)}})
        w = distributed(mesh, "dp, tp", "float32", True)
        return pickle.dumps({"w": w, "scale": 2.0}), w.full_tensor().tolist()

    saved = shard.run(save, nranks=4)

    def load():
        text, whole = saved[shard.rank()]
        w = pickle.loads(text)["w"]
        assert w.full_tensor().tolist() == whole and w.mesh.costs["axes"]["dp"] == (1.0, 2.0)
        (w * 2.0).sum().backward()
        return w.grad.layout == w.layout, w.grad.local().tolist() == np.full(w.local().shape, 2.0).tolist()

    for size in (4, 6):
        assert shard.run(lambda: load() if shard.rank() < 4 else None, nranks=size)[:4] == [(True, True)] * 4

    rank_1 = saved[1][0]
    with pytest.raises(shard.LayoutError, match=r"this is what rank 1 has of f32\[5, 7\], layout \[dp, tp\] on mesh.*: unpickle it on that "
                                                r"rank, inside shard.run.*or pickle full_tensor\(\) instead"):
        pickle.loads(rank_1)

    def load_of_others():
        with pytest.raises(shard.LayoutError, match="not rank 0: each rank unpickles what it has pickled"):
            pickle.loads(rank_1)

    shard.run(load_of_others, nranks=1)

    def load_in_a_smaller_world():
        with pytest.raises(shard.LayoutError, match="but the world has ranks 0 to 1; make a mesh of those, or a larger world"):
            pickle.loads(saved[shard.rank()][0])

    shard.run(load_in_a_smaller_world, nranks=2)


def test_only_the_rank_of_a_distributed_tensor_pickles_it():
    [x, _] = shard.run(lambda: shard.ones([4], layout=shard.Layout(shard.ProcessMesh([2]), "a")), nranks=2)
    with pytest.raises(shard.LayoutError, match=r"belongs to a rank of a world, which pickles it: pickle it inside shard.run"):
        pickle.dumps(x)


def test_pickles_of_shards_that_were_changed():
    def program():
        x = distributed(shard.ProcessMesh([2], ["p"]), "p, -", "float32")
        function, (local, layout, shape, dtype, rank, requires_grad) = x.__reduce_ex__(2)
        with pytest.raises(shard.ShapeError, match="argument 'shard' of rank"):
            function(local, layout, [9, 7], dtype, rank, requires_grad)
        with pytest.raises(shard.LayoutError, match="of 2 dims, and this one has 1"):
            function(local, layout, [5], dtype, rank, requires_grad)

    shard.run(program, nranks=2)


def test_deepcopy_of_distributed_tensors_copies_gradients():
    def program():
        x = distributed(shard.ProcessMesh([2], ["p"]), "p, -", "float32", True)
        (x * 3.0).sum().backward()
        y = copy.deepcopy({"w": x})["w"]
        assert y.grad.layout == x.grad.layout and not y.grad.shares_buffer_with(x.grad)
        y.grad.fill_(0)
        return x.grad.full_tensor().tolist() == [[3.0] * 7] * 5

    assert shard.run(program, nranks=2) == [True, True]


def test_copies_leave_nothing_behind():
    x = shard.tensor([1.0, 2.0])
    for call in (lambda: pickle.loads(pickle.dumps(x)), lambda: copy.copy(x), lambda: copy.deepcopy(x),
                 lambda: pickle.loads(pickle.dumps(x, 2))):
        count = sys.getrefcount(x)
        assert blocks_after(call, warmup=50, calls=2000) < 100 and sys.getrefcount(x) == count


@shard.capture
def doubled(x):
    return x * 2


def test_captured_functions_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    with pytest.raises(TypeError, match=r"'local' is no function of a module.*shard.load_program"):
        pickle.dumps(shard.capture(local_function()))
    with pytest.raises(TypeError, match=r"programs are not pickled: save\(path\)"):
        pickle.dumps(doubled.trace(shard.tensor([1.0])))


def local_function():
    def local(x):
        return x

    return local
