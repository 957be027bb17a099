// Elementwise kernels against plain references: dtypes, broadcasting, empty and 0-d tensors, in place, splits.
#include <functional>
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"

namespace shard::testing::elementwise_test {
namespace {

struct Shapes {
  Dims x, y, out;
};
const Shapes kShapes[] = {
    {{5}, {5}, {5}},
    {{}, {}, {}},
    {{2, 3, 4}, {}, {2, 3, 4}},
    {{}, {7}, {7}},
    {{4, 37}, {37}, {4, 37}},
    {{37}, {4, 37}, {4, 37}},
    {{4, 5}, {4, 1}, {4, 5}},
    {{4, 1}, {1, 5}, {4, 5}},
    {{2, 1, 3}, {4, 1}, {2, 4, 3}},
    {{0, 3}, {3}, {0, 3}},
    {{1}, {0}, {0}},
    {{300, 301}, {301}, {300, 301}},
    {{3, 50000}, {3, 1}, {3, 50000}},
};

using Function = std::function<double(double, double)>;

void check_binary(const char* name, std::span<const DType> dtypes, const Function& function) {
  for (const DType dtype : dtypes) {
    for (const Shapes& shapes : kShapes) {
      INFO(name << " " << to_string(dtype) << to_string(shapes.x) << to_string(shapes.y));
      const DenseTensor x = arbitrary(shapes.x, dtype, 1), y = arbitrary(shapes.y, dtype, 2);
      DenseTensor out = uninitialized(shapes.out, dtype);
      call<Binary>(name, dtype, x, y, out);
      std::vector<double> expected(static_cast<size_t>(out.numel()));
      const std::vector<double> a = values(x), b = values(y);
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        expected[i] =
            function(a[broadcast_index(shapes.out, shapes.x, at)], b[broadcast_index(shapes.out, shapes.y, at)]);
        if (dtype == DType::uint8) expected[i] = static_cast<uint8_t>(static_cast<int64_t>(expected[i]));
      }
      check_close(out, expected);
    }
  }
}

TEST_CASE("binary kernels agree with the reference on every dtype and broadcast") {
  check_binary("add", kNumberDTypes, [](double a, double b) { return a + b; });
  check_binary("subtract", kNumberDTypes, [](double a, double b) { return a - b; });
  check_binary("multiply", kNumberDTypes, [](double a, double b) { return a * b; });
  check_binary("divide", kFloatDTypes, [](double a, double b) { return a / b; });
  check_binary("maximum", kAllDTypes, [](double a, double b) { return std::max(a, b); });
  check_binary("minimum", kAllDTypes, [](double a, double b) { return std::min(a, b); });
}

TEST_CASE("kernels of gradients agree with the reference on every float dtype", "[slow_in_asan]") {
  check_binary("exp_grad", kFloatDTypes, [](double out, double g) { return g * out; });
  check_binary("log_grad", kFloatDTypes, [](double x, double g) { return g / x; });
  check_binary("tanh_grad", kFloatDTypes, [](double out, double g) { return g * (1 - out * out); });
  check_binary("sqrt_grad", kFloatDTypes, [](double out, double g) { return g / (2 * out); });
  check_binary("rsqrt_grad", kFloatDTypes, [](double out, double g) { return -g / 2 * out * out * out; });
  check_binary("sigmoid_grad", kFloatDTypes, [](double out, double g) { return g * out * (1 - out); });
  check_binary("sin_grad", kFloatDTypes, [](double x, double g) { return g * std::cos(x); });
  check_binary("cos_grad", kFloatDTypes, [](double x, double g) { return -g * std::sin(x); });
  check_binary("square_grad", kFloatDTypes, [](double x, double g) { return 2 * g * x; });
  check_binary("abs_grad", kFloatDTypes, [](double x, double g) { return x > 0 ? g : x < 0 ? -g : 0; });
  check_binary("relu_grad", kFloatDTypes, [](double out, double g) { return out > 0 ? g : 0; });
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = tensor({-2, -1, 0, 1, 2, 3}, {6}, dtype), g = tensor({1, 2, 3, 4, 5, 6}, {6}, dtype);
    DenseTensor out = uninitialized({6}, dtype);
    using In = const DenseTensor&;
    call<void(const OpContext&, In, In, const Scalar&, const Scalar&, DenseTensor&)>("clip_grad", dtype, x, g,
                                                                                     Scalar(-1), Scalar(2.5), out);
    check_close(out, {0, 0, 3, 4, 5, 0});
    for (const int y : {0, 1, 2, 3}) {
      call<void(const OpContext&, In, In, const Scalar&, DenseTensor&)>("pow_grad", dtype, x, g, Scalar(y), out);
      std::vector<double> expected;
      for (int i = 0; i < 6; ++i) expected.push_back(y == 0 ? 0 : (i + 1) * y * std::pow(i - 2, y - 1));
      check_close(out, expected);
    }
  }
}

