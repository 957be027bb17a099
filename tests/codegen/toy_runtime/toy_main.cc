// Forms and kernels of the ops in toy_ops.yaml, and what the generated functions must give with them. Linked with
// what shardgen writes for toy.json; ends with the number of wrong values.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "api.h"
#include "toy_forms.h"
#include "toy_ops_ops.h"

namespace toy::forms {

void SameForm(const Call&, const Form& x, Form& out) { out = x; }
void FilledForm(const Call&, const Ints& shape, Type dtype, Form& out) { out = {shape, dtype}; }
void BlendForm(const Call&, const Form& x, const Form&, Maybe<Type> dtype, Form& out) {
  out = {x.sizes, dtype.value_or(x.type)};
}
void ReshapeForm(const Call&, const Form& x, const Ints& shape, Form& out) { out = {shape, x.type}; }
void JoinForm(const Call&, View<const Form> x, Form& out) {
  int64_t total = 0;
  for (const Form& each : x) total += each.elements();
  out = {{total}, x.first().type};
}
void HalvesForm(const Call&, const Form& x, List<Form>& out) {
  for (int i = 0; i < 2; ++i) out.add({{x.elements() / 2}, x.type});
}
void LargestForm(const Call&, const Form& x, Form& out, Form& index) {
  out = {{1}, x.type};
  index = {{1}, Type::i64};
}
void FlatForm(const Call&, const Form& x, const Form* start, Form& flat, Form& sum) {
  flat = {{x.elements()}, x.type};
  sum = {{1}, start != nullptr ? start->type : x.type};
}

}  // namespace toy::forms

namespace {

using namespace toy;

void negate(const Call&, const Array& x, Array& out) {
  for (size_t i = 0; i < x.elements().size(); ++i) out.elements()[i] = -x.elements()[i];
}
void blend(const Call&, const Array& x, const Array& y, float alpha, double beta, int times, int64_t offset,
           bool absolute, const Text& mode, const Number& bias, const List<float>& weights, const Ints& skip,
           Array& out) {
  for (size_t i = 0; i < x.elements().size(); ++i) {
    const double right = beta * y.elements()[i];
    const double sum = mode == "sum" ? alpha * x.elements()[i] + right : alpha * x.elements()[i] - right;
    const double value = weights[0] * times * sum + static_cast<double>(offset + skip.count()) + bias.value;
    out.elements()[i] = absolute ? std::abs(value) : value;
  }
}
void join(const Call&, View<const Array> x, Array& out) {
  auto to = out.elements().begin();
  for (const Array& each : x) to = std::copy(each.elements().begin(), each.elements().end(), to);
}
void halves(const Call&, const Array& x, View<Array> out) {
  auto from = x.elements().begin();
  for (const Array& each : out) {
    std::copy_n(from, each.elements().size(), each.elements().begin());
    from += static_cast<std::ptrdiff_t>(each.elements().size());
  }
}
void largest(const Call&, const Array& x, Array& out, Array& index) {
  const auto at = std::max_element(x.elements().begin(), x.elements().end());
  out.elements()[0] = *at;
  index.elements()[0] = static_cast<double>(at - x.elements().begin());
}
void flat_and_sum(const Call&, const Array& x, const Array& start, Array&, Array& sum) {
  const double first = start.exists() ? start.elements()[0] : 0.0;
  sum.elements()[0] = std::accumulate(x.elements().begin(), x.elements().end(), first);
}
void filled(const Call&, const Number& value, Array& out) {
  std::fill(out.elements().begin(), out.elements().end(), value.value);
}

int wrong = 0;

void expect(const char* what, const Array& array, const Ints& sizes, const std::vector<double>& elements) {
  if (array.form().sizes == sizes && array.elements() == elements) return;
  std::printf("%s is wrong\n", what);
  ++wrong;
}

Array array_of(const Ints& sizes, std::initializer_list<double> elements) {
  Array array(Form{sizes, Type::f32});
  array.elements() = elements;
  return array;
}

void add_kernels() {
  for (const Type type : {Type::f32, Type::i64}) {
    kernels_of("negate").add(type, &negate);
    kernels_of("blend").add(type, &blend);
    kernels_of("filled").add(type, &filled);
  }
  kernels_of("join").add(Type::f32, &join);
  kernels_of("halves").add(Type::f32, &halves);
  kernels_of("largest").add(Type::f32, &largest);
  kernels_of("flat_and_sum").add(Type::f32, &flat_and_sum);
}

}  // namespace

int main() {
  add_kernels();
  Array x = array_of({2, 2}, {1, -2, 3, 4});
  const Array y = array_of({2, 2}, {2, 2, 4, 4});
  expect("negate", api::negate(x), {2, 2}, {-1, 2, -3, -4});
  expect("blend with defaults", api::blend(x, y), {2, 2}, {3, -3, 8, 10});
  expect("blend", api::blend(x, y, 1.0f, 1.0, 2, 10, true, "difference", 0.5, {3.0f}, {1, 1}, Type::i64), {2, 2},
         {6.5, 11.5, 6.5, 12.5});
  expect("join", api::join({x, y}), {8}, {1, -2, 3, 4, 2, 2, 4, 4});
  const List<Array> halves = api::halves(x);
  expect("the second half", halves[1], {2}, {3, 4});
  expect("largest", api::largest(x), {1}, {4});
  expect("its index", std::get<1>(api::largest_intermediate(x)), {1}, {3});
  expect("sum", std::get<1>(api::flat_and_sum(x, {})), {1}, {6});
  expect("sum from a start", std::get<1>(api::flat_and_sum(x, array_of({1}, {10}))), {1}, {16});
  expect("filled", api::filled({3}, 2.5), {3}, {2.5, 2.5, 2.5});
  const Array zeros = api::zeros({2}, Type::i64);
  expect("zeros", zeros, {2}, {0, 0});

  const Array row = api::reshape(x, {4});  // shares the elements
  expect("the result in place", api::negate_(x), {2, 2}, {-1, 2, -3, -4});
  expect("a view of it", row, {4}, {-1, 2, -3, -4});
  expect("a view in place", api::reshape_(x, {1, 4}), {1, 4}, {-1, 2, -3, -4});
  try {
    api::negate(Array());
    ++wrong;
  } catch (const std::runtime_error& error) {
    if (error.what() != std::string("negate: x does not exist")) ++wrong;
  }
  return wrong + (zeros.type() == Type::i64 ? 0 : 1) + (tables::negate.pointwise && !tables::join.pointwise ? 0 : 1);
}
