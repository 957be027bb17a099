"""Captured functions, their programs and gradients, scopes, files and drawings."""

import collections
import copy
import gc
import re
import sys
import threading
import traceback
import weakref

import pytest
import shard

from grad_helpers import blocks_after, numbers, numeric_gradient, vector


def names(program):
    return [op.name for op in program]


# Calls


def test_a_captured_function_runs_once_and_then_its_program():
    calls = []

    @shard.capture
    def double(x):
        """Doc."""
        calls.append(x)
        return x * 2.0

    assert double.__name__ == "double" and double.__doc__ == "Doc." and "double" in repr(double)
    assert numbers(double(vector([1, 2]))) == [2, 4]
    assert numbers(double(vector([3, 4]))) == [6, 8]
    assert len(calls) == 1
    assert double.stats() == {"hits": 1, "misses": 1, "evictions": 0, "entries": 1}
    assert numbers(double(vector([5]))) == [10]
    assert len(calls) == 2, "another shape is another program"
    double.clear()
    assert double.stats()["entries"] == 0
    double(vector([5]))
    assert len(calls) == 3


def test_arguments_and_results_may_be_nested():
    Pair = collections.namedtuple("Pair", "first second")

    @shard.capture
    def function(pair, *rest, options, name="n"):
        x, (y, z) = pair
        return {"sum": x + y, "list": [z, 3, None, "text", 2.5], "pair": Pair(rest[0], (options["w"], name))}

    a, b, c, d, e = (vector([i]) for i in range(5))
    result = function((a, [b, c]), d, options={"w": e, "flag": True})
    assert list(result) == ["sum", "list", "pair"] and numbers(result["sum"]) == [1]
    assert numbers(result["list"][0]) == [2] and result["list"][1:] == [3, None, "text", 2.5]
    assert type(result["pair"]) is Pair and numbers(result["pair"].first) == [3]
    assert numbers(result["pair"].second[0]) == [4] and result["pair"].second[1] == "n"
    function((a, [b, c]), d, options={"w": e, "flag": True})
    assert function.stats()["misses"] == 1


def test_other_python_values_are_other_programs():
    @shard.capture
    def power(x, exponent):
        return x**exponent, exponent

    x = vector([2])
    for exponent in (1, 1.0, True, 0.0, -0.0, 2.0):
        result, same = power(x, exponent)
        assert type(same) is type(exponent) and repr(same) == repr(exponent)
        assert numbers(result) == [2.0**exponent]
    assert power.stats()["misses"] == 6
    power(x, 2.0)
    power(x, exponent=2.0)
    assert power.stats()["hits"] == 1 and power.stats()["misses"] == 7


def test_structures_are_bounded():
    @shard.capture(structures=2)
    def scaled(x, k):
        return x * k

    x = vector([1])
    for k in (1.0, 2.0, 3.0, 1.0):
        assert numbers(scaled(x, k)) == [k]
    assert scaled.stats() == {"hits": 0, "misses": 4, "evictions": 2, "entries": 2}
    scaled(x, 3.0), scaled(x, 5.0), scaled(x, 3.0)
    assert scaled.stats() == {"hits": 2, "misses": 5, "evictions": 3, "entries": 2}, "the one that was used last stays"


def test_capacity_is_that_of_programs():
    @shard.capture(capacity=1)
    def double(x):
        return x * 2.0

    double(vector([1])), double(vector([1, 2])), double(vector([1]))
    assert double.stats() == {"hits": 0, "misses": 3, "evictions": 2, "entries": 1}


def test_arguments_that_cannot_be_constants_are_refused():
    @shard.capture
    def function(x, values, key=None):
        return x

    x = vector([1])
    with pytest.raises(TypeError, match=re.escape("[capture] argument 1 of 'function' must be a Tensor, or a hashable value that the "
                                                  "capture keeps as a constant, not set; shard.tensor makes")):
        function(x, {1})
    with pytest.raises(TypeError, match=re.escape("argument 1[0]['a'] of 'function'")):
        function(x, [{"a": bytearray()}])
    with pytest.raises(TypeError, match=re.escape("argument 'key' of 'function'")):
        function(x, 1, key={2})


