"""Tensors from lists and back, from ops alone, and gradients by finite differences."""

import gc
import resource
import sys

import shard


def vector(values, requires_grad=False):
    """A float64 tensor of one dim."""
    parts = [shard.full([1], float(value), dtype=shard.float64) for value in values]
    x = shard.concat(parts) if len(parts) > 1 else parts[0]
    return x.requires_grad_() if requires_grad else x


def numbers(x):
    """The elements in row-major order."""
    flat = shard.cast(shard.reshape(x.detach(), [x.size]), shard.float64)
    positions = shard.arange(0, x.size, 1, dtype=shard.int64)
    return [shard.sum(shard.where(shard.equal(positions, shard.full_like(positions, i)), flat, shard.full_like(flat, 0.0))).item() for i in range(x.size)]


def numeric_gradient(function, values, step=1e-6):
    """The gradient of a function of a vector to one number, by central differences."""
    gradient = []
    for i in range(len(values)):
        ends = []
        for sign in (1, -1):
            moved = list(values)
            moved[i] += sign * step
            with shard.no_grad():
                ends.append(function(vector(moved)).item())
        gradient.append((ends[0] - ends[1]) / (2 * step))
    return gradient


def blocks_after(call, warmup=2_000, calls=10_000):
    """How many blocks of Python memory more there are after many calls. The least of four parts, because caches grow, too."""
    for _ in range(warmup):
        call()
    more = []
    for _ in range(4):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(calls // 4):
            call()
        gc.collect()
        more.append(sys.getallocatedblocks() - before)
    return min(more)


def bytes_after(call, warmup=100, calls=1_000):
    """How many bytes of memory more the process has after many calls."""

    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    for _ in range(warmup):
        call()
    before = resident()
    for _ in range(calls):
        call()
    return resident() - before


class Cube(shard.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * x * x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x * x * (3.0 * ctx.scale), None
