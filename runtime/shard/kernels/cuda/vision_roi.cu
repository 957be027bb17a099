// roi_align, its gradient and roi_pool on CUDA: means and maxima of the parts of boxes. The weights of the elements in each part of a box
// are those of a row times those of a column, which a first kernel computes.
#include <math.h>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/roi.inc"

/// Describes numbers of boxes that must add up to `count`. A position is the image times count + 1, plus the number of boxes that
/// are left there; that of a wrong sum is behind those of the images.
struct alignas(8) BoxNumbers {
  const char* op;
  int64_t images, count;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    const int64_t image = position / (count + 1), left = position % (count + 1);
    if (image == images) fail_check(ErrorCode::out_of_range, "{}", boxes_sum_text(op, value, count));
    fail_check(ErrorCode::out_of_range, "{}", boxes_left_text(op, image, value, left, count));
  }
};

/// Describes coordinates, flat input 1, that must not be too large. The value has the bits of a double.
struct alignas(8) BoxCoordinates {
  const char* op;
  ArgumentPlace boxes;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    double coordinate = 0;
    memcpy(&coordinate, &value, sizeof(coordinate));
    fail_check(ErrorCode::invalid_argument, "{}", box_text(op, boxes, position, coordinate));
  }
};

/// Finds the image of each box and checks the boxes: -1 for those that are wrong.
template <class T>
__global__ void box_images_kernel(int* images, const T* boxes, Indices numbers, int64_t image_count, int64_t count,
                                  double scale, DataCheck<BoxNumbers> number_check,
                                  DataCheck<BoxCoordinates> coordinate_check) {
  for (int64_t box = grid_first<int64_t>(); box < max(count, int64_t{1}); box += grid_step<int64_t>()) {
    int64_t before = 0, image = -1;
    bool right = true;
    for (int64_t n = 0; n < image_count && right; ++n) {
      const int64_t here = numbers[n], left = count - before;
      right = here >= 0 && here <= left;
      if (!right && box == 0) number_check.report(n * (count + 1) + left, here);
      if (box >= before && box < before + here) image = n;
      before += here;
    }
    if (right && before != count) {
      right = false;
      if (box == 0) number_check.report(image_count * (count + 1), before);
    }
    for (int k = 0; k < 4 && right && box < count; ++k) {
      const auto value = static_cast<double>(load(boxes[4 * box + k]));
      if (::fabs(value) < 1e15 && ::fabs(value * scale) < 1e15) continue;
      int64_t bits = 0;
      memcpy(&bits, &value, sizeof(bits));
      coordinate_check.report(4 * box + k, bits);
      image = -1;
    }
    if (box < count) images[box] = static_cast<int>(right ? image : -1);
  }
}

/// Boxes, and the image of each of them.
template <class T>
class Boxes {
 public:
  Boxes(const OpContext& ctx, const DenseTensor& boxes, const DenseTensor& boxes_num, float scale)
      : data(elements<const T>(boxes)), count(boxes.dims()[0]), scale(static_cast<double>(scale)),
        scratch_(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(int)) {
    const DataCheck<BoxNumbers> numbers({ctx.op, boxes_num.numel(), count});
    const DataCheck<BoxCoordinates> coordinates({ctx.op, ArgumentPlace(ctx, 1, boxes)});
    launch(ctx, box_images_kernel<T>, grid_for(std::max<int64_t>(count, 1), kThreads), kThreads, images(), data,
           Indices(boxes_num), boxes_num.numel(), count, this->scale, numbers, coordinates);
  }

  int* images() const { return static_cast<int*>(scratch_.data()); }

  const T* data;
  int64_t count;
  double scale;

 private:
  Scratch scratch_;
};

/// The weights along one dim of the elements in each part of each box, and which elements have any.
template <class C>
struct BoxWeights {
  C* weights;        // [boxes, parts, size]
  int* part_bounds;  // [boxes, parts, 2]: the first element and the one behind the last
  int* box_bounds;   // [boxes, 2]
  int parts, size;

