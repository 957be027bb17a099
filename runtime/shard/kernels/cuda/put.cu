// Elements put at positions of their own on CUDA: put_along_axis, unpool.
#include <string>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/row_sums.cuh"
#include "shard/kernels/put.h"

namespace shard::cuda {
namespace {

using cpu::axis_view;
using cpu::AxisView;

/// The element of [outer, size, inner] that the index of an element of [outer, count, inner] names along the dim in the middle. This
/// rank has `size` of `global`, from `begin` on.
struct PutElement {
  using IsDataCheck = void;
  Indices indices;
  IndexCheck check;
  int64_t begin, global, size, count, inner;

  __device__ int64_t operator()(int64_t i) const {
    const int64_t value = indices[i];
    if (!check.admits(i, value)) return -1;
    const int64_t at = value + (value < 0 ? global : 0) - begin;
    if (at < 0 || at >= size) return -1;
    return (i / (count * inner) * size + at) * inner + i % inner;
  }
};

/// The identity of the largest or smallest number.
template <class C>
__device__ C farthest(bool below) {
  if constexpr (std::is_integral_v<C>) return below ? INT64_MIN : INT64_MAX;
  else return below ? -INFINITY : INFINITY;
}

/// Combines values with elements of arr, or among each other.
template <class D>
struct PutReduction {
  using Element = D;
  // Sums of which a mean is taken do not wrap in the dtype.
  using State = std::conditional_t<std::is_integral_v<D>, int64_t, math_t<D>>;
  const D *arr, *values;
  D* out;
  Put put;
  bool include_self;

  template <int V>
  __device__ bool start(int64_t, int64_t row, int64_t, State (&states)[V]) const {
    if (include_self) states[0] = static_cast<State>(load(arr[row]));
    else if (put == Put::amax || put == Put::amin) states[0] = farthest<State>(put == Put::amax);
    else states[0] = put == Put::multiply ? State(1) : State(0);
    return true;
  }
  template <int V>
  __device__ void source(int64_t, int64_t source, int64_t, State (&states)[V]) const {
    states[0] = static_cast<State>(load(values[source]));
  }
  __device__ State then(State old, State value) const {
    if (put == Put::multiply) return wrap_mul(old, value);
    if (put == Put::amax) return value > old || value != value ? value : old;
    if (put == Put::amin) return value < old || value != value ? value : old;
    return wrap_add(old, value);
  }
  template <int V>
  __device__ void write(int64_t, int64_t row, int64_t, int64_t count, const State (&states)[V]) const {
    State result = states[0];
    if (put == Put::mean) {  // that of integers is rounded down
      const int64_t n = count + (include_self ? 1 : 0);
      if constexpr (std::is_integral_v<D>) result = result / n - (result % n < 0 ? 1 : 0);
      else result /= static_cast<State>(n);
    }
    out[row] = store<D>(static_cast<math_t<D>>(result));
  }
};

template <class T>
void put_along_axis(const OpContext& ctx, const DenseTensor& arr, const DenseTensor& indices, const DenseTensor& values,
                    int axis, const std::string& reduce, bool include_self, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const Box box = ctx.input_box(0, arr);
  const int along = normalize_axis(ctx.op, "axis", axis, arr.dims().rank());
  const int64_t global = box.global[along], count = indices.numel();
  const AxisView view = axis_view(arr.dims(), along);
  const PutElement row_of{Indices(indices), IndexCheck(ctx, 1, "indices", indices, -global, global),
                          box.begin[along], global,
                          view.size,        indices.dims()[along],
                          view.inner};
  const Put put = put_named(reduce);
  if (put == Put::assign) {
    const LastSources last(ctx, arr.numel(), count, row_of);
    copy_all(arr, out);
    return write_last(ctx, last, sizeof(T), values.raw(), out.raw());
  }
  const Grouping grouping(ctx, arr.numel(), count, row_of);
  copy_all(arr, out);
  sum_groups(ctx, grouping, 1, 1,
             PutReduction<D>{elements<const D>(arr), elements<const D>(values), elements<D>(out), put, include_self});
}

/// Describes a place that must be in an image.
struct alignas(8) ImagePlace {
  const char* op;
  ArgumentPlace indices;
  int64_t height, width;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}", image_place_text(op, indices, position, value, height, width));
  }
};

/// The element of images of `size` elements at the place of element `i` of images of `count`.
struct PlaceInImage {
  using IsDataCheck = void;
  Indices indices;
  DataCheck<ImagePlace> check;
  int64_t size, count;

  __device__ int64_t operator()(int64_t i) const {
    const int64_t place = indices[i];
    if (place >= 0 && place < size) return i / count * size + place;
    check.report(i, place);
    return -1;
  }
};

void unpool(const OpContext& ctx, const DenseTensor& x, const DenseTensor& indices, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const int64_t height = out.dims()[2], width = out.dims()[3];
  const DataCheck<ImagePlace> check(ImagePlace{ctx.op, ArgumentPlace(ctx, 1, indices), height, width});
  const LastSources last(ctx, out.numel(), x.numel(),
                         PlaceInImage{Indices(indices), check, height * width, x.dims().numel(2, 4)});
  fill_zeros(out);
  write_last(ctx, last, size_of(x.dtype()), x.raw(), out.raw());
}

}  // namespace

void register_put(int backend) {
  for_types(NumberTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("put_along_axis", backend, dtype_of<T>, &put_along_axis<T>); });
  const auto add = [&]<class T>(TypeTag<T>) { register_kernel("unpool", backend, dtype_of<T>, &unpool); };
  for_types(FloatTypes{}, add);
  for_types(Types<int32_t, int64_t>{}, add);
}

}  // namespace shard::cuda
