// infer_meta of ops that send messages along the edges of a graph, and of pooling of segments.
#include "shard/meta/graph.h"

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {

Reduction reduction_of(const char* op, const char* attribute, const std::string& name) {
  if (name == "SUM") return Reduction::sum;
  if (name == "MEAN") return Reduction::mean;
  if (name == "MIN") return Reduction::min;
  if (name == "MAX") return Reduction::max;
  fail(ErrorCode::invalid_argument, "[{}] {} is '{}', but must be SUM, MEAN, MIN or MAX", op, attribute, name);
}

bool is_product(const char* op, const std::string& message_op) {
  if (message_op != "ADD" && message_op != "MUL")
    fail(ErrorCode::invalid_argument, "[{}] message_op is '{}', but must be ADD or MUL", op, message_op);
  return message_op == "MUL";
}

namespace {

/// The first dim of x has the rows.
void check_rows(const OpContext& ctx, const char* name, const Meta& x) {
  if (x.dtype == DType::boolean)
    fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but must be numbers; cast it", ctx.op, name, to_string(x));
  if (x.dims.rank() == 0)
    fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have a first dim for its rows", ctx.op, name,
         to_string(x));
}

void check_edges(const OpContext& ctx, const Meta& src_index, const Meta& dst_index) {
  check_index(ctx, "src_index", src_index);
  check_index(ctx, "dst_index", dst_index);
  if (src_index.dims.rank() == 1 && dst_index.dims == src_index.dims) return;
  fail(ErrorCode::shape_mismatch, "[{}] src_index is {} and dst_index is {}, but both must be [edges]; reshape them",
       ctx.op, to_string(src_index), to_string(dst_index));
}

/// The first dim `rows`, then the dims of x and y after their first ones, broadcast against each other.
Dims message_dims(const OpContext& ctx, int64_t rows, const Meta& x, const Meta& y) {
  Dims x_row = x.dims, y_row = y.dims, dims;
  x_row.erase(0);
  y_row.erase(0);
  dims = broadcast(ctx, "a row of x", x_row, "a row of y", y_row);
  dims.insert(0, rows);
  return dims;
}

/// The rows of the result where x has `rows`.
int64_t received_rows(const OpContext& ctx, int64_t rows, const IntArray& out_size) {
  if (out_size.size() > 1) {
    fail(ErrorCode::invalid_argument, "[{}] out_size is {}, but must be one number, the rows of the result", ctx.op,
         to_string(out_size));
  }
  return out_size.size() == 1 && out_size[0] > 0 ? out_size[0] : rows;
}

Meta counts_of(Reduction reduction, int64_t rows) {
  return {Dims{reduction == Reduction::mean ? rows : 0}, DType::int64};
}

}  // namespace

void SendURecvInferMeta(const OpContext& ctx, const Meta& x, const Meta& src_index, const Meta& dst_index,
                        const std::string& reduce_op, const IntArray& out_size, Meta& out, Meta& dst_count) {
  check_rows(ctx, "x", x);
  check_edges(ctx, src_index, dst_index);
  const Reduction reduction = reduction_of(ctx.op, "reduce_op", reduce_op);
  out = x;
  out.dims[0] = received_rows(ctx, x.dims[0], out_size);
  check_size(ctx, out.dims, out.dtype);
  dst_count = counts_of(reduction, out.dims[0]);
}

void SendUERecvInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const Meta& src_index,
                         const Meta& dst_index, const std::string& message_op, const std::string& reduce_op,
                         const IntArray& out_size, Meta& out, Meta& dst_count) {
  check_rows(ctx, "x", x);
  check_rows(ctx, "y", y);
  check_same_dtype(ctx, "x", x, "y", y);
  check_edges(ctx, src_index, dst_index);
  is_product(ctx.op, message_op);
  const Reduction reduction = reduction_of(ctx.op, "reduce_op", reduce_op);
  if (y.dims[0] != src_index.dims[0]) {
    fail(ErrorCode::shape_mismatch, "[{}] y is {}, but must have a row for each edge of src_index, which is {}", ctx.op,
         to_string(y), to_string(src_index));
  }
  out = {message_dims(ctx, received_rows(ctx, x.dims[0], out_size), x, y), x.dtype};
  check_size(ctx, out.dims, out.dtype);
  dst_count = counts_of(reduction, out.dims[0]);
}

void SendUVInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const Meta& src_index, const Meta& dst_index,
                     const std::string& message_op, Meta& out) {
  check_rows(ctx, "x", x);
  check_rows(ctx, "y", y);
  check_same_dtype(ctx, "x", x, "y", y);
  check_edges(ctx, src_index, dst_index);
  is_product(ctx.op, message_op);
  out = {message_dims(ctx, src_index.dims[0], x, y), x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void SegmentPoolInferMeta(const OpContext& ctx, const Meta& x, const Meta& segment_ids, const std::string& pooltype,
                          Meta& out, Meta& summed_ids) {
  check_rows(ctx, "x", x);
  check_index(ctx, "segment_ids", segment_ids);
  const Reduction reduction = reduction_of(ctx.op, "pooltype", pooltype);
  if (segment_ids.dims != Dims{x.dims[0]}) {
    fail(ErrorCode::shape_mismatch, "[{}] segment_ids is {}, but must be [{}]: an id for each row of x, which is {}",
         ctx.op, to_string(segment_ids), x.dims[0], to_string(x));
  }
  out = x;
  out.dims[0] = most_rows(segment_ids.dtype, x.dims.numel(1, x.dims.rank()), x.dtype);
  summed_ids = {Dims{reduction == Reduction::mean ? out.dims[0] : 0, 1}, DType::int64};
}

}  // namespace shard::meta
