"""Calls the ops of my_ops.yaml from Python, on plain tensors and on a mesh. PYTHONPATH names the folder with the module."""

import math

import my_ops
import shard


def expected(values, beta):
    return [2 * v / (1 + math.exp(-beta * v)) for v in values]


def close(tensor, wanted):
    return all(abs(a - b) < 1e-5 for a, b in zip(tensor.reshape([-1]).tolist(), wanted))


values = [0.1 * i - 1 for i in range(12)]
x = shard.tensor(values).reshape([3, 4])
assert close(my_ops.twice(my_ops.swish_scale(x, beta=1.5)), expected(values, 1.5))
try:
    my_ops.swish_scale(values)
except TypeError as error:
    print(error)
else:
    raise SystemExit("a list was taken as a tensor")


def program():
    mesh = shard.ProcessMesh([2, 2], ["dp", "tp"])
    shards = shard.shard_tensor(x, mesh, [shard.Shard(0), shard.Shard(1)])
    return my_ops.swish_scale(shards, 1.5).full_tensor()


for result in shard.run(program, nranks=4):
    assert close(my_ops.twice(result), expected(values, 1.5))
print("my_ops: as expected, on plain tensors and on a mesh of 4 ranks")
