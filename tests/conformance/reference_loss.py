"""Functions of the ops of loss.yaml and fused.yaml, and of the normalisations of images of nn.yaml."""

import numpy as np
from scipy import special

from reference_elementwise import gelu_tanh_argument, silu
from reference_nn import EPSILON_2, log_softmax_of, normalised_grad

OPS = {}
HALF = 0.5  # the epsilon of log_loss and the delta of huber_loss, of type float
LEAST_LOGARITHM = -100
LEAST_DIVISOR = 1e-12


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


# Normalisations of images


class Groups:
    """Images with their channels in groups: x as [n, groups, channels of a group, elements]."""

    def __init__(self, call):
        self.last = call.case == "channels last"
        self.groups = 1 if call.case == "without scale and bias" else 2

    def split(self, x):
        x = np.moveaxis(x, -1, 1) if self.last else x
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, int(np.prod(x.shape[2:])))

    def joined(self, x, shape):
        """Back to the dims of x."""
        n, groups, channels, elements = x.shape
        x = x.reshape(n, groups * channels, elements)
        return (np.moveaxis(x, 1, -1) if self.last else x).reshape(shape)

    def wide(self, weight):
        """A vector of channels."""
        return weight.reshape(1, self.groups, -1, 1)


@op("group_norm")
def group_norm(call):
    x, *weights = call.inputs
    images = Groups(call)
    split = images.split(x)
    mean, variance = np.mean(split, axis=(2, 3), keepdims=True), np.var(split, axis=(2, 3), keepdims=True)
    out = (split - mean) / np.sqrt(variance + EPSILON_2)
    if weights:
        out = out * images.wide(weights[0]) + images.wide(weights[1])
    return [images.joined(out, x.shape), mean.squeeze((2, 3)), variance.squeeze((2, 3))]


@op("group_norm_grad")
def group_norm_grad(call):
    x, scale, _, mean, variance, grad = call.inputs
    images = Groups(call)
    split, grads = images.split(x), images.split(grad)
    inverse = 1 / np.sqrt(variance[:, :, None, None] + EPSILON_2)
    normal = (split - mean[:, :, None, None]) * inverse
    x_grad = normalised_grad(grads * images.wide(scale), normal, inverse, (2, 3))
    return [
        images.joined(x_grad, x.shape),
        np.sum(grads * normal, axis=(0, 3)).ravel(),
        np.sum(grads, axis=(0, 3)).ravel(),
    ]


@op("instance_norm")
def instance_norm(call):
    x, scale, bias = call.inputs
    mean = np.mean(x, axis=2)
    inverse = 1 / np.sqrt(np.var(x, axis=2) + EPSILON_2)
    out = (x - mean[..., None]) * inverse[..., None] * scale[:, None] + bias[:, None]
    return [out, mean, inverse]


@op("instance_norm_grad")
def instance_norm_grad(call):
    x, scale, _, mean, inverse, grad = call.inputs
    inverse = inverse[..., None]
    normal = (x - mean[..., None]) * inverse
    x_grad = normalised_grad(grad * scale[:, None], normal, inverse, 2)
    return [x_grad, np.sum(grad * normal, axis=(0, 2)), np.sum(grad, axis=(0, 2))]


# Losses of elements


@op("bce_loss")
def bce_loss(call):
    x, label = call.inputs
    log_x, log_rest = np.maximum(np.log(x), LEAST_LOGARITHM), np.maximum(np.log(1 - x), LEAST_LOGARITHM)
    return -(label * log_x + (1 - label) * log_rest)


@op("bce_loss_grad")
def bce_loss_grad(call):
    x, label, grad = call.inputs
    return grad * (x - label) / np.maximum(x * (1 - x), LEAST_DIVISOR)


@op("log_loss")
def log_loss(call):
    x, label = call.inputs
    return -label * np.log(x + HALF) - (1 - label) * np.log(1 - x + HALF)


@op("log_loss_grad")
def log_loss_grad(call):
    x, label, grad = call.inputs
    return grad * ((1 - label) / (1 - x + HALF) - label / (x + HALF))


@op("huber_loss")
def huber_loss(call):
    x, label = call.inputs
    residual = label - x
    size = np.abs(residual)
    return [np.where(size <= HALF, residual**2 / 2, HALF * (size - HALF / 2)), residual]


@op("huber_loss_grad")
def huber_loss_grad(call):
    x, label, grad = call.inputs
    label_grad = grad * np.clip(label - x, -HALF, HALF)
    return [-label_grad, label_grad]


