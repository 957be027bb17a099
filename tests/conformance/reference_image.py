"""Functions of the ops of image.yaml: each output is a weighted sum of elements, along one space dim after the other."""

import re

import numpy as np

OPS = {}


class Interpolation:
    """The attributes of a case, from its name: 'bilinear 2 3 to 4 5, corners aligned'."""

    def __init__(self, name):
        self.method = name.split(" ")[0]
        sizes, *options = name.split(", ")
        before, after = re.sub("[a-z]+ ", "", sizes, count=1).split(" to ")
        self.sizes = [int(size) for size in before.split(" ")]
        self.outputs = [int(size) for size in after.split(" ")]
        self.corners = "corners aligned" in options
        self.middles = "middles" in options
        self.last = "channels last" in options

    def place(self, o, size, outputs):
        """Where output o lies between the elements of a dim."""
        if self.corners:
            return o * (size - 1) / (outputs - 1) if outputs > 1 else 0.0
        if self.method == "bicubic" or (self.middles and self.method != "nearest"):
            return (o + 0.5) * size / outputs - 0.5
        return o * size / outputs

    def elements(self, o, size, outputs):
        """The elements whose weighted sum is output o, each with its weight."""
        at = self.place(o, size, outputs)
        if self.method == "nearest":
            pairs = [(int(at + 0.5) if self.corners else int(at), 1.0)]
        elif self.method == "bicubic":
            first = int(np.floor(at))
            pairs = [(k, cubic(abs(at - k))) for k in range(first - 1, first + 3)]
        else:
            at = max(at, 0.0)
            pairs = [(int(at), 1 - (at - int(at))), (int(at) + 1, at - int(at))]
        return [(min(max(k, 0), size - 1), weight) for k, weight in pairs]

    def applied(self, x, transposed):
        """The weighted sums along each space dim of x, or the gradients of elements from those of the sums."""
        for d, (size, outputs) in enumerate(zip(self.sizes, self.outputs)):
            axis = d + (1 if self.last else 2)
            lines = np.moveaxis(x, axis, 0)
            result = np.zeros((size if transposed else outputs, *lines.shape[1:]))
            for o in range(outputs):
                for k, weight in self.elements(o, size, outputs):
                    if transposed:
                        result[k] += weight * lines[o]
                    else:
                        result[o] += weight * lines[k]
            x = np.moveaxis(result, 0, axis)
        return x


def cubic(distance, a=-0.75):
    """The weight of an element at that distance in a cubic convolution."""
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a


for name in ("linear_interp", "bilinear_interp", "trilinear_interp", "bicubic_interp", "nearest_interp"):
    OPS[name] = lambda call: Interpolation(call.case).applied(call.inputs[0], False)
    OPS[name + "_grad"] = lambda call: Interpolation(call.case).applied(call.inputs[1], True)