TEST_CASE("comparisons give bools, and NaN is beyond all of them") {
  const DenseTensor x = tensor({1, 2, NAN, 4}, {4}), y = tensor({1, 3, NAN, 3}, {4});
  const std::pair<const char*, std::vector<double>> expected[] = {{"not_equal", {0, 1, 1, 1}},
                                                                  {"less_than", {0, 1, 0, 0}},
                                                                  {"less_equal", {1, 1, 0, 0}},
                                                                  {"greater_than", {0, 0, 0, 1}},
                                                                  {"greater_equal", {1, 0, 0, 1}}};
  for (const auto& [name, result] : expected) {
    INFO(name);
    DenseTensor out = uninitialized({4}, DType::boolean);
    call<Binary>(name, DType::float32, x, y, out);
    CHECK(values(out) == result);
    for (const DType dtype : kAllDTypes) {
      DenseTensor of_any = uninitialized({2}, DType::boolean);
      call<Binary>(name, dtype, tensor({0, 1}, {2}, dtype), tensor({1}, {1}, dtype), of_any);
      const std::string op = name;
      const bool below = op.starts_with("less") || op == "not_equal",
                 alike = op.ends_with("equal") && op != "not_equal";
      CHECK(values(of_any) == std::vector<double>{below ? 1.0 : 0.0, alike ? 1.0 : 0.0});
    }
  }
}

TEST_CASE("logical ops take every dtype as truth values") {
  for (const DType dtype : kAllDTypes) {
    const double yes = dtype == DType::boolean ? 1 : 3;
    const DenseTensor x = tensor({0, 0, yes, yes}, {4}, dtype), y = tensor({0, 1, 0, 1}, {4}, dtype);
    DenseTensor out = uninitialized({4}, DType::boolean);
    call<Binary>("logical_and", dtype, x, y, out);
    CHECK(values(out) == std::vector<double>{0, 0, 0, 1});
    call<Binary>("logical_or", dtype, x, y, out);
    CHECK(values(out) == std::vector<double>{0, 1, 1, 1});
    call<Binary>("logical_xor", dtype, x, y, out);
    CHECK(values(out) == std::vector<double>{0, 1, 1, 0});
    call<Unary>("logical_not", dtype, x, out);
    CHECK(values(out) == std::vector<double>{1, 1, 0, 0});
  }
}

TEST_CASE("bitwise ops work on the bits of integers and on bools") {
  for (const DType dtype : kIntDTypes) {
    const DenseTensor x = tensor({12, 5}, {2}, dtype), y = tensor({10, 3}, {2}, dtype);
    DenseTensor out = uninitialized({2}, dtype);
    call<Binary>("bitwise_and", dtype, x, y, out);
    CHECK(values(out) == std::vector<double>{8, 1});
    call<Binary>("bitwise_or", dtype, x, y, out);
    CHECK(values(out) == std::vector<double>{14, 7});
    call<Binary>("bitwise_xor", dtype, x, y, out);
    CHECK(values(out) == std::vector<double>{6, 6});
    call<Unary>("bitwise_not", dtype, x, out);
    CHECK(values(out) == (dtype == DType::uint8 ? std::vector<double>{243, 250} : std::vector<double>{-13, -6}));
  }
  DenseTensor out = uninitialized({2}, DType::boolean);
  call<Unary>("bitwise_not", DType::boolean, tensor({1, 0}, {2}, DType::boolean), out);
  CHECK(values(out) == std::vector<double>{0, 1});
  call<Binary>("bitwise_xor", DType::boolean, tensor({1, 1}, {2}, DType::boolean), tensor({1, 0}, {2}, DType::boolean),
               out);
  CHECK(values(out) == std::vector<double>{0, 1});
}

