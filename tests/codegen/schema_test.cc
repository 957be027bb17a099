// The JSON Schema of op YAML: it is complete, and accepts the existing files.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>
#include <regex>

#include "codegen/helpers.h"
#include "read/key_tables.h"
#include "read/yaml_tree.h"
#include "reference/schema.h"

namespace schema_test {

using namespace shardgen;
using namespace shardgen::testing;
using Json = nlohmann::json;

namespace {

bool fits(const Json& schema, const YamlNode& node);

bool has_type(const std::string& type, const YamlNode& node) {
  using Kind = YamlNode::Kind;
  const bool flag = node.kind == Kind::scalar && !node.quoted && (node.text == "true" || node.text == "false");
  if (type == "null") return node.kind == Kind::null;
  if (type == "array") return node.kind == Kind::sequence;
  if (type == "object") return node.kind == Kind::map;
  if (type == "boolean") return flag;
  return node.kind == Kind::scalar && (type == "string" ? !flag : true);
}

bool fits_object(const Json& schema, const YamlNode& node) {
  const Json properties = schema.value("properties", Json::object());
  for (const YamlEntry& entry : node.entries) {
    const auto property = properties.find(entry.key.text);
    const Json other = schema.value("additionalProperties", Json(true));
    if (property != properties.end() ? !fits(*property, entry.value) : !fits(other, entry.value)) return false;
  }
  for (const Json& key : schema.value("required", Json::array())) {
    if (std::none_of(node.entries.begin(), node.entries.end(), [&](const YamlEntry& e) { return e.key.text == key; }))
      return false;
  }
  return true;
}

/// The part of JSON Schema that op_schema() uses.
bool fits(const Json& schema, const YamlNode& node) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const Json& type) { return has_type(type, node); })) return false;
  }
  if (schema.contains("pattern") && !std::regex_search(node.text, std::regex(schema["pattern"].get<std::string>())))
    return false;
  if (schema.contains("anyOf") &&
      std::none_of(schema["anyOf"].begin(), schema["anyOf"].end(), [&](const Json& each) { return fits(each, node); }))
    return false;
  for (const YamlNode& item : node.items) {
    if (schema.contains("items") && !fits(schema["items"], item)) return false;
  }
  return fits_object(schema, node);
}

bool fits_text(const std::string& text) {
  DiagnosticSink sink;
  const std::optional<YamlFile> file = parse_yaml("test.yaml", text, sink);
  REQUIRE(file);
  return fits(Json::parse(op_schema()), file->root);
}

void check_block(Block block, const Json& schema) {
  CHECK(schema["properties"].size() == keys_of(block).size());
  for (const KeyInfo& key : keys_of(block)) {
    INFO(key.key);
    REQUIRE(schema["properties"].contains(key.key));
    const Json& property = schema["properties"][std::string(key.key)];
    CHECK_FALSE(property["description"].get<std::string>().empty());
    if (const std::optional<Block> inner = block_of(key.kind)) check_block(*inner, property);
  }
}

}  // namespace

TEST_CASE("The schema has every key that the reader knows, and no other", "[codegen]") {
  check_block(Block::op, Json::parse(op_schema())["items"]);
}

TEST_CASE("Each file of ops_yaml/ and the fixture fits the schema", "[codegen]") {
  std::vector<std::string> files = {source_path("tests/codegen/fixtures/mixed.yaml")};
  for (const auto& entry : std::filesystem::directory_iterator(source_path("ops_yaml")))
    files.push_back(entry.path().string());
  for (const std::string& file : files) {
    INFO(file);
    CHECK(fits_text(slurp(file)));
  }
}

TEST_CASE("The schema refuses what the reader reports", "[codegen]") {
  CHECK(fits_text("- op : f\n  args : (Tensor x)\n  output : Tensor(out)\n"));
  CHECK(fits_text("- op : f\n  infer_meta : {func : F, param : [x, false, 1.5]}\n  optional : [x, y]\n"));
  CHECK(fits_text("- op : f\n  kernel :\n    func : f\n    data_type : {x, y}\n"));
  CHECK_FALSE(fits_text("- args : (Tensor x)\n"));
  CHECK_FALSE(fits_text("- op : f\n  kernl : f\n"));
  CHECK_FALSE(fits_text("- op : f\n  inplace : x -> out\n"));
  CHECK_FALSE(fits_text("- op : f\n  shard : {random : 1}\n"));
  CHECK_FALSE(fits_text("- op : f\n  shard : {partial : lineer}\n"));
  CHECK_FALSE(fits_text("op : f\n"));
}

TEST_CASE("The committed schema is the one that the tool prints", "[codegen]") {
  INFO("to accept the change: shardgen schema > docs/op_yaml.schema.json");
  CHECK(slurp(source_path("docs/op_yaml.schema.json")) == op_schema());
}

}  // namespace schema_test
