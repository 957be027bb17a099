// Values written or added at positions, or where masks are true, on CUDA: index_put. A rank writes what is in its shard.
#include <vector>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/read_back.cuh"
#include "shard/kernels/cuda/row_sums.cuh"
#include "shard/kernels/cuda/scan.cuh"
#include "shard/kernels/cuda/strided_copy.cuh"
#include "shard/meta/writing.h"

namespace shard::cuda {
namespace {

/// Lists the true elements of a mask in their order, and counts them.
template <class N>
struct TrueElements {
  using State = N;
  static constexpr bool kExclusive = true;
  const uint8_t* mask;
  int64_t size;
  N *found, *count;
  bool exclusive = true;

  __device__ State nothing() const { return 0; }
  __device__ State element(int64_t place, int64_t) const { return mask[place] != 0 ? 1 : 0; }
  __device__ State then(State before, State next) const { return before + next; }
  __device__ void write(int64_t place, State state) const {
    const bool is_true = mask[place] != 0;
    if (is_true) found[state] = static_cast<N>(place);
    if (place == size - 1) *count = state + (is_true ? 1 : 0);
  }
};

/// A shape, and where it begins in that of a whole tensor.
struct MaskDims {
  int rank;
  int64_t sizes[kMaxRank], begins[kMaxRank];
};

/// The position of each of `count` elements along each dim.
template <class N>
__global__ void write_positions(const N* found, int64_t count, MaskDims dims, int64_t* positions) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    auto rest = static_cast<int64_t>(found[i]);
    for (int d = dims.rank - 1; d >= 0; --d) {
      positions[d * count + i] = dims.begins[d] + rest % dims.sizes[d];
      rest /= dims.sizes[d];
    }
  }
}

/// The positions [rank, n] of the true elements of a mask, whose shard begins at `begin`. Waits for their number.
DenseTensor positions_of(const OpContext& ctx, const DenseTensor& mask, const Dims& begin) {
  const int rank = mask.dims().rank();
  const int64_t size = mask.numel();
  const auto make = [&](int64_t count) { return DenseTensor::allocate(mask.device(), {{rank, count}, DType::int64}); };
  if (size == 0) return make(0);
  DenseTensor positions;
  visit_number(size, [&]<class N>(N count) {
    const Scratch memory(static_cast<size_t>(size + 1) * sizeof(N));
    N* const found = static_cast<N*>(memory.data());
    run_scan(ctx, TrueElements<N>{elements<const uint8_t>(mask), size, found, found + size}, Lines{1, size, 1});
    read_back(&count, found + size, 1);
    positions = make(static_cast<int64_t>(count));
    if (count == 0) return;
    MaskDims dims{rank, {}, {}};
    for (int d = 0; d < rank; ++d) {
      dims.sizes[d] = mask.dims()[d];
      dims.begins[d] = begin[d];
    }
    launch(ctx, write_positions<N>, grid_for(positions.dims()[1], kThreads), kThreads, found, positions.dims()[1], dims,
           elements<int64_t>(positions));
  });
  return positions;
}

/// The positions along one dim of x: elements of a tensor of that shape.
struct Positioned {
  Indices positions;
  Dims shape;
};

/// The places that indices select, in their order, and the dims of x in which they do.
struct Places {
  Dims shape;
  std::vector<Positioned> along;
  std::vector<DenseTensor> of_masks;  // which have the positions

  Places(const OpContext& ctx, const Dims& x, std::span<const DenseTensor> indices) {
    std::vector<Dims> shapes;
    for (size_t i = 0; i < indices.size(); ++i) {
      const DenseTensor& index = indices[i];
      if (index.dtype() == DType::boolean) {
        const DenseTensor found = positions_of(ctx, index, ctx.input_box(1 + i, index).begin);
        const int64_t count = found.dims()[1];
        shapes.push_back({count});
        of_masks.push_back(found);
        for (int d = 0; d < index.dims().rank(); ++d)
          along.push_back({Indices(count == 0 ? nullptr : found.data<int64_t>() + d * count, true), {count}});
      } else {
        check_index(ctx, i, index, x[static_cast<int>(along.size())]);
        shapes.push_back(index.dims());
        along.push_back({Indices(index), index.dims()});
      }
    }
    shape = meta::common_shape(ctx.op, shapes);
  }

