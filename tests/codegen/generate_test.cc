// Whole runs of the tool: golden files, determinism, and which files are written and which are left
// alone.
#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "cli/check.h"
#include "cli/generate.h"
#include "codegen/helpers.h"
#include "emit/layout.h"

namespace generate_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

const std::string kFixture = "tests/codegen/fixtures/mixed.yaml";

GenerateOptions options_for(const std::string& file, const std::string& out) {
  GenerateOptions options;
  options.files = {file};
  options.out = out;
  options.strict = true;
  return options;
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// The number of lines of each function body, by its first line.
std::vector<std::pair<std::string, int>> function_lengths(const std::string& text) {
  std::vector<std::pair<std::string, int>> lengths;
  std::istringstream lines(text);
  std::string line, first;
  int count = -1;
  while (std::getline(lines, line)) {
    if (line.rfind("// ", 0) == 0) {
      first = line;
      count = 0;
    } else if (count >= 0) {
      ++count;
    }
    if (line == "}" && count >= 0) {
      lengths.emplace_back(first, count);
      count = -1;
    }
  }
  return lengths;
}

}  // namespace

TEST_CASE("The fixture's generated files are those of golden/", "[codegen]") {
  const TempFolder out;
  REQUIRE(run_generate(options_for(source_path(kFixture), out.path())) == kFine);
  const auto golden = read_folder(source_path("tests/codegen/golden"));
  const auto now = read_folder(out.path());
  INFO("to accept the change: shardgen generate " << kFixture << " --strict --out tests/codegen/golden");
  for (const auto& [name, text] : now) {
    INFO(name);
    if (name == "manifest.json") continue;  // its hash changes with every template
    CHECK(golden.count(name) == 1);
    if (golden.count(name) == 1) CHECK(golden.at(name) == text);
  }
  for (const auto& [name, text] : golden) CHECK(now.count(name) == 1);
}

TEST_CASE("Two folders give the same bytes", "[codegen]") {
  const TempFolder a, b;
  std::filesystem::create_directory(b.path("elsewhere"));
  write(a.path("mixed.yaml"), slurp(source_path(kFixture)));
  write(b.path("elsewhere/mixed.yaml"), slurp(source_path(kFixture)));
  REQUIRE(run_generate(options_for(a.path("mixed.yaml"), a.path("out"))) == kFine);
  REQUIRE(run_generate(options_for(b.path("elsewhere/mixed.yaml"), b.path("out"))) == kFine);
  CHECK(read_folder(a.path("out")) == read_folder(b.path("out")));
}

TEST_CASE("A file whose bytes stay is not touched", "[codegen]") {
  const TempFolder folder;
  const std::string yaml = folder.path("mixed.yaml");
  write(yaml, slurp(source_path(kFixture)));
  const GenerateOptions options = options_for(yaml, folder.path("out"));
  REQUIRE(run_generate(options) == kFine);
  const auto before = std::filesystem::last_write_time(folder.path("out/mixed_dense.cc"));
  const auto manifest_before = std::filesystem::last_write_time(folder.path("out/manifest.json"));
  write(yaml, slurp(source_path(kFixture)) + "# a comment at the end\n");
  REQUIRE(run_generate(options) == kFine);
  CHECK(std::filesystem::last_write_time(folder.path("out/mixed_dense.cc")) == before);
  CHECK(std::filesystem::last_write_time(folder.path("out/manifest.json")) > manifest_before);
}

TEST_CASE("A generated file that was changed or removed is mended", "[codegen]") {
  const TempFolder folder;
  const GenerateOptions options = options_for(source_path(kFixture), folder.path());
  REQUIRE(run_generate(options) == kFine);
  const std::string good = slurp(folder.path("mixed.cc"));
  write(folder.path("mixed.cc"), "changed by hand");
  std::filesystem::remove(folder.path("mixed_ops.h"));
  REQUIRE(run_generate(options) == kFine);
  CHECK(slurp(folder.path("mixed.cc")) == good);
  CHECK(std::filesystem::exists(folder.path("mixed_ops.h")));
}

TEST_CASE("With any error nothing is written", "[codegen]") {
  const TempFolder folder;
  CHECK(run_generate(options_for(source_path("tests/codegen/bad/unknown_key.yaml"), folder.path("out"))) == kFindings);
  CHECK_FALSE(std::filesystem::exists(folder.path("out")));
  CHECK(run_generate(options_for(folder.path("absent.yaml"), folder.path("out"))) == kUsage);
  CHECK(run_generate(options_for(folder.path(), folder.path("out"))) == kUsage);
  write(folder.path("file"), "");
  CHECK(run_generate(options_for(source_path(kFixture), folder.path("file/out"))) == kUsage);
}

TEST_CASE("Files of a family that is gone are removed, unless they were changed", "[codegen]") {
  const TempFolder folder;
  write(folder.path("other.yaml"), slurp(source_path(kFixture)));
  REQUIRE(run_generate(options_for(folder.path("other.yaml"), folder.path("out"))) == kFine);
  write(folder.path("out/other.cc"), "mine");
  REQUIRE(run_generate(options_for(source_path(kFixture), folder.path("out"))) == kFine);
  CHECK_FALSE(std::filesystem::exists(folder.path("out/other_dense.cc")));
  CHECK(slurp(folder.path("out/other.cc")) == "mine");
}

