// Products by oneDNN. It keeps the code that it generates in a cache of its own.
#include <array>
#include <string_view>

#include "shard/core/error.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/onednn.h"

namespace shard::cpu {
namespace {

using Memory = dnnl::memory;

struct Thread {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  // The last product, which is often the next one too: of another batch, or of other rows.
  std::array<int64_t, 10> last = {-1};
  dnnl::matmul product;
  dnnl::memory::desc scratchpad;
};

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

}  // namespace

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

void multiply_by_onednn(const Product& p, const Factors& factors, const Result& out, bool columns, int64_t begin,
                        int64_t end) {
  const OneThread alone;
  const int64_t m = columns ? p.m : end - begin, n = columns ? end - begin : p.n;
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  const std::array<int64_t, 10> key = {
      m, n, p.k, sx.row, sx.column, sy.row, sy.column, p.n, int64_t(factors.dtype), int64_t(out.dtype)};
  const Memory::desc dx({m, p.k}, onednn_type(factors.dtype), Memory::dims{sx.row, sx.column}),
      dy({p.k, n}, onednn_type(factors.dtype), Memory::dims{sy.row, sy.column}),
      dout({m, n}, onednn_type(out.dtype), Memory::dims{p.n, 1});
  try {
    thread_local Thread thread;
    if (key != thread.last) {
      const dnnl::matmul::primitive_desc description = describe(dx, dy, dout, thread.engine);
      thread.product = dnnl::matmul(description);
      thread.scratchpad = description.scratchpad_desc();
      thread.last = key;
    }
    const void* const x_part = columns ? factors.x : advanced(factors.x, factors.dtype, begin * sx.row);
    const void* const y_part = columns ? advanced(factors.y, factors.dtype, begin * sy.column) : factors.y;
    const void* const out_part = advanced(out.data, out.dtype, columns ? begin : begin * p.n);
    const auto memory = [&](const Memory::desc& of, const void* data) {
      return Memory(of, thread.engine, const_cast<void*>(data));
    };
    thread.product.execute(thread.stream, {{DNNL_ARG_SRC, memory(dx, x_part)},
                                           {DNNL_ARG_WEIGHTS, memory(dy, y_part)},
                                           {DNNL_ARG_DST, memory(dout, out_part)},
                                           {DNNL_ARG_SCRATCHPAD, Memory(thread.scratchpad, thread.engine)}});
  } catch (const dnnl::error& error) {
    fail(ErrorCode::internal, "oneDNN cannot multiply [{}, {}] by [{}, {}]: {}", m, p.k, p.k, n, error.what());
  }
}

}  // namespace shard::cpu
