// Cases of the ops of conv.yaml and of their gradients. Space dims are fixed, so that images and results fit.
#include "shard/ops/conv.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

Dims image(bool last, int64_t n, int64_t c, std::initializer_list<int64_t> space) {
  Dims dims{n};
  if (!last) dims.push_back(c);
  for (const int64_t size : space) dims.push_back(size);
  if (last) dims.push_back(c);
  return dims;
}

/// A convolution and its gradient. `inputs` draws the image, the filter and, for the gradient, the result.
using Inputs = std::function<std::vector<CaseInput>(Draw&)>;
using Run = std::function<Tensors(Tensors&)>;
void add_pair(OpCases& cases, const std::string& op, const std::string& name, const Inputs& inputs, const Run& forward,
              const Run& gradient) {
  const auto make = [=](bool grad, const Run& run) {
    return [=](Draw& draw) {
      std::vector<CaseInput> drawn = inputs(draw);
      if (!grad) drawn.pop_back();
      return CaseCall{drawn, run};
    };
  };
  cases.push_back({op, name, kFloats, make(false, forward)});
  cases.push_back({op + "_grad", name, kFloats, make(true, gradient)});
}

void add_convolutions(OpCases& cases) {
  const std::string same = "SAME", given = "EXPLICIT";
  add_pair(
      cases, "conv2d", "strides and padding",
      [](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size(), o = draw.size();
        return std::vector{draw.input({n, c, 4, 3}), draw.input({o, c, 3, 2}), draw.input({n, o, 2, 4})};
      },
      [=](Tensors& t) {
        return Tensors{conv2d(t[0], t[1], {2, 1}, {1, 1})};
      },
      [=](Tensors& t) {
        return tensors_of(conv2d_grad(t[0], t[1], t[2], {2, 1}, {1, 1}, given, {1, 1}, 1, "NCHW"));
      });
  add_pair(
      cases, "conv2d", "channels last, same",
      [](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size(), o = draw.size();
        return std::vector{draw.input({n, 3, 3, c}), draw.input({o, c, 2, 2}), draw.input({n, 2, 2, o})};
      },
      [=](Tensors& t) {
        return Tensors{conv2d(t[0], t[1], {2, 2}, {0, 0}, same, {1, 1}, 1, "NHWC")};
      },
      [=](Tensors& t) {
        return tensors_of(conv2d_grad(t[0], t[1], t[2], {2, 2}, {0, 0}, same, {1, 1}, 1, "NHWC"));
      });
  add_pair(
      cases, "conv2d", "two groups",
      [](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size_above_0(), o = draw.size_above_0();
        return std::vector{draw.input({n, 2 * c, 2, 3}), draw.input({2 * o, c, 2, 2}), draw.input({n, 2 * o, 1, 1})};
      },
      [=](Tensors& t) {
        return Tensors{conv2d(t[0], t[1], {1, 1}, {0, 0}, given, {1, 2}, 2)};
      },
      [=](Tensors& t) {
        return tensors_of(conv2d_grad(t[0], t[1], t[2], {1, 1}, {0, 0}, given, {1, 2}, 2, "NCHW"));
      });
  add_pair(
      cases, "depthwise_conv2d", "one channel in, one out",
      [](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size_above_0();
        return std::vector{draw.input({n, c, 3, 2}), draw.input({c, 1, 2, 2}), draw.input({n, c, 2, 1})};
      },
      [=](Tensors& t) {
        return Tensors{depthwise_conv2d(t[0], t[1], {1, 1}, {0, 0}, given, static_cast<int>(t[0].dims()[1]))};
      },
      [=](Tensors& t) {
        return tensors_of(depthwise_conv2d_grad(t[0], t[1], t[2], {1, 1}, {0, 0}, given,
                                                static_cast<int>(t[0].dims()[1]), {1, 1}, "NCHW"));
      });
  add_pair(
      cases, "conv3d", "padding",
      [](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size(), o = draw.size();
        return std::vector{draw.input({n, c, 2, 2, 3}), draw.input({o, c, 2, 1, 2}), draw.input({n, o, 1, 2, 4})};
      },
      [=](Tensors& t) {
        return Tensors{conv3d(t[0], t[1], {1, 1, 1}, {0, 0, 1})};
      },
      [=](Tensors& t) {
        return tensors_of(conv3d_grad(t[0], t[1], t[2], {1, 1, 1}, {0, 0, 1}, given, 1, {1, 1, 1}, "NCDHW"));
      });
  const auto add_transposed = [&](const char* name, bool last, int groups) {
    const std::string format = last ? "NHWC" : "NCHW";
    add_pair(
        cases, "conv2d_transpose", name,
        [=](Draw& draw) {
          const int64_t n = draw.size(), c = groups * draw.size_above_0(), o = draw.size_above_0();
          return std::vector{draw.input(image(last, n, c, {2, 2})), draw.input({c, o, 2, 2}),
                             draw.input(image(last, n, groups * o, {5, 2}))};
        },
        [=](Tensors& t) {
          return Tensors{conv2d_transpose(t[0], t[1], {2, 2}, {0, 1}, {1, 0}, {}, given, groups, {1, 1}, format)};
        },
        [=](Tensors& t) {
          return tensors_of(
              conv2d_transpose_grad(t[0], t[1], t[2], {2, 2}, {0, 1}, {1, 0}, {}, given, groups, {1, 1}, format));
        });
  };
  add_transposed("one group", false, 1);
  add_transposed("channels last", true, 1);
  add_transposed("two groups", false, 2);
  cases.push_back({"depthwise_conv2d_transpose", "one channel in, one out", kFloats, [](Draw& draw) {
                     const int64_t n = draw.size(), c = draw.size_above_0();
                     return CaseCall{
                         {draw.input({n, c, 2, 2}), draw.input({c, 1, 2, 2})}, [](Tensors& t) {
                           return Tensors{depthwise_conv2d_transpose(t[0], t[1], {2, 2}, {0, 1}, {1, 0}, {}, "EXPLICIT",
                                                                     static_cast<int>(t[0].dims()[1]))};
                         }};
                   }});
  const auto add_transposed_3d = [&](const char* name, bool last, int groups) {
    const std::string format = last ? "NDHWC" : "NCHW";
    const IntArray strides = {1, 2, 2}, paddings = {0, 0, 1}, more = {0, 1, 0}, ones = {1, 1, 1};
    add_pair(
        cases, "conv3d_transpose", name,
        [=](Draw& draw) {
          const int64_t n = draw.size(), c = groups * draw.size_above_0(), o = draw.size_above_0();
          return std::vector{draw.input(image(last, n, c, {2, 2, 2})), draw.input({c, o, 2, 2, 2}),
                             draw.input(image(last, n, groups * o, {3, 5, 2}))};
        },
        [=](Tensors& t) {
          return Tensors{conv3d_transpose(t[0], t[1], strides, paddings, more, {}, given, groups, ones, format)};
        },
        [=](Tensors& t) {
          return tensors_of(
              conv3d_transpose_grad(t[0], t[1], t[2], strides, paddings, more, {}, given, groups, ones, format));
        });
  };
  add_transposed_3d("one group", false, 1);
  add_transposed_3d("channels last", true, 1);
  add_transposed_3d("two groups", false, 2);
}

