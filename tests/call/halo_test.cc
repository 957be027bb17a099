// Convolutions, pooling and interpolation of images whose space dims are sharded: results are those of one rank, space dims
// stay sharded, and only what they read of other shards is sent.
#include <catch2/catch.hpp>

#include "shard/call/plan_cache.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/conv.h"
#include "shard/ops/image.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace halo_test {

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;

template <class... T>
Tensors all(const std::tuple<T...>& values) {
  return std::apply([](const auto&... tensors) { return Tensors{tensors...}; }, values);
}

/// Small whole numbers without a pattern, whose sums are exact.
Tensor numbers(const Dims& dims, DType dtype = DType::float32) {
  std::vector<float> values(static_cast<size_t>(dims.numel()));
  uint32_t state = static_cast<uint32_t>(values.size()) + 7;
  for (float& value : values) value = static_cast<float>((state = state * 1664525 + 1013904223) >> 16 & 7) - 3;
  return cast(Tensor::from_data(values, dims), dtype);
}

std::vector<float> all_of(const Tensor& x) {
  const Tensor whole = x.is_dist() ? full_tensor(x) : x;
  return cast(whole, DType::float32).to_vector<float>();
}

/// A call of images, the results of their windows, and perhaps a filter. The first `images` tensors are sharded.
struct Call {
  std::string name;
  std::vector<Dims> dims;
  std::function<Tensors(const Tensors&)> run;
  size_t filter = SIZE_MAX;  // the number of the filter, which is replicated
  DType dtype = DType::float32;
};

Tensors inputs_of(const Call& call) {
  Tensors inputs;
  for (const Dims& dims : call.dims) inputs.push_back(numbers(dims, call.dtype));
  return inputs;
}

/// Checks that the results in this layout are those of one rank, and that the first one is sharded alike.
void check_layout(const Call& call, const std::vector<std::vector<float>>& expected, const ProcessMesh* mesh,
                  const std::string& layout) {
  const DistSpec* const sharded = DistSpec::parse(mesh, layout);
  Tensors inputs = inputs_of(call);
  for (size_t i = 0; i < inputs.size(); ++i)
    inputs[i] = distribute(inputs[i], i == call.filter ? DistSpec::replicated(mesh, inputs[i].dims().rank()) : sharded);
  const Tensors results = call.run(inputs);
  const std::string what = call.name + " in " + sharded->text() + " on " + mesh->describe();
  check(spec_of(results[0]) == sharded, what + ": the result is in " + spec_of(results[0])->text());
  for (size_t i = 0; i < results.size(); ++i)
    check(all_of(results[i]) == expected[i], what + ": result " + std::to_string(i));
}

/// Space dims are the last ones, or, for channels last, those after the batch.
void check_call(const Call& call, bool last = false) {
  std::vector<std::vector<float>> expected;
  for (const Tensor& result : call.run(inputs_of(call))) expected.push_back(all_of(result));
  const bool deep = call.dims[0].rank() == 5;
  const auto layout = [&](const std::string& batch, const std::string& h, const std::string& w) {
    const std::string space = (deep ? "-, " : "") + h + ", " + w;
    return last ? batch + ", " + space + ", -" : batch + ", -, " + space;
  };
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Rank&) {
      const ProcessMesh* const mesh = ProcessMesh::make({ranks}, {}, {"a"});
      check_layout(call, expected, mesh, layout("-", "a", "-"));
      check_layout(call, expected, mesh, layout("-", "-", "a"));
      if (deep) check_layout(call, expected, mesh, last ? "-, a, -, -, -" : "-, -, a, -, -");
    });
  }
  run_ranks(6, [&](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2, 3}, {5, 2, 0, 3, 1, 4}, {"a", "b"});
    check_layout(call, expected, mesh, layout("-", "a", "b"));
    check_layout(call, expected, mesh, layout("-", "b+a", "-"));
    check_layout(call, expected, mesh, layout("a", "b", "-"));
    check_layout(call, expected, mesh, layout("-", "-", "a"));
  });
}

