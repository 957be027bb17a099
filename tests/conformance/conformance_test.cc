// Every op of the library, called as its cases call it, has the values that reference.py computed in float64 with NumPy
// and SciPy from the documentation of the op.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "conformance/calls.h"
#include "conformance/device_waits.h"
#include "conformance/expected.h"
#include "cuda/with_cudnn.h"
#include "shard/kernels/registry.h"
#include "shard/program/ir/op_table.h"
#include "shard/testing/tensors.h"
#include "support/cuda_device.h"
#include "support/sanitized.h"
#include "support/source_dir.h"

namespace conformance_test {

using namespace shard;
using namespace shard::testing;

namespace {

constexpr const char* kUpdate = "run tests/conformance/update.sh BUILD_FOLDER and review the diff";

/// Calls without rows.
struct Exception {
  std::string op, name;  // the case; empty for all of the op
  std::string draws;     // letters of kDraws
  std::string reason;
};
const std::vector<Exception>& exceptions() {
  static const std::vector<Exception> list = {
      {"bernoulli", "of 0 and 1", "ABCDE", "the generator decides; tests/call/random_test.cc has it"},
      {"binomial", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"dirichlet", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"multinomial", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"poisson", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"uniform_inplace", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"gaussian_inplace", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"exponential_", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"standard_gamma", "", "ABCDE", "the generator decides; tests/call/distributions_test.cc has it"},
      {"dropout", "upscale in train", "ABCDE", "the generator decides; tests/kernels/random_test.cc has it"},
      {"dropout", "seed tensor", "ABCDE", "the generator decides; tests/kernels/random_test.cc has it"},
      {"fused_dropout_add", "a fixed seed", "ABCDE",
       "the generator decides; tests/call/composed_layers_test.cc has one of 0"},
      {"rnn", "two layers of RNN_RELU, dropout", "ABCDE", "the generator decides; tests/call/sequence_test.cc has it"},
      {"rnn_grad", "two layers of RNN_RELU, dropout", "ABCDE",
       "the generator decides; tests/call/sequence_test.cc has it"},
      {"rnn", "", "E", "gates may be infinity times 0, and zeros beyond a sequence may be factors of NaN"},
      {"rnn_grad", "", "E", "gates may be infinity times 0, and zeros beyond a sequence may be factors of NaN"},
      {"warpctc", "", "E", "no document says how infinite logits are weighed"},
      {"viterbi_decode", "", "E", "no document says which of infinite and undefined scores is the best"},
      {"flash_attn", "dropout", "ABCDE", "the generator decides; tests/kernels/attention_test.cc has it"},
      {"flash_attn_grad", "dropout", "ABCDE", "the generator decides; tests/kernels/attention_test.cc has it"},
      {"flash_attn", "", "E", "no document says how infinite scores are weighed"},
      {"flash_attn_grad", "", "E", "no document says how infinite scores are weighed"},
      {"flash_attn_unpadded", "dropout", "ABCDE", "the generator decides; tests/call/attention_test.cc has it"},
      {"flash_attn_unpadded_grad", "dropout", "ABCDE",
       "the generator decides; tests/gradients/attention_test.cc has it"},
      {"memory_efficient_attention_grad", "dropout", "ABCDE",
       "the generator decides; tests/gradients/attention_test.cc has it"},
      {"flash_attn_unpadded", "", "E", "no document says how infinite scores are weighed"},
      {"flash_attn_unpadded_grad", "", "E", "no document says how infinite scores are weighed"},
      {"memory_efficient_attention", "", "E", "no document says how infinite scores are weighed"},
      {"memory_efficient_attention_grad", "", "E", "no document says how infinite scores are weighed"},
      {"top_p_sampling", "", "E",
       "refuses probabilities that are not finite; tests/call/distributions_test.cc has them"},
      {"cumprod_grad", "", "E", "it divides by factors, and infinite products have none"},
      {"swiglu_grad", "", "E", "its slope at infinity is infinity times 0, as that of silu_grad is documented to be"},
      {"cholesky", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"cholesky_solve", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"det", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"eigh", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"eigvalsh", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"inverse", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"lstsq", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"lu", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"matrix_power", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"matrix_rank", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"qr", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"slogdet", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"solve", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"svd", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"triangular_solve", "", "E", "LAPACK decides what becomes of elements that are not finite"},
      {"conv2d", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv2d_grad", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv3d", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv3d_grad", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv2d_transpose", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv2d_transpose_grad", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv3d_transpose", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"conv3d_transpose_grad", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"depthwise_conv2d_transpose", "", "E",
       "the zeros around an image may be factors of elements that are not finite"},
      {"depthwise_conv2d", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"depthwise_conv2d_grad", "", "E", "the zeros around an image may be factors of elements that are not finite"},
      {"fused_softmax_mask_upper_triangle", "", "E", "NaN anywhere in a row makes all of it NaN"},
      {"affine_grid", "", "E", "the product with a place of 0 may be that of an infinity"},
      {"grid_sample", "", "E", "a weight of 0 may be a factor of elements that are not finite"},
      {"grid_sample_grad", "", "E", "a weight of 0 may be a factor of elements that are not finite"},
      {"roi_align", "", "E", "refuses boxes that are not finite; tests/call/vision_test.cc has them"},
      {"roi_align_grad", "", "E", "refuses boxes that are not finite; tests/call/vision_test.cc has them"},
      {"nms", "", "E", "no document says what boxes that are not finite overlap"},
      {"roi_pool", "", "E", "refuses boxes that are not finite; tests/call/vision_test.cc has them"},
      {"auc", "", "E", "refuses what is no probability; tests/call/writing_test.cc has it"},
      {"searchsorted", "a sequence for each row, right, int32", "E", "its sequences do not rise"},
      {"merged_adam_", "", "E", "the order of its factors decides between NaN and infinity"},
      {"group_norm_grad", "", "E", "the order of its factors decides between NaN and infinity"},
      {"instance_norm_grad", "", "E", "the order of its factors decides between NaN and infinity"},
      {"batch_norm_grad", "", "E", "the order of its factors decides between NaN and infinity"},
  };
  return list;
}

bool is_excepted(const Exception& one, const ReferenceCall& call) {
  return one.op == call.op && (one.name.empty() || one.name == call.name) &&
         one.draws.find(call.draw) != std::string::npos;
}

bool has_no_rows(const ReferenceCall& call) {
  return std::any_of(exceptions().begin(), exceptions().end(),
                     [&](const Exception& one) { return is_excepted(one, call); });
}

const std::vector<ReferenceCall>& all_calls() {
  static const OpCases cases = op_cases();
  static const std::vector<ReferenceCall> calls = reference_calls(cases);
  return calls;
}

const ExpectedRows& all_rows() {
  static const ExpectedRows rows = read_expected(test::source_dir() + "/tests/conformance");
  return rows;
}

/// Sentences, of which the first few about each op are shown.
class Findings {
 public:
  void add(const ReferenceCall& call, const std::string& sentence) {
    ++count_;
    by_op_[call.one->op].push_back(call.title() + sentence);
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    std::string text = fmt::format("{} findings:", count_);
    for (const auto& [op, sentences] : by_op_) {
      for (size_t i = 0; i < std::min<size_t>(sentences.size(), 3); ++i) text += "\n  " + sentences[i];
      if (sentences.size() > 3) text += fmt::format("\n  and {} more of {}", sentences.size() - 3, op);
    }
    return text;
  }

