// Ops whose kernels combine parts of lines that are sharded: what they send, that infinities and NaN are where one rank
// has them, and that empty shards take part.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace combined_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const ProcessMesh* mesh_of(int ranks) { return ProcessMesh::make({ranks}, {}, {"a"}); }
const DistSpec* columns(const ProcessMesh* mesh) { return DistSpec::parse(mesh, "-, a"); }

/// The bytes that this rank sends in `call`.
int64_t bytes_sent(Rank& rank, const std::function<void()>& call) {
  const int64_t before = rank.stats().bytes_sent;
  call();
  return rank.stats().bytes_sent - before;
}

/// What a difference of at most 1e-6 is relative to: the larger of the two numbers, or the largest of the expected ones. layer_norm adds
/// up float in blocks and subtracts the mean, so that its error is one of the row and not of each element.
enum class ErrorUnit { of_element, of_largest };

/// True where both are NaN, or they differ by at most 1e-6.
bool alike(const std::vector<float>& a, const std::vector<float>& expected, ErrorUnit unit_of_error) {
  float largest = 0;
  for (const float value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(expected[i])) continue;
    if (a[i] == expected[i]) continue;
    const float unit =
        unit_of_error == ErrorUnit::of_largest ? largest : std::max(std::abs(a[i]), std::abs(expected[i]));
    if (!(std::abs(a[i] - expected[i]) <= 1e-6f * unit)) return false;
  }
  return a.size() == expected.size();
}

/// Calls `call` with x as it is and with the columns of x sharded over 2 and 3 ranks, and compares the results.
void compare(const std::string& what, const Dims& dims, const std::vector<float>& values,
             const std::function<Tensor(const Tensor&)>& call, ErrorUnit unit_of_error = ErrorUnit::of_element) {
  const std::vector<float> expected = cast(call(Tensor::from_data(values, dims)), DType::float32).to_vector<float>();
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Rank&) {
      const ProcessMesh* mesh = mesh_of(ranks);
      const Tensor x = distribute(Tensor::from_data(values, dims), columns(mesh));
      const Tensor result = cast(call(x), DType::float32);
      check(alike(full_tensor(result).to_vector<float>(), expected, unit_of_error),
            what + " on " + std::to_string(ranks) + " ranks");
    });
  }
}

}  // namespace

TEST_CASE("a sharded line is combined by what is sent for it and not gathered") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = mesh_of(2);
    const int64_t lines = 16, width = 1000;
    const Tensor x = distribute(iota<float>({lines, width}), columns(mesh));
    const Tensor label = distribute(zeros({lines, 1}, DType::int64), DistSpec::replicated(mesh, 2));
    const auto sends = [&](const char* op, int64_t bytes_of_line, const std::function<Tensor()>& call) {
      // An all-reduce between two ranks sends as many bytes as it reduces.
      const int64_t sent = bytes_sent(rank, [&] { call(); });
      check(sent == lines * bytes_of_line, std::string(op) + " sent " + std::to_string(sent));
    };
    sends("softmax", 16, [&] { return softmax(x, -1); });
    sends("log_softmax", 16, [&] { return log_softmax(x, -1); });
    sends("cross_entropy_with_softmax", 24, [&] { return std::get<1>(cross_entropy_with_softmax(x, label)); });
    sends("margin_cross_entropy", 24, [&] { return std::get<1>(margin_cross_entropy(x, label)); });
    const Tensor scale = ones({width}, DistSpec::parse(mesh, "a"));
    sends("rms_norm", 8, [&] { return std::get<0>(rms_norm(x, scale)); });
    sends("layer_norm", 16, [&] { return layer_norm(x, {}, {}, 1e-5f, 1); });
    sends("argmax", 16, [&] { return argmax(x, 1, false, false); });
    // Of parts that are gathered, a rank sends its own to the other.
    sends("cumsum", 8, [&] { return cumsum(x, 1); });
    sends("cumsum of integers", 4, [&] { return cumsum(cast(x, DType::int32), 1); });
    sends("logcumsumexp", 8, [&] { return logcumsumexp(x, 1); });
    sends("cumprod", 56, [&] { return cumprod(x, 1); });
    sends("cumprod of integers", 4, [&] { return cumprod(cast(x, DType::int32), 1); });
    sends("cummax", 16, [&] { return std::get<0>(cummax(x, 1)); });
    sends("topk", 3 * 16, [&] { return std::get<0>(topk(x, 3, 1)); });
    sends("softmax along a whole dim", 0, [&] { return softmax(x, 0); });
  });
}

TEST_CASE("softmax of sharded lines has infinities and NaN where one rank has them") {
  const Dims dims{6, 6};
  const std::vector<float> values = {-kInf,  -kInf, -kInf, 1,     2,     3,      // one shard is all -inf
                                     -kInf,  -kInf, -kInf, -kInf, -kInf, -kInf,  // all are
                                     -kInf,  kNaN,  -kInf, 1,     2,     3,      // NaN among -inf, beside numbers
                                     kNaN,   1,     2,     3,     4,     5,      //
                                     kInf,   1,     2,     3,     4,     5,      //
                                     -1e30f, 0,     1,     88,    -88,   1e30f};
  compare("softmax", dims, values, [](const Tensor& x) { return softmax(x, -1); });
  compare("log_softmax", dims, values, [](const Tensor& x) { return log_softmax(x, -1); });
  compare("losses", dims, values, [](const Tensor& x) {
    const Tensor label = zeros({6, 1}, DType::int64);
    return std::get<1>(cross_entropy_with_softmax(
        x, x.is_dist() ? distribute(label, DistSpec::replicated(spec_of(x)->mesh(), 2)) : label));
  });
}

