// Messages along the edges of a graph on CUDA: send_u_recv, send_ue_recv, send_uv; and segment_pool, which reduces neighbouring rows.
#include <string>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/read_back.cuh"
#include "shard/kernels/cuda/row_sums.cuh"
#include "shard/meta/check.h"
#include "shard/meta/graph.h"

namespace shard::cuda {
namespace {

using meta::Reduction;

/// The type in which messages are reduced. Sums of integers do not wrap before a mean is taken of them.
template <class D>
using Reduced = std::conditional_t<std::is_integral_v<D>, int64_t, math_t<D>>;

/// The rows of a tensor that edges name; edge i names row i where there is no index. Edges whose index is outside have been
/// reported, and have no row.
struct EdgeRows {
  Indices index;
  int64_t rows;

  __device__ int64_t operator[](int64_t edge) const {
    if (index.data == nullptr) return edge;
    const int64_t row = index[edge];
    return row >= 0 && row < rows ? row : -1;
  }
};

/// The rows of x that edges name, as messages.
template <class D>
struct RowMessage {
  const D* x;
  EdgeRows rows;
  int64_t width;

  template <int V, class State>
  __device__ void read(int64_t edge, int64_t at, State (&message)[V]) const {
    const int64_t row = rows[edge];
    if (row >= 0) return read_states<V>(x + row * width, at, message);
#pragma unroll
    for (State& one : message) one = State(0);
  }
  template <int V>
  bool packs() const {
    return packs_are_aligned<V>(x);
  }
};

/// The sum or product of two rows that an edge names, each broadcast to the dims of a message.
template <class D>
struct PairMessage {
  const D *x, *y;
  EdgeRows x_rows, y_rows;
  int64_t x_width, y_width, width;  // elements of a row, and of a message
  Strided<2> dims;                  // of a message, with the strides of rows
  bool product;

  PairMessage(const DenseTensor& x_rows_of, const EdgeRows& of_x, const DenseTensor& y_rows_of, const EdgeRows& of_y,
              const Dims& out, bool is_product)
      : x(elements<const D>(x_rows_of)), y(elements<const D>(y_rows_of)), x_rows(of_x), y_rows(of_y),
        x_width(row_width(x_rows_of.dims())), y_width(row_width(y_rows_of.dims())), width(row_width(out)),
        product(is_product) {
    const Dims of[2] = {row_strides(x_rows_of.dims()), row_strides(y_rows_of.dims())};
    for (int d = 1; d < out.rank(); ++d)
      dims.append(out[d], {stride_at(of[0], out.rank() - 1, d - 1), stride_at(of[1], out.rank() - 1, d - 1)});
  }

  template <int V, class State>
  __device__ void read(int64_t edge, int64_t at, State (&message)[V]) const {
    const int64_t i = x_rows[edge], k = y_rows[edge];
    math_t<D> a[V] = {}, b[V] = {};
    if (i >= 0 && k >= 0) {
      if (x_width == width && y_width == width) {
        read_states<V>(x + i * width, at, a);
        read_states<V>(y + k * width, at, b);
      } else {  // V is 1
        int64_t places[2];
        if (width <= int64_t{UINT32_MAX}) dims.locate(static_cast<uint32_t>(at), places);
        else dims.locate(at, places);
        a[0] = load(x[i * x_width + places[0]]);
        b[0] = load(y[k * y_width + places[1]]);
      }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) message[v] = static_cast<State>(product ? wrap_mul(a[v], b[v]) : wrap_add(a[v], b[v]));
  }
  template <int V>
  bool packs() const {
    return x_width == width && y_width == width && packs_are_aligned<V>(x, y);
  }

 private:
  static int64_t row_width(const Dims& dims) { return dims.numel(1, dims.rank()); }
  static Dims row_strides(Dims dims) {
    dims.erase(0);
    return broadcast_strides(dims);
  }
};

/// Reduces the messages of the edges of a row.
template <class D, class Message>
struct MessageReduction {
  using Element = D;
  using State = Reduced<D>;
  Message message;
  D* out;
  int64_t width;
  Reduction reduction;

