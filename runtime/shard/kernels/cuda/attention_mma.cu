// Attention of 16-bit floats on CUDA by the tensor cores, for widths of up to 128: each warp has 16 queries, and keeps their scores
// and results in registers (Dao 2023). What attention.cu says of maxima and sums holds here too.
#include "shard/kernels/cuda/attention.cuh"
#include "shard/kernels/cuda/attention_tile.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/mma.cuh"

namespace shard::cuda {
namespace {

constexpr int kWarps = 4, kMmaThreads = kWarps * kWarp;
constexpr int kQueries = 16 * kWarps;  // of a block
constexpr int kKeys = 64;              // that are in shared memory at once
constexpr int kParts = kKeys / 8;      // of the scores of a row

/// Keys by rows and values by columns, as bits of 16-bit floats. Lines are padded, so that lanes read different banks.
template <int Width>
struct alignas(16) KeyStage {
  uint16_t keys[kKeys][Width + 8];
  uint16_t values[Width][kKeys + 8];
};

/// The place of a lane in the tiles of multiply_add.
struct LanePlace {
  int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;

  __device__ LanePlace() {}
};

template <class T>
__device__ bool is_finite(uint16_t bits) {
  constexpr unsigned kExponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80u : 0x7c00u;
  return (bits & kExponent) != kExponent;
}

/// Eight elements of row `row` from `column` on, and zeros around the rows.
template <class T>
__device__ void load_eight(const TileRows<T>& from, int row, int column, bool is_aligned, uint16_t (&bits)[8]) {
  const auto* const line = reinterpret_cast<const uint16_t*>(from.data) + row * from.step;
  if (is_aligned && row < from.count && column + 8 <= from.width) {
    const uint4 words = *reinterpret_cast<const uint4*>(line + column);
    memcpy(bits, &words, sizeof(words));
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) bits[i] = row < from.count && column + i < from.width ? line[column + i] : uint16_t{0};
}

/// One access of a device, of which the model sees each word.
struct alignas(16) Words {
  unsigned values[4];
};

/// Fills the stage. Returns whether a value that this thread copied is not finite.
template <int Width, class T>
__device__ bool load_stage(KeyStage<Width>& stage, const TileRows<const T>& keys, const TileRows<const T>& values,
                           bool is_aligned) {
  constexpr int kChunks = Width / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kMmaThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    uint16_t bits[8];
    load_eight(keys, row, column, is_aligned, bits);
    Words& to = *reinterpret_cast<Words*>(&stage.keys[row][column]);
#pragma unroll
    for (int word = 0; word < 4; ++word)
      to.values[word] = unsigned{bits[2 * word]} | unsigned{bits[2 * word + 1]} << 16;
  }
  bool found = false;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kMmaThreads) {
    const int row = i % kKeys, column = i / kKeys * 8;
    uint16_t bits[8];
    load_eight(values, row, column, is_aligned, bits);
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      stage.values[column + d][row] = bits[d];
      found = found || !is_finite<T>(bits[d]);
    }
  }
  return found;
}

/// Two neighbouring numbers of a line in shared memory.
__device__ inline unsigned read_pair(const uint16_t* at) { return *reinterpret_cast<const unsigned*>(at); }

/// A warp's queries as factors, and what is known of the two rows of a lane.
template <class T, int Width>
struct WarpRows {
  unsigned factors[Width / 16][4];
  float largest[2], total[2];
  float sums[Width / 8][4];

  /// The queries from row `first` of the tile on.
  __device__ void load(const TileRows<const T>& queries, int first) {
    const LanePlace lane;
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int row = first + lane.g + part % 2 * 8, column = k * 16 + part / 2 * 8 + lane.t * 2;
        const auto* const line = reinterpret_cast<const uint16_t*>(queries.data) + row * queries.step + column;
        const bool is_row = row < queries.count;
        const unsigned low = is_row && column < queries.width ? line[0] : 0u,
                       high = is_row && column + 1 < queries.width ? line[1] : 0u;
        factors[k][part] = low | high << 16;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = -INFINITY;
      total[half] = 0;
    }
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[n][c] = 0;
    }
  }
};

