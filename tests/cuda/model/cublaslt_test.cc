// What the library asks of cuBLASLt, as the model of it counts: searches for algorithms, products, epilogues.
#include <cublasLt.h>

#include "../epilogue_case.h"
#include "access.h"
#include "shard/kernels/cuda/loop_collector.h"

namespace cublaslt_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Calls of cuBLASLt, and launches of kernels.
struct Counts {
  int products, epilogues;
  size_t kernels;
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& to, const Counts& counts) {
  return to << counts.products << " products, " << counts.epilogues << " with an epilogue, " << counts.kernels
            << " kernels";
}

void wait(Device device) { backend_of(device).synchronize(device.index); }

/// Of one run of the fused program.
Counts count(Device device, const program::Function& function, const Tensors& inputs) {
  FusedProgram program(function, inputs);
  wait(device);
  cuda_host::begin_log();
  const cuda_host::BlasCalls before = cuda_host::blas_calls();
  program.run();
  wait(device);
  const cuda_host::BlasCalls after = cuda_host::blas_calls();
  return {after.products - before.products, after.epilogues - before.epilogues, cuda_host::end_log().size()};
}

Tensors layer(Device device, DType dtype) {
  return on_device(device, {drawn({6, 40}, dtype, 1), drawn({40, 24}, dtype, 2), drawn({24}, dtype, 3)});
}

}  // namespace

