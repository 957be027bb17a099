// infer_meta of ops of detection and of sampling images at computed places.
#include "shard/meta/vision.h"

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {

GridSampling sampling_of(const char* op, const std::string& mode, const std::string& padding_mode, bool align_corners) {
  if (mode != "bilinear" && mode != "nearest")
    fail(ErrorCode::invalid_argument, "[{}] mode is '{}', but must be bilinear or nearest", op, mode);
  if (padding_mode == "zeros") return {mode == "nearest", GridPadding::zeros, align_corners};
  if (padding_mode == "border") return {mode == "nearest", GridPadding::border, align_corners};
  if (padding_mode == "reflection") return {mode == "nearest", GridPadding::reflection, align_corners};
  fail(ErrorCode::invalid_argument, "[{}] padding_mode is '{}', but must be zeros, border or reflection", op,
       padding_mode);
}

bool encodes(std::string_view op, const std::string& code_type) {
  if (code_type != "encode_center_size" && code_type != "decode_center_size") {
    fail(ErrorCode::invalid_argument, "[{}] code_type is '{}', but must be encode_center_size or decode_center_size",
         op, code_type);
  }
  return code_type == "encode_center_size";
}

void GridSampleInferMeta(const OpContext& ctx, const Meta& x, const Meta& grid, const std::string& mode,
                         const std::string& padding_mode, Meta& out) {
  check_floating(ctx, "x", x);
  check_same_dtype(ctx, "x", x, "grid", grid);
  sampling_of(ctx.op, mode, padding_mode, true);
  const int rank = x.dims.rank();
  if (rank != 4 && rank != 5) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must be [n, c, h, w] or [n, c, d, h, w]", ctx.op, to_string(x));
  }
  if (grid.dims.rank() != rank || grid.dims[0] != x.dims[0] || grid.dims[rank - 1] != rank - 2) {
    fail(ErrorCode::shape_mismatch,
         "[{}] grid is {}, but must have {} dims, {} first for the images of x, which is {}, and {} last for the "
         "coordinates of a place",
         ctx.op, to_string(grid), rank, x.dims[0], to_string(x), rank - 2);
  }
  out = {Dims{x.dims[0], x.dims[1]}, x.dtype};
  for (int d = 1; d < rank - 1; ++d) out.dims.push_back(grid.dims[d]);
  if (x.dims.numel(2, rank) == 0 && out.dims.numel() > 0) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, which has no elements to sample at the places of grid, which is {}",
         ctx.op, to_string(x), to_string(grid));
  }
}

void GridSampleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& grid, const Meta& out_grad,
                             const std::string& mode, const std::string& padding_mode, Meta& x_grad, Meta& grid_grad) {
  Meta out;
  GridSampleInferMeta(ctx, x, grid, mode, padding_mode, out);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
  grid_grad = grid;
}

namespace {

/// The size of an image of `size` windows along space dim d.
int64_t unpooled_size(const OpContext& ctx, int64_t size, size_t d, const IntArray& ksize, const IntArray& strides,
                      const IntArray& padding) {
  const auto check = [&](const char* name, const IntArray& values, int least) {
    if (values.size() == 2 && values[d] >= least) return;
    fail(ErrorCode::invalid_argument,
         "[{}] {} is {}, but must have two numbers of at least {} where output_size is empty; pass output_size", ctx.op,
         name, to_string(values), least);
  };
  check("ksize", ksize, 1);
  check("strides", strides, 1);
  check("padding", padding, 0);
  return (size - 1) * strides[d] - 2 * padding[d] + ksize[d];
}

}  // namespace

void UnpoolInferMeta(const OpContext& ctx, const Meta& x, const Meta& indices, const IntArray& ksize,
                     const IntArray& strides, const IntArray& padding, const IntArray& output_size,
                     const std::string& data_format, Meta& out) {
  check_index(ctx, "indices", indices);
  if (x.dims.rank() != 4 || indices.dims != x.dims) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and indices is {}, but both must be [n, c, h, w] of one shape",
         ctx.op, to_string(x), to_string(indices));
  }
  if (data_format != "NCHW")
    fail(ErrorCode::invalid_argument, "[{}] data_format is '{}', but must be NCHW", ctx.op, data_format);
  if (output_size.size() != 2 && output_size.size() != 0) {
    fail(ErrorCode::invalid_argument, "[{}] output_size has {} sizes, but must have two, height and width, or none",
         ctx.op, output_size.size());
  }
  out = x;
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<size_t>(d);
    out.dims[d + 2] =
        output_size.size() == 0 ? unpooled_size(ctx, x.dims[d + 2], i, ksize, strides, padding) : output_size[i];
  }
  check_size(ctx, out.dims, out.dtype);
}

