"""What pickles of tensors name: functions of Python, because pickle finds those by their names."""

from . import _core


def rebuild_tensor(data, shape, dtype, device, requires_grad):
    """The tensor with these bytes."""
    return _core._rebuild_tensor(data, shape, dtype, device, requires_grad)


def rebuild_shard(local, layout, shape, dtype, rank, requires_grad):
    """The distributed tensor of which this rank has the shard `local`."""
    return _core._rebuild_shard(local, layout, shape, dtype, rank, requires_grad)
