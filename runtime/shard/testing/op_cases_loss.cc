// Cases of the ops of loss.yaml and fused.yaml, of normalisations of images, and of their gradients.
#include "shard/ops/fused.h"
#include "shard/ops/loss.h"
#include "shard/ops/math.h"
#include "shard/ops/nn.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

void add_image_norms(OpCases& cases) {
  const double ulps = 64;
  const char* inexact = "quotients by roots, and sums over places, are added up in another order";
  for (const bool last : {false, true}) {
    const std::string format = last ? "NHWC" : "NCHW", name = last ? "channels last" : "two groups";
    const auto make = [=](bool grad, auto run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size_above_0(), c = 2 * draw.size_above_0();
        const CaseInput x = draw.input(last ? Dims{n, 3, c} : Dims{n, c, 3}), weight = draw.input({c}),
                        statistic = draw.input({n, 2});
        std::vector<CaseInput> inputs = {x, weight, weight};
        if (grad) inputs.insert(inputs.end(), {statistic, statistic.between(1, 3), x});
        return CaseCall{inputs, run};
      };
    };
    cases.push_back(
        {"group_norm", name, kFloats,
         make(false,
              [=](Tensors& t) { return tensors_of(group_norm_intermediate(t[0], t[1], t[2], 1e-2f, 2, format)); }),
         ulps, inexact});
    cases.push_back({"group_norm_grad", name, kFloats,
                     make(true,
                          [=](Tensors& t) {
                            return tensors_of(group_norm_grad(t[0], t[1], t[2], t[3], t[4], t[5], 1e-2f, 2, format));
                          }),
                     ulps, inexact});
  }
  cases.push_back({"group_norm", "without scale and bias", kFloats,
                   [](Draw& draw) {
                     return CaseCall{{draw.input({draw.size_above_0(), 2, 3})}, [](Tensors& t) {
                                       return tensors_of(group_norm_intermediate(t[0], {}, {}, 1e-2f, 1));
                                     }};
                   },
                   ulps, inexact});
  cases.push_back({"instance_norm", "with scale and bias", kFloats,
                   [](Draw& draw) {
                     const Dims x = {draw.size_above_0(), draw.size_above_0(), 3};
                     const CaseInput weight = draw.input({x[1]});
                     return CaseCall{{draw.input(x), weight, weight}, [](Tensors& t) {
                                       return tensors_of(instance_norm_intermediate(t[0], t[1], t[2], 1e-2f));
                                     }};
                   },
                   ulps, inexact});
  cases.push_back({"instance_norm_grad", "with scale and bias", kFloats,
                   [](Draw& draw) {
                     const Dims x = {draw.size_above_0(), draw.size_above_0(), 3};
                     const CaseInput weight = draw.input({x[1]}), statistic = draw.input({x[0], x[1]}).between(1, 3);
                     return CaseCall{{draw.input(x), weight, weight, statistic, statistic, draw.input(x)},
                                     [](Tensors& t) {
                                       return tensors_of(instance_norm_grad(t[0], t[1], t[2], t[3], t[4], t[5], 1e-2f));
                                     }};
                   },
                   ulps, inexact});
}

void add_losses_of_elements(OpCases& cases) {
  const auto alike = [](size_t count, auto run) {
    return [=](Draw& draw) {
      return CaseCall{std::vector<CaseInput>(count, draw.input(draw.dims(2)).between(0, 1)), run};
    };
  };
  const auto add = [&](const char* op, const char* name, size_t count, Tensors (*run)(Tensors&)) {
    cases.push_back({op, name, kFloats, alike(count, run)});
  };
  add("bce_loss", "of probabilities", 2, [](Tensors& t) { return Tensors{bce_loss(t[0], t[1])}; });
  add("bce_loss_", "of probabilities", 2, [](Tensors& t) { return Tensors{bce_loss_(t[0], t[1])}; });
  add("bce_loss_grad", "of two dims", 3, [](Tensors& t) { return Tensors{bce_loss_grad(t[0], t[1], t[2])}; });
  add("bce_loss_grad_", "of two dims", 3, [](Tensors& t) { return Tensors{bce_loss_grad_(t[0], t[1], t[2])}; });
  add("log_loss", "of two dims", 2, [](Tensors& t) { return Tensors{log_loss(t[0], t[1], 0.5f)}; });
  add("log_loss_grad", "of two dims", 3, [](Tensors& t) { return Tensors{log_loss_grad(t[0], t[1], t[2], 0.5f)}; });
  add("huber_loss", "of two dims", 2, [](Tensors& t) { return tensors_of(huber_loss_intermediate(t[0], t[1], 0.5f)); });
  add("huber_loss_grad", "of two dims", 3,
      [](Tensors& t) { return tensors_of(huber_loss_grad(t[0], t[1], t[2], 0.5f)); });
  const double ulps = 64;
  const char* inexact = "contributions are rounded before they are added";
  cases.push_back({"sigmoid_cross_entropy_with_logits", "plain", kFloats,
                   alike(2, [](Tensors& t) { return Tensors{sigmoid_cross_entropy_with_logits(t[0], t[1], {})}; }),
                   ulps, inexact});
  cases.push_back(
      {"sigmoid_cross_entropy_with_logits", "weighted and normalised", kFloats,
       alike(3, [](Tensors& t) { return Tensors{sigmoid_cross_entropy_with_logits(t[0], t[1], t[2], true)}; }), ulps,
       inexact});
  for (const bool logarithms : {false, true}) {
    cases.push_back({"kldiv_loss", logarithms ? "sum of logarithms" : "mean over rows", kFloats,
                     [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims_above_0(2)).between(0, 1);
                       return CaseCall{
                           {x, x}, [=](Tensors& t) {
                             return Tensors{kldiv_loss(t[0], t[1], logarithms ? "sum" : "batchmean", logarithms)};
                           }};
                     },
                     ulps, inexact});
  }
}

