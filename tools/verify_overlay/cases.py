"""Arguments on which the rules of overlays/paddle.yaml are tried: for each forward op, and for backward ops whose arguments do not follow
from those of their forward op. Sizes are uneven and differ from each other, so that a shape tells which dim is which."""
import numpy as np
import paddle
from paddle.nn import functional

RNG = np.random.default_rng(1)
CASES = {}
# Attributes that PaddlePaddle 3.0.0 has at the end and the files of May 2024 have not.
EXTRA = {"cumprod": [False, False], "cumprod_grad": [False, False], "round": [0], "thresholded_relu": [0.0], "thresholded_relu_grad": [0.0],
         "max_pool2d_with_index": [False], "max_pool2d_with_index_grad": [False], "max_pool3d_with_index": [False], "max_pool3d_with_index_grad": [False]}
# The rule of these shards a dim along which the kernel must know its box, as that of this library does.
NEEDS_BOXES = {"embedding", "label_smooth", "mean", "scatter", "tril", "triu"}
# No kernel for the CPU, or one that leaves its output as it is: the rule is compared with the declared shapes only.
SHAPES_ONLY = {"apply_per_channel_scale", "conv2d_transpose_bias", "empty_like", "fused_softmax_mask", "fused_softmax_mask_grad", "fused_softmax_mask_upper_triangle",
               "fused_softmax_mask_upper_triangle_grad", "index_select_strided", "index_select_strided_grad", "rms_norm", "rms_norm_grad",
               "weight_only_linear", "weight_only_linear_grad", "yolo_box_head"}
# Outputs that the kernel fills for some attributes only, and never for those of the cases.
UNDEFINED = {}
SECOND = {}  # backward ops that Python cannot call: the function whose derivative they are, the arguments that it is taken towards, all arguments


def real(*shape, low=-2.0, high=2.0):
    return RNG.uniform(low, high, shape)


def single(*shape, low=-2.0, high=2.0):
    return real(*shape, low=low, high=high).astype(np.float32)


def whole(*shape, low=0, high=10, dtype=np.int64):
    return RNG.integers(low, high, shape).astype(dtype)


def boolean(*shape):
    return RNG.integers(0, 2, shape).astype(bool)


def like(rng, value):
    """Values for the gradient of `value`."""
    if value is None:
        return None
    if isinstance(value, list):
        return [like(rng, v) for v in value]
    values = rng.uniform(-1, 1, value.shape)
    return values.astype(value.dtype) if value.dtype.kind != "c" else (values + 1j * rng.uniform(-1, 1, value.shape)).astype(value.dtype)


def add(names, *cases):
    for name in names.split():
        CASES.setdefault(name, []).extend(cases)


def unary(names, low=-2.0, high=2.0, **attrs):
    add(names, {"x": real(4, 5, low=low, high=high), **attrs}, {"x": real(7, low=low, high=high), **attrs}, {"x": real(3, 1, 5, low=low, high=high), **attrs})


def binary(names, make=real, a="x", b="y", **attrs):
    add(names, {a: make(4, 5), b: make(4, 5), **attrs}, {a: make(4, 1, 5), b: make(3, 1), **attrs}, {a: make(5), b: make(4, 5), **attrs})


# --- elementwise
unary("""abs asinh atan ceil celu clip conj cos cosh elu erf exp expm1 fill floor gelu hardshrink hardsigmoid hardswish hardtanh i0 i0e i1 i1e
 isfinite isinf isnan leaky_relu logsigmoid npu_identity relu relu6 round scale selu sigmoid sign silu sin sinh softplus softshrink
 softsign square stanh swish tan tanh tanh_shrink thresholded_relu assign angle memcpy_d2h memcpy_h2d l1_norm squared_l2_norm empty_like bernoulli
 gaussian_inplace uniform_inplace standard_gamma""")
CASES["fill"] = [{**c, "value": 3.0} for c in CASES["fill"]]
CASES["clip"] = [{**c, "min": -0.5, "max": 0.5} for c in CASES["clip"]]
CASES["npu_identity"] = [{**c, "format": -1} for c in CASES["npu_identity"]]
for _name in ("memcpy_d2h", "memcpy_h2d"):
    CASES[_name] = [{**c, "dst_place_type": 0} for c in CASES[_name]]
