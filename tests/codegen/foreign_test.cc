// Op files of other projects: overlays, ops with errors left out, coverage, definitions of what the
// runtime lacks.
#include <catch2/catch.hpp>

#include <fstream>
#include <nlohmann/json.hpp>

#include "codegen/helpers.h"
#include "codegen/tool.h"
#include "lower/description.h"

namespace foreign_test {

using namespace shardgen;
using namespace shardgen::testing;
using Json = nlohmann::json;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A file of three ops: one that is fine, one with unknown types, one without a rule.
std::string write_foreign(const TempFolder& folder) {
  const std::string path = folder.path("their.yaml");
  std::ofstream(path) << R"(- op : good
  args : (Tensor x)
  output : Tensor(out)
  infer_meta : {func : UnchangedInferMeta, spmd_rule : "... -> ..."}
  kernel : {func : good}
  backward : good_grad

- op : strange
  args : (Tensor x, DataLayout layout, size_t n = 3)
  output : Tensor(out)
  infer_meta : {func : UnchangedInferMeta, param : [x]}
  kernel : {func : strange}
  future_key : 1

- op : plain
  args : (Tensor x, int n)
  output : Tensor(out)
  infer_meta : {func : PlainInferMeta}
  kernel : {func : plain}

- op : named
  args : (Tensor x)
  output : Tensor(out)
  infer_meta : {func : UnchangedInferMeta, spmd_rule : NamedInferSpmd}
  kernel : {func : named}

- op : handed_on
  args : (Tensor x, int n)
  output : Tensor(out)
  invoke : handed_on_impl(x, n, true)

- backward_op : good_grad
  forward : good (Tensor x) -> Tensor(out)
  args : (Tensor out, Tensor out_grad)
  output : Tensor(x_grad)
  infer_meta : {func : UnchangedInferMeta, param : [out]}
  kernel : {func : good_grad}
)";
  return path;
}

}  // namespace

TEST_CASE("An op with an unknown type is left out alone, with an error that counts it", "[codegen]") {
  const TempFolder folder;
  const std::string yaml = write_foreign(folder);
  const Ran ran = run_tool("generate " + yaml + " --out " + folder.path("out"));
  CHECK(ran.code == 1);
  CHECK(has(ran.err, "their.yaml:9:21: error: Unknown type 'DataLayout'"));
  CHECK(has(ran.err, "their.yaml:9:40: error: Unknown type 'size_t'"));
  CHECK(has(ran.err, "their.yaml:13:3: warning: Unknown key 'future_key'"));
  CHECK(has(ran.err, "5 ops generated, 1 left out"));
  const std::string header = slurp(folder.path("out/their.h"));
  CHECK(has(header, "Tensor good(const Tensor& x, CallSite site = CallSite::here());"));
  CHECK(has(header, "Tensor good_grad(const Tensor& out, const Tensor& out_grad);"));
  CHECK_FALSE(has(header, "strange"));
  // Each run reports the error, not only the first.
  CHECK(run_tool("generate " + yaml + " --out " + folder.path("out")).code == 1);
  CHECK(run_tool("generate --keep-going " + yaml + " --out " + folder.path("out")).code == 0);
  const Ran strict = run_tool("generate --strict " + yaml + " --out " + folder.path("strict"));
  CHECK(strict.code == 1);
  CHECK_FALSE(std::filesystem::exists(folder.path("strict/their.h")));
}

TEST_CASE("An error that belongs to no op stops everything", "[codegen]") {
  const TempFolder folder;
  const std::string path = folder.path("broken.yaml");
  std::ofstream(path) << "- args : (Tensor x)\n";
  CHECK(run_tool("generate --keep-going " + path + " --out " + folder.path("out")).code == 1);
  CHECK_FALSE(std::filesystem::exists(folder.path("out/broken.h")));
}

TEST_CASE("dump prints types, keys and ops that cannot be generated", "[codegen]") {
  const TempFolder folder;
  const Ran ran = run_tool("dump " + write_foreign(folder));
  CHECK(ran.code == 0);
  const Json ops = Json::parse(ran.out);
  REQUIRE(ops.size() == 6);
  CHECK(ops[1]["attrs"][0]["typename"] == "DataLayout");
  CHECK(ops[1]["attrs"][1]["default_value"] == "3");
  CHECK(ops[4]["invoke"]["args"] == "x, n, true");
  CHECK(ops[4]["kernel"].is_null());
}

