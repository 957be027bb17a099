// Values that are written and added at positions, on the device: many positions, in any order, of few or many rows. Results are
// compared with the CPU's.
#include <algorithm>
#include <cstring>
#include <functional>

#include "cuda_case.h"
#include "shard/ops/graph.h"
#include "shard/ops/indexing.h"
#include "shard/ops/math.h"
#include "shard/ops/shape.h"
#include "shard/ops/vision.h"
#include "shard/ops/writing.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace scatter_test {

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;
using Call = std::function<Tensors(Tensors&)>;

/// Numbers from `low` to before `high`, in no order.
DenseTensor numbers(const Dims& dims, int64_t low, int64_t high, uint64_t seed, DType dtype = DType::int64) {
  const DenseTensor tensor = DenseTensor::allocate(kCpu, {dims, dtype});
  uint64_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int64_t number = low + static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(high - low));
    if (dtype == DType::int64) tensor.data<int64_t>()[i] = number;
    else tensor.data<int32_t>()[i] = static_cast<int32_t>(number);
  }
  return tensor;
}

Tensors call_on(Device device, const std::vector<DenseTensor>& inputs, const Call& call) {
  Tensors tensors;
  for (const DenseTensor& input : inputs) tensors.emplace_back(copy_to(device, input));
  return call(tensors);
}

/// Calls on both devices, twice on the other one, where equal calls have equal bits.
void compare(Device device, const std::vector<DenseTensor>& inputs, const Call& call) {
  const Tensors expected = call_on(kCpu, inputs, call);
  const Tensors actual = call_on(device, inputs, call), again = call_on(device, inputs, call);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("result " << i);
    const DenseTensor one = copy_to(kCpu, actual[i].get().value), two = copy_to(kCpu, again[i].get().value);
    require_close(one, expected[i].get().value);
    REQUIRE(std::memcmp(one.raw(), two.raw(), one.meta().bytes()) == 0);
  }
}

std::string error_on(Device device, const std::vector<DenseTensor>& inputs, const Call& call) {
  try {
    for (const Tensor& result : call_on(device, inputs, call)) copy_to(kCpu, result.get().value);
  } catch (const Error& error) { return error.what(); }
  return "none";
}

struct Case {
  int64_t rows, count, width;
};
/// Sorts by one block and by several, of one digit and of several; groups of one part and of several, of which some rows have
/// all; rows of single elements, and those that packs divide or do not.
const std::vector<Case> kCases = {{5, 40, 3},     {700, 300, 8},   {3, 500, 1},    {1, 3000, 4}, {9, 5000, 1},
                                  {70000, 33, 1}, {1000, 2500, 4}, {300, 5000, 1}, {50, 200, 70}};

}  // namespace

TEST_CASE("rows are added in any order of their positions as on the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const auto& [rows, count, width] : kCases) {
    INFO(count << " sources of " << rows << " rows of " << width);
    for (const DType dtype : {DType::float32, rows % 2 == 0 ? DType::uint8 : DType::float64, DType::bfloat16}) {
      const DenseTensor x = random_tensor({rows, width}, dtype, 1), updates = random_tensor({count, width}, dtype, 2);
      const DenseTensor index = numbers({count}, -rows, rows, 3), flat = numbers({count}, 0, rows, 3, DType::int32);
      compare(*device, {x, index, updates}, [](Tensors& t) {
        return Tensors{index_add(t[0], t[1], t[2], 0), scatter_nd_add(t[0], reshape(t[1], {-1, 1}), t[2]),
                       index_sum(t[2], t[1], t[0].dims()[0], 0), index_put(t[0], {t[1]}, t[2], true)};
      });
      compare(*device, {x, flat, updates}, [](Tensors& t) {
        const Tensor sums = scatter(t[0], t[1], t[2], false);
        return Tensors{sums, scatter(t[0], t[1], t[2], true), scatter_(t[0], t[1], t[2], true)};
      });
      compare(*device, {x, flat, updates}, [](Tensors& t) { return Tensors{index_add_(t[0], t[1], t[2], 0)}; });
    }
  }
}

TEST_CASE("slices along an inner dim are added as on the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int axis : {1, 2}) {
    for (const int64_t count : {7, 400}) {
      const Dims x_dims = {axis == 1 ? 3 : 90, 5, 4};
      Dims from = x_dims;
      from[axis] = count;
      const DenseTensor x = random_tensor(x_dims, DType::float32, 1), values = random_tensor(from, DType::float32, 2);
      const int64_t size = x_dims[axis];
      compare(*device, {x, numbers({count}, -size, size, 3), values}, [=](Tensors& t) {
        return Tensors{index_add(t[0], t[1], t[2], axis), index_sum(t[2], t[1], size, axis)};
      });
    }
  }
}

