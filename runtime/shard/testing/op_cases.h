// The table of op cases: how every op is called by the programs that test its placement rule on
// random tensors (rule_check.h, tests/call/property_test.cc). A new op gets a few lines in the
// op_cases_*.cc of its family; other projects make a list of cases for their own ops.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/tensor.h"

namespace shard::testing {

using Tensors = std::vector<Tensor>;

/// The tensors of a tuple, such as a call with several outputs returns.
template <class... T>
Tensors tensors_of(const std::tuple<T...>& values) {
  return std::apply([](const auto&... tensors) { return Tensors{tensors...}; }, values);
}

/// A tensor argument of a call: its shape and dtype, and the range of whole numbers from which its
/// elements are drawn (both ends can occur; numbers that the dtype cannot represent are left out).
/// They are whole numbers because sums and products of small ones are exact in every order.
struct CaseInput {
  Dims dims;
  DType dtype;
  int64_t low = -3;
  int64_t high = 3;

  CaseInput of(DType other) const { return {dims, other, low, high}; }
  CaseInput between(int64_t least, int64_t most) const { return {dims, dtype, least, most}; }
};

/// How far results may be from those of one rank where sums are combined over ranks, and why.
inline constexpr double kCombinedUlps = 16;
inline constexpr const char* kCombinedSums = "sums are combined over ranks in another order";

/// One call of an op. `run` gets the tensors, all plain or all distributed, calls the op, and
/// returns all outputs in their order; an in-place form returns its targets. It must not depend on
/// shapes or layouts, so that it can be called with local shards too.
struct CaseCall {
  std::vector<CaseInput> inputs;
  std::function<Tensors(Tensors&)> run;
};

/// Draws the sizes of a call. The number of dims and the attributes of a case are fixed, so that a
/// layout fits all its calls.
class SHARD_API Draw {
 public:
  /// Sizes come from `sizes`; `dtype` is one of OpCase::dtypes.
  Draw(uint64_t seed, DType dtype, std::vector<int64_t> sizes)
      : dtype(dtype), random_(seed), sizes_(std::move(sizes)) {}

  const DType dtype;

  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  int64_t size() { return sizes_[static_cast<size_t>(between(0, static_cast<int64_t>(sizes_.size()) - 1))]; }
  int64_t size_above_0() { return std::max<int64_t>(size(), 1); }
  Dims dims(int rank);
  Dims dims_above_0(int rank);
  CaseInput input(const Dims& dims) const { return {dims, dtype}; }

 private:
  std::mt19937_64 random_;
  std::vector<int64_t> sizes_;
};

/// A way to call an op.
struct OpCase {
  std::string op;    // the C++ function: "add", or "add_" for the in-place form
  std::string name;  // what distinguishes the call, such as its attributes; unique among the cases of the op
  std::vector<DType> dtypes;
  std::function<CaseCall(Draw&)> make;
  /// How far elements may differ from those of one rank where an argument or the result is pending,
  /// or the kernel combines values over ranks, in units of the last place of the largest element, or
  /// of 1: 0 where the result is exact, that is equal bit for bit, for every layout. Otherwise
  /// `inexact` says why it cannot be exact. Where nothing is pending or combined every result must be
  /// exact.
  double ulps = 0;
  std::string inexact = {};
};

using OpCases = std::vector<OpCase>;

/// Layouts in which a rule sends bytes although it need not, or refuses, and why that is accepted.
struct Accepted {
  enum class What { move, refusal };
  What what;
  std::string op;                   // includes its in-place form; "*" for all
  std::vector<std::string> states;  // of one of the arguments: names of reduce types, or "shard"
  std::string reason;
  std::vector<DType> dtypes = {};  // of the case; empty for all
};

/// The cases of all ops of this library that take tensors, and the accepted gaps of their rules.
SHARD_API OpCases op_cases();
SHARD_API std::vector<Accepted> accepted_by_rules();

/// The dtypes of a case: one or two that represent all of their kind.
inline const std::vector<DType> kFloats = {DType::float32, DType::float64};
inline const std::vector<DType> kNumbers = {DType::float32, DType::int64};
inline const std::vector<DType> kAnyDType = {DType::float32, DType::int32, DType::boolean};

/// A function of the public API, with or without a call site parameter.
template <class Result, class... Args>
class Function : public std::function<Result(Args...)> {
 public:
  using std::function<Result(Args...)>::function;
  Function(Result (*f)(Args..., CallSite))  // NOLINT: stands for the function
      : std::function<Result(Args...)>([f](Args... args) -> Result { return f(args..., CallSite()); }) {}
};

/// Cases for ops of one kind. `f` and `f_` take and return tensors, f_ works in place.
using Unary = Function<Tensor, const Tensor&>;
using UnaryInplace = Function<Tensor&, Tensor&>;
/// x of two dims, elements from low to high.
SHARD_API void add_unary(OpCases& cases, const std::string& op, const std::vector<DType>& dtypes, Unary f,
                         UnaryInplace f_, int64_t low = -3, int64_t high = 3);
using Binary = Function<Tensor, const Tensor&, const Tensor&>;
using BinaryInplace = Function<Tensor&, Tensor&, const Tensor&>;
/// x and y of equal shapes, and broadcast against each other in each way; elements of y from low to high.
SHARD_API void add_binary(OpCases& cases, const std::string& op, const std::vector<DType>& dtypes, Binary f,
                          BinaryInplace f_, int64_t low = -3, int64_t high = 3);

SHARD_API void add_math_cases(OpCases& cases);        // op_cases_math.cc
SHARD_API void add_elementary_cases(OpCases& cases);  // op_cases_elementary.cc
SHARD_API void add_activation_cases(OpCases& cases);  // op_cases_elementary.cc
SHARD_API void add_logic_cases(OpCases& cases);       // op_cases_logic.cc
SHARD_API void add_reduce_cases(OpCases& cases);      // op_cases_reduce.cc
SHARD_API void add_shape_cases(OpCases& cases);       // op_cases_shape.cc
SHARD_API void add_indexing_cases(OpCases& cases);    // op_cases_indexing.cc
SHARD_API void add_writing_cases(OpCases& cases);     // op_cases_writing.cc
SHARD_API void add_nn_cases(OpCases& cases);          // op_cases_nn.cc
SHARD_API void add_nn_grad_cases(OpCases& cases);     // op_cases_nn_grad.cc
SHARD_API void add_attention_cases(OpCases& cases);   // op_cases_attention.cc
SHARD_API void add_conv_cases(OpCases& cases);        // op_cases_conv.cc
SHARD_API void add_image_cases(OpCases& cases);       // op_cases_image.cc
SHARD_API void add_loss_cases(OpCases& cases);        // op_cases_loss.cc
SHARD_API void add_optim_cases(OpCases& cases);       // op_cases_optim.cc
SHARD_API void add_sort_cases(OpCases& cases);        // op_cases_sort.cc
SHARD_API void add_linalg_cases(OpCases& cases);      // op_cases_linalg.cc
SHARD_API void add_graph_cases(OpCases& cases);       // op_cases_graph.cc
SHARD_API void add_vision_cases(OpCases& cases);      // op_cases_vision.cc
SHARD_API void add_sequence_cases(OpCases& cases);    // op_cases_sequence.cc
SHARD_API void add_dynamic_cases(OpCases& cases);     // op_cases_dynamic.cc
SHARD_API void add_random_cases(OpCases& cases);      // op_cases_dynamic.cc

}  // namespace shard::testing
