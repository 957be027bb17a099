// How far a sum over ranks may differ from that of one rank: the bounds in docs/sharding.md.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <random>

#include "shard/api/local_map.h"
#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/reshard/plan.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace mesh_rounding_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr int64_t kRanks = 4;
constexpr int64_t kCount = 1000;

/// Numbers of this dtype whose sums over quarters are large and cancel.
Tensor cancelling(DType dtype) {
  std::mt19937 engine(7);
  std::vector<float> numbers(kCount);
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>(engine() % 2001) / 1000.0f - 1.0f + (i < kCount / 2 ? 1.0f : -1.0f);
  return cast(Tensor::from_data(numbers, {kCount}), dtype);
}

double total(const std::vector<double>& numbers, size_t begin, size_t end) {
  long double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += numbers[i];
  return static_cast<double>(sum);
}

}  // namespace

TEST_CASE("a 16-bit sum over ranks is rounded once, and under SumPolicy::rounded within the documented bound") {
  const std::pair<DType, double> dtypes[] = {{DType::bfloat16, 0x1p-8}, {DType::float16, 0x1p-11}};
  for (const auto& [dtype, unit] : dtypes) {
    const Tensor x = cancelling(dtype);
    const std::vector<double> numbers = cast(x, DType::float64).to_vector<double>();
    const double exact = total(numbers, 0, numbers.size());
    double parts = 0;
    for (size_t r = 0; r < kRanks; ++r)
      parts += std::abs(total(numbers, r * kCount / kRanks, (r + 1) * kCount / kRanks));
    run_ranks(static_cast<int>(kRanks), [&, dtype = dtype, unit = unit](Rank& rank) {
      const Tensor sharded = distribute(x, DistSpec::parse(ProcessMesh::make({static_cast<int>(kRanks)}), "a"));
      const auto value = [](const Tensor& sum) {
        return cast(full_tensor(sum), DType::float64).to_vector<double>()[0];
      };
      // The kernel and the reduction add in float; the second term allows for that.
      const double once = unit * std::abs(exact) + 1e-5 * parts;
      const Tensor pending = sum(sharded);
      check(pending.dtype() == dtype && local(pending).dtype() == DType::float32, "contributions are held in float32");
      check(std::abs(value(pending) - exact) <= once, "the sum is rounded once");
      check(std::abs(value(mean(sharded)) * kCount - exact) <= 3 * once, "so is the mean");
      PolicyScope rounding(rank, {.sums = SumPolicy::rounded});
      const double rounded = value(pending);
      check(std::abs(rounded - exact) <= 1.001 * unit * (parts + std::abs(rounded)),
            "the sum of rounded parts is within its bound");
      if (dtype == DType::bfloat16)
        check(std::abs(rounded - exact) > once, "and is worse: these numbers show the difference");
    });
  }
}

