#!/usr/bin/env python3
"""Writes elementwise.txt: values and derivatives of elementwise ops, for tests/kernels/reference_test.cc.

Needs numpy, scipy and mpmath: python3 elementwise.py > elementwise.txt. Values at finite numbers come from mpmath in 60
digits, and are compared with scipy or numpy; those at 0, infinities and NaN come from scipy or numpy.
"""

import math

import numpy as np
from mpmath import inf, mp, mpf, nan
from scipy import special

mp.dps = 60
np.seterr(all="ignore")

# Most have at most 8 significant bits, so that every float dtype has them.
SIZES = [2.0**-1074, 2.0**-1030, 1e-300, 2.0**-149, 2.0**-133, 2.0**-24, 2.0**-14, 2.0**-7, 0.1, float(np.float32(0.1)),
         0.25, 0.5, 0.75, 0.96875, 1.0, 1.5, 2.5, 3.0, 3.25, 5.0, 7.75, 10.0, 20.0, 20.5, 40.0, 88.0, 100.0, 708.0,
         1000.0, 2.0**20, 2.0**66, 1e17, 1e300]
POINTS = [0.0, -0.0, math.inf, -math.inf, math.nan] + [sign * size for size in SIZES for sign in (1, -1)]


def piecewise(x, below, at, above):
    return below if x < 0 else above if x > 0 else at


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def clip(x, low, high):
    return min(max(x, low), high)


def softplus(x):
    return mp.log1p(mp.exp(x))


def mish_slope(x, limit):
    t = mp.tanh(x if x > limit else softplus(x))
    return t + x * (1 - t * t) * (1 if x > limit else sigmoid(x))


SELU = (mpf(float(np.float32(1.0507009873554804934193349852946))),
        mpf(float(np.float32(1.6732632423543772848170429916717))))
STANH = (mpf(float(np.float32(0.67))), mpf(float(np.float32(1.7159))))
SLOPE = mpf(float(np.float32(0.2)))  # of hardsigmoid
LOGIT = mpf(0.25)
BIG = 400  # sizes for which functions that grow like exp are not computed in mpmath


class Op:
    """value and slope are functions of mpmath; special is one of numpy for what is not finite, or for checking.

    An error is measured in ulp of the value, or of `floor` (of `slope_floor`) where that is larger.
    """

    def __init__(self, name, value, slope, special=None, ulps=2, floor=0, slope_ulps=4, slope_floor=0, limits=None, points=(),
                 domain=lambda x: True):
        self.__dict__.update(locals())


def no_slope(x):
    return mpf(0)


