"""x[...] and x[...] = value, compared with NumPy."""

import itertools
import random

import numpy as np
import pytest

import shard

SHAPES = [(5,), (4, 3), (2, 3, 4), (3, 1, 4, 2)]


def numbered(shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def random_slice(rng, size):
    pick = lambda: rng.choice([None, *range(-size - 1, size + 2)])
    return slice(pick(), pick(), rng.choice([None, 1, 2, 3, -1, -2]))


def random_key(rng, shape, advanced):
    """Indices for a prefix of the dims, with new dims, an ellipsis, and tensors where `advanced`."""
    common = rng.choice([(2,), (3,), (2, 2), (1, 3), ()])
    key, dim = [], 0
    while dim < len(shape) and rng.random() < 0.85:
        kinds = ["int", "slice", "slice", "none"] + (["array", "array", "mask"] if advanced else [])
        kind = rng.choice(kinds)
        size = shape[dim]
        if kind == "none":
            if sum(item is None for item in key) < 2:
                key.append(None)
            continue
        if kind == "mask":
            width = rng.randint(1, min(2, len(shape) - dim))
            elements = int(np.prod(shape[dim:dim + width]))
            true = min(elements, 2 if common == (2,) else 1)  # what broadcasts with the arrays
            mask = np.array(rng.sample([True] * true + [False] * (elements - true), elements))
            key.append(mask.reshape(shape[dim:dim + width]))
            dim += width
            continue
        if kind == "array":
            dims = rng.choice([common, common[-1:], common])
            key.append(np.array([rng.randrange(-size, size) for _ in range(int(np.prod(dims)))], dtype=int).reshape(dims))
        else:
            key.append(rng.randrange(-size, size) if kind == "int" else random_slice(rng, size))
        dim += 1
    if rng.random() < 0.3:
        key.insert(rng.randint(0, len(key)), Ellipsis)  # keys that NumPy refuses are left out
    return tuple(key)


def as_tensors(key, rng):
    """The same key with some arrays as tensors and lists."""
    def convert(item):
        if not isinstance(item, np.ndarray):
            return item
        way = rng.choice(["tensor", "int32", "list", "array"])
        if way == "tensor" or (way == "int32" and item.dtype == bool):
            return shard.tensor(item)
        if way == "int32":
            return shard.tensor(item.astype(np.int32))
        return item.tolist() if way == "list" and item.ndim > 0 else item
    return tuple(convert(item) for item in key)


def random_cases(advanced, count, seed):
    rng = random.Random(seed)
    made = 0
    while made < count:
        shape = rng.choice(SHAPES)
        key = random_key(rng, shape, advanced)
        try:
            expected = numbered(shape)[key]
        except IndexError:
            continue
        if expected.ndim > 8:
            continue
        made += 1
        yield shape, key, expected, rng


@pytest.mark.parametrize("advanced, seed", [(False, 1), (True, 2), (True, 3)])
def test_reads_agree_with_numpy(advanced, seed):
    for shape, key, expected, rng in random_cases(advanced, 300, seed):
        found = shard.tensor(numbered(shape))[as_tensors(key, rng)]
        assert found.shape == expected.shape, (shape, key)
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=f"{shape} {key}")


@pytest.mark.parametrize("advanced, seed", [(False, 4), (True, 5), (True, 6)])
def test_writes_agree_with_numpy(advanced, seed):
    for shape, key, selected, rng in random_cases(advanced, 300, seed):
        array = numbered(shape)
        x = shard.tensor(array)
        before = x.version
        value = rng.choice([7, -1.5, "tensor", "array", "row"])
        if value in ("tensor", "array"):
            data = np.asarray(-1 - array[key])  # one value for a place that is selected twice
            value, reference = (shard.tensor(data) if value == "tensor" else data), data
        elif value == "row":
            data = numbered((1,) * selected.ndim) - 5
            value, reference = shard.tensor(data), data
        else:
            reference = value
        array[key] = reference
        x[as_tensors(key, rng)] = value
        np.testing.assert_array_equal(x.numpy(), array, err_msg=f"{shape} {key} {value}")
        assert x.version == before + 1, (shape, key)


def test_reads_are_copies():
    x = shard.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert not x[0].shares_buffer_with(x)
    assert not x[...].shares_buffer_with(x)
    x[0][0] = 9
    assert x.tolist() == [[1, 2], [3, 4]]