struct Conv {
  std::string name;
  Dims x, filter;
  IntArray strides, paddings;
  std::string algorithm = "EXPLICIT";
  IntArray dilations = {1, 1};
  int groups = 1;
  DType dtype = DType::float32;
};

/// The convolution and its gradients.
void check_conv(const Conv& c, const std::string& format = "NCHW") {
  const bool last = format.ends_with('C'), deep = c.x.rank() == 5, depthwise = c.groups > 2;
  const auto forward = [=](const Tensor& x, const Tensor& filter) {
    if (deep) return conv3d(x, filter, c.strides, c.paddings, c.algorithm, c.groups, c.dilations, format);
    return depthwise ? depthwise_conv2d(x, filter, c.strides, c.paddings, c.algorithm, c.groups, c.dilations, format)
                     : conv2d(x, filter, c.strides, c.paddings, c.algorithm, c.dilations, c.groups, format);
  };
  const auto gradient = [=](const Tensor& x, const Tensor& filter, const Tensor& grad) {
    if (deep)
      return all(conv3d_grad(x, filter, grad, c.strides, c.paddings, c.algorithm, c.groups, c.dilations, format));
    return depthwise
               ? all(depthwise_conv2d_grad(x, filter, grad, c.strides, c.paddings, c.algorithm, c.groups, c.dilations,
                                           format))
               : all(conv2d_grad(x, filter, grad, c.strides, c.paddings, c.algorithm, c.dilations, c.groups, format));
  };
  check_call({c.name, {c.x, c.filter}, [=](const Tensors& t) { return Tensors{forward(t[0], t[1])}; }, 1, c.dtype},
             last);
  const Dims out = forward(numbers(c.x), numbers(c.filter)).dims();
  check_call({"gradient of " + c.name,
              {c.x, c.filter, out},
              [=](const Tensors& t) { return gradient(t[0], t[1], t[2]); },
              1,
              c.dtype},
             last);
}

struct Pool {
  std::string name, type;
  Dims x;
  IntArray size, strides, paddings;
  bool ceil = false, exclusive = true, adaptive = false;
  std::string algorithm = "EXPLICIT";
};

/// Pooling, its gradient, and the gradient of that.
void check_pool(const Pool& p, const std::string& format = "NCHW") {
  const bool last = format.ends_with('C'), deep = p.x.rank() == 5;
  const auto call = [=](const auto& op2d, const auto& op3d, const auto&... x) {
    return deep ? op3d(x..., p.size, p.strides, p.paddings, p.ceil, p.exclusive, format, p.type, false, p.adaptive,
                       p.algorithm)
                : op2d(x..., p.size, p.strides, p.paddings, p.ceil, p.exclusive, format, p.type, false, p.adaptive,
                       p.algorithm);
  };
  const auto named = [](auto function) { return function; };
  const auto forward = [=](const Tensor& x) {
    return call(
        named([](const auto&... a) { return pool2d(a...); }), [](const auto&... a) { return pool3d(a...); }, x);
  };
  const Dims out = forward(numbers(p.x)).dims();
  check_call({p.name, {p.x}, [=](const Tensors& t) { return Tensors{forward(t[0])}; }}, last);
  check_call({"gradient of " + p.name,
              {p.x, out},
              [=](const Tensors& t) {
                return Tensors{call([](const auto&... a) { return pool2d_grad(a...); },
                                    [](const auto&... a) { return pool3d_grad(a...); }, t[0], t[1])};
              }},
             last);
  check_call({"second gradient of " + p.name,
              {p.x, p.x},
              [=](const Tensors& t) {
                return Tensors{call([](const auto&... a) { return pool2d_double_grad(a...); },
                                    [](const auto&... a) { return pool3d_double_grad(a...); }, t[0], t[1])};
              }},
             last);
}

struct Transposed {
  std::string name;
  Dims x, filter;
  IntArray strides, paddings;
  IntArray more = {}, size = {};  // output_padding and output_size
  std::string algorithm = "EXPLICIT";
  IntArray dilations = {1, 1};
  int groups = 1;
  DType dtype = DType::float32;
};

