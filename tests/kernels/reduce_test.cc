// Reductions, argmax and cumsum against plain references.
#include <functional>
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"

namespace shard::testing::reduce_test {
namespace {

struct Case {
  Dims dims;
  IntArray axis;
};
const Case kCases[] = {
    {{}, {}},          {{7}, {}},        {{7}, {0}},          {{3, 5}, {0}},          {{3, 5}, {1}},
    {{3, 5}, {-1, 0}}, {{2, 3, 4}, {1}}, {{2, 3, 4}, {0, 2}}, {{2, 3, 4, 5}, {1, 3}}, {{2, 3, 4, 5}, {0, 2}},
    {{1, 6, 1}, {1}},  {{4, 0, 3}, {0}}, {{0, 3}, {1}},       {{300, 400}, {0}},      {{300, 400}, {1}},
    {{100000}, {}},    {{5000, 3}, {0}}, {{3, 70000}, {1}},   {{70, 2061}, {0}},      {{3, 70, 33}, {1}},
    {{9, 611}, {1}}};

/// Folds x over the axes in double.
std::vector<double> fold(const DenseTensor& x, const IntArray& axis, double start,
                         const std::function<double(double, double)>& combine, Dims& out) {
  const Dims& dims = x.dims();
  unsigned mask = axis.empty() ? ~0u : 0u;
  for (int64_t a : axis) mask |= 1u << (a < 0 ? a + dims.rank() : a);
  out = Dims();
  for (int i = 0; i < dims.rank(); ++i) {
    if ((mask >> i & 1u) == 0) out.push_back(dims[i]);
  }
  std::vector<double> result(static_cast<size_t>(out.numel()), start);
  const std::vector<double> data = values(x);
  for (size_t i = 0; i < data.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), index = 0, stride = 1;
    for (int d = dims.rank() - 1; d >= 0; --d) {
      if ((mask >> d & 1u) == 0) {
        index += rest % dims[d] * stride;
        stride *= dims[d];
      }
      rest /= dims[d];
    }
    double& slot = result[static_cast<size_t>(index)];
    slot = combine(slot, data[i]);
  }
  return result;
}

DType result_dtype(const std::string& name, DType dtype) {
  return (name == "sum" || name == "prod") && !is_floating(dtype) ? DType::int64 : dtype;
}

void check_reduce(const std::string& name, std::span<const DType> dtypes, double start,
                  const std::function<double(double, double)>& combine) {
  for (const DType dtype : dtypes) {
    for (const Case& c : kCases) {
      INFO(name << " " << to_string(dtype) << to_string(c.dims) << " over " << to_string(c.axis));
      const DenseTensor x = arbitrary(c.dims, dtype);
      Dims dims;
      std::vector<double> expected = fold(x, c.axis, start, combine, dims);
      DenseTensor out = uninitialized(dims, result_dtype(name, dtype));
      if (dtype == DType::uint8 || dtype == DType::boolean) {
        for (double& value : expected) value = std::min(value, dtype == DType::boolean && name != "sum" ? 1.0 : 1e18);
      }
      call<Reduce>(name.c_str(), dtype, x, c.axis, false, out);
      check_close(out, expected, 2);
    }
  }
}

TEST_CASE("sum, max and min agree with the reference") {
  check_reduce("sum", kAllDTypes, 0, [](double a, double b) { return a + b; });
  for (const DType dtype : kAllDTypes) {
    const DType one[] = {dtype};
    const double low = is_floating(dtype)      ? -INFINITY
                       : dtype == DType::int32 ? -0x1p31
                       : dtype == DType::int64 ? -0x1p63
                                               : 0;
    const double high = is_floating(dtype)      ? INFINITY
                        : dtype == DType::int32 ? 0x1p31 - 1
                        : dtype == DType::int64 ? 0x1p63
                        : dtype == DType::uint8 ? 255
                                                : 1;
    check_reduce("max", one, low, [](double a, double b) { return std::max(a, b); });
    check_reduce("min", one, high, [](double a, double b) { return std::min(a, b); });
  }
}

TEST_CASE("all and any fold truth values of every dtype, amax and amin are max and min") {
  for (const DType dtype : kAllDTypes) {
    for (const Case& c : kCases) {
      INFO(to_string(dtype) << to_string(c.dims) << " over " << to_string(c.axis));
      const DenseTensor x = arbitrary(c.dims, dtype);
      Dims dims;
      const std::vector<double> every = fold(
          x, c.axis, 1, [](double a, double b) { return a != 0 && b != 0 ? 1 : 0; }, dims);
      const std::vector<double> some = fold(
          x, c.axis, 0, [](double a, double b) { return a != 0 || b != 0 ? 1 : 0; }, dims);
      DenseTensor out = uninitialized(dims, DType::boolean);
      call<Reduce>("all", dtype, x, c.axis, false, out);
      CHECK(values(out) == every);
      call<Reduce>("any", dtype, x, c.axis, false, out);
      CHECK(values(out) == some);
    }
    DenseTensor out = uninitialized({2}, dtype);
    call<Reduce>("amax", dtype, tensor({0, 1, 0, 0}, {2, 2}, dtype), IntArray{1}, false, out);
    CHECK(values(out) == std::vector<double>{1, 0});
    call<Reduce>("amin", dtype, tensor({0, 1, 1, 1}, {2, 2}, dtype), IntArray{1}, false, out);
    CHECK(values(out) == std::vector<double>{0, 1});
  }
}

/// Three ranks with equal shards.
class ThriceReducer : public AxisReducer {
 public:
  void all_reduce(DenseTensor& value, ReduceType) override {
    for (int64_t i = 0; i < value.numel(); ++i) value.data<double>()[i] *= 3;
  }
  Gathered all_gather(const DenseTensor& value) override { return {value}; }
};

TEST_CASE("norms add squares, of all shards before a root is taken") {
  using Norm = void(const OpContext&, const DenseTensor&, const IntArray&, bool, bool, DenseTensor&);
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = tensor({3, -4, 5, 12}, {2, 2}, dtype);
    DenseTensor out = uninitialized({2}, dtype), one = uninitialized({}, dtype), sum = uninitialized({1}, dtype);
    call<Norm>("frobenius_norm", dtype, x, IntArray{1}, false, false, out);
    CHECK(values(out) == std::vector<double>{5, 13});
    call<Norm>("frobenius_norm", dtype, x, IntArray{1}, false, true, one);
    check_close(one, {std::sqrt(194.0)}, 1);
    call<Unary>("squared_l2_norm", dtype, x, sum);
    CHECK(values(sum) == std::vector<double>{194});
    ThriceReducer reducer;
    const Box inputs[] = {{{2, 6}, {0, 2}}};
    const LocalCall local{inputs, {}, &reducer, {}};
    call_in<Norm>({"frobenius_norm", &local}, "frobenius_norm", dtype, x, IntArray{1}, false, false, out);
    check_close(out, {std::sqrt(75.0), std::sqrt(507.0)}, 1);
  }
  // Squares of 16-bit floats are added up beyond the range of 16 bits.
  DenseTensor out = uninitialized({1}, DType::float16);
  call<Norm>("frobenius_norm", DType::float16, tensor({3000, 4000}, {1, 2}, DType::float16), IntArray{1}, false, false,
             out);
  CHECK(values(out) == std::vector<double>{5000});
}