TEST_CASE("elementwise_pow takes a power per element") {
  for (const DType dtype : kFloatDTypes) {
    DenseTensor out = uninitialized({3}, dtype);
    call<Binary>("elementwise_pow", dtype, tensor({2, 9, -2}, {3}, dtype), tensor({3, 0.5, 2}, {3}, dtype), out);
    check_close(out, {8, 3, 4});
  }
  DenseTensor out = uninitialized({4}, DType::int32);
  call<Binary>("elementwise_pow", DType::int32, tensor({2, -3, 5, -1}, {4}, DType::int32),
               tensor({10, 3, -1, -5}, {4}, DType::int32), out);
  CHECK(values(out) == std::vector<double>{1024, -27, 0, -1});
}

TEST_CASE("swiglu gates y, or the second half of each row of x") {
  using SwiGLU = void(const OpContext&, const DenseTensor&, const DenseTensor&, DenseTensor&);
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  for (const DType dtype : kFloatDTypes) {
    DenseTensor out = uninitialized({2, 2}, dtype);
    const std::vector<double> expected = {silu(1) * 3, silu(2) * 4, silu(-1) * 5, silu(0.5) * -2};
    call<SwiGLU>("swiglu", dtype, tensor({1, 2, -1, 0.5}, {2, 2}, dtype), tensor({3, 4, 5, -2}, {2, 2}, dtype), out);
    check_close(out, expected, 4);
    call<SwiGLU>("swiglu", dtype, tensor({1, 2, 3, 4, -1, 0.5, 5, -2}, {2, 4}, dtype), DenseTensor(), out);
    check_close(out, expected, 4);
  }
  DenseTensor none = uninitialized({3, 0}, DType::float32);
  call<SwiGLU>("swiglu", DType::float32, none, DenseTensor(), none);
}

TEST_CASE("add_n adds a list, and rounds 16-bit sums once") {
  using AddN = void(const OpContext&, std::span<const DenseTensor>, DenseTensor&);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64}) {
    const std::vector<DenseTensor> list = {arbitrary({1030}, dtype, 1), arbitrary({1030}, dtype, 2),
                                           arbitrary({1030}, dtype, 3)};
    DenseTensor out = uninitialized({1030}, dtype);
    call<AddN>("add_n", dtype, list, out);
    std::vector<double> expected = values(list[0]);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += values(list[1])[i] + values(list[2])[i];
    check_close(out, expected, 0.5);
  }
}

TEST_CASE("equal gives bools") {
  const DenseTensor x = tensor({1, 2, NAN, 4}, {4}), y = tensor({1, 3, NAN, 4}, {4});
  DenseTensor out = uninitialized({4}, DType::boolean);
  call<Binary>("equal", DType::float32, x, y, out);
  CHECK(values(out) == std::vector<double>{1, 0, 0, 1});
}

TEST_CASE("integers divide towards zero and wrap around") {
  constexpr double low = std::numeric_limits<int32_t>::lowest();
  DenseTensor out = uninitialized({4}, DType::int32);
  call<Binary>("divide", DType::int32, tensor({7, -7, low, 5}, {4}, DType::int32),
               tensor({2, 2, -1, 7}, {4}, DType::int32), out);
  CHECK(values(out) == std::vector<double>{3, -3, low, 0});
  call<Binary>("add", DType::int32, tensor({low, 1, 2, 3}, {4}, DType::int32), tensor({-1, 1, 1, 1}, {4}, DType::int32),
               out);
  CHECK(values(out) == std::vector<double>{2147483647, 2, 3, 4});
}

TEST_CASE("an integer division by zero is an error before anything is written") {
  DenseTensor x = tensor({6, 8}, {2}, DType::int64);
  const DenseTensor y = tensor({2, 0}, {2}, DType::int64);
  CHECK_THROWS_WITH(call<Binary>("divide", DType::int64, x, y, x),
                    Catch::Contains("[divide] y is i64[2] and its element 1 is 0"));
  CHECK(values(x) == std::vector<double>{6, 8});
}

