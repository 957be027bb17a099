"""pickle and copy of tensors."""

import copy
import gc
import pickle
import sys

import numpy as np
import pytest

import shard

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


@pytest.mark.skipif(not hasattr(shard, "run"), reason="needs worlds")
def test_distributed_tensors():
    def program():
        mesh = shard.ProcessMesh([2], ["x"])
        x = shard.shard_tensor(shard.tensor([[1.0, 2.0], [3.0, 4.0]]), mesh, [shard.Shard(0)])
        with pytest.raises(shard.LayoutError, match=r"pickle full_tensor\(\) of it, or save a checkpoint"):
            pickle.dumps(x)
        y = copy.deepcopy(x)
        assert y.is_dist and not y.shares_buffer_with(x)
        y *= 2.0
        return x.full_tensor().tolist(), y.full_tensor().tolist()

    assert shard.run(program, nranks=2) == [([[1, 2], [3, 4]], [[2, 4], [6, 8]])] * 2


def test_copies_leave_nothing_behind():
    x = shard.tensor([1.0, 2.0])
    for call in (lambda: pickle.loads(pickle.dumps(x)), lambda: copy.copy(x), lambda: copy.deepcopy(x),
                 lambda: pickle.loads(pickle.dumps(x, 2))):
        for _ in range(50):
            call()
        gc.collect()
        before, count = sys.getallocatedblocks(), sys.getrefcount(x)
        for _ in range(2000):
            call()
        gc.collect()
        assert sys.getallocatedblocks() - before < 100 and sys.getrefcount(x) == count


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