/// A pooling op, its gradient and the gradient of that, of images of these sizes.
struct PoolCase {
  const char* name;
  const char* type;
  bool last, ceil, exclusive, global, adaptive;
  std::array<int64_t, 2> out;
};

void add_pools(OpCases& cases) {
  for (const PoolCase& one :
       {PoolCase{"max", "max", false, false, true, false, false, {2, 2}},
        PoolCase{"mean of inner elements", "avg", false, true, true, false, false, {3, 3}},
        PoolCase{"mean with padding, channels last", "avg", true, false, false, false, false, {2, 2}},
        PoolCase{"global max, channels last", "max", true, false, true, true, false, {1, 1}},
        PoolCase{"adaptive mean", "avg", false, false, true, false, true, {3, 3}}}) {
    const std::string format = one.last ? "NHWC" : "NCHW", type = one.type, given = "EXPLICIT";
    const IntArray size = {3, 3}, strides = {2, 2}, paddings = {1, 1};
    const auto make = [=](bool of_out, bool of_in, const Run& run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size();
        const CaseInput x = draw.input(image(one.last, n, c, {4, 4})),
                        out = draw.input(image(one.last, n, c, {one.out[0], one.out[1]}));
        std::vector<CaseInput> inputs = {x};
        if (of_out) inputs.push_back(out);
        if (of_in) inputs.push_back(x);
        return CaseCall{inputs, run};
      };
    };
    cases.push_back({"pool2d", one.name, kFloats, make(false, false, [=](Tensors& t) {
                       return Tensors{pool2d(t[0], size, strides, paddings, one.ceil, one.exclusive, format, type,
                                             one.global, one.adaptive)};
                     })});
    cases.push_back({"pool2d_grad", one.name, kFloats, make(true, false, [=](Tensors& t) {
                       return Tensors{pool2d_grad(t[0], t[1], size, strides, paddings, one.ceil, one.exclusive, format,
                                                  type, one.global, one.adaptive, given)};
                     })});
    cases.push_back({"pool2d_double_grad", one.name, kFloats, make(false, true, [=](Tensors& t) {
                       return Tensors{pool2d_double_grad(t[0], t[1], size, strides, paddings, one.ceil, one.exclusive,
                                                         format, type, one.global, one.adaptive, given)};
                     })});
  }
  for (const std::string type : {"max", "avg"}) {
    const std::string format = "NCDHW", given = "EXPLICIT";
    const IntArray size = {2, 1, 2}, strides = {1, 1, 1}, paddings = {0, 0, 0};
    const auto make = [=](bool of_out, bool of_in, const Run& run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size();
        std::vector<CaseInput> inputs = {draw.input({n, c, 2, 2, 3})};
        if (of_out) inputs.push_back(draw.input({n, c, 1, 2, 2}));
        if (of_in) inputs.push_back(inputs[0]);
        return CaseCall{inputs, run};
      };
    };
    cases.push_back({"pool3d", type, kFloats, make(false, false, [=](Tensors& t) {
                       return Tensors{pool3d(t[0], size, strides, paddings, false, true, format, type)};
                     })});
    cases.push_back({"pool3d_grad", type, kFloats, make(true, false, [=](Tensors& t) {
                       return Tensors{pool3d_grad(t[0], t[1], size, strides, paddings, false, true, format, type, false,
                                                  false, given)};
                     })});
    cases.push_back({"pool3d_double_grad", type, kFloats, make(false, true, [=](Tensors& t) {
                       return Tensors{pool3d_double_grad(t[0], t[1], size, strides, paddings, false, true, format, type,
                                                         false, false, given)};
                     })});
  }
}

