#!/usr/bin/env python3
"""Times steps of training beside those of PyTorch, in turn: eager calls beside eager calls, captured programs beside torch.compile.

usage: bench/model_bench.py [--build DIR] [--threads N] [--device NAME] [--match TEXT] [--steps N] [--markdown]

--build     a release build with the target model_bench (build-release)
--threads   of both sides (1)
--device    of both sides, cpu or cuda (cpu)
--match     only models whose names contain this text
--steps     steps of each side (30); the table has the medians
--markdown  a table as docs/performance.md has it

Run it by the Python of an environment that has torch; bench/models.sh makes one. Both sides start from the same parameters and train
on the same batches, and a model fails unless their first losses agree: then they compute the same. Reading the loss waits for a device.
A model that fails has a row that says why; the others are still timed, and the exit status is 1.
"""
import argparse
import itertools
import math
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import torch.nn.functional as F

ALPHABET = 80
BATCHES = 8
CHECKED = 4  # steps whose losses must agree


class Reader:
    """The file that model_bench writes: tensors of known shapes, one after the other, floats as float32."""

    def __init__(self, path):
        self.bytes = bytearray(pathlib.Path(path).read_bytes())
        self.at = 0
        self.parameters = []
        self.dtype = torch.float32  # of parameters

    def take(self, shape, dtype=torch.float32):
        x = torch.frombuffer(self.bytes, dtype=dtype, count=math.prod(shape), offset=self.at).reshape(shape)
        self.at += x.numel() * x.element_size()
        return x.to(torch.get_default_device(), self.dtype if x.is_floating_point() else x.dtype, copy=True)

    def leaf(self, *shape):
        self.parameters.append(self.take(shape).requires_grad_())
        return self.parameters[-1]

    def weight(self, inputs, outputs):
        """PyTorch has weights as [outputs, inputs]."""
        self.parameters.append(self.take((inputs, outputs)).t().contiguous().requires_grad_())
        return self.parameters[-1]

    def linear(self, inputs, outputs):
        return self.weight(inputs, outputs), self.leaf(outputs)


def gpt(read, layers, heads, width, batch, context, alphabet=ALPHABET, dtype=torch.float32):
    read.dtype = dtype

    def norm():
        return read.leaf(width), read.leaf(width)

    characters, positions = read.leaf(alphabet, width), read.leaf(context, width)
    blocks = [(norm(), norm(), read.linear(width, 3 * width), read.linear(width, width), read.linear(width, 4 * width),
               read.linear(4 * width, width)) for _ in range(layers)]
    last, scores = norm(), read.linear(width, alphabet)

    def attention(x, qkv, joined):
        parts = F.linear(x, *qkv).view(batch, context, heads, -1).transpose(1, 2).split(width // heads, -1)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(batch, context, width), *joined)

    def loss(ids, after):
        x = F.embedding(ids, characters) + positions
        for before, between, qkv, joined, up, down in blocks:
            x = x + attention(F.layer_norm(x, (width,), *before), qkv, joined)
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (width,), *between), *up)), *down)
        return F.cross_entropy(F.linear(F.layer_norm(x, (width,), *last), *scores).view(-1, alphabet), after.view(-1))

    return loss, [((batch, context), torch.int64)] * 2, True