  template <int V>
  __device__ bool start(int64_t, int64_t, int64_t, State (&)[V]) const {
    return false;
  }
  template <int V>
  __device__ void source(int64_t, int64_t edge, int64_t at, State (&states)[V]) const {
    message.template read<V>(edge, at, states);
  }
  __device__ State then(State old, State value) const {
    if (reduction == Reduction::min) return value < old || value != value ? value : old;
    if (reduction == Reduction::max) return value > old || value != value ? value : old;
    return wrap_add(old, value);
  }
  template <int V>
  __device__ void write(int64_t, int64_t row, int64_t at, int64_t count, const State (&states)[V]) const {
    math_t<D> results[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool divides = reduction == Reduction::mean;
      results[v] = static_cast<math_t<D>>(divides ? states[v] / static_cast<State>(count) : states[v]);
    }
    store_numbers<V>(out + row * width, at, results);
  }
  template <int V>
  bool packs() const {
    return message.template packs<V>() && packs_are_aligned<V>(static_cast<const D*>(out));
  }
};

/// Adds the number of sources of each row to its count. Sums of integers do not depend on their order.
__global__ void count_sources(Groups groups, int64_t rows, unsigned long long* counts) {
  for (int64_t place = grid_first<int64_t>(); place < groups.count; place += grid_step<int64_t>()) {
    const int part = groups.part[place];
    if (part != 0 && groups.row[place] < rows)
      atomicAdd(&counts[groups.row[place]], static_cast<unsigned long long>(part & (Groups::kFirst - 1)));
  }
}

/// Writes into `out` the reduction of the messages of each row, zeros where there are none; and how many there are, where
/// `counts` has a row for it.
template <class D, class Message>
void reduce_messages(const OpContext& ctx, const Grouping& edges, Reduction reduction, const Message& message,
                     DenseTensor& out, DenseTensor& counts) {
  const Groups groups = edges.groups();
  fill_zeros(out);
  fill_zeros(counts);
  if (groups.count != 0 && counts.numel() != 0)
    launch(ctx, count_sources, grid_for(groups.count, kThreads), kThreads, groups, counts.dims()[0],
           static_cast<unsigned long long*>(counts.raw()));
  const int64_t width = out.dims().numel(1, out.dims().rank());
  sum_groups(ctx, edges, 1, width, MessageReduction<D, Message>{message, elements<D>(out), width, reduction});
}

/// Reports indices outside of the rows of `x`, in flat input `input`.
EdgeRows checked_rows(const OpContext& ctx, size_t input, const char* name, const DenseTensor& index,
                      const DenseTensor& x) {
  const int64_t count = index.numel(), rows = x.dims()[0];
  if (count != 0)
    launch(ctx, check_indices_kernel<Indices>, grid_for(count, kThreads), kThreads, Indices(index), count,
           IndexCheck(ctx, input, name, index, 0, rows));
  return {Indices(index), rows};
}

struct TargetRow {
  using IsDataCheck = void;
  Indices index;
  IndexCheck check;

  __device__ int64_t operator()(int64_t edge) const {
    const int64_t row = index[edge];
    return check.admits(edge, row) ? row : -1;
  }
};

Grouping edges_of(const OpContext& ctx, size_t input, const DenseTensor& dst_index, int64_t rows) {
  return Grouping(ctx, rows, dst_index.numel(),
                  TargetRow{Indices(dst_index), IndexCheck(ctx, input, "dst_index", dst_index, 0, rows)});
}

template <class T>
void send_u_recv(const OpContext& ctx, const DenseTensor& x, const DenseTensor& src_index, const DenseTensor& dst_index,
                 const std::string& reduce_op, DenseTensor& out, DenseTensor& dst_count) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const RowMessage<D> message{elements<const D>(x), checked_rows(ctx, 1, "src_index", src_index, x),
                              x.dims().numel(1, x.dims().rank())};
  reduce_messages<D>(ctx, edges_of(ctx, 2, dst_index, out.dims()[0]),
                     meta::reduction_of(ctx.op, "reduce_op", reduce_op), message, out, dst_count);
}

template <class T>
void send_ue_recv(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& src_index,
                  const DenseTensor& dst_index, const std::string& message_op, const std::string& reduce_op,
                  DenseTensor& out, DenseTensor& dst_count) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const PairMessage<D> message(x, checked_rows(ctx, 2, "src_index", src_index, x), y, {{nullptr, false}, y.dims()[0]},
                               out.dims(), meta::is_product(ctx.op, message_op));
  reduce_messages<D>(ctx, edges_of(ctx, 3, dst_index, out.dims()[0]),
                     meta::reduction_of(ctx.op, "reduce_op", reduce_op), message, out, dst_count);
}

template <int V, class D>
__global__ void write_messages(PairMessage<D> message, int64_t edges, int64_t packs, D* out) {
  for (int64_t edge = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; edge < edges;
       edge += int64_t{gridDim.x} * blockDim.y) {
    for (int64_t at = int64_t{blockIdx.z} * blockDim.x + threadIdx.x; at < packs;
         at += int64_t{gridDim.z} * blockDim.x) {
      math_t<D> numbers[V];
      message.template read<V>(edge, at, numbers);
      store_numbers<V>(out + edge * packs * V, at, numbers);
    }
  }
}

