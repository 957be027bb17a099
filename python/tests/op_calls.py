"""The calls of ops in op_calls.json.gz, which tests/conformance/update.sh writes, and their expected results.

The expected results are those of tests/conformance/reference_*.py, which compute in float64 with NumPy and SciPy.
"""

import functools
import gzip
import json
import pathlib
import sys

import ml_dtypes
import numpy as np

import shard
import composed_ops
from op_list import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "conformance"))
import reference  # noqa: E402

FLOATS = ("float32", "float64", "float16", "bfloat16")
NUMPY = {name: np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")}
NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {"float64": np.finfo(np.float64).max, "float32": np.finfo(np.float32).max, "float16": 65504.0}
LARGEST["bfloat16"] = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)

# Cases whose results the generator decides.
RANDOM_CASES = {
    ("dropout", "upscale in train"),
    ("dropout", "seed tensor"),
    ("fused_dropout_add", "a fixed seed"),
    ("rnn", "two layers of RNN_RELU, dropout"),
    ("flash_attn", "dropout"),
    ("flash_attn_unpadded", "dropout"),
    ("bernoulli", "of 0 and 1"),
}
# These round weights to bfloat16 before they multiply values by them, as the processor's instructions need it.
ROUNDS_FACTORS = {"flash_attn", "flash_attn_unpadded", "memory_efficient_attention"}


def number_of(value):
    """An attribute. JSON has no numbers for infinities and NaN."""
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


class Step:
    """A call of a function: tensor arguments as numbers of values, and attributes."""

    def __init__(self, function, tensors, attrs, outputs=None):
        self.function, self.tensors, self.attrs, self.outputs = function, tensors, attrs, outputs

    def arguments(self, values, dtype):
        """The arguments by the names of the parameters."""

        def tensor(number):
            return None if number is None else values[number]

        arguments = {}
        for name, number in self.tensors.items():
            arguments[name] = [tensor(n) for n in number] if isinstance(number, list) else tensor(number)
        for name, value in self.attrs.items():
            arguments["lambda_" if name == "lambda" else name] = dtype if value == "T" else number_of(value)
        return arguments


class Case:
    """A case of a function, in draws of sizes and elements."""

    def __init__(self, row, base):
        self.function, self.op, self.name, self.kind = row["function"], row["op"], row["case"], row["kind"]
        self.named = row["named"]
        self.row, self.base = row, base

    @property
    def draws(self):
        return self.row["draws"]

    def _of(self, draw, key):
        own = self.draws[draw]
        return own[key] if key in own else self.row.get(key)

    def text(self, draw):
        return self.draws[draw].get("inputs", self.base["draws"][draw].get("inputs"))

    def inputs(self, draw):
        """The inputs as float64, int64 or bool arrays."""
        text = self.text(draw)
        return [reference.parse_input(each) for each in text.split("\t")] if text else []

    def tensors(self, draw, dtype):
        """The inputs as arrays of the dtypes in which a call in `dtype` has them."""
        wide = "float64" if dtype == "float64" else "float32"
        names = [{"T": dtype, "W": wide}.get(each, each) for each in self._of(draw, "dtypes")]
        return [array.astype(NUMPY[name]) for array, name in zip(self.inputs(draw), names)]

    def steps(self, draw):
        """The steps, or None for a call that composed_ops.py has."""
        row, key = self.row, "steps"
        steps = self._of(draw, key)
        if steps is None and self.base is not row:  # an in-place form that cannot be traced: as its op
            own = self.base["draws"][draw]
            steps = own.get(key, self.base.get(key))
            steps = steps and [
                {**s, "function": self.function if s["function"] == self.op else s["function"]} for s in steps
            ]
        return steps and [Step(**step) for step in steps]

    def dtypes(self):
        """The dtypes to call it in, as ReferenceCall::dtypes() in tests/conformance/calls.cc has them."""
        if self.kind == "float":
            return FLOATS
        if self.kind not in ("int32", "int64") or (self.op, self.name) == ("bitwise_right_shift", "logical"):
            return (self.kind,)
        return (self.kind, *(d for d in ("int32", "int64") if d not in self.named))

    def run(self, draw, dtype, tensors, package=shard):
        """Calls ops of the package. Returns the results that the reference has: a flat list, None for absent ones."""
        steps = self.steps(draw)
        if steps is None:
            composed = composed_ops.CASES[self.function, self.name]
            return flat(composed(package, list(tensors), dtype))
        values = list(tensors)
        for step in steps:
            outputs = flat(getattr(package, step.function)(**step.arguments(values, dtype)))
            values += outputs + [MISSING] * (step.outputs - len(outputs))
        results = [None if n is None else values[n] for n in self._results(draw)]
        return [each for each in results if each is not MISSING]

    def _results(self, draw):
        results = self._of(draw, "results")
        return results if results is not None else self.base["draws"][draw].get("results", self.base.get("results"))

    def expected(self, draw, results):
        """What the reference computes. `results` are those of the op: for sizes of outputs that no input shows."""
        shapes = [() if each is None else tuple(each.shape) for each in results]
        call = reference.Call(self.name, self.kind, self.inputs(draw), shapes)
        with np.errstate(all="ignore"):
            outputs = references()[self.op](call)
        return outputs if isinstance(outputs, list) else [outputs]

    @property
    def is_random(self):
        return (self.op, self.name) in RANDOM_CASES or self.op not in references()

    def __repr__(self):
        return f"{self.function}: {self.name}, {self.kind}"


