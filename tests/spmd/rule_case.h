// Helpers for the tests of placement rules: a call given as text, and an op whose rule is an expression.
#pragma once

#include <catch2/catch.hpp>

#include "shard/spmd/rule.h"
#include "support/mesh_run.h"

namespace shard::test {

using namespace shard::spmd;

inline const ProcessMesh* grid() { return ProcessMesh::make({2, 3}, {}, {"a", "b"}); }

struct In {
  Dims dims;
  const char* layout;  // null: an absent optional
  DType dtype = DType::float32;
};

struct Case {
  const OpDef& op;
  std::vector<In> inputs;
  std::vector<AttrValue> attrs;
  std::vector<Dims> outputs;
  std::string expected;            // "wanted -> given"
  std::vector<size_t> slots = {};  // tensors per input slot; empty: one each
  std::vector<bool> pinned = {};
  const ProcessMesh* mesh = grid();
  const LayoutSolver* solver = nullptr;
  std::vector<size_t> output_slots = {};  // tensors per output slot; empty: all those of a list, or one each
};

struct Inferred {
  std::string text;
  std::vector<Layout> inputs;
  AxisList reduce_axes;
  bool relayout = false;
};

inline std::string join(const std::vector<Layout>& layouts) {
  std::string text;
  for (const Layout& layout : layouts) text += (text.empty() ? "" : ", ") + DistSpec::make(layout)->text();
  return text;
}

/// Infers forward, or in reverse from the layouts that the outputs should get (null: any).
inline Inferred run(const Case& c, const std::vector<const char*>& wanted = {}) {
  std::vector<TensorArg> tensors;
  for (const In& in : c.inputs) {
    tensors.push_back(in.layout == nullptr ? TensorArg{}
                                           : TensorArg{{in.dims, in.dtype}, DistSpec::parse(c.mesh, in.layout)});
  }
  std::vector<SlotRange> slots;
  size_t first = 0;
  for (size_t s = 0; s < c.op.inputs.size(); ++s) {
    const size_t count = c.slots.empty() ? 1 : c.slots[s];
    slots.push_back({first, count});
    first += count;
  }
  std::vector<Meta> outputs;
  std::vector<SlotRange> output_slots;
  for (const Dims& dims : c.outputs) outputs.push_back({dims, c.inputs[0].dtype});
  first = 0;
  for (size_t o = 0; o < c.op.outputs.size(); ++o) {
    const bool list = c.op.outputs[o].kind == SlotDef::Kind::list;
    const size_t count = c.output_slots.empty() ? (list ? outputs.size() : 1) : c.output_slots[o];
    output_slots.push_back({first, count});
    first += count;
  }
  RuleArgs args{c.op, c.mesh, tensors, slots, c.attrs, outputs, output_slots, c.pinned};
  args.solver = c.solver;
  std::vector<const DistSpec*> specs;
  for (const char* layout : wanted) specs.push_back(layout == nullptr ? nullptr : DistSpec::parse(c.mesh, layout));
  const RuleResult result = wanted.empty() ? infer(args) : infer_reverse(args, specs);
  return {join(result.inputs) + " -> " + join(result.outputs), result.inputs, result.reduce_axes, result.relayout};
}

inline void check_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::string label(c.op.name);
    for (const In& in : c.inputs)
      label += in.layout == nullptr ? " (absent)" : " " + to_string(in.dims) + " [" + in.layout + "]";
    INFO(label);
    CHECK(run(c).text == c.expected);
  }
}

/// An op with up to five inputs and three outputs of one tensor each, whose rule is an axis expression.
struct Expression {
  explicit Expression(std::string_view rule, size_t inputs = 2, size_t outputs = 1,
                      std::span<const std::string_view> attrs = {}) {
    def.name = "mine";
    def.location = "mine.yaml:3";
    def.rule = rule;
    static constexpr SlotDef names[] = {{"x"}, {"y"}, {"z"}, {"u"}, {"v"}};
    static constexpr SlotDef results[] = {{"out"}, {"second"}, {"third"}};
    def.inputs = std::span(names).first(inputs);
    def.outputs = std::span(results).first(outputs);
    def.attrs = attrs;
  }
  OpDef def{};
};

inline const AttrValue kNo = false;
inline const AttrValue kYes = true;

}  // namespace shard::test