template <class T>
void send_uv(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& src_index,
             const DenseTensor& dst_index, const std::string& message_op, DenseTensor& out) {
  using D = device_t<T>;
  constexpr int kPack = kRowPack<D>;
  const DeviceScope scope(out.device().index);
  const EdgeRows sources = checked_rows(ctx, 2, "src_index", src_index, x);
  const EdgeRows targets = checked_rows(ctx, 3, "dst_index", dst_index, y);
  const PairMessage<D> message(x, sources, y, targets, out.dims(), meta::is_product(ctx.op, message_op));
  if (out.numel() == 0) return;
  const auto write = [&]<int V>(std::integral_constant<int, V>) {
    const RowGrid grid(out.dims()[0], 1, message.width / V);
    launch(ctx, write_messages<V, D>, grid.blocks, grid.threads, message, out.dims()[0], message.width / V,
           elements<D>(out));
  };
  const bool is_packed =
      message.width % kPack == 0 && message.template packs<kPack>() && packs_are_aligned<kPack>(elements<const D>(out));
  if (is_packed) write(std::integral_constant<int, kPack>());
  else write(std::integral_constant<int, 1>());
}

/// The first id that is outside, and the first below the one before it, with all bits set where there is none. And the last id.
struct SegmentFacts {
  unsigned long long outside, falling;
  int64_t last;
};

__global__ void check_segments_kernel(Indices ids, int64_t count, int64_t most, SegmentFacts* facts) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t id = ids[i];
    if (id < 0 || id >= most) atomicMin(&facts->outside, static_cast<unsigned long long>(i));
    if (i > 0 && id < ids[i - 1]) atomicMin(&facts->falling, static_cast<unsigned long long>(i));
    if (i == count - 1) facts->last = id;
  }
}

int64_t id_at(const DenseTensor& ids, int64_t i) {
  const auto read = [&]<class I>(I id) {
    read_back(&id, ids.data<I>() + i, 1);
    return static_cast<int64_t>(id);
  };
  return ids.dtype() == DType::int64 ? read(int64_t{0}) : read(int32_t{0});
}

/// The last of the ids, flat input 1, or -1 where there are none. Throws unless they are 0 or more, in rising order, and name rows
/// of at most `width` elements of `dtype` that can be counted.
int64_t last_segment(const OpContext& ctx, const DenseTensor& ids, int64_t width, DType dtype) {
  const int64_t count = ids.numel(), most = meta::most_rows(ids.dtype(), width, dtype);
  if (count == 0) return -1;
  const Scratch memory(sizeof(SegmentFacts));
  auto* const on_device = static_cast<SegmentFacts*>(memory.data());
  check(cudaMemsetAsync(on_device, 0xff, sizeof(SegmentFacts), stream()), "cudaMemsetAsync");
  launch(ctx, check_segments_kernel, grid_for(count, kThreads), kThreads, Indices(ids), count, most, on_device);
  SegmentFacts facts{};
  read_back(&facts, on_device, 1);
  const auto outside = static_cast<int64_t>(facts.outside), falling = static_cast<int64_t>(facts.falling);
  const ArgumentPlace place(ctx, 1, ids);
  if (outside >= 0)
    fail_check(ErrorCode::out_of_range, "{}",
               outside_text(ctx.op, "segment_ids", place, outside, id_at(ids, outside), 0, most));
  if (falling >= 0)
    fail_check(ErrorCode::invalid_argument, "{}",
               falling_text(ctx.op, place, falling, id_at(ids, falling), id_at(ids, falling - 1)));
  return facts.last;
}

struct SegmentOf {
  Indices ids;
  __device__ int64_t operator()(int64_t i) const { return ids[i]; }
};

/// It allocates its outputs itself, and so waits for the last id.
template <class T>
void segment_pool(const OpContext& ctx, const DenseTensor& x, const DenseTensor& segment_ids,
                  const std::string& pooltype, DenseTensor& out, DenseTensor& summed_ids) {
  using D = device_t<T>;
  const Reduction reduction = meta::reduction_of(ctx.op, "pooltype", pooltype);
  const DeviceScope scope(x.device().index);
  const int64_t width = x.dims().numel(1, x.dims().rank());
  Dims dims = x.dims();
  dims[0] = last_segment(ctx, segment_ids, width, x.dtype()) + 1;
  out = DenseTensor::allocate(x.device(), {dims, x.dtype()});
  const Dims counted = {reduction == Reduction::mean ? dims[0] : 0, 1};
  summed_ids = DenseTensor::allocate(x.device(), {counted, DType::int64});
  const Grouping segments(ctx, dims[0], segment_ids.numel(), SegmentOf{Indices(segment_ids)}, true);
  const RowMessage<D> message{elements<const D>(x), {{nullptr, false}, x.dims()[0]}, width};
  reduce_messages<D>(ctx, segments, reduction, message, out, summed_ids);
}

}  // namespace

void register_graph(int backend) {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("send_u_recv", backend, dtype_of<T>, &send_u_recv<T>);
    register_kernel("send_ue_recv", backend, dtype_of<T>, &send_ue_recv<T>);
    register_kernel("send_uv", backend, dtype_of<T>, &send_uv<T>);
    register_kernel("segment_pool", backend, dtype_of<T>, &segment_pool<T>);
  });
}

}  // namespace shard::cuda
