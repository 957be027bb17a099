// The kernels of convolutions on CUDA: sums of products of elements of a matrix and of elements that windows read of images. The result, the
// gradient of images and that of the filter differ only in numbers.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

/// A number in four digits: the outer one (an image or a channel), and those of depth, height and width.
template <class N>
struct Digits {
  N outer, at[3];

  __host__ __device__ N product() const { return outer * at[0] * at[1] * at[2]; }
  __host__ __device__ N dot(const Digits& other) const {
    return outer * other.outer + at[0] * other.at[0] + at[1] * other.at[1] + at[2] * other.at[2];
  }
};

/// The digits of `number`; either the width or the outer digit is the one that changes fastest.
template <class N>
__device__ __forceinline__ Digits<N> digits_of(N number, const Digits<N>& sizes, bool outer_first) {
  Digits<N> digits;
  N rest = number;
  if (outer_first) {
    rest = number / sizes.outer;
    digits.outer = number - rest * sizes.outer;
  }
#pragma unroll
  for (int i = 2; i >= 0; --i) {
    const N next = sizes.at[i] == 1 ? rest : rest / sizes.at[i];
    digits.at[i] = rest - next * sizes.at[i];
    rest = next;
  }
  if (outer_first) digits.at[0] += rest * sizes.at[0];  // more than all sizes are: it is beyond the end
  else digits.outer = rest;
  return digits;
}

/// Adds `step`, whose digits are below the sizes, and carries.
template <class N>
__device__ __forceinline__ void advance(Digits<N>& digits, const Digits<N>& step, const Digits<N>& sizes,
                                        bool outer_first) {
  N carry = 0;
  digits.outer += step.outer;
  if (outer_first && digits.outer >= sizes.outer) {
    digits.outer -= sizes.outer;
    carry = 1;
  }
#pragma unroll
  for (int i = 2; i >= 0; --i) {
    digits.at[i] += step.at[i] + carry;
    carry = 0;
    if (digits.at[i] >= sizes.at[i] && (i > 0 || !outer_first)) {
      digits.at[i] -= sizes.at[i];
      carry = 1;
    }
  }
  digits.outer += carry;
}

/// What differs between the results whose places have the same remainders by the strides.
template <class N>
struct ConvClass {
  Digits<N> columns, depth;  // sizes
  N first_at[3];             // where the first column reads at the first depth
  N first_a, first_to;       // offsets
};

/// to[row, column] = the sum over depth of a[row, depth] * image[column, depth], for each group. All places are sums of a number
/// for the row, for the column and for the depth, and so are the positions in the images, beyond which elements are 0.
template <class N>
struct ConvSum {
  static constexpr int kClasses = 8;

  N groups, rows;
  N group_a, group_image, group_to;
  N row_a, row_to;
  N size[3], place_step[3];      // of the images
  N column_image, column_at[3];  // the outer digit is a step in memory, the others are steps of positions
  N depth_image, depth_at[3];
  Digits<N> column_to, depth_a;
  bool columns_outer_first, depth_outer_first;
  bool a_along_depth, image_along_depth;  // along which neighbouring threads read
  bool rows_first;                        // neighbouring elements of the result are those of rows
  ConvClass<N> of[kClasses];
  N chunk;           // of depth: the first chunk is in the first sums, and so on
  int64_t elements;  // of a result, and so from one sum to the next
};

/// A position in the images, and the memory before its image and channel.
template <class N>
struct ImagePlace {
  N base, at[3];
};

template <class N>
__device__ __forceinline__ ImagePlace<N> column_place(const ConvSum<N>& sum, const ConvClass<N>& of,
                                                      const Digits<N>& column) {
  ImagePlace<N> place{column.outer * sum.column_image, {}};
#pragma unroll
  for (int i = 0; i < 3; ++i) place.at[i] = of.first_at[i] + column.at[i] * sum.column_at[i];
  return place;
}
template <class N>
__device__ __forceinline__ ImagePlace<N> depth_place(const ConvSum<N>& sum, const Digits<N>& depth) {
  ImagePlace<N> place{depth.outer * sum.depth_image, {}};
#pragma unroll
  for (int i = 0; i < 3; ++i) place.at[i] = depth.at[i] * sum.depth_at[i];
  return place;
}

/// The element at the sum of both places; 0 beside the image.
template <class T, class N>
__device__ __forceinline__ math_t<T> element_at(const ConvSum<N>& sum, const T* image, const ImagePlace<N>& column,
                                                const ImagePlace<N>& depth) {
  N from = column.base + depth.base;
  bool inside = true;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const N at = column.at[i] + depth.at[i];
    inside = inside && at >= 0 && at < sum.size[i];
    from += at * sum.place_step[i];
  }
  return inside ? load(image[from]) : math_t<T>(0);
}

