// The ops of indexing.yaml on one rank. Values were computed with NumPy, in which flip, roll, pad, diagonal, repeat,
// take_along_axis, add.at and tril_indices are functions of these names.
#include <functional>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::testing::indexing_test {
namespace {

using Values = std::vector<double>;

Tensor of(const Values& numbers, const Dims& dims, DType dtype = DType::float32) {
  return Tensor(tensor(numbers, dims, dtype));
}
Tensor indices(const Values& numbers, const Dims& dims) { return of(numbers, dims, DType::int64); }
/// The numbers from `start` on.
Tensor counted(const Dims& dims, double start = 0, DType dtype = DType::float32) {
  Values numbers;
  for (int64_t i = 0; i < dims.numel(); ++i) numbers.push_back(start + static_cast<double>(i));
  return of(numbers, dims, dtype);
}
void check(const Tensor& x, const Dims& dims, const Values& expected, double ulps = 0) {
  CHECK(to_string(x.dims()) == to_string(dims));
  check_close(x.impl()->value, expected, ulps);
}
void check_error(ErrorCode code, const char* text, const std::function<void()>& call) {
  try {
    call();
    FAIL_CHECK("accepted: " << text);
  } catch (const Error& error) {
    CHECK(std::string(to_string(error.code())) == to_string(code));
    CHECK_THAT(error.what(), Catch::Contains(text));
  }
}
Tensor gradient(const Tensor& x, const std::function<Tensor(const Tensor&)>& function) {
  const Tensor leaf = x.detach().set_requires_grad(true);
  sum(multiply(function(leaf), counted(function(x).dims(), 1, x.dtype()))).backward();
  return leaf.grad();
}

TEST_CASE("flip and reverse turn the order of elements around") {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    check(flip(counted({2, 3, 4}, 0, dtype), {0, -1}), {2, 3, 4},
          {15, 14, 13, 12, 19, 18, 17, 16, 23, 22, 21, 20, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8});
  }
  check(reverse(counted({2, 2}), {1}), {2, 2}, {1, 0, 3, 2});
  check(flip(counted({2, 2}), {}), {2, 2}, {0, 1, 2, 3});
  check(flip(counted({}), {}), {}, {0});
  check(flip(counted({2, 0}), {0, 1}), {2, 0}, {});
  check(gradient(counted({3}), [](const Tensor& x) { return flip(x, {0}); }), {3}, {3, 2, 1});
  check_error(ErrorCode::invalid_argument, "[flip] axis [0, -2] names a dim twice", [] {
    flip(counted({2, 2}), {0, -2});
  });
  check_error(ErrorCode::out_of_range, "[flip] an axis is 2", [] { flip(counted({2, 2}), {2}); });
  check_error(ErrorCode::shape_mismatch, "[flip] x is f32[]", [] { flip(counted({}), {0}); });
}

TEST_CASE("roll moves elements and brings those beyond the end to the beginning") {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    check(roll(counted({2, 3, 4}, 0, dtype), {1, -2}, {1, 2}), {2, 3, 4},
          {10, 11, 8, 9, 2, 3, 0, 1, 6, 7, 4, 5, 22, 23, 20, 21, 14, 15, 12, 13, 18, 19, 16, 17});
  }
  check(roll(counted({2, 3}, 1), {2}), {2, 3}, {5, 6, 1, 2, 3, 4});
  check(roll(counted({2, 3}), {-1}, {0}), {2, 3}, {3, 4, 5, 0, 1, 2});
  check(roll(counted({4}), {2, 9}, {0, -1}), {4}, {1, 2, 3, 0});  // 11 in all
  check(roll(counted({4}), {INT64_MIN, INT64_MAX}, {0, 0}), {4}, {1, 2, 3, 0});
  check(roll(counted({}), {5}), {}, {0});
  check(roll(counted({0, 3}), {1}, {1}), {0, 3}, {});
  check(gradient(counted({3}), [](const Tensor& x) { return roll(x, {1}, {0}); }), {3}, {2, 3, 1});
  check_error(ErrorCode::invalid_argument, "shifts is [1, 2] and axis is [0]", [] {
    roll(counted({2, 2}), {1, 2}, {0});
  });
  check_error(ErrorCode::invalid_argument, "shifts is []", [] { roll(counted({2, 2})); });
  check_error(ErrorCode::out_of_range, "[roll]", [] { roll(counted({2, 2}), {1}, {2}); });
}