void add_nll_losses(OpCases& cases) {
  for (const std::string reduction : {"none", "sum", "mean"}) {
    const bool weighted = reduction != "sum";
    const auto make = [=](bool grad, auto run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size_above_0(), c = draw.size_above_0();
        const CaseInput label = draw.input({n, 2}).of(DType::int64).between(0, c - 1);
        std::vector<CaseInput> inputs = {draw.input({n, c, 2}), label};
        if (grad) {
          inputs.push_back(draw.input({}).between(1, 4));
          inputs.push_back(draw.input(reduction == "none" ? Dims{n, 2} : Dims{}));
        }
        if (weighted) inputs.push_back(draw.input({c}).between(1, 2));
        return CaseCall{inputs, run};
      };
    };
    const double ulps = reduction == "mean" ? 64 : 0;
    const std::string inexact = reduction == "mean" ? "a quotient is rounded" : "";
    cases.push_back({"nll_loss", reduction, kFloats,
                     make(false,
                          [=](Tensors& t) {
                            return tensors_of(nll_loss(t[0], t[1], weighted ? t[2] : Tensor(), -100, reduction));
                          }),
                     ulps, inexact});
    cases.push_back({"nll_loss_grad", reduction, kFloats,
                     make(true,
                          [=](Tensors& t) {
                            return Tensors{
                                nll_loss_grad(t[0], t[1], weighted ? t[4] : Tensor(), t[2], t[3], -100, reduction)};
                          }),
                     ulps, inexact});
  }
}

constexpr double kMarginUlps = 16;
const char* const kMargin = "sums are combined over ranks in another order";

void add_margin_cross_entropies(OpCases& cases) {
  const auto add = [&](const char* name, bool column, float margin1, float margin2, float margin3) {
    const auto make = [=](bool grad, const std::function<Tensors(Tensors&)>& run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size_above_0();
        const Dims dims = column ? Dims{n, 1} : Dims{n};
        std::vector<CaseInput> inputs = {draw.input({n, c}), draw.input(dims).of(DType::int64).between(0, c - 1)};
        if (grad) inputs.insert(inputs.end(), {draw.input({n, c}), draw.input({n, 1})});
        return CaseCall{inputs, run};
      };
    };
    // Cosines are in [-1, 1].
    cases.push_back({"margin_cross_entropy", name, kFloats,
                     make(false,
                          [=](Tensors& t) {
                            return tensors_of(margin_cross_entropy(scale(t[0], 0.25), t[1], false, 0, 0, 1, margin1,
                                                                   margin2, margin3, 4));
                          }),
                     kMarginUlps, kMargin});
    cases.push_back({"margin_cross_entropy_grad", name, kFloats,
                     make(true,
                          [=](Tensors& t) {
                            return Tensors{margin_cross_entropy_grad(scale(t[0], 0.25), t[1], t[2], t[3], false, 0, 0,
                                                                     1, margin1, margin2, margin3, 4)};
                          }),
                     kMarginUlps, kMargin});
    cases.push_back({"margin_cross_entropy_grad_", name, kFloats,
                     make(true,
                          [=](Tensors& t) {
                            return Tensors{margin_cross_entropy_grad_(scale(t[0], 0.25), t[1], t[2], t[3], false, 0, 0,
                                                                      1, margin1, margin2, margin3, 4)};
                          }),
                     kMarginUlps, kMargin});
  };
  add("an angle is added", true, 1, 0.5f, 0);
  add("all margins", false, 1.25f, 0.25f, 0.125f);
  add("a cosine is subtracted", false, 1, 0, 0.5f);
}