// One test case: each has to find out whether there is a compiler, which takes a second.
TEST_CASE("epilogues: a product and what follows are one call of cuBLASLt, which is asked for an algorithm once") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    INFO(to_string(dtype));
    const Tensors in = layer(*device, dtype);
    CHECK(count(*device, Following{}, in) == Counts{1, 1, 0});
    CHECK(count(*device, Following{.relu = true}, in) == Counts{1, 0, 1});
    CHECK(count(*device, Following{.bias = false, .gelu = true}, in) == Counts{1, 0, 1});
    const UnderPolicy fastest(AlgorithmPolicy::fastest);
    if (size_of(dtype) != 2) continue;
    CHECK(count(*device, Following{.relu = true}, in) == Counts{1, 1, 0});
    CHECK(count(*device, Following{.gelu = true}, in) == Counts{1, 1, 0});
    CHECK(count(*device, Following{.bias = false, .relu = true}, in) == Counts{1, 1, 0});
    CHECK(count(*device, Following{.bias = false, .gelu = true}, in) == Counts{1, 1, 0});
  }
  const Tensors half = layer(*device, DType::bfloat16);
  const auto fused = [&](const program::Function& function, const Tensors& in) {
    return FusedProgram(function, in).fused_ops();
  };
  const auto gelu_alone = [](const Tensors& in) -> Tensors { return {gelu(matmul(in[0], in[1]))}; };
  CHECK(fused(Following{.bias = false, .relu = true}, half) == 0);
  const UnderPolicy fastest(AlgorithmPolicy::fastest);
  CHECK(fused(Following{.bias = false, .relu = true}, half) == 2);
  CHECK(fused(Following{.bias = false, .gelu = true}, half) == 2);
  CHECK(fused(gelu_alone, half) == 0);
  CHECK(fused(Following{.bias = false, .relu = true}, layer(*device, DType::float32)) == 0);
  CHECK(count(
            *device, [](const Tensors& in) -> Tensors { return {addmm(in[2], in[0], in[1], 1, 1)}; }, half) ==
        Counts{1, 1, 0});
  const auto in_place = [](const Tensors& in) -> Tensors {
    Tensor out = matmul(in[0], in[1]);
    return {relu_(add_(out, in[2]))};
  };
  CHECK(count(*device, in_place, half) == Counts{1, 1, 0});

  SECTION("other products are followed by a loop") {
    const auto product_too = [](const Tensors& in) -> Tensors {
      const Tensor product = matmul(in[0], in[1]);
      return {product, add(product, in[2])};
    };
    CHECK(count(*device, product_too, half) == Counts{1, 0, 1});
    // Where there is no algorithm with an epilogue, or it is refused. No other test has these shapes, whose algorithms are not known yet.
    int64_t rows = 4;
    for (const auto& [of_searches, of_products] : {std::pair(CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_SUCCESS),
                                                   std::pair(CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_SUCCESS),
                                                   std::pair(CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED),
                                                   std::pair(CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE),
                                                   std::pair(CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_ARCH_MISMATCH)}) {
      INFO("searches " << of_searches << ", products " << of_products);
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        const Tensors in = {drawn({++rows, 13}, dtype, 1), drawn({13, 11}, dtype, 2), drawn({11}, dtype, 3)};
        {
          const cuda_host::NoEpilogues none(of_searches, of_products);
          CHECK(count(*device, Following{}, on_device(*device, in)) == Counts{1, 0, 1});
          require_equal(*device, Following{}, in);
        }
        CHECK(count(*device, Following{}, on_device(*device, in)) == Counts{1, 0, 1});  // it is not asked again
      }
    }
  }

  SECTION("algorithms are kept") {
    const auto searches = [](const auto& run) {
      const int before = cuda_host::blas_calls().heuristics;
      run();
      return cuda_host::blas_calls().heuristics - before;
    };
    const auto inputs = [&](DType dtype, int64_t rows) {
      return on_device(*device, {drawn({2, rows, 19}, dtype, 1), drawn({2, 19, 9}, dtype, 2), drawn({9}, dtype, 3)});
    };
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      INFO(to_string(dtype));
      const Tensors in = inputs(dtype, 7), again = inputs(dtype, 7), other = inputs(dtype, 6);
      const auto multiply = [&](const Tensors& from) { matmul(from[0], from[1]); };
      CHECK(searches([&] { multiply(in); }) == 1);
      CHECK(searches([&] { multiply(in); }) == 0);
      CHECK(searches([&] { multiply(again); }) == 0);
      CHECK(searches([&] { multiply(other); }) == 1);
      const auto run = [&](const Tensors& from) { FusedProgram(Following{}, from).run(); };
      // float32 takes the algorithm of the product alone, which is known.
      CHECK(searches([&] { run(in); }) == 1);
      CHECK(searches([&] { run(again); }) == 0);
      FusedProgram program(Following{}, again);
      CHECK(searches([&] { program.run(), program.run(), program.run(); }) == 0);
    }
    // Whether buffers are aligned to 256 as those of eager calls, to 64 as those of programs, or to 16.
    const DenseTensor many = copy_to(*device, random_tensor({1024}, DType::float32, 1));
    const size_t first = 256 - reinterpret_cast<uintptr_t>(many.raw()) % 256;
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      INFO(to_string(dtype));
      const auto part = [&](const Dims& dims, size_t offset) {
        return DenseTensor(many.storage(), {dims, dtype}, first + offset);
      };
      const auto multiply = [&](size_t offset, size_t out_offset) {
        const DenseTensor out = part({5, 4}, 1024 + offset);
        return cuda::run_product({"matmul", part({5, 7}, offset), part({7, 4}, 512 + offset), false, false, out},
                                 {.bias = part({4}, 2048 + offset).raw()}, static_cast<char*>(out.raw()) + out_offset);
      };
      CHECK(searches([&] { CHECK(multiply(0, 0)); }) == (dtype == DType::float32 ? 2 : 1));
      for (const size_t offset : {64, 16, 128})
        CHECK(searches([&] { CHECK(multiply(offset, 64 - offset % 64)); }) == 0);
      CHECK(searches([&] { CHECK(!multiply(0, 4)); }) == 0);
    }
    wait(*device);
  }
}

namespace {

/// A loop behind a product of [8, 8] matrices, of which nothing else reads the product.
struct LedLoop {
  cuda::detail::LoopCollector loop;
  DenseTensor x, y, product, sum, out, row;

