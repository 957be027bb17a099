"""Tensors from and to Python's numbers, NumPy, DLPack and the buffer protocol."""

import array
import ctypes
import gc
import os
import subprocess
import sys
import threading
import weakref
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import shard
from grad_helpers import blocks_after

DTYPES = [shard.float32, shard.float64, shard.bfloat16, shard.float16, shard.int32, shard.int64, shard.uint8, shard.bool]
NUMPY = [np.float32, np.float64, ml_dtypes.bfloat16, np.float16, np.int32, np.int64, np.uint8, np.bool_]


# shard.tensor


@pytest.mark.parametrize("data, dtype, shape, values", [
    (1.5, shard.float32, (), 1.5),
    (7, shard.int64, (), 7),
    (True, shard.bool, (), True),
    ([1, 2.5], shard.float32, (2,), [1, 2.5]),
    ([True, 2], shard.int64, (2,), [1, 2]),
    ([True, 2.5], shard.float32, (2,), [1, 2.5]),
    (((1, 2), [3, 4]), shard.int64, (2, 2), [[1, 2], [3, 4]]),
    ([], shard.float32, (0,), []),
    ([[], []], shard.float32, (2, 0), [[], []]),
    ([Fraction(1, 2)], shard.float32, (1,), [0.5]),
    (np.float64(2.5), shard.float64, (), 2.5),
    (np.int32(3), shard.int32, (), 3),
    ([np.float32(1), 2], shard.float64, (2,), [1, 2]),
    ([np.arange(2), np.arange(2)], shard.int64, (2, 2), [[0, 1], [0, 1]]),
    (np.bool_(True), shard.bool, (), True),
    (array.array("i", [1, 2]), shard.int32, (2,), [1, 2]),
    (b"\x01\xff", shard.uint8, (2,), [1, 255]),
    (memoryview(np.ones((2, 3)))[::-1], shard.float64, (2, 3), [[1, 1, 1]] * 2),
])
def test_tensor_has_the_values_and_default_dtypes(data, dtype, shape, values):
    x = shard.tensor(data)
    assert (x.dtype, x.shape, x.tolist()) == (dtype, shape, values)


@pytest.mark.parametrize("dtype, numpy_dtype", list(zip(DTYPES, NUMPY)))
def test_arrays_keep_their_dtype(dtype, numpy_dtype):
    values = np.arange(6).reshape(2, 3).astype(numpy_dtype)
    x = shard.tensor(values)
    assert x.dtype == dtype and x.numpy().dtype == numpy_dtype
    np.testing.assert_array_equal(x.numpy(), values)
    np.testing.assert_array_equal(shard.tensor(values.T).numpy(), values.T)  # strided
    np.testing.assert_array_equal(shard.tensor(values[::-1, ::2]).numpy(), values[::-1, ::2])
    assert shard.tensor([1, 0], dtype=numpy_dtype).dtype == dtype
    assert shard.tensor([1, 0], dtype=np.dtype(numpy_dtype)).tolist() == [1, 0]
    assert shard.tensor(values[:0]).shape == (0, 3)
    assert shard.tensor(values[0, 1]).tolist() == 1
    assert shard.tensor([1, 0], dtype=dtype).dtype == dtype


def test_tensor_copies():
    values = np.zeros(3)
    x = shard.tensor(values)
    y = shard.tensor(x)
    values[0], x[1] = 1, 2
    assert x.tolist() == [0, 2, 0] and y.tolist() == [0, 0, 0]
    read_only = np.zeros(2)
    read_only.flags.writeable = False
    shard.tensor(read_only)[0] = 1
    assert read_only[0] == 0


def test_tensor_takes_dtype_device_and_requires_grad():
    x = shard.tensor([1.7, -1.7], dtype="int32", device="cpu")
    assert x.tolist() == [1, -1] and x.device == shard.Device("cpu")
    assert shard.tensor([0, 2], dtype=shard.bool).tolist() == [False, True]
    assert shard.tensor([2**60 + 1], dtype="float64").tolist() == [float(2**60 + 1)]
    assert shard.tensor([10**30], dtype="float64").tolist() == [1e30]
    x = shard.tensor([1.0], requires_grad=True)
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [2]
    assert not shard.tensor(x).requires_grad


