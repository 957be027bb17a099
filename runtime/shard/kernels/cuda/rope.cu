// Rotary position embeddings and their gradient on CUDA. A block computes the angles of a position once, for all heads.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kAngles = 256;  // pairs whose angles a block has at once

/// A table of sines or cosines of any float dtype.
struct AngleTable {
  const void* data;
  DType dtype;

  explicit AngleTable(const DenseTensor& table)
      : data(table.defined() ? table.raw() : nullptr), dtype(table.defined() ? table.dtype() : DType::float32) {}
  __device__ double operator[](int64_t i) const {
    if (dtype == DType::float64) return static_cast<const double*>(data)[i];
    if (dtype == DType::float32) return static_cast<const float*>(data)[i];
    if (dtype == DType::float16) return load(static_cast<const __half*>(data)[i]);
    return load(static_cast<const __nv_bfloat16*>(data)[i]);
  }
};

/// Describes a position that must be one of the tables.
struct alignas(8) PositionRange {
  const char* op;
  int64_t positions;
  ArgumentPlace ids;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}", position_outside_text(op, ids, position, value, positions));
  }
};

/// Where angles come from: tables, whose row `begin` is the first on this rank, or powers of the base.
struct Angles {
  AngleTable sin, cos;
  int64_t begin, positions, width;
  double base;
  bool adjacent;

  Angles(const OpContext& ctx, size_t slot, const DenseTensor& sines, const DenseTensor& cosines, int64_t width,
         bool adjacent, float base)
      : sin(sines), cos(cosines), begin(0), positions(0), width(width), base(base), adjacent(adjacent) {
    if (!given()) return;
    const Box box = ctx.input_box(slot, sines);
    const int along = box.global.rank() == 2 ? 0 : 1;
    begin = box.begin[along];
    positions = box.global[along];
  }
  __host__ __device__ bool given() const { return sin.data != nullptr; }

  /// Those of element `i` of a head.
  template <class M>
  __device__ void at(int64_t position, int64_t i, M& sine, M& cosine) const {
    if (given()) {
      sine = static_cast<M>(sin[(position - begin) * width + i]);
      cosine = static_cast<M>(cos[(position - begin) * width + i]);
      return;
    }
    const int64_t pair = adjacent ? i / 2 : i % (width / 2);
    const double angle =
        static_cast<double>(position) * ::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
    sine = static_cast<M>(::sin(angle));
    cosine = static_cast<M>(::cos(angle));
  }
};

/// Tensors [outer, inner, heads, width], of which all but the heads agree; pairs are neighbours or half a head apart.
template <class T>
struct Rotation {
  const T* from[3];
  T* to[3];
  int64_t heads[3];  // 0 of a tensor that is absent
  int64_t outer, inner, first_position;
  const int64_t* ids;  // [batch, sequence], or null
  bool time_major, back;
  Angles angles;
};

/// The sines and cosines of the two elements of pairs.
template <class M>
struct PairAngles {
  M sine[2][kAngles], cosine[2][kAngles];
};

/// How a thread accesses pairs: kPairs neighbours of each head, in accesses of Width elements.
template <class T, int Width, bool adjacent>
struct PairAccess {
  static constexpr int kPairs = adjacent && Width > 1 ? Width / 2 : Width;
  static constexpr bool kWhole = adjacent && Width > 1;  // pairs within an access
  using M = math_t<T>;

