"""Every op against NumPy and SciPy, over dtypes, shapes and layouts.

The list of ops is that of the stubs, and the calls are those of op_calls.json.gz: a new op without cases fails here.
op_calls.py makes the calls and computes the expected results.
"""

import numpy as np
import pytest

import shard
import composed_ops
from op_calls import NUMPY, array_of, cases, differences
from op_list import FUNCTIONS, RANDOM, REPOSITORY, WITHOUT_VALUES

UPDATE = "run tests/conformance/update.sh BUILD_FOLDER"


def compared_cases(function):
    return [case for case in cases().get(function, []) if not case.is_random]


def tensors(arrays):
    return [shard.tensor(array) for array in arrays]


def is_unsupported(error, case, dtype):
    """Whether the op has no kernel for a dtype, or its arguments cannot have it, and the case does not name it."""
    return isinstance(error, shard.DTypeError) and dtype not in case.named


# Ops that make tensors from no tensors: a call, and the array that it must equal.
RANGES = [(0, 5, 1), (-2, 3, 2), (5, -5, -3), (1, 1, 1)]
CREATION = {
    "full": [
        (lambda d: shard.full([2, 3], 1, d), lambda t: np.full((2, 3), 1, t)),
        (lambda d: shard.full([], 3, dtype=d), lambda t: np.full((), 3, t)),
        (lambda d: shard.full(4, value=0, dtype=d), lambda t: np.full((4,), 0, t)),
    ],
    "zeros": [
        (lambda d: shard.zeros([2, 0, 3], d), lambda t: np.zeros((2, 0, 3), t)),
        (lambda d: shard.zeros([3], d), lambda t: np.zeros(3, t)),
    ],
    "ones": [(lambda d: shard.ones((2, 3), dtype=d), lambda t: np.ones((2, 3), t))],
    "arange": [
        (lambda d, r=r: shard.arange(*r, d), lambda t, r=r: np.arange(*r, dtype=np.float64).astype(t)) for r in RANGES
    ],
    "linspace": [
        (lambda d, n=n: shard.linspace(1, 9, n, d), lambda t, n=n: np.linspace(1, 9, n).astype(t)) for n in (1, 2, 5)
    ],
    "logspace": [
        (lambda d: shard.logspace(0, 3, 4, 2, d), lambda t: np.logspace(0, 3, 4, base=2).astype(t)),
        (lambda d: shard.logspace(1, 2, num=2, dtype=d), lambda t: np.logspace(1, 2, 2).astype(t)),
    ],
    "eye": [
        (lambda d: shard.eye(3, dtype=d), lambda t: np.eye(3, dtype=t)),
        (lambda d: shard.eye(2, 4, d), lambda t: np.eye(2, 4, dtype=t)),
    ],
    "tril_indices": [
        (lambda d: shard.tril_indices(3, 4, 1, d), lambda t: np.stack(np.tril_indices(3, 1, 4)).astype(t))
    ],
    "triu_indices": [
        (lambda d: shard.triu_indices(4, 3, -1, d), lambda t: np.stack(np.triu_indices(4, -1, 3)).astype(t))
    ],
}
NO_BOOL = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
CREATION_DTYPES = {
    "full": (*NO_BOOL, "bool"),
    "zeros": (*NO_BOOL, "bool"),
    "ones": (*NO_BOOL, "bool"),
    "eye": NO_BOOL,
    "tril_indices": ("int32", "int64"),
    "triu_indices": ("int32", "int64"),
}


@pytest.mark.parametrize("function", sorted(CREATION))
def test_created_values(function):
    for dtype in CREATION_DTYPES.get(function, ("float32", "float64", "bfloat16", "int32", "int64")):
        for call, wanted in CREATION[function]:
            actual, expected = call(dtype), wanted(NUMPY[dtype])
            assert actual.dtype == getattr(shard, dtype) and actual.shape == expected.shape, (function, dtype)
            assert np.array_equal(array_of(actual)[0], expected.astype(array_of(actual)[0].dtype)), (
                function,
                dtype,
                actual,
            )


def test_empty_has_shape_and_dtype():
    x = shard.empty([2, 3], "int32")
    assert x.shape == (2, 3) and x.dtype == shard.int32


def test_every_op_has_a_test():
    tested = set(CREATION) | RANDOM | WITHOUT_VALUES | {f for f in cases() if compared_cases(f)}
    missing = sorted(set(FUNCTIONS) - tested)
    assert not missing, f"ops without cases: {missing}: add some to runtime/shard/testing/op_cases_*.cc and {UPDATE}"
    unknown = sorted((set(cases()) | RANDOM | WITHOUT_VALUES | set(CREATION)) - set(FUNCTIONS))
    assert not unknown, f"tests of functions that the package does not have: {unknown}"
    absent = sorted(name for name in FUNCTIONS if not callable(getattr(shard, name, None)))
    assert not absent, f"stubs of functions that the package does not have: {absent}"


