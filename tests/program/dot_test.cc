// Programs as drawings.
#include <catch2/catch.hpp>

#include <cstdlib>

#include "shard/program/capture/function.h"
#include "shard/program/io/dot.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace dot_test {

using namespace shard;
using namespace shard::test;
using program::to_dot;

TEST_CASE("34: ops are boxes, alias trees have a colour, and what is written is bold") {
  Tensor p = iota<double>({2});
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        Tensor view = reshape(p, {2, 1});
        add_(view, in[0]);
        return {multiply(p, p)};
      },
      {});
  const Tensor x = iota<double>({2, 1});
  CHECK(
      to_dot(captured.trace({x}).program) ==
      "digraph program {\n"
      "  node [fontname=\"monospace\", fontsize=10];\n"
      "  edge [fontname=\"monospace\", fontsize=8];\n"
      "  v1 [shape=ellipse, label=\"input_0\\n%1: f64[2, 1]\"];\n"
      "  v2 [shape=cylinder, label=\"p0\\n%2: f64[2]\", color=\"#1f77b4\", fontcolor=\"#1f77b4\"];\n"
      "  op0 [shape=box, label=\"reshape\\n%3: f64[2, 1] in %2\", color=\"#1f77b4\", fontcolor=\"#1f77b4\"];\n"
      "  v2 -> op0 [label=\"x: %2\\nf64[2]\", color=\"#1f77b4\", fontcolor=\"#1f77b4\"];\n"
      "  op1 [shape=box, label=\"add_\\n%4: f64[2, 1] in %2\", color=\"#1f77b4\", fontcolor=\"#1f77b4\", style=bold];\n"
      "  op0 -> op1 [label=\"x: %3\\nf64[2, 1]\", color=\"#1f77b4\", fontcolor=\"#1f77b4\", style=bold];\n"
      "  v1 -> op1 [label=\"y: %1\\nf64[2, 1]\"];\n"
      "  op2 [shape=box, label=\"multiply\\n%5: f64[2]\"];\n"
      "  op1 -> op2 [label=\"x: %2@%4\\nf64[2]\", color=\"#1f77b4\", fontcolor=\"#1f77b4\"];\n"
      "  op1 -> op2 [label=\"y: %2@%4\\nf64[2]\", color=\"#1f77b4\", fontcolor=\"#1f77b4\"];\n"
      "  out0 [shape=octagon, label=\"output_0\"];\n"
      "  op2 -> out0 [label=\"%5\\nf64[2]\"];\n"
      "}\n");
}

TEST_CASE("34: each alias tree has its own colour, and there may be more trees than colours") {
  CapturedFunction captured(
      [](const Tensors& in) -> Tensors {
        Tensors out;
        for (const Tensor& x : in) out.push_back(reshape(x, {2, 1}));
        return out;
      },
      {});
  const std::string dot =
      to_dot(captured.trace(Tensors{iota<double>({2}), iota<double>({2}, 1), iota<double>({2}, 2)}).program);
  CHECK_THAT(dot, Catch::Contains("\"input_0\\n%1: f64[2]\", color=\"#1f77b4\"") &&
                      Catch::Contains("\"input_1\\n%2: f64[2]\", color=\"#2ca02c\""));
  Tensors many;
  for (int i = 0; i < 20; ++i) many.push_back(iota<double>({2}));
  CHECK_THAT(to_dot(captured.trace(many).program), Catch::Contains("out19"));
}

TEST_CASE("34: moves are red, with what they send") {
  run_ranks(4, [](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    const auto on = [&](const char* layout, const Dims& dims) {
      return distribute(iota<double>(dims), DistSpec::parse(mesh, layout));
    };
    CapturedFunction captured(
        [&](const Tensors& in) -> Tensors {
          const Tensor all = full_tensor(in[0]);
          return {relu(matmul(in[0], in[1])), distribute(all, DistSpec::parse(mesh, "b, -"), from_rank(1)),
                  reshape(in[0], {12, 2})};
        },
        {});
    const std::string dot = to_dot(captured.trace({on("a, b", {4, 6}), on("b, -", {6, 2})}).program);
    check_contains(dot, "label=\"reshard 128 B\\nall_reduce(b, sum) 128 B\\n%");
    check_contains(dot, "color=\"#d62728\"");
    check_contains(dot, "[a, -] sum(b)");
    check_contains(dot, "for relu x");
    check_contains(dot, "label=\"full_tensor ");
    check_contains(dot, "label=\"distribute 576 B\\nslice(");  // 192 bytes to each of three ranks
  });
}

TEST_CASE("34: to_svg draws with Graphviz, and says what to install where that is not") {
  CapturedFunction captured([](const Tensors& in) -> Tensors { return {relu(in[0])}; }, {});
  const program::Program& program = captured.trace({iota<double>({2})}).program;
  if (std::system("command -v dot >/dev/null 2>&1") == 0) {
    const std::string svg = program::to_svg(program);
    CHECK_THAT(svg, Catch::Contains("<svg"));
    CHECK_THAT(svg, Catch::Contains(">relu"));
  } else {
    WARN("Graphviz is not installed: only the error is tested");
  }
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  CHECK_THROWS_WITH(program::to_svg(program), Catch::Contains("[to_svg] programs are drawn by Graphviz") &&
                                                  Catch::Contains("Debian package graphviz"));
  setenv("PATH", path.c_str(), 1);
}

}  // namespace dot_test