TEST_CASE("Functions that the runtime lacks are declared, and scaffolded definitions throw", "[codegen]") {
  const TempFolder folder;
  const std::string yaml = write_foreign(folder);
  run_tool("generate " + yaml + " --out " + folder.path("out"));
  const std::string tables = slurp(folder.path("out/their_ops.h"));
  CHECK(has(tables, "void PlainInferMeta(const OpContext&, const Meta&, int, Meta&);"));
  CHECK(has(tables, "Tensor handed_on_impl(const Tensor&, int, bool);"));
  CHECK_FALSE(has(tables, "UnchangedInferMeta("));  // the runtime has it with that signature
  const std::string good = folder.path("good.yaml");
  std::ofstream(good) << slurp(yaml).substr(0, slurp(yaml).find("- op : strange"))
                      << slurp(yaml).substr(slurp(yaml).find("- op : plain"));
  const Ran ran = run_tool("scaffold --missing --yaml " + good + " --out " + folder.path("missing"));
  CHECK(ran.code == 0);
  CHECK(has(ran.err, "1 infer_meta functions and 1 others throw"));
  const std::string missing = slurp(folder.path("missing/missing.cc"));
  CHECK(has(missing, "#include \"good_ops.h\""));
  CHECK(has(missing, "call::fail_missing(ctx.op, \"shard::meta::PlainInferMeta\");"));
  CHECK(has(missing, "call::fail_missing(\"handed_on\", \"shard::external::handed_on_impl\");"));
  CHECK(run_tool("scaffold --missing --yaml " + good + " --out " + folder.path("missing")).code ==
        2);  // nothing is overwritten
  CHECK(run_tool("scaffold --missing good --yaml " + good + " --out " + folder.path("missing")).code == 2);
}

TEST_CASE("coverage tells how each op is placed and counts what falls back", "[codegen]") {
  const TempFolder folder;
  const std::string yaml = write_foreign(folder);
  const Json before = Json::parse(run_tool("coverage --format json " + yaml).out);
  const auto placement = [](const Json& report, const std::string& op) {
    for (const Json& each : report["ops"]) {
      if (each["name"] == op) return each["placement"].get<std::string>();
    }
    return std::string("absent");
  };
  CHECK(placement(before, "good") == "axis expression");
  CHECK(placement(before, "good_grad") == "derived expression");
  CHECK(placement(before, "plain") == "replicated fallback: no rule");
  CHECK(placement(before, "named") == "replicated fallback: unknown rule");
  CHECK(placement(before, "handed_on") == "calls other ops");
  CHECK(placement(before, "strange") == "absent");
  CHECK(before["counts"]["replicated fallback: no rule"] == 1);

  const std::string overlay = folder.path("rules.yaml");
  std::ofstream(overlay)
      << "- op : plain\n  infer_meta : {spmd_rule : \"m n -> m n\"}\n  shard : {elementwise : true}\n"
         "- op : named\n  infer_meta : {spmd_rule : SoftmaxInferSpmd}\n";
  const Json after = Json::parse(run_tool("coverage --format json --overlay " + overlay + " " + yaml).out);
  CHECK(placement(after, "plain") == "axis expression");
  CHECK(placement(after, "named") == "named rule");
  CHECK(has(run_tool("coverage --overlay " + overlay + " " + yaml).out, "     0 replicated fallback: no rule\n"));
}

TEST_CASE("An overlay adds rules and shard blocks to ops of unmodified files", "[codegen]") {
  const TempFolder folder;
  const std::string yaml = write_foreign(folder), overlay = folder.path("rules.yaml");
  std::ofstream(overlay) << "- op : plain\n  infer_meta : {spmd_rule : \"m n -> m n\"}\n"
                            "  shard :\n    partial : linear\n    doc : Says what it does.\n";
  const std::string command =
      "generate --keep-going --overlay " + overlay + " " + yaml + " --out " + folder.path("out");
  CHECK(run_tool(command).code == 0);
  const std::string tables = slurp(folder.path("out/their_ops.h"));
  CHECK(has(tables, ".rule = \"m n -> m n\""));
  CHECK(has(tables, "Commutes::jointly"));
  CHECK(has(slurp(folder.path("out/their.h")), "/// Says what it does."));
  // A rule that does not fit is reported in the overlay, and nothing is generated from it.
  std::ofstream(overlay) << "- op : plain\n  infer_meta : {spmd_rule : \"m n, k -> m n\"}\n";
  const Ran wrong = run_tool(command);
  CHECK(wrong.code == 1);
  CHECK(has(wrong.err, "rules.yaml:2:"));
}

TEST_CASE("Signatures of declared functions are read from headers", "[codegen]") {
  const std::set<std::string> signatures = read_declarations(
      "// void No(int x);\nvoid F(const OpContext& ctx, std::span<const Meta> x,\n       const std::vector<int>& n, "
      "Meta& out);\n"
      "/// void G(int)\nint H(int a);\nvoid I();\n");
  CHECK(signatures ==
        std::set<std::string>{"F(const OpContext&, std::span<const Meta>, const std::vector<int>&, Meta&)", "I()"});
}

}  // namespace foreign_test
