// Sorts and selections of lines of every length on the device: those that a block sorts, from which it selects, and that the device
// sorts.
#include <cstring>
#include <random>
#include <string>

#include "cuda_case.h"

namespace sort_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Random bits: numbers of all sizes, NaNs with any payload, and some zeros of both signs and numbers that are equal.
DenseTensor random_bits(const Dims& dims, DType dtype, unsigned seed) {
  const DenseTensor x = random_tensor(dims, dtype, seed);
  std::mt19937_64 random(seed);
  const auto size = static_cast<int64_t>(size_of(dtype));
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (i % 5 == 0) continue;
    const uint64_t bits = i % 7 == 3 ? uint64_t{random() % 2} << (8 * size - 1) : random();
    std::memcpy(x.data<char>() + i * size, &bits, static_cast<size_t>(size));
  }
  return x;
}

/// The two outputs of a kernel, both of shape `dims`, the second of int64; `attrs` come between inputs and outputs.
template <class... Attrs>
std::pair<DenseTensor, DenseTensor> run_pair(const char* name, Device device, const DenseTensor& x,
                                             const Meta& out_meta, Attrs... attrs) {
  const OpContext ctx{name};
  const DenseTensor in = copy_to(device, x);
  DenseTensor out = DenseTensor::allocate(device, out_meta),
              indices = DenseTensor::allocate(device, {out_meta.dims, DType::int64});
  kernel_table(name)
      .find<void(const OpContext&, const DenseTensor&, Attrs..., DenseTensor&, DenseTensor&)>(ctx, device, x.dtype())
      .function(ctx, in, attrs..., out, indices);
  return {copy_to(kCpu, out), copy_to(kCpu, indices)};
}

/// The outputs are those of the CPU, bit by bit.
template <class... Attrs>
void compare_pair(const char* name, Device device, const DenseTensor& x, const Meta& out_meta, Attrs... attrs) {
  INFO(name << " of " << to_string(x.meta()) << " to " << to_string(out_meta));
  const auto expected = run_pair(name, kCpu, x, out_meta, attrs...),
             actual = run_pair(name, device, x, out_meta, attrs...);
  REQUIRE(testing::difference(actual.second, expected.second) == "");
  REQUIRE(std::memcmp(actual.first.raw(), expected.first.raw(), actual.first.meta().bytes()) == 0);
}

struct Case {
  Dims dims;
  int axis;
};

constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::bfloat16,
                             DType::float16, DType::int64,   DType::uint8};

}  // namespace

TEST_CASE(
    "argsort of lines that a block sorts, several in a block or one, and that the device sorts, is that of the CPU",
    "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<Case> cases = {{{700, 3}, 1},  {{3, 1024}, 1},    {{5, 200, 7}, 1}, {{2000, 2}, 0},
                                   {{3, 1025}, 1}, {{2, 1500, 3}, 1}, {{5000}, 0}};
  for (const Case& one : cases) {
    for (const DType dtype : kDTypes) {
      for (const bool descending : {false, true}) {
        INFO("axis " << one.axis << ", descending " << descending);
        const DenseTensor x = random_bits(one.dims, dtype, 1);
        compare_pair("argsort", *device, x, x.meta(), one.axis, descending);
      }
    }
  }
}

TEST_CASE("topk of long lines, also of lines in parts and of more elements than a block sorts, is that of the CPU",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<std::pair<Case, int64_t>> cases = {
      {{{3, 1025}, 1}, 1},    {{{2, 3000}, 1}, 1024}, {{{2, 3000, 3}, 1}, 17}, {{{1, 40000}, 1}, 50},
      {{{40000, 2}, 0}, 700}, {{{2, 3000}, 1}, 1500}, {{{600, 9}, 1}, 4}};
  for (const auto& [one, count] : cases) {
    for (const DType dtype : {DType::float32, DType::float16, DType::int64, DType::uint8}) {
      for (const bool largest : {false, true}) {
        INFO("axis " << one.axis << ", " << count << " elements, largest " << largest);
        Dims dims = one.dims;
        dims[one.axis] = count;
        const DenseTensor x = random_bits(one.dims, dtype, 2);
        compare_pair("topk", *device, x, {dims, dtype}, one.axis, largest);
      }
    }
  }
  const DenseTensor equal = random_tensor({2, 20000}, DType::int32, 3);
  std::memset(equal.raw(), 0, equal.meta().bytes());
  compare_pair("topk", *device, equal, {{2, 300}, DType::int32}, 1, true);
}

