"""Captured programs as values: their ops, scopes and files, drawings."""

import json
import os
import pathlib
import re
import shutil
import sys

import pytest
import shard

from grad_helpers import numbers, vector


def names(program):
    return [op.name for op in program]


# Programs


@pytest.fixture
def program():
    w = vector([1, 2], requires_grad=True)

    def function(x):
        y = x * w
        with shard.no_grad():
            shard.add_(w, x)
        return shard.sum(y), w

    return shard.capture(function, scope={"w": w}).trace(vector([3, 4]))


def test_a_program_has_text_and_parts(program):
    text = str(program)
    assert text.startswith("program(\n    input input_0 %1: f64[2]") and "parameter w %" in text and "return output_1" in text
    assert re.fullmatch(r"<shard.Program with 2 inputs, 1 parameters, \d+ ops, \d+ outputs>", repr(program))
    assert len(program) == len(program.ops) == len(list(program))
    assert names(program)[0] == "multiply" and "add_" in names(program)
    multiply = program.ops[0]
    assert multiply.kind == "call" and not multiply.inplace and multiply.index == 0 and multiply.cause == "" and not multiply.joins
    assert [each.number for each in multiply.inputs] == [program.inputs[0].number, program.parameters[0].number]
    assert [str(op) in text for op in program] == [True] * len(program)
    assert str(multiply) == "%3: f64[2] = multiply(x: %1, y: %2)" and "multiply" in repr(multiply)
    result = multiply.outputs[0]
    assert result.shape == (2,) and result.dtype == shard.float64 and str(result.device) == "cpu" and result.type == "f64[2]"
    assert result.op.index == 0 and result.source is None and result.root == result and result.name is None and result.tensor is None
    write = next(op for op in program if op.name == "add_")
    assert write.inplace and write.writes == [True] and os.path.samefile(write.file, __file__) and write.line > 0
    assert write.outputs[0].source == program.parameters[0] and write.outputs[0] != program.parameters[0]
    total = next(op for op in program if op.name == "sum")
    assert total.attributes == {"axis": [], "keepdim": False}


def test_ops_have_their_lines():
    def function(x):
        parts = shard.split(x, [1, 1], 0)
        for _ in range(1000):
            x = x * 2.0
        return x, parts

    program = shard.capture(function).trace(vector([1, 2]))
    lines = str(program).splitlines()
    assert [str(op) for op in program] == [line.strip() for line in lines[2:2 + len(program)]] and len(program) > 1000
    empty = shard.capture(lambda: 3).trace()
    assert len(empty) == 0 and str(empty) == "program()\n" and empty.inputs == empty.outputs == []


def test_inputs_parameters_and_outputs_have_names(program):
    assert [each.name for each in program.inputs] == ["input_0", "grad_output_0"]
    assert [each.name for each in program.parameters] == ["w"]
    assert [each.name for each in program.outputs if each][:2] == ["output_0", "output_1"]
    assert numbers(program.parameters[0].tensor) == [1, 2] and repr(program.parameters[0]) == "w %2: f64[2]"
    assert program.inputs[0].tensor is None and program.inputs[0].op is None
    assert len({program.inputs[0], program.inputs[0], program.inputs[1]}) == 2


def test_alias_trees_say_which_values_share_buffers(program):
    tree = next(each for each in program.alias_trees if each["root"] == program.parameters[0])
    assert len(tree["members"]) == 2 and [op.name for op in tree["writes"]] == ["add_"]


def test_a_gradient_makes_a_forward_and_a_backward_program(program):
    assert "sum" in names(program.forward) and len(program.backward) > 0
    assert program.forward != program and program == program
    plain = shard.capture(lambda x: x * 2.0).trace(vector([1]))
    assert plain.backward is None and plain.forward == plain and plain.forward.diff(plain) == ""


def test_passes_make_another_program():
    assert {"cse", "dce", "constant_folding", "fuse_loops"} <= set(shard.passes())
    program = shard.capture(lambda x: (shard.exp(x) + shard.exp(x)) * 1.0).trace(vector([1]))
    assert names(program).count("exp") == 2 and names(program.optimized()).count("exp") == 1
    assert names(program.optimized(skip=["cse"])).count("exp") + names(program.optimized(skip=["cse"])).count("exp_") == 2
    difference = program.diff(program.optimized())
    assert difference.startswith("- ") or difference.startswith("+ ")
    with pytest.raises(shard.ArgumentError, match="no_such_pass"):
        program.optimized(skip=["no_such_pass"])


def test_a_trace_changes_nothing():
    w = vector([1], requires_grad=True)

    def function(x):
        shard.sum(x * w).backward()
        with shard.no_grad():
            shard.add_(w, x)

    shard.capture(function).trace(vector([1]))
    assert w.grad is None and w.version == 0 and numbers(w) == [1]


# Scopes and files


