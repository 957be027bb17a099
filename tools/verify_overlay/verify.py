#!/usr/bin/env python3
"""Tries the rules of an overlay on PaddlePaddle's own kernels: each op is run on shards of its arguments, and what the shards
compute, put together as the rule says, is compared with what the whole tensors give.

    python verify.py --tool build-dev/codegen/shardgen --overlay overlays/paddle.yaml --yaml ops.yaml backward.yaml ...

Needs Python 3.10 and `pip install paddlepaddle==3.0.0 numpy`. docs/overlays.md says what it found."""

import argparse
import json
import re
import signal
import subprocess
import sys

import numpy as np

import cases
import commutation
import paddle_ops
from expression import Notation


class Skip(Exception):
    """The op cannot be tried; the text says why."""


class Wrong(Exception):
    """The rule does not hold; the text says where."""


def shape_of(value):
    if isinstance(value, list):
        return [v.shape for v in value]
    return None if value is None else value.shape


def flatten(values):
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def regroup(flat, like):
    flat = iter(flat)
    return [[next(flat) for _ in value] if isinstance(value, list) else next(flat) for value in like]


def last_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("  [Hint")]
    return lines[-1][:150] if lines else type(error).__name__


def close(a, b):
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "fc":
        tolerance = 1e-9 if a.real.dtype.itemsize == 8 else 2e-5
        return np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    return np.array_equal(a, b)