  /// Pairs [group * kPairs, ..) of the head at `from`.
  static __device__ void read(const T* from, int64_t group, int64_t half, M (&first)[kPairs], M (&second)[kPairs]) {
    if constexpr (kWhole) {
      T values[Width];
      load_elements(from, group, values);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        first[k] = load(values[2 * k]);
        second[k] = load(values[2 * k + 1]);
      }
    } else {
      T a[kPairs], b[kPairs];
      load_elements(adjacent ? from + 2 * group : from, adjacent ? 0 : group, a);
      load_elements(adjacent ? from + 2 * group + 1 : from + half, adjacent ? 0 : group, b);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        first[k] = load(a[k]);
        second[k] = load(b[k]);
      }
    }
  }
  static __device__ void write(T* to, int64_t group, int64_t half, const M (&first)[kPairs],
                               const M (&second)[kPairs]) {
    if constexpr (kWhole) {
      T values[Width];
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        values[2 * k] = store<T>(first[k]);
        values[2 * k + 1] = store<T>(second[k]);
      }
      store_elements(to, group, values);
    } else {
      T a[kPairs], b[kPairs];
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        a[k] = store<T>(first[k]);
        b[k] = store<T>(second[k]);
      }
      store_elements(adjacent ? to + 2 * group : to, adjacent ? 0 : group, a);
      store_elements(adjacent ? to + 2 * group + 1 : to + half, adjacent ? 0 : group, b);
    }
  }
};

/// Rotates pairs [begin, begin + count) of all heads of a row. The backward rotation is by the transposed matrix, because a table may give
/// the elements of a pair different angles.
template <class T, int Width, bool adjacent>
__device__ void rotate_pairs(const Rotation<T>& r, int64_t row, int64_t begin, int count,
                             const PairAngles<math_t<T>>& angles) {
  using Access = PairAccess<T, Width, adjacent>;
  using M = math_t<T>;
  constexpr int kPairs = Access::kPairs;
  const int64_t half = r.angles.width / 2;
  const int groups = count / kPairs;
  for (int n = 0; n < 3; ++n) {
    for (int64_t i = threadIdx.x; i < r.heads[n] * groups; i += kThreads) {
      const int64_t head = i / groups;
      const int group = static_cast<int>(i - head * groups);
      const int64_t at = (row * r.heads[n] + head) * r.angles.width, place = begin / kPairs + group;
      M first[kPairs], second[kPairs];
      Access::read(r.from[n] + at, place, half, first, second);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        const int pair = group * kPairs + k;
        const M a = first[k], b = second[k], up = angles.sine[0][pair], down = angles.sine[1][pair];
        first[k] = a * angles.cosine[0][pair] - b * (r.back ? -down : up);
        second[k] = b * angles.cosine[1][pair] + a * (r.back ? -up : down);
      }
      Access::write(r.to[n] + at, place, half, first, second);
    }
  }
}

template <class T, int Width, bool adjacent>
__global__ void __launch_bounds__(kThreads) rotate_kernel(Rotation<T> r, DataCheck<PositionRange> check) {
  using M = math_t<T>;
  SHARD_SHARED(angles, PairAngles<M>);
  const int64_t half = r.angles.width / 2, sequence = r.time_major ? r.outer : r.inner;
  for (int64_t row = blockIdx.x; row < r.outer * r.inner; row += gridDim.x) {
    const int64_t outer = row / r.inner, inner = row - outer * r.inner;
    const int64_t s = r.time_major ? outer : inner, b = r.time_major ? inner : outer;
    int64_t position = r.first_position + s;
    bool is_known = true;
    if (r.ids != nullptr) {
      position = r.ids[b * sequence + s];
      is_known = !r.angles.given() || (position >= 0 && position < r.angles.positions);
      if (!is_known && threadIdx.x == 0) check.report(b * sequence + s, position);
    }
    for (int64_t begin = 0; begin < half; begin += kAngles) {
      const int count = static_cast<int>(min(half - begin, int64_t{kAngles}));
      __syncthreads();  // the last pairs have been rotated
      for (int pair = static_cast<int>(threadIdx.x); pair < count; pair += kThreads) {
        for (int e = 0; e < 2; ++e) {
          M sine = 0, cosine = 0;
          const int64_t element = adjacent ? 2 * (begin + pair) + e : begin + pair + e * half;
          if (is_known) r.angles.at(position, element, sine, cosine);
          angles.sine[e][pair] = sine;
          angles.cosine[e][pair] = cosine;
        }
      }
      __syncthreads();
      rotate_pairs<T, Width, adjacent>(r, row, begin, count, angles);
    }
  }
}

