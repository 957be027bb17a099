// matmul on the device at addresses that its fast paths do not support, against the CPU.
#include "cuda_case.h"

namespace matrix_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("matmul on the device takes views that start at odd addresses") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor buffer = random_tensor({2048}, DType::bfloat16, 14);
  const DenseTensor moved = copy_to(*device, buffer);
  const Meta meta{{16, 24}, DType::bfloat16};
  const Meta out{{16, 16}, DType::bfloat16};
  for (size_t offset : {2u, 6u, 16u}) {
    const DenseTensor x(buffer.storage(), meta, offset);
    const DenseTensor there(moved.storage(), meta, offset);
    const Kernel<bool, bool> matmul{"matmul"};
    require_close(matmul.run(*device, {there, there}, out, false, true), matmul.run(kCpu, {x, x}, out, false, true));
  }
}

TEST_CASE("transposes of batches with more tiles than blocks are those of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const Kernel<const IntArray&> transpose{"transpose"};
  for (const DType dtype : {DType::float32, DType::uint8, DType::bfloat16, DType::float64}) {
    transpose.compare(*device, {random_tensor({3, 100, 130}, dtype, 1)}, {{3, 130, 100}, dtype}, IntArray{0, 2, 1});
    transpose.compare(*device, {random_tensor({64, 66}, dtype, 2)}, {{66, 64}, dtype}, IntArray{1, 0});
    transpose.compare(*device, {random_tensor({2, 67, 45}, dtype, 3)}, {{2, 45, 67}, dtype}, IntArray{0, 2, 1});
    transpose.compare(*device, {random_tensor({70, 1, 65}, dtype, 4)}, {{1, 65, 70}, dtype}, IntArray{1, 2, 0});
  }
}

TEST_CASE("transposes of views that start at odd addresses are those of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const Kernel<const IntArray&> transpose{"transpose"};
  for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float64}) {
    const DenseTensor buffer = random_tensor({4400}, dtype, 4);
    const DenseTensor moved = copy_to(*device, buffer);
    for (const size_t start : {0u, 1u, 2u}) {
      const size_t offset = start * size_of(dtype);
      const auto compare = [&](const Dims& dims, const Dims& out, const IntArray& perm) {
        const Meta meta{dims, dtype}, result{out, dtype};
        const DenseTensor there(moved.storage(), meta, offset), here(buffer.storage(), meta, offset);
        require_close(transpose.run(*device, {there}, result, perm), transpose.run(kCpu, {here}, result, perm));
      };
      compare({64, 68}, {68, 64}, {1, 0});
      compare({2, 3, 4, 8}, {2, 4, 3, 8}, {0, 2, 1, 3});  // rows that are copied in words
      compare({2, 3, 4, 8}, {4, 3, 2, 8}, {2, 1, 0, 3});
      compare({2, 3, 4, 8}, {8, 4, 3, 2}, {3, 2, 1, 0});
      compare({3, 4, 7}, {4, 3, 7}, {1, 0, 2});
    }
  }
}

TEST_CASE("matmul of integers on the device wraps as on the CPU: tiles with rests, batches, sums in several parts") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::int32, DType::int64, DType::uint8}) {
    const Kernel<bool, bool> matmul{"matmul"};
    const auto compare = [&](const Dims& x, const Dims& y, const Dims& out, bool tx, bool ty) {
      DenseTensor a = random_tensor(x, dtype, 1), b = random_tensor(y, dtype, 2);
      visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
        if constexpr (std::is_integral_v<T>) {  // products do not fit
          for (int64_t i = 0; i < a.numel(); ++i) a.data<T>()[i] = static_cast<T>(a.data<T>()[i] * 1234577 - 77);
          for (int64_t i = 0; i < b.numel(); ++i) b.data<T>()[i] = static_cast<T>(b.data<T>()[i] * 7654321 + 5);
        }
      });
      matmul.compare(*device, {a, b}, {out, dtype}, tx, ty);
    };
    compare({70, 33}, {33, 65}, {70, 65}, false, false);
    compare({33, 70}, {65, 33}, {70, 65}, true, true);
    compare({2, 1, 5, 20}, {3, 20, 7}, {2, 3, 5, 7}, false, false);
    compare({3, 4, 5}, {5, 66}, {3, 4, 66}, false, false);
    compare({2, 3000}, {3, 3000}, {2, 3}, false, true);
    compare({5000}, {5000}, {}, false, false);
    compare({2, 0}, {0, 3}, {2, 3}, false, false);
  }
}

TEST_CASE("the gradient of a linear layer on the device adds to what is there, with many rows and with none") {
  const auto device = cuda_device();
  if (!device) return;
  using In = const DenseTensor&;
  using Out = DenseTensor&;
  using Function = void(const OpContext&, In, In, In, In, bool, bool, Out, Out);
  const OpContext ctx{"fused_linear_param_grad_add"};
  const auto moved = [](Device to, In x) { return x.defined() ? copy_to(to, x) : x; };
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    for (const int64_t rows : {0, 3, 1500}) {
      for (const bool precise : {false, true}) {
        for (const bool adds : {false, true}) {
          INFO(to_string(dtype) << " rows " << rows << " precise " << precise << " adds " << adds);
          const DType result = precise && size_of(dtype) == 2 ? DType::float32 : dtype;
          const DenseTensor x = random_tensor({rows, 2, 7}, dtype, 1), dout = random_tensor({rows, 2, 40}, dtype, 2);
          const DenseTensor weight = adds ? random_tensor({7, 40}, result, 3) : DenseTensor(),
                            bias = adds ? random_tensor({40}, result, 4) : DenseTensor();
          const auto run = [&](Device on) {
            std::vector<DenseTensor> out = {DenseTensor::allocate(on, {{7, 40}, result}),
                                            DenseTensor::allocate(on, {{40}, result})};
            kernel_table("fused_linear_param_grad_add")
                .find<Function>(ctx, on, dtype)
                .function(ctx, moved(on, x), moved(on, dout), moved(on, weight), moved(on, bias), precise, true, out[0],
                          out[1]);
            return out;
          };
          const std::vector<DenseTensor> got = run(*device), expected = run(kCpu);
          require_close(got[0], expected[0]);
          require_close(got[1], expected[1]);
        }
      }
    }
  }
}

}  // namespace matrix_test