  LedLoop(Device device, DType dtype) : loop{device.index} {
    const auto make = [&](const Dims& dims) { return copy_to(device, random_tensor(dims, dtype, 1)); };
    x = make({8, 8}), y = make({8, 8}), product = make({8, 8}), sum = make({8, 8}), out = make({8, 8}), row = make({8});
    loop.product = cuda::ProductCall{"matmul", x, y, false, false, product};
    loop.count = product.numel();
    loop.dropped = {product.raw()};
  }
  LedLoop& with(std::string_view formulas, std::string_view name, std::vector<const DenseTensor*> inputs,
                const DenseTensor& result) {
    const cuda::LoopCall call{.formulas = formulas, .name = name, .inputs = inputs, .out = &result};
    loop.append(call, *cuda::detail::places_of(call));
    return *this;
  }
  LedLoop& add(const DenseTensor& bias, const DenseTensor& result) {
    return with("basic", "Add", {&product, &bias}, result);
  }
  LedLoop& relu(const DenseTensor& from, const DenseTensor& result) { return with("basic", "Relu", {&from}, result); }
  LedLoop& drop(const DenseTensor& result) {
    loop.dropped.push_back(result.raw());
    return *this;
  }
  /// How many calls the product does not take.
  size_t left() {
    loop.issue_product();
    return loop.calls.size();
  }
};

}  // namespace

TEST_CASE("epilogues: a product takes what saves a pass over memory, and what nothing else needs") {
  const auto device = cuda_device();
  if (!device) return;
  // With a compiler, which another test of this process may have asked for before, the rest of a loop is one pass.
  const RuntimeCompiler compiler("probe");
  const size_t whole = cuda::compiles_loops(device->index) ? 2 : 1;
  std::optional<UnderPolicy> fastest(AlgorithmPolicy::fastest);
  const auto half = [&] { return LedLoop(*device, DType::bfloat16); };
  const auto left = [](LedLoop loop, const auto& add_calls) {
    add_calls(loop);
    return loop.left();
  };
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.sum).relu(l.sum, l.out).drop(l.sum); }) == 0);
  CHECK(left(half(), [](LedLoop& l) { l.with("basic", "Add", {&l.row, &l.product}, l.out); }) == 0);
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.product).relu(l.product, l.product); }) == 0);
  CHECK(left(half(), [](LedLoop& l) { l.with("gates", "GeluTanh", {&l.product}, l.out); }) == 0);
  CHECK(left(half(), [](LedLoop& l) { l.with("gates", "Gelu", {&l.product}, l.out); }) == 1);
  // The sum is needed, or the rest of the loop is a pass anyway.
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.sum).relu(l.sum, l.out); }) == 1);
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.sum).with("basic", "Tanh", {&l.sum}, l.out).drop(l.sum); }) ==
        whole);
  // The product is needed.
  CHECK(left(half(), [](LedLoop& l) { l.loop.dropped.clear(), l.add(l.row, l.out); }) == 1);
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.sum).add(l.row, l.out); }) == 2);
  CHECK(left(half(), [](LedLoop& l) { l.add(l.product, l.out); }) == 1);
  // It would write what it reads.
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.x); }) == 1);
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.y); }) == 1);
  // Not a bias that cuBLASLt takes: a column, other lengths, an odd element, another dtype.
  const auto biased = [&](const DenseTensor& bias) { return left(half(), [&](LedLoop& l) { l.add(bias, l.out); }); };
  const DenseTensor many = copy_to(*device, random_tensor({64}, DType::bfloat16, 1));
  const auto part = [&](const Dims& dims, size_t offset, DType dtype = DType::bfloat16) {
    return DenseTensor(many.storage(), {dims, dtype}, offset);
  };
  CHECK(biased(part({1, 8}, 16)) == 0);
  CHECK(biased(part({8, 1}, 0)) == 1);
  CHECK(biased(part({8, 8}, 0)) == 1);
  CHECK(biased(part({}, 0)) == 1);
  CHECK(biased(part({8}, 2)) == 1);
  CHECK(biased(part({8}, 8)) == 1);
  CHECK(biased(part({8}, 0, DType::float16)) == 1);
  // Activations of float32 would not have the bits.
  const auto single = [&] { return LedLoop(*device, DType::float32); };
  CHECK(left(single(), [](LedLoop& l) { l.add(l.row, l.out); }) == 0);
  CHECK(left(single(), [](LedLoop& l) { l.relu(l.product, l.out); }) == 1);
  CHECK(left(single(), [](LedLoop& l) { l.add(l.row, l.sum).relu(l.sum, l.out).drop(l.sum); }) == whole);
  // Those of 16 bits make something else of NaN and infinity.
  fastest.reset();
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.out); }) == 0);
  CHECK(left(half(), [](LedLoop& l) { l.relu(l.product, l.out); }) == 1);
  CHECK(left(half(), [](LedLoop& l) { l.with("gates", "GeluTanh", {&l.product}, l.out); }) == 1);
  CHECK(left(half(), [](LedLoop& l) { l.add(l.row, l.sum).relu(l.sum, l.out).drop(l.sum); }) == whole);
  wait(*device);
}