def test_bools_add_a_dim():
    array = numbered((2, 3))
    x = shard.tensor(array)
    for key in [True, False, (True, 1), (slice(None), True), (..., False), np.bool_(True), (0, True)]:
        assert x[key].shape == array[key].shape, key
        np.testing.assert_array_equal(x[key].numpy(), array[key])
    assert x[shard.tensor(True)].shape == (1, 2, 3)
    x[True] = 5
    assert (x.numpy() == 5).all()
    x[False] = 6
    assert (x.numpy() == 5).all()
    x[True, 0] = 7
    assert x.tolist() == [[7, 7, 7], [5, 5, 5]]


def test_scalars_of_numpy_and_tensors_without_dims_are_positions():
    x = shard.tensor(numbered((4, 3)))
    assert x[np.int64(1)].tolist() == [3, 4, 5]
    assert x[np.array(1)].tolist() == [3, 4, 5]
    assert x[shard.tensor(-1)].tolist() == [9, 10, 11]
    assert x[shard.tensor(1), 2].item() == 5
    assert x[1:np.int32(3), 0].tolist() == [3, 6]
    assert x[shard.tensor(1):shard.tensor(3), 0].tolist() == [3, 6]
    assert x[shard.tensor([1], dtype="uint8")].tolist() == [[3, 4, 5]]
    assert x[np.array([1], dtype=np.int8)].tolist() == [[3, 4, 5]]


def test_empty_selections():
    x = shard.tensor(numbered((4, 3)))
    assert x[[]].shape == (0, 3)
    assert x[:, []].shape == (4, 0)
    assert x[2:1].shape == (0, 3)
    assert x[x > 100].shape == (0,)
    assert x[shard.tensor(np.zeros(4, bool))].shape == (0, 3)
    x[[]] = 1
    x[2:1] = 1
    x[x > 100] = 1
    np.testing.assert_array_equal(x.numpy(), numbered((4, 3)))


def test_augmented_assignments():
    x = shard.tensor([1.0, 2.0, 3.0])
    x[1] += 10
    x[x > 2.5] *= 2
    assert x.tolist() == [1, 24, 6]


def test_a_tensor_can_be_written_from_itself():
    x = shard.tensor([1.0, 2.0, 3.0, 4.0])
    x[1:] = x[:-1]
    assert x.tolist() == [1, 1, 2, 3]
    x[...] = x
    x[::-1] = x
    assert x.tolist() == [3, 2, 1, 1]
    x[[3, 2, 1, 0]] = x
    assert x.tolist() == [1, 1, 2, 3]


def test_iteration_and_membership():
    x = shard.tensor([[1, 2], [3, 4]])
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert len(x) == 2 and list(shard.tensor([])) == []
    assert 3 in x and 5 not in x
    with pytest.raises(TypeError, match="a tensor without dims cannot be iterated over"):
        iter(shard.tensor(1))
    with pytest.raises(TypeError, match="in: a tensor contains numbers and tensors, not str"):
        "a" in x
    a, b = x
    assert b.tolist() == [3, 4]


ERRORS = [
    (5, shard.OutOfRangeError, r"position 5 is outside dim 0 of size 2"),
    ((0, -4), shard.OutOfRangeError, r"position -4 is outside dim 1 of size 3"),
    ((0, 0, 0), shard.OutOfRangeError, r"3 indices for f32\[2, 3\], which has 2 dims"),
    ((..., ...), shard.OutOfRangeError, "2 ellipses"),
    ([0, 2], shard.OutOfRangeError, "position 2 is outside dim 0 of size 2"),
    ((slice(None), np.array([-4])), shard.OutOfRangeError, "position -4 is outside dim 1 of size 3"),
    (np.ones(3, bool), shard.OutOfRangeError, "the mask has size 3 in dim 0, but x has size 2 in dim 0"),
    ([0.5], shard.DTypeError, r"must have integers or bools, but is f32\[1\]; cast it"),
    (([0, 1], [0, 1, 2]), shard.ShapeError, r"of the shapes \[2\] and \[3\] index together, but do not broadcast"),
    ("a", TypeError, "an index must be an int, a slice, None, ..., a bool, or a tensor.*, not str"),
    (1.5, TypeError, "not float"),
    (slice(None, None, 0), ValueError, "zero"),
    (10**30, IndexError, "cannot fit|too large"),
]


@pytest.mark.parametrize("key, error, text", ERRORS)
def test_errors_of_keys(key, error, text):
    x = shard.tensor(numbered((2, 3)))
    with pytest.raises(error, match=text):
        x[key]
    with pytest.raises(error, match=text):
        x[key] = 1
    np.testing.assert_array_equal(x.numpy(), numbered((2, 3)))
    if error is shard.OutOfRangeError:
        assert issubclass(error, IndexError)


