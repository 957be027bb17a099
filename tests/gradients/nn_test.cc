// Gradients of layers and activations against central differences, in narrow dtypes, and for bad arguments.
#include "gradients/central_difference.h"

#include <catch2/catch.hpp>

#include "gradients/higher_order.h"
#include "shard/shard.h"

namespace shard::test::nn_test {
namespace {

using Tensors = std::vector<Tensor>;

struct Case {
  std::string name;
  ForwardFunction forward;
  GradientFunction gradient;
  Tensors inputs;
};

template <class... T>
Tensors all(std::tuple<T...> values) {
  return std::apply([](auto&... tensors) { return Tensors{tensors...}; }, values);
}

Tensor ids(const std::vector<int64_t>& values, const Dims& dims) { return Tensor::from_data(values, dims); }

void add_activations(std::vector<Case>& cases) {
  const Tensor x = random_values({3, 5}, 1, -3, 3), y = random_values({3, 5}, 2);
  cases.push_back({"silu",
                   [](const Tensors& in) { return silu(in[0]); },
                   [](const Tensors& in, const Tensor& g) { return Tensors{silu_grad(in[0], silu(in[0]), g)}; },
                   {x}});
  for (const bool approximate : {false, true}) {
    cases.push_back({approximate ? "gelu, approximate" : "gelu",
                     [=](const Tensors& in) { return gelu(in[0], approximate); },
                     [=](const Tensors& in, const Tensor& g) { return Tensors{gelu_grad(in[0], g, approximate)}; },
                     {x}});
  }
  cases.push_back({"swiglu",
                   [](const Tensors& in) { return swiglu(in[0], in[1]); },
                   [](const Tensors& in, const Tensor& g) { return all(swiglu_grad(in[0], in[1], g)); },
                   {x, y}});
  cases.push_back({"swiglu of halves",
                   [](const Tensors& in) { return swiglu(in[0], {}); },
                   [](const Tensors& in, const Tensor& g) { return Tensors{std::get<0>(swiglu_grad(in[0], {}, g))}; },
                   {random_values({3, 6}, 3, -3, 3)}});
}

void add_softmaxes(std::vector<Case>& cases) {
  for (const int axis : {0, 1, -1}) {
    const Tensors inputs = {random_values({2, 3, 4}, 4, -2, 2)};
    cases.push_back(
        {"softmax", [=](const Tensors& in) { return softmax(in[0], axis); },
         [=](const Tensors& in, const Tensor& g) { return Tensors{softmax_grad(softmax(in[0], axis), g, axis)}; },
         inputs});
    cases.push_back({"log_softmax", [=](const Tensors& in) { return log_softmax(in[0], axis); },
                     [=](const Tensors& in, const Tensor& g) {
                       return Tensors{log_softmax_grad(log_softmax(in[0], axis), g, axis)};
                     },
                     inputs});
  }
}

void add_embeddings(std::vector<Case>& cases) {
  for (const int64_t padding : {-1, 1}) {
    cases.push_back({"embedding",
                     [=](const Tensors& in) { return embedding(in[0], in[1], padding); },
                     [=](const Tensors& in, const Tensor& g) {
                       return Tensors{Tensor(), embedding_grad(in[0], in[1], g, padding)};
                     },
                     {ids({1, 4, 1, 0, 2, 2}, {3, 2}), random_values({5, 3}, 5)}});
  }
}

void add_norms(std::vector<Case>& cases) {
  const Tensor x = random_values({3, 4, 5}, 6), few = random_values({3, 4}, 7), wide = random_values({4, 5}, 8);
  const auto add = [&](const char* name, int begin, const Tensor& scale, const Tensor& bias) {
    const auto run = [=](const Tensors& in) {
      return layer_norm_intermediate(in[0], scale.defined() ? in[1] : scale, bias.defined() ? in.back() : bias, 1e-3f,
                                     begin);
    };
    Tensors inputs = {x};
    if (scale.defined()) inputs.push_back(scale);
    if (bias.defined()) inputs.push_back(bias);
    cases.push_back({name, [=](const Tensors& in) { return std::get<0>(run(in)); },
                     [=](const Tensors& in, const Tensor& g) {
                       const auto [out, mean, variance] = run(in);
                       const Tensors grads =
                           all(layer_norm_grad(in[0], scale.defined() ? in[1] : scale,
                                               bias.defined() ? in.back() : bias, mean, variance, g, 1e-3f, begin));
                       Tensors present;
                       for (const Tensor& grad : grads) {
                         if (grad.defined()) present.push_back(grad);
                       }
                       return present;
                     },
                     inputs});
  };
  add("layer_norm from dim 1", 1, random_values({4, 5}, 9), wide);
  add("layer_norm without scale and bias", 2, {}, {});
  add("layer_norm with scale", 2, random_values({5}, 10), {});
  add("layer_norm with bias", 2, {}, random_values({5}, 11));
  cases.push_back({"rms_norm of many rows",
                   [](const Tensors& in) { return std::get<0>(rms_norm(in[0], in[1], 1e-3f)); },
                   [](const Tensors& in, const Tensor& g) {
                     return all(rms_norm_grad(in[0], in[1], std::get<1>(rms_norm(in[0], in[1], 1e-3f)), g));
                   },
                   {random_values({2, 65, 3}, 12), random_values({3}, 13)}});
}

/// Statistics of a narrow x are float32; so are scale and bias. Running statistics are created for each call,
/// because the op writes them.
void add_batch_norms(std::vector<Case>& cases) {
  const auto add = [&](const char* name, const char* format, bool is_test, bool global, bool trainable, bool affine) {
    const auto wide = [](const Tensor& x, const Tensor& t) {
      return x.dtype() == DType::float64 ? t : cast(t, DType::float32);
    };
    const auto run = [=](const Tensors& in) {
      Tensor mean = wide(in[0], random_values({2}, 14)), variance = wide(in[0], random_values({2}, 15, 1, 2));
      return batch_norm(in[0], mean, variance, affine ? wide(in[0], in[1]) : Tensor(),
                        affine ? wide(in[0], in[2]) : Tensor(), is_test, 0.5f, 1e-3f, format, global, trainable);
    };
    Tensors inputs = {random_values(format[1] == 'C' ? Dims{3, 2, 4} : Dims{3, 4, 2}, 16)};
    if (affine) inputs.insert(inputs.end(), {random_values({2}, 17), random_values({2}, 18)});
    cases.push_back({name, [=](const Tensors& in) { return std::get<0>(run(in)); },
                     [=](const Tensors& in, const Tensor& g) {
                       const auto [out, mean_out, variance_out, mean, variance] = run(in);
                       const Tensors grads = all(batch_norm_grad(in[0], affine ? wide(in[0], in[1]) : Tensor(),
                                                                 affine ? wide(in[0], in[2]) : Tensor(), mean, variance,
                                                                 g, format, is_test, global, trainable));
                       return affine ? grads : Tensors{grads[0]};
                     },
                     inputs});
  };
  add("batch_norm, training", "NCHW", false, false, false, true);
  add("batch_norm, channels last, without scale and bias", "NHWC", false, false, false, false);
  add("batch_norm, test", "NCHW", true, false, false, true);
  add("batch_norm, global statistics", "NHWC", false, true, false, true);
  add("batch_norm, test with statistics of the batch", "NCHW", true, false, true, true);
}

void add_dropouts(std::vector<Case>& cases) {
  for (const char* mode : {"upscale_in_train", "downscale_in_infer"}) {
    for (const bool is_test : {false, true}) {
      const auto run = [=](const Tensor& x) { return dropout_intermediate(x, {}, 0.25f, is_test, mode, 7); };
      cases.push_back({std::string("dropout, ") + mode,
                       [=](const Tensors& in) { return std::get<0>(run(in[0])); },
                       [=](const Tensors& in, const Tensor& g) {
                         return Tensors{dropout_grad(std::get<1>(run(in[0])), g, 0.25f, is_test, mode)};
                       },
                       {random_values({4, 5}, 19)}});
    }
  }
}

void add_losses(std::vector<Case>& cases) {
  const auto add = [&](const char* name, const Tensor& input, const Tensor& label, bool soft, bool use_softmax,
                       int axis) {
    const auto run = [=](const Tensors& in) {
      return cross_entropy_with_softmax(in[0], soft ? in[1] : label, soft, use_softmax, true, 2, axis);
    };
    cases.push_back({name,
                     [=](const Tensors& in) { return std::get<1>(run(in)); },
                     [=](const Tensors& in, const Tensor& g) {
                       return Tensors{cross_entropy_with_softmax_grad(soft ? in[1] : label, std::get<0>(run(in)), g,
                                                                      soft, use_softmax, true, 2, axis),
                                      Tensor()};
                     },
                     {input, label}});
  };
  const Tensor x = random_values({2, 3, 4}, 20, -2, 2), p = random_values({2, 3, 4}, 21, 0.1, 0.9),
               soft = random_values({2, 3, 4}, 22, 0, 1);
  add("cross entropy, label with the last axis", x, ids({0, 1, 2, 3, 1, 0}, {2, 3, 1}), false, true, -1);
  add("cross entropy, label without axis 1", x, ids({0, 1, 2, 0, 0, 1, 2, 2}, {2, 4}), false, true, 1);
  add("cross entropy, soft label along axis 0", x, soft, true, true, 0);
  add("cross entropy of probabilities", p, ids({0, 1, 2, 3, 1, 0}, {2, 3}), false, false, 2);
  add("cross entropy of probabilities, soft label", p, soft, true, false, 1);
  for (const bool prior : {false, true}) {
    cases.push_back(
        {prior ? "label_smooth with prior" : "label_smooth",
         [=](const Tensors& in) {
           return label_smooth(in[0], prior ? cast(random_values({1, 4}, 23), in[0].dtype()) : Tensor(), 0.25f);
         },
         [](const Tensors&, const Tensor& g) { return Tensors{label_smooth_grad(g, 0.25f)}; },
         {random_values({3, 4}, 24)}});
  }
}

void add_attention(std::vector<Case>& cases) {
  const auto add = [&](const char* name, const Dims& q, const Dims& k, int64_t value_width, const Dims& mask,
                       bool causal, float drop, bool is_test) {
    const auto run = [=](const Tensors& in) {
      return flash_attn(in[0], in[1], in[2], ids({3, 5}, {2}), mask.rank() == 0 ? Tensor() : in[3], drop, causal, false,
                        is_test);
    };
    Dims v = k;
    v[3] = value_width;
    Tensors inputs = {random_values(q, 25, -2, 2), random_values(k, 26, -2, 2), random_values(v, 27)};
    if (mask.rank() != 0) inputs.push_back(random_values(mask, 28));
    cases.push_back({name, [=](const Tensors& in) { return std::get<0>(run(in)); },
                     [=](const Tensors& in, const Tensor& g) {
                       const auto [out, weights, lse, seed] = run(in);
                       Tensors grads =
                           all(flash_attn_grad(in[0], in[1], in[2], out, lse, seed, mask.rank() == 0 ? Tensor() : in[3],
                                               g, drop, causal, is_test));
                       grads.resize(in.size());
                       return grads;
                     },
                     inputs});
  };
  add("attention over several blocks", {1, 18, 1, 2}, {1, 70, 1, 2}, 3, {}, false, 0, false);
  add("attention, causal with mask", {2, 5, 2, 3}, {2, 7, 2, 3}, 2, {2, 1, 5, 7}, true, 0, false);
  add("attention, causal over several blocks", {1, 66, 1, 2}, {1, 70, 1, 2}, 1, {}, true, 0, false);
  add("attention, queries that see no key", {1, 5, 1, 2}, {1, 3, 1, 2}, 2, {}, true, 0, false);
  add("attention, heads in groups", {2, 3, 4, 2}, {2, 4, 2, 2}, 2, {1, 4, 1, 4}, false, 0, false);
  add("attention with dropout", {2, 3, 2, 2}, {2, 4, 1, 2}, 2, {}, false, 0.5f, false);
  add("attention with dropout, test", {2, 3, 1, 2}, {2, 4, 1, 2}, 2, {}, false, 0.5f, true);
}

void add_ropes(std::vector<Case>& cases) {
  const auto add = [&](const char* name, bool neighbours, bool time_major, bool table, bool places) {
    const Tensor sin = table ? random_values({6, 4}, 29) : Tensor(), cos = table ? random_values({6, 4}, 30) : Tensor();
    const Tensor at = places ? ids({5, 0, 3, 2, 2, 1}, {2, 3}) : Tensor();
    const auto pick = [=](const Tensor& t) { return !t.defined() || places ? t : slice(t, {0}, {0}, {3}); };
    // All three results concatenated, because a case has one output.
    const auto run = [=](const Tensors& in) {
      return all(fused_rotary_position_embedding(in[0], in[1], in[2], pick(sin), pick(cos), at, neighbours, time_major,
                                                 100.0f));
    };
    const Dims q = time_major ? Dims{3, 2, 2, 4} : Dims{2, 3, 2, 4},
               k = time_major ? Dims{3, 2, 1, 4} : Dims{2, 3, 1, 4};
    cases.push_back({name,
                     [=](const Tensors& in) { return concat(run(in), 2); },
                     [=](const Tensors&, const Tensor& g) {
                       const Tensors parts = split(g, {2, 1, 1}, 2);
                       return all(fused_rotary_position_embedding_grad(pick(sin), pick(cos), at, parts[0], parts[1],
                                                                       parts[2], neighbours, time_major, 100.0f));
                     },
                     {random_values(q, 31), random_values(k, 32), random_values(k, 33)}});
  };
  add("rope of neighbours", true, false, false, false);
  add("rope of halves, sequence first", false, true, false, true);
  add("rope by tables", true, true, true, false);
  add("rope of halves by tables and places", false, false, true, true);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_activations(cases);
  add_softmaxes(cases);
  add_embeddings(cases);
  add_norms(cases);
  add_batch_norms(cases);
  add_dropouts(cases);
  add_losses(cases);
  add_attention(cases);
  add_ropes(cases);
  return cases;
}

TEST_CASE("gradients of layers are those of central differences", "[slow_in_asan]") {
  for (const Case& each : all_cases()) {
    INFO(each.name);
    CHECK(gradient_difference(each.forward, each.gradient, each.inputs) == "");
  }
}

/// Which inputs get a gradient.
std::vector<bool> differentiable_inputs(const Case& each) {
  std::vector<bool> wanted;
  for (const Tensor& gradient : each.gradient(each.inputs, random_values(each.forward(each.inputs).dims(), 35)))
    wanted.push_back(gradient.defined());
  return wanted;
}

TEST_CASE("recorded gradients of layers, and gradients of gradients, are those of central differences",
          "[slow_in_asan]") {
  for (const Case& each : all_cases()) {
    for (const int order : {1, 2}) {
      INFO(each.name << ", order " << order);
      CHECK(higher_order_difference(each.forward, each.inputs, differentiable_inputs(each), order) == "");
    }
  }
}

TEST_CASE("recorded gradients of attention are 0 for keys that an infinite mask hides, and for queries that see none") {
  const double hidden = -std::numeric_limits<double>::infinity();
  const Tensor mask = Tensor::from_data<double>({0, hidden, 0.5, hidden, hidden, hidden, 1, 0, hidden}, {1, 1, 3, 3});
  const bool causal = GENERATE(false, true);
  const auto attend = [&](const Tensors& in) {
    return std::get<0>(flash_attn(in[0], in[1], in[2], {}, mask, 0, causal));
  };
  const Tensors inputs = {random_values({1, 3, 1, 2}, 36), random_values({1, 3, 1, 2}, 37),
                          random_values({1, 3, 1, 2}, 38)};
  for (const int order : {1, 2}) CHECK(higher_order_difference(attend, inputs, {true, true, true}, order) == "");
}

TEST_CASE("gradients flow through the softmax that a cross entropy returns") {
  const Tensor label = ids({2, 0}, {2, 1});
  for (const bool use_softmax : {true, false}) {
    const auto both = [&](const Tensors& in) {
      const auto [p, loss] = cross_entropy_with_softmax(in[0], label, false, use_softmax);
      return multiply(p, loss);
    };
    const auto one = [&](const Tensors& in) {
      return std::get<0>(cross_entropy_with_softmax(in[0], label, false, use_softmax));
    };
    for (const int order : {1, 2}) {
      CHECK(higher_order_difference(both, {random_values({2, 4}, 39, 0.5, 2)}, {true}, order) == "");
      CHECK(higher_order_difference(one, {random_values({2, 4}, 40, 0.5, 2)}, {true}, order) == "");
    }
  }
}

TEST_CASE("third derivatives of layers are those of central differences", "[slow_in_asan]") {
  for (const Case& each : all_cases()) {
    int64_t count = 0;
    for (const Tensor& input : each.inputs) count += input.numel();
    if (count > 100) continue;  // each element takes four calls, and an order more twice as many elements
    INFO(each.name);
    CHECK(higher_order_difference(each.forward, each.inputs, differentiable_inputs(each), 3) == "");
  }
}

TEST_CASE("gradients of layers in narrow dtypes are near those in float64, also when they are recorded") {
  const bool recorded = GENERATE(false, true);
  for (const DType narrow : {DType::float32, DType::float16, DType::bfloat16}) {
    const auto cast_floats = [&](Tensors tensors) {
      for (Tensor& tensor : tensors) {
        if (tensor.defined() && tensor.dtype() == DType::float64) tensor = cast(tensor, narrow);
      }
      return tensors;
    };
    for (const Case& each : all_cases()) {
      INFO(each.name << " in " << to_string(narrow));
      const Tensors inputs = cast_floats(each.inputs);
      for (const Tensor& input : inputs) input.set_requires_grad(recorded && is_floating(input.dtype()));
      Tensors rounded = inputs;  // the same numbers in float64
      for (Tensor& tensor : rounded) tensor = tensor.dtype() == narrow ? cast(tensor.detach(), DType::float64) : tensor;
      const Tensor weight = cast(random_values(each.forward(each.inputs).dims(), 34), narrow);
      const Tensors actual = each.gradient(inputs, weight),
                    expected = each.gradient(rounded, cast(weight, DType::float64));
      REQUIRE(actual.size() == expected.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        REQUIRE(actual[i].defined() == expected[i].defined());
        if (!actual[i].defined()) continue;
        const std::vector<double> a = cast(actual[i], DType::float64).to_vector<double>(),
                                  e = expected[i].to_vector<double>();
        for (size_t k = 0; k < e.size(); ++k) {
          // Results and statistics of the forward op, and the gradient itself, are rounded: some units of the last place of the element, or of
          // 1 where terms of that size cancel.
          INFO("element " << k << " is " << a[k] << ", expected " << e[k]);
          if (!(std::abs(a[k] - e[k]) <= 8 * epsilon_of(narrow) * (1 + std::abs(e[k])))) FAIL_CHECK("too far off");
        }
      }
    }
  }
}

TEST_CASE("gradients of layers without elements are zeros or empty") {
  const Tensor none = random_values({0, 3}, 1), scale = random_values({3}, 2);
  const auto [out, mean, variance] = layer_norm_intermediate(none, scale, scale);
  const auto [x_grad, scale_grad, bias_grad] = layer_norm_grad(none, scale, scale, mean, variance, out);
  CHECK(x_grad.dims() == Dims{0, 3});
  CHECK(scale_grad.to_vector<double>() == std::vector<double>(3, 0.0));
  CHECK(bias_grad.to_vector<double>() == std::vector<double>(3, 0.0));
  CHECK(embedding_grad(ids({}, {0}), random_values({2, 3}, 3), none).to_vector<double>() ==
        std::vector<double>(6, 0.0));
  CHECK(softmax_grad(random_values({3, 0}, 4), random_values({3, 0}, 5), 1).dims() == Dims{3, 0});
  const Tensor q = random_values({1, 0, 2, 3}, 6), k = random_values({1, 4, 2, 3}, 7);
  const auto [attended, weights, lse, seed] = flash_attn(q, k, k, {}, {});
  const auto [q_grad, k_grad, v_grad] = flash_attn_grad(q, k, k, attended, lse, seed, {}, attended);
  CHECK(q_grad.dims() == q.dims());
  CHECK(k_grad.to_vector<double>() == std::vector<double>(24, 0.0));
  CHECK(v_grad.to_vector<double>() == std::vector<double>(24, 0.0));
}

TEST_CASE("gradients of absent arguments are absent") {
  const Tensor x = random_values({2, 3}, 1), scale = random_values({3}, 2);
  const auto [out, mean, variance] = layer_norm_intermediate(x, {}, scale);
  const auto [x_grad, scale_grad, bias_grad] = layer_norm_grad(x, {}, scale, mean, variance, out);
  CHECK_FALSE(scale_grad.defined());
  CHECK(bias_grad.dims() == Dims{3});
  CHECK_FALSE(std::get<1>(swiglu_grad(random_values({2, 4}, 3), {}, random_values({2, 2}, 4))).defined());
}

TEST_CASE("gradients refuse what does not fit the forward op") {
  const auto error = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string();
  };
  const Tensor x = random_values({2, 3}, 1), other = random_values({3, 2}, 2);
  CHECK_THAT(error([&] { softmax_grad(x, other, 0); }),
             Catch::Contains("[softmax_grad] out_grad is f64[3, 2], but for the other arguments it must be f64[2, 3]"));
  CHECK_THAT(error([&] { silu_grad(x, other, x); }), Catch::Contains("[silu_grad] out is f64[3, 2]"));
  CHECK_THAT(error([&] { dropout_grad(x, x, 0.5f); }),
             Catch::Contains("[dropout_grad] mask is f64[2, 3], but for the other arguments it must be u8[2, 3]"));
  CHECK_THAT(error([&] {
               embedding_grad(ids({2}, {1}), x, random_values({1, 3}, 3));
             }),
             Catch::Contains("[embedding_grad] x is 2 at element 0"));
  CHECK_THAT(error([&] {
               cross_entropy_with_softmax_grad(ids({3, 0}, {2}), x, random_values({2, 1}, 4));
             }),
             Catch::Contains("label has the class 3 at element 0"));
}

}  // namespace
}  // namespace shard::test::nn_test
