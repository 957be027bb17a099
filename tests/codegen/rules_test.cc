// Placement rules in the tool: those of backward ops that are derived from forward ops, and what
// the OpDefs get.
#include <catch2/catch.hpp>

#include "codegen/helpers.h"
#include "lower/rules.h"
#include "lower/runtime.h"
#include "lower/template_data.h"

namespace rules_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

/// A forward op and its backward op, with the forward op's rule.
std::string pair_of(const std::string& args, const std::string& rule, const std::string& backward_args,
                    const std::string& gradients, const std::string& forward = "") {
  return "- op : f\n  args : " + args + "\n  output : Tensor(out)\n  infer_meta : {func : FInferMeta, spmd_rule : \"" +
         rule + "\"}\n  kernel : {func : f, data_type : x}\n- backward_op : f_grad\n  forward : f " +
         (forward.empty() ? args : forward) + " -> Tensor(out)\n  args : " + backward_args +
         "\n  output : " + gradients +
         "\n  infer_meta : {func : GradInferMeta, param : [x]}\n  kernel : {func : f_grad}\n";
}

std::string derived(const std::string& yaml) {
  DiagnosticSink sink;
  const Family family = read_text(yaml, sink);
  INFO(to_text(sink.all()));
  REQUIRE(family.ops.size() == 2);
  const std::vector<Family> families = {family};
  return rule_of(select_ops(families, own_runtime()), families[0].ops[1]).value_or("none");
}

}  // namespace

TEST_CASE("A backward op's rule follows from its forward op's expression", "[codegen]") {
  CHECK(derived(pair_of("(Tensor x, Tensor y)", "..., ... -> ...", "(Tensor x, Tensor y, Tensor out_grad)",
                        "Tensor(x_grad), Tensor(y_grad)")) == "..., ..., ... -> ..., ...");
  CHECK(derived(pair_of("(Tensor x, Tensor y)", "..., ... -> ...", "(Tensor x, Tensor y, Tensor out_grad)",
                        "Tensor(x_grad), Tensor(y_grad)\n  no_need_buffer : x, y")) ==
        "..., ..., ... -> ..., ... ~ linear");
  CHECK(derived(pair_of("(Tensor x, IntArray axis={}, bool keepdim=false)", "...{axis:sum} -> ...{-axis?keepdim}",
                        "(Tensor x, Tensor out_grad, IntArray axis={}, bool keepdim=false)", "Tensor(x_grad)")) ==
        "..., ...{-axis?keepdim} -> ...");
  CHECK(derived(pair_of("(Tensor[] x, Scalar axis=0)", "[...{!axis}] -> ...{!axis}",
                        "(Tensor[] x, Tensor out_grad, Scalar axis=0)", "Tensor[](x_grad){x.size()}")) ==
        "[...{!axis}], ...{!axis} -> [...{!axis}]");
}

TEST_CASE("A backward op's tensors have the names of its own 'forward' line", "[codegen]") {
  CHECK(derived(pair_of("(Tensor x, Tensor y)", "m k, k n -> m n", "(Tensor a, Tensor b, Tensor out_grad)",
                        "Tensor(b_grad)", "(Tensor a, Tensor b)")) == "m k, k n, m n -> k n");
}

TEST_CASE("No rule follows where a tensor, a list or an attribute does not fit", "[codegen]") {
  const std::string args = "(Tensor x, int axis=-1)", rule = "...{!axis} -> ...{!axis}";
  CHECK(derived(pair_of(args, rule, "(Tensor saved, Tensor out_grad, int axis)", "Tensor(x_grad)")) == "none");
  CHECK(derived(pair_of(args, rule, "(Tensor x, Tensor out_grad)", "Tensor(x_grad)")) == "none");
  CHECK(derived(pair_of(args, rule, "(Tensor x, Tensor[] out_grad, int axis)", "Tensor(x_grad)")) == "none");
  CHECK(derived(pair_of(args, rule, "(Tensor x, Tensor out_grad, int axis)", "Tensor(x_grad)",
                        "(Tensor x, Tensor y)")) == "none");
  CHECK(derived(pair_of("(Tensor x)", "m k -> m", "(Tensor out_grad)", "Tensor(x_grad)")) == "none");
}

TEST_CASE("An op's own rule comes before a derived one, and its mark is its commutation", "[codegen]") {
  DiagnosticSink sink;
  const Family family = read_text(
      "- op : f\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : M, spmd_rule : \"...->... ~ "
      "monotone( max )\"}\n"
      "  kernel : {func : f}\n"
      "- backward_op : f_grad\n  forward : f (Tensor x) -> Tensor(out)\n  args : (Tensor out_grad)\n  output : "
      "Tensor(x_grad)\n"
      "  infer_meta : {func : M, spmd_rule : MyRule}\n  kernel : {func : f_grad}\n"
      "- backward_op : f_grad_of_grad\n  forward : f (Tensor x) -> Tensor(out)\n  args : (Tensor out_grad)\n  output : "
      "Tensor(x_grad)\n"
      "  infer_meta : {func : M}\n  kernel : {func : f_grad}\n",
      sink);
  REQUIRE(family.ops.size() == 3);
  const std::vector<Family> families = {family};
  const Selection selection = select_ops(families, own_runtime());
  REQUIRE(selection.find("f") != nullptr);
  CHECK(rule_of(selection, family.ops[0]) == "... -> ... ~ monotone(max)");
  CHECK(rule_of(selection, family.ops[1]) == "MyRule");
  CHECK(rule_of(selection, family.ops[2]) == "... -> ... ~ linear");
  const auto commutation = [&](size_t op) {
    const std::optional<Partial> partial = commutation_of(selection, family.ops[op]);
    return partial ? shard::to_string(*partial) : "none";
  };
  CHECK(commutation(0) == "monotone(max)");
  CHECK(commutation(1) == "none");
  CHECK(commutation(2) == "linear");
}

TEST_CASE("Every rule of ops_yaml prints as it is written", "[codegen]") {
  int expressions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("ops_yaml"))) {
    DiagnosticSink sink;
    const Family family = read_family(entry.path().filename().string(), slurp(entry.path().string()), sink);
    for (const Op& op : family.ops) {
      if (!op.infer_meta || !op.infer_meta->expression) continue;
      CHECK(shard::to_string(*op.infer_meta->expression) == op.infer_meta->spmd_rule->text);
      ++expressions;
    }
  }
  CHECK(expressions > 30);
}

}  // namespace rules_test