 private:
  size_t count_ = 0;
  std::map<std::string, std::vector<std::string>> by_op_;
};

Tensors run(const CaseCall& call, const std::vector<DenseTensor>& values) {
  Tensors tensors;
  for (const DenseTensor& value : values) tensors.emplace_back(value);
  return call.run(tensors);
}

/// As run(), but empty where the op has no kernel for the dtype or its arguments cannot have it, if that dtype is not
/// one of its case.
std::optional<Tensors> run_if_supported(const ReferenceCall& of, DType dtype, const CaseCall& call,
                                        const std::vector<DenseTensor>& values) {
  try {
    return run(call, values);
  } catch (const Error& error) {
    const std::vector<DType>& named = of.one->dtypes;
    const bool unsupported = error.code() == ErrorCode::no_kernel || error.code() == ErrorCode::dtype_mismatch;
    if (unsupported && std::find(named.begin(), named.end(), dtype) == named.end()) return std::nullopt;
    throw;
  }
}

/// The row of a call if it has one and is of these inputs; else adds a finding.
const ExpectedRow* row_of(const ReferenceCall& call, Findings& findings) {
  const auto found = all_rows().find({call.op, call.name, call.draw, kind_name(call.dtype)});
  if (found == all_rows().end()) {
    findings.add(call, fmt::format(" has no expected values: write its function in a file "
                                   "tests/conformance/reference_FAMILY.py, {}",
                                   kUpdate));
    return nullptr;
  }
  if (found->second.checksum != call.checksum()) {
    findings.add(call, fmt::format(": the expected values are of other inputs: {}", kUpdate));
    return nullptr;
  }
  return &found->second;
}

double largest_input(const CaseCall& call) {
  int64_t most = 0;
  for (const CaseInput& input : call.inputs) most = std::max({most, std::abs(input.low), std::abs(input.high)});
  return static_cast<double>(most);
}

/// Ops that round weights to bfloat16 before they multiply values by them, as the processor's instructions need it.
bool rounds_factors(const std::string& op, DType dtype) {
  static const std::set<std::string> ops = {"flash_attn",
                                            "flash_attn_grad",
                                            "flash_attn_unpadded",
                                            "flash_attn_unpadded_grad",
                                            "memory_efficient_attention",
                                            "memory_efficient_attention_grad"};
  return dtype == DType::bfloat16 && ops.contains(op);
}

std::string check_outputs(Tensors outputs, const ExpectedRow& row, const CaseCall& call, const std::string& op) {
  while (!outputs.empty() && !outputs.back().defined()) outputs.pop_back();
  std::vector<ExpectedTensor> expected = row.outputs;
  while (!expected.empty() && !expected.back().defined) expected.pop_back();
  if (outputs.size() != expected.size())
    return fmt::format("there are {} outputs, the reference has {}", outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() != expected[i].defined) return fmt::format("output {} is present or absent", i);
    if (!expected[i].defined) continue;
    const DenseTensor& value = outputs[i].get().value;
    const std::string wrong = difference(value, expected[i], largest_input(call), rounds_factors(op, value.dtype()));
    if (!wrong.empty()) return fmt::format("output {}: {}", i, wrong);
  }
  return "";
}

/// A call for update.sh. The dims of its outputs are for attributes that are sizes, which no input shows.
std::string inputs_line(const ReferenceCall& call) {
  const CaseCall drawn = call.call(call.dtypes()[0]);
  std::string dims;
  for (const Tensor& out : run(drawn, call.values(drawn)))
    dims += fmt::format("[{}]", out.defined() ? fmt::format("{}", fmt::join(out.meta().dims, ",")) : "");
  return fmt::format("{}\t{}\t{}\t{}\t{:08x}\t{}\t{}\n", call.op, call.name, call.draw, kind_name(call.dtype),
                     call.checksum(), dims, call.inputs);
}

bool equal_bits(const DenseTensor& a, const DenseTensor& b) {
  return a.meta() == b.meta() &&
         (a.numel() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.numel()) * size_of(a.dtype())) == 0);
}