def test_results_that_are_no_tensors_are_refused():
    with pytest.raises(TypeError, match=re.escape("[capture] '<lambda>' must return tensors, numbers, strings and None, in tuples, lists "
                                                  "and dicts, but its result[1] is object")):
        shard.capture(lambda x: (x, object()))(vector([1]))
    # a changed structure is found where the function is captured again
    function = shard.capture(lambda x: x if x.size > 1 else (x, x))
    function(vector([1, 2]))
    with pytest.raises(shard.CaptureError, match="'<lambda>' returns another structure") as caught:
        function(vector([1]))
    assert caught.value.code == "capture"


def test_options_are_checked():
    for options, message in [
        ({"capacity": "3"}, "[capture] argument 'capacity' must be int, not str"),
        ({"capacity": True}, "[capture] argument 'capacity' must be int, not bool"),
        ({"passes": 1}, "[capture] argument 'passes' must be bool, not int"),
        ({"skip": "cse"}, "[capture] argument 'skip' must be Sequence[str], not str"),
        ({"skip": [3]}, "[capture] argument 'skip' must be Sequence[str], not list"),
        ({"parallel_ns": None}, "[capture] argument 'parallel_ns' must be float, not NoneType"),
        ({"structures": 0}, "[capture] argument 'structures' must be a positive int, not 0"),
        ({"scope": 3}, "[capture] argument 'scope' must be Scope | dict[str, Tensor] | None, not int"),
        ({"scopes": 3}, "[capture] has no argument 'scopes'; it has scope, observer"),
    ]:
        with pytest.raises(TypeError, match=re.escape(message)):
            shard.capture(lambda x: x, **options)
    with pytest.raises(shard.ArgumentError, match="'memory_goal' must not be negative, but is -1"):
        shard.capture(memory_goal=-1)(lambda x: x)
    with pytest.raises(TypeError, match=re.escape("argument 'function' must be a callable, not int")):
        shard.capture(3)
    with pytest.raises(shard.ArgumentError, match="no_such_pass"):
        shard.capture(lambda x: x * 2.0, skip=["no_such_pass"])(vector([1]))


@pytest.mark.parametrize("options", [{"passes": False}, {"skip": shard.passes()}, {"fuse_block": 0}, {"parallel_ns": 0},
                                     {"keep_arguments": False}, {"device_graphs": False}, {"memory_goal": 1}, {"fuse_block": 2}])
def test_options_do_not_change_results(options):
    function = shard.capture(lambda x: shard.sum(shard.tanh(x * 2.0) + shard.exp(x) * x), **options)
    values = [0.5, -1.0, 2.0]
    x = vector(values, requires_grad=True)
    for _ in range(2):
        x.grad = None
        function(x).backward()
        assert numbers(x.grad) == pytest.approx(numeric_gradient(function, values), abs=1e-6)


def test_an_observer_sees_the_passes():
    seen = []
    function = shard.capture(lambda x: shard.exp(x) + shard.exp(x), observer=lambda name, before, after: seen.append((name, len(before), len(after))))
    function(vector([1]))
    assert [name for name, *_ in seen if name in ("cse", "constant_folding")] and set(each[0] for each in seen) <= set(shard.passes())
    assert seen[0][1] > seen[-1][2]


def test_methods_have_programs_of_their_own():
    class Model:
        def __init__(self, factor):
            self.factor = factor

        @shard.capture
        def call(self, x):
            return x * self.factor

    a, b = Model(2.0), Model(3.0)
    assert numbers(a.call(vector([1]))) == [2] and numbers(b.call(vector([1]))) == [3] and numbers(a.call(vector([2]))) == [4]
    assert a.call.stats()["hits"] == 1 and isinstance(Model.call, shard.CapturedFunction)

    class Slots:
        __slots__ = ()
        call = shard.capture(lambda self, x: x)

    with pytest.raises(TypeError, match="no __dict__"):
        Slots().call(vector([1]))


def test_the_memory_report_has_bytes():
    function = shard.capture(lambda x: shard.exp(x) + 1.0)
    x = vector([1, 2, 3, 4])
    function(x)
    report = function.memory(x)
    assert set(report) == {"block", "live", "outputs", "reshard_peak"} and report["outputs"] == 32


# Effects and gradients


def test_parameters_are_read_anew_and_written_in_place():
    w = vector([1.0, -2.0], requires_grad=True)
    before = w

    @shard.capture
    def step(x, y):
        loss = shard.sum(shard.square(x * w - y))
        gradient = shard.grad(loss, w)
        with shard.no_grad():
            shard.subtract_(w, gradient * 0.1)
        return loss

    x, y = vector([1, 2]), vector([3, 4])
    losses = [step(x, y).item() for _ in range(3)]
    assert losses[0] == pytest.approx(4 + 64) and losses[2] < losses[1] < losses[0]
    assert w is before and w.requires_grad and w.is_leaf
    with shard.no_grad():
        shard.subtract_(w, w)
    assert step(x, y).item() == pytest.approx(9 + 16), "writes from outside are seen"
    assert step.stats()["misses"] == 1