/// The scores of the queries from `first` on, the first of the warp, and the keys from `start` on.
template <class T, int Width>
__device__ void score(const Head<T>& head, const WarpRows<T, Width>& rows, const KeyStage<Width>& stage, int64_t first,
                      int64_t start, int64_t width, float (&scores)[kParts][4]) {
  const LanePlace lane;
#pragma unroll
  for (int n = 0; n < kParts; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[n][c] = 0;
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) {
      if (k * 16 >= width) continue;
      const uint16_t* const line = &stage.keys[n * 8 + lane.g][k * 16 + lane.t * 2];
      multiply_add<T>(scores[n], rows.factors[k], {read_pair(line), read_pair(line + 8)});
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
      scores[n][c] = head.score(scores[n][c], first + lane.g + c / 2 * 8, start + n * 8 + lane.t * 2 + c % 2);
  }
}

/// Adds scores to the running maxima and sums, makes them weights, and scales the weighted values that there are.
template <class T, int Width>
__device__ void accumulate(WarpRows<T, Width>& rows, float (&scores)[kParts][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = rows.largest[half];
#pragma unroll
    for (int n = 0; n < kParts; ++n)
      largest = Larger()(largest, Larger()(scores[n][2 * half], scores[n][2 * half + 1]));
    largest = Larger()(largest, shuffle_xor(largest, 1));
    largest = Larger()(largest, shuffle_xor(largest, 2));
    const bool sees_none = largest == -INFINITY;
    float total = 0;
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; ++c) {
        scores[n][c] = sees_none ? 0.0f : exp(scores[n][c] - largest);
        total += scores[n][c];
      }
    }
    total += shuffle_xor(total, 1);
    total += shuffle_xor(total, 2);
    if (sees_none) continue;
    const float shrink = exp(rows.largest[half] - largest);
    rows.total[half] = rows.total[half] * shrink + total;
    rows.largest[half] = total != total ? total : largest;
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; ++c)  // what weighs nothing adds nothing, be it infinite
        rows.sums[n][c] = shrink == 0.0f ? 0.0f : rows.sums[n][c] * shrink;
    }
  }
}

template <class T>
__device__ void drop(const Head<T>& head, RandomKey key, int64_t first, int64_t start, float (&weights)[kParts][4]) {
  const LanePlace lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    PhiloxWords words(key);
    const uint64_t number = head.weights_of(first + lane.g + half * 8) + static_cast<uint64_t>(start + lane.t * 2);
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        weights[n][2 * half + c] *= head.kept(words, number + static_cast<uint64_t>(n * 8 + c));
    }
  }
}

/// sums += weights * values.
template <class T, int Width>
__device__ void add_values(WarpRows<T, Width>& rows, const KeyStage<Width>& stage, const float (&weights)[kParts][4],
                           int64_t width) {
  const LanePlace lane;
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    const float(&low)[4] = weights[2 * k], (&high)[4] = weights[2 * k + 1];
    const unsigned factors[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]),
                                 pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
      if (n * 8 >= width) continue;
      const uint16_t* const line = &stage.values[n * 8 + lane.g][k * 16 + lane.t * 2];
      multiply_add<T>(rows.sums[n], factors, {read_pair(line), read_pair(line + 8)});
    }
  }
}

/// The same where values are not finite: what has weight 0 adds nothing.
template <class T, int Width>
__device__ void add_values_that_weigh(WarpRows<T, Width>& rows, const KeyStage<Width>& stage,
                                      const float (&weights)[kParts][4]) {
  const LanePlace lane;
#pragma unroll
  for (int part = 0; part < kParts * 2; ++part) {
    const int c = part % 2;
    for (int t = 0; t < 4; ++t) {  // the lane that has the weights of this key
      const int key = part / 2 * 8 + t * 2 + c;
      const float low = __shfl_sync(kAllLanes, weights[part / 2][c], lane.g * 4 + t),
                  high = __shfl_sync(kAllLanes, weights[part / 2][2 + c], lane.g * 4 + t);
#pragma unroll
      for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
        for (int d = 0; d < 2; ++d) {
          T value;
          memcpy(&value, &stage.values[n * 8 + lane.t * 2 + d][key], sizeof(value));
          if (low != 0.0f) rows.sums[n][d] += low * load(value);
          if (high != 0.0f) rows.sums[n][2 + d] += high * load(value);
        }
      }
    }
  }
}