unary("mish", **{"lambda": 1.0})
unary("exponential_", lam=1.0)
CASES["l1_norm"] = [{"x": single(4, 5)}]
CASES["hardswish"] = [{"x": single(4, 5)}]
for _name in ("bernoulli",):
    CASES[_name] = [{"x": real(4, 5, low=0, high=1)}]
for _name in ("standard_gamma",):
    CASES[_name] = [{"x": real(4, 5, low=1, high=2)}]
unary("acos asin atanh erfinv", -0.9, 0.9)
unary("acosh", 1.1, 3)
unary("digamma gammaln lgamma log log10 log1p log2 reciprocal rsqrt sqrt poisson", 0.2, 3)
unary("logit", 0.1, 0.9, eps=1e-6)
unary("pow", 0.2, 2, y=2.5)
unary("polygamma", 0.5, 2, n=1)
unary("rrelu", lower=0.1, upper=0.3, is_test=True)
add("trunc", {"input": real(4, 5)})
add("imag real conj angle", {"x": real(4, 5) + 1j * real(4, 5)})
add("increment", {"x": real(1)})
add("bitwise_not", {"x": whole(4, 5)})
add("logical_not", {"x": boolean(4, 5)})
add("shard_index", {"input": whole(6, 1, high=20), "index_num": 20, "nshards": 2, "shard_id": 1})
add("cast", {"x": real(4, 5), "dtype": "DataType::INT32"})
binary("add subtract multiply divide maximum minimum fmax fmin atan2 copysign heaviside remainder equal not_equal less_than less_equal greater_than greater_equal floor_divide")
add("nextafter isclose", {"x": real(4, 5), "y": real(4, 5)})
add("gammaincc", {"x": real(4, 5, low=0.5, high=2), "y": real(4, 5, low=0.5, high=2)})
binary("elementwise_pow", lambda *s: real(*s, low=0.5, high=2))
CASES["atan2"] = CASES["atan2"][:1]
binary("bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift", lambda *s: whole(*s, high=5))
binary("logical_and logical_or logical_xor", boolean)
binary("complex", a="real", b="imag")
add("bce_loss", {"input": real(4, 5, low=0.1, high=0.9), "label": real(4, 5, low=0, high=1)})
add("log_loss", {"input": single(5, 1, low=0.1, high=0.9), "label": single(5, 1, low=0, high=1), "epsilon": 1e-4})
add("huber_loss", {"input": real(4, 5), "label": real(4, 5), "delta": 0.7})
add("where", {"condition": boolean(4, 5), "x": real(4, 5), "y": real(4, 5)})
add("lerp", {"x": real(4, 5), "y": real(4, 5), "weight": real(4, 5)}, {"x": real(4, 5), "y": real(5), "weight": real(1)}, {"x": real(4, 1, 5), "y": real(3, 5), "weight": real(3, 1)})
add("broadcast_tensors", {"input": [real(4, 1), real(3, 1, 5)]})
add("assign_out_", {"x": real(4, 5), "output": real(4, 5)})
add("reduce_as", {"x": real(4, 3, 5), "target": real(3, 1)}, {"x": real(4, 3), "target": real(4, 3)})
add("binomial", {"count": whole(4, 5).astype(np.float64), "prob": real(4, 5, low=0.1, high=0.9)})
add("dropout", {"x": real(4, 5), "p": 0.5, "is_test": False, "mode": "upscale_in_train", "seed": 3, "fix_seed": True})
add("gumbel_softmax", {"x": real(4, 5, 3), "axis": 1})
add("dirichlet", {"alpha": real(4, 3, low=0.5, high=2)})
add("multinomial", {"x": real(5, 4, low=0.1, high=1), "num_samples": 2})
add("as_complex", {"x": real(4, 5, 2)})
add("as_real", {"x": real(4, 5) + 1j * real(4, 5)})
add("one_hot", {"x": whole(4, 5, high=6), "num_classes": 6})
add("dequantize_abs_max", {"x": whole(4, 5, low=-100, high=100, dtype=np.int8), "scale": single(1, low=1), "max_range": 127.0})
add("dequantize_log", {"x": whole(4, 5, low=-100, high=100, dtype=np.int8), "dict": single(128)})
add("label_smooth", {"label": real(4, 5), "epsilon": 0.1})

