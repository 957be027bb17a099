// The shardgen column of docs/differences_from_paddle.md, row by row.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <set>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace paddle_differences_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

Tensor reals(const Values& values) { return Tensor::from_data(values, {static_cast<int64_t>(values.size())}); }
Tensor ints(const std::vector<int32_t>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
}
Values of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

template <class F>
Values slope(const Values& at, const F& function) {
  const Tensor x = reals(at).set_requires_grad(true);
  sum(function(x)).backward();
  return of(x.grad());
}

}  // namespace

TEST_CASE("differences from Paddle: gradients at ties, bounds and zeros") {
  CHECK(slope({2, 2, 1}, [](const Tensor& x) { return max(x); }) == Values{1, 1, 0});
  CHECK(slope({2, 1, 1}, [](const Tensor& x) { return min(x); }) == Values{0, 1, 1});
  CHECK(slope({2, 2, 1}, [](const Tensor& x) { return amax(x); }) == Values{0.5, 0.5, 0});
  CHECK(slope({2, 1, 1}, [](const Tensor& x) { return amin(x); }) == Values{0, 0.5, 0.5});
  CHECK(slope({1, 2}, [](const Tensor& x) { return maximum(x, reals({1, 3})); }) == Values{0, 0});
  CHECK(slope({1, 2}, [](const Tensor& y) { return maximum(reals({1, 3}), y); }) == Values{1, 0});
  CHECK(slope({1, 3}, [](const Tensor& y) { return minimum(reals({1, 2}), y); }) == Values{1, 0});
  CHECK(slope({-1, 0, 0.5, 1, 2}, [](const Tensor& x) { return clip(x, 0.0, 1.0); }) == Values{0, 0, 1, 0, 0});
  CHECK(slope({0, 2, 3}, [](const Tensor& x) { return prod(x); }) == Values{6, 0, 0});
  const Tensor rows = Tensor::from_data(std::vector<int64_t>{1, 1}, {2});
  CHECK(slope({5, 6}, [&](const Tensor& updates) { return scatter(reals({1, 2, 3}), rows, updates); }) == Values{0, 1});
}

TEST_CASE("differences from Paddle: a negative stride ends before the first element where the end is -1") {
  const Tensor x = arange(0, 6, 1);
  CHECK(of(strided_slice(x, {0}, {4}, {-1}, {-1})) == Values{4, 3, 2, 1, 0});
  CHECK(of(strided_slice(x, {0}, {4}, {-7}, {-1})) == Values{4, 3, 2, 1, 0});  // means the same in both
  CHECK(of(strided_slice(x, {0}, {1}, {-1}, {1})) == Values{1, 2, 3, 4});
}

TEST_CASE("differences from Paddle: NaN and infinities") {
  CHECK(std::isnan(of(relu(reals({kNaN})))[0]));
  CHECK(of(argmax(reals({1, kNaN, 3, kNaN}), 0)) == Values{1});
  error_of([] { argmax(zeros({0}), 0); }, ErrorCode::invalid_argument);
  CHECK(of(argmin(reals({1, kNaN, 0, kNaN}), 0)) == Values{1});
  error_of([] { argmin(zeros({0}), 0); }, ErrorCode::invalid_argument);
  const Tensor lowest = reals({-kInfinity}), both = reals({kInfinity, -kInfinity});
  for (const Tensor& limit : {gelu(lowest), gelu(lowest, true), silu(lowest), hardswish(lowest), mish(lowest, 20),
                              swish(lowest), thresholded_relu(lowest)})
    CHECK(of(limit) == Values{0});
  CHECK(of(softsign(both)) == Values{1, -1});
  CHECK(of(softshrink(both)) == Values{kInfinity, -kInfinity});
  CHECK(of(i0(both)) == Values{kInfinity, kInfinity});
  CHECK(of(i1(both)) == Values{kInfinity, -kInfinity});
  CHECK(of(logsigmoid(lowest)) == Values{-kInfinity});
  CHECK(std::isnan(of(erfinv(reals({1.5})))[0]));
  CHECK(of(hardshrink(reals({0.5, -0.5}), 0.5f)) == Values{0, 0});
  CHECK(of(isclose(reals({0}), reals({1e-16}), 0.0, 0.0)) == Values{0});
  CHECK(of(isclose(reals({1, kInfinity}), both)) == Values{0, 0});
  constexpr double kTop = std::numeric_limits<int32_t>::max(), kBottom = std::numeric_limits<int32_t>::lowest();
  CHECK(of(cast(reals({kNaN, 1e20, -1e20, kInfinity}), DType::int32)) == Values{0, kTop, kBottom, kTop});
  CHECK(of(full({1}, 3e10, DType::int32)) == Values{kTop});
  CHECK(of(full({1}, kNaN, DType::int32)) == Values{0});
  CHECK(of(pow(ints({2, 1, -1}), -1)) == Values{0, 1, -1});
}

