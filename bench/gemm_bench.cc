// Compares products of float32 by OpenBLAS and by oneDNN on one thread, for the table by which runtime/shard/kernels/cpu/gemm.cc
// chooses. bench/gemm.sh runs it for each instruction set.
// usage: OMP_NUM_THREADS=1 gemm_bench; prints a row of the table, and what it has measured to stderr
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

namespace {

using Clock = std::chrono::steady_clock;
using Memory = dnnl::memory;

struct Product {
  int64_t m, n, k;
  bool transpose_x, transpose_y;
  double work() const { return static_cast<double>(m * n * k); }
};

/// The seconds of a call: the best of several runs, each long enough for the clock.
template <class Call>
double seconds(double work, const Call& call) {
  const int calls = std::max(1, static_cast<int>(1e7 / work));
  double best = 1e9;
  for (int run = 0; run < 15; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / calls);
  }
  return best;
}

/// The time of OpenBLAS over that of oneDNN.
double ratio(const Product& p) {
  std::vector<float> x(static_cast<size_t>(p.m * p.k), 0.5f), y(static_cast<size_t>(p.k * p.n), 0.25f),
      out(static_cast<size_t>(p.m * p.n));
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const double blas = seconds(p.work(), [&] {
    cblas_sgemm(CblasRowMajor, p.transpose_x ? CblasTrans : CblasNoTrans, p.transpose_y ? CblasTrans : CblasNoTrans, m,
                n, k, 1, x.data(), p.transpose_x ? m : k, y.data(), p.transpose_y ? k : n, 0, out.data(), n);
  });
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = Memory::data_type::f32;
  const Memory::desc dx({p.m, p.k}, type, p.transpose_x ? Memory::dims{1, p.m} : Memory::dims{p.k, 1}),
      dy({p.k, p.n}, type, p.transpose_y ? Memory::dims{1, p.k} : Memory::dims{p.n, 1}),
      dout({p.m, p.n}, type, Memory::dims{p.n, 1});
  const dnnl::matmul product(dnnl::matmul::primitive_desc(dnnl::matmul::desc(dx, dy, dout), engine));
  const double onednn = seconds(p.work(), [&] {
    product.execute(stream, {{DNNL_ARG_SRC, Memory(dx, engine, x.data())},
                             {DNNL_ARG_WEIGHTS, Memory(dy, engine, y.data())},
                             {DNNL_ARG_DST, Memory(dout, engine, out.data())}});
  });
  return blas / onednn;
}

constexpr int kLeast = 12, kMost = 24;

/// The log2 of multiplications from which oneDNN is faster: above it lie the most gains and the fewest losses.
int threshold(bool transpose_x, bool transpose_y) {
  std::array<double, kMost + 2> gains{};
  for (int size = kLeast; size <= kMost; ++size) {
    const auto side = static_cast<int64_t>(std::lround(std::exp2(size / 3.0)));
    for (const Product& p : {Product{side, side, side, transpose_x, transpose_y},
                             Product{4 * side, side, std::max<int64_t>(side / 4, 1), transpose_x, transpose_y},
                             Product{side, side / 2, 2 * side, transpose_x, transpose_y}}) {
      const double faster = ratio(p);
      fmt::print(stderr, "[{}, {}]{} [{}, {}]{}: OpenBLAS / oneDNN {:.2f}\n", p.m, p.k, transpose_x ? "^T" : "", p.k,
                 p.n, transpose_y ? "^T" : "", faster);
      gains[static_cast<size_t>(size)] += std::log(faster);
    }
  }
  int best = kMost + 1;
  double most = 0, sum = 0;
  for (int size = kMost; size >= kLeast; --size) {
    sum += gains[static_cast<size_t>(size)];
    if (sum > most) most = sum, best = size;
  }
  return best;
}

}  // namespace

int main() {
  openblas_set_num_threads(1);
  const int plain = threshold(false, false), x = threshold(true, false), y = threshold(false, true);
  fmt::print("{{{:#x}, {}, {}, {}}},\n", static_cast<unsigned>(dnnl::get_effective_cpu_isa()), plain, x, y);
}
