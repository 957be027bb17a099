#!/usr/bin/env python3
"""Times kernels beside those of PyTorch, in turn, and prints a table of ratios.

usage: bench/kernel_bench.py [--build DIR] [--threads N] [--device NAME] [--backward] [--match TEXT] [--runs N] [--json FILE]
                             [--markdown]

--build     a release build with the target kernel_bench (build-release)
--threads   of both sides (1)
--device    of both sides, cpu or cuda (cpu). PyTorch multiplies matrices by cuBLASLt there, in float32 without TF32, as we do
--backward  forward and backward with gradients of all float inputs, instead of forward alone
--match     only cases whose names contain this text; may be given several times
--runs      pairs of samples for each case (7); the table has the medians. One, where a run takes more than a second
--markdown  prints a table in Markdown
--json      also writes the figures to a file, from which kernel_table.py makes the table of docs/performance.md

The last column is the share of the memory bandwidth of a triad in the same run (of a copy, on a device) that a forward case reaches, if it
reads its inputs and writes its result once: 1 is the limit of elementwise functions and reductions.

Run it by the Python of an environment that has torch; bench/kernels.sh makes one. Both sides compute on numbers that are drawn afresh
from one distribution.
"""
import argparse
import functools
import json
import math
import pathlib
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

ROWS = COLUMNS = 4096
FLOATS = ((torch.float32, ""), (torch.bfloat16, " bf16"), (torch.float16, " f16"))  # and the ends of the names of their cases


def draw(shape, dtype=torch.float32, low=-2.0, high=2.0):
    if dtype == torch.int64:
        return torch.randint(int(low), int(high), shape)
    return torch.empty(shape).uniform_(low, high).to(dtype)


def attention(causal, q, k, v):
    swap = [x.transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*swap, is_causal=causal).transpose(1, 2)