TEST_CASE("numel is that of the whole tensor") {
  DenseTensor out = uninitialized({}, DType::int64);
  call<Unary>("numel", DType::boolean, uninitialized({3, 4}, DType::boolean), out);
  CHECK(values(out) == std::vector<double>{12});
  const Box inputs[] = {{{2, 6}, {0, 2}}};
  const LocalCall local{inputs, {}, nullptr, {}};
  call_in<Unary>({"numel", &local}, "numel", DType::float32, uninitialized({2, 0}, DType::float32), out);
  CHECK(values(out) == std::vector<double>{12});
}

TEST_CASE("prod multiplies, in int64 for small integers") {
  DenseTensor out = uninitialized({2}, DType::int64);
  call<Reduce>("prod", DType::uint8, tensor({100, 100, 100, 2, 3, 4}, {2, 3}, DType::uint8), IntArray{1}, false, out);
  CHECK(values(out) == std::vector<double>{1e6, 24});
  DenseTensor real = uninitialized({3}, DType::float32);
  call<Reduce>("prod", DType::float32, tensor({1, 2, 3, 4, 5, 6}, {2, 3}), IntArray{0}, false, real);
  CHECK(values(real) == std::vector<double>{4, 10, 18});
}

TEST_CASE("a float sum of a million tenths keeps its accuracy, and a 16-bit one rounds once") {
  const std::vector<double> tenths(1000000, 0.1);
  DenseTensor out = uninitialized({}, DType::float32);
  call<Reduce>("sum", DType::float32, tensor(tenths, {1000000}), IntArray{}, false, out);
  CHECK(values(out)[0] == Approx(1000000 * static_cast<double>(0.1f)).epsilon(1e-6));
  DenseTensor columns = uninitialized({2}, DType::float32);
  call<Reduce>("sum", DType::float32, tensor(tenths, {500000, 2}), IntArray{0}, false, columns);
  CHECK(values(columns)[1] == Approx(500000 * static_cast<double>(0.1f)).epsilon(1e-6));
  DenseTensor half = uninitialized({}, DType::bfloat16);
  call<Reduce>("sum", DType::bfloat16, tensor(std::vector<double>(1000, 1), {1000}, DType::bfloat16), IntArray{}, false,
               half);
  CHECK(values(half)[0] == 1000);
}

TEST_CASE("mean divides by the global count of a sharded tensor") {
  DenseTensor out = uninitialized({2}, DType::float32);
  call<Reduce>("mean", DType::float32, tensor({1, 2, 3, 5}, {2, 2}), IntArray{1}, false, out);
  CHECK(values(out) == std::vector<double>{1.5, 4});
  const Box inputs[] = {{{2, 8}, {0, 4}}};
  const LocalCall local{inputs, {}, nullptr, {}};
  call_in<Reduce>({"mean", &local}, "mean", DType::float32, tensor({1, 2, 3, 5}, {2, 2}), IntArray{1}, false, out);
  CHECK(values(out) == std::vector<double>{3.0 / 8, 1});
  call_in<Reduce>({"mean", &local}, "mean", DType::float32, tensor({}, {2, 0}), IntArray{1}, false, out);
  CHECK(values(out) == std::vector<double>{0, 0});
}

