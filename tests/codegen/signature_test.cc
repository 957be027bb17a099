// Signatures survive reading and printing.
#include <catch2/catch.hpp>

#include "codegen/helpers.h"
#include "model/print.h"
#include "read/signature.h"

namespace signature_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

std::string round_trip(const std::string& text) {
  DiagnosticSink sink;
  Cursor cursor(text, sink);
  const std::optional<Forward> forward = read_forward(cursor);
  return forward && sink.all().empty() ? to_string(forward->name.text, forward->signature) : to_text(sink.all());
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

}  // namespace

TEST_CASE("A signature prints as it was read", "[codegen]") {
  const std::string signature = GENERATE(
      "add(Tensor x, Tensor y) -> Tensor(out)", "f() -> Tensor",
      "split(Tensor x, IntArray sections, Scalar(int) axis=0) -> Tensor[](out){sections.size()}",
      "g(Tensor[] x, int low, int high) -> Tensor[]{high - low + 1}",
      "h(Tensor x, float p=0.5f, str mode=\"a b\", bool b=true) -> Tensor(a), Tensor[](b){-1 + 2}",
      "i(int64_t a=INT64_MAX, int[] b={1, 2}, DataType c=DataType::FLOAT32, Place d=CPUPlace(), Scalar e=-1.0e-8f) "
      "-> Tensor(out)",
      "j(double[] a={}, float[] b={1.0f}, str[] c, bool[] d, Scalar[] e, int64_t[] f, Place g={}) -> Tensor(out)");
  CHECK(round_trip(signature) == signature);
}

TEST_CASE("Every signature of ops_yaml prints as it is written", "[codegen]") {
  if (!std::filesystem::exists(source_path("ops_yaml"))) return;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("ops_yaml"))) {
    const std::string text = slurp(entry.path().string());
    DiagnosticSink sink;
    const Family family = read_family(entry.path().filename().string(), text, sink);
    const std::string squeezed = without_spaces(text);
    for (const Op& op : family.ops) {
      INFO(op.name.text);
      CHECK(squeezed.find("args:" + without_spaces(args_to_string(op.signature))) != std::string::npos);
      CHECK(squeezed.find("output:" + without_spaces(outputs_to_string(op.signature)) + "\n") != std::string::npos);
    }
  }
}

TEST_CASE("An argument knows its place also on a continued line", "[codegen]") {
  DiagnosticSink sink;
  const Family family = read_text("- op : f\n  args : (Tensor x,\n    Tensor yy)\n  output : Tensor(out)\n", sink);
  CHECK(family.ops[0].signature.inputs[1].name.at == Location{"test.yaml", 3, 12});
}

}  // namespace signature_test
