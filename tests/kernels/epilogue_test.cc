// Kernels that take an epilogue call it once for each line of their result, whatever they divide the work into.
#include <tbb/global_control.h>
#include <catch2/catch.hpp>

#include <atomic>

#include "shard/kernels/cpu/epilogue.h"
#include "shard/shard.h"

namespace epilogue_test {

using namespace shard;

namespace {

struct Shapes {
  Dims x, y;
};

/// True if the epilogue of the product was called for each element once, in whole lines.
bool covers(const Shapes& shapes, DType dtype) {
  const Tensor x = full(IntArray(shapes.x), 1, dtype), y = full(IntArray(shapes.y), 1, dtype);
  const Dims out = matmul(x, y).dims();
  const int64_t line = out.rank() == 0 ? 1 : out[out.rank() - 1];
  std::vector<std::atomic<int>> calls(static_cast<size_t>(out.numel()));
  std::atomic<bool> whole = true;
  const cpu::Epilogue epilogue = [&](int64_t begin, int64_t end) {
    if (begin % line != 0 || end % line != 0 || begin >= end) whole = false;
    for (int64_t i = begin; i < end; ++i) ++calls[static_cast<size_t>(i)];
  };
  const cpu::OfferedEpilogue offer(epilogue);
  matmul(x, y);
  return offer.taken() && whole && std::all_of(calls.begin(), calls.end(), [](const auto& each) { return each == 1; });
}

}  // namespace

TEST_CASE("epilogues: a product calls its epilogue once for each line") {
  const Shapes all[] = {
      {{3, 4}, {4, 5}},        {{300, 64}, {64, 300}},      {{1025, 64}, {64, 96}},       {{64, 64}, {64, 1500}},
      {{700, 64}, {64, 1500}}, {{6, 100, 64}, {6, 64, 90}}, {{6, 100, 64}, {64, 90}},     {{1, 500}, {500, 400}},
      {{700, 500}, {500}},     {{5, 30, 500}, {5, 500, 1}}, {{2, 600, 64}, {2, 64, 200}}, {{500}, {500, 30}}};
  for (const int threads : {1, 4}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
    for (const Shapes& shapes : all) {
      for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int32}) {
        INFO(to_string(shapes.x) << " by " << to_string(shapes.y) << " " << to_string(dtype) << ", " << threads);
        CHECK(covers(shapes, dtype));
      }
    }
  }
}

TEST_CASE(
    "epilogues: one that multiplies other factors, as a thread does that waits in it, leaves the product as it is") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const auto numbers = [=](const Dims& dims, double step) {
      const Tensor all = Tensor::from_data(std::vector<float>(static_cast<size_t>(dims.numel()), 1.0f), dims);
      return cast(scale(cumsum(all, -1), step), dtype);
    };
    const Tensor x = numbers({900, 96}, 0.25), y = numbers({96, 256}, 0.5), other = numbers({96, 700}, -3.0);
    const Tensor expected = matmul(x, y);
    const cpu::Epilogue epilogue = [&](int64_t, int64_t) { matmul(x, other); };
    const cpu::OfferedEpilogue offer(epilogue);
    const Tensor got = matmul(x, y);
    CHECK(offer.taken());
    CHECK(cast(got, DType::float32).to_vector<float>() == cast(expected, DType::float32).to_vector<float>());
  }
}

TEST_CASE("epilogues: kernels that take none leave them to the caller") {
  int calls = 0;
  const cpu::Epilogue epilogue = [&](int64_t, int64_t) { ++calls; };
  {
    const cpu::OfferedEpilogue offer(epilogue);
    relu(full({4}, 1));
    CHECK(!offer.taken());
  }
  matmul(full({2, 2}, 1), full({2, 2}, 1));
  CHECK(calls == 0);
  CHECK(cpu::takes_epilogue("matmul"));
  CHECK(!cpu::takes_epilogue("relu"));
}

}  // namespace epilogue_test