TEST_CASE("NaN wins in max, min and argmax") {
  std::vector<double> numbers(100, 1);
  numbers[57] = NAN;
  DenseTensor out = uninitialized({}, DType::float32);
  call<Reduce>("max", DType::float32, tensor(numbers, {100}), IntArray{}, false, out);
  CHECK(std::isnan(values(out)[0]));
  call<Reduce>("min", DType::float32, tensor(numbers, {100}), IntArray{}, false, out);
  CHECK(std::isnan(values(out)[0]));
}

using ArgMax = void(const OpContext&, const DenseTensor&, const Scalar&, bool, DenseTensor&);

TEST_CASE("argmax of long lines, along dims whose elements are apart too, takes the first NaN") {
  constexpr int64_t kLines = 300, kSize = 700;
  const DenseTensor x = arbitrary({kLines, kSize}, DType::float32);
  for (int64_t line = 0; line < kLines; ++line) {
    if (line % 3 != 0) continue;
    for (int64_t at = (line * 37) % kSize; at < kSize; at += 100) x.data<float>()[line * kSize + at] = NAN;
  }
  DenseTensor turned = uninitialized({kSize, kLines}, DType::float32);
  std::vector<double> expected;
  for (int64_t line = 0; line < kLines; ++line) {
    const float* from = x.data<float>() + line * kSize;
    int64_t best = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      turned.data<float>()[i * kLines + line] = from[i];
      if (!std::isnan(from[best]) && (from[i] > from[best] || std::isnan(from[i]))) best = i;
    }
    expected.push_back(static_cast<double>(best));
  }
  DenseTensor out = uninitialized({kLines}, DType::int64);
  call<ArgMax>("argmax", DType::float32, x, Scalar(1), false, out);
  CHECK(values(out) == expected);
  call<ArgMax>("argmax", DType::float32, turned, Scalar(0), false, out);
  CHECK(values(out) == expected);
}

TEST_CASE("argmax gives the lowest index of equal elements") {
  for (const DType dtype : kAllDTypes) {
    DenseTensor out = uninitialized({2}, DType::int64);
    call<ArgMax>("argmax", dtype, tensor({0, 1, 1, 0, 0, 0}, {2, 3}, dtype), Scalar(-1), false, out);
    CHECK(values(out) == std::vector<double>{1, 0});
  }
  DenseTensor out = uninitialized({}, DType::int32);
  call<ArgMax>("argmax", DType::float32, tensor({1, NAN, 9, NAN}, {2, 2}), Scalar(0), true, out);
  CHECK(values(out) == std::vector<double>{1});
  DenseTensor column = uninitialized({2}, DType::int64);
  call<ArgMax>("argmax", DType::float32, tensor({1, 5, 3, 2}, {2, 2}), Scalar(0), false, column);
  CHECK(values(column) == std::vector<double>{1, 0});
}

TEST_CASE("cumsum runs along an axis, exclusive and in reverse") {
  using Cumsum = void(const OpContext&, const DenseTensor&, const Scalar&, bool, bool, bool, DenseTensor&);
  for (const DType dtype : kNumberDTypes) {
    const DenseTensor x = tensor({1, 2, 3, 4, 5, 6}, {2, 3}, dtype);
    DenseTensor out = uninitialized({2, 3}, dtype);
    call<Cumsum>("cumsum", dtype, x, Scalar(-1), false, false, false, out);
    CHECK(values(out) == std::vector<double>{1, 3, 6, 4, 9, 15});
    call<Cumsum>("cumsum", dtype, x, Scalar(0), false, false, false, out);
    CHECK(values(out) == std::vector<double>{1, 2, 3, 5, 7, 9});
    call<Cumsum>("cumsum", dtype, x, Scalar(1), false, true, true, out);
    CHECK(values(out) == std::vector<double>{5, 3, 0, 11, 6, 0});
    DenseTensor flat = uninitialized({6}, dtype);
    call<Cumsum>("cumsum", dtype, x, Scalar(0), true, false, false, flat);
    CHECK(values(flat) == std::vector<double>{1, 3, 6, 10, 15, 21});
  }
}

TEST_CASE("cumsum has the same bits whether the elements of a line are neighbours or apart") {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int32}) {
    const Tensor numbers = Tensor(arbitrary({37, 1100}, dtype)), x = divide(numbers, full_like(numbers, 3));
    for (const bool exclusive : {false, true}) {
      for (const bool reverse : {false, true}) {
        const Tensor apart = cumsum(x, 0, false, exclusive, reverse);
        const Tensor neighbours = cumsum(transpose(x, {1, 0}), 1, false, exclusive, reverse);
        CHECK(values(apart.get().value) == values(transpose(neighbours, {1, 0}).get().value));
      }
    }
  }
}

}  // namespace
}  // namespace shard::testing::reduce_test