def test_a_step_that_calls_backward_sets_gradients():
    w = vector([1, 2], requires_grad=True)

    @shard.capture
    def step(x):
        shard.sum(x * w).backward()

    x = vector([3, 4])
    assert step(x) is None
    assert numbers(w.grad) == [3, 4]
    step(x)
    assert numbers(w.grad) == [6, 8] and step.stats()["misses"] == 2
    w.grad = None
    step(x)
    assert numbers(w.grad) == [3, 4]


def test_gradients_flow_through_captured_functions():
    w = vector([0.5, 1.5], requires_grad=True)
    function = shard.capture(lambda x, y: (shard.sin(x * w), shard.exp(y)))
    x, y = vector([1, 2], requires_grad=True), vector([0.1, 0.2], requires_grad=True)
    a, b = function(x, y)
    assert a.requires_grad
    shard.sum(a * b).backward()
    total = lambda x, y, w: shard.sum(shard.sin(x * w) * shard.exp(y))  # noqa: E731
    assert numbers(x.grad) == pytest.approx(numeric_gradient(lambda v: total(v, y, w), [1, 2]), abs=1e-6)
    assert numbers(y.grad) == pytest.approx(numeric_gradient(lambda v: total(x, v, w), [0.1, 0.2]), abs=1e-6)
    assert numbers(w.grad) == pytest.approx(numeric_gradient(lambda v: total(x, y, v), [0.5, 1.5]), abs=1e-6)
    with shard.no_grad():
        assert not function(x, y)[0].requires_grad


def test_create_graph_calls_the_function_again():
    calls = []

    @shard.capture
    def cube(x):
        calls.append(0)
        return x * x * x

    x = vector([2], requires_grad=True)
    first = shard.grad(cube(x), x, vector([1]), create_graph=True)
    assert numbers(first) == [12] and numbers(shard.grad(first, x, vector([1]))) == [12] and len(calls) == 2
    y = shard.capture(lambda x: x * x)(x)
    with pytest.raises(shard.AutogradError, match="create_graph calls the captured function again, but that was freed"):
        shard.grad(y, x, vector([1]), create_graph=True)
    y = shard.capture(lambda x: x * x)(x)
    assert numbers(shard.grad(y, x, vector([1]))) == [4], "its program lives as long as its results"


def test_captured_functions_may_call_each_other():
    inner = shard.capture(lambda x, k: {"r": x * k})
    outer = shard.capture(lambda x: inner(x, 2.0)["r"] + inner(x, k=3.0)["r"])
    assert numbers(outer(vector([1]))) == [5] and numbers(outer(vector([2]))) == [10]
    assert inner.stats()["misses"] == 0


def test_custom_functions_checkpoints_and_hooks_are_captured():
    class Twice(shard.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0] * 20.0  # not the gradient, to see it

    @shard.capture
    def function(x):
        y = Twice.apply(x)
        y.register_hook(lambda gradient: gradient * 2.0)
        return shard.sum(shard.checkpoint(lambda z: z * z, y))

    for _ in range(2):
        x = vector([3], requires_grad=True)
        function(x).backward()
        assert numbers(x.grad) == [2 * 9 * 2 * 3 * 20]
    assert function.stats()["misses"] == 1


def test_none_is_a_python_value():
    function = shard.capture(lambda x, y: x if y is None else x + y)
    assert numbers(function(vector([1]), None)) == [1] and numbers(function(vector([1]), vector([2]))) == [3]


# Errors


def test_what_depends_on_values_cannot_be_captured():
    with pytest.raises(shard.CaptureError) as caught:
        shard.capture(lambda x: x if shard.sum(x).item() > 0 else -x)(vector([1]))
    assert caught.value.code == "capture"
    with pytest.raises(shard.CaptureError):
        shard.capture(lambda x: x * 2.0 if x == x else x)(vector([1]))