/// Whether the elements around a tensor with an offset are the 1 that they were.
bool margins_are_untouched(const DenseTensor& view) {
  const int64_t margin = margin_of(view.dims());
  return visit_dtype(view.dtype(), [&]<class T>(TypeTag<T>) {
    const T *before = view.data<T>() - margin, *after = view.data<T>() + view.numel();
    const auto is_one = [](T value) { return static_cast<double>(value) == 1; };
    return std::all_of(before, before + margin, is_one) && std::all_of(after, after + margin, is_one);
  });
}

}  // namespace

TEST_CASE("every case of an op has expected values of its inputs") {
  Findings findings;
  std::ofstream file;
  if (const char* path = std::getenv("SHARD_CONFORMANCE_INPUTS")) file.open(path);
  for (const ReferenceCall& call : all_calls()) {
    if (has_no_rows(call)) continue;
    if (!file.is_open()) {
      row_of(call, findings);
      continue;
    }
    if (call.is_shared()) continue;
    try {
      file << inputs_line(call);
    } catch (const Error& error) {
      findings.add(
          call, fmt::format(" throws: {} If it should, add it to exceptions() in conformance_test.cc", error.what()));
    }
  }
  INFO(findings.text());
  CHECK(findings.empty());
  for (const Exception& one : exceptions()) {
    INFO(one.op << ": " << one.name << ": " << one.reason);
    const auto excepted = [&](const ReferenceCall& call) { return is_excepted(one, call); };
    CHECK(std::any_of(all_calls().begin(), all_calls().end(), excepted));
  }
}

