"""inspect.signature of what nanobind binds (test_ops_arguments.py has that of ops)."""

import ast
import inspect
import pathlib

import pytest

import shard

STUB = ast.parse((pathlib.Path(shard.__file__).parent / "__init__.pyi").read_text())


def functions_of(body):
    """The names and whether a stub has overloads, which one signature at run time cannot say."""
    nodes = [node for node in body if isinstance(node, ast.FunctionDef)]
    names = [node.name for node in nodes]
    return {node.name: node for node in nodes if names.count(node.name) == 1 and not is_property(node)}


def is_property(node):
    return any(not isinstance(each, ast.Name) or each.id in ("property", "staticmethod", "classmethod") for each in node.decorator_list)


def parameters_of(node):
    arguments = node.args
    names = [each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    values = arguments.defaults + [each for each in arguments.kw_defaults if each is not None]
    return names, [None if isinstance(each, ast.Constant) and each.value is ... else ast.unparse(each) for each in values]


def check(bound, node):
    signature = inspect.signature(bound)
    parameters = list(signature.parameters.values())
    names, values = parameters_of(node)
    assert [p.name for p in parameters] == names
    defaults = [repr(p.default) for p in parameters if p.default is not p.empty]
    assert len(defaults) == len(values) and all(v is None or v == d for v, d in zip(values, defaults)), (defaults, values)
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == [each.arg for each in node.args.kwonlyargs]


FUNCTIONS = {name: node for name, node in functions_of(STUB.body).items() if type(getattr(shard, name)).__name__ == "nb_func"}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef) and type(getattr(shard, node.name, None)).__name__ == "nb_type"}
METHODS = {  # but Tensor.to, which reads *args itself
    (owner, name): node for owner in CLASSES for name, node in functions_of(CLASSES[owner].body).items()
    if not name.startswith("__") and name != "to" and type(getattr(getattr(shard, owner), name)).__name__ == "nb_method"
}


def test_there_are_functions_and_methods():
    assert len(FUNCTIONS) > 10 and len(METHODS) > 25


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_signatures_of_functions_are_those_of_the_stub(name):
    check(getattr(shard, name), FUNCTIONS[name])


@pytest.mark.parametrize("owner, name", sorted(METHODS))
def test_signatures_of_methods_are_those_of_the_stub(owner, name):
    check(getattr(getattr(shard, owner), name), METHODS[owner, name])


@pytest.mark.parametrize("owner", [name for name in sorted(CLASSES) if "__init__" in functions_of(CLASSES[name].body)])
def test_signatures_of_classes_are_those_of_their_constructors(owner):
    node = functions_of(CLASSES[owner].body)["__init__"]
    node.args.args.pop(0)
    check(getattr(shard, owner), node)


def test_signatures_of_bound_methods_have_no_self():
    assert str(inspect.signature(shard.ones([2]).requires_grad_)) == str(inspect.signature(shard.Tensor.requires_grad_)).replace("self, ", "")


def test_every_function_and_method_of_the_package_has_a_signature():
    for owner in (shard, shard.Tensor):
        for name in dir(owner):
            function = getattr(owner, name)
            if name not in ("__class__", "__subclasshook__") and callable(function) and not isinstance(function, type):
                inspect.signature(function)
    assert "reshard(x, mesh, placements=None, *, memory_cap=0)" in inspect.getdoc(shard.reshard)
