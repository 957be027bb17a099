"""Nested tuples, lists and dicts of tensors as a flat list of tensors and a structure without them."""

from __future__ import annotations

from typing import Any, Iterator

from ._core import Tensor

TENSOR = "tensor"  # stands for a tensor in a structure


class Static:
    """A value in a structure that is no tensor. Equal only to a value of the same type: 1, 1.0 and True differ."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any):
        self.value = value
        # 0.0 and -0.0 are different constants, and a NaN is the same one as another
        self.key = (float, repr(value)) if type(value) is float else (type(value), value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Container:
    """A tuple, list, named tuple or dict in a structure."""

    __slots__ = ("children", "keys", "type")

    def __init__(self, type: type, keys: tuple | None, children: tuple):
        self.type = type
        self.keys = keys
        self.children = children

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Container):
            return False
        return self.type is other.type and self.keys == other.keys and self.children == other.children

    def __hash__(self) -> int:
        return hash((self.type, self.keys, self.children))


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """Appends the tensors in `value` to `tensors`, and returns the structure, from which unflatten makes the value again."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return TENSOR
    kind = type(value)
    if kind is dict:
        return Container(dict, tuple(value), tuple(flatten(each, tensors) for each in value.values()))
    if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return Container(kind, None, tuple(flatten(each, tensors) for each in value))
    return Static(value)


def unflatten(structure: Any, tensors: Iterator[Tensor]) -> Any:
    """The value with this structure and these tensors."""
    if structure is TENSOR:
        return next(tensors)
    if isinstance(structure, Static):
        return structure.value
    children = [unflatten(each, tensors) for each in structure.children]
    if structure.keys is not None:
        return dict(zip(structure.keys, children))
    if structure.type is list:
        return children
    return tuple(children) if structure.type is tuple else structure.type(*children)


def statics(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that are no tensors, with their places: ("[0]['scale']", 2.0)."""
    if isinstance(structure, Static):
        yield path, structure.value
    elif isinstance(structure, Container):
        keys = range(len(structure.children)) if structure.keys is None else structure.keys
        for key, child in zip(keys, structure.children):
            yield from statics(child, f"{path}[{key!r}]")