# --- reductions and ops along one axis
for _keep in (False, True):
    add("sum mean max min amax amin", {"x": real(4, 3, 5), "axis": [1], "keepdim": _keep}, {"x": real(4, 3, 5), "axis": [0, -1], "keepdim": _keep}, {"x": real(4, 5), "axis": [], "keepdim": _keep})
    add("all any", {"x": RNG.random((6, 3, 5)) < 0.8, "axis": [1], "keepdim": _keep}, {"x": RNG.random((4, 5)) < 0.9, "axis": [], "keepdim": _keep})
    add("kthvalue", {"x": real(4, 6, 5), "axis": 1, "k": 2, "keepdim": _keep})
    add("mode", {"x": whole(4, 6, 5, high=3).astype(np.float64), "axis": 1, "keepdim": _keep})
    add("logsumexp", {"x": real(4, 3, 5), "axis": [1], "keepdim": _keep, "reduce_all": False}, {"x": real(4, 3), "axis": [0], "keepdim": _keep, "reduce_all": True})
    add("frobenius_norm", {"x": real(4, 3, 5), "axis": [1], "keep_dim": _keep, "reduce_all": False})
    add("p_norm", {"x": real(4, 3, 5), "axis": 1, "porder": 3.0, "epsilon": 1e-12, "keepdim": _keep, "asvector": False})
add("softmax log_softmax", {"x": real(4, 3, 5), "axis": 1}, {"x": real(4, 5), "axis": -1})
add("maxout", {"x": real(3, 4, 2, 5), "groups": 2, "axis": 1}, {"x": real(3, 2, 5, 4), "groups": 2, "axis": 3})
add("flip", {"x": real(4, 3, 5), "axis": [1]}, {"x": real(4, 3, 5), "axis": [0, 2]})
add("reverse", {"x": real(4, 3, 5), "axis": [1]})
add("roll", {"x": real(4, 3, 5), "shifts": [1], "axis": [1]}, {"x": real(4, 3, 5), "shifts": [1, 2], "axis": [0, 1]})
add("repeat_interleave", {"x": real(4, 3, 5), "repeats": 2, "axis": 1})
add("repeat_interleave_with_tensor_index", {"x": real(4, 3, 5), "repeats": np.array([1, 0, 2]), "axis": 1})
_complex = real(4, 6, 5) + 1j * real(4, 6, 5)
add("fft_c2c", {"x": _complex, "axes": [1], "normalization": "backward", "forward": True}, {"x": _complex, "axes": [0, 2], "normalization": "ortho", "forward": False})
add("fft_r2c", {"x": real(4, 6, 5), "axes": [1], "normalization": "backward", "forward": True, "onesided": True})
add("fft_c2r", {"x": _complex, "axes": [1], "normalization": "backward", "forward": False, "last_dim_size": 10})
add("argsort", {"x": real(4, 6, 5), "axis": 1}, {"x": real(4, 6), "axis": -1, "descending": True})
add("topk", {"x": real(4, 6, 5), "k": 2, "axis": 1}, {"x": real(5, 6), "k": 3, "largest": False})
add("cummax cummin", {"x": real(4, 6, 5), "axis": 1, "dtype": "DataType::INT64"})
add("cumprod", {"x": real(4, 6, 5), "dim": 1})
add("norm", {"x": real(4, 3, 5), "axis": 1, "epsilon": 1e-10, "is_test": False})
add("index_select", {"x": real(4, 3, 5), "index": np.array([2, 0]), "axis": 1})
add("index_add", {"x": real(4, 3, 5), "index": np.array([2, 0]), "add_value": real(4, 2, 5), "axis": 1})
add("index_select_strided", {"x": real(4, 3, 5), "index": 1, "axis": 1})

