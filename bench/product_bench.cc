// Products of matrices beside the raw calls of OpenBLAS and oneDNN for the same matrices, in turns; bench/gemm.sh runs it.
// usage: OMP_NUM_THREADS=N OMP_WAIT_POLICY=passive product_bench N, with the number of threads; prints rows of the table in docs/performance.md
#include <cblas.h>
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "shard/shard.h"

namespace {

using Clock = std::chrono::steady_clock;
using Memory = dnnl::memory;
using shard::DType;
using shard::Tensor;

struct Shape {
  int64_t m, n, k;
  bool transpose_y;
};

/// Seconds of a call, for at least 2 ms.
template <class Call>
double seconds(const Call& call) {
  const auto begin = Clock::now();
  int calls = 0;
  double time = 0;
  do {
    call();
    ++calls;
    time = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (time < 2e-3);
  return time / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void measure(const Shape& s, DType dtype, int threads) {
  const Tensor x = shard::cast(shard::uniform({s.m, s.k}, DType::float32, -1.0, 1.0, 1), dtype);
  const Tensor y = shard::cast(shard::uniform(s.transpose_y ? shard::IntArray{s.n, s.k} : shard::IntArray{s.k, s.n},
                                              DType::float32, -1.0, 1.0, 2),
                               dtype);
  Tensor out = shard::empty({s.m, s.n}, dtype);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = dtype == DType::float32 ? Memory::data_type::f32 : Memory::data_type::bf16;
  const Memory::desc dx({s.m, s.k}, type, Memory::dims{s.k, 1}),
      dy({s.k, s.n}, type, s.transpose_y ? Memory::dims{1, s.k} : Memory::dims{s.n, 1}),
      dout({s.m, s.n}, type, Memory::dims{s.n, 1});
  const dnnl::matmul product(dnnl::matmul::primitive_desc(dnnl::matmul::desc(dx, dy, dout), engine));
  const auto raw = [](const Tensor& tensor) { return tensor.get().value.raw(); };
  std::vector<double> ours, blas, onednn;
  for (int run = 0; run < 15; ++run) {
    ours.push_back(seconds([&] { out = shard::matmul(x, y, false, s.transpose_y); }));
    onednn.push_back(seconds([&] {
      product.execute(stream, {{DNNL_ARG_SRC, Memory(dx, engine, raw(x))},
                               {DNNL_ARG_WEIGHTS, Memory(dy, engine, raw(y))},
                               {DNNL_ARG_DST, Memory(dout, engine, raw(out))}});
      stream.wait();
    }));
    if (dtype != DType::float32) continue;
    openblas_set_num_threads(threads);
    blas.push_back(seconds([&] {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, s.transpose_y ? CblasTrans : CblasNoTrans, static_cast<int>(s.m),
                  static_cast<int>(s.n), static_cast<int>(s.k), 1, x.get().value.data<float>(), static_cast<int>(s.k),
                  y.get().value.data<float>(), static_cast<int>(s.transpose_y ? s.k : s.n), 0,
                  out.get().value.data<float>(), static_cast<int>(s.n));
    }));
    openblas_set_num_threads(1);  // as the library needs it
  }
  const double mine = median(ours), second = median(onednn);
  const std::optional<double> first = blas.empty() ? std::nullopt : std::optional(median(blas));
  fmt::print("| {}, [{}, {}] by [{}, {}]{} | {} | {:.3g} | {} | {:.3g} | {:.2f} |\n", to_string(dtype), s.m, s.k, s.k,
             s.n, s.transpose_y ? " transposed" : "", threads, mine * 1e3,
             first ? fmt::format("{:.3g}", *first * 1e3) : "", second * 1e3,
             std::min(first.value_or(second), second) / mine);
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  const shard::NoGrad no_grad;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Shape& shape :
         {Shape{64, 64, 64, false}, Shape{128, 128, 128, false}, Shape{256, 256, 256, false},
          Shape{512, 512, 512, false}, Shape{1024, 1024, 1024, false}, Shape{1024, 1024, 1024, true},
          Shape{2048, 2048, 2048, false}, Shape{1024, 768, 192, false}, Shape{1024, 1024, 64, true},
          Shape{8, 4096, 4096, false}}) {
      measure(shape, dtype, threads);
    }
  }
}
