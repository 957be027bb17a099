// Cases of the ops of nn.yaml. Random ops get a seed, so that plain and distributed calls draw the
// same numbers.
#include "shard/ops/nn.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

void add_softmaxes(OpCases& cases) {
  for (const int axis : {0, -1}) {
    const auto make = [=](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(3))}, run}; }; };
    const std::string name = axis == 0 ? "axis 0" : "axis -1";
    cases.push_back({"softmax", name, kFloats, make([=](Tensors& t) { return Tensors{softmax(t[0], axis)}; }),
                     kCombinedUlps, kCombinedSums});
    cases.push_back({"log_softmax", name, kFloats, make([=](Tensors& t) { return Tensors{log_softmax(t[0], axis)}; }),
                     kCombinedUlps, kCombinedSums});
    cases.push_back({"softmax_", name, kFloats, make([=](Tensors& t) { return Tensors{softmax_(t[0], axis)}; }),
                     kCombinedUlps, kCombinedSums});
  }
}

void add_embeddings(OpCases& cases) {
  for (const int64_t padding : {-1, 1}) {
    cases.push_back({"embedding", padding < 0 ? "of two dims" : "padding 1", kFloats, [=](Draw& draw) {
                       const int64_t v = draw.size_above_0(), d = draw.size();
                       return CaseCall{
                           {draw.input(draw.dims(2)).of(DType::int64).between(0, v - 1), draw.input({v, d})},
                           [=](Tensors& t) { return Tensors{embedding(t[0], t[1], padding)}; }};
                     }});
  }
}

void add_norms(OpCases& cases) {
  cases.push_back({"layer_norm", "from dim 1", kFloats,
                   [](Draw& draw) {
                     const Dims x = draw.dims_above_0(3);
                     const CaseInput weight = draw.input({x[1] * x[2]});
                     return CaseCall{{draw.input(x), weight, weight}, [](Tensors& t) {
                                       return tensors_of(layer_norm_intermediate(t[0], t[1], t[2], 1e-5f, 1));
                                     }};
                   },
                   kCombinedUlps, kCombinedSums});
  cases.push_back({"layer_norm", "from dim 2, without scale and bias", kFloats,
                   [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(3))}, [](Tensors& t) {
                                       return tensors_of(layer_norm_intermediate(t[0], {}, {}, 1e-5f, 2));
                                     }};
                   },
                   kCombinedUlps, kCombinedSums});
  cases.push_back({"rms_norm", "of three dims", kFloats,
                   [](Draw& draw) {
                     const Dims x = draw.dims_above_0(3);
                     return CaseCall{{draw.input(x), draw.input({x[2]})},
                                     [](Tensors& t) { return tensors_of(rms_norm(t[0], t[1], 1e-5f)); }};
                   },
                   kCombinedUlps, kCombinedSums});
  const auto batch_norm_case = [&](const char* name, const char* format, bool is_test, bool weights,
                                   bool synchronised = false) {
    cases.push_back({synchronised ? "sync_batch_norm_" : "batch_norm",
                     name,
                     {DType::float32},
                     [=](Draw& draw) {
                       const Dims x = draw.dims_above_0(3);
                       const CaseInput channels = draw.input({format[1] == 'C' ? x[1] : x[2]});
                       std::vector<CaseInput> inputs = {draw.input(x), channels, channels.between(1, 3)};
                       if (weights) inputs.insert(inputs.end(), {channels, channels});
                       return CaseCall{
                           inputs, [=](Tensors& t) {
                             const Tensor scale = weights ? t[3] : Tensor(), bias = weights ? t[4] : Tensor();
                             Tensors out = synchronised
                                               ? tensors_of(sync_batch_norm_(t[0], t[1], t[2], scale, bias, is_test,
                                                                             0.5f, 1e-2f, format, false, false))
                                               : tensors_of(batch_norm(t[0], t[1], t[2], scale, bias, is_test, 0.5f,
                                                                       1e-2f, format));
                             // they are written through their views
                             out.insert(out.end(), {t[1], t[2]});
                             return out;
                           }};
                     },
                     64,
                     "sums of rounded squares are combined over ranks in another order"});
  };
  batch_norm_case("training", "NCHW", false, false);
  batch_norm_case("training, channels last", "NHWC", false, false);
  batch_norm_case("training, with scale and bias", "NCHW", false, true);
  batch_norm_case("test", "NCHW", true, false);
  batch_norm_case("training, with scale and bias", "NCHW", false, true, true);
  batch_norm_case("test", "NCHW", true, false, true);
}

