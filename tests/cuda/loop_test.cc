// Fused loops of captured programs on the device: elementwise ops as one kernel that is compiled at run time, with the same bits.
#include "loop_cases.h"

namespace loop_test {

using namespace shard;
using namespace shard::test;

namespace {

Tensor on_device(Device device, const Dims& dims, DType dtype, unsigned seed) {
  return Tensor(copy_to(device, random_tensor(dims, dtype, seed)));
}

}  // namespace

TEST_CASE("loops on the device: a chain of ops is one loop in every float dtype, for sizes that packs do not divide",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto chain = [](const Tensors& in) -> Tensors {
    const Tensor sum = add(in[0], in[1]);
    return {tanh(multiply(sum, in[0])), leaky_relu(sum, 0.5f)};
  };
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const Dims& dims : {Dims{3, 1031}, Dims{1}, Dims{7}, Dims{64, 32}})
      CHECK(fused_equally(chain, {on_device(*device, dims, dtype, 1), on_device(*device, dims, dtype, 2)}) == 4);
  }
  // Views that begin at odd elements.
  const auto of_views = [](const Tensors& in) -> Tensors {
    const Tensor part = slice(in[0], {0}, {1}, {2});
    return {relu(add(part, part))};
  };
  CHECK(fused_equally(of_views, {on_device(*device, {3, 67}, DType::float32, 3)}) == 2);
}

TEST_CASE("loops on the device: a product and the sum of the next op are rounded one after the other") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto function = [](const Tensors& in) -> Tensors { return {add(multiply(in[0], in[1]), in[2])}; };
  Tensors in;
  for (unsigned i = 0; i < 3; ++i) in.push_back(on_device(*device, {5000}, DType::float32, i));
  CHECK(fused_equally(function, in) == 2);
}

TEST_CASE("loops on the device: operands are broadcast along first, last and middle dims, and others end a loop",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto function = [](const Tensors& in) -> Tensors {
    return {relu(subtract(multiply(add(in[0], in[1]), in[2]), in[3])), add(square(in[0]), in[4])};
  };
  const auto x = [&](const Dims& dims, unsigned seed) { return on_device(*device, dims, DType::float32, seed); };
  const Tensor whole = x({5, 6, 7}, 1);
  CHECK(fused_equally(function, {whole, x({7}, 2), x({5, 1, 1}, 3), x({6, 1}, 4), x({1}, 5)}) == 6);
  CHECK(fused_equally(function, {whole, x({1, 6, 1}, 2), x({6, 7}, 3), x({5, 6, 1}, 4), x({}, 5)}) == 6);
  CHECK(fused_equally(function, {whole, x({5, 1, 7}, 2), x({7}, 3), x({5, 1, 7}, 4), x({5, 1, 1}, 5)}) == 6);
}

TEST_CASE("loops on the device: what is written in place is read as it was before and after") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto writes = [](const Tensors& in) -> Tensors {
    Tensor x = in[0], y = in[1];
    const Tensor before = exp(x);
    add_(x, y);
    multiply_(y, x);
    add_(x, y);
    return {before, subtract(x, before)};
  };
  CHECK(fused_equally(writes, {on_device(*device, {9, 40}, DType::float32, 1),
                               on_device(*device, {9, 40}, DType::float32, 2)}) == 5);
}

TEST_CASE("loops on the device: a row of what the loop has written, or read, is another thread's element") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  using In = const DenseTensor&;
  const auto kernel = [&]<class F>(const char* name, F*) {
    return kernel_table(name).find<F>(OpContext{name}, *device, DType::float32).function;
  };
  const auto square = kernel("square", static_cast<void (*)(const OpContext&, In, DenseTensor&)>(nullptr));
  const auto add = kernel("add", static_cast<void (*)(const OpContext&, In, In, DenseTensor&)>(nullptr));
  const LoopFunctions& loops = backend_of(*device).loops;
  const auto run = [&](bool in_loop) {
    DenseTensor x = copy_to(*device, random_tensor({9, 40}, DType::float32, 1));
    const DenseTensor row(x.storage(), {{40}, DType::float32}, 2 * 40 * sizeof(float));
    DenseTensor before = DenseTensor::allocate(*device, x.meta()), after = DenseTensor::allocate(*device, x.meta());
    if (in_loop) loops.begin(device->index);
    add(OpContext{"add"}, x, row, before);
    square(OpContext{"square"}, x, x);
    add(OpContext{"add"}, x, row, after);
    if (in_loop) loops.end(device->index);
    return numbers_of({Tensor(before), Tensor(after), Tensor(x)});
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("loops on the device: casts, choices, comparisons and integers") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor half = cast(in[0], DType::float16), numbers = cast(scale(in[0], 100.0), DType::int32);
    const Tensor larger = greater_than(in[0], in[1]);
    return {where(larger, half, cast(in[1], DType::float16)), bitwise_xor(numbers, scale(numbers, 3.0)),
            cast(logical_not(larger), DType::uint8), cast(numbers, DType::float64)};
  };
  const Tensors in = {on_device(*device, {4, 77}, DType::float32, 1), on_device(*device, {4, 77}, DType::float32, 2)};
  CHECK(fused_equally(function, in) >= 9);
}

TEST_CASE("loops on the device: a loop with more operands than a kernel takes is several kernels") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto function = [](const Tensors& in) -> Tensors {
    Tensors outputs;
    for (int i = 0; i < 40; ++i) outputs.push_back(scale(add(in[0], in[1]), 1.0 + i));
    return outputs;
  };
  const Tensors in = {on_device(*device, {130}, DType::float32, 1), on_device(*device, {130}, DType::float32, 2)};
  CHECK(fused_equally(function, in) >= 40);
}

TEST_CASE("loops on the device: kernels of a loop are for its device, which need not be the current one") {
  const auto first = cuda_device();
  const RuntimeCompiler compiler;
  if (!first || !compiler.is_there(*first) || !has_devices(*first, 2, "loops beside the current device")) return;
  const Device second{first->backend, 1};
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor sum = add(in[0], in[1]);
    const Tensor row = slice(sum, {0}, {1}, {2});  // of the loop's result, so that another kernel begins
    return {relu(multiply(subtract(sum, row), in[0]))};
  };
  CHECK(fused_equally(function, {on_device(second, {9, 40}, DType::float32, 1),
                                 on_device(second, {9, 40}, DType::float32, 2)}) >= 3);
}

TEST_CASE("loops on the device: every pointwise op of the library has the same bits in a loop", "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const PointwiseCalls calls(*device);
  CHECK(calls.ops().size() > 130);
  CHECK(fused_equally([&](const Tensors& in) { return calls(in); }, calls.inputs()) > 2 * calls.ops().size());
}

}  // namespace loop_test