def test_composed_ops_have_calls():
    untraced = {(c.function, c.name) for each in cases().values() for c in each if c.steps("A") is None}
    missing, useless = sorted(untraced - set(composed_ops.CASES)), sorted(set(composed_ops.CASES) - untraced)
    assert not missing, f"calls that cannot be traced: write them in python/tests/composed_ops.py: {missing}"
    assert not useless, f"no calls of op_calls.json.gz: {useless}"


def hash_of(text):
    """The checksum of tests/conformance/calls.cc."""
    value = 14695981039346656037
    for byte in text.encode():
        value = ((value ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return f"{value >> 32:08x}"


def test_calls_are_those_of_the_table_of_cases():
    calls = {(c.op, c.name, draw, c.kind): c.text(draw) for each in cases().values() for c in each for draw in c.draws}
    ops, stale = {each.op for list_ in cases().values() for each in list_}, []
    for path in sorted((REPOSITORY / "tests" / "conformance").glob("expected_*.txt")):
        for line in path.read_text().splitlines()[1:]:
            if "\t" in line:
                op, name = line.split("\t")
                continue
            draw, kind, checksum, *_ = line.split(" ", 3)
            if draw == "E" or op not in ops:
                continue
            text = calls.get((op, name, draw, kind))
            if text is None or (draw in "AB" and hash_of(text) != checksum):
                stale.append((op, name, draw, kind))
    assert not stale, f"op_calls.json.gz is out of date: {UPDATE}. Cases: {stale[:10]}"


@pytest.mark.parametrize("function", sorted(f for f in cases() if f in FUNCTIONS and compared_cases(f)))
def test_values(function):
    wrong, compared = [], 0
    for case in compared_cases(function):
        for draw in case.draws:
            for dtype in case.dtypes():
                try:
                    results = case.run(draw, dtype, tensors(case.tensors(draw, dtype)))
                except Exception as error:
                    if not is_unsupported(error, case, dtype):
                        wrong.append(f"{case}, draw {draw} in {dtype} raises {type(error).__name__}: {error}")
                    continue
                expected = case.expected(draw, results)
                wrong += [
                    f"{case}, draw {draw} in {dtype}: {text}" for text in differences(case, draw, results, expected)
                ]
                compared += 1
    assert not wrong, "\n".join(wrong[:5] + [f"{len(wrong)} of {compared} calls are wrong"])
    assert compared > 0


MESH = shard.ProcessMesh([2], ["x"])


def layouts_of(arrays):
    """Lists of placements: everything sharded along the first dims or the last ones, and the first tensor alone."""
    first = [shard.Shard(0) if a.ndim else shard.Replicate() for a in arrays]
    last = [shard.Shard(a.ndim - 1) if a.ndim else shard.Replicate() for a in arrays]
    alone = [first[0]] + [shard.Replicate()] * (len(arrays) - 1)
    return [first, last, alone]


def distributed_results(case, draw, dtype, placements):
    arrays = case.tensors(draw, dtype)
    inputs = [shard.shard_tensor(shard.tensor(a), MESH, [p]) for a, p in zip(arrays, placements)]
    results = case.run(draw, dtype, inputs)
    return [None if each is None else each.full_tensor() if each.is_dist else each for each in results]


def run_layouts(function):
    """On each rank: what is wrong with distributed calls, and the number of comparisons."""
    wrong, compared = [], 0
    for case in compared_cases(function):
        draw, dtype = "A", case.dtypes()[0]
        arrays = case.tensors(draw, dtype)
        if not arrays or all(a.ndim == 0 for a in arrays):
            continue
        expected = None
        for placements in layouts_of(arrays):
            with shard.policies(fallback="replicate"):
                try:
                    results = distributed_results(case, draw, dtype, placements)
                except shard.LayoutError as error:
                    # A target keeps its layout, so an op can refuse to write it. Nothing else may be refused.
                    if not function.endswith("_"):
                        wrong.append(f"{case} in {placements} raises {error}")
                    continue
            if expected is None:
                expected = case.expected(draw, results)
            compared += 1
            wrong += [f"{case} in {placements}: {text}" for text in differences(case, draw, results, expected)]
    return wrong, compared


@pytest.mark.parametrize("function", sorted(f for f in cases() if f in FUNCTIONS and compared_cases(f)))
def test_values_of_sharded_tensors(function):
    for wrong, compared in shard.run(run_layouts, nranks=2, args=(function,)):
        assert not wrong, "\n".join(wrong[:5] + [f"{len(wrong)} differences in {compared} calls"])
        assert compared > 0 or all(a.ndim == 0 for c in compared_cases(function) for a in c.inputs("A"))
