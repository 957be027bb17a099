// Cases of the ops of image.yaml.
#include "shard/ops/api.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

/// An interpolation: its function, its gradient, and its attributes. tests/conformance/reference_image.py reads them from
/// the name of the case.
struct Interpolated {
  const char* op;
  const char* name;
  decltype(&linear_interp) forward;
  decltype(&linear_interp_grad) backward;
  const char* method;
  bool channels_last;
  IntArray in, out;  // the space dims
  std::vector<float> scale;
  bool align_corners;
  int align_mode;
};

Dims image(const Interpolated& one, int64_t n, int64_t c, const IntArray& space) {
  Dims dims = {n};
  if (!one.channels_last) dims.push_back(c);
  for (const int64_t size : space) dims.push_back(size);
  if (one.channels_last) dims.push_back(c);
  return dims;
}

int size_of(const Interpolated& one, size_t from_last) {
  if (!one.scale.empty() || from_last > one.out.size()) return 0;
  return static_cast<int>(one.out[one.out.size() - from_last]);
}

void add_case(OpCases& cases, const Interpolated& one) {
  const std::string format = one.channels_last ? "NHWC" : "NCHW";
  const int d = size_of(one, 3), h = size_of(one, 2), w = size_of(one, 1);
  const auto make = [=](bool gradient, const std::function<Tensors(Tensors&)>& run) {
    return [=](Draw& draw) {
      const int64_t n = draw.size(), c = draw.size();
      std::vector<CaseInput> inputs = {draw.input(image(one, n, c, one.in))};
      if (gradient) inputs.push_back(draw.input(image(one, n, c, one.out)));
      return CaseCall{inputs, run};
    };
  };
  cases.push_back({one.op, one.name, kFloats, make(false, [=](Tensors& t) {
                     return Tensors{one.forward(t[0], {}, {}, {}, format, d, h, w, one.scale, one.method,
                                                one.align_corners, one.align_mode, CallSite())};
                   })});
  cases.push_back({std::string(one.op) + "_grad", one.name, kFloats, make(true, [=](Tensors& t) {
                     return Tensors{one.backward(t[0], {}, {}, {}, t[1], format, d, h, w, one.scale, one.method,
                                                 one.align_corners, one.align_mode, CallSite())};
                   })});
}

}  // namespace

void add_image_cases(OpCases& cases) {
  add_case(cases, {"linear_interp",
                   "linear 3 to 5, corners aligned",
                   &linear_interp,
                   &linear_interp_grad,
                   "linear",
                   false,
                   {3},
                   {5},
                   {},
                   true,
                   1});
  add_case(cases, {"linear_interp",
                   "linear 4 to 3, middles, channels last",
                   &linear_interp,
                   &linear_interp_grad,
                   "linear",
                   true,
                   {4},
                   {3},
                   {},
                   false,
                   0});
  add_case(cases, {"bilinear_interp",
                   "bilinear 2 3 to 4 5, corners aligned",
                   &bilinear_interp,
                   &bilinear_interp_grad,
                   "bilinear",
                   false,
                   {2, 3},
                   {4, 5},
                   {},
                   true,
                   1});
  add_case(cases, {"bilinear_interp",
                   "bilinear 3 2 to 6 3, middles, scale 2 1.5",
                   &bilinear_interp,
                   &bilinear_interp_grad,
                   "bilinear",
                   false,
                   {3, 2},
                   {6, 3},
                   {2.0F, 1.5F},
                   false,
                   0});
  add_case(cases, {"bilinear_interp",
                   "bilinear 4 3 to 2 2, channels last",
                   &bilinear_interp,
                   &bilinear_interp_grad,
                   "bilinear",
                   true,
                   {4, 3},
                   {2, 2},
                   {},
                   false,
                   1});
  add_case(cases, {"trilinear_interp",
                   "trilinear 2 2 3 to 3 1 4, middles",
                   &trilinear_interp,
                   &trilinear_interp_grad,
                   "trilinear",
                   false,
                   {2, 2, 3},
                   {3, 1, 4},
                   {},
                   false,
                   0});
  add_case(cases, {"bicubic_interp",
                   "bicubic 3 4 to 5 3, middles",
                   &bicubic_interp,
                   &bicubic_interp_grad,
                   "bicubic",
                   false,
                   {3, 4},
                   {5, 3},
                   {},
                   false,
                   1});
  add_case(cases, {"bicubic_interp",
                   "bicubic 4 3 to 3 5, corners aligned, channels last",
                   &bicubic_interp,
                   &bicubic_interp_grad,
                   "bicubic",
                   true,
                   {4, 3},
                   {3, 5},
                   {},
                   true,
                   1});
  add_case(cases, {"nearest_interp",
                   "nearest 3 2 to 5 4",
                   &nearest_interp,
                   &nearest_interp_grad,
                   "nearest",
                   false,
                   {3, 2},
                   {5, 4},
                   {},
                   false,
                   1});
  add_case(cases, {"nearest_interp",
                   "nearest 5 to 3, corners aligned",
                   &nearest_interp,
                   &nearest_interp_grad,
                   "nearest",
                   false,
                   {5},
                   {3},
                   {},
                   true,
                   1});
  add_case(cases, {"nearest_interp",
                   "nearest 2 1 2 to 4 2 4, scale 2, channels last",
                   &nearest_interp,
                   &nearest_interp_grad,
                   "nearest",
                   true,
                   {2, 1, 2},
                   {4, 2, 4},
                   {2.0F},
                   false,
                   1});
}

}  // namespace shard::testing
