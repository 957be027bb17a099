"""Checkpoints: tensors in a folder, saved from any layout and loaded into any other."""

import os
from collections.abc import Mapping

from . import _core

__all__ = ["save_checkpoint", "load_checkpoint", "checkpoint_tensors"]


def save_checkpoint(folder, tensors):
    """Saves tensors under their names in a folder, which is made where it is missing.

    Each rank writes its local shards into a file of the safetensors format, of equal shards one rank alone. The folder holds the
    checkpoint before or the new one, whole, whenever the program is stopped. Plain tensors must be the same on all ranks. In a world
    all ranks call it with the same names; where a rank cannot write, all raise. Raises ArgumentError for what cannot be written and
    while others save to the folder, CommunicationError where the ranks' tensors differ, NoDataError in a dry world.
    """
    _core._save_checkpoint(os.fsdecode(folder), _checked("save_checkpoint", tensors))


def load_checkpoint(folder, tensors):
    """Overwrites tensors with those of the same names in a checkpoint, which may have more.

    A tensor may have another layout, mesh or device than the one that was saved; each rank reads what its local shards need. Nothing
    is recorded for gradients. In a world all ranks call it. All tensors are checked before the first is written, and where one rank
    cannot load, all raise: ArgumentError for names that the checkpoint lacks and for what is damaged or no checkpoint, ShapeError,
    DTypeError.
    """
    _core._load_checkpoint(os.fsdecode(folder), _checked("load_checkpoint", tensors))


def checkpoint_tensors(folder):
    """The shapes and dtypes of the tensors in a checkpoint: ``{name: (shape, dtype)}``. Raises ArgumentError for a folder without one."""
    return _core._checkpoint_tensors(os.fsdecode(folder))


def _checked(function, tensors):
    good = isinstance(tensors, Mapping)
    if good:
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, _core.Tensor):
                raise TypeError(f"[{function}] argument 'tensors' must be dict[str, Tensor], and has {name!r}: {type(tensor).__name__}")
        return dict(tensors)
    raise TypeError(f"[{function}] argument 'tensors' must be dict[str, Tensor], not {type(tensors).__name__}")
