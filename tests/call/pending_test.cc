// Pending reductions: statement 14 of docs/semantics.md.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/same_values.h"
#include "support/source_dir.h"

namespace pending_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(int n, const char* text) { return DistSpec::parse(line(n), text); }

using Tensors = std::vector<Tensor>;

/// An op that is declared to commute with some pending reductions, on tensors that are all pending, or of which
/// only one is.
struct Commuting {
  const char* op;
  std::vector<Dims> inputs;
  std::vector<ReduceType> keeps;  // types that must stay pending
  std::function<Tensors(const Tensors&)> run;
  int only = -1;  // the pending argument; -1: all are
  DType dtype = DType::float32;
};

const std::vector<ReduceType> kAllTypes = {ReduceType::sum, ReduceType::max, ReduceType::min, ReduceType::prod,
                                           ReduceType::avg, ReduceType::any, ReduceType::all};
const std::vector<ReduceType> kOfNumbers = {ReduceType::sum, ReduceType::max, ReduceType::min, ReduceType::prod,
                                            ReduceType::avg};
const std::vector<ReduceType> kLinear = {ReduceType::sum, ReduceType::avg};
const std::vector<ReduceType> kMonotone = {ReduceType::max, ReduceType::min};

std::vector<Commuting> commuting_ops() {
  const Dims d{2, 3};
  using T = const Tensors&;
  return {
      {"add", {d, d}, kLinear, [](T t) { return Tensors{add(t[0], t[1])}; }},
      {"subtract", {d, d}, kLinear, [](T t) { return Tensors{subtract(t[0], t[1])}; }},
      {"multiply", {d, d}, kLinear, [](T t) { return Tensors{multiply(t[0], t[1])}; }, 0},
      {"matmul", {d, {3, 4}}, kLinear, [](T t) { return Tensors{matmul(t[0], t[1])}; }, 0},
      {"maximum", {d, d}, {ReduceType::max}, [](T t) { return Tensors{maximum(t[0], t[1])}; }},
      {"minimum", {d, d}, {ReduceType::min}, [](T t) { return Tensors{minimum(t[0], t[1])}; }},
      {"assign", {d}, kAllTypes, [](T t) { return Tensors{assign(t[0])}; }},
      {"cast", {d}, kLinear, [](T t) { return Tensors{cast(t[0], DType::float64)}; }},
      {"scale", {d}, kLinear, [](T t) { return Tensors{scale(t[0], -2.0, 0.0)}; }},
      {"clip", {d}, kMonotone, [](T t) { return Tensors{clip(t[0], -1.0, 2.0)}; }},
      {"exp", {d}, kMonotone, [](T t) { return Tensors{exp(t[0])}; }},
      {"tanh", {d}, kMonotone, [](T t) { return Tensors{tanh(t[0])}; }},
      {"relu", {d}, kMonotone, [](T t) { return Tensors{relu(t[0])}; }},
      {"sigmoid", {d}, kMonotone, [](T t) { return Tensors{sigmoid(t[0])}; }},
      {"cumsum", {d}, kLinear, [](T t) { return Tensors{cumsum(t[0], 1)}; }},
      {"sum", {d}, kLinear, [](T t) { return Tensors{sum(t[0], {1})}; }},
      {"mean", {{2, 4}}, kLinear, [](T t) { return Tensors{mean(t[0], {1})}; }},
      {"max", {d}, {ReduceType::max}, [](T t) { return Tensors{max(t[0], {1})}; }},
      {"min", {d}, {ReduceType::min}, [](T t) { return Tensors{min(t[0], {1})}; }},
      {"reshape",
       {d},
       kAllTypes,
       [](T t) {
         return Tensors{reshape(t[0], {3, 2})};
       }},
      {"flatten", {d}, kAllTypes, [](T t) { return Tensors{flatten(t[0], 0, 1)}; }},
      {"squeeze", {{2, 1}}, kAllTypes, [](T t) { return Tensors{squeeze(t[0], {1})}; }},
      {"unsqueeze", {d}, kAllTypes, [](T t) { return Tensors{unsqueeze(t[0], {0})}; }},
      {"transpose",
       {d},
       kAllTypes,
       [](T t) {
         return Tensors{transpose(t[0], {1, 0})};
       }},
      {"expand",
       {d},
       kAllTypes,
       [](T t) {
         return Tensors{expand(t[0], {2, 2, 3})};
       }},
      {"concat",
       {d, {1, 3}},
       kAllTypes,
       [](T t) {
         return Tensors{concat({t[0], t[1]}, 0)};
       }},
      {"stack",
       {d, d},
       kAllTypes,
       [](T t) {
         return Tensors{stack({t[0], t[1]}, 1)};
       }},
      {"add_n",
       {d, d},
       kLinear,
       [](T t) {
         return Tensors{add_n({t[0], t[1]})};
       }},
      {"swiglu", {d, d}, kLinear, [](T t) { return Tensors{swiglu(t[0], t[1])}; }, 1},
      {"amax", {d}, {ReduceType::max}, [](T t) { return Tensors{amax(t[0], {1})}; }},
      {"amin", {d}, {ReduceType::min}, [](T t) { return Tensors{amin(t[0], {1})}; }},
      {"any", {d}, {ReduceType::any}, [](T t) { return Tensors{any(t[0], {1})}; }, -1, DType::boolean},
      {"all", {d}, {ReduceType::all}, [](T t) { return Tensors{all(t[0], {1})}; }, -1, DType::boolean},
      {"logical_and",
       {d, d},
       {ReduceType::all},
       [](T t) { return Tensors{logical_and(t[0], t[1])}; },
       -1,
       DType::boolean},
      {"logical_or",
       {d, d},
       {ReduceType::any},
       [](T t) { return Tensors{logical_or(t[0], t[1])}; },
       -1,
       DType::boolean},
      {"tile",
       {d},
       kAllTypes,
       [](T t) {
         return Tensors{tile(t[0], {2, 1})};
       }},
      // Only the shape of y is read, but y is a replicated argument: a number that is not a contribution cannot
      // become one to any or all.
      {"expand_as",
       {d, {2, 2, 3}},
       kOfNumbers,
       [](T t) {
         return Tensors{expand_as(t[0], t[1], {2, 2, 3})};
       },
       0},
      {"log", {d}, {ReduceType::min}, [](T t) { return Tensors{log(t[0])}; }},
      {"erf", {d}, kMonotone, [](T t) { return Tensors{erf(t[0])}; }},
      {"expm1", {d}, kMonotone, [](T t) { return Tensors{expm1(t[0])}; }},
      {"atan", {d}, kMonotone, [](T t) { return Tensors{atan(t[0])}; }},
      {"sinh", {d}, kMonotone, [](T t) { return Tensors{sinh(t[0])}; }},
      {"asinh", {d}, kMonotone, [](T t) { return Tensors{asinh(t[0])}; }},
      {"floor", {d}, kMonotone, [](T t) { return Tensors{floor(t[0])}; }},
      {"ceil", {d}, kMonotone, [](T t) { return Tensors{ceil(t[0])}; }},
      {"round", {d}, kMonotone, [](T t) { return Tensors{round(t[0])}; }},
      {"trunc", {d}, kMonotone, [](T t) { return Tensors{trunc(t[0])}; }},
      {"sign", {d}, kMonotone, [](T t) { return Tensors{sign(t[0])}; }},
      {"softsign", {d}, kMonotone, [](T t) { return Tensors{softsign(t[0])}; }},
      {"logsigmoid", {d}, kMonotone, [](T t) { return Tensors{logsigmoid(t[0])}; }},
      {"relu6", {d}, kMonotone, [](T t) { return Tensors{relu6(t[0])}; }},
      {"leaky_relu", {d}, kMonotone, [](T t) { return Tensors{leaky_relu(t[0])}; }},
      {"elu", {d}, kMonotone, [](T t) { return Tensors{elu(t[0])}; }},
      {"celu", {d}, kMonotone, [](T t) { return Tensors{celu(t[0])}; }},
      {"selu", {d}, kMonotone, [](T t) { return Tensors{selu(t[0])}; }},
      {"hardsigmoid", {d}, kMonotone, [](T t) { return Tensors{hardsigmoid(t[0])}; }},
      {"hardshrink", {d}, kMonotone, [](T t) { return Tensors{hardshrink(t[0])}; }},
      {"softshrink", {d}, kMonotone, [](T t) { return Tensors{softshrink(t[0])}; }},
      {"thresholded_relu", {d}, kMonotone, [](T t) { return Tensors{thresholded_relu(t[0])}; }},
      {"stanh", {d}, kMonotone, [](T t) { return Tensors{stanh(t[0])}; }},
      {"hardtanh", {d}, kMonotone, [](T t) { return Tensors{hardtanh(t[0], -1, 2)}; }},
      {"log1p", {d}, {ReduceType::min}, [](T t) { return Tensors{log1p(t[0])}; }},
      {"log2", {d}, {ReduceType::min}, [](T t) { return Tensors{log2(t[0])}; }},
      {"log10", {d}, {ReduceType::min}, [](T t) { return Tensors{log10(t[0])}; }},
      {"acosh", {d}, {ReduceType::min}, [](T t) { return Tensors{acosh(t[0])}; }},
      {"sqrt", {d}, {ReduceType::min}, [](T t) { return Tensors{sqrt(t[0])}; }},
      // Position 0 is rotated by no angle, so values stay exact.
      {"fused_rotary_position_embedding",
       {{2, 1, 1, 4}},
       kLinear,
       [](T t) { return Tensors{std::get<0>(fused_rotary_position_embedding(t[0], {}, {}, {}, {}, {}))}; }},
      {"split_with_num", {{2, 4}}, kAllTypes, [](T t) { return split_with_num(t[0], 2, 1); }},
      {"unbind", {d}, kAllTypes, [](T t) { return unbind(t[0], 1); }},
      {"strided_slice", {d}, kAllTypes, [](T t) { return Tensors{strided_slice(t[0], {1}, {0}, {3}, {2})}; }},
      {"tril", {d}, kAllTypes, [](T t) { return Tensors{tril(t[0], 0)}; }},
      {"triu", {d}, kAllTypes, [](T t) { return Tensors{triu(t[0], 0)}; }},
      {"split",
       {d},
       kAllTypes,
       [](T t) {
         return split(t[0], {1, 2}, 1);
       }},
      {"slice", {d}, kAllTypes, [](T t) { return Tensors{slice(t[0], {1}, {1}, {3})}; }},
      {"unslice",
       {{2, 2}},
       kAllTypes,
       [](T t) {
         return Tensors{unslice(t[0], {2, 3}, {1}, {0}, {3}, {2})};
       }},
      {"index_sum", {d, {2}}, kLinear, [](T t) { return Tensors{index_sum(t[0], cast(t[1], DType::int64), 5)}; }, 0},
      {"conv2d", {{1, 1, 3, 3}, {1, 1, 2, 2}}, kLinear, [](T t) { return Tensors{conv2d(t[0], t[1])}; }, 0},
      {"conv3d", {{1, 1, 2, 2, 2}, {1, 1, 1, 2, 2}}, kLinear, [](T t) { return Tensors{conv3d(t[0], t[1])}; }, 1},
      {"conv2d_transpose",
       {{1, 1, 2, 2}, {1, 1, 2, 2}},
       kLinear,
       [](T t) { return Tensors{conv2d_transpose(t[0], t[1])}; },
       0},
      {"conv3d_transpose",
       {{1, 1, 1, 2, 2}, {1, 1, 2, 1, 2}},
       kLinear,
       [](T t) { return Tensors{conv3d_transpose(t[0], t[1])}; },
       0},
      {"depthwise_conv2d",
       {{1, 2, 3, 3}, {2, 1, 2, 2}},
       kLinear,
       [](T t) {
         return Tensors{depthwise_conv2d(t[0], t[1], {1, 1}, {0, 0}, "EXPLICIT", 2)};
       },
       0},
      {"set_value_with_tensor",
       {d, {2}},
       kAllTypes,
       [](T t) { return Tensors{set_value_with_tensor(t[0], t[1], {1}, {2}, {1}, {1}, {1}, {})}; }},
      {"fill_diagonal_tensor", {d, {2}}, kAllTypes, [](T t) { return Tensors{fill_diagonal_tensor(t[0], t[1])}; }},
      {"roll", {d}, kAllTypes, [](T t) { return Tensors{roll(t[0], {1}, {1})}; }},
      {"pad",
       {d},
       kAllTypes,
       [](T t) {
         return Tensors{pad(t[0], {0, 0, 1, 1}, 0)};
       }},
      // The indices are negative, or 1 for truth values. As for expand_as, they are a replicated argument.
      {"gather_nd", {d, {2}}, kOfNumbers, [](T t) { return Tensors{gather_nd(t[0], cast(t[1], DType::int64))}; }, 0},
      {"take_along_axis",
       {d, {2, 1}},
       kOfNumbers,
       [](T t) { return Tensors{take_along_axis(t[0], cast(t[1], DType::int64), 1)}; },
       0},
      {"unfold",
       {{1, 1, 2, 3}},
       kAllTypes,
       [](T t) {
         return Tensors{unfold(t[0], {2, 2}, {1, 1}, {0, 0, 0, 0}, {1, 1})};
       }},
      {"fold",
       {{1, 4, 2}},
       kLinear,
       [](T t) {
         return Tensors{fold(t[0], {2, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}, {1, 1})};
       }},
  };
}

