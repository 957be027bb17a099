// Gradients of ops of graph.yaml, which are ops of graph.yaml and lookups of rows again.
#include <numeric>

#include "shard/gradients/common.h"
#include "shard/meta/graph.h"
#include "shard/ops/api.h"
#include "shard/ops/graph_ops.h"

namespace shard::external {
namespace {

using gradients::narrowed;
using gradients::widened;
using meta::Reduction;
using Pair = std::tuple<Tensor, Tensor>;

Tensor zeros_like(const Tensor& x) { return full_like(x.detach(), 0); }

/// The places of the dims of size 1 that follow the first dim of x where rows are aligned at the right with `rank`.
IntArray missing_dims(const Tensor& x, int rank) {
  IntArray axes(static_cast<size_t>(rank - x.dims().rank()), 0);
  std::iota(axes.begin(), axes.end(), 1);
  return axes;
}

Tensor aligned(const Tensor& x, int rank) {
  const IntArray missing = missing_dims(x, rank);
  return missing.empty() ? x : unsqueeze(x, missing);
}

/// The gradient of x, whose rows were broadcast to those of `grad`.
Tensor sum_of_rows(const Tensor& grad, const Tensor& x) {
  const IntArray missing = missing_dims(x, grad.dims().rank());
  Dims dims = x.dims();
  for (const int64_t axis : missing) dims.insert(static_cast<int>(axis), 1);
  const Tensor sums = gradients::sum_to(grad, dims);
  return narrowed(missing.empty() ? sums : squeeze(sums, missing), x.dtype());
}

/// The rows of `grad` added up along edges, in rows for those of x. `factor`, where it is defined, has rows for edges.
Tensor received(const Tensor& grad, const Tensor& factor, const Tensor& from, const Tensor& to, const Tensor& x) {
  const int64_t rows = x.dims()[0];
  if (rows == 0) return zeros_like(x);  // an out_size of 0 stands for the rows of grad
  const Tensor sums = factor.defined() ? send_ue_recv(grad, factor, from, to, "MUL", "SUM", {rows})
                                       : send_u_recv(grad, from, to, "SUM", {rows});
  return sum_of_rows(sums, x);
}

/// The gradient of a sum, or of a mean of `counts` rows.
Tensor of_sum(const Tensor& out_grad, const Tensor& counts, Reduction reduction) {
  const Tensor grad = widened(out_grad);
  if (reduction != Reduction::mean) return grad;
  IntArray dims(static_cast<size_t>(grad.dims().rank()), 1);
  dims[0] = counts.dims()[0];
  const Tensor some = maximum(counts, full_like(counts, 1));  // a row where none arrives passes no gradient
  return divide(grad, cast(reshape(some, dims), grad.dtype()));
}

bool is_extremum(Reduction reduction) { return reduction == Reduction::min || reduction == Reduction::max; }

/// The gradients of messages of which the smallest or largest are the rows `index` of out: all of it for each that is.
Tensor of_extremum(const Tensor& messages, const Tensor& out, const Tensor& out_grad, const Tensor& index) {
  const Tensor grad = gather(widened(out_grad), index);
  return where(equal(messages.detach(), gather(out.detach(), index)), grad, zeros_like(grad));
}

}  // namespace

Tensor send_u_recv_grad(const Tensor& x, const Tensor& src_index, const Tensor& dst_index, const Tensor& out,
                        const Tensor& dst_count, const Tensor& out_grad, const std::string& reduce_op) {
  const Reduction reduction = meta::reduction_of("send_u_recv_grad", "reduce_op", reduce_op);
  if (!is_extremum(reduction)) return received(of_sum(out_grad, dst_count, reduction), {}, dst_index, src_index, x);
  const Tensor grad = of_extremum(gather(x.detach(), src_index), out, out_grad, dst_index);
  return narrowed(index_sum(grad, src_index, x.dims()[0], 0), x.dtype());
}

Pair send_ue_recv_grad(const Tensor& x, const Tensor& y, const Tensor& src_index, const Tensor& dst_index,
                       const Tensor& out, const Tensor& dst_count, const Tensor& out_grad,
                       const std::string& message_op, const std::string& reduce_op, GradMask wanted) {
  const Reduction reduction = meta::reduction_of("send_ue_recv_grad", "reduce_op", reduce_op);
  const bool product = meta::is_product("send_ue_recv_grad", message_op);
  Pair grads;
  auto& [x_grad, y_grad] = grads;
  if (!is_extremum(reduction)) {
    const Tensor grad = of_sum(out_grad, dst_count, reduction);
    if (wanted[0]) x_grad = received(grad, product ? widened(y) : Tensor(), dst_index, src_index, x);
    if (wanted[1]) {
      y_grad =
          sum_of_rows(product ? send_uv(widened(x), grad, src_index, dst_index, "MUL") : gather(grad, dst_index), y);
    }
    return grads;
  }
  const int rank = out_grad.dims().rank();
  const Tensor sent = gather(aligned(x, rank), src_index), values = aligned(y, rank);
  const Tensor messages = product ? multiply(sent.detach(), values.detach()) : add(sent.detach(), values.detach());
  const Tensor grad = of_extremum(messages, out, out_grad, dst_index);
  if (wanted[0]) {
    const Tensor part = product ? multiply(grad, widened(values)) : grad;
    x_grad = sum_of_rows(index_sum(part, src_index, x.dims()[0], 0), x);
  }
  if (wanted[1]) y_grad = sum_of_rows(product ? multiply(grad, widened(sent)) : grad, y);
  return grads;
}

Pair send_uv_grad(const Tensor& x, const Tensor& y, const Tensor& src_index, const Tensor& dst_index,
                  const Tensor& out_grad, const std::string& message_op, GradMask wanted) {
  const bool product = meta::is_product("send_uv_grad", message_op);
  const Tensor grad = widened(out_grad);
  const auto of_node = [&](const Tensor& node, const Tensor& index, const Tensor& other, const Tensor& other_index) {
    if (product) return received(widened(other), grad, other_index, index, node);
    return sum_of_rows(index_sum(grad, index, node.dims()[0], 0), node);
  };
  return {wanted[0] ? of_node(x, src_index, y, dst_index) : Tensor(),
          wanted[1] ? of_node(y, dst_index, x, src_index) : Tensor()};
}

Tensor segment_pool_grad(const Tensor& x, const Tensor& segment_ids, const Tensor& out, const Tensor& summed_ids,
                         const Tensor& out_grad, const std::string& pooltype) {
  const Reduction reduction = meta::reduction_of("segment_pool_grad", "pooltype", pooltype);
  const Tensor grad = is_extremum(reduction) ? of_extremum(x, out, out_grad, segment_ids)
                                             : gather(of_sum(out_grad, summed_ids, reduction), segment_ids);
  return narrowed(grad, x.dtype());
}

}  // namespace shard::external