struct Tensors {
  const DenseTensor* from[3];
  const DenseTensor* to[3];
};

/// The first of the tensors is in slot `slot`, and the ids in slot `ids_slot`.
template <class T>
void rotate(const OpContext& ctx, const Tensors& tensors, size_t slot, const DenseTensor& ids, size_t ids_slot,
            bool time_major, bool back, const Angles& angles) {
  const DenseTensor& q = *tensors.from[0];
  const int64_t outer = q.dims()[0], inner = q.dims()[1], half = angles.width / 2;
  if (outer * inner == 0) return;
  const DeviceScope scope(q.device().index);
  Rotation<T> r{{},
                {},
                {},
                outer,
                inner,
                ctx.input_box(slot, q).begin[time_major ? 0 : 1],
                ids.defined() ? elements<const int64_t>(ids) : nullptr,
                time_major,
                back,
                angles};
  constexpr int kWidth = Pack<T>::kSize;
  bool aligned = angles.adjacent ? angles.width % kWidth == 0 : half % kWidth == 0;
  for (int n = 0; n < 3; ++n) {
    if (!tensors.from[n]->defined()) continue;
    r.from[n] = elements<const T>(*tensors.from[n]);
    r.to[n] = elements<T>(*tensors.to[n]);
    r.heads[n] = tensors.from[n]->dims()[2];
    aligned = aligned && is_aligned(r.from[n]) && is_aligned(r.to[n]);
  }
  const DenseTensor& described = ids.defined() ? ids : q;
  const DataCheck<PositionRange> check(
      {ctx.op, angles.positions, ArgumentPlace(ctx, ids.defined() ? ids_slot : slot, described)});
  const unsigned blocks = grid_for(outer * inner * kThreads, kThreads);
  auto* const kernel = angles.adjacent ? aligned ? rotate_kernel<T, kWidth, true> : rotate_kernel<T, 1, true>
                       : aligned ? rotate_kernel<T, kWidth, false>
                                       : rotate_kernel<T, 1, false>;
  launch(ctx, kernel, blocks, kThreads, r, check);
}

template <class T>
void rope(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
          const DenseTensor& sin, const DenseTensor& cos, const DenseTensor& position_ids, bool use_neox_rotary_style,
          bool time_major, float rotary_emb_base, DenseTensor& out_q, DenseTensor& out_k, DenseTensor& out_v) {
  const Angles angles(ctx, 3, sin, cos, q.dims()[3], use_neox_rotary_style, rotary_emb_base);
  rotate<device_t<T>>(ctx, {{&q, &k, &v}, {&out_q, &out_k, &out_v}}, 0, position_ids, 5, time_major, false, angles);
}

template <class T>
void rope_grad(const OpContext& ctx, const DenseTensor& sin, const DenseTensor& cos, const DenseTensor& position_ids,
               const DenseTensor& out_q_grad, const DenseTensor& out_k_grad, const DenseTensor& out_v_grad,
               bool use_neox_rotary_style, bool time_major, float rotary_emb_base, DenseTensor& q_grad,
               DenseTensor& k_grad, DenseTensor& v_grad) {
  const Angles angles(ctx, 0, sin, cos, out_q_grad.dims()[3], use_neox_rotary_style, rotary_emb_base);
  rotate<device_t<T>>(ctx, {{&out_q_grad, &out_k_grad, &out_v_grad}, {&q_grad, &k_grad, &v_grad}}, 3, position_ids, 2,
                      time_major, true, angles);
}

}  // namespace

void register_rope(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("fused_rotary_position_embedding", backend, dtype_of<T>, &rope<T>);
    register_kernel("fused_rotary_position_embedding_grad", backend, dtype_of<T>, &rope_grad<T>);
  });
}

}  // namespace shard::cuda