class Check:
    """One op on one set of arguments."""

    def __init__(self, op, rule, tensors, attrs):
        self.op, self.rule, self.tensors, self.attrs = op, rule, tensors, attrs
        self.shapes_only = op["name"] in cases.SHAPES_ONLY
        self.compares_values = not self.shapes_only and not (op["shard"] or {}).get("random")
        self.whole = self.run(tensors, attrs)
        self.names = {a["name"]: v for a, v in zip(op["attrs"], attrs)}
        self.notation = Notation(rule, [shape_of(t) for t in tensors], [shape_of(o) for o in self.whole], self.names)
        if not self.notation.sizes_agree():
            raise Wrong("dims with one letter have different sizes")

    def run(self, tensors, attrs):
        name = self.op["name"]
        how = cases.REFERENCES.get(name) or (paddle_ops.infer if self.shapes_only else paddle_ops.run)
        try:
            outputs = how(self.op, tensors, attrs)
        except Exception as error:
            raise Skip(f"does not run: {last_line(error)}") from error
        return [None if o in cases.UNDEFINED.get(name, ()) else value for o, value in enumerate(outputs)]

    def letters(self):
        """The letters that may be sharded, and are dims of at least two elements."""
        return [n for n, l in self.notation.letters.items() if l.role != "whole" and l.size > 1]

    def layouts(self):
        """The call, and for each letter the dim of each tensor that it shards; for outputs without it what they are: pending, or whole."""
        notation = self.notation

        def place(letter, letters, term):
            if letter in letters:
                return letters.index(letter)
            if term.is_one and not term.axes[0].type and any(letter in l for l in notation.out_letters):
                return "whole"
            return term.is_one and term.axes[0].type or notation.letters[letter].type

        numbers = {
            k: v
            for k, v in self.names.items()
            if isinstance(v, (bool, int)) or isinstance(v, list) and all(isinstance(i, int) for i in v)
        }
        return {
            "rule": self.rule,
            "inputs": [shape_of(t) for t in self.tensors],
            "attrs": numbers,
            "outputs": [shape_of(o) for o in self.whole],
            "shard": [
                [
                    [l.index(letter) if letter in l else -1 for l in notation.in_letters],
                    [place(letter, l, term) for l, (term, _) in zip(notation.out_letters, notation.outputs)],
                ]
                for letter in self.letters()
            ],
        }

    def try_letter(self, letter, parts):
        size = self.notation.letters[letter].size
        bounds = [min(size, -(-size // parts) * p) for p in range(parts + 1)]
        results = []
        for begin, end in zip(bounds, bounds[1:]):
            if begin == end:
                continue
            local = [
                None if t is None else self.cut(t, letters, letter, begin, end)
                for t, letters in zip(flatten(self.tensors), self.notation.in_letters)
            ]
            try:
                results.append(
                    list(flatten(self.run(regroup(local, self.tensors), self.local_attrs(letter, end - begin))))
                )
            except Skip as error:
                raise Wrong(f"{letter} on {parts} ranks: {error}") from error
        for o, whole in enumerate(flatten(self.whole)):
            if whole is not None:
                self.compare(letter, parts, o, whole, [r[o] for r in results])

    def try_commutation(self):
        """How many types of pending reductions were tried that the op says it commutes with."""
        kind, types = commutation.declared(self.op, self.rule) or (None, [])
        tensors = list(flatten(self.tensors))
        read = [
            t is not None and not i["no_need_buffer"]
            for i, slot in zip(self.op["inputs"], self.tensors)
            for t in flatten([slot])
        ]
        tried = 0
        for type_ in types:
            halves = [commutation.contributions(t, type_) if r else None for t, r in zip(tensors, read)]
            pending = (
                [[i] for i, h in enumerate(halves) if h]
                if kind == "multilinear"
                else [[i for i, h in enumerate(halves) if h]]
            )
            for chosen in pending:
                if chosen:
                    self.try_pending(
                        type_, [h if i in chosen else (t, t) for i, (t, h) in enumerate(zip(tensors, halves))]
                    )
                    tried += 1
        return tried

    def try_pending(self, type_, halves):
        results = [
            list(flatten(self.run(regroup([h[side] for h in halves], self.tensors), self.attrs))) for side in (0, 1)
        ]
        for o, (whole, first, second) in enumerate(zip(flatten(self.whole), *results)):
            if whole is not None and not close(commutation.REDUCE[type_](first, second), whole):
                raise Wrong(f"pending {type_}: output {o} has other values")

    @staticmethod
    def cut(tensor, letters, letter, begin, end):
        index = tuple(slice(begin, end) if l == letter else slice(None) for l in letters)
        return np.ascontiguousarray(tensor[index]).reshape(tensor[index].shape)

    def local_attrs(self, letter, size):
        name = (self.op["infer_meta"] or {}).get("local_shape")
        if not name:
            return self.attrs
        local = [size if l == letter else s for l, s in zip(self.notation.out_letters[0], self.whole[0].shape)]
        return [local if a["name"] == name else v for a, v in zip(self.op["attrs"], self.attrs)]

    def compare(self, letter, parts, o, whole, shards):
        letters = self.notation.out_letters[o]
        term = self.notation.outputs[o][0]
        place = f"{letter} on {parts} ranks, output {o}"
        if letter in letters:
            together = np.concatenate(shards, axis=letters.index(letter))
        elif term.is_one and not term.axes[0].type and any(letter in l for l in self.notation.out_letters):
            if any(not close(p, whole) for p in shards):
                raise Wrong(f"{place}: the ranks disagree")
            return
        else:
            kind = term.axes[0].type if term.is_one and term.axes[0].type else self.notation.letters[letter].type
            if any(p.shape != whole.shape for p in shards):
                raise Wrong(f"{place}: shapes {[p.shape for p in shards]} do not add up to {whole.shape}")
            together = shards[0]
            for shard in shards[1:]:
                together = commutation.REDUCE[kind](together, shard)
        if together.shape != whole.shape:
            raise Wrong(f"{place}: {together.shape} instead of {whole.shape}")
        if self.compares_values and not close(together.astype(whole.dtype), whole):
            raise Wrong(f"{place}: other values")


class Verifier:
    def __init__(self, ops, rules):
        self.ops, self.rules = ops, rules

    def arguments(self, name, depth=0):
        """Sets of arguments by name, from the table of cases or, for a backward op, from those of its forward op."""
        op = self.ops.get(name)
        if op is None:
            raise Skip(f"no op '{name}'")
        if name in cases.CASES:
            yield from (self.complete(op, case) for case in cases.CASES[name])
            return
        if not op["forward"]:
            raise Skip("no case")
        forward = self.ops.get(op["forward"]["name"])
        if forward is None or not paddle_ops.has(forward["name"]):
            raise Skip("its forward op is not there")
        for tensors, attrs in self.arguments(forward["name"], depth + 1):
            yield self.backward_arguments(op, forward, tensors, attrs)

    def complete(self, op, case):
        tensors = [case.get(i["name"]) for i in op["inputs"]]
        known = {i["name"] for i in op["inputs"]} | {a["name"] for a in op["attrs"]}
        if set(case) - known:
            raise Skip(f"the case names {set(case) - known}")
        attrs = []
        for attr in op["attrs"]:
            if attr["name"] not in case and "default_value" not in attr:
                raise Skip(f"the case lacks {attr['name']}")
            attrs.append(paddle_ops.attribute(attr["typename"], case.get(attr["name"], attr.get("default_value"))))
        return tensors, attrs

    def backward_arguments(self, op, forward, tensors, attrs):
        try:
            outputs = (paddle_ops.infer if forward["name"] in cases.SHAPES_ONLY else paddle_ops.run)(
                forward, tensors, attrs
            )
        except Exception as error:
            raise Skip(f"its forward op does not run: {last_line(error)}") from error
        line = op["forward"]
        named = {i["name"]: t for i, t in zip(line["inputs"], tensors)}
        rng = np.random.default_rng(7)
        for i, o in zip(line["outputs"], outputs):
            named[i["name"]] = o
            named.setdefault(i["name"] + "_grad", cases.like(rng, o))
        values = {a["name"]: v for a, v in zip(line["attrs"], attrs)}
        wrong = [i["name"] for i in op["inputs"] if i["name"] not in named]
        if wrong:
            raise Skip(f"no value for {wrong}")
        own = []
        for attr in op["attrs"]:
            value = values.get(attr["name"], attr.get("default_value"))
            own.append(paddle_ops.attribute(attr["typename"], value))
        return [named[i["name"]] for i in op["inputs"]], own

    def verify(self, name):
        """How many (case, letter, ranks) were tried."""
        op, rule = self.ops[name], self.rules[name]
        if name in cases.NEEDS_BOXES:
            raise Skip(
                "its kernel must know the box of its shard; shard_verify_rules tries it with that of this library"
            )
        if name in cases.SECOND:
            return self.verify_derivative(name)
        if not paddle_ops.has(name):
            raise Skip("not in this version of PaddlePaddle")
        tried = 0
        for tensors, attrs in self.arguments(name):
            check = Check(op, rule, tensors, attrs)
            tried += try_all(check)
        if tried == 0:
            raise Skip("no dim of the cases may be sharded")
        return tried

    def verify_derivative(self, name):
        """An op that Python cannot call: by the autograd of the function that it is a derivative of."""
        op, rule = self.ops[name], self.rules[name]
        return sum(try_all(Derivative(op, rule, *case)) for case in cases.SECOND[name])


LAYOUTS = {}  # of the first case of each op all of whose outputs are there


def try_all(check):
    letters = check.letters()
    if letters and all(o is not None for o in check.whole):
        LAYOUTS.setdefault(check.op["name"], check.layouts())
    for letter in letters:
        for parts in (2, 3):
            check.try_letter(letter, parts)
    return 2 * len(letters) + (check.try_commutation() if check.compares_values else 0)


class Derivative(Check):
    """A backward op as the gradient of `function` towards `leaves`, which are arguments of the op, or as the gradient of that."""

    def __init__(self, op, rule, function, leaves, tensors):
        self.function, self.leaves = function, leaves
        attrs = [
            paddle_ops.attribute(a["typename"], tensors.get(a["name"], a.get("default_value"))) for a in op["attrs"]
        ]
        super().__init__(op, rule, [tensors.get(i["name"]) for i in op["inputs"]], attrs)

    def run(self, tensors, attrs):
        local = {i["name"]: t for i, t in zip(self.op["inputs"], tensors) if t is not None}
        upstream = next((n for n in ("out_grad", "grad_out", "fwd_grad_out", "grad_x") if n in local), None)
        seconds = [local[n] for n in local if n.startswith("grad_") and n.endswith("_grad")]
        try:
            results = paddle_ops.derivative(
                self.function, [local[n] for n in self.leaves], local.get(upstream), seconds
            )
        except Exception as error:
            raise Skip(f"does not run: {last_line(error)}") from error
        named = dict(zip(["grad_out_grad"], results[len(self.leaves) :]))
        named.update(zip([n + "_grad" for n in self.leaves if n + "_grad" not in named], results))
        if upstream is not None:
            named.setdefault(upstream + "_grad", named["grad_out_grad"] if seconds else None)
        return [named.get(o["name"]) for o in self.op["outputs"]]


def read_rules(args):
    def tool(*words):
        return json.loads(
            subprocess.run(
                [args.tool, *words, "--overlay", args.overlay],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=True,
            ).stdout
        )

    ops = {}
    for op in tool("dump", *args.yaml):
        ops.setdefault(op["name"], op)
    rules = {
        o["name"]: o["rule"]
        for o in tool("coverage", *args.yaml, "--format", "json")["ops"]
        if o["rule"] and not o["falls_back"]
    }
    return ops, rules


def work(verifier, names):
    """Prints a line of JSON for each op."""
    for name in names:
        signal.alarm(120)  # ends the process: some kernels never return from arguments that they do not expect
        try:
            kind, text = "verified", verifier.verify(name)
        except Skip as reason:
            kind, text = "not tried", str(reason)
        except (Wrong, ValueError) as error:
            kind, text = "wrong", str(error)
        print(json.dumps({"op": name, "kind": kind, "text": text, "layouts": LAYOUTS.get(name)}), flush=True)
    return 0


def write(path, results):
    """As JSON, a line for each op."""
    with open(path, "w") as file:
        file.write(
            "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results)) + "\n}\n"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--overlay", required=True)
    parser.add_argument("--yaml", nargs="+", required=True)
    parser.add_argument("--op", nargs="*", help="only these")
    parser.add_argument(
        "--expect-wrong", action="store_true", help="try the overlay's own entries only: each must be found wrong"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write what was found to this file")
    parser.add_argument(
        "--layouts", help="write to this file which dims were sharded together, for tests/spmd/overlay_test.cc"
    )
    args = parser.parse_args()
    ops, rules = read_rules(args)
    named = sorted(n for n, r in rules.items() if "->" not in r)
    if args.expect_wrong:
        with open(args.overlay) as file:
            args.op = re.findall(r"^- (?:backward_)?op : (\w+)", file.read(), re.MULTILINE)
    names = [n for n in args.op or sorted(rules) if n not in named]
    if args.worker:
        return work(Verifier(ops, rules), names)
    found = {"verified": {}, "wrong": {}, "not tried": {}}
    while names:
        # A kernel that ends the process, because this version takes other arguments, ends a worker.
        worker = subprocess.Popen(
            [sys.executable, *sys.argv, "--worker", "--op", *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in worker.stdout:
            if line.startswith("{"):
                result = json.loads(line)
                found[result["kind"]][result["op"]] = result["text"]
                if result["layouts"]:
                    LAYOUTS[result["op"]] = result["layouts"]
                names.remove(result["op"])
        if worker.wait() != 0 and names:
            found["not tried"][names.pop(0)] = "ends the process"
    for kind in ("not tried", "wrong"):
        for name, text in found[kind].items():
            print(f"{kind}: {name}: {rules[name]}: {text}")
    print(
        f"{len(found['verified'])} rules hold in {sum(found['verified'].values())} trials, {len(found['wrong'])} are wrong, "
        f"{len(found['not tried'])} could not be tried; {len(named)} are rules in C++, which shard_verify_rules tries."
    )
    if args.json:
        write(
            args.json, {name: {"rule": rules[name], kind: text} for kind in found for name, text in found[kind].items()}
        )
    if args.layouts:
        write(args.layouts, LAYOUTS)
    return 1 if (found["verified"] or found["not tried"] if args.expect_wrong else found["wrong"]) else 0


if __name__ == "__main__":
    sys.exit(main())