TEST_CASE("the winner among shards is the first index of the best number and NaN wins") {
  const Dims dims{5, 5};
  const std::vector<float> values = {3,     1,     3,     3,     2,      //
                                     0,     1,     kNaN,  5,     kNaN,   //
                                     -0.0f, 0,     -0.0f, 0,     -1,     //
                                     -kInf, -kInf, -kInf, -kInf, -kInf,  //
                                     kInf,  1,     kInf,  -kInf, -kInf};
  // Lines of five float64 are combined, and of five float32 would be gathered, which costs less.
  const auto wide = [](const Tensor& x) { return cast(x, DType::float64); };
  for (const bool flatten : {false, true}) {
    compare("argmax", dims, values, [=](const Tensor& x) { return argmax(wide(x), 1, false, flatten); });
    compare("argmin", dims, values, [=](const Tensor& x) { return argmin(wide(x), 1, false, flatten); });
  }
}

TEST_CASE("lines shorter than the mesh are combined with shards that are empty") {
  const std::vector<float> values = {1, 2, -1, 4, 4, 0, 3, 4, 1, 2};
  for (const Dims& dims : {Dims{10, 1}, Dims{5, 2}}) {
    compare("softmax", dims, values, [](const Tensor& x) { return softmax(x, -1); });
    compare(
        "layer_norm", dims, values, [](const Tensor& x) { return layer_norm(x, {}, {}, 1e-5f, 1); },
        ErrorUnit::of_largest);
    compare("argmax", dims, values, [](const Tensor& x) { return argmax(x, 0, false, true); });
  }
}

TEST_CASE("scales and gradients of sharded rows are those of one rank") {
  const Dims dims{3, 8};
  std::vector<float> values;
  for (int i = 0; i < 24; ++i) values.push_back(std::sin(static_cast<float>(i)));
  const auto like = [](const Tensor& x, const Tensor& plain) {
    return x.is_dist() ? distribute(plain, DistSpec::replicated(spec_of(x)->mesh(), 1)) : plain;
  };
  for (const bool to_scale : {false, true}) {
    compare(
        "gradients of layer_norm", dims, values,
        [&](const Tensor& given) {
          Tensor x = assign(given), scale = like(given, iota<float>({8}, 1)), bias = like(given, iota<float>({8}));
          for (Tensor* leaf : {&x, &scale, &bias}) *leaf = leaf->detach().set_requires_grad(true);
          const Tensor out = layer_norm(x, scale, bias, 1e-5f, 1);
          const std::vector<Tensor> grads = grad({sum(multiply(out, out), {})}, {x, scale, bias});
          return to_scale ? add(grads[1], grads[2]) : grads[0];
        },
        ErrorUnit::of_largest);
  }
}

TEST_CASE("lines that two mesh axes share are combined over both in either order") {
  std::vector<float> values, weights;
  for (int i = 0; i < 5 * 7; ++i) {
    values.push_back(std::sin(static_cast<float>(3 * i)));
    weights.push_back(std::cos(static_cast<float>(i)) + 1);
  }
  const Dims dims{5, 7};
  struct Call {
    ErrorUnit unit_of_error;
    std::function<Tensor(const Tensor&, const Tensor&)> function;
  };
  const std::vector<Call> calls = {
      {ErrorUnit::of_element, [](const Tensor& x, const Tensor&) { return softmax(x, -1); }},
      {ErrorUnit::of_element, [](const Tensor& x, const Tensor&) { return log_softmax(x, 0); }},
      {ErrorUnit::of_largest, [](const Tensor& x, const Tensor&) { return layer_norm(x, {}, {}, 1e-5f, 1); }},
      {ErrorUnit::of_largest, [](const Tensor& x, const Tensor&) { return layer_norm(x, {}, {}, 1e-5f, 0); }},
      {ErrorUnit::of_element, [](const Tensor& x, const Tensor&) { return argmin(x, 0, false, true); }},
      {ErrorUnit::of_element,
       [](const Tensor& x, const Tensor& w) { return std::get<1>(cross_entropy_with_softmax(x, w, true)); }},
      {ErrorUnit::of_element, [](const Tensor& x, const Tensor& w) { return softmax_grad(softmax(x, -1), w, -1); }}};
  const auto plain = [&](const std::vector<float>& of) { return Tensor::from_data(of, dims); };
  for (size_t k = 0; k < calls.size(); ++k) {
    const std::vector<float> expected =
        cast(calls[k].function(plain(values), plain(weights)), DType::float32).to_vector<float>();
    run_ranks(6, [&](Rank&) {
      const ProcessMesh* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
      for (const char* layout : {"-, a+b", "-, b+a", "a, b", "b+a, -"}) {
        const DistSpec* spec = DistSpec::parse(mesh, layout);
        const Tensor got = calls[k].function(distribute(plain(values), spec), distribute(plain(weights), spec));
        check(alike(full_tensor(cast(got, DType::float32)).to_vector<float>(), expected, calls[k].unit_of_error),
              "call " + std::to_string(k) + " of " + layout);
      }
    });
  }
}

TEST_CASE("a policy that forbids communication names what the kernel of a sharded line would send") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = mesh_of(2);
    const Tensor x = distribute(iota<float>({4, 6}), columns(mesh));
    const Tensor whole = distribute(iota<float>({4, 6}), DistSpec::parse(mesh, "a, -"));
    const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
    const std::string text = error_of([&] { softmax(x, -1); }, ErrorCode::policy);
    check_contains(text, "the kernel combines values over a");
    softmax(whole, -1);  // needs nothing
  });
}

}  // namespace combined_test