@pytest.mark.parametrize("data, error, text", [
    ([1, [2]], shard.ShapeError, r"\[tensor\] the lists are ragged: data\[1\] is a list, but data\[0\] before it is a number"),
    ([[1], 2], shard.ShapeError, r"data\[1\] is a number, but data\[0\] is a list"),
    ([[1, 2], [3]], shard.ShapeError, r"data\[1\] has 1 items, but data\[0\] has 2; make all lists of a dim equally long"),
    ("1", TypeError, r"tensor\(\): data is a str; pass numbers"),
    ([1, "2"], TypeError, r"tensor\(\): data\[1\] is of type str, but must be a number"),
    (None, TypeError, r"tensor\(\): data is of type NoneType, but must be a number.*array of NumPy"),
    ([1j], TypeError, "is of type complex"),
    ({1: 2}, TypeError, "is of type dict"),
    ([2**63], shard.OutOfRangeError, "9223372036854775808 does not fit into int64; choose another dtype"),
    (np.zeros(2, np.int16), shard.DTypeError, r"no dtype int16, but float32, .*; convert the array first, as with a.astype"),
    (np.zeros(2, ">f4"), shard.DTypeError, r"byte order of another machine; use a.astype\('float32'\)"),
    (np.array(["a"]), shard.DTypeError, "tensors have no dtype str"),
    (array.array("h", [1]), shard.DTypeError, "of the format 'h'"),
    (np.zeros([1] * 9), IndexError, "8"),
])
def test_errors_of_tensor(data, error, text):
    with pytest.raises(error, match=text):
        shard.tensor(data)


def test_errors_of_the_arguments_of_tensor():
    with pytest.raises(shard.OutOfRangeError, match="300 does not fit into uint8"):
        shard.tensor([300], dtype="uint8")
    with pytest.raises(TypeError, match=r"tensor\(\): dtype must be a shard.dtype, its name or a dtype of NumPy, not int"):
        shard.tensor([1], dtype=3)
    with pytest.raises(TypeError, match=r"tensor\(\): device must be a shard.Device or its name, not int"):
        shard.tensor([1], device=3)
    with pytest.raises(ValueError, match="there is no device 'tpu'"):
        shard.tensor([1], device="tpu")
    with pytest.raises(shard.AutogradError, match="no floating-point dtype"):
        shard.tensor([1], requires_grad=True)
    with pytest.raises(TypeError, match=r"data\[0\] is a Tensor of 2 elements; use shard.stack"):
        shard.tensor([shard.tensor([1, 2])])


# from_numpy and numpy


@pytest.mark.parametrize("numpy_dtype", NUMPY)
def test_from_numpy_and_numpy_share_memory(numpy_dtype):
    values = np.arange(6).reshape(2, 3).astype(numpy_dtype)
    x = shard.from_numpy(values)
    assert x.numpy().ctypes.data == values.ctypes.data
    values[0, 1] = 0
    assert x.tolist() == values.tolist()
    x[1] = 1
    assert (values[1] == 1).all()
    y = x.numpy()
    y[...] = 0
    assert not any(x.view(6).tolist())


def test_ops_compute_on_memory_of_numpy():
    values = np.zeros(100_001, np.float32)[1:]  # aligned to its elements alone
    x = shard.from_numpy(values)
    x += 1.0
    assert (values == 1).all() and (x * 2.0).sum().item() == 200_000
    square = shard.from_numpy(np.arange(1100 * 1100 + 1, dtype=np.float32)[1:].reshape(1100, 1100))
    np.testing.assert_array_equal(square.T.numpy(), square.numpy().T)
    np.testing.assert_allclose(square.softmax(-1).sum([-1]).numpy(), 1, rtol=1e-4)


