// Forms of PaddlePaddle's op language that other versions of its files use.
#include <catch2/catch.hpp>

#include "codegen/helpers.h"
#include "codegen/tool.h"

#include <fstream>

namespace peer_language_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

const std::string kRest = "  infer_meta : {func : F}\n  kernel : {func : f}\n";

std::vector<std::string> messages(const DiagnosticSink& sink) {
  std::vector<std::string> texts;
  for (const Diagnostic& each : sink.all())
    texts.push_back((each.severity == Severity::error ? "error: " : "warning: ") + each.message);
  return texts;
}

}  // namespace

TEST_CASE("Pairs may share a bracket", "[codegen]") {
  DiagnosticSink sink;
  const Family family = read_text(
      "- op : f\n  args : (Tensor a, Tensor c)\n  output : Tensor(b), Tensor(d)\n  inplace : (a -> b, c -> d)\n" +
          kRest,
      sink);
  CHECK(messages(sink).empty());
  REQUIRE(family.ops[0].inplace.size() == 2);
  CHECK(family.ops[0].inplace[1].input.text == "c");
  CHECK(family.ops[0].inplace[1].output.text == "d");
}

TEST_CASE("Defaults are computed as C++ computes them", "[codegen]") {
  const auto value = [](const std::string& type, const std::string& text) {
    DiagnosticSink sink;
    const Family family = read_text(
        "- op : f\n  args : (Tensor x, " + type + " a = " + text + ")\n  output : Tensor(out)\n" + kRest, sink);
    INFO(text);
    CHECK(messages(sink).empty());
    return family.ops[0].signature.attrs[0].default_value->value;
  };
  const auto floating = [&](const std::string& text, double expected, bool single) {
    const auto found = value(single ? "float" : "double", text);
    INFO(text);
    REQUIRE(std::holds_alternative<FloatValue>(found));
    CHECK(std::get<FloatValue>(found).value == expected);
    CHECK(std::get<FloatValue>(found).single == single);
  };
  floating("1.0f/8", 0.125, true);
  floating("1.0f / 3", static_cast<double>(1.0f / 3), true);
  floating("1.0 / 3", 1.0 / 3, false);
  floating("2.0f * 0.5", 1.0, false);
  floating("-(1e-3 + 1)", -(1e-3 + 1), false);
  CHECK(std::get<int64_t>(value("int", "7 / 2")) == 3);
  CHECK(std::get<int64_t>(value("int64_t", "(2 << 12) - 1")) == 8191);
  for (const char* bad : {"1.0f/0", "1.0 << 2", "inf", "nan", "1.0f/", "1..0 / 2"}) {
    DiagnosticSink sink;
    read_text(std::string("- op : f\n  args : (Tensor x, float a = ") + bad + ")\n  output : Tensor(out)\n" + kRest,
              sink);
    INFO(bad);
    CHECK(sink.error_count() == 1);
  }
}

TEST_CASE("A separator without a candidate behind it is a warning", "[codegen]") {
  DiagnosticSink sink;
  const Family family = read_text(
      "- op : f\n  args : (Tensor x, Place place={})\n  output : Tensor(out)\n  infer_meta : {func : F}\n  kernel :\n  "
      "  func : f\n    backend : place>\n",
      sink);
  REQUIRE(sink.all().size() == 1);
  CHECK(messages(sink)[0] == "warning: No candidate follows '>': remove it.");
  CHECK(sink.all()[0].code == "stray-character");
  CHECK(sink.all()[0].at.line == 7);
  CHECK(sink.all()[0].at.column == 20);
  REQUIRE(family.ops[0].kernel->backend.candidates.size() == 1);
  CHECK(family.ops[0].kernel->backend.candidates[0].name.text == "place");
}

TEST_CASE("An op without outputs is read, and left out with the reason", "[codegen]") {
  const TempFolder folder;
  std::ofstream(folder.path("ops.yaml")) << "- op : send\n  args : (Tensor x, int ring_id = 0)\n  output :\n" + kRest +
                                                "- op : id\n  args : (Tensor x)\n  output : Tensor(out)\n" + kRest;
  const Ran ran = run_tool("generate " + folder.path("ops.yaml") + " --out " + folder.path("out"));
  INFO(ran.err);
  CHECK(ran.code == 0);
  CHECK(ran.err.find("note: Op 'send' is not generated: it has no outputs. [dropped]") != std::string::npos);
  CHECK(ran.err.find("1 ops generated, 1 left out") != std::string::npos);
  CHECK(run_tool("dump " + folder.path("ops.yaml")).out.find("\"outputs\": []") != std::string::npos);
}

TEST_CASE("Of a key that stands twice the last one counts, with a warning that --strict makes an error", "[codegen]") {
  const std::string text =
      "- op : f\n  args : (Tensor x)\n  args : (Tensor y, int n)\n  output : Tensor(out)\n" + kRest;
  DiagnosticSink sink;
  const Family family = read_text(text, sink);
  CHECK(messages(sink) ==
        std::vector<std::string>{"warning: Key 'args' is given twice, and the last one counts: remove the other."});
  REQUIRE(family.ops[0].signature.inputs.size() == 1);
  CHECK(family.ops[0].signature.inputs[0].name.text == "y");
  CHECK(family.ops[0].signature.attrs.size() == 1);
  DiagnosticSink strict(true);
  read_text(text, strict);
  CHECK(strict.error_count() == 1);
}

TEST_CASE("An op that invokes another does not return its intermediate outputs, but has a function that does",
          "[codegen]") {
  const TempFolder folder;
  std::ofstream(folder.path("ops.yaml"))
      << "- op : squeeze\n  args : (Tensor x, IntArray axis={})\n  output : Tensor(out), Tensor(xshape)\n  infer_meta "
         ": {func : SqueezeInferMeta}\n"
         "  kernel : {func : squeeze}\n  intermediate : xshape\n  backward : squeeze_grad\n"
         "- backward_op : squeeze_grad\n  forward : squeeze(Tensor x, IntArray axis) -> Tensor(out), Tensor(xshape)\n"
         "  args : (Tensor xshape, Tensor out_grad, IntArray axis)\n  output : Tensor(x_grad)\n  infer_meta : {func : "
         "F, param : [xshape]}\n"
         "  kernel : {func : squeeze_grad, data_type : out_grad}\n  backward : squeeze_double_grad\n"
         "- backward_op : squeeze_double_grad\n  forward : squeeze_grad(Tensor xshape, Tensor grad_out, IntArray axis) "
         "-> Tensor(grad_x)\n"
         "  args : (Tensor grad_x_grad, IntArray axis)\n  output : Tensor(grad_out_grad), Tensor(xshape)\n  "
         "intermediate : xshape\n"
         "  invoke : squeeze(grad_x_grad, axis)\n";
  const Ran ran = run_tool("generate " + folder.path("ops.yaml") + " --keep-going --out " + folder.path("out"));
  INFO(ran.err);
  REQUIRE(ran.code == 0);
  const std::string header = slurp(folder.path("out/ops.h"));
  INFO(header);
  CHECK(header.find("\nSHARD_API Tensor squeeze_double_grad(const Tensor& grad_x_grad, const IntArray& axis") !=
        std::string::npos);
  CHECK(header.find("std::tuple<Tensor, Tensor> squeeze_double_grad_intermediate(") != std::string::npos);
  const Ran compiled = run_shell(compiler_path() + " -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I" +
                                 source_path("runtime") + " -I" + folder.path("out") + " " + folder.path("out/ops.cc"));
  INFO(compiled.err);
  CHECK(compiled.code == 0);
}

}  // namespace peer_language_test