@op("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy_with_logits(call):
    x, label, *weight = call.inputs
    of_true = label - 1 + (weight[0] if weight else 1)
    out = of_true * np.logaddexp(0, -x) + (1 - label) * np.logaddexp(0, x)  # which cancels nothing
    counted = label != -100
    out = np.where(counted, out, 0)
    return out / (np.sum(counted) or 1e-5) if call.case == "weighted and normalised" else out


@op("kldiv_loss")
def kldiv_loss(call):
    x, label = call.inputs
    if call.case == "sum of logarithms":
        return np.sum(np.exp(label) * (label - x))
    return np.sum(np.where(label > 0, label * (np.log(label) - x), 0)) / len(x)


# Losses of classes: input [n, c, 2] and label [n, 2]


MARGINS = {"an angle is added": (1, 0.5, 0), "all margins": (1.25, 0.25, 0.125), "a cosine is subtracted": (1, 0, 0.5)}
MARGIN_SCALE = 4


def at_labels(label, classes):
    """1 at the class of each row, 0 elsewhere."""
    return (label.reshape(-1, 1) == np.arange(classes)).astype(np.float64)


@op("margin_cross_entropy")
def margin_cross_entropy(call):
    x, label = call.inputs[0] / 4, call.inputs[1]
    factor, angle, cosine = MARGINS[call.case]
    chosen = at_labels(label, x.shape[1])
    turned = np.cos(factor * np.arccos(x) + angle) if (factor, angle) != (1, 0) else x
    scaled = MARGIN_SCALE * np.where(chosen == 1, turned - cosine, x)
    logarithms = np.where(chosen == 1, log_softmax_of(scaled, 1), 0)
    return [special.softmax(scaled, axis=1), -np.sum(logarithms, axis=1, keepdims=True)]


@op("margin_cross_entropy_grad")
def margin_cross_entropy_grad(call):
    x, label, softmax, grad = call.inputs
    x = x / 4
    factor, angle, _ = MARGINS[call.case]
    chosen = at_labels(label, x.shape[1])
    slope = factor * np.sin(factor * np.arccos(x) + angle) / np.sqrt(1 - x * x) if (factor, angle) != (1, 0) else 1
    return MARGIN_SCALE * grad * np.where(chosen == 1, (softmax - 1) * slope, softmax)


@op("nll_loss")
def nll_loss(call):
    x, label, *weight = call.inputs
    out = -np.take_along_axis(x, label[:, None], axis=1)[:, 0]
    weights = weight[0][label] if weight else np.ones(label.shape)
    if weight:
        out = out * weights
    if call.case == "none":
        return [out, np.float64(0)]
    total = np.sum(weights)
    return [np.sum(out) / (total if call.case == "mean" and total != 0 else 1), total]


@op("nll_loss_grad")
def nll_loss_grad(call):
    x, label, total, grad, *weight = call.inputs
    at_label = -np.broadcast_to(grad, label.shape)
    if weight:
        at_label = at_label * weight[0][label]
    if call.case == "mean" and total != 0:
        at_label = at_label / total
    x_grad = np.zeros(x.shape)
    np.put_along_axis(x_grad, label[:, None], at_label[:, None], axis=1)
    return x_grad


# Fused layers


@op("fused_gemm_epilogue")
def fused_gemm_epilogue(call):
    x, y, bias = call.inputs
    sums = np.einsum("mk,nk->mn", x, y) + bias
    return sums / 2 * (1 + np.tanh(gelu_tanh_argument(sums)))


def gelu(x):
    return np.where(np.isneginf(x), 0.0, x * special.ndtr(x))


@op("fused_bias_act")
def fused_bias_act(call):
    x = call.inputs[0] + call.inputs[1]
    if call.case == "gelu":
        return gelu(x)
    first, second = np.split(x, 2, axis=-1)
    return (silu if call.case == "swiglu" else gelu)(first) * second


@op("fused_softmax_mask")
def fused_softmax_mask(call):
    x, mask = call.inputs
    return special.softmax(x + mask, axis=-1)


@op("fused_softmax_mask_upper_triangle")
def fused_softmax_mask_upper_triangle(call):
    x = call.inputs[0]
    out = np.zeros(x.shape)
    for row in range(x.shape[2] if x.size else 0):  # SciPy refuses tensors without elements
        out[:, :, row, : row + 1] = special.softmax(x[:, :, row, : row + 1], axis=-1)
    return out


@op("fused_bias_residual_layernorm")
def fused_bias_residual_layernorm(call):
    x, bias, residual, weight, shift = call.inputs
    total = x + bias + 2 * residual
    mean, variance = total.mean(-1, keepdims=True), total.var(-1, keepdims=True)
    return [(total - mean) / np.sqrt(variance + HALF) * weight + shift, total]


@op("accuracy")
def accuracy(call):
    _, indices, label = call.inputs
    correct = int(np.sum(np.any(indices == label, axis=1)))
    return [np.array(correct / max(len(label), 1)), np.array(correct), np.array(len(label))]


@op("auc")
def auc(call):
    """Four values of predictions."""
    x, label, positive, negative, *weight = call.inputs
    stats = [negative.copy(), positive.copy()]
    place = [min(int(p * 3), 3) for p in x[:, 1]]
    rows = [(int(kind > 0), at) for kind, at in zip(label[:, 0], place) if kind >= 0]
    if weight and weight[0][0] == 0:
        rows = []
    first, sums = 0, 0
    if call.case != "all calls":
        first, sums = int(positive[-1]) % 2 * 4, 8
        for stat in stats:
            stat[sums:sums + 4] -= stat[first:first + 4]
            stat[first:first + 4] = 0
            stat[-1] += 1
    for kind, at in rows:
        for begin in {first, sums}:
            stats[kind][begin + at] += 1
    negatives, positives = [np.cumsum(stat[sums:sums + 4][::-1]) for stat in stats]
    area = 0.0
    if negatives[-1] > 0 and positives[-1] > 0:
        area = np.trapezoid(np.append(0, positives), np.append(0, negatives)) / (negatives[-1] * positives[-1])
    shape = (1, 4) if call.case == "all calls" else (13,)
    return [np.float64(area), stats[1].reshape(shape), stats[0].reshape(shape)]
