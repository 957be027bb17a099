#!/usr/bin/env python3
"""Writes the table of kernels in docs/performance.md, between its marks, from files of kernel_bench.py --json.

usage: bench/kernel_table.py DOCUMENT FILE...

A row has a case and its variant of bfloat16: milliseconds of one thread, the ratio PyTorch / ours, the share of the bandwidth of
memory, the ratio on several threads, and that of forward and backward on one thread.
"""
import json
import pathlib
import statistics
import sys

BEGIN, END = "<!-- kernels: written by bench/kernels.sh -->\n", "<!-- kernels end -->\n"
END_OF_HALF = " bf16"


def main():
    document, runs = pathlib.Path(sys.argv[1]), [json.loads(pathlib.Path(each).read_text()) for each in sys.argv[2:]]
    lines = ["", "| run | triad, GB/s | cases | geometric mean | below 1 |", "|---|---|---|---|---|"]
    for run in runs:
        ratios = [each["ratio"] for each in run["cases"].values()]
        what = "forward" if run["mode"] == "forward" else "forward and backward"
        lines.append(f"| {what}, {run['threads']} thread{'s' if run['threads'] > 1 else ''} | {run['triad'] * 1e-9:.1f} | {len(ratios)} | "
                     f"{statistics.geometric_mean(ratios):.2f} | {sum(ratio < 1 for ratio in ratios)} |")
    by_kind = {(run["mode"], run["threads"] > 1): run["cases"] for run in runs}
    lines += ["", "| case | ms | ratio | memory | bf16, ms | ratio | memory | threads | bf16 | backward | bf16 | backward, threads | bf16 |",
              "|" + "---|" * 13]
    columns = [("forward", False, "ms", ".3g"), ("forward", False, "ratio", ".2f"), ("forward", False, "memory", ".2f")]
    others = [("forward", True, "ratio", ".2f"), ("backward", False, "ratio", ".2f"), ("backward", True, "ratio", ".2f")]

    def cell(name, mode, threads, key, form):
        figures = by_kind.get((mode, threads), {}).get(name)
        return format(figures[key], form) if figures else ""

    names = by_kind["forward", False]
    for name in sorted(names):
        if name.endswith(END_OF_HALF) and name[: -len(END_OF_HALF)] in names:
            continue
        cells = [cell(each, *column) for each in (name, name + END_OF_HALF) for column in columns]
        cells += [cell(each, *column) for column in others for each in (name, name + END_OF_HALF)]
        lines.append("| " + " | ".join([name] + cells) + " |")
    text = document.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(before + BEGIN + "\n".join(lines) + "\n\n" + END + after)


main()