TEST_CASE("pad and pad3d put elements around a tensor") {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    check(pad(counted({2, 3}, 1, dtype), {1, 0, 2, 1}, 9), {3, 6},
          {9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 3, 9, 9, 9, 4, 5, 6, 9});
  }
  check(pad(counted({2, 1, 2}), {0, 0, 1, 0, 0, 0}, 7), {2, 2, 2}, {7, 7, 0, 1, 7, 7, 2, 3});
  check(pad(counted({}), {}, 1), {}, {0});
  check(pad(counted({0}), {2, 1}, 5), {3}, {5, 5, 5});
  check(gradient(counted({2}), [](const Tensor& x) { return pad(x, {1, 2}, 4); }), {2}, {2, 3});
  check_error(ErrorCode::invalid_argument, "paddings is [1]", [] { pad(counted({2}), {1}, 0); });
  check_error(ErrorCode::invalid_argument, "paddings is [1, -1]", [] { pad(counted({2}), {1, -1}, 0); });
  check_error(ErrorCode::invalid_argument, "paddings", [] { pad(counted({2}), {INT64_MAX, 1}, 0); });

  const Tensor x = counted({1, 1, 2, 2, 3}, 1);
  const IntArray paddings = {2, 1, 0, 1, 1, 0};
  const Dims dims = {1, 1, 3, 3, 6};
  const auto padded = [&](const char* mode) { return pad3d(x, paddings, mode, -1); };
  check(padded("constant"), dims,
        {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1,  2,  3,  -1, -1, -1, 4,
         5,  6,  -1, -1, -1, -1, -1, -1, -1, -1, -1, 7,  8,  9,  -1, -1, -1, 10, 11, 12, -1, -1, -1, -1, -1, -1, -1});
  check(padded("reflect"), dims,
        {9, 8, 7, 8, 9, 8, 12, 11, 10, 11, 12, 11, 9, 8, 7, 8,  9,  8,  3,  2,  1,  2, 3, 2, 6, 5, 4,
         5, 6, 5, 3, 2, 1, 2,  3,  2,  9,  8,  7,  8, 9, 8, 12, 11, 10, 11, 12, 11, 9, 8, 7, 8, 9, 8});
  check(padded("replicate"), dims,
        {1, 1, 1, 2, 3, 3, 4, 4, 4, 5, 6, 6, 4, 4, 4, 5,  6,  6,  1,  1,  1,  2,  3,  3,  4,  4,  4,
         5, 6, 6, 4, 4, 4, 5, 6, 6, 7, 7, 7, 8, 9, 9, 10, 10, 10, 11, 12, 12, 10, 10, 10, 11, 12, 12});
  check(padded("circular"), dims,
        {8, 9, 7, 8, 9, 7, 11, 12, 10, 11, 12, 10, 8, 9, 7, 8,  9,  7,  2,  3,  1,  2, 3, 1, 5, 6, 4,
         5, 6, 4, 2, 3, 1, 2,  3,  1,  8,  9,  7,  8, 9, 7, 11, 12, 10, 11, 12, 10, 8, 9, 7, 8, 9, 7});
  for (const char* mode : {"constant", "reflect", "replicate", "circular"}) {
    const Tensor last = transpose(pad3d(transpose(x, {0, 2, 3, 4, 1}), paddings, mode, -1, "NDHWC"), {0, 4, 1, 2, 3});
    CHECK(last.to_vector<float>() == padded(mode).to_vector<float>());
    check(pad3d(x, {0, 0, 0, 0, 0, 0}, mode), x.dims(), values(x.impl()->value));
    CHECK_FALSE(pad3d(x, {0, 0, 0, 0, 0, 0}, mode).shares_buffer_with(x));
  }
  check_error(ErrorCode::shape_mismatch, "dim 4 has too few elements", [&] {
    pad3d(x, {3, 0, 0, 0, 0, 0}, "reflect");
  });
  check_error(ErrorCode::shape_mismatch, "mode circular", [&] { pad3d(x, {0, 4, 0, 0, 0, 0}, "circular"); });
  check_error(ErrorCode::shape_mismatch, "mode replicate", [&] {
    pad3d(counted({1, 1, 1, 1, 0}), {1, 0, 0, 0, 0, 0}, "replicate");
  });
  check_error(ErrorCode::invalid_argument, "mode is 'mirror'", [&] { pad3d(x, paddings, "mirror"); });
  check_error(ErrorCode::invalid_argument, "data_format is 'NCHW'", [&] { pad3d(x, paddings, "reflect", 0, "NCHW"); });
  check_error(ErrorCode::invalid_argument, "paddings is [1, 2]", [&] { pad3d(x, {1, 2}); });
}