/// Contributions of two ranks: small integers, so that every reduction is exact; 0 and 1 for any and all, which are
/// truth values.
Tensor contribution(int rank, size_t input, const Dims& dims, ReduceType type, DType dtype) {
  std::vector<float> values;
  for (int64_t i = 0; i < dims.numel(); ++i) {
    const int64_t v = (7 * i + 5 * rank + 3 * static_cast<int64_t>(input) + i * i * rank) % 9 - 4;
    const bool truth = type == ReduceType::any || type == ReduceType::all;
    values.push_back(static_cast<float>(truth ? v & 1 : v));
  }
  return cast(Tensor::from_data(values, dims), dtype);
}

}  // namespace

TEST_CASE("14: an op keeps the reductions that ops_yaml declares pending, and does every other one first") {
  for (const Commuting& c : commuting_ops()) {
    for (ReduceType type : kAllTypes) {
      const std::string label = std::string(c.op) + " with " + to_string(type);
      const bool keeps = std::find(c.keeps.begin(), c.keeps.end(), type) != c.keeps.end();
      run_ranks(3, [&](Rank& rank) {
        Layout pending(line(2), 0);
        pending.partial[0] = type;
        Tensors inputs;
        for (size_t i = 0; i < c.inputs.size(); ++i) {
          pending.rank = c.inputs[i].rank();
          if (c.only >= 0 && i != static_cast<size_t>(c.only)) {
            inputs.push_back(distribute(contribution(0, i, c.inputs[i], type, c.dtype),
                                        DistSpec::replicated(line(2), pending.rank)));
          } else {
            const Tensor shard = rank.id() < 2 ? contribution(rank.id(), i, c.inputs[i], type, c.dtype) : Tensor();
            inputs.push_back(from_local(shard, DistSpec::make(pending), c.inputs[i], c.dtype));
          }
        }
        const auto before = rank.stats().collectives;
        const Tensors outputs = c.run(inputs);
        const bool silent = rank.stats().collectives == before;
        for (const Tensor& out : outputs) {
          check(spec_of(out)->partial(0) == (keeps ? std::optional(type) : std::nullopt),
                label + " has the layout " + spec_of(out)->text());
        }
        if (rank.id() < 2) check(silent == keeps, label + ": communication");
        Tensors reduced;
        for (const Tensor& input : inputs) reduced.push_back(full_tensor(input));
        Tensors actual;
        for (const Tensor& out : outputs) actual.push_back(full_tensor(out));
        if (rank.id() == 2) return;
        const Tensors expected = c.run(reduced);
        for (size_t i = 0; i < expected.size(); ++i)
          check(same_values(actual[i], expected[i]),
                label + ": value " + to_text(actual[i]) + ", not " + to_text(expected[i]));
      });
    }
  }
}

