// Accesses of the warps of ops' kernels are coalesced, by the log of the model, except where a table says why not.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "access.h"
#include "shard/testing/op_cases.h"
#include "shard/testing/shards.h"
#include "shard/testing/tensors.h"
#include "support/cuda_device.h"

namespace coalescing_test {

#ifdef CUDA_HOST_INSTRUMENTED  // otherwise accesses are not logged

using namespace shard;
using namespace shard::testing;

namespace {

constexpr double kMost = 1.26;        // times the least number of sectors that hold what a warp accesses
constexpr double kNear = 1.05;        // how far an op may be from its entry in the table
constexpr int64_t kElements = 5'000;  // of all arguments and results of a call
constexpr int64_t kLargest = 1024;    // size of a dim

// Why accesses are not coalesced: by nature, or by what a kernel could do better.
const char* const kBoxes = "the numbers of a box are read one by one; one load could take all four";
const char* const kChannels = "the cases have few elements of each channel, which a warp adds up";
const char* const kDiagonal = "each element of a diagonal is in a sector of its own";
const char* const kHalves = "halves of 4 elements are half a sector";
const char* const kImages = "the images of the cases have rows of 1 to 5 elements, which windows read at strides";
const char* const kLines = "lines are taken one by one, at a stride; neighbouring ones could be taken together";
const char* const kMatrix = "threads walk along rows of small matrices";
const char* const kPlaces = "data chooses the places";
const char* const kShort = "the cases have rows of 3 elements";
const char* const kSkips = "lanes skip elements, and the log takes the nth access of each lane for one of the warp";
const char* const kStrided = "one side has a stride, or rows of a few elements";

/// An op that touches `times` as many sectors as the least, in the worst of its cases.
struct Uncoalesced {
  double times;
  std::string reason;
};
const std::map<std::string, Uncoalesced>& uncoalesced() {
  static const std::map<std::string, Uncoalesced> ops = {
      {"affine_grid", {1.48, kShort}},
      {"argsort", {2.24, kLines}},
      {"auc", {1.68, kPlaces}},
      {"batch_norm", {1.34, kChannels}},
      {"bicubic_interp", {1.92, kImages}},
      {"bicubic_interp_grad", {1.66, kImages}},
      {"bilinear_interp", {1.52, kImages}},
      {"bilinear_interp_grad", {1.90, kImages}},
      {"bincount", {1.35, kPlaces}},
      {"box_coder", {4.00, kBoxes}},
      {"cholesky_solve", {1.41, kMatrix}},
      {"conv2d", {6.44, kImages}},
      {"conv2d_grad", {4.04, kImages}},
      {"conv2d_transpose", {5.23, kImages}},
      {"conv2d_transpose_grad", {3.00, kImages}},
      {"conv3d", {3.00, kImages}},
      {"conv3d_grad", {1.41, kImages}},
      {"conv3d_transpose", {4.68, kImages}},
      {"conv3d_transpose_grad", {2.58, kImages}},
      {"crop", {4.50, kStrided}},
      {"cumprod_grad", {3.45, kLines}},
      {"depthwise_conv2d", {3.00, kImages}},
      {"depthwise_conv2d_grad", {2.67, kImages}},
      {"depthwise_conv2d_transpose", {3.19, kImages}},
      {"diag", {4.50, kDiagonal}},
      {"diag_embed", {4.50, kDiagonal}},
      {"diagonal", {4.50, kDiagonal}},
      {"embedding_grad", {1.68, kPlaces}},
      {"fill_diagonal", {8.00, kDiagonal}},
      {"fill_diagonal_tensor", {4.50, kDiagonal}},
      {"fold", {1.86, kImages}},
      {"fused_rotary_position_embedding", {2.00, kHalves}},
      {"fused_rotary_position_embedding_grad", {2.00, kHalves}},
      {"grid_sample", {4.49, kPlaces}},
      {"grid_sample_grad", {3.08, kPlaces}},
      {"group_norm", {1.47, kChannels}},
      {"index_add", {1.40, kPlaces}},
      {"index_put", {2.30, kPlaces}},
      {"index_sum", {1.41, kPlaces}},
      {"kthvalue", {1.39, kLines}},
      {"linear_interp", {1.32, kImages}},
      {"linear_interp_grad", {1.52, kImages}},
      {"lstsq", {3.69, kMatrix}},
      {"lu", {1.51, kMatrix}},
      {"lu_unpack", {2.02, kMatrix}},
      {"masked_select", {1.95, kSkips}},
      {"max_pool2d_with_index", {2.43, kImages}},
      {"max_pool2d_with_index_double_grad", {1.55, kImages}},
      {"max_pool3d_with_index", {4.26, kImages}},
      {"max_pool3d_with_index_double_grad", {1.81, kImages}},
      {"median", {2.58, kLines}},
      {"nanmedian", {4.11, kLines}},
      {"nearest_interp", {1.31, kImages}},
      {"nearest_interp_grad", {1.86, kImages}},
      {"nll_loss", {2.66, kPlaces}},
      {"nll_loss_grad", {3.04, kPlaces}},
      {"nonzero", {2.27, kSkips}},
      {"pad3d", {1.45, kStrided}},
      {"pool2d", {3.99, kImages}},
      {"pool2d_double_grad", {3.99, kImages}},
      {"pool2d_grad", {2.19, kImages}},
      {"pool3d", {2.67, kImages}},
      {"pool3d_double_grad", {2.68, kImages}},
      {"pool3d_grad", {1.75, kImages}},
      {"put_along_axis", {2.95, kPlaces}},
      {"rnn", {2.82, kShort}},
      {"rnn_grad", {2.30, kShort}},
      {"roi_align", {1.63, kPlaces}},
      {"roi_pool", {1.63, kPlaces}},
      {"roll", {2.06, kStrided}},
      {"searchsorted", {1.29, kPlaces}},
      {"set_value", {2.88, kStrided}},
      {"set_value_with_tensor", {1.50, kStrided}},
      {"stack", {2.00, kStrided}},
      {"strided_slice", {2.01, kStrided}},
      {"sync_batch_norm_", {1.33, kChannels}},
      {"take_along_axis", {2.54, kPlaces}},
      {"trace", {3.20, kDiagonal}},
      {"triangular_solve", {1.41, kMatrix}},
      {"trilinear_interp", {1.55, kImages}},
      {"unbind", {2.00, kStrided}},
      {"unique", {1.43, kPlaces}},
      {"unpool", {3.62, kPlaces}},
      {"unpool_grad", {3.33, kPlaces}},
      {"unslice", {2.01, kStrided}},
  };
  return ops;
}

/// Ops that are not called, because they take the model seconds.
bool is_slow(const std::string& op) {
  return op == "nms" || op == "send_ue_recv" || op.find("attn") != std::string::npos ||
         op.find("attention") != std::string::npos;
}

CaseCall call_of(const OpCase& one, int64_t size) {
  Draw draw(7, one.dtypes.front(), {size});
  return one.make(draw);
}

Tensors arguments_of(const CaseCall& call, Device device) {
  Random random(7);
  Tensors arguments;
  for (const CaseInput& input : call.inputs) arguments.emplace_back(copy_to(device, draw_value(input, {}, random)));
  return arguments;
}

/// Whether a call can be made, which is tried on the CPU, and its arguments and results have at most kElements.
bool is_small(const CaseCall& call) {
  int64_t count = 0;
  for (const CaseInput& input : call.inputs) count += input.dims.numel();
  if (count > kElements) return false;
  Tensors arguments = arguments_of(call, kCpu);
  try {
    for (const Tensor& out : call.run(arguments)) count += out.defined() ? out.dims().numel() : 0;
  } catch (const Error&) { return false; }  // attributes of the case are for smaller tensors
  return count <= kElements;
}

/// The largest call of a case that is small.
CaseCall largest_call(const OpCase& one) {
  int64_t size = 4;
  while (2 * size <= kLargest && is_small(call_of(one, 2 * size))) size *= 2;
  return call_of(one, size);
}

/// Sectors that the warps of a call's kernels touch, and the least number that would hold the bytes of each access.
std::pair<uint64_t, uint64_t> sectors_of(const CaseCall& call, Device device) {
  Tensors arguments = arguments_of(call, device);
  backend_of(device).synchronize(device.index);
  cuda_host::begin_log();
  call.run(arguments);
  backend_of(device).synchronize(device.index);
  std::pair<uint64_t, uint64_t> sum;
  for (const cuda_host::GridLog& log : cuda_host::end_log()) {
    sum.first += log.sectors;
    sum.second += log.least_sectors;
  }
  return sum;
}

/// How many times the least number of sectors an op touches, in the worst of its cases.
struct Worst {
  double times = 0;
  std::string name;
};

/// Ops whose calls the log sees nothing of, and why.
const std::map<std::string, std::string>& unlogged() {
  const char *const view = "the result shares the memory of the argument",
                    *const copy = "a copy by the runtime of CUDA", *const product = "a product by cuBLASLt";
  static const std::map<std::string, std::string> ops = {
      {"assign", copy},    {"bmm", product},       {"dot", product},     {"flatten", view},
      {"matmul", product}, {"multi_dot", product}, {"mv", product},      {"reshape", view},
      {"squeeze", view},   {"unsqueeze", view},    {"view_dtype", view}, {"view_shape", view},
  };
  return ops;
}

/// Of ops with in-place forms: the others, which run the same kernels.
std::map<std::string, Worst> worst_of_ops(Device device) {
  std::map<std::string, Worst> ops;
  for (const OpCase& one : op_cases()) {
    if (is_slow(one.op)) continue;
    if (one.op.ends_with('_') && ops.contains(one.op.substr(0, one.op.size() - 1))) continue;
    const auto [sectors, least] = sectors_of(largest_call(one), device);
    Worst& worst = ops[one.op];
    if (least == 0) continue;
    const double times = static_cast<double>(sectors) / static_cast<double>(least);
    if (times > worst.times) worst = {times, one.name};
  }
  return ops;
}

}  // namespace

TEST_CASE("accesses of warps are coalesced in all ops but the slowest, or a table says why not") {
  const auto device = test::cuda_device();
  if (!device) return;
  const std::map<std::string, Worst> worst = worst_of_ops(*device);
  for (const auto& [op, found] : worst) {
    INFO(fmt::format("{} ({}) touches {:.3f} times the least number of sectors", op, found.name, found.times));
    CHECK((found.times == 0) == unlogged().contains(op));
    const auto entry = uncoalesced().find(op);
    if (entry == uncoalesced().end()) CHECK(found.times <= kMost);
    else CHECK(std::max(found.times / entry->second.times, entry->second.times / found.times) <= kNear);
  }
  for (const auto& [op, reason] : unlogged()) {
    INFO(op << ": " << reason);
    CHECK(worst.contains(op));
  }
  for (const auto& [op, entry] : uncoalesced()) {
    INFO(op << ": " << entry.reason);
    CHECK(worst.contains(op));
    CHECK(entry.times > kMost);
  }
}

#endif

}  // namespace coalescing_test
