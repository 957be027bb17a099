// Rotary position embeddings and their gradient on the device: both kinds of pairs, tables of every dtype, long heads, and wrong positions.
#include "kernel_call.h"

namespace rope_test {

using namespace shard;
using namespace shard::test;

namespace {

struct Style {
  bool adjacent, time_major;
};

/// q, k, sin, cos, position_ids, of which the last three may be absent: results of the op, and of its gradient.
DenseTensors run_rope(Device device, const DenseTensors& in, const Style& style) {
  const DenseTensor none;
  const DType t = in[0].dtype();
  DenseTensors out;
  for (int i = 0; i < 4; ++i) out.push_back(DenseTensor::allocate(device, in[static_cast<size_t>(i % 2)].meta()));
  DenseTensor no_v;
  run_kernel<In, In, In, In, In, In, bool, bool, float, Out, Out, Out>(
      "fused_rotary_position_embedding", device, t, in[0], in[1], none, in[2], in[3], in[4], style.adjacent,
      style.time_major, 100.0f, out[0], out[1], no_v);
  run_kernel<In, In, In, In, In, In, bool, bool, float, Out, Out, Out>(
      "fused_rotary_position_embedding_grad", device, t, in[2], in[3], in[4], in[0], in[1], none, style.adjacent,
      style.time_major, 100.0f, out[2], out[3], no_v);
  return out;
}

DenseTensor positions(int64_t batch, int64_t sequence, int64_t most) {
  const DenseTensor ids = DenseTensor::allocate(kCpu, {{batch, sequence}, DType::int64});
  for (int64_t i = 0; i < ids.numel(); ++i) ids.data<int64_t>()[i] = i * 37 % most;
  return ids;
}

}  // namespace

TEST_CASE("rotary embeddings take heads of every width, tables and positions, on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t width : {2, 6, 16, 64, 128, 1040}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      for (const Style style : {Style{false, false}, Style{true, false}, Style{true, true}, Style{false, true}}) {
        INFO("width " << width << " in " << to_string(dtype) << ", neighbours " << style.adjacent << ", time major "
                      << style.time_major);
        const int64_t batch = 2, sequence = 5;
        const int64_t outer = style.time_major ? sequence : batch, inner = style.time_major ? batch : sequence;
        const DenseTensor q = random_tensor({outer, inner, 3, width}, dtype, 1),
                          k = random_tensor({outer, inner, 2, width}, dtype, 2);
        const auto run = [&](Device on, const DenseTensors& in) { return run_rope(on, in, style); };
        compare_run(*device, {q, k, {}, {}, {}}, run);
        compare_run(*device, {q, k, {}, {}, positions(batch, sequence, 5000)}, run);
        for (const DType table : {DType::float32, DType::float16, dtype}) {
          const DenseTensor sin = random_tensor({9, width}, table, 3), cos = random_tensor({1, 9, 1, width}, table, 4);
          compare_run(*device, {q, k, sin, cos, positions(batch, sequence, 9)}, run);
        }
      }
    }
  }
}

TEST_CASE("rotary embeddings take views at odd addresses, and write into their arguments, on the device") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor buffer = random_tensor({4 * 64 + 1}, DType::float32, 1);
  compare_run(*device, {buffer}, [](Device on, const DenseTensors& in) {
    const DenseTensor copy = copy_to(on, in[0]), none;
    DenseTensor q(copy.storage(), {{1, 2, 2, 64}, DType::float32}, sizeof(float)), absent;
    run_kernel<In, In, In, In, In, In, bool, bool, float, Out, Out, Out>("fused_rotary_position_embedding", on,
                                                                         DType::float32, q, none, none, none, none,
                                                                         none, true, false, 100.0f, q, absent, absent);
    return DenseTensors{copy};
  });
}

TEST_CASE("a position that tables lack is the error of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor q = random_tensor({1, 3, 2, 8}, DType::float32, 1),
                    table = random_tensor({4, 8}, DType::float32, 2);
  const DenseTensor ids = positions(1, 3, 4);
  ids.data<int64_t>()[1] = 4;
  ids.data<int64_t>()[2] = -1;
  DenseTensors inputs = {q, q, table, table, ids};
  std::string expected, found;
  try {
    run_rope(kCpu, inputs, {false, false});
  } catch (const Error& error) { expected = error.what(); }
  REQUIRE(expected ==
          "[fused_rotary_position_embedding] position_ids has 4, but sin and cos have the positions 0 to 3 "
          "(element [0, 1] of i64[1, 3])");
  for (DenseTensor& input : inputs) input = copy_to(*device, input);
  const DenseTensors out = run_rope(*device, inputs, {false, false});
  try {
    copy_to(kCpu, out[0]);
  } catch (const Error& error) { found = error.what(); }
  CHECK(found == expected);
}

}  // namespace rope_test