/// The transpose of a convolution and its gradients.
void check_transposed(const Transposed& c, const std::string& format = "NCHW") {
  const bool last = format.ends_with('C'), deep = c.x.rank() == 5;
  const auto forward = [=](const Tensor& x, const Tensor& filter) {
    const auto run = deep ? conv3d_transpose : c.groups > 2 ? depthwise_conv2d_transpose : conv2d_transpose;
    return run(x, filter, c.strides, c.paddings, c.more, c.size, c.algorithm, c.groups, c.dilations, format,
               CallSite());
  };
  const auto gradient = [=](const Tensor& x, const Tensor& filter, const Tensor& grad) {
    const auto run = deep ? conv3d_transpose_grad : conv2d_transpose_grad;
    return all(run(x, filter, grad, c.strides, c.paddings, c.more, c.size, c.algorithm, c.groups, c.dilations, format,
                   -1, CallSite()));
  };
  check_call({c.name, {c.x, c.filter}, [=](const Tensors& t) { return Tensors{forward(t[0], t[1])}; }, 1, c.dtype},
             last);
  const Dims out = forward(numbers(c.x), numbers(c.filter)).dims();
  check_call({"gradient of " + c.name,
              {c.x, c.filter, out},
              [=](const Tensors& t) { return gradient(t[0], t[1], t[2]); },
              1,
              c.dtype},
             last);
}

/// Max pooling with places in the whole images, its gradient, and the gradient of that.
void check_index_pool(const std::string& name, const Dims& x, const IntArray& size, const IntArray& strides,
                      const IntArray& paddings, bool adaptive = false) {
  const bool deep = x.rank() == 5;
  const auto forward = [=](const Tensor& t) {
    return deep ? max_pool3d_with_index(t, size, strides, paddings, false, adaptive)
                : max_pool2d_with_index(t, size, strides, paddings, false, adaptive);
  };
  const auto places = [=](const Tensor& t) { return std::get<1>(forward(t)); };
  const auto gradient = deep ? max_pool3d_with_index_grad : max_pool2d_with_index_grad;
  const auto second = deep ? max_pool3d_with_index_double_grad : max_pool2d_with_index_double_grad;
  check_call({name, {x}, [=](const Tensors& t) { return all(forward(t[0])); }});
  check_call({"gradient of " + name, {x, std::get<0>(forward(numbers(x))).dims()}, [=](const Tensors& t) {
                return Tensors{
                    gradient(t[0], places(t[0]), t[1], size, strides, paddings, false, adaptive, CallSite())};
              }});
  check_call({"second gradient of " + name, {x, x}, [=](const Tensors& t) {
                return Tensors{second(t[0], places(t[0]), t[1], size, strides, paddings, false, adaptive, CallSite())};
              }});
}

struct Interpolated {
  std::string method;
  Dims x;
  IntArray out;  // the space dims
  bool corners = false;
  int align_mode = 1;
  std::vector<float> scale = {};
  DType dtype = DType::float32;
};

/// An interpolation and its gradient.
void check_interpolation(const Interpolated& c, const std::string& format = "NCHW") {
  const auto size = [&](size_t from_last) {
    return from_last > c.out.size() ? 0 : static_cast<int>(c.out[c.out.size() - from_last]);
  };
  const int d = size(3), h = size(2), w = size(1);
  const bool last = format.ends_with('C');
  const auto forward = [=](const Tensor& x) {
    return nearest_interp(x, {}, {}, {}, format, d, h, w, c.scale, c.method, c.corners, c.align_mode);
  };
  const std::string name = c.method + " of " + to_string(c.x) + " to " + to_string(forward(numbers(c.x)).dims());
  check_call({name, {c.x}, [=](const Tensors& t) { return Tensors{forward(t[0])}; }, SIZE_MAX, c.dtype}, last);
  check_call({"gradient of " + name,
              {c.x, forward(numbers(c.x)).dims()},
              [=](const Tensors& t) {
                return Tensors{nearest_interp_grad(t[0], {}, {}, {}, t[1], format, d, h, w, c.scale, c.method,
                                                   c.corners, c.align_mode)};
              },
              SIZE_MAX,
              c.dtype},
             last);
}

}  // namespace

