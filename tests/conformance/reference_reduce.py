"""Functions of the ops of reduce.yaml and dynamic.yaml, and of matmul and cumsum."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


def axes_of(case):
    """axis and keepdim of all_axes() in op_cases_reduce.cc."""
    case = case.replace(" of integers", "")
    return {
        "axis {}": (None, False),
        "axis {}, keepdim": (None, True),
        "axis 0": (0, False),
        "axis 1, keepdim": (1, True),
        "axis -1 and 0": ((-1, 0), False),
        "reduce_all": (None, False),
    }[case]


def reduction(name, f):
    def reduce(call):
        axis, keepdim = axes_of(call.case)
        return f(call, call.inputs[0], axis, keepdim)

    OPS[name] = reduce


def number_dtype(call):
    """Integers and bools are added up as int64."""
    return np.float64 if call.kind == "float" else np.int64


reduction("sum", lambda call, x, a, k: np.sum(x, axis=a, keepdims=k, dtype=number_dtype(call)))
reduction("prod", lambda call, x, a, k: np.prod(x, axis=a, keepdims=k, dtype=number_dtype(call)))
reduction("mean", lambda call, x, a, k: np.mean(x, axis=a, keepdims=k))
for largest in "max", "amax":
    reduction(largest, lambda call, x, a, k: np.max(x, axis=a, keepdims=k))
for smallest in "min", "amin":
    reduction(smallest, lambda call, x, a, k: np.min(x, axis=a, keepdims=k))
reduction("all", lambda call, x, a, k: np.all(x, axis=a, keepdims=k))
reduction("any", lambda call, x, a, k: np.any(x, axis=a, keepdims=k))
reduction("frobenius_norm", lambda call, x, a, k: np.sqrt(np.sum(x * x, axis=a, keepdims=k)))


@op("squared_l2_norm")
def squared_l2_norm(call):
    return np.array([np.sum(call.inputs[0] ** 2)])


@op("numel")
def numel(call):
    return np.array(call.inputs[0].size)


@op("argmax")
def argmax(call):
    axis, keepdims = {
        "axis 0": (0, False),
        "axis -1, keepdims": (-1, True),
        "flatten": (None, False),
        "flatten, keepdims": (None, True),
    }[call.case]
    return np.argmax(call.inputs[0], axis=axis, keepdims=keepdims)


@op("matmul")
def matmul(call):
    x, y = call.inputs
    if "[k, m] transposed" in call.case or call.case == "both transposed":
        x = x.T
    if "[n, k] transposed" in call.case or call.case == "both transposed":
        y = y.T
    return np.matmul(x, y)


@op("cumsum")
def cumsum(call):
    x = call.inputs[0]
    if call.case == "flatten":
        return np.cumsum(x)
    if call.case == "axis 1, reverse":
        return np.flip(np.cumsum(np.flip(x, 1), axis=1), 1)
    if call.case == "axis -1, exclusive":
        return np.cumsum(np.concatenate([np.zeros_like(x[:, :1]), x], axis=1), axis=-1)[:, : x.shape[1]]
    return np.cumsum(x, axis=0)


@op("nonzero")
def nonzero(call):
    return np.argwhere(call.inputs[0])


@op("masked_select")
def masked_select(call):
    x, mask = call.inputs
    return x[mask].reshape(-1)


@op("unique")
def unique(call):
    out, indices, inverse, counts = np.unique(
        call.inputs[0].ravel(), return_index=True, return_inverse=True, return_counts=True
    )
    return [out] if call.case == "values" else [out, indices, inverse, counts]


@op("norm")
def norm(call):
    x = call.inputs[0]
    size = np.sqrt(np.sum(x * x, axis=int(call.case.split(" ")[1]), keepdims=True) + 0.5)
    return [x / size, size]
