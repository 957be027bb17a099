// Templates are strict, and the text that they produce is laid out to 100 columns.
#include <catch2/catch.hpp>

#include <sstream>

#include "emit/layout.h"
#include "emit/template.h"

namespace template_test {

using namespace shardgen;

namespace {

std::vector<std::string> problems_of(const std::string& text, const Json& data) {
  std::vector<std::string> problems;
  Template("t", text).check(data, problems);
  return problems;
}

std::string render(const std::string& text, const Json& data) {
  std::vector<std::string> problems;
  const Template text_template("t", text);
  text_template.check(data, problems);
  CHECK(problems.empty());
  return text_template.render(data);
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

TEST_CASE("Lines of several tags, and indented ones, leave no empty lines either", "[codegen]") {
  CHECK(render("{{#a}}{{#b}}\n  x\n  {{/b}} {{/a}}\r\nend", {{"a", true}, {"b", true}}) == "  x\nend\n");
  CHECK(render("{{#a}}x{{/a}}\n", {{"a", true}}) == "x\n");
}

TEST_CASE("Special characters of values are escaped in HTML alone", "[codegen]") {
  const Json data = {{"a", "<&>\"'"}};
  CHECK(render("<{{a}}>", data) == "<<&>\"'>\n");
  CHECK(Template("t", "<{{a}}>", Template::Language::html).render(data) == "<&lt;&amp;&gt;&quot;&apos;>\n");
}

TEST_CASE("A symbol is needed by the ops of the innermost item that names some, else by the file", "[codegen]") {
  const Template text(
      "t", mark_symbols("@head {{first}}\n{{#items}}\n@each {{#more}}@inner{{/more}}{{^more}}@none{{/more}}\n"
                        "{{/items}}\n{{#off}}@off{{/off}}"));
  const Json more = {{{kOps, {"c", "d"}}}};
  const Json data = {{"first", rt("value")},
                     {"off", false},
                     {"items", {{{kOps, {"a"}}, {"more", false}}, {{kOps, {"b"}}, {"more", more}}}}};
  std::vector<std::string> problems, needed;
  for (const NeededSymbol& each : text.check(data, problems))
    needed.push_back(std::string(each.symbol) + " " + (each.ops == nullptr ? "" : each.ops->dump()));
  CHECK(problems.empty());
  CHECK(needed == std::vector<std::string>{"head ", "value ", "each [\"a\"]", "none [\"a\"]", "each [\"b\"]",
                                           "inner [\"c\",\"d\"]"});
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

}  // namespace template_test
