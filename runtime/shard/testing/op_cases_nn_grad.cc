// Cases of the gradients of nn.yaml and of the activations of math.yaml. Results of forward ops are
// drawn too: a rule must be correct for any values.
#include "shard/ops/math.h"
#include "shard/ops/nn.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

/// `count` inputs of one shape.
auto alike(int rank, size_t count, Tensors (*run)(Tensors&)) {
  return [=](Draw& draw) { return CaseCall{std::vector<CaseInput>(count, draw.input(draw.dims(rank))), run}; };
}

void add_activations(OpCases& cases) {
  cases.push_back({"silu_grad", "of two dims", kFloats,
                   alike(2, 3, [](Tensors& t) { return Tensors{silu_grad(t[0], t[1], t[2])}; })});
  cases.push_back({"silu_grad_", "of two dims", kFloats,
                   alike(2, 3, [](Tensors& t) { return Tensors{silu_grad_(t[0], t[1], t[2])}; })});
  cases.push_back(
      {"gelu_grad", "by erfc", kFloats, alike(2, 2, [](Tensors& t) { return Tensors{gelu_grad(t[0], t[1])}; })});
  cases.push_back(
      {"gelu_grad", "by tanh", kFloats, alike(2, 2, [](Tensors& t) { return Tensors{gelu_grad(t[0], t[1], true)}; })});
  cases.push_back(
      {"gelu_grad_", "by erfc", kFloats, alike(2, 2, [](Tensors& t) { return Tensors{gelu_grad_(t[0], t[1])}; })});
  cases.push_back({"swiglu_grad", "x and y", kFloats,
                   alike(2, 3, [](Tensors& t) { return tensors_of(swiglu_grad(t[0], t[1], t[2])); })});
  cases.push_back({"swiglu_grad", "x alone", kFloats, [](Draw& draw) {
                     const int64_t rows = draw.size(), width = draw.size();
                     return CaseCall{{draw.input({rows, 2 * width}), draw.input({rows, width})},
                                     [](Tensors& t) { return Tensors{std::get<0>(swiglu_grad(t[0], {}, t[1]))}; }};
                   }});
}

void add_softmax_grads(OpCases& cases) {
  for (const int axis : {0, -1}) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const CaseInput x = draw.input(draw.dims(3));
        return CaseCall{{x, x}, run};
      };
    };
    const std::string name = axis == 0 ? "axis 0" : "axis -1";
    cases.push_back({"softmax_grad", name, kFloats,
                     make([=](Tensors& t) { return Tensors{softmax_grad(t[0], t[1], axis)}; }), kCombinedUlps,
                     kCombinedSums});
    cases.push_back({"softmax_grad_", name, kFloats,
                     make([=](Tensors& t) { return Tensors{softmax_grad_(t[0], t[1], axis)}; }), kCombinedUlps,
                     kCombinedSums});
    cases.push_back({"log_softmax_grad", name, kFloats,
                     make([=](Tensors& t) { return Tensors{log_softmax_grad(t[0], t[1], axis)}; }), kCombinedUlps,
                     kCombinedSums});
    cases.push_back({"log_softmax_grad_", name, kFloats,
                     make([=](Tensors& t) { return Tensors{log_softmax_grad_(t[0], t[1], axis)}; }), kCombinedUlps,
                     kCombinedSums});
  }
}

void add_embedding_grads(OpCases& cases) {
  for (const int64_t padding : {-1, 1}) {
    cases.push_back({"embedding_grad", padding < 0 ? "of two dims" : "padding 1", kFloats, [=](Draw& draw) {
                       const int64_t v = draw.size_above_0(), d = draw.size(), b = draw.size(), s = draw.size();
                       return CaseCall{{draw.input({b, s}).of(DType::int64).between(0, v - 1), draw.input({v, d}),
                                        draw.input({b, s, d})},
                                       [=](Tensors& t) { return Tensors{embedding_grad(t[0], t[1], t[2], padding)}; }};
                     }});
  }
}