def test_exceptions_of_the_function_arrive_with_their_traceback():
    def function_that_fails(x):
        raise LookupError("inside")

    function = shard.capture(function_that_fails)
    for call in (function, function.trace, function.memory):
        with pytest.raises(LookupError, match="inside") as caught:
            call(vector([1]))
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "function_that_fails"
    with pytest.raises(KeyboardInterrupt):
        shard.capture(lambda x: (_ for _ in ()).throw(KeyboardInterrupt))(vector([1]))
    # the thread captures nothing any more
    assert numbers(vector([1]) * 2.0) == [2]


def test_exceptions_of_hooks_and_custom_backwards_arrive_from_a_capture():
    class Fails(shard.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, gradient):
            raise OSError("in backward")

    with pytest.raises(OSError, match="in backward"):
        shard.capture(lambda x: shard.grad(shard.sum(Fails.apply(x)), x))(vector([1], requires_grad=True))
    with pytest.raises(OSError, match="in backward"):
        shard.sum(shard.capture(lambda x: Fails.apply(x))(vector([1], requires_grad=True))).backward()

    def observer(name, before, after):
        raise KeyError(name)

    with pytest.raises(KeyError):
        shard.capture(lambda x: x * 2.0, observer=observer)(vector([1]))


def test_errors_name_the_lines_of_captured_calls():
    import inspect

    w = vector([1, 2])
    x = vector([3, 4], requires_grad=True)
    y = shard.capture(lambda x: x * w)(x)
    shard.add_(w, w); written = inspect.currentframe().f_lineno
    with pytest.raises(shard.AutogradError) as caught:
        shard.sum(y).backward()
    assert f"written last by [add_] at {__file__}:{written}" in str(caught.value)


def test_each_thread_captures_for_itself():
    inside, done = threading.Event(), threading.Event()
    main = threading.current_thread()

    def slow(x):
        if threading.current_thread() is not main:
            inside.set()
            assert done.wait(10)
        return x * 2.0

    function = shard.capture(slow)
    results, variants = [], []

    def work():
        for _ in range(2):
            results.append(numbers(function(vector([1]))))
        results.append(function.stats()["hits"])
        variants.extend(weakref.ref(each) for each in function._kept.variants.values())

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    assert numbers(function(vector([1]))) == [2], "at the same time"
    done.set()
    thread.join()
    assert results == [[2], [2], 1] and function.stats() == {"hits": 0, "misses": 1, "evictions": 0, "entries": 1}
    del thread
    gc.collect()
    assert [each() for each in variants] == [None], "programs are freed with their thread"


def test_models_with_captured_methods_can_be_copied():
    class Model:
        def __init__(self):
            self.factor = 2.0
            self.step = shard.capture(self.call)

        def call(self, x):
            return x * self.factor

        @shard.capture
        def method(self, x):
            return x + self.factor

    model = Model()
    x = vector([1])
    model.step(x), model.method(x)
    other = copy.deepcopy(model)
    other.factor = 3.0
    assert numbers(other.step(x)) == [3] and numbers(other.method(x)) == [4] and numbers(model.step(x)) == [2] and numbers(model.method(x)) == [3]


def test_threads_may_capture_functions_of_their_own():
    errors = []

    def work(k):
        try:
            function = shard.capture(lambda x: shard.sum(x * x * float(k)))
            for i in range(20):
                x = vector([i, 1], requires_grad=True)
                function(x).backward()
                assert numbers(x.grad) == [2 * i * k, 2 * k]
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# Memory


def test_a_captured_function_is_freed_with_what_it_refers_to():
    class Model:
        def __init__(self):
            self.w = vector([1, 2], requires_grad=True)
            self.step = shard.capture(self.call, observer=lambda *_: self)

        def call(self, x):
            return shard.sum(x * self.w)

        @shard.capture
        def method(self, x):
            return x * self.w

    model = Model()
    model.step(vector([1, 2])).backward()
    model.method(vector([1, 2]))
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_calls_leak_nothing():
    w = vector([1, 2], requires_grad=True)
    x = vector([3, 4])
    function = shard.capture(lambda x, k: {"loss": shard.sum(x * w * k)})

    def call():
        w.grad = None
        function(x, 2.0)["loss"].backward()

    assert blocks_after(call) < 100
    before = sys.getrefcount(w)
    for _ in range(100):
        function(x, 2.0)
    assert sys.getrefcount(w) == before


def test_captures_leak_nothing():
    x = vector([3, 4], requires_grad=True)

    def call():
        shard.sum(shard.capture(lambda x: x * x)(x)).backward()

    assert blocks_after(call, warmup=200, calls=400) < 50
