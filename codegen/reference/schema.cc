// A definition per kind of value and per block of keys.
#include "reference/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "model/op.h"
#include "model/types.h"
#include "read/key_tables.h"

namespace shardgen {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kWord = "\\w+";
constexpr const char* kQualified = "\\w+(::\\w+)*";

OrderedJson pattern(const std::string& regex, const std::string& message) {
  return {{"type", "string"}, {"pattern", "^\\s*" + regex + "\\s*$"}, {"patternErrorMessage", message}};
}

OrderedJson names(const std::string& word) {
  return {{"anyOf", OrderedJson::array({pattern(fmt::format("{0}(\\s*,\\s*{0})*", word), "Names separated by commas"),
                                        {{"type", "array"}, {"items", pattern(word, "A name")}}})}};
}

OrderedJson passed() {
  const OrderedJson item = {{"type", OrderedJson::array({"string", "boolean", "number"})}};
  return {{"anyOf", OrderedJson::array({{{"type", "string"}}, {{"type", "array"}, {"items", item}}})}};
}

OrderedJson partial() {
  const std::string types = fmt::format("({})", fmt::join(reduce_kind_names(), "|"));
  return pattern(
      fmt::format("({0})(\\s*\\(\\s*({1}(\\s*,\\s*{1})*\\s*)?\\))?", fmt::join(partial_kind_names(), "|"), types),
      fmt::format("One of {}, and reductions behind it: monotone(max)", fmt::join(partial_kind_names(), ", ")));
}

OrderedJson dispatch() {
  const OrderedJson text = pattern("[\\w:{][\\s\\S]*", "An argument, or several: dtype > x");
  return {{"anyOf", OrderedJson::array({text, {{"type", "object"}, {"additionalProperties", {{"type", "null"}}}}})}};
}

OrderedJson traits() {
  OrderedJson all = OrderedJson::array();
  for (const TraitInfo& each : kTraits) all.push_back(each.name);
  return {{"type", "array"}, {"items", {{"enum", all}}}};
}

OrderedJson block(Block which);

OrderedJson value(ValueKind kind) {
  switch (kind) {
    case ValueKind::name: return pattern(kWord, "A name");
    case ValueKind::qualified_name: return pattern(kQualified, "A name, with :: in it or not");
    case ValueKind::names: return names(kWord);
    case ValueKind::qualified_names: return names(kQualified);
    case ValueKind::passed: return passed();
    case ValueKind::boolean: return {{"type", "boolean"}};
    case ValueKind::text: return {{"type", "string"}};
    case ValueKind::arguments: return pattern("\\([\\s\\S]*\\)", "Arguments in parentheses: (Tensor x, int axis=-1)");
    case ValueKind::outputs: return pattern("Tensor[\\s\\S]*", "Outputs: Tensor(out), Tensor[](parts){n}");
    case ValueKind::pairs: {
      const std::string one = "\\s*\\w+\\s*->\\s*\\w+\\s*";
      const std::string pair = "\\(" + one + "(," + one + ")*\\)";
      return pattern(fmt::format("{0}(\\s*,\\s*{0})*", pair),
                     "Pairs of an argument and an output: (x -> out), (y -> y_out)");
    }
    case ValueKind::kernels: return pattern("\\w[\\s\\S]*", "A kernel, or several with kinds of tensors");
    case ValueKind::dispatch: return dispatch();
    case ValueKind::call: return pattern("\\w+\\s*\\([\\s\\S]*\\)", "A call: full(shape, 0, dtype, place)");
    case ValueKind::forward:
      return pattern("\\w+\\s*\\([\\s\\S]*\\)\\s*->[\\s\\S]*", "A signature: add (Tensor x) -> Tensor(out)");
    case ValueKind::partial: return partial();
    case ValueKind::conditions: return {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}};
    case ValueKind::numbers: return {{"type", "object"}, {"additionalProperties", {{"type", "number"}}}};
    case ValueKind::traits: return traits();
    case ValueKind::infer_meta_block:
    case ValueKind::kernel_block:
    case ValueKind::data_transform_block:
    case ValueKind::shard_block: return block(*block_of(kind));
  }
  return {};
}

OrderedJson block(Block which) {
  OrderedJson properties = OrderedJson::object();
  for (const KeyInfo& key : keys_of(which)) {
    OrderedJson described = {{"description", key.about}};
    described.update(value(key.kind));
    properties[std::string(key.key)] = std::move(described);
  }
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", std::move(properties)}};
}

}  // namespace

std::string op_schema() {
  OrderedJson op = block(Block::op);
  op["anyOf"] = OrderedJson::array(
      {{{"required", OrderedJson::array({"op"})}}, {{"required", OrderedJson::array({"backward_op"})}}});
  const OrderedJson schema = {
      {"$schema", "http://json-schema.org/draft-07/schema#"},
      {"title", "Op YAML"},
      {"description", "Ops in PaddlePaddle's op language, with shardgen's own keys under 'shard'."},
      {"type", OrderedJson::array({"array", "null"})},
      {"items", std::move(op)}};
  return schema.dump(2) + "\n";
}

}  // namespace shardgen