MISSING = object()  # an output that the function does not return


def flat(result):
    """The tensors of a result in one list."""
    if isinstance(result, (list, tuple)):
        return [tensor for each in result for tensor in (each if isinstance(each, list) else [each])]
    return [result]


@functools.cache
def references():
    return reference.load()[0]


@functools.cache
def cases():
    """The cases of each function."""
    path = pathlib.Path(__file__).parent / "op_calls.json.gz"
    rows = json.loads(gzip.decompress(path.read_bytes()))
    by_key = {(row["function"], row["case"], row["kind"]): row for row in rows}
    found = {}
    for row in rows:
        base = by_key.get((row["op"], row["case"], row["kind"]), row)
        found.setdefault(row["function"], []).append(Case(row, base))
    return found


def array_of(tensor):
    """The elements in float64, int64 or bool, and the dtype."""
    array, name = tensor.numpy(), str(tensor.dtype).rsplit(".", 1)[-1]
    name = {"boolean": "bool"}.get(name, name)
    return array.astype(np.float64 if name in FLOATS else bool if name == "bool" else np.int64), name


def difference(actual, expected, scale, rounds_factors=False):
    """What is wrong with a result, else "".

    Integers are compared exactly, and floats as tests/conformance/expected.cc does: four units in the last place,
    plus sixteen roundings of the dtype that is computed in at the size of the largest number: sums may cancel.
    """
    array, dtype = array_of(actual)
    kind = "f" if dtype in FLOATS else "b" if dtype == "bool" else "i"
    expected = np.asarray(expected)
    if kind != {"f": "f", "b": "b", "i": "i", "u": "i"}[expected.dtype.kind] or array.shape != expected.shape:
        return f"is {dtype}{list(array.shape)}, the reference has {expected.dtype}{list(expected.shape)}"
    if kind != "f":
        wrong = array != expected
    else:
        computes_in = dtype if dtype == "float64" else "float32"
        finite = expected[np.isfinite(expected)]
        size = max(1.0, scale, np.abs(finite).max(initial=0))
        factors = EPSILON[dtype] if rounds_factors and dtype == "bfloat16" else 0
        with np.errstate(invalid="ignore"):
            tolerance = 4 * EPSILON[dtype] * np.abs(expected) + (16 * EPSILON[computes_in] + factors) * size
            close = (
                (array == expected) | (np.abs(array - expected) <= tolerance) | (np.isnan(array) & np.isnan(expected))
            )
        close &= np.isinf(array) <= ((array == expected) | (np.abs(expected) > LARGEST[dtype]))
        wrong = ~close
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"element {list(at)} of {dtype}{list(array.shape)} is {array[at]}, the reference has {expected[at]}"


def differences(case, draw, results, expected):
    """What is wrong with the results of a call, sentences."""
    expected = list(expected)
    while expected and expected[-1] is None and len(expected) > len(results):
        expected.pop()
    while results and results[-1] is None and len(results) > len(expected):
        results = results[:-1]
    if not results or len(results) > len(expected) or (len(results) < len(expected) and case.steps(draw) is None):
        return [f"there are {len(results)} results, the reference has {len(expected)}"]
    scale = max((float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in case.inputs(draw)), default=0)
    found = []
    for i, (actual, wanted) in enumerate(zip(results, expected)):
        if actual is None or wanted is None:
            text = "" if actual is wanted else "is present or absent"
        else:
            text = difference(actual, wanted, scale, case.op in ROUNDS_FACTORS)
        if text:
            found.append(f"result {i} {text}")
    return found