TEST_CASE("gather_nd and scatter_nd_add read and add at rows of indices") {
  const Tensor index = indices({1, 2, 0, -3, -1, 0}, {3, 2});
  for (const DType dtype : kNumberDTypes) {
    check(gather_nd(counted({2, 3, 4}, 0, dtype), index), {3, 4}, {20, 21, 22, 23, 0, 1, 2, 3, 12, 13, 14, 15});
    check(
        scatter_nd_add(counted({2, 3, 4}, 0, dtype), indices({1, 2, 0, -3, -1, 2}, {3, 2}), counted({3, 4}, 0, dtype)),
        {2, 3, 4}, {4, 6, 8, 10, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 28, 31, 34, 37});
  }
  check(gather_nd(counted({2, 2}), of({1, 0}, {2}, DType::int32)), {}, {2});
  check(gather_nd(counted({2}), indices({}, {2, 0})), {2, 2}, {0, 1, 0, 1});
  check(gather_nd(counted({2, 0}), indices({1}, {1, 1})), {1, 0}, {});
  check(gather_nd(of({1, 0}, {2}, DType::boolean), indices({1, 0, 0}, {3, 1})), {3}, {0, 1, 1});
  check(scatter_nd_add(counted({2}), indices({}, {0, 1}), counted({0})), {2}, {0, 1});
  check(scatter_nd_add(counted({2}), indices({}, {2, 0}), counted({2, 2}, 10)), {2}, {22, 25});
  // 1 + 2^-12 + 2^-12 in float32, rounded once
  check(scatter_nd_add(of({1}, {1}, DType::float16), indices({0, 0, 0, 0}, {4, 1}),
                       of({0.00025, 0.00025, 0.00025, 0.00025}, {4}, DType::float16)),
        {1}, {1.0009765625});
  check_error(ErrorCode::out_of_range, "[gather_nd] index is 3 at element [1, 1], but must be from -3 to 2 for dim 1",
              [] {
                gather_nd(counted({2, 3}), indices({0, 2, 0, 3}, {2, 2}));
              });
  check_error(ErrorCode::out_of_range, "[scatter_nd_add] index is -3", [] {
    scatter_nd_add(counted({2}), indices({-3}, {1, 1}), counted({1}));
  });
  check_error(ErrorCode::shape_mismatch, "at most 1", [] { gather_nd(counted({2}), indices({0, 0}, {1, 2})); });
  check_error(ErrorCode::shape_mismatch, "[gather_nd]", [] { gather_nd(counted({2}), indices({0}, {})); });
  check_error(ErrorCode::dtype_mismatch, "[gather_nd] index", [] { gather_nd(counted({2}), counted({1, 1})); });
  check_error(ErrorCode::shape_mismatch, "so updates must be [1]", [] {
    scatter_nd_add(counted({2}), indices({0}, {1, 1}), counted({2}));
  });
  check_error(ErrorCode::dtype_mismatch, "must have numbers", [] {
    scatter_nd_add(of({1}, {1}, DType::boolean), indices({0}, {1, 1}), of({1}, {1}, DType::boolean));
  });
}

TEST_CASE("index_add adds slices where an index says, and index_select and index_sample read") {
  for (const DType dtype : kNumberDTypes) {
    Tensor x = counted({2, 3}, 1, dtype);
    const Tensor index = indices({2, 0, -1}, {3}), added = of({10, 20, 30, 40, 50, 60}, {2, 3}, dtype);
    check(index_add(x, index, added, 1), {2, 3}, {21, 2, 43, 54, 5, 106});
    index_add_(x, index, added, -1);
    check(x, {2, 3}, {21, 2, 43, 54, 5, 106});
  }
  check(index_add(counted({2, 2}), indices({1}, {1}), of({10, 20}, {1, 2})), {2, 2}, {0, 1, 12, 23});
  check(index_add(counted({2}), indices({}, {0}), of({}, {0})), {2}, {0, 1});
  check(index_select(counted({2, 3}), indices({2, 0}, {2}), 1), {2, 2}, {2, 0, 5, 3});
  check(index_sample(counted({2, 3}, 1), indices({2, 0, -1, 2, 1, 1, 0, -3}, {2, 4})), {2, 4},
        {3, 1, 3, 3, 5, 5, 4, 4});
  check_error(ErrorCode::out_of_range, "[index_add] index is 2 at element 0, but must be from -2 to 1",
              [] { index_add(counted({2}), indices({2}, {1}), counted({1})); });
  check_error(ErrorCode::shape_mismatch, "[index_add] x is f32[2]",
              [] { index_add(counted({2}), indices({0}, {1}), counted({2})); });
  check_error(ErrorCode::out_of_range, "[index_select]", [] { index_select(counted({2}), indices({2}, {1})); });
  check_error(ErrorCode::shape_mismatch, "[index_sample] index", [] {
    index_sample(counted({2, 2}), indices({0}, {1}));
  });
}

