// Gradients of shape.yaml: against central differences, and on distributed arguments against plain ones.
#include <catch2/catch.hpp>

#include "gradients/central_difference.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test::shape_test {
namespace {

using Tensors = std::vector<Tensor>;

/// One op on float64 inputs, with its other arguments. `backward` may read only the shapes of tensors in
/// no_need_buffer.
struct GradientCase {
  const char* name;
  std::vector<Dims> inputs;
  std::function<Tensors(const Tensors& x, const Tensor& index)> forward;
  std::function<Tensors(const Tensors& x, const Tensor& index, const Tensors& out_grads)> backward;
  std::vector<int64_t> index = {};
  Dims index_dims = {0};
};

template <class Forward, class Backward>
GradientCase unary(const char* name, const Dims& x, Forward forward, Backward backward) {
  return {name,
          {x},
          [=](const Tensors& in, const Tensor&) { return Tensors{forward(in[0])}; },
          [=](const Tensors& in, const Tensor&, const Tensors& grads) { return Tensors{backward(in[0], grads[0])}; }};
}

void add_rearranging(std::vector<GradientCase>& cases) {
  cases.push_back(unary(
      "reshape", {4, 3},
      [](const Tensor& x) {
        return reshape(x, {2, -1});
      },
      reshape_grad));
  cases.push_back(unary(
      "flatten", {2, 4, 3}, [](const Tensor& x) { return flatten(x, 1, -1); }, flatten_grad));
  cases.push_back(unary(
      "flatten of a scalar", {}, [](const Tensor& x) { return flatten(x, 0, 0); }, flatten_grad));
  cases.push_back(unary(
      "flatten of nothing", {3, 0, 2, 0}, [](const Tensor& x) { return flatten(x, 0, -1); }, flatten_grad));
  cases.push_back(unary(
      "squeeze", {4, 1, 3}, [](const Tensor& x) { return squeeze(x, {-2}); }, squeeze_grad));
  cases.push_back(unary(
      "squeeze of all", {1, 5, 1}, [](const Tensor& x) { return squeeze(x); }, squeeze_grad));
  cases.push_back(unary(
      "unsqueeze", {4, 3},
      [](const Tensor& x) {
        return unsqueeze(x, {1, -1});
      },
      unsqueeze_grad));
  const auto add_transpose = [&](const char* name, const Dims& x, const IntArray& perm) {
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return transpose(t, perm); },
        [=](const Tensor&, const Tensor& g) { return transpose_grad(g, perm); }));
  };
  add_transpose("transpose", {4, 3, 5}, {1, 2, 0});
  add_transpose("transpose with negative dims", {4, 3, 5}, {-1, 0, -2});
  const auto add_triangle = [&](const char* name, const Dims& x, int diagonal) {
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return tril(t, diagonal); },
        [=](const Tensor&, const Tensor& g) { return tril_grad(g, diagonal); }));
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return triu(t, diagonal); },
        [=](const Tensor&, const Tensor& g) { return triu_grad(g, diagonal); }));
  };
  add_triangle("triangle", {5, 4}, 0);
  add_triangle("triangle below", {2, 4, 5}, -1);
}

void add_repeating(std::vector<GradientCase>& cases) {
  const auto add_expand = [&](const char* name, const Dims& x, const IntArray& shape) {
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return expand(t, shape); }, expand_grad));
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return expand_as(t, {}, shape); }, expand_as_grad));
  };
  add_expand("expand", {4, 1}, {4, 3});
  add_expand("expand with new dims", {4, 1}, {2, 4, 3});
  add_expand("expand of a scalar", {}, {3});
  add_expand("expand of nothing", {0}, {3, 0});
  add_expand("expand of nothing and a 1", {1, 0}, {2, 3, 0});
  add_expand("expand to nothing", {4, 1}, {4, 0});
  add_expand("expand to the same", {4, 3}, {-1, -1});
  const auto add_tile = [&](const char* name, const Dims& x, const IntArray& times) {
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return tile(t, times); }, tile_grad));
  };
  add_tile("tile", {4, 3}, {2, 3});
  add_tile("tile the last dim", {4, 3}, {2});
  add_tile("tile with new dims", {4, 1}, {2, 1, 3});
  add_tile("tile no times", {4, 3}, {1, 0});
  add_tile("tile nothing", {4, 0}, {2, 2});
  add_tile("tile of eight dims", {2, 1, 2, 1, 1, 1, 3, 2}, {2, 2, 3, 1, 1, 1, 1, 2});
}