TEST_CASE("the sum of a row does not depend on the sources of other rows") {
  const auto device = cuda_device();
  if (!device) return;
  const int64_t count = 900;
  const DenseTensor values = random_tensor({count + 1}, DType::float32, 5), index = numbers({count + 1}, 1, 3, 6);
  for (int64_t i = 0; i <= count; ++i) values.data<float>()[i] = 1.0f / static_cast<float>(i + 3);
  const auto sums = [&](int64_t row_of_first) {
    index.data<int64_t>()[0] = row_of_first;
    const Tensors results =
        call_on(*device, {values, index}, [](Tensors& t) { return Tensors{index_sum(t[0], t[1], 3, 0)}; });
    return copy_to(kCpu, results[0].get().value);
  };
  const DenseTensor with = sums(0), without = sums(1);
  CHECK(with.data<float>()[2] == without.data<float>()[2]);
  CHECK(with.data<float>()[1] != without.data<float>()[1]);
}

TEST_CASE("gradients of scatter are those of the updates that were written") {
  const auto device = cuda_device();
  if (!device) return;
  for (const auto& [rows, count, width] : kCases) {
    for (const bool overwrite : {false, true}) {
      INFO(count << " sources of " << rows << " rows of " << width << ", overwrite " << overwrite);
      compare(*device, {numbers({count}, 0, rows, 3), random_tensor({rows, width}, DType::float32, 1)},
              [=](Tensors& t) {
                const auto [x_grad, updates_grad] = scatter_grad(t[0], t[1], overwrite);
                return Tensors{x_grad, updates_grad};
              });
    }
  }
}

TEST_CASE("every way to put values along an axis takes many values for an element", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const char* reduce : {"assign", "add", "multiply", "mean", "amax", "amin"}) {
    for (const bool include_self : {true, false}) {
      for (const DType dtype : {DType::float64, DType::int32, DType::uint8}) {
        INFO(reduce << ", include_self " << include_self);
        const DenseTensor arr = random_tensor({3, 4, 5}, dtype, 1), values = random_tensor({3, 300, 5}, dtype, 2);
        const std::string name = reduce;
        if (name == "multiply" && dtype == DType::float64) {
          for (int64_t i = 0; i < values.numel(); ++i) values.data<double>()[i] = i % 2 == 0 ? 1.5 : -0.75;
        }
        compare(*device, {arr, numbers({3, 300, 5}, -4, 4, 3), values},
                [=](Tensors& t) { return Tensors{put_along_axis(t[0], t[1], t[2], 1, name, include_self)}; });
      }
    }
  }
}

TEST_CASE("index_put takes masks, positions of several dims and values that are broadcast") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({40, 50, 6}, DType::float32, 1);
  DenseTensor mask = DenseTensor::allocate(kCpu, {{40, 50}, DType::boolean});
  int64_t chosen = 0;
  for (int64_t i = 0; i < mask.numel(); ++i) chosen += (mask.data<bool>()[i] = i % 3 == 1 || i > 1900) ? 1 : 0;
  for (const bool accumulate : {false, true}) {
    const auto put = [=](Tensors& t) { return Tensors{index_put(t[0], {t[1]}, t[2], accumulate)}; };
    for (const Dims& dims : {Dims{chosen, 6}, Dims{chosen, 1}, Dims{6}, Dims{1}})
      compare(*device, {x, mask, random_tensor(dims, DType::float32, 2)}, put);
    const DenseTensor rows = numbers({30, 1}, -40, 40, 3), columns = numbers({20}, 0, 50, 4, DType::int32);
    for (const Dims& dims : {Dims{30, 20, 6}, Dims{20, 1}, Dims{30, 1, 6}}) {
      compare(*device, {x, rows, columns, random_tensor(dims, DType::float32, 5)}, [=](Tensors& t) {
        return Tensors{index_put(t[0], {t[1], t[2]}, t[3], accumulate)};
      });
    }
  }
  std::fill_n(mask.data<bool>(), mask.numel(), false);
  compare(*device, {x, mask, random_tensor({6}, DType::float32, 2)},
          [](Tensors& t) { return Tensors{index_put(t[0], {t[1]}, t[2])}; });
}

