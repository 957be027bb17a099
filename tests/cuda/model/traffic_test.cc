// What elementwise kernels and steps of optimisers read and write, by the log of the model: each byte once, in accesses of warps without gaps.
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "../kernel_call.h"
#include "access.h"
#include "support/source_dir.h"

using namespace shard;
using namespace shard::test;

namespace {

constexpr double kMost = 1.05;  // of the least

/// The log tells nothing where a sanitizer of the compiler takes the place of the model's checks.
bool is_logged() {
#ifdef CUDA_HOST_INSTRUMENTED
  return cuda_device().has_value();
#else
  return false;
#endif
}

/// A kernel that a source file registers: its name, the number of its inputs and of its float arguments.
struct Formula {
  std::string name;
  size_t inputs;
  size_t numbers;
  bool is_truth;  // writes bools
  bool is_bits;   // of integers
};

/// The kernels that are registered by add_unary<..>("name") and the like.
std::vector<Formula> formulas_of(const std::string& file) {
  const std::map<std::string, size_t> inputs = {{"unary", 1},  {"single", 1}, {"special", 1}, {"question", 1},
                                                {"binary", 2}, {"plain", 2},  {"pair", 2},    {"truth", 2},
                                                {"bits", 2},   {"ternary", 3}};
  std::ifstream stream(source_dir() + "/runtime/shard/kernels/" + file);
  std::stringstream text;
  text << stream.rdbuf();
  const std::string all = text.str();
  const std::regex call("add_(\\w+)<([\\w:]+)((?:, float)*)>\\(\"(\\w+)\"");
  std::vector<Formula> found;
  for (std::sregex_iterator it(all.begin(), all.end(), call), end; it != end; ++it) {
    const auto kind = inputs.find((*it)[1]);
    if (kind == inputs.end()) continue;
    found.push_back({(*it)[4], kind->second, (*it)[3].str().size() / std::string(", float").size(),
                     kind->first == "truth" || kind->first == "question", kind->first == "bits"});
  }
  return found;
}

/// Calls a formula on `x`, which is each of its inputs.
void run_formula(const Formula& f, Device device, In x, DenseTensor& out) {
  const char* const name = f.name.c_str();
  const DType t = x.dtype();
  switch (f.inputs * 10 + f.numbers) {
    case 10: return run_kernel<In, Out>(name, device, t, x, out);
    case 11: return run_kernel<In, float, Out>(name, device, t, x, 0.5f, out);
    case 12: return run_kernel<In, float, float, Out>(name, device, t, x, 0.5f, 0.7f, out);
    case 20: return run_kernel<In, In, Out>(name, device, t, x, x, out);
    case 21: return run_kernel<In, In, float, Out>(name, device, t, x, x, 0.5f, out);
    case 22: return run_kernel<In, In, float, float, Out>(name, device, t, x, x, 0.5f, 0.7f, out);
    case 30: return run_kernel<In, In, In, Out>(name, device, t, x, x, x, out);
    case 31: return run_kernel<In, In, In, float, Out>(name, device, t, x, x, x, 0.5f, out);
    default: FAIL(f.name << " takes other arguments");
  }
}

/// Work that was issued runs when somebody waits for it.
void wait_for(Device device) { backend_of(device).synchronize(device.index); }

/// What the kernels of `work` read and write together.
template <class Work>
cuda_host::GridLog traffic_of(Device device, const Work& work) {
  cuda_host::begin_log();
  work();
  wait_for(device);
  cuda_host::GridLog sum;
  for (const cuda_host::GridLog& log : cuda_host::end_log()) {
    sum.bytes_read += log.bytes_read;
    sum.bytes_written += log.bytes_written;
    sum.sectors += log.sectors;
    sum.least_sectors += log.least_sectors;
  }
  return sum;
}

double ratio(uint64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

/// What `work` reads and writes is at most kMost of these bytes, and its sectors of the least.
template <class Work>
void check_traffic(Device device, int64_t read, int64_t written, const Work& work) {
  const cuda_host::GridLog sum = traffic_of(device, work);
  CHECK(sum.bytes_written >= static_cast<uint64_t>(written));
  CHECK(ratio(sum.bytes_read, read) <= kMost);
  CHECK(ratio(sum.bytes_written, written) <= kMost);
  CHECK(ratio(sum.sectors, static_cast<int64_t>(sum.least_sectors)) <= kMost);
  CHECK(ratio(sum.sectors * 32, read + written) <= kMost * 1.01);  // the last sector of each tensor is not full
}

DenseTensor on(Device device, const Dims& dims, DType dtype) { return copy_to(device, random_tensor(dims, dtype, 3)); }

constexpr int64_t kCount = 256 * 4 * 16 + 3;

}  // namespace

TEST_CASE("kernels of formulas read and write each byte once, in accesses without gaps") {
  if (!is_logged()) return;
  const Device device = *cuda_device();
  size_t tried = 0;
  for (const char* file : {"formulas/activation.inc", "formulas/transcendental.inc", "formulas/unary_grad.inc",
                           "formulas/logic.inc", "cuda/elementwise.cu", "cuda/gates.cu", "cuda/special.cu"}) {
    for (const Formula& f : formulas_of(file)) {
      for (const DType dtype :
           {f.is_bits ? DType::int32 : DType::float32, f.is_bits ? DType::uint8 : DType::bfloat16}) {
        INFO(f.name << " in " << to_string(dtype));
        const DenseTensor x = on(device, {kCount}, dtype);
        DenseTensor out = DenseTensor::allocate(device, {{kCount}, f.is_truth ? DType::boolean : dtype});
        const auto size = [](DType t) { return static_cast<int64_t>(size_of(t)); };
        check_traffic(device, static_cast<int64_t>(f.inputs) * kCount * size(dtype), kCount * size(out.dtype()),
                      [&] { run_formula(f, device, x, out); });
        ++tried;
      }
    }
  }
  CHECK(tried >= 270);
}

TEST_CASE("kernels of several dtypes or outputs read and write each byte once, in accesses without gaps") {
  if (!is_logged()) return;
  const Device device = *cuda_device();
  const Dims dims{kCount};
  for (const DType t : {DType::float32, DType::bfloat16, DType::float64}) {
    INFO(to_string(t));
    const auto size = static_cast<int64_t>(size_of(t));
    const DenseTensor x = on(device, dims, t), y = on(device, dims, t), condition = on(device, dims, DType::boolean);
    DenseTensor out = DenseTensor::allocate(device, {dims, t}), other = DenseTensor::allocate(device, {dims, t});
    DenseTensor mask = DenseTensor::allocate(device, {dims, DType::uint8});
    check_traffic(device, kCount * (1 + 2 * size), kCount * size,
                  [&] { run_kernel<In, In, In, Out>("where", device, t, condition, x, y, out); });
    check_traffic(device, kCount * size, kCount * (size + 1), [&] {
      run_kernel<In, In, const Scalar&, bool, const std::string&, int, bool, RandomKey, Out, Out>(
          "dropout", device, t, x, DenseTensor(), Scalar(0.5), false, "upscale_in_train", 0, false, RandomKey{7, 1},
          out, mask);
    });
    check_traffic(device, kCount * (size + 1), kCount * size, [&] {
      run_kernel<In, In, const Scalar&, bool, const std::string&, Out>("dropout_grad", device, t, mask, x, Scalar(0.5),
                                                                       false, "upscale_in_train", out);
    });
    check_traffic(device, 3 * kCount * size, 2 * kCount * size,
                  [&] { run_kernel<In, In, In, Out, Out>("swiglu_grad", device, t, x, y, x, out, other); });
    check_traffic(device, 2 * kCount * size, 2 * kCount * size,
                  [&] { run_kernel<In, In, float, Out, Out>("huber_loss", device, t, x, y, 0.5f, out, other); });
    const DenseTensor halves = on(device, {64, 2 * 512}, t);
    DenseTensor gated = DenseTensor::allocate(device, {{64, 512}, t});
    check_traffic(device, 64 * 1024 * size, 64 * 512 * size,
                  [&] { run_kernel<In, In, Out>("swiglu", device, t, halves, DenseTensor(), gated); });
    check_traffic(device, kCount * size, kCount * size, [&] {
      run_kernel<In, const Scalar&, const Scalar&, Out>("clip", device, t, x, Scalar(0.1), Scalar(0.5), out);
    });
  }
}

TEST_CASE("steps of optimisers read and write each byte once, many parameters in one launch") {
  if (!is_logged()) return;
  const Device device = *cuda_device();
  const std::vector<int64_t> sizes = {kCount, 5, 256 * 16, 3 * 256 * 16 + 1, 0, 1};
  for (const DType t : {DType::float32, DType::bfloat16}) {
    INFO(to_string(t));
    const auto list = [&](DType dtype) {
      std::vector<DenseTensor> made;
      for (const int64_t n : sizes) made.push_back(on(device, {n}, dtype));
      return made;
    };
    std::vector<DenseTensor> param = list(t), grad = list(t), first = list(DType::float32),
                             second = list(DType::float32);
    std::vector<DenseTensor> rate, power1, power2, masters;
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (auto* numbers : {&rate, &power1, &power2}) numbers->push_back(on(device, {1}, DType::float32));
    }
    using Inputs = std::span<const DenseTensor>;
    using Outputs = std::span<DenseTensor>;
    const auto step = [&] {
      run_kernel<Inputs, Inputs, Inputs, Inputs, Inputs, Inputs, Inputs, Inputs, const Scalar&, const Scalar&,
                 const Scalar&, bool, bool, Outputs, Outputs, Outputs, Outputs, Outputs, Outputs>(
          "merged_adam", device, t, param, grad, rate, first, second, power1, power2, masters, Scalar(0.9),
          Scalar(0.99), Scalar(1e-8), false, true, param, first, second, power1, power2, masters);
    };
    int64_t count = 0;
    for (const int64_t n : sizes) count += n;
    const auto size = static_cast<int64_t>(size_of(t));
    check_traffic(device, count * (2 * size + 8), count * (size + 8), step);
    cuda_host::begin_log();
    step();
    wait_for(device);
    CHECK(cuda_host::end_log().size() == 1);
  }
}