TEST_CASE("convolutions of images with sharded space dims are those of one rank") {
  check_conv({"3x3", {2, 3, 8, 7}, {4, 3, 3, 3}, {1, 1}, {1, 1}});
  check_conv({"3x3 with stride 2", {2, 2, 9, 8}, {3, 2, 3, 3}, {2, 2}, {1, 1}});
  check_conv({"a 1x1 filter with stride 2", {2, 2, 9, 8}, {3, 2, 1, 1}, {2, 2}, {0, 0}});
  check_conv({"strides that skip elements", {2, 2, 13, 11}, {3, 2, 2, 1}, {4, 3}, {0, 0}});
  check_conv({"filters larger than shards", {2, 2, 9, 7}, {2, 2, 7, 5}, {1, 1}, {3, 2}});
  check_conv({"few outputs of large filters", {2, 2, 10, 9}, {2, 2, 9, 8}, {1, 1}, {0, 0}});
  check_conv({"dilations", {2, 2, 9, 11}, {2, 2, 3, 3}, {1, 2}, {2, 1}, "EXPLICIT", {2, 3}});
  check_conv({"SAME", {2, 2, 7, 10}, {2, 2, 3, 4}, {2, 3}, {0, 0}, "SAME"});
  check_conv({"VALID", {2, 2, 7, 10}, {2, 2, 3, 4}, {2, 1}, {0, 0}, "VALID"});
  check_conv({"uneven padding", {2, 2, 6, 7}, {2, 2, 3, 3}, {1, 2}, {2, 0, 1, 3}});
  check_conv({"more padding than filter", {2, 2, 3, 4}, {2, 2, 2, 1}, {1, 1}, {4, 3}});
  check_conv({"fewer rows than ranks", {2, 2, 2, 5}, {2, 2, 3, 3}, {1, 1}, {2, 1}});
  check_conv({"two groups", {2, 4, 6, 5}, {6, 2, 3, 3}, {1, 1}, {1, 1}, "EXPLICIT", {1, 1}, 2});
  check_conv({"each channel alone", {2, 3, 6, 5}, {3, 1, 3, 3}, {1, 1}, {1, 1}, "EXPLICIT", {1, 1}, 3});
  check_conv({"bfloat16", {2, 2, 6, 5}, {2, 2, 3, 3}, {1, 1}, {1, 1}, "EXPLICIT", {1, 1}, 1, DType::bfloat16});
  check_conv({"float64", {2, 2, 6, 5}, {2, 2, 3, 3}, {2, 1}, {1, 1}, "EXPLICIT", {1, 1}, 1, DType::float64});
  check_conv({"channels last", {2, 7, 6, 3}, {2, 3, 3, 3}, {1, 2}, {1, 1}}, "NHWC");
}

TEST_CASE("convolutions of volumes with sharded space dims are those of one rank") {
  check_conv({"3d", {1, 2, 4, 5, 6}, {2, 2, 3, 2, 3}, {1, 1, 2}, {1, 0, 1}, "EXPLICIT", {1, 1, 1}}, "NCDHW");
  check_conv({"3d, channels last", {1, 4, 5, 6, 2}, {2, 2, 1, 3, 2}, {2, 1, 1}, {0, 1, 0}, "EXPLICIT", {1, 2, 1}},
             "NDHWC");
}