template <class C>
struct alignas(16) FourNumbers {
  C of[4];
};

/// A block has kRows rows and kColumns columns, and walks along the depth in steps of kDepth. A thread has some of each four.
template <int kRowCount, int kColumnCount, int kDepthCount>
struct ConvTile {
  static constexpr int kRows = kRowCount, kColumns = kColumnCount, kDepth = kDepthCount;
  static constexpr int kSide = 16, kThreads = kSide * kSide;
  static constexpr int kRowFours = kRows / (4 * kSide), kColumnFours = kColumns / (4 * kSide);
  static_assert(kRows % (4 * kSide) == 0 && kColumns % (4 * kSide) == 0 && kThreads % kDepth == 0);
};

/// Which elements of a matrix [kCount, kDepth] a thread loads: those of one depth, and kStep apart.
template <class Tile, int kCount>
struct TileLoad {
  static constexpr int kStep = Tile::kThreads / Tile::kDepth, kEach = kCount / kStep;
  static_assert(kCount % kStep == 0);
  int depth, first;

  __device__ explicit TileLoad(bool along_depth) {
    const int thread = static_cast<int>(threadIdx.x);
    depth = along_depth ? thread % Tile::kDepth : thread / kStep;
    first = along_depth ? thread / Tile::kDepth : thread % kStep;
  }
};

/// The tiles of two steps, of which one is computed with while the other is loaded.
template <class Tile, class C>
struct ConvTiles {
  FourNumbers<C> a[2][Tile::kDepth][Tile::kRows / 4 + 1];  // one more, for fewer conflicts of banks
  FourNumbers<C> image[2][Tile::kDepth][Tile::kColumns / 4 + 1];
};

/// The loads of a thread: from memory to registers, and from these to a tile.
template <class Tile, class T, class N>
class ConvLoads {
  using C = math_t<T>;
  using RowLoad = TileLoad<Tile, Tile::kRows>;
  using ColumnLoad = TileLoad<Tile, Tile::kColumns>;

 public:
  __device__ __forceinline__ ConvLoads(const ConvSum<N>& sum, const ConvClass<N>& of, const T* a, const T* image,
                                       N first_row, N first_column, N begin, N end)
      : sum_(sum), sizes_(of.depth), a_(a), image_(image), row_(sum.a_along_depth), column_(sum.image_along_depth),
        row_depth_(begin + row_.depth), column_depth_(begin + column_.depth), end_(end),
        first_row_(first_row + row_.first) {
    step_ = digits_of(static_cast<N>(Tile::kDepth), sizes_, sum.depth_outer_first);
    row_digits_ = digits_of(row_depth_, sizes_, sum.depth_outer_first);
    column_digits_ = digits_of(column_depth_, sizes_, sum.depth_outer_first);
    const N columns = of.columns.product();
#pragma unroll
    for (int i = 0; i < ColumnLoad::kEach; ++i) {
      const N column = first_column + column_.first + i * ColumnLoad::kStep;
      there_[i] = column < columns;
      places_[i] = column_place(sum, of, digits_of(there_[i] ? column : N{0}, of.columns, sum.columns_outer_first));
    }
  }

  /// Loads what the next step needs.
  __device__ __forceinline__ void next() {
    const N from = row_digits_.dot(sum_.depth_a);
    const bool in_rows = row_depth_ < end_, in_columns = column_depth_ < end_;
#pragma unroll
    for (int i = 0; i < RowLoad::kEach; ++i) {
      const N row = first_row_ + i * RowLoad::kStep;
      of_a_[i] = in_rows && row < sum_.rows ? load(a_[row * sum_.row_a + from]) : C(0);
    }
    const ImagePlace<N> depth = depth_place(sum_, column_digits_);
#pragma unroll
    for (int i = 0; i < ColumnLoad::kEach; ++i)
      of_image_[i] = in_columns && there_[i] ? element_at(sum_, image_, places_[i], depth) : C(0);
    row_depth_ += Tile::kDepth;
    column_depth_ += Tile::kDepth;
    advance(row_digits_, step_, sizes_, sum_.depth_outer_first);
    advance(column_digits_, step_, sizes_, sum_.depth_outer_first);
  }

  __device__ __forceinline__ void put(ConvTiles<Tile, C>& tiles, int buffer) const {
#pragma unroll
    for (int i = 0; i < RowLoad::kEach; ++i) {
      const int row = row_.first + i * RowLoad::kStep;
      tiles.a[buffer][row_.depth][row / 4].of[row % 4] = of_a_[i];
    }
#pragma unroll
    for (int i = 0; i < ColumnLoad::kEach; ++i) {
      const int column = column_.first + i * ColumnLoad::kStep;
      tiles.image[buffer][column_.depth][column / 4].of[column % 4] = of_image_[i];
    }
  }

