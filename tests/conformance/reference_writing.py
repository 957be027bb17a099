"""Functions of the ops of writing.yaml, which are assignments to parts of an array in NumPy."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


@op("index_put")
def index_put(call):
    """NumPy leaves open which of several values stays, so they are written one after the other."""
    x, *indices, value = call.inputs
    out = x.copy()
    places = np.broadcast_arrays(*[part for index in indices for part in positions(index)])
    chosen = len(places)
    values = np.broadcast_to(value, places[0].shape + x.shape[chosen:])
    for at in np.ndindex(*places[0].shape):
        target = tuple(int(part[at]) for part in places)
        if call.case.endswith("added"):
            out[target] += values[at]
        else:
            out[target] = values[at]
    return out


def positions(index):
    return np.nonzero(index) if index.dtype == bool else [index]


@op("set_value")
def set_value(call):
    out = call.inputs[0].copy()
    if call.case == "every second row":
        out[::2] = 1
    else:
        out[:, 2::-1] = [1, 2, 3]
    return out


@op("set_value_with_tensor")
def set_value_with_tensor(call):
    x, values = call.inputs
    out = x.copy()
    if call.case == "columns, broadcast":
        out[:, 1:3] = values
    elif call.case == "a row, with a new dim":
        out[-1, :, None] = values
    else:
        out[1::-1, ::2] = values
    return out


@op("fill_diagonal_tensor")
def fill_diagonal_tensor(call):
    x, y = call.inputs
    out = x.copy()
    offset, dim1, dim2 = {
        "of a matrix": (0, 0, 1),
        "offset 1 of dims 2 and 0": (1, 2, 0),
        "offset -1 of dims 1 and 2": (-1, 1, 2),
    }[call.case]
    matrices = np.moveaxis(out, (dim1, dim2), (-2, -1))  # a view
    for k in range(y.shape[-1]):
        matrices[..., k + max(-offset, 0), k + max(offset, 0)] = y[..., k]
    return out
