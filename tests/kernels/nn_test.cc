// Kernels of layers and optimisers against plain references, whole and in shards.
#include <algorithm>

#include "kernels/kernel_testing.h"

namespace shard::testing::nn_test {
namespace {

using Softmax = void(const OpContext&, const DenseTensor&, int, DenseTensor&);
using CrossEntropy = void(const OpContext&, const DenseTensor&, const DenseTensor&, bool, bool, bool, int, int,
                          DenseTensor&, DenseTensor&);
using Embedding = void(const OpContext&, const DenseTensor&, const DenseTensor&, int64_t, DenseTensor&);
using LayerNorm = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, float, int,
                       DenseTensor&, DenseTensor&, DenseTensor&);
using BatchNorm = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                       const DenseTensor&, bool, float, float, const std::string&, bool, bool, DenseTensor&,
                       DenseTensor&, DenseTensor&, DenseTensor&, DenseTensor&);
using Sgd = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&, bool,
                 DenseTensor&, DenseTensor&);
using Adamw = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                   const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                   const Scalar&, const Scalar&, const Scalar&, float, float, bool, bool, bool, DenseTensor&,
                   DenseTensor&, DenseTensor&, DenseTensor&, DenseTensor&, DenseTensor&);

TEST_CASE("softmax sums to one along any axis and takes large numbers") {
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = arbitrary({2, 3, 4}, dtype);
    const std::vector<double> from = values(x);
    DenseTensor out = uninitialized({2, 3, 4}, dtype);
    call<Softmax>("softmax", dtype, x, 1, out);
    std::vector<double> expected(24);
    for (size_t i = 0; i < 24; ++i) {
      const size_t base = i / 12 * 12 + i % 4;
      expected[i] = std::exp(from[i]) / (std::exp(from[base]) + std::exp(from[base + 4]) + std::exp(from[base + 8]));
    }
    check_close(out, expected, 4);
  }
  DenseTensor out = uninitialized({2}, DType::float32);
  call<Softmax>("softmax", DType::float32, tensor({1000, 1000}, {2}), 0, out);
  CHECK(values(out) == std::vector<double>{0.5, 0.5});
  DenseTensor none = uninitialized({3, 0}, DType::float32);
  call<Softmax>("softmax", DType::float32, none, 1, none);
  call<Softmax>("softmax", DType::float32, none, 0, none);
}

TEST_CASE("a line of softmax has the same bits whether its elements are neighbours or apart") {
  using Grad = void(const OpContext&, const DenseTensor&, const DenseTensor&, int, DenseTensor&);
  constexpr int64_t kLines = 67, kSize = 1300;
  const auto turned = [](const DenseTensor& x) {
    DenseTensor out = uninitialized({x.dims()[1], x.dims()[0]}, x.dtype());
    const std::vector<double> from = values(x);
    std::vector<double> to(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      const auto width = static_cast<size_t>(x.dims()[1]), height = static_cast<size_t>(x.dims()[0]);
      to[i % width * height + i / width] = from[i];
    }
    return tensor(to, out.dims(), x.dtype());
  };
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = arbitrary({kLines, kSize}, dtype, 1), grad = arbitrary({kLines, kSize}, dtype, 2);
    for (const char* name : {"softmax", "log_softmax"}) {
      INFO(name << " " << to_string(dtype));
      DenseTensor along = uninitialized({kLines, kSize}, dtype), apart = uninitialized({kSize, kLines}, dtype);
      call<Softmax>(name, dtype, x, 1, along);
      call<Softmax>(name, dtype, turned(x), 0, apart);
      CHECK(values(turned(apart)) == values(along));
      const std::string gradient = std::string(name) + "_grad";
      DenseTensor slopes = uninitialized({kLines, kSize}, dtype), slopes_apart = uninitialized({kSize, kLines}, dtype);
      call<Grad>(gradient.c_str(), dtype, along, grad, 1, slopes);
      call<Grad>(gradient.c_str(), dtype, turned(along), turned(grad), 0, slopes_apart);
      CHECK(values(turned(slopes_apart)) == values(slopes));
    }
  }
}

