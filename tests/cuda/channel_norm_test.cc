// batch_norm, group_norm, instance_norm and their gradients on the device: few and many places, channels first and last, split sums.
#include "kernel_call.h"

namespace channel_norm_test {

using namespace shard;
using namespace shard::test;

namespace {

int64_t channels_of(const DenseTensor& x, const std::string& format) {
  return format == "NCHW" ? x.dims()[1] : x.dims()[x.dims().rank() - 1];
}

/// x, mean, variance, scale, bias.
DenseTensors run_batch_norm(Device device, const DenseTensors& in, const std::string& format, bool is_test) {
  const Meta channels = in[1].meta();
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta())};
  for (int i = 0; i < 4; ++i) out.push_back(DenseTensor::allocate(device, channels));
  run_kernel<In, In, In, In, In, bool, float, float, const std::string&, bool, bool, Out, Out, Out, Out, Out>(
      "batch_norm", device, in[0].dtype(), in[0], in[1], in[2], in[3], in[4], is_test, 0.9f, 1e-3f, format, false,
      false, out[0], out[1], out[2], out[3], out[4]);
  return out;
}

/// x, mean, 1 / deviation, scale, out_grad.
DenseTensors run_batch_norm_grad(Device device, const DenseTensors& in, const std::string& format, bool is_test) {
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()), DenseTensor::allocate(device, in[1].meta()),
                      DenseTensor::allocate(device, in[1].meta())};
  run_kernel<In, In, In, In, In, In, const std::string&, bool, bool, bool, Out, Out, Out>(
      "batch_norm_grad", device, in[0].dtype(), in[0], in[3], in[3], in[1], in[2], in[4], format, is_test, false, false,
      out[0], out[1], out[2]);
  return out;
}

/// x, scale, bias. Without groups: instance_norm.
DenseTensors run_group_norm(Device device, const DenseTensors& in, const std::string& format, int groups) {
  const DType t = in[0].dtype();
  const Meta statistic{{in[0].dims()[0], groups == 0 ? in[0].dims()[1] : groups}, statistics_of(t)};
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()), DenseTensor::allocate(device, statistic),
                      DenseTensor::allocate(device, statistic)};
  if (groups == 0)
    run_kernel<In, In, In, float, Out, Out, Out>("instance_norm", device, t, in[0], in[1], in[2], 1e-3f, out[0], out[1],
                                                 out[2]);
  else
    run_kernel<In, In, In, float, int, const std::string&, Out, Out, Out>(
        "group_norm", device, t, in[0], in[1], in[2], 1e-3f, groups, format, out[0], out[1], out[2]);
  return out;
}

/// x, scale, mean, variance, y_grad.
DenseTensors run_group_norm_grad(Device device, const DenseTensors& in, const std::string& format, int groups) {
  const DType t = in[0].dtype();
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()), DenseTensor::allocate(device, in[1].meta()),
                      DenseTensor::allocate(device, in[1].meta())};
  if (groups == 0)
    run_kernel<In, In, In, In, In, In, Out, Out, Out>("instance_norm_grad", device, t, in[0], in[1], in[1], in[2],
                                                      in[3], in[4], out[0], out[1], out[2]);
  else
    run_kernel<In, In, In, In, In, In, float, int, const std::string&, Out, Out, Out>(
        "group_norm_grad", device, t, in[0], in[1], in[1], in[2], in[3], in[4], 1e-3f, groups, format, out[0], out[1],
        out[2]);
  return out;
}

void compare_batch_norm(Device device, const Dims& dims, DType dtype, const std::string& format) {
  INFO(to_string(Meta{dims, dtype}) << " " << format);
  const DenseTensor x = random_tensor(dims, dtype, 1), grad = random_tensor(dims, dtype, 2);
  const Meta of_channels{{channels_of(x, format)}, statistics_of(dtype)};
  const DenseTensor mean = random_tensor(of_channels.dims, of_channels.dtype, 3),
                    scale = random_tensor(of_channels.dims, of_channels.dtype, 4);
  const DenseTensor variance = DenseTensor::allocate(kCpu, of_channels);
  visit_dtype(of_channels.dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < variance.numel(); ++i) variance.data<T>()[i] = T(static_cast<Compute<T>>(1 + i % 3));
  });
  for (const bool is_test : {false, true}) {
    INFO("test " << is_test);
    compare_run(device, {x, mean, variance, scale, mean},
                [&](Device on, const DenseTensors& in) { return run_batch_norm(on, in, format, is_test); });
    compare_run(device, {x, mean, variance, scale, grad},
                [&](Device on, const DenseTensors& in) { return run_batch_norm_grad(on, in, format, is_test); });
  }
}

void compare_group_norm(Device device, const Dims& dims, DType dtype, DType weights, const std::string& format,
                        int groups) {
  INFO(to_string(Meta{dims, dtype}) << " " << format << ", " << groups << " groups");
  const DenseTensor x = random_tensor(dims, dtype, 1), grad = random_tensor(dims, dtype, 2);
  const DenseTensor scale = random_tensor({channels_of(x, format)}, weights, 3);
  const DenseTensors forward = run_group_norm(kCpu, {x, scale, scale}, format, groups);
  compare_run(device, {x, scale, scale},
              [&](Device on, const DenseTensors& in) { return run_group_norm(on, in, format, groups); });
  compare_run(device, {x, scale, forward[1], forward[2], grad},
              [&](Device on, const DenseTensors& in) { return run_group_norm_grad(on, in, format, groups); });
}

}  // namespace

TEST_CASE("batch_norm and its gradient take images of every size on the device") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float64, DType::bfloat16}) {
    for (const Dims& dims : {Dims{3, 5, 7}, Dims{40, 33}, Dims{4, 3, 64}, Dims{2, 2, 9000}, Dims{1, 70, 16}})
      compare_batch_norm(*device, dims, dtype, "NCHW");
    for (const Dims& dims : {Dims{3, 5, 7}, Dims{2, 700, 40}, Dims{3, 9, 64}})
      compare_batch_norm(*device, dims, dtype, "NHWC");
  }
  compare_batch_norm(*device, {2, 4, 33}, DType::float32, "NCHW");
}

TEST_CASE("group_norm, instance_norm and their gradients take images of every size on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float64, DType::bfloat16}) {
    for (const int groups : {0, 1, 2, 6}) {
      for (const Dims& dims : {Dims{2, 6, 35}, Dims{3, 12, 4, 8}, Dims{1, 6, 9000}, Dims{2, 72, 5}})
        compare_group_norm(*device, dims, dtype, dtype, "NCHW", groups);
      if (groups == 0) continue;
      for (const Dims& dims : {Dims{2, 35, 6}, Dims{3, 8, 48}, Dims{1, 900, 72}})
        compare_group_norm(*device, dims, dtype, statistics_of(dtype), "NHWC", groups);
    }
  }
  compare_group_norm(*device, {2, 4, 33}, DType::float32, DType::float32, "NCHW", 2);
}

TEST_CASE("statistics of channels with a large mean keep their accuracy on the device") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({2, 3, 600}, DType::float32, 1);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] += 64.0f;
  x.data<float>()[0] = 0;
  const DenseTensor scale = random_tensor({3}, DType::float32, 2);
  compare_run(*device, {x, scale, scale}, [](Device on, const DenseTensors& in) {
    const DenseTensors out = run_group_norm(on, in, "NCHW", 0);
    return DenseTensors{out[0], out[2]};
  });
}

}  // namespace channel_norm_test
