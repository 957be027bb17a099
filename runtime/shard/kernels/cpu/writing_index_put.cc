// The CPU kernel of index_put: values written or added at positions, or where masks are true. A rank writes what is in
// its shard.
#include <string>
#include <vector>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_writing.h"
#include "shard/kernels/cpu/walk.h"
#include "shard/meta/writing.h"

namespace shard::cpu {
namespace {

/// Positions along one dim of x: those of an index, or of the true elements of a mask.
struct Positioned {
  const DenseTensor* index;    // null for a mask
  std::vector<int64_t> found;  // by a mask
  Walk walk;                   // from a place in the common shape to one in index or found

  int64_t at(int64_t place) const {
    const int64_t i = walk.offset(place);
    return index == nullptr ? found[static_cast<size_t>(i)] : integer_at(*index, i);
  }
};

/// Adds the positions of the true elements along each dim of a mask, whose shard begins at `begin`, and returns their
/// number.
int64_t add_found(const DenseTensor& mask, const Dims& begin, std::vector<Positioned>& all) {
  const int rank = mask.dims().rank();
  std::vector<std::vector<int64_t>> found(static_cast<size_t>(rank));
  for (int64_t i = 0; i < mask.numel(); ++i) {
    if (!mask.data<bool>()[i]) continue;
    int64_t rest = i;
    for (int d = rank - 1; d >= 0; rest /= mask.dims()[d--])
      found[size_t(d)].push_back(begin[d] + rest % mask.dims()[d]);
  }
  const auto count = static_cast<int64_t>(found[0].size());
  for (std::vector<int64_t>& positions : found) all.push_back({nullptr, std::move(positions), {}});
  return count;
}

/// Walks `shape`, the result of broadcasting, through a tensor of shape `dims`.
Walk broadcast_walk(const Dims& dims, const Dims& shape) {
  const Dims strides = strides_of(dims);
  Walk walk;
  for (int d = 0; d < shape.rank(); ++d) {
    const int own = d - (shape.rank() - dims.rank());
    walk.add(shape[d], own < 0 || dims[own] == 1 ? 0 : strides[own]);
  }
  return merged(walk);
}

/// The places that indices select, in their order, and the dims of x in which they do.
struct Places {
  Dims shape;
  std::vector<Positioned> along;

  Places(const OpContext& ctx, const Dims& x, std::span<const DenseTensor> indices) {
    std::vector<Dims> shapes;
    std::vector<size_t> first;  // of along, for each index
    for (size_t i = 0; i < indices.size(); ++i) {
      first.push_back(along.size());
      if (indices[i].dtype() == DType::boolean) {
        shapes.push_back({add_found(indices[i], ctx.input_box(1 + i, indices[i]).begin, along)});
      } else {
        const int64_t size = x[static_cast<int>(along.size())];
        check_indices(ctx, 1 + i, ("indices[" + std::to_string(i) + "]").c_str(), indices[i], -size, size);
        along.push_back({&indices[i], {}, {}});
        shapes.push_back(indices[i].dims());
      }
    }
    shape = meta::common_shape(ctx.op, shapes);
    first.push_back(along.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      for (size_t d = first[i]; d < first[i + 1]; ++d) along[d].walk = broadcast_walk(shapes[i], shape);
    }
  }
};

/// A slice of x, numbered within the shard, and the place whose value it gets.
struct Put {
  int64_t slice, place;
  bool operator<(const Put& other) const { return slice != other.slice ? slice < other.slice : place < other.place; }
};

/// Those of this rank, sorted.
std::vector<Put> puts_of(const Places& places, const Box& box, const Dims& local) {
  std::vector<Put> puts;
  const int64_t count = places.shape.numel();
  puts.reserve(static_cast<size_t>(count));
  for (int64_t place = 0; place < count; ++place) {
    int64_t slice = 0;
    bool here = true;
    for (size_t i = 0; here && i < places.along.size(); ++i) {
      const auto d = static_cast<int>(i);
      int64_t at = places.along[i].at(place);
      at += (at < 0 ? box.global[d] : 0) - box.begin[d];
      here = at >= 0 && at < local[d];
      slice = slice * local[d] + at;
    }
    if (here) puts.push_back({slice, place});
  }
  if (!std::is_sorted(puts.begin(), puts.end())) std::sort(puts.begin(), puts.end());
  return puts;
}

/// Values as they are read for a place and a slice: rows of elements of one distance.
template <class T>
struct Values {
  const T* data;
  Walk places, rows;
  int64_t size, step;  // of a row

