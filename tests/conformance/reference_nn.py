"""Functions of the ops of nn.yaml."""

import numpy as np
from scipy import special

OPS = {}
EPSILON = float(np.float32(1e-5))
EPSILON_2 = float(np.float32(1e-2))


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


def axis_of(call):
    return 0 if call.case == "axis 0" else -1


@op("softmax")
def softmax(call):
    return special.softmax(call.inputs[0], axis=axis_of(call))


def log_softmax_of(x, axis):
    """An infinity makes all of its line NaN, as in PaddlePaddle; SciPy keeps what is finite."""
    infinite = np.any(x == np.inf, axis=axis, keepdims=True)
    return np.where(infinite, np.nan, special.log_softmax(x, axis=axis))


@op("log_softmax")
def log_softmax(call):
    return log_softmax_of(call.inputs[0], axis_of(call))


for name in "softmax", "log_softmax":

    def of_nothing(call, f=OPS[name]):
        """SciPy refuses tensors without elements."""
        return f(call) if call.inputs[0].size else call.inputs[0]

    OPS[name] = of_nothing


@op("softmax_grad")
def softmax_grad(call):
    out, grad = call.inputs
    return out * (grad - np.sum(out * grad, axis=axis_of(call), keepdims=True))


@op("log_softmax_grad")
def log_softmax_grad(call):
    out, grad = call.inputs
    return grad - np.exp(out) * np.sum(grad, axis=axis_of(call), keepdims=True)


@op("embedding")
def embedding(call):
    ids, weight = call.inputs
    rows = weight[ids]
    return np.where((ids == 1)[..., None], 0, rows) if call.case == "padding 1" else rows


@op("embedding_grad")
def embedding_grad(call):
    ids, weight, grad = call.inputs
    out = np.zeros_like(weight)
    np.add.at(out, ids, grad)
    if call.case == "padding 1" and len(out) > 1:
        out[1] = 0
    return out


@op("layer_norm")
def layer_norm(call):
    x = call.inputs[0]
    axes = (1, 2) if call.case == "from dim 1" else (2,)
    mean, variance = np.mean(x, axis=axes, keepdims=True), np.var(x, axis=axes, keepdims=True)
    out = (x - mean) / np.sqrt(variance + EPSILON)
    if call.case == "from dim 1":
        scale, bias = (t.reshape(x.shape[1:]) for t in call.inputs[1:])
        out = out * scale + bias
    return [out, mean.squeeze(axes), variance.squeeze(axes)]


def normalised_grad(g, normal, inverse, axes):
    """The gradient of x, where normal = (x - mean) * inverse over the axes, and g is the gradient of normal."""
    mean = np.mean(g, axis=axes, keepdims=True)
    return inverse * (g - mean - normal * np.mean(g * normal, axis=axes, keepdims=True))


@op("layer_norm_grad")
def layer_norm_grad(call):
    if call.case == "from dim 1":
        x, scale, bias, mean, variance, grad = call.inputs
        axes, scale = (1, 2), scale.reshape(x.shape[1:])
    else:
        x, mean, variance, grad = call.inputs
        axes, scale = (2,), 1
    mean, variance = np.expand_dims(mean, axes), np.expand_dims(variance, axes)
    inverse = 1 / np.sqrt(variance + EPSILON_2)
    normal = (x - mean) * inverse
    x_grad = normalised_grad(grad * scale, normal, inverse, axes)
    if call.case != "from dim 1":
        return x_grad
    return [x_grad, np.sum(grad * normal, axis=0).ravel(), np.sum(grad, axis=0).ravel()]


@op("rms_norm")
def rms_norm(call):
    x, scale = call.inputs
    inverse = 1 / np.sqrt(np.mean(x * x, axis=-1) + EPSILON)
    return [x * inverse[..., None] * scale, inverse]


@op("rms_norm_grad")
def rms_norm_grad(call):
    x, scale, inverse, grad = call.inputs
    inverse = inverse[..., None]
    g = grad * scale
    x_grad = inverse * g - inverse**3 * x * np.mean(g * x, axis=-1, keepdims=True)
    return [x_grad, np.sum(grad * x * inverse, axis=(0, 1))]


def per_channel(call):
    """The axes that a channel is reduced over, and a function that gives a vector of channels the dims of x."""
    last = "channels last" in call.case
    return ((0, 1), lambda v: v.reshape(1, 1, -1)) if last else ((0, 2), lambda v: v.reshape(1, -1, 1))


