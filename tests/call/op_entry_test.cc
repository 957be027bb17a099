// The table of ops: entries call dense functions with arguments that are known only at run time.
#include <catch2/catch.hpp>

#include <algorithm>

#include "shard/ops/math_ops.h"
#include "shard/program/ir/op_table.h"
#include "shard/shard.h"

namespace op_entry_test {

using namespace shard;

namespace {

DenseTensor dense(const std::vector<float>& values, const Dims& dims) {
  return Tensor::from_data(values, dims).impl()->value;
}

std::vector<float> floats(const DenseTensor& tensor) { return Tensor(DenseTensor(tensor)).to_vector<float>(); }

/// A call with a list of tensors for each slot.
struct Call {
  std::vector<DenseTensor> tensors;
  std::vector<SlotRange> slots;
  std::vector<Attr> attrs;

  explicit Call(const std::vector<std::vector<DenseTensor>>& arguments, std::vector<Attr> attributes = {})
      : attrs(std::move(attributes)) {
    for (const std::vector<DenseTensor>& slot : arguments) {
      slots.push_back({tensors.size(), slot.size()});
      tensors.insert(tensors.end(), slot.begin(), slot.end());
    }
  }
  /// Calls the form of that name.
  std::vector<std::vector<DenseTensor>> run(const OpEntry& entry, const char* name) {
    const OpContext ctx = call::context(name);
    const OutputMetas outputs = infer_outputs(entry, ctx, tensors, slots, attrs);
    EntryCall call{ctx, outputs, tensors, slots, attrs, {}};
    (std::string_view(name).ends_with('_') ? entry.inplace : entry.functional)(call);
    return std::move(call.results);
  }
};

const OpEntry& entry_of(const char* name) {
  const OpEntry* const entry = OpTable::instance().find(name);
  REQUIRE(entry != nullptr);
  return *entry;
}

/// The only result of a functional op.
DenseTensor run(const char* name, Call call) {
  const auto results = call.run(entry_of(name), name);
  REQUIRE(results.size() == 1);
  REQUIRE(results[0].size() == 1);
  return results[0][0];
}

}  // namespace

TEST_CASE("the table has every op with a dense function, by name, with its facts") {
  const std::vector<std::string> names = OpTable::instance().all_names();
  CHECK(names.size() > 100);
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    INFO(name);
    const OpEntry& entry = entry_of(name.c_str());
    CHECK(entry.op->name == name);
    CHECK((entry.functional || entry.inplace));
    CHECK(static_cast<bool>(entry.inplace) == !entry.op->inplace_name.empty());
    for (const DenseEntry& form : {entry.functional, entry.inplace}) {
      if (form) CHECK(form.attr_types.size() == entry.op->attrs.size());
    }
  }
  CHECK(entry_of("add").op == &ops::add);
  CHECK_FALSE(entry_of("sgd_").functional);
  CHECK(OpTable::instance().find("no_such_op") == nullptr);
  CHECK(OpTable::instance().find("zeros") == nullptr);  // it only calls full
}

TEST_CASE("an op that is added replaces the one of its name, and what was found stays as it was") {
  static constexpr OpDef def = {.name = "op_entry_test_op"};
  OpTable& table = OpTable::instance();
  table.add({&def, entry_of("add").infer, entry_of("add").functional, {}});
  const OpEntry* const first = table.find("op_entry_test_op");
  REQUIRE(first != nullptr);
  table.add({&def, entry_of("multiply").infer, entry_of("multiply").functional, {}});
  const OpEntry* const second = table.find("op_entry_test_op");
  CHECK(floats(Call({{dense({1, 2}, {2})}, {dense({3, 4}, {2})}}).run(*first, "add")[0][0]) ==
        std::vector<float>{4, 6});
  CHECK(floats(Call({{dense({1, 2}, {2})}, {dense({3, 4}, {2})}}).run(*second, "multiply")[0][0]) ==
        std::vector<float>{3, 8});
}