  __device__ const C* of(int64_t box, int part) const { return weights + (box * parts + part) * size; }
  __device__ const int* bounds(int64_t box, int part) const { return part_bounds + 2 * (box * parts + part); }
};
/// Those of rows and of columns.
template <class C>
struct BoxTable {
  BoxWeights<C> rows, columns;
};

struct RoiSampling {
  double scale;
  int ratio;
  bool aligned;
};

/// A thread for the rows or the columns of each box. The weights are 0.
template <class T>
__global__ void box_weights_kernel(const __grid_constant__ BoxTable<math_t<T>> table, const T* boxes, const int* images,
                                   int64_t count, RoiSampling how) {
  using C = math_t<T>;
  for (int64_t i = grid_first<int64_t>(); i < 2 * count; i += grid_step<int64_t>()) {
    const int64_t box = i / 2;
    const bool down = i % 2 == 0;
    const BoxWeights<C>& along = down ? table.rows : table.columns;
    const auto begin = static_cast<double>(load(boxes[4 * box + (down ? 1 : 0)])),
               end = static_cast<double>(load(boxes[4 * box + (down ? 3 : 2)]));
    int box_first = along.size, box_end = 0;
    for (int p = 0; p < along.parts; ++p) {
      C* const weights = along.weights + (box * along.parts + p) * along.size;
      int first = along.size, behind = 0;
      const Samples samples = samples_of(begin, end, how.scale, how.ratio, how.aligned, p, along.parts, along.size);
      for (double k = samples.first; k < samples.last && images[box] >= 0; ++k) {
        const Between between = elements_around(samples.place(k), along.size);
        if (!between.inside) continue;
        const int at = static_cast<int>(between.at), next = between.part > 0 ? at + 1 : at;
        weights[at] += static_cast<C>(1 / samples.count * (1 - between.part));
        if (next > at) weights[next] += static_cast<C>(1 / samples.count * between.part);
        first = min(first, at);
        behind = max(behind, next + 1);
      }
      along.part_bounds[2 * (box * along.parts + p)] = first;
      along.part_bounds[2 * (box * along.parts + p) + 1] = behind;
      box_first = min(box_first, first);
      box_end = max(box_end, behind);
    }
    along.box_bounds[2 * box] = box_first;
    along.box_bounds[2 * box + 1] = box_end;
  }
}

/// The table of a call, in memory of its work.
template <class T>
class FilledTable {
  using C = math_t<T>;

 public:
  FilledTable(const OpContext& ctx, const Boxes<T>& boxes, const RoiSampling& how, const Dims& images, const Dims& out)
      : weights_(weight_bytes(boxes, images, out)),
        bounds_(static_cast<size_t>(2 * boxes.count * (out[2] + out[3] + 2)) * sizeof(int)) {
    check(cudaMemsetAsync(weights_.data(), 0, weight_bytes(boxes, images, out), stream()), "cudaMemsetAsync");
    C* weights = static_cast<C*>(weights_.data());
    int* bounds = static_cast<int*>(bounds_.data());
    for (const int dim : {2, 3}) {
      BoxWeights<C>& along = dim == 2 ? table_.rows : table_.columns;
      along = {weights, bounds, bounds + 2 * boxes.count * out[dim], static_cast<int>(out[dim]),
               static_cast<int>(images[dim])};
      weights += boxes.count * out[dim] * images[dim];
      bounds += 2 * boxes.count * (out[dim] + 1);
    }
    launch(ctx, box_weights_kernel<T>, grid_for(2 * boxes.count, kThreads), kThreads, table_, boxes.data,
           boxes.images(), boxes.count, how);
  }

  const BoxTable<C>& table() const { return table_; }

 private:
  static size_t weight_bytes(const Boxes<T>& boxes, const Dims& images, const Dims& out) {
    return static_cast<size_t>(boxes.count * (out[2] * images[2] + out[3] * images[3])) * sizeof(C);
  }

  Scratch weights_, bounds_;
  BoxTable<C> table_{};
};

