// The steps to which an op is lowered, before any text.
#include <catch2/catch.hpp>

#include "codegen/helpers.h"
#include "lower/plan.h"

namespace plan_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

std::string plan_of(const std::string& name, Form form) {
  DiagnosticSink sink;
  const Family family = read_text(slurp(source_path("tests/codegen/fixtures/mixed.yaml")), sink);
  REQUIRE(sink.error_count() == 0);
  for (const Op& op : family.ops) {
    if (op.name.text == name) return describe(op, plan_dense(op, form));
  }
  return "no such op";
}

}  // namespace

TEST_CASE("A functional op allocates and runs", "[codegen]") {
  CHECK(plan_of("add", Form::functional) ==
        "infer_meta ElementwiseInferMeta(x, y)\n"
        "device tensors\n"
        "kernel add(x, y) by x\n"
        "allocate out\n"
        "run\n"
        "return out\n");
}

TEST_CASE("An in-place op takes targets before readers", "[codegen]") {
  CHECK(plan_of("add", Form::inplace) ==
        "infer_meta ElementwiseInferMeta(x, y)\n"
        "device tensors\n"
        "kernel add(x, y) by x\n"
        "guard\n"
        "target out <- x\n"
        "reader y\n"
        "run guarded\n");
}

TEST_CASE("A view that only reinterprets looks no kernel up", "[codegen]") {
  CHECK(plan_of("reshape", Form::functional) ==
        "infer_meta ReshapeInferMeta(x, shape)\n"
        "reinterpret out <- x\n"
        "return out\n");
  CHECK(plan_of("reshape", Form::inplace) ==
        "infer_meta ReshapeInferMeta(x, shape)\n"
        "rebind x to out\n");
}

TEST_CASE("A view beside another output runs the kernel for the other", "[codegen]") {
  CHECK(plan_of("reshape_with_shape", Form::inplace) ==
        "infer_meta ReshapeWithXShapeInferMeta(x, shape)\n"
        "device tensors\n"
        "kernel reshape(x, shape) by x\n"
        "reinterpret out <- x\n"
        "allocate xshape\n"
        "run\n"
        "rebind x to out\n"
        "return xshape\n");
}

TEST_CASE("Random draws come last before the kernel", "[codegen]") {
  CHECK(plan_of("dropout", Form::inplace) ==
        "infer_meta DropoutInferMeta(x, seed_tensor, p, mode)\n"
        "device tensors\n"
        "kernel dropout(x, seed_tensor, p, mode) by x\n"
        "guard\n"
        "target out <- x\n"
        "allocate mask\n"
        "reader seed_tensor\n"
        "draw\n"
        "run guarded\n"
        "return mask\n");
}

TEST_CASE("Written views run inside their guard", "[codegen]") {
  CHECK(plan_of("batch_norm", Form::functional) ==
        "infer_meta BatchNormInferMeta(x, mean, variance, scale, momentum)\n"
        "device tensors\n"
        "kernel batch_norm(x, mean, variance, scale, momentum) by x\n"
        "guard\n"
        "allocate out\n"
        "written_view mean_out <- mean\n"
        "written_view variance_out <- variance\n"
        "reader x\n"
        "reader scale\n"
        "run guarded\n"
        "return out\n"
        "return mean_out\n"
        "return variance_out\n");
}

TEST_CASE("Arguments that may be cast are, unless they are written", "[codegen]") {
  CHECK(plan_of("sgd_", Form::inplace) ==
        "infer_meta SgdInferMeta(param, learning_rate, grad, master_param, multi_precision)\n"
        "device tensors\n"
        "kernel sgd(param, learning_rate, grad, master_param, multi_precision) by param\n"
        "cast learning_rate\n"
        "guard\n"
        "target param_out <- param\n"
        "target master_param_out <- master_param\n"
        "reader learning_rate\n"
        "reader grad\n"
        "run guarded\n");
}

TEST_CASE("An op without tensors takes dtype and device from attributes", "[codegen]") {
  CHECK(plan_of("full", Form::functional) ==
        "infer_meta CreateInferMeta(shape, dtype)\n"
        "device place\n"
        "kernel full(value) by dtype\n"
        "allocate out\n"
        "run\n"
        "return out\n");
}

TEST_CASE("A dtype that may be left open has an alternative", "[codegen]") {
  CHECK(plan_of("cast", Form::functional).find("kernel cast(x, dtype) by dtype x\n") != std::string::npos);
}

}  // namespace plan_test