def test_positions_in_tensors_outside_their_dim():
    x = shard.tensor(numbered((2, 3)))
    with pytest.raises(IndexError, match="2"):
        x[shard.tensor([2])]
    with pytest.raises(IndexError):
        x[shard.tensor([0]), shard.tensor([3])]
    with pytest.raises(IndexError):
        x[shard.tensor([2])] = 0
    np.testing.assert_array_equal(x.numpy(), numbered((2, 3)))


def test_errors_of_values():
    x = shard.tensor([1, 2, 3])
    with pytest.raises(shard.DTypeError, match="cannot write the number 1.5 into a tensor of int64; cast"):
        x[0] = 1.5
    with pytest.raises(shard.DTypeError, match=r"cannot write f32\[1\] into a tensor of int64"):
        x[0] = shard.tensor([1.5])
    with pytest.raises(shard.DTypeError, match="into a tensor of bool"):
        shard.tensor([True])[0] = shard.tensor([1])
    with pytest.raises(shard.OutOfRangeError, match="300 does not fit into uint8"):
        shard.tensor([1], dtype="uint8")[0] = 300
    with pytest.raises(shard.OutOfRangeError, match="does not fit into int64"):
        x[0] = 10**30
    with pytest.raises(shard.ShapeError, match="do not broadcast|does not broadcast"):
        x[:2] = [1, 2, 3]
    with pytest.raises(shard.ShapeError, match="broadcast"):
        x[[0, 1]] = [1, 2, 3]
    with pytest.raises(TypeError, match=r"setitem\(\): data is a str"):
        x[0] = "a"
    with pytest.raises(TypeError, match="cannot be deleted"):
        del x[0]
    assert x.tolist() == [1, 2, 3]


def test_values_are_converted():
    x = shard.tensor([1.0, 2.0, 3.0])
    x[0] = np.float64(4.5)
    x[1] = np.array(7)
    x[2] = True
    assert x.tolist() == [4.5, 7, 1]
    x[1:] = shard.tensor([[8, 9]])  # leading dims of size 1 are ignored
    x[[0]] = np.array([[[3.0]]])
    assert x.tolist() == [3, 8, 9]
    y = shard.tensor([1, 2], dtype="int32")
    y[:] = [5, 6]
    y[0] = np.int64(9)
    assert y.tolist() == [9, 6] and y.dtype == shard.int32
    z = shard.tensor([1.0, 2.0], dtype="bfloat16")
    z[1:] = np.array([3.0])
    assert z.tolist() == [1, 3]


def test_copy_():
    x = shard.zeros([2, 3])
    assert x.copy_([1, 2, 3]) is x
    assert x.tolist() == [[1, 2, 3]] * 2
    with pytest.raises(shard.ShapeError):
        x.copy_([1, 2])


# Gradients


def gradients(shape, key, value=None):
    """Those of sum(w * x[key]), or of sum(w * x) after x[key] = value."""
    x = shard.tensor(numbered(shape), requires_grad=True)
    if value is None:
        y = x[key]
        weights = numbered(y.shape) + 1
        (y * shard.tensor(weights)).sum().backward()
        expected = np.zeros(shape, np.float32)
        np.add.at(expected, key, weights)
        return [(x, expected)]
    v = shard.tensor(value, requires_grad=True)
    y = x.clone()
    y[key] = v
    weights = numbered(shape) + 1
    (y * shard.tensor(weights)).sum().backward()
    of_x = weights.copy()
    of_x[key] = 0
    selected = weights[key]
    axes = tuple(range(selected.ndim - value.ndim))
    of_v = selected.sum(axis=axes)
    kept = tuple(d for d in range(value.ndim) if value.shape[d] == 1 and of_v.shape[d] != 1)
    return [(x, of_x), (v, of_v.sum(axis=kept, keepdims=True))]