void add_joining(std::vector<GradientCase>& cases) {
  const auto add_concat = [&](const char* name, const std::vector<Dims>& x, int axis) {
    cases.push_back(
        {name, x, [=](const Tensors& in, const Tensor&) { return Tensors{concat(in, axis)}; },
         [=](const Tensors& in, const Tensor&, const Tensors& grads) { return concat_grad(in, grads[0], axis); }});
  };
  add_concat("concat", {{4, 3}, {2, 3}}, 0);
  add_concat("concat along -1", {{4, 1}, {4, 5}}, -1);
  add_concat("concat with an empty one", {{4, 2}, {4, 0}, {4, 1}}, 1);
  for (const int axis : {0, -1}) {
    cases.push_back({"stack",
                     {{4, 3}, {4, 3}},
                     [=](const Tensors& in, const Tensor&) { return Tensors{stack(in, axis)}; },
                     [=](const Tensors&, const Tensor&, const Tensors& grads) { return stack_grad(grads[0], axis); }});
    cases.push_back({"split_with_num",
                     {{6, 4}},
                     [=](const Tensors& in, const Tensor&) { return split_with_num(in[0], 2, axis); },
                     [=](const Tensors&, const Tensor&, const Tensors& grads) {
                       return Tensors{split_with_num_grad(grads, axis)};
                     }});
    cases.push_back(
        {"unbind",
         {{2, 3}},
         [=](const Tensors& in, const Tensor&) { return unbind(in[0], axis); },
         [=](const Tensors&, const Tensor&, const Tensors& grads) { return Tensors{unbind_grad(grads, axis)}; }});
    cases.push_back(
        {"split",
         {{5, 5}},
         [=](const Tensors& in, const Tensor&) {
           return split(in[0], {2, -1, 0}, axis);
         },
         [=](const Tensors&, const Tensor&, const Tensors& grads) { return Tensors{split_grad(grads, axis)}; }});
  }
}

void add_cutting(std::vector<GradientCase>& cases) {
  const auto add_slice = [&](const char* name, const Dims& x, const IntArray& axes, const IntArray& starts,
                             const IntArray& ends, const IntArray& dropped) {
    cases.push_back(unary(
        name, x, [=](const Tensor& t) { return slice(t, axes, starts, ends, {}, dropped); },
        [=](const Tensor& t, const Tensor& g) { return slice_grad(t, g, axes, starts, ends, dropped); }));
  };
  add_slice("slice", {5, 4}, {0}, {1}, {4}, {});
  add_slice("slice with negative dims", {5, 4}, {-1, -2}, {-3, 2}, {-1, 100}, {});
  add_slice("slice that drops dims", {5, 4, 3}, {2, 0}, {1, -1}, {2, 100}, {-1, 0});
  add_slice("slice to a scalar", {5, 4}, {0, 1}, {1, 2}, {2, 3}, {0, 1});
  add_slice("slice of nothing", {5, 4}, {0}, {3}, {3}, {});
  add_slice("slice of all", {5, 4}, {0, 1}, {0, -4}, {5, 100}, {});
  add_slice("slice along no axis", {5, 4}, {}, {}, {}, {});
  const auto add_strided = [&](const char* name, const IntArray& axes, const IntArray& starts, const IntArray& ends,
                               const IntArray& strides) {
    cases.push_back(unary(
        name, {5, 4}, [=](const Tensor& t) { return strided_slice(t, axes, starts, ends, strides); },
        [=](const Tensor& t, const Tensor& g) { return strided_slice_grad(t, g, axes, starts, ends, strides); }));
    cases.push_back(unary(
        "unslice", strided_slice(random_values({5, 4}, 1), axes, starts, ends, strides).dims(),
        [=](const Tensor& t) {
          return unslice(t, {5, 4}, axes, starts, ends, strides);
        },
        [=](const Tensor&, const Tensor& g) { return unslice_grad(g, axes, starts, ends, strides); }));
  };
  add_strided("strided_slice", {0}, {1}, {5}, {2});
  add_strided("strided_slice backwards", {-1, 0}, {100, -1}, {-1, 0}, {-1, -3});
  add_strided("strided_slice of nothing", {1}, {2}, {2}, {1});
}

