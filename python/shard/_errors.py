"""Errors that the package raises itself carry codes, as those of the library do."""
from __future__ import annotations

from typing import TypeVar

Raised = TypeVar("Raised", bound=Exception)


def with_code(error: Raised, code: str) -> Raised:
    error.code = code  # type: ignore[attr-defined]
    return error