# --- shapes and indexing
add("concat", {"x": [real(4, 3, 5), real(4, 2, 5)], "axis": 1})
add("stack", {"x": [real(4, 5), real(4, 5)], "axis": 1})
add("split", {"x": real(4, 6, 5), "sections": [2, 4], "axis": 1})
add("split_with_num", {"x": real(4, 6, 5), "num": 2, "axis": 1})
add("unbind", {"input": real(4, 3, 5), "axis": 1})
add("unstack", {"x": real(4, 3, 5), "axis": 1, "num": 3})
add("transpose trans_layout", {"x": real(4, 3, 5), "perm": [2, 0, 1]})
add("strided_slice", {"x": real(4, 6, 5), "axes": [1], "starts": [1], "ends": [6], "strides": [2]})
add("tril triu", {"x": real(3, 4, 5), "diagonal": 0})
add("set_value", {"x": real(4, 6, 5), "starts": [1], "ends": [3], "steps": [1], "axes": [1], "decrease_axes": [], "none_axes": [], "shape": [1], "values": [2.0]})
add("embedding_grad_dense", {"x": whole(4, 3, high=6), "weight": real(6, 5), "out_grad": real(4, 3, 5)})
add("c_embedding", {"weight": single(6, 5), "x": whole(4, 3, high=6)})
add("index_sample", {"x": real(4, 6), "index": whole(4, 3, high=6)})
add("multiplex", {"inputs": [real(4, 5), real(4, 5), real(4, 5)], "index": whole(4, 1, high=3, dtype=np.int32)})
add("searchsorted", {"sorted_sequence": np.sort(real(4, 6), axis=-1), "values": real(4, 5)}, {"sorted_sequence": np.sort(real(6)), "values": real(4, 5)})
add("gather_tree", {"ids": whole(4, 3, 5), "parents": whole(4, 3, 5, high=5)})
add("scatter", {"x": real(6, 5), "index": np.array([4, 0, 2]), "updates": real(3, 5), "overwrite": True})
_edges = {"src_index": np.array([0, 1, 2, 0, 3]), "dst_index": np.array([1, 2, 1, 0, 2])}
# Sums and maxima leave the second output, how many messages came, undefined.
add("send_u_recv", {"x": real(4, 6), **_edges, "reduce_op": "MEAN", "out_size": [0]})
add("send_ue_recv", {"x": real(4, 6), "y": real(5, 6), **_edges, "message_op": "MUL", "reduce_op": "MEAN", "out_size": [0]},
    {"x": real(4, 6), "y": real(5, 1), **_edges, "message_op": "ADD", "reduce_op": "MEAN", "out_size": [0]})
add("send_uv", {"x": real(4, 6), "y": real(4, 6), **_edges, "message_op": "ADD"}, {"x": real(4, 6), "y": real(4, 1), **_edges, "message_op": "MUL"})

# --- matrices
for _tx in (False, True):
    for _ty in (False, True):
        _a, _b = (real(3, 6, 4) if _tx else real(3, 4, 6)), (real(5, 6) if _ty else real(6, 5))
        add("matmul", {"x": _a, "y": _b, "transpose_x": _tx, "transpose_y": _ty})
add("matmul", {"x": real(6), "y": real(6, 5)}, {"x": real(3, 4, 6), "y": real(6)})
add("bmm", {"x": real(3, 4, 6), "y": real(3, 6, 5)})
add("mv", {"x": real(4, 6), "vec": real(6)})
add("dot", {"x": real(6), "y": real(6)}, {"x": real(4, 6), "y": real(4, 6)})
add("addmm", {"input": real(4, 5), "x": real(4, 6), "y": real(6, 5), "alpha": 2.0, "beta": 0.5}, {"input": real(1, 5), "x": real(4, 6), "y": real(6, 5), "alpha": 2.0, "beta": 0.5})
add("bilinear", {"x": real(4, 3), "y": real(4, 5), "weight": real(6, 3, 5), "bias": real(1, 6)})


def definite(*batch, n=3):
    a = real(*batch, n, n)
    return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)


add("cholesky", {"x": definite(4), "upper": False}, {"x": definite(4, 5), "upper": True})
add("inverse", {"x": definite(4, 5)})
add("matrix_power", {"x": definite(4), "n": 3})
add("cholesky_solve", {"x": real(4, 3, 5), "y": np.linalg.cholesky(definite(4)), "upper": False})
add("triangular_solve", {"x": np.triu(definite(4)), "y": real(4, 3, 5)}, {"x": np.triu(definite()), "y": real(4, 3, 5)})
add("eig eigvals", {"x": definite(4)})
add("eigh", {"x": definite(4), "UPLO": "L"})
add("svd", {"x": real(4, 3, 5), "full_matrices": False})
add("matrix_rank", {"x": definite(4), "tol": 0.0, "use_default_tol": True, "hermitian": False})
add("matrix_rank_tol", {"x": definite(4), "atol_tensor": real(4, low=0.1, high=1), "use_default_tol": False, "hermitian": False})