void add_indexed(std::vector<GradientCase>& cases) {
  const auto add_gather = [&](const char* name, const Dims& x, int axis, const std::vector<int64_t>& index,
                              const Dims& index_dims) {
    cases.push_back({name,
                     {x},
                     [=](const Tensors& in, const Tensor& at) { return Tensors{gather(in[0], at, axis)}; },
                     [=](const Tensors& in, const Tensor& at, const Tensors& grads) {
                       return Tensors{gather_grad(in[0], at, grads[0], axis)};
                     },
                     index,
                     index_dims});
  };
  add_gather("gather", {5, 3}, 0, {1, 4, 1, -5, 1}, {5});
  add_gather("gather along -1", {3, 4, 2}, -2, {3, 0, -1}, {3});
  add_gather("gather one", {3, 4}, -1, {2}, {});
  add_gather("gather nothing", {3, 4}, 0, {}, {0});
  for (const int axis : {0, -1}) {
    cases.push_back({"index_sum",
                     {{4, 4}},
                     [=](const Tensors& in, const Tensor& at) { return Tensors{index_sum(in[0], at, 6, axis)}; },
                     [=](const Tensors&, const Tensor& at, const Tensors& grads) {
                       return Tensors{index_sum_grad(at, grads[0], axis)};
                     },
                     {2, -1, 2, 0},
                     {4}});
  }
  for (const bool overwrite : {true, false}) {
    for (const Dims& index_dims : {Dims{4}, Dims{4, 1}}) {
      cases.push_back(
          {overwrite ? "scatter" : "scatter that adds",
           {{5, 3}, {4, 3}},
           [=](const Tensors& in, const Tensor& at) { return Tensors{scatter(in[0], at, in[1], overwrite)}; },
           [=](const Tensors&, const Tensor& at, const Tensors& grads) {
             const auto [x_grad, updates_grad] = scatter_grad(at, grads[0], overwrite);
             return Tensors{x_grad, updates_grad};
           },
           {3, 0, 3, 1},
           index_dims});
    }
  }
}

std::vector<GradientCase> gradient_cases() {
  std::vector<GradientCase> cases;
  add_rearranging(cases);
  add_repeating(cases);
  add_joining(cases);
  add_cutting(cases);
  add_indexed(cases);
  return cases;
}

Tensor index_of(const GradientCase& one) { return Tensor::from_data(one.index, one.index_dims); }

/// Whole numbers, whose sums are exact in every order.
Tensor whole_numbers(const Dims& dims, unsigned seed) {
  std::vector<double> values = random_values(dims, seed, -8, 8).to_vector<double>();
  for (double& value : values) value = std::round(value);
  return Tensor::from_data(values, dims);
}

/// Every layout of a tensor on a mesh of one axis.
std::vector<const DistSpec*> layouts(const ProcessMesh* line, int rank) {
  std::vector<const DistSpec*> specs = {DistSpec::replicated(line, rank)};
  std::string whole;
  for (int d = 0; d < rank; ++d) {
    std::string text;
    for (int i = 0; i < rank; ++i) text += std::string(i == 0 ? "" : ", ") + (i == d ? "p" : "-");
    specs.push_back(DistSpec::parse(line, text));
    whole += d == 0 ? "-" : ", -";
  }
  specs.push_back(DistSpec::parse(line, whole + " | sum(p)"));
  return specs;
}

/// Calls body once for each choice of a layout for each tensor.
void for_layouts(const ProcessMesh* line, const Tensors& plain,
                 const std::function<void(const Tensors& tensors, const std::string& text)>& body) {
  std::vector<std::vector<const DistSpec*>> specs;
  size_t choices = 1;
  for (const Tensor& tensor : plain) {
    specs.push_back(layouts(line, tensor.dims().rank()));
    choices *= specs.back().size();
  }
  for (size_t choice = 0; choice < choices; ++choice) {
    Tensors tensors;
    std::string text;
    size_t rest = choice;
    for (size_t i = 0; i < plain.size(); ++i) {
      const DistSpec* spec = specs[i][rest % specs[i].size()];
      rest /= specs[i].size();
      tensors.push_back(distribute(plain[i], spec));
      text += " " + spec->text();
    }
    body(tensors, text);
  }
}

TEST_CASE("gradients of shape ops are those of central differences") {
  for (const GradientCase& one : gradient_cases()) {
    Tensors inputs;
    for (const Dims& dims : one.inputs) inputs.push_back(random_values(dims, static_cast<unsigned>(inputs.size()) + 1));
    const Tensor index = index_of(one);
    const size_t outputs = one.forward(inputs, index).size();
    for (size_t slot = 0; slot < outputs; ++slot) {
      INFO(one.name << ", output " << slot);
      const auto forward = [&](const Tensors& x) { return one.forward(x, index)[slot]; };
      const auto gradient = [&](const Tensors& x, const Tensor& out_grad) {
        Tensors grads;
        for (const Tensor& out : one.forward(x, index)) grads.push_back(full_like(out, 0));
        grads[slot] = out_grad;
        return one.backward(x, index, grads);
      };
      CHECK(gradient_difference(forward, gradient, inputs) == "");
    }
  }
}

