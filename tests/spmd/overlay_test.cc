// The expressions of overlays/paddle.yaml mean what they were verified with: tools/verify_overlay recorded, for a
// call of each op, which dims it sharded together and how it combined the outputs, by code of its own.
#include <catch2/catch.hpp>

#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shard/spmd/rule.h"
#include "support/mesh_run.h"
#include "support/source_dir.h"

namespace overlay_test {

using namespace shard;
using namespace shard::spmd;
using Json = nlohmann::json;

namespace {

AttrValue value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<int64_t>();
  IntArray values;
  for (const Json& value : json) values.push_back(value.get<int64_t>());
  return values;
}

/// A call from its text: shapes of tensors, of lists of them, or null for absent ones.
class Call {
 public:
  Call(const std::string& op, const Json& json) : rule_(json["rule"]) {
    def_.name = op;
    def_.location = "overlays/paddle.yaml";
    def_.rule = rule_;
    for (const Json& slot : json["inputs"]) slots_.push_back(add(slot, inputs_, shapes_, shapes_.size()));
    for (const Json& slot : json["outputs"]) {
      std::vector<const Json*> shapes;
      output_slots_.push_back(add(slot, results_, shapes, outputs_.size()));
      for (const Json* shape : shapes) outputs_.push_back({dims_of(*shape), DType::float32});
    }
    for (const auto& [name, value] : json["attrs"].items()) {
      attr_names_.push_back(keep(name));
      attrs_.push_back(value_of(value));
    }
    def_.inputs = inputs_;
    def_.outputs = results_;
    def_.attrs = attr_names_;
  }

  /// The layouts of all tensors when each input is sharded on the dim that `dims` says, -1 for none.
  std::string infer(const Json& dims) const {
    std::vector<TensorArg> tensors;
    for (size_t t = 0; t < shapes_.size(); ++t) {
      const Dims shape = dims_of(*shapes_[t]);
      tensors.push_back({{shape, DType::float32}, shapes_[t]->is_null() ? nullptr : layout(shape.rank(), dims[t])});
    }
    const RuleResult result = spmd::infer({def_, mesh(), tensors, slots_, attrs_, outputs_, output_slots_});
    std::string text;
    for (size_t t = 0; t < tensors.size(); ++t) {
      text += tensors[t].spec == nullptr ? "none " : DistSpec::make(result.inputs[t])->text() + " ";
    }
    for (const Layout& output : result.outputs) text += "-> " + DistSpec::make(output)->text() + " ";
    return text;
  }

  std::string expected(const Json& dims, const Json& places) const {
    std::string text;
    for (size_t t = 0; t < shapes_.size(); ++t) {
      text += shapes_[t]->is_null() ? "none " : layout(dims_of(*shapes_[t]).rank(), dims[t])->text() + " ";
    }
    for (size_t o = 0; o < outputs_.size(); ++o) {
      text += "-> " + layout(outputs_[o].dims.rank(), places[o])->text() + " ";
    }
    return text;
  }

 private:
  static const ProcessMesh* mesh() { return ProcessMesh::make({2}, {}, {"a"}); }

  static Dims dims_of(const Json& shape) {
    Dims dims;
    for (const Json& size : shape) dims.push_back(size.get<int64_t>());
    return dims;
  }

  /// Sharded on a dim, pending with a type, or "whole".
  static const DistSpec* layout(int rank, const Json& place) {
    Layout layout(mesh(), rank);
    if (place.is_string() && place != "whole") layout.partial[0] = *find_reduce_type(place.get<std::string>());
    if (place.is_number() && place >= 0) layout.dims[place.get<size_t>()].push_back(0);
    return DistSpec::make(layout);
  }

  std::string_view keep(std::string name) { return names_.emplace_back(std::move(name)); }

  /// A slot whose tensors begin at `first` in the flat order.
  SlotRange add(const Json& slot, std::vector<SlotDef>& slots, std::vector<const Json*>& shapes, size_t first) {
    const bool list = !slot.empty() && slot[0].is_array();
    slots.push_back({keep("t" + std::to_string(names_.size()))});
    if (list) slots.back().kind = SlotDef::Kind::list;
    if (!list) shapes.push_back(&slot);
    for (size_t i = 0; list && i < slot.size(); ++i) shapes.push_back(&slot[i]);
    return {first, list ? slot.size() : 1};
  }

  std::string rule_;
  std::deque<std::string> names_;
  OpDef def_{};
  std::vector<SlotDef> inputs_, results_;
  std::vector<const Json*> shapes_;
  std::vector<SlotRange> slots_, output_slots_;
  std::vector<Meta> outputs_;
  std::vector<std::string_view> attr_names_;
  std::vector<AttrValue> attrs_;
};

}  // namespace

TEST_CASE("expressions of the starter overlay give each op the layouts that were verified on PaddlePaddle's kernels") {
  std::ifstream file(test::source_dir() + "/tools/verify_overlay/layouts.json");
  const Json calls = Json::parse(file);
  int tried = 0;
  for (const auto& [op, json] : calls.items()) {
    const Call call(op, json);
    for (const Json& choice : json["shard"]) {
      INFO(op << ": " << json["rule"]);
      CHECK(call.infer(choice[0]) == call.expected(choice[0], choice[1]));
      ++tried;
    }
  }
  CHECK(tried > 700);
}

}  // namespace overlay_test
