"""Functions of the ops of indexing.yaml."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


@op("flip")
def flip(call):
    return np.flip(call.inputs[0], {"axis 0": 0, "axes -1 and 0": (-1, 0)}[call.case])


@op("reverse")
def reverse(call):
    return np.flip(call.inputs[0], 1)


@op("roll")
def roll(call):
    x = call.inputs[0]
    return {
        "axis 0 by 1": lambda: np.roll(x, 1, 0),
        "axes 2 and 0": lambda: np.roll(x, (-2, 7), (-1, 0)),
        "no axis": lambda: np.roll(x.ravel(), 3).reshape(x.shape),
    }[call.case]()


@op("pad")
def pad(call):
    widths, value = {
        "axis 1 with 0": ([(0, 0), (2, 1)], 0),
        "axis 0 with 1": ([(1, 0), (0, 0), (0, 0)], 1),
    }[call.case]
    return np.pad(call.inputs[0], widths, constant_values=value)


@op("pad3d")
def pad3d(call):
    """Widths of D, H and W, while the attribute begins with W."""
    none = (0, 0)
    widths, mode = {
        "constant": ([none, none, (0, 0), (0, 2), (1, 0)], "constant"),
        "reflect": ([none, (0, 1), (1, 0), (2, 1), none], "reflect"),
        "replicate": ([none, none, (0, 3), (0, 0), (2, 1)], "edge"),
        "circular": ([none, none, (0, 0), (2, 1), (1, 0)], "wrap"),
    }[call.case]
    return np.pad(call.inputs[0], widths, mode=mode)


@op("crop")
def crop(call):
    x = call.inputs[0]
    return x if call.case == "from 0 to the end" else x[:, 1:2]


@op("repeat_interleave")
def repeat_interleave(call):
    repeats, axis = {"axis 0": (3, 0), "axis -1": (2, -1)}[call.case]
    return np.repeat(call.inputs[0], repeats, axis)


@op("unstack")
def unstack(call):
    return [call.inputs[0][:, i] for i in range(3)]


@op("meshgrid")
def meshgrid(call):
    """A tensor without dims is a row of one element."""
    return list(np.meshgrid(*call.inputs, indexing="ij"))


@op("broadcast_tensors")
def broadcast_tensors(call):
    return list(np.broadcast_arrays(*call.inputs))


@op("view_shape")
def view_shape(call):
    x = call.inputs[0]
    return x.reshape(1, x.size)


@op("diagonal")
def diagonal(call):
    offset, axis1, axis2 = {
        "of a matrix": (0, 0, 1),
        "offset 1 of axes 2 and 0": (1, 2, 0),
        "offset -1 of axes 1 and 2": (-1, 1, 2),
    }[call.case]
    return np.diagonal(call.inputs[0], offset, axis1, axis2)


@op("diag")
def diag(call):
    x = call.inputs[0]
    if call.case == "of a matrix":
        return np.diagonal(x, 1)
    offset, padding = {"of a row": (-1, 0), "of a row, on 2": (1, 2)}[call.case]
    size = x.size + abs(offset)
    out = np.full((size, size), padding, dtype=x.dtype)
    for i, element in enumerate(x):
        out[i - min(offset, 0), i + max(offset, 0)] = element
    return out


@op("diag_embed")
def diag_embed(call):
    x = call.inputs[0]
    rows, size = x.shape
    if call.case == "last dims":
        out = np.zeros((rows, size, size), dtype=x.dtype)
        for i in range(size):
            out[:, i, i] = x[:, i]
        return out
    # Dim 2 has the first index of the diagonal, and dim 0 the second one, which is larger by the offset 1.
    out = np.zeros((size + 1, rows, size + 1), dtype=x.dtype)
    for i in range(size):
        out[i + 1, :, i] = x[:, i]
    return out


@op("trace")
def trace(call):
    offset, axis1, axis2 = {"of a matrix": (-1, 0, 1), "axes 0 and 2": (0, 0, 2)}[call.case]
    return np.sum(np.diagonal(call.inputs[0], offset, axis1, axis2), axis=-1)


@op("fill")
def fill(call):
    return np.full_like(call.inputs[0], 2)


@op("fill_diagonal")
def fill_diagonal(call):
    out = call.inputs[0].copy()
    offset, wrap = {
        "of a matrix": (1, False),
        "of a matrix, again and again": (0, True),
        "of a cube": (-1, False),
    }[call.case]
    columns = out.shape[-1]
    for i in range(out.shape[0]):
        first = i % (columns + 1) if wrap else i
        if 0 <= first + offset < columns:
            out[(i,) * (out.ndim - 1) + (first + offset,)] = 2
    return out


@op("pixel_shuffle")
def pixel_shuffle(call):
    x = call.inputs[0]
    if call.case == "by 2":
        n, c, h, w = x.shape
        squares = x.reshape(n, c // 4, 2, 2, h, w)
        return np.transpose(squares, (0, 1, 4, 2, 5, 3)).reshape(n, c // 4, 2 * h, 2 * w)
    n, h, w, c = x.shape
    squares = x.reshape(n, h, w, c // 4, 2, 2)
    return np.transpose(squares, (0, 1, 4, 2, 5, 3)).reshape(n, 2 * h, 2 * w, c // 4)


@op("pixel_unshuffle")
def pixel_unshuffle(call):
    x = call.inputs[0]
    n, c, h, w = x.shape
    squares = x.reshape(n, c, h // 2, 2, w // 2, 2)
    return np.transpose(squares, (0, 1, 3, 5, 2, 4)).reshape(n, 4 * c, h // 2, w // 2)


@op("channel_shuffle")
def channel_shuffle(call):
    """Channels 0 1 2 3 of two groups become 0 2 1 3."""
    return np.take(call.inputs[0], [0, 2, 1, 3], axis=1 if call.case == "two groups" else 3)


@op("temporal_shift")
def temporal_shift(call):
    """Two frames of each video, and of four channels one is shifted to the later and one to the earlier frame."""
    x = call.inputs[0]
    out = x.copy()
    earlier, later = slice(0, None, 2), slice(1, None, 2)
    out[earlier, 0] = 0
    out[later, 0] = x[earlier, 0]
    out[earlier, 1] = x[later, 1]
    out[later, 1] = 0
    return out


@op("maxout")
def maxout(call):
    x = call.inputs[0]
    return np.maximum(x[:, 0::2], x[:, 1::2])


def windows(h, w):
    """The slices of a padded image of h by w elements that each element of a kernel of 2 by 3 sees in its positions,
    with strides of 1 and 2, and the padding 1 at the top, left and right."""
    down, across = h + 1 - 2 + 1, (w + 2 - 3) // 2 + 1
    for row in range(2):
        for column in range(3):
            yield slice(row, row + down), slice(column, column + 2 * across - 1, 2)


@op("unfold")
def unfold(call):
    x = call.inputs[0]
    n, c, h, w = x.shape
    padded = np.pad(x, [(0, 0), (0, 0), (1, 0), (1, 1)])
    parts = [padded[:, :, down, across] for down, across in windows(h, w)]
    return np.stack(parts, axis=2).reshape(n, 6 * c, -1)


@op("fold")
def fold(call):
    x = call.inputs[0]
    n, c, h, w = call.out_dims[0]
    padded = np.zeros((n, c, h + 1, w + 2), dtype=x.dtype)
    for i, (down, across) in enumerate(windows(h, w)):
        place = padded[:, :, down, across]
        place += x[:, i::6].reshape(place.shape)
    return padded[:, :, 1:, 1:-1]


@op("gather_nd")
def gather_nd(call):
    x, index = call.inputs
    return x[tuple(index.T)]


@op("scatter_nd_add")
def scatter_nd_add(call):
    x, index, updates = call.inputs
    out = x.copy()
    np.add.at(out, tuple(index.T), updates)
    return out


@op("index_select")
def index_select(call):
    x, index = call.inputs
    return x[:, index]


@op("index_add")
def index_add(call):
    x, index, add_value = call.inputs
    out = x.copy()
    np.add.at(out, index if call.case == "axis 0" else (slice(None), index), add_value)
    return out


@op("index_sample")
def index_sample(call):
    x, index = call.inputs
    return np.take_along_axis(x, index, axis=1)


@op("take_along_axis")
def take_along_axis(call):
    x, indices = call.inputs
    return np.take_along_axis(x, indices, axis=int(call.case[-1]))


def mean(values):
    """That of integers is rounded down."""
    values = np.array(values)
    return np.sum(values) / len(values) if values.dtype == np.float64 else np.sum(values) // len(values)


@op("put_along_axis")
def put_along_axis(call):
    """NaN is the largest and the smallest element, as for max and min."""
    x, indices, values = call.inputs
    axis = int(call.case[len("axis ")])
    reduce = {
        "assign": lambda written: written[-1],
        "add": np.sum,
        "multiply": np.prod,
        "mean": mean,
        "amax": np.max,
        "amin": np.min,
    }[call.case.split()[2]]
    written = {}
    for place in np.ndindex(indices.shape):
        target = list(place)
        target[axis] = int(indices[place]) % x.shape[axis]
        written.setdefault(tuple(target), []).append(values[place])
    out = x.copy()
    for target, elements in written.items():
        out[target] = reduce(elements if call.case.endswith(" without x") else [x[target]] + elements)
    return out


@op("shape")
def shape(call):
    return np.array(call.inputs[0].shape, dtype=np.int64)


@op("shard_index")
def shard_index(call):
    """Of 20 rows the second of three shards has 7 to 13."""
    x = call.inputs[0]
    return np.where((x >= 7) & (x < 14), x - 7, -1)


@op("view_dtype")
def view_dtype(call):
    """Bytes, the least significant one first."""
    x = call.inputs[0]
    if call.case == "the same dtype":
        return x
    dtype = {"bytes as int32": np.int32, "bytes as int64": np.int64}[call.case]
    return x.astype(np.uint8).view(dtype).astype(np.int64)
