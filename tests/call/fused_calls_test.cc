// Composites whose calls run as one loop have the bits of the calls one after the other.
#include <tbb/global_control.h>
#include <catch2/catch.hpp>

#include <bit>
#include <vector>

#include "shard/autograd/autograd.h"
#include "shard/autograd/grad_mode.h"
#include "shard/call/fused_calls.h"
#include "shard/shard.h"
#include "support/sanitized.h"

namespace fused_calls_test {

using namespace shard;

namespace {

// Sanitizers look at accesses and threads, which are the same in all dtypes of a size: two dtypes are enough for them.
const std::vector<DType> kFloats = test::kSanitized
                                       ? std::vector{DType::float32, DType::bfloat16}
                                       : std::vector{DType::float32, DType::float64, DType::bfloat16, DType::float16};

std::vector<uint64_t> bits(const Tensor& x) {
  std::vector<uint64_t> all;
  for (const double value : cast(x, DType::float64).to_vector<double>()) all.push_back(std::bit_cast<uint64_t>(value));
  return all;
}

Tensor draw(const Dims& dims, DType dtype) { return cast(gaussian(IntArray(dims), 0, 1, 0, DType::float32), dtype); }

struct Shapes {
  Dims x, y, bias;
  bool transpose_x = false, transpose_y = false;
};

}  // namespace

TEST_CASE("fused calls: products with bias and activation") {
  const Shapes all[] = {{{600, 64}, {64, 200}, {200}},
                        {{64, 600}, {200, 64}, {200}, true, true},
                        {{130, 64}, {64, 1500}, {1500}},
                        {{4, 80, 96}, {96, 300}, {300}},
                        {{4, 80, 96}, {4, 96, 300}, {300}}};
  for (const size_t threads : {1, 4}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    for (const Shapes& shapes : all) {
      for (const DType dtype : kFloats) {
        const Tensor x = draw(shapes.x, dtype), y = draw(shapes.y, dtype), bias = draw(shapes.bias, dtype);
        const Tensor sum = add(matmul(x, y, shapes.transpose_x, shapes.transpose_y), bias);
        INFO(to_string(shapes.x) << " by " << to_string(shapes.y) << " " << to_string(dtype));
        const auto fused = [&](const char* activation) {
          return fused_gemm_epilogue(x, y, bias, shapes.transpose_x, shapes.transpose_y, activation);
        };
        CHECK(bits(fused("none")) == bits(sum));
        CHECK(bits(fused("relu")) == bits(relu(sum)));
        CHECK(bits(fused("gelu")) == bits(gelu(sum, true)));
      }
    }
  }
}

TEST_CASE("fused calls: sums without a product, and addmm") {
  for (const DType dtype : kFloats) {
    INFO(to_string(dtype));
    const Tensor x = draw({300, 500}, dtype), bias = draw({500}, dtype), residual = draw({300, 500}, dtype);
    CHECK(bits(fused_bias_act(x, bias, {}, {}, {}, "gelu")) == bits(gelu(add(x, bias))));
    CHECK(bits(fused_bias_act(x, bias, {}, {}, {}, "silu")) == bits(silu(add(x, bias))));
    const auto [out, sum] = fused_bias_residual_layernorm(x, bias, residual, {}, {}, 1e-5f, 0.7f, 1, 0, 0, 0, 0);
    const Tensor expected = add(add(x, bias), scale(residual, 0.7f));
    CHECK(bits(sum) == bits(expected));
    CHECK(bits(out) == bits(layer_norm(expected, {}, {}, 1e-5f, 1)));
    const Tensor factor = draw({64, 500}, dtype), left = draw({300, 64}, dtype), column = draw({300, 1}, dtype);
    for (const Tensor& input : {residual, bias, column}) {
      CHECK(bits(addmm(input, left, factor, 0.5f, 2)) == bits(add(scale(input, 0.5f), scale(matmul(left, factor), 2))));
    }
  }
}

TEST_CASE("fused calls: arguments stay as they were, and recorded calls have gradients") {
  const Tensor x = draw({600, 64}, DType::float32), y = draw({64, 200}, DType::float32),
               bias = draw({200}, DType::float32);
  const std::vector<uint64_t> before = bits(x);
  const Tensor plain = fused_gemm_epilogue(x, y, bias, false, false, "relu");
  CHECK(bits(x) == before);
  x.set_requires_grad(true);
  const Tensor recorded = fused_gemm_epilogue(x, y, bias, false, false, "relu");
  CHECK(bits(recorded.detach()) == bits(plain));
  sum(recorded).backward();
  CHECK(x.grad().dims() == x.dims());
  const NoGrad off;
  CHECK(bits(fused_gemm_epilogue(x, y, bias, false, false, "relu")) == bits(plain));
}

TEST_CASE("fused calls: errors are those of the calls, and leave the thread as it was") {
  const Tensor x = draw({600, 64}, DType::float32), y = draw({60, 200}, DType::float32),
               bias = draw({200}, DType::float32);
  const auto code = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) { return error.code(); }
    return ErrorCode::internal;
  };
  CHECK(code([&] { fused_gemm_epilogue(x, y, bias, false, false, "relu"); }) == ErrorCode::shape_mismatch);
  CHECK(code([&] { fused_gemm_epilogue(x, x, full({600}, 1), false, true, "tanh"); }) == ErrorCode::invalid_argument);
  CHECK(code([&] { fused_bias_act(x, bias, {}, {}, {}, "relu"); }) == ErrorCode::shape_mismatch);
  CHECK(add(bias, bias).to_vector<float>().size() == 200);
}

}  // namespace fused_calls_test