TEST_CASE("log_softmax is the logarithm of softmax, also where softmax is 0") {
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = tensor({1, 2, 3, 1, 1, 1}, {2, 3}, dtype);
    DenseTensor out = uninitialized({2, 3}, dtype);
    call<Softmax>("log_softmax", dtype, x, 1, out);
    const double total = std::log(std::exp(1) + std::exp(2) + std::exp(3));
    check_close(out, {1 - total, 2 - total, 3 - total, -std::log(3.0), -std::log(3.0), -std::log(3.0)}, 4);
  }
  DenseTensor out = uninitialized({2}, DType::float32);
  call<Softmax>("log_softmax", DType::float32, tensor({1000, 0}, {2}), 0, out);
  CHECK(values(out) == std::vector<double>{0, -1000});
}

TEST_CASE("label_smooth mixes in the prior, or one over the classes of the whole label") {
  using LabelSmooth = void(const OpContext&, const DenseTensor&, const DenseTensor&, float, DenseTensor&);
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor label = tensor({1, 0, 0, 1}, {2, 2}, dtype);
    DenseTensor out = uninitialized({2, 2}, dtype);
    call<LabelSmooth>("label_smooth", dtype, label, DenseTensor(), 0.5f, out);
    CHECK(values(out) == std::vector<double>{0.75, 0.25, 0.25, 0.75});
    call<LabelSmooth>("label_smooth", dtype, label, tensor({1, 0.5}, {1, 2}, dtype), 0.5f, out);
    CHECK(values(out) == std::vector<double>{1, 0.25, 0.5, 0.75});
    const Box inputs[] = {{{2, 8}, {0, 4}}};
    const LocalCall local{inputs, {}, nullptr, {}};
    call_in<LabelSmooth>({"label_smooth", &local}, "label_smooth", dtype, label, DenseTensor(), 0.5f, out);
    CHECK(values(out) == std::vector<double>{0.5625, 0.0625, 0.0625, 0.5625});
  }
}

TEST_CASE("cross entropy takes indices, weights and labels to ignore") {
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor input = tensor({1, 2, 3, 1, 1, 1}, {2, 3}, dtype);
    DenseTensor softmax = uninitialized({2, 3}, dtype), loss = uninitialized({2, 1}, dtype);
    const double first = std::log(std::exp(1) + std::exp(2) + std::exp(3)) - 3;
    call<CrossEntropy>("cross_entropy_with_softmax", dtype, input, tensor({2, 0}, {2}, DType::int64), false, true, true,
                       -100, -1, softmax, loss);
    check_close(loss, {first, std::log(3.0)}, 10);
    call<CrossEntropy>("cross_entropy_with_softmax", dtype, input, tensor({2, 7}, {2, 1}, DType::int32), false, true,
                       true, 7, -1, softmax, loss);
    check_close(loss, {first, 0}, 10);
    call<CrossEntropy>("cross_entropy_with_softmax", dtype, input, tensor({0, 0, 1, 0.5, 0.5, 0}, {2, 3}, dtype), true,
                       true, true, -100, 1, softmax, loss);
    check_close(loss, {first, std::log(3.0)}, 10);
    check_close(softmax, {std::exp(-2 - first), std::exp(-1 - first), std::exp(-first), 1.0 / 3, 1.0 / 3, 1.0 / 3}, 4);
  }
  DenseTensor softmax = uninitialized({1, 2}, DType::float32), loss = uninitialized({1, 1}, DType::float32);
  CHECK_THROWS_WITH(call<CrossEntropy>("cross_entropy_with_softmax", DType::float32, tensor({1, 2}, {1, 2}),
                                       tensor({2}, {1}, DType::int64), false, true, true, -100, -1, softmax, loss),
                    Catch::Contains("label has the class 2 at element 0, but there are 2 classes"));
}

