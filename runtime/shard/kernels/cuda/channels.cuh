// Images by channel: sums over the places of each channel of each image, in parts, and what each channel does to its elements then.
//
// Sums are of any kind: a struct that is a kernel argument, with
//   using Element = T;  static constexpr int kInputs = N;  const T* in[N];
//   using State;   numbers of the type of arithmetic, kNumbers of them, which put(M* to) writes and get(const M* from) reads
//   State nothing() const;
//   M center(int64_t line) const;   a number that of() gets; a line is a channel of an image
//   State of(const M (&values)[N][K], const bool (&counts)[K], M center) const;   of those elements that count
//   State then(const State& a, const State& b) const;            of both
// Their order depends only on shape and device.
#pragma once

#include <algorithm>
#include <numeric>

#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/weighted_rows.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

/// x is [images, channels, places], or [images, places, channels] where channels are last. Sums of a channel of an image are in
/// `parts` parts of `chunk` places.
struct ChannelShape {
  int64_t images, channels, places;
  bool last;
  int64_t parts = 1, chunk = 0;

  int64_t lines() const { return images * channels; }
  int64_t numel() const { return lines() * places; }
};

inline ChannelShape channel_shape(const Dims& dims, bool last) {
  const int rank = dims.rank();
  if (last) return {dims[0], dims[rank - 1], dims.numel(1, rank - 1), true};
  return {dims[0], dims[1], dims.numel(2, rank), false};
}

inline constexpr int kColumnsOfBlock = 32, kSlicesOfBlock = 8;

/// Splits places so that there is work for the whole device.
inline void split_places(ChannelShape& shape) {
  const int64_t lines =
      shape.last ? shape.images * ((shape.channels + kColumnsOfBlock - 1) / kColumnsOfBlock) : shape.lines();
  const int64_t wanted = int64_t{multiprocessors()} * 8 / std::max<int64_t>(lines, 1), least = shape.last ? 64 : 4096;
  const int64_t parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(shape.places / least, 1));
  shape.chunk = std::max<int64_t>((shape.places + parts - 1) / parts, 1);
  shape.chunk = (shape.chunk + 15) / 16 * 16;  // accesses of parts are aligned
  shape.parts = std::max<int64_t>((shape.places + shape.chunk - 1) / shape.chunk, 1);
}

/// The state of all threads of a block; every thread gets it.
template <int Threads, class Sums>
__device__ typename Sums::State block_sum(const Sums& sums, typename Sums::State mine) {
  using State = typename Sums::State;
  using M = math_t<typename Sums::Element>;
  mine = warp_reduce(mine, [&](const State& a, const State& b) { return sums.then(a, b); });
  if constexpr (Threads > kWarp) {
    SHARD_SHARED(of_warps, M[Threads / kWarp][State::kNumbers]);
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    __syncthreads();  // the last call has read them
    if (threadIdx.x % kWarp == 0) mine.put(of_warps[warp]);
    __syncthreads();
    mine = State::get(of_warps[0]);
    for (int w = 1; w < Threads / kWarp; ++w) mine = sums.then(mine, State::get(of_warps[w]));
  }
  return mine;
}

/// A channel of an image is shared by `Threads` threads. States are [images, channels, parts].
template <class Sums, int Threads, int Width>
__global__ void __launch_bounds__(Threads)
    sum_channels(Sums sums, ChannelShape shape, math_t<typename Sums::Element>* states) {
  using T = typename Sums::Element;
  using State = typename Sums::State;
  constexpr int kInputs = Sums::kInputs, kAccesses = Width >= 8 ? 1 : 8 / Width, kElements = kAccesses * Width;
  for (int64_t part = blockIdx.x; part < shape.images * shape.channels * shape.parts; part += gridDim.x) {
    const int64_t line = part / shape.parts, begin = (part - line * shape.parts) * shape.chunk;
    const int64_t end = min(begin + shape.chunk, shape.places);
    const math_t<T> center = sums.center(line);
    State mine = sums.nothing();
    for (int64_t at = begin + threadIdx.x * Width; at < end; at += int64_t{Threads} * kElements) {
      math_t<T> values[kInputs][kElements];
      bool counts[kElements];
#pragma unroll
      for (int a = 0; a < kAccesses; ++a) {
        const int64_t here = at + int64_t{a} * Threads * Width;
#pragma unroll
        for (int n = 0; n < kInputs; ++n) {
          T piece[Width];
          if (here < end) load_elements(sums.in[n] + line * shape.places + here, 0, piece);
#pragma unroll
          for (int w = 0; w < Width; ++w) {
            counts[a * Width + w] = here < end;
            values[n][a * Width + w] = here < end ? load(piece[w]) : math_t<T>(0);
          }
        }
      }
      mine = sums.then(mine, sums.of(values, counts, center));
    }
    const State all = block_sum<Threads>(sums, mine);
    if (threadIdx.x == 0) all.put(states + part * State::kNumbers);
  }
}

