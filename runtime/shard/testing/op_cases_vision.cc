// Cases of the ops of vision.yaml and of their gradients.
#include "shard/ops/math.h"
#include "shard/ops/shape.h"
#include "shard/ops/vision.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

/// A call of grid_sample; tests/conformance/reference_vision.py reads its attributes from its name.
struct Sampled {
  std::string name;
  IntArray in, out;  // space dims
  std::string mode, padding;
  bool align;
};

const std::vector<Sampled> kSampled = {
    {"bilinear, zeros, aligned", {3, 5}, {2, 2}, "bilinear", "zeros", true},
    {"bilinear, border", {4, 2}, {3, 1}, "bilinear", "border", false},
    {"bilinear, reflection, aligned", {5, 3}, {2, 2}, "bilinear", "reflection", true},
    {"bilinear, reflection", {2, 4}, {2, 2}, "bilinear", "reflection", false},
    {"nearest, zeros", {4, 2}, {2, 3}, "nearest", "zeros", false},
    {"nearest, border, aligned", {3, 5}, {2, 2}, "nearest", "border", true},
    {"volumes, bilinear, zeros", {2, 4, 2}, {1, 2, 2}, "bilinear", "zeros", false},
    {"volumes, nearest, reflection, aligned", {2, 3, 3}, {2, 1, 2}, "nearest", "reflection", true},
};

Dims with_space(std::initializer_list<int64_t> first, const IntArray& space) {
  Dims dims(first);
  for (const int64_t size : space) dims.push_back(size);
  return dims;
}

/// Places in quarters, which may be far outside: bilinear weights are exact then.
Tensor places(const Tensor& grid) { return scale(grid, 0.25); }

void add_grid_sample(OpCases& cases) {
  for (const Sampled& one : kSampled) {
    const auto make = [=](bool gradient, const std::function<Tensors(Tensors&)>& run) {
      return [=](Draw& draw) {
        const int64_t n = draw.size(), c = draw.size();
        Dims grid = with_space({n}, one.out);
        grid.push_back(static_cast<int64_t>(one.in.size()));
        std::vector<CaseInput> inputs = {draw.input(with_space({n, c}, one.in)), draw.input(grid).between(-7, 7)};
        if (gradient) inputs.push_back(draw.input(with_space({n, c}, one.out)));
        return CaseCall{inputs, run};
      };
    };
    cases.push_back({"grid_sample", one.name, kFloats, make(false, [=](Tensors& t) {
                       return Tensors{grid_sample(t[0], places(t[1]), one.mode, one.padding, one.align)};
                     })});
    cases.push_back({"grid_sample_grad", one.name, kFloats,
                     make(true,
                          [=](Tensors& t) {
                            const auto [x_grad, grid_grad] =
                                grid_sample_grad(t[0], places(t[1]), t[2], one.mode, one.padding, one.align);
                            return Tensors{x_grad, grid_grad};
                          }),
                     64, "gradients of shards of places and of channels are added up in another order"});
  }
}

void add_affine_grid(OpCases& cases) {
  const auto add = [&](const std::string& name, const IntArray& space, bool align) {
    const auto rows = static_cast<int64_t>(space.size());
    cases.push_back({"affine_grid", name, kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input({draw.size(), rows, rows + 1})}, [=](Tensors& t) {
                                         IntArray shape = {t[0].dims()[0], 1};
                                         for (const int64_t size : space) shape.push_back(size);
                                         return Tensors{affine_grid(t[0], shape, align)};
                                       }};
                     }});
  };
  add("images, aligned", {3, 5}, true);
  add("images", {4, 2}, false);
  add("volumes, aligned", {2, 1, 3}, true);
  add("volumes", {1, 2, 4}, false);
}

void add_unpool(OpCases& cases) {
  const auto add = [&](const std::string& name, const IntArray& space, DType integers, int64_t places,
                       const IntArray& size) {
    const auto make = [=](bool gradient, const std::function<Tensors(Tensors&)>& run) {
      return [=](Draw& draw) {
        const Dims dims = {draw.size(), draw.size(), space[0], space[1]};
        const CaseInput x = draw.input(dims), out = draw.input({dims[0], dims[1], 4, 4});
        std::vector<CaseInput> inputs = {x, x.of(integers).between(0, places - 1)};
        if (gradient) inputs.insert(inputs.end(), {out, out});
        return CaseCall{inputs, run};
      };
    };
    const IntArray two = {2, 2}, none = {0, 0}, window = space[0] == 1 ? IntArray{4, 4} : two;
    cases.push_back({"unpool", name, kFloats, make(false, [=](Tensors& t) {
                       return Tensors{unpool(t[0], t[1], window, two, none, size, "NCHW")};
                     })});
    cases.push_back({"unpool_grad", name, kFloats, make(true, [=](Tensors& t) {
                       return Tensors{unpool_grad(t[0], t[1], t[2], t[3], window, two, none, size, "NCHW")};
                     })});
  };
  add("one element, int32", {1, 1}, DType::int32, 16, {});
  add("several at one place", {2, 2}, DType::int64, 16, {4, 4});
}

