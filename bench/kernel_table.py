#!/usr/bin/env python3
"""Writes the table of kernels in docs/performance.md, between its marks, from files of kernel_bench.py --json.

usage: bench/kernel_table.py DOCUMENT FILE...

Rows have milliseconds and the ratio PyTorch / ours of one thread, the share of the bandwidth of memory, the ratio on several threads,
and the ratios of forward and backward together. Cases of bfloat16 and float16 have tables of their own.
"""
import json
import pathlib
import statistics
import sys

BEGIN, END = "<!-- kernels: written by bench/kernels.sh -->\n", "<!-- kernels end -->\n"
HALVES = {" bf16": "bfloat16", " f16": "float16"}  # the ends of names of cases, as in kernel_bench.py


def main():
    document, runs = pathlib.Path(sys.argv[1]), [json.loads(pathlib.Path(each).read_text()) for each in sys.argv[2:]]
    lines = ["", "| run | triad, GB/s | cases | geometric mean | below 1 |", "|---|---|---|---|---|"]
    for run in runs:
        ratios = [each["ratio"] for each in run["cases"].values()]
        what = "forward" if run["mode"] == "forward" else "forward and backward"
        lines.append(f"| {what}, {run['threads']} thread{'s' if run['threads'] > 1 else ''} | {run['triad'] * 1e-9:.1f} | {len(ratios)} | "
                     f"{statistics.geometric_mean(ratios):.2f} | {sum(ratio < 1 for ratio in ratios)} |")
    by_kind = {(run["mode"], run["threads"] > 1): run["cases"] for run in runs}
    columns = [("forward", False, "ms", ".3g"), ("forward", False, "ratio", ".2f"), ("forward", False, "memory", ".2f"),
               ("forward", True, "ratio", ".2f"), ("backward", False, "ratio", ".2f"), ("backward", True, "ratio", ".2f")]

    def cell(name, mode, threads, key, form):
        figures = by_kind.get((mode, threads), {}).get(name)
        return format(figures[key], form) if figures else ""

    names = sorted(by_kind["forward", False])
    halves = {end: [name for name in names if name + end in names] for end in HALVES}
    is_half = {name + end for end, of_end in halves.items() for name in of_end}
    tables = [("case", "", [name for name in names if name not in is_half])]
    tables += [(dtype, end, halves[end]) for end, dtype in HALVES.items()]
    for title, end, rows in tables:
        lines += ["", f"| {title} | ms | ratio | memory | ratio, threads | backward | backward, threads |", "|" + "---|" * 7]
        for row in rows:
            lines.append("| " + " | ".join([row] + [cell(row + end, *column) for column in columns]) + " |")
    text = document.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(before + BEGIN + "\n".join(lines) + "\n\n" + END + after)


main()
