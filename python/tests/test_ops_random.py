"""Ops that make random numbers: range, moments, dtypes, and the same numbers for the same seed.

Means and variances may be six standard errors away, which happens in one of 10^9 tests; the seeds are fixed.
"""

import numpy as np
import pytest

import shard
from op_list import FUNCTIONS, RANDOM

N = 20000
ERRORS = 6.0


def filled(value, dtype="float32", n=N):
    return shard.full([n], value, dtype)


def gaussian_tail(cut=2.0):
    """The variance of the standard normal distribution within `cut`."""
    from scipy.stats import truncnorm

    return truncnorm(-cut, cut).var()


# For each op: a call that makes N numbers in a dtype, their mean, variance, kurtosis, least and largest number,
# and the dtypes.
FLOATS = ("float32", "float64", "float16", "bfloat16")
CONTINUOUS = {
    "uniform": (lambda d: shard.uniform([N], d, -1.0, 3.0), 1.0, 16 / 12, 1.8, -1, 3, FLOATS),
    "uniform_inplace": (lambda d: shard.uniform_inplace(filled(9.0, d), -1.0, 3.0), 1.0, 16 / 12, 1.8, -1, 3, FLOATS),
    "uniform_inplace_": (lambda d: shard.uniform_inplace_(filled(9.0, d), -1.0, 3.0), 1.0, 16 / 12, 1.8, -1, 3, FLOATS),
    "gaussian": (lambda d: shard.gaussian([N], 1.0, 2.0, dtype=d), 1.0, 4.0, 3, -20, 20, FLOATS),
    "gaussian_inplace": (lambda d: shard.gaussian_inplace(filled(9.0, d), 1.0, 2.0), 1.0, 4.0, 3, -20, 20, FLOATS),
    "gaussian_inplace_": (lambda d: shard.gaussian_inplace_(filled(9.0, d), 1.0, 2.0), 1.0, 4.0, 3, -20, 20, FLOATS),
    "truncated_gaussian_random": (
        lambda d: shard.truncated_gaussian_random([N], 1.0, 2.0, dtype=d),
        1.0,
        4 * gaussian_tail(),
        3,
        -3,
        5,
        FLOATS,
    ),
    "exponential_": (lambda d: shard.exponential_(filled(0.0, d), 2.0), 0.5, 0.25, 9, 0, 20, FLOATS),
    "standard_gamma": (lambda d: shard.standard_gamma(filled(3.0, d)), 3.0, 3.0, 5, 0, 40, FLOATS),
    "dirichlet": (lambda d: shard.dirichlet(filled(2.0, d, 2 * N).reshape([N, 2]))[:, 0], 0.5, 0.05, 3, 0, 1, FLOATS),
    "randint": (lambda d: shard.randint(-2, 5, [N], d), 1.0, 4.0, 3, -2, 4, ("int32", "int64")),
    "bernoulli": (lambda d: shard.bernoulli(filled(0.25, d)), 0.25, 3 / 16, 3, 0, 1, FLOATS),
    "poisson": (lambda d: shard.poisson(filled(4.0, d)), 4.0, 4.0, 4, 0, 40, FLOATS),
    "binomial": (lambda d: shard.binomial(filled(8.0, d), filled(0.25, d)), 2.0, 1.5, 3, 0, 8, FLOATS),
    "multinomial": (
        lambda d: shard.multinomial(shard.tensor([1.0, 0.0, 3.0], dtype=d), N, True),
        1.5,
        0.75,
        3,
        0,
        2,
        FLOATS,
    ),
    "dropout": (lambda d: shard.dropout(filled(3.0, d), p=0.25), 3.0, 3.0, 4, 0, 4, FLOATS),
    "fused_dropout_add": (
        lambda d: shard.fused_dropout_add(filled(3.0, d), filled(1.0, d), p=0.25),
        4.0,
        3.0,
        4,
        1,
        5,
        FLOATS,
    ),
}
INTEGERS = {"randint", "binomial", "multinomial"}
WHOLE = {"bernoulli", "poisson"}


def array(x):
    return x.numpy().astype(np.float64)


def test_every_random_op_has_a_test():
    assert set(CONTINUOUS) | {"randperm"} == RANDOM
    assert RANDOM <= set(FUNCTIONS)


@pytest.mark.parametrize("function", sorted(CONTINUOUS))
def test_moments_and_range(function):
    draw, mean, variance, kurtosis, low, high, dtypes = CONTINUOUS[function]
    for dtype in dtypes:
        shard.manual_seed(5)
        x = draw(dtype)
        if function in ("binomial", "multinomial"):
            assert x.dtype == shard.int64
        else:
            assert x.dtype == getattr(shard, dtype)
        a = array(x)
        assert a.shape == (N,) and a.min() >= low and a.max() <= high
        rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0) * max(abs(low), abs(high), 1) / 4
        assert abs(a.mean() - mean) < ERRORS * np.sqrt(variance / N) + rounding, (dtype, a.mean())
        assert abs(a.var() - variance) < ERRORS * variance * np.sqrt(kurtosis / N) + rounding, (dtype, a.var())
        if function in INTEGERS | WHOLE:
            assert (a == np.floor(a)).all() and {low, min(high, 3)} - {1} <= set(a) | {3}
        elif dtype in ("float32", "float64") and "dropout" not in function:
            assert len(np.unique(a)) > 0.99 * N


@pytest.mark.parametrize("function", sorted(CONTINUOUS))
def test_the_seed_decides(function):
    draw, dtype = CONTINUOUS[function][0], CONTINUOUS[function][-1][0]

    def seeded(n):
        shard.manual_seed(n)
        return array(draw(dtype)), array(draw(dtype))

    first, second = seeded(3)
    again, _ = seeded(3)
    other, _ = seeded(4)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("function", ["uniform", "gaussian", "randint", "truncated_gaussian_random"])
def test_a_seed_argument_decides_alone(function):
    f = getattr(shard, function)
    arguments = {"low": 0, "high": 1000} if function == "randint" else {}

    def draw(seed):
        return f(shape=[50], seed=seed, **arguments).tolist()

    assert draw(3) == draw(3) != draw(4)
    assert draw(0) != draw(0)


def test_randperm_is_a_permutation():
    shard.manual_seed(1)
    for dtype in ("int32", "int64"):
        x = shard.randperm(1000, dtype)
        assert x.dtype == getattr(shard, dtype)
        assert sorted(x.tolist()) == list(range(1000)) != x.tolist()
    shard.manual_seed(1)
    first = shard.randperm(1000).tolist()
    shard.manual_seed(1)
    assert shard.randperm(1000).tolist() == first != shard.randperm(1000).tolist()
    assert shard.randperm(0).tolist() == []


def test_ranks_draw_the_numbers_of_one_rank():
    """The numbers of a distributed call do not depend on its layout."""
    mesh = shard.ProcessMesh([2], ["x"])

    def draw(placement):
        layout = shard.Layout(mesh, [placement])
        return [
            shard.uniform([100], layout=layout).full_tensor().tolist(),
            shard.gaussian([100], layout=layout).full_tensor().tolist(),
            shard.randint(0, 100, [100], layout=layout).full_tensor().tolist(),
        ]

    sharded = shard.run(draw, 2, args=(shard.Shard(0),), seed=3)
    replicated = shard.run(draw, 2, args=(shard.Replicate(),), seed=3)
    assert sharded[0] == sharded[1] == replicated[0] == replicated[1]
    assert sharded != shard.run(draw, 2, args=(shard.Shard(0),), seed=4)
