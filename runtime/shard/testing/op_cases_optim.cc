// Cases of the ops of optim.yaml.
#include "shard/ops/optim.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {

namespace {

using Lists = std::vector<Tensors>;

/// The elements of a tensor: of a state between two numbers, or of numbers of which a list may have one for all.
struct Range {
  int low, high;
  Dims dims = {};  // empty: those of the parameter
  bool shared = false;
};

/// Steps of two parameters: lists of the parameters, their gradients and `others`, and of master copies, or none. The
/// call returns the lists that it wrote. With master copies each parameter has numbers of its own.
void add_merged_case(OpCases& cases, const std::string& op, const std::string& name, const std::vector<Range>& others,
                     const std::function<Lists(Lists&, Tensors&)>& call) {
  const auto make = [=](bool master) {
    return [=](Draw& draw) {
      const CaseInput params[] = {draw.input(draw.dims(2)), draw.input(draw.dims(1))};
      const DType wide = master ? DType::float32 : draw.dtype;
      std::vector<CaseInput> inputs;
      std::vector<size_t> counts = {2, 2};
      for (int i = 0; i < 2; ++i) inputs.insert(inputs.end(), std::begin(params), std::end(params));
      for (const Range& range : others) {
        counts.push_back(range.shared && !master ? 1 : 2);
        for (size_t i = 0; i < counts.back(); ++i) {
          const CaseInput made = range.dims.rank() == 0 ? params[i] : draw.input(range.dims);
          inputs.push_back(made.of(wide).between(range.low, range.high));
        }
      }
      counts.push_back(master ? 2 : 0);
      for (size_t i = 0; i < counts.back(); ++i) inputs.push_back(params[i].of(wide));
      return CaseCall{inputs, [=](Tensors& t) {
                        Lists lists;
                        auto next = t.begin();
                        for (const size_t count : counts) {
                          lists.emplace_back(next, next + static_cast<std::ptrdiff_t>(count));
                          next += static_cast<std::ptrdiff_t>(count);
                        }
                        Lists written = call(lists, lists.back());
                        written.push_back(lists.back());
                        Tensors out;
                        for (const Tensors& list : written) out.insert(out.end(), list.begin(), list.end());
                        return out;
                      }};
    };
  };
  cases.push_back({op, name, {DType::float32, DType::float64}, make(false)});
  cases.push_back({op, name + " and a master copy", {DType::bfloat16}, make(true)});
}

void add_merged_cases(OpCases& cases) {
  const Range rates{1, 2, {1}, true};
  const auto shared = [](int number) { return Range{number, number, {1}, true}; };
  const auto own = [](int number) { return Range{number, number, {1}}; };
  add_merged_case(cases, "merged_sgd_", "no state", {rates}, [](Lists& l, Tensors& masters) {
    merged_sgd_(l[0], l[2], l[1], masters, !masters.empty());
    return Lists{l[0]};
  });
  add_merged_case(cases, "merged_rmsprop_", "plain", {{0, 3}, {-3, 3}, rates}, [](Lists& l, Tensors& masters) {
    Tensors none;
    merged_rmsprop_(l[0], l[2], l[1], l[3], l[4], none, masters, 0.5f, 0.5f, 0.5f, false, !masters.empty());
    return Lists{l[0], l[2], l[3]};
  });
  add_merged_case(
      cases, "merged_rmsprop_", "centered", {{9, 12}, {-3, 3}, {-1, 1}, rates}, [](Lists& l, Tensors& masters) {
        merged_rmsprop_(l[0], l[2], l[1], l[3], l[5], l[4], masters, 0.5f, 0.5f, 0.5f, true, !masters.empty());
        return Lists{l[0], l[2], l[3], l[4]};
      });
  add_merged_case(cases, "merged_adagrad_", "one state", {{0, 3}, rates}, [](Lists& l, Tensors& masters) {
    merged_adagrad_(l[0], l[1], l[2], l[3], masters, 0.5f, !masters.empty());
    return Lists{l[0], l[2]};
  });
  add_merged_case(cases, "merged_adadelta_", "two states", {{0, 3}, {0, 3}, rates}, [](Lists& l, Tensors& masters) {
    merged_adadelta_(l[0], l[1], l[2], l[3], l[4], masters, 0.5f, 0.5f, !masters.empty());
    return Lists{l[0], l[2], l[3]};
  });
  add_merged_case(cases, "merged_adamax_", "two states", {{-3, 3}, {0, 3}, rates, shared(0)},
                  [](Lists& l, Tensors& masters) {
                    merged_adamax_(l[0], l[1], l[4], l[2], l[3], l[5], masters, 0.5f, 0.5f, 0.5f, !masters.empty());
                    return Lists{l[0], l[2], l[3]};
                  });
  add_merged_case(cases, "merged_asgd_", "two states", {{-3, 3}, {-3, 3}, rates, shared(2)},
                  [](Lists& l, Tensors& masters) {
                    merged_asgd_(l[0], l[1], l[4], l[2], l[3], l[5], masters, !masters.empty());
                    return Lists{l[0], l[2], l[3]};
                  });
  add_merged_case(cases, "merged_rprop_", "a rate for each element",
                  {{-3, 3}, {1, 3}, {1, 2, {2}, true}, {0, 2, {2}, true}}, [](Lists& l, Tensors& masters) {
                    merged_rprop_(l[0], l[1], l[2], l[3], masters, l[4], l[5], !masters.empty());
                    return Lists{l[0], l[2], l[3]};
                  });
  // Without the norms, as lamb_.
  add_merged_case(cases, "merged_lamb_", "not adapted", {{-3, 3}, {0, 3}, rates, own(0), own(0)},
                  [](Lists& l, Tensors& masters) {
                    merged_lamb_(l[0], l[1], l[4], l[2], l[3], l[5], l[6], masters, {}, 0, 0.5f, 0.5f, 0.5f, false,
                                 !masters.empty());
                    return Lists{l[0], l[2], l[3], l[5], l[6]};
                  });
}

}  // namespace