namespace {

const ProcessMesh* square() { return ProcessMesh::make({2, 2}); }

/// 1.5 and 3 as pending sums over axis a: 128.5 - 127, and twice that.
/// Where contributions are rounded to bf16 they are 128 - 127, and twice that.
Tensor pending_bf16() {
  const DistSpec* spec = DistSpec::parse(square(), "- | sum(a)");
  const float part = (*spec->mesh()->coordinate(current_rank().id()))[0] == 0 ? 128.5f : -127.0f;
  return from_local(Tensor::from_data(std::vector<float>{part, 2 * part}, {2}), spec, {2}, DType::bfloat16);
}

Tensor bf16(const std::vector<float>& numbers, const Dims& dims, const char* layout) {
  return distribute(cast(Tensor::from_data(numbers, dims), DType::bfloat16), DistSpec::parse(square(), layout));
}

std::vector<float> values(const Tensor& tensor) { return cast(full_tensor(tensor), DType::float32).to_vector<float>(); }

using Numbers = std::vector<float>;

struct Kept {
  const char* name;
  std::function<Tensor(Tensor)> run;
  Numbers expected;
  DType dtype = DType::bfloat16;
};

const std::vector<Kept>& kept_cases() {
  static const std::vector<Kept> cases = {
      {"assign", [](Tensor x) { return assign(x); }, {1.5, 3}},
      {"add", [](Tensor x) { return add(x, x); }, {3, 6}},
      {"scale", [](Tensor x) { return scale(x, 4.0f); }, {6, 12}},
      {"multiply by a replicated tensor",
       [](Tensor x) {
         return multiply(x, bf16({3, 5}, {2}, "-"));
       },
       {4.5, 15}},
      {"multiply by one that is sharded elsewhere",
       [](Tensor x) {
         return multiply(x, bf16({3, 5}, {2}, "b"));
       },
       {4.5, 15}},
      {"matmul",
       [](Tensor x) {
         return matmul(reshape(x, {1, 2}), bf16({1, 2, 0, 4}, {2, 2}, "-, -"));
       },
       {1.5, 15}},
      {"cast to float16", [](Tensor x) { return cast(x, DType::float16); }, {1.5, 3}, DType::float16},
      {"cast to float32 and back", [](Tensor x) { return cast(cast(x, DType::float32), DType::bfloat16); }, {1.5, 3}},
      {"sum", [](Tensor x) { return sum(x); }, {4.5}},
      {"mean", [](Tensor x) { return mean(x); }, {2.25}},
      {"cumsum", [](Tensor x) { return cumsum(x, 0); }, {1.5, 4.5}},
      {"concat",
       [](Tensor x) {
         return concat({x, x}, 0);
       },
       {1.5, 3, 1.5, 3}},
      {"reshape",
       [](Tensor x) {
         return reshape(x, {2, 1});
       },
       {1.5, 3}},
      {"reshard to another pending layout",
       [](Tensor x) { return reshard(x, DistSpec::parse(square(), "b | sum(a)")); },
       {1.5, 3}},
      {"scale_", [](Tensor x) { return scale_(x, 4.0f); }, {6, 12}},
      {"scale_ of a view",
       [](Tensor x) {
         Tensor y = reshape(x, {2, 1});
         scale_(y, 4.0f);
         return x;
       },
       {6, 12}},
      {"add_", [](Tensor x) { return add_(x, assign(x)); }, {3, 6}},
      {"multiply_",
       [](Tensor x) {
         return multiply_(x, bf16({3, 5}, {2}, "-"));
       },
       {4.5, 15}},
      {"cast_",
       [](Tensor x) {
         Tensor y = assign(x);
         return cast_(y, DType::float16);
       },
       {1.5, 3},
       DType::float16},
      {"relu_, which is written back", [](Tensor x) { return relu_(x); }, {1.5, 3}},
      {"an average of sums",
       [](Tensor x) { return reshard(x, DistSpec::parse(square(), "- | sum(a) avg(b)")); },
       {1.5, 3}},
  };
  return cases;
}

}  // namespace

TEST_CASE(
    "14: pending sums of 16-bit tensors are held in float32 through calls, views, in-place writes and moves, captured "
    "too") {
  for (const Kept& kept : kept_cases()) {
    INFO(kept.name);
    run_ranks(4, [&](Rank&) {
      const Tensor out = kept.run(pending_bf16());
      check(out.dtype() == kept.dtype, std::string(kept.name) + " has its dtype");
      check(local(out).dtype() == shard_dtype(out.dtype(), spec_of(out)->layout()),
            std::string(kept.name) + " has a shard of the dtype of its layout");
      check(values(out) == kept.expected, std::string(kept.name) + " rounds once");
      CapturedFunction captured([&](const std::vector<Tensor>& in) { return std::vector<Tensor>{kept.run(in[0])}; },
                                {});
      for (int run = 0; run < 3; ++run)
        check(values(captured({pending_bf16()})[0]) == kept.expected,
              std::string(kept.name) + ", captured, rounds once");
      check(captured.stats().misses == 1, "captured once");
    });
  }
}

TEST_CASE("14: SumPolicy::rounded sends contributions in the dtype of the tensor, which is half the bytes") {
  run_ranks(4, [](Rank& rank) {
    const Tensor x = pending_bf16();
    const auto sent = [&](const char* layout) {
      const int64_t before = rank.stats().bytes_sent;
      const Numbers got = values(reshard(x, DistSpec::parse(square(), layout)));
      return std::pair(got, rank.stats().bytes_sent - before);
    };
    for (const char* layout : {"-", "a", "b", "a+b", "- | sum(b)"}) {
      const auto [exact, wide] = sent(layout);
      check(exact == Numbers{1.5, 3}, "in float32");
      PolicyScope rounding(rank, {.sums = SumPolicy::rounded});
      const auto [rounded, narrow] = sent(layout);
      check(rounded == Numbers{1, 2}, "rounded first");
      check(narrow <= wide, "fewer bytes");
    }
    const auto bytes = [&](SumPolicy sums) {
      return plan_reshard({{1024}, DType::bfloat16}, spec_of(x), DistSpec::parse(square(), "a"), 0,
                          {"reshard", "tensor"}, sums)
          ->bytes;
    };
    check(bytes(SumPolicy::float32) == 2 * bytes(SumPolicy::rounded), "half of them");
    // Calls and programs plan with the policy in force.
    const auto twice = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{relu(add(in[0], in[0]))}; };
    CapturedFunction captured(twice, {});
    check(values(twice({x})[0]) == Numbers{3, 6} && values(captured({x})[0]) == Numbers{3, 6}, "a call in float32");
    PolicyScope rounding(rank, {.sums = SumPolicy::rounded});
    check(values(twice({x})[0]) == Numbers{1, 4} || values(twice({x})[0]) == Numbers{2, 4}, "and rounded");
    check(values(captured({x})[0]) == values(twice({x})[0]), "captured, as the call");
  });
}

