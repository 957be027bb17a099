"""Functions of the ops of math.yaml, elementary.yaml, special.yaml, activation.yaml and logic.yaml on elements."""

import numpy as np
from scipy import special

from reference import wrapped

OPS = {}


def op(*names):
    def register(function):
        for name in names:
            OPS[name] = function
        return function

    return register


def unary(**functions):
    for name, f in functions.items():
        OPS[name] = lambda call, f=f: f(call.inputs[0])


def binary(**functions):
    for name, f in functions.items():
        OPS[name] = lambda call, f=f: f(call.inputs[0], call.inputs[1])


def gradient(of, slope):
    """out_grad times the slope at the first input, or where it holds if it is a condition."""

    def grad(call):
        at, out_grad = slope(call.inputs[0]), call.inputs[1]
        return np.where(at, out_grad, 0) if at.dtype == bool else at * out_grad

    OPS[of + "_grad"] = grad


def at_infinity(f, high, low):
    """f with its limits at infinity and -infinity, where its formula has NaN."""
    return lambda x: np.where(x == np.inf, high, np.where(x == -np.inf, low, f(x)))


def f32(value):
    """An attribute of C++ type float."""
    return float(np.float32(value))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(x):
    """The density of the standard normal distribution."""
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


silu = at_infinity(lambda x: x * sigmoid(x), np.inf, 0)
silu_slope = at_infinity(lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))), 1, 0)

# math.yaml

unary(
    assign=lambda x: x,
    sin=np.sin,
    cos=np.cos,
    abs=np.abs,
    exp=np.exp,
    log=np.log,
    tanh=np.tanh,
    sqrt=np.sqrt,
    rsqrt=lambda x: 1 / np.sqrt(x),
    relu=lambda x: np.where(x > 0, x, 0),
    sigmoid=sigmoid,
    silu=silu,
)


@op("divide")
def divide(call):
    x, y = call.inputs
    return x / y if call.kind == "float" else np.trunc(x / y).astype(np.int64)


binary(
    maximum=np.maximum,
    minimum=np.minimum,
    fmax=np.fmax,
    fmin=np.fmin,
    remainder=np.mod,
    floor_divide=np.floor_divide,
    atan2=np.arctan2,
    copysign=np.copysign,
    heaviside=lambda x, y: np.where(x > 0, 1, np.where(x == 0, y, 0)).astype(y.dtype),
)


def stored(f):
    """An op whose integers wrap around."""
    return lambda call: wrapped(f(*call.inputs), call.kind)


OPS["add"] = stored(lambda x, y: x + y)
OPS["subtract"] = stored(lambda x, y: x - y)
OPS["multiply"] = stored(lambda x, y: x * y)
OPS["square"] = stored(lambda x: x * x)
OPS["add_n"] = stored(lambda *tensors: np.sum(np.stack(tensors), axis=0))


@op("elementwise_pow")
def elementwise_pow(call):
    x, y = np.broadcast_arrays(*call.inputs)
    return np.power(x, y)


@op("pow")
def power(call):
    return call.inputs[0] ** int(call.case)


@op("full_like")
def full_like(call):
    x = call.inputs[0]
    return np.full(x.shape, 3).astype(x.dtype)


@op("clip")
def clip(call):
    return np.clip(call.inputs[0], -1, 2)


@op("scale")
def scale(call):
    x = call.inputs[0]
    return {
        "by 2": lambda: x * 2,
        "by -2": lambda: x * -2,
        "by 0.5": lambda: x * 0.5,
        "by 2 plus 1": lambda: x * 2 + 1,
        "plus 1, by 2": lambda: (x + 1) * 2,
    }[call.case]()


@op("increment")
def increment(call):
    return call.inputs[0] + 2


@op("lerp")
def lerp(call):
    x, y, weight = call.inputs
    return x + weight * (y - x)


@op("where")
def where(call):
    return np.where(*call.inputs)


@op("masked_fill")
def masked_fill(call):
    return np.where(call.inputs[1], 7, call.inputs[0])


@op("nan_to_num")
def nan_to_num(call):
    x = call.inputs[0]
    if call.kind != "float":
        return x
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {"of NaN": 1 / x**2 * 0, "of infinities": 1 / x**2, "of minus infinities": -1 / x**2, "of numbers": x}[call.case]
    return np.nan_to_num(values, nan=1, posinf=2, neginf=-3)


@op("cast")
def cast(call):
    to = call.case.split()[1]
    x = call.inputs[0]
    if to == "bool":
        return x != 0
    if to.startswith("float") or to == "bfloat16":
        return x.astype(np.float64)
    return wrapped(np.trunc(x).astype(np.int64), to)


def gelu_tanh_argument(x):
    return np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


@op("gelu")
def gelu(call):
    x = call.inputs[0]
    if call.case == "approximate":
        return x / 2 * (1 + np.tanh(gelu_tanh_argument(x)))
    return x * special.ndtr(x)


def gelu_tanh_formula_slope(x):
    t = np.tanh(gelu_tanh_argument(x))
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return (1 + t) / 2 + x / 2 * (1 - t**2) * inner


