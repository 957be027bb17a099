"""Checkpoints from Python: layouts, dtypes and errors. tests/api/checkpoint_test.cc has the cases of the library."""

import json
import re
import struct

import numpy as np
import pytest
import shard


def test_a_checkpoint_of_four_ranks_is_loaded_by_two_and_without_a_world(tmp_path):
    folder = tmp_path / "step10"
    values = np.arange(35, dtype=np.float32).reshape(5, 7)

    def save():
        mesh = shard.ProcessMesh([2, 2], ["dp", "tp"])
        weight = shard.shard_tensor(shard.tensor(values), mesh, "tp, dp")
        shard.save_checkpoint(folder, {"weight": weight, "moments": weight * 2, "step": shard.tensor(10)})

    def load():
        mesh = shard.ProcessMesh([2], ["x"])
        weight = shard.shard_tensor(shard.zeros([5, 7]), mesh, "x, -")
        weight.requires_grad = True
        shard.load_checkpoint(str(folder), {"weight": weight})
        return weight.full_tensor().detach().numpy()

    shard.run(save, 4)
    for loaded in shard.run(load, 2):
        np.testing.assert_array_equal(loaded, values)
    moments = shard.zeros([5, 7])
    shard.load_checkpoint(folder, {"moments": moments})
    np.testing.assert_array_equal(moments.numpy(), values * 2)
    assert shard.checkpoint_tensors(folder) == {
        "weight": ((5, 7), shard.float32), "moments": ((5, 7), shard.float32), "step": ((), shard.int64)}


def test_files_have_the_safetensors_format(tmp_path):
    shard.save_checkpoint(tmp_path, {"flags": shard.tensor([True, False]), "numbers": shard.tensor([1.0, 2.0])})
    data = (tmp_path / "000001.rank0.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header["flags"] == {"dtype": "BOOL", "shape": [2], "data_offsets": [8, 10]}
    assert header["numbers"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert (8 + length) % 8 == 0
    assert data[8 + length :] == np.array([1, 2], np.float32).tobytes() + b"\1\0"


def test_errors_say_what_was_expected(tmp_path):
    x = shard.zeros([2])
    with pytest.raises(TypeError, match=re.escape("[save_checkpoint] argument 'tensors' must be dict[str, Tensor], not list")):
        shard.save_checkpoint(tmp_path, [x])
    with pytest.raises(TypeError, match=re.escape("[load_checkpoint] argument 'tensors' must be dict[str, Tensor], and has 'x': int")):
        shard.load_checkpoint(tmp_path, {"x": 3})
    with pytest.raises(shard.ArgumentError, match="it is written by save_checkpoint"):
        shard.load_checkpoint(tmp_path, {"x": x})
    shard.save_checkpoint(tmp_path, {"x": x})
    with pytest.raises(shard.ArgumentError, match="lacks 'y'; it has 'x'"):
        shard.load_checkpoint(tmp_path, {"y": x})
    with pytest.raises(shard.ShapeError):
        shard.load_checkpoint(tmp_path, {"x": shard.zeros([3])})
    with pytest.raises(shard.DTypeError):
        shard.load_checkpoint(tmp_path, {"x": shard.zeros([2], dtype=shard.int64)})