TEST_CASE("pooling of images with sharded space dims is that of one rank") {
  for (const std::string type : {"max", "avg"}) {
    check_pool({type + " 3x3", type, {2, 2, 8, 7}, {3, 3}, {1, 1}, {1, 1}});
    check_pool({type + " with stride 2", type, {2, 2, 9, 8}, {3, 2}, {2, 2}, {1, 0}});
    check_pool({type + " with padding that counts", type, {2, 2, 7, 8}, {3, 4}, {2, 3}, {1, 2}, false, false});
    check_pool({type + " in ceil mode", type, {2, 2, 8, 10}, {3, 3}, {2, 3}, {0, 1}, true});
    check_pool({type + " with strides that skip elements", type, {2, 2, 11, 13}, {2, 1}, {3, 4}, {0, 0}});
    check_pool({type + " larger than shards", type, {2, 2, 8, 7}, {6, 5}, {1, 1}, {2, 2}});
    check_pool({type + " SAME", type, {2, 2, 7, 8}, {3, 2}, {2, 3}, {0, 0}, false, true, false, "SAME"});
    check_pool({type + ", adaptive", type, {2, 2, 10, 7}, {4, 5}, {1, 1}, {0, 0}, false, true, true});
    check_pool({type + ", adaptive to more", type, {2, 2, 3, 4}, {5, 9}, {1, 1}, {0, 0}, false, true, true});
    check_pool({type + " of fewer rows than ranks", type, {2, 2, 2, 5}, {2, 2}, {1, 1}, {1, 0}});
    check_pool({type + ", channels last", type, {2, 8, 7, 3}, {3, 2}, {2, 1}, {1, 0}}, "NHWC");
    check_pool({type + " 3d", type, {1, 2, 4, 5, 6}, {2, 3, 2}, {1, 2, 1}, {0, 1, 0}}, "NCDHW");
  }
}

TEST_CASE("transposed convolutions of images with sharded space dims are those of one rank") {
  const IntArray none = {};
  check_transposed({"3x3", {2, 3, 8, 7}, {3, 4, 3, 3}, {1, 1}, {1, 1}});
  check_transposed({"stride 2", {2, 2, 5, 4}, {2, 3, 4, 3}, {2, 2}, {1, 1}});
  check_transposed({"output_padding", {2, 2, 5, 4}, {2, 3, 3, 3}, {3, 2}, {1, 0}, {2, 1}});
  check_transposed({"output_size", {2, 2, 5, 4}, {2, 3, 3, 2}, {2, 3}, {0, 1}, none, {12, 11}});
  check_transposed({"strides beyond the filter", {2, 2, 5, 6}, {2, 3, 2, 1}, {4, 3}, {0, 0}, {3, 2}});
  check_transposed({"filters larger than shards", {2, 2, 6, 5}, {2, 2, 7, 5}, {1, 1}, {3, 2}});
  check_transposed({"padding that leaves little", {2, 2, 6, 7}, {2, 2, 2, 3}, {1, 1}, {2, 3}});
  check_transposed({"dilations", {2, 2, 6, 5}, {2, 2, 3, 3}, {1, 2}, {2, 1}, none, none, "EXPLICIT", {2, 3}});
  check_transposed({"SAME", {2, 2, 7, 5}, {2, 2, 3, 4}, {2, 3}, {0, 0}, none, none, "SAME"});
  check_transposed({"uneven padding", {2, 2, 6, 7}, {2, 2, 4, 3}, {1, 2}, {2, 0, 1, 0}});
  check_transposed({"fewer rows than ranks", {2, 2, 2, 5}, {2, 2, 3, 3}, {1, 1}, {0, 1}});
  check_transposed({"two groups", {2, 4, 6, 5}, {4, 3, 3, 3}, {2, 1}, {1, 1}, none, none, "EXPLICIT", {1, 1}, 2});
  check_transposed({"each channel alone", {2, 3, 6, 5}, {3, 1, 3, 3}, {2, 1}, {1, 1}, none, none, "VALID", {1, 1}, 3});
  check_transposed(
      {"bfloat16", {2, 2, 6, 5}, {2, 2, 3, 3}, {1, 1}, {1, 1}, none, none, "EXPLICIT", {1, 1}, 1, DType::bfloat16});
  check_transposed({"channels last", {2, 7, 6, 3}, {3, 4, 3, 3}, {1, 2}, {1, 1}}, "NHWC");
  check_transposed(
      {"3d", {1, 2, 4, 5, 3}, {2, 2, 3, 2, 3}, {1, 2, 2}, {1, 0, 1}, {0, 1, 0}, none, "EXPLICIT", {1, 1, 1}});
  check_transposed(
      {"3d, channels last", {1, 4, 5, 3, 2}, {2, 2, 1, 3, 2}, {2, 1, 1}, {0, 1, 0}, none, none, "EXPLICIT", {1, 2, 1}},
      "NDHWC");
}

