#!/usr/bin/env python3
"""Times shardgen on the four op files of another project, beside that project's own Python generators where they are given.

usage: bench/foreign.py --tool BUILD/codegen/shardgen --yaml DIR [--peer DIR] [--runs N] [--compile PREFIX]

--yaml     folder with ops.yaml, legacy_ops.yaml, backward.yaml and legacy_backward.yaml
--peer     the folder paddle/phi/api/yaml of a checkout of Paddle with these files; needs PyYAML. Its generators of the distributed
           forward and backward API run in turn with ours.
--compile  an installed package: compiles everything that is generated at -O2, without ccache, and prints CPU-seconds per op

Prints medians of wall and CPU seconds, the largest peak memory, and lines. Wall times mean little on a busy machine; ratios hold.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

FILES = ["ops.yaml", "legacy_ops.yaml", "backward.yaml", "legacy_backward.yaml"]


def measure(command, cwd=None):
    """Wall seconds, CPU seconds and peak memory in MB of one process and its children."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{errors}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, errors


def lines(folder):
    return sum(path.read_text().count("\n") for path in pathlib.Path(folder).iterdir() if path.suffix in (".h", ".cc"))


def report(name, runs):
    wall, cpu, memory = zip(*[run[:3] for run in runs])
    print(f"{name:<44} {statistics.median(wall):8.3f} s wall {statistics.median(cpu):8.3f} s CPU {max(memory):7.1f} MB")
    return statistics.median(wall)


def compile_cost(sources, prefix, include, ops):
    flags = ["-std=c++20", "-O2", f"-I{include}", f"-I{prefix}/include"]
    cpu = 0.0
    for source in sources:
        cpu += measure(["g++", *flags, "-c", str(source), "-o", os.devnull])[1]
    print(f"compiling {len(sources)} files at -O2: {cpu:.1f} CPU-s, {cpu / ops:.3f} CPU-s an op")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--yaml", required=True, type=pathlib.Path)
    parser.add_argument("--peer", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--compile", dest="prefix", type=pathlib.Path)
    options = parser.parse_args()
    yaml = [str(options.yaml / name) for name in FILES]
    ours, idle, forward, backward = [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        peer_out = pathlib.Path(scratch) / "peer"
        peer_out.mkdir()
        out = None
        for run in range(options.runs):
            out = f"{scratch}/ours{run}"
            command = [options.tool, "generate", *yaml, "--out", out]
            ours.append(measure(command))
            idle.append(measure(command))
            if options.peer:
                generator = options.peer / "generator"
                forward.append(measure([sys.executable, generator / "dist_api_gen.py", "--api_yaml_path", *yaml[:2],
                                        "--api_header_path", peer_out / "api.h", "--api_source_path", peer_out / "api.cc"]))
                backward.append(measure([sys.executable, generator / "dist_bw_api_gen.py", "--backward_yaml_path", *yaml[2:],
                                         "--backward_header_path", peer_out / "bw.h", "--backward_source_path", peer_out / "bw.cc"]))
        ops = int(re.search(r"(\d+) ops generated", ours[0][3]).group(1))
        wall = report(f"shardgen generate, {ops} ops", ours)
        report("the same with nothing to do", idle)
        print(f"{'lines':<44} {lines(out)}")
        if options.peer:
            peer = report("peer, distributed forward API", forward) + report("peer, distributed backward API", backward)
            print(f"{'lines':<44} {lines(peer_out)}")
            print(f"{'peer / shardgen, wall':<44} {peer / wall:8.1f}")
        if options.prefix:
            compile_cost(sorted(pathlib.Path(out).glob("*.cc")), options.prefix, out, ops)


main()