KEYS = [
    1, slice(None, None, -2), (slice(1, 3), 0), (None, 1), (..., 1), [0, 2], [[0, 1], [2, 3]],
    (slice(None), [1, 0]), ([0, 1], [1, 1]), (0, [2, 1]), ([2, 1], None, [0, 1]),
    np.arange(12).reshape(4, 3) % 2 == 0, np.array([True, False, True, False]), (np.array([True, False, True, False]), 1),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_gradients_of_reads(key):
    for tensor, expected in gradients((4, 3), key):
        np.testing.assert_allclose(tensor.grad.numpy(), expected)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_gradients_of_writes(key, whole):
    selected = numbered((4, 3))[key]
    value = numbered(selected.shape if whole else selected.shape[-1:]) + 100
    for tensor, expected in gradients((4, 3), key, value):
        np.testing.assert_allclose(tensor.grad.numpy(), expected)


def test_a_value_that_is_written_over_has_no_gradient():
    x, v = shard.zeros([3]), shard.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x[[0, 1, 0]] = v
    x.sum().backward()
    assert x.tolist() == [3, 2, 0] and v.grad.tolist() == [0, 1, 1]


def test_the_gradient_goes_through_a_conversion_of_the_value():
    x = shard.zeros([3], dtype="float64")
    v = shard.tensor([2.0], requires_grad=True)
    x[1] = v
    (x * 3.0).sum().backward()
    assert v.grad.tolist() == [3] and v.grad.dtype == shard.float32


def test_a_leaf_that_requires_a_gradient_is_not_written():
    x = shard.tensor([1.0, 2.0], requires_grad=True)
    for key in [0, [0], np.array([True, False])]:
        with pytest.raises(shard.AutogradError):
            x[key] = 3
    assert x.detach().tolist() == [1, 2]


def test_views_see_writes():
    x = shard.zeros([2, 3])
    flat = x.view(6)
    flat[[0, 5]] = 1
    x[:, 1] = 2
    assert x.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert flat.tolist() == [1, 2, 0, 0, 2, 1]


# Distributed tensors


def on_two_ranks(program):
    """The result of program(mesh), which is the same on both ranks."""
    results = shard.run(lambda: program(shard.ProcessMesh([2], ["x"])), nranks=2)
    assert repr(results[0]) == repr(results[1])
    return results[0]


DIST_KEYS = KEYS + [(slice(None, None, 2), slice(1, None)), True, ([0, 3], slice(0, 2)), (slice(0, 3), [2])]


@pytest.mark.skipif(not hasattr(shard, "run"), reason="needs worlds")
@pytest.mark.parametrize("placement", ["Shard(0)", "Shard(1)", "Replicate()"])
@pytest.mark.parametrize("key", DIST_KEYS, ids=str)
def test_distributed_tensors(key, placement):
    array = numbered((4, 3))

    def distributed(values, mesh):
        return shard.shard_tensor(shard.tensor(values), mesh, [eval("shard." + placement)])

    def read(mesh):
        found = distributed(array, mesh)[key]
        assert found.is_dist
        return found.full_tensor().tolist()

    assert on_two_ranks(read) == array[key].tolist()

    value = numbered(array[key].shape[-1:]) + 100
    for given in (5, value, shard.tensor(value)):
        expected = array.copy()
        expected[key] = 5 if isinstance(given, int) else value

        def write(mesh):
            x = distributed(array, mesh)
            before = x.version
            if isinstance(given, shard.Tensor):
                x[key] = shard.shard_tensor(given, mesh, [shard.Replicate()])
            else:
                x[key] = given
            assert x.version == before + 1
            return x.full_tensor().tolist()

        assert on_two_ranks(write) == expected.tolist()


@pytest.mark.skipif(not hasattr(shard, "run"), reason="needs worlds")
@pytest.mark.parametrize("key", DIST_KEYS, ids=str)
def test_gradients_of_distributed_tensors(key):
    array, selected = numbered((4, 3)), numbered((4, 3))[key]

    def program(mesh):
        x = shard.tensor(array, requires_grad=True)
        v = shard.tensor(selected * 0, requires_grad=True)
        y = shard.shard_tensor(x, mesh, [shard.Shard(0)])
        (y[key] * 2.0).sum().backward()
        read = x.grad.tolist()
        z = shard.shard_tensor(x, mesh, [shard.Shard(0)]).clone()
        z[key] = shard.shard_tensor(v, mesh, [shard.Replicate()])
        (z * shard.shard_tensor(shard.tensor(array), mesh, [shard.Shard(0)])).sum().backward()
        return read, x.grad.tolist(), v.grad.tolist()

    read = np.zeros((4, 3), np.float32)
    np.add.at(read, key, 2)
    written = array.copy()
    written[key] = 0
    assert on_two_ranks(program) == (read.tolist(), (read + written).tolist(), selected.tolist())


@pytest.mark.skipif(not hasattr(shard, "run"), reason="needs worlds")
def test_tensors_that_index_distributed_ones():
    array = numbered((4, 3))

    def program(mesh):
        x = shard.shard_tensor(shard.tensor(array), mesh, [shard.Shard(0)])
        x[x > 6.0] = 0
        index = shard.shard_tensor(shard.tensor([3, 0]), mesh, [shard.Replicate()])
        with pytest.raises(shard.OutOfRangeError, match="position 4 is outside dim 0 of size 4"):
            x[4]
        assert 6.0 in x and 7.0 not in x
        return x[index].full_tensor().tolist(), x[x > 4.0].full_tensor().tolist(), [row.full_tensor().tolist() for row in x]

    array_after = np.where(array > 6, 0, array)
    assert on_two_ranks(program) == (array_after[[3, 0]].tolist(), [5, 6], array_after.tolist())
