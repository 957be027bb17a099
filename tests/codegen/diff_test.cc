// Unified diffs: their text, and that patch turns the old file into the new one with them.
#include <catch2/catch.hpp>

#include <fstream>
#include <random>

#include "codegen/helpers.h"
#include "codegen/tool.h"
#include "reference/diff.h"

namespace diff_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// The result of `patch` on `before` with the diff.
std::string patched(const std::string& before, const std::string& after) {
  const TempFolder folder;
  write(folder.path("file"), before);
  write(folder.path("diff"), unified_diff("a/file", "b/file", before, after));
  const Ran ran = run_shell("cd " + folder.path() + " && patch -s -p1 <diff");
  INFO(ran.out << ran.err);
  CHECK(ran.code == 0);
  return slurp(folder.path("file"));
}

bool has_patch() {
  if (run_shell("patch --version").code == 0) return true;
  WARN("skipped: the program patch is not installed");
  return false;
}

}  // namespace

TEST_CASE("A diff has hunks with three lines of context, and none where nothing changed", "[codegen]") {
  CHECK(unified_diff("a", "b", "1\n2\n", "1\n2\n").empty());
  CHECK(unified_diff("a/f", "b/f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n") ==
        "--- a/f\n+++ b/f\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
}

TEST_CASE("A file that is made or removed is a diff from or to nothing", "[codegen]") {
  CHECK(unified_diff("/dev/null", "b/f", "", "1\n2\n") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+1\n+2\n");
  CHECK(unified_diff("a/f", "/dev/null", "1\n", "") == "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n");
}

TEST_CASE("A last line without an end is told apart from one with an end", "[codegen]") {
  CHECK(unified_diff("a", "b", "1", "1\n") == "--- a\n+++ b\n@@ -1 +1 @@\n-1\n\\ No newline at end of file\n+1\n");
}

TEST_CASE("Changes that are far apart get hunks of their own", "[codegen]") {
  std::string before, after;
  for (int i = 0; i < 40; ++i) {
    before += std::to_string(i) + "\n";
    after += (i == 3 || i == 10 || i == 30 ? "x" : "") + std::to_string(i) + "\n";
  }
  const std::string diff = unified_diff("a", "b", before, after);
  size_t hunks = 0;
  for (size_t at = diff.find("\n@@"); at != std::string::npos; at = diff.find("\n@@", at + 1)) ++hunks;
  CHECK(hunks == 2);
}

TEST_CASE("patch makes the new file of the old one, for random files and for ones with nothing in common",
          "[codegen]") {
  if (!has_patch()) return;
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const auto text = [&](int lines, int words) {
      std::string made;
      for (int i = 0; i < lines; ++i) made += "line " + std::to_string(random() % static_cast<unsigned>(words)) + "\n";
      if (round % 3 == 0 && !made.empty()) made.pop_back();
      return made;
    };
    const std::string before = text(1 + round * 2, 3 + round), after = text(1 + round, 3 + round);
    CHECK(patched(before, after) == after);
  }
  std::string before, after;
  for (int i = 0; i < 3000; ++i) {
    before += "old " + std::to_string(i) + "\n";
    after += "new " + std::to_string(i) + "\n";
  }
  CHECK(patched(before, after) == after);
}

}  // namespace diff_test