@op("sync_batch_norm_")
@op("batch_norm")
def batch_norm(call):
    """out, mean_out, variance_out, saved_mean, saved_variance, and then mean and variance, which are those buffers."""
    x, mean, variance, *weights = call.inputs
    axes, wide = per_channel(call)
    if call.case == "test":
        used = mean, variance
    else:
        used = np.mean(x, axis=axes), np.var(x, axis=axes)
        mean, variance = mean * 0.5 + used[0] * 0.5, variance * 0.5 + used[1] * 0.5
    inverse = 1 / np.sqrt(used[1] + EPSILON_2)
    out = (x - wide(used[0])) * wide(inverse)
    if weights:
        out = out * wide(weights[0]) + wide(weights[1])
    return [out, mean, variance, used[0], inverse, mean, variance]


@op("batch_norm_grad")
def batch_norm_grad(call):
    x, mean, inverse, grad, *weights = call.inputs
    axes, wide = per_channel(call)
    normal = (x - wide(mean)) * wide(inverse)
    g = grad * wide(weights[0]) if weights else grad
    x_grad = g * wide(inverse) if call.case.startswith("test") else normalised_grad(g, normal, wide(inverse), axes)
    return [x_grad] + ([np.sum(grad * normal, axis=axes), np.sum(grad, axis=axes)] if weights else [])


@op("dropout")
def dropout(call):
    """In tests nothing is dropped."""
    x = call.inputs[0]
    out = x * 0.5 if call.case.startswith("downscale") else x
    return [out, np.ones(x.shape, dtype=np.int64)]


@op("dropout_grad")
def dropout_grad(call):
    mask, grad = call.inputs
    return np.where(mask != 0, grad / 0.5 if call.case == "upscale in train" else grad * 0.5, 0)


@op("label_smooth")
def label_smooth(call):
    label = call.inputs[0]
    prior = call.inputs[1] if len(call.inputs) > 1 else 1 / max(label.shape[-1], 1)
    return 0.75 * label + 0.25 * prior


@op("label_smooth_grad")
def label_smooth_grad(call):
    return 0.75 * call.inputs[0]


def loss_axis(call):
    return 1 if call.case in ("label without the axis, one ignored", "probabilities, soft label") else 2


def hard_label(call, label, classes):
    """A label as a vector of 0 and 1 along the axis, all 0 where it is ignored."""
    axis = loss_axis(call)
    if label.ndim < 3:
        label = np.expand_dims(label, axis)
    ignored = 1 if "one ignored" in call.case else -100
    shape = [1, 1, 1]
    shape[axis] = classes
    return ((label == np.arange(classes).reshape(shape)) & (label != ignored)).astype(np.float64)


@op("cross_entropy_with_softmax")
def cross_entropy_with_softmax(call):
    x, label = call.inputs
    axis = loss_axis(call)
    if "soft label" not in call.case:
        label = hard_label(call, label, x.shape[axis])
    given = call.case.startswith("probabilities")
    probabilities = x if given else special.softmax(x, axis=axis)
    logarithm = np.log(x) if given else log_softmax_of(x, axis)
    # A class without weight does not count, even if its logarithm is infinite.
    terms = np.where(label == 0, 0, label * logarithm)
    return [probabilities, -np.sum(terms, axis=axis, keepdims=True)]


@op("cross_entropy_with_softmax_grad")
def cross_entropy_with_softmax_grad(call):
    label, p, grad = call.inputs
    axis = loss_axis(call)
    if "soft label" not in call.case:
        label = hard_label(call, label, p.shape[axis])
    if call.case.startswith("probabilities"):
        return -label / p * grad
    return (p * np.sum(label, axis=axis, keepdims=True) - label) * grad


def attention_scores(q, k, mask, causal):
    """q k^T / sqrt(width) + mask for [batch, heads, queries, keys], -inf where a query does not see a key."""
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(q.shape[3])
    if mask is not None:
        scores = scores + mask
    if causal:
        s, t = scores.shape[2:]
        scores = np.where(np.arange(t)[None, :] <= np.arange(s)[:, None] + t - s, scores, -np.inf)
    return scores


def has_mask(call):
    return call.case in ("causal with mask", "one head of k and v")


def is_causal(call):
    return call.case in ("causal with mask", "heads in groups of two")