@pytest.mark.parametrize("make, text", [
    (lambda: np.zeros((2, 3)).T, r"not C-contiguous, but tensors are; shard.tensor\(a\) copies it, and so does numpy.ascontiguousarray"),
    (lambda: np.zeros(4)[::2], "not C-contiguous"),
    (lambda: np.frombuffer(b"12345678"), r"read-only, but ops can write tensors; shard.tensor\(a\) copies"),
    (lambda: np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float64), "not aligned to its elements"),
])
def test_from_numpy_refuses_what_it_cannot_share(make, text):
    values = make()
    if "aligned" in text and values.flags.aligned:
        pytest.skip("the allocation is aligned by chance")
    with pytest.raises(shard.ArgumentError, match=text):
        shard.from_numpy(values)
    assert shard.tensor(values).shape == values.shape


def test_from_numpy_takes_arrays_alone():
    for data in [[1], 1.5, shard.tensor(1), np.float32(1), None]:
        with pytest.raises(TypeError, match=r"from_numpy\(\): a must be a numpy.ndarray, not .*; shard.tensor\(a\) copies it"):
            shard.from_numpy(data)
    with pytest.raises(shard.DTypeError, match="no dtype int16"):
        shard.from_numpy(np.zeros(2, np.int16))


class Array(np.ndarray):
    """An array that can be referred to weakly, and dies when its memory does."""


def watched(values):
    made = np.array(values, np.float32).view(Array)
    return made, weakref.ref(made)


def test_a_tensor_keeps_the_array_alive_and_frees_it():
    values, alive = watched([1, 2, 3])
    x = shard.from_numpy(values)
    del values
    gc.collect()
    y = x.view(3, 1)
    del x
    assert alive() is not None and y.tolist() == [[1], [2], [3]]
    del y
    gc.collect()
    assert alive() is None


def test_the_array_is_freed_from_another_thread():
    values, alive = watched([1, 2, 3])
    held = [shard.from_numpy(values)]
    del values
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert alive() is None


def test_an_array_keeps_the_memory_of_a_tensor_alive():
    x = shard.tensor(np.arange(1000.0))
    alive = weakref.ref(x)
    values, view, capsule = x.numpy(), memoryview(x), np.from_dlpack(x)
    del x
    gc.collect()
    shard.zeros([1000], dtype="float64")
    assert values.sum() == np.arange(1000).sum() == sum(view) == capsule.sum()
    del values, view
    gc.collect()
    assert alive() is None and capsule.sum() == np.arange(1000).sum()
    y = shard.tensor([1.0]).numpy()
    gc.collect()
    assert y[0] == 1