TEST_CASE("take_along_axis and put_along_axis read and write at an index for each element") {
  const Tensor index = indices({2, 0, -1, 2, 1, 1, 0, -3}, {2, 4});
  for (const DType dtype : kNumberDTypes)
    check(take_along_axis(counted({2, 3}, 1, dtype), index, 1), {2, 4}, {3, 1, 3, 3, 5, 5, 4, 4});
  check(take_along_axis(counted({2, 3}), of({1, 0, 1}, {1, 3}, DType::int32), 0), {1, 3}, {3, 1, 5});
  check(take_along_axis(of({1, 0}, {2}, DType::boolean), indices({1, 0, 0}, {3}), 0), {3}, {0, 1, 1});
  check(take_along_axis(counted({0, 2}), indices({}, {0, 5}), 1), {0, 5}, {});

  struct Mode {
    const char* reduce;
    bool include_self;
    Values expected;
  };
  const Mode modes[] = {
      {"assign", true, {-2, 2, 3, 2, 1, 6}},
      {"assign", false, {-2, 2, 3, 2, 1, 6}},
      {"add", true, {-1, 2, 15, 0, 13, 6}},
      {"add", false, {-2, 2, 12, -4, 8, 6}},
      {"multiply", true, {-2, 2, 180, -48, 35, 6}},
      {"mul", false, {-2, 2, 60, -12, 7, 6}},
      {"mean", true, {-0.5, 2, 3.75, 0, 13.0 / 3, 6}},
      {"mean", false, {-2, 2, 4, -2, 4, 6}},
      {"amax", true, {1, 2, 5, 4, 7, 6}},
      {"amax", false, {-2, 2, 5, 2, 7, 6}},
      {"amin", true, {-2, 2, 3, -6, 1, 6}},
      {"amin", false, {-2, 2, 3, -6, 1, 6}},
  };
  for (const DType dtype :
       {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int32, DType::int64}) {
    for (const Mode& mode : modes) {
      INFO(mode.reduce << (mode.include_self ? "" : " without x") << ", " << to_string(dtype));
      Tensor x = counted({2, 3}, 1, dtype);
      const Tensor put = of({5, -2, 4, 3, 7, 1, -6, 2}, {2, 4}, dtype);
      Values expected = mode.expected;
      if (!is_floating(dtype))
        for (double& value : expected) value = std::floor(value);
      check(put_along_axis(x, index, put, 1, mode.reduce, mode.include_self), {2, 3}, expected, 1);
      // along the first dim of the transposed tensors
      check(transpose(put_along_axis(transpose(x, {1, 0}), transpose(index, {1, 0}), transpose(put, {1, 0}), 0,
                                     mode.reduce, mode.include_self),
                      {1, 0}),
            {2, 3}, expected, 1);
      put_along_axis_(x, index, put, -1, mode.reduce, mode.include_self);
      check(x, {2, 3}, expected, 1);
    }
  }
  check(put_along_axis(of({1, NAN, 3}, {3}), indices({0, 1, 2}, {3}), of({NAN, 5, 4}, {3}), 0, "amax"), {3},
        {NAN, NAN, 4});
  check(put_along_axis(counted({2}), indices({}, {0}), counted({0}), 0), {2}, {0, 1});
  check_error(ErrorCode::out_of_range, "[take_along_axis] indices is 3 at element [0, 1], but must be from -3 to 2",
              [] {
                take_along_axis(counted({1, 3}), indices({0, 3}, {1, 2}), 1);
              });
  check_error(ErrorCode::shape_mismatch, "[take_along_axis] arr is f32[2, 3] and indices is i64[1, 2]", [] {
    take_along_axis(counted({2, 3}), indices({0, 1}, {1, 2}), 1);
  });
  check_error(ErrorCode::shape_mismatch, "at least one", [] { take_along_axis(counted({}), indices({0}, {}), 0); });
  check_error(ErrorCode::out_of_range, "[put_along_axis] indices is -4",
              [] { put_along_axis(counted({3}), indices({-4}, {1}), counted({1}), 0); });
  check_error(ErrorCode::invalid_argument, "reduce is 'sum'",
              [] { put_along_axis(counted({3}), indices({0}, {1}), counted({1}), 0, "sum"); });
  check_error(ErrorCode::shape_mismatch, "their shapes must be equal",
              [] { put_along_axis(counted({3}), indices({0}, {1}), counted({2}), 0); });
}