// Gradients that declare it are verified by shard_verify_rules, like every rule.
TEST_CASE("14: the test above has every op that ops_yaml declares to commute", "[slow_in_tsan]") {
  std::set<std::string> declared;
  for (const auto& family : std::filesystem::directory_iterator(source_dir() + "/ops_yaml")) {
    std::ifstream file(family.path());
    REQUIRE(file);
    std::string op;
    for (std::string text; std::getline(file, text);) {
      std::smatch match;
      if (std::regex_match(text, match, std::regex(R"(- (backward_)?op : (\w+))")))
        op = match[1].matched ? "" : match[2].str();
      if (!op.empty() && std::regex_search(text, std::regex(R"(^\s+partial :)"))) declared.insert(op);
    }
  }
  std::set<std::string> tested;
  for (const Commuting& c : commuting_ops()) tested.insert(c.op);
  CHECK(tested == declared);
}

TEST_CASE("14: guards look at attributes and dtypes: a bias, a narrowing cast and an integer average reduce first") {
  run_ranks(2, [](Rank& rank) {
    const auto pending = [&](DType dtype, const char* type) {
      const Tensor shard = cast(Tensor::from_data<float>({1, 2}, {2}), dtype);
      return from_local(scale(shard, rank.id() == 0 ? 1 : 3), spec(2, type), {2}, dtype);
    };
    const Tensor x = pending(DType::float32, "- | sum(p)");
    const auto text = [](const Tensor& tensor) { return spec_of(tensor)->text(); };
    check(text(scale(x, 2.0, 1.0)) == "[-]" && full_equals<float>(scale(x, 2.0, 1.0), {9, 17}), "scale with a bias");
    check(text(scale(x, 2.0)) == "[-] sum(p)", "scale without");
    check(text(cast(x, DType::int32)) == "[-]", "cast to integers");
    check(text(cast(x, DType::bfloat16)) == "[-]", "a narrowing cast rounds each contribution");
    check(text(cast(pending(DType::float16, "- | sum(p)"), DType::float32)) == "[-] sum(p)", "a widening cast");
    check(text(relu(x)) == "[-]", "relu of a sum");
    check(text(max(x, {0})) == "[]", "max of a sum");
    check(text(multiply(x, x)) == "[-]", "a product of two sums");
    check(text(add(pending(DType::int64, "- | avg(p)"), pending(DType::int64, "- | avg(p)"))) == "[-]",
          "an integer average");
    check(text(add(x, pending(DType::float32, "- | max(p)"))) == "[-]", "a sum and a maximum");
    const Tensor bytes =
        from_local(Tensor::from_data<uint8_t>({200, 100}, {2}), spec(2, "- | sum(p)"), {2}, DType::uint8);
    check(text(sum(bytes, {0})) == "[]" && full_equals<int64_t>(sum(bytes, {0}), {144 + 200}),
          "a sum in a wider dtype: the pending one wraps");
  });
}

TEST_CASE("14: beside a pending argument of a linear op, a replicated one becomes a contribution") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = from_local(Tensor::from_data<float>({1, 2}, {2}), spec(2, "- | sum(p)"), {2}, DType::float32);
    const Tensor y = distribute(Tensor::from_data<float>({10, 20}, {2}), spec(2, "-"));
    const auto before = rank.stats().collectives;
    const Tensor out = subtract(y, x);
    check(rank.stats().collectives == before && spec_of(out)->text() == "[-] sum(p)", "nothing is sent");
    check(full_equals<float>(out, {8, 16}), "y counts once");
  });
}

}  // namespace pending_test