TEST_CASE("NaN wins in maximum and minimum") {
  const DenseTensor x = tensor({NAN, 1, 2}, {3}), y = tensor({0, NAN, 3}, {3});
  DenseTensor out = uninitialized({3}, DType::float32);
  call<Binary>("maximum", DType::float32, x, y, out);
  check_close(out, {NAN, NAN, 3});
  call<Binary>("minimum", DType::float32, x, y, out);
  check_close(out, {NAN, NAN, 2});
}

void check_unary(const char* name, const std::vector<double>& inputs, double ulps,
                 const std::function<double(double)>& function) {
  for (const DType dtype : kFloatDTypes) {
    INFO(name << " " << to_string(dtype));
    const DenseTensor x = tensor(inputs, {static_cast<int64_t>(inputs.size())}, dtype);
    DenseTensor out = uninitialized(x.dims(), dtype);
    call<Unary>(name, dtype, x, out);
    std::vector<double> expected;
    for (double value : values(x)) {
      const double exact = function(value);
      expected.push_back(dtype == DType::float64 ? exact : values(tensor({exact}, {}, dtype))[0]);
    }
    check_close(out, expected, ulps);
  }
}

std::vector<double> grid(double low, double high, int count) {
  std::vector<double> result;
  for (int i = 0; i < count; ++i) result.push_back(low + (high - low) * i / (count - 1));
  return result;
}

TEST_CASE("functions of one tensor are accurate to a few roundings") {
  check_unary("exp", grid(-87, 88, 20001), 2, [](double x) { return std::exp(x); });
  check_unary("tanh", grid(-10, 10, 20001), 3, [](double x) { return std::tanh(x); });
  check_unary("sigmoid", grid(-80, 80, 20001), 4,
              [](double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); });
  check_unary("silu", grid(-80, 80, 2001), 5, [](double x) { return x / (1 + std::exp(-x)); });
  check_unary("log", grid(0.01, 80, 2001), 2, [](double x) { return std::log(x); });
  check_unary("sqrt", grid(0, 80, 2001), 1, [](double x) { return std::sqrt(x); });
  check_unary("rsqrt", grid(0.01, 80, 2001), 2, [](double x) { return 1 / std::sqrt(x); });
  check_unary("sin", grid(-10, 10, 2001), 2, [](double x) { return std::sin(x); });
  check_unary("cos", grid(-10, 10, 2001), 2, [](double x) { return std::cos(x); });
  check_unary("square", grid(-3, 3, 101), 1, [](double x) { return x * x; });
  check_unary("abs", grid(-3, 3, 101), 0, [](double x) { return std::abs(x); });
  check_unary("relu", grid(-3, 3, 101), 0, [](double x) { return std::max(x, 0.0); });
}

TEST_CASE("functions keep infinities, NaN and the smallest numbers") {
  const DenseTensor x = tensor({INFINITY, -INFINITY, NAN, -100, 89}, {5});
  DenseTensor out = uninitialized({5}, DType::float32);
  call<Unary>("exp", DType::float32, x, out);
  CHECK(values(out)[0] == INFINITY);
  CHECK(values(out)[1] == 0);
  CHECK(std::isnan(values(out)[2]));
  CHECK(values(out)[3] == Approx(std::exp(-100.0)).epsilon(0.05));  // a subnormal number
  CHECK(values(out)[4] == INFINITY);
  call<Unary>("tanh", DType::float32, x, out);
  check_close(out, {1, -1, NAN, -1, 1});
  call<Unary>("sigmoid", DType::float32, x, out);
  CHECK(values(out)[0] == 1);
  CHECK(values(out)[1] == 0);
  CHECK(std::isnan(values(out)[2]));
  call<Unary>("relu", DType::float32, x, out);
  CHECK(std::isnan(values(out)[2]));
}