TEST_CASE("the gradient of put_along_axis reaches the value that was written last, and equal winners share it") {
  const Tensor x = of({1, 2, 3}, {3}, DType::float64), index = indices({0, 2, 0}, {3});
  const auto slopes = [&](const char* reduce, const Values& put, bool include_self, const Values& of_x,
                          const Values& of_values) {
    INFO(reduce << (include_self ? "" : " without x"));
    const Tensor y = of(put, {3}, DType::float64);
    check(gradient(x, [&](const Tensor& t) { return put_along_axis(t, index, y, 0, reduce, include_self); }), {3}, of_x,
          1);
    check(gradient(y, [&](const Tensor& t) { return put_along_axis(x, index, t, 0, reduce, include_self); }), {3},
          of_values, 1);
  };
  slopes("assign", {4, 5, 6}, true, {0, 2, 0}, {0, 3, 1});
  slopes("add", {4, 5, 6}, true, {1, 2, 3}, {1, 3, 1});
  slopes("add", {4, 5, 6}, false, {0, 2, 0}, {1, 3, 1});
  slopes("multiply", {4, 5, 6}, true, {24, 2, 15}, {6, 9, 4});
  slopes("multiply", {0, 5, 6}, true, {0, 2, 15}, {6, 9, 0});
  slopes("multiply", {0, 0, 0}, true, {0, 2, 0}, {0, 9, 0});
  slopes("multiply", {4, 5, 6}, false, {0, 2, 0}, {6, 3, 4});
  slopes("mean", {4, 5, 6}, true, {1.0 / 3, 2, 1.5}, {1.0 / 3, 1.5, 1.0 / 3});
  slopes("mean", {4, 5, 6}, false, {0, 2, 0}, {0.5, 3, 0.5});
  slopes("amax", {4, 3, 4}, true, {0, 2, 1.5}, {0.5, 1.5, 0.5});
  slopes("amin", {1, 5, 4}, true, {0.5, 2, 3}, {0.5, 0, 0});
  slopes("amin", {1, 5, 4}, false, {0, 2, 0}, {1, 3, 0});
}

TEST_CASE("repeat_interleave, unstack, meshgrid and broadcast_tensors repeat and separate slices") {
  check(repeat_interleave(counted({2, 3}, 1), 2, -1), {2, 6}, {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6});
  check(repeat_interleave(counted({2, 1}), 0, 0), {0, 1}, {});
  check_error(ErrorCode::invalid_argument, "repeats is -1", [] { repeat_interleave(counted({2}), -1, 0); });
  check_error(ErrorCode::shape_mismatch, "[repeat_interleave] x is f32[]",
              [] { repeat_interleave(counted({}), 2, 0); });

  const std::vector<Tensor> slices = unstack(counted({2, 3}), 1, 3);
  REQUIRE(slices.size() == 3);
  check(slices[1], {2}, {1, 4});
  CHECK(unstack(counted({2, 3})).size() == 2);
  check_error(ErrorCode::shape_mismatch, "[unstack] num is 2", [] { unstack(counted({2, 3}), 1, 2); });

  const std::vector<Tensor> grid = meshgrid({counted({2}, 1), counted({}, 7), counted({3}, 3)});
  REQUIRE(grid.size() == 3);
  check(grid[0], {2, 1, 3}, {1, 1, 1, 2, 2, 2});
  check(grid[1], {2, 1, 3}, {7, 7, 7, 7, 7, 7});
  check(grid[2], {2, 1, 3}, {3, 4, 5, 3, 4, 5});
  check_error(ErrorCode::shape_mismatch, "[meshgrid]", [] { meshgrid({counted({1, 2})}); });
  check_error(ErrorCode::invalid_argument, "[meshgrid]", [] { meshgrid({}); });

  const std::vector<Tensor> wide = broadcast_tensors({counted({2, 1}), counted({3})});
  check(wide[0], {2, 3}, {0, 0, 0, 1, 1, 1});
  check(wide[1], {2, 3}, {0, 1, 2, 0, 1, 2});
  check_error(ErrorCode::shape_mismatch, "[broadcast_tensors]", [] {
    broadcast_tensors({counted({2}), counted({3})});
  });
  check_error(ErrorCode::invalid_argument, "[broadcast_tensors]", [] { broadcast_tensors({}); });
}

