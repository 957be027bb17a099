#include "shard/kernels/cuda/strided_copy.cuh"

#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {
namespace {

/// A thread copies words whose number in row-major order of the dims it knows; steps are in words.
template <class W, class N>
__global__ void copy_words(N words, CopyDims dims, W* to, const W* from) {
  for (N i = grid_first<N>(); i < words; i += grid_step<N>()) {
    N rest = i;
    int64_t to_at = 0, from_at = 0;
    for (int d = dims.rank - 1; d >= 0; --d) {
      const N size = static_cast<N>(dims.sizes[d]);
      const N outer = d == 0 ? 0 : rest / size;
      const auto here = static_cast<int64_t>(rest - outer * size);
      to_at += here * dims.to_steps[d];
      from_at += here * dims.from_steps[d];
      rest = outer;
    }
    to[to_at] = from[from_at];
  }
}

uint64_t magnitude(int64_t step) { return static_cast<uint64_t>(step < 0 ? -step : step); }

}  // namespace

void StridedCopy::add(int64_t size, int64_t to_step, int64_t from_step) {
  count_ *= size;
  if (size == 1) return;
  const int last = dims_.rank - 1;
  if (last >= 0 && dims_.to_steps[last] == to_step * size && dims_.from_steps[last] == from_step * size) {
    dims_.sizes[last] *= size;
  } else {
    dims_.sizes[dims_.rank++] = size;
  }
  dims_.to_steps[dims_.rank - 1] = to_step;
  dims_.from_steps[dims_.rank - 1] = from_step;
}

void StridedCopy::run(const OpContext& ctx, void* to, const void* from) const {
  if (count_ == 0) return;
  CopyDims dims = dims_;
  const int last = dims.rank - 1;
  const bool has_runs = last >= 0 && dims.to_steps[last] == 1 && dims.from_steps[last] == 1;
  if (dims.rank == 0 || (has_runs && dims.rank == 1)) {
    return check(cudaMemcpyAsync(to, from, static_cast<size_t>(count_ * element_), cudaMemcpyDeviceToDevice, stream()),
                 "cudaMemcpyAsync (device to device)");
  }
  // Runs are copied in words that divide them, all distances and both addresses.
  const auto element = static_cast<uint64_t>(element_);
  uint64_t bits = address(to) | address(from);
  for (int d = 0; d < dims.rank; ++d) {
    if (has_runs && d == last) bits |= static_cast<uint64_t>(dims.sizes[d]) * element;
    else bits |= (magnitude(dims.to_steps[d]) | magnitude(dims.from_steps[d])) * element;
  }
  const int word = word_size({bits}, has_runs ? 16 : static_cast<int>(element_));
  const int64_t together = word / element_;  // elements of a word; addresses are multiples of elements
  for (int d = 0; d < dims.rank; ++d) {
    if (has_runs && d == last) {
      dims.sizes[d] /= together;
    } else {
      dims.to_steps[d] /= together;
      dims.from_steps[d] /= together;
    }
  }
  const int64_t words = count_ / together;
  visit_word_and_index(word, words, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, copy_words<W, N>, grid_for(words, kThreads), kThreads, static_cast<N>(words), dims, static_cast<W*>(to),
           static_cast<const W*>(from));
  });
}

}  // namespace shard::cuda
