// Descriptions of ops: explain, the page of docs, skeletons.
#include <catch2/catch.hpp>

#include <fstream>

#include "cli/command.h"
#include "codegen/helpers.h"
#include "codegen/tool.h"
#include "reference/docs.h"
#include "reference/explain.h"

namespace reference_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

const std::string kFixture = "tests/codegen/fixtures/mixed.yaml";

std::vector<OpFacts> facts_of(const std::string& text, const std::string& name = "test.yaml") {
  DiagnosticSink sink;
  std::vector<Family> families = {read_family(name, text, sink)};
  check_families(families, own_runtime(), sink);
  return collect_facts(families, sink.all(), own_runtime());
}

const OpFacts& find(const std::vector<OpFacts>& all, const std::string& name) {
  for (const OpFacts& facts : all) {
    if (facts.name == name) return facts;
  }
  FAIL("no op " + name);
  std::abort();
}

void check_has(const std::string& text, const std::string& part) {
  INFO(text);
  INFO("looked for: " << part);
  CHECK(text.find(part) != std::string::npos);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("explain tells signature, aliasing, placement, links and the steps of each layer", "[codegen]") {
  const std::vector<OpFacts> all = facts_of(slurp(source_path(kFixture)), "mixed.yaml");
  const std::string add = to_text(find(all, "add"));
  check_has(add, "add(Tensor x, Tensor y) -> Tensor(out)\nmixed.yaml:3, forward op of family mixed\n");
  check_has(add, "  Tensor& add_(Tensor& x, const Tensor& y)\n");
  check_has(add, "add_: out overwrites x.");
  check_has(add, "Axis expression \"..., ... -> ...\".");
  check_has(add, "Commutes with a pending sum, avg of all arguments together (linear).");
  check_has(add, "\ninfer::add\n   1. infer_meta ElementwiseInferMeta(x, y)\n");
  check_has(add, "target out <- x");
  check_has(add, "write back out into x");
  check_has(to_text(find(all, "batch_norm")), "mean_out shares the buffer of mean, which the kernel writes.");
  check_has(to_text(find(all, "dropout")), "Random: all ranks draw one key.");
  check_has(to_text(find(all, "add_grad")), "forward op add (mixed.yaml:3)");
}

TEST_CASE("explain as JSON has the same facts", "[codegen]") {
  const nlohmann::ordered_json json = to_json(find(facts_of(slurp(source_path(kFixture)), "mixed.yaml"), "add"));
  CHECK(json["signature"] == "add(Tensor x, Tensor y) -> Tensor(out)");
  CHECK(json["location"]["line"] == 3);
  CHECK(json["generated"] == true);
  CHECK(json["left_out"].is_null());
  CHECK(json["aliases"][0]["kind"] == "inplace");
  CHECK(json["rule"] == "..., ... -> ...");
  CHECK(json["layers"].size() == 7);
}

TEST_CASE("An op with errors is told of, with the reason why it is not generated", "[codegen]") {
  const std::vector<OpFacts> all = facts_of(
      "- op : broken\n  args : (Tensor x)\n  output : Tensor(out)\n  kernel : {func : broken}\n  optional : z\n"
      "- op : sparse\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : F}\n"
      "  kernel : {func : \"s {sparse_coo -> sparse_coo}\"}\n");
  CHECK(find(all, "broken").left_out == "it has errors");
  CHECK_FALSE(find(all, "broken").findings.empty());
  check_has(to_text(find(all, "sparse")), "Not generated: none of its kernels takes dense tensors only.");
}

TEST_CASE("The page escapes every text of the YAML", "[codegen]") {
  const std::string attack = "<script>alert('x')</script><img src=x onerror=\"y\">";
  const std::vector<OpFacts> all = facts_of(
      "- op : f\n  args : (Tensor x, str mode=\"</pre><b>&\")\n  output : Tensor(out)\n"
      "  infer_meta :\n    func : F\n    spmd_rule : \"<i>\"\n  kernel : {func : f}\n  shard :\n    doc : |\n      " +
          attack +
          "\n"
          "- op : \"<b>g</b>\"\n  args : (Tensor x)\n  output : Tensor(out)\n",
      "a\"><script>.yaml");
  std::vector<std::string> problems;
  const std::string page = reference_page(all, problems);
  CHECK(problems.empty());
  CHECK(count(page, "<script>") == 1);  // the page's own
  CHECK(count(page, "<img") == 0);
  CHECK(count(page, "<b>") == 0);
  CHECK(count(page, "<i>") == 0);
  check_has(page, "&lt;script&gt;alert(&apos;x&apos;)");
  check_has(page, "id=\"a___script_.f\"");
}

TEST_CASE("The page has every op once, links that lead somewhere, and nothing from elsewhere", "[codegen]") {
  std::vector<std::string> problems;
  const std::vector<OpFacts> all = facts_of(slurp(source_path(kFixture)), "mixed.yaml");
  const std::string page = reference_page(all, problems);
  CHECK(problems.empty());
  CHECK(count(page, "<article id=") == all.size());
  for (size_t at = page.find("href=\"#"); at != std::string::npos; at = page.find("href=\"#", at + 1)) {
    const std::string id = page.substr(at + 7, page.find('"', at + 7) - at - 7);
    INFO(id);
    CHECK(count(page, "id=\"" + id + "\"") == 1);
  }
  CHECK(count(page, "http://") + count(page, "https://") + count(page, "src=") == 0);
}

TEST_CASE("Ops that are defined twice get anchors of their own", "[codegen]") {
  const std::string op = "- op : f\n  args : (Tensor x)\n  output : Tensor(out)\n";
  std::vector<std::string> problems;
  const std::string page = reference_page(facts_of(op + op), problems);
  CHECK(count(page, "<article id=\"test.f\"") == 1);
  CHECK(count(page, "<article id=\"test.f-2\"") == 1);
}

TEST_CASE("Skeletons compile against the runtime", "[codegen]") {
  const TempFolder folder;
  std::ofstream(folder.path("new.yaml")) << "- op : blend\n  args : (Tensor x, Tensor[] others, Tensor weight, "
                                            "IntArray axis={}, DataType dtype=DataType::UNDEFINED, str mode)\n"
                                            "  output : Tensor(out), Tensor[](parts){others.size()}, Tensor(state)\n"
                                            "  infer_meta : {func : BlendInferMeta, spmd_rule : BlendRule}\n"
                                            "  kernel : {func : blend, data_type : x}\n  optional : weight\n  "
                                            "intermediate : state\n  inplace : (x -> out)\n"
                                            "  shard : {random : true}\n";
  REQUIRE(run_tool("generate " + folder.path("new.yaml") + " --out " + folder.path("generated")).code == kFine);
  const Ran made = run_tool("scaffold blend --yaml " + folder.path("new.yaml") + " --out " + folder.path("made"));
  INFO(made.err);
  REQUIRE(made.code == kFine);
  CHECK(count(made.out, "\n") == 4);
  for (const auto& [name, text] : read_folder(folder.path("made"))) {
    const Ran compiled =
        run_shell(compiler_path() + " -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I" + source_path("runtime") +
                  " -I" + folder.path("generated") + " " + folder.path("made/" + name));
    INFO(name << "\n" << text << compiled.err);
    CHECK(compiled.code == 0);
  }
}

TEST_CASE(
    "The steps of a skeleton are those of a project of one's own, or of this repository, and a derived rule is not "
    "asked for",
    "[codegen]") {
  const TempFolder folder;
  std::ofstream(folder.path("new.yaml"))
      << "- op : squash\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : UnchangedInferMeta, "
         "spmd_rule : \"... -> ...\"}\n"
         "  kernel : {func : squash}\n  backward : squash_grad\n"
         "- backward_op : squash_grad\n  forward : squash (Tensor x) -> Tensor(out)\n  args : (Tensor x, Tensor "
         "out_grad)\n  output : Tensor(x_grad)\n"
         "  infer_meta : {func : UnchangedInferMeta, param : [x]}\n  kernel : {func : squash_grad, data_type : "
         "out_grad}\n";
  const Ran own = run_tool("scaffold squash_grad --yaml " + folder.path("new.yaml") + " --out " + folder.path("own"));
  INFO(own.err);
  CHECK(own.code == kFine);
  CHECK(own.err.find("The placement rule is derived from that of 'squash': ..., ... -> ...") != std::string::npos);
  CHECK(own.err.find("spmd_rule :") == std::string::npos);
  CHECK(own.err.find("call shard::cpu::register_squash_grad() before the first op") != std::string::npos);
  CHECK(own.err.find("runtime/") == std::string::npos);
  // In a checkout of this project.
  std::filesystem::create_directories(folder.path("ops_yaml"));
  std::filesystem::create_directories(folder.path("runtime/shard/kernels"));
  std::filesystem::copy(folder.path("new.yaml"), folder.path("ops_yaml/new.yaml"));
  std::ofstream(folder.path("runtime/shard/kernels/builtin.cc")) << "";
  const Ran library =
      run_tool("scaffold squash --yaml " + folder.path("ops_yaml/new.yaml") + " --out " + folder.path("library"));
  INFO(library.err);
  CHECK(library.err.find("runtime/shard/kernels/builtin.cc") != std::string::npos);
  CHECK(slurp(folder.path("library/squash_test.cc")).find("support/mesh_run.h") != std::string::npos);
}

TEST_CASE("scaffold --missing leaves ops with errors out and ends as generate does", "[codegen]") {
  const TempFolder folder;
  std::ofstream(folder.path("ops.yaml")) << "- op : good\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : "
                                            "{func : GoodInferMeta}\n  kernel : {func : good}\n"
                                            "- op : bad\n  args : (Tenso x)\n  output : Tensor(out)\n  infer_meta : "
                                            "{func : BadInferMeta}\n  kernel : {func : bad}\n";
  const auto run = [&](const std::string& command, const std::string& options) {
    return run_tool(command + " " + folder.path("ops.yaml") + " --out " + folder.path("out") + " " + options).code;
  };
  for (const char* options : {"", "--keep-going", "--strict"}) {
    INFO(options);
    std::filesystem::remove_all(folder.path("out"));
    const int made = run("scaffold --missing --yaml", options);
    const bool written = std::filesystem::exists(folder.path("out/missing.cc"));
    if (written) CHECK(slurp(folder.path("out/missing.cc")).find("BadInferMeta") == std::string::npos);
    std::filesystem::remove_all(folder.path("out"));
    CHECK(made == run("generate", options));
    CHECK(written == std::filesystem::exists(folder.path("out/ops.h")));
  }
}

}  // namespace reference_test
