// Consecutive elementwise ops run as one loop, with the same bits.
#include <catch2/catch.hpp>

#include <bit>
#include <set>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/program/ir/op_table.h"
#include "shard/shard.h"
#include "shard/testing/op_cases.h"
#include "support/tensors.h"

namespace fusion_test {

using namespace shard;
using namespace shard::test;

namespace {

Tensor ramp(const Dims& dims, float step, float start) {
  std::vector<float> values(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = start + step * static_cast<float>(i % 977);
  return Tensor::from_data(values, dims);
}

struct Outcome {
  size_t fused = 0;
  std::vector<std::vector<uint32_t>> outputs, inputs;  // bits: NaNs are compared, too
  bool operator==(const Outcome& other) const { return outputs == other.outputs && inputs == other.inputs; }
};

std::vector<std::vector<uint32_t>> values(const Tensors& tensors) {
  std::vector<std::vector<uint32_t>> all;
  for (const Tensor& tensor : tensors) {
    std::vector<uint32_t>& bits = all.emplace_back();
    for (const float value : cast(tensor, DType::float32).to_vector<float>())
      bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return all;
}

/// Runs the captured function twice on copies of `inputs`.
Outcome run(const program::Function& function, const Tensors& inputs, bool fuse) {
  Tensors copies;
  for (const Tensor& input : inputs) copies.push_back(assign(input));
  const program::Trace trace = program::trace(function, copies);
  const program::Program program = fuse ? program::fuse_loops(trace.program) : trace.program;
  program.verify();
  program::Executor executor(program, {copies, {}});
  executor.run({copies, {}});
  const Tensors outputs = executor.run({copies, {}});
  return {executor.fused_ops(), values(outputs), values(copies)};
}

/// The number of ops that run in loops; checks that fusion changes no bit.
size_t fused(const program::Function& function, const Tensors& inputs) {
  const Outcome loops = run(function, inputs, true), alone = run(function, inputs, false);
  CHECK(alone.fused == 0);
  CHECK(loops == alone);
  Tensors copies;
  for (const Tensor& input : inputs) copies.push_back(assign(input));
  function(copies);
  const Tensors outputs = function(copies);
  CHECK(values(outputs) == loops.outputs);
  CHECK(values(copies) == loops.inputs);
  return loops.fused;
}

}  // namespace

TEST_CASE("fusion: a chain of elementwise ops is one loop, for sizes that blocks do not divide") {
  const auto chain = [](const Tensors& in) -> Tensors {
    const Tensor a = add(in[0], in[1]);
    return {relu(multiply(a, subtract(a, in[1])))};
  };
  for (const Dims& dims : {Dims{8192}, Dims{8193}, Dims{3, 4099}, Dims{130, 2, 77}, Dims{100000}}) {
    CHECK(fused(chain, {ramp(dims, 0.25f, -100), ramp(dims, -0.5f, 3)}) == 4);
  }
  CHECK(fused(chain, {ramp({100}, 0.25f, -100), ramp({100}, -0.5f, 3)}) == 0);
}

TEST_CASE("fusion: a bias, of any rank with leading ones, and numbers are repeated in each row") {
  const auto biased = [](const Tensors& in) -> Tensors { return {gelu(multiply(add(in[0], in[1]), in[2]), true)}; };
  CHECK(fused(biased, {ramp({200, 64}, 0.01f, -3), ramp({64}, 0.5f, -9), ramp({1}, 0, 0.5f)}) == 3);
  CHECK(fused(biased, {ramp({5, 40, 64}, 0.01f, -3), ramp({1, 1, 64}, 0.5f, -9), ramp({1, 1, 1}, 0, 0.5f)}) == 3);
  CHECK(fused(biased, {ramp({50, 4, 64}, 0.01f, -3), ramp({4, 64}, 0.5f, -9), ramp({1, 4, 64}, 0, 0.5f)}) == 3);
  // Broadcast along other dims than the first, or two broadcast in different ways: not in one loop.
  CHECK(fused(biased, {ramp({200, 64}, 0.01f, -3), ramp({200, 1}, 0.5f, -9), ramp({1}, 0, 0.5f)}) == 2);
  CHECK(fused(biased, {ramp({50, 4, 64}, 0.01f, -3), ramp({64}, 0.5f, -9), ramp({4, 64}, 0, 0.5f)}) == 2);
}

TEST_CASE("fusion: in-place ops, views and other dtypes keep their order") {
  CHECK(fused(
            [](const Tensors& in) -> Tensors {
              Tensor x = in[0];
              add_(x, in[1]);  // writes an input
              const Tensor wide = cast(x, DType::float64);
              scale_(x, Scalar(2), Scalar(1), true);
              const Tensor view = reshape(x, {20000});
              return {multiply(view, view), cast(wide, DType::float32), x};
            },
            {ramp({100, 200}, 0.25f, -100), ramp({200}, -0.5f, 3)}) >= 4);
  // The sum between reads what the loop before has written, all of it.
  fused(
      [](const Tensors& in) -> Tensors {
        const Tensor y = relu(add(in[0], in[1]));
        return {subtract(multiply(y, y), sum(y, {0}, true))};
      },
      {ramp({100, 200}, 0.25f, -100), ramp({200}, -0.5f, 3)});
}

TEST_CASE("fusion: a loop of arithmetic is the epilogue of the product before it") {
  const Tensor x = ramp({300, 64}, 0.001f, -0.4f), w = ramp({64, 200}, 0.002f, -0.9f), bias = ramp({200}, 0.1f, -3),
               residual = ramp({300, 200}, 0.01f, -4);
  const auto linear = [](const Tensors& in) -> Tensors { return {add(in[3], relu(add(matmul(in[0], in[1]), in[2])))}; };
  CHECK(fused(linear, {x, w, bias, residual}) == 4);
  CHECK(fused(linear, {ramp({700, 64}, 0.001f, -0.4f), ramp({64, 1500}, 0.002f, -0.9f), ramp({1500}, 0.1f, -3),
                       ramp({700, 1500}, 0.01f, -4)}) == 4);  // blocks of columns
  CHECK(fused(linear, {ramp({6, 100, 64}, 0.001f, -0.4f), ramp({6, 64, 90}, 0.002f, -0.9f), ramp({90}, 0.1f, -3),
                       ramp({6, 100, 90}, 0.01f, -4)}) == 4);
  CHECK(to_text(program::fuse_loops(program::trace(linear, {x, w, bias, residual}).program))
            .find("add(x: %5, y: %3) with the one before") != std::string::npos);
  // Functions, and 16 bits, gain nothing by it: the loop comes after the product.
  CHECK(fused([](const Tensors& in) -> Tensors { return {gelu(add(matmul(in[0], in[1]), in[2]))}; }, {x, w, bias}) ==
        2);
  Tensors half;
  for (const Tensor& each : {x, w, bias, residual}) half.push_back(cast(each, DType::bfloat16));
  CHECK(fused(linear, half) == 3);
}

TEST_CASE("fusion: a loop that a product cannot be divided with comes after it") {
  // It would write what the product still reads.
  const auto writes = [](const Tensors& in) -> Tensors {
    Tensor x = in[0];
    add_(x, matmul(x, in[1]));
    return {x};
  };
  CHECK(fused(writes, {ramp({200, 200}, 0.001f, -0.4f), ramp({200, 200}, 0.002f, -0.9f)}) == 0);
  // Rows of the loop are longer than lines of the product.
  const auto rows = [](const Tensors& in) -> Tensors { return {relu(add(matmul(in[0], in[1]), in[2]))}; };
  CHECK(fused(rows, {ramp({50, 4, 32}, 0.001f, -0.4f), ramp({32, 64}, 0.002f, -0.9f), ramp({4, 64}, 0.1f, -3)}) == 2);
  CHECK(fused(rows, {ramp({50, 4, 32}, 0.001f, -0.4f), ramp({32, 64}, 0.002f, -0.9f), ramp({64}, 0.1f, -3)}) == 3);
}

TEST_CASE("fusion: shards on a mesh, and gradients, are those of eager calls") {
  run_ranks(4, [](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    const auto function = [](const Tensors& in) -> Tensors { return {tanh(multiply(add(in[0], in[1]), in[0]))}; };
    Tensors grads[2];
    for (const bool use_capture : {false, true}) {
      const Tensor x = distribute(ramp({301, 210}, 0.001f, -1), DistSpec::parse(mesh, "a, b")).set_requires_grad(true);
      const Tensor bias = distribute(ramp({210}, 0.01f, -1), DistSpec::parse(mesh, "b")).set_requires_grad(true);
      CapturedFunction captured(function, {});
      const Tensor out = use_capture ? captured({x, bias})[0] : function({x, bias})[0];
      sum(out, {}, false).backward();
      grads[use_capture] = {out.detach(), x.grad(), bias.grad()};
    }
    for (size_t i = 0; i < 3; ++i)
      check(full_tensor(grads[0][i]).to_vector<float>() == full_tensor(grads[1][i]).to_vector<float>(),
            "tensor " + std::to_string(i));
  });
}

TEST_CASE("fusion: every pointwise op of the library has the same bits in blocks", "[slow_in_asan][slow_in_tsan]") {
  std::set<std::string_view> tried;
  for (const testing::OpCase& each : testing::op_cases()) {
    const bool inplace = each.op.ends_with('_');
    const OpEntry* const entry = OpTable::instance().find(inplace ? each.op.substr(0, each.op.size() - 1) : each.op);
    if (entry == nullptr || !entry->op->pointwise) continue;
    const auto copy = [](const Tensors& in) {
      Tensors copies;
      for (const Tensor& x : in) copies.push_back(assign(x));
      return copies;
    };
    for (const DType dtype : each.dtypes) {
      testing::Draw draw(7, dtype, {130, 131});
      const testing::CaseCall call = each.make(draw);
      Tensors inputs;
      for (const testing::CaseInput& input : call.inputs)
        inputs.push_back(cast(scale(ramp(input.dims, 1, 0), 0.01, static_cast<double>(input.low)), input.dtype));
      const auto function = [&](const Tensors& in) {
        Tensors copies = copy(in);
        return call.run(copies);
      };
      INFO(each.op << " " << each.name << " " << to_string(dtype));
      const Outcome loops = run(function, inputs, true);
      CHECK(loops == run(function, inputs, false));
      if (loops.fused > run(copy, inputs, true).fused) tried.insert(entry->op->name);  // more than the copies alone
    }
  }
  CHECK(tried.size() > 40);
}

}  // namespace fusion_test
