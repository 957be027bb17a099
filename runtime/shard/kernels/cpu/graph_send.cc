// The CPU kernels that send messages along the edges of a graph: send_u_recv, send_ue_recv, send_uv.
#include "shard/kernels/cpu/graph.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_graph.h"

namespace shard::cpu {
namespace {

/// The edges of each of `rows` rows, by their targets, in flat input `input`.
Positions edges_of(const OpContext& ctx, size_t input, const DenseTensor& dst_index, int64_t rows) {
  check_indices(ctx, input, "dst_index", dst_index, 0, rows);
  return positions_of(rows, dst_index.numel(), [&](int64_t i) { return integer_at(dst_index, i); });
}

Dims without_first(Dims dims) {
  dims.erase(0);
  return dims;
}

template <class T>
void send_u_recv(const OpContext& ctx, const DenseTensor& x, const DenseTensor& src_index, const DenseTensor& dst_index,
                 const std::string& reduce_op, DenseTensor& out, DenseTensor& dst_count) {
  check_indices(ctx, 1, "src_index", src_index, 0, x.dims()[0]);
  const Positions edges = edges_of(ctx, 2, dst_index, out.dims()[0]);
  count_messages(edges, dst_count);
  const int64_t width = x.dims().numel(1, x.dims().rank());
  reduce_messages(
      edges, width, meta::reduction_of(ctx.op, "reduce_op", reduce_op),
      [&](int64_t edge, int64_t begin, int64_t columns, Reduced<T>* message) {
        const T* const from = x.data<T>() + integer_at(src_index, edge) * width + begin;
        for (int64_t c = 0; c < columns; ++c) message[c] = static_cast<Reduced<T>>(static_cast<Compute<T>>(from[c]));
      },
      out.data<T>());
}

template <class T>
void send_ue_recv(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& src_index,
                  const DenseTensor& dst_index, const std::string& message_op, const std::string& reduce_op,
                  DenseTensor& out, DenseTensor& dst_count) {
  check_indices(ctx, 2, "src_index", src_index, 0, x.dims()[0]);
  const Positions edges = edges_of(ctx, 3, dst_index, out.dims()[0]);
  count_messages(edges, dst_count);
  const Dims row = without_first(out.dims());
  const Operand<T> nodes(x, row), values(y, row);
  const bool product = meta::is_product(ctx.op, message_op);
  reduce_messages(
      edges, row.numel(), meta::reduction_of(ctx.op, "reduce_op", reduce_op),
      [&](int64_t edge, int64_t begin, int64_t columns, Reduced<T>* message) {
        write_message(product, nodes, integer_at(src_index, edge), values, edge, begin, columns, message);
      },
      out.data<T>());
}

template <class T>
void send_uv(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& src_index,
             const DenseTensor& dst_index, const std::string& message_op, DenseTensor& out) {
  check_indices(ctx, 2, "src_index", src_index, 0, x.dims()[0]);
  check_indices(ctx, 3, "dst_index", dst_index, 0, y.dims()[0]);
  const Dims row = without_first(out.dims());
  const Operand<T> sources(x, row), targets(y, row);
  const bool product = meta::is_product(ctx.op, message_op);
  const int64_t width = row.numel();
  parallel_for(src_index.numel(), 2 * width, [&](int64_t first, int64_t last) {
    for (int64_t edge = first; edge < last; ++edge) {
      write_message(product, sources, integer_at(src_index, edge), targets, integer_at(dst_index, edge), 0, width,
                    out.data<T>() + edge * width);
    }
  });
}

}  // namespace

void register_graph_send() {
  for_types(NumberTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("send_u_recv", kBackend, dtype_of<T>, &send_u_recv<T>);
    register_kernel("send_ue_recv", kBackend, dtype_of<T>, &send_ue_recv<T>);
    register_kernel("send_uv", kBackend, dtype_of<T>, &send_uv<T>);
  });
}

}  // namespace shard::cpu
