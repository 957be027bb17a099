// Cases of the ops of optim.yaml.
#include "shard/ops/optim.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {

void add_optim_cases(OpCases& cases) {
  // No powers of betas are whole numbers between 0 and 1. Those of -1 and -3 make corrections for bias that are exact: 1 / 2 and sqrt(4).
  cases.push_back({"sgd_", "float32", {DType::float32}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2));
                     return CaseCall{{x, draw.input({1}), x}, [](Tensors& t) {
                                       Tensor none;
                                       sgd_(t[0], t[1], t[2], none);
                                       return Tensors{t[0]};
                                     }};
                   }});
  cases.push_back({"sgd_", "master copy", {DType::bfloat16}, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(1));
                     return CaseCall{{x, draw.input({1}).of(DType::float32), x, x.of(DType::float32)}, [](Tensors& t) {
                                       sgd_(t[0], t[1], t[2], t[3], true);
                                       return Tensors{t[0], t[3]};
                                     }};
                   }});
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
}

}  // namespace shard::testing