# --- images
_conv = {"strides": [1, 1], "paddings": [1, 1], "padding_algorithm": "EXPLICIT", "dilations": [1, 1], "groups": 1, "data_format": "NCHW"}
add("conv2d", {"input": single(5, 3, 4, 6), "filter": single(2, 3, 3, 3), **_conv}, {"input": single(5, 4, 6, 3), "filter": single(2, 3, 3, 3), **_conv, "data_format": "NHWC"})
add("depthwise_conv2d", {"input": single(5, 3, 4, 6), "filter": single(3, 1, 3, 3), **_conv, "groups": 3})
_up = {"output_padding": [], "output_size": [], **_conv}
add("conv2d_transpose", {"x": single(5, 3, 4, 6), "filter": single(3, 2, 3, 3), **_up})
add("depthwise_conv2d_transpose", {"x": single(5, 3, 4, 6), "filter": single(3, 1, 3, 3), **_up, "groups": 3})
add("conv2d_transpose_bias", {"x": single(5, 3, 4, 6), "filter": single(3, 2, 3, 3), "bias": single(2), **_up})
_conv3 = {"strides": [1, 1, 1], "paddings": [1, 1, 1], "padding_algorithm": "EXPLICIT", "dilations": [1, 1, 1], "groups": 1, "data_format": "NCDHW"}
add("conv3d", {"input": single(4, 3, 4, 5, 6), "filter": single(2, 3, 3, 3, 3), **_conv3})
add("conv3d_transpose", {"x": single(4, 3, 4, 5, 6), "filter": single(3, 2, 3, 3, 3), "output_padding": [], "output_size": [], **_conv3})
_pool = {"ceil_mode": False, "exclusive": True, "global_pooling": False, "adaptive": False, "padding_algorithm": "EXPLICIT"}
for _type in ("max", "avg"):
    add("pool2d", {"x": real(5, 3, 4, 6), "kernel_size": [2, 2], "strides": [2, 2], "paddings": [0, 0], "data_format": "NCHW", "pooling_type": _type, **_pool})
    add("pool3d", {"x": real(4, 3, 4, 6, 2), "kernel_size": [2, 2, 2], "strides": [2, 2, 2], "paddings": [0, 0, 0], "data_format": "NCDHW", "pooling_type": _type, **_pool})
add("max_pool2d_with_index", {"x": real(5, 3, 4, 6), "kernel_size": [2, 2], "strides": [2, 2], "paddings": [0, 0]})
add("max_pool3d_with_index", {"x": real(5, 3, 4, 6, 2), "kernel_size": [2, 2, 2], "strides": [2, 2, 2], "paddings": [0, 0, 0]})
_corners = np.arange(0, 24, 4).reshape(1, 1, 2, 3) + np.zeros((4, 3, 1, 1))
add("unpool", {"x": real(4, 3, 2, 3), "indices": _corners.astype(np.int32), "ksize": [2, 2], "strides": [2, 2], "padding": [0, 0], "output_size": [4, 6], "data_format": "NCHW"})
_cubes = np.arange(0, 48, 8).reshape(1, 1, 1, 2, 3) + np.zeros((4, 3, 1, 1, 1))
add("unpool3d", {"x": real(4, 3, 1, 2, 3), "indices": _cubes.astype(np.int32), "ksize": [2, 2, 2], "strides": [2, 2, 2], "paddings": [0, 0, 0], "output_size": [2, 4, 6], "data_format": "NCDHW"})
_resize = {"align_corners": False, "align_mode": 0}
add("linear_interp", {"x": real(4, 3, 5), "out_w": 7, "interp_method": "linear", "data_format": "NCHW", **_resize})
for _format, _shape in (("NCHW", (5, 3, 4, 6)), ("NHWC", (5, 4, 6, 3))):
    for _method in ("bilinear", "bicubic", "nearest"):
        add(_method + "_interp", {"x": real(*_shape), "out_h": 7, "out_w": 3, "interp_method": _method, "data_format": _format, **_resize})