TEST_CASE("gelu follows the error function, and the tanh formula when approximate") {
  using Gelu = void(const OpContext&, const DenseTensor&, bool, DenseTensor&);
  const std::vector<double> points = grid(-4, 4, 101);
  const DenseTensor x = tensor(points, {101}, DType::float64);
  DenseTensor out = uninitialized({101}, DType::float64);
  call<Gelu>("gelu", DType::float64, x, false, out);
  for (size_t i = 0; i < points.size(); ++i)
    CHECK(values(out)[i] == Approx(0.5 * points[i] * std::erfc(-points[i] / std::sqrt(2.0))).margin(1e-15));
  call<Gelu>("gelu", DType::float64, x, true, out);
  for (size_t i = 0; i < points.size(); ++i)
    CHECK(values(out)[i] == Approx(0.5 * points[i] * (1 + std::erf(points[i] / std::sqrt(2.0)))).margin(1e-3));
}

TEST_CASE("gelu in float32 and its gradient are within 1e-6 of double, far tails too") {
  using Gelu = void(const OpContext&, const DenseTensor&, bool, DenseTensor&);
  using GeluGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, bool, DenseTensor&);
  const DenseTensor x = tensor(grid(-12.5, 12.5, 4001), {4001}, DType::float32);
  const std::vector<double> points = values(x);  // rounded to float32
  const DenseTensor one = tensor(std::vector<double>(4001, 1), {4001}, DType::float32);
  DenseTensor out = uninitialized({4001}, DType::float32), slope = uninitialized({4001}, DType::float32);
  call<Gelu>("gelu", DType::float32, x, false, out);
  call<GeluGrad>("gelu_grad", DType::float32, x, one, false, slope);
  const std::vector<double> result = values(out), slopes = values(slope);
  for (size_t i = 0; i < points.size(); ++i) {
    const double p = points[i], below = 0.5 * std::erfc(-p / std::sqrt(2.0)),
                 bell = 0.3989422804014327 * std::exp(-0.5 * p * p);
    CHECK(result[i] == Approx(p * below).epsilon(1e-6));
    // The two terms of the gradient nearly cancel about its zero at -0.75.
    CHECK(slopes[i] == Approx(below + p * bell).epsilon(0).margin(1e-6 * (below + std::abs(p) * bell)));
  }
}

TEST_CASE("an element has the same bits however the tensor is cut") {
  const DenseTensor x = arbitrary({1003}, DType::float32);
  for (const char* name : {"exp", "tanh", "sigmoid", "silu", "rsqrt"}) {
    DenseTensor whole = uninitialized({1003}, DType::float32);
    call<Unary>(name, DType::float32, x, whole);
    for (int64_t cut : {1, 3, 17, 500}) {
      const DenseTensor part(x.storage(), {{1003 - cut}, DType::float32}, static_cast<size_t>(cut) * 4);
      DenseTensor out = uninitialized({1003 - cut}, DType::float32);
      call<Unary>(name, DType::float32, part, out);
      CHECK(std::memcmp(out.data<float>(), whole.data<float>() + cut, out.meta().bytes()) == 0);
    }
  }
}

TEST_CASE("elementwise kernels may write over their input") {
  DenseTensor x = tensor({1, 2, 3}, {3});
  call<Binary>("add", DType::float32, x, x, x);
  CHECK(values(x) == std::vector<double>{2, 4, 6});
  call<Unary>("relu", DType::float32, x, x);
  CHECK(values(x) == std::vector<double>{2, 4, 6});
  call<Unary>("assign", DType::float32, x, x);
  CHECK(values(x) == std::vector<double>{2, 4, 6});
}