TEST_CASE("diagonals are read, filled and added up") {
  const Tensor x = counted({2, 3, 4});
  check(diagonal(x, 1, 2, 0), {3, 1}, {12, 16, 20});
  check(diagonal(x, -1, 1, 2), {2, 2}, {4, 9, 16, 21});
  check(diagonal(counted({2, 3}), 5), {0}, {});
  check(diagonal(counted({2, 0})), {0}, {});
  check_error(ErrorCode::invalid_argument, "which is the same dim", [&] { diagonal(x, 0, 1, -2); });
  check_error(ErrorCode::shape_mismatch, "[diagonal] x is f32[3]", [] { diagonal(counted({3})); });
  check(diag(of({1, 2}, {2}), -1), {3, 3}, {0, 0, 0, 1, 0, 0, 0, 2, 0});
  check(diag(of({1, 2}, {2}), 0, 5), {2, 2}, {1, 5, 5, 2});
  check(diag(counted({2, 3}), 1), {2}, {1, 5});
  check(diag(counted({0}), 1), {1, 1}, {0});
  check_error(ErrorCode::shape_mismatch, "[diag] x", [&] { diag(x); });
  for (const int offset : {0, 2, -1}) {
    const Tensor embedded = diag_embed(counted({2, 3}, 1), offset, 2, 0);
    check(diagonal(embedded, offset, 2, 0), {2, 3}, {1, 2, 3, 4, 5, 6});
    CHECK(values(sum(embedded).impl()->value) == Values{21});
    CHECK(to_string(embedded.dims()) == to_string(Dims{3 + std::abs(offset), 2, 3 + std::abs(offset)}));
  }
  check(diag_embed(of({1, 2}, {2})), {2, 2}, {1, 0, 0, 2});
  check_error(ErrorCode::shape_mismatch, "[diag_embed]", [] { diag_embed(counted({})); });
  check_error(ErrorCode::invalid_argument, "[diag_embed] dim1", [] { diag_embed(counted({2}), 0, 0, 0); });
  check(trace(x, 0, 1, 2), {2}, {15, 51});
  CHECK(trace(counted({2, 2}, 0, DType::int32)).dtype() == DType::int64);
  check_error(ErrorCode::invalid_argument, "[trace] axis1", [&] { trace(x, 0, 1, 1); });
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    check(fill_diagonal(of(Values(21, 0), {7, 3}, dtype), 5, 0, true), {7, 3},
          {5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 5});
  }
  check(fill_diagonal(of(Values(15, 0), {5, 3}), 5), {5, 3}, {5, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0});
  check(fill_diagonal(counted({2, 2, 2}), 9, 1), {2, 2, 2}, {0, 9, 2, 3, 4, 5, 6, 7});
  check(fill_diagonal(counted({2, 0}), 9), {2, 0}, {});
  Tensor square = counted({2, 2});
  fill_diagonal_(square, -1, -1);
  check(square, {2, 2}, {0, 1, -1, 3});
  check_error(ErrorCode::shape_mismatch, "[fill_diagonal] x is f32[2, 2, 3]", [] {
    fill_diagonal(counted({2, 2, 3}), 0);
  });
  check(gradient(counted({2, 2}), [](const Tensor& t) { return fill_diagonal(t, 3); }), {2, 2}, {0, 2, 3, 0});
  check(fill(counted({2}), 3), {2}, {3, 3});
  check(gradient(counted({2}), [](const Tensor& t) { return fill(t, 3); }), {2}, {0, 0});
}

