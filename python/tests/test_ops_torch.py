"""Common ops against PyTorch, in float32, on larger tensors than those of test_ops.py."""

import numpy as np
import pytest

import shard

torch = pytest.importorskip("torch")
F = torch.nn.functional

RANDOM = np.random.default_rng(7)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return (np.abs(normal(*shape)) + 0.5).astype(np.float32)


def integers(high, *shape):
    return RANDOM.integers(0, high, shape)


X, Y, P, Q = normal(33, 65), normal(33, 65), positive(33, 65), positive(33, 65)
A, B, BATCH = normal(33, 47), normal(47, 29), normal(4, 33, 47)
IMAGE, KERNEL, ONES = normal(2, 4, 17, 19), normal(6, 4, 3, 3), normal(65)
SQUARE = (normal(9, 9) + 9 * np.eye(9)).astype(np.float32)
LABELS = integers(65, 33)

# The op, its result in shard, and in torch, of the tensors.
UNARY = {
    name: (X,)
    for name in (
        "abs",
        "ceil",
        "cos",
        "erf",
        "exp",
        "expm1",
        "floor",
        "relu",
        "round",
        "sigmoid",
        "sign",
        "sin",
        "square",
        "tanh",
        "trunc",
        "atan",
        "sinh",
        "cosh",
        "asinh",
    )
}
UNARY |= {name: (P,) for name in ("log", "log1p", "log2", "log10", "rsqrt", "sqrt", "reciprocal", "lgamma", "digamma")}
BINARY = {
    "add": (X, Y),
    "subtract": (X, Y),
    "multiply": (X, Y),
    "divide": (X, Q),
    "maximum": (X, Y),
    "minimum": (X, Y),
    "atan2": (X, Y),
    "fmax": (X, Y),
    "fmin": (X, Y),
    "copysign": (X, Y),
    "remainder": (X, Q),
}
CALLS = {
    **{
        name: (lambda s, *t, n=name: getattr(s, n)(*t), lambda *t, n=name: getattr(torch, n)(*t), arrays)
        for name, arrays in {**UNARY, **BINARY}.items()
    },
    "elementwise_pow": (lambda s, x, y: s.elementwise_pow(x, y), torch.pow, (P, Y)),
    "pow": (lambda s, x: s.pow(x, 3), lambda x: torch.pow(x, 3), (X,)),
    "clip": (lambda s, x: s.clip(x, -0.5, 0.5), lambda x: torch.clip(x, -0.5, 0.5), (X,)),
    "broadcast": (lambda s, x, y: s.add(x, y), torch.add, (X, ONES)),
    "gelu": (lambda s, x: s.gelu(x), F.gelu, (X,)),
    "gelu tanh": (lambda s, x: s.gelu(x, True), lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "silu": (lambda s, x: s.silu(x), F.silu, (X,)),
    "elu": (lambda s, x: s.elu(x, 0.5), lambda x: F.elu(x, 0.5), (X,)),
    "leaky_relu": (lambda s, x: s.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.1), (X,)),
    "softplus": (lambda s, x: s.softplus(x), F.softplus, (X,)),
    "mish": (lambda s, x: s.mish(x, 20.0), F.mish, (X,)),
    "hardswish": (lambda s, x: s.hardswish(x), F.hardswish, (X,)),
    "softmax": (lambda s, x: s.softmax(x), lambda x: F.softmax(x, -1), (X,)),
    "log_softmax": (lambda s, x: s.log_softmax(x, 0), lambda x: F.log_softmax(x, 0), (X,)),
    "matmul": (lambda s, x, y: s.matmul(x, y), torch.matmul, (A, B)),
    "matmul batched": (lambda s, x, y: s.matmul(x, y), torch.matmul, (BATCH, B)),
    "matmul transposed": (lambda s, x, y: s.matmul(x, y, True, False), lambda x, y: x.T @ y, (A, normal(33, 21))),
    "sum": (lambda s, x: s.sum(x, 0), lambda x: x.sum(0), (X,)),
    "mean": (lambda s, x: s.mean(x, [1], True), lambda x: x.mean(1, True), (X,)),
    "max": (lambda s, x: s.max(x, 1), lambda x: x.amax(1), (X,)),
    "min": (lambda s, x: s.min(x), lambda x: x.min(), (X,)),
    "prod": (lambda s, x: s.prod(x, 1), lambda x: x.prod(1), (P[:, :9],)),
    "logsumexp": (lambda s, x: s.logsumexp(x, 1, False, False), lambda x: x.logsumexp(1), (X,)),
    "cumsum": (lambda s, x: s.cumsum(x, 1), lambda x: x.cumsum(1), (X,)),
    "argmax": (lambda s, x: s.argmax(x, 1), lambda x: x.argmax(1), (X,)),
    "argsort": (lambda s, x: s.argsort(x, 1)[1], lambda x: x.argsort(1), (X,)),
    "topk": (lambda s, x: s.topk(x, 5)[0], lambda x: x.topk(5)[0], (X,)),
    "transpose": (lambda s, x: s.transpose(x, [2, 0, 1]), lambda x: x.permute(2, 0, 1), (BATCH,)),
    "reshape": (lambda s, x: s.reshape(x, [-1, 4]), lambda x: x.reshape(-1, 4), (BATCH,)),
    "concat": (lambda s, x, y: s.concat([x, y], 1), lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "stack": (lambda s, x, y: s.stack([x, y], 0), lambda x, y: torch.stack([x, y], 0), (X, Y)),
    "flip": (lambda s, x: s.flip(x, [0, 1]), lambda x: x.flip(0, 1), (X,)),
    "roll": (lambda s, x: s.roll(x, 3, 1), lambda x: x.roll(3, 1), (X,)),
    "tril": (lambda s, x: s.tril(x, 1), lambda x: x.tril(1), (X,)),
    "triu": (lambda s, x: s.triu(x, -1), lambda x: x.triu(-1), (X,)),
    "where": (lambda s, x, y: s.where(s.greater_than(x, y), x, y), lambda x, y: torch.where(x > y, x, y), (X, Y)),
    "gather": (lambda s, x, i: s.gather(x, i, 1), lambda x, i: x.index_select(1, i), (X, integers(65, 20))),
    "embedding": (lambda s, i, w: s.embedding(i, w), F.embedding, (integers(33, 3, 4), X)),
    "layer_norm": (lambda s, x, w: s.layer_norm(x, w), lambda x, w: F.layer_norm(x, (65,), w), (X, ONES)),
    "conv2d": (
        lambda s, x, w: s.conv2d(x, w, [2, 1], [1, 2]),
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(1, 2)),
        (IMAGE, KERNEL),
    ),
    "inverse": (lambda s, x: s.inverse(x), torch.inverse, (SQUARE,)),
    "det": (lambda s, x: s.det(x), torch.det, (SQUARE,)),
    "solve": (lambda s, x, y: s.solve(x, y), torch.linalg.solve, (SQUARE, normal(9, 4))),
    "kron": (lambda s, x, y: s.kron(x, y), torch.kron, (normal(3, 4), normal(5, 2))),
    "cross_entropy": (
        lambda s, x, i: s.mean(s.cross_entropy_with_softmax(x, s.unsqueeze(i, 1))[1]),
        F.cross_entropy,
        (X, LABELS),
    ),
}
# Sums of this many terms are added in another order.
TERMS = {
    "matmul": 47,
    "matmul batched": 47,
    "matmul transposed": 33,
    "sum": 33,
    "mean": 65,
    "cumsum": 65,
    "conv2d": 36,
    "inverse": 81,
    "det": 81,
    "solve": 81,
    "prod": 9,
    "softmax": 65,
    "log_softmax": 33,
    "logsumexp": 65,
    "layer_norm": 65,
    "cross_entropy": 65,
}


def test_there_are_sixty_ops():
    assert len(CALLS) >= 60


@pytest.mark.parametrize("name", sorted(CALLS))
def test_values_are_those_of_torch(name):
    ours, theirs, arrays = CALLS[name]
    actual = ours(shard, *[shard.tensor(a) for a in arrays]).numpy()
    expected = theirs(*[torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]).numpy()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if actual.dtype.kind != "f":
        assert np.array_equal(actual, expected)
        return
    epsilon = np.finfo(np.float32).eps
    scale = np.abs(expected).max(initial=1) if name in TERMS else 1
    np.testing.assert_allclose(actual, expected, rtol=16 * epsilon, atol=(TERMS.get(name, 0) / 4 + 4) * epsilon * scale)


def test_torch_reads_results_without_a_copy():
    x = shard.relu(shard.tensor(X))
    other = torch.from_dlpack(x)
    other[0, 0] = 7
    assert x[0, 0].item() == 7
