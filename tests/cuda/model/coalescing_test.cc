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
const char* const kBytes = "a lane takes one byte of rows that begin anywhere in a sector; it could take words";
const char* const kChannels = "the cases have few elements of each channel, which a warp adds up";
const char* const kDiagonal = "each element of a diagonal is in a sector of its own";
const char* const kHalves = "halves of 4 elements are half a sector";
const char* const kImages = "the images of the cases have rows of 1 to 5 elements, which windows read at strides";
const char* const kIntegers =
    "a thread adds up each element of a product of integers, and walks along rows of a small matrix";
const char* const kLines = "lines are taken one by one, at a stride; neighbouring ones could be taken together";
const char* const kMatrix = "threads walk along rows of small matrices";
const char* const kPlaces = "data chooses the places";
const char* const kShort = "the cases have rows of 3 to 8 elements";
const char* const kSkips = "lanes skip elements, and the log takes the nth access of each lane for one of the warp";
const char* const kStrided = "one side has a stride, or rows of a few elements";

/// An op that touches `times` as many sectors as the least, in the worst of its cases.
struct Uncoalesced {
  double times;
  std::string reason;
};
const std::map<std::string, Uncoalesced>& uncoalesced() {
  static const std::map<std::string, Uncoalesced> ops = {
      {"addmm", {1.40, kIntegers}},
      {"affine_grid", {1.48, kShort}},
      {"all", {1.94, kBytes}},
      {"amax", {1.94, kBytes}},
      {"amin", {1.94, kBytes}},
      {"any", {1.94, kBytes}},
      {"argsort", {2.24, kLines}},
      {"auc", {1.68, kPlaces}},
      {"batch_norm", {1.34, kChannels}},
      {"bicubic_interp", {2.11, kImages}},
      {"bicubic_interp_grad", {1.66, kImages}},
      {"bilinear_interp", {1.52, kImages}},
      {"bilinear_interp_grad", {1.90, kImages}},
      {"bincount", {1.35, kPlaces}},
      {"bmm", {2.00, kIntegers}},
      {"cholesky_solve", {1.41, kMatrix}},
      {"conv2d", {9.73, kImages}},
      {"conv2d_grad", {4.32, kImages}},
      {"conv2d_transpose", {9.58, kImages}},
      {"conv2d_transpose_grad", {4.68, kImages}},
      {"conv3d", {3.29, kImages}},
      {"conv3d_grad", {1.86, kImages}},
      {"conv3d_transpose", {4.68, kImages}},
      {"conv3d_transpose_grad", {3.30, kImages}},
      {"crop", {16.50, kStrided}},
      {"cross_entropy_with_softmax", {1.98, kShort}},
      {"cross_entropy_with_softmax_grad", {1.96, kShort}},
      {"cumprod_grad", {6.03, kLines}},
      {"depthwise_conv2d", {3.00, kImages}},
      {"depthwise_conv2d_grad", {4.05, kImages}},
      {"depthwise_conv2d_transpose", {3.19, kImages}},
      {"diag", {4.50, kDiagonal}},
      {"diag_embed", {8.50, kDiagonal}},
      {"diagonal", {16.50, kDiagonal}},
      {"embedding_grad", {2.12, kPlaces}},
      {"fill_diagonal", {8.00, kDiagonal}},
      {"fill_diagonal_tensor", {16.50, kDiagonal}},
      {"flash_attn", {1.27, kShort}},
      {"flash_attn_grad", {1.30, kShort}},
      {"fold", {1.86, kImages}},
      {"fused_rotary_position_embedding", {2.00, kHalves}},
      {"fused_rotary_position_embedding_grad", {2.00, kHalves}},
      {"grid_sample", {7.51, kPlaces}},
      {"grid_sample_grad", {3.71, kPlaces}},
      {"group_norm", {1.82, kChannels}},
      {"index_add", {1.54, kPlaces}},
      {"index_put", {2.30, kPlaces}},
      {"index_sum", {1.53, kPlaces}},
      {"kthvalue", {1.93, kLines}},
      {"linear_interp", {1.39, kImages}},
      {"linear_interp_grad", {1.52, kImages}},
      {"lstsq", {3.69, kMatrix}},
      {"lu", {1.51, kMatrix}},
      {"lu_unpack", {2.02, kMatrix}},
      {"masked_select", {1.95, kSkips}},
      {"matmul", {2.41, kIntegers}},
      {"max", {1.94, kBytes}},
      {"max_pool2d_with_index", {2.43, kImages}},
      {"max_pool2d_with_index_double_grad", {1.55, kImages}},
      {"max_pool3d_with_index", {4.75, kImages}},
      {"max_pool3d_with_index_double_grad", {1.81, kImages}},
      {"median", {2.58, kLines}},
      {"memory_efficient_attention", {3.74, kShort}},
      {"memory_efficient_attention_grad", {1.29, kShort}},
      {"min", {1.94, kBytes}},
      {"mode", {1.40, kBytes}},
      {"multi_dot", {2.00, kIntegers}},
      {"nanmedian", {4.11, kLines}},
      {"nearest_interp", {1.31, kImages}},
      {"nearest_interp_grad", {1.86, kImages}},
      {"nll_loss", {2.89, kPlaces}},
      {"nll_loss_grad", {3.04, kPlaces}},
      {"nms", {1.58, kStrided}},
      {"nonzero", {2.67, kSkips}},
      {"pad", {1.31, kBytes}},
      {"pad3d", {1.45, kStrided}},
      {"pixel_shuffle", {2.50, kBytes}},
      {"pool2d", {4.56, kImages}},
      {"pool2d_double_grad", {4.56, kImages}},
      {"pool2d_grad", {2.19, kImages}},
      {"pool3d", {2.67, kImages}},
      {"pool3d_double_grad", {2.68, kImages}},
      {"pool3d_grad", {1.75, kImages}},
      {"prod", {1.89, kBytes}},
      {"put_along_axis", {2.95, kPlaces}},
      {"rnn", {2.82, kShort}},
      {"rnn_grad", {2.30, kShort}},
      {"roi_align", {1.63, kPlaces}},
      {"roi_pool", {1.63, kPlaces}},
      {"roll", {2.06, kStrided}},
      {"searchsorted", {1.29, kPlaces}},
      {"set_value", {2.88, kStrided}},
      {"set_value_with_tensor", {1.50, kStrided}},
      {"slice", {1.50, kBytes}},
      {"split", {1.97, kBytes}},
      {"stack", {2.00, kStrided}},
      {"strided_slice", {2.32, kStrided}},
      {"sum", {1.89, kBytes}},
      {"sync_batch_norm_", {1.33, kChannels}},
      {"take_along_axis", {2.54, kPlaces}},
      {"topk", {1.94, kBytes}},
      {"trace", {3.20, kDiagonal}},
      {"triangular_solve", {1.41, kMatrix}},
      {"trilinear_interp", {1.55, kImages}},
      {"unbind", {2.00, kStrided}},
      {"unique", {1.43, kPlaces}},
      {"unpool", {4.07, kPlaces}},
      {"unpool_grad", {4.75, kPlaces}},
      {"unslice", {2.32, kStrided}},
      {"unstack", {1.50, kBytes}},
  };
  return ops;
}