void add_dropouts(OpCases& cases) {
  const auto add = [&](const char* name, bool is_test, const char* mode) {
    cases.push_back({"dropout", name, kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(2))}, [=](Tensors& t) {
                                         return tensors_of(dropout_intermediate(t[0], {}, 0.5f, is_test, mode, 7));
                                       }};
                     }});
  };
  add("upscale in train", false, "upscale_in_train");
  add("upscale in train, test", true, "upscale_in_train");
  add("downscale in infer, test", true, "downscale_in_infer");
  cases.push_back({"dropout", "seed tensor", kFloats, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2)), draw.input({1}).of(DType::int64).between(1, 9)},
                                     [](Tensors& t) { return tensors_of(dropout_intermediate(t[0], t[1])); }};
                   }});
}

void add_cross_entropies(OpCases& cases) {
  enum class Label { kept, dropped, soft };
  const auto add = [&](const char* name, Label kind, int axis, bool use_softmax, int ignore) {
    cases.push_back({"cross_entropy_with_softmax", name, kFloats,
                     [=](Draw& draw) {
                       const Dims x = draw.dims_above_0(3);
                       Dims dims = x;
                       if (kind == Label::kept) dims[axis] = 1;
                       if (kind == Label::dropped) dims.erase(axis);
                       const CaseInput label = kind == Label::soft
                                                   ? draw.input(x).between(0, 1)
                                                   : draw.input(dims).of(DType::int64).between(0, x[axis] - 1);
                       return CaseCall{{draw.input(x).between(1, 4), label}, [=](Tensors& t) {
                                         return tensors_of(cross_entropy_with_softmax(t[0], t[1], kind == Label::soft,
                                                                                      use_softmax, true, ignore, axis));
                                       }};
                     },
                     kCombinedUlps, kCombinedSums});
  };
  add("label with the axis", Label::kept, 2, true, -100);
  add("label without the axis, one ignored", Label::dropped, 1, true, 1);
  add("soft label", Label::soft, 2, true, -100);
  add("probabilities", Label::kept, 2, false, -100);
}

/// flash_attn on [2, s, heads, width], with fewer heads in k and v if `kv_heads` is smaller.
void add_attention(OpCases& cases) {
  const auto add = [&](const char* name, int64_t heads, int64_t kv_heads, bool causal, bool mask, float dropout) {
    cases.push_back({"flash_attn", name, kFloats,
                     [=](Draw& draw) {
                       const int64_t b = draw.size(), s = draw.size(), t = draw.size(), h = heads * draw.size_above_0(),
                                     d = draw.size_above_0();
                       const int64_t kv = kv_heads == heads ? h : kv_heads;
                       std::vector<CaseInput> inputs = {draw.input({b, s, h, d}), draw.input({b, t, kv, d}),
                                                        draw.input({b, t, kv, d}),
                                                        draw.input({2}).of(DType::int64).between(1, 9)};
                       if (mask) inputs.push_back(draw.input({b, 1, s, t}));
                       return CaseCall{inputs, [=](Tensors& t) {
                                         return tensors_of(flash_attn(t[0], t[1], t[2], t[3], mask ? t[4] : Tensor(),
                                                                      dropout, causal, true));
                                       }};
                     },
                     kCombinedUlps, kCombinedSums});
  };
  add("plain", 1, 1, false, false, 0);
  add("causal with mask", 1, 1, true, true, 0);
  add("heads in groups of two", 4, 2, true, false, 0);
  add("one head of k and v", 3, 1, false, true, 0);
  add("dropout", 1, 1, false, false, 0.5f);
}