TEST_CASE("14: the backward pass of a captured function sums by the SumPolicy in force, as that of eager calls") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2});
    const auto made = [&](const Numbers& numbers, const Dims& dims, const char* layout) {
      return distribute(cast(Tensor::from_data(numbers, dims), DType::bfloat16), DistSpec::parse(mesh, layout));
    };
    CapturedFunction captured([](const std::vector<Tensor>& in) { return std::vector<Tensor>{multiply(in[0], in[1])}; },
                              {});
    for (int run = 0; run < 4; ++run) {
      const Tensor x = made({128, 0.5, -127, 0}, {4, 1}, "a, -"), w = made({1}, {1}, "-").set_requires_grad(true);
      const Tensor y = captured({x, w})[0];
      const SumPolicy sums = run % 2 == 0 ? SumPolicy::float32 : SumPolicy::rounded;
      PolicyScope scope(rank, {.sums = sums});
      backward({y}, {made({1, 1, 1, 1}, {4, 1}, "a, -")});
      check(values(w.grad()) == Numbers{sums == SumPolicy::float32 ? 1.5f : 1.0f},
            "the gradient of w, a sum over rows of 128.5 and -127");
    }
  });
}

TEST_CASE(
    "14: reshard_async and lists of pending 16-bit sums round once, and what they read may be written meanwhile") {
  run_ranks(4, [](Rank&) {
    const DistSpec* whole = DistSpec::replicated(square(), 1);
    for (const char* to : {"-", "a"}) {
      Tensor x = pending_bf16();
      const Tensor moved = reshard_async(x, DistSpec::parse(square(), to));
      scale_(x, 0.0f);
      check(values(moved) == Numbers{1.5, 3}, "one");
    }
    Tensor x = pending_bf16(), y = reshard(x, DistSpec::parse(square(), "b | sum(a)")), z = bf16({7, 8}, {2}, "b");
    const std::vector<Tensor> moved = reshard_async({x, y, z, x}, {whole, whole, whole, whole});
    check(
        values(moved[0]) == Numbers{1.5, 3} && values(moved[2]) == Numbers{7, 8} && values(moved[3]) == Numbers{1.5, 3},
        "several");
    check(values(moved[1]) == Numbers{1.5, 3}, "one that is sharded, too");
  });
}

TEST_CASE("14: shards go in and out of pending 16-bit sums in float32, or in their own dtype") {
  run_ranks(4, [](Rank&) {
    const DistSpec* pending = DistSpec::parse(square(), "- | sum(a)");
    const Tensor wide = Tensor::from_data(Numbers{0.25f, 0.5f}, {2}), narrow = cast(wide, DType::bfloat16);
    for (const Tensor& shard : {wide, narrow}) {
      const Tensor x = from_local(shard, pending, {2}, DType::bfloat16);
      check(x.dtype() == DType::bfloat16 && local(x).dtype() == DType::float32 && values(x) == Numbers{0.5, 1},
            "from_local takes both");
    }
    error_of([&] { from_local(cast(wide, DType::float16), pending, {2}, DType::bfloat16); }, ErrorCode::shape_mismatch);
    error_of([&] { from_local(wide, DistSpec::parse(square(), "-"), {2}, DType::bfloat16); },
             ErrorCode::shape_mismatch);
    // Through a function on local shards and back, with its gradient.
    Tensor x = bf16({1, 2}, {2}, "-");
    x.set_requires_grad(true);
    const auto half =
        local_map([](const Tensor& shard) { return scale(shard, 0.5f); }, {DistSpec::parse(square(), "-")}, {pending});
    const Tensor y = half(x);
    check(y.dtype() == DType::bfloat16 && local(y.detach()).dtype() == DType::float32 &&
              values(y.detach()) == Numbers{1, 2},
          "local_map gives contributions");
    sum(y).backward();
    check(x.grad().dtype() == DType::bfloat16 && values(x.grad()) == Numbers{1, 1}, "and takes gradients");
    Tensor z = pending_bf16();
    z.set_requires_grad(true);
    const auto plus = local_map([](const Tensor& shard) { return scale(shard, 2.0f); }, {pending}, {pending});
    const Tensor w = plus(z);
    sum(w).backward();
    check(z.grad().dtype() == DType::bfloat16 && values(z.grad()) == Numbers{2, 2}, "of a contribution");
  });
}

}  // namespace mesh_rounding_test