TEST_CASE("differences from Paddle: result dtypes") {
  error_of([] { add(reals({1}), cast(reals({1}), DType::float32)); }, ErrorCode::dtype_mismatch);
  const Tensor quotient = divide(ints({7, -7, 7}), ints({2, 2, -2}));
  CHECK(quotient.dtype() == DType::int32);
  CHECK(of(quotient) == Values{3, -3, -3});
  error_of([] { divide(ints({7}), ints({0})); }, ErrorCode::invalid_argument);
  for (const DType dtype : {DType::boolean, DType::uint8, DType::int32, DType::int64}) {
    CHECK(sum(cast(ints({1, 1, 0}), dtype)).dtype() == DType::int64);
    CHECK(prod(cast(ints({1, 1, 0}), dtype)).dtype() == DType::int64);
  }
  CHECK(prod(full({2}, 3, DType::bfloat16)).dtype() == DType::bfloat16);
  CHECK(cumsum(ints({1, 2}), 0).dtype() == DType::int32);
  error_of([] { mean(ints({1, 2})); }, ErrorCode::dtype_mismatch);
  const Tensor clipped = clip(ints({0, 3, 9}), 0.5, 4.5);
  CHECK(clipped.dtype() == DType::int32);
  CHECK(of(clipped) == Values{1, 3, 4});
}

TEST_CASE("differences from Paddle: errors where it computes") {
  error_of([] { uniform({2}, DType::float32, 1.0, 0.0); }, ErrorCode::invalid_argument);
  error_of([] { gaussian({2}, 0.0f, -1.0f); }, ErrorCode::invalid_argument);
  error_of([] { scale(ints({3}), 2.7); }, ErrorCode::dtype_mismatch);
  error_of([] { increment(ints({5}), 1.5f); }, ErrorCode::dtype_mismatch);
  error_of([] { softshrink(reals({3}), -1); }, ErrorCode::invalid_argument);
  error_of([] { take_along_axis(zeros({2, 3}), zeros({1, 2}, DType::int64), 1); }, ErrorCode::shape_mismatch);
  error_of([] { pad3d(zeros({1, 1, 1, 1, 3}), {-1, 0, 0, 0, 0, 0}); }, ErrorCode::invalid_argument);
}

TEST_CASE("differences from Paddle: values put along an axis, diagonals and columns of images") {
  const Tensor index = zeros({2}, DType::int64);
  const auto put = [&](const char* reduce, bool include_self) {
    return [&index, reduce, include_self](const Tensor& values) {
      return put_along_axis(reals({2}), index, values, 0, reduce, include_self);
    };
  };
  CHECK(slope({0, 3}, put("multiply", true)) == Values{6, 0});
  CHECK(slope({2, 3}, put("amin", false)) == Values{1, 0});
  CHECK(slope({2, 2}, put("amax", false)) == Values{0.5, 0.5});
  CHECK(slope({2, 2}, [](const Tensor& x) { return maxout(x, 2, 0); }) == Values{1, 1});
  CHECK(of(fill_diagonal(zeros({2, 2, 2}), 1)) == Values{1, 0, 0, 0, 0, 0, 0, 1});
  CHECK(trace(full({2, 2}, 2147483647, DType::int32)).to_vector<int64_t>() == std::vector<int64_t>{4294967294});
  const Tensor image = ones({1, 1, 2, 1});
  CHECK(of(fold(unfold(image, {1, 1}, {1, 1}, {1, 0, 0, 0}, {1, 1}), {2, 1}, {1, 1}, {1, 1}, {1, 0, 0, 0}, {1, 1})) ==
        Values{1, 1});
}

TEST_CASE("differences from Paddle: variances of boxes in float64 are the numbers that are passed") {
  const Tensor prior = reshape(reals({0, 0, 2, 4}), {1, 4}), code = reshape(reals({1, 1, 0, 0}), {1, 1, 4});
  CHECK(of(box_coder(prior, Tensor(), code, "decode_center_size", true, 0, {0.5f, 0.25f, 1, 1})) == Values{1, 1, 3, 5});
}

