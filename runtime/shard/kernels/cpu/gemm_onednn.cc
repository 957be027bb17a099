// Products by oneDNN. It keeps the code that it generates in a cache of its own.
#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/onednn.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {
namespace {

using Memory = dnnl::memory;

const void* advanced(const void* data, DType dtype, int64_t elements) {
  return static_cast<const char*>(data) + elements * static_cast<int64_t>(size_of(dtype));
}

/// oneDNN's code for a product with these memory layouts.
dnnl::matmul::primitive_desc describe(const Memory::desc& x, const Memory::desc& y, const Memory::desc& out,
                                      const dnnl::engine& engine) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {dnnl::matmul::desc(x, y, out), attributes, engine};
}

/// Rows [row, row + rows) and columns [column, column + columns) of a product, or of each of a batch of products.
struct Block {
  int64_t row, rows, column, columns, batch = 1;
};

/// `batch` matrices, `size` elements apart.
Memory::desc matrices(int64_t batch, int64_t size, int64_t rows, int64_t columns, DType dtype, const Steps& steps) {
  if (batch == 1) return {{rows, columns}, onednn_type(dtype), Memory::dims{steps.row, steps.column}};
  return {{batch, rows, columns}, onednn_type(dtype), Memory::dims{size, steps.row, steps.column}};
}
Memory::desc x_of(const Product& p, const Block& block, DType dtype) {
  return matrices(block.batch, p.m * p.k, block.rows, p.k, dtype, steps_of_x(p));
}
Memory::desc y_of(const Product& p, const Block& block, DType dtype) {
  return matrices(block.batch, p.k * p.n, p.k, block.columns, dtype, steps_of_y(p));
}
Memory::desc out_of(const Product& p, const Block& block, DType dtype) {
  return matrices(block.batch, p.m * p.n, block.rows, block.columns, dtype, {p.n, 1});
}
const void* y_data(const Product& p, const Block& block, const Factors& factors) {
  return advanced(factors.y, factors.dtype, block.column * steps_of_y(p).column);
}

/// What a thread keeps: the code of its last product, which is often that of the next one too, of another batch or of
/// another block.
struct Thread {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::array<int64_t, 11> last = {-1};
  Memory::desc y_format;
  dnnl::matmul product;
  Memory::desc scratchpad;
};

Thread& this_thread() {
  // Not the object itself: programs that load the library later have 1664 bytes for the variables of threads (core/thread_state.h).
  thread_local const auto mine = std::make_unique<Thread>();
  return *mine;
}

/// A block of the product with `y`, which is in the format `y_format`: that of the tensor, or another one.
void multiply_block(const Product& p, const Factors& factors, const Result& out, const Block& block,
                    const Memory::desc& y_format, const void* y) {
  const OneThread alone;
  Thread& thread = this_thread();
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  const std::array<int64_t, 11> key = {
      block.rows,         block.columns, p.k, sx.row, sx.column, sy.row, sy.column, p.n, int64_t(factors.dtype),
      int64_t(out.dtype), block.batch};
  const Memory::desc x_format = x_of(p, block, factors.dtype), out_format = out_of(p, block, out.dtype);
  if (key != thread.last || y_format != thread.y_format) {
    thread.last = {-1};
    const dnnl::matmul::primitive_desc description = describe(x_format, y_format, out_format, thread.engine);
    thread.product = dnnl::matmul(description);
    thread.scratchpad = description.scratchpad_desc();
    thread.y_format = y_format;
    thread.last = key;
  }
  const auto memory = [&](const Memory::desc& format, const void* data) {
    return Memory(format, thread.engine, const_cast<void*>(data));
  };
  thread.product.execute(
      thread.stream, {{DNNL_ARG_SRC, memory(x_format, advanced(factors.x, factors.dtype, block.row * sx.row))},
                      {DNNL_ARG_WEIGHTS, memory(y_format, y)},
                      {DNNL_ARG_DST, memory(out_format, advanced(out.data, out.dtype, block.row * p.n + block.column))},
                      {DNNL_ARG_SCRATCHPAD, Memory(thread.scratchpad, thread.engine)}});
}

constexpr int64_t kFewRows = 64;  // for which copying y takes longer than it saves

