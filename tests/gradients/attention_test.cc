// Gradients of the ops of attention.yaml against central differences, of the first order and of higher ones.
#include "gradients/central_difference.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "gradients/higher_order.h"
#include "shard/call/dense_call.h"
#include "shard/shard.h"

namespace shard::test::attention_test {
namespace {

using Tensors = std::vector<Tensor>;

Tensor i32(const std::vector<int32_t>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
}

/// A call whose first inputs are q, k and v, and its gradient by the kernel.
struct Case {
  std::string name;
  ForwardFunction forward;
  Tensors inputs;
  std::vector<bool> wanted;
};

void add_unpadded(std::vector<Case>& cases) {
  const auto add = [&](const char* name, int64_t heads, int64_t kv_heads, const Dims& mask, bool causal, float dropout,
                       bool is_test) {
    Tensors inputs = {random_values({7, heads, 2}, 1, -2, 2), random_values({8, kv_heads, 2}, 2, -2, 2),
                      random_values({8, kv_heads, 3}, 3)};
    const Tensor added = mask.rank() == 0 ? Tensor() : random_values(mask, 4);
    cases.push_back({name,
                     [=](const Tensors& in) {
                       const Tensor seed = Tensor::from_data<int64_t>({3, 5}, {2});
                       return std::get<0>(flash_attn_unpadded(in[0], in[1], in[2], i32({0, 3, 3, 7}), i32({0, 5, 6, 8}),
                                                              seed, added, 4, 5, 0.6f, dropout, causal, false,
                                                              is_test));
                     },
                     inputs,
                     {true, true, true}});
  };
  add("packed", 1, 1, {}, false, 0, false);
  add("packed, causal with mask", 2, 2, {3, 1, 4, 5}, true, 0, false);
  add("packed, mask of heads, heads in groups", 4, 2, {1, 4, 1, 5}, false, 0, false);
  add("packed, dropout", 2, 1, {}, true, 0.5f, false);
  add("packed, dropout, test", 2, 1, {}, false, 0.5f, true);
}

void add_efficient(std::vector<Case>& cases) {
  const auto add = [&](const char* name, const Dims& bias, bool packed, const Tensor& diagonals, const Tensor& lengths,
                       bool causal, double dropout) {
    const int64_t batch = packed ? 1 : 2;
    Tensors inputs = {random_values({batch, 5, 4, 2}, 5, -2, 2), random_values({batch, 6, 2, 2}, 6, -2, 2),
                      random_values({batch, 6, 2, 3}, 7)};
    if (bias.rank() != 0) inputs.push_back(random_values(bias, 8));
    const Tensor of_q = packed ? i32({0, 2, 5}) : Tensor(), of_k = packed ? i32({0, 4, 6}) : Tensor();
    cases.push_back({name,
                     [=](const Tensors& in) {
                       call::thread_generator().set_seed(9);
                       return std::get<0>(memory_efficient_attention(
                           in[0], in[1], in[2], in.size() > 3 ? in[3] : Tensor(), of_q, of_k, diagonals, lengths, 3, 4,
                           causal, dropout, dropout > 0 ? 0.8f : -1, false));
                     },
                     inputs, std::vector<bool>(inputs.size(), true)});
  };
  add("batches", {}, false, {}, {}, false, 0);
  add("batches, causal, diagonals, lengths", {}, false, i32({1, -2}), i32({4, 6}), true, 0);
  add("bias of all", {2, 4, 5, 6}, false, {}, {}, true, 0);
  add("bias of queries and keys", {5, 6}, false, {}, {}, false, 0);
  add("bias of batches and keys", {2, 1, 1, 6}, false, {}, i32({3, 0}), false, 0);
  add("bias of heads, dropout", {1, 4, 5, 6}, false, {}, {}, false, 0.5);
  add("packed in a batch", {}, true, {}, {}, true, 0);
  add("packed in a batch, diagonals, lengths, dropout", {}, true, i32({2, 0}), i32({3, 2}), true, 0.5);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_unpadded(cases);
  add_efficient(cases);
  return cases;
}

/// The gradients of the kernel, which calls that are not recorded use.
GradientFunction kernel_gradient(const Case& one) {
  return [=](const Tensors& at, const Tensor& out_grad) {
    Tensors inputs;
    for (const Tensor& x : at) inputs.push_back(x.detach().set_requires_grad(true));
    return grad({one.forward(inputs)}, inputs, {out_grad});
  };
}

TEST_CASE("gradients of attention with lengths are those of central differences", "[slow_in_asan]") {
  for (const Case& each : all_cases()) {
    INFO(each.name);
    CHECK(gradient_difference(each.forward, kernel_gradient(each), each.inputs) == "");
    for (const int order : {1, 2}) {
      INFO("recorded, order " << order);
      CHECK(higher_order_difference(each.forward, each.inputs, each.wanted, order) == "");
    }
  }
}

TEST_CASE("gradients of attention with lengths, of several blocks of queries and 16 bits") {
  const Tensor q = random_values({1, 300, 2, 3}, 11), k = random_values({1, 150, 1, 3}, 12),
               bias = random_values({300, 150}, 13);
  const auto run = [&](bool recorded, DType dtype) {
    Tensors in;
    for (const Tensor& x : {q, k, bias}) in.push_back(cast(x, dtype).detach().set_requires_grad(true));
    const Tensor out =
        std::get<0>(memory_efficient_attention(in[0], in[1], in[1], in[2], {}, {}, {}, {}, 0, 0, true, 0, -1, false));
    std::vector<std::vector<double>> all;
    for (const Tensor& each : grad({out}, in, {full_like(out.detach(), 0.5)}, {.create_graph = recorded})) {
      CHECK(each.dtype() == dtype);
      all.push_back(cast(each.detach(), DType::float64).to_vector<double>());
    }
    return all;
  };
  const std::vector<std::vector<double>> expected = run(true, DType::float64);
  // The largest difference of each gradient, relative to its largest element.
  const auto check = [&](DType dtype, double tolerance) {
    INFO(to_string(dtype));
    const std::vector<std::vector<double>> other = run(false, dtype);
    for (size_t k = 0; k < expected.size(); ++k) {
      double difference = 0, largest = 0;
      REQUIRE(other[k].size() == expected[k].size());
      for (size_t i = 0; i < other[k].size(); ++i) {
        difference = std::max(difference, std::abs(other[k][i] - expected[k][i]));
        largest = std::max(largest, std::abs(expected[k][i]));
      }
      INFO("gradient " << k << ": " << difference << " of " << largest);
      CHECK(difference < tolerance * largest);
    }
  };
  check(DType::float64, 1e-12);
  check(DType::float32, 1e-5);
  check(DType::bfloat16, 0.03);
}

}  // namespace
}  // namespace shard::test::attention_test