gelu_tanh_slope = at_infinity(gelu_tanh_formula_slope, 1, 0)


@op("gelu_grad")
def gelu_grad(call):
    x, grad = call.inputs
    if call.case == "by tanh":
        return grad * gelu_tanh_slope(x)
    return grad * (special.ndtr(x) + at_infinity(lambda x: x * normal(x), 0, 0)(x))


@op("swiglu")
def swiglu(call):
    x, y = call.inputs if call.case == "x and y" else np.split(call.inputs[0], 2, axis=-1)
    return silu(x) * y


@op("swiglu_grad")
def swiglu_grad(call):
    *xy, grad = call.inputs
    x, y = xy if call.case == "x and y" else np.split(xy[0], 2, axis=-1)
    grads = [grad * y * silu_slope(x), grad * silu(x)]
    return grads if call.case == "x and y" else np.concatenate(grads, axis=-1)


@op("silu_grad")
def silu_grad(call):
    x, out, grad = call.inputs
    s = sigmoid(x)
    return grad * (s + out * (1 - s))


# The first input is x, or out where the documentation says so.
gradient("exp", lambda out: out)
gradient("log", lambda x: 1 / x)
gradient("tanh", lambda out: 1 - out**2)
gradient("sqrt", lambda out: 1 / (2 * out))
gradient("rsqrt", lambda out: -(out**3) / 2)
gradient("relu", lambda out: out > 0)
gradient("sigmoid", lambda out: out * (1 - out))
gradient("sin", np.cos)
gradient("cos", lambda x: -np.sin(x))
gradient("square", lambda x: 2 * x)
gradient("clip", lambda x: (x > -1) & (x < 2))


@op("pow_grad")
def pow_grad(call):
    x, grad = call.inputs
    y = int(call.case)
    return grad * y * x ** (y - 1) if y != 0 else 0 * grad


@op("abs_grad")
def abs_grad(call):
    x, grad = call.inputs
    return np.where(x == 0, 0, grad * np.sign(x))


# elementary.yaml

unary(
    erf=special.erf,
    expm1=np.expm1,
    log1p=np.log1p,
    log2=np.log2,
    log10=np.log10,
    tan=np.tan,
    asin=np.arcsin,
    acos=np.arccos,
    atan=np.arctan,
    sinh=np.sinh,
    cosh=np.cosh,
    asinh=np.arcsinh,
    acosh=np.arccosh,
    atanh=np.arctanh,
    reciprocal=lambda x: 1 / x,
    floor=np.floor,
    ceil=np.ceil,
    round=np.round,
    trunc=np.trunc,
    sign=np.sign,
    logit=lambda x: special.logit(np.clip(x, 0.25, 0.75)),
)
gradient("erf", lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2)))
gradient("log1p", lambda x: 1 / (1 + x))
gradient("log2", lambda x: 1 / (x * np.log(2)))
gradient("log10", lambda x: 1 / (x * np.log(10)))
gradient("tan", lambda x: 1 / np.cos(x) ** 2)
gradient("asin", lambda x: 1 / np.sqrt(1 - x**2))
gradient("acos", lambda x: -1 / np.sqrt(1 - x**2))
gradient("atan", lambda x: 1 / (1 + x**2))
gradient("sinh", np.cosh)
gradient("cosh", np.sinh)
gradient("asinh", lambda x: 1 / np.sqrt(x**2 + 1))
gradient("acosh", lambda x: 1 / np.sqrt(x**2 - 1))
gradient("atanh", lambda x: 1 / (1 - x**2))
gradient("reciprocal", lambda out: -(out**2))


@op("expm1_grad")
def expm1_grad(call):
    out, grad = call.inputs
    return grad * out + grad  # as PaddlePaddle: NaN for an infinite grad where out is 0


@op("logit_grad")
def logit_grad(call):
    x, grad = call.inputs
    return np.where((x < 0.25) | (x > 0.75), 0, grad / (x * (1 - x)))


# special.yaml

unary(
    lgamma=at_infinity(special.gammaln, np.inf, np.inf),
    gammaln=at_infinity(special.gammaln, np.inf, np.inf),
    digamma=special.digamma,
    erfinv=special.erfinv,
    i0=at_infinity(special.i0, np.inf, np.inf),
    i0e=special.i0e,
    i1=at_infinity(special.i1, np.inf, -np.inf),
    i1e=special.i1e,
)


@op("polygamma")
def polygamma(call):
    return special.polygamma(0 if call.case == "digamma" else 2, call.inputs[0])


# activation.yaml; the attributes are those of add_activation_cases()

SELU_SCALE, SELU_ALPHA = f32(1.0507009873554804934193349852946), f32(1.6732632423543772848170429916717)
STANH_A, STANH_B = f32(0.67), f32(1.7159)


@op("leaky_relu")
def leaky_relu(call):
    x = call.inputs[0]
    return np.where(x > 0, x, (-2 if call.case == "negative slope" else 0.25) * x)


@op("stanh")
def stanh(call):
    a, b = (-1, 1) if call.case == "falling" else (STANH_A, STANH_B)
    return b * np.tanh(a * call.inputs[0])