/// Columns of y for blocks of `rows` rows, as oneDNN reads them fastest. `bytes` is undefined where that is as they are.
struct PackedColumns {
  Memory::desc format;
  DenseTensor bytes;
};

PackedColumns pack(const Product& p, const Factors& factors, const Result& out, const Block& block) {
  const OneThread alone;
  Thread& thread = this_thread();
  const Memory::desc plain = y_of(p, block, factors.dtype);
  if (p.m < kFewRows) return {plain, {}};
  const Memory::desc any(plain.dims(), plain.data_type(), Memory::format_tag::any);
  const Memory::desc best =
      describe(x_of(p, block, factors.dtype), any, out_of(p, block, out.dtype), thread.engine).weights_desc();
  if (best.data.format_desc.blocking.inner_nblks == 0) return {plain, {}};
  PackedColumns packed{best, DenseTensor::allocate(kCpu, {Dims{int64_t(best.get_size())}, DType::uint8})};
  Memory from(plain, thread.engine, const_cast<void*>(y_data(p, block, factors))),
      to(best, thread.engine, packed.bytes.raw());
  dnnl::reorder(from, to).execute(thread.stream, from, to);
  return packed;
}

/// Part i of `parts` of `size` rows or columns begins here; in steps of those that code handles at once.
int64_t part_begin(int64_t size, int64_t parts, int64_t i) { return i == parts ? size : size * i / parts / 32 * 32; }

[[noreturn]] void refuse(const Product& p, const dnnl::error& error) {
  fail(ErrorCode::internal, "oneDNN cannot multiply [{}, {}] by [{}, {}]: {}", p.m, p.k, p.k, p.n, error.what());
}

}  // namespace

unsigned onednn_isa() { return static_cast<unsigned>(dnnl::get_effective_cpu_isa()); }

bool onednn_multiplies_bfloat16() {
  static const bool fast = [] {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const Memory::desc square({64, 64}, Memory::data_type::bf16, Memory::format_tag::ab);
    try {
      return !std::string_view(describe(square, square, square, engine).impl_info_str()).starts_with("ref");
    } catch (const dnnl::error&) { return false; }  // no code at all
  }();
  return fast;
}

void multiply_by_onednn(const Product& p, const Factors& factors, const Result& out, int64_t batch) {
  const Block whole{0, p.m, 0, p.n, batch};
  try {
    multiply_block(p, factors, out, whole, y_of(p, whole, factors.dtype), factors.y);
  } catch (const dnnl::error& error) { refuse(p, error); }
}

void multiply_blocks_by_onednn(const Product& p, const Factors& factors, const Result& out) {
  // Few enough rows that the result of a block stays in the second-level cache, and enough blocks for several threads.
  const int64_t row_parts = std::max<int64_t>(1, p.m / (p.m > 512 ? 256 : 128)), width = p.m < kFewRows ? 256 : 512,
                column_parts = (p.n + width - 1) / width;
  const auto block = [&](int64_t row, int64_t column) {
    const int64_t i = part_begin(p.m, row_parts, row), j = part_begin(p.n, column_parts, column);
    return Block{i, part_begin(p.m, row_parts, row + 1) - i, j, part_begin(p.n, column_parts, column + 1) - j};
  };
  std::vector<PackedColumns> columns(static_cast<size_t>(column_parts));
  try {
    parallel_for(column_parts, kGrain, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) columns[static_cast<size_t>(c)] = pack(p, factors, out, block(0, c));
    });
    parallel_for(row_parts * column_parts, kGrain, [&](int64_t first, int64_t last) {
      for (int64_t job = first; job < last; ++job) {
        const Block each = block(job % row_parts, job / row_parts);
        const PackedColumns& y = columns[static_cast<size_t>(job / row_parts)];
        multiply_block(p, factors, out, each, y.format, y.bytes.defined() ? y.bytes.raw() : y_data(p, each, factors));
        if (column_parts == 1) finish(out, each.row * p.n, (each.row + each.rows) * p.n);
      }
    });
  } catch (const dnnl::error& error) { refuse(p, error); }
  // Rows of several blocks would be complete only when the first of them has left the cache, or after more reads of y.
  if (column_parts > 1) finish(out, 0, p.m * p.n);
}

}  // namespace shard::cpu