/// A part of a box for each thread.
template <class T, class N>
__global__ void roi_align_kernel(T* out, const T* x, const int* images, N count, N channels,
                                 BoxTable<math_t<T>> table) {
  using C = math_t<T>;
  const int across = table.columns.parts, down = table.rows.parts, width = table.columns.size;
  for (N i = grid_first<N>(); i < count; i += grid_step<N>()) {
    const N row = i / across, plane = row / down, box = plane / channels;
    const int right = static_cast<int>(i - row * across), below = static_cast<int>(row - plane * down);
    C sum = 0;
    if (images[box] >= 0) {
      const T* const image = x + (images[box] * channels + (plane - box * channels)) * (N{table.rows.size} * width);
      const int *rows = table.rows.bounds(box, below), *columns = table.columns.bounds(box, right);
      const C *of_rows = table.rows.of(box, below), *of_columns = table.columns.of(box, right);
      for (int h = rows[0]; h < rows[1]; ++h) {
        if (of_rows[h] == 0) continue;  // samples may leave out elements
        C line = 0;
        for (int w = columns[0]; w < columns[1]; ++w) {
          if (of_columns[w] != 0) line += of_columns[w] * load(image[N{h} * width + w]);
        }
        sum += of_rows[h] * line;
      }
    }
    out[i] = store<T>(sum);
  }
}

/// An element of an image for each thread: all parts of all boxes that have it, in their order.
template <class T, class N>
__global__ void roi_align_grad_kernel(T* x_grad, const T* out_grad, const int* images, N boxes, N count, N channels,
                                      BoxTable<math_t<T>> table) {
  using C = math_t<T>;
  const int across = table.columns.parts, down = table.rows.parts, height = table.rows.size, width = table.columns.size;
  for (N i = grid_first<N>(); i < count; i += grid_step<N>()) {
    const N row = i / width, plane = row / height, image = plane / channels, channel = plane - image * channels;
    const int w = static_cast<int>(i - row * width), h = static_cast<int>(row - plane * height);
    C sum = 0;
    N box = 0;
    for (N end = boxes; box < end;) {  // the first of the image
      const N middle = box + (end - box) / 2;
      if (images[middle] < image) box = middle + 1;
      else end = middle;
    }
    for (; box < boxes && images[box] == image; ++box) {
      const int *rows = table.rows.box_bounds + 2 * box, *columns = table.columns.box_bounds + 2 * box;
      if (h < rows[0] || h >= rows[1] || w < columns[0] || w >= columns[1]) continue;
      const T* const grads = out_grad + (box * channels + channel) * (N{down} * across);
      for (int p = 0; p < down; ++p) {
        const C of_row = table.rows.of(box, p)[h];
        if (of_row == 0) continue;
        C line = 0;
        for (int q = 0; q < across; ++q) {
          const C of_column = table.columns.of(box, q)[w];
          if (of_column != 0) line += of_column * load(grads[N{p} * across + q]);
        }
        sum += of_row * line;
      }
    }
    x_grad[i] = store<T>(sum);
  }
}

/// A part of a box for each thread.
template <class T, class N>
__global__ void roi_pool_kernel(T* out, int64_t* arg_max, const T* x, const T* boxes, const int* images, N count,
                                N channels, int height, int width, int down, int across, double scale) {
  using C = math_t<T>;
  for (N i = grid_first<N>(); i < count; i += grid_step<N>()) {
    const N row = i / across, plane = row / down, box = plane / channels;
    const N right = i - row * across, below = row - plane * down;
    N best = -1;
    C largest = 0;
    T value = store<T>(0);
    if (images[box] >= 0) {
      const auto corner = [&](int k) { return static_cast<double>(load(boxes[4 * box + k])); };
      const Elements rows = elements_of(corner(1), corner(3), scale, below, down, height),
                     columns = elements_of(corner(0), corner(2), scale, right, across, width);
      const T* const image = x + (images[box] * channels + (plane - box * channels)) * (N{height} * width);
      for (N h = static_cast<N>(rows.first); h < rows.end; ++h) {
        for (N at = h * width + static_cast<N>(columns.first); at < h * width + columns.end; ++at) {
          const C here = load(image[at]);
          if (best >= 0 && !(here > largest) && !(here != here && largest == largest)) continue;
          best = at;
          largest = here;
          value = image[at];
        }
      }
    }
    out[i] = value;
    arg_max[i] = best;
  }
}