void add_norm_grads(OpCases& cases) {
  const double ulps = 64;
  const char* inexact = "quotients by roots are added up over rows in another order";
  cases.push_back({"layer_norm_grad", "from dim 1", kFloats,
                   [](Draw& draw) {
                     const Dims x = draw.dims_above_0(3);
                     const CaseInput weight = draw.input({x[1] * x[2]}), rows = draw.input({x[0]});
                     return CaseCall{{draw.input(x), weight, weight, rows, rows.between(1, 3), draw.input(x)},
                                     [](Tensors& t) {
                                       return tensors_of(layer_norm_grad(t[0], t[1], t[2], t[3], t[4], t[5], 1e-2f, 1));
                                     }};
                   },
                   ulps, inexact});
  cases.push_back({"layer_norm_grad", "from dim 2, without scale and bias", kFloats,
                   [](Draw& draw) {
                     const Dims x = draw.dims_above_0(3);
                     const CaseInput rows = draw.input({x[0], x[1]});
                     return CaseCall{
                         {draw.input(x), rows, rows.between(1, 3), draw.input(x)}, [](Tensors& t) {
                           return Tensors{std::get<0>(layer_norm_grad(t[0], {}, {}, t[1], t[2], t[3], 1e-2f, 2))};
                         }};
                   },
                   ulps, inexact});
  cases.push_back({"rms_norm_grad", "of three dims", kFloats,
                   [](Draw& draw) {
                     const Dims x = draw.dims_above_0(3);
                     return CaseCall{{draw.input(x), draw.input({x[2]}), draw.input({x[0], x[1]}), draw.input(x)},
                                     [](Tensors& t) { return tensors_of(rms_norm_grad(t[0], t[1], t[2], t[3])); }};
                   },
                   ulps, inexact});
  const auto batch_norm_case = [&](const char* name, const char* format, bool is_test, bool weights) {
    cases.push_back({"batch_norm_grad", name, kFloats, [=](Draw& draw) {
                       const Dims x = draw.dims_above_0(3);
                       const CaseInput channels = draw.input({format[1] == 'C' ? x[1] : x[2]});
                       std::vector<CaseInput> inputs = {draw.input(x), channels, channels.between(1, 3), draw.input(x)};
                       if (weights) inputs.insert(inputs.end(), {channels, channels});
                       return CaseCall{inputs, [=](Tensors& t) {
                                         const Tensor none;
                                         Tensors grads = tensors_of(batch_norm_grad(t[0], weights ? t[4] : none,
                                                                                    weights ? t[5] : none, t[1], t[2],
                                                                                    t[3], format, is_test));
                                         grads.resize(weights ? 3 : 1);
                                         return grads;
                                       }};
                     }});
  };
  batch_norm_case("training", "NCHW", false, false);
  batch_norm_case("training, channels last, with scale and bias", "NHWC", false, true);
  batch_norm_case("test, with scale and bias", "NCHW", true, true);
}

void add_dropout_grads(OpCases& cases) {
  const auto add = [&](const char* name, bool is_test, const char* mode) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const CaseInput x = draw.input(draw.dims(2));
        return CaseCall{{x.of(DType::uint8).between(0, 1), x}, run};
      };
    };
    cases.push_back({"dropout_grad", name, kFloats,
                     make([=](Tensors& t) { return Tensors{dropout_grad(t[0], t[1], 0.5f, is_test, mode)}; })});
    cases.push_back({"dropout_grad_", name, kFloats,
                     make([=](Tensors& t) { return Tensors{dropout_grad_(t[0], t[1], 0.5f, is_test, mode)}; })});
  };
  add("upscale in train", false, "upscale_in_train");
  add("downscale in infer, test", true, "downscale_in_infer");
}

void add_losses(OpCases& cases) {
  enum class Label { kept, dropped, soft };
  const auto add = [&](const char* name, Label kind, int axis, bool use_softmax, int ignore) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const Dims x = draw.dims_above_0(3);
        Dims loss = x, dims = x;
        loss[axis] = 1;
        if (kind == Label::kept) dims[axis] = 1;
        if (kind == Label::dropped) dims.erase(axis);
        const CaseInput label = kind == Label::soft ? draw.input(x).between(0, 1)
                                                    : draw.input(dims).of(DType::int64).between(0, x[axis] - 1);
        return CaseCall{{label, draw.input(x).between(1, 4), draw.input(loss)}, run};
      };
    };
    const bool soft = kind == Label::soft;
    cases.push_back({"cross_entropy_with_softmax_grad", name, kFloats, make([=](Tensors& t) {
                       return Tensors{
                           cross_entropy_with_softmax_grad(t[0], t[1], t[2], soft, use_softmax, true, ignore, axis)};
                     }),
                     kCombinedUlps, kCombinedSums});
    cases.push_back({"cross_entropy_with_softmax_grad_", name, kFloats, make([=](Tensors& t) {
                       return Tensors{
                           cross_entropy_with_softmax_grad_(t[0], t[1], t[2], soft, use_softmax, true, ignore, axis)};
                     }),
                     kCombinedUlps, kCombinedSums});
  };
  add("label with the axis", Label::kept, 2, true, -100);
  add("label without the axis, one ignored", Label::dropped, 1, true, 1);
  add("soft label", Label::soft, 2, true, -100);
  add("probabilities", Label::kept, 2, false, -100);
  add("probabilities, soft label", Label::soft, 1, false, -100);
  cases.push_back({"label_smooth_grad", "of two dims", kFloats,
                   alike(2, 1, [](Tensors& t) { return Tensors{label_smooth_grad(t[0], 0.25f)}; })});
}