TEST_CASE("embedding shards of a vocabulary add up to the whole") {
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor ids = tensor({3, 0, 2, 1}, {2, 2}, DType::int64);
    const DenseTensor weight = tensor({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}, dtype);
    DenseTensor out = uninitialized({2, 2, 2}, dtype);
    call<Embedding>("embedding", dtype, ids, weight, int64_t{2}, out);
    CHECK(values(out) == std::vector<double>{7, 8, 1, 2, 0, 0, 3, 4});
    const Box inputs[] = {{{2, 2}, {0, 0}}, {{4, 2}, {2, 0}}};
    const LocalCall local{inputs, {}, nullptr, {}};
    const DenseTensor lower(weight.storage(), {{2, 2}, dtype}, 4 * size_of(dtype));
    call_in<Embedding>({"embedding", &local}, "embedding", dtype, ids, lower, int64_t{-1}, out);
    CHECK(values(out) == std::vector<double>{7, 8, 0, 0, 5, 6, 0, 0});
  }
  DenseTensor out = tensor({9}, {1, 1});
  CHECK_THROWS_WITH(call<Embedding>("embedding", DType::float32, tensor({4}, {1}, DType::int32), tensor({1, 2}, {2, 1}),
                                    int64_t{-1}, out),
                    Catch::Contains("[embedding] x is 4 at element 0, but must be from 0 to 1"));
  CHECK(values(out) == std::vector<double>{9});
}

TEST_CASE("layer_norm normalises the trailing dims") {
  for (const DType dtype : kFloatDTypes) {
    const DType statistics = dtype == DType::float64 ? dtype : DType::float32;
    const DenseTensor x = tensor({1, 3, 2, 2}, {2, 2}, dtype), scale = tensor({2, 1}, {2}, statistics);
    DenseTensor out = uninitialized({2, 2}, dtype), mean = uninitialized({2}, statistics),
                variance = uninitialized({2}, statistics);
    call<LayerNorm>("layer_norm", dtype, x, scale, DenseTensor(), 0.0f, 1, out, mean, variance);
    CHECK(values(mean) == std::vector<double>{2, 2});
    CHECK(values(variance) == std::vector<double>{1, 0});
    CHECK(values(out)[0] == -2);
    CHECK(values(out)[1] == 1);
    const DenseTensor same = tensor({1, 2}, {2}, dtype);
    call<LayerNorm>("layer_norm", dtype, x, same, same, 1.0f, 1, out, mean, variance);
    check_close(out, {1 - std::sqrt(0.5), 2 + 2 * std::sqrt(0.5), 1, 2}, 2);
  }
}

TEST_CASE("rms_norm divides by the root of the mean square of the last dim") {
  using RmsNorm = void(const OpContext&, const DenseTensor&, const DenseTensor&, float, DenseTensor&, DenseTensor&);
  for (const DType dtype : kFloatDTypes) {
    const DType statistics = dtype == DType::float64 ? dtype : DType::float32;
    DenseTensor out = uninitialized({2, 2}, dtype), invvar = uninitialized({2}, statistics);
    call<RmsNorm>("rms_norm", dtype, tensor({1, 7, 0, 0}, {2, 2}, dtype), tensor({1, 2}, {2}, dtype), 0.0f, out,
                  invvar);
    CHECK(values(invvar)[0] == Approx(0.2));
    CHECK(values(out)[0] == Approx(0.2).epsilon(0.01));
    CHECK(values(out)[1] == Approx(2.8).epsilon(0.01));
    call<RmsNorm>("rms_norm", dtype, tensor({1, 7, 0, 0}, {2, 2}, dtype), tensor({1, 2}, {2}, statistics), 0.25f, out,
                  invvar);
    check_close(invvar, {1 / std::sqrt(25.25), 2}, 2);
    CHECK(values(out)[3] == 0);
  }
}

TEST_CASE("the gradient of a linear layer is added to what is there") {
  using LinearGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                          const DenseTensor&, bool, bool, DenseTensor&, DenseTensor&);
  const DenseTensor absent;
  for (const DType dtype : kFloatDTypes) {
    const DType wide = dtype == DType::float64 ? dtype : DType::float32;
    const DenseTensor x = tensor({1, 2, 3, 4, 5, 6}, {3, 1, 2}, dtype), dout = tensor({1, 0, -1}, {3, 1, 1}, dtype);
    DenseTensor dweight = uninitialized({2, 1}, wide), dbias = uninitialized({1}, wide),
                narrow = uninitialized({2, 1}, dtype), none = uninitialized({0}, dtype);
    call<LinearGrad>("fused_linear_param_grad_add", dtype, x, dout, absent, absent, true, true, dweight, dbias);
    CHECK(values(dweight) == std::vector<double>{-4, -4});
    CHECK(values(dbias) == std::vector<double>{0});
    call<LinearGrad>("fused_linear_param_grad_add", dtype, x, dout, tensor({1, 2}, {2, 1}, wide),
                     tensor({3}, {1}, wide), true, true, dweight, dbias);
    CHECK(values(dweight) == std::vector<double>{-3, -2});
    CHECK(values(dbias) == std::vector<double>{3});
    call<LinearGrad>("fused_linear_param_grad_add", dtype, x, dout, tensor({1, 2}, {2, 1}, dtype), absent, false, false,
                     narrow, none);
    CHECK(values(narrow) == std::vector<double>{-3, -2});
    call<LinearGrad>("fused_linear_param_grad_add", dtype, tensor({}, {0, 2}, dtype), tensor({}, {0, 1}, dtype), absent,
                     absent, true, true, dweight, dbias);
    CHECK(values(dweight) == std::vector<double>{0, 0});
    CHECK(values(dbias) == std::vector<double>{0});
  }
}