add("nearest_interp", {"x": real(5, 3, 4, 6, 2), "out_d": 3, "out_h": 7, "out_w": 3, "interp_method": "nearest", "data_format": "NCHW", **_resize})
add("trilinear_interp", {"x": real(5, 3, 4, 6, 2), "out_d": 3, "out_h": 7, "out_w": 3, "interp_method": "trilinear", "data_format": "NCHW", **_resize})
add("grid_sample", {"x": real(4, 3, 5, 6), "grid": real(4, 7, 2, 2, low=-1, high=1)}, {"x": real(4, 3, 5, 6, 2), "grid": real(4, 7, 2, 8, 3, low=-1, high=1)})
for _mode in ("constant", "reflect", "replicate"):
    add("pad3d", {"x": real(5, 3, 4, 6, 2), "paddings": [1, 0, 1, 2, 0, 1], "mode": _mode, "data_format": "NCDHW"})
add("pixel_shuffle", {"x": real(5, 8, 3, 6), "upscale_factor": 2, "data_format": "NCHW"}, {"x": real(5, 3, 6, 8), "upscale_factor": 2, "data_format": "NHWC"})
add("pixel_unshuffle", {"x": real(5, 3, 4, 6), "downscale_factor": 2, "data_format": "NCHW"}, {"x": real(5, 4, 6, 3), "downscale_factor": 2, "data_format": "NHWC"})
add("channel_shuffle", {"x": real(5, 6, 3, 4), "groups": 2, "data_format": "NCHW"}, {"x": real(5, 3, 4, 6), "groups": 2, "data_format": "NHWC"})
add("shuffle_channel", {"x": single(5, 6, 3, 4), "group": 2})
add("temporal_shift", {"x": real(6, 8, 3, 5), "seg_num": 2, "data_format": "NCHW"}, {"x": real(6, 3, 5, 8), "seg_num": 2, "data_format": "NHWC"})
_window = {"kernel_sizes": [2, 2], "strides": [2, 2], "dilations": [1, 1]}
add("unfold", {"x": real(5, 3, 4, 6), "paddings": [0, 0, 0, 0], **_window})
add("fold", {"x": real(5, 12, 6), "output_sizes": [4, 6], "paddings": [0, 0, 0, 0], **_window})
_boxes = {"boxes": np.array([[0, 0, 3, 3], [1, 1, 4, 3], [0, 1, 2, 3], [2, 0, 5, 3]], np.float64), "boxes_num": np.array([1, 2, 1], np.int32), "pooled_height": 2, "pooled_width": 2, "spatial_scale": 1.0}
add("roi_align", {"x": real(3, 5, 4, 6), **_boxes, "sampling_ratio": 2, "aligned": True})
add("roi_pool", {"x": real(3, 5, 4, 6), **_boxes})
add("yolo_box", {"x": real(5, 14, 3, 4), "img_size": whole(5, 2, low=100, high=200, dtype=np.int32), "anchors": [10, 13, 16, 30], "class_num": 2, "conf_thresh": 0.01, "downsample_ratio": 32})
add("yolo_loss", {"x": real(5, 14, 4, 4), "gt_box": real(5, 3, 4, low=0.1, high=0.8), "gt_label": whole(5, 3, high=2, dtype=np.int32), "gt_score": real(5, 3, low=0.5, high=1),
                  "anchors": [10, 13, 16, 30], "anchor_mask": [0, 1], "class_num": 2, "ignore_thresh": 0.7, "downsample_ratio": 32})

# --- norms, sequences, losses
add("layer_norm", {"x": real(4, 5, 3), "scale": real(3), "bias": real(3), "epsilon": 1e-5, "begin_norm_axis": 2}, {"x": real(4, 5, 3), "scale": real(15), "bias": real(15), "epsilon": 1e-5, "begin_norm_axis": 1})
add("warpctc", {"logits": real(6, 4, 5), "label": whole(4, 2, low=1, high=5, dtype=np.int32), "logits_length": np.array([6, 5, 6, 4]), "labels_length": np.array([2, 1, 2, 2])})
add("warprnnt", {"input": single(4, 5, 3, 6), "label": whole(4, 2, low=1, high=6, dtype=np.int32), "input_lengths": np.array([5, 4, 5, 5], np.int32), "label_lengths": np.array([2, 2, 1, 2], np.int32)})
add("edit_distance", {"hyps": whole(5, 4, high=4), "refs": whole(5, 3, high=4), "hypslength": np.array([4, 3, 2, 4, 1]), "refslength": np.array([3, 3, 1, 2, 3]), "normalized": False})