template <class T>
struct MmaResults {
  HeadRows<T> out;
  PerQuery<float> lse;
};

template <class T, int Width>
__device__ void store_rows(const WarpRows<T, Width>& rows, const TileRows<T>& out, int first) {
  const LanePlace lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane.g + half * 8;
    if (row >= out.count) continue;
    T* const line = out.data + row * out.step;
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = n * 8 + lane.t * 2 + c;
        const float sum = rows.sums[n][2 * half + c];
        if (column < out.width) line[column] = store<T>(rows.total[half] == 0.0f ? 0.0f : sum / rows.total[half]);
      }
    }
  }
}

template <class T, int Width>
__device__ void attend_tile(const Attention<T>& a, const TileJob& job, const MmaResults<T>& results, bool is_aligned,
                            KeyStage<Width>& stage) {
  const Head<T> head(a, job.sequence, job.head);
  const int64_t first = job.tile * kQueries;
  if (first >= head.s.queries) return;
  const TileRows<const T> queries = head.of_queries(a.q, first, kQueries);
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16;  // the first of the warp
  WarpRows<T, Width> rows;
  rows.load(queries, row);
  const int64_t end = head.visible(first + queries.count - 1);
  const RandomKey key = a.drops ? a.key.get() : RandomKey{};
  for (int64_t start = 0; start < end; start += kKeys) {
    __syncthreads();  // what was in the stage has been read
    const bool found =
        load_stage<Width, T>(stage, head.of_keys(a.k, start, kKeys), head.of_keys(a.v, start, kKeys), is_aligned);
    const bool any_found = __syncthreads_or(found);
    float scores[kParts][4];
    score(head, rows, stage, first + row, start, a.q.width, scores);
    accumulate(rows, scores);
    if (a.drops) drop(head, key, first + row, start, scores);
    if (any_found) add_values_that_weigh(rows, stage, scores);
    else add_values(rows, stage, scores, a.v.width);
  }
  store_rows(rows, head.of_queries(results.out, first, kQueries), row);
  const LanePlace lane;
  for (int half = 0; half < 2 && lane.t == 0; ++half) {
    const int at = row + lane.g + half * 8;
    if (at < queries.count)
      *results.lse.at(job.sequence, job.head, first + at) = rows.largest[half] + log(rows.total[half]);
  }
}

template <class T, int Width>
__global__ void __launch_bounds__(kMmaThreads, 3)
    attend_mma_kernel(Attention<T> a, TileJobs jobs, MmaResults<T> results, bool is_aligned) {
  SHARD_SHARED(stage, KeyStage<Width>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x)
    attend_tile<T, Width>(a, TileJob(jobs, number, a.causal), results, is_aligned, stage);
}

/// Whether rows of x begin at multiples of 16 bytes.
bool rows_are_aligned(const DenseTensor& x) {
  return reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0 && x.dims()[3] % 8 == 0;
}

template <class T>
void attend_of(const OpContext& ctx, const AttentionCall& call, const AttentionResults& to) {
  const TileJobs jobs{divided_up(call.sequences.longest, kQueries), 1, call.q.dims()[2], call.sequences.count};
  if (jobs.count() == 0) return;
  const MmaResults<T> results{HeadRows<T>(to.out), PerQuery<float>(to.lse)};
  const bool is_narrow = std::max(call.q.dims()[3], call.v.dims()[3]) <= 64;
  launch(ctx, is_narrow ? attend_mma_kernel<T, 64> : attend_mma_kernel<T, 128>, grid_of(jobs), kMmaThreads,
         Attention<T>(call), jobs, results, rows_are_aligned(call.k) && rows_are_aligned(call.v));
}

}  // namespace

bool attend_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results) {
  const DType dtype = call.q.dtype();
  const bool is_wide = std::max(call.q.dims()[3], call.v.dims()[3]) > 128;
  if (is_wide || size_of(dtype) != 2 || results.softmax.dims().rank() == 4) return false;
  if (dtype == DType::bfloat16) attend_of<__nv_bfloat16>(ctx, call, results);
  else attend_of<__half>(ctx, call, results);
  return true;
}

}  // namespace shard::cuda