TEST_CASE("scale, clip and pow compute in the dtype of x") {
  using Scale = void(const OpContext&, const DenseTensor&, const Scalar&, const Scalar&, bool, DenseTensor&);
  using Clip = void(const OpContext&, const DenseTensor&, const Scalar&, const Scalar&, DenseTensor&);
  using Pow = void(const OpContext&, const DenseTensor&, const Scalar&, DenseTensor&);
  for (const DType dtype :
       {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int32, DType::int64}) {
    const DenseTensor x = tensor({-3, 0, 1, 4}, {4}, dtype);
    DenseTensor out = uninitialized({4}, dtype);
    call<Scale>("scale", dtype, x, Scalar(2.0), Scalar(1), true, out);
    CHECK(values(out) == std::vector<double>{-5, 1, 3, 9});
    call<Scale>("scale", dtype, x, Scalar(2), Scalar(1.0), false, out);
    CHECK(values(out) == std::vector<double>{-4, 2, 4, 10});
    call<Clip>("clip", dtype, x, Scalar(-1), Scalar(2), out);
    CHECK(values(out) == std::vector<double>{-1, 0, 1, 2});
    call<Pow>("pow", dtype, x, Scalar(3), out);
    check_close(out, {-27, 0, 1, 64});
  }
  DenseTensor out = uninitialized({3}, DType::int32);
  call<Clip>("clip", DType::int32, tensor({0, 5, 9}, {3}, DType::int32), Scalar(0.5), Scalar(1e300), out);
  CHECK(values(out) == std::vector<double>{1, 5, 9});
  call<Pow>("pow", DType::int32, tensor({1, -1, 5}, {3}, DType::int32), Scalar(-3), out);
  CHECK(values(out) == std::vector<double>{1, -1, 0});
}

TEST_CASE("cast goes from every dtype to every dtype") {
  using Cast = void(const OpContext&, const DenseTensor&, DType, DenseTensor&);
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      const DenseTensor x = tensor({0, 1, 1, 0}, {4}, from);
      DenseTensor out = uninitialized({4}, to);
      call<Cast>("cast", from, x, to, out);
      CHECK(values(out) == std::vector<double>{0, 1, 1, 0});
    }
  }
  DenseTensor out = uninitialized({5}, DType::int32);
  call<Cast>("cast", DType::float32, tensor({-2.7, 2.7, 1e20, -1e20, NAN}, {5}), DType::int32, out);
  CHECK(values(out) == std::vector<double>{-2, 2, 2147483647, -2147483648.0, 0});
}

TEST_CASE("full, full_like and other numbers given as attributes convert as cast does") {
  using Full = void(const OpContext&, const Scalar&, DenseTensor&);
  using FullLike = void(const OpContext&, const DenseTensor&, const Scalar&, DenseTensor&);
  using Cast = void(const OpContext&, const DenseTensor&, DType, DenseTensor&);
  const std::vector<double> numbers = {
      0,      1,      -1,   2.7, -2.7,     255.5,     256,     300,   3e9,  -3e9,
      1e20,   -1e20,  1e40, NAN, INFINITY, -INFINITY, 65519.9, 65520, 1e-8, 1.0 + 0x1p-11 + 0x1p-40,
      0x1p63, -0x1p63};
  const std::vector<int64_t> integers = {
      0, 1, -1, 255, 256, -129, int64_t{1} << 31, int64_t{1} << 40, INT64_MAX, INT64_MIN, (int64_t{1} << 60) + 1};
  for (const DType dtype : kAllDTypes) {
    DenseTensor full = uninitialized({1}, dtype), like = uninitialized({1}, dtype),
                expected = uninitialized({1}, dtype);
    const auto check = [&](const Scalar& number, const DenseTensor& source) {
      call<Full>("full", dtype, number, full);
      call<FullLike>("full_like", dtype, full, number, like);
      call<Cast>("cast", source.dtype(), source, dtype, expected);
      INFO(to_string(dtype) << " of " << number.to<double>());
      CHECK(std::memcmp(full.raw(), expected.raw(), expected.meta().bytes()) == 0);
      CHECK(std::memcmp(like.raw(), expected.raw(), expected.meta().bytes()) == 0);
    };
    for (const double number : numbers) check(number, tensor({number}, {1}, DType::float64));
    for (const int64_t number : integers) {
      DenseTensor source = uninitialized({1}, DType::int64);
      *source.data<int64_t>() = number;
      check(number, source);
    }
  }
  // The other kernels that take numbers use the same function.
  using Scale = void(const OpContext&, const DenseTensor&, const Scalar&, const Scalar&, bool, DenseTensor&);
  DenseTensor out = uninitialized({1}, DType::int32);
  call<Scale>("scale", DType::int32, tensor({1}, {1}, DType::int32), Scalar(1e20), Scalar(NAN), true, out);
  CHECK(values(out)[0] == 2147483647);
}