/// The same where channels are last: neighbouring threads have neighbouring channels.
template <class Sums>
__global__ void __launch_bounds__(kColumnsOfBlock* kSlicesOfBlock)
    sum_last_channels(Sums sums, ChannelShape shape, math_t<typename Sums::Element>* states) {
  using T = typename Sums::Element;
  using State = typename Sums::State;
  constexpr int kInputs = Sums::kInputs, kElements = 8;
  SHARD_SHARED(slices, math_t<T>[kSlicesOfBlock][kColumnsOfBlock][State::kNumbers]);
  const int64_t groups = (shape.channels + kColumnsOfBlock - 1) / kColumnsOfBlock;
  for (int64_t part = blockIdx.x; part < groups * shape.images * shape.parts; part += gridDim.x) {
    const int64_t channel = part % groups * kColumnsOfBlock + threadIdx.x, rest = part / groups;
    const int64_t image = rest / shape.parts, begin = (rest - image * shape.parts) * shape.chunk;
    const int64_t end = min(begin + shape.chunk, shape.places), line = image * shape.channels + channel;
    const math_t<T> center = channel < shape.channels ? sums.center(line) : math_t<T>(0);
    State mine = sums.nothing();
    for (int64_t place = begin + threadIdx.y; channel < shape.channels && place < end;
         place += kSlicesOfBlock * kElements) {
      math_t<T> values[kInputs][kElements];
      bool counts[kElements];
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        const int64_t here = place + k * kSlicesOfBlock;
        counts[k] = here < end;
#pragma unroll
        for (int n = 0; n < kInputs; ++n) {
          values[n][k] = 0;
          if (here < end) values[n][k] = load(sums.in[n][(image * shape.places + here) * shape.channels + channel]);
        }
      }
      mine = sums.then(mine, sums.of(values, counts, center));
    }
    mine.put(slices[threadIdx.y][threadIdx.x]);
    __syncthreads();
    if (threadIdx.y == 0 && channel < shape.channels) {
      for (int slice = 1; slice < kSlicesOfBlock; ++slice)
        mine = sums.then(mine, State::get(slices[slice][threadIdx.x]));
      mine.put(states + (line * shape.parts + rest - image * shape.parts) * State::kNumbers);
    }
    __syncthreads();
  }
}

template <class Sums>
void launch_sums(const OpContext& ctx, const Sums& sums, const ChannelShape& shape,
                 math_t<typename Sums::Element>* states) {
  using T = typename Sums::Element;
  constexpr int kWidth = Pack<T>::kSize;
  if (shape.lines() == 0) return;
  if (shape.last) {
    const int64_t groups = (shape.channels + kColumnsOfBlock - 1) / kColumnsOfBlock,
                  parts = groups * shape.images * shape.parts;
    launch(ctx, sum_last_channels<Sums>, grid_for(parts * 256, 256), dim3(kColumnsOfBlock, kSlicesOfBlock), sums, shape,
           states);
    return;
  }
  bool aligned = shape.places % kWidth == 0;
  for (const T* in : sums.in) aligned = aligned && is_aligned(in);
  const int threads = shape.chunk <= 1024 ? kWarp : 256;
  auto* const kernel = threads == kWarp ? aligned ? sum_channels<Sums, kWarp, kWidth> : sum_channels<Sums, kWarp, 1>
                       : aligned ? sum_channels<Sums, 256, kWidth>
                                        : sum_channels<Sums, 256, 1>;
  launch(ctx, kernel, grid_for(shape.lines() * shape.parts * threads, threads), threads, sums, shape, states);
}

/// The state of parts first + i / inner * step + i % inner, of i from 0 to outer * inner - 1, in lane 0 of a warp, which adds them up.
struct PartsOfUnit {
  int64_t outer, step, inner;

