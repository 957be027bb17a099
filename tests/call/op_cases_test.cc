// The table of op cases covers every op of ops_yaml, and each of its cases runs on one rank.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "shard/testing/op_cases.h"
#include "support/source_dir.h"

namespace op_cases_test {

using namespace shard;
using namespace shard::testing;

namespace {

/// The functions of ops_yaml that have tensor arguments, including in-place forms. Of gradients only those with a
/// kernel, because the others are composites of functions that have cases; no overloads, which call a function that has.
std::set<std::string> ops_with_tensors() {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(test::source_dir() + "/ops_yaml")) {
    std::ifstream text(file.path());
    std::string line, op;
    bool tensors = false, backward = false;
    for (std::smatch match; std::getline(text, line);) {
      if (std::regex_match(line, match, std::regex("- (backward_)?op : (\\w+)")))
        backward = match[1].matched, op = match[2];
      if (line.starts_with("  args :"))
        tensors = line.find("Tensor ") != std::string::npos || line.find("Tensor[] ") != std::string::npos;
      if (line.starts_with(backward ? "  kernel :" : "  args :") && tensors) names.insert(op);
      if (line.starts_with("    overload : true")) names.erase(op);
      if (line.starts_with("  inplace :") && names.contains(op) && !op.ends_with("_")) names.insert(op + "_");
    }
  }
  return names;
}

}  // namespace

TEST_CASE("every op of ops_yaml that takes tensors has a case, its in-place form too", "[slow_in_tsan]") {
  std::set<std::string> cases;
  for (const OpCase& one : op_cases()) cases.insert(one.op);
  std::string missing;
  for (const std::string& op : ops_with_tensors()) {
    if (!cases.contains(op)) missing += " " + op;
  }
  INFO("add cases to runtime/shard/testing/op_cases_*.cc for:" << missing);
  CHECK(missing.empty());
  CHECK(ops_with_tensors().size() > 60);
}

TEST_CASE("no two cases of an op have one name, and what is inexact says why") {
  std::set<std::string> names;
  for (const OpCase& one : op_cases()) {
    INFO(one.op << ": " << one.name);
    CHECK(names.insert(one.op + ": " + one.name).second);
    CHECK((one.ulps == 0) == one.inexact.empty());
    CHECK_FALSE(one.dtypes.empty());
  }
}

}  // namespace op_cases_test
