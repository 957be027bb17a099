// nll_loss and its gradient on the device: many labels, places, reductions, and labels that are wrong.
#include "kernel_call.h"

namespace nll_loss_test {

using namespace shard;
using namespace shard::test;

namespace {

/// input, label, weight: out, total_weight and input_grad for an out_grad that is out.
DenseTensors run_nll_loss(Device device, const DenseTensors& in, const std::string& reduction) {
  const DType t = in[0].dtype();
  DenseTensors out = {DenseTensor::allocate(device, {reduction == "none" ? in[1].dims() : Dims{}, t}),
                      DenseTensor::allocate(device, {{}, statistics_of(t)}),
                      DenseTensor::allocate(device, in[0].meta())};
  run_kernel<In, In, In, int64_t, const std::string&, Out, Out>("nll_loss", device, t, in[0], in[1], in[2], 2,
                                                                reduction, out[0], out[1]);
  run_kernel<In, In, In, In, In, int64_t, const std::string&, Out>("nll_loss_grad", device, t, in[0], in[1], in[2],
                                                                   out[1], out[0], 2, reduction, out[2]);
  return out;
}

DenseTensor labels(const Dims& dims, int64_t classes) {
  const DenseTensor label = DenseTensor::allocate(kCpu, {dims, DType::int64});
  for (int64_t i = 0; i < label.numel(); ++i) label.data<int64_t>()[i] = i * 7919 % classes;
  return label;
}

}  // namespace

TEST_CASE("nll_loss and its gradient take many labels and places on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    for (const Dims& dims : {Dims{3, 5}, Dims{20000, 4}, Dims{2, 7, 30, 3}}) {
      Dims of_label = dims;
      of_label.erase(1);
      const DenseTensor input = random_tensor(dims, dtype, 1), label = labels(of_label, dims[1]);
      for (const char* reduction : {"none", "sum", "mean"}) {
        INFO(to_string(input.meta()) << " " << reduction);
        const auto run = [&](Device on, const DenseTensors& in) { return run_nll_loss(on, in, reduction); };
        compare_run(*device, {input, label, {}}, run);
        compare_run(*device, {input, label, random_tensor({dims[1]}, dtype, 2)}, run);
      }
    }
  }
}

TEST_CASE("a label of nll_loss that is no class is the error of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor input = random_tensor({4, 3}, DType::float32, 1), label = labels({4}, 3);
  label.data<int64_t>()[2] = -1;
  std::string expected, found;
  try {
    run_nll_loss(kCpu, {input, label, {}}, "sum");
  } catch (const Error& error) { expected = error.what(); }
  REQUIRE(expected ==
          "[nll_loss] label is -1 at element 2, but must be from 0 to 2, or ignore_index, 2 (label is i64[4])");
  const DenseTensors out = run_nll_loss(*device, {copy_to(*device, input), copy_to(*device, label), {}}, "sum");
  try {
    copy_to(kCpu, out[0]);
  } catch (const Error& error) { found = error.what(); }
  CHECK(found == expected);
}

}  // namespace nll_loss_test