# --- optimizers
_p = {"param": real(4, 5), "grad": real(4, 5), "learning_rate": real(1, low=0.1, high=0.2)}
_pos = lambda: real(4, 5, low=0.1, high=1)  # noqa: E731
_beta = {"beta1_pow": np.array([0.9]), "beta2_pow": np.array([0.99])}
add("sgd_", {**_p})
add("adam_ adamw_", {**_p, "moment1": real(4, 5), "moment2": _pos(), **_beta})
add("adadelta_", {**_p, "avg_squared_grad": _pos(), "avg_squared_update": _pos(), "rho": 0.9, "epsilon": 1e-6, "multi_precision": False})
add("adagrad_", {**_p, "moment": _pos()})
add("adamax_", {**_p, "moment": real(4, 5), "inf_norm": _pos(), "beta1_pow": np.array([0.9])})
add("asgd_", {**_p, "d": real(4, 5), "y": real(4, 5), "n": np.array([3.0])})
add("momentum_", {**_p, "velocity": real(4, 5), "mu": 0.9})
add("rmsprop_", {**_p, "mean_square": _pos(), "moment": real(4, 5), "mean_grad": real(4, 5, low=-0.1, high=0.1), "centered": True})
add("rprop_", {**_p, "learning_rate": _pos(), "prev": real(4, 5), "learning_rate_range": np.array([0.01, 1.0]), "etas": np.array([0.5, 1.2])})
add("average_accumulates_", {"param": real(4, 5), "in_sum_1": real(4, 5), "in_sum_2": real(4, 5), "in_sum_3": real(4, 5), "in_num_accumulates": np.array([2]),
                             "in_old_num_accumulates": np.array([1]), "in_num_updates": np.array([3]), "average_window": 0.5, "max_average_window": 10, "min_average_window": 2})

# --- shapes only
add("apply_per_channel_scale", {"x": single(4, 5), "scales": single(5)})
add("fused_softmax_mask", {"x": single(4, 3, 8, 32), "mask": single(4, 1, 8, 32)})
add("fused_softmax_mask_upper_triangle", {"X": single(4, 3, 32, 32)})
add("rms_norm", {"x": single(4, 5, 3), "norm_weight": single(3), "norm_bias": single(3), "epsilon": 1e-5, "begin_norm_axis": 2, "quant_scale": -1.0, "quant_round_type": 0, "quant_max_bound": 0.0, "quant_min_bound": 0.0})
add("weight_only_linear", {"x": single(4, 5, 64).astype(np.float16), "weight": whole(32, 64, dtype=np.int8), "weight_scale": single(32).astype(np.float16), "weight_dtype": "int8"})
add("yolo_box_head", {"x": single(5, 14, 3, 4), "anchors": [10, 13, 16, 30], "class_num": 2})


# --- backward ops that Python cannot call
def second(name, function, leaves, **tensors):
    SECOND.setdefault(name, []).append((function, leaves, tensors))


def seconds_of_unary(names, leaf, upstream="grad_out", low=0.2, high=0.9):
    for name in names.split():
        function = getattr(paddle, name, None) or getattr(functional, name)
        second(name + "_double_grad", function, [leaf], **{leaf: real(4, 5, low=low, high=high), upstream: real(4, 5), "grad_x_grad": real(4, 5)})


def seconds_of_two(name, function, x, y, out, names=("x", "y"), leaves=None, **attrs):
    a, b = names
    second(name, function, leaves or list(names), **{a: x, b: y, "grad_out": out, f"grad_{a}_grad": real(*x.shape).astype(x.dtype), f"grad_{b}_grad": real(*y.shape).astype(y.dtype), **attrs})