void add_index_pools(OpCases& cases) {
  const auto add = [&](const char* op, bool deep, const auto& pool, const auto& gradient, const auto& second) {
    const IntArray size = deep ? IntArray{2, 2, 2} : IntArray{2, 2},
                   strides = deep ? IntArray{1, 1, 1} : IntArray{1, 1},
                   paddings = deep ? IntArray{0, 0, 0} : IntArray{0, 0};
    const auto make = [=](bool of_out, bool of_in, const Run& run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size();
        const CaseInput x = draw.input(deep ? Dims{n, c, 2, 3, 2} : Dims{n, c, 3, 2}),
                        out = draw.input(deep ? Dims{n, c, 1, 2, 1} : Dims{n, c, 2, 1});
        std::vector<CaseInput> inputs = {x};
        if (of_out || of_in) inputs.push_back(out.of(DType::int32).between(2, 3));  // places that all windows have
        if (of_out) inputs.push_back(out);
        if (of_in) inputs.push_back(x);
        return CaseCall{inputs, run};
      };
    };
    const std::string name = op;
    cases.push_back({name, "windows of two", kFloats,
                     make(false, false, [=](Tensors& t) { return tensors_of(pool(t[0], size, strides, paddings)); })});
    cases.push_back({name + "_grad", "windows of two", kFloats, make(true, false, [=](Tensors& t) {
                       return Tensors{gradient(t[0], t[1], t[2], size, strides, paddings)};
                     })});
    cases.push_back({name + "_double_grad", "windows of two", kFloats, make(false, true, [=](Tensors& t) {
                       return Tensors{second(t[0], t[1], t[2], size, strides, paddings)};
                     })});
  };
  using T = const Tensor&;
  using I = const IntArray&;
  add(
      "max_pool2d_with_index", false, [](T x, I k, I s, I p) { return max_pool2d_with_index(x, k, s, p); },
      [](T x, T m, T g, I k, I s, I p) { return max_pool2d_with_index_grad(x, m, g, k, s, p, false, false); },
      [](T x, T m, T g, I k, I s, I p) { return max_pool2d_with_index_double_grad(x, m, g, k, s, p, false, false); });
  add(
      "max_pool3d_with_index", true, [](T x, I k, I s, I p) { return max_pool3d_with_index(x, k, s, p); },
      [](T x, T m, T g, I k, I s, I p) { return max_pool3d_with_index_grad(x, m, g, k, s, p, false, false); },
      [](T x, T m, T g, I k, I s, I p) { return max_pool3d_with_index_double_grad(x, m, g, k, s, p, false, false); });
}

}  // namespace

void add_conv_cases(OpCases& cases) {
  add_convolutions(cases);
  add_pools(cases);
  add_index_pools(cases);
}

}  // namespace shard::testing