TEST_CASE("tril_indices and triu_indices list the elements of a triangle, also a part of the list") {
  for (const DType dtype : {DType::int32, DType::int64}) {
    check(tril_indices(3, 4, 1, dtype), {2, 9}, {0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 1, 0, 1, 2, 0, 1, 2, 3});
    check(triu_indices(3, 4, -1, dtype), {2, 11}, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3});
  }
  check(tril_indices(2, 2, -5, DType::int64), {2, 0}, {});
  check(triu_indices(0, 3, 0, DType::int64), {2, 0}, {});
  check_error(ErrorCode::invalid_argument, "-1 by 2", [] { tril_indices(-1, 2, 0, DType::int64); });
  check_error(ErrorCode::dtype_mismatch, "[triu_indices] dtype", [] { triu_indices(1, 2, 0, DType::float32); });

  const ProcessMesh* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  test::run_ranks(mesh->size(), [&](Rank&) {
    const Tensor list = full_tensor(triu_indices(3, 4, -1, DType::int64, DistSpec::parse(mesh, "a, b")));
    if (list.to_vector<int64_t>() != triu_indices(3, 4, -1, DType::int64).to_vector<int64_t>())
      throw std::runtime_error("a part of the list is wrong");
  });
}

TEST_CASE("pixels and channels are shuffled") {
  check(pixel_shuffle(counted({1, 4, 1, 2}), 2), {1, 1, 2, 4}, {0, 2, 1, 3, 4, 6, 5, 7});
  check(pixel_shuffle(counted({1, 1, 2, 4}), 2, "NHWC"), {1, 2, 4, 1}, {0, 1, 4, 5, 2, 3, 6, 7});
  const Tensor x = counted({2, 8, 2, 6});
  for (const char* format : {"NCHW", "NHWC"})
    check(pixel_unshuffle(pixel_shuffle(transpose(x, {0, 2, 3, 1}), 1, format), 2, "NHWC"), {2, 1, 3, 32},
          values(pixel_unshuffle(transpose(x, {0, 2, 3, 1}), 2, "NHWC").impl()->value));
  check(pixel_unshuffle(pixel_shuffle(x, 2), 2), {2, 8, 2, 6}, values(x.impl()->value));
  check(channel_shuffle(counted({1, 6, 1, 1}), 2), {1, 6, 1, 1}, {0, 3, 1, 4, 2, 5});
  check(channel_shuffle(counted({1, 1, 1, 6}), 3, "NHWC"), {1, 1, 1, 6}, {0, 2, 4, 1, 3, 5});
  check(pixel_shuffle(counted({0, 4, 1, 2}), 2), {0, 1, 2, 4}, {});
  check_error(ErrorCode::shape_mismatch, "[pixel_shuffle]", [] { pixel_shuffle(counted({1, 3, 1, 1}), 2); });
  check_error(ErrorCode::invalid_argument, "[pixel_shuffle]", [] { pixel_shuffle(counted({1, 3, 1, 1}), 0); });
  check_error(ErrorCode::shape_mismatch, "[pixel_unshuffle]", [] { pixel_unshuffle(counted({1, 1, 2, 3}), 2); });
  check_error(ErrorCode::shape_mismatch, "[channel_shuffle]", [] { channel_shuffle(counted({1, 3, 2, 3}), 2); });
  check_error(ErrorCode::invalid_argument, "data_format is 'NC'", [] {
    channel_shuffle(counted({1, 3, 2, 3}), 3, "NC");
  });
}

TEST_CASE("unfold and fold refuse kernels whose sizes overflow") {
  const IntArray huge(2, int64_t{1} << 32), one(2, 1), padding(4, int64_t{1} << 31);
  check_error(ErrorCode::invalid_argument, "kernel_sizes", [&] {
    fold(counted({1, 1, 9}), {2, 2}, huge, one, padding, one);
  });
}

TEST_CASE("means of integers do not wrap") {
  for (const DType dtype : {DType::uint8, DType::int32}) {
    const double large = dtype == DType::uint8 ? 200 : 2000000000;
    const Tensor arr = of({large, large}, {2}, dtype), sum = put_along_axis(arr, indices({0, 1}, {2}), arr, 0, "mean");
    CHECK(values(cast(sum, DType::float64).get().value) == Values{large, large});
  }
}

