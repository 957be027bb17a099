"""Axis expressions, read and carried out independently of the C++ of this repository (docs/rules.md says what they mean)."""

import re
from dataclasses import dataclass, field


@dataclass
class Axis:
    kind: str  # "name", "one" or "ellipsis"
    name: str = ""
    whole: bool = False
    optional: bool = False
    type: str = ""
    marks: list = field(default_factory=list)  # (kind, attribute, onward, type, flag)


@dataclass
class Term:
    axes: list
    transpose: str = ""
    is_list: bool = False

    @property
    def is_one(self):
        return len(self.axes) == 1 and self.axes[0].kind == "one"


def parse_mark(text):
    text = text.strip()
    kind = {"!": "whole", "-": "removed", "+": "added", "@": "permuted"}.get(text[0], "reduce")
    body = text if kind == "reduce" else text[1:]
    body, _, flag = body.partition("?")
    body, _, type_ = body.partition(":")
    return kind, body.removesuffix(".."), body.endswith(".."), type_, flag


def parse_axis(word):
    if word.startswith("..."):
        marks = [parse_mark(m) for m in word[4:-1].split(",")] if len(word) > 3 else []
        return Axis("ellipsis", marks=marks)
    whole, word = word.startswith("!"), word.removeprefix("!")
    word, _, type_ = word.partition(":")
    optional, word = word.endswith("?"), word.removesuffix("?")
    return Axis("one", type=type_) if word == "1" else Axis("name", word, whole, optional, type_)


def parse_term(text):
    text = text.strip()
    is_list = text.startswith("[")
    text, _, flag = text.strip("[]").partition("^")
    return Term([parse_axis(w) for w in re.findall(r"\.\.\.\{[^}]*\}|\S+", text)], flag.strip(), is_list)


def split_terms(text):
    return [parse_term(t) for t in re.split(r",(?![^{]*\})", text)]


def parse(text):
    """The terms of the inputs and of the outputs."""
    sides = text.partition("~")[0].split("->")
    return split_terms(sides[0]), split_terms(sides[1])


@dataclass
class Letter:
    role: str = "map"
    type: str = "sum"
    size: int = 1


