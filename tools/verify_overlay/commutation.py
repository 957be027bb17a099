"""Contributions to a pending reduction, and what an op says of how it commutes with one (docs/rules.md, "Pending reductions")."""

import re

import numpy as np

REDUCE = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
    "any": np.logical_or,
    "all": np.logical_and,
}
DEFAULT = {
    "linear": ["sum"],
    "multilinear": ["sum"],
    "rearranging": ["sum", "max", "min", "prod"],
    "monotone": ["max", "min"],
}
RNG = np.random.default_rng(11)


def declared(op, rule):
    """The kind and the types; None where nothing is declared, or only under a condition on the call."""
    shard = op["shard"] or {}
    text = shard.get("partial") or rule.partition("~")[2]
    if not text or shard.get("partial_guard"):
        return None
    kind, types = re.fullmatch(r"\s*(\w+)(?:\((.*)\))?\s*", text).groups()
    return kind, [t.strip() for t in types.split(",")] if types else DEFAULT[kind]


def contributions(value, type_):
    """Two arrays that the reduction makes `value` of, or None where it makes no such numbers."""
    if (
        (value.dtype.kind == "b") != (type_ in ("any", "all"))
        or value.dtype.kind not in "bfc"
        or value.dtype.kind == "c"
        and type_ != "sum"
    ):
        return None
    first = RNG.random(value.shape) < 0.5
    if type_ == "sum":
        part = (RNG.uniform(-3, 3, value.shape)).astype(value.dtype)
        return part, value - part
    if type_ == "prod":
        part = RNG.choice([0.5, 2, -4], value.shape).astype(value.dtype)
        return part, value / part
    if type_ in ("any", "all"):
        loser = np.full(value.shape, type_ == "all")
    else:
        loser = value + RNG.uniform(0, 3, value.shape).astype(value.dtype) * (-1 if type_ == "max" else 1)
    return np.where(first, value, loser), np.where(first, loser, value)