void add_optim_cases(OpCases& cases) {
  // No powers of betas are whole numbers between 0 and 1. Those of -1 and -3 make corrections for bias that are exact: 1 / 2 and sqrt(4).
  cases.push_back({"adamw_", "float32", {DType::float32}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(1)), one = draw.input({1}).between(1, 1);
                     return CaseCall{{x, x, one, x, x.between(0, 3), one.between(-1, -1), one.between(-3, -3)},
                                     [](Tensors& t) {
                                       Tensor none;
                                       adamw_(t[0], t[1], t[2], t[3], t[4], t[5], t[6], none, {}, 0.5f, 0.5f, 1e-2f,
                                              1.0f, 0.5f, true);
                                       return Tensors{t[0], t[3], t[4], t[5], t[6]};
                                     }};
                   }});
  cases.push_back({"adamw_", "master copy and skip", {DType::bfloat16}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(1)), x32 = x.of(DType::float32);
                     const CaseInput number = draw.input({1}).of(DType::float32);
                     return CaseCall{{x, x, number.between(1, 1), x32, x32.between(0, 3), number.between(-1, -1),
                                      number.between(-3, -3), x32, draw.input({1}).of(DType::boolean)},
                                     [](Tensors& t) {
                                       adamw_(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], 0.5f, 0.5f, 1e-2f,
                                              1.0f, 0.5f, false, true);
                                       return Tensors{t[0], t[3], t[4], t[5], t[6], t[7]};
                                     }};
                   }});
  cases.push_back({"adam_", "float32", {DType::float32}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(1)), one = draw.input({1}).between(1, 1);
                     return CaseCall{{x, x, one, x, x.between(0, 3), one.between(-1, -1), one.between(-3, -3)},
                                     [](Tensors& t) {
                                       Tensor none;
                                       adam_(t[0], t[1], t[2], t[3], t[4], t[5], t[6], none, {}, 0.5f, 0.5f, 1e-2f);
                                       return Tensors{t[0], t[3], t[4], t[5], t[6]};
                                     }};
                   }});
  // Steps with states: the parameter, the gradient and `states` of the same shape, then numbers [1].
  const auto step = [&](const std::string& op, const std::string& name, std::vector<std::pair<int, int>> states,
                        std::vector<int> numbers, std::function<Tensors(Tensors&, Tensor&)> call) {
    const auto make = [=](bool master) {
      return [=](Draw& draw) {
        const CaseInput x = draw.input(draw.dims(2));
        const DType wide = master ? DType::float32 : draw.dtype;
        std::vector<CaseInput> inputs = {x, x};
        for (const auto& [low, high] : states) inputs.push_back(x.of(wide).between(low, high));
        for (const int number : numbers) inputs.push_back(draw.input({1}).of(wide).between(number, number));
        if (master) inputs.push_back(x.of(wide));
        return CaseCall{inputs, [=](Tensors& t) {
                          Tensor none;
                          Tensors out = call(t, master ? t.back() : none);
                          if (master) out.push_back(t.back());
                          return out;
                        }};
      };
    };
    cases.push_back({op, name, kFloats, make(false)});
    cases.push_back({op, name + " and a master copy", {DType::bfloat16}, make(true)});
  };
  step("sgd_", "no state", {}, {2}, [](Tensors& t, Tensor& master) {
    sgd_(t[0], t[2], t[1], master, master.defined());
    return Tensors{t[0]};
  });
  for (const bool nesterov : {false, true}) {
    step("momentum_", nesterov ? "nesterov" : "plain", {{-3, 3}}, {1}, [=](Tensors& t, Tensor& master) {
      momentum_(t[0], t[1], t[2], t[3], master, 0.5f, nesterov, nesterov ? "l2_decay" : "", 0.25f, master.defined(), 2);
      return Tensors{t[0], t[2]};
    });
  }
  step("rmsprop_", "plain", {{0, 3}, {-3, 3}}, {1}, [](Tensors& t, Tensor& master) {
    Tensor none;
    rmsprop_(t[0], t[2], t[1], t[3], t[4], none, master, 0.5f, 0.5f, 0.5f, false, master.defined());
    return Tensors{t[0], t[2], t[3]};
  });
  step("rmsprop_", "centered", {{9, 12}, {-3, 3}, {-1, 1}}, {1}, [](Tensors& t, Tensor& master) {
    rmsprop_(t[0], t[2], t[1], t[3], t[5], t[4], master, 0.5f, 0.5f, 0.5f, true, master.defined());
    return Tensors{t[0], t[2], t[3], t[4]};
  });
  step("adagrad_", "one state", {{0, 3}}, {1}, [](Tensors& t, Tensor& master) {
    adagrad_(t[0], t[1], t[2], t[3], master, 0.5f, master.defined());
    return Tensors{t[0], t[2]};
  });
  step("adadelta_", "two states", {{0, 3}, {0, 3}}, {1}, [](Tensors& t, Tensor& master) {
    adadelta_(t[0], t[1], t[2], t[3], t[4], master, 0.5f, 0.5f, master.defined());
    return Tensors{t[0], t[2], t[3]};
  });
  step("adamax_", "two states", {{-3, 3}, {0, 3}}, {1, 0}, [](Tensors& t, Tensor& master) {
    adamax_(t[0], t[1], t[4], t[2], t[3], t[5], master, 0.5f, 0.5f, 0.5f, master.defined());
    return Tensors{t[0], t[2], t[3]};
  });
  step("asgd_", "two states", {{-3, 3}, {-3, 3}}, {1, 2}, [](Tensors& t, Tensor& master) {
    asgd_(t[0], t[1], t[4], t[2], t[3], t[5], master, master.defined());
    return Tensors{t[0], t[2], t[3]};
  });
  // Without the norms, whose last bits depend on the layout; tests/call/optimizer_test.cc has them.
  step("lamb_", "not adapted", {{-3, 3}, {0, 3}}, {1, 0, 0}, [](Tensors& t, Tensor& master) {
    lamb_(t[0], t[1], t[4], t[2], t[3], t[5], t[6], master, {}, 0, 0.5f, 0.5f, 0.5f, false, master.defined());
    return Tensors{t[0], t[2], t[3], t[5], t[6]};
  });
  cases.push_back({"rprop_", "a rate for each element", kFloats, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2)), two = draw.input({2});
                     return CaseCall{{x, x, x, x.between(1, 3), two.between(1, 2), two.between(0, 2)}, [](Tensors& t) {
                                       Tensor none;
                                       rprop_(t[0], t[1], t[2], t[3], none, t[4], t[5]);
                                       return Tensors{t[0], t[2], t[3]};
                                     }};
                   }});
  add_merged_cases(cases);
  cases.push_back(
      {"clip_by_norm", "of two dims", kFloats,
       [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) { return Tensors{clip_by_norm(t[0], 2)}; }};
       },
       16, "contributions to x are multiplied by a rounded factor each"});
  for (const bool each : {false, true}) {  // a learning rate of its own for each parameter
    const char* name = each ? "of two parameters, decayed" : "of two parameters";
    cases.push_back({"merged_momentum_", name, {DType::float32, DType::float64}, [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims(2)), y = draw.input(draw.dims(1)),
                                       one = draw.input({1}).between(1, 1);
                       return CaseCall{{x, y, x, y, x.between(-3, 3), y.between(-3, 3), one, one}, [=](Tensors& t) {
                                         Tensors params = {t[0], t[1]}, states = {t[4], t[5]}, masters;
                                         const Tensors rates = each ? Tensors{t[6], t[7]} : Tensors{t[6]};
                                         using Names = std::vector<std::string>;
                                         using Numbers = std::vector<float>;
                                         merged_momentum_(params, {t[2], t[3]}, states, rates, masters, 0.5f, each,
                                                          each ? Names{"l2_decay", ""} : Names{},
                                                          each ? Numbers{0.25f, 0.0f} : Numbers{}, false, 2);
                                         return Tensors{t[0], t[1], t[4], t[5]};
                                       }};
                     }});
  }
  cases.push_back(
      {"merged_adam_", "of two parameters", {DType::float32}, [](Draw& draw) {
         const CaseInput x = draw.input(draw.dims(2)), y = draw.input(draw.dims(1)),
                         one = draw.input({1}).between(1, 1);
         const CaseInput first = one.between(-1, -1), second = one.between(-3, -3);
         return CaseCall{
             {x, y, x, y, x, y, x.between(0, 3), y.between(0, 3), one, first, first, second, second}, [](Tensors& t) {
               Tensors params = {t[0], t[1]}, means = {t[4], t[5]}, squares = {t[6], t[7]}, powers1 = {t[9], t[10]},
                       powers2 = {t[11], t[12]}, masters;
               merged_adam_(params, {t[2], t[3]}, {t[8]}, means, squares, powers1, powers2, masters, 0.5f, 0.5f, 1e-2f);
               return Tensors{t[0], t[1], t[4], t[5], t[6], t[7], t[9], t[10], t[11], t[12]};
             }};
       }});
  cases.push_back({"merged_adam_", "of two parameters with master copies", {DType::bfloat16}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2)), y = draw.input(draw.dims(1));
                     const CaseInput wide_x = x.of(DType::float32), wide_y = y.of(DType::float32),
                                     one = draw.input({1}).of(DType::float32);
                     return CaseCall{
                         {x, y, x, y, wide_x, wide_y, wide_x.between(0, 3), wide_y.between(0, 3), one.between(1, 1),
                          one.between(-1, -1), one.between(-1, -1), one.between(-3, -3), one.between(-3, -3), wide_x,
                          wide_y},
                         [](Tensors& t) {
                           Tensors params = {t[0], t[1]}, means = {t[4], t[5]}, squares = {t[6], t[7]},
                                   powers1 = {t[9], t[10]}, powers2 = {t[11], t[12]}, masters = {t[13], t[14]};
                           merged_adam_(params, {t[2], t[3]}, {t[8]}, means, squares, powers1, powers2, masters, 0.5f,
                                        0.5f, 1e-2f, true);
                           return Tensors{t[0], t[1], t[4], t[5], t[6], t[7], t[9], t[10], t[11], t[12], t[13], t[14]};
                         }};
                   }});
  cases.push_back({"fused_adam_", "of two parameters, decayed", {DType::float32}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2)), y = draw.input(draw.dims(1)),
                                     one = draw.input({1}).between(1, 1);
                     const CaseInput first = one.between(-1, -1), second = one.between(-3, -3);
                     return CaseCall{
                         {x, y, x, y, x, y, x.between(0, 3), y.between(0, 3), one, first, first, second, second},
                         [](Tensors& t) {
                           Tensors params = {t[0], t[1]}, means = {t[4], t[5]}, squares = {t[6], t[7]},
                                   powers1 = {t[9], t[10]}, powers2 = {t[11], t[12]}, masters;
                           fused_adam_(params, {t[2], t[3]}, t[8], means, squares, powers1, powers2, masters, {}, 0.5f,
                                       0.5f, 1e-2f, 65536, 0.5f, true, false, false);
                           return Tensors{t[0], t[1], t[4], t[5], t[6], t[7], t[9], t[10], t[11], t[12]};
                         }};
                   }});
  cases.push_back({"fused_adam_", "of two parameters with skip and master copies", {DType::bfloat16}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2)), y = draw.input(draw.dims(1));
                     const CaseInput wide_x = x.of(DType::float32), wide_y = y.of(DType::float32),
                                     one = draw.input({1}).of(DType::float32);
                     return CaseCall{
                         {x, y, x, y, wide_x, wide_y, wide_x.between(0, 3), wide_y.between(0, 3), one.between(1, 1),
                          one.between(-1, -1), one.between(-1, -1), one.between(-3, -3), one.between(-3, -3), wide_x,
                          wide_y, draw.input({1}).of(DType::boolean)},
                         [](Tensors& t) {
                           Tensors params = {t[0], t[1]}, means = {t[4], t[5]}, squares = {t[6], t[7]},
                                   powers1 = {t[9], t[10]}, powers2 = {t[11], t[12]}, masters = {t[13], t[14]};
                           fused_adam_(params, {t[2], t[3]}, t[8], means, squares, powers1, powers2, masters, t[15],
                                       0.5f, 0.5f, 1e-2f, 65536, 0.5f, false, true, false);
                           return Tensors{t[0], t[1], t[4], t[5], t[6], t[7], t[9], t[10], t[11], t[12], t[13], t[14]};
                         }};
                   }});
  cases.push_back({"check_finite_and_unscale_", "of two tensors", kFloats, [](Draw& draw) {
                     return CaseCall{
                         {draw.input(draw.dims(2)), draw.input(draw.dims(1)), draw.input({1}).between(2, 2)},
                         [](Tensors& t) {
                           Tensors x = {t[0], t[1]};
                           Tensor found = std::get<1>(check_finite_and_unscale_(x, t[2]));
                           return Tensors{t[0], t[1], found};
                         }};
                   }});
  cases.push_back({"update_loss_scaling_", "of two tensors", kFloats, [](Draw& draw) {
                     const CaseInput one = draw.input({1}), count = one.of(DType::int32).between(0, 1);
                     return CaseCall{{draw.input(draw.dims(2)), draw.input(draw.dims(1)), one.of(DType::boolean),
                                      one.between(2, 4), count, count},
                                     [](Tensors& t) {
                                       Tensors x = {t[0], t[1]};
                                       update_loss_scaling_(x, t[2], t[3], t[4], t[5], 2, 2, 2, 0.5f);
                                       return Tensors{t[0], t[1], t[3], t[4], t[5]};
                                     }};
                   }});
  for (const bool restarts : {false, true}) {
    cases.push_back({"average_accumulates_", restarts ? "a new window" : "the old window", kFloats, [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims(2)), count = draw.input({1}).of(DType::int64);
                       return CaseCall{{x, x, x, x, count.between(9, 12), count.between(0, 9), count.between(20, 30)},
                                       [=](Tensors& t) {
                                         average_accumulates_(t[0], t[1], t[2], t[3], t[4], t[5], t[6], 0.5f, 100,
                                                              restarts ? 10 : 100);
                                         return Tensors(t.begin() + 1, t.end());
                                       }};
                     }});
  }
}

}  // namespace shard::testing
