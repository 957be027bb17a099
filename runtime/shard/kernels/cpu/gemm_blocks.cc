// Products of blocks that are in the caches, by oneDNN, whose code each thread keeps.
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "shard/core/error.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/onednn.h"

namespace shard::cpu {
namespace {

using Memory = dnnl::memory;

/// Code for blocks of one size.
struct Code {
  Memory::desc x, y, out, scratchpad;
  dnnl::matmul product;
};

Code generate(const Product& p, DType dtype, bool adds, const dnnl::engine& engine) {
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (adds) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  const Memory::desc x({p.m, p.k}, onednn_type(dtype), Memory::dims{sx.row, sx.column}),
      y({p.k, p.n}, onednn_type(dtype), Memory::dims{sy.row, sy.column}),
      out({p.m, p.n}, onednn_type(DType::float32), Memory::dims{p.n, 1});
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, y, out), attributes, engine);
  return {x, y, out, description.scratchpad_desc(), dnnl::matmul(description)};
}

/// What a thread keeps.
struct Thread {
  static constexpr size_t kMost = 512;  // sizes; oneDNN itself keeps about as many

  const Code& code(const Product& p, DType dtype, bool adds) {
    const std::array<int64_t, 7> key = {p.m, p.n, p.k, p.transpose_x, p.transpose_y, int64_t(dtype), adds};
    if (const auto found = all.find(key); found != all.end()) return found->second;
    if (all.size() >= kMost) all.clear();
    return all.emplace(key, generate(p, dtype, adds, engine)).first->second;
  }

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<std::array<int64_t, 7>, Code> all;
  std::vector<char> scratch;
};

}  // namespace

void multiply_block(const Product& p, const Factors& factors, float* out, bool adds) {
  thread_local Thread thread;
  const OneThread alone;
  try {
    const Code& code = thread.code(p, factors.dtype, adds);
    thread.scratch.resize(std::max(thread.scratch.size(), code.scratchpad.get_size() + 64));
    const auto memory = [&](const Memory::desc& format, const void* data) {
      return Memory(format, thread.engine, const_cast<void*>(data));
    };
    char* const scratch = thread.scratch.data() + (64 - reinterpret_cast<uintptr_t>(thread.scratch.data()) % 64);
    code.product.execute(thread.stream, {{DNNL_ARG_SRC, memory(code.x, factors.x)},
                                         {DNNL_ARG_WEIGHTS, memory(code.y, factors.y)},
                                         {DNNL_ARG_DST, memory(code.out, out)},
                                         {DNNL_ARG_SCRATCHPAD, memory(code.scratchpad, scratch)}});
  } catch (const dnnl::error& error) {
    fail(ErrorCode::internal, "oneDNN cannot multiply blocks [{}, {}] by [{}, {}]: {}", p.m, p.k, p.k, p.n,
         error.what());
  }
}

}  // namespace shard::cpu
