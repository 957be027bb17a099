// The work of the tool grows linearly with the size of the files: counts, not times.
#include <catch2/catch.hpp>

#include "codegen/helpers.h"
#include "diag/suggest.h"
#include "emit/generate.h"
#include "emit/templates.h"
#include "lower/support.h"

namespace scaling_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

std::string invoking(const std::string& name, const std::string& target) {
  return "- op : " + name + "\n  args : (Tensor x)\n  output : Tensor(out)\n  invoke : " + target + "(x)\n";
}

/// Ops c0, c1, ..., each of which invokes the next; the last invokes `end`.
std::string chain(int length, const std::string& end) {
  std::string text;
  for (int i = 0; i < length; ++i)
    text += invoking("c" + std::to_string(i), i + 1 < length ? "c" + std::to_string(i + 1) : end);
  return text;
}

const std::string kRelu =
    "- op : base\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : UnchangedInferMeta}\n  kernel : "
    "{func : relu}\n  backward : base_grad\n"
    "- backward_op : base_grad\n  forward : base (Tensor x) -> Tensor(out)\n  args : (Tensor out, Tensor out_grad)\n  "
    "output : Tensor(x_grad)\n"
    "  infer_meta : {func : UnchangedInferMeta, param : [out]}\n  kernel : {func : relu_grad, data_type : out_grad}\n";

Selection select(const std::string& text, DiagnosticSink& sink, std::vector<Family>& families) {
  families = {read_text(text, sink)};
  return select_ops(families, own_runtime(), refused_ops(families, sink.all()).ops);
}

}  // namespace

TEST_CASE("Each op of a chain of invokes is looked at once, and its end is known", "[codegen]") {
  DiagnosticSink sink;
  std::vector<Family> families;
  const Selection selection = select(chain(4000, "base") + kRelu, sink, families);
  CHECK(sink.error_count() == 0);
  CHECK(selection.dropped.empty());
  CHECK(selection.invokes_seen == 4000);
  CHECK(selection.end_of(*selection.find("c0")) == selection.find("base"));
  CHECK(selection.end_of(*selection.find("c3999")) == selection.find("base"));
  // The parameter that the gradient of the end needs goes through the whole chain.
  std::string problem;
  const Templates templates = load_templates("", problem).value();
  const std::map<std::string, int> no_parts;
  const Generated made = generate(
      families,
      {.runtime = own_runtime(), .templates = templates.texts, .umbrella = "api.h", .parts = no_parts, .refused = {}});
  CHECK(made.ops == 4002);
  size_t sites = 0;
  for (const auto& [name, text] : made.files) {
    if (!name.ends_with(".h") || name.ends_with("_ops.h") || name.ends_with("_dense.h")) continue;
    for (size_t at = text.find("CallSite site = "); at != std::string::npos; at = text.find("CallSite site = ", at + 1))
      ++sites;
  }
  CHECK(sites == 4001);
}

TEST_CASE("A chain whose last op cannot be generated goes with two looks at each op", "[codegen]") {
  DiagnosticSink sink;
  std::vector<Family> families;
  const std::string sparse =
      "- op : base\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : F}\n  kernel : {func : "
      "\"f{sparse_coo -> dense}\"}\n";
  const Selection selection = select(chain(4000, "base") + sparse, sink, families);
  CHECK(selection.dropped.size() == 4001);
  CHECK(selection.invokes_seen <= 8000);
}

TEST_CASE("A circle of 4,000 invokes is one error, and its ops are left out with two looks at each", "[codegen]") {
  DiagnosticSink sink;
  std::vector<Family> families;
  const Selection selection = select(chain(4000, "c0") + kRelu, sink, families);
  CHECK(sink.error_count() == 1);
  CHECK(selection.dropped.size() == 4000);
  CHECK(selection.invokes_seen <= 8000);
  CHECK(selection.find("base") != nullptr);
  // Without the check before it, no op has an end, and the search terminates nevertheless.
  const Selection unchecked = select_ops(families, own_runtime());
  CHECK(unchecked.end_of(*unchecked.find("c7")) == nullptr);
}

TEST_CASE("Names like a misspelt one are looked for until so many were compared", "[codegen]") {
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) names.push_back("some_operator_" + std::to_string(i));
  Suggester suggest({names.begin(), names.end()});
  CHECK(suggest("some_operatr_17") == "; did you mean 'some_operator_17'?");
  for (int i = 0; i < 5000; ++i) suggest("unknown_" + std::to_string(i));
  CHECK(suggest.comparisons() <= Suggester::kMost + names.size());
  CHECK(suggest("some_operatr_17") == ".");
}

TEST_CASE("5,000 unknown names are 5,000 findings, each at its op", "[codegen]") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += invoking("op_" + std::to_string(i), "unknown_" + std::to_string(i));
  DiagnosticSink sink(true);
  const std::vector<Family> families = {read_text(text, sink)};
  CHECK(sink.error_count() == 5000);
  const RefusedOps refused = refused_ops(families, sink.all());
  CHECK(refused.ops.size() == 5000);
  CHECK(refused.elsewhere == 0);
}

}  // namespace scaling_test
