"""Runs one op of PaddlePaddle on NumPy arrays: its own kernel, on one process."""

import logging
import os

os.environ.setdefault("GLOG_minloglevel", "3")
import numpy as np
import paddle
from paddle.base import core

from cases import EXTRA

logging.disable(logging.WARNING)
paddle.enable_static()
EXECUTOR = paddle.static.Executor(paddle.CPUPlace())
DTYPES = {
    "FLOAT32": paddle.float32,
    "FLOAT64": paddle.float64,
    "INT64": paddle.int64,
    "INT32": paddle.int32,
    "BOOL": paddle.bool,
}


def has(name):
    return hasattr(paddle._C_ops, name)


def attribute(typename, text):
    """The value of an attribute from its default in the YAML, or from a case."""
    if not isinstance(text, str):
        return text
    if typename == "DataType":
        return DTYPES.get(text.removeprefix("DataType::"), core.DataType.UNDEFINED)
    if typename == "Place":
        return paddle.CPUPlace()
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("{"):
        return [attribute("", t) for t in text.strip("{}").split(",") if t.strip()]
    if typename.startswith("str") or text.startswith('"') and not typename.startswith("Scalar"):
        return text.strip('"')
    try:
        number = float(text.strip('"').rstrip("fL"))
        return (
            int(number) if number == int(number) and typename not in ("float", "double") and "." not in text else number
        )
    except ValueError:
        return text


def build(op, tensors, attrs):
    """A program of this op alone: the program, what to feed it, and its outputs by position."""
    main = paddle.static.Program()
    feed = {}

    def data(array):
        name = f"t{len(feed)}"
        feed[name] = array
        return paddle.static.data(name, list(array.shape), str(array.dtype))

    with paddle.pir_utils.IrGuard(), paddle.static.program_guard(main):
        args = [None if t is None else [data(a) for a in t] if isinstance(t, list) else data(t) for t in tensors]
        result = getattr(paddle._C_ops, op["name"])(*args, *attrs, *EXTRA.get(op["name"], []))
        values = all_results(op, result)
    if len(values) != len(op["outputs"]):
        raise ValueError(f"this version of PaddlePaddle has {len(values)} outputs")
    return main, feed, values


def run(op, tensors, attrs):
    """The outputs by position, None for absent ones. `tensors` are arrays, lists of them or None."""
    try:
        main, feed, values = build(op, tensors, attrs)
        fetch, places = [], []
        for i, value in enumerate(values):
            for part in value if isinstance(value, list) else [value]:
                if part is not None and is_dense(part):
                    places.append((i, isinstance(value, list), list(part.shape)))
                    fetch.append(part)
        with paddle.pir_utils.IrGuard():
            arrays = EXECUTOR.run(main, feed=feed, fetch_list=fetch)
    except Exception:
        return run_eagerly(op, tensors, attrs)
    outputs = [None] * len(op["outputs"])
    for (i, listed, shape), array in zip(places, arrays):
        array = np.asarray(array)
        if array.shape == () and shape != []:
            continue  # declared, and not computed by the kernel
        outputs[i] = (outputs[i] or []) + [array] if listed else array
    return outputs


def infer(op, tensors, attrs):
    """Zeros of the shapes that the outputs get, without a kernel."""
    program, _, values = build(op, tensors, attrs)  # which the values live in
    zeros = lambda v: np.zeros(v.shape, np.float32) if v is not None and is_declared(v) else None  # noqa: E731
    return [[zeros(v) for v in value] if isinstance(value, list) else zeros(value) for value in values]


def eager(call):
    """What `call` returns outside of programs; tensors as arrays."""
    paddle.disable_static()
    try:
        return call()
    finally:
        paddle.enable_static()


def run_eagerly(op, tensors, attrs):
    def call():
        args = [
            None if t is None else [paddle.to_tensor(a) for a in t] if isinstance(t, list) else paddle.to_tensor(t)
            for t in tensors
        ]
        result = getattr(paddle._C_ops, op["name"])(*args, *attrs, *EXTRA.get(op["name"], []))
        result = list(result) if isinstance(result, (list, tuple)) else [result]
        if len(result) != len(op["outputs"]):
            raise ValueError(f"{len(result)} of {len(op['outputs'])} outputs are returned")
        return [r.numpy() if r is not None and r._is_initialized() else None for r in result]

    return eager(call)


def derivative(function, leaves, upstream, seconds):
    """The gradients of `function` towards `leaves`, given that of its output; with `seconds`, the gradients of these gradients, those of
    `function` towards `leaves` and towards `upstream`. None for what depends on nothing."""

    def call():
        inputs = [paddle.to_tensor(leaf, stop_gradient=False) for leaf in leaves]
        out = function(*inputs)
        outer = paddle.ones_like(out) if upstream is None else paddle.to_tensor(upstream)
        outer.stop_gradient = False
        results = paddle.grad(out, inputs, outer, create_graph=bool(seconds), allow_unused=True)
        if seconds:
            pairs = [(g, paddle.to_tensor(s)) for g, s in zip(results, seconds) if g is not None]
            results = paddle.grad([g for g, _ in pairs], [*inputs, outer], [s for _, s in pairs], allow_unused=True)
        return [None if r is None else r.numpy() for r in results]

    return eager(call)


def all_results(op, result):
    """Those that the Python function returns, and intermediate ones."""
    if any(o["typename"] != "Tensor" for o in op["outputs"]):
        whole = [list(result)] if len(op["outputs"]) == 1 else list(result)
        return [list(v) if isinstance(v, (list, tuple)) else v for v in whole]
    first = next(r for r in flat([result]) if r is not None)
    return list(first.get_defining_op().results())


def is_dense(value):
    try:
        return value.shape is not None and value.initialized()
    except ValueError:  # the type of an output that is not there has no shape
        return False


def is_declared(value):
    try:
        return all(d >= 0 for d in value.shape)
    except ValueError:  # the type of an output that is not there has no shape
        return False


def flat(values):
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from flat(v)
        else:
            yield v