/// Adds the sums of a second rank, like an all-reduce over two ranks with equal shards.
class TwiceReducer : public AxisReducer {
 public:
  void all_reduce(DenseTensor& value, ReduceType) override {
    for (int64_t i = 0; i < value.numel(); ++i) value.data<double>()[i] *= 2;
    ++calls;
  }
  Gathered all_gather(const DenseTensor& value) override { return {value}; }
  int calls = 0;
};

TEST_CASE("batch_norm learns the running statistics in their buffers") {
  for (const DType dtype : kFloatDTypes) {
    const DType statistics = dtype == DType::float64 ? dtype : DType::float32;
    const DenseTensor x = tensor({1, 3, 10, 10, 5, 7, 10, 14}, {2, 2, 2}, dtype);
    DenseTensor mean = tensor({0, 1}, {2}, statistics), variance = tensor({1, 1}, {2}, statistics);
    DenseTensor out = uninitialized(x.dims(), dtype), saved_mean = uninitialized({2}, statistics),
                saved_variance = uninitialized({2}, statistics);
    const DenseTensor absent;
    call<BatchNorm>("batch_norm", dtype, x, mean, variance, absent, absent, false, 0.5f, 0.0f, "NCHW", false, false,
                    out, mean, variance, saved_mean, saved_variance);
    check_close(saved_mean, {4, 11}, 1);
    check_close(saved_variance, {1 / std::sqrt(5.0), 1 / std::sqrt(3.0)}, 1);
    check_close(mean, {2, 6}, 1);
    check_close(variance, {3, 2}, 1);
    check_close(out,
                {-3 / std::sqrt(5.0), -1 / std::sqrt(5.0), -1 / std::sqrt(3.0), -1 / std::sqrt(3.0), 1 / std::sqrt(5.0),
                 3 / std::sqrt(5.0), -1 / std::sqrt(3.0), 3 / std::sqrt(3.0)},
                2);
    call<BatchNorm>("batch_norm", dtype, x, mean, variance, absent, absent, true, 0.5f, 1.0f, "NCHW", false, false, out,
                    mean, variance, saved_mean, saved_variance);
    check_close(mean, {2, 6}, 1);
    CHECK(values(out)[0] == Approx((1 - 2) / 2.0).epsilon(0.01));
  }
}

TEST_CASE("batch_norm combines sums over the ranks that hold other shards, also when its own is empty") {
  TwiceReducer reducer;
  const Box inputs[] = {{{4, 1}, {0, 0}}};
  const LocalCall local{inputs, {}, &reducer, {}};
  DenseTensor mean = tensor({0}, {1}), variance = tensor({1}, {1}), out = uninitialized({2, 1}, DType::float32);
  DenseTensor saved_mean = uninitialized({1}, DType::float32), saved_variance = uninitialized({1}, DType::float32);
  const DenseTensor absent;
  call_in<BatchNorm>({"batch_norm", &local}, "batch_norm", DType::float32, tensor({1, 3}, {2, 1}), mean, variance,
                     absent, absent, false, 0.0f, 0.0f, "NC", false, false, out, mean, variance, saved_mean,
                     saved_variance);
  CHECK(values(mean) == std::vector<double>{2});
  CHECK(values(variance) == std::vector<double>{1});
  CHECK(reducer.calls == 2);
  DenseTensor none = uninitialized({0, 1}, DType::float32);
  call_in<BatchNorm>({"batch_norm", &local}, "batch_norm", DType::float32, none, mean, variance, absent, absent, false,
                     0.0f, 0.0f, "NC", false, false, none, mean, variance, saved_mean, saved_variance);
  CHECK(reducer.calls == 4);
}

