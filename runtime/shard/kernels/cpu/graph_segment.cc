// The CPU kernel of segment_pool, which reduces neighbouring rows. It allocates its outputs itself.
#include "shard/kernels/cpu/graph.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_graph.h"
#include "shard/meta/check.h"

namespace shard::cpu {
namespace {

/// Throws unless the ids, flat input 1, are 0 or more, in rising order, and name rows of at most `width` elements of
/// `dtype` that can be counted.
void check_segments(const OpContext& ctx, const DenseTensor& ids, int64_t width, DType dtype) {
  check_indices(ctx, 1, "segment_ids", ids, 0, meta::most_rows(ids.dtype(), width, dtype));
  const int64_t at =
      first_where(ids.numel(), 2, [&](int64_t i) { return i > 0 && integer_at(ids, i) < integer_at(ids, i - 1); });
  if (at == ids.numel()) return;
  fail_check(ErrorCode::invalid_argument, "{}",
             falling_text(ctx.op, ArgumentPlace(ctx, 1, ids), at, integer_at(ids, at), integer_at(ids, at - 1)));
}

template <class T>
void segment_pool(const OpContext& ctx, const DenseTensor& x, const DenseTensor& segment_ids,
                  const std::string& pooltype, DenseTensor& out, DenseTensor& summed_ids) {
  const meta::Reduction reduction = meta::reduction_of(ctx.op, "pooltype", pooltype);
  const int64_t count = segment_ids.numel(), width = x.dims().numel(1, x.dims().rank());
  check_segments(ctx, segment_ids, width, x.dtype());
  Dims dims = x.dims();
  dims[0] = count == 0 ? 0 : integer_at(segment_ids, count - 1) + 1;
  out = DenseTensor::allocate(x.device(), {dims, x.dtype()});
  const Dims counted = {reduction == meta::Reduction::mean ? dims[0] : 0, 1};
  summed_ids = DenseTensor::allocate(x.device(), {counted, DType::int64});
  const Positions segments = positions_of(dims[0], count, [&](int64_t i) { return integer_at(segment_ids, i); });
  count_messages(segments, summed_ids);
  reduce_messages(
      segments, width, reduction,
      [&](int64_t row, int64_t begin, int64_t columns, Reduced<T>* message) {
        const T* const from = x.data<T>() + row * width + begin;
        for (int64_t c = 0; c < columns; ++c) message[c] = static_cast<Reduced<T>>(static_cast<Compute<T>>(from[c]));
      },
      out.data<T>());
}

}  // namespace

void register_segment_pool() {
  for_types(NumberTypes{},
            []<class T>(TypeTag<T>) { register_kernel("segment_pool", kBackend, dtype_of<T>, &segment_pool<T>); });
}

}  // namespace shard::cpu
