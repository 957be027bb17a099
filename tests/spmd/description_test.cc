// The tool's description of this runtime names the rules that the runtime has.
#include <catch2/catch.hpp>

#include <fstream>
#include <regex>
#include <sstream>

#include "shard/spmd/rule.h"
#include "support/source_dir.h"

namespace description_test {

TEST_CASE("The description of the runtime lists every built-in rule, and no other") {
  std::ifstream file(shard::test::source_dir() + "/codegen/runtime/shard.json");
  std::stringstream text;
  text << file.rdbuf();
  const std::string json = text.str();
  std::smatch list;
  REQUIRE(std::regex_search(json, list, std::regex(R"re("rules": \[([^\]]*)\])re")));
  const std::string names = list[1];
  std::vector<std::string> listed;
  const std::regex name(R"re("(\w+)")re");
  for (std::sregex_iterator at(names.begin(), names.end(), name), end; at != end; ++at) listed.push_back((*at)[1]);
  std::vector<std::string> built_in;
  // Rules that other tests of this program register have names of their own.
  for (const std::string& each : shard::spmd::rule_names()) {
    if (each.ends_with("InferSpmd")) built_in.push_back(each);
  }
  CHECK(listed == built_in);
}

}  // namespace description_test
