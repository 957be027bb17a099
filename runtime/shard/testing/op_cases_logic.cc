// Cases of the ops of logic.yaml.
#include "shard/ops/logic.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {

void add_logic_cases(OpCases& cases) {
  const std::vector<DType> bits = {DType::int32, DType::uint8, DType::boolean};
  add_binary(cases, "equal", kAnyDType, equal, equal_);
  add_binary(cases, "not_equal", kAnyDType, not_equal, not_equal_);
  add_binary(cases, "less_than", kAnyDType, less_than, less_than_);
  add_binary(cases, "less_equal", kAnyDType, less_equal, less_equal_);
  add_binary(cases, "greater_than", kAnyDType, greater_than, greater_than_);
  add_binary(cases, "greater_equal", kAnyDType, greater_equal, greater_equal_);
  add_binary(cases, "logical_and", kAnyDType, logical_and, logical_and_);
  add_binary(cases, "logical_or", kAnyDType, logical_or, logical_or_);
  add_binary(cases, "logical_xor", kAnyDType, logical_xor, logical_xor_);
  add_binary(cases, "bitwise_and", bits, bitwise_and, bitwise_and_);
  add_binary(cases, "bitwise_or", bits, bitwise_or, bitwise_or_);
  add_binary(cases, "bitwise_xor", bits, bitwise_xor, bitwise_xor_);
  const std::vector<DType> integers = {DType::int32, DType::uint8};
  for (const bool is_arithmetic : {true, false}) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const CaseInput x = draw.input(draw.dims(2));
        return CaseCall{{x, x.between(0, 9)}, run};
      };
    };
    const std::string name = is_arithmetic ? "arithmetic" : "logical";
    const auto add = [&](const std::string& op, auto run) { cases.push_back({op, name, integers, make(run)}); };
    add("bitwise_left_shift", [=](Tensors& t) { return Tensors{bitwise_left_shift(t[0], t[1], is_arithmetic)}; });
    add("bitwise_left_shift_", [=](Tensors& t) { return Tensors{bitwise_left_shift_(t[0], t[1], is_arithmetic)}; });
    add("bitwise_right_shift", [=](Tensors& t) { return Tensors{bitwise_right_shift(t[0], t[1], is_arithmetic)}; });
    add("bitwise_right_shift_", [=](Tensors& t) { return Tensors{bitwise_right_shift_(t[0], t[1], is_arithmetic)}; });
  }
  using In = const Tensor&;
  add_binary(
      cases, "isclose", kNumbers, [](In x, In y) { return isclose(x, y, 0.25, 0.5); }, nullptr);
  cases.push_back({"allclose", "of two dims", kNumbers, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2));
                     return CaseCall{{x, x}, [](Tensors& t) { return Tensors{allclose(t[0], t[1], 0.25, 3.0)}; }};
                   }});
  add_unary(cases, "isnan", kAnyDType, isnan, nullptr);
  add_unary(cases, "isinf", kAnyDType, isinf, nullptr);
  add_unary(cases, "isfinite", kAnyDType, isfinite, nullptr);
  add_unary(cases, "logical_not", kAnyDType, logical_not, logical_not_);
  add_unary(cases, "bitwise_not", bits, bitwise_not, bitwise_not_);
}

}  // namespace shard::testing