 private:
  const ConvSum<N>& sum_;
  Digits<N> sizes_, step_, row_digits_, column_digits_;
  const T *a_, *image_;
  RowLoad row_;
  ColumnLoad column_;
  N row_depth_, column_depth_, end_, first_row_;
  ImagePlace<N> places_[ColumnLoad::kEach];
  bool there_[ColumnLoad::kEach];
  C of_a_[RowLoad::kEach], of_image_[ColumnLoad::kEach];
};

/// Adds the products of a step to the sums of a thread.
template <class Tile, class C>
__device__ __forceinline__ void add_products(const ConvTiles<Tile, C>& tiles, int buffer, int across, int down,
                                             C (&sums)[Tile::kRowFours * 4][Tile::kColumnFours * 4]) {
#pragma unroll
  for (int k = 0; k < Tile::kDepth; ++k) {
    FourNumbers<C> a[Tile::kRowFours], b[Tile::kColumnFours];
#pragma unroll
    for (int i = 0; i < Tile::kRowFours; ++i) a[i] = tiles.a[buffer][k][i * Tile::kSide + down];
#pragma unroll
    for (int i = 0; i < Tile::kColumnFours; ++i) b[i] = tiles.image[buffer][k][i * Tile::kSide + across];
#pragma unroll
    for (int r = 0; r < Tile::kRowFours * 4; ++r) {
#pragma unroll
      for (int c = 0; c < Tile::kColumnFours * 4; ++c) sums[r][c] += a[r / 4].of[r % 4] * b[c / 4].of[c % 4];
    }
  }
}

/// A block for each tile of rows and columns of a group (x), class (y) and chunk of the depth (z).
template <class Tile, class T, class Out, class N>
__global__ void __launch_bounds__(Tile::kThreads)
    conv_tile_kernel(Out* to, const T* a, const T* image, const __grid_constant__ ConvSum<N> sum) {
  using C = math_t<T>;
  SHARD_SHARED(tiles, ConvTiles<Tile, C>);
  const ConvClass<N>& of = sum.of[blockIdx.y];
  const N row_tiles = (sum.rows + Tile::kRows - 1) / Tile::kRows, columns = of.columns.product();
  const N index = static_cast<N>(blockIdx.x), block = index / row_tiles, group = block % sum.groups;
  const N first_row = (index - block * row_tiles) * Tile::kRows, first_column = block / sum.groups * Tile::kColumns;
  if (first_column >= columns) return;
  const N begin = static_cast<N>(blockIdx.z) * sum.chunk, end = min(begin + sum.chunk, of.depth.product());
  ConvLoads<Tile, T, N> loads(sum, of, a + (group * sum.group_a + of.first_a), image + group * sum.group_image,
                              first_row, first_column, begin, end);
  const int across = static_cast<int>(threadIdx.x) % Tile::kSide, down = static_cast<int>(threadIdx.x) / Tile::kSide;
  C sums[Tile::kRowFours * 4][Tile::kColumnFours * 4] = {};
  loads.next();
  loads.put(tiles, 0);
  __syncthreads();
  int buffer = 0;
  for (N depth = begin; depth < end; depth += Tile::kDepth, buffer ^= 1) {
    const bool more = depth + Tile::kDepth < end;
    if (more) loads.next();
    add_products<Tile>(tiles, buffer, across, down, sums);
    if (more) loads.put(tiles, buffer ^ 1);
    __syncthreads();
  }
  Out* const result = to + static_cast<int64_t>(blockIdx.z) * sum.elements + (group * sum.group_to + of.first_to);
#pragma unroll
  for (int c = 0; c < Tile::kColumnFours * 4; ++c) {
    const N column = first_column + (c / 4 * Tile::kSide + across) * 4 + c % 4;
    if (column >= columns) continue;
    const N place = digits_of(column, of.columns, sum.columns_outer_first).dot(sum.column_to);
#pragma unroll
    for (int r = 0; r < Tile::kRowFours * 4; ++r) {
      const N row = first_row + (r / 4 * Tile::kSide + down) * 4 + r % 4;
      if (row < sum.rows) result[place + row * sum.row_to] = store<Out>(sums[r][c]);
    }
  }
}

/// The row, group and column of an element of the result.
template <class N>
struct ConvElement {
  N row, group;
  Digits<N> column;

  __device__ ConvElement(const ConvSum<N>& sum, const ConvClass<N>& of, N index) {
    const N channels = sum.rows * sum.groups;
    N channel;
    if (sum.rows_first) {
      const N rest = index / channels;
      channel = index - rest * channels;
      column = digits_of(rest, of.columns, sum.columns_outer_first);
    } else {  // channels are between the images and their places
      const N places = of.columns.at[0] * of.columns.at[1] * of.columns.at[2], rest = index / places;
      column =
          digits_of(index - rest * places, Digits<N>{1, {of.columns.at[0], of.columns.at[1], of.columns.at[2]}}, false);
      column.outer = rest / channels;
      channel = rest - column.outer * channels;
    }
    group = channel / sum.rows;
    row = channel - group * sum.rows;
  }
  __device__ N to(const ConvSum<N>& sum, const ConvClass<N>& of) const {
    return group * sum.group_to + of.first_to + row * sum.row_to + column.dot(sum.column_to);
  }
};

