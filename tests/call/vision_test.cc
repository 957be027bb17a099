// Ops of vision.yaml: what their cases do not show, which are errors, ends, and values that are not numbers.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace vision_test {

using namespace shard;
using namespace shard::test;

namespace {

Tensor reals(const std::vector<double>& values, const Dims& dims) { return Tensor::from_data(values, dims); }
std::vector<double> of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("the grid of an identity samples the image itself") {
  const Tensor x = iota<double>({1, 2, 3, 4}), identity = reals({1, 0, 0, 0, 1, 0}, {1, 2, 3});
  for (const bool align : {false, true}) {
    const Tensor grid = affine_grid(identity, {1, 2, 3, 4}, align);
    CHECK(grid.dims() == Dims{1, 3, 4, 2});
    CHECK(of(grid_sample(x, grid, "nearest", "zeros", align)) == of(x));
  }
}

TEST_CASE("affine_grid refuses shapes that do not fit and takes empty ones") {
  const Tensor x = zeros({2, 2, 3});
  check_refused([&] { affine_grid(x, {2, 1, 3}); }, ErrorCode::invalid_argument, "output_shape has 3 sizes");
  check_refused([&] { affine_grid(x, {2, 1, -3, 1}); }, ErrorCode::invalid_argument, "output_shape has -3");
  check_refused([&] { affine_grid(x, {3, 1, 4, 4}); }, ErrorCode::shape_mismatch, "must be [3, 2, 3]");
  check_refused([&] { affine_grid(x, {2, 1, 4, 4, 4}); }, ErrorCode::shape_mismatch, "must be [2, 3, 4]");
  check_refused([] { affine_grid(zeros({1, 2, 3}, DType::int32), {1, 1, 1, 1}); }, ErrorCode::dtype_mismatch, "float");
  CHECK(affine_grid(zeros({0, 2, 3}), {0, 1, 3, 4}).dims() == Dims{0, 3, 4, 2});
}

TEST_CASE("grid_sample refuses arguments that do not fit and takes empty ones") {
  const Tensor x = zeros({2, 1, 3, 4}), grid = zeros({2, 5, 6, 2});
  check_refused([&] { grid_sample(x, grid, "cubic"); }, ErrorCode::invalid_argument, "mode is 'cubic'");
  check_refused([&] { grid_sample(x, grid, "nearest", "wrap"); }, ErrorCode::invalid_argument,
                "padding_mode is 'wrap'");
  check_refused([&] { grid_sample(zeros({2, 3, 4}), grid); }, ErrorCode::shape_mismatch, "x is");
  check_refused([&] { grid_sample(x, zeros({3, 5, 6, 2})); }, ErrorCode::shape_mismatch, "grid is");
  check_refused([&] { grid_sample(x, zeros({2, 5, 6, 3})); }, ErrorCode::shape_mismatch, "2 last");
  check_refused([&] { grid_sample(x, cast(grid, DType::float64)); }, ErrorCode::dtype_mismatch, "grid");
  check_refused([&] { grid_sample(zeros({2, 1, 0, 4}), grid); }, ErrorCode::shape_mismatch, "no elements");
  CHECK(grid_sample(zeros({2, 0, 3, 4}), grid).dims() == Dims{2, 0, 5, 6});
  CHECK(grid_sample(x, zeros({2, 0, 6, 2})).dims() == Dims{2, 1, 0, 6});
}

TEST_CASE("grid_sample reads nothing outside of the image wherever places are") {
  const Tensor x = reals({1, 2, 3, 4}, {1, 1, 1, 4});
  const Tensor grid = reals({1e300, 0, kInfinity, 0, -kInfinity, 0, kNaN, 0, -1e300, 0}, {1, 1, 5, 2});
  for (const char* mode : {"bilinear", "nearest"}) {
    CHECK(of(grid_sample(x, grid, mode, "zeros")) == std::vector<double>{0, 0, 0, 0, 0});
    CHECK(of(grid_sample(x, grid, mode, "border")) == std::vector<double>{4, 4, 1, 1, 1});
    const std::vector<double> reflected = of(grid_sample(x, grid, mode, "reflection"));
    CHECK(reflected[3] == 1);
    const auto [x_grad, grid_grad] =
        grid_sample_grad(x, grid, full({1, 1, 1, 5}, 1, DType::float64), mode, "zeros", true);
    CHECK(of(x_grad) == std::vector<double>(4, 0));
    CHECK(of(grid_grad) == std::vector<double>(10, 0));
  }
}

TEST_CASE("the gradient of a place at the last element is 0 unless zeros follow, and NaN is at the first element") {
  const Tensor x = reals({10, 20, 40}, {1, 1, 1, 3}), grid = reals({-1, 0, 0, 0, 1, 0, kNaN, 0}, {1, 1, 4, 2});
  const Tensor ones_of = full({1, 1, 1, 4}, 1, DType::float64);
  const auto check = [&](const char* padding, const std::vector<double>& slopes, const std::vector<double>& x_slopes) {
    INFO(padding);
    const auto [x_grad, grid_grad] = grid_sample_grad(x, grid, ones_of, "bilinear", padding, true);
    const Tensor image = x.detach().set_requires_grad(true), places = grid.detach().set_requires_grad(true);
    const std::vector<Tensor> recorded = grad({grid_sample(image, places, "bilinear", padding, true)}, {image, places},
                                              {ones_of}, {.create_graph = true});
    for (const Tensor& each : {x_grad, recorded[0].detach()}) CHECK(of(each) == x_slopes);
    for (const Tensor& each : {grid_grad, recorded[1].detach()}) {
      const std::vector<double> all = of(each);
      CHECK(std::vector<double>{all[0], all[2], all[4], all[6]} == slopes);
    }
  };
  check("border", {10, 20, 0, 0}, {2, 1, 1});
  check("reflection", {10, 20, 0, 0}, {2, 1, 1});
  check("zeros", {10, 20, -40, 0}, {1, 1, 1});
}

TEST_CASE("roi_pool has the first NaN wherever it is") {
  for (const std::vector<double>& values : {std::vector<double>{kNaN, 1}, std::vector<double>{1, kNaN}}) {
    const auto [out, at] = roi_pool_intermediate(reals(values, {1, 1, 1, 2}), reals({0, 0, 1, 0}, {1, 4}),
                                                 full({1}, 1, DType::int32), 1, 1, 1);
    CHECK(std::isnan(of(out)[0]));
    CHECK(at.to_vector<int64_t>() == std::vector<int64_t>{std::isnan(values[0]) ? 0 : 1});
  }
}

TEST_CASE("bilinear weights never touch elements outside of the image") {
  const Tensor x = reals({kNaN, 7, 8}, {1, 1, 1, 3}), grid = reals({0.5, 0}, {1, 1, 1, 2});
  CHECK(of(grid_sample(x, grid)) == std::vector<double>{7.5});
}

TEST_CASE("the nearest of two elements is the one with the even index") {
  const Tensor x = iota<double>({1, 1, 1, 5}), grid = reals({-0.75, 0, -0.25, 0, 0.25, 0, 0.75, 0}, {1, 1, 4, 2});
  CHECK(of(grid_sample(x, grid, "nearest")) == std::vector<double>{0, 2, 2, 4});
}

TEST_CASE("unpool undoes max pooling and has the default size of its windows") {
  const Tensor x = reals({1, 5, 2, 6, 9, 3, 4, 7}, {1, 1, 2, 4});
  const auto [top, places] = max_pool2d_with_index(x, {2, 2}, {2, 2});
  const std::vector<double> expected = {0, 0, 0, 0, 9, 0, 0, 7};
  CHECK(of(unpool(top, places, {2, 2}, {2, 2}, {0, 0}, {}, "NCHW")) == expected);
  CHECK(of(unpool(top, places, {}, {}, {}, {2, 4}, "NCHW")) == expected);
  CHECK(unpool(cast(top, DType::int32), places, {}, {}, {}, {3, 5}, "NCHW").dims() == Dims{1, 1, 3, 5});
}

TEST_CASE("of several elements of unpool at one place the last is there and all get its gradient") {
  const Tensor x = reals({1, 2, 3}, {1, 1, 1, 3}).set_requires_grad(true),
               places = Tensor::from_data(std::vector<int64_t>{1, 1, 0}, {1, 1, 1, 3});
  const Tensor out = unpool(x, places, {}, {}, {}, {2, 2}, "NCHW");
  CHECK(of(out) == std::vector<double>{3, 2, 0, 0});
  out.backward(reals({5, 6, 7, 8}, {1, 1, 2, 2}));
  CHECK(of(x.grad()) == std::vector<double>{6, 6, 5});
}

TEST_CASE("unpool refuses arguments that do not fit and takes empty ones") {
  const Tensor x = zeros({1, 1, 2, 2}), places = full({1, 1, 2, 2}, 9, DType::int32);
  const auto refused = [&](const Tensor& indices, const IntArray& size, ErrorCode code, const char* text) {
    check_refused([&] { unpool(x, indices, {2, 2}, {2, 2}, {0}, size, "NCHW"); }, code, text);
  };
  refused(places, {3, 3}, ErrorCode::out_of_range, "indices is 9 at element [0, 0, 0, 0]");
  refused(x, {3, 3}, ErrorCode::dtype_mismatch, "indices");
  refused(zeros({1, 1, 2, 3}, DType::int32), {3, 3}, ErrorCode::shape_mismatch, "one shape");
  refused(places, {3}, ErrorCode::invalid_argument, "output_size has 1");
  refused(places, {}, ErrorCode::invalid_argument, "padding is [0]");
  check_refused([&] { unpool(x, places, {}, {}, {}, {4, 4}, "NHWC"); }, ErrorCode::invalid_argument, "NHWC");
  const Tensor none = unpool(zeros({0, 1, 2, 2}), zeros({0, 1, 2, 2}, DType::int32), {}, {}, {}, {4, 4}, "NCHW");
  CHECK(none.dims() == Dims{0, 1, 4, 4});
}

TEST_CASE("roi_align of a box of whole elements is their mean") {
  const Tensor x = iota<double>({1, 1, 4, 4}), box = reals({0, 0, 4, 2}, {1, 4}), one = full({1}, 1, DType::int32);
  CHECK(of(roi_align(x, box, one, 1, 2, 1, -1, true)) == std::vector<double>{2.5, 4.5});
  // Two places in each dim of an element more than one element outside are 0.
  CHECK(of(roi_align(x, reals({50, 50, 60, 60}, {1, 4}), one, 1, 1, 1, 2)) == std::vector<double>{0});
}

TEST_CASE("roi_align of a very long box visits only the image") {
  const Tensor x = full({1, 1, 4, 4}, 1, DType::float64), box = reals({-1e14, 0, 1e14, 4}, {1, 4});
  const double mean = of(roi_align(x, box, full({1}, 1, DType::int64), 1, 1, 1, -1, true))[0];
  CHECK(mean > 0);
  CHECK(mean < 1e-12);
}

TEST_CASE("roi_align refuses arguments that do not fit and takes none") {
  const Tensor x = zeros({2, 1, 3, 3}), boxes = zeros({3, 4});
  const auto numbers = [](const std::vector<int64_t>& values) {
    return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
  };
  const auto refused = [&](const Tensor& of_boxes, const Tensor& count, ErrorCode code, const char* text) {
    check_refused([&] { roi_align(x, of_boxes, count); }, code, text);
  };
  refused(boxes, numbers({1, 1}), ErrorCode::out_of_range, "adds up to 2");
  refused(boxes, numbers({2, 2}), ErrorCode::out_of_range, "boxes_num is 2 for image 1");
  refused(boxes, numbers({4, -1}), ErrorCode::out_of_range, "boxes_num is 4 for image 0");
  refused(boxes, numbers({3}), ErrorCode::shape_mismatch, "boxes_num is");
  refused(zeros({3, 5}), numbers({1, 2}), ErrorCode::shape_mismatch, "boxes is");
  refused(zeros({3, 4}, DType::float64), numbers({1, 2}), ErrorCode::dtype_mismatch, "boxes");
  refused(full({3, 4}, kNaN), numbers({1, 2}), ErrorCode::invalid_argument, "must be finite");
  refused(full({3, 4}, kInfinity), numbers({1, 2}), ErrorCode::invalid_argument, "must be finite");
  check_refused([&] { roi_align(x, boxes, numbers({1, 2}), 0); }, ErrorCode::invalid_argument, "pooled_height is 0");
  check_refused([&] { roi_align(x, boxes, numbers({1, 2}), 1, 1, 0); }, ErrorCode::invalid_argument, "spatial_scale 0");
  check_refused(
      [&] {
        roi_align(x, full({3, 4}, 1e10), numbers({1, 2}), 1, 1, 1e30f);
      },
      ErrorCode::invalid_argument, "with spatial_scale");
  CHECK(roi_align(x, zeros({0, 4}), numbers({0, 0}), 2, 3).dims() == Dims{0, 1, 2, 3});
}

TEST_CASE("nms keeps boxes that overlap no better one") {
  const Tensor boxes = reals({0, 0, 10, 10, 1, 1, 10, 10, 20, 20, 30, 30, 0, 0, 10, 9, 5, 5, 5, 5}, {5, 4});
  CHECK(nms(boxes, 0.5f).to_vector<int64_t>() == std::vector<int64_t>{0, 2, 4});
  CHECK(nms(boxes, 0.85f).to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 4});
  CHECK(nms(boxes).to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(nms(zeros({0, 4})).dims() == Dims{0});
  check_refused([] { nms(zeros({4})); }, ErrorCode::shape_mismatch, "must be [r, 4]");
  check_refused([] { nms(zeros({1, 4}, DType::int64)); }, ErrorCode::dtype_mismatch, "x");
}

TEST_CASE("roi_pool takes the largest elements of parts and adds gradients up at them") {
  const Tensor x = iota<double>({2, 1, 3, 3}).set_requires_grad(true), numbers = full({2}, 1, DType::int32);
  const Tensor boxes = reals({0, 0, 1, 1, 1, 1, 9, 9}, {2, 4});
  const Tensor out = roi_pool(x, boxes, numbers, 1, 2);
  CHECK(of(out) == std::vector<double>{3, 4, 17, 0});
  out.backward(reals({5, 6, 7, 8}, {2, 1, 1, 2}));
  CHECK(of(x.grad()) == std::vector<double>{0, 0, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7});
  check_refused(
      [&] {
        roi_pool(x, full({2, 4}, kNaN, DType::float64), numbers);
      },
      ErrorCode::invalid_argument, "must be finite");
  CHECK(roi_pool(x, zeros({0, 4}, DType::float64), zeros({2}, DType::int32), 2, 3).dims() == Dims{0, 1, 2, 3});
}

TEST_CASE("box_coder encodes each box against each prior box, and decodes what it encoded") {
  const Tensor prior = reals({0, 0, 2, 4, 1, 1, 5, 3}, {2, 4}),
               boxes = reals({1, 0, 3, 8, 0, 2, 4, 4, 2, 2, 3, 3}, {3, 4});
  const Tensor variances = reals({1, 2, 0.5, 4, 0.25, 1, 2, 1}, {2, 4});
  const Tensor code = box_coder(prior, Tensor(), boxes);
  CHECK(code.dims() == Dims{3, 2, 4});
  const double log2 = std::log(2.0);
  const std::vector<double> first = of(slice(code, {0, 1}, {0, 0}, {1, 1}, {}, {}));
  CHECK(first == std::vector<double>{0.5, 0.5, 0, log2});
  CHECK(of(slice(box_coder(prior, variances, boxes), {0, 1}, {0, 0}, {1, 1}, {}, {})) ==
        std::vector<double>{0.5, 0.25, 0, log2 / 4});
  const Tensor repeated = expand(unsqueeze(boxes, {1}), {3, 2, 4});
  for (const Tensor& variance : {Tensor(), variances}) {
    const Tensor again = box_coder(prior, variance, box_coder(prior, variance, boxes), "decode_center_size");
    CHECK(allclose(again, repeated).to_vector<bool>() == std::vector<bool>{true});
    const Tensor by_row = box_coder(prior, variance, transpose(code, {1, 0, 2}), "decode_center_size", true, 1);
    CHECK(of(by_row) == of(transpose(box_coder(prior, variance, code, "decode_center_size"), {1, 0, 2})));
  }
}

TEST_CASE("box_coder counts the last element of boxes that are not normalized") {
  const Tensor prior = reals({0, 0, 1, 3}, {1, 4}), code = reals({0.5, 0, 0, 0}, {1, 1, 4});
  CHECK(of(box_coder(prior, Tensor(), prior, "encode_center_size", false)) == std::vector<double>{-0.25, -0.125, 0, 0});
  CHECK(of(box_coder(prior, Tensor(), code, "decode_center_size", false)) == std::vector<double>{1, 0, 2, 3});
}

TEST_CASE("box_coder refuses arguments that do not fit and takes empty ones") {
  const Tensor prior = zeros({2, 4}), boxes = zeros({3, 4}), code = zeros({3, 2, 4}), none;
  const char *const encode = "encode_center_size", *const decode = "decode_center_size";
  const auto refused = [&](const Tensor& variances, const Tensor& target, const char* type, int axis,
                           const std::vector<float>& numbers, ErrorCode code, const char* text) {
    check_refused([&] { box_coder(prior, variances, target, type, true, axis, numbers); }, code, text);
  };
  refused(none, boxes, "encode", 0, {}, ErrorCode::invalid_argument, "code_type is 'encode'");
  refused(none, code, encode, 0, {}, ErrorCode::shape_mismatch, "target_box is");
  refused(none, boxes, decode, 0, {}, ErrorCode::shape_mismatch, "must be [n, m, 4]");
  refused(none, code, decode, 1, {}, ErrorCode::shape_mismatch, "along dim 0");
  refused(none, code, decode, 2, {}, ErrorCode::invalid_argument, "axis is 2");
  refused(none, zeros({3, 2, 5}), decode, 0, {}, ErrorCode::shape_mismatch, "target_box is");
  refused(none, boxes, encode, 0, {1, 2}, ErrorCode::invalid_argument, "variance has 2 numbers");
  refused(prior, boxes, encode, 0, {1, 1, 1, 1}, ErrorCode::invalid_argument, "pass one");
  refused(boxes, boxes, encode, 0, {}, ErrorCode::shape_mismatch, "prior_box_var is");
  refused(cast(prior, DType::float64), boxes, encode, 0, {}, ErrorCode::dtype_mismatch, "prior_box_var");
  refused(none, cast(boxes, DType::float64), encode, 0, {}, ErrorCode::dtype_mismatch, "target_box");
  check_refused([&] { box_coder(zeros({4}), none, boxes); }, ErrorCode::shape_mismatch, "prior_box is");
  check_refused([&] { box_coder(zeros({2, 4}, DType::int32), none, boxes); }, ErrorCode::dtype_mismatch, "prior_box");
  CHECK(box_coder(zeros({0, 4}), none, boxes).dims() == Dims{3, 0, 4});
  CHECK(box_coder(prior, none, zeros({0, 4})).dims() == Dims{0, 2, 4});
  CHECK(box_coder(prior, none, zeros({0, 2, 4}), decode).dims() == Dims{0, 2, 4});
}

TEST_CASE("backward through box_coder is an error that names it") {
  const Tensor boxes = reals({0, 0, 1, 1}, {1, 4}).set_requires_grad(true);
  check_refused([&] { sum(box_coder(boxes, Tensor(), boxes)).backward(); }, ErrorCode::autograd, "[box_coder]");
}

}  // namespace vision_test