  /// That of unit u.
  template <class Sums>
  __device__ typename Sums::State of_unit(const Sums& sums, const math_t<typename Sums::Element>* parts,
                                          int64_t u) const {
    return sum(sums, parts, u * inner);
  }
  template <class Sums>
  __device__ typename Sums::State sum(const Sums& sums, const math_t<typename Sums::Element>* parts,
                                      int64_t first) const {
    using State = typename Sums::State;
    State mine = sums.nothing();
    for (int64_t i = threadIdx.x % kWarp; i < outer * inner; i += kWarp)
      mine = sums.then(mine, State::get(parts + (first + i / inner * step + i % inner) * State::kNumbers));
    return warp_reduce(mine, [&](const State& a, const State& b) { return sums.then(a, b); });
  }
};

/// The value of lane 0.
template <class M>
__device__ M first_lane(M value) {
  return __shfl_sync(kAllLanes, value, 0);
}

/// The number, mean and sum of squared distances from the mean, of elements.
template <class M>
struct Moments {
  static constexpr int kNumbers = 3;
  M count, mean, squares;

  __device__ __forceinline__ void put(M* to) const {
    to[0] = count;
    to[1] = mean;
    to[2] = squares;
  }
  static __device__ __forceinline__ Moments get(const M* from) { return {from[0], from[1], from[2]}; }
};

template <class T>
struct MomentSums {
  using Element = T;
  using M = math_t<T>;
  using State = Moments<M>;
  static constexpr int kInputs = 1;
  const T* in[1];

  __device__ State nothing() const { return {0, 0, 0}; }
  __device__ M center(int64_t) const { return 0; }
  template <int K>
  __device__ State of(const M (&values)[1][K], const bool (&counts)[K], M) const {
    M count = 0, sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      count += counts[k] ? M(1) : M(0);
      sum += values[0][k];
    }
    const M mean = sum / count;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const M distance = values[0][k] - mean;
      squares += counts[k] ? distance * distance : M(0);
    }
    return {count, mean, squares};
  }
  __device__ State then(const State& a, const State& b) const {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    const M count = a.count + b.count, share = b.count / count, distance = b.mean - a.mean;
    const bool is_finite = distance - distance == 0;
    return {count, is_finite ? a.mean + distance * share : a.mean + b.mean,
            a.squares + b.squares + distance * distance * a.count * share};
  }
};

inline constexpr int kUnitThreads = 128;
inline unsigned blocks_of_warps(int64_t warps) { return grid_for(warps * kWarp, kUnitThreads); }
/// One state for each unit instead of several.
inline PartsOfUnit one_part() { return {1, 1, 1}; }

/// The channels of an image are in `groups` groups, each of `width` neighbours. Of all channels, `channels` are here, from number `begin`
/// on; so a group may be here in part, or not at all. A line is a channel of an image that is here.
struct ChannelGroups {
  int64_t groups, width, begin, channels;

  __host__ __device__ int64_t group(int64_t line) const {
    return line / channels * groups + (line % channels + begin) / width;
  }
  /// The lines of a group that are here.
  __host__ __device__ int64_t first(int64_t group) const { return line_of(group, group % groups); }
  __host__ __device__ int64_t end(int64_t group) const { return line_of(group, group % groups + 1); }

 private:
  __host__ __device__ int64_t line_of(int64_t group, int64_t widths) const {
    const int64_t channel = widths * width - begin;
    return group / groups * channels + (channel < 0 ? 0 : channel < channels ? channel : channels);
  }
};

/// The parts of the lines of each group.
struct PartsOfGroup {
  ChannelGroups of;
  int64_t parts;  // of a line

  template <class Sums>
  __device__ typename Sums::State of_unit(const Sums& sums, const math_t<typename Sums::Element>* states,
                                          int64_t group) const {
    const int64_t first = of.first(group);
    return PartsOfUnit{1, 0, (of.end(group) - first) * parts}.sum(sums, states, first * parts);
  }
};

