// Entries of ops of another target: its generated code adds them to the table under names of its own.
#include "shard/program/ir/op_table.h"

#include "form_testing.h"
#include "shard_tests_forms_api.h"

namespace op_entry_test {

using namespace shard;
using namespace shard::test;

namespace {

const OpEntry& entry_of(const char* name) {
  program::register_shard_tests_forms_api(OpTable::instance());
  const OpEntry* const entry = OpTable::instance().find(name);
  REQUIRE(entry != nullptr);
  return *entry;
}

DenseTensor dense(const std::vector<float>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())}).impl()->value;
}
std::vector<float> floats_of(const DenseTensor& tensor) { return floats(Tensor(DenseTensor(tensor))); }

}  // namespace

TEST_CASE("an entry writes a list in place, and new results come in the order of the outputs") {
  use_forms();
  std::vector<DenseTensor> tensors = {dense({1}), dense({2, 3}), dense({10}), dense({20, 30})};
  const std::vector<SlotRange> slots = {{0, 2}, {2, 2}};
  const std::vector<Attr> attrs = {Scalar(2)};
  const OpContext axpy = call::context("list_axpy_");
  const OutputMetas scaled = infer_outputs(entry_of("list_axpy"), axpy, tensors, slots, attrs);
  EntryCall call{axpy, scaled, tensors, slots, attrs, {}};
  entry_of("list_axpy").inplace(call);
  CHECK(call.results.empty());
  CHECK(floats_of(tensors[0]) == std::vector<float>{21});
  CHECK(floats_of(tensors[1]) == std::vector<float>{42, 63});

  std::vector<DenseTensor> values = {dense({1, 2}), dense({10, 20}), dense({5, 5})};
  const std::vector<SlotRange> one_and_list = {{0, 1}, {1, 2}};
  const OpContext step = call::context("step_and_total_");
  const OutputMetas stepped = infer_outputs(entry_of("step_and_total"), step, values, one_and_list, {});
  EntryCall parts{step, stepped, values, one_and_list, {}, {}};
  entry_of("step_and_total").inplace(parts);
  REQUIRE(parts.results.size() == 2);
  REQUIRE(parts.results[0].size() == 2);
  REQUIRE(parts.results[1].size() == 1);
  CHECK(floats_of(parts.results[0][1]) == std::vector<float>{6, 7});
  CHECK(floats_of(parts.results[1][0]) == std::vector<float>{15, 25});
  CHECK(floats_of(values[0]) == std::vector<float>{16, 27});
}

TEST_CASE("the tables of ops tell which attribute is a local shape") {
  const OpTable& table = OpTable::instance();
  CHECK(table.find("reshape")->op->local_shape == 0);
  CHECK(table.find("reshape")->op->local_shape_output == 0);
  CHECK(table.find("add")->op->local_shape == -1);
}

}  // namespace op_entry_test