def cases():
    big = (ROWS, COLUMNS)
    every = {}

    def case(name, run, shapes=(big,), dtype=torch.float32, low=-2.0, high=2.0):
        every[name] = (lambda: [draw(shape, dtype, low, high) for shape in shapes], run)

    def unary(name, run, low=-2.0, high=2.0):
        case(name, run, low=low, high=high)
        case(name + " bf16", run, dtype=torch.bfloat16, low=low, high=high)

    unary("relu", torch.relu)
    unary("exp", torch.exp)
    unary("log", torch.log, 0.1, 4)
    unary("sin", torch.sin)
    unary("cos", torch.cos)
    unary("tanh", torch.tanh)
    unary("sigmoid", torch.sigmoid)
    unary("silu", F.silu)
    unary("gelu", F.gelu)
    unary("pow 1.7", lambda x: torch.pow(x, 1.7), 0.1, 4)
    for dtype, end in FLOATS:
        case("add" + end, torch.add, (big, big), dtype)
        case("multiply by a row" + end, torch.mul, (big, (COLUMNS,)), dtype)
        case("divide" + end, torch.div, (big, big), dtype, 0.5, 2)
        case("sum" + end, torch.sum, dtype=dtype)
        case("sum dim 0" + end, lambda x: x.sum(0), dtype=dtype)
        case("sum dim 1" + end, lambda x: x.sum(1), dtype=dtype)
        case("sum dim 1 of 3" + end, lambda x: x.sum(1), ((256, 256, 256),), dtype)
        case("mean dim 1" + end, lambda x: x.mean(1), dtype=dtype)
        case("amax dim 0" + end, lambda x: x.amax(0), dtype=dtype)
        case("amax dim 1" + end, lambda x: x.amax(1), dtype=dtype)
        case("softmax dim 0" + end, lambda x: x.softmax(0), dtype=dtype)
        case("softmax dim 1" + end, lambda x: x.softmax(1), dtype=dtype)
        case("log_softmax dim 1" + end, lambda x: x.log_softmax(1), dtype=dtype)
        case("transpose" + end, lambda x: x.t().contiguous(), dtype=dtype)
        case("transpose 0 2 1 3" + end, lambda x: x.permute(0, 2, 1, 3).contiguous(), ((16, 1024, 16, 64),), dtype)
        case("concat" + end, lambda x, y: torch.cat((x, y), 1), (big, big), dtype)
        case("slice" + end, lambda x: x[:, 64:4032].contiguous(), dtype=dtype)
        case("cumsum dim 0" + end, lambda x: x.cumsum(0), dtype=dtype)
        case("cumsum dim 1" + end, lambda x: x.cumsum(1), dtype=dtype)
        case("layer_norm" + end, lambda x, w, b: F.layer_norm(x, (2048,), w, b), ((8192, 2048), (2048,), (2048,)), dtype)
        case("rms_norm" + end, lambda x, w: F.rms_norm(x, (2048,), w, 1e-6), ((8192, 2048), (2048,)), dtype)
        case("dropout" + end, lambda x: F.dropout(x, 0.3), dtype=dtype)
        for n in (64, 256, 1024) if dtype == torch.float16 else (64, 256, 1024, 2048):
            case(f"matmul {n}{end}", torch.matmul, ((n, n), (n, n)), dtype)
        case("matmul 1024 transposed y" + end, lambda x, y: x @ y.t(), ((1024, 1024), (1024, 1024)), dtype)
        case("matmul row" + end, torch.matmul, ((1, 4096), (4096, 4096)), dtype)
        case("linear + gelu" + end, lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
             ((2048, 1024), (4096, 1024), (4096,)), dtype)
        case("matmul batched" + end, torch.matmul, ((64, 128, 64), (64, 64, 128)), dtype)
        for causal in (False, True):
            name = ("attention causal" if causal else "attention") + end
            case(name, functools.partial(attention, causal), ((4, 512, 8, 64),) * 3, dtype)
        every["cross_entropy" + end] = (
            lambda dtype=dtype: [draw((4096, 4096), dtype), draw((4096,), torch.int64, 0, 4096)],
            lambda x, label: F.cross_entropy(x, label, reduction="none"))
        every["gather" + end] = (lambda dtype=dtype: [draw((65536, 256), dtype), draw((65536,), torch.int64, 0, 65536)],
                                 lambda x, index: x.index_select(0, index))
        every["embedding" + end] = (lambda dtype=dtype: [draw((32768, 512), dtype), draw((32768,), torch.int64, 0, 32768)],
                                    lambda w, index: F.embedding(index, w))
        every["scatter add" + end] = (
            lambda dtype=dtype: [draw((65536, 256), dtype), draw((65536, 256), dtype), draw((65536,), torch.int64, 0, 65536)],
            lambda x, updates, index: x.index_add(0, index, updates))
    every["batch_norm"] = (
        lambda: [draw((32, 64, 64, 128)), draw((64,)), draw((64,), low=0.5, high=1), torch.zeros(64), torch.ones(64)],
        lambda x, b, w, mean, var: F.batch_norm(x, mean, var, w, b, True))
    every["where"] = (lambda: [draw(big), draw(big), draw(big, torch.int64, 0, 2).bool()], lambda x, y, c: torch.where(c, x, y))
    case("cast to bf16", lambda x: x.to(torch.bfloat16))
    case("add int64", torch.add, (big, big), torch.int64, 0, 99)
    case("argmax dim 1", lambda x: x.argmax(1))
    case("argmax dim 0", lambda x: x.argmax(0))
    every["nonzero"] = (lambda: [draw(big, torch.int64, 0, 2).bool()], torch.nonzero)
    every["gaussian"] = (lambda: [], lambda: torch.randn(big))
    every["uniform"] = (lambda: [], lambda: torch.rand(big))
    every["randint"] = (lambda: [], lambda: torch.randint(0, 1000, big))

    def make_adamw():
        parameter = torch.nn.Parameter(draw(big))
        parameter.grad = draw(big)
        return [torch.optim.AdamW([parameter], lr=1e-3, fused=True)]

    every["adamw"] = (make_adamw, lambda optimizer: optimizer.step())
    add_layer_cases(case, every, big)
    add_device_cases(case, every)
    for n in (4, 64, 1024):
        case(f"add {n}", torch.add, ((n,), (n,)))
        case(f"sum {n}", torch.sum, ((n,),))
        case(f"softmax {n}", lambda x: x.softmax(0), ((n,),))
    return every