TEST_CASE("entries take tensors, lists and attributes of each type") {
  const DenseTensor x = dense({1, 2, 3}, {3}), y = dense({10, 20, 30}, {3});
  CHECK(floats(run("add", Call({{x}, {y}}))) == std::vector<float>{11, 22, 33});
  CHECK(floats(run("concat", Call({{x, y}}, {Scalar(0)}))) == std::vector<float>{1, 2, 3, 10, 20, 30});
  CHECK(floats(run("add_n", Call({{x, y, x}}))) == std::vector<float>{12, 24, 36});
  CHECK(floats(run("expand", Call({{x}}, {IntArray{2, 3}}))) == std::vector<float>{1, 2, 3, 1, 2, 3});
  const DenseTensor column = run("reshape", Call({{x}}, {IntArray{3, 1}}));
  CHECK(column.dims() == Dims{3, 1});
  CHECK(column.storage() == x.storage());
  CHECK(floats(run("full", Call({}, {IntArray{2}, Scalar(7.0), DType::float32, kCpu}))) == std::vector<float>{7, 7});
  CHECK(run("cast", Call({{x}}, {DType::int64})).dtype() == DType::int64);
  CHECK(floats(run("sum", Call({{dense({1, 2, 3, 4}, {2, 2})}}, {IntArray{1}, false}))) == std::vector<float>{3, 7});
  const auto parts = Call({{x}}, {IntArray{1, 2}, Scalar(0)}).run(entry_of("split"), "split");
  REQUIRE(parts.size() == 1);
  REQUIRE(parts[0].size() == 2);
  CHECK(floats(parts[0][1]) == std::vector<float>{2, 3});
}

TEST_CASE("entries of in-place forms write their arguments and return what is new") {
  Call add({{dense({1, 2}, {2})}, {dense({10, 20}, {2})}});
  CHECK(add.run(entry_of("add"), "add_").empty());
  CHECK(floats(add.tensors[0]) == std::vector<float>{11, 22});

  // As the public function does, without master_param and skip_update.
  Tensor param = Tensor::from_data<float>({1, -2}, {2}), moment1 = zeros({2}, DType::float32),
         moment2 = zeros({2}, DType::float32);
  Tensor beta1_pow = Tensor::from_data<float>({0.9f}, {1}), beta2_pow = Tensor::from_data<float>({0.99f}, {1}), none;
  const Tensor grad = Tensor::from_data<float>({0.5f, 0.25f}, {2}), rate = Tensor::from_data<float>({0.1f}, {1});
  std::vector<std::vector<DenseTensor>> tensors;
  for (const Tensor& each : {param, grad, rate, moment1, moment2, beta1_pow, beta2_pow, none, none})
    tensors.push_back({each.defined() ? clone(each.impl()->value) : DenseTensor()});
  Call adamw(tensors, {Scalar(0.9), Scalar(0.99), Scalar(1e-8), 1.0f, 0.01f, true, false, false});
  CHECK(adamw.run(entry_of("adamw_"), "adamw_").empty());
  adamw_(param, grad, rate, moment1, moment2, beta1_pow, beta2_pow, none, none, 0.9, 0.99, 1e-8, 1.0f, 0.01f, true);
  CHECK(floats(adamw.tensors[0]) == param.to_vector<float>());
  CHECK(floats(adamw.tensors[4]) == moment2.to_vector<float>());
  CHECK_FALSE(adamw.tensors[7].defined());

  Tensor out_grad = Tensor::from_data<float>({1, 2, 3}, {3});
  Call scatter({{Tensor::from_data<int64_t>({2, 0}, {2}).impl()->value}, {clone(out_grad.impl()->value)}}, {true});
  const auto results = scatter.run(entry_of("scatter_grad"), "scatter_grad_");
  REQUIRE(results.size() == 1);
  CHECK(floats(results[0][0]) == std::vector<float>{3, 1});
}

TEST_CASE("entries tell the types of attributes") {
  const std::span<const uint8_t> types = entry_of("full").functional.attr_types;
  const std::vector<Attr> examples = {IntArray{}, Scalar(0), DType::float32, kCpu};
  REQUIRE(types.size() == examples.size());
  for (size_t i = 0; i < types.size(); ++i) CHECK(types[i] == examples[i].index());
}

}  // namespace op_entry_test
