"""Functions of the ops of shape.yaml."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


@op("reshape")
def reshape(call):
    x = call.inputs[0]
    d = x.shape
    shape = {
        "[a, b] to [b, a]": lambda: (d[1], d[0]),
        "[a, b, c] to [a * b, c]": lambda: (d[0] * d[1], d[2]),
        "[a, b, c] to [a, -1]": lambda: (d[0], d[1] * d[2]),
        "[2 * a, b] to [2, a, b]": lambda: (2, d[0] // 2, d[1]),
        "[2 * a, b] to [a, 2 * b]": lambda: (d[0] // 2, 2 * d[1]),
    }[call.case]()
    return x.reshape(shape)


@op("flatten")
def flatten(call):
    x = call.inputs[0]
    a, b, c = x.shape
    shape = {"dims 1 and 2": (a, b * c), "all dims": (a * b * c,), "dims 0 and 1": (a * b, c)}[call.case]
    return x.reshape(shape)


@op("squeeze")
def squeeze(call):
    return np.squeeze(call.inputs[0], 1)


@op("unsqueeze")
def unsqueeze(call):
    x = call.inputs[0]
    axes = {"axis 0": [0], "axis 1 and -1": [1, -1], "axis 2": [2]}[call.case]
    for axis in axes:  # one after the other
        x = np.expand_dims(x, axis)
    return x


@op("transpose")
def transpose(call):
    perm = {"of two dims": (1, 0), "2, 0, 1": (2, 0, 1), "0, -1, 1": (0, 2, 1)}[call.case]
    return np.transpose(call.inputs[0], perm)


@op("expand")
def expand(call):
    x = call.inputs[0]
    shape = (2, x.shape[0]) if call.case == "[a] to [2, a]" else (x.shape[0], call.out_dims[0][1])
    return np.broadcast_to(x, shape)


@op("expand_as")
def expand_as(call):
    x = call.inputs[0]
    shape = (call.out_dims[0][0], x.shape[1]) if call.case == "[1, b] to [a, b]" else call.inputs[1].shape
    return np.broadcast_to(x, shape)


@op("tile")
def tile(call):
    times = {"2 by 1": (2, 1), "3 along the last": (3,), "2 by 1 by 2": (2, 1, 2), "none": (1, 1)}[call.case]
    return np.tile(call.inputs[0], times)


@op("tril")
def tril(call):
    return np.tril(call.inputs[0], int(call.case.split()[1]))


@op("triu")
def triu(call):
    return np.triu(call.inputs[0], int(call.case.split()[1]))


@op("concat")
def concat(call):
    return np.concatenate(call.inputs, axis=-1 if call.case.endswith("axis -1") else 0)


@op("stack")
def stack(call):
    axis = {"two, axis 0": 0, "two, axis -1": -1, "three, axis 1": 1}[call.case]
    return np.stack(call.inputs, axis=axis)


@op("split")
def split(call):
    return np.split(call.inputs[0], [1], axis=int(call.case[-1]))


@op("split_with_num")
def split_with_num(call):
    return np.split(call.inputs[0], 2, axis=0 if call.case == "two, axis 0" else -1)


@op("unbind")
def unbind(call):
    x = call.inputs[0]
    return [x[i] if call.case == "three, axis 0" else x[..., i] for i in range(3)]


@op("slice")
def slice_(call):
    x = call.inputs[0]
    return {
        "from 1, axis 0": lambda: x[1:],
        "from 1, axis 1": lambda: x[:, 1:],
        "the last, dropped": lambda: x[-1],
        "all of axis 0": lambda: x,
    }[call.case]()


@op("strided_slice")
def strided_slice(call):
    x = call.inputs[0]
    return {
        "every second of axis 0": lambda: x[1::2],
        "axis -1 backwards": lambda: x[:, ::-1],
        # From the last but one row, or the first where there is but one, to before row 0 backwards.
        "both axes": lambda: x[-2:0:-1, ::3],
        "no axis": lambda: x,
    }[call.case]()


@op("unslice")
def unslice(call):
    x = call.inputs[0]
    out = np.zeros(call.out_dims[0], dtype=x.dtype)
    view = {
        "from 1, axis 0": lambda: out[1:],
        "every second of axis -1": lambda: out[:, ::2],
        "axis 1 backwards": lambda: out[:, ::-1],
        "both axes": lambda: out[-2:0:-1, ::3],
        "all of axis 0": lambda: out,
        "no axis": lambda: out,
    }[call.case]()
    view[...] = x
    return out


@op("gather")
def gather(call):
    x, index = call.inputs
    return np.take(x, index, axis=1 if call.case == "axis 1" else 0)


@op("index_sum")
def index_sum(call):
    x, index = call.inputs
    out = np.zeros(call.out_dims[0], dtype=x.dtype)
    if call.case == "axis 0":
        np.add.at(out, index, x)
    else:
        np.add.at(out, (slice(None), index), x)
    return out


@op("scatter")
def scatter(call):
    x, index, updates = call.inputs
    out = x.copy()
    index = index.ravel()
    if call.case.startswith("overwrite"):
        for row, update in zip(index, updates):  # the last of equal ones stays
            out[row] = update
        return out
    out[index] = 0
    np.add.at(out, index, updates)
    return out


@op("scatter_grad")
def scatter_grad(call):
    """Gradients of x and of updates: an overwritten row has none, be it one of x or of updates."""
    index, out_grad = call.inputs
    index = index.ravel()
    x_grad = out_grad.copy()
    x_grad[index] = 0
    updates_grad = out_grad[index]
    if call.case.startswith("overwrite"):
        last = {row: i for i, row in enumerate(index)}
        updates_grad[[last[row] != i for i, row in enumerate(index)]] = 0
    return [x_grad, updates_grad]


@op("one_hot")
def one_hot(call):
    return (call.inputs[0][..., None] == np.arange(4)).astype(np.float64)
