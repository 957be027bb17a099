// Runs every op on a mesh in the dtypes that its cases do not name: 16-bit floats and bytes,
// sharded. The results must equal the plain results bit for bit.
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "shard/testing/rule_check.h"

namespace dtype_cases_test {

using namespace shard;
using namespace shard::testing;

namespace {

constexpr int kRanks = 3;
constexpr size_t kMostLayouts = 4;

/// True if the op has no such kernel or its arguments cannot have this dtype. Any other error of
/// the plain call is a failure.
bool is_unsupported(const CaseCall& call, const Layouts& replicated) {
  try {
    DrawnCall(call, replicated, 1, false).expected(call);
    return false;
  } catch (const Error& error) {
    INFO(error.what());
    CHECK((error.code() == ErrorCode::no_kernel || error.code() == ErrorCode::dtype_mismatch));
    return true;
  }
}

/// Layouts for the arguments of a call: each argument in turn sharded on each of its dims with the
/// others replicated, then all arguments sharded on their first dims.
std::vector<Layouts> sharded_layouts(const ProcessMesh* mesh, const CaseCall& call) {
  const auto layout_of = [&](size_t input, int dim) {
    Layout layout(mesh, call.inputs[input].dims.rank());
    if (dim >= 0 && dim < call.inputs[input].dims.rank()) layout.dims[static_cast<size_t>(dim)].push_back(0);
    return DistSpec::make(layout);
  };
  std::vector<Layouts> all(1);
  for (size_t i = 0; i < call.inputs.size(); ++i) all[0].push_back(layout_of(i, 0));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    for (int d = 0; d < call.inputs[i].dims.rank() && all.size() < kMostLayouts; ++d) {
      Layouts& one = all.emplace_back();
      for (size_t k = 0; k < call.inputs.size(); ++k) one.push_back(layout_of(k, k == i ? d : -1));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("every op in 16-bit floats and bytes on a mesh equals the plain op, for each that it has a kernel for",
          "[slow_in_asan][slow_in_tsan]") {
  CallChecker ranks(kRanks);
  const ProcessMesh* const mesh = ProcessMesh::make({kRanks});
  std::map<DType, std::set<std::string>> tried;
  for (const OpCase& one : op_cases()) {
    for (const DType dtype : {DType::bfloat16, DType::float16, DType::uint8}) {
      Draw draw(17, dtype, {2, 3, 5, 7});
      const CaseCall call = one.make(draw);
      Layouts replicated;
      for (const CaseInput& input : call.inputs) replicated.push_back(DistSpec::replicated(mesh, input.dims.rank()));
      INFO(one.op << ": " << one.name << " in " << to_string(dtype));
      if (is_unsupported(call, replicated)) continue;
      tried[dtype].insert(one.op);
      const std::vector<Layouts> layouts = sharded_layouts(mesh, call);
      const std::vector<Outcome> outcomes = ranks.check(call, layouts, one.ulps, 29);
      for (size_t k = 0; k < layouts.size(); ++k) {
        INFO(testing::to_string(layouts[k]) << ": " << outcomes[k].text);
        CHECK(outcomes[k].kind == Outcome::Kind::right);
      }
    }
  }
  CHECK(tried[DType::bfloat16].size() > 100);
  CHECK(tried[DType::float16] == tried[DType::bfloat16]);
  CHECK(tried[DType::uint8].size() > 50);
}

}  // namespace dtype_cases_test
