"""Computes the expected values of tests/conformance in float64, with NumPy and SciPy alone.

reference.py INPUTS reads the calls that the test program writes (update.sh runs both), calls the function of each op in
reference_*.py, which are found by their names, and writes expected_*.txt beside them. It fails where an op has no
function.

A function is written from the documentation of its op, never from its kernel. It gets a Call and returns the list of
outputs, or one output: float64, int64 or bool arrays, None for an absent one. The attributes of a case are those of
runtime/shard/testing/op_cases_*.cc; the function knows them by the name of the case.
"""

import glob
import importlib
import os
import sys

import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))
NUMPY_DTYPES = {"int32": np.int32, "int64": np.int64, "uint8": np.uint8}


class Call:
    """A call of an op: its case, the kind of its dtype ("float", or the name of another dtype), and its inputs.

    out_dims are the shapes of the outputs, for attributes that are sizes which no input shows.
    """

    def __init__(self, case, kind, inputs, out_dims):
        self.case, self.kind, self.inputs, self.out_dims = case, kind, inputs, out_dims


def parse_dims(text):
    return tuple(int(d) for d in text.split(",") if d)


def parse_input(text):
    head, *elements = text.split()
    kind, dims = head[:-1].split("[")
    array = np.array([float(e) for e in elements], dtype=np.float64).reshape(parse_dims(dims))
    return array if kind == "float" else array.astype(bool if kind == "bool" else np.int64)


def wrapped(array, kind):
    """Integers as a dtype stores them."""
    return array.astype(NUMPY_DTYPES[kind]).astype(np.int64) if kind in NUMPY_DTYPES else array


def number(value):
    if isinstance(value, (bool, np.bool_)):
        return "1" if value else "0"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if value == 0:
        return "0"
    if value == np.floor(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


def output_text(array):
    if array is None:
        return "-"
    array = np.asarray(array)
    letter = {"f": "f", "i": "i", "u": "i", "b": "b"}[array.dtype.kind]
    assert letter != "f" or array.dtype == np.float64, "outputs are float64, int64 or bool"
    head = "%s[%s]" % (letter, ",".join(str(d) for d in array.shape))
    return " ".join([head] + [number(e) for e in array.ravel()])


def earlier_rows(family):
    """The rows of a family's file, by the op, the case and what identifies a draw."""
    rows, case = {}, None
    path = os.path.join(FOLDER, "expected_%s.txt" % family)
    if os.path.exists(path):
        for line in open(path).read().splitlines()[1:]:
            if "\t" in line:
                case = line
            else:
                rows[case, tuple(line.split(" ", 3)[:3])] = line
    return rows


def settled(earlier, row):
    """The earlier row where the new one differs only by rounding, which is another one on another processor."""
    if earlier is None or earlier == row:
        return row
    old, new = earlier.split(" ")[3:], row.split(" ")[3:]
    if len(old) != len(new) or any(a != b for a, b in zip(old, new) if "[" in a + b or "-" in (a, b)):
        return row
    floats = [False]
    for each in new:
        floats.append(each[0] == "f" if "[" in each else floats[-1])
    if any(a != b for a, b, kind in zip(old, new, floats[1:]) if not kind):
        return row
    numbers = [np.array([float(each) for each in side if "[" not in each and each != "-"]) for side in (old, new)]
    finite = np.isfinite(numbers[1])
    largest = np.abs(numbers[1][finite]).max(initial=0)
    return earlier if np.allclose(*numbers, rtol=1e-12, atol=1e-13 * largest, equal_nan=True) else row


def load():
    """The functions of all families, and the family of each."""
    functions, families = {}, {}
    for path in sorted(glob.glob(os.path.join(FOLDER, "reference_*.py"))):
        family = os.path.basename(path)[len("reference_"):-len(".py")]
        for op, function in importlib.import_module("reference_" + family).OPS.items():
            assert op not in functions, "%s has two functions" % op
            functions[op], families[op] = function, family
    return functions, families


def main(inputs):
    functions, families = load()
    texts = {family: [] for family in families.values()}
    earlier = {family: earlier_rows(family) for family in texts}
    missing, failed, last = set(), [], {}
    for line in open(inputs):
        op, case, draw, kind, checksum, out_dims, *tensors = line.rstrip("\n").split("\t")
        if op not in functions:
            missing.add(op)
            continue
        shapes = [parse_dims(d) for d in out_dims[1:-1].split("][")]
        call = Call(case, kind, [parse_input(t) for t in tensors], shapes)
        try:
            with np.errstate(all="ignore"):
                outputs = functions[op](call)
            outputs = outputs if isinstance(outputs, list) else [outputs]
            row = " ".join([draw, kind, checksum] + [output_text(o) for o in outputs])
        except Exception as error:  # every op with a mistake is reported
            failed.append("%s: %s, draw %s of %s: %r" % (op, case, draw, kind, error))
            continue
        text = texts[families[op]]
        if last.get(families[op]) != (op, case):
            text.append("%s\t%s" % (op, case))
            last[families[op]] = (op, case)
        text.append(settled(earlier[families[op]].get(("%s\t%s" % (op, case), (draw, kind, checksum))), row))
    for family, text in texts.items():
        with open(os.path.join(FOLDER, "expected_%s.txt" % family), "w") as file:
            file.write("# Written by update.sh; do not edit.\n" + "\n".join(text) + "\n")
    for sentence in failed:
        print("error: " + sentence, file=sys.stderr)
    if missing:
        names = " ".join(sorted(missing))
        print("error: no function in tests/conformance/reference_*.py for: " + names, file=sys.stderr)
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