def test_a_scope_names_tensors():
    x, y = vector([1]), vector([2])
    scope = shard.Scope({"x": x})
    scope["y"] = y
    assert "x" in scope and "z" not in scope and 3 not in scope and len(scope) == 2
    assert list(scope) == scope.keys() == ["x", "y"] and numbers(scope["y"]) == [2]
    assert scope.name_of(x) == "x" and scope.name_of(vector([1])) is None and repr(scope) == "Scope(x, y)"
    scope.update({"x": y})
    assert scope["x"].shares_buffer_with(y)
    with pytest.raises(KeyError, match="z"):
        scope["z"]
    with pytest.raises(shard.ArgumentError, match="needs a name"):
        scope[""] = x
    with pytest.raises(TypeError, match=re.escape("[Scope] argument 'tensors' must be dict[str, Tensor], not int")):
        shard.Scope(3)
    with pytest.raises(TypeError, match=re.escape("[Scope] argument 'tensors' must be dict[str, Tensor], but it has str: int")):
        shard.Scope({"a": 3})


def test_programs_are_saved_and_loaded(tmp_path):
    w = vector([1, 2], requires_grad=True)
    scope = shard.Scope({"weight": w})
    function = shard.capture(lambda x, pair: (shard.sum(x * w * pair[0]), pair[1]), scope=scope)
    x = vector([3, 4])
    program = function.trace(x, (x, vector([5, 6])))
    path = tmp_path / "step.json"
    program.save(path)
    assert path.read_text() == program.to_json() and json.loads(path.read_text())["format"] == "shard.program"
    other = vector([10, 20], requires_grad=True)
    for given in (path, str(path)):
        loaded = shard.load_program(given, {"weight": other})
        assert loaded.program == program and "LoadedProgram" in repr(loaded)
    shared = vector([3, 4])
    loss, same = loaded(shared, (shared, vector([5, 6])))
    assert loss.item() == 90 + 320
    assert numbers(same) == [5, 6]
    loss.backward()
    assert numbers(other.grad) == [9, 16]
    assert loaded.stats()["misses"] == 1 and loaded.memory(shared, shared, vector([5, 6]))["outputs"] >= 8
    single = shard.parse_program(shard.capture(lambda x: x * 2.0).trace(x).to_json())
    assert numbers(single(x)) == [6, 8]


def test_files_are_checked(tmp_path):
    w = vector([1, 2])
    program = shard.capture(lambda x: x * w, scope={"w": w}).trace(vector([3, 4]))
    path = str(tmp_path / "p.json")
    program.save(path)
    with pytest.raises(shard.ArgumentError, match="p.json.*w"):
        shard.load_program(path)
    with pytest.raises(shard.ArgumentError, match=re.escape("'w' of the scope is f64[1], but expected is f64[2]")):
        shard.load_program(path, {"w": vector([1])})
    with pytest.raises(TypeError, match=re.escape("[load_program] argument 'parameters' must be Scope | dict[str, Tensor] | None, not list")):
        shard.load_program(path, [w])
    with pytest.raises(shard.ArgumentError, match="missing.json"):
        shard.load_program(tmp_path / "missing.json")
    with pytest.raises(shard.ArgumentError, match="no_folder"):
        program.save(tmp_path / "no_folder" / "p.json")
    with pytest.raises(shard.ArgumentError, match="byte"):
        shard.parse_program("{")
    with pytest.raises(TypeError, match=re.escape("[parse_program] argument 'text' must be str, not int")):
        shard.parse_program(3)
    with pytest.raises(shard.ArgumentError, match=re.escape("[save] only the program that trace() or load_program returns")):
        program.optimized().save(path)
    loaded = shard.load_program(path, {"w": w})
    with pytest.raises(shard.ArgumentError):
        loaded(vector([1]))
    with pytest.raises(TypeError, match=re.escape("must be Tensor | None, not float")):
        loaded(1.0)


# Drawings


def test_a_program_is_a_graph_in_dot(program):
    assert program.to_dot().startswith("digraph") and "multiply" in program.to_dot()


def test_drawing_needs_graphviz(program, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(shard.ArgumentError, match="programs are drawn by Graphviz, whose program 'dot' is not in PATH; install it"):
        program.to_svg()
    assert program._repr_svg_() is None
    shown = program._repr_html_()
    assert shown.startswith("<pre>program(") and "install Graphviz" in shown


def test_notebooks_draw_programs(program, monkeypatch, tmp_path):
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\nread first\necho '<svg>'\"$first\"'</svg>'\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert program._repr_svg_().startswith("<svg>digraph") and program._repr_html_() is None
    monkeypatch.setattr(sys.modules["shard.programs"], "_MOST_OPS_DRAWN", 1)
    assert program._repr_svg_() is None and "to_svg() draws them" in program._repr_html_()


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_programs(program):
    assert "<svg" in program.to_svg()


def test_the_package_has_no_frames_in_programs(program):
    assert not any(op.file and pathlib.Path(op.file).parent.name == "shard" for op in program)