/// Calls body(N()) with a type for numbers of elements.
template <class Body>
void visit_numbers(int64_t x, int64_t out, const Body& body) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (x < kMost && out < kMost) body(int{0});
  else body(int64_t{0});
}

template <class E>
void roi_align(const OpContext& ctx, const DenseTensor& x, const DenseTensor& boxes, const DenseTensor& boxes_num, int,
               int, float spatial_scale, int sampling_ratio, bool aligned, DenseTensor& out) {
  using T = device_t<E>;
  const DeviceScope scope(out.device().index);
  const Boxes<T> found(ctx, boxes, boxes_num, spatial_scale);
  if (out.numel() == 0) return;
  const RoiSampling how{found.scale, sampling_ratio, aligned};
  const FilledTable<T> filled(ctx, found, how, x.dims(), out.dims());
  visit_numbers(x.numel(), out.numel(), [&]<class N>(N) {
    launch(ctx, roi_align_kernel<T, N>, grid_for(out.numel(), kThreads), kThreads, elements<T>(out),
           elements<const T>(x), found.images(), static_cast<N>(out.numel()), static_cast<N>(x.dims()[1]),
           filled.table());
  });
}

template <class E>
void roi_align_grad(const OpContext& ctx, const DenseTensor& boxes, const DenseTensor& boxes_num,
                    const DenseTensor& out_grad, float spatial_scale, int sampling_ratio, bool aligned,
                    DenseTensor& x_grad) {
  using T = device_t<E>;
  const DeviceScope scope(x_grad.device().index);
  const Boxes<T> found(ctx, boxes, boxes_num, spatial_scale);
  if (x_grad.numel() == 0) return;
  if (out_grad.numel() == 0) return fill_zeros(x_grad);
  const RoiSampling how{found.scale, sampling_ratio, aligned};
  const FilledTable<T> filled(ctx, found, how, x_grad.dims(), out_grad.dims());
  visit_numbers(x_grad.numel(), out_grad.numel(), [&]<class N>(N) {
    launch(ctx, roi_align_grad_kernel<T, N>, grid_for(x_grad.numel(), kThreads), kThreads, elements<T>(x_grad),
           elements<const T>(out_grad), found.images(), static_cast<N>(found.count), static_cast<N>(x_grad.numel()),
           static_cast<N>(x_grad.dims()[1]), filled.table());
  });
}

template <class E>
void roi_pool(const OpContext& ctx, const DenseTensor& x, const DenseTensor& boxes, const DenseTensor& boxes_num,
              float spatial_scale, DenseTensor& out, DenseTensor& arg_max) {
  using T = device_t<E>;
  const DeviceScope scope(out.device().index);
  const Boxes<T> found(ctx, boxes, boxes_num, spatial_scale);
  if (out.numel() == 0) return;
  const auto size = [](const DenseTensor& tensor, int dim) { return static_cast<int>(tensor.dims()[dim]); };
  visit_numbers(x.numel(), out.numel(), [&]<class N>(N) {
    launch(ctx, roi_pool_kernel<T, N>, grid_for(out.numel(), kThreads), kThreads, elements<T>(out),
           elements<int64_t>(arg_max), elements<const T>(x), found.data, found.images(), static_cast<N>(out.numel()),
           static_cast<N>(x.dims()[1]), size(x, 2), size(x, 3), size(out, 2), size(out, 3), found.scale);
  });
}

}  // namespace

void register_roi(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("roi_align", backend, dtype_of<T>, roi_align<T>);
    register_kernel("roi_align_grad", backend, dtype_of<T>, roi_align_grad<T>);
    register_kernel("roi_pool", backend, dtype_of<T>, roi_pool<T>);
  });
}

}  // namespace shard::cuda
