"""Calls of the ops that are composed of others, which leave no trace of their own: by function and name of the case.

A call gets the package, the inputs and the dtype in which it is made. runtime/shard/testing/op_cases_*.cc have the same
calls in C++; the expected results are those of tests/conformance.
"""

import math


def square_plus(s, x, factor):
    """Matrices plus a multiple of the identity, which have an inverse."""
    return s.add(x, s.tril(s.triu(s.full_like(x, factor), 0), 0))


def symmetric(s, x):
    return s.add(x, s.transpose(x, [0, 2, 1]))


# Of all_axes() in op_cases_reduce.cc.
AXES = [("axis {}", [], False), ("axis {}, keepdim", [], True), ("axis 0", 0, False), ("axis 1, keepdim", [1], True),
        ("axis -1 and 0", (-1, 0), False)]


CASES = {
    # indexing.yaml
    ("flip", "axis 0"): lambda s, t, d: s.flip(t[0], [0]),
    ("flip", "axes -1 and 0"): lambda s, t, d: s.flip(t[0], axis=[-1, 0]),
    ("reverse", "axis 1"): lambda s, t, d: s.reverse(t[0], [1]),
    ("pad3d", "constant"): lambda s, t, d: s.pad3d(t[0], [1, 0, 0, 2, 0, 0]),
    ("pad3d", "reflect"): lambda s, t, d: s.pad3d(t[0], [2, 1, 1, 0, 0, 1], "reflect", 0, "NDHWC"),
    ("pad3d", "replicate"): lambda s, t, d: s.pad3d(t[0], [2, 1, 0, 0, 0, 3], mode="replicate"),
    ("pad3d", "circular"): lambda s, t, d: s.pad3d(t[0], [1, 0, 2, 1, 0, 0], "circular"),
    ("crop", "from 0 to the end"): lambda s, t, d: s.crop(t[0], [-1, -1]),
    ("crop", "one column"): lambda s, t, d: s.crop(t[0], [-1, 1], [0, 1]),
    ("repeat_interleave", "axis 0"): lambda s, t, d: s.repeat_interleave(t[0], 3, 0),
    ("repeat_interleave", "axis -1"): lambda s, t, d: s.repeat_interleave(t[0], repeats=2, axis=-1),
    ("unstack", "axis 1"): lambda s, t, d: s.unstack(t[0], 1, 3),
    ("meshgrid", "three tensors"): lambda s, t, d: s.meshgrid(t),
    ("broadcast_tensors", "three tensors"): lambda s, t, d: s.broadcast_tensors(t),
    ("view_shape", "one row"): lambda s, t, d: s.view_shape(t[0], [1, -1]),
    ("diagonal", "of a matrix"): lambda s, t, d: s.diagonal(t[0]),
    ("diagonal", "offset 1 of axes 2 and 0"): lambda s, t, d: s.diagonal(t[0], 1, 2, 0),
    ("diagonal", "offset -1 of axes 1 and 2"): lambda s, t, d: s.diagonal(t[0], offset=-1, axis1=1, axis2=2),
    ("diag", "of a matrix"): lambda s, t, d: s.diag(t[0], 1),
    ("diag", "of a row"): lambda s, t, d: s.diag(t[0], -1),
    ("diag", "of a row, on 2"): lambda s, t, d: s.diag(t[0], 1, 2),
    ("diag_embed", "last dims"): lambda s, t, d: s.diag_embed(t[0]),
    ("diag_embed", "offset 1 in dims 2 and 0"): lambda s, t, d: s.diag_embed(t[0], 1, 2, 0),
    ("trace", "of a matrix"): lambda s, t, d: s.trace(t[0], -1),
    ("trace", "axes 0 and 2"): lambda s, t, d: s.trace(t[0], 0, 0, 2),
    ("pixel_shuffle", "by 2"): lambda s, t, d: s.pixel_shuffle(t[0], 2),
    ("pixel_shuffle", "by 2, channels last"): lambda s, t, d: s.pixel_shuffle(t[0], 2, "NHWC"),
    ("pixel_unshuffle", "by 2"): lambda s, t, d: s.pixel_unshuffle(t[0], 2),
    ("channel_shuffle", "two groups"): lambda s, t, d: s.channel_shuffle(t[0], 2),
    ("channel_shuffle", "two groups, channels last"): lambda s, t, d: s.channel_shuffle(t[0], 2, "NHWC"),
    ("temporal_shift", "two frames"): lambda s, t, d: s.temporal_shift(t[0], 2),
    ("maxout", "groups of 2"): lambda s, t, d: s.maxout(t[0], 2),
    ("index_select", "axis 1"): lambda s, t, d: s.index_select(t[0], t[1], 1),
    ("index_sample", "of two dims"): lambda s, t, d: s.index_sample(t[0], t[1]),
    # dynamic.yaml: shapes that come from data
    ("unique", "values"): lambda s, t, d: s.unique(t[0])[0],
    ("unique", "with indices, inverse and counts"): lambda s, t, d: s.unique(t[0], True, True, True, "int32"),
    ("unique_consecutive", "elements"): lambda s, t, d: s.unique_consecutive(t[0], True, True, [], "int64"),
    ("unique_consecutive", "columns"): lambda s, t, d: s.unique_consecutive(t[0], True, True, [1], s.int32),
    ("unique_consecutive_rows", "rows alone"): lambda s, t, d: s.unique_consecutive_rows(t[0]),
    ("unique_consecutive_rows", "with index and counts"): lambda s, t, d: s.unique_consecutive_rows(
        t[0], True, True, "int32"
    ),
    ("bincount", "at least 4"): lambda s, t, d: s.bincount(t[0], None, 4),
    ("bincount", "weights"): lambda s, t, d: s.bincount(t[0], t[1]),
    **{("nonzero", f"of {n} dims"): lambda s, t, d: s.nonzero(t[0]) for n in range(4)},
    **{("masked_select", f"of {n} dims"): lambda s, t, d: s.masked_select(t[0], t[1]) for n in range(4)},
    ("nms", "half"): lambda s, t, d: s.nms(t[0], 0.5),
    ("nms", "any"): lambda s, t, d: s.nms(t[0], 0.0),
    **{
        ("segment_pool", kind): lambda s, t, d, kind=kind: s.segment_pool(t[0], s.cumsum(t[1], 0), kind)
        for kind in ("SUM", "MEAN", "MIN", "MAX")
    },
    # linalg.yaml
    ("bmm", "[b, m, k] and [b, k, n]"): lambda s, t, d: s.bmm(t[0], t[1]),
    ("mv", "[m, n] and [n]"): lambda s, t, d: s.mv(t[0], t[1]),
    ("dot", "of 1 dims"): lambda s, t, d: s.dot(t[0], t[1]),
    ("dot", "of 2 dims"): lambda s, t, d: s.dot(t[0], t[1]),
    ("addmm", "input [m, n]"): lambda s, t, d: s.addmm(t[0], t[1], t[2], 2, -1),
    ("addmm", "input [n]"): lambda s, t, d: s.addmm(t[0], t[1], t[2], beta=2, alpha=-1),
    ("cross", "axis 1"): lambda s, t, d: s.cross(t[0], t[1], 1),
    ("cross", "the first axis of size 3"): lambda s, t, d: s.cross(t[0], t[1]),
    ("kron", "[m, n] and [k]"): lambda s, t, d: s.kron(t[0], t[1]),
    ("multi_dot", "three matrices"): lambda s, t, d: s.multi_dot(t),
    ("cholesky_solve", "lower"): lambda s, t, d: s.cholesky_solve(t[0], t[1], False),
    ("cholesky_solve", "upper"): lambda s, t, d: s.cholesky_solve(t[0], t[1], True),
    ("eigvalsh", "lower"): lambda s, t, d: s.eigvalsh(symmetric(s, t[0]))[0],
    ("matrix_power", "3"): lambda s, t, d: s.matrix_power(t[0], 3),
    ("matrix_power", "0"): lambda s, t, d: s.matrix_power(t[0], 0),
    ("matrix_power", "-1"): lambda s, t, d: s.matrix_power(square_plus(s, t[0], 32), -1),
    ("matrix_rank", "of regular matrices"): lambda s, t, d: s.matrix_rank(square_plus(s, t[0], 32), 1e-3, False),
    ("matrix_rank", "of symmetric regular matrices"): lambda s, t, d: s.matrix_rank(
        square_plus(s, symmetric(s, t[0]), 64), 0, True, True
    ),
    **{("dist", "of order %f" % p): lambda s, t, d, p=p: s.dist(t[0], t[1], p) for p in (0.0, 1.0, 2.0, 3.0, math.inf)},
    # math.yaml
    ("masked_fill", "mask [m, n]"): lambda s, t, d: s.masked_fill(t[0], t[1], 7),
    ("masked_fill", "mask [n]"): lambda s, t, d: s.masked_fill(t[0], mask=t[1], value=7),
    ("nan_to_num", "of NaN"): lambda s, t, d: s.nan_to_num(s.scale(s.reciprocal(s.square(t[0])), 0), 1, 2, -3),
    ("nan_to_num", "of infinities"): lambda s, t, d: s.nan_to_num(s.reciprocal(s.square(t[0])), 1, 2, -3),
    ("nan_to_num", "of minus infinities"): lambda s, t, d: s.nan_to_num(s.scale(s.reciprocal(s.square(t[0])), -1), 1, 2, -3),
    ("nan_to_num", "of numbers"): lambda s, t, d: s.nan_to_num(t[0], nan=1, posinf=2, neginf=-3),
    # reduce.yaml
    ("mean_all", "of two dims"): lambda s, t, d: s.mean_all(t[0]),
    **{
        ("median", f"{name}, {mode}"): lambda s, t, d, axis=axis, keep=keep, mode=mode: s.median(t[0], axis, keep, mode)
        for name, axis, keep in AXES
        for mode in ("avg", "min")
    },
    ("reduce_as", "[m, n] as [n]"): lambda s, t, d: s.reduce_as(t[0], t[1]),
    ("reduce_as", "[m, n] as [1, n]"): lambda s, t, d: s.reduce_as(t[0], t[1]),
    ("reduce_as", "[m, n] as [m, n]"): lambda s, t, d: s.reduce_as(t[0], t[1]),
    # nn.yaml, activation.yaml, conv.yaml, vision.yaml
    ("prelu", "all"): lambda s, t, d: s.prelu(t[0], t[1], "NCHW", "all"),
    ("prelu", "channel"): lambda s, t, d: s.prelu(t[0], t[1], "NCHW", "channel"),
    ("prelu", "channel, last"): lambda s, t, d: s.prelu(t[0], t[1], "NHWC", "channel"),
    ("prelu", "element"): lambda s, t, d: s.prelu(t[0], t[1], "NCHW", "element"),
    ("spectral_norm", "no step along dim 0"): lambda s, t, d: s.spectral_norm(t[0], t[1], t[2], 0, 0, 0.5),
    ("spectral_norm", "no step along dim 1"): lambda s, t, d: s.spectral_norm(t[0], t[1], t[2], 1, 0, 0.5),
    ("depthwise_conv2d_transpose", "one channel in, one out"): lambda s, t, d: s.depthwise_conv2d_transpose(
        t[0], t[1], [2, 2], [0, 1], [1, 0], [], "EXPLICIT", t[0].shape[1]
    ),
    ("affine_grid", "images, aligned"): lambda s, t, d: s.affine_grid(t[0], [t[0].shape[0], 1, 3, 5], True),
    ("affine_grid", "images"): lambda s, t, d: s.affine_grid(t[0], [t[0].shape[0], 1, 4, 2], False),
    ("affine_grid", "volumes, aligned"): lambda s, t, d: s.affine_grid(t[0], [t[0].shape[0], 1, 2, 1, 3], True),
    ("affine_grid", "volumes"): lambda s, t, d: s.affine_grid(t[0], [t[0].shape[0], 1, 1, 2, 4], False),
    # loss.yaml, optim.yaml, fused.yaml
    ("sigmoid_cross_entropy_with_logits", "plain"): lambda s, t, d: s.sigmoid_cross_entropy_with_logits(t[0], t[1]),
    ("sigmoid_cross_entropy_with_logits", "weighted and normalised"): lambda s, t, d: (
        s.sigmoid_cross_entropy_with_logits(t[0], t[1], t[2], True)
    ),
    ("kldiv_loss", "mean over rows"): lambda s, t, d: s.kldiv_loss(t[0], t[1], "batchmean", False),
    ("kldiv_loss", "sum of logarithms"): lambda s, t, d: s.kldiv_loss(t[0], t[1], "sum", True),
    ("accuracy", "of three chosen"): lambda s, t, d: s.accuracy(t[0], t[1], t[2]),
    ("clip_by_norm", "of two dims"): lambda s, t, d: s.clip_by_norm(t[0], 2),
    ("fused_gemm_epilogue", "gelu"): lambda s, t, d: s.fused_gemm_epilogue(t[0], t[1], t[2], False, True, "gelu"),
    **{
        ("fused_bias_act", method): lambda s, t, d, method=method: s.fused_bias_act(t[0], t[1], act_method=method)
        for method in ("gelu", "swiglu", "geglu")
    },
    ("fused_bias_residual_layernorm", "bias and residual"): lambda s, t, d: s.fused_bias_residual_layernorm(
        t[0], t[1], t[2], t[3], t[4], 0.5, 2.0, 1, -1, 0, 0, 0
    ),
    ("fused_softmax_mask", "a mask for all heads"): lambda s, t, d: s.fused_softmax_mask(t[0], t[1]),
    ("fused_softmax_mask_upper_triangle", "square"): lambda s, t, d: s.fused_softmax_mask_upper_triangle(t[0]),
    ("fused_dropout_add", "a fixed seed"): lambda s, t, d: s.fused_dropout_add(
        t[0], t[1], None, 0.5, False, "upscale_in_train", 7
    ),
}