def add_layer_cases(case, every, big):
    """Layers of images and sequences, further functions, and what selects, sorts and moves elements."""
    for name, run, *bounds in (
            ("erf", torch.erf), ("expm1", torch.expm1), ("log1p", torch.log1p, -0.5, 4), ("tan", torch.tan, -1, 1),
            ("asin", torch.asin, -1, 1), ("atan", torch.atan), ("sinh", torch.sinh), ("floor", torch.floor),
            ("reciprocal", torch.reciprocal, 0.5, 2), ("sqrt", torch.sqrt, 0.1, 4), ("softplus", F.softplus), ("mish", F.mish),
            ("hardswish", F.hardswish), ("elu", F.elu), ("leaky_relu", lambda x: F.leaky_relu(x, 0.02)),
            ("lgamma", torch.lgamma, 0.5, 4), ("digamma", torch.digamma, 0.5, 4)):
        case(name, run, low=bounds[0] if bounds else -2, high=bounds[1] if bounds else 2)
    case("atan2", torch.atan2, (big, big))
    case("lerp", torch.lerp, (big, big, (1,)))
    case("bias + relu", lambda x, b: torch.relu(x + b), (big, (COLUMNS,)))
    case("logsumexp", lambda x: x.logsumexp(1))
    case("cumprod", lambda x: x.cumprod(1), low=0.99, high=1.01)
    case("p_norm dim 1", lambda x: torch.linalg.vector_norm(x, 2, 1))
    for dtype, end in FLOATS:
        case("conv2d 3x3, 64 channels" + end, lambda x, w: F.conv2d(x, w, padding=1), ((8, 64, 56, 56), (64, 64, 3, 3)), dtype)
        case("conv2d 1x1, 256 channels" + end, F.conv2d, ((8, 256, 28, 28), (256, 256, 1, 1)), dtype)
    case("conv2d 7x7, stride 2", lambda x, w: F.conv2d(x, w, stride=2, padding=3), ((8, 3, 224, 224), (64, 3, 7, 7)))
    case("depthwise_conv2d 3x3", lambda x, w: F.conv2d(x, w, padding=1, groups=128), ((8, 128, 56, 56), (128, 1, 3, 3)))
    case("conv2d_transpose 4x4, stride 2", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
         ((8, 64, 28, 28), (64, 64, 4, 4)))
    images = (8, 64, 112, 112)
    case("max pool 3x3, stride 2", lambda x: F.max_pool2d(x, 3, 2, 1), (images,))
    case("average pool 2x2", lambda x: F.avg_pool2d(x, 2), (images,))
    case("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), (images, (64,), (64,)))
    case("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (images, (64,), (64,)))
    case("bilinear_interp", lambda x: F.interpolate(x, (112, 112), mode="bilinear"), ((8, 64, 56, 56),))

    def lstm(x, h, c, *weights):
        return torch._VF.lstm(x, (h, c), list(weights), True, 1, 0.0, True, False, False)[0]

    case("lstm, 64 steps", lstm, ((64, 32, 256), (1, 32, 256), (1, 32, 256), (1024, 256), (1024, 256), (1024,), (1024,)),
         low=-0.1, high=0.1)
    case("topk 10 of 4096", lambda x: x.topk(10)[0])
    case("argsort", lambda x: x.argsort())
    case("flip dim 1", lambda x: x.flip(1))
    case("roll dim 1", lambda x: x.roll(100, 1))
    case("pad", lambda x: F.pad(x, (3, 4, 1, 2)))
    case("unfold", lambda x: F.unfold(x, 3, padding=1), ((8, 16, 112, 112),))
    index = (torch.int64, 0, COLUMNS)
    every["take_along_axis"] = (lambda: [draw(big), draw(big, *index)], lambda x, at: x.gather(1, at))
    every["index_select"] = (lambda: [draw(big), draw((COLUMNS,), *index)], lambda x, at: x.index_select(1, at))

    def make_matrix():
        x = draw((256, 256))
        return [x @ x.t() + 64 * torch.eye(256)]

    every["cholesky 256"] = (make_matrix, torch.linalg.cholesky)
    every["inverse 256"] = (make_matrix, torch.linalg.inv)


def hundred_calls(x, y):
    for _ in range(25):
        x = torch.relu(x * y + (y - x))
    return x


def make_graph():
    """A CUDA graph of hundred_calls."""
    inputs = [draw((1024,)), draw((1024,))]
    hundred_calls(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        hundred_calls(*inputs)
    return [graph]


def add_device_cases(case, every):
    """Cases that only devices have."""
    case("100 calls", hundred_calls, ((1024,), (1024,)))
    every["100 calls captured"] = (make_graph, lambda graph: graph.replay())
    for dtype, end in FLOATS:
        case("matmul 8192" + end, torch.matmul, ((8192, 8192),) * 2, dtype)
        for causal in (False, True):
            name = ("attention of 4096 causal" if causal else "attention of 4096") + end
            case(name, functools.partial(attention, causal), ((4, 4096, 16, 128),) * 3, dtype)
        case("add of 256M" + end, torch.add, ((16384, 16384),) * 2, dtype)
        case("softmax of 256M" + end, lambda x: x.softmax(1), ((65536, 4096),), dtype)


def wait_for_device():
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


class Failure(Exception):
    """What kernel_bench says of a case that it cannot run."""


class Ours:
    def __init__(self, build, threads, device):
        self.command = [pathlib.Path(build) / "bench/kernel_bench", "--threads", str(threads), "--device", device]
        self.process = None
        self.start()

    def start(self):
        """Begins anew: after an error of a device nothing works in a process."""
        if self.process:
            self.process.kill()
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer or answer.startswith("failed: "):
            raise Failure(answer or "kernel_bench ended")
        return answer

    def names(self):
        """(name, whether it has a gradient) of each case."""
        return [(each[:-1], each[-1] == "+") for each in self.ask("list").split(";")]

    def sample(self, mode, runs):
        return float(self.ask(f"{mode} 1 {runs}"))


class Peer:
    def __init__(self, case):
        make, self.run = case
        self.inputs = make()
        self.gradient = None

    def sample(self, mode, runs):
        run = self.forward if mode == "forward" else self.backward
        if mode == "backward":
            self.inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in self.inputs]
        if mode == "backward" and self.gradient is None:
            self.gradient = torch.empty(self.run(*self.inputs).shape).uniform_(-1, 1).to(self.inputs[0].dtype)
        wait_for_device()
        begin = time.perf_counter()
        for _ in range(runs):
            run()
        wait_for_device()
        return (time.perf_counter() - begin) / runs

    def forward(self):
        with torch.no_grad():
            self.run(*self.inputs)

    def backward(self):
        self.run(*self.inputs).backward(self.gradient)


def rested(side, mode, runs):
    """A sample after a run that is not counted. Threads of either side wait for more work in a loop of up to 16 ms (GOMP's
    default) before they sleep: meanwhile a sample of the other side would have one core less."""
    if torch.get_num_threads() > 1:
        time.sleep(0.03)
        side.sample(mode, 1)
    return side.sample(mode, runs)


def measure(ours, peer, mode, samples):
    """Medians of seconds a run, ours and the peer's, sampled in turn; a sample is at least 5 ms long."""
    first = max(ours.sample(mode, 1), 1e-7), max(peer.sample(mode, 1), 1e-7)
    runs = [max(1, min(10000, math.ceil(5e-3 / seconds))) for seconds in first]
    if max(first) > 1:  # the first run is sample enough
        return list(first)
    times = [(rested(ours, mode, runs[0]), rested(peer, mode, runs[1])) for _ in range(samples)]
    return [statistics.median(side) for side in zip(*times)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build-release")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--match", action="append")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    torch.backends.cudnn.allow_tf32 = False
    if options.device == "cuda":
        torch.backends.cuda.preferred_blas_library("cublaslt")
    mode = "backward" if options.backward else "forward"
    ours = Ours(options.build, options.threads, options.device)
    peers = cases()
    triad = float(ours.ask("triad"))
    row = "| {} | {} | {} | {} | {} |" if options.markdown else "{:<34} {:>10} {:>10} {:>7} {:>7}"
    print(row.format("case", "shard, ms", "PyTorch", "ratio", "memory"))
    if options.markdown:
        print("|---|---|---|---|---|")
    figures, failed = {}, []
    for name, differentiable in ours.names():
        if options.match and not any(text in name for text in options.match) or options.backward and not differentiable:
            continue
        try:
            if name not in peers:
                raise Failure("failed: kernel_bench.cc has this case, which is missing here")
            size = int(ours.ask(f"make {name}").split()[1])
            mine, theirs = measure(ours, Peer(peers[name]), mode, options.runs)
        except Exception as failure:  # PyTorch has errors of many types
            text = str(failure) if isinstance(failure, Failure) else f"failed: {type(failure).__name__}: {failure}"
            print(f"{name}: {' '.join(text.split())}", flush=True)
            failed.append(name)
            ours.start()
            continue
        figures[name] = {"ms": mine * 1e3, "ratio": theirs / mine}
        if not options.backward:
            figures[name]["memory"] = size / triad / mine
        memory = f"{figures[name]['memory']:.2f}" if not options.backward else ""
        print(row.format(name, f"{mine * 1e3:.4g}", f"{theirs * 1e3:.4g}", f"{theirs / mine:.2f}", memory), flush=True)
    ratios = [each["ratio"] for each in figures.values()]
    below = sum(ratio < 1 for ratio in ratios)
    mean = f"{statistics.geometric_mean(ratios):.2f}" if ratios else "none"
    print(f"\n{len(ratios)} cases, {mode}, {options.device}, {options.threads} threads, memory {triad * 1e-9:.1f} GB/s: "
          f"geometric mean {mean}, {below} below 1")
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "mode": mode, "triad": triad, "cases": figures}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


main()
