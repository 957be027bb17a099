"""Functions with gradients of their own, and recomputation."""

import gc
import inspect
import os
import re
import traceback
import weakref

import pytest
import shard

from grad_helpers import Cube, blocks_after, numbers, numeric_gradient, vector

FILE = os.path.basename(__file__)


def line():
    """The number of the line that calls this."""
    return inspect.currentframe().f_back.f_lineno


def leaf(*values):
    return vector(values or (0.5, -1.25, 2.0), requires_grad=True)


# Custom functions


class TwoOutputs(shard.Function):
    """x*y and x+y; anything may be saved."""

    @staticmethod
    def forward(ctx, x, y, name, factor=2.0):
        assert not shard.is_grad_enabled()
        assert name == "name"
        product = x * y
        half = x * 0.5
        ctx.factor = factor
        ctx.save_for_backward(product, None, x, half)
        ctx.needs = ctx.needs_input_grad
        return product, x + y

    @staticmethod
    def backward(ctx, grad_product, grad_sum):
        product, nothing, x, half = ctx.saved_tensors
        assert nothing is None
        y = product / x
        assert numbers(half) == [each / 2 for each in numbers(x)]
        assert ctx.needs == (True, True, False, False)
        return grad_product * y + grad_sum, grad_product * x + grad_sum, None, None


def test_a_custom_function_with_several_outputs():
    x, y = leaf(1, 2), leaf(3, 4)
    product, total = TwoOutputs.apply(x, y, "name", 3.0)
    assert numbers(product) == [3, 8] and numbers(total) == [4, 6] and product.requires_grad and not product.is_leaf
    shard.sum(product + total * 10.0).backward()
    assert numbers(x.grad) == [13, 14] and numbers(y.grad) == [11, 12]


def test_an_output_that_nothing_depends_on_gets_zeros():
    x, y = leaf(1, 2), leaf(3, 4)
    _, total = TwoOutputs.apply(x, y, "name", 3.0)
    shard.sum(total).backward()
    assert numbers(x.grad) == [1, 1]


def test_a_custom_function_without_history_only_runs_forward():
    result = Cube.apply(vector([2]), 1.0)
    assert numbers(result) == [8] and not result.requires_grad
    with shard.no_grad():
        assert not Cube.apply(leaf(2), 1.0).requires_grad


def test_gradients_that_are_none_end_the_history():
    class Nothing(shard.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, grad_output):
            return None, grad_output

    x, y = leaf(1), leaf(2)
    shard.sum(Nothing.apply(x, y)).backward()
    assert x.grad is None and numbers(y.grad) == [1]


def test_outputs_can_be_marked_as_not_differentiable():
    class Parts(shard.Function):
        @staticmethod
        def forward(ctx, x):
            whole = shard.floor(x)
            ctx.mark_non_differentiable(whole)
            return x - whole, whole

        @staticmethod
        def backward(ctx, grad_part, grad_whole):
            return grad_part

    x = leaf(1.5, 2.25)
    part, whole = Parts.apply(x)
    assert part.requires_grad and not whole.requires_grad and numbers(whole) == [1, 2]
    shard.sum(part + whole).backward()
    assert numbers(x.grad) == [1, 1]