 private:
  static void check_index(const OpContext& ctx, size_t i, const DenseTensor& index, int64_t size) {
    if (index.numel() == 0) return;
    const IndexCheck check(ctx, 1 + i, "indices", index, -size, size, static_cast<int64_t>(i));
    launch(ctx, check_indices_kernel<Indices>, grid_for(index.numel(), kThreads), kThreads, Indices(index),
           index.numel(), check);
  }
};

/// The slice of x, numbered within the shard, that a place selects.
struct SelectedSlice {
  int chosen;  // dims of x
  const void* positions[kMaxRank];
  bool wide[kMaxRank];
  int64_t global[kMaxRank], begin[kMaxRank], local[kMaxRank];
  Strided<kMaxRank> walk;  // through the places, in the positions of each dim

  SelectedSlice(const Places& places, const Box& box, const Dims& x) : chosen(static_cast<int>(places.along.size())) {
    const int rank = places.shape.rank();
    for (int d = 0; d < chosen; ++d) {
      const Indices& of_dim = places.along[static_cast<size_t>(d)].positions;
      positions[d] = of_dim.data;
      wide[d] = of_dim.wide;
      global[d] = box.global[d];
      begin[d] = box.begin[d];
      local[d] = x[d];
    }
    for (int i = 0; i < rank; ++i) {
      int64_t steps[kMaxRank] = {};
      for (int d = 0; d < chosen; ++d)
        steps[d] = stride_at(broadcast_strides(places.along[static_cast<size_t>(d)].shape), rank, i);
      walk.append(places.shape[i], steps);
    }
  }

  __device__ int64_t operator()(int64_t place) const {
    int64_t at[kMaxRank];
    walk.locate(place, at);
    int64_t slice = 0;
    bool is_here = true;
    for (int d = 0; d < chosen; ++d) {
      int64_t position = Indices(positions[d], wide[d])[at[d]];
      position += (position < 0 ? global[d] : 0) - begin[d];
      is_here = is_here && position >= 0 && position < local[d];  // what is outside has been reported
      slice = slice * local[d] + position;
    }
    return is_here ? slice : -1;
  }
};

/// Where the elements of value are for places and for the elements of a slice.
struct ValueSteps {
  Strided<1> places, row;

  ValueSteps(const DenseTensor& value, const Box& box, const Places& of, const Dims& x) {
    const Dims steps = steps_of(value.dims());
    const int lead = of.shape.rank(), chosen = static_cast<int>(of.along.size());
    const int more = lead + x.rank() - chosen - value.dims().rank();
    const auto step_of = [&](int d) { return d < more || box.global[d - more] == 1 ? 0 : steps[d - more]; };
    for (int d = 0; d < lead; ++d) places.append(of.shape[d], {step_of(d)});
    for (int d = chosen; d < x.rank(); ++d) row.append(x[d], {step_of(lead + d - chosen)});
  }
  /// Whether rows can be read in units of this many elements.
  bool has_units(int64_t size) const {
    bool all = row.rank == 0 || (row.rank == 1 && row.strides[0][0] == 1 && row.sizes[0] % size == 0);
    for (int d = 0; d < places.rank; ++d) all = all && places.strides[0][d] % size == 0;
    return all && (row.rank != 0 || size == 1);
  }
  /// Rows in units, of elements that are read in units.
  void divide(int64_t size) {
    for (int d = 0; d < places.rank; ++d) places.strides[0][d] /= size;
    if (row.rank == 1) row.sizes[0] /= size;
  }
  /// The place of element `i` of the row for a place.
  __device__ int64_t operator()(int64_t place, int64_t i) const {
    int64_t first[1], more[1] = {i};
    places.locate(place, first);
    if (row.rank != 1) row.locate(i, more);
    else more[0] *= row.strides[0][0];
    return first[0] + more[0];
  }
};