unary(
    elu=lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)),
    celu=lambda x: np.where(x > 0, x, 0.5 * np.expm1(x / 0.5)),
    selu=lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
    relu6=lambda x: np.clip(x, 0, 6),
    hardtanh=lambda x: np.clip(x, -1, 2),
    hardsigmoid=lambda x: np.clip(0.25 * x + 0.5, 0, 1),
    hardswish=at_infinity(lambda x: x * np.clip(x + 3, 0, 6) / 6, np.inf, 0),
    hardshrink=lambda x: np.where(np.abs(x) > 1, x, 0),
    softshrink=lambda x: np.where(x > 1, x - 1, np.where(x < -1, x + 1, 0)),
    thresholded_relu=lambda x: np.where(x <= 1, 0, x),
    softplus=lambda x: np.where(2 * x > 3, x, np.log1p(np.exp(2 * x)) / 2),
    softsign=lambda x: x / (1 + np.abs(x)),
    logsigmoid=special.log_expit,
    mish=lambda x: x * np.tanh(np.where(x > 2, x, np.log1p(np.exp(x)))),
    swish=silu,
    tanh_shrink=lambda x: x - np.tanh(x),
)


@op("hardsigmoid_grad")
def hardsigmoid_grad(call):
    out, grad = call.inputs
    return np.where((out > 0) & (out < 1), grad * 0.25, 0)


def mish_slope(x):
    linear = x > 2
    t = np.tanh(np.where(linear, x, np.log1p(np.exp(x))))
    return t + x * (1 - t**2) * np.where(linear, 1, sigmoid(x))


gradient("leaky_relu", lambda x: np.where(x < 0, 0.25, 1))
gradient("elu", lambda x: np.where(x <= 0, 0.5 * np.exp(x), 1))
gradient("celu", lambda x: np.where(x <= 0, np.exp(x / 0.5), 1))
gradient("selu", lambda out: np.where(out > 0, SELU_SCALE, out + SELU_SCALE * SELU_ALPHA))
gradient("relu6", lambda out: (out > 0) & (out < 6))
gradient("hardtanh", lambda x: (x > -1) & (x < 2))
gradient("hardswish", lambda x: np.where(x <= -3, 0, np.where(x >= 3, 1, (2 * x + 3) / 6)))
gradient("hardshrink", lambda x: np.abs(x) > 1)
gradient("softshrink", lambda x: np.abs(x) > 1)
gradient("thresholded_relu", lambda x: x > 1)
gradient("softplus", lambda x: np.where(2 * x > 3, 1, sigmoid(2 * x)))
gradient("softsign", lambda x: 1 / (1 + np.abs(x)) ** 2)
gradient("logsigmoid", lambda x: sigmoid(-x))
gradient("mish", mish_slope)
gradient("swish", silu_slope)
gradient("tanh_shrink", lambda x: np.tanh(x) ** 2)
gradient("stanh", lambda x: STANH_A * STANH_B * (1 - np.tanh(STANH_A * x) ** 2))

# logic.yaml


def is_close(x, y, rtol, atol):
    """As documented, infinities are close to themselves alone."""
    return (x == y) | (np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) <= atol + rtol * np.abs(y)))



binary(
    equal=np.equal,
    not_equal=np.not_equal,
    less_than=np.less,
    less_equal=np.less_equal,
    greater_than=np.greater,
    greater_equal=np.greater_equal,
    logical_and=np.logical_and,
    logical_or=np.logical_or,
    logical_xor=np.logical_xor,
    bitwise_and=np.bitwise_and,
    bitwise_or=np.bitwise_or,
    bitwise_xor=np.bitwise_xor,
    isclose=lambda x, y: is_close(x, y, 0.25, 0.5),
    allclose=lambda x, y: np.all(is_close(x, y, 0.25, 3)),
)
unary(isnan=np.isnan, isinf=np.isinf, isfinite=np.isfinite, logical_not=np.logical_not)
OPS["bitwise_not"] = stored(np.invert)

BITS = {"int32": 32, "int64": 64, "uint8": 8}


@op("bitwise_left_shift")
def bitwise_left_shift(call):
    x, y = (a.astype(object) for a in call.inputs)
    bits = BITS[call.kind]
    shifted = [(a << b) % 2**bits if 0 <= b < bits else 0 for a, b in zip(x.ravel(), y.ravel())]
    return wrapped(np.array(shifted, dtype=np.uint64).reshape(x.shape), call.kind)


@op("bitwise_right_shift")
def bitwise_right_shift(call):
    x, y = (a.astype(object) for a in call.inputs)
    bits = BITS[call.kind]
    if call.case == "logical":
        x = x % 2**bits
    shifted = [int(a) // 2 ** (b if 0 <= b < bits else 2 * bits) for a, b in zip(x.ravel(), y.ravel())]
    return wrapped(np.array(shifted, dtype=np.int64).reshape(x.shape), call.kind)


@op("prelu")
def prelu(call):
    x, alpha = call.inputs
    if call.case == "channel":
        alpha = alpha[:, None]
    return np.where(x > 0, x, alpha * x)