TEST_CASE("every op has the values of its reference in every dtype") {
  Findings findings;
  std::map<DType, std::set<std::string>> tried;
  for (const ReferenceCall& call : all_calls()) {
    if (has_no_rows(call)) continue;
    const ExpectedRow* const row = row_of(call, findings);
    if (row == nullptr) continue;
    for (const DType dtype : call.dtypes()) {
      try {
        const CaseCall drawn = call.call(dtype);
        const std::optional<Tensors> outputs = run_if_supported(call, dtype, drawn, call.values(drawn));
        if (!outputs) continue;
        tried[dtype].insert(call.one->op);
        const std::string wrong = check_outputs(*outputs, *row, drawn, call.one->op);
        if (!wrong.empty()) findings.add(call, fmt::format(" in {}: {}", to_string(dtype), wrong));
      } catch (const Error& error) {
        findings.add(call, fmt::format(" in {} throws: {}", to_string(dtype), error.what()));
      }
    }
  }
  INFO(findings.text());
  CHECK(findings.empty());
  CHECK(tried[DType::float32].size() > 200);
  CHECK(tried[DType::bfloat16].size() > 200);
}

namespace {

std::vector<DenseTensor> moved(Device device, const std::vector<DenseTensor>& values) {
  std::vector<DenseTensor> result;
  for (const DenseTensor& value : values) result.push_back(copy_to(device, value));
  return result;
}

/// What the call gives on `device`, on the CPU; nothing where it has no kernel.
std::optional<Tensors> run_on(Device device, const ReferenceCall& of, const CaseCall& call, DeviceWaits& waits) {
  const std::vector<DenseTensor> arguments = moved(device, of.values(call));
  try {
    Tensors outputs = waits.count(of.one->op, [&] { return run(call, arguments); });
    for (Tensor& out : outputs) {
      if (out.defined()) out = Tensor(copy_to(kCpu, out.get().value));
    }
    return outputs;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::no_kernel) return std::nullopt;
    throw;
  }
}

bool have_equal_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || equal_bits(x.get().value, y.get().value));
  });
}

constexpr size_t kMostOps = 300;  // of 344, some of which are random

/// Compares the outputs of calls on the device with their rows, each in the dtypes that `dtypes_of(call)` returns. At least
/// `least` ops are compared.
void compare_on_device(size_t least, const std::function<std::vector<DType>(const ReferenceCall&)>& dtypes_of) {
  const auto device = test::cuda_device();
  if (!device) return;
  Findings findings;
  DeviceWaits waits(*device);
  std::map<std::string, std::set<std::string>> lacking;  // dtypes of ops without a kernel
  std::set<std::string> compared;
  for (const ReferenceCall& call : all_calls()) {
    const std::vector<DType> dtypes = dtypes_of(call);
    if (dtypes.empty()) continue;
    if (has_no_rows(call)) {  // random, or not of numbers that are not finite
      if (call.draw == 'A') run_on(*device, call, call.call(call.dtype), waits);
      continue;
    }
    const ExpectedRow* const row = row_of(call, findings);
    if (row == nullptr) continue;
    for (const DType dtype : dtypes) {
      try {
        const CaseCall drawn = call.call(dtype);
        const std::vector<DenseTensor> values = call.values(drawn);
        if (!run_if_supported(call, dtype, drawn, values)) continue;
        const std::optional<Tensors> outputs = run_on(*device, call, drawn, waits);
        if (!outputs) lacking[call.one->op].insert(std::string(to_string(dtype)));
        if (!outputs) continue;
        compared.insert(call.one->op);
        const std::string wrong = check_outputs(*outputs, *row, drawn, call.one->op);
        if (!wrong.empty()) findings.add(call, fmt::format(" in {}: {}", to_string(dtype), wrong));
        // The model runs blocks in another order in each launch.
        if (call.draw == kDraws[0] && !have_equal_bits(*outputs, *run_on(*device, call, drawn, waits)))
          findings.add(call, fmt::format(" in {} has other bits when it is called again", to_string(dtype)));
      } catch (const Error& error) {
        findings.add(call, fmt::format(" in {} throws: {}", to_string(dtype), error.what()));
      }
    }
  }
  for (const auto& [op, dtypes] : lacking)
    FAIL_CHECK(op << " has no kernel for CUDA in " << fmt::format("{}", fmt::join(dtypes, ", ")));
  CHECK(waits.wrong(least >= kMostOps) == "");
  CHECK(compared.size() >= least);
  INFO(findings.text());
  CHECK(findings.empty());
}

}  // namespace

