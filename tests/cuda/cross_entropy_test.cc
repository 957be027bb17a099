// Cross entropies and their gradients on the device: lines of every size class and along any axis, and labels that are wrong.
#include "kernel_call.h"

namespace cross_entropy_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr int kIgnore = 1;

DenseTensor labels(const Dims& dims, int64_t classes, DType dtype = DType::int64) {
  const DenseTensor label = DenseTensor::allocate(kCpu, {dims, dtype});
  for (int64_t i = 0; i < label.numel(); ++i) {
    const int64_t value = i * 7919 % classes;
    if (dtype == DType::int64) label.data<int64_t>()[i] = value;
    else label.data<int32_t>()[i] = static_cast<int32_t>(value);
  }
  return label;
}

/// input, label: softmax and loss.
DenseTensors run_cross_entropy(Device device, const DenseTensors& in, bool soft, bool use_softmax, int axis) {
  Dims dims = in[0].dims();
  dims[axis] = 1;
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()),
                      DenseTensor::allocate(device, {dims, in[0].dtype()})};
  run_kernel<In, In, bool, bool, bool, int, int, Out, Out>("cross_entropy_with_softmax", device, in[0].dtype(), in[0],
                                                           in[1], soft, use_softmax, true, kIgnore, axis, out[0],
                                                           out[1]);
  return out;
}

/// label, softmax and loss_grad: the gradient, in a buffer of its own and in that of softmax.
DenseTensors run_cross_entropy_grad(Device device, const DenseTensors& in, bool soft, bool use_softmax, int axis) {
  DenseTensors out = {DenseTensor::allocate(device, in[1].meta()), copy_to(device, in[1])};
  const auto run = [&](const DenseTensor& softmax, DenseTensor& result) {
    run_kernel<In, In, In, bool, bool, bool, int, int, Out>("cross_entropy_with_softmax_grad", device, softmax.dtype(),
                                                            in[0], softmax, in[2], soft, use_softmax, true, kIgnore,
                                                            axis, result);
  };
  run(in[1], out[0]);
  run(out[1], out[1]);
  return out;
}

/// logits, label, softmax and loss_grad: softmax and loss, and the gradient.
DenseTensors run_margins(Device device, const DenseTensors& in) {
  const DType t = in[0].dtype();
  DenseTensors out = {DenseTensor::allocate(device, in[0].meta()), DenseTensor::allocate(device, in[3].meta()),
                      DenseTensor::allocate(device, in[0].meta())};
  run_kernel<In, In, bool, int, int, int, float, float, float, float, Out, Out>(
      "margin_cross_entropy", device, t, in[0], in[1], false, 0, 0, 1, 0.9f, 0.3f, 0.1f, 4.0f, out[0], out[1]);
  run_kernel<In, In, In, In, bool, int, int, int, float, float, float, float, Out>(
      "margin_cross_entropy_grad", device, t, in[0], in[1], in[2], in[3], false, 0, 0, 1, 0.9f, 0.3f, 0.1f, 4.0f,
      out[2]);
  return out;
}

void compare_cross_entropies(Device device, const Dims& dims, DType dtype, int axis) {
  INFO(to_string(Meta{dims, dtype}) << " along " << axis);
  const DenseTensor x = random_tensor(dims, dtype, 1);
  const DenseTensor positive = DenseTensor::allocate(kCpu, {dims, dtype});
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) positive.data<T>()[i] = T(static_cast<Compute<T>>(1 + i % 5));
  });
  Dims lines = dims;
  lines[axis] = 1;
  const DenseTensor hard = labels(lines, dims[axis]), grad = random_tensor(lines, dtype, 2);
  for (const bool soft : {false, true}) {
    const DenseTensor& label = soft ? positive : hard;
    for (const bool use_softmax : {true, false}) {
      INFO("soft " << soft << ", of softmax " << use_softmax);
      compare_run(device, {positive, label}, [&](Device on, const DenseTensors& in) {
        return run_cross_entropy(on, in, soft, use_softmax, axis);
      });
      compare_run(device, {label, positive, grad}, [&](Device on, const DenseTensors& in) {
        return run_cross_entropy_grad(on, in, soft, use_softmax, axis);
      });
    }
  }
}

}  // namespace

TEST_CASE("cross entropies and their gradients take lines of every size on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t size : {3, 64, 1023, 5000, 8200, 33000, 70001}) {
    for (const DType dtype : {DType::float32, DType::bfloat16})
      compare_cross_entropies(*device, {size > 1000 ? 2 : 7, size}, dtype, 1);
  }
  compare_cross_entropies(*device, {5, 40}, DType::float64, 1);
  compare_cross_entropies(*device, {3, 20, 130}, DType::float32, 1);
  compare_cross_entropies(*device, {1500, 24}, DType::float16, 1);
}

TEST_CASE("margin cross entropies take rows of every size on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t classes : {3, 500, 5000, 70000}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      INFO(classes << " in " << to_string(dtype));
      const DenseTensor logits = DenseTensor::allocate(kCpu, {{3, classes}, dtype});
      visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
        for (int64_t i = 0; i < logits.numel(); ++i)
          logits.data<T>()[i] = T(static_cast<Compute<T>>(static_cast<double>(i % 13 - 6) / 8));
      });
      const DenseTensor softmax = random_tensor(logits.dims(), dtype, 1), grad = random_tensor({3, 1}, dtype, 2);
      for (const DType index : {DType::int64, DType::int32})
        compare_run(*device, {logits, labels({3}, classes, index), softmax, grad}, run_margins);
    }
  }
}

TEST_CASE("a label that is no class is the error of the CPU, and its loss is 0") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({4, 5}, DType::float32, 1), label = labels({4, 1}, 5);
  label.data<int64_t>()[1] = kIgnore;
  label.data<int64_t>()[2] = 5;
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::out_of_range);
      return error.what();
    }
    return "none";
  };
  const std::string expected = error_of([&] { run_cross_entropy(kCpu, {x, label}, false, true, 1); });
  REQUIRE(expected ==
          "[cross_entropy_with_softmax] label has the class 5 at element [2, 0], but there are 5 classes and "
          "ignore_index is 1 (label is i64[4, 1])");
  const DenseTensors out = run_cross_entropy(*device, {copy_to(*device, x), copy_to(*device, label)}, false, true, 1);
  CHECK(error_of([&] { copy_to(kCpu, out[1]); }) == expected);
  const DenseTensor losses = copy_to(kCpu, out[1]);
  CHECK(losses.data<float>()[0] > 0);
  CHECK(losses.data<float>()[1] == 0);
  CHECK(losses.data<float>()[2] == 0);
  const DenseTensors grads = run_cross_entropy_grad(
      *device,
      {copy_to(*device, label), copy_to(*device, x), copy_to(*device, random_tensor({4, 1}, DType::float32, 2))}, false,
      true, 1);
  CHECK(error_of([&] { copy_to(kCpu, grads[0]); }).find("label has the class 5 at element [2, 0]") !=
        std::string::npos);
}

}  // namespace cross_entropy_test
