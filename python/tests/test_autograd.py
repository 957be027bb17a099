"""Gradients, hooks, custom functions, recomputation, and the lines that errors name."""

import gc
import inspect
import os
import re
import threading
import traceback
import weakref

import pytest
import shard

from grad_helpers import Cube, blocks_after, bytes_after, numbers, numeric_gradient, vector

FILE = os.path.basename(__file__)


def line():
    """The number of the line that calls this."""
    return inspect.currentframe().f_back.f_lineno


def leaf(*values):
    return vector(values or (0.5, -1.25, 2.0), requires_grad=True)


# Leaves and backward


def test_a_leaf_gets_its_gradient():
    x = leaf(1, 2, 3)
    assert x.requires_grad and x.is_leaf and x.grad is None
    y = x * x
    assert y.requires_grad and not y.is_leaf
    shard.sum(y).backward()
    assert numbers(x.grad) == [2, 4, 6]
    assert numbers(x.grad) == [2, 4, 6], "the same each time"
    shard.sum(x).backward()
    assert numbers(x.grad) == [3, 5, 7], "gradients add up"


def test_requires_grad_can_be_set_and_returns_the_tensor():
    x = vector([1])
    assert not x.requires_grad
    assert x.requires_grad_() is x and x.requires_grad
    x.requires_grad = False
    assert not x.requires_grad
    assert not x.requires_grad_(False).requires_grad


def test_only_floating_leaves_can_require_gradients():
    with pytest.raises(shard.AutogradError, match=re.escape("i64[3] has no floating-point dtype")):
        shard.arange(0, 3, 1, dtype=shard.int64).requires_grad_()
    y = leaf(1) * 2.0
    with pytest.raises(shard.AutogradError) as caught:
        y.requires_grad = False
    assert caught.value.code == "autograd"


def test_the_gradient_can_be_replaced_and_cleared():
    x = leaf(1, 2)
    x.grad = vector([5, 6])
    assert numbers(x.grad) == [5, 6]
    x.grad = None
    assert x.grad is None
    with pytest.raises(shard.ShapeError):
        x.grad = vector([1])
    with pytest.raises(TypeError, match=re.escape("[grad] argument 'gradient' must be Tensor | None, not int")):
        x.grad = 3


def test_detach_shares_the_value_without_history():
    y = leaf(1, 2) * 2.0
    d = y.detach()
    assert not d.requires_grad and d.is_leaf and d.shares_buffer_with(y) and numbers(d) == [2, 4]


def test_backward_starts_from_a_gradient():
    x = leaf(1, 2)
    (x * x).backward(vector([10, 100]))
    assert numbers(x.grad) == [20, 400]
    with pytest.raises(shard.AutogradError, match="pass grad_outputs, a tensor of its shape, or reduce it"):
        (x * x).backward()
    with pytest.raises(shard.AutogradError, match="must have the shape and dtype"):
        (x * x).backward(vector([1]))
    with pytest.raises(TypeError, match=re.escape("[backward] argument 'gradient' must be Tensor | None, not list")):
        (x * x).backward([1, 2])


def test_backward_of_several_outputs():
    x = leaf(1, 2)
    shard.backward([shard.sum(x), x * x], [None, vector([1, 10])])
    assert numbers(x.grad) == [3, 41]
    x.grad = None
    shard.backward(shard.sum(x * x))
    assert numbers(x.grad) == [2, 4]
    x.grad = None
    shard.backward((shard.sum(x), shard.sum(x)), bucket_bytes=0)
    assert numbers(x.grad) == [2, 2]
    with pytest.raises(shard.ArgumentError, match="there are 1 grad_outputs for 2 outputs"):
        shard.backward([x * x, x * x], [vector([1, 1])])
    with pytest.raises(TypeError, match=re.escape("[backward] argument 'outputs' must be Tensor | Sequence[Tensor], not int")):
        shard.backward(3)
    with pytest.raises(TypeError, match=re.escape("[backward] argument 'outputs' must be Sequence[Tensor], but its item 1 is str")):
        shard.backward([x, "y"])
    with pytest.raises(TypeError, match=re.escape("argument 'grad_outputs' must be Sequence[Tensor | None], but its item 0 is float")):
        shard.backward([x], [1.0])


def test_a_second_backward_needs_retain_graph():
    x = leaf(1, 2)
    loss = shard.sum(x * x)
    loss.backward(retain_graph=True)
    loss.backward()
    assert numbers(x.grad) == [4, 8]
    with pytest.raises(shard.AutogradError, match="Set retain_graph in that backward"):
        loss.backward()