/// Moments of the parts of units (channels, or groups of them) that are here, as a sum and squares that are added up over ranks.
template <class T, class Parts>
__global__ void sum_moments(const math_t<T>* parts, Parts of, int64_t units, math_t<T>* moments, double* sums) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x / kWarp;
  for (int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; c < units; c += step) {
    const auto mine = of.of_unit(MomentSums<T>{}, parts, c);
    if (threadIdx.x % kWarp != 0) continue;
    mine.put(moments + c * Moments<math_t<T>>::kNumbers);
    sums[c] = static_cast<double>(mine.count) * static_cast<double>(mine.mean);
  }
}
/// The squares of distances from the mean of all ranks; `sums` are those of all.
template <class T>
__global__ void center_moments(const math_t<T>* moments, const double* sums, double count, int64_t units,
                               double* squares) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < units; c += step) {
    const auto mine = Moments<math_t<T>>::get(moments + c * Moments<math_t<T>>::kNumbers);
    const double distance = static_cast<double>(mine.mean) - sums[c] / count;
    squares[c] =
        mine.count == 0 ? 0 : static_cast<double>(mine.squares) + static_cast<double>(mine.count) * distance * distance;
  }
}
template <class T>
__global__ void store_moments(const double* sums, const double* squares, double count, int64_t units,
                              math_t<T>* moments) {
  using M = math_t<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < units; c += step) {
    const Moments<M> all{static_cast<M>(count), static_cast<M>(sums[c] / count), static_cast<M>(squares[c])};
    all.put(moments + c * Moments<M>::kNumbers);
  }
}

/// Replaces the parts of moments by those of whole units, of which other ranks hold parts: one state for each unit, in
/// `moments`.
template <class T, class Parts>
void combine_moments(const OpContext& ctx, Device device, const math_t<T>* parts, const Parts& of, double count,
                     int64_t units, math_t<T>* moments) {
  DenseTensor sums = DenseTensor::allocate(device, {Dims{units}, DType::float64}),
              squares = DenseTensor::allocate(device, {Dims{units}, DType::float64});
  launch(ctx, sum_moments<T, Parts>, blocks_of_warps(units), kUnitThreads, parts, of, units, moments,
         sums.data<double>());
  ctx.all_reduce(sums, ReduceType::sum);
  const unsigned blocks = grid_for(units, kUnitThreads);
  launch(ctx, center_moments<T>, blocks, kUnitThreads, moments, sums.data<double>(), count, units,
         squares.data<double>());
  ctx.all_reduce(squares, ReduceType::sum);
  launch(ctx, store_moments<T>, blocks, kUnitThreads, sums.data<double>(), squares.data<double>(), count, units,
         moments);
}

/// The sums of y_grad and of y_grad * (x - mean).
template <class M>
struct GradState {
  static constexpr int kNumbers = 2;
  M plain, normal;

  __device__ __forceinline__ void put(M* to) const {
    to[0] = plain;
    to[1] = normal;
  }
  static __device__ __forceinline__ GradState get(const M* from) { return {from[0], from[1]}; }
};

/// in: x and y_grad. A line has the mean of its group; images share the means where there are 0 groups.
template <class T>
struct ChannelGradSums {
  using Element = T;
  using M = math_t<T>;
  using State = GradState<M>;
  static constexpr int kInputs = 2;
  const T* in[2];
  const M* mean;
  ChannelGroups of_means;

  __device__ State nothing() const { return {0, 0}; }
  __device__ M center(int64_t line) const { return mean[of_means.group(line)]; }
  template <int K>
  __device__ State of(const M (&values)[2][K], const bool (&counts)[K], M center) const {
    State sums{0, 0};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sums.plain += values[1][k];
      sums.normal += counts[k] ? values[1][k] * (values[0][k] - center) : M(0);
    }
    return sums;
  }
  __device__ State then(const State& a, const State& b) const { return {a.plain + b.plain, a.normal + b.normal}; }
};

/// out = (x - mean) * gain + offset, with numbers for each of `count` channels, those of one image or of all.
template <class T>
struct ChannelAffine {
  using Element = T;
  using M = math_t<T>;
  static constexpr int kInputs = 1, kNumbers = 3;
  const T* in[1];
  T* out;
  M* table;  // [3, count]: mean, gain, offset
  int64_t count;

  static __device__ M apply(const M (&v)[1], const M (&n)[kNumbers]) { return (v[0] - n[0]) * n[1] + n[2]; }
};

/// out = y_grad * gain - offset - (x - mean) * slope
template <class T>
struct ChannelAffineGrad {
  using Element = T;
  using M = math_t<T>;
  static constexpr int kInputs = 2, kNumbers = 4;
  const T* in[2];
  T* out;
  M* table;  // [4, count]: mean, gain, offset, slope
  int64_t count;

