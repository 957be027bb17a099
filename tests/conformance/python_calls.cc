// Writes the calls that python/tests makes: for each case the function, its arguments and attributes by name, and its
// inputs. update.sh runs it.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "conformance/calls.h"
#include "shard/program/capture/trace.h"

using namespace shard;
using namespace shard::testing;
using Json = nlohmann::ordered_json;

namespace {

Json json_of(const Scalar& value) { return value.is_integer() ? Json(value.to<int64_t>()) : Json(value.to<double>()); }
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

/// A slot: the number of an input of the call, a list of them, or null where it is absent.
std::optional<Json> tensors_of(const program::Program& program, const program::Op& op, size_t slot) {
  std::vector<Json> numbers;
  const SlotRange range = op.slots[slot];
  for (size_t i = range.first; i < range.first + range.count; ++i) {
    Json number;
    if (op.inputs[i].value != 0) {
      const auto is_value = [&](const program::Named& input) { return input.value == op.inputs[i].value; };
      const auto found = std::find_if(program.inputs.begin(), program.inputs.end(), is_value);
      if (found == program.inputs.end()) return std::nullopt;
      number = found - program.inputs.begin();
    }
    numbers.push_back(number);
  }
  if (op.entry->op->inputs[slot].kind == SlotDef::Kind::list) return Json(numbers);
  return numbers.empty() ? Json() : numbers[0];
}

/// The arguments of a call by name. Nothing where its trace is not one op of the same name, as that of an op that calls
/// others.
std::optional<Json> arguments_of(const ReferenceCall& of, const CaseCall& call) {
  Tensors inputs;
  for (const DenseTensor& value : of.values(call)) inputs.emplace_back(value);
  std::optional<program::Trace> trace;
  try {
    trace = program::trace(
        [&](const Tensors& tensors) {
          Tensors writable = tensors;
          return call.run(writable);
        },
        inputs);
  } catch (const Error&) {
    return std::nullopt;  // shapes that come from data
  }
  const program::Program& program = trace->program;
  if (program.ops.size() != 1 || program.ops[0].kind != program::Kind::call) return std::nullopt;
  const program::Op& op = program.ops[0];
  if (op.name() != of.one->op) return std::nullopt;
  const OpDef& def = *op.entry->op;
  Json tensors = Json::object(), attrs = Json::object();
  for (size_t slot = 0; slot < def.inputs.size(); ++slot) {
    const std::optional<Json> one = tensors_of(program, op, slot);
    if (!one) return std::nullopt;
    tensors[std::string(def.inputs[slot].name)] = *one;
  }
  for (size_t i = 0; i < def.attrs.size() && i < op.attrs.size(); ++i)
    attrs[std::string(def.attrs[i])] = std::visit([](const auto& value) { return json_of(value); }, op.attrs[i]);
  return Json{{"tensors", tensors}, {"attrs", attrs}};
}

/// The dtype of each input: "T" for the one in which the call is made.
Json dtypes_of(const ReferenceCall& of) {
  const std::vector<DType> dtypes = of.dtypes();
  const DType first = dtypes.front(), last = dtypes.back();
  const CaseCall one = of.call(first), other = of.call(last);
  Json names = Json::array();
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    const bool follows = one.inputs[i].dtype == first && other.inputs[i].dtype == last;
    names.push_back(follows ? "T" : std::string(to_string(one.inputs[i].dtype)));
  }
  return names;
}

/// The arguments in the first and in the last dtype of the call, "T" for an attribute that is the dtype in both.
std::optional<Json> arguments_of(const ReferenceCall& of) {
  const DType first = of.dtypes().front(), last = of.dtypes().back();
  std::optional<Json> arguments = arguments_of(of, of.call(first));
  if (!arguments || first == last) return arguments;
  const std::optional<Json> others = arguments_of(of, of.call(last));
  if (!others) return arguments;
  for (auto& [name, value] : (*arguments)["attrs"].items()) {
    if (value == json_of(first) && (*others)["attrs"][name] == json_of(last)) value = "T";
  }
  return arguments;
}

/// The dims of the outputs, as update.sh writes them for reference.py.
std::string output_dims(const ReferenceCall& of) {
  const CaseCall call = of.call(of.dtypes()[0]);
  Tensors inputs;
  for (const DenseTensor& value : of.values(call)) inputs.emplace_back(value);
  std::string dims;
  for (const Tensor& out : call.run(inputs))
    dims += fmt::format("[{}]", out.defined() ? fmt::format("{}", fmt::join(out.meta().dims, ",")) : "");
  return dims;
}

/// Nothing for inputs that the op refuses.
std::optional<Json> line_of(const ReferenceCall& of) {
  std::string outputs;
  try {
    outputs = output_dims(of);
  } catch (const Error&) {
    return std::nullopt;
  }
  Json line = {{"function", of.one->op},
               {"op", of.op},
               {"case", of.name},
               {"draw", std::string(1, of.draw)},
               {"kind", kind_name(of.dtype)},
               {"checksum", fmt::format("{:08x}", of.checksum())},
               {"dtypes", dtypes_of(of)},
               {"outputs", outputs},
               {"inputs", of.inputs}};
  if (const std::optional<Json> arguments = arguments_of(of)) line.update(*arguments);
  return line;
}

}  // namespace

TEST_CASE("cases are written as calls for Python") {
  const char* const path = std::getenv("SHARD_CONFORMANCE_CALLS");
  std::ofstream file;
  if (path != nullptr) file.open(path);
  const OpCases cases = op_cases();
  std::set<std::string> ops, composed;
  for (const ReferenceCall& call : reference_calls(cases)) {
    if (call.draw == 'E' || (path == nullptr && call.draw != 'A')) continue;
    if (call.one->op.find("_grad") != std::string::npos) continue;
    const std::optional<Json> line = line_of(call);
    if (!line) continue;
    (line->contains("attrs") ? ops : composed).insert(call.one->op);
    if (file.is_open()) file << line->dump() << '\n';
  }
  CHECK(ops.size() > 350);
  INFO(fmt::format("{} ops have no arguments: {}", composed.size(), fmt::join(composed, " ")));
  CHECK(composed.size() < 80);
}