class Notation:
    """The letter of each dim of each tensor of a call; None is a dim that stays whole.

    `inputs` and `outputs` hold for each slot the shape, a list of shapes, or None where the tensor is absent."""

    def __init__(self, text, inputs, outputs, attrs):
        in_terms, out_terms = parse(text)
        if len(in_terms) != len(inputs) or len(out_terms) != len(outputs):
            raise ValueError(f"{len(in_terms)} -> {len(out_terms)} terms for {len(inputs)} -> {len(outputs)} tensors")
        self.attrs, self.letters, self.has_axis = attrs, {}, {}
        self.inputs = [(t, s) for term, slot in zip(in_terms, inputs) for t, s in self.flat(term, slot)]
        self.outputs = [(t, s) for term, slot in zip(out_terms, outputs) for t, s in self.flat(term, slot)]
        for term, shape in self.inputs:
            self.decide_optional(term, shape)
        self.width = self.find_width()
        self.dots = [f"...{d}" for d in range(self.width)]
        self.letters.update({d: Letter() for d in self.dots})
        for term, shape in self.inputs + self.outputs:
            self.mark_roles(term, shape)
        self.in_letters = [self.letters_of(term, shape) for term, shape in self.inputs]
        for (term, shape), letters in zip(self.inputs, self.in_letters):
            for size, letter in zip(shape or (), letters):
                if letter and self.letters[letter].size == 1:
                    self.letters[letter].size = size
        self.in_letters = [self.drop_ones(l, s) for l, (_, s) in zip(self.in_letters, self.inputs)]
        self.out_letters = [self.drop_ones(self.letters_of(t, s), s) for t, s in self.outputs]
        for name, letter in self.letters.items():
            lacking = [
                o
                for o, (term, shape) in enumerate(self.outputs)
                if shape is not None and not (term.is_one and not term.axes[0].type) and name not in self.out_letters[o]
            ]
            if letter.role == "map" and lacking:
                letter.role = "reduce"

    @staticmethod
    def flat(term, slot):
        return [(term, s) for s in slot] if isinstance(slot, list) else [(term, slot)]

    def names_dims(self, term, shape):
        return shape is not None and not term.is_one

    def has(self, axis):
        return not axis.optional or self.has_axis.get(axis.name, False)

    def decide_optional(self, term, shape):
        if not self.names_dims(term, shape):
            return
        open_ = [a.name for a in term.axes if a.optional and a.name not in self.has_axis]
        spare = len(shape) - sum(a.kind != "ellipsis" and self.has(a) for a in term.axes if a.name not in open_)
        if 0 < spare < len(open_):
            raise ValueError("optional axes are not decided")
        for name in open_:
            self.has_axis[name] = spare >= len(open_)

    def values(self, attr):
        value = self.attrs[attr]
        return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]

    def named(self, mark, rank):
        values = self.values(mark[1])
        dims = set(range(rank)) if not values else set()
        for value in values if rank else []:
            if not -rank <= value < rank:
                raise ValueError(f"{mark[1]} = {value} for {rank} dims")
            dim = value % rank
            dims |= set(range(dim, rank if mark[2] else dim + 1))
        return dims

    @staticmethod
    def moving(term):
        return next((m for a in term.axes for m in a.marks if m[0] not in ("whole", "reduce")), None)

    def spread(self, term, shape):
        rank = len(shape) - sum(a.kind != "ellipsis" and self.has(a) for a in term.axes)
        if rank < 0:
            raise ValueError(f"{shape} has too few dims")
        return rank

    def find_width(self):
        direct, implied = -1, 0
        for term, shape in self.inputs:
            if not self.names_dims(term, shape) or all(a.kind != "ellipsis" for a in term.axes):
                continue
            mark, width = self.moving(term), self.spread(term, shape)
            if mark is None or mark[0] == "permuted" or (mark[4] and self.attrs[mark[4]]):
                direct = max(direct, width)
            elif mark[0] == "added":
                direct = max(direct, width - len(self.values(mark[1])))
            elif self.values(mark[1]) and not mark[2]:
                implied = max(implied, width + len(self.values(mark[1])))
        return direct if direct >= 0 else implied

    def dots_of(self, term):
        mark = self.moving(term)
        if mark is None:
            return list(self.dots)
        if mark[0] == "permuted":
            return [self.dots[v % self.width] for v in self.values(mark[1])]
        if mark[0] == "added":
            rest = iter(self.dots)
            new = self.named(mark, self.width + len(self.values(mark[1])))
            return [None if d in new else next(rest) for d in range(self.width + len(new))]
        gone = self.named(mark, self.width)
        kept = mark[4] and self.attrs[mark[4]]
        return [None if d in gone else self.dots[d] for d in range(self.width) if d not in gone or kept]

    def mark_roles(self, term, shape):
        if not self.names_dims(term, shape):
            return
        for axis in term.axes:
            if axis.kind == "name" and self.has(axis):
                letter = self.letters.setdefault(axis.name, Letter())
                letter.role = "whole" if axis.whole else letter.role
                letter.type = axis.type or letter.type
            for mark in axis.marks:
                for d in self.named(mark, self.width) if mark[0] in ("whole", "reduce") else ():
                    letter = self.letters[self.dots[d]]
                    letter.role = "whole" if mark[0] == "whole" else letter.role
                    letter.type = mark[3] or letter.type

    def letters_of(self, term, shape):
        if shape is None:
            return []
        if term.is_one:
            return [None] * len(shape)
        width, letters = self.spread(term, shape), []
        for axis in term.axes:
            if axis.kind == "ellipsis":
                dots = self.dots_of(term)
                if width > len(dots):
                    raise ValueError(f"{shape} has more dims than the inputs have in '...'")
                letters += dots[len(dots) - width :]
            elif self.has(axis):
                letters.append(axis.name if axis.kind == "name" else None)
        if len(letters) != len(shape):
            raise ValueError(f"{shape} has too many dims")
        if term.transpose and self.attrs[term.transpose] and all(self.has(a) for a in term.axes[-2:]):
            letters[-2:] = letters[:-3:-1]
        return letters

    def drop_ones(self, letters, shape):
        return [
            None if letter and size == 1 and self.letters[letter].size != 1 else letter
            for letter, size in zip(letters, shape or ())
        ]

    def sizes_agree(self):
        """Dims with one letter that may be sharded have one size."""
        for (_, shape), letters in zip(self.inputs + self.outputs, self.in_letters + self.out_letters):
            for size, letter in zip(shape or (), letters):
                if letter and self.letters[letter].role != "whole" and size != self.letters[letter].size:
                    return False
        return True