TEST_CASE("messages of many edges are reduced as on the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const auto& [rows, count, width] : kCases) {
    for (const char* reduce : {"SUM", "MEAN", "MIN", "MAX"}) {
      const std::string name = reduce;
      INFO(count << " edges of " << rows << " rows of " << width << ", " << name);
      const DenseTensor rising = numbers({count}, 0, rows, 6, DType::int32);
      std::sort(rising.data<int32_t>(), rising.data<int32_t>() + count);
      const DType dtype = name == "SUM" || name == "MIN" ? DType::float32 : DType::uint8;
      const std::vector<DenseTensor> inputs = {
          random_tensor({rows, width}, dtype, 1), random_tensor({count, width}, dtype, 2),
          random_tensor({count, 1}, dtype, 3),    numbers({count}, 0, rows, 4),
          numbers({count}, 0, rows, 5),           rising};
      compare(*device, inputs, [=](Tensors& t) {
        return Tensors{send_u_recv(t[0], t[3], t[4], name), send_ue_recv(t[0], t[1], t[3], t[4], "ADD", name),
                       send_ue_recv(t[0], t[2], t[3], t[4], "MUL", name), send_uv(t[0], t[0], t[3], t[4], "MUL"),
                       segment_pool(t[1], t[5], name)};
      });
    }
  }
}

TEST_CASE("segments that are not in rising order are refused with the error of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({4, 3}, DType::float32, 1), ids = numbers({4}, 0, 1, 2);
  const auto pool = [](Tensors& t) { return Tensors{segment_pool(t[0], t[1], "SUM")}; };
  for (const std::vector<int64_t>& given : {std::vector<int64_t>{0, 2, 1, 3}, {0, -1, 2, 1}, {0, 0, 5, 2}}) {
    std::copy(given.begin(), given.end(), ids.data<int64_t>());
    const std::string expected = error_on(kCpu, {x, ids}, pool);
    CHECK(expected != "none");
    CHECK(error_on(*device, {x, ids}, pool) == expected);
  }
}

TEST_CASE("wrong positions and divisors are the errors of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({6, 2}, DType::int32, 1), updates = random_tensor({4, 2}, DType::int32, 2);
  const DenseTensor index = numbers({4}, 0, 6, 3);
  index.data<int64_t>()[2] = 6;
  const std::vector<Call> calls = {
      [](Tensors& t) { return Tensors{scatter(t[0], t[1], t[2], true)}; },
      [](Tensors& t) { return Tensors{scatter(t[0], t[1], t[2], false)}; },
      [](Tensors& t) { return Tensors{index_add(t[0], t[1], t[2], 0)}; },
      [](Tensors& t) { return Tensors{index_sum(t[2], t[1], 6, 0)}; },
      [](Tensors& t) {
        return Tensors{scatter_nd_add(t[0], reshape(t[1], {4, 1}), t[2])};
      },
      [](Tensors& t) { return Tensors{index_put(t[0], {t[1]}, t[2])}; },
      [](Tensors& t) {
        return Tensors{put_along_axis(t[0], expand(reshape(t[1], {4, 1}), {4, 2}), t[2], 0)};
      },
      [](Tensors& t) { return Tensors{send_u_recv(t[0], t[1], t[1])}; },
      [](Tensors& t) { return Tensors{send_uv(t[0], t[0], subtract(t[1], t[1]), t[1])}; },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    INFO("call " << i);
    const std::string expected = error_on(kCpu, {x, index, updates}, calls[i]);
    CHECK(expected.find(" 6 ") != std::string::npos);
    CHECK(error_on(*device, {x, index, updates}, calls[i]) == expected);
  }
  const DenseTensor divisor = DenseTensor::allocate(kCpu, {{6, 2}, DType::int32});
  for (int64_t i = 0; i < 12; ++i) divisor.data<int32_t>()[i] = static_cast<int32_t>(i % 5) - 3;
  for (const bool broadcasts : {false, true}) {
    const auto divide_all = [=](Tensors& t) {
      const Tensor y = broadcasts ? slice(t[1], {1}, {1}, {2}) : t[1];
      return Tensors{remainder(t[0], y)};
    };
    const std::string expected = error_on(kCpu, {x, divisor}, divide_all);
    CHECK(expected.find("cannot be divided by 0") != std::string::npos);
    CHECK(error_on(*device, {x, divisor}, divide_all) == expected);
  }
}

TEST_CASE("integers are divided as on the CPU, in packs, one by one and broadcast") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::int32, DType::int64}) {
    for (const int64_t size : {5, 1000}) {
      const DenseTensor x = numbers({3, size}, -50, 50, 1, dtype), y = numbers({3, size}, 1, 9, 2, dtype);
      const DenseTensor row = numbers({size}, -9, 0, 3, dtype);
      compare(*device, {x, y, row}, [](Tensors& t) {
        return Tensors{divide(t[0], t[1]), remainder(t[0], t[1]), floor_divide(t[0], t[1]),
                       divide(t[0], t[2]), remainder(t[0], t[2]), floor_divide(t[0], t[2])};
      });
    }
  }
}