  static __device__ M apply(const M (&v)[2], const M (&n)[kNumbers]) {
    return v[1] * n[1] - n[2] - (v[0] - n[0]) * n[3];
  }
};

/// A thread computes Width neighbours, which are of one channel or, where channels are last, of one place. It takes one pack after the other
/// of the same channels, as far as that goes, and reads their numbers once: from the `chunk` packs of its warp or, where channels
/// are last, at steps of the grid, which are whole places (launch_apply_as).
template <class Op, int Width, class N, bool last>
__global__ void apply_to_channels(Op op, N packs, N chunk, N channels, N places) {
  using T = typename Op::Element;
  using M = math_t<T>;
  constexpr int kEach = last ? Width : 1;
  const N thread = grid_first<N>(), warp = thread / kWarp;
  const N begin = last ? thread : warp * chunk + thread % kWarp, end = last ? packs : min(packs, (warp + 1) * chunk);
  M numbers[Op::kNumbers][kEach];
  int64_t entry_before = -1;
  for (N i = begin; i < end; i += last ? grid_step<N>() : N{kWarp}) {
    const N element = i * Width;
    const N line = last ? element / (channels * places) * channels + element % channels : element / places;
    const int64_t entry = static_cast<int64_t>(line % static_cast<N>(op.count));
    if (entry != entry_before) {
#pragma unroll
      for (int n = 0; n < Op::kNumbers; ++n) load_shared_by_blocks(op.table + n * op.count, entry, numbers[n]);
    }
    entry_before = entry;
    T values[Op::kInputs][Width], results[Width];
#pragma unroll
    for (int n = 0; n < Op::kInputs; ++n) load_elements(op.in[n], static_cast<int64_t>(i), values[n]);
#pragma unroll
    for (int w = 0; w < Width; ++w) {
      M v[Op::kInputs], mine[Op::kNumbers];
#pragma unroll
      for (int n = 0; n < Op::kInputs; ++n) v[n] = load(values[n][w]);
#pragma unroll
      for (int n = 0; n < Op::kNumbers; ++n) mine[n] = numbers[n][last ? w : 0];
      results[w] = store<T>(Op::apply(v, mine));
    }
    store_elements(op.out, static_cast<int64_t>(i), results);
  }
}

template <int Width, class N, class Op>
void launch_apply_as(const OpContext& ctx, const Op& op, const ChannelShape& shape) {
  constexpr unsigned kThreads = 256;
  const int64_t packs = shape.numel() / Width;
  unsigned blocks = grid_for(packs, kThreads);
  const int64_t chunk = (packs + int64_t{blocks} * kThreads - 1) / (int64_t{blocks} * kThreads) * kWarp;
  if (shape.last) {
    blocks = std::min(blocks, static_cast<unsigned>(multiprocessors()) * 8);  // threads have much in registers
    const int64_t of_place = shape.channels / Width, whole = of_place / std::gcd(of_place, int64_t{kThreads});
    if (blocks > whole) blocks -= static_cast<unsigned>(blocks % whole);
  }
  launch(ctx, shape.last ? apply_to_channels<Op, Width, N, true> : apply_to_channels<Op, Width, N, false>, blocks,
         kThreads, op, static_cast<N>(packs), static_cast<N>(chunk), static_cast<N>(shape.channels),
         static_cast<N>(shape.places));
}

template <class Op>
void launch_apply(const OpContext& ctx, const Op& op, const ChannelShape& shape) {
  if (shape.numel() == 0) return;
  constexpr int kWidth = Pack<typename Op::Element>::kSize;
  bool aligned = (shape.last ? shape.channels : shape.places) % kWidth == 0 && is_aligned(op.out);
  for (const auto* in : op.in) aligned = aligned && is_aligned(in);
  const bool is_small = shape.numel() < int64_t{1} << 31;
  if (aligned && is_small) launch_apply_as<kWidth, uint32_t>(ctx, op, shape);
  else if (aligned) launch_apply_as<kWidth, int64_t>(ctx, op, shape);
  else if (is_small) launch_apply_as<1, uint32_t>(ctx, op, shape);
  else launch_apply_as<1, int64_t>(ctx, op, shape);
}

}  // namespace shard::cuda