TEST_CASE("sgd steps against the gradient, in the master copy where there is one") {
  for (const DType dtype : kFloatDTypes) {
    DenseTensor param = tensor({1, 2}, {2}, dtype), absent;
    call<Sgd>("sgd", dtype, param, tensor({0.5}, {1}), tensor({1, -2}, {2}, dtype), absent, false, param, absent);
    CHECK(values(param) == std::vector<double>{0.5, 3});
    DenseTensor master = tensor({1, 2}, {2});
    call<Sgd>("sgd", dtype, param, tensor({0.0001}, {1}), tensor({1, 1}, {2}, dtype), master, true, param, master);
    check_close(master, {1 - 0.0001, 2 - 0.0001}, 1);
    check_close(param, values(tensor(values(master), {2}, dtype)), 0);
  }
}

TEST_CASE("adamw follows the formula for two steps, and skips when told") {
  for (const DType dtype : {DType::float32, DType::float64}) {
    DenseTensor param = tensor({1}, {1}, dtype), m1 = tensor({0}, {1}, dtype), m2 = tensor({0}, {1}, dtype), absent;
    DenseTensor p1 = tensor({0.9}, {1}, dtype), p2 = tensor({0.99}, {1}, dtype);
    const DenseTensor grad = tensor({0.5}, {1}, dtype), rate = tensor({0.1}, {1}, dtype);
    double w = 1, a = 0, b = 0;
    for (int step = 1; step <= 2; ++step) {
      call<Adamw>("adamw", dtype, param, grad, rate, m1, m2, p1, p2, absent, absent, Scalar(0.9), Scalar(0.99),
                  Scalar(1e-8), 1.0f, 0.25f, true, false, false, param, m1, m2, p1, p2, absent);
      a = 0.9 * a + 0.1 * 0.5;
      b = 0.99 * b + 0.01 * 0.25;
      w = w - 0.1 * 0.25 * w -
          0.1 / (1 - std::pow(0.9, step)) * a / (std::sqrt(b) / std::sqrt(1 - std::pow(0.99, step)) + 1e-8);
    }
    CHECK(values(param)[0] == Approx(w).epsilon(1e-5));
    CHECK(values(p1)[0] == Approx(std::pow(0.9, 3)));
    const DenseTensor skip = tensor({1}, {1}, DType::boolean);
    const std::vector<double> before = values(param);
    call<Adamw>("adamw", dtype, param, grad, rate, m1, m2, p1, p2, absent, skip, Scalar(0.9), Scalar(0.99),
                Scalar(1e-8), 1.0f, 0.25f, true, false, false, param, m1, m2, p1, p2, absent);
    CHECK(values(param) == before);
  }
}

TEST_CASE("adam is adamw without decay") {
  using Adam = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                    const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                    const Scalar&, const Scalar&, const Scalar&, bool, int64_t, bool, bool, DenseTensor&, DenseTensor&,
                    DenseTensor&, DenseTensor&, DenseTensor&, DenseTensor&);
  DenseTensor w = tensor({1}, {1}, DType::float64), m1 = tensor({0}, {1}, DType::float64), m2 = m1,
              p1 = tensor({0.9}, {1}, DType::float64), absent;
  m2 = tensor({0}, {1}, DType::float64);
  DenseTensor p2 = tensor({0.99}, {1}, DType::float64);
  call<Adam>("adam", DType::float64, w, tensor({0.5}, {1}, DType::float64), tensor({0.1}, {1}, DType::float64), m1, m2,
             p1, p2, absent, absent, Scalar(0.9), Scalar(0.99), Scalar(1e-8), false, int64_t{1000}, false, false, w, m1,
             m2, p1, p2, absent);
  CHECK(values(m1)[0] == Approx(0.05));
  CHECK(values(m2)[0] == Approx(0.0025));
  CHECK(values(w)[0] == Approx(1 - 0.1).epsilon(1e-6));  // the first step has the length of the rate
  CHECK(values(p2)[0] == Approx(0.9801));
}

}  // namespace
}  // namespace shard::testing::nn_test
