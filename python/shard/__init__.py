"""Distributed tensors: ops, gradients and captured programs on meshes of ranks."""

from ._core import __version__
from ._core import *  # noqa: F403: the ops, which the tool binds
from .autograd import *  # noqa: F403
from .checkpoints import *  # noqa: F403
from .dry_reports import *  # noqa: F403
from .explanations import *  # noqa: F403
from .programs import *  # noqa: F403
from .world import *  # noqa: F403
from ._signatures import add_signatures as _add_signatures

_add_signatures()
