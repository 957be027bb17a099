// Templates are strict, and the text that they produce is laid out to 100 columns.
#include <catch2/catch.hpp>

#include <sstream>

#include "emit/layout.h"
#include "emit/template.h"

using namespace shardgen;

namespace {

std::vector<std::string> problems_of(const std::string& text, const Json& data) {
  std::vector<std::string> problems;
  Template("t", text).render(data, problems);
  return problems;
}

std::string render(const std::string& text, const Json& data) {
  std::vector<std::string> problems;
  const std::string result = Template("t", text).render(data, problems);
  CHECK(problems.empty());
  return result;
}

}  // namespace

TEST_CASE("A tag without a value is an error", "[codegen]") {
  CHECK(problems_of("{{a}} {{b}}", {{"a", "x"}}) == std::vector<std::string>{"t: tag 'b' has no value"});
  CHECK(problems_of("{{#items}}{{a}}{{/items}}", {{"items", {{{"a", "x"}}, {{"b", "x"}}}}}).size() == 2);
}

TEST_CASE("A value that no tag shows is an error", "[codegen]") {
  CHECK(problems_of("{{a}}", {{"a", "x"}, {"b", "y"}}) == std::vector<std::string>{"t: value 'b' is shown by no tag"});
  CHECK(problems_of("{{#a}}{{b}}{{/a}}", {{"a", {{"b", "x"}, {"c", "y"}}}}).size() == 1);
}

TEST_CASE("A template that is no template is an error", "[codegen]") {
  CHECK(problems_of("{{#a}}", {{"a", true}}) == std::vector<std::string>{"t: section 'a' is not closed"});
  CHECK(problems_of("{{#a}}{{/b}}", {{"a", true}}).size() == 1);
  CHECK(problems_of("{{> partial}}", Json::object()).size() == 1);
  CHECK(problems_of("{{a", Json::object()).size() == 1);
}

TEST_CASE("Lines of tags leave no empty lines, and empty lines stay", "[codegen]") {
  const std::string text = "{{#items}}\n{{#on}}\n{{a}}<&>\n{{/on}}\n\n{{/items}}\nend\n";
  CHECK(render(text, {{"items", {{{"on", true}, {"a", "x"}}, {{"on", {{"a", "y"}}}}}}}) == "x<&>\n\ny<&>\n\nend\n");
}

TEST_CASE("Long lines are broken at commas, at the least depth that fits", "[codegen]") {
  const std::string arguments =
      "first(argument, argument, argument), second(argument, argument), third(argument, argument), fourth(argument)";
  CHECK(lay_out("  f(" + arguments + ");\n") ==
        "  f(first(argument, argument, argument), second(argument, argument), third(argument, argument),\n"
        "      fourth(argument));\n");
}

TEST_CASE("Texts in quotes are never broken", "[codegen]") {
  const std::string quoted = "\"" + std::string(60, 'a') + ", " + std::string(60, 'b') + "\"";
  CHECK(lay_out("f(x, " + quoted + ");\n") == "f(x,\n    " + quoted + ");\n");
}

TEST_CASE("Long lambdas and conditions become blocks", "[codegen]") {
  const std::string args(84, 'a');
  CHECK(lay_out("  run([&] { f(" + args + "); });\n") == "  run([&] {\n    f(" + args + ");\n  });\n");
  CHECK(lay_out("  if (a) return f(" + args + ");\n") == "  if (a) {\n    return f(" + args + ");\n  }\n");
}

TEST_CASE("Long comments keep their slashes", "[codegen]") {
  std::string words;
  for (int i = 0; i < 40; ++i) words += " word";
  std::istringstream lines(lay_out("///" + words + "\n"));
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.substr(0, 4) == "/// ");
    CHECK(line.size() <= kColumns);
  }
}