TEST_CASE("the element of a rank and the most frequent one of long lines are those of the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Case& one : {Case{{3, 700}, 1}, Case{{40, 6}, 1}, Case{{2, 2500}, 1}, Case{{1100, 3}, 0}}) {
    Dims dims = one.dims;
    dims[one.axis] = 1;
    for (const DType dtype : kDTypes) {
      const DenseTensor few = random_tensor(one.dims, dtype, 4), many = random_bits(one.dims, dtype, 5);
      for (const DenseTensor& x : {few, many}) {
        compare_pair("mode", *device, x, {dims, dtype}, one.axis);
        for (const int64_t k : {int64_t{1}, one.dims[one.axis] / 2, one.dims[one.axis]})
          compare_pair("kthvalue", *device, x, {dims, dtype}, static_cast<int>(k), one.axis);
      }
    }
  }
  const DenseTensor longest = random_bits({1, 270000}, DType::float32, 6);  // the device sorts it
  compare_pair("kthvalue", *device, longest, {{1, 1}, DType::float32}, 1234, 1);
}

TEST_CASE("the median of numbers in long lines is that of the CPU, in either mode and along any dims") {
  const auto device = cuda_device();
  if (!device) return;
  struct Median {
    Dims dims, out;
    IntArray axis;
  };
  const std::vector<Median> cases = {{{30, 7}, {30, 1}, {1}},
                                     {{40, 3, 50}, {1, 3, 1}, {0, 2}},
                                     {{2, 1201}, {2, 1}, {1}},
                                     {{1202, 2}, {1, 2}, {0}},
                                     {{270000}, {1}, {}}};
  for (const Median& one : cases) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int32}) {
      for (const std::string mode : {"avg", "min"}) {
        if (one.dims.numel() > 10000 && dtype != DType::float32) continue;
        const DenseTensor x =
            dtype == DType::bfloat16 ? random_tensor(one.dims, dtype, 7) : random_bits(one.dims, dtype, 7);
        if (dtype == DType::float32 && one.dims.rank() == 2) {  // a line without numbers
          for (int64_t k = 0; k < one.dims[1]; ++k) x.data<float>()[k] = NAN;
        }
        Dims places = one.out;
        if (mode == "avg") places.push_back(2);
        const auto run = [&](Device on) {
          const OpContext ctx{"nanmedian"};
          const DenseTensor in = copy_to(on, x);
          DenseTensor out = DenseTensor::allocate(on, {one.out, dtype}),
                      medians = DenseTensor::allocate(on, {places, DType::int64});
          kernel_table("nanmedian")
              .find<void(const OpContext&, const DenseTensor&, const IntArray&, const std::string&, DenseTensor&,
                         DenseTensor&)>(ctx, on, dtype)
              .function(ctx, in, one.axis, mode, out, medians);
          return std::pair(copy_to(kCpu, out), copy_to(kCpu, medians));
        };
        INFO(to_string(x.meta()) << ", " << mode);
        const auto expected = run(kCpu), actual = run(*device);
        REQUIRE(testing::difference(actual.second, expected.second) == "");
        require_close(actual.first, expected.first);
      }
    }
  }
}

TEST_CASE("the index of the best element of long lines and columns is the first, and NaN is best", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<Case> cases = {{{3, 200}, 1}, {{2, 9000}, 1}, {{1, 40000}, 1}, {{900, 70}, 0}, {{3, 20, 5}, 1}};
  for (const Case& one : cases) {
    Dims dims = one.dims;
    dims[one.axis] = 1;
    for (const DType dtype : kDTypes) {
      const DenseTensor few = random_tensor(one.dims, dtype, 8), many = random_bits(one.dims, dtype, 9);
      for (const DenseTensor& x : {few, many}) {
        for (const char* const name : {"argmax", "argmin"}) {
          const Kernel<const Scalar&, bool> kernel{name};
          kernel.compare(*device, {x}, {dims, DType::int64}, Scalar(one.axis), false);
          kernel.compare(*device, {x}, {{1}, DType::int32}, Scalar(0), true);
        }
      }
    }
  }
}

TEST_CASE("searchsorted of long sequences finds the places of the CPU, on both sides of equal elements") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float32, DType::int64, DType::float16}) {
    const DenseTensor x = random_bits({2, 3000}, dtype, 10), values = random_bits({2, 400}, dtype, 11);
    const DenseTensor sorted = run_pair("argsort", kCpu, x, x.meta(), 1, false).first;
    for (const bool right : {false, true}) {
      Kernel<bool>{"searchsorted"}.compare(*device, {sorted, values}, {{2, 400}, DType::int64}, right);
      Kernel<bool>{"searchsorted"}.compare(*device, {sorted, sorted}, {{2, 3000}, DType::int32}, right);
    }
  }
}

}  // namespace sort_test