TEST_CASE("unfold lists the blocks under a kernel, and fold adds them up") {
  const IntArray kernel = {2, 2}, strides = {1, 2}, paddings = {1, 0, 0, 1}, dilations = {1, 2};
  for (const DType dtype : kNumberDTypes) {
    check(unfold(counted({1, 1, 3, 4}, 1, dtype), kernel, strides, paddings, dilations), {1, 4, 6},
          {0, 0, 1, 3, 5, 7, 0, 0, 3, 0, 7, 0, 1, 3, 5, 7, 9, 11, 3, 0, 7, 0, 11, 0});
    check(fold(counted({1, 4, 6}, 1, dtype), {3, 4}, kernel, strides, paddings, dilations), {1, 1, 3, 4},
          {16, 0, 46, 0, 20, 0, 54, 0, 17, 0, 41, 0});
  }
  check(unfold(counted({1, 2, 1, 2}), {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}), {1, 2, 2}, {0, 1, 2, 3});
  check(unfold(counted({0, 2, 1, 2}), {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}), {0, 2, 2}, {});
  check_error(ErrorCode::shape_mismatch, "does not fit", [&] {
    unfold(counted({1, 1, 1, 1}), {3, 3}, {1, 1}, paddings, {1, 1});
  });
  check_error(ErrorCode::invalid_argument, "paddings is [1, 1]", [&] {
    unfold(counted({1, 1, 3, 3}), kernel, strides, {1, 1}, dilations);
  });
  check_error(ErrorCode::invalid_argument, "strides is [0, 1]", [&] {
    unfold(counted({1, 1, 3, 3}), kernel, {0, 1}, paddings, dilations);
  });
  check_error(ErrorCode::shape_mismatch, "[fold] x is f32[1, 4, 5], but must be [n, c * 4, 6]", [&] {
    fold(counted({1, 4, 5}), {3, 4}, kernel, strides, paddings, dilations);
  });
}

TEST_CASE("crop, temporal_shift, maxout, shape, shard_index and view_shape") {
  check(crop(counted({2, 3}), {-1, 2}, {1, 1}), {1, 2}, {4, 5});
  check(crop(counted({2})), {2}, {0, 1});
  check_error(ErrorCode::out_of_range, "no part of shape [2] at offsets [1]", [] { crop(counted({2}), {2}, {1}); });
  check_error(ErrorCode::invalid_argument, "[crop]", [] { crop(counted({2}), {1, 1}); });
  // Two videos of two frames, of four channels: the first comes one frame later, the second one frame earlier.
  check(temporal_shift(counted({4, 4, 1, 1}), 2), {4, 4, 1, 1}, {0, 5, 2, 3, 0, 0, 6, 7, 0, 13, 10, 11, 8, 0, 14, 15});
  check(temporal_shift(counted({4, 1, 1, 4}), 2, 0.25f, "NHWC"), {4, 1, 1, 4},
        {0, 5, 2, 3, 0, 0, 6, 7, 0, 13, 10, 11, 8, 0, 14, 15});
  check(temporal_shift(counted({2, 2, 1, 1}), 1, 0.5f), {2, 2, 1, 1}, {0, 0, 0, 0});
  check_error(ErrorCode::shape_mismatch, "seg_num", [] { temporal_shift(counted({3, 4, 1, 1}), 2); });
  check_error(ErrorCode::invalid_argument, "shift_ratio", [] { temporal_shift(counted({2, 4, 1, 1}), 2, 0.6f); });
  check(maxout(of({1, 5, 3, 2, 8, 7, 6, 4}, {1, 4, 2}), 2), {1, 2, 2}, {3, 5, 8, 7});
  check_error(ErrorCode::shape_mismatch, "[maxout]", [] { maxout(counted({1, 3}), 2); });
  check(shard::shape(counted({2, 0, 3})), {3}, {2, 0, 3});
  check(shard::shape(counted({})), {0}, {});
  for (const DType dtype : {DType::int32, DType::int64})
    check(shard_index(of({0, 6, 7, 13, 14, 19}, {6}, dtype), 20, 3, 1), {6}, {-1, -1, 0, 6, -1, -1});
  check_error(ErrorCode::out_of_range, "[shard_index] input is 20", [] { shard_index(indices({20}, {1}), 20, 3, 1); });
  check_error(ErrorCode::invalid_argument, "shard_id 3", [] { shard_index(indices({0}, {1}), 20, 3, 3); });
  const Tensor x = counted({2, 3});
  CHECK(view_shape(x, {3, 2}).shares_buffer_with(x));
}

}  // namespace
}  // namespace shard::testing::indexing_test