TEST_CASE("gradients of shape ops are the plain ones in every layout of their arguments", "[slow_in_asan]") {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Rank&) {
      const ProcessMesh* line = ProcessMesh::make({ranks}, {}, {"p"});
      for (const GradientCase& one : gradient_cases()) {
        Tensors plain;
        for (const Dims& dims : one.inputs)
          plain.push_back(whole_numbers(dims, static_cast<unsigned>(plain.size()) + 1));
        const size_t inputs = plain.size();
        const Tensor index = index_of(one);
        Tensors grads;
        for (const Tensor& out : one.forward(plain, index))
          grads.push_back(whole_numbers(out.dims(), static_cast<unsigned>(grads.size()) + 11));
        const Tensors expected = one.backward(plain, index, grads);
        plain.insert(plain.end(), grads.begin(), grads.end());
        plain.push_back(index);
        for_layouts(line, plain, [&](const Tensors& tensors, const std::string& text) {
          const auto begin = tensors.begin(), middle = begin + static_cast<long>(inputs),
                     end = middle + static_cast<long>(grads.size());
          const Tensors actual = one.backward({begin, middle}, *end, {middle, end});
          check(actual.size() == expected.size(), std::string(one.name) + " gives another number of gradients");
          for (size_t i = 0; i < actual.size(); ++i) {
            const std::string what = fmt::format("gradient {} of {} on {} ranks with{}", i, one.name, ranks, text);
            check(actual[i].meta() == expected[i].meta(), what + " has another shape");
            check(full_equals(actual[i], expected[i].to_vector<double>()), what);
          }
        });
      }
    });
  }
}

TEST_CASE("gradients of slices are differentiated again by slices, and those of gathers by gathers") {
  const Tensor x = random_values({5, 4}, 1), index = Tensor::from_data<int64_t>({1, 3, 1}, {3});
  const auto cut = [&](const Tensors& g) { return slice_grad(x, g[0], {0, 1}, {1, -1}, {4, 100}, {1}); };
  const auto cut_again = [&](const Tensors&, const Tensor& g) {
    return Tensors{slice(g, {0, 1}, {1, -1}, {4, 100}, {}, {1})};
  };
  CHECK(gradient_difference(cut, cut_again, {random_values({3}, 2)}) == "");
  const auto take = [&](const Tensors& g) { return gather_grad(x, index, g[0], 1); };
  const auto take_again = [&](const Tensors&, const Tensor& g) { return Tensors{gather(g, index, 1)}; };
  CHECK(gradient_difference(take, take_again, {random_values({5, 3}, 2)}) == "");
}

TEST_CASE("gradients that read only the shape of an argument leave its layout alone") {
  run_ranks(2, [](Rank&) {
    const ProcessMesh* line = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x = distribute(whole_numbers({4, 6}, 1), DistSpec::parse(line, "-, - | sum(p)"));
    const Tensor rows = distribute(whole_numbers({4, 3}, 2), DistSpec::parse(line, "p, -"));
    const Tensor cut = slice_grad(x, rows, {1}, {1}, {4}, {});
    check(spec_of(cut) == DistSpec::parse(line, "p, -"), "the uncut dim of slice_grad stays sharded");
    const Tensor index = distribute(Tensor::from_data<int64_t>({1, 0, 5}, {3}), DistSpec::replicated(line, 1));
    check(spec_of(gather_grad(x, index, rows, 1)) == DistSpec::parse(line, "p, -"),
          "the other dim of gather_grad stays sharded");
    const Tensor pending = distribute(whole_numbers({4, 3}, 2), DistSpec::parse(line, "-, - | sum(p)"));
    check(spec_of(gather_grad(x, index, pending, 1)) == DistSpec::parse(line, "-, - | sum(p)"),
          "a pending out_grad of gather is not reduced");
    const Tensor by_index = distribute(whole_numbers({4, 3}, 2), DistSpec::parse(line, "-, p"));
    check(spec_of(gather_grad(x, index, by_index, 1)) == DistSpec::parse(line, "-, - | sum(p)"),
          "a sharded index leaves a pending sum");
  });
}

}  // namespace
}  // namespace shard::test::shape_test