  Values(const DenseTensor& value, const Box& box, const Places& of, const Dims& x)
      : data(value.data<T>()), size(1), step(1) {
    const Dims strides = strides_of(value.dims());
    const int lead = of.shape.rank(), chosen = static_cast<int>(of.along.size());
    const int more = lead + x.rank() - chosen - value.dims().rank();
    const auto step_of = [&](int d) { return d < more || box.global[d - more] == 1 ? 0 : strides[d - more]; };
    for (int d = 0; d < lead; ++d) places.add(of.shape[d], step_of(d));
    for (int d = chosen; d < x.rank(); ++d) rows.add(x[d], step_of(lead + d - chosen));
    places = merged(places);
    rows = merged(rows);
    if (rows.rank == 0) return;
    --rows.rank;
    size = rows.size[rows.rank];
    step = rows.stride[rows.rank];
  }
  const T* row(int64_t place, int64_t r) const { return data + places.offset(place) + rows.offset(r); }
};

/// `n` puts of one slice.
template <class T>
void put_slice(const Values<T>& values, const Put* puts, size_t n, bool accumulate, int64_t width, T* to) {
  using C = Compute<T>;
  constexpr int64_t kBlock = 256;
  const int64_t size = values.size, step = values.step;
  for (int64_t r = 0; r * size < width; ++r, to += size) {
    if (!accumulate) {
      const T* from = values.row(puts[n - 1].place, r);
      if (step == 1) std::copy_n(from, size, to);
      else
        for (int64_t i = 0; i < size; ++i) to[i] = from[i * step];
      continue;
    }
    C sum[kBlock];
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      const int64_t columns = std::min(kBlock, size - begin);
      std::copy_n(to + begin, columns, sum);
      for (size_t k = 0; k < n; ++k) {
        const T* from = values.row(puts[k].place, r) + begin * step;
        for (int64_t c = 0; c < columns; ++c) sum[c] = wrap_add(sum[c], static_cast<C>(from[c * step]));
      }
      for (int64_t c = 0; c < columns; ++c) to[begin + c] = static_cast<T>(sum[c]);
    }
  }
}

/// A thread writes whole slices, so that values are added in their order and the last one stays.
template <class T>
void index_put(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> indices,
               const DenseTensor& value, bool accumulate, DenseTensor& out) {
  const Box box = ctx.input_box(0, x), value_box = ctx.input_box(1 + indices.size(), value);
  const Places places(ctx, box.global, indices);
  const auto chosen = static_cast<int>(places.along.size());
  Dims written = places.shape;
  for (int d = chosen; d < box.global.rank(); ++d) written.push_back(box.global[d]);
  meta::check_broadcast(ctx.op, value_box.global, written);
  const std::vector<Put> puts = puts_of(places, box, x.dims());  // indices may be the target
  const DenseTensor apart = value.raw() == out.raw() ? clone(value) : value;
  copy_all(x, out);
  const int64_t width = x.dims().numel(chosen, x.dims().rank());
  if (width == 0 || puts.empty()) return;
  const Values<T> values(apart, value_box, places, x.dims());
  std::vector<size_t> begin;  // of each slice in puts
  for (size_t i = 0; i < puts.size(); ++i) {
    if (i == 0 || puts[i].slice != puts[i - 1].slice) begin.push_back(i);
  }
  begin.push_back(puts.size());
  const auto slices = static_cast<int64_t>(begin.size()) - 1;
  parallel_for(slices, width * (2 + static_cast<int64_t>(puts.size()) / slices), [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const size_t from = begin[size_t(s)], n = begin[size_t(s) + 1] - from;
      put_slice(values, &puts[from], n, accumulate, width, out.data<T>() + puts[from].slice * width);
    }
  });
}

}  // namespace

void register_index_put() {
  for_types(AllTypes{},
            []<class T>(TypeTag<T>) { register_kernel("index_put", kBackend, dtype_of<T>, &index_put<T>); });
}

}  // namespace shard::cpu
