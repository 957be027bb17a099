"""Trains a small network on a mesh of 2 x 2 ranks: batches are sharded over dp, weights over tp. Steps are captured programs.

    python examples/python/train_mlp.py
    mpirun -n 4 python examples/python/train_mlp.py
"""

from __future__ import annotations

import shard
from shard import ProcessMesh, Replicate, Shard, Tensor

STEPS, BATCH, INPUTS, HIDDEN, CLASSES = 60, 64, 16, 32, 4


def parameter(value: Tensor, mesh: ProcessMesh, placements: list[shard.Placement]) -> Tensor:
    return shard.shard_tensor(value, mesh, placements).requires_grad_()


def train() -> list[float]:
    mesh = ProcessMesh([2, 2], ["dp", "tp"])
    shard.manual_seed(1)
    # Every rank draws the same numbers; shard_tensor keeps this rank's part of them.
    w1 = parameter(shard.gaussian([INPUTS, HIDDEN], std=0.3), mesh, [Replicate(), Shard(1)])
    w2 = parameter(shard.gaussian([HIDDEN, CLASSES], std=0.3), mesh, [Replicate(), Shard(0)])
    teacher = shard.gaussian([INPUTS, CLASSES])
    rate = 0.5

    @shard.capture
    def step(x: Tensor, labels: Tensor) -> Tensor:
        logits = x.matmul(w1).relu().matmul(w2)
        loss = shard.cross_entropy_with_softmax(logits, labels)[1].mean()
        for weight, gradient in zip((w1, w2), shard.grad(loss, [w1, w2])):
            with shard.no_grad():
                weight -= gradient * rate
        return loss

    losses = []
    for _ in range(STEPS):
        x = shard.gaussian([BATCH, INPUTS])
        labels = x.matmul(teacher).argmax(-1).reshape([BATCH, 1])
        loss = step(
            shard.shard_tensor(x, mesh, [Shard(0), Replicate()]),
            shard.shard_tensor(labels, mesh, [Shard(0), Replicate()]),
        )
        losses.append(float(loss.item()))
    return losses


def main() -> None:
    losses = shard.run(train, nranks=4)[0]
    print("loss %.3f at the start, %.3f after %d steps" % (losses[0], losses[-1], STEPS))
    assert losses[-1] < 0.5 * losses[0]


if __name__ == "__main__":
    main()
