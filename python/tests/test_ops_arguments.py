"""How ops take arguments: by position, by name, by default and as methods, and what they say of wrong ones.

All tests are made from the stubs of the ops.
"""

import ast
import inspect
import re
import sys

import numpy as np
import pytest

import shard
from op_calls import cases, flat
from op_list import FUNCTIONS, METHODS, REPOSITORY, WITHOUT_VALUES

OPS = sorted(FUNCTIONS)
WITH_DEFAULTS = sorted(name for name in OPS if any(p.default for p in FUNCTIONS[name].parameters))


def same(a, b):
    """Whether two results are equal bit for bit."""
    a, b = flat(a), flat(b)
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if x is None or y is None:
            if x is not y:
                return False
        elif x.dtype != y.dtype or x.shape != y.shape or x.numpy().tobytes() != y.numpy().tobytes():
            return False
    return True


def outcome(call):
    """The result of a call, or its error as text."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def agree(call, other):
    a, b = outcome(call), outcome(other)
    return a == b if isinstance(a, str) or isinstance(b, str) else same(a, b)


def written_copies(arguments):
    """Arguments for another call: ops may write theirs in place."""
    copy = {}
    for name, value in arguments.items():
        if isinstance(value, shard.Tensor):
            value = value.clone()
        elif isinstance(value, list):
            value = [v.clone() if isinstance(v, shard.Tensor) else v for v in value]
        copy[name] = value
    return copy


def defaults_of(signature):
    return {p.name: ast.literal_eval(p.default) for p in signature.parameters if p.default}


class Recorder:
    """The package, which keeps the arguments of calls of one function."""

    def __init__(self, function):
        self.function, self.calls = function, []

    def __getattr__(self, name):
        f = getattr(shard, name)
        if name != self.function:
            return f
        names = [p.name for p in FUNCTIONS[name].parameters]
        defaults = defaults_of(FUNCTIONS[name])

        def call(*positional, **by_name):
            given = {**defaults, **dict(zip(names, positional)), **by_name}
            self.calls.append(written_copies({n: given[n] for n in names}))
            return f(*positional, **by_name)

        return call


# Calls of the functions that take no tensors.
CREATING = {
    "full": {"shape": [2, 3], "value": 2.5, "dtype": "float64"},
    "zeros": {"shape": 3, "dtype": "int32", "place": "cpu"},
    "ones": {"shape": (2, 1), "dtype": "bool"},
    "arange": {"start": 1, "end": 6, "step": 2, "dtype": "int32"},
    "linspace": {"start": 0, "stop": 1, "number": 5, "dtype": "float64"},
    "logspace": {"start": 0, "stop": 2, "num": 3, "base": 3, "dtype": "float64"},
    "eye": {"num_rows": 2, "num_columns": 3, "dtype": "int64"},
    "tril_indices": {"rows": 3, "cols": 2, "offset": 1, "dtype": "int64"},
    "triu_indices": {"row": 3, "col": 2, "offset": 1, "dtype": "int64"},
    "uniform": {"shape": [4], "dtype": "float64", "min": 0.0, "max": 2.0, "seed": 3},
    "gaussian": {"shape": [4], "mean": 1.0, "std": 2.0, "seed": 3, "dtype": "float64"},
    "truncated_gaussian_random": {"shape": [4], "mean": 1.0, "std": 2.0, "seed": 3, "dtype": "float64"},
    "randint": {"low": 1, "high": 9, "shape": [4], "dtype": "int32", "seed": 3},
    "randperm": {"n": 5, "dtype": "int32"},
}


def calls_of(function):
    """Arguments of calls of a function, by name, in the order of its parameters."""
    if function in CREATING:
        yield CREATING[function]
    for case in cases().get(function, []):
        dtype = case.named[0] if case.kind == "float" else case.kind
        recorder = Recorder(function)
        case.run("A", dtype, [shard.tensor(array) for array in case.tensors("A", dtype)], recorder)
        yield recorder.calls[-1]


CALLED = sorted(f for f in FUNCTIONS if f in CREATING or f in cases())
# In-place forms that give the same bytes another shape or dtype.
# sync_batch_norm_ is no in-place form: it returns views of the statistics that it writes.
IN_PLACE = [f for f in CALLED if f.endswith("_") and f != "sync_batch_norm_"]
ONLY_VIEWS = {"flatten_", "reshape_", "squeeze_", "unsqueeze_", "view_dtype_"}


def seeded(call):
    """Random ops draw the same numbers in each call."""
    shard.manual_seed(7)
    return call()


def test_all_functions_are_called():
    assert set(CALLED) == set(FUNCTIONS) - WITHOUT_VALUES


@pytest.mark.parametrize("function", CALLED)
def test_positions_names_and_methods_agree(function):
    f = getattr(shard, function)
    for arguments in calls_of(function):

        def by_name():
            return seeded(lambda: f(**written_copies(arguments)))

        assert not isinstance(outcome(by_name), str), outcome(by_name)
        assert agree(by_name, lambda: seeded(lambda: f(*written_copies(arguments).values())))
        backwards = dict(reversed(written_copies(arguments).items()))
        assert agree(by_name, lambda: seeded(lambda: f(**backwards)))
        if function in METHODS and callable(getattr(shard.Tensor, function)):  # `shape` is a property
            x, *rest = written_copies(arguments).values()
            assert agree(by_name, lambda: seeded(lambda: getattr(x, function)(*rest)))


@pytest.mark.parametrize("function", IN_PLACE)
def test_forms_in_place_return_the_arguments_that_they_wrote(function):
    """The same Python objects, lists included, which have another version then."""
    for arguments in calls_of(function):
        tensors = flat(list(arguments.values()))
        versions = [t.version if isinstance(t, shard.Tensor) else None for t in tensors]
        result = getattr(shard, function)(**arguments)
        outer = result if isinstance(result, tuple) else (result,)
        returned = [r for r in outer if any(r is a for a in arguments.values())]
        assert returned
        # Every tensor that was written is one that was returned.
        written = [t for t, version in zip(tensors, versions) if version is not None and t.version != version]
        assert all(any(t is r for r in flat(result)) for t in written)
        assert written or all(t.size == 0 for t in flat(returned)) or function in ONLY_VIEWS


@pytest.mark.parametrize("function", [f for f in CALLED if f in WITH_DEFAULTS])
def test_left_out_arguments_have_their_defaults(function):
    f = getattr(shard, function)
    for arguments in calls_of(function):
        optional = [p for p in FUNCTIONS[function].parameters if p.default]
        needed = {name: value for name, value in arguments.items() if name not in {p.name for p in optional}}
        defaults = defaults_of(FUNCTIONS[function])

        def without():
            return seeded(lambda: f(**written_copies(needed)))

        assert agree(without, lambda: seeded(lambda: f(**written_copies(needed), **defaults)))
        assert agree(without, lambda: seeded(lambda: f(**written_copies(needed), **dict.fromkeys(defaults))))
        for p in optional:  # each one alone beside the others of the case
            others = {name: value for name, value in arguments.items() if name != p.name}
            one = {p.name: defaults[p.name]}
            assert agree(
                lambda: seeded(lambda: f(**written_copies(others))),
                lambda: seeded(lambda: f(**written_copies(others), **one)),
            )


@pytest.mark.parametrize("function", OPS)
def test_methods_are_those_of_functions_whose_first_argument_is_a_tensor(function):
    signature = FUNCTIONS[function]
    if not signature.is_method:
        assert function not in METHODS
    else:
        assert METHODS[function].parameters[1:] == signature.parameters[1:]
        assert callable(getattr(shard.Tensor, function)) or function == "shape"  # which is a property


@pytest.mark.parametrize("function", OPS)
def test_the_signature_at_run_time_is_that_of_the_stub(function):
    signature = inspect.signature(getattr(shard, function))
    parameters = FUNCTIONS[function].parameters
    assert list(signature.parameters) == [p.name for p in parameters]
    for p in parameters:
        default = signature.parameters[p.name].default
        if not p.default:
            assert default is inspect.Parameter.empty
            continue
        expected = ast.literal_eval(p.default)
        # inspect drops the comma of (0,); both mean the same to the op.
        assert default == expected or (isinstance(expected, tuple) and expected == (default,))
    assert getattr(shard, function).__doc__


def yaml_defaults():
    """The defaults in the YAML: for each op its arguments and their texts."""
    found = {}
    for path in sorted((REPOSITORY / "ops_yaml").glob("*.yaml")):
        for op, args in re.findall(r"^- (?:op|backward_op) ?: ?(\w+)\n  args ?: ?\((.*)\)$", path.read_text(), re.M):
            one = {}
            for each in re.split(r",\s*(?![^{]*\})(?![^(]*\))", args):
                name, equals, text = each.partition("=")
                if equals:
                    one[name.split()[-1]] = text.strip()
            found[op] = one
    return found


def value_of(text):
    """A default of the YAML as Python has it."""
    if text.startswith("{"):
        return () if text == "{}" else ast.literal_eval("(" + text.strip("{}") + ",)")
    if text.startswith("DataType::"):
        name = text.split("::")[1].lower()
        return None if name == "undefined" else name
    if text in ("true", "false"):
        return text == "true"
    if text == "INT64_MAX":
        return 2**63 - 1
    return ast.literal_eval(re.sub(r"(?<=[0-9.])[fFL]$", "", text))


def test_defaults_are_those_of_the_yaml():
    compared, wrong = 0, []
    for op, defaults in yaml_defaults().items():
        if op not in FUNCTIONS:
            continue
        for p in FUNCTIONS[op].parameters:
            text = defaults.get(p.name.rstrip("_"))
            if text is None:
                if p.default and not p.is_tensor and not p.is_list_of_tensors and p.name != "layout":
                    wrong.append(f"{op}: {p.name} has the default {p.default}, the YAML has none")
                continue
            if p.name == "place":
                assert p.default == ("'cpu'" if text == "CPUPlace()" else "None"), op
                continue
            compared += 1
            actual, expected = ast.literal_eval(p.default) if p.default else "missing", value_of(text)
            if actual != expected or isinstance(actual, bool) != isinstance(expected, bool):
                wrong.append(f"{op}: {p.name} has the default {actual!r}, the YAML has {text}")
    assert not wrong, "\n".join(wrong)
    assert compared > 400


TENSOR = shard.zeros([1])
VALID = {"int": 1, "float": 1.0, "bool": True, "str": "x", "dtype": "float32", "Device": "cpu", "Layout": None}


def valid(p):
    """An argument of a right type."""
    if p.is_tensor:
        return TENSOR
    if p.is_list_of_tensors:
        return [TENSOR]
    first = p.annotation.split(" | ")[0]
    item = re.fullmatch(r"Sequence\[(\w+)\]", first)
    return [VALID[item.group(1)]] if item else VALID[first]


def wrong(p):
    """An argument of a wrong type: a str unless those are accepted."""
    return object() if "str" in re.split(r"\W+", p.annotation) else "wrong"


def type_error(function, arguments):
    with pytest.raises(TypeError) as info:
        getattr(shard, function)(**arguments)
    assert info.type is TypeError, info.type
    return str(info.value)


@pytest.mark.parametrize("function", OPS)
def test_arguments_of_wrong_types_are_named(function):
    parameters = FUNCTIONS[function].parameters
    right = {p.name: valid(p) for p in parameters}
    for p in parameters:
        text = type_error(function, {**right, p.name: wrong(p)})
        assert text.startswith(f"[{function}] argument '{p.name}' must be "), text
        assert text.split(" must be ")[1].startswith(p.annotation.removesuffix(" | None")), text
        assert "not " + ("object" if not isinstance(wrong(p), str) else "str") in text, text
        if "Sequence[" in p.annotation:
            text = type_error(function, {**right, p.name: [wrong(p)]})
            assert text.startswith(f"[{function}] argument '{p.name}' must be ") and "but its item 0 is " in text, text
        if not p.default:
            text = type_error(function, {name: value for name, value in right.items() if name != p.name})
            assert text.startswith(f"[{function}] needs the argument '{p.name}'"), text
            if "None" not in p.annotation:
                text = type_error(function, {**right, p.name: None})
                assert text.startswith(f"[{function}] argument '{p.name}' must be "), text


@pytest.mark.parametrize("function", OPS)
def test_unknown_repeated_and_superfluous_arguments_are_named(function):
    right = [valid(p) for p in FUNCTIONS[function].parameters]
    f, first = getattr(shard, function), FUNCTIONS[function].parameters[0].name
    with pytest.raises(TypeError, match=rf"^\[{function}\] has no argument 'unknown': {function}\("):
        f(*right, unknown=1)
    with pytest.raises(TypeError, match=rf"^\[{function}\] argument '{first}' was passed twice"):
        f(*right, **{first: right[0]})
    with pytest.raises(
        TypeError, match=rf"^\[{function}\] takes {len(right)} arguments, but {len(right) + 1} were passed"
    ):
        f(*right, "more")


@pytest.mark.parametrize("function", sorted(f for f in METHODS if f in FUNCTIONS and f != "shape"))
def test_methods_name_wrong_arguments(function):
    parameters = FUNCTIONS[function].parameters
    for p in parameters[1:]:
        arguments = {**{q.name: valid(q) for q in parameters[1:]}, p.name: wrong(p)}
        with pytest.raises(TypeError, match=rf"^\[{function}\] argument '{p.name}' must be "):
            getattr(TENSOR, function)(**arguments)


def test_ints_may_be_passed_one_by_one():
    x = shard.arange(6)
    assert x.reshape(3, 2).shape == x.reshape([3, 2]).shape == shard.reshape(x, 3, 2).shape == (3, 2)
    assert x.reshape(2, 3).transpose(1, 0).shape == (3, 2) and x.reshape(np.int64(2), -1).shape == (2, 3)
    assert x.reshape(6).shape == (6,) and x.unsqueeze(0, 2).shape == (1, 6, 1)
    assert shard.zeros(2, 3).shape == (2, 3) and shard.zeros(2, 3, dtype="int64").dtype == shard.int64
    assert shard.zeros(2, "int64").shape == (2,) and shard.full(2, 3).tolist() == [3, 3]
    with pytest.raises(TypeError, match=r"^\[reshape\] takes 1 arguments, but 2 were passed"):
        x.reshape(3, 2.0)
    with pytest.raises(TypeError, match=r"^\[reshape\] argument 'shape' was passed twice"):
        x.reshape(3, 2, shape=[3, 2])
    before = sys.getrefcount(12345)
    for _ in range(100):
        with pytest.raises(TypeError):
            x.reshape(12345, 2, unknown=1)
    assert sys.getrefcount(12345) < before + 50


def test_overloads_take_calls_that_lack_arguments():
    assert shard.arange(3).tolist() == shard.arange(end=3).tolist() == [0, 1, 2]
    assert shard.arange(2, dtype="float32").dtype == shard.float32
    assert shard.arange(1, 3).tolist() == shard.arange(start=1, end=3).tolist() == [1, 2]
    mesh = shard.run(lambda: shard.arange(4, layout=shard.Layout(shard.ProcessMesh([2]), [shard.Shard(0)])).local().tolist(), nranks=2)
    assert mesh == [[0, 1], [2, 3]]
    x = shard.tensor([[1.0, 9.0], [0.0, 3.0]])
    assert shard.argmax(x).tolist() == x.argmax().tolist() == 1 and x.argmin().tolist() == 2
    assert x.argmax(dtype=shard.int32).dtype == shard.int32
    assert x.argmax(1).tolist() == x.argmax(axis=1).tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"^\[argmax\] needs the argument 'axis'"):  # the arguments are those of the whole function
        x.argmax(keepdims=True)
    with pytest.raises(TypeError, match=r"^\[arange\] needs the argument 'start'"):
        shard.arange()
    with pytest.raises(TypeError, match=r"^\[arange\] has no argument 'stop'"):
        shard.arange(stop=3)


@pytest.mark.parametrize("number", [np.int64(1), np.int32(1), np.uint8(1), np.array(1)])
def test_integers_of_numpy_are_integers(number):
    assert shard.flip(shard.tensor([[1, 2]]), number).tolist() == [[2, 1]]
    assert shard.flip(shard.tensor([[1, 2]]), [number]).tolist() == [[2, 1]]
    assert shard.sum(shard.tensor([[1, 2]]), number).tolist() == [3]


def test_numbers_that_are_no_integers_are_refused():
    x = shard.tensor([[1, 2]])
    for axis in (1.0, True, np.float32(1), None, [1.5], [None], 2**70):
        if axis is None:
            assert shard.sum(x, axis).tolist() == 3
            continue
        with pytest.raises(TypeError, match=r"\[sum\] argument 'axis' must be int \| Sequence\[int\]"):
            shard.sum(x, axis)


@pytest.mark.parametrize("function", [f for f in CALLED if any(p.is_list_of_tensors for p in FUNCTIONS[f].parameters)])
def test_an_empty_list_of_tensors_is_taken_or_refused_by_name(function):
    arguments = written_copies(next(calls_of(function)))
    for parameter in FUNCTIONS[function].parameters:
        if not parameter.is_list_of_tensors or arguments[parameter.name] is None:
            continue
        result = outcome(lambda: getattr(shard, function)(**{**arguments, parameter.name: []}))
        if isinstance(result, str):
            assert f"[{function.rstrip('_')}" in result and "Error" in result, result