TEST_CASE("fused_adam launches one kernel for the steps of 32 parameters, and one for the powers of their betas") {
  if (!is_logged()) return;
  const Device device = *cuda_device();
  for (const size_t count : {size_t{1}, size_t{32}, size_t{33}, size_t{70}}) {
    const auto list = [&](int64_t n) {
      Tensors made;
      for (size_t i = 0; i < count; ++i) made.push_back(on(device, {n}, DType::float32));
      return made;
    };
    Tensors param = list(3), first = list(3), second = list(3), power1 = list(1), power2 = list(1), masters;
    const Tensors grad = list(3);
    const DenseTensor rate = on(device, {1}, DType::float32);
    using Inputs = std::span<const DenseTensor>;
    using Outputs = std::span<DenseTensor>;
    cuda_host::begin_log();
    run_kernel<Inputs, Inputs, In, Inputs, Inputs, Inputs, Inputs, Inputs, In, const Scalar&, const Scalar&,
               const Scalar&, int, float, bool, bool, bool, Outputs, Outputs, Outputs, Outputs, Outputs, Outputs>(
        "fused_adam", device, DType::float32, param, grad, rate, first, second, power1, power2, masters, DenseTensor(),
        Scalar(0.9), Scalar(0.99), Scalar(1e-8), 65536, 0.3f, true, false, false, param, first, second, power1, power2,
        masters);
    wait_for(device);
    CHECK(cuda_host::end_log().size() == 2 * ((count + 31) / 32));
  }
}