void add_metrics(OpCases& cases) {
  cases.push_back({"accuracy", "of three chosen", {DType::int32, DType::int64}, [](Draw& draw) {
                     const int64_t n = draw.size();
                     return CaseCall{{{{n, 3}, DType::float32}, draw.input({n, 3}), draw.input({n, 1})},
                                     [](Tensors& t) {
                                       const auto [share, correct, total] = accuracy(t[0], t[1], t[2]);
                                       return Tensors{share, correct, total};
                                     }};
                   }});
  for (const int steps : {0, 2}) {
    cases.push_back(
        {"auc", steps == 0 ? "all calls" : "two calls, weighed", kFloats, [=](Draw& draw) {
           const CaseInput x = draw.input({draw.size(), 2}).between(0, 1);
           const CaseInput stat = draw.input({steps == 0 ? 4 : 13}).of(DType::int64).between(0, 5);
           std::vector<CaseInput> inputs = {x, draw.input({x.dims[0], 1}).of(DType::int64).between(-1, 1), stat, stat};
           if (steps > 0) inputs.push_back(draw.input({1}).of(DType::float32).between(0, 1));
           return CaseCall{inputs, [=](Tensors& t) {
                             const Tensor weight = steps > 0 ? t[4] : Tensor();
                             const auto [area, positive, negative] =
                                 auc(t[0], t[1], t[2], t[3], weight, "ROC", 3, steps);
                             return Tensors{area, positive, negative};
                           }};
         }});
  }
}

void add_fused(OpCases& cases) {
  const double ulps = 64;
  const char* inexact = "contributions are rounded before they are added";
  cases.push_back({"fused_gemm_epilogue", "gelu", kFloats,
                   [](Draw& draw) {
                     const int64_t m = draw.size(), k = draw.size(), n = draw.size();
                     return CaseCall{{draw.input({m, k}), draw.input({n, k}), draw.input({n})}, [](Tensors& t) {
                                       return Tensors{fused_gemm_epilogue(t[0], t[1], t[2], false, true, "gelu")};
                                     }};
                   },
                   ulps, inexact});
  for (const std::string method : {"gelu", "swiglu", "geglu"}) {
    cases.push_back({"fused_bias_act", method, kFloats,
                     [=](Draw& draw) {
                       const int64_t m = draw.size(), n = 2 * draw.size();
                       return CaseCall{{draw.input({m, n}), draw.input({n})}, [=](Tensors& t) {
                                         return Tensors{fused_bias_act(t[0], t[1], {}, {}, {}, method)};
                                       }};
                     },
                     ulps, inexact});
  }
  cases.push_back({"fused_bias_residual_layernorm", "bias and residual", kFloats,
                   [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims_above_0(2)), row = draw.input({x.dims[1]});
                     return CaseCall{{x, row, x, row, row}, [](Tensors& t) {
                                       const auto [out, sum] = fused_bias_residual_layernorm(
                                           t[0], t[1], t[2], t[3], t[4], 0.5f, 2.0f, 1, -1, 0, 0, 0);
                                       return Tensors{out, sum};
                                     }};
                   },
                   ulps, inexact});
  cases.push_back({"fused_dropout_add", "a fixed seed", kFloats, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2));
                     return CaseCall{
                         {x, x}, [](Tensors& t) {
                           return Tensors{fused_dropout_add(t[0], t[1], {}, 0.5f, false, "upscale_in_train", 7)};
                         }};
                   }});
  cases.push_back({"fused_softmax_mask", "a mask for all heads", kFloats,
                   [](Draw& draw) {
                     const Dims x = draw.dims_above_0(4);
                     return CaseCall{{draw.input(x), draw.input({x[0], 1, x[2], x[3]})},
                                     [](Tensors& t) { return Tensors{fused_softmax_mask(t[0], t[1])}; }};
                   },
                   ulps, inexact});
  cases.push_back({"fused_softmax_mask_upper_triangle", "square", kFloats,
                   [](Draw& draw) {
                     const int64_t size = draw.size_above_0();
                     return CaseCall{{draw.input({draw.size(), draw.size(), size, size})},
                                     [](Tensors& t) { return Tensors{fused_softmax_mask_upper_triangle(t[0])}; }};
                   },
                   ulps, "sums are combined over ranks in another order"});
}

}  // namespace

void add_loss_cases(OpCases& cases) {
  add_image_norms(cases);
  add_losses_of_elements(cases);
  add_nll_losses(cases);
  add_margin_cross_entropies(cases);
  add_metrics(cases);
  add_fused(cases);
}

}  // namespace shard::testing