TEST_CASE("every op has the values of its reference on a device, in every dtype", "[slow_in_asan]") {
  compare_on_device(kMostOps, [](const ReferenceCall& call) { return call.dtypes(); });
}

TEST_CASE("convolutions, pooling and recurrent networks by cuDNN have the values of their references on a device",
          "[slow_in_asan]") {
  const test::WithCudnn with_cudnn;
  const auto is_by_cudnn = [](std::string_view op) {
    return op.find("conv") != op.npos || op.find("pool") != op.npos || op.find("rnn") != op.npos;
  };
  const uint64_t before = calls_of_cudnn();
  compare_on_device(
      15, [&](const ReferenceCall& call) { return is_by_cudnn(call.one->op) ? call.dtypes() : std::vector<DType>(); });
#ifdef CUDA_HOST_INSTRUMENTED  // on devices the test above ran it, where it is there
  CHECK(calls_of_cudnn() > before + 100);
#else
  static_cast<void>(before);
#endif
}

#ifdef SHARD_TEST_SANITIZED  // other builds run all of it
TEST_CASE("every op has the values of its reference on a device, in one dtype of each call") {
  compare_on_device(kMostOps, [](const ReferenceCall& call) -> std::vector<DType> {
    return {call.dtypes()[0]};  // of most ops float32
  });
}
#endif

TEST_CASE("every op has kernels for CUDA in the dtypes of those for the CPU") {
  const auto device = test::cuda_device();
  if (!device) return;
  std::set<std::string> lacking;
  for (const std::string& name : OpTable::instance().all_names()) {
    const OpDef& op = *OpTable::instance().find(name)->op;
    if (op.kernel.empty()) continue;
    const KernelTable& kernels = kernel_table(op.kernel.data());
    for (int i = 0; i < kNumDTypes; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (kernels.has(kCpu, dtype) && !kernels.has(*device, dtype)) lacking.insert(name);
    }
  }
  INFO(fmt::format("{}", fmt::join(lacking, ", ")));
  CHECK(lacking.empty());
}

TEST_CASE("every op computes the same from a tensor that starts within a larger buffer") {
  Findings findings;
  for (const ReferenceCall& call : all_calls()) {
    if (has_no_rows(call) && call.draw > 'C') continue;  // random, or no probabilities
    for (const DType dtype : call.dtypes()) {
      if (std::find(call.one->dtypes.begin(), call.one->dtypes.end(), dtype) == call.one->dtypes.end()) continue;
      try {
        const CaseCall drawn = call.call(dtype);
        const std::vector<DenseTensor> values = call.values(drawn, true);
        const Tensors plain = run(drawn, call.values(drawn)), shifted = run(drawn, values);
        const bool equal = std::equal(
            plain.begin(), plain.end(), shifted.begin(), shifted.end(), [](const Tensor& a, const Tensor& b) {
              return a.defined() == b.defined() && (!a.defined() || equal_bits(a.get().value, b.get().value));
            });
        if (!equal) findings.add(call, fmt::format(" in {}: the results depend on the offset", to_string(dtype)));
        if (!margins_are_untouched(values[0]))
          findings.add(call, fmt::format(" in {}: elements around the input were written", to_string(dtype)));
      } catch (const Error& error) {
        findings.add(call, fmt::format(" in {} throws: {}", to_string(dtype), error.what()));
      }
    }
  }
  INFO(findings.text());
  CHECK(findings.empty());
}

}  // namespace conformance_test
