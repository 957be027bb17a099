"""Functions of the ops of conv.yaml: sums over the places of a filter, and over those of the windows of a pooling."""

import itertools
from dataclasses import dataclass

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


def channels_first(x, last):
    return np.moveaxis(x, -1, 1) if last else x


def as_given(x, last):
    return np.moveaxis(x, 1, -1) if last else x


# Convolutions


@dataclass
class Convolution:
    """Attributes of a convolution; paddings are those before each dim, which here equal those after it."""

    strides: tuple
    paddings: tuple
    dilations: tuple = ()
    groups: int = 1  # 0 for as many as channels
    last: bool = False
    same: bool = False
    output_padding: tuple = ()

    def dilation(self, d):
        return self.dilations[d] if self.dilations else 1

    def around(self, size, kernel, d):
        """The numbers of elements before and after dim d."""
        if not self.same:
            return self.paddings[d], self.paddings[d]
        total = max((-(-size // self.strides[d]) - 1) * self.strides[d] + kernel - size, 0)
        return total // 2, total - total // 2

    def out_size(self, size, kernel, d):
        if self.same:
            return -(-size // self.strides[d])
        extent = self.dilation(d) * (kernel - 1) + 1
        return (size + sum(self.around(size, kernel, d)) - extent) // self.strides[d] + 1

    def transposed_size(self, size, kernel, d):
        extent = self.dilation(d) * (kernel - 1) + 1
        return (size - 1) * self.strides[d] - 2 * self.paddings[d] + extent + self.output_padding[d]

    def out_space(self, space, kernel):
        return tuple(self.out_size(s, k, d) for d, (s, k) in enumerate(zip(space, kernel)))

    def taps(self, space, kernel, out_space):
        """(place in the result, place in the filter, place in the image) of every product; a place in the padding has
        none."""
        for at in itertools.product(*map(range, out_space)):
            for tap in itertools.product(*map(range, kernel)):
                place = tuple(
                    at[d] * self.strides[d] - self.around(space[d], kernel[d], d)[0] + tap[d] * self.dilation(d)
                    for d in range(len(space))
                )
                if all(0 <= p < s for p, s in zip(place, space)):
                    yield (np.s_[:], np.s_[:], *at), (np.s_[:], np.s_[:], *tap), (np.s_[:], np.s_[:], *place)

    def groups_of(self, image_channels, out_channels):
        """The channels of the image, and of the result, of each group."""
        count = self.groups or image_channels
        c, o = image_channels // count, out_channels // count
        for g in range(count):
            yield np.s_[:, g * c : (g + 1) * c], np.s_[g * o : (g + 1) * o]


CONVOLUTIONS = {
    ("conv2d", "strides and padding"): Convolution((2, 1), (1, 1)),
    ("conv2d", "channels last, same"): Convolution((2, 2), (0, 0), last=True, same=True),
    ("conv2d", "two groups"): Convolution((1, 1), (0, 0), dilations=(1, 2), groups=2),
    ("depthwise_conv2d", "one channel in, one out"): Convolution((1, 1), (0, 0), groups=0),
    ("conv3d", "padding"): Convolution((1, 1, 1), (0, 0, 1)),
    ("conv2d_transpose", "one group"): Convolution((2, 2), (0, 1), output_padding=(1, 0)),
    ("conv2d_transpose", "channels last"): Convolution((2, 2), (0, 1), last=True, output_padding=(1, 0)),
    ("conv2d_transpose", "two groups"): Convolution((2, 2), (0, 1), groups=2, output_padding=(1, 0)),
    ("depthwise_conv2d_transpose", "one channel in, one out"): Convolution(
        (2, 2), (0, 1), groups=0, output_padding=(1, 0)
    ),
    ("conv3d_transpose", "one group"): Convolution((1, 2, 2), (0, 0, 1), output_padding=(0, 1, 0)),
    ("conv3d_transpose", "channels last"): Convolution((1, 2, 2), (0, 0, 1), last=True, output_padding=(0, 1, 0)),
    ("conv3d_transpose", "two groups"): Convolution((1, 2, 2), (0, 0, 1), groups=2, output_padding=(0, 1, 0)),
}


def convolved(spec, x, weight):
    """x [n, c, space..] and weight [o, c / groups, taps..] -> [n, o, space..]"""
    space, kernel = x.shape[2:], weight.shape[2:]
    out_space = spec.out_space(space, kernel)
    out = np.zeros((x.shape[0], weight.shape[0], *out_space))
    for of_x, of_out in spec.groups_of(x.shape[1], weight.shape[0]):
        part = out[:, of_out]
        for at, tap, place in spec.taps(space, kernel, out_space):
            part[at] += np.einsum("nc,oc->no", x[of_x][place], weight[of_out][tap])
    return out


def adjoint_of_image(spec, grad, weight, channels, space):
    """The gradient of x of convolved(), as the transpose of its loop."""
    x_grad = np.zeros((grad.shape[0], channels, *space))
    for of_x, of_out in spec.groups_of(channels, weight.shape[0]):
        part = x_grad[of_x]
        for at, tap, place in spec.taps(space, weight.shape[2:], grad.shape[2:]):
            part[place] += np.einsum("no,oc->nc", grad[:, of_out][at], weight[of_out][tap])
    return x_grad


def adjoint_of_filter(spec, x, grad, shape):
    """The gradient of weight of convolved()."""
    weight_grad = np.zeros(shape)
    for of_x, of_out in spec.groups_of(x.shape[1], shape[0]):
        part = weight_grad[of_out]
        for at, tap, place in spec.taps(x.shape[2:], shape[2:], grad.shape[2:]):
            part[tap] += np.einsum("no,nc->oc", grad[:, of_out][at], x[of_x][place])
    return weight_grad


def convolution(name):
    def forward(call):
        x, weight = call.inputs
        spec = CONVOLUTIONS[name, call.case]
        return as_given(convolved(spec, channels_first(x, spec.last), weight), spec.last)

    def gradient(call):
        x, weight, grad = call.inputs
        spec = CONVOLUTIONS[name, call.case]
        x, grad = channels_first(x, spec.last), channels_first(grad, spec.last)
        x_grad = adjoint_of_image(spec, grad, weight, x.shape[1], x.shape[2:])
        return [as_given(x_grad, spec.last), adjoint_of_filter(spec, x, grad, weight.shape)]

    OPS[name], OPS[name + "_grad"] = forward, gradient


for each in "conv2d", "depthwise_conv2d", "conv3d":
    convolution(each)


def transposed_convolution(name):
    def forward(call):
        """x is a result of the convolution with this filter, and out an image."""
        x, weight = call.inputs
        spec = CONVOLUTIONS[name, call.case]
        x = channels_first(x, spec.last)
        space = tuple(spec.transposed_size(x.shape[d + 2], weight.shape[d + 2], d) for d in range(x.ndim - 2))
        channels = weight.shape[1] * (spec.groups or x.shape[1])
        return as_given(adjoint_of_image(spec, x, weight, channels, space), spec.last)

    def gradient(call):
        x, weight, grad = call.inputs
        spec = CONVOLUTIONS[name, call.case]
        x, grad = channels_first(x, spec.last), channels_first(grad, spec.last)
        # The places of the image that output_padding adds may be too few for one more result.
        x_grad = convolved(spec, grad, weight)
        assert x_grad.shape == x.shape
        return [as_given(x_grad, spec.last), adjoint_of_filter(spec, grad, x, weight.shape)]

    OPS[name], OPS[name + "_grad"] = forward, gradient


for each in "conv2d_transpose", "conv3d_transpose":
    transposed_convolution(each)
transposed_convolution("depthwise_conv2d_transpose")
del OPS["depthwise_conv2d_transpose_grad"]  # that of conv2d_transpose


# Pooling


@dataclass
class Pool:
    type: str
    size: tuple
    strides: tuple
    paddings: tuple
    last: bool = False
    ceil: bool = False
    exclusive: bool = True
    whole: bool = False  # global_pooling
    adaptive: bool = False

    def windows_of_dim(self, length, d):
        """(first, after the last, number that a mean counts) of each window along a dim."""
        if self.whole:
            return [(0, length, length)]
        if self.adaptive:
            count = self.size[d]
            ends = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
            return [(first, end, end - first) for first, end in ends]
        size, stride, padding = self.size[d], self.strides[d], self.paddings[d]
        count = (length + 2 * padding - size + (stride - 1 if self.ceil else 0)) // stride + 1
        windows = []
        for i in range(count):
            first = i * stride - padding
            end = min(first + size, length + padding)
            inside = max(first, 0), min(end, length)
            windows.append((*inside, inside[1] - inside[0] if self.exclusive else end - first))
        return windows

    def windows(self, space):
        """The place of each window in the result, the places in an image of its elements, counted row by row, and the
        number that a mean counts."""
        places = np.arange(np.prod(space)).reshape(space)
        dims = [list(enumerate(self.windows_of_dim(length, d))) for d, length in enumerate(space)]
        for window in itertools.product(*dims):
            at = (np.s_[:], np.s_[:], *(i for i, _ in window))
            box = tuple(np.s_[first:end] for _, (first, end, _) in window)
            yield at, places[box].ravel(), np.prod([counted for _, (_, _, counted) in window])

    def out_shape(self, shape):
        return shape[:2] + tuple(len(self.windows_of_dim(length, d)) for d, length in enumerate(shape[2:]))


def pool2d_spec(kind, **attributes):
    return Pool(kind, (3, 3), (2, 2), (1, 1), **attributes)


POOLS = {
    "max": pool2d_spec("max"),
    "mean of inner elements": pool2d_spec("avg", ceil=True),
    "mean with padding, channels last": pool2d_spec("avg", last=True, exclusive=False),
    "global max, channels last": pool2d_spec("max", last=True, whole=True),
    "adaptive mean": pool2d_spec("avg", adaptive=True),
}
POOLS_3D = {kind: Pool(kind, (2, 1, 2), (1, 1, 1), (0, 0, 0)) for kind in ("max", "avg")}
WINDOWS_OF_TWO = Pool("max", (2, 2), (1, 1), (0, 0))
WINDOWS_OF_TWO_3D = Pool("max", (2, 2, 2), (1, 1, 1), (0, 0, 0))


def flat(x):
    """The images of x with one dim."""
    return x.reshape(*x.shape[:2], int(np.prod(x.shape[2:])))


def largest_places(pool, x):
    """The place in its image of the first of the largest elements of each window: of the first NaN, if there is one,
    which is what argmax finds."""
    images = flat(x)
    mask = np.zeros(pool.out_shape(x.shape), dtype=np.int64)
    for at, places, _ in pool.windows(x.shape[2:]):
        mask[at] = places[np.argmax(images[:, :, places], axis=-1)]
    return mask


def at_places(x, mask):
    """The elements of x at the places in mask."""
    return np.take_along_axis(flat(x), flat(mask), axis=-1).reshape(mask.shape)


def added_at_places(shape, mask, grad):
    x_grad = np.zeros(shape)
    images, places, grads = flat(x_grad), flat(mask), flat(grad)
    for i, j, k in itertools.product(*map(range, places.shape)):
        images[i, j, places[i, j, k]] += grads[i, j, k]
    return x_grad


def means(pool, x):
    images = flat(x)
    out = np.zeros(pool.out_shape(x.shape))
    for at, places, counted in pool.windows(x.shape[2:]):
        out[at] = np.sum(images[:, :, places], axis=-1) / counted
    return out


def pooled(pool, x):
    return at_places(x, largest_places(pool, x)) if pool.type == "max" else means(pool, x)


def pooled_grad(pool, x, grad):
    if pool.type == "max":
        return added_at_places(x.shape, largest_places(pool, x), grad)
    x_grad = np.zeros(x.shape)
    images = flat(x_grad)
    for at, places, counted in pool.windows(x.shape[2:]):
        images[:, :, places] += grad[at][..., None] / counted
    return x_grad


def pooled_double_grad(pool, x, grad):
    """The gradient of a pooling is linear in that of out; this is its transpose."""
    return at_places(grad, largest_places(pool, x)) if pool.type == "max" else means(pool, grad)


def pooling(name, specs):
    def of(function):
        def run(call):
            pool = specs[call.case]
            return as_given(function(pool, *(channels_first(x, pool.last) for x in call.inputs)), pool.last)

        return run

    OPS[name] = of(pooled)
    OPS[name + "_grad"] = of(pooled_grad)
    OPS[name + "_double_grad"] = of(pooled_double_grad)


pooling("pool2d", POOLS)
pooling("pool3d", POOLS_3D)


def pooling_with_index(name, pool):
    def forward(call):
        mask = largest_places(pool, call.inputs[0])
        return [at_places(call.inputs[0], mask), mask]

    def gradient(call):
        x, mask, grad = call.inputs
        return added_at_places(x.shape, mask, grad)

    def double_gradient(call):
        _, mask, grad = call.inputs
        return at_places(grad, mask)

    OPS[name] = forward
    OPS[name + "_grad"] = gradient
    OPS[name + "_double_grad"] = double_gradient


pooling_with_index("max_pool2d_with_index", WINDOWS_OF_TWO)
pooling_with_index("max_pool3d_with_index", WINDOWS_OF_TWO_3D)