TEST_CASE("cuBLASLt of the model makes 0 of NaN by relu, and NaN of -infinity by gelu, as devices may") {
  const auto device = cuda_device();
  if (!device) return;
  const Tensors in = on_device(
      *device, {cast(Tensor::from_data(std::vector<float>{std::nanf(""), -INFINITY}, {2, 1}), DType::bfloat16),
                cast(Tensor::from_data(std::vector<float>{1}, {1, 1}), DType::bfloat16)});
  const auto results = [&](cuda::Activation activation) {
    const DenseTensor out = DenseTensor::allocate(*device, {{2, 1}, DType::bfloat16});
    CHECK(cuda::run_product({"matmul", in[0].get().value, in[1].get().value, false, false, out},
                            {.activation = activation}, out.raw()));
    return cast(Tensor(copy_to(kCpu, out)), DType::float32).to_vector<float>();
  };
  CHECK(results(cuda::Activation::relu) == std::vector<float>{0, 0});
  CHECK(std::isnan(results(cuda::Activation::gelu_tanh)[1]));
}

TEST_CASE("cuBLASLt of the model refuses epilogues that the library does not document") {
  const auto device = cuda_device();
  if (!device) return;
  cublasLtMatmulDesc_t operation = nullptr;
  REQUIRE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  const auto set = [&](auto what, const auto& value) {
    return cublasLtMatmulDescSetAttribute(operation, what, &value, sizeof(value));
  };
  CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_GELU_BIAS}) == CUBLAS_STATUS_SUCCESS);
  CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint64_t{CUBLASLT_EPILOGUE_BIAS}) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_GELU}) ==
        CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulDescDestroy(operation);

  // The bias has an element for each column of ours, which is a row of cuBLASLt's matrix.
  const auto multiply = [&](int64_t elements) {
    const Tensors in = on_device(*device, {drawn({5, 8}, DType::float32, 1), drawn({8, 64}, DType::float32, 2),
                                           drawn({elements}, DType::float32, 3)});
    DenseTensor out = DenseTensor::allocate(*device, {{5, 64}, DType::float32});
    const cuda::ProductCall call{"matmul", in[0].get().value, in[1].get().value, false, false, out};
    cuda::run_product(call, {.bias = in[2].get().value.raw()}, out.raw());
    wait(*device);
  };
  multiply(64);
  CHECK_THROWS_WITH(multiply(63), Catch::Contains("the bias is not within an allocation"));
}

}  // namespace cublaslt_test
