// What elementwise kernels read and write, by the log of the model: each byte once, in accesses of warps without gaps.
#include "traffic.h"

#include <set>

namespace traffic_test {

#ifdef CUDA_HOST_INSTRUMENTED  // otherwise accesses are not logged

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;

constexpr int64_t kCount = 256 * 4 * 16 + 3;

/// The dtypes in which a case is tried: besides its own those of 16 bits for floats, instead of those of 64.
std::vector<DType> dtypes_of(const testing::OpCase& one, const OpDef& op, Device device) {
  std::vector<DType> dtypes;
  for (const DType dtype : one.dtypes) {
    if (dtype != DType::float64) dtypes.push_back(dtype);
    if (dtype == DType::float32 && kernel_table(op.kernel.data()).has(device, DType::bfloat16))
      dtypes.push_back(DType::bfloat16);
  }
  return dtypes;
}

bool has_kernel(const OpDef& op, Device device) {
  if (op.kernel.empty()) return false;
  for (int t = 0; t < kNumDTypes; ++t) {
    if (kernel_table(op.kernel.data()).has(device, static_cast<DType>(t))) return true;
  }
  return false;
}

/// The names of ops with kernels on the device of which `is_one` is true.
template <class Is>
std::set<std::string> ops_where(Device device, const Is& is_one) {
  std::set<std::string> names;
  for (const std::string& name : OpTable::instance().all_names()) {
    const OpDef& op = *OpTable::instance().find(name)->op;
    if (is_one(op) && has_kernel(op, device)) names.insert(std::string(op.name));
  }
  return names;
}

/// The bytes of an input that the kernel of a pointwise op reads: those of a row once for each row of the result. They come from
/// caches: a thread that kept its part of the row would have to take packs that are rows apart.
int64_t bytes_read(const Tensor& input, const Tensor& out) {
  const Dims& dims = input.dims();
  const bool is_row = input.numel() != out.numel() && dims.rank() > 0 && dims[dims.rank() - 1] != 1;
  return is_row ? out.numel() * static_cast<int64_t>(size_of(input.dtype())) : bytes_of(input);
}

}  // namespace

TEST_CASE("all pointwise ops read and write each byte once, in accesses without gaps") {
  const auto device = cuda_device();
  if (!device) return;
  std::set<std::string> tried;
  for (const testing::OpCase& one : testing::op_cases()) {
    const OpEntry* const entry = OpTable::instance().find(one.op);
    if (entry == nullptr || !entry->op->pointwise || !has_kernel(*entry->op, *device)) continue;
    tried.insert(std::string(entry->op->name));
    // The first is a copy by the runtime of CUDA, which the log does not see; the second is of one element.
    if (entry->op->name == "assign" || entry->op->name == "increment") continue;
    for (const DType dtype : dtypes_of(one, *entry->op, *device)) {
      INFO(one.op << ", " << one.name << ", in " << to_string(dtype));
      DeviceCase each(*device, one, dtype, 128);
      Tensors outputs;
      const cuda_host::GridLog sum = traffic_of(*device, [&] { outputs = each.call.run(each.inputs); });
      REQUIRE(outputs.size() == 1);
      int64_t read = 0;
      for (const Tensor& input : each.inputs) read += bytes_read(input, outputs[0]);
      test::check_traffic(sum, read, bytes_of(outputs), bytes_of(each.inputs));
    }
  }
  CHECK(tried == ops_where(*device, [](const OpDef& op) { return op.pointwise; }));
}

TEST_CASE("elementwise kernels that are no formula read and write each byte once, in accesses without gaps") {
  const auto device = cuda_device();
  if (!device) return;
  const Dims dims{kCount};
  for (const DType t : {DType::float32, DType::bfloat16, DType::float64}) {
    INFO(to_string(t));
    const Tensor x = on(*device, dims, t), y = on(*device, dims, t), mask = on(*device, dims, DType::uint8);
    const int64_t all = bytes_of(x);
    check_traffic(*device, all, all + kCount, [&] { dropout_intermediate(x, {}, 0.5, false, "upscale_in_train", 3); });
    check_traffic(*device, all + kCount, all, [&] { dropout_grad(mask, x, 0.5, false, "upscale_in_train"); });
    check_traffic(*device, 3 * all, 2 * all, [&] { swiglu_grad(x, y, x); });
    check_traffic(*device, 2 * all, 2 * all, [&] { huber_loss_intermediate(x, y, 0.5f); });
    check_traffic(*device, 3 * all, 2 * all, [&] { huber_loss_grad(x, y, x, 0.5f); });
    check_traffic(*device, 3 * all, all, [&] { bce_loss_grad(x, y, x); });
    check_traffic(*device, 3 * all, all, [&] { log_loss_grad(x, y, x, 0.5f); });
    check_traffic(*device, all, all, [&] { label_smooth(x, {}, 0.5f); });
    check_total(traffic_of(*device, [&] { allclose(x, x, 0.25, 3.0); }), 2 * all);
    const Tensor halves = on(*device, {64, 2 * 512}, t), gates = on(*device, {64, 512}, t);
    check_traffic(*device, bytes_of(halves), bytes_of(gates), [&] { swiglu(halves, {}); });
    check_traffic(*device, bytes_of(halves, gates), bytes_of(halves), [&] { swiglu_grad(halves, {}, gates); });
  }
}

TEST_CASE("elementwise kernels of views write whole packs, and read what is aligned with them in packs") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    INFO(to_string(t));
    // The elements of a pack one by one, by lanes that are 16 bytes apart: each access touches all sectors of the warp, and one more
    // where they begin within one. A device has them in its cache after the first.
    const char* const why = "the input is not aligned with the result, which begins a buffer";
    const bool is_half = size_of(t) == 2;
    const Excess one_of_two{1, is_half ? 4.59 : 2.56, why}, one_of_three{1, is_half ? 3.38 : 2.06, why};
    for (const int64_t before : {1, 3}) {
      Tensor x = on(*device, {kCount}, t, before);
      const Tensor same = on(*device, {kCount}, t, before), other = on(*device, {kCount}, t);
      const Tensor scalar = on(*device, {}, t);
      const int64_t all = bytes_of(x);
      check_traffic(*device, 2 * all, all, [&] { add_(x, same); });
      check_traffic(*device, all, all, [&] { multiply_(x, scalar); });
      check_traffic(*device, all, all, [&] { exp_(x); });
      check_total(traffic_of(*device, [&] { exp(x); }), 2 * all, one_of_two);
      check_total(traffic_of(*device, [&] { add(x, other); }), 3 * all, one_of_three);
    }
  }
}

#endif

}  // namespace traffic_test