void add_ropes(OpCases& cases) {
  // All ranks have equal sines and cosines, so the sum of rotated contributions equals the rotated
  // value except for roundings, each of half a unit of its result. Upper bounds with 8 ranks, in
  // units: the magnitudes of a pending value's contributions (values up to 3, `gentle` ones up to
  // 1) have the sum S = 3 + 2 * 7 = 17. Rotating rounds two products and their difference: 2 *
  // sqrt(2) * S / 2 = 24.1. Of the 7 additions the one that makes t terms gives at most sqrt(2) *
  // max(t, 3 + 8 - t), so they round by sqrt(2) / 2 * (9 + 8 + 7 + 6 + 6 + 7 + 3) = 32.6. The one
  // rank rounds 2 * sqrt(2) * 3 / 2 = 4.3. Fewer ranks or several axes give less, the divisions of
  // averages included.
  const double ulps = 61;
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
                          return run(t[0], k, none, table ? t[first] : none, table ? t[first + 1] : none,
                                     ids ? t.back() : none, neighbours, time_major);
                        }};
      };
    };
    cases.push_back({"fused_rotary_position_embedding", name, kFloats,
                     make([](Tensor& q, Tensor& k, Tensor& v, const Tensor& sin, const Tensor& cos, const Tensor& at,
                             bool n, bool major) {
                       return tensors_of(fused_rotary_position_embedding(q, k, v, sin, cos, at, n, major, 100.0f));
                     }),
                     ulps, inexact});
    cases.push_back({"fused_rotary_position_embedding_", name, kFloats,
                     make([](Tensor& q, Tensor& k, Tensor& v, const Tensor& sin, const Tensor& cos, const Tensor& at,
                             bool n, bool major) {
                       fused_rotary_position_embedding_(q, k, v, sin, cos, at, n, major, 100.0f);
                       return k.defined() ? Tensors{q, k} : Tensors{q};
                     }),
                     ulps, inexact});
  };
  add("q alone", true, false, false, false, false);
  add("q and k, halves", false, false, true, false, false);
  add("table", true, false, true, true, false);
  add("table and ids, sequence first", false, true, false, true, true);
  add("ids", true, false, true, false, true);
}

void add_linear_grads(OpCases& cases) {
  const auto add = [&](const char* name, bool dweight, bool dbias, bool has_bias, const std::vector<DType>& dtypes) {
    cases.push_back({"fused_linear_param_grad_add", name, dtypes, [=](Draw& draw) {
                       const int64_t b = draw.size(), s = draw.size(), k = draw.size(), n = draw.size();
                       std::vector<CaseInput> inputs = {draw.input({b, s, k}), draw.input({b, s, n})};
                       const DType wide = draw.dtype == DType::float64 ? DType::float64 : DType::float32;
                       if (dweight) inputs.push_back(draw.input({k, n}).of(wide));
                       if (dbias) inputs.push_back(draw.input({n}).of(wide));
                       return CaseCall{
                           inputs, [=](Tensors& t) {
                             const Tensor none;
                             return tensors_of(fused_linear_param_grad_add(t[0], t[1], dweight ? t[2] : none,
                                                                           dbias ? t.back() : none, true, has_bias));
                           }};
                     }});
  };
  add("new", false, false, true, kFloats);
  add("added to both", true, true, true, {DType::float32, DType::bfloat16});
  add("added to the weight, no bias", true, false, false, kFloats);
}

void add_label_smooths(OpCases& cases) {
  cases.push_back({"label_smooth", "uniform", kFloats, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2)).between(0, 1)},
                                     [](Tensors& t) { return Tensors{label_smooth(t[0], {}, 0.25f)}; }};
                   }});
  cases.push_back({"label_smooth", "prior [1, n]", kFloats, [](Draw& draw) {
                     const Dims x = draw.dims(2);
                     return CaseCall{{draw.input(x).between(0, 1), draw.input({1, x[1]})},
                                     [](Tensors& t) { return Tensors{label_smooth(t[0], t[1], 0.25f)}; }};
                   }});
}

void add_spectral_norms(OpCases& cases) {
  // Without steps, whose roots are rounded: sums of whole numbers are exact in every layout.
  const auto add = [&](const char* name, int dim) {
    cases.push_back(
        {"spectral_norm", name, kFloats,
         [=](Draw& draw) {
           const Dims w = draw.dims_above_0(3);
           const int64_t rows = w[dim], columns = w.numel() / rows;
           return CaseCall{
               {draw.input(w).between(1, 3), draw.input({rows}).between(1, 3), draw.input({columns}).between(1, 3)},
               [=](Tensors& t) { return Tensors{spectral_norm(t[0], t[1], t[2], dim, 0, 0.5f)}; }};
         },
         64, "contributions are rounded before they are added"});
  };
  add("no step along dim 0", 0);
  add("no step along dim 1", 1);
}

}  // namespace

void add_nn_cases(OpCases& cases) {
  add_softmaxes(cases);
  add_embeddings(cases);
  add_norms(cases);
  add_dropouts(cases);
  add_cross_entropies(cases);
  add_label_smooths(cases);
  add_attention(cases);
  add_ropes(cases);
  add_linear_grads(cases);
  add_spectral_norms(cases);
}

}  // namespace shard::testing