TEST_CASE("max pooling of images with sharded space dims has places in the whole image") {
  check_index_pool("3x3", {2, 2, 8, 7}, {3, 3}, {1, 1}, {1, 1});
  check_index_pool("stride 2", {2, 2, 9, 8}, {3, 2}, {2, 2}, {1, 0});
  check_index_pool("strides that skip elements", {2, 2, 11, 13}, {2, 1}, {3, 4}, {0, 0});
  check_index_pool("larger than shards", {2, 2, 8, 7}, {6, 5}, {1, 1}, {2, 2});
  check_index_pool("adaptive", {2, 2, 10, 7}, {4, 5}, {1, 1}, {0, 0}, true);
  check_index_pool("fewer rows than ranks", {2, 2, 2, 5}, {2, 2}, {1, 1}, {1, 0});
  check_index_pool("3d", {1, 2, 4, 5, 6}, {2, 3, 2}, {1, 2, 1}, {0, 1, 0});
}

TEST_CASE("interpolation of images with sharded space dims is that of one rank") {
  for (const std::string method : {"nearest", "bilinear", "bicubic"}) {
    for (const bool corners : {true, false}) {
      check_interpolation({method, {2, 2, 8, 7}, {13, 9}, corners});
      check_interpolation({method, {2, 2, 13, 11}, {5, 4}, corners});
      check_interpolation({method, {2, 2, 2, 5}, {7, 3}, corners});  // fewer rows than ranks
    }
    check_interpolation({method, {2, 2, 7, 5}, {}, false, 0, {2.0F, 1.5F}});
    check_interpolation({method, {2, 2, 12, 13}, {}, false, 0, {0.3F}});
    check_interpolation({method, {2, 7, 5, 3}, {10, 12}, false, 0}, "NHWC");
    check_interpolation({method, {2, 2, 7, 5}, {9, 8}, false, 1, {}, DType::float16});
  }
  for (const std::string method : {"nearest", "trilinear"})
    check_interpolation({method, {1, 2, 4, 5, 3}, {6, 4, 7}, false, 0}, "NCDHW");
}

TEST_CASE("a place in a mask that is not in the window of its element is an error that says where it is") {
  const auto gradient = [](const Tensor& x, const Tensor& mask, const Tensor& grad) {
    max_pool2d_with_index_grad(x, mask, grad, {2, 2}, {2, 2}, {0, 0}, false, false);
    max_pool2d_with_index_double_grad(x, mask, x, {2, 2}, {2, 2}, {0, 0}, false, false);
  };
  std::vector<int32_t> places = {0, 2, 8, 10, 16, 18};  // of an image of 6 x 4 elements
  const Tensor x = numbers({1, 1, 6, 4}), grad = numbers({1, 1, 3, 2});
  gradient(x, Tensor::from_data(places, grad.dims()), grad);
  for (const int32_t wrong : {-1, 24, 1, 8, 14}) {  // beside the window of element [0, 0, 2, 1]
    places.back() = wrong;
    const Tensor mask = Tensor::from_data(places, grad.dims());
    const std::string expected = "mask is " + std::to_string(wrong) + " at element [0, 0, 2, 1], but must be";
    CHECK_THAT(error_of([&] { gradient(x, mask, grad); }, ErrorCode::out_of_range), Catch::Contains(expected));
  }
}