TEST_CASE("reshape without elements returns the shape that is asked for, as Paddle does, and its gradient comes back") {
  for (const auto& [from, asked, to] : std::vector<std::tuple<Dims, IntArray, Dims>>{{{0}, {3, 0}, {3, 0}},
                                                                                     {{2, 0}, {0, 5, 0}, {0, 5, 0}},
                                                                                     {{2, 0}, {0, 2}, {0, 2}},
                                                                                     {{2, 0}, {0, 0}, {0, 0}},
                                                                                     {{0, 3}, {0, -1}, {0, 3}}}) {
    const Tensor x = full(IntArray(from), 1.0, DType::float64).set_requires_grad(true);
    const Tensor y = reshape(x, asked);
    CHECK(y.dims() == to);
    y.backward(full(IntArray(to), 1.0, DType::float64));
    CHECK(x.grad().dims() == from);
  }
  run_ranks(2, [](Rank&) {
    const auto* mesh = ProcessMesh::make({2});
    const Tensor x = distribute(zeros({0}), DistSpec::parse(mesh, "a"));
    check(reshape(x, {3, 0}).dims() == Dims{3, 0}, "a sharded dim without elements");
    const Tensor wide = distribute(zeros({2, 0}), DistSpec::parse(mesh, "a, -"));
    check(reshape(wide, {0, 5, 0}).dims() == Dims{0, 5, 0}, "more dims");
    check(full_tensor(reshape(wide, {0, 2})).dims() == Dims{0, 2}, "as many dims");
  });
}

TEST_CASE("differences from Paddle: layers of images and losses") {
  const Tensor image = Tensor::from_data(Values{1, kNaN, 3, 2}, {1, 1, 1, 4});
  CHECK(std::isnan(of(pool2d(image, {1, 2}, {1, 2}, {0, 0}, false, true, "NCHW", "max"))[0]));
  error_of([&] { pool2d(image, {1, 1}, {1, 4}, {0, 0}, true, true, "NCHW", "max"); }, ErrorCode::invalid_argument);
  const Tensor ones = full({1, 1, 3, 3}, 1);
  error_of([&] { conv2d(ones, full({1, 1, 2, 2}, 1), {1, 1}, {0, 0}, "SAME", {2, 2}); }, ErrorCode::invalid_argument);
  CHECK(std::isnan(of(bce_loss(reals({1.5}), reals({1})))[0]));
  CHECK(std::isnan(of(bce_loss(reals({-0.5}), reals({0})))[0]));
  const auto [y, mean, variance] = instance_norm_intermediate(full({2, 3, 4}, 1), {}, {});
  CHECK(mean.dims() == Dims{2, 3});
  CHECK(variance.dims() == Dims{2, 3});
  // Labels have gradients where they require them: here log(1) + 1 - 2 and log(1) + 1 - 1.
  CHECK(slope({1, 1}, [](const Tensor& label) { return kldiv_loss(reals({2, 1}), label, "sum"); }) == Values{-1, 0});
}

TEST_CASE("differences from Paddle: interpolation does what its name says, and ranges take numbers") {
  const Tensor x = reals({0, 4});
  const Tensor in = reshape(x, {1, 1, 1, 2});
  CHECK(nearest_interp(in, {}, {}, {}, "NCHW", 0, 1, 3).to_vector<double>() == std::vector<double>{0, 4, 4});
  CHECK(linspace(item(slice(x, {0}, {0}, {1})), 4, 3).to_vector<float>() == std::vector<float>{0, 2, 4});
  const auto [out, sum] = fused_bias_residual_layernorm(reshape(x, {1, 2}), {}, {}, {}, {}, 0, 1, 1, -1, 0, 0, 0);
  CHECK(sum.to_vector<double>() == std::vector<double>{0, 4});
}

TEST_CASE("differences from Paddle: singular matrices have no solutions and no gradients of determinants") {
  const Tensor x = full({2, 2}, 1).set_requires_grad(true);
  error_of([&] { det(x).backward(); }, ErrorCode::invalid_argument);
  error_of([&] { slogdet(x).backward(full({2}, 1)); }, ErrorCode::invalid_argument);
  error_of([] { triangular_solve(zeros({2, 2}), zeros({2, 2})); }, ErrorCode::invalid_argument);
}

