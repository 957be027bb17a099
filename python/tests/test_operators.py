"""Operators: operands, numbers that do not fit, division and powers of integers, forms in place."""

import operator

import numpy as np
import pytest

import shard

VALUES = np.array([[1.5, -2.0], [0.5, 4.0]], dtype=np.float32)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod]


@pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS)
@pytest.mark.parametrize("other", [2, 2.0, 0.75, np.float32(2), np.int64(3), True])
def test_numbers_on_both_sides(op, other):
    x = shard.tensor(VALUES)
    for result, expected in ((op(x, other), op(VALUES, np.float32(other))), (op(other, x), op(np.float32(other), VALUES))):
        assert isinstance(result, shard.Tensor)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("op", BITS)
def test_bits_of_integers(op):
    values = np.array([1, 6, 12], dtype=np.int64)
    x = shard.tensor(values)
    assert op(x, 2).tolist() == op(values, 2).tolist()
    assert op(x, x).tolist() == op(values, values).tolist()
    assert op(3, x).tolist() == op(3, values).tolist()


@pytest.mark.parametrize("op", IN_PLACE)
def test_operators_in_place_write_what_aliases_see(op):
    x = shard.tensor(VALUES)
    alias = x.reshape([4])
    same = op(x, 2)
    assert same is x
    np.testing.assert_allclose(alias.numpy(), op(VALUES.copy(), np.float32(2)).reshape(4), rtol=1e-6)


def test_powers_and_bits_in_place():
    x = shard.tensor([3.0])
    alias = x.reshape([1, 1])
    x **= 2
    assert alias.item() == 9.0
    with pytest.raises(shard.ArgumentError, match="x = x \\*\\* y"):
        x **= shard.tensor([2.0])
    bits = shard.tensor([6])
    alias = bits.reshape([1, 1])
    bits &= 3
    bits <<= 2
    bits |= 1
    bits ^= 8
    bits >>= 0
    assert alias.item() == 1


def test_division_of_integers_is_float32():
    x = shard.tensor([1, 2, 3])
    for quotient in (x / 2, x / shard.tensor([2, 2, 2])):
        assert quotient.dtype == shard.float32
        assert quotient.tolist() == [0.5, 1.0, 1.5]
    assert (6 / x).tolist() == [6.0, 3.0, 2.0]
    assert (x // 2).tolist() == [0, 1, 1] and (x // 2).dtype == shard.int64
    with pytest.raises(shard.DTypeError, match="float32"):
        x /= 2


def test_powers():
    x = shard.tensor([1.0, 2.0, 3.0])
    assert (x**2).tolist() == [1.0, 4.0, 9.0]
    assert (2**x).tolist() == [2.0, 4.0, 8.0]
    assert (x**x).tolist() == [1.0, 4.0, 27.0]
    assert (shard.tensor([2]) ** 3).tolist() == [8]
    with pytest.raises(shard.ArgumentError, match="negative"):
        shard.tensor([2]) ** -1
    with pytest.raises(TypeError):
        pow(x, 2, 3)


@pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS)
@pytest.mark.parametrize("dtype, number", [("uint8", 300), ("uint8", -1), ("int32", 2**40), ("int64", 2**63), ("int64", 2**80)])
def test_a_number_that_the_dtype_cannot_hold_is_an_error(op, dtype, number):
    x = shard.tensor([5], dtype=dtype)
    with pytest.raises(shard.OutOfRangeError, match=dtype):
        op(x, number)
    with pytest.raises(shard.OutOfRangeError, match=dtype):
        op(number, x)


def test_large_integers_beside_floats_are_floats():
    x = shard.tensor([1.0], dtype="float64")
    assert (x + 2**70).item() == float(2**70 + 1)
    assert (x == 2**70).tolist() == [False]


@pytest.mark.parametrize("op", [operator.floordiv, operator.mod, operator.and_, operator.lshift, operator.eq, operator.add])
def test_a_fraction_beside_integers_is_an_error(op):
    with pytest.raises((shard.DTypeError, shard.ArgumentError)):
        op(shard.tensor([5]), 1.5)


def test_other_operands_are_refused():
    x = shard.tensor([1.0])
    for other in (None, "a", [1.0], object()):
        with pytest.raises(TypeError):
            x + other
    assert (x == None) is False  # noqa: E711: as for any object
    assert (x != "a") is True