def test_backward_of_what_has_no_history_is_an_error():
    with pytest.raises(shard.AutogradError, match="requires no gradient"):
        shard.sum(vector([1])).backward()


def test_grad_returns_gradients_and_leaves_leaves_alone():
    x, y = leaf(1, 2), leaf(3, 4)
    gradient = shard.grad(shard.sum(x * y), x)
    assert isinstance(gradient, shard.Tensor) and numbers(gradient) == [3, 4]
    both = shard.grad([shard.sum(x * y)], [x, y])
    assert isinstance(both, tuple) and [numbers(each) for each in both] == [[3, 4], [1, 2]]
    assert x.grad is None
    assert numbers(shard.grad(x * y, x, vector([10, 100]))) == [30, 400]
    with pytest.raises(shard.AutogradError, match="no output depends on input 1 .* or set allow_unused"):
        shard.grad(shard.sum(x), [x, y])
    assert shard.grad(shard.sum(x), [x, y], allow_unused=True)[1] is None
    assert shard.grad(shard.sum(x), y, allow_unused=True) is None
    with pytest.raises(TypeError, match=re.escape("[grad] argument 'inputs' must be Tensor | Sequence[Tensor], not NoneType")):
        shard.grad(shard.sum(x), None)


def test_gradients_of_gradients():
    x = leaf(2, 3)
    first = shard.grad(shard.sum(x * x * x), x, create_graph=True)
    assert first.requires_grad and numbers(first) == [12, 27]
    assert numbers(shard.grad(shard.sum(first), x)) == [12, 18]


FUNCTIONS = {
    "softmax": lambda x: shard.sum(shard.square(shard.softmax(x, axis=0) + x)),
    "logsumexp of tanh": lambda x: shard.logsumexp(shard.tanh(x) * 3.0, 0, False, False),
    "quotient": lambda x: shard.sum(shard.sin(x) / (1.5 + x * x)),
    "matrix": lambda x: shard.sum(shard.exp(shard.matmul(shard.reshape(x, [2, 2]), shard.reshape(x, [2, 2])) * 0.1)),
    "reused": lambda x: shard.sum(shard.sigmoid(x * shard.sum(x)) - x**3.0),
    "checkpoint": lambda x: shard.checkpoint(lambda y: shard.sum(shard.sin(y) * shard.exp(y)), x),
    "in place": lambda x: shard.sum(shard.square(shard.multiply_(shard.sin(x), x))),
    "custom": lambda x: shard.sum(Cube.apply(x, 0.5) * x),
    "custom, from its result": lambda x: shard.sum(shard.sin(Exp.apply(x))),
    "captured": lambda x: CAPTURED(x),
}


class Exp(shard.Function):
    """Saves its result, of which the gradient is a function."""

    @staticmethod
    def forward(ctx, x):
        y = shard.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]