TEST_CASE("differences from Paddle: sequences") {
  const Tensor path = std::get<1>(viterbi_decode(full({1, 3, 2}, 1), full({2, 2}, 1), full({1}, 2, DType::int64)));
  CHECK(path.dims() == Dims{1, 3});
  error_of([] { viterbi_decode(zeros({1, 3, 2}), zeros({2, 2}), zeros({1}, DType::int64)); }, ErrorCode::out_of_range);
  const Tensor one = full({1}, 1, DType::int64), label = zeros({1, 1}, DType::int64);
  error_of([&] { warpctc(zeros({1, 1, 2}), label, one, one); }, ErrorCode::out_of_range);
  error_of([&] { warpctc(zeros({1, 1, 2}), label, {}, {}); }, ErrorCode::undefined);
  // Of a sequence of the steps 1, 2 in both directions: 2 * 1 + 2 and 2 * 2 + 1.
  const Tensor weight = full({1, 1}, 1, DType::float64), bias = zeros({1}, DType::float64);
  const Tensor forward = assign(weight).set_requires_grad(true), back = assign(weight).set_requires_grad(true);
  const auto [out, kept, states] = rnn(reshape(reals({1, 2, 4}), {3, 1, 1}), {zeros({2, 1, 1}, DType::float64)},
                                       {forward, weight, back, weight, bias, bias, bias, bias},
                                       full({1}, 2, DType::int64), {}, 0, true, 1, 1, 1, "RNN_RELU");
  sum(out).backward();
  CHECK(of(forward.grad()) == Values{4});
  CHECK(of(back.grad()) == Values{5});
  CHECK(of(kept) == Values(6, 1));
}

TEST_CASE("differences from Paddle: factors of matrices") {
  CHECK(std::get<0>(qr(full({3, 2}, 1), "r")).dims() == Dims{3, 0});
  const Tensor wide = full({2, 3}, 1).set_requires_grad(true);
  error_of([&] { sum(std::get<1>(qr(wide))).backward(); }, ErrorCode::invalid_argument);
}

TEST_CASE("differences from Paddle: what lu and least squares leave out") {
  const Tensor x = full({3, 1}, 1);
  const auto [out, pivots, infos] = lu(x);
  CHECK(infos.dims() == Dims{});
  CHECK(std::get<0>(lu_unpack(out, pivots, true, false)).dims() == Dims{3, 0});
  CHECK(std::get<1>(lu_unpack(out, pivots, false, true)).dims() == Dims{3, 0});
  CHECK(std::get<2>(lu_unpack(out, pivots, false, true)).dims() == Dims{0, 1});
  const auto [solution, residuals, rank, values] = lstsq(reshape(x, {1, 1, 3}), full({1, 1, 2}, 1));
  CHECK(residuals.dims() == Dims{1, 0});
  CHECK(rank.to_vector<int32_t>() == std::vector<int32_t>{1});
  CHECK(values.dims() == Dims{1, 0});
}

TEST_CASE("differences from Paddle: margin_cross_entropy is sharded by a mesh, and its softmax has a gradient") {
  const Tensor logits = full({1, 2}, 0).set_requires_grad(true), label = zeros({1}, DType::int64);
  error_of([&] { margin_cross_entropy(logits, label, false, 0, 0, 2); }, ErrorCode::invalid_argument);
  const Tensor softmax = std::get<0>(margin_cross_entropy(logits, label, true, 0, 0, 1, 1, 0, 0, 1));
  softmax.backward(Tensor::from_data(std::vector<float>{1, 0}, {1, 2}));
  CHECK(of(logits.grad()) == Values{0.25, -0.25});
}

TEST_CASE("differences from Paddle: a grid of one element is at 0") {
  const Tensor one = Tensor::from_data(std::vector<double>{1, 0, 0, 0, 1, 0}, {1, 2, 3});
  CHECK(of(affine_grid(one, {1, 1, 1, 2})) == Values{-1, 0, 1, 0});
}

TEST_CASE("differences from Paddle: places of unpool are not negative") {
  const Tensor x = zeros({1, 1, 1, 1});
  error_of(
      [&] {
        unpool(x, full({1, 1, 1, 1}, -1, DType::int64), {}, {}, {}, {2, 2}, "NCHW");
      },
      ErrorCode::out_of_range);
}