OPS = [
    Op("exp", mp.exp, mp.exp, np.exp),
    Op("log", mp.log, lambda x: 1 / x, np.log, domain=lambda x: x > 0),
    Op("sin", mp.sin, mp.cos, np.sin),
    Op("cos", mp.cos, lambda x: -mp.sin(x), np.cos),
    Op("tanh", mp.tanh, lambda x: 1 - mp.tanh(x)**2, np.tanh, ulps=3, slope_floor=1),
    Op("pow 2.5", lambda x: mp.power(x, 2.5), lambda x: 2.5 * mp.power(x, 1.5), lambda x: np.power(x, 2.5), domain=lambda x: x > 0),
    Op("pow 3", lambda x: x**3, lambda x: 3 * x**2, lambda x: np.power(x, 3.0)),
    Op("erf", mp.erf, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x), special.erf, slope_ulps=200),
    Op("erfinv", mp.erfinv, lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(mp.erfinv(x)**2), special.erfinv, ulps=6, slope_ulps=40,
       domain=lambda x: abs(x) < 1),
    Op("expm1", mp.expm1, mp.exp, np.expm1, slope_floor=1),
    Op("log1p", mp.log1p, lambda x: 1 / (1 + x), np.log1p, domain=lambda x: x > -1),
    Op("log2", lambda x: mp.log(x, 2), lambda x: 1 / (x * mp.log(2)), np.log2, domain=lambda x: x > 0),
    Op("log10", mp.log10, lambda x: 1 / (x * mp.log(10)), np.log10, domain=lambda x: x > 0),
    Op("tan", mp.tan, lambda x: mp.sec(x)**2, np.tan),
    Op("asin", mp.asin, lambda x: 1 / mp.sqrt(1 - x * x), np.arcsin, domain=lambda x: abs(x) <= 1),
    Op("acos", mp.acos, lambda x: -1 / mp.sqrt(1 - x * x), np.arccos, domain=lambda x: abs(x) <= 1),
    Op("atan", mp.atan, lambda x: 1 / (1 + x * x), np.arctan, slope_floor=1e-30),
    Op("sinh", mp.sinh, mp.cosh, np.sinh),
    Op("cosh", mp.cosh, mp.sinh, np.cosh),
    Op("asinh", mp.asinh, lambda x: 1 / mp.sqrt(x * x + 1), np.arcsinh),
    Op("acosh", mp.acosh, lambda x: 1 / mp.sqrt(x * x - 1), np.arccosh, domain=lambda x: x >= 1),
    Op("atanh", mp.atanh, lambda x: 1 / (1 - x * x), np.arctanh, domain=lambda x: abs(x) <= 1),
    Op("reciprocal", lambda x: 1 / x, lambda x: -1 / (x * x), np.reciprocal, ulps=1),
    Op("logit 0.25", lambda x: mp.log(clip(x, LOGIT, 1 - LOGIT) / (1 - clip(x, LOGIT, 1 - LOGIT))),
       lambda x: 1 / (x * (1 - x)) if LOGIT <= x <= 1 - LOGIT else mpf(0), floor=1),
    Op("floor", mp.floor, no_slope, np.floor, ulps=0),
    Op("ceil", mp.ceil, no_slope, np.ceil, ulps=0),
    Op("round", mp.nint, no_slope, np.round, ulps=0, points=(0.49999999999999994,)),
    Op("trunc", lambda x: mp.sign(x) * mp.floor(abs(x)), no_slope, np.trunc, ulps=0),
    Op("sign", mp.sign, no_slope, np.sign, ulps=0),
    Op("lgamma", lambda x: mp.log(abs(mp.gamma(x))) if abs(x) < 1e5 else mp.loggamma(x).real, mp.digamma, special.gammaln,
       ulps=4, floor=1, slope_ulps=8, slope_floor=1, domain=lambda x: x > 0 or (x > -30 and x != mp.floor(x))),
    Op("digamma", mp.digamma, lambda x: mp.psi(1, x), special.digamma, ulps=8, floor=1, slope_ulps=8, slope_floor=1,
       domain=lambda x: x > 1e-140 or (-30 < x < -1e-140 and x != mp.floor(x))),
    Op("polygamma 2", lambda x: mp.psi(2, x), lambda x: mp.psi(3, x), lambda x: special.polygamma(2, x), ulps=8, slope_ulps=8,
       domain=lambda x: 1e-60 < x < 1e30),
    Op("i0", lambda x: mp.besseli(0, x), lambda x: mp.besseli(1, x), special.i0, ulps=16, slope_ulps=16, limits=BIG),
    Op("i0e", lambda x: mp.besseli(0, x) * mp.exp(-abs(x)),
       lambda x: (mp.besseli(1, x) - mp.sign(x) * mp.besseli(0, x)) * mp.exp(-abs(x)), special.i0e, ulps=4, slope_ulps=8,
       slope_floor=1, limits=BIG),
    Op("i1", lambda x: mp.besseli(1, x), lambda x: mp.besseli(0, x) - mp.besseli(1, x) / x, special.i1, ulps=16, slope_ulps=32,
       limits=BIG),
    Op("i1e", lambda x: mp.besseli(1, x) * mp.exp(-abs(x)),
       lambda x: (mp.besseli(0, x) - mp.sign(x) * mp.besseli(1, x) - mp.besseli(1, x) / x) * mp.exp(-abs(x)), special.i1e, ulps=4,
       slope_ulps=16, slope_floor=1, limits=BIG),
    Op("leaky_relu 0.25", lambda x: piecewise(x, x / 4, x, x), lambda x: piecewise(x, mpf(0.25), mpf(1), mpf(1)),
       lambda x: np.where(x < 0, x / 4, x), ulps=1),
    Op("elu 0.5", lambda x: x if x > 0 else mp.expm1(x) / 2, lambda x: mpf(1) if x > 0 else mp.exp(x) / 2,
       lambda x: np.where(x > 0, x, np.expm1(x) / 2)),
    Op("celu 0.5", lambda x: x if x > 0 else mp.expm1(x * 2) / 2, lambda x: mpf(1) if x > 0 else mp.exp(x * 2),
       lambda x: np.where(x > 0, x, np.expm1(x * 2) / 2)),
    Op("selu", lambda x: SELU[0] * (x if x > 0 else SELU[1] * mp.expm1(x)),
       lambda x: SELU[0] * (mpf(1) if x > 0 else SELU[1] * mp.exp(x)), ulps=3, slope_floor=1),
    Op("relu6", lambda x: clip(x, mpf(0), mpf(6)), lambda x: mpf(1) if 0 < x < 6 else mpf(0), lambda x: np.clip(x, 0, 6), ulps=0),
    Op("hardtanh -1 2", lambda x: clip(x, mpf(-1), mpf(2)), lambda x: mpf(1) if -1 < x < 2 else mpf(0), lambda x: np.clip(x, -1, 2),
       ulps=0),
    Op("hardsigmoid", lambda x: clip(SLOPE * x + 0.5, mpf(0), mpf(1)),
       lambda x: SLOPE if 0 < SLOPE * x + 0.5 < 1 else mpf(0), lambda x: np.clip(float(SLOPE) * x + 0.5, 0, 1), floor=0.5),
    Op("hardswish", lambda x: x * clip(x + 3, mpf(0), mpf(6)) / 6,
       lambda x: mpf(0) if x <= -3 else mpf(1) if x >= 3 else (2 * x + 3) / 6, ulps=3, slope_floor=1),
    Op("hardshrink", lambda x: x if abs(x) > 0.5 else mpf(0), lambda x: mpf(1) if abs(x) > 0.5 else mpf(0),
       lambda x: np.where(abs(x) <= 0.5, 0.0, x), ulps=0),
    Op("softshrink", lambda x: x - mp.sign(x) / 2 if abs(x) > 0.5 else mpf(0), lambda x: mpf(1) if abs(x) > 0.5 else mpf(0),
       lambda x: np.where(abs(x) <= 0.5, 0.0, x - np.sign(x) / 2), ulps=1),
    Op("thresholded_relu", lambda x: x if x > 1 else mpf(0), lambda x: mpf(1) if x > 1 else mpf(0),
       lambda x: np.where(x <= 1, 0.0, x), ulps=0),
    Op("softplus 2 30", lambda x: x if 2 * x > 30 else softplus(2 * x) / 2, lambda x: mpf(1) if 2 * x > 30 else sigmoid(2 * x),
       lambda x: np.logaddexp(0, 2 * x) / 2, ulps=3),
    Op("softsign", lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x))**2, ulps=2),
    Op("logsigmoid", lambda x: -softplus(-x), lambda x: sigmoid(-x), lambda x: -np.logaddexp(0, -x), ulps=3),
    Op("mish 20", lambda x: x * mp.tanh(x if x > 20 else softplus(x)), lambda x: mish_slope(x, 20), ulps=6, floor=1e-36, slope_ulps=8, slope_floor=1),
    Op("swish", lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * sigmoid(-x)), ulps=4, slope_ulps=8, slope_floor=0.1),
    Op("tanh_shrink", lambda x: x - mp.tanh(x), lambda x: mp.tanh(x)**2, special=lambda x: x - np.tanh(x), floor=1, slope_ulps=6),
    Op("stanh", lambda x: STANH[1] * mp.tanh(STANH[0] * x), lambda x: STANH[0] * STANH[1] * (1 - mp.tanh(STANH[0] * x)**2), ulps=4,
       slope_floor=1),
]
ODD = ("erfinv", "i1", "i1e")  # of which scipy drops the sign of -0
LIMITS_AT_INFINITY = {  # of ops that neither numpy nor scipy has, or has otherwise: at infinity and -infinity
    "i0": (inf, inf), "i1": (inf, -inf), "lgamma": (inf, inf),
    "selu": (inf, -SELU[0] * SELU[1]), "hardswish": (inf, 0), "softsign": (1, -1), "mish 20": (inf, -0.0), "swish": (inf, -0.0),
    "stanh": (STANH[1], -STANH[1]), "logit 0.25": (mp.log(3), -mp.log(3)),
}


