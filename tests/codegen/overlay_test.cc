// The starter overlay for PaddlePaddle's op files of May 2024, overlays/paddle.yaml. Without these
// files beside the checkout nothing is tested.
#include <algorithm>
#include <catch2/catch.hpp>

#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "codegen/helpers.h"
#include "codegen/tool.h"

namespace overlay_test {

using namespace shardgen;
using namespace shardgen::testing;
using Json = nlohmann::json;

namespace {

/// The four files, separated by spaces; empty, with a message, where they do not exist.
std::string paddle_files() {
  const std::string folder = source_path("../shared/paddle_yaml/2024-05");
  std::string files;
  for (const char* name : {"ops", "backward", "legacy_ops", "legacy_backward"}) files += folder + "/" + name + ".yaml ";
  if (std::filesystem::exists(folder + "/ops.yaml")) return files;
  std::cout << "skipped: no foreign op files beside the checkout\n";
  return "";
}

std::string overlay() { return "--overlay " + source_path("overlays/paddle.yaml") + " "; }

Json json_of(const std::string& arguments) { return Json::parse(run_tool(arguments).out); }

std::map<std::string, Json> by_name(const Json& ops) {
  std::map<std::string, Json> found;
  for (const Json& op : ops) found.emplace(op["name"], op);
  return found;
}

int fallbacks(const Json& coverage) {
  int count = 0;
  for (const Json& op : coverage["ops"]) count += op["falls_back"].get<bool>();
  return count;
}

/// The names of tensors, arguments then outputs: two ops with the same ones may share a rule.
std::string tensors_of(const Json& op) {
  std::string names;
  for (const char* side : {"inputs", "outputs"}) {
    for (const Json& tensor : op[side]) {
      names += tensor["typename"].get<std::string>() + " " + tensor["name"].get<std::string>() + ",";
    }
    names += "->";
  }
  return names;
}

}  // namespace

TEST_CASE("the starter overlay is accepted without findings, and one with a wrong rule is not", "[codegen]") {
  const std::string files = paddle_files();
  if (files.empty()) return;
  const Ran plain = run_tool("check " + files);
  const Ran with = run_tool("check " + overlay() + files);
  CHECK(with.code == plain.code);
  CHECK(with.err.find("paddle.yaml:") == std::string::npos);
  CHECK(with.err == plain.err);
  const TempFolder folder;
  const std::string wrong = folder.path("wrong.yaml");
  std::ofstream(wrong) << "- op : softmax\n  infer_meta : {spmd_rule : \"...{!axes} -> ...{!axes}\"}\n";
  CHECK(run_tool("check " + files + " --overlay " + wrong).err.find("wrong.yaml:2:") != std::string::npos);
}

TEST_CASE("with the starter overlay fewer than 350 ops fall back, as the documents say", "[codegen]") {
  const std::string files = paddle_files();
  if (files.empty()) return;
  const Json before = json_of("coverage --format json " + files);
  const Json after = json_of("coverage --format json " + overlay() + files);
  CHECK(fallbacks(before) == 715);
  CHECK(fallbacks(after) < 350);
  CHECK(before["ops"].size() == after["ops"].size());
  const Json& counts = after["counts"];
  const int others = counts["no tensor argument"].get<int>() + counts["calls other ops"].get<int>();
  const int rules = static_cast<int>(after["ops"].size()) - fallbacks(after) - others;
  const std::string replicated = std::to_string(fallbacks(after));
  const std::string text = std::to_string(rules) + " by a rule, " + replicated + " by replicating";
  for (const char* document : {"README.md", "docs/overlays.md"}) {
    INFO(document);
    CHECK(slurp(source_path(document)).find(text) != std::string::npos);
  }
}

TEST_CASE("with the starter overlay as many ops are generated as without", "[codegen]") {
  const std::string files = paddle_files();
  if (files.empty()) return;
  const TempFolder folder;
  const Ran plain = run_tool("generate " + files + "--format json --out " + folder.path("plain"));
  const Ran with = run_tool("generate " + overlay() + files + "--format json --out " + folder.path("with"));
  CHECK(with.code == plain.code);
  CHECK(Json::parse(with.out)["ops"] == Json::parse(plain.out)["ops"]);
  CHECK(Json::parse(with.out)["findings"] == Json::parse(plain.out)["findings"]);
}

namespace {

/// The rule for a kernel that does not combine values over ranks.
std::string without_combining(std::string rule) {
  if (rule.starts_with("Combined")) return rule.substr(std::string("Combined").size());
  std::replace(rule.begin(), rule.end(), '*', '!');
  return rule;
}

}  // namespace

TEST_CASE("an op of this library has in the starter overlay the rule that shard_verify_rules tries", "[codegen]") {
  const std::string files = paddle_files();
  if (files.empty()) return;
  std::string own_files;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("ops_yaml"))) {
    own_files += entry.path().string() + " ";
  }
  const auto own = by_name(json_of("dump " + own_files));
  const auto theirs = by_name(json_of("dump " + overlay() + files));
  const auto own_rules = by_name(json_of("coverage --format json " + own_files)["ops"]);
  const auto their_rules = by_name(json_of("coverage --format json " + overlay() + files)["ops"]);
  // These require less of a kernel than ours: it need not know its box, or shards of channels or of dims that an
  // attribute does not name, or the values may have no dims, or it does not combine values over ranks.
  const std::set<std::string> narrower = {"scatter_grad",
                                          "topk",
                                          "cross_entropy_with_softmax",
                                          "cross_entropy_with_softmax_grad",
                                          "searchsorted",
                                          "conv2d",
                                          "conv2d_grad",
                                          "conv2d_transpose",
                                          "conv2d_transpose_grad",
                                          "conv3d",
                                          "conv3d_grad",
                                          "conv3d_transpose",
                                          "conv3d_transpose_grad",
                                          "depthwise_conv2d",
                                          "depthwise_conv2d_grad",
                                          "index_add",
                                          "cumprod",
                                          "max_pool2d_with_index",
                                          "max_pool2d_with_index_grad",
                                          "max_pool3d_with_index",
                                          "max_pool3d_with_index_grad",
                                          "bicubic_interp",
                                          "bicubic_interp_grad",
                                          "bilinear_interp",
                                          "bilinear_interp_grad",
                                          "linear_interp",
                                          "linear_interp_grad",
                                          "nearest_interp",
                                          "nearest_interp_grad",
                                          "norm",
                                          "trilinear_interp",
                                          "trilinear_interp_grad",
                                          "pool2d",
                                          "pool2d_double_grad",
                                          "pool3d",
                                          "roll",
                                          "send_u_recv",
                                          "send_ue_recv"};
  int same = 0;
  for (const auto& [name, op] : own) {
    const auto their = theirs.find(name);
    if (their == theirs.end() || own_rules.at(name)["rule"].is_null()) continue;
    if (their_rules.at(name)["rule"].is_null()) continue;
    if (their_rules.at(name)["falls_back"].get<bool>()) continue;
    if (tensors_of(op) != tensors_of(their->second) || narrower.contains(name)) continue;
    INFO(name);
    CHECK(without_combining(own_rules.at(name)["rule"]) == their_rules.at(name)["rule"].get<std::string>());
    const Json none = Json::object();
    const Json& mine = op["shard"].is_null() ? none : op["shard"];
    const Json& shard = their->second["shard"].is_null() ? none : their->second["shard"];
    for (const char* key : {"partial", "partial_guard", "random", "dynamic_shape"}) {
      if (shard.contains(key)) CHECK(shard.at(key) == mine.value(key, Json()));
    }
    CHECK(op["infer_meta"].value("local_shape", Json()) == their->second["infer_meta"].value("local_shape", Json()));
    if (shard.contains("partial")) CHECK(shard.value("partial_guard", Json()) == mine.value("partial_guard", Json()));
    ++same;
  }
  CHECK(same >= 100);
}

TEST_CASE("expressions of the starter overlay are those that were tried on PaddlePaddle's kernels", "[codegen]") {
  const std::string files = paddle_files();
  if (files.empty()) return;
  const Json found = Json::parse(slurp(source_path("tools/verify_overlay/found.json")));
  const Json layouts = Json::parse(slurp(source_path("tools/verify_overlay/layouts.json")));  // for tests/spmd
  int verified = 0;
  const Json coverage = json_of("coverage --format json " + overlay() + files);
  for (const Json& op : coverage["ops"]) {
    if (op["falls_back"].get<bool>() || op["rule"].is_null()) continue;
    const std::string name = op["name"], rule = op["rule"];
    if (rule.find("->") == std::string::npos) continue;
    INFO(name << ": run verify.py with --json and --layouts, as docs/overlays.md says");
    REQUIRE(found.contains(name));
    CHECK(found[name]["rule"] == rule);
    if (layouts.contains(name)) CHECK(layouts[name]["rule"] == rule);
    CHECK(!found[name].contains("wrong"));
    verified += found[name].contains("verified");
  }
  CHECK(verified >= 450);
}

}  // namespace overlay_test
