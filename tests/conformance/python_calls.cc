// Writes the calls that python/tests makes: for each case its functions, their arguments by name, and the inputs.
// update.sh runs it.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "conformance/calls.h"
#include "shard/program/capture/trace.h"

using namespace shard;
using namespace shard::testing;
using Json = nlohmann::ordered_json;

namespace {

/// JSON has no numbers for infinities and NaN: "inf", "-inf", "nan".
Json real(double value) { return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)); }
Json json_of(float value) { return real(value); }
Json json_of(double value) { return real(value); }
Json json_of(const Scalar& value) { return value.is_integer() ? Json(value.to<int64_t>()) : real(value.to<double>()); }
template <class T>
Json json_of(const T& value) {
  if constexpr (std::is_same_v<T, DType> || std::is_same_v<T, Device>) return Json(std::string(to_string(value)));
  else return Json(value);
}
template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : Json();
}
template <class T>
Json json_of(const std::vector<T>& values) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(json_of(static_cast<const T&>(value)));
  return list;
}

/// The numbers of the values of a program: of its inputs, then of the outputs of its ops.
class Numbers {
 public:
  explicit Numbers(const program::Program& program) {
    for (const program::Named& input : program.inputs) add(input.value);
    for (const program::Op& op : program.ops) {
      for (const program::ValueId value : op.outputs) add(value);
    }
  }
  Json operator[](program::ValueId value) const { return value == 0 ? Json() : Json(numbers_.at(value)); }
  bool has(program::ValueId value) const { return value == 0 || numbers_.contains(value); }

 private:
  void add(program::ValueId value) {
    if (value != 0) numbers_[value] = next_;
    ++next_;
  }
  std::map<program::ValueId, int> numbers_;
  int next_ = 0;
};

/// A call with its arguments by name. A tensor is the number of a value, a list of them, or null where it is absent.
std::optional<Json> step_of(const program::Op& op, const Numbers& numbers) {
  if (op.kind != program::Kind::call) return std::nullopt;
  const OpDef& def = *op.entry->op;
  Json tensors = Json::object(), attrs = Json::object();
  for (size_t slot = 0; slot < def.inputs.size(); ++slot) {
    Json values = Json::array();
    for (size_t i = op.slots[slot].first; i < op.slots[slot].first + op.slots[slot].count; ++i) {
      if (!numbers.has(op.inputs[i].value)) return std::nullopt;
      values.push_back(numbers[op.inputs[i].value]);
    }
    const bool list = def.inputs[slot].kind == SlotDef::Kind::list;
    tensors[std::string(def.inputs[slot].name)] = list ? values : values.empty() ? Json() : values[0];
  }
  for (size_t i = 0; i < def.attrs.size() && i < op.attrs.size(); ++i)
    attrs[std::string(def.attrs[i])] = std::visit([](const auto& value) { return json_of(value); }, op.attrs[i]);
  return Json{{"function", std::string(op.name())},
              {"tensors", tensors},
              {"attrs", attrs},
              {"outputs", static_cast<int64_t>(op.outputs.size())}};
}

program::Trace trace_of(const ReferenceCall& of, const CaseCall& call) {
  Tensors inputs;
  for (const DenseTensor& value : of.values(call)) inputs.emplace_back(value);
  const auto function = [&](const Tensors& tensors) {
    Tensors writable = tensors;
    return call.run(writable);
  };
  return program::trace(function, inputs);
}

/// The steps of a call: that of the op, and those with which the case prepares its arguments or reads its results.
/// Nothing where the op does not appear in its trace, such as an op that calls others, or cannot be traced.
std::optional<Json> steps_of(const ReferenceCall& of, const CaseCall& call) {
  try {
    const program::Trace trace = trace_of(of, call);
    if (!trace.parameters.empty()) return std::nullopt;
    const Numbers numbers(trace.program);
    Json steps = Json::array(), results = Json::array();
    bool found = false;
    for (const program::Op& op : trace.program.ops) {
      const std::optional<Json> step = step_of(op, numbers);
      if (!step) return std::nullopt;
      found |= op.name() == of.one->op;
      steps.push_back(*step);
    }
    for (const program::Named& output : trace.program.outputs) {
      if (!numbers.has(output.value)) return std::nullopt;
      results.push_back(numbers[output.value]);
    }
    if (!found) return std::nullopt;
    return Json{{"steps", steps}, {"results", results}};
  } catch (const Error&) {
    return std::nullopt;  // shapes that come from data
  }
}

/// The dtype of each input: "T" for the one in which the call is made, "W" for float64 in calls in float64 and float32
/// in those in other floats.
Json dtypes_of(const ReferenceCall& of) {
  const std::vector<DType> dtypes = of.dtypes();
  std::vector<CaseCall> calls;
  for (const DType dtype : dtypes) calls.push_back(of.call(dtype));
  const auto in_all = [&](size_t input, auto dtype_in) {
    for (size_t i = 0; i < dtypes.size(); ++i) {
      if (calls[i].inputs[input].dtype != dtype_in(dtypes[i])) return false;
    }
    return true;
  };
  const auto wide = [](DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; };
  Json names = Json::array();
  for (size_t i = 0; i < calls[0].inputs.size(); ++i) {
    const bool same = in_all(i, [](DType dtype) { return dtype; });
    names.push_back(same ? "T" : in_all(i, wide) ? "W" : std::string(to_string(calls[0].inputs[i].dtype)));
  }
  return names;
}

/// The steps in the first and in the last dtype of the call, "T" for an attribute that is the dtype in both.
std::optional<Json> steps_of(const ReferenceCall& of) {
  const DType first = of.dtypes().front(), last = of.dtypes().back();
  std::optional<Json> steps = steps_of(of, of.call(first));
  if (!steps || first == last) return steps;
  const std::optional<Json> others = steps_of(of, of.call(last));
  if (!others || (*others)["steps"].size() != (*steps)["steps"].size()) return steps;
  for (size_t i = 0; i < (*steps)["steps"].size(); ++i) {
    const Json& other = (*others)["steps"][i]["attrs"];
    for (auto& [name, value] : (*steps)["steps"][i]["attrs"].items()) {
      if (value == json_of(first) && other[name] == json_of(last)) value = "T";
    }
  }
  return steps;
}

Json line_of(const ReferenceCall& of) {
  Json line = {{"function", of.one->op},
               {"op", of.op},
               {"case", of.name},
               {"draw", std::string(1, of.draw)},
               {"kind", kind_name(of.dtype)},
               {"named", json_of(of.one->dtypes)},
               {"dtypes", dtypes_of(of)},
               {"inputs", of.inputs}};
  if (const std::optional<Json> steps = steps_of(of)) line.update(*steps);
  return line;
}

}  // namespace

TEST_CASE("cases are written as calls for Python") {
  const char* const path = std::getenv("SHARD_CONFORMANCE_CALLS");
  std::ofstream file;
  if (path != nullptr) file.open(path);
  const OpCases cases = op_cases();
  std::set<std::string> traced, composed;
  for (const ReferenceCall& call : reference_calls(cases)) {
    if (call.draw == 'E' || (path == nullptr && call.draw != 'A')) continue;
    const Json line = line_of(call);
    (line.contains("steps") ? traced : composed).insert(call.one->op);
    if (file.is_open()) file << line.dump() << '\n';
  }
  INFO(fmt::format("ops without steps: {}", fmt::join(composed, " ")));
  CHECK(traced.size() > 350);
}
