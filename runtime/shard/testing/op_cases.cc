// Helpers of the families of op cases, and the list of all cases.
#include "shard/testing/op_cases.h"

namespace shard::testing {

Dims Draw::dims(int rank) {
  Dims dims;
  for (int d = 0; d < rank; ++d) dims.push_back(size());
  return dims;
}

Dims Draw::dims_above_0(int rank) {
  Dims dims;
  for (int d = 0; d < rank; ++d) dims.push_back(size_above_0());
  return dims;
}

void add_unary(OpCases& cases, const std::string& op, const std::vector<DType>& dtypes, Unary f, UnaryInplace f_,
               int64_t low, int64_t high) {
  const auto make = [=](auto run) {
    return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2)).between(low, high)}, run}; };
  };
  cases.push_back({op, "of two dims", dtypes, make([=](Tensors& t) { return Tensors{f(t[0])}; })});
  if (f_ != nullptr)
    cases.push_back({op + "_", "of two dims", dtypes, make([=](Tensors& t) { return Tensors{f_(t[0])}; })});
}

void add_binary(OpCases& cases, const std::string& op, const std::vector<DType>& dtypes, Binary f, BinaryInplace f_,
                int64_t low, int64_t high) {
  using Shape = Dims (*)(int64_t m, int64_t n);
  const auto add = [&](const char* name, Shape x, Shape y, bool in_place) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const int64_t m = draw.size(), n = draw.size();
        return CaseCall{{draw.input(x(m, n)), draw.input(y(m, n)).between(low, high)}, run};
      };
    };
    cases.push_back({op, name, dtypes, make([=](Tensors& t) { return Tensors{f(t[0], t[1])}; })});
    if (in_place && f_ != nullptr)
      cases.push_back({op + "_", name, dtypes, make([=](Tensors& t) { return Tensors{f_(t[0], t[1])}; })});
  };
  const Shape both = [](int64_t m, int64_t n) { return Dims{m, n}; };
  const Shape row = [](int64_t, int64_t n) { return Dims{n}; };
  const Shape column = [](int64_t m, int64_t) { return Dims{m, 1}; };
  const Shape row_of_one = [](int64_t, int64_t n) { return Dims{1, n}; };
  const Shape scalar = [](int64_t, int64_t) { return Dims{}; };
  add("[m, n] and [m, n]", both, both, true);
  add("[m, n] and [n]", both, row, true);
  add("[m, n] and [m, 1]", both, column, true);
  add("[m, 1] and [1, n]", column, row_of_one, false);
  add("[n] and [m, n]", row, both, false);
  add("[m, n] and []", both, scalar, false);
}

OpCases op_cases() {
  OpCases cases;
  add_math_cases(cases);
  add_elementary_cases(cases);
  add_activation_cases(cases);
  add_logic_cases(cases);
  add_reduce_cases(cases);
  add_shape_cases(cases);
  add_indexing_cases(cases);
  add_writing_cases(cases);
  add_nn_cases(cases);
  add_nn_grad_cases(cases);
  add_conv_cases(cases);
  add_image_cases(cases);
  add_loss_cases(cases);
  add_optim_cases(cases);
  add_dynamic_cases(cases);
  add_sort_cases(cases);
  add_linalg_cases(cases);
  add_vision_cases(cases);
  add_graph_cases(cases);
  add_attention_cases(cases);
  add_sequence_cases(cases);
  add_random_cases(cases);
  return cases;
}

}  // namespace shard::testing