TEST_CASE("where chooses by condition and broadcasts") {
  using Where = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, DenseTensor&);
  for (const DType dtype : kAllDTypes) {
    const DenseTensor condition = tensor({1, 0, 1}, {3}, DType::boolean);
    DenseTensor out = uninitialized({2, 3}, dtype);
    call<Where>("where", dtype, condition, tensor({1, 0}, {2, 1}, dtype), tensor({0, 1, 1}, {3}, dtype), out);
    CHECK(values(out) == std::vector<double>{1, 1, 1, 0, 1, 0});
    // Long rows of which any argument may be one number for all.
    const Dims row{101}, one{1};
    for (const int broadcast : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const DenseTensor which = arbitrary(broadcast & 1 ? one : row, DType::boolean),
                        x = arbitrary(broadcast & 2 ? one : row, dtype, 2),
                        y = arbitrary(broadcast & 4 ? one : row, dtype, 3);
      DenseTensor chosen = uninitialized(row, dtype);
      call<Where>("where", dtype, which, x, y, chosen);
      const auto at = [](const DenseTensor& tensor, size_t i) { return values(tensor)[tensor.numel() == 1 ? 0 : i]; };
      const std::vector<double> got = values(chosen);
      for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == (at(which, i) != 0 ? at(x, i) : at(y, i)));
    }
  }
}

}  // namespace
}  // namespace shard::testing::elementwise_test

TEST_CASE("a cast from float64 to 16 bits rounds once") {
  // A little over half way between two float16, and exactly half way once it is rounded to float.
  const double over = 1.0 + 0x1p-11 + 0x1p-40;
  const double over_bf16 = -(1.0 + 0x1p-8 + 0x1p-40);
  const shard::Tensor x = shard::Tensor::from_data<double>({over, -over, 1.0 + 0x1p-11, 65504.0, 1e300, 0.0}, {6});
  const auto halves = shard::cast(x, shard::DType::float16).to_vector<shard::float16>();
  const std::vector<float> expected = {
      1.0f + 0x1p-10f, -(1.0f + 0x1p-10f), 1.0f, 65504.0f, std::numeric_limits<float>::infinity(), 0.0f};
  for (size_t i = 0; i < expected.size(); ++i) CHECK(static_cast<float>(halves[i]) == expected[i]);
  const auto brain = shard::cast(shard::Tensor::from_data<double>({over_bf16}, {1}), shard::DType::bfloat16)
                         .to_vector<shard::bfloat16>();
  CHECK(static_cast<float>(brain[0]) == -(1.0f + 0x1p-7f));
}

TEST_CASE("lines of float16 are converted exactly, and rounded to nearest even") {
  using shard::float16;
  constexpr int64_t n = 65536 - 5;  // all numbers but a few NaN, and no whole number of vectors
  shard::Tensor x = shard::empty({n}, shard::DType::float16);
  float16* const all = x.get().value.data<float16>();
  for (int64_t i = 0; i < n; ++i) all[i].bits = static_cast<uint16_t>(i);
  const auto equal = [](float16 a, float16 b) {
    const float p = a, q = b;
    return (p != p && q != q) || a.bits == b.bits;
  };
  for (const float factor : {1.0f, 0.7f, -3.0f, 0x1p-9f, 0x1.004p0f}) {
    INFO(factor);
    const float16 by(factor);
    const auto products =
        shard::multiply(x, shard::full({n}, static_cast<double>(factor), shard::DType::float16)).to_vector<float16>();
    const auto scaled =
        shard::multiply(x, shard::full({}, static_cast<double>(factor), shard::DType::float16)).to_vector<float16>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float16 expected(static_cast<float>(all[i]) * static_cast<float>(by));
      const auto at = static_cast<size_t>(i);
      wrong += !equal(products[at], expected) || !equal(scaled[at], expected);
    }
    CHECK(wrong == 0);
  }
  const auto sums = shard::cumsum(shard::reshape(x, {1, n}), 0).to_vector<float16>();
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i)
    wrong += !equal(sums[static_cast<size_t>(i)], float16(0.0f + static_cast<float>(all[i])));
  CHECK(wrong == 0);
}
