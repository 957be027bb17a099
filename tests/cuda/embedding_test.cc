// embedding and its gradient on the device: tables and rows of many sizes, frequent ids, padding, and wrong ids.
#include "kernel_call.h"

namespace embedding_test {

using namespace shard;
using namespace shard::test;

namespace {

/// ids, table, out_grad: the rows, and the gradient of the table.
DenseTensors run_embedding(Device device, const DenseTensors& in, int64_t padding) {
  const DType t = in[1].dtype();
  DenseTensors out = {DenseTensor::allocate(device, in[2].meta()), DenseTensor::allocate(device, in[1].meta())};
  run_kernel<In, In, int64_t, Out>("embedding", device, t, in[0], in[1], padding, out[0]);
  run_kernel<In, In, In, int64_t, Out>("embedding_grad", device, t, in[0], in[1], in[2], padding, out[1]);
  return out;
}

DenseTensor ids_of(int64_t count, int64_t rows, int64_t frequent, DType dtype = DType::int64) {
  const DenseTensor ids = DenseTensor::allocate(kCpu, {{count}, dtype});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = i % 10 < frequent ? rows / 2 : i * i * 7919 % rows;
    if (dtype == DType::int64) ids.data<int64_t>()[i] = id;
    else ids.data<int32_t>()[i] = static_cast<int32_t>(id);
  }
  return ids;
}

}  // namespace

TEST_CASE("embeddings and their gradients take tables and ids of every size on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float64, DType::bfloat16}) {
    for (const int64_t rows : {1, 5, 300, 70000}) {
      for (const auto& [count, width] : {std::pair<int64_t, int64_t>{1, 8}, {33, 3}, {700, 24}, {9001, 2}}) {
        for (const int64_t frequent : {0, 9}) {
          INFO(count << " ids, table [" << rows << ", " << width << "] of " << to_string(dtype) << ", " << frequent);
          const DenseTensor table = random_tensor({rows, width}, dtype, 1),
                            grad = random_tensor({count, width}, dtype, 2);
          const DenseTensor ids = ids_of(count, rows, frequent, frequent == 0 ? DType::int64 : DType::int32);
          const int64_t padding = frequent == 0 && rows > 1 ? ids.data<int64_t>()[0] : -1;
          compare_run(*device, {ids, table, grad},
                      [&](Device on, const DenseTensors& in) { return run_embedding(on, in, padding); });
        }
      }
    }
  }
  const DenseTensor none = DenseTensor::allocate(kCpu, {{0}, DType::int64});
  compare_run(*device, {none, random_tensor({5, 4}, DType::float32, 1), random_tensor({0, 4}, DType::float32, 2)},
              [](Device on, const DenseTensors& in) { return run_embedding(on, in, -1); });
}

TEST_CASE("an id that is no row is the error of the CPU, and has no gradient") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor ids = ids_of(5, 4, 0), table = random_tensor({4, 3}, DType::float32, 1);
  const DenseTensor grad = random_tensor({5, 3}, DType::float32, 2);
  ids.data<int64_t>()[3] = 4;
  ids.data<int64_t>()[4] = -1;
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) { return error.what(); }
    return "none";
  };
  const std::string expected = error_of([&] { run_embedding(kCpu, {ids, table, grad}, -1); });
  REQUIRE(expected == "[embedding] x is 4 at element 3, but must be from 0 to 3 (x is i64[5])");
  const DenseTensors out =
      run_embedding(*device, {copy_to(*device, ids), copy_to(*device, table), copy_to(*device, grad)}, -1);
  CHECK(error_of([&] { copy_to(kCpu, out[0]); }) == expected);
  const DenseTensor rows = copy_to(kCpu, out[0]);
  CHECK(rows.data<float>()[3 * 3] == 0.0f);
  ids.data<int64_t>()[3] = ids.data<int64_t>()[4] = 3;
  DenseTensor without = random_tensor({5, 3}, DType::float32, 2);
  for (int64_t i = 9; i < 15; ++i) without.data<float>()[i] = 0;
  require_close(out[1], run_embedding(kCpu, {ids, table, without}, -1)[1]);
}

}  // namespace embedding_test
