"""Messages of the library name what Python has, not what C++ has."""

import re

import pytest

import shard
from op_list import REPOSITORY
from shard import _core

LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Names that mean nothing to users of Python.
CPP_NAMES = re.compile(
    r"\b(World|Tensor|DistSpec|ProcessMesh|Rank|Program|[A-Z]\w*Policy)::|\bNoGrad\b|\bshard::|\bset_requires_grad\b|\bset_grad\b"
    r"|(?<![.\w])(full_tensor|local|reshard|distribute|assign)\([a-z, ]+\)"
)
# What only C++ programs can do, so that the message names the C++ function.
FOR_CPP = {"register_kernel"}


def texts():
    """The sentences of messages in the sources of the library. Adjacent literals are one text."""
    for path in sorted((REPOSITORY / "runtime" / "shard").rglob("*.cc")):
        if "/testing/" in str(path):
            continue
        source = re.sub(r'"\s*\n\s*"', "", path.read_text())
        for line in source.splitlines():
            if line.lstrip().startswith(("#include", "//")):
                continue
            for text in LITERAL.findall(line):
                if " " in text and not FOR_CPP & set(re.findall(r"\w+", text)):
                    yield path.name, text


def test_there_are_texts():
    assert sum(1 for _ in texts()) > 500


@pytest.mark.parametrize("place, text", [each for each in texts() if CPP_NAMES.search(each[1])])
def test_texts_of_the_library_have_names_of_python(place, text):
    translated = _core._in_python(text)
    assert not CPP_NAMES.search(translated), (place, translated)


def test_names_are_replaced_as_whole_words():
    assert _core._in_python("allow it with CommPolicy::allow") == "allow it with policies(comm='allow')"
    assert _core._in_python("MyNoGrad NoGrads, NoGrad") == "MyNoGrad NoGrads, shard.no_grad()"
    assert _core._in_python("") == "" and _core._in_python("größer") == "größer"


def test_errors_name_python():
    x = shard.tensor([1.0, 2.0])
    with pytest.raises(shard.AutogradError, match=r"requires_grad_\(\)"):
        x.sum().backward()
    leaf = shard.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(shard.AutogradError) as info:
        leaf.add_(leaf)
    assert "NoGrad" not in str(info.value) and "shard.no_grad()" in str(info.value)
    with pytest.raises(shard.LayoutError, match="shard.run"):
        shard.get_policies()

    def reshards():
        mesh = shard.ProcessMesh([2])
        a = shard.shard_tensor(shard.ones([4]), mesh, [shard.Shard(0)])
        with shard.policies(comm="forbid"):
            return shard.flip(a, [0])

    with pytest.raises(shard.PolicyError, match=r"policies\(comm='allow'\)"):
        shard.run(reshards, nranks=2)