@op("flash_attn")
def flash_attn(call):
    q, k, v = call.inputs[:3]
    scores = attention_scores(q, k, call.inputs[4] if has_mask(call) else None, is_causal(call))
    with np.errstate(all="ignore"):
        lse = np.log(np.sum(np.exp(scores), axis=-1))
        weights = np.where(np.isneginf(lse)[..., None], 0, np.exp(scores - lse[..., None]))
    wide_v = np.repeat(v, q.shape[2] // v.shape[2], axis=2)
    return [np.einsum("bhst,bthd->bshd", weights, wide_v), weights, lse, np.zeros(2, dtype=np.int64)]


@op("flash_attn_grad")
def flash_attn_grad(call):
    """The weights are exp(score - softmax_lse), whatever that is; out_grad . out is the sum of weight * weight_grad."""
    q, k, v, out, lse, _, grad = call.inputs[:7]
    scores = attention_scores(q, k, call.inputs[7] if has_mask(call) else None, is_causal(call))
    weights = np.exp(scores - lse[..., None])
    groups = q.shape[2] // k.shape[2]
    wide_k, wide_v = np.repeat(k, groups, axis=2), np.repeat(v, groups, axis=2)
    weight_grad = np.einsum("bshd,bthd->bhst", grad, wide_v)
    delta = np.einsum("bshd,bshd->bhs", grad, out)
    score_grad = weights * (weight_grad - delta[..., None]) / np.sqrt(q.shape[3])
    q_grad = np.einsum("bhst,bthd->bshd", score_grad, wide_k)
    k_grad = np.einsum("bhst,bshd->bthd", score_grad, q)
    v_grad = np.einsum("bhst,bshd->bthd", weights, grad)

    def of_groups(g):
        b, t, h, d = g.shape
        return g.reshape(b, t, h // groups, groups, d).sum(axis=3)

    return [q_grad, of_groups(k_grad), of_groups(v_grad)]


def turned(x, sin, cos, ids, neighbours, time_major, back):
    """x [batch, sequence, heads, width] with its pairs turned by the angles of their positions."""
    if time_major:
        x = np.swapaxes(x, 0, 1)
    b, s, h, d = x.shape
    at = np.broadcast_to(np.arange(s), (b, s)) if ids is None else ids
    if sin is None:
        angle = at[..., None] / 100.0 ** (2 * np.arange(d // 2) / d)
        join = np.repeat if neighbours else np.tile
        angle = join(angle, 2, axis=-1) if neighbours else join(angle, (1, 1, 2))
        sin, cos = np.sin(angle), np.cos(angle)
    else:
        sin, cos = sin[at], cos[at]
    sin, cos = sin[:, :, None, :], cos[:, :, None, :]
    out = np.empty_like(x)
    first, second = (np.s_[..., 0::2], np.s_[..., 1::2]) if neighbours else (np.s_[..., : d // 2], np.s_[..., d // 2 :])
    if back:  # the transpose of the forward matrix, pair by pair
        out[first] = x[first] * cos[first] + x[second] * sin[second]
        out[second] = x[second] * cos[second] - x[first] * sin[first]
    else:
        out[first] = x[first] * cos[first] - x[second] * sin[first]
        out[second] = x[second] * cos[second] + x[first] * sin[second]
    return np.swapaxes(out, 0, 1) if time_major else out


def rope(call, back):
    with_k = call.case in ("q and k, halves", "table", "ids")
    has_table, has_ids = "table" in call.case, "ids" in call.case
    rest = call.inputs[2 if with_k else 1 :]
    sin, cos = rest[:2] if has_table else (None, None)
    ids = call.inputs[-1] if has_ids else None
    major = "sequence first" in call.case
    neighbours = call.case in ("q alone", "table", "ids")
    tensors = call.inputs[: 2 if with_k else 1]
    return [turned(x, sin, cos, ids, neighbours, major, back) for x in tensors]


@op("fused_rotary_position_embedding")
def fused_rotary_position_embedding(call):
    return rope(call, False)


@op("fused_rotary_position_embedding_grad")
def fused_rotary_position_embedding_grad(call):
    return rope(call, True)


@op("fused_linear_param_grad_add")
def fused_linear_param_grad_add(call):
    x, grad = call.inputs[:2]
    k, n = x.shape[-1], grad.shape[-1]
    weight = x.reshape(-1, k).T @ grad.reshape(-1, n) if x.size or k == 0 or n == 0 or grad.size else np.zeros((k, n))
    bias = grad.sum(axis=(0, 1))
    if call.case == "new":
        return [weight, bias]
    if call.case == "added to both":
        return [weight + call.inputs[2], bias + call.inputs[3]]
    return [weight + call.inputs[2], np.zeros(0)]


@op("spectral_norm")
def spectral_norm(call):
    weight, left, right = call.inputs
    matrix = np.moveaxis(weight, int(call.case[-1]), 0).reshape(len(left), len(right))
    return weight / (left @ matrix @ right)
