// Each bad/X.yaml, or folder bad/X of several files, produces in strict mode exactly the findings
// of bad/X.expected. A new case is a new pair. Files of a folder whose names start with "overlay"
// are overlays of the others.
#include <catch2/catch.hpp>

#include <algorithm>

#include "codegen/helpers.h"
#include "read/overlay.h"

namespace bad_input_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

/// The YAML files of a case: one, or those of a folder, in order.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("Each bad file gives exactly the expected findings", "[codegen]") {
  std::vector<std::filesystem::path> cases;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/codegen/bad"))) {
    if (entry.path().extension() != ".expected") cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  REQUIRE(cases.size() >= 75);
  for (const std::filesystem::path& path : cases) {
    INFO(path.filename().string());
    DiagnosticSink sink(true);
    std::vector<Family> families;
    std::vector<std::string> names;
    for (const std::filesystem::path& file : files_of(path)) {
      names.push_back(file.filename().string());
      if (names.back().starts_with("overlay")) apply_overlay(names.back(), slurp(file.string()), families, sink);
      else families.push_back(read_family(names.back(), slurp(file.string()), sink));
    }
    check_families(families, own_runtime(), sink);
    sink.sort(names);
    CHECK(sink.error_count() > 0);
    std::filesystem::path expected = path;
    CHECK(to_text(sink.all()) == slurp(expected.replace_extension(".expected").string()));
  }
}

TEST_CASE("Unknown keys are warnings where the sink is not strict", "[codegen]") {
  DiagnosticSink sink;
  read_text(slurp(source_path("tests/codegen/bad/unknown_key.yaml")), sink);
  CHECK(sink.error_count() == 0);
  REQUIRE(sink.all().size() == 2);
  CHECK(sink.all()[0].severity == Severity::warning);
}

TEST_CASE("Findings of several files name the first definition of an op", "[codegen]") {
  const std::string text = slurp(source_path("tests/codegen/fixtures/mixed.yaml"));
  DiagnosticSink sink;
  const std::vector<Family> families = {read_family("a.yaml", text, sink), read_family("b.yaml", text, sink)};
  check_families(families, own_runtime(), sink);
  CHECK(sink.error_count() == 0);
  REQUIRE(sink.all().size() >= families[0].ops.size());
  CHECK(sink.all()[0].severity == Severity::warning);
  CHECK(sink.all()[0].code == "duplicate-op");
  CHECK(sink.all()[0].at.file == "b.yaml");
  REQUIRE(sink.all()[0].notes.size() == 1);
  CHECK(sink.all()[0].notes[0].at.file == "a.yaml");
}

TEST_CASE("A file beyond the size limit is refused", "[codegen]") {
  DiagnosticSink sink;
  read_text("# " + std::string(size_t{17} << 20, 'x'), sink);
  REQUIRE(sink.all().size() == 1);
  CHECK(sink.all()[0].code == "too-large");
}

TEST_CASE("An op cut off at any byte is read without a crash", "[codegen]") {
  const std::string text = slurp(source_path("tests/codegen/fixtures/mixed.yaml"));
  for (size_t size = 0; size < text.size(); size += 7) {
    DiagnosticSink sink;
    read_text(text.substr(0, size), sink);
  }
  SUCCEED();
}

TEST_CASE("Findings as JSON keep place, code and notes", "[codegen]") {
  DiagnosticSink sink;
  read_text(slurp(source_path("tests/codegen/bad/duplicate_op.yaml")), sink);
  const std::string json = to_json(sink.all());
  CHECK(json.find("\"code\": \"duplicate-op\"") != std::string::npos);
  CHECK(json.find("\"line\": 6") != std::string::npos);
  CHECK(json.find("First defined here.") != std::string::npos);
}

TEST_CASE("The peer's files, all in one run, have one error, which is a true one", "[codegen]") {
  const std::string folder = source_path("../shared/paddle_yaml/2024-05");
  if (!std::filesystem::exists(folder)) {
    WARN("not run: the peer's YAML files are not here");
    return;
  }
  DiagnosticSink sink;
  std::vector<Family> families;
  for (const std::filesystem::path& file : files_of(folder))
    families.push_back(read_family(file.filename().string(), slurp(file.string()), sink));
  check_families(families, own_runtime(), sink);
  std::vector<std::string> errors;
  for (const Diagnostic& each : sink.all()) {
    if (each.severity == Severity::error) errors.push_back(each.at.file + ": " + each.message);
  }
  CHECK(errors == std::vector<std::string>{
                      "static_backward.yaml: 'kernel_size' in 'kernel.param' is not an argument of op 'pool3d_grad'."});
}

}  // namespace bad_input_test
