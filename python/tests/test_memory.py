"""Memory and references are what they were after 10,000 calls: of each op, of its backward pass, and on ranks."""

import ctypes
import functools
import gc
import sys

import pytest

import shard
from op_calls import cases
from op_list import FUNCTIONS

MOST_OBJECTS = 100  # what tables of the interpreter may take for themselves
MOST_BYTES = 20_000


class HeapInfo(ctypes.Structure):
    """struct mallinfo2 of glibc, numbers of bytes and blocks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def heap_function():
    """Tells how many bytes malloc has given out, which are buffers of tensors and objects of C++ and of Python."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:  # not glibc, or one from before 2.33
        return lambda: 0
    mallinfo.restype = HeapInfo

    def heap():
        info = mallinfo()
        return info.uordblks + info.hblkhd

    return heap


heap_bytes = heap_function()


def growth(call, calls, warmup=100, least=1):
    """
    How many objects and bytes more there are after many calls, at best. A leak shows each time, but a cache grows once. The calls are made
    up to three times, and at least `least` times, which must be 3 where ranks make the same calls.
    """
    for _ in range(warmup):
        call()
    found = []
    for _ in range(3):
        gc.collect()
        before = sys.getallocatedblocks(), heap_bytes()
        for _ in range(calls):
            call()
        gc.collect()
        found.append((sys.getallocatedblocks() - before[0], heap_bytes() - before[1]))
        if len(found) >= least and found[-1][0] < MOST_OBJECTS and found[-1][1] < MOST_BYTES:
            return found[-1]
    return min(objects for objects, _ in found), min(size for _, size in found)


def check_flat(name, call, tensors, calls=10_000):
    references = [sys.getrefcount(each) for each in tensors]
    objects, size = growth(call, calls)
    assert objects < MOST_OBJECTS and size < MOST_BYTES, f"{name}: {objects} objects and {size} bytes more"
    assert [sys.getrefcount(each) for each in tensors] == references


def first_call(function):
    """A call of the function with the tensors of its first case, and these."""
    case = cases()[function][0]
    dtype = case.dtypes()[0]
    tensors = [shard.tensor(array) for array in case.tensors("A", dtype)]
    if function.endswith("_"):  # each call writes its arguments, and may change their shape and dtype
        return lambda: case.run("A", dtype, [each.clone() for each in tensors]), tensors
    return lambda: case.run("A", dtype, tensors), tensors


NAMES = sorted(f for f in cases() if f in FUNCTIONS)


@pytest.mark.parametrize("function", NAMES)
def test_calls_of_ops(function):
    check_flat(function, *first_call(function))


def backward_call(function):
    """A call and a backward pass from the sum of its results, and the tensors; None for an op without a gradient."""
    call, tensors = first_call(function)
    tensors = [each for each in tensors if each.dtype == shard.float32]
    for each in tensors:
        each.requires_grad = True

    def with_backward():
        sum(shard.sum(each) for each in call() if each is not None and each.requires_grad).backward()
        for each in tensors:
            each.grad = None

    try:
        with_backward()
    except (shard.AutogradError, AttributeError):  # the op has no gradient, or no result that has one
        return None
    return with_backward, tensors


@functools.cache
def backward_calls():
    pairs = {name: backward_call(name) for name in NAMES if not name.endswith("_")}
    return {name: pair for name, pair in pairs.items() if pair}


@pytest.mark.parametrize("part", range(8))
def test_backward_passes_of_ops(part):
    assert len(backward_calls()) > 200
    for name in sorted(backward_calls())[part::8]:
        check_flat(name, *backward_calls()[name], calls=1_000)


def of_ranks(function):
    """On each rank: objects and bytes that are left after calls on sharded tensors."""
    mesh = shard.ProcessMesh([2], ["x"])
    call, tensors = first_call(function)
    inputs = [shard.shard_tensor(each, mesh, [shard.Shard(0) if each.ndim else shard.Replicate()]) for each in tensors]
    case = cases()[function][0]
    with shard.policies(fallback="replicate"):
        # After the warm-up the ring of the last calls is full.
        return growth(lambda: case.run("A", case.dtypes()[0], inputs), calls=1_000, warmup=4_000, least=3)


@pytest.mark.parametrize("function", ["add", "sum", "matmul", "softmax", "reshape", "embedding", "layer_norm", "topk"])
def test_calls_on_ranks(function):
    for objects, size in shard.run(of_ranks, nranks=2, args=(function,)):
        # What the other rank allocates at the moment counts, too.
        assert objects < 5 * MOST_OBJECTS and size < MOST_BYTES, f"{objects} objects and {size} bytes more"
