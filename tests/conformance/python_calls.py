"""Writes python/tests/op_calls.json from the calls that the test program writes: python_calls.py CALLS FOLDER.

A line of the file is a case of a function of the Python package: the dtype of each input ("T" for the one in which the
call is made), the inputs that its tensor arguments are, its attributes, and the inputs of each draw. Cases of an in-place
form have the draws of its op where they are equal. An op that calls others has neither tensors nor attributes:
python/tests/composed_ops.py has them.
"""

import ast
import glob
import json
import os
import sys


def functions(folder):
    """The names of all functions in the stubs of the package."""
    names = set()
    for path in glob.glob(os.path.join(folder, "*.pyi")):
        names |= {each.name for each in ast.parse(open(path).read()).body if isinstance(each, ast.FunctionDef)}
    return names


def main(calls, root):
    known, cases = functions(os.path.join(root, "generated", "python")), {}
    for line in open(calls):
        call = json.loads(line)
        if call["function"] not in known:
            continue
        key = call["function"], call["case"], call["kind"]
        case = cases.setdefault(key, {k: call[k] for k in ("function", "op", "case", "kind", "dtypes", "tensors", "attrs") if k in call})
        case.setdefault("draws", {})
        draw = case["draws"][call["draw"]] = {k: call[k] for k in ("checksum", "outputs")}
        draw["inputs"] = call["inputs"].split("\t") if call["inputs"] else []
        for k in ("tensors", "attrs", "dtypes"):
            if k in call and call[k] != case.get(k):
                draw[k] = call[k]
    for (function, name, kind), case in cases.items():
        base = cases.get((case["op"], name, kind))
        if base is not None and base is not case and base.get("draws") == case["draws"]:
            del case["draws"]
    with open(os.path.join(root, "python", "tests", "op_calls.json"), "w") as file:
        lines = [json.dumps(case, separators=(",", ":")) for case in cases.values()]
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