CAPTURED = shard.capture(lambda x: shard.sum(shard.tanh(x * x) / (2.0 + shard.cos(x))))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_finite_differences(name):
    values = [0.4, -0.7, 1.1, 0.2]
    x = vector(values, requires_grad=True)
    FUNCTIONS[name](x).backward()
    assert numbers(x.grad) == pytest.approx(numeric_gradient(FUNCTIONS[name], values), abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradients_are_those_of_finite_differences(name):
    values = [0.4, -0.7, 1.1, 0.2]

    def first(x):
        with shard.enable_grad():
            y = x.detach().requires_grad_() if x.is_leaf and not x.requires_grad else x
            return shard.sum(shard.sin(shard.grad(FUNCTIONS[name](y), y, create_graph=True)))

    x = vector(values, requires_grad=True)
    first(x).backward()
    assert numbers(x.grad) == pytest.approx(numeric_gradient(first, values), abs=1e-5, rel=1e-5)


# Recording


def test_nothing_is_recorded_under_no_grad():
    x = leaf(1, 2)
    assert shard.is_grad_enabled()
    with shard.no_grad():
        assert not shard.is_grad_enabled()
        assert not (x * x).requires_grad
        with shard.enable_grad():
            assert (x * x).requires_grad
        assert not shard.is_grad_enabled()
        x += 1.0
    assert shard.is_grad_enabled() and numbers(x) == [2, 3] and x.requires_grad


def test_modes_end_with_exceptions_and_can_be_reused():
    mode = shard.no_grad()
    with pytest.raises(KeyError):
        with mode:
            with mode:
                raise KeyError
    assert shard.is_grad_enabled()


def test_modes_decorate_functions():
    @shard.no_grad()
    def inner(depth):
        """Doc."""
        assert not shard.is_grad_enabled()
        if depth:
            return inner(depth - 1)
        raise ValueError

    with pytest.raises(ValueError):
        inner(2)
    assert shard.is_grad_enabled() and inner.__name__ == "inner" and inner.__doc__ == "Doc."
    with pytest.raises(TypeError, match=re.escape("[no_grad] decorates functions, not int")):
        shard.no_grad()(3)


def test_a_decorated_generator_has_its_mode_only_while_it_runs():
    @shard.no_grad()
    def counting():
        got = yield shard.is_grad_enabled()
        try:
            yield got, shard.is_grad_enabled()
        except KeyError:
            yield "caught", shard.is_grad_enabled()
        return "end"

    generator = counting()
    assert next(generator) is False
    assert shard.is_grad_enabled()
    assert generator.send(5) == (5, False)
    assert generator.throw(KeyError()) == ("caught", False)
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == "end" and shard.is_grad_enabled()


def test_async_functions_are_refused():
    async def function():
        pass

    with pytest.raises(TypeError, match="async function"):
        shard.no_grad()(function)


def test_set_grad_enabled_works_at_once_as_block_and_as_decorator():
    shard.set_grad_enabled(False)
    assert not shard.is_grad_enabled()
    shard.set_grad_enabled(True)
    with shard.set_grad_enabled(False):
        assert not shard.is_grad_enabled()
    assert shard.is_grad_enabled()

    @shard.set_grad_enabled(False)
    def function():
        return shard.is_grad_enabled()

    assert shard.is_grad_enabled() and function() is False and shard.is_grad_enabled()
    with pytest.raises(TypeError, match=re.escape("[set_grad_enabled] argument 'enabled' must be bool, not int")):
        shard.set_grad_enabled(1)


def test_modes_belong_to_their_thread():
    seen = []
    with shard.no_grad():
        thread = threading.Thread(target=lambda: seen.append(shard.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


# Hooks


def test_a_hook_sees_and_replaces_gradients():
    x = leaf(1, 2)
    y = x * 2.0
    seen = []
    handle = y.register_hook(lambda gradient: seen.append(numbers(gradient)))
    other = y.register_hook(lambda gradient: gradient * 10.0)
    shard.sum(y).backward(retain_graph=True)
    assert seen == [[1, 1]] and numbers(x.grad) == [20, 20]
    other.remove()
    other.remove()
    x.grad = None
    shard.sum(y).backward(retain_graph=True)
    assert seen == [[1, 1]] * 2 and numbers(x.grad) == [2, 2]
    handle.remove()
    shard.sum(y).backward()
    assert len(seen) == 2


def test_a_hook_of_a_leaf():
    x = leaf(1, 2)
    handle = x.register_hook(lambda gradient: gradient + 1.0)
    shard.sum(x * x).backward()
    assert numbers(x.grad) == [3, 5]
    handle.remove()
    shard.sum(x * x).backward()
    assert numbers(x.grad) == [5, 9]


def test_hooks_have_to_return_tensors_and_belong_to_histories():
    y = leaf(1) * 2.0
    y.register_hook(lambda gradient: 3)
    with pytest.raises(TypeError, match=re.escape("[register_hook] a hook must return Tensor | None, not int")):
        shard.sum(y).backward()
    with pytest.raises(shard.AutogradError, match="requires no gradient"):
        vector([1]).register_hook(lambda gradient: None)
    z = leaf(1) * 2.0
    z.register_hook(lambda gradient: shard.concat([gradient, gradient]))
    with pytest.raises(shard.AutogradError, match="must have the shape and dtype"):
        shard.sum(z).backward()


def test_an_exception_of_a_hook_arrives_with_its_traceback():
    y = leaf(1) * 2.0

    def hook_that_fails(gradient):
        raise LookupError("in the hook")

    y.register_hook(hook_that_fails)
    with pytest.raises(LookupError, match="in the hook") as caught:
        shard.sum(y).backward()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[0] == "test_an_exception_of_a_hook_arrives_with_its_traceback" and frames[-1] == "hook_that_fails"
    assert shard.is_grad_enabled()


def test_removing_a_hook_frees_its_function():
    class Held:
        pass

    held, y = Held(), leaf(1) * 2.0
    handle = y.register_hook(lambda gradient, held=held, y=y: None)  # a cycle through its own tensor
    reference, tensor = weakref.ref(held), weakref.ref(y)
    del held, y
    gc.collect()
    assert reference() is not None, "nobody sees this cycle"
    handle.remove()
    assert reference() is None and tensor() is None


def test_a_hook_is_freed_with_its_tensor():
    class Held:
        pass

    held, y = Held(), leaf(1) * 2.0
    handle = y.register_hook(lambda gradient, held=held: None)
    reference = weakref.ref(held)
    del held, y, handle
    assert reference() is None


def test_retain_grad_keeps_the_gradient_of_a_result():
    x = leaf(1, 2)
    y = x * 3.0
    y.retain_grad()
    shard.sum(y * y).backward()
    assert numbers(y.grad) == [6, 12] and numbers(x.grad) == [18, 36]
    with pytest.raises(shard.AutogradError, match="requires no gradient"):
        vector([1]).retain_grad()


def test_set_grad_layout_checks_its_arguments():
    x = leaf(1)
    shard.set_grad_layout(x, "as_is")
    shard.set_grad_layout(x, "of_leaf")
    with pytest.raises(shard.ArgumentError, match="there is no gradient layout 'sum'; pass 'of_leaf' or 'as_is'"):
        shard.set_grad_layout(x, "sum")
    with pytest.raises(shard.AutogradError, match="not a leaf"):
        shard.set_grad_layout(x * 2.0, "as_is")


# Memory


LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")


def fails(gradient):
    raise LookupError


def saved_output(x):
    y = Exp.apply(x)
    y.register_hook(lambda gradient: gradient * 2.0)
    return y


@LINUX
@pytest.mark.parametrize(("function", "backward"), [
    (lambda x: x * x, True), (saved_output, True), (saved_output, False), (lambda x: shard.checkpoint(saved_output, x), True),
    (lambda x: shard.checkpoint(saved_output, x), False), (lambda x: CAPTURED(x), True), (lambda x: CAPTURED(x), False)])
def test_tensors_of_histories_are_freed(function, backward):
    x = shard.full([4096], 0.5, dtype=shard.float64).requires_grad_()

    def call():
        y = shard.sum(function(x))
        if backward:
            y.backward()

    assert bytes_after(call) < 8 << 20, "a tensor for each call has 32 MB"


def test_exceptions_leak_nothing():
    x = leaf(1)

    def call():
        y = x * 2.0
        y.register_hook(fails)
        try:
            shard.sum(y).backward()
        except LookupError:
            pass

    assert blocks_after(call, warmup=500, calls=2_000) < 50


# Lines in errors


def test_errors_name_the_lines_of_ops_and_operators():
    x = leaf(1, 2)
    y = x * 2.0
    z = y * y; saved = line()
    with shard.no_grad():
        y += x; written = line()
    with pytest.raises(shard.AutogradError) as caught:
        shard.sum(z).backward()
    message = str(caught.value)
    assert f"was saved by [multiply] at {__file__}:{saved} for its gradient" in message
    assert f"last by [add_] at {__file__}:{written}:" in message


def test_errors_name_the_lines_of_functions_and_methods():
    y = leaf(1, 2) * 2.0
    w = shard.exp(y); saved = line()
    z = w * 1.0
    w.relu_(); written = line()
    with pytest.raises(shard.AutogradError) as caught:
        shard.sum(z).backward()
    assert f"[exp] at {__file__}:{saved}" in str(caught.value) and f"[relu_] at {__file__}:{written}" in str(caught.value)


def test_frames_of_the_package_are_skipped():
    x = leaf(1, 2)
    y = Cube.apply(x, 1.0); custom = line()
    with shard.no_grad():
        x += 1.0
    with pytest.raises(shard.AutogradError) as caught:
        shard.sum(y).backward()
    assert f"was saved by [Cube] at {__file__}:{custom}" in str(caught.value)

    def inner(t):
        return t * w; ignored = line()  # noqa: F841

    w = vector([1, 2])
    z = shard.checkpoint(inner, x)
    shard.add_(w, w); written = line()
    with pytest.raises(shard.AutogradError) as caught:
        shard.sum(z).backward()
    assert f"at {__file__}:{written}" in str(caught.value) and "shard/autograd.py" not in str(caught.value)


# Threads


def test_threads_differentiate_separate_graphs_at_once():
    errors = []

    def work(seed):
        try:
            for i in range(50):
                x = leaf(seed, i)
                seen = []
                y = Cube.apply(x, 1.0)
                y.register_hook(lambda gradient, seen=seen: seen.append(numbers(gradient)))
                shard.sum(y).backward()
                assert numbers(x.grad) == [3 * seed**2, 3 * i**2] and seen == [[1, 1]]
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_backward_does_not_hold_the_lock():
    ran = []
    x = leaf(1)
    y = x * 2.0
    inside, done = threading.Event(), threading.Event()

    def hook(gradient):
        inside.set()
        assert done.wait(10)

    y.register_hook(hook)

    def other():
        assert inside.wait(10)
        ran.append(numbers(vector([1])))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    shard.sum(y).backward()
    thread.join()
    assert ran == [[1]]