def number(x):
    return repr(float(x)).replace("-nan", "nan")


def value_of(op, x):
    finite = math.isfinite(x) and x != 0
    if x == 0 and op.name in ODD:
        return x
    if math.isinf(x) and op.name in LIMITS_AT_INFINITY:
        return float(LIMITS_AT_INFINITY[op.name][x < 0])
    if op.special is None:
        if math.isnan(x):
            return math.nan
        return float(op.value(mpf(x))) if x != 0 else math.copysign(float(op.value(mpf(0))), x) if op.value(mpf(0)) == 0 else float(op.value(mpf(0)))
    other = float(op.special(np.float64(x)))
    if not finite or not op.domain(x) or (op.limits and abs(x) > op.limits):
        return other
    exact = float(op.value(mpf(x)))
    if abs(x) > 1e-290 and abs(other - exact) > 1e-9 * max(abs(exact), 1e-300) and abs(other - exact) > 1e-12:
        raise AssertionError(f"{op.name} of {x} is {exact}, but {other} by numpy or scipy")
    if exact == 0:
        return other if other == 0 else math.copysign(0.0, x)
    return exact


def slope_of(op, x):
    """None where the slope is not checked."""
    if not math.isfinite(x) or (x == 0 and op.name in ("reciprocal", "i1", "i1e")) or not op.domain(x):
        return None
    if op.limits and abs(x) > op.limits:
        return None
    try:
        return float(op.slope(mpf(x)))
    except (ZeroDivisionError, ValueError, OverflowError):
        return None


def main():
    print("# Written by elementwise.py. op: name; tolerances of value and slope: ulps, and the size from which they count.")
    print("# Then x, value and slope; - where the slope is not compared.")
    for op in OPS:
        print(f"op: {op.name}; {op.ulps} {op.floor} {op.slope_ulps} {op.slope_floor}")
        for x in [*POINTS, *op.points]:
            slope = slope_of(op, x)
            print(number(x), number(value_of(op, x)), "-" if slope is None else number(slope))


if __name__ == "__main__":
    main()