TEST_CASE("The depfile names the manifest, the YAML and the templates", "[codegen]") {
  const TempFolder folder;
  GenerateOptions options = options_for(source_path(kFixture), folder.path("out"));
  options.depfile = folder.path("deps.d");
  options.templates = source_path("templates");
  REQUIRE(run_generate(options) == kFine);
  const std::string text = slurp(options.depfile);
  CHECK(text.rfind(folder.path("out/manifest.json") + ":", 0) == 0);
  CHECK(text.find(source_path(kFixture)) != std::string::npos);
  CHECK(text.find(source_path("templates/dense.cc.mustache")) != std::string::npos);
}

TEST_CASE("A family in parts keeps each op in the part of its name", "[codegen]") {
  const TempFolder folder;
  GenerateOptions options = options_for(source_path(kFixture), folder.path());
  options.parts["mixed"] = 2;
  REQUIRE(run_generate(options) == kFine);
  const auto files = read_folder(folder.path());
  CHECK(files.count("mixed.cc") == 0);
  const std::string both = files.at("mixed_0.cc") + files.at("mixed_1.cc");
  CHECK(both.find("\nTensor add(") != std::string::npos);
  CHECK(both.find("\nTensor zeros(") != std::string::npos);
}

TEST_CASE("Each part has a function that adds its ops to a table, named after the header that includes all others",
          "[codegen]") {
  const TempFolder folder;
  GenerateOptions options = options_for(source_path(kFixture), folder.path("out"));
  options.parts["mixed"] = 2;
  options.umbrella = "my-ops__api.h";
  REQUIRE(run_generate(options) == kFine);
  auto files = read_folder(folder.path("out"));
  const std::string both = files.at("mixed_0_program.cc") + files.at("mixed_1_program.cc");
  for (const char* line : {"void register_my_ops_api_mixed_0(", "void register_my_ops_api_mixed_1(",
                           "  table.add(op_entry(ops::add, infer::add, dense::add, dense::add_));\n",
                           "  table.add(op_entry(ops::concat, infer::concat, dense::concat));\n",
                           "  table.add(op_entry(ops::sgd_, infer::sgd_, nullptr, dense::sgd_));\n",
                           "  table.add(op_entry(ops::full, infer::full, dense::full));\n"}) {
    INFO(line);
    CHECK(both.find(line) != std::string::npos);
  }
  CHECK(both.find("zeros") == std::string::npos);  // it only calls full
  CHECK(files.at("my-ops__api.h")
            .find("inline void register_my_ops_api(OpTable& table) {\n  register_my_ops_api_mixed_0(table);\n") !=
        std::string::npos);

  write(folder.path("r.json"), R"({"extends": "shard", "layers": ["dense", "dist", "autograd"]})");
  options.runtime = folder.path("r.json");
  REQUIRE(run_generate(options) == kFine);
  files = read_folder(folder.path("out"));
  for (const auto& [name, text] : files) {
    INFO(name);
    CHECK(name.find("program") == std::string::npos);
    CHECK(text.find("OpTable") == std::string::npos);
  }
}

TEST_CASE("The table of an op tells which attribute is a local shape, and of which output", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"),
        "- op : fill\n  args : (Tensor x, int n, IntArray shape)\n  output : Tensor(first), Tensor(second)\n  "
        "infer_meta :\n"
        "    func : FillInferMeta\n    local_shape : shape\n    global_shape : second\n    spmd_rule : \"... -> ..., "
        "...\"\n"
        "  kernel :\n    func : fill\n");
  REQUIRE(run_generate(options_for(folder.path("ops.yaml"), folder.path("out"))) == kFine);
  std::string text = slurp(folder.path("out/ops_ops.h"));
  std::replace(text.begin(), text.end(), '\n', ' ');
  INFO(text);
  CHECK(text.find(".local_shape = 1") != std::string::npos);
  CHECK(text.find(".local_shape_output = 1}") != std::string::npos);
}

TEST_CASE("Generated functions are short and lines are at most 100 columns", "[codegen]") {
  const TempFolder out;
  GenerateOptions options = options_for(source_path(kFixture), out.path());
  if (std::filesystem::exists(source_path("ops_yaml"))) {
    options.files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(source_path("ops_yaml")))
      options.files.push_back(entry.path().string());
  }
  REQUIRE(run_generate(options) == kFine);
  std::vector<int> lengths;
  for (const auto& [name, text] : read_folder(out.path())) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      INFO(name << ": " << line);
      CHECK(line.size() <= kColumns);
    }
    if (name.find("_program.cc") != std::string::npos) continue;  // a list with a line for each op
    for (const auto& [first, length] : function_lengths(text)) {
      INFO(name << ": " << first);
      CHECK(length <= 60);
      lengths.push_back(length);
    }
  }
  REQUIRE_FALSE(lengths.empty());
  std::nth_element(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2), lengths.end());
  CHECK(lengths[lengths.size() / 2] <= 30);
}

TEST_CASE("The peer's own files are read without errors, and what is supported is generated", "[codegen]") {
  const std::string folder = source_path("../shared/paddle_yaml/2024-05");
  if (!std::filesystem::exists(folder)) return;
  const TempFolder out;
  GenerateOptions options = options_for(folder + "/ops.yaml", out.path());
  options.files.push_back(folder + "/legacy_ops.yaml");
  options.strict = false;
  CHECK(run_generate(options) == kFine);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    DiagnosticSink sink;
    read_text(slurp(entry.path().string()), sink, entry.path().filename().string());
    INFO(entry.path().filename().string());
    CHECK(sink.error_count() <= 4);
  }
}

}  // namespace generate_test
