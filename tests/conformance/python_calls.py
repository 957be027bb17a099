"""Writes python/tests/op_calls.json.gz from the calls that the test program writes: python_calls.py CALLS ROOT.

It has a list of the cases of the functions of the Python package. A case has its kind (float, or a dtype), the dtypes that it
names, the dtype of each input ("T" for the one in which the call is made, "W" for float32 in a narrow call), the inputs of each draw, and steps: calls with their tensor arguments and attributes by name. A
tensor is the number of a value: the inputs come first, then the outputs of each step. Where attributes depend on sizes, a
draw has steps of its own. An op that calls others has no steps: python/tests/composed_ops.py has them. Cases of an
in-place form have the draws of its op where they are equal.
"""

import ast
import glob
import gzip
import json
import os
import sys


def functions(folder):
    """The names of all functions in the stubs of the package."""
    names = set()
    for path in glob.glob(os.path.join(folder, "*.pyi")):
        names |= {each.name for each in ast.parse(open(path).read()).body if isinstance(each, ast.FunctionDef)}
    return names


def inputs_of(case):
    return {letter: draw.get("inputs") for letter, draw in case["draws"].items()}


def main(calls, root):
    known, cases = functions(os.path.join(root, "generated", "python")), {}
    for line in open(calls):
        call = json.loads(line)
        if call["function"] not in known:
            continue
        fixed = {
            k: call[k] for k in ("function", "op", "case", "kind", "named", "dtypes", "steps", "results") if k in call
        }
        case = cases.setdefault((call["function"], call["case"], call["kind"]), fixed)
        draw = {"inputs": call["inputs"]}
        draw.update({k: call.get(k) for k in ("dtypes", "steps", "results") if call.get(k) != case.get(k)})
        case.setdefault("draws", {})[call["draw"]] = draw
    for case in cases.values():
        base = cases.get((case["op"], case["case"], case["kind"]), case)
        if base is not case and inputs_of(base) == inputs_of(case):
            for draw in case["draws"].values():
                del draw["inputs"]
    os.makedirs(os.path.join(root, "python", "tests"), exist_ok=True)
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases.values()) + "\n]\n"
    with open(os.path.join(root, "python", "tests", "op_calls.json.gz"), "wb") as file:
        file.write(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