namespace {

void check_boxes(const OpContext& ctx, const char* name, const Meta& boxes) {
  if (boxes.dims.rank() == 2 && boxes.dims[1] == 4) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must be [r, 4]: x1, y1, x2, y2 of each box", ctx.op, name,
       to_string(boxes));
}

}  // namespace

void RoiAlignInferMeta(const OpContext& ctx, const Meta& x, const Meta& boxes, const Meta& boxes_num, int pooled_height,
                       int pooled_width, float spatial_scale, Meta& out) {
  check_floating(ctx, "x", x);
  check_same_dtype(ctx, "x", x, "boxes", boxes);
  check_index(ctx, "boxes_num", boxes_num);
  if (x.dims.rank() != 4)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must be [n, c, h, w]", ctx.op, to_string(x));
  check_boxes(ctx, "boxes", boxes);
  if (boxes_num.dims != Dims{x.dims[0]}) {
    fail(ErrorCode::shape_mismatch, "[{}] boxes_num is {}, but must be [{}]: a number for each image of x", ctx.op,
         to_string(boxes_num), x.dims[0]);
  }
  if (pooled_height < 1 || pooled_width < 1 || !(spatial_scale > 0)) {
    fail(ErrorCode::invalid_argument,
         "[{}] pooled_height is {}, pooled_width {} and spatial_scale {}, but they must be above 0", ctx.op,
         pooled_height, pooled_width, spatial_scale);
  }
  if (x.dims.numel(2, 4) == 0) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but its images must have elements", ctx.op, to_string(x));
  }
  out = {Dims{boxes.dims[0], x.dims[1], pooled_height, pooled_width}, x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void RoiAlignGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& boxes, const Meta& boxes_num,
                           const Meta& out_grad, int pooled_height, int pooled_width, float spatial_scale,
                           Meta& x_grad) {
  Meta out;
  RoiAlignInferMeta(ctx, x, boxes, boxes_num, pooled_height, pooled_width, spatial_scale, out);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
}

void RoiPoolInferMeta(const OpContext& ctx, const Meta& x, const Meta& boxes, const Meta& boxes_num, int pooled_height,
                      int pooled_width, float spatial_scale, Meta& out, Meta& arg_max) {
  RoiAlignInferMeta(ctx, x, boxes, boxes_num, pooled_height, pooled_width, spatial_scale, out);
  arg_max = {out.dims, DType::int64};
}

void NmsInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  check_floating(ctx, "x", x);
  check_boxes(ctx, "x", x);
  out = {Dims{x.dims[0]}, DType::int64};
}

void BoxCoderInferMeta(const OpContext& ctx, const Meta& prior_box, const Meta* prior_box_var, const Meta& target_box,
                       const std::string& code_type, int axis, const std::vector<float>& variance, Meta& output_box) {
  check_floating(ctx, "prior_box", prior_box);
  check_boxes(ctx, "prior_box", prior_box);
  check_same_dtype(ctx, "prior_box", prior_box, "target_box", target_box);
  if (prior_box_var != nullptr) {
    check_same_dtype(ctx, "prior_box", prior_box, "prior_box_var", *prior_box_var);
    if (prior_box_var->dims != prior_box.dims) {
      fail(ErrorCode::shape_mismatch, "[{}] prior_box_var is {}, but must have the shape of prior_box, which is {}",
           ctx.op, to_string(*prior_box_var), to_string(prior_box));
    }
    if (!variance.empty())
      fail(ErrorCode::invalid_argument, "[{}] variance must be empty where prior_box_var is passed; pass one", ctx.op);
  }
  if (!variance.empty() && variance.size() != 4) {
    fail(ErrorCode::invalid_argument, "[{}] variance has {} numbers, but must have four, or none", ctx.op,
         variance.size());
  }
  if (encodes(ctx.op, code_type)) {
    check_boxes(ctx, "target_box", target_box);
    output_box = {Dims{target_box.dims[0], prior_box.dims[0], 4}, prior_box.dtype};
    check_size(ctx, output_box.dims, output_box.dtype);
    return;
  }
  if (axis != 0 && axis != 1) fail(ErrorCode::invalid_argument, "[{}] axis is {}, but must be 0 or 1", ctx.op, axis);
  const Dims& dims = target_box.dims;
  if (dims.rank() != 3 || dims[1 - axis] != prior_box.dims[0] || dims[2] != 4) {
    fail(ErrorCode::shape_mismatch,
         "[{}] target_box is {}, but must be [n, m, 4], with as many boxes along dim {} as prior_box, which is {}",
         ctx.op, to_string(target_box), 1 - axis, to_string(prior_box));
  }
  output_box = target_box;
}

}  // namespace shard::meta