def make(forward=lambda ctx, x: x * 2.0, backward=lambda ctx, gradient: gradient):
    return type("Made", (shard.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


@pytest.mark.parametrize(("results", "error", "message"), [
    (lambda g: (g, g), None, None),
    (lambda g: (g, None), None, None),
    (lambda g: (), shard.AutogradError, "[Made] backward has returned 0 gradients for 1 arguments of forward; return one for each"),
    (lambda g: 3.0, TypeError, "[Made] backward must return Tensor | None for each argument, but gradient 0 is float"),
    (lambda g: shard.concat([g, g]), shard.AutogradError, "must have the shape and dtype"),
])
def test_results_of_backward_are_checked(results, error, message):
    y = shard.sum(make(backward=lambda ctx, gradient: results(gradient)).apply(leaf(1)))
    if error is None and results(1)[1] is None:
        return y.backward()
    with pytest.raises(error or shard.AutogradError, match=re.escape(message or "[Made] backward has returned 2 gradients for 1")):
        y.backward()


def test_a_gradient_for_what_is_no_tensor_is_an_error():
    y = make(forward=lambda ctx, x, k: x * k, backward=lambda ctx, g: (g, g)).apply(leaf(1), 2.0)
    with pytest.raises(shard.AutogradError, match=re.escape("[Made] backward has returned a gradient for argument 1, which is no tensor")):
        shard.sum(y).backward()


def test_results_of_forward_are_checked():
    with pytest.raises(TypeError, match=re.escape("[Made] forward must return Tensor | Sequence[Tensor], not int")):
        make(forward=lambda ctx, x: 3).apply(leaf(1))
    with pytest.raises(TypeError, match=re.escape("[Made] forward must return Tensor | Sequence[Tensor], but its result 1 is NoneType")):
        make(forward=lambda ctx, x: (x, None)).apply(leaf(1))
    with pytest.raises(NotImplementedError, match="needs the static method forward"):
        type("Bare", (shard.Function,), {}).apply(leaf(1))
    with pytest.raises(TypeError, match=re.escape("[save_for_backward] argument 1 must be Tensor | None, not int; keep other values")):
        make(forward=lambda ctx, x: ctx.save_for_backward(x, 3)).apply(leaf(1))


def test_saved_tensors_are_read_in_backward_only():
    with pytest.raises(shard.AutogradError, match="only while backward runs") as caught:
        make(forward=lambda ctx, x: ctx.saved_tensors).apply(leaf(1))
    assert caught.value.code == "autograd"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_exceptions_of_custom_functions_arrive_with_their_traceback(where):
    def method_that_fails(ctx, *args):
        return {}["missing"]

    function = make(**{where: method_that_fails})
    with pytest.raises(KeyError, match="missing") as caught:
        shard.sum(function.apply(leaf(1))).backward()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "method_that_fails"
    assert shard.is_grad_enabled()


def test_a_saved_tensor_that_is_written_is_an_error():
    class Saves(shard.Function):
        @staticmethod
        def forward(ctx, x):
            Saves.middle = x * 2.0
            ctx.save_for_backward(Saves.middle)
            return Saves.middle * 3.0

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    y = Saves.apply(leaf(1))
    Saves.middle += 1.0
    with pytest.raises(shard.AutogradError, match="forward has saved was written since: it was at version 0 and is at 1"):
        shard.sum(y).backward()


def test_custom_functions_are_freed():
    contexts = []

    class Watched(shard.Function):
        @staticmethod
        def forward(ctx, x):
            y = shard.exp(x)
            ctx.save_for_backward(x, y)
            contexts.append(weakref.ref(ctx))
            return y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * y

    gc.disable()
    try:
        x = leaf(1)
        y = Watched.apply(x)  # without a backward pass
        assert contexts[0]() is not None
        del y
        assert contexts[0]() is None
        z = shard.sum(Watched.apply(x))
        z.backward(retain_graph=True)
        z.backward()
        assert contexts[1]() is None, "the step has let it go"
        w = shard.sum(Watched.apply(x))
        shard.grad(w, x, create_graph=True)
        assert contexts[2]() is not None
        del w
        assert contexts[2]() is None
    finally:
        gc.enable()


def test_results_are_not_copied_and_calls_leak_nothing():
    buffers = []

    class Plain(shard.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2.0
            ctx.save_for_backward(y)
            buffers.append(y.detach())  # which makes the result a copy
            return y

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2.0

    x = leaf(1)
    assert not Plain.apply(x).shares_buffer_with(buffers[0])

    def call():
        shard.sum(Cube.apply(x, 2.0)).backward()

    assert blocks_after(call, calls=10_000) < 100


# Recomputation


def test_checkpoint_takes_nested_arguments_and_parameters_from_outside():
    x, w = leaf(1, 2), leaf(3, 4)
    calls = []

    def function(pair, *, scale, name):
        calls.append(name)
        return {"loss": shard.sum(pair[0] * pair["b" if isinstance(pair, dict) else 1] * w) * scale, "note": name, "none": None}

    result = shard.checkpoint(function, (x, x), scale=2.0, name="n")
    assert result["note"] == "n" and result["none"] is None and result["loss"].requires_grad
    result["loss"].backward()
    assert calls == ["n", "n"]
    assert numbers(x.grad) == [12, 32] and numbers(w.grad) == [2, 8]


def test_recompute_decorates():
    w = leaf(3)

    @shard.recompute
    def block(x):
        """Doc."""
        return shard.sin(x * w)

    x = leaf(0.5)
    shard.sum(block(block(x))).backward()
    expected = numeric_gradient(lambda y: shard.sum(shard.sin(shard.sin(y * w) * w)), [0.5])
    assert numbers(x.grad) == pytest.approx(expected, abs=1e-6) and block.__doc__ == "Doc."


def test_exceptions_of_recomputed_functions_arrive_in_both_runs():
    calls = []

    def fails_the_second_time(x):
        calls.append(0)
        if len(calls) == 2:
            raise OSError("second")
        return x * x

    y = shard.checkpoint(fails_the_second_time, leaf(1))
    with pytest.raises(OSError, match="second") as caught:
        shard.sum(y).backward()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fails_the_second_time"
    with pytest.raises(ZeroDivisionError):
        shard.checkpoint(lambda x: x / (1 // 0), leaf(1))


def test_a_tensor_that_checkpoint_reads_must_not_be_written():
    w = vector([3])
    y = shard.checkpoint(lambda x: x * w, leaf(1))
    w += 1.0
    with pytest.raises(shard.AutogradError, match="written since"):
        shard.sum(y).backward()


def test_checkpoint_leaks_nothing():
    x = leaf(1)
    assert blocks_after(lambda: shard.sum(shard.checkpoint(lambda y: y * y, x)).backward(), calls=5_000) < 100