TEST_CASE("a convolution sends the rows that windows read of neighbours, and its plan says so") {
  run_ranks(3, [](Rank& rank) {
    const ProcessMesh* const mesh = ProcessMesh::make({3}, {}, {"a"});
    const DistSpec* const rows = DistSpec::parse(mesh, "-, -, a, -");
    const Tensor x = distribute(numbers({2, 4, 9, 5}), rows), grad = distribute(numbers({2, 6, 9, 5}), rows);
    const Tensor filter = distribute(numbers({6, 4, 3, 3}), DistSpec::replicated(mesh, 4));
    std::vector<CallRecord> records;
    rank.observer = [&](const CallRecord& record) { records.push_back(record); };
    const auto sends = [&](const std::function<void()>& call, int64_t bytes_of_row) {
      const int64_t before = rank.stats().bytes_sent;
      call();
      const int64_t sent = rank.stats().bytes_sent - before, neighbours = rank.id() == 1 ? 2 : 1;
      check(sent == neighbours * bytes_of_row, "sent " + std::to_string(sent));
      check(records.back().bytes == 4 * bytes_of_row, "planned " + std::to_string(records.back().bytes));
    };
    const int64_t row_of_x = 2 * 4 * 5 * 4, row_of_grad = 2 * 6 * 5 * 4;
    sends([&] { conv2d(x, filter, {1, 1}, {1, 1}); }, row_of_x);
    sends([&] { conv2d_grad(x, filter, grad, {1, 1}, {1, 1}, "EXPLICIT", {1, 1}, 1, "NCHW"); }, row_of_x + row_of_grad);
    sends([&] { pool2d(x, {3, 3}, {1, 1}, {1, 1}, false, true, "NCHW", "avg"); }, row_of_x);
    sends([&] { conv2d(x, distribute(numbers({6, 4, 1, 3}), DistSpec::replicated(mesh, 4)), {1, 1}, {0, 1}); }, 0);
    sends([&] { pool2d(x, {3, 3}, {3, 3}, {0, 0}, false, true, "NCHW", "max"); }, 0);
    sends(
        [&] {
          conv2d_transpose(x, distribute(numbers({4, 6, 3, 3}), DistSpec::replicated(mesh, 4)), {1, 1}, {1, 1});
        },
        row_of_x);
    const Tensor wide = distribute(numbers({2, 4, 18, 10}), rows),
                 filters = distribute(numbers({4, 6, 3, 3}), DistSpec::replicated(mesh, 4));
    sends(
        [&] {
          conv2d_transpose_grad(x, filters, grad, {1, 1}, {1, 1}, {}, {}, "EXPLICIT", 1, {1, 1}, "NCHW");
        },
        row_of_grad);
    sends([&] { max_pool2d_with_index(x, {3, 3}, {1, 1}, {1, 1}); }, row_of_x);
    const Tensor mask = std::get<1>(max_pool2d_with_index(x, {3, 3}, {1, 1}, {1, 1}));
    sends([&] { max_pool2d_with_index_grad(x, mask, x, {3, 3}, {1, 1}, {1, 1}, false, false); }, 2 * row_of_x);
    sends([&] { max_pool2d_with_index_double_grad(x, mask, x, {3, 3}, {1, 1}, {1, 1}, false, false); }, row_of_x);
    const auto twice = [&](const Tensor& t, const std::string& method) {
      bilinear_interp(t, {}, {}, {}, "NCHW", 0, 18, 10, {}, method, false, 0);
    };
    sends([&] { twice(x, "bilinear"); }, row_of_x);
    sends([&] { twice(x, "bicubic"); }, 2 * row_of_x);
    sends([&] { twice(x, "nearest"); }, 0);
    sends([&] { bilinear_interp_grad(x, {}, {}, {}, wide, "NCHW", 0, 18, 10, {}, "bilinear", false, 0); },
          2 * row_of_x);
    rank.observer = {};
    const PolicyScope forbid(rank, {.comm = CommPolicy::forbid});
    check_contains(error_of(
                       [&] {
                         conv2d(x, filter, {1, 1}, {1, 1});
                       },
                       ErrorCode::policy),
                   "the kernel fetches elements over a: exchange 640 B");
  });
}

}  // namespace halo_test
