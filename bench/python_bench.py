#!/usr/bin/env python3
"""Times small calls of the Python package beside those of PyTorch, in turn, and prints a table of ratios.

usage: bench/python_bench.py [--runs N] [--json FILE]

Each figure is the median of N samples (11) of a loop, without the time of an empty loop. A peer that cannot be imported has an empty column.
bench/python.sh makes an environment with both and runs this.
"""
import argparse
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import timeit

import shard

LIMITS = {"add, 4 floats": 250, "reshape": 250, "distributed add": 450, "multiply, sum, backward": 4000}


def peer(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def shard_cases():
    x, y = shard.ones([4]), shard.ones([4])
    w = shard.ones([4])
    w.requires_grad = True

    def step():
        (w * x).sum().backward()

    return {
        "add, 4 floats": lambda: x + y,
        "add as a method": lambda: x.add(y),
        "add in place": lambda: x.add_(y),
        "reshape": lambda: x.reshape([2, 2]),
        "multiply, sum, backward": step,
    }


def torch_cases(torch):
    torch.set_num_threads(1)
    x, y = torch.ones(4), torch.ones(4)
    w = torch.ones(4, requires_grad=True)

    def step():
        (w * x).sum().backward()

    return {
        "add, 4 floats": lambda: x + y,
        "add as a method": lambda: x.add(y),
        "add in place": lambda: x.add_(y),
        "reshape": lambda: x.reshape([2, 2]),
        "multiply, sum, backward": step,
    }


def sample(function, number):
    return timeit.timeit(function, number=number) / number * 1e9


def measure(columns, runs):
    """The medians in ns, by case and column. Samples of the columns are taken in turn."""
    empty = min(sample(lambda: None, 100000) for _ in range(runs))
    figures = {}
    for name in columns[0][1]:
        number = 20000 if LIMITS.get(name, 0) > 1000 else 100000
        samples = {column: [] for column, _ in columns}
        for _ in range(runs):
            for column, cases in columns:
                samples[column].append(sample(cases[name], number))
        figures[name] = {column: statistics.median(each) - empty for column, each in samples.items()}
    return figures


def distributed_add(runs):
    """ns of an add of distributed tensors that sends nothing, on a world of one rank."""

    def program():
        mesh = shard.ProcessMesh([1], ["x"])
        x = shard.shard_tensor(shard.ones([4]), mesh, [shard.Shard(0)])
        empty = min(sample(lambda: None, 100000) for _ in range(runs))
        return statistics.median(sample(lambda: x + x, 100000) for _ in range(runs)) - empty

    return shard.run(program, nranks=1)[0]


def import_time(runs):
    """ms of `import shard` in a new process, without starting Python."""
    command = "import time; t = time.perf_counter(); import shard; print((time.perf_counter() - t) * 1e3)"
    return statistics.median(float(subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout)
                             for _ in range(runs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    torch = peer("torch")
    columns = [("shard", shard_cases())] + ([("torch", torch_cases(torch))] if torch else [])
    figures = measure(columns, arguments.runs)
    figures["distributed add"] = {"shard": distributed_add(arguments.runs)}
    print("| call | limit | shard | torch %s | ratio | |\n|---|---|---|---|---|---|" % (torch.__version__ if torch else "(not found)"))
    for name, row in figures.items():
        limit, other = LIMITS.get(name), row.get("torch")
        print("| %s | %s | %.0f ns | %s | %s | %s |" % (
            name, "%d ns" % limit if limit else "", row["shard"], "%.0f ns" % other if other else "",
            "%.1f" % (other / row["shard"]) if other else "", "" if not limit else "met" if row["shard"] <= limit else "not met"))
    milliseconds = import_time(arguments.runs)
    print("| import shard | 120 ms | %.0f ms | | | %s |" % (milliseconds, "met" if milliseconds <= 120 else "not met"))
    if arguments.json:
        arguments.json.write_text(json.dumps({"ns": figures, "import_ms": milliseconds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