void add_attention_grads(OpCases& cases) {
  const auto add = [&](const char* name, int64_t heads, int64_t kv_heads, bool causal, bool mask, float dropout) {
    cases.push_back({"flash_attn_grad", name, kFloats,
                     [=](Draw& draw) {
                       const int64_t b = draw.size(), s = draw.size(), t = draw.size(), h = heads * draw.size_above_0(),
                                     d = draw.size_above_0();
                       const int64_t kv = kv_heads == heads ? h : kv_heads;
                       const CaseInput q = draw.input({b, s, h, d}), k = draw.input({b, t, kv, d});
                       // Scores that are a few units below the logarithm of their sum: weights
                       // below 1.
                       std::vector<CaseInput> inputs = {q.between(-1, 1),
                                                        k.between(-1, 1),
                                                        k,
                                                        q,
                                                        draw.input({b, h, s}).between(5, 8),
                                                        draw.input({2}).of(DType::int64).between(1, 9),
                                                        q};
                       if (mask) inputs.push_back(draw.input({b, 1, s, t}).between(-2, 2));
                       return CaseCall{
                           inputs, [=](Tensors& t) {
                             return tensors_of(flash_attn_grad(t[0], t[1], t[2], t[3], t[4], t[5],
                                                               mask ? t[7] : Tensor(), t[6], dropout, causal));
                           }};
                     },
                     64, "sums over queries are rounded in each shard"});
  };
  add("plain", 1, 1, false, false, 0);
  add("causal with mask", 1, 1, true, true, 0);
  add("heads in groups of two", 4, 2, true, false, 0);
  add("one head of k and v", 3, 1, false, true, 0);
  add("dropout", 1, 1, false, false, 0.5f);
}

void add_rope_grads(OpCases& cases) {
  const double ulps = 61;  // gradients are rotated back: as in op_cases_nn.cc
  const char* inexact = "contributions are turned and rounded before they are added";
  const auto add = [&](const char* name, bool neighbours, bool time_major, bool with_k, bool table, bool ids) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const int64_t b = draw.size(), s = draw.size(), h = draw.size_above_0(), d = 2 * draw.size_above_0();
        const Dims q = time_major ? Dims{s, b, h, d} : Dims{b, s, h, d};
        Dims k = q;
        k[2] = 2;
        std::vector<CaseInput> inputs = {draw.input(q)};
        if (with_k) inputs.push_back(draw.input(k));
        const int64_t positions = ids ? s + 3 : s;
        if (table)
          inputs.insert(inputs.end(),
                        {draw.input({positions, d}).between(0, 1), draw.input({positions, d}).between(0, 1)});
        if (ids) inputs.push_back(draw.input({b, s}).of(DType::int64).between(0, positions - 1));
        return CaseCall{inputs, [=](Tensors& t) {
                          const size_t first = with_k ? 2 : 1;
                          Tensor none, k = with_k ? t[1] : Tensor();
                          Tensors grads = run(table ? t[first] : none, table ? t[first + 1] : none,
                                              ids ? t.back() : none, t[0], k, neighbours, time_major);
                          grads.resize(first);
                          return grads;
                        }};
      };
    };
    cases.push_back(
        {"fused_rotary_position_embedding_grad", name, kFloats,
         make([](const Tensor& sin, const Tensor& cos, const Tensor& at, Tensor& q, Tensor& k, bool n, bool major) {
           return tensors_of(fused_rotary_position_embedding_grad(sin, cos, at, q, k, {}, n, major, 100.0f));
         }),
         ulps, inexact});
    cases.push_back(
        {"fused_rotary_position_embedding_grad_", name, kFloats,
         make([](const Tensor& sin, const Tensor& cos, const Tensor& at, Tensor& q, Tensor& k, bool n, bool major) {
           Tensor none;
           fused_rotary_position_embedding_grad_(sin, cos, at, q, k, none, n, major, 100.0f);
           return Tensors{q, k};
         }),
         ulps, inexact});
  };
  add("q alone", true, false, false, false, false);
  add("q and k, halves", false, false, true, false, false);
  add("table and ids, sequence first", false, true, false, true, true);
  add("table", true, false, true, true, false);
}

}  // namespace

void add_nn_grad_cases(OpCases& cases) {
  add_activations(cases);
  add_softmax_grads(cases);
  add_embedding_grads(cases);
  add_norm_grads(cases);
  add_dropout_grads(cases);
  add_losses(cases);
  add_attention_grads(cases);
  add_rope_grads(cases);
}

}  // namespace shard::testing
