"""Nested tuples, lists and dicts of tensors as a flat list of tensors and a structure without them.

A structure is made of tuples, so that it is hashed and compared quickly: TENSOR for a tensor, (STATIC, type, value) for another value,
and (type, keys, *children) for a container, where only a dict has keys.
"""

from __future__ import annotations

from typing import Any, Iterator

from ._core import Tensor

TENSOR = "tensor"
STATIC = "static"


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """Appends the tensors in `value` to `tensors`, and returns the structure, from which unflatten makes the value again."""
    kind = type(value)
    if kind is Tensor or isinstance(value, Tensor):
        tensors.append(value)
        return TENSOR
    if kind is float:
        return STATIC, float, repr(value)  # 0.0 and -0.0 are different constants, and a NaN is the same one as another
    if kind is dict:
        return (dict, tuple(value), *[flatten(each, tensors) for each in value.values()])
    if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return (kind, None, *[flatten(each, tensors) for each in value])
    return STATIC, kind, value  # with the type, because 1 == True


def unflatten(structure: Any, tensors: Iterator[Tensor]) -> Any:
    """The value with this structure and these tensors."""
    if structure is TENSOR:
        return next(tensors)
    kind = structure[0]
    if kind is STATIC:
        return static_value(structure)
    children = [unflatten(each, tensors) for each in structure[2:]]
    if kind is dict:
        return dict(zip(structure[1], children))
    if kind is list:
        return children
    return tuple(children) if kind is tuple else kind(*children)


def static_value(structure: tuple) -> Any:
    return float(structure[2]) if structure[1] is float else structure[2]


def statics(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that are no tensors, with their places: ("[0]['scale']", 2.0)."""
    if structure is TENSOR:
        return
    if structure[0] is STATIC:
        yield path, static_value(structure)
        return
    children = structure[2:]
    for key, child in zip(range(len(children)) if structure[1] is None else structure[1], children):
        yield from statics(child, f"{path}[{key!r}]")