constexpr int64_t kBoxes = 3;

/// How many boxes two images have, of which the first has `first` [1].
Tensor numbers_of(const Tensor& first) { return concat({first, scale(first, -1, kBoxes)}, 0); }

void add_roi_align(OpCases& cases) {
  const auto add = [&](const std::string& name, float spatial_scale, int ratio, bool aligned) {
    const auto make = [=](bool gradient, const std::function<Tensors(Tensors&)>& run) {
      return [=](Draw& draw) {
        const int64_t channels = draw.size();
        const CaseInput x = draw.input({2, channels, 4, 5}), boxes = draw.input({kBoxes, 4}).between(-2, 9);
        std::vector<CaseInput> inputs = {x, boxes, boxes.of(DType::int32).between(0, kBoxes)};
        inputs[2].dims = {1};
        if (gradient) inputs.push_back(draw.input({kBoxes, channels, 2, 3}));
        return CaseCall{inputs, run};
      };
    };
    cases.push_back({"roi_align", name, kFloats, make(false, [=](Tensors& t) {
                       return Tensors{roi_align(t[0], t[1], numbers_of(t[2]), 2, 3, spatial_scale, ratio, aligned)};
                     })});
    cases.push_back({"roi_align_grad", name, kFloats, make(true, [=](Tensors& t) {
                       return Tensors{
                           roi_align_grad(t[0], t[1], numbers_of(t[2]), t[3], 2, 3, spatial_scale, ratio, aligned)};
                     })});
  };
  add("two places in each dim", 1, 2, false);
  add("half the size, as many places as needed, aligned", 0.5f, -1, true);
}

void add_roi_pool(OpCases& cases) {
  for (const float spatial_scale : {1.0f, 0.5f}) {
    cases.push_back({"roi_pool", spatial_scale == 1 ? "images of one size" : "half the size", kFloats, [=](Draw& draw) {
                       const CaseInput boxes = draw.input({kBoxes, 4}).between(-2, 9);
                       std::vector<CaseInput> inputs = {draw.input({2, draw.size(), 4, 5}), boxes,
                                                        boxes.of(DType::int32).between(0, kBoxes)};
                       inputs[2].dims = {1};
                       return CaseCall{inputs, [=](Tensors& t) {
                                         const auto [out, arg_max] =
                                             roi_pool_intermediate(t[0], t[1], numbers_of(t[2]), 2, 3, spatial_scale);
                                         return Tensors{out, arg_max};
                                       }};
                     }});
  }
}

void add_nms(OpCases& cases) {
  for (const bool half : {true, false}) {
    cases.push_back({"nms", half ? "half" : "any", kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input({draw.size(), 4}).between(0, 4)},
                                       [=](Tensors& t) { return Tensors{nms(t[0], half ? 0.5f : 0.0f)}; }};
                     }});
  }
}

/// A call of box_coder; tests/conformance/reference_vision.py reads its attributes from its name.
struct Coded {
  std::string name;
  bool encode, normalized;
  int axis = 0;
  enum class Variances { tensor, numbers, none } variances;
};

const std::vector<Coded> kCoded = {
    {"encode", true, true, 0, Coded::Variances::none},
    {"encode, a variance for each", true, false, 0, Coded::Variances::tensor},
    {"encode, variances", true, true, 0, Coded::Variances::numbers},
    {"decode", false, false, 0, Coded::Variances::none},
    {"decode, a variance for each", false, true, 0, Coded::Variances::tensor},
    {"decode, axis 1, a variance for each", false, false, 1, Coded::Variances::tensor},
    {"decode, axis 1, variances", false, true, 1, Coded::Variances::numbers},
};

void add_box_coder(OpCases& cases) {
  for (const Coded& one : kCoded) {
    const bool each = one.variances == Coded::Variances::tensor;
    cases.push_back({"box_coder", one.name, kFloats, [=](Draw& draw) {
                       const int64_t n = draw.size(), m = draw.size();
                       const CaseInput prior = draw.input({one.axis == 0 ? m : n, 4});
                       std::vector<CaseInput> inputs = {prior, draw.input(one.encode ? Dims{n, 4} : Dims{n, m, 4})};
                       if (each) inputs.push_back(prior.between(1, 3));
                       return CaseCall{
                           inputs, [=](Tensors& t) {
                             std::vector<float> numbers;
                             if (one.variances == Coded::Variances::numbers) numbers = {0.5f, 0.25f, 2, 1};
                             return Tensors{box_coder(t[0], each ? t[2] : Tensor(), t[1],
                                                      one.encode ? "encode_center_size" : "decode_center_size",
                                                      one.normalized, one.axis, numbers)};
                           }};
                     }});
  }
}

}  // namespace

void add_vision_cases(OpCases& cases) {
  add_affine_grid(cases);
  add_grid_sample(cases);
  add_unpool(cases);
  add_roi_align(cases);
  add_roi_pool(cases);
  add_nms(cases);
  add_box_coder(cases);
}

}  // namespace shard::testing