def test_tensors_at_exit():
    code = ("import numpy as np, shard, sys\n"
            "x = shard.from_numpy(np.ones(5)); y = shard.from_dlpack(np.ones(5)); z = shard.tensor([1.0]).numpy()\n"
            "sys.keep = [x, y, z, shard.from_numpy(np.ones(5)), memoryview(x), x.__dlpack__()]\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.returncode == 0 and "rror" not in done.stderr, done.stderr


def test_numpy_refuses_gradients():
    x = shard.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(shard.AutogradError, match=r"\[numpy\] f32\[2\] requires a gradient.*; use x.detach\(\).numpy\(\)"):
        x.numpy()
    with pytest.raises(shard.AutogradError, match="detach"):
        np.asarray(x)
    with pytest.raises(BufferError, match=r"requires a gradient; use detach\(\)"):
        memoryview(x)
    with pytest.raises(BufferError, match=r"requires a gradient; use detach\(\)"):
        np.from_dlpack(x)
    with pytest.raises(shard.AutogradError):
        (x * 2.0).numpy()
    assert x.detach().numpy().tolist() == [1, 2]


def test_asarray_and_array():
    x = shard.tensor([[1.0, 2.0]])
    shared = np.asarray(x)
    shared[0, 0] = 5
    assert x.tolist() == [[5, 2]]
    assert np.array(x).tolist() == [[5, 2]] and np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.asarray(x.bfloat16()).dtype == ml_dtypes.bfloat16
    assert x.__array__(copy=True).ctypes.data != shared.ctypes.data
    assert x.__array__(np.float16).dtype == np.float16
    with pytest.raises(ValueError, match="copy=False forbids"):
        x.__array__(np.float16, copy=False)
    assert np.asarray(shard.tensor(3)).shape == () and np.asarray(shard.zeros([0, 2])).shape == (0, 2)
    assert np.add(x, 1).tolist() == [[6, 3]]


@pytest.mark.parametrize("dtype, code", [("float32", "f"), ("float64", "d"), ("float16", "e"), ("int32", "i"), ("int64", "l"),
                                         ("uint8", "B"), ("bool", "?")])
def test_buffers(dtype, code):
    x = shard.tensor([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    view = memoryview(x)
    assert (view.format, view.shape, view.itemsize, view.readonly) == (code, (2, 3), x.itemsize, False)
    assert view.nbytes == x.nbytes and view.c_contiguous
    if dtype != "float16":
        assert view.tolist() == x.tolist()
    assert bytes(view) == x.numpy().tobytes()
    assert memoryview(shard.tensor(3)).tolist() == 3


def test_buffers_outlive_what_is_written_in_place():
    x = shard.tensor([1.0, 2.0, 3.0, 4.0])
    view = memoryview(x)
    x[0] = 9
    assert view[0] == 9
    with pytest.raises(BufferError, match=r"bfloat16, which buffers have no format for; use numpy\(\)"):
        memoryview(x.bfloat16())


def test_ml_dtypes_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=r"the package ml_dtypes alone; install it, or use x.float\(\).numpy\(\)"):
        shard.tensor([1.0], dtype="bfloat16").numpy()


# DLPack


@pytest.mark.parametrize("numpy_dtype", [t for t in NUMPY if t is not ml_dtypes.bfloat16])
def test_dlpack_with_numpy(numpy_dtype):
    values = np.arange(6).reshape(2, 3).astype(numpy_dtype)
    x = shard.from_dlpack(values)
    assert x.tolist() == values.tolist() and x.numpy().ctypes.data == values.ctypes.data
    back = np.from_dlpack(x)
    assert back.dtype == numpy_dtype and back.ctypes.data == values.ctypes.data
    x[0] = 1
    assert (values[0] == 1).all() and (back[0] == 1).all()
    copied = shard.from_dlpack(values, copy=True)
    copied[0] = 0
    assert (values[0] == 1).all()


def test_dlpack_between_tensors():
    x = shard.tensor([[1.0, 2.0]], dtype="bfloat16")
    y = shard.from_dlpack(x)
    y[0, 0] = 3
    assert x.tolist() == [[3, 2]] and y.dtype == shard.bfloat16
    assert shard.from_dlpack(shard.zeros([0, 3])).shape == (0, 3)
    assert shard.from_dlpack(shard.tensor(4)).item() == 4
    assert x.__dlpack_device__() == (1, 0)
    assert shard.from_dlpack(x, device="cpu").shape == (1, 2)


def capsule_name(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule)


def test_versions_of_capsules():
    x = shard.tensor([1.0])
    assert capsule_name(x.__dlpack__()) == b"dltensor"
    assert capsule_name(x.__dlpack__(max_version=(0, 8))) == b"dltensor"
    assert capsule_name(x.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
    assert capsule_name(x.__dlpack__(max_version=(2, 3), dl_device=(1, 0), copy=True)) == b"dltensor_versioned"
    with pytest.raises(BufferError, match="a CPU tensor has no stream; pass None"):
        x.__dlpack__(stream=1)
    with pytest.raises(shard.DeviceError, match="a device of DLPack's type 2|there is no"):
        x.__dlpack__(dl_device=(2, 0))


class Producer:
    """An array of another library: an old one, or one with versions."""

    def __init__(self, values, old=False, device=(1, 0)):
        self.values, self.old, self.device = values, old, device
        if old:
            self.__dlpack__ = None

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if self.old and arguments:
            raise TypeError("unexpected keyword arguments")
        return self.values.__dlpack__(**arguments)


def test_old_producers():
    class Old:
        def __init__(self, values):
            self.values = values

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, stream=None):
            return self.values.__dlpack__()

    values = np.arange(3.0)
    x = shard.from_dlpack(Old(values))
    x[0] = 7
    assert values[0] == 7
    assert shard.from_dlpack(Old(values), copy=True).tolist() == [7, 1, 2]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy exports no read-only arrays before 2.1")
def test_read_only_arrays():
    values = np.arange(3.0)
    values.flags.writeable = False
    with pytest.raises(shard.ArgumentError, match="the array is read-only, but ops can write tensors; pass copy=True"):
        shard.from_dlpack(values)
    x = shard.from_dlpack(values, copy=True)
    x[0] = 1
    assert values[0] == 0 and x.tolist() == [1, 1, 2]


def test_strided_arrays():
    values = np.arange(6.0).reshape(2, 3)
    for strided in (values.T, values[:, ::-1], values[:, :2]):
        with pytest.raises(shard.ArgumentError, match="not contiguous in row-major order, as tensors are; pass copy=True"):
            shard.from_dlpack(strided)
        np.testing.assert_array_equal(shard.from_dlpack(strided, copy=True).numpy(), strided)
    assert shard.from_dlpack(values[1:]).tolist() == [[3, 4, 5]]


def test_errors_of_from_dlpack():
    with pytest.raises(TypeError, match=r"from_dlpack\(\): the argument must have __dlpack__ and __dlpack_device__.*type list"):
        shard.from_dlpack([1])
    with pytest.raises(shard.DTypeError, match="16-bit elements of DLPack's type 0 with 1 lanes"):
        shard.from_dlpack(np.zeros(2, np.int16))
    with pytest.raises(shard.DeviceError, match="a device of DLPack's type 8, but shard has none here"):
        Producer_ = type("P", (), {"__dlpack__": lambda self, **k: None, "__dlpack_device__": lambda self: (8, 0)})
        shard.from_dlpack(Producer_())
    with pytest.raises(TypeError, match="returned int, not a capsule that was not used"):
        Producer_ = type("P", (), {"__dlpack__": lambda self, **k: 3, "__dlpack_device__": lambda self: (1, 0)})
        shard.from_dlpack(Producer_())
    used = np.zeros(2).__dlpack__()
    twice = type("P", (), {"__dlpack__": lambda self, **k: used, "__dlpack_device__": lambda self: (1, 0)})()
    shard.from_dlpack(twice)
    with pytest.raises(TypeError, match="not a capsule that was not used"):
        shard.from_dlpack(twice)


def test_an_exception_of_the_producer_passes():
    def fails(self, **arguments):
        raise RuntimeError("no")
    with pytest.raises(RuntimeError, match="^no$"):
        shard.from_dlpack(type("P", (), {"__dlpack__": fails, "__dlpack_device__": lambda self: (1, 0)})())


def test_lifetimes_of_dlpack():
    values, alive = watched([1, 2, 3])
    x = shard.from_dlpack(values)
    del values
    gc.collect()
    assert alive() is not None and x.tolist() == [1, 2, 3]
    del x
    gc.collect()
    assert alive() is None
    values, alive = watched([1, 2, 3])
    capsule = shard.from_numpy(values).__dlpack__(max_version=(1, 0))  # never used
    del values
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_dlpack_with_pytorch():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        values = torch.ones(2, 3).to(dtype)
        x = shard.from_dlpack(values)
        x[0] = 0
        assert values.tolist() == x.tolist()
        back = torch.from_dlpack(x)
        back[1] = 0
        assert not any(x.view(6).tolist())
        assert shard.tensor(values).dtype == x.dtype
    with pytest.raises(BufferError):
        shard.from_dlpack(torch.ones(2, requires_grad=True))


def test_dlpack_with_jax():
    jnp = pytest.importorskip("jax.numpy")
    import jax
    values = jnp.arange(3.0)
    x = shard.from_dlpack(values, copy=True)
    assert x.tolist() == [0, 1, 2]
    assert shard.tensor(values).tolist() == [0, 1, 2]
    assert jax.dlpack.from_dlpack(shard.tensor([1.0, 2.0])).tolist() == [1, 2]


# Conversions, shapes and repr


def test_conversions():
    x = shard.tensor([1.5, 0.0])
    for method, dtype in [("float", "float32"), ("double", "float64"), ("half", "float16"), ("bfloat16", "bfloat16"),
                          ("int", "int32"), ("long", "int64"), ("bool", "bool")]:
        assert getattr(x, method)().dtype == getattr(shard, dtype)
    assert x.float() is x and x.cpu() is x and x.to("cpu", "float32") is x
    assert x.to(shard.int32).tolist() == [1, 0] and x.to(np.float64).dtype == shard.float64
    assert x.to(shard.Device("cpu")) is x and x.to(shard.tensor([1])).dtype == shard.int64
    copied = x.astype("float32")
    assert not copied.shares_buffer_with(x) and x.astype(np.int64).tolist() == [1, 0]
    assert (x.nbytes, x.itemsize) == (8, 4)
    with pytest.raises(TypeError, match=r"to\(\): each argument must be a device, a dtype, the name of one, or a tensor, not int"):
        x.to(3)
    with pytest.raises(shard.ArgumentError, match="there is no device 'float31'"):
        x.to("float31")
    with pytest.raises(shard.ArgumentError, match="there is no device 'cuda'"):
        x.cuda()
    with pytest.raises(TypeError, match=r"astype\(\): dtype must be"):
        x.astype(None)


def test_clone_and_conversions_are_recorded():
    x = shard.tensor([1.0, 2.0], requires_grad=True)
    (x.clone().double().view(2, 1).T.permute(1, 0).to("float32") * 3.0).sum().backward()
    assert x.grad.tolist() == [3, 3]
    assert not x.clone().shares_buffer_with(x)


def test_shapes():
    values = np.arange(24).reshape(2, 3, 4)
    x = shard.tensor(values)
    np.testing.assert_array_equal(x.T.numpy(), values.T)
    np.testing.assert_array_equal(x.mT.numpy(), values.swapaxes(1, 2))
    np.testing.assert_array_equal(x.permute(1, -1, 0).numpy(), values.transpose(1, 2, 0))
    np.testing.assert_array_equal(x.permute([2, 0, 1]).numpy(), values.transpose(2, 0, 1))
    assert x.view(6, -1).shape == x.view((6, 4)).shape == (6, 4) and x.view(24).shares_buffer_with(x)
    with pytest.raises(shard.ShapeError, match=r"\[mT\].*two dims or more"):
        shard.tensor([1]).mT
    with pytest.raises(shard.ShapeError):
        x.view(5)
    with pytest.raises(TypeError, match=r"view\(\): the arguments must be ints, or one list or tuple of them, not float"):
        x.view(2.0)


def test_repr():
    assert repr(shard.tensor([1, 2.5])) == "tensor([1.0, 2.5], shape=(2,), dtype=float32, device=cpu)"
    assert repr(shard.tensor([[True], [False]])) == (
        "tensor([[ True],\n        [False]], shape=(2, 1), dtype=bool, device=cpu)")
    assert repr(shard.tensor(3)) == "tensor(3, shape=(), dtype=int64, device=cpu)"
    assert repr(shard.zeros([0, 2])) == "tensor([], shape=(0, 2), dtype=float32, device=cpu)"
    assert repr(shard.tensor([1.0], requires_grad=True)).endswith(", requires_grad=True)")
    assert repr(shard.tensor(np.arange(2000))) == (
        "tensor([   0,    1,    2, ..., 1997, 1998, 1999], shape=(2000,), dtype=int64, device=cpu)")
    large = repr(shard.zeros([50, 60, 70]))
    assert large.count("...") == 43
    assert len(large) < 4000
    assert repr(shard.tensor([1e-9, 1.0])) == "tensor([1.0000e-09, 1.0000e+00], shape=(2,), dtype=float32, device=cpu)"
    assert "nan" in repr(shard.tensor([float("nan")])) and str(shard.tensor(1)) == repr(shard.tensor(1))


@pytest.mark.skipif(not hasattr(shard, "run"), reason="needs worlds")
def test_distributed_tensors():
    def program():
        mesh = shard.ProcessMesh([2], ["x"])
        x = shard.shard_tensor(shard.tensor([[1.0, 2.0], [3.0, 4.0]]), mesh, [shard.Shard(0)])
        for read in (x.numpy, x.tolist, x.__dlpack__):
            with pytest.raises(shard.LayoutError, match=r"is distributed; use full_tensor\(\) of it, a collective call, or local\(\)"):
                read()
        with pytest.raises(BufferError, match="full_tensor"):
            memoryview(x)
        assert x.cpu() is x and x.to("cpu") is x and x.to("float64").dtype == shard.float64 and x.T.full_tensor().tolist() == [[1, 3], [2, 4]]
        assert shard.tensor(x).is_dist
        assert x.nbytes == 16 and (x.full_tensor().numpy() == [[1, 2], [3, 4]]).all() and x.local().numpy().shape == (1, 2)
        total = x.sum()
        assert "local contribution, not the value" in repr(total) or "local shard" in repr(total)
        return repr(x)

    texts = shard.run(program, nranks=2)
    assert texts[0] == ("tensor(local shard (1, 2)\n       [[1., 2.]], shape=(2, 2), dtype=float32, device=cpu, "
                        "layout=[x, -] on mesh(x=2))")
    assert "[[3., 4.]]" in texts[1]


@pytest.mark.skipif(not hasattr(shard, "dry_run"), reason="needs dry runs")
def test_tensors_without_data():
    def program():
        mesh = shard.ProcessMesh([2], ["x"])
        x = shard.shard_tensor(shard.tensor([[1.0, 2.0], [3.0, 4.0]]), mesh, [shard.Shard(0)])
        x[0] = 1.0
        texts.append(repr(x))
        for read in (x.full_tensor().numpy, x.full_tensor().tolist, x.full_tensor().__dlpack__):
            with pytest.raises(shard.NoDataError, match="has no value to read: it belongs to a dry run or a captured function"):
                read()
        texts.append(repr(x.full_tensor()))

    texts = []
    shard.dry_run(program, nranks=2)
    assert texts == ["tensor(no data: of a dry run, shape=(2, 2), dtype=float32, device=cpu, layout=[x, -] on mesh(x=2))",
                     "tensor(no data: of a dry run, shape=(2, 2), dtype=float32, device=cpu)"]


# References


def test_calls_leave_no_references_behind():
    x, values = shard.tensor(np.arange(12.0).reshape(4, 3)), np.arange(12.0)
    mask, index = x > 5.0, shard.tensor([0, 2])
    array_mask = mask.numpy()

    def assign():
        x[0, 1:] = 2.0
        x[index] = 1.0
        x[[0, 1]] = values[:3]

    calls = [lambda: x[0], lambda: x[mask], lambda: x[1:, None], lambda: x[index], lambda: x[array_mask], lambda: x[[0, 1]],
             x.numpy, lambda: shard.from_numpy(values), lambda: np.from_dlpack(x), lambda: shard.from_dlpack(values),
             lambda: x.__dlpack__(), lambda: shard.tensor([1.0, 2.0]), lambda: repr(x), x.tolist, lambda: memoryview(x), assign,
             lambda: shard.tensor(values), lambda: pytest.raises(IndexError, x.__getitem__, 9)]
    for call in calls:
        counts = [sys.getrefcount(each) for each in (x, values, mask, index)]
        assert blocks_after(call, warmup=100) < 100, call
        after = [sys.getrefcount(each) for each in (x, values, mask, index)]
        assert all(abs(a - b) < 50 for a, b in zip(counts, after)), call
