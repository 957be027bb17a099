"""Functions of the ops of graph.yaml, and of those that count equal elements and find medians."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


# graph.yaml. Messages are lists of rows for each target.


def truncated_mean(rows, kind):
    total = np.sum(rows, axis=0)
    if kind == "float":
        return total / len(rows)
    return np.sign(total) * (np.abs(total) // len(rows))


def extreme(rows, largest):
    """NaN wins."""
    stacked = np.stack(rows)
    found = stacked.max(axis=0) if largest else stacked.min(axis=0)
    return np.where(np.isnan(stacked.astype(float)).any(axis=0), np.nan, found) if found.dtype.kind == "f" else found


REDUCTIONS = {
    "SUM": lambda rows, kind: np.sum(rows, axis=0),
    "MEAN": truncated_mean,
    "MIN": lambda rows, kind: extreme(rows, False),
    "MAX": lambda rows, kind: extreme(rows, True),
}


def received(call, messages, targets, count, reduce_op):
    out = np.zeros((count,) + messages.shape[1:], dtype=messages.dtype)
    for row in range(count):
        rows = [message for message, target in zip(messages, targets) if target == row]
        if rows:
            out[row] = REDUCTIONS[reduce_op](rows, call.kind)
    return out


@op("send_u_recv")
def send_u_recv(call):
    x, sources, targets = call.inputs
    reduce_op, rows = {
        "SUM": ("SUM", 3),
        "MEAN, int32, 5 rows": ("MEAN", 5),
        "MIN, 2 rows": ("MIN", 2),
        "MAX, int32": ("MAX", 3),
        "SUM of rows of one element": ("SUM", 3),
    }[call.case]
    return received(call, x[sources], targets, rows, reduce_op)


def combined(call, x, y):
    return x * y if call.case.startswith("MUL") else x + y


@op("send_ue_recv")
def send_ue_recv(call):
    x, y, sources, targets = call.inputs
    reduce_op = call.case.split(", ")[1]
    rows = {"ADD, MEAN": 4, "MUL, SUM": 2, "MUL, MIN": 4}.get(call.case, 3)
    return received(call, combined(call, x[sources], y[:, None, :]), targets, rows, reduce_op)


@op("send_uv")
def send_uv(call):
    x, y, sources, targets = call.inputs
    return combined(call, x[sources][:, None, :], y[targets])


@op("segment_pool")
def segment_pool(call):
    x, steps = call.inputs
    ids = np.cumsum(steps)
    return received(call, x, ids, int(ids[-1]) + 1 if len(ids) else 0, call.case)


# dynamic.yaml


def runs(rows):
    """Where rows differ from the one before them, the run of each row, and the sizes of the runs."""
    firsts = [i for i in range(len(rows)) if i == 0 or not np.array_equal(rows[i], rows[i - 1])]
    sizes = np.diff(firsts + [len(rows)]).astype(np.int64) if firsts else np.zeros(0, dtype=np.int64)
    return np.array(firsts, dtype=np.int64), np.repeat(np.arange(len(firsts)), sizes), sizes


@op("unique_consecutive")
def unique_consecutive(call):
    (x,) = call.inputs
    if call.case == "elements":
        firsts, index, counts = runs(x.ravel())
        return [x.ravel()[firsts], index, counts]
    firsts, index, counts = runs(x.T)
    return [x[:, firsts], index, counts]


@op("unique_consecutive_rows")
def unique_consecutive_rows(call):
    (x,) = call.inputs
    firsts, index, counts = runs(x)
    none = np.zeros(0, dtype=np.int64)
    return [x[firsts], none, none] if call.case == "rows alone" else [x[firsts], index, counts]


@op("bincount")
def bincount(call):
    if call.case == "at least 4":
        return np.bincount(call.inputs[0], minlength=4).astype(np.int64)
    x, weights = call.inputs
    out = np.zeros(int(x.max()) + 1 if len(x) else 0)
    for number, weight in zip(x, weights):
        out[number] += weight
    return out


# reduce.yaml


def median_of(row, mode, kind):
    """The median, and its places in the row."""
    order = np.argsort(row, kind="stable")  # NaN last
    count = len(row) - int(np.isnan(row.astype(float)).sum())
    if count == 0:
        return np.nan, [-1, -1]
    low, high = order[(count - 1) // 2], order[count // 2]
    if mode == "min" or low == high:
        return row[low], [low, low]
    if kind != "float":
        total = int(row[low]) + int(row[high])
        return int(np.sign(total)) * (abs(total) // 2), [low, high]
    return row[low] / 2 + row[high] / 2, [low, high]


@op("nanmedian")
def nanmedian(call):
    (x,) = call.inputs
    axes, keepdim, mode = {
        "all axes, keepdim, avg": ((0, 1, 2), True, "avg"),
        "all axes, min": ((0, 1, 2), False, "min"),
        "axis 1, avg": ((1,), False, "avg"),
        "axes -1 and 0, avg": ((0, 2), False, "avg"),
        "axis 0, keepdim, min": ((0,), True, "min"),
    }[call.case]
    kept = [d for d in range(3) if d not in axes]
    lines = x.transpose(kept + list(axes)).reshape([x.shape[d] for d in kept] + [-1])
    dims = lines.shape[:-1]
    out, places = np.zeros(dims, dtype=x.dtype), np.zeros(dims + (2,), dtype=np.int64)
    for at in np.ndindex(*dims):
        out[at], places[at] = median_of(lines[at], mode, call.kind)
    if mode == "min":
        places = places[..., 0]
    if keepdim:
        dims = tuple(1 if d in axes else x.shape[d] for d in range(3))
        out, places = out.reshape(dims), places.reshape(dims + places.shape[len(kept):])
    return [out, places]
