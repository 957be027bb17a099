"""Functions of the ops of linalg.yaml, for the matrices that op_cases_linalg.cc makes of the inputs."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


def product(x, y):
    """Matrix products in which 0 times infinity is NaN."""
    return np.sum(x[..., :, :, None] * y[..., None, :, :], axis=-2)


def regular(x, factor):
    return x + factor * np.eye(*x.shape[-2:])


def symmetric(x):
    return x + np.swapaxes(x, -1, -2)


# Products


@op("bmm")
def bmm(call):
    return product(*call.inputs)


@op("mv")
def mv(call):
    x, vec = call.inputs
    return np.sum(x * vec, axis=1)


@op("dot")
def dot(call):
    x, y = call.inputs
    return np.sum(x * y, axis=-1)


@op("addmm")
def addmm(call):
    added, x, y = call.inputs
    return 2 * added - product(x, y)


@op("cross")
def cross(call):
    axis = 1 if call.case == "axis 1" else 0
    (x0, x1, x2), (y0, y1, y2) = (np.moveaxis(v, axis, 0) for v in call.inputs)
    return np.stack([x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0], axis=axis)


@op("kron")
def kron(call):
    x, y = call.inputs  # [m, n] and [k]
    return (x[:, :, None] * y).reshape(x.shape[0], x.shape[1] * y.shape[0])


@op("multi_dot")
def multi_dot(call):
    """Where both orders cost the same, the last product is first."""
    x, y, z = call.inputs
    (a, b), (c, d) = x.shape, z.shape
    if a * b * c + a * c * d < b * c * d + a * b * d:
        return product(product(x, y), z)
    return product(x, product(y, z))


@op("matrix_power")
def matrix_power(call):
    x = call.inputs[0]
    return {
        "3": lambda: product(product(x, x), x),
        "0": lambda: np.broadcast_to(np.eye(x.shape[-1]), x.shape),
        "-1": lambda: np.linalg.inv(regular(x, 32)),
    }[call.case]()


# Solutions


def triangular(x, upper, unit):
    """The triangle that is read, with its diagonal, of ones where unit is set."""
    part = np.triu(x, 1) if upper else np.tril(x, -1)
    diagonal = np.ones(x.shape[-1]) if unit else np.diagonal(x, axis1=-2, axis2=-1)
    at = np.arange(x.shape[-1])
    part[..., at, at] = diagonal
    return part


def substituted(x, y, upper):
    """The solution of x out = y for triangular x, by substitution."""
    n = x.shape[-1]
    out = np.zeros(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]) + y.shape[-2:])
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        terms = np.sum(x[..., i, known, None] * out[..., known, :], axis=-2)
        out[..., i, :] = (y[..., i, :] - terms) / x[..., i, i, None]
    return out


@op("triangular_solve")
def triangular_solve(call):
    x, y = call.inputs
    upper, transpose, unit = {
        "upper": (True, False, False),
        "lower, transposed": (False, True, False),
        "upper, unitriangular": (True, False, True),
        "one matrix for b right sides": (False, False, True),
    }[call.case]
    x = triangular(x, upper, unit)
    return substituted(np.swapaxes(x, -1, -2), y, not upper) if transpose else substituted(x, y, upper)


@op("cholesky_solve")
def cholesky_solve(call):
    """The factors of A are L L' or U' U."""
    x, y = call.inputs
    factor = triangular(y, call.case == "upper", False)
    lower = np.swapaxes(factor, -1, -2) if call.case == "upper" else factor
    return substituted(np.swapaxes(lower, -1, -2), substituted(lower, x, False), True)


@op("solve")
def solve(call):
    x, y = regular(call.inputs[0], 32), call.inputs[1]
    if call.case == "[b, n, n] and [n]":
        return np.linalg.solve(x, np.broadcast_to(y[:, None], x.shape[:-1] + (1,)))[..., 0]
    return np.linalg.solve(x, np.broadcast_to(y, x.shape[:-2] + y.shape))


@op("inverse")
def inverse(call):
    return np.linalg.inv(regular(call.inputs[0], 32))


@op("det")
def det(call):
    return np.linalg.det(regular(call.inputs[0], 32))


@op("slogdet")
def slogdet(call):
    return np.stack(np.linalg.slogdet(regular(call.inputs[0], 32)))


# Decompositions


@op("cholesky")
def cholesky(call):
    lower = np.linalg.cholesky(regular(symmetric(call.inputs[0]), 64))
    return np.swapaxes(lower, -1, -2) if call.case == "upper" else lower


@op("eigh")
def eigh(call):
    """The eigenvalues, and the squares of the vectors, which do not depend on their signs."""
    w, v = np.linalg.eigh(symmetric(call.inputs[0]), UPLO="L" if call.case == "lower" else "U")
    return [w, v * v]


@op("eigvalsh")
def eigvalsh(call):
    return np.linalg.eigvalsh(symmetric(call.inputs[0]))


@op("svd")
def svd(call):
    """The squares of u and vh, which do not depend on their signs."""
    full = call.case == "full matrices"
    u, s, vh = np.linalg.svd(call.inputs[0], full_matrices=full)
    return [s, vh * vh] if full else [u * u, s, vh * vh]


@op("qr")
def qr(call):
    return list(np.linalg.qr(regular(call.inputs[0], 32), mode="complete" if call.case == "complete, square" else "reduced"))


@op("lu")
def lu(call):
    """Gaussian elimination, in which the row with the largest element is exchanged first."""
    pivot = call.case != "without pivots"
    x = call.inputs[0]
    out = regular(x, 32) if not pivot else x + 32 * np.eye(*x.shape[-2:])[::-1]
    k = min(x.shape[-2:])
    pivots = np.zeros((len(x), k), dtype=np.int64)
    for a, exchanged in zip(out, pivots):
        for i in range(k):
            best = i + int(np.argmax(np.abs(a[i:, i]))) if pivot else i
            a[[i, best]] = a[[best, i]]
            exchanged[i] = best + 1
            a[i + 1 :, i] /= a[i, i]
            a[i + 1 :, i + 1 :] -= np.outer(a[i + 1 :, i], a[i, i + 1 :])
    return [out, pivots, np.zeros(len(x), dtype=np.int64)]


@op("lu_unpack")
def lu_unpack(call):
    x, y = call.inputs
    b, m, n = x.shape
    k = min(m, n)
    pmat = np.zeros((b, m, m))
    for p, exchanged in zip(pmat, y):
        rows = np.eye(m)
        for i, other in enumerate(exchanged - 1):
            rows[[i, other]] = rows[[other, i]]
        p[...] = rows.T
    return [pmat, np.tril(x, -1)[..., :k] + np.eye(m, k), np.triu(x)[..., :k, :]]


@op("lstsq")
def lstsq(call):
    driver, shape = call.case.split(", ")
    x, y = regular(call.inputs[0], 32), call.inputs[1]
    b, m, n = x.shape
    sides, k = y.shape[-1], min(m, n)
    solution = np.linalg.pinv(x) @ y if k > 0 else np.zeros((b, n, sides))
    has_residuals = m > n and driver != "gelsy"
    residuals = np.sum((y - x @ solution) ** 2, axis=1) if has_residuals else np.zeros((b, 0))
    values = np.linalg.svd(x, compute_uv=False) if driver in ("gelsd", "gelss") else np.zeros((b, 0))
    return [solution, residuals, np.full(b, k), values]


@op("dist")
def dist(call):
    size = np.abs(call.inputs[0] - call.inputs[1])
    order = float(call.case[len("of order ") :])
    if order == 0:
        return np.sum(size != 0).astype(np.float64)
    if np.isinf(order):
        return np.max(size, initial=0)
    return np.sum(size**order) ** (1 / order)


@op("matrix_rank")
def matrix_rank(call):
    x = call.inputs[0]
    if call.case == "of regular matrices":
        return np.sum(np.linalg.svd(regular(x, 32), compute_uv=False) > float(np.float32(1e-3)), axis=-1)
    sizes = np.abs(np.linalg.eigvalsh(regular(symmetric(x), 64)))
    tol = np.max(sizes, axis=-1, keepdims=True, initial=0) * x.shape[-1] * np.finfo(np.float64).eps
    return np.sum(sizes > tol, axis=-1)
