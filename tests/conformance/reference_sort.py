"""Functions of the ops of sort.yaml, and of the running functions, norms, composites and argmin of reduce.yaml."""

import numpy as np

from reference import wrapped
from reference_reduce import axes_of, number_dtype

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


def order(x, axis, descending=False):
    """The indices of the sorted elements. Equal ones keep their order, and NaN is larger than others."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)


def selected(x, indices, axis):
    return [np.take_along_axis(x, indices, axis), indices]


def equal(x, y):
    """Whether elements are equal, as NaNs are."""
    return (x == y) | ((x != x) & (y != y))


# sort.yaml


@op("topk")
def topk(call):
    k, axis, largest = {
        "the largest along axis 0": (1, 0, True),
        "the smallest along axis -1": (1, -1, False),
        "three along axis 1": (3, 1, True),
    }[call.case]
    x = call.inputs[0]
    return selected(x, np.take(order(x, axis, largest), range(k), axis), axis)


@op("argsort")
def argsort(call):
    axis, descending = {"axis 0": (0, False), "axis -1, descending": (-1, True)}[call.case]
    x = call.inputs[0]
    return selected(x, order(x, axis, descending), axis)


@op("kthvalue")
def kthvalue(call):
    k, axis, keepdim = {
        "the first along axis 0": (1, 0, False),
        "the second along axis -1, keepdim": (2, -1, True),
    }[call.case]
    x = call.inputs[0]
    outputs = selected(x, np.take(order(x, axis), [k - 1], axis), axis)
    return outputs if keepdim else [np.squeeze(out, axis) for out in outputs]


def mode_index(row):
    values, counts = np.unique(row, return_counts=True)  # in rising order, NaN last and once
    return np.flatnonzero(equal(row, values[np.argmax(counts)]))[-1]


@op("mode")
def mode(call):
    axis, keepdim = {"axis 0": (0, False), "axis -1, keepdim": (-1, True)}[call.case]
    x = call.inputs[0]
    indices = np.expand_dims(np.apply_along_axis(mode_index, axis, x), axis)
    outputs = selected(x, indices, axis)
    return outputs if keepdim else [np.squeeze(out, axis) for out in outputs]


@op("searchsorted")
def searchsorted(call):
    """Counts each pair of an element and a value, be the sequence in order or not."""
    sequence, values = call.inputs
    right = call.case == "a sequence for each row, right, int32"
    element, value = sequence[..., None, :], values[..., None]
    smaller = (element < value) | ((value != value) & (element == element))
    return np.sum(smaller | equal(element, value) if right else smaller, axis=-1, dtype=np.int64)


@op("histogram")
def histogram(call):
    x, bins = call.inputs[0].ravel(), 4
    low, high = -2, 2
    if call.case == "from the smallest to the largest":
        low, high = (np.min(x), np.max(x)) if x.size else (0, 0)
        assert np.isfinite(low) and np.isfinite(high), "it is an error"
        if low == high:
            low, high = low - 1, high + 1
    x = x[(x >= low) & (x <= high)]
    index = np.minimum(np.floor((x - low) * bins / (high - low)), bins - 1)  # the last range includes its end
    return np.bincount(index.astype(np.int64), minlength=bins).astype(np.int64)


# reduce.yaml


@op("argmin")
def argmin(call):
    axis, keepdims = {
        "axis 0": (0, False),
        "axis -1, keepdims": (-1, True),
        "flatten": (None, False),
        "flatten, keepdims": (None, True),
    }[call.case]
    return np.argmin(call.inputs[0], axis=axis, keepdims=keepdims)


def axis_of(call):
    return {"axis 0": 0, "axis -1": -1}[call.case]


@op("cumprod")
def cumprod(call):
    return wrapped(np.cumprod(call.inputs[0], axis=axis_of(call)), call.kind)


@op("cumprod_grad")
def cumprod_grad(call):
    axis = axis_of(call)
    x, grad = (np.moveaxis(np.asarray(value, dtype=np.float64), axis, -1) for value in call.inputs)
    result = np.zeros_like(x)
    size = x.shape[-1]
    for i in range(size):
        for k in range(i, size):
            others = np.prod(np.delete(x[..., : k + 1], i, axis=-1), axis=-1)
            result[..., i] += grad[..., k] * others
    return np.moveaxis(result, -1, axis)


def running(name, accumulate):
    """The extreme up to each position, and the last index of it; NaN wins, and NaNs are equal."""

    def run(call):
        x, axis = call.inputs[0], axis_of(call)
        out = accumulate(x, axis=axis)
        position = np.indices(x.shape)[axis]
        return [out, np.maximum.accumulate(np.where(equal(x, out), position, 0), axis=axis)]

    OPS[name] = run


running("cummax", np.maximum.accumulate)
running("cummin", np.minimum.accumulate)


@op("logcumsumexp")
def logcumsumexp(call):
    x = call.inputs[0]
    if call.case == "flatten":
        return np.logaddexp.accumulate(x.ravel())
    if call.case == "axis -1, reverse":
        return np.flip(np.logaddexp.accumulate(np.flip(x, -1), axis=-1), -1)
    if call.case == "exp, exclusive":
        before = np.concatenate([np.full_like(x[:, :1], -np.inf), x[:, :-1]], axis=1)
        return np.exp(np.logaddexp.accumulate(before, axis=1))
    return np.logaddexp.accumulate(x, axis=axis_of(call))


@op("logsumexp")
def logsumexp(call):
    if call.case == "axis 1, of distant numbers":
        return np.logaddexp.reduce(call.inputs[0] * 1000, axis=1)
    x = call.inputs[0] * 0 if call.case == "reduce_all" else call.inputs[0]
    axis, keepdim = axes_of(call.case)
    return np.logaddexp.reduce(x, axis=axis, keepdims=keepdim)


@op("p_norm")
def p_norm(call):
    order_text, *options = call.case[len("of order ") :].split(", ")
    of_all = options == ["as a vector", "keepdim"]
    assert of_all or not options
    how = {"axis": None, "keepdims": True} if of_all else {"axis": 0}
    size, porder = np.abs(call.inputs[0]), float(order_text)
    if porder == 0:
        return np.sum(size != 0, dtype=np.float64, **how)
    if np.isinf(porder):
        return np.max(size, **how) if porder > 0 else np.min(size, **how)
    return np.sum(size**porder, **how) ** (1 / porder)


@op("l1_norm")
def l1_norm(call):
    return np.sum(np.abs(call.inputs[0]))


@op("mean_all")
def mean_all(call):
    return np.mean(call.inputs[0])


@op("reduce_as")
def reduce_as(call):
    x, dtype = call.inputs[0], number_dtype(call)
    return {
        "[m, n] as [n]": lambda: np.sum(x, axis=0, dtype=dtype),
        "[m, n] as [1, n]": lambda: np.sum(x, axis=0, keepdims=True, dtype=dtype),
        "[m, n] as [m, n]": lambda: x,
    }[call.case]()


def spread_of(name, of_variance):
    @op(name)
    def spread(call):
        case = call.case.removesuffix(", unbiased")
        axis, keepdim = axes_of(case)
        count = call.inputs[0].size // np.mean(call.inputs[0], axis=axis).size
        x = call.inputs[0] * count
        correction = 1 if case != call.case and count > 1 else 0
        return of_variance(np.var(x, axis=axis, keepdims=keepdim, ddof=correction))


spread_of("var", lambda variance: variance)
spread_of("std", np.sqrt)


@op("median")
def median(call):
    case, mode = call.case.rsplit(", ", 1)
    axis, keepdim = axes_of(case)
    how = {"axis": axis, "keepdims": keepdim}
    if mode == "avg":
        return np.median(call.inputs[0], **how).astype(np.float64)
    return np.quantile(call.inputs[0], 0.5, method="lower", **how)