/// Adds values to slices of x.
template <class D>
struct ValueSum : RowsOfSums<D> {
  const D* value;
  ValueSteps steps;

  template <int V, class State>
  __device__ void source(int64_t, int64_t place, int64_t at, State (&states)[V]) const {
    read_states<V>(value + steps(place, at * V), 0, states);
  }
  template <int V>
  bool packs() const {
    return steps.has_units(V) && this->template rows_pack<V>() && packs_are_aligned<V>(value);
  }
};

/// Writes the slices of which a place is the last one, in words.
template <class W>
__global__ void write_last_values(LastSourcesView last, int64_t count, int64_t width, const W* value, ValueSteps steps,
                                  W* out) {
  for (int64_t place = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; place < count;
       place += int64_t{gridDim.x} * blockDim.y) {
    const int64_t row = last.row_written_by(place);
    if (row < 0) continue;
    for (int64_t i = int64_t{blockIdx.z} * blockDim.x + threadIdx.x; i < width; i += int64_t{gridDim.z} * blockDim.x)
      out[row * width + i] = value[steps(place, i)];
  }
}

void write_values(const OpContext& ctx, const LastSources& last, int64_t width, const DenseTensor& value,
                  ValueSteps steps, DenseTensor& out) {
  if (last.count() == 0 || width == 0) return;
  const auto size = static_cast<int64_t>(size_of(out.dtype()));
  int64_t unit = 16 / size;  // elements of a word
  const auto fits = [&] {
    const uint64_t bytes = static_cast<uint64_t>(unit * size);
    return steps.has_units(unit) && address(value.raw()) % bytes == 0 && address(out.raw()) % bytes == 0;
  };
  while (unit > 1 && !fits()) unit /= 2;
  if (unit > 1) steps.divide(unit);
  const RowGrid grid(last.count(), 1, width / unit);
  visit_word(static_cast<int>(unit * size), [&]<class W>(TypeTag<W>) {
    launch(ctx, write_last_values<W>, grid.blocks, grid.threads, last.view(), last.count(), width / unit,
           static_cast<const W*>(value.raw()), steps, static_cast<W*>(out.raw()));
  });
}

template <class T>
void index_put(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> indices,
               const DenseTensor& value, bool accumulate, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const Box box = ctx.input_box(0, x), value_box = ctx.input_box(1 + indices.size(), value);
  const Places places(ctx, box.global, indices);
  const auto chosen = static_cast<int>(places.along.size());
  Dims written = places.shape;
  for (int d = chosen; d < box.global.rank(); ++d) written.push_back(box.global[d]);
  meta::check_broadcast(ctx.op, value_box.global, written);
  const int64_t slices = x.dims().numel(0, chosen), width = x.dims().numel(chosen, x.dims().rank());
  const int64_t count = places.shape.numel();
  const SelectedSlice slice_of(places, box, x.dims());
  const DenseTensor apart = value.raw() == out.raw() ? clone(value) : value;
  const ValueSteps steps(value, value_box, places, x.dims());
  if (accumulate) {
    const Grouping grouping(ctx, slices, count, slice_of);  // before out is written, which may be an index
    copy_all(x, out);
    return sum_groups(
        ctx, grouping, 1, width,
        ValueSum<D>{{elements<const D>(x), elements<D>(out), slices, width}, elements<const D>(apart), steps});
  }
  const LastSources last(ctx, slices, count, slice_of);
  copy_all(x, out);
  write_values(ctx, last, width, apart, steps, out);
}

}  // namespace

void register_index_put(int backend) {
  for_types(AllTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("index_put", backend, dtype_of<T>, &index_put<T>); });
}

}  // namespace shard::cuda
