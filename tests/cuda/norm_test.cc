// layer_norm, rms_norm and their gradients on the device: rows of every size class, scales of either dtype, absent results, many rows.
#include "kernel_call.h"

namespace norm_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Of the sizes for which a row belongs to 32, 128, 256, 512 and 1024 threads, and of rows that do not fit their registers; of each, one that
/// accesses of 16 bytes divide and one that they do not.
const std::vector<int64_t> kSizes = {1, 3, 64, 511, 520, 1000, 2056, 4099, 4104, 8200, 33000, 70000};

struct Sizes {
  int64_t rows, width;
  DType dtype, weights;
};

DenseTensors run_layer_norm(Device device, const DenseTensors& in, int64_t rows) {
  const DType t = in[0].dtype();
  const Meta statistic{{rows}, statistics_of(t)};
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()), DenseTensor::allocate(device, statistic),
                      DenseTensor::allocate(device, statistic)};
  run_kernel<In, In, In, float, int, Out, Out, Out>("layer_norm", device, t, in[0], in[1], in[2], 1e-3f, 1, out[0],
                                                    out[1], out[2]);
  return out;
}

DenseTensors run_rms_norm(Device device, const DenseTensors& in, int64_t rows) {
  const DType t = in[0].dtype();
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()),
                      DenseTensor::allocate(device, {{rows}, statistics_of(t)})};
  run_kernel<In, In, float, Out, Out>("rms_norm", device, t, in[0], in[1], 1e-3f, out[0], out[1]);
  return out;
}

/// Those of the results for which `wants` has a letter: x, scale, bias.
DenseTensors run_layer_norm_grad(Device device, const DenseTensors& in, const std::string& wants) {
  const auto result = [&](char letter, const DenseTensor& like) {
    return wants.find(letter) == std::string::npos ? DenseTensor() : DenseTensor::allocate(device, like.meta());
  };
  DenseTensors out = {result('x', in[0]), result('s', in[1]), result('b', in[2])};
  run_kernel<In, In, In, In, In, In, float, int, Out, Out, Out>("layer_norm_grad", device, in[0].dtype(), in[0], in[1],
                                                                in[2], in[3], in[4], in[5], 1e-3f, 1, out[0], out[1],
                                                                out[2]);
  std::erase_if(out, [](const DenseTensor& each) { return !each.defined(); });
  return out;
}

DenseTensors run_rms_norm_grad(Device device, const DenseTensors& in) {
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()), DenseTensor::allocate(device, in[1].meta())};
  run_kernel<In, In, In, In, Out, Out>("rms_norm_grad", device, in[0].dtype(), in[0], in[1], in[2], in[3], out[0],
                                       out[1]);
  return out;
}

void compare_norms(Device device, const Sizes& s) {
  INFO(s.rows << " rows of " << s.width << " in " << to_string(s.dtype) << " with " << to_string(s.weights));
  const DenseTensor x = random_tensor({s.rows, s.width}, s.dtype, 1), grad = random_tensor(x.dims(), s.dtype, 2);
  const DenseTensor scale = random_tensor({s.width}, s.weights, 3), bias = random_tensor({s.width}, s.weights, 4);
  const DenseTensors forward = run_layer_norm(kCpu, {x, scale, bias}, s.rows);
  compare_run(device, {x, scale, bias},
              [&](Device on, const DenseTensors& in) { return run_layer_norm(on, in, s.rows); });
  compare_run(device, {x, scale, bias, forward[1], forward[2], grad},
              [](Device on, const DenseTensors& in) { return run_layer_norm_grad(on, in, "xsb"); });
  compare_run(device, {x, scale}, [&](Device on, const DenseTensors& in) { return run_rms_norm(on, in, s.rows); });
  compare_run(device, {x, scale, run_rms_norm(kCpu, {x, scale}, s.rows)[1], grad}, run_rms_norm_grad);
}

}  // namespace

TEST_CASE("normalisations and their gradients take rows of every size on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t size : kSizes) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64})
      compare_norms(*device, {size > 5000 ? 2 : 5, size, dtype, dtype});
  }
  compare_norms(*device, {3, 1000, DType::float16, DType::float32});
  compare_norms(*device, {40, 40000, DType::bfloat16, DType::float32});
}

TEST_CASE("normalisations take many rows, none, empty ones, and weights at odd addresses, on the device") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t width : {8, 40, 600}) compare_norms(*device, {203, width, DType::float64, DType::float64});
  compare_norms(*device, {0, 40, DType::float32, DType::float32});
  const DenseTensor empty = DenseTensor::allocate(kCpu, {{3, 0}, DType::float32}),
                    none = DenseTensor::allocate(kCpu, {{0}, DType::float32});
  compare_run(*device, {empty, none, none},
              [](Device on, const DenseTensors& in) { return run_layer_norm(on, in, 3); });
  compare_run(*device, {empty, none}, [](Device on, const DenseTensors& in) { return run_rms_norm(on, in, 3); });
  const DenseTensor x = random_tensor({9, 64}, DType::float32, 1), buffer = random_tensor({65}, DType::float32, 2);
  compare_run(*device, {x, buffer}, [](Device on, const DenseTensors& in) {
    const DenseTensor view(in[1].storage(), {{64}, DType::float32}, sizeof(float));
    return run_layer_norm(on, {in[0], view, view}, 9);
  });
}

TEST_CASE("gradients of layer_norm that nobody wants are left out on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t width : {72, 70000}) {
    const DenseTensor x = random_tensor({5, width}, DType::float32, 1),
                      grad = random_tensor({5, width}, DType::float32, 2);
    const DenseTensor scale = random_tensor({width}, DType::float32, 3);
    const DenseTensors forward = run_layer_norm(kCpu, {x, scale, scale}, 5);
    for (const char* wants : {"x", "s", "b", "sb", "xb"}) {
      INFO(wants << " of width " << width);
      compare_run(*device, {x, scale, scale, forward[1], forward[2], grad},
                  [&](Device on, const DenseTensors& in) { return run_layer_norm_grad(on, in, wants); });
    }
  }
}

}  // namespace norm_test