def test_numpy_scalars_on_the_left_do_not_take_over():
    x = shard.tensor([1.0, 2.0]).requires_grad_()
    for product in (np.float64(2) * x, np.float32(2) * x, np.int64(2) * x):
        assert isinstance(product, shard.Tensor)
        assert product.tolist() == [2.0, 4.0]


def test_an_interrupt_in_a_conversion_is_not_lost():
    class Interrupted:
        def __index__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shard.tensor([1.0]) + Interrupted()
    with pytest.raises(KeyboardInterrupt):
        shard.tensor([1.0]).reshape(Interrupted())


def test_a_tensor_without_data_is_refused_everywhere():
    empty = shard.Tensor.__new__(shard.Tensor)
    assert repr(empty) == "tensor(not initialized)"
    for use in (len, bool, float, abs, lambda x: x + 1, lambda x: x[0], lambda x: x.numpy(), lambda x: -x, iter, operator.index):
        with pytest.raises(TypeError):
            use(empty)


def test_default_device_scopes_may_end_in_any_order():
    def scope():
        with shard.default_device("cpu"):
            yield

    first, second = scope(), scope()
    next(first), next(second)
    next(first, None), next(second, None)
    assert str(shard.get_default_device()) == "cpu"
    assert shard.zeros([2], device="cpu").tolist() == [0.0, 0.0]
    with pytest.raises(shard.ArgumentError, match="not entered"):
        shard.default_device("cpu").__exit__(None, None, None)


def test_to_takes_keywords():
    x = shard.tensor([1.5])
    assert x.to(dtype="float64").dtype == shard.float64
    assert x.to(device="cpu") is x
    with pytest.raises(TypeError, match="there is no argument 'shape'"):
        x.to(shape=3)


def test_builtin_functions_of_numbers():
    x = shard.tensor([1.23, -2.57, 7.5])
    assert round(x).tolist() == [1.0, -3.0, 8.0] and round(x).dtype == shard.float32
    np.testing.assert_allclose(round(x, 1).numpy(), [1.2, -2.6, 7.5], rtol=1e-6)
    assert round(shard.tensor([125.0, 11.0]), -1).tolist() == [120.0, 10.0]
    assert round(shard.tensor([3, 4])).tolist() == [3, 4] and round(shard.tensor([3])).dtype == shard.int64
    for pair, expected in (
        (divmod(shard.tensor([7, -7]), 2), divmod(np.array([7, -7]), 2)),
        (divmod(7, shard.tensor([2, 3])), divmod(7, np.array([2, 3]))),
        (divmod(shard.tensor([7.5]), shard.tensor([2.0])), divmod(np.array([7.5]), 2.0)),
    ):
        assert [each.tolist() for each in pair] == [each.tolist() for each in expected]
    with pytest.raises(TypeError):
        divmod(x, "2")


def test_builtin_functions_of_sequences():
    x = shard.tensor([[1, 2], [3, 4]])
    assert [row.tolist() for row in reversed(x)] == [[3, 4], [1, 2]]
    with pytest.raises(TypeError, match="without dims cannot be reversed"):
        reversed(shard.tensor(1))


def test_format():
    x = shard.tensor([2.5])
    assert f"{x:.3f}" == "2.500" and f"{shard.tensor(7):04d}" == "0007" and f"{x}" == str(x)
    with pytest.raises(TypeError, match="format '.2f' is for tensors of one element, and this one has 2"):
        f"{shard.tensor([1.0, 2.0]):.2f}"


def test_tensors_of_one_element_are_numbers_in_lists():
    a, b = shard.tensor(1.5), shard.tensor([2])
    x = shard.tensor([[a, b], [3, shard.tensor(True)]])
    assert x.dtype == shard.float32 and x.tolist() == [[1.5, 2.0], [3.0, 1.0]]
    assert shard.tensor([shard.tensor(2), 3]).dtype == shard.int64
    with pytest.raises(TypeError, match=r"data\[1\] is a Tensor of 2 elements; use shard.stack"):
        shard.tensor([1, shard.tensor([1, 2])])


def test_subclasses_are_refused_with_advice():
    with pytest.raises(TypeError, match="shard.Tensor cannot be a base class.*keep a tensor as an attribute"):
        type("Mine", (shard.Tensor,), {})
