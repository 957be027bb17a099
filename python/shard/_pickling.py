"""What pickles of tensors name: a function of Python, because pickle finds those by their names."""

from . import _core


def rebuild_tensor(data, shape, dtype, device, requires_grad):
    """The tensor with these bytes."""
    return _core._rebuild_tensor(data, shape, dtype, device, requires_grad)