/// A thread for each element of the result, for few rows.
template <class T, class N>
__global__ void conv_element_kernel(T* to, const T* a, const T* image, const __grid_constant__ ConvSum<N> sum) {
  using C = math_t<T>;
  const ConvClass<N>& of = sum.of[blockIdx.y];
  for (N i = grid_first<N>(), count = of.columns.product() * sum.rows * sum.groups; i < count; i += grid_step<N>()) {
    const ConvElement<N> element(sum, of, i);
    const ImagePlace<N> place = column_place(sum, of, element.column);
    const N first = element.group * sum.group_a + of.first_a + element.row * sum.row_a;
    C total = 0;
    for (N c = 0; c < of.depth.outer; ++c) {
      const N base = place.base + element.group * sum.group_image + c * sum.depth_image;
      for (N d = 0; d < of.depth.at[0]; ++d) {
        const N z = place.at[0] + d * sum.depth_at[0];
        if (z < 0 || z >= sum.size[0]) continue;
        for (N h = 0; h < of.depth.at[1]; ++h) {
          const N y = place.at[1] + h * sum.depth_at[1];
          if (y < 0 || y >= sum.size[1]) continue;
          const N line = base + z * sum.place_step[0] + y * sum.place_step[1];
          const N from = first + c * sum.depth_a.outer + d * sum.depth_a.at[0] + h * sum.depth_a.at[1];
          for (N w = 0; w < of.depth.at[2]; ++w) {
            const N x = place.at[2] + w * sum.depth_at[2];
            if (x < 0 || x >= sum.size[2]) continue;
            total += load(a[from + w * sum.depth_a.at[2]]) * load(image[line + x * sum.place_step[2]]);
          }
        }
      }
    }
    to[element.to(sum, of)] = store<T>(total);
  }
}

/// kItems neighbouring elements of the result (x) of a chunk of the depth (y) for a block, whose other threads share the depth. For
/// results of few elements with a long depth.
template <int kItems, class T, class Out, class N>
__global__ void conv_depth_kernel(Out* to, const T* a, const T* image, const __grid_constant__ ConvSum<N> sum) {
  using C = math_t<T>;
  constexpr int kThreads = 256, kLanes = kThreads / kItems;
  SHARD_SHARED(of_lanes, C[kLanes][kItems]);
  const ConvClass<N>& of = sum.of[0];
  const int item = static_cast<int>(threadIdx.x) % kItems, lane = static_cast<int>(threadIdx.x) / kItems;
  const N index = static_cast<N>(blockIdx.x) * kItems + item, count = of.columns.product() * sum.rows * sum.groups;
  const N begin = static_cast<N>(blockIdx.y) * sum.chunk, end = min(begin + sum.chunk, of.depth.product());
  const ConvElement<N> element(sum, of, min(index, count - 1));
  ImagePlace<N> place = column_place(sum, of, element.column);
  place.base += element.group * sum.group_image;
  const N first = element.group * sum.group_a + of.first_a + element.row * sum.row_a;
  const Digits<N> step = digits_of(static_cast<N>(kLanes), of.depth, sum.depth_outer_first);
  Digits<N> depth = digits_of(begin + lane, of.depth, sum.depth_outer_first);
  C total = 0;
  for (N k = begin + lane; k < end; k += kLanes) {
    total += load(a[first + depth.dot(sum.depth_a)]) * element_at(sum, image, place, depth_place(sum, depth));
    advance(depth, step, of.depth, sum.depth_outer_first);
  }
  of_lanes[lane][item] = total;
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    __syncthreads();
    if (lane < lanes) of_lanes[lane][item] += of_lanes[lane + lanes][item];
  }
  if (lane == 0 && index < count)
    to[static_cast<int64_t>(blockIdx.y) * sum.elements + element.to(sum, of)] = store<Out>(of_lanes[0][item]);
}

/// The sums of all chunks, in their order.
template <class T>
__global__ void add_chunks_kernel(T* to, const math_t<T>* chunks, int64_t elements, int count) {
  for (int64_t i = grid_first<int64_t>(); i < elements; i += grid_step<int64_t>()) {
    math_t<T> sum = chunks[i];
    for (int k = 1; k < count; ++k) sum += chunks[k * elements + i];
    to[i] = store<T>(sum);
  }
}

}  // namespace shard::cuda