CaseCall call_of(const OpCase& one, DType dtype, int64_t size) {
  Draw draw(7, dtype, {size});
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

/// The size of dims in the largest call of a case that is small.
int64_t largest_size(const OpCase& one) {
  int64_t size = 4;
  while (2 * size <= kLargest && is_small(call_of(one, one.dtypes.front(), 2 * size))) size *= 2;
  return size;
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
  const char *const view = "the result shares the memory of the argument", *const copy =
                                                                               "a copy by the runtime of CUDA";
  static const std::map<std::string, std::string> ops = {
      {"assign", copy},    {"flatten", view},    {"reshape", view},    {"squeeze", view},
      {"unsqueeze", view}, {"view_dtype", view}, {"view_shape", view},
  };
  return ops;
}

/// The dtypes in which a case is called: its own, with bfloat16 in the place of float64 where the op knows it.
std::vector<DType> dtypes_of(const OpCase& one, int64_t size) {
  std::vector<DType> dtypes = one.dtypes;
  const auto found = std::find(dtypes.begin(), dtypes.end(), DType::float64);
  if (found != dtypes.end() && is_small(call_of(one, DType::bfloat16, size))) *found = DType::bfloat16;
  return dtypes;
}

/// Of ops with in-place forms: the others, which run the same kernels.
std::map<std::string, Worst> worst_of_ops(Device device) {
  std::map<std::string, Worst> ops;
  for (const OpCase& one : op_cases()) {
    if (one.op.ends_with('_') && ops.contains(one.op.substr(0, one.op.size() - 1))) continue;
    Worst& worst = ops[one.op];
    const int64_t size = largest_size(one);
    for (const DType dtype : dtypes_of(one, size)) {
      const auto [sectors, least] = sectors_of(call_of(one, dtype, size), device);
      if (least == 0) continue;
      const double times = static_cast<double>(sectors) / static_cast<double>(least);
      if (times > worst.times) worst = {times, fmt::format("{}, {}", one.name, to_string(dtype))};
    }
  }
  return ops;
}

}  // namespace

TEST_CASE("accesses of warps are coalesced in all ops, or a table says why not") {
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