def resnet(read, batch=4, side=112, classes=100):
    def conv(inputs, outputs, kernel, stride):
        filters, scale, shift = read.leaf(outputs, inputs, kernel, kernel), read.leaf(outputs), read.leaf(outputs)
        mean, variance = torch.zeros(outputs), torch.ones(outputs)
        return lambda x: F.batch_norm(F.conv2d(x, filters, None, stride, kernel // 2), mean, variance, scale, shift, True)

    def block(inputs, outputs, stride):
        first, second = conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3, 1)
        shortcut = conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else lambda x: x
        return lambda x: F.relu(second(F.relu(first(x))) + shortcut(x))

    stem, blocks, inputs = conv(3, 64, 7, 2), [], 64
    for outputs in (64, 128, 256, 512):
        blocks += [block(inputs, outputs, 1 if outputs == 64 else 2), block(outputs, outputs, 1)]
        inputs = outputs
    scores = read.linear(inputs, classes)

    def loss(images, labels):
        x = F.max_pool2d(F.relu(stem(images)), 3, 2, 1)
        for each in blocks:
            x = each(x)
        return F.cross_entropy(F.linear(x.mean((2, 3)), *scores), labels)

    return loss, [((batch, 3, side, side), torch.float32), ((batch,), torch.int64)], False


def lstm(read, steps=64, batch=32, width=256):
    embedded = read.leaf(ALPHABET, width)
    weights = [read.leaf(4 * width, width), read.leaf(4 * width, width), read.leaf(4 * width), read.leaf(4 * width)]
    scores = read.linear(width, ALPHABET)
    none = torch.zeros(1, batch, width)

    def loss(ids, after):
        states = torch._VF.lstm(F.embedding(ids, embedded), (none, none), weights, True, 1, 0.0, True, False, False)[0]
        return F.cross_entropy(F.linear(states, *scores).view(-1, ALPHABET), after.view(-1))

    return loss, [((steps, batch), torch.int64)] * 2, True


PEERS = {
    "gpt 2x64": lambda read: gpt(read, 2, 4, 64, 16, 64),
    "gpt 4x256": lambda read: gpt(read, 4, 8, 256, 8, 128),
    "gpt 12x768 bf16": lambda read: gpt(read, 12, 12, 768, 8, 1024, 50304, torch.bfloat16),
    "lstm": lstm,
    "resnet": resnet,
}


class Ours:
    def __init__(self, build, threads, device):
        command = [pathlib.Path(build) / "bench/model_bench", "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "SHARD_DEVICE": device})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("model_bench ended")
        return answer

    def step(self):
        """Seconds and loss of a step."""
        return tuple(map(float, self.ask("step 1").split()))


class Peer:
    def __init__(self, path, make, compiled):
        read = Reader(path)
        self.loss, inputs, updates = make(read)
        self.parameters = read.parameters
        self.precision = 1e-3 if read.dtype == torch.float32 else 2e-2  # to which losses must agree
        self.batches = [[read.take(*each) for each in inputs] for _ in range(BATCHES)]
        if compiled:
            self.loss = torch.compile(self.loss)
        self.optimizer = updates and torch.optim.AdamW(self.parameters, 1e-3, (0.9, 0.99), 1e-8, 0.01, fused=True)
        self.steps = 0

    def step(self):
        batch = self.batches[self.steps % BATCHES]
        self.steps += 1
        begin = time.perf_counter()
        loss = self.loss(*batch)
        loss.backward()
        if self.optimizer:
            self.optimizer.step()
        for each in self.parameters:
            each.grad = None
        value = loss.item()
        return time.perf_counter() - begin, value


def compare(ours, name, compiled, steps, folder):
    """Medians of seconds a step, ours and the peer's."""
    path = folder / "model"
    ours.ask(f"make {'captured' if compiled else 'eager'} {path} {name}")
    peer = Peer(path, PEERS[name], compiled)
    times = []
    for step in range(CHECKED + steps):
        mine, theirs = ours.step(), peer.step()
        if step >= CHECKED:
            times.append((mine[0], theirs[0]))
        elif not abs(mine[1] - theirs[1]) <= peer.precision * abs(theirs[1]):  # NaN neither
            raise RuntimeError(f"step {step}: the losses {mine[1]} and {theirs[1]} differ: the models are not the same")
    return [statistics.median(side) for side in zip(*times)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build-release")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--match", default="")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    torch.backends.cudnn.allow_tf32 = False

    def start():
        """A process for each model: after an error of a device nothing works in it."""
        return Ours(options.build, options.threads, options.device)

    row = "| {} | {} | {} | {} | {} |" if options.markdown else "{:<12} {:<26} {:>10} {:>10} {:>7}"
    print(row.format("model", "ours / PyTorch", "shard, ms", "PyTorch", "ratio"))
    if options.markdown:
        print("|---|---|---|---|---|")
    with start() as ours:
        names = ours.ask("list").split(";")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, compiled in itertools.product(names, (False, True)):
            if options.match not in name:
                continue
            kind = "captured / torch.compile" if compiled else "eager / eager"
            try:
                with start() as ours:
                    mine, theirs = compare(ours, name, compiled, options.steps, pathlib.Path(folder))
                figures = f"{mine * 1e3:.2f}", f"{theirs * 1e3:.2f}", f"{theirs / mine:.2f}"
            except Exception as failure:  # PyTorch has errors of many types
                text = " ".join(str(failure).replace("|", " ").split())[:200]
                figures = f"failed: {type(failure).__name__}: {text}", "", ""
                failed.append(f"{name} ({kind})")
            print(row.format(name, kind, *figures), flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


main()