seconds_of_unary("abs celu cos elu leaky_relu log sin softplus square", "x")
seconds_of_unary("celu elu leaky_relu", "x", low=-2, high=2)
seconds_of_unary("sqrt rsqrt", "out", "grad_x")
seconds_of_unary("tanh relu", "out")
seconds_of_unary("sigmoid", "out", "fwd_grad_out")
second("clip_double_grad", lambda x: paddle.clip(x, -0.5, 0.5), ["x"], x=real(4, 5), grad_x_grad=real(4, 5), min=-0.5, max=0.5)
second("pow_double_grad", lambda x: paddle.pow(x, 2.5), ["x"], x=real(4, 5, low=0.5), grad_out=real(4, 5), grad_x_grad=real(4, 5), y=2.5)
for _x, _y in ((real(4, 5), real(4, 5)), (real(4, 5), real(1, 5)), (real(3, 4, 5), real(4, 1))):
    _out = real(*np.broadcast_shapes(_x.shape, _y.shape))
    second("multiply_grad", paddle.multiply, ["x", "y"], x=_x, y=_y, out_grad=_out)
    seconds_of_two("multiply_double_grad", paddle.multiply, _x, _y, _out)
    seconds_of_two("divide_double_grad", paddle.divide, _x, _y + 5, _out, ("out", "y"), grad_x=real(*_x.shape))
    SECOND["divide_double_grad"][-1][2].update(grad_x_grad=real(*_x.shape))
    for _name in ("add", "subtract"):
        seconds_of_two(_name + "_double_grad", getattr(paddle, _name), _x, _y, _out, leaves=["grad_out", "y"])
for _tx in (False, True):
    seconds_of_two("matmul_double_grad", lambda x, y, t=_tx: paddle.matmul(x, y, transpose_x=t), real(3, 6, 4) if _tx else real(3, 4, 6), real(3, 6, 5), real(3, 4, 5),
                   transpose_x=_tx, transpose_y=False)
_image, _kernel = single(5, 3, 4, 6), single(2, 3, 3, 3)
second("conv2d_grad", lambda x, w: functional.conv2d(x, w, padding=1), ["input", "filter"], input=_image, filter=_kernel, out_grad=single(5, 2, 4, 6), **_conv)
seconds_of_two("conv2d_grad_grad", lambda x, w: functional.conv2d(x, w, padding=1), _image, _kernel, single(5, 2, 4, 6), ("input", "filter"), **_conv)
seconds_of_two("conv2d_transpose_double_grad", lambda x, w: functional.conv2d_transpose(x, w, padding=1), _image, single(3, 2, 3, 3), single(5, 2, 4, 6), ("x", "filter"), **_up)
seconds_of_two("conv3d_double_grad", lambda x, w: functional.conv3d(x, w, padding=1), single(4, 3, 4, 5, 6), single(2, 3, 3, 3, 3), single(4, 2, 4, 5, 6), ("input", "filter"), **_conv3)
second("pool2d_double_grad", lambda x: functional.avg_pool2d(x, 2), ["x"], x=real(5, 3, 4, 6), grad_x_grad=real(5, 3, 4, 6), kernel_size=[2, 2], strides=[2, 2],
       paddings=[0, 0], data_format="NCHW", pooling_type="avg", **_pool)
second("pad3d_double_grad", lambda x: functional.pad(x, [1, 0, 1, 2, 0, 1], data_format="NCDHW"), ["grad_x_grad"], grad_x_grad=real(5, 3, 4, 6, 2),
       paddings=[1, 0, 1, 2, 0, 1], mode="constant", data_format="NCDHW")


# --- kernels of PaddlePaddle 3.0.0 that mix the matrices of a batch: what they compute for one matrix, as NumPy does it for each
def eigh_grad(op, tensors, attrs):
    w, v, w_grad, v_grad = tensors
    difference = w[..., None, :] - w[..., :, None]
    f = np.divide(1, difference, out=np.zeros_like(difference), where=difference != 0)
    vh = np.conj(np.swapaxes(v, -1, -2))
    inner = w_grad[..., None] * np.eye(w.shape[-1]) + f * (vh @ v_grad)
    return [v @ inner @ vh]


def eig_grad(op, tensors, attrs):
    w, v, w_grad, v_grad = tensors
    vh = np.conj(np.swapaxes(v, -1, -2))
    difference = np.conj(w[..., None, :] - w[..., :, None])
    product = vh @ v_grad
    diagonal = np.real(np.einsum("...ii->...i", product))
    inner = product - vh @ v * diagonal[..., None, :]
    f = np.divide(1, difference, out=np.zeros_like(difference), where=difference != 0)
    inner = f * inner + w_grad[..., None] * np.eye(w.shape[-1])
    return [np.linalg.solve(vh, inner @ vh)]


REFERENCES = {"eigh_grad": eigh_grad, "eig_grad": eig_grad}
