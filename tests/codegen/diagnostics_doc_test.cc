// docs/diagnostics.md and the sources have the same codes.
#include <catch2/catch.hpp>

#include <regex>
#include <set>

#include "codegen/helpers.h"

namespace diagnostics_doc_test {

using namespace shardgen::testing;

namespace {

std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) found.insert((*at)[1]);
  return found;
}

std::string sources() {
  std::string all;
  for (const char* folder : {"read", "check", "diag"}) {
    for (const auto& entry : std::filesystem::directory_iterator(source_path(std::string("codegen/") + folder)))
      all += slurp(entry.path().string());
  }
  return all;
}

}  // namespace

TEST_CASE("docs/diagnostics.md lists every code of the sources, and no other", "[codegen]") {
  const std::set<std::string> listed =
      matches(slurp(source_path("docs/diagnostics.md")), std::regex("\n\\| `([a-z0-9-]+)` \\|"));
  const std::string text = sources();
  const std::set<std::string> words = matches(text, std::regex("\"([a-z0-9]+(?:-[a-z0-9]+)*)\""));
  CHECK(listed.size() > 50);
  for (const std::string& code : listed) {
    INFO("listed, and in no source: " << code);
    CHECK(words.count(code) == 1);
  }
  // Codes of one word cannot be distinguished from other texts; those are found in the expected
  // findings of the bad files.
  std::set<std::string> used = matches(text, std::regex("\"([a-z]+(?:-[a-z]+)+)\""));
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/codegen/bad"))) {
    if (entry.path().extension() == ".expected")
      used.merge(matches(slurp(entry.path().string()), std::regex("\\[([a-z0-9-]+)\\]\n")));
  }
  for (const std::string& code : used) {
    INFO("used, and not listed: " << code);
    CHECK(listed.count(code) == 1);
  }
}

TEST_CASE("Every code but those that files in a repository cannot show has a bad file", "[codegen]") {
  std::set<std::string> shown;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/codegen/bad"))) {
    if (entry.path().extension() == ".expected")
      shown.merge(matches(slurp(entry.path().string()), std::regex("\\[([a-z0-9-]+)\\]\n")));
  }
  for (const std::string& code :
       matches(slurp(source_path("docs/diagnostics.md")), std::regex("\n\\| `([a-z0-9-]+)` \\|"))) {
    INFO(code);
    CHECK((shown.count(code) == 1 || code == "unreadable" || code == "too-large"));
  }
}

}  // namespace diagnostics_doc_test