TEST_CASE("differences from Paddle: roi_align needs the numbers of boxes and has the slopes of small ones") {
  const Tensor box = Tensor::from_data(Values{0.75, 0.75, 1.25, 1.25}, {1, 4});
  const Tensor x = zeros({1, 1, 2, 2}, DType::float64).set_requires_grad(true);
  sum(roi_align(x, box, full({1}, 1, DType::int32), 1, 1, 1, -1, true)).backward();
  CHECK(of(x.grad()) == Values(4, 0.25));
  error_of([] { roi_align(zeros({1, 1, 2, 2}), zeros({1, 4}), {}); }, ErrorCode::undefined);
}

TEST_CASE("differences from Paddle: counting, medians and graphs") {
  const auto [runs, index, counts] = unique_consecutive(ints({1, 1, 2}), true, true);
  CHECK(index.dtype() == DType::int64);
  CHECK(counts.dtype() == DType::int64);
  const double largest = std::numeric_limits<double>::max();
  CHECK(of(std::get<0>(nanmedian(reals({largest, largest})))) == Values{largest});
  const Tensor x = reals({1, 2}), edges = ints({0, 1});
  const auto [mean, arrived] = send_u_recv_intermediate(x, edges, edges, "MEAN");
  CHECK(arrived.dtype() == DType::int64);
  CHECK(std::get<1>(send_u_recv_intermediate(x, edges, edges)).dims() == Dims{0});
  error_of([&] { send_u_recv(x, edges, ints({0, -1})); }, ErrorCode::out_of_range);
  error_of([&] { send_u_recv(x, reshape(edges, {2, 1}), edges); }, ErrorCode::shape_mismatch);
}

TEST_CASE("differences from Paddle: what is written") {
  const Tensor value = zeros({2}).set_requires_grad(true), y = zeros({2}).set_requires_grad(true);
  sum(index_put(zeros({3}), {full({2}, 1, DType::int64)}, value)).backward();
  CHECK(of(value.grad()) == Values{0, 1});
  sum(fill_diagonal_tensor(zeros({2, 2}), y)).backward();
  CHECK(of(y.grad()) == Values{1, 1});
}

TEST_CASE("differences from Paddle: bits of another dtype have no gradient, and bool is not viewed") {
  const Tensor x = zeros({2}).set_requires_grad(true);
  error_of([&] { sum(view_dtype(x, DType::float64)).backward(); }, ErrorCode::autograd);
  error_of([] { view_dtype(zeros({2}, DType::boolean), DType::uint8); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("differences from Paddle: auc knows ROC alone") {
  const Tensor x = full({2, 1}, 0.5), label = zeros({2}, DType::int64), stat = zeros({2}, DType::int64);
  error_of([&] { auc(x, label, stat, stat, {}, "PR", 1, 0); }, ErrorCode::invalid_argument);
}

TEST_CASE("differences from Paddle: sizes and lengths of attention, and a bias of packed sequences") {
  const Tensor x = zeros({3, 1, 2}), cu = Tensor::from_data(std::vector<int32_t>{0, 1, 3}, {2 + 1});
  const auto [out, weights, sums, seed] =
      flash_attn_unpadded_intermediate(x, x, x, cu, cu, {}, {}, 2, 2, 1, 0, false, /*return_softmax=*/true);
  CHECK(weights.dims() == Dims{2, 1, 2, 2});
  CHECK(sums.dims() == Dims{2, 1, 2});
  const auto efficient = [&](const Tensor& bias, const Tensor& offsets) {
    const Tensor batch = unsqueeze(x, {0});
    return memory_efficient_attention(batch, batch, batch, bias, offsets, offsets, {}, {}, 2, 2, false, 0, -1, true);
  };
  CHECK(std::get<1>(efficient({}, {})).dims() == Dims{1, 1, 3});
  error_of([&] { efficient(zeros({3, 3}), cu); }, ErrorCode::invalid_argument);
}

TEST_CASE("differences from Paddle: top_p_sampling draws a number for each row, and ps is at most the sum") {
  const Tensor x = full({64, 50}, 0.001, DType::float64), ps = full({64}, 1, DType::float64);
  const Values ids = of(std::get<1>(top_p_sampling(x, ps, {}, 3)));
  CHECK(std::set<double>(ids.begin(), ids.end()).size() > 20);
}

}  // namespace paddle_differences_test