TEST_CASE("the last element of a place stays in unpool, and blocks of images are columns and back") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({2, 3, 20, 30}, DType::float32, 1);
  compare(*device, {x, numbers({2, 3, 20, 30}, 0, 45 * 61, 2)}, [](Tensors& t) {
    return Tensors{unpool(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, {45, 61}, "NCHW")};
  });
  compare(*device, {x}, [](Tensors& t) {
    const Tensor columns = unfold(t[0], {3, 2}, {2, 1}, {1, 0, 2, 1}, {1, 3});
    return Tensors{columns, fold(columns, {20, 30}, {3, 2}, {2, 1}, {1, 0, 2, 1}, {1, 3})};
  });
}

TEST_CASE("slices and diagonals are written backwards and with many numbers") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<Scalar> values(600, Scalar(7));
  std::vector<Scalar> rising;
  for (int i = 0; i < 600; ++i) rising.emplace_back(i);
  const DenseTensor x = random_tensor({5, 700}, DType::float32, 1);
  compare(*device, {x, random_tensor({2, 350}, DType::float32, 2), random_tensor({5}, DType::float32, 3)},
          [&](Tensors& t) {
            return Tensors{set_value(t[0], {650}, {50}, {-1}, {1}, {}, {}, {600}, rising),
                           set_value(t[0], {0, 0}, {5, 600}, {1, 1}, {0, 1}, {}, {}, {600}, values),
                           set_value_with_tensor(t[0], t[1], {3, 699}, {0, -1}, {-2, -2}, {0, 1}, {}, {}),
                           fill_diagonal_tensor(t[0], t[2], 3, 0, 1),
                           fill_diagonal(t[0], 2, 1),
                           fill_diagonal(t[0], 2, 0, true)};
          });
}

TEST_CASE("ranks write what is in their shards on devices as on the host") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"p", "q"});
  const DenseTensor x = random_tensor({7, 11}, DType::float32, 1), rows = random_tensor({20, 11}, DType::float32, 2),
                    square = random_tensor({20, 11}, DType::float32, 3),
                    diagonal = random_tensor({7}, DType::float32, 4);
  const DenseTensor index = numbers({20}, 0, 7, 5), of_each = numbers({20, 11}, -7, 7, 6);
  for (const char* layout : {"p, q", "q, -", "-, p"}) {
    INFO(layout);
    run_ranks(4, [&](Rank&) {
      const auto run = [&](Device at) {
        const auto given = [&](const DenseTensor& value, const char* spec) {
          return distribute(Tensor(copy_to(at, value)), DistSpec::parse(mesh, spec));
        };
        const Tensor to = given(x, layout), at_rows = given(index, "-"), added = given(rows, "-, -"),
                     values = given(square, "-, -"), indices = given(of_each, "-, -");
        Tensors results = {scatter(to, at_rows, added, true),
                           scatter(to, at_rows, added, false),
                           index_add(to, at_rows, added, 0),
                           scatter_nd_add(to, reshape(at_rows, {20, 1}), added),
                           index_put(to, {at_rows}, added),
                           index_put(to, {at_rows}, added, true),
                           put_along_axis(to, indices, values, 0, "assign"),
                           put_along_axis(to, indices, values, 0, "mean"),
                           set_value(to, {6, 10}, {-1, 0}, {-2, -3}, {0, 1}, {}, {}, {1}, {Scalar(5)}),
                           set_value_with_tensor(to, slice(added, {0}, {0}, {3}), {1}, {7}, {2}, {0}, {}, {}),
                           fill_diagonal(to, 3, 1),
                           fill_diagonal(to, 3, 0, true),
                           fill_diagonal_tensor(to, given(diagonal, "-"), 1, 0, 1)};
        const auto [x_grad, updates_grad] = scatter_grad(at_rows, to, true);
        results.push_back(x_grad);
        results.push_back(updates_grad);
        for (Tensor& result : results) result = Tensor(copy_to(kCpu, full_tensor(result).get().value));
        return results;
      };
      const Tensors expected = run(kCpu), actual = run(*device);
      for (size_t i = 0; i < expected.size(); ++i) {
        const std::string difference = testing::difference(actual[i].get().value, expected[i].get().value);
        check(difference.empty(), "result " + std::to_string(i) + ": " + difference);
      }
    });
  }
}

}  // namespace scatter_test
