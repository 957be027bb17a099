// Pooling and interpolation whose windows take the other kernels of CUDA: a warp for an element, numbers of 64 bits; and masks that are
// wrong.
#include "image_case.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "with_cudnn.h"

namespace pool_test {

using namespace shard;
using namespace shard::test;

namespace {

struct Case {
  const char* name;
  Dims x;  // with the channels before the space dims
  IntArray size, strides, paddings;
  bool ceil = false, exclusive = true, global = false, adaptive = false;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"overlapping windows", {2, 3, 9, 8}, {3, 2}, {2, 1}, {1, 1}, true, false},
      {"large windows, each by a warp", {2, 2, 20, 19}, {9, 11}, {1, 2}, {3, 4}},
      {"whole images", {3, 2, 17, 9}, {1, 1}, {1, 1}, {0, 0}, false, true, true},
      {"adaptive windows", {2, 3, 11, 7}, {4, 5}, {1, 1}, {0, 0}, false, true, false, true},
      {"adaptive windows, fewer than elements", {1, 2, 40, 40}, {2, 3}, {1, 1}, {0, 0}, false, true, false, true},
      {"numbers of 64 bits", {2, 2, 5, 6}, {2, 2}, {int64_t{1} << 30, 1}, {0, 1}, false, false},
      {"volumes", {2, 2, 5, 6, 7}, {2, 3, 3}, {1, 2, 2}, {1, 0, 1}, true},
  };
  return list;
}

Tensors pooled(const Case& one, const std::string& format, const std::string& type, const Tensors& t) {
  if (one.x.rank() == 4)
    return {pool2d(t[0], one.size, one.strides, one.paddings, one.ceil, one.exclusive, format, type, one.global,
                   one.adaptive)};
  return {pool3d(t[0], one.size, one.strides, one.paddings, one.ceil, one.exclusive, format, type, one.global,
                 one.adaptive)};
}

/// The gradient, and the gradient of that for t[2].
Tensors pooled_back(const Case& one, const std::string& format, const std::string& type, const Tensors& t) {
  if (one.x.rank() == 4)
    return {pool2d_grad(t[0], t[1], one.size, one.strides, one.paddings, one.ceil, one.exclusive, format, type,
                        one.global, one.adaptive),
            pool2d_double_grad(t[0], t[2], one.size, one.strides, one.paddings, one.ceil, one.exclusive, format, type,
                               one.global, one.adaptive)};
  return {pool3d_grad(t[0], t[1], one.size, one.strides, one.paddings, one.ceil, one.exclusive, format, type,
                      one.global, one.adaptive),
          pool3d_double_grad(t[0], t[2], one.size, one.strides, one.paddings, one.ceil, one.exclusive, format, type,
                             one.global, one.adaptive)};
}

/// max_pool2d_with_index or max_pool3d_with_index, and its gradients.
Tensors indexed(const Case& one, const Tensors& t) {
  if (one.x.rank() == 4) {
    const auto [out, mask] = max_pool2d_with_index(t[0], one.size, one.strides, one.paddings, one.global, one.adaptive);
    return {out, mask,
            max_pool2d_with_index_grad(t[0], mask, out, one.size, one.strides, one.paddings, one.global, one.adaptive),
            max_pool2d_with_index_double_grad(t[0], mask, t[1], one.size, one.strides, one.paddings, one.global,
                                              one.adaptive)};
  }
  const auto [out, mask] = max_pool3d_with_index(t[0], one.size, one.strides, one.paddings, one.global, one.adaptive);
  return {out, mask,
          max_pool3d_with_index_grad(t[0], mask, out, one.size, one.strides, one.paddings, one.global, one.adaptive),
          max_pool3d_with_index_double_grad(t[0], mask, t[1], one.size, one.strides, one.paddings, one.global,
                                            one.adaptive)};
}

/// Elements of few values, of which many are equal, and two that are not numbers.
DenseTensor ties(const Dims& dims, DType dtype) {
  DenseTensor x = random_tensor(dims, dtype, 5);
  if (dtype == DType::float32) x.data<float>()[x.numel() / 2] = x.data<float>()[x.numel() / 2 + 1] = NAN;
  return x;
}

/// Compares a pooling and its gradients with those of the host.
void check_case(Device device, const Case& one, bool last, const char* type, DType dtype) {
  INFO(one.name << ", " << type << (last ? ", channels last" : "") << ", dtype " << int(dtype));
  const std::string format = one.x.rank() == 5 ? (last ? "NDHWC" : "NCDHW") : (last ? "NHWC" : "NCHW");
  const auto forward = [&](const Tensors& t) { return pooled(one, format, type, t); };
  const DenseTensor x = ties(last ? channels_last(one.x) : one.x, dtype);
  compare_op(device, {x}, forward);
  const DenseTensor grad = like_result({x}, forward, 3), second = random_tensor(x.dims(), dtype, 4);
  compare_op(device, {x, grad, second}, [&](const Tensors& t) { return pooled_back(one, format, type, t); });
}

}  // namespace

TEST_CASE("pooling and its gradients are those of the host, for each of their kernels", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Case& one : cases()) {
    for (const bool last : {false, true}) {
      for (const char* type : {"max", "avg"}) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64})
          check_case(*device, one, last, type, dtype);
      }
    }
  }
}

TEST_CASE("pooling by cuDNN, where it is found, and its gradients are those of the host") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  for (Case one : cases()) {
    one.ceil = false;
    for (const bool last : {false, true}) {
      for (const char* type : {"max", "avg"}) {
        for (const DType dtype : {DType::float32, DType::bfloat16}) check_case(*device, one, last, type, dtype);
      }
    }
  }
}

TEST_CASE("means by cuDNN, where it is found, and their gradients are those of the host at any address") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const DenseTensor x = random_tensor({2 * 3 * 4 * 6 + 1}, DType::float32, 1),
                    grad = random_tensor({2 * 3 * 2 * 3 + 1}, DType::float32, 2);
  for (const size_t x_offset : {0u, 4u}) {
    for (const size_t grad_offset : {0u, 4u}) {
      compare_op(*device, {x, grad}, [&](const Tensors& t) {
        const Tensor images(DenseTensor(t[0].get().value.storage(), {{2, 3, 4, 6}, DType::float32}, x_offset)),
            grads(DenseTensor(t[1].get().value.storage(), {{2, 3, 2, 3}, DType::float32}, grad_offset));
        const IntArray size = {2, 2}, paddings = {0, 0};
        return Tensors{pool2d(images, size, size, paddings, false, true, "NCHW", "avg"),
                       pool2d_grad(images, grads, size, size, paddings, false, true, "NCHW", "avg", false, false)};
      });
    }
  }
}

TEST_CASE("the largest element of a window that has only -inf is -inf, on the device and the host") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    for (const bool last : {false, true}) {
      const auto pool = [&](const Tensors& t) {
        const Tensor x = cast(t[0], dtype);
        return Tensors{
            cast(pool2d(x, {2, 3}, {2, 3}, {0, 0}, false, true, last ? "NHWC" : "NCHW", "max"), DType::float64)};
      };
      DenseTensor x = random_tensor(last ? Dims{1, 4, 6, 2} : Dims{1, 2, 4, 6}, DType::float64, 1);
      std::fill(x.data<double>(), x.data<double>() + x.numel(), -INFINITY);
      for (const Device at : {kCpu, *device}) {
        INFO("dtype " << int(dtype) << (last ? ", channels last" : "") << (at == kCpu ? ", host" : ", device"));
        const DenseTensor out = results_on(at, {x}, pool)[0];
        CHECK(std::count(out.data<double>(), out.data<double>() + out.numel(), -INFINITY) == 8);
      }
    }
  }
}

TEST_CASE("places of maxima and their gradients are those of the host") {
  const auto device = cuda_device();
  if (!device) return;
  for (Case one : cases()) {
    INFO(one.name);
    one.ceil = false;
    const DenseTensor x = ties(one.x, DType::float32), second = random_tensor(one.x, DType::float32, 4);
    compare_op(*device, {x, second}, [&](const Tensors& t) { return indexed(one, t); });
  }
}

TEST_CASE("a mask with a place outside of its window is the error of the CPU, at the next copy to the host") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({1, 2, 4, 4}, DType::float32, 1),
                    grad = random_tensor({1, 2, 2, 2}, DType::float32, 2);
  for (const int32_t wrong : {-1, 2, 16, 1 << 30}) {
    const DenseTensor mask = DenseTensor::allocate(kCpu, {{1, 2, 2, 2}, DType::int32});
    const std::vector<int32_t> places = {0, 3, 9, 15, 5, wrong, 8, 10};
    std::copy(places.begin(), places.end(), mask.data<int32_t>());
    for (const bool second : {false, true}) {
      const auto run = [&](Device at) {
        return results_on(at, {x, mask, second ? x : grad}, [&](const Tensors& t) {
          if (second) return Tensors{max_pool2d_with_index_double_grad(t[0], t[1], t[2], {2, 2}, {2, 2})};
          return Tensors{max_pool2d_with_index_grad(t[0], t[1], t[2], {2, 2}, {2, 2})};
        });
      };
      const bool is_place = wrong == 2;  // in the window of element 5
      const auto text = [&](Device at) {
        try {
          run(at);
        } catch (const Error& error) { return std::string(error.what()); }
        return std::string();
      };
      CHECK(text(kCpu).empty() == is_place);
      CHECK(text(*device) == text(kCpu));
    }
  }
}

TEST_CASE("interpolation to much larger images adds up gradients by warps") {
  const auto device = cuda_device();
  if (!device) return;
  for (const char* format : {"NCHW", "NHWC"}) {
    for (const bool aligned : {false, true}) {
      INFO(format << aligned);
      const bool last = std::string(format) == "NHWC";
      const DenseTensor x = random_tensor(last ? Dims{2, 2, 3, 5} : Dims{2, 5, 2, 3}, DType::float32, 1),
                        grad = random_tensor(last ? Dims{2, 31, 29, 5} : Dims{2, 5, 31, 29}, DType::float32, 2);
      compare_op(*device, {x, grad}, [&](const Tensors& t) {
        return Tensors{
            bilinear_interp(t[0], {}, {}, {}, format, 0, 31, 29, {}, "bilinear", aligned, 0),
            bilinear_interp_grad(t[0], {}, {}, {}, t[1], format, 0, 31, 29, {}, "bilinear", aligned, 0),
            bicubic_interp(t[0], {}, {}, {}, format, 0, 31, 29, {}, "bicubic", aligned, 0),
            bicubic_interp_grad(t[0], {}, {}, {}, t[1], format, 0, 31, 29, {}, "bicubic", aligned, 0),
            nearest_interp(t[1], {}, {}, {}, format, 0, 5, 3, {}, "nearest", aligned, 0),
        };
      });
    }
  }
}

TEST_CASE("pooling and interpolation of sharded images fetch what they read on the device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  const auto pooling = [](const char* type) {
    return [type](const Tensor& x) {
      const Tensor out = pool2d(x, {3, 3}, {2, 1}, {1, 1}, false, true, "NCHW", type);
      return Tensors{out, pool2d_grad(x, out, {3, 3}, {2, 1}, {1, 1}, false, true, "NCHW", type),
                     pool2d_double_grad(x, x, {3, 3}, {2, 1}, {1, 1}, false, true, "NCHW", type)};
    };
  };
  const auto with_index = [](const Tensor& x) {
    const auto [out, mask] = max_pool2d_with_index(x, {3, 2}, {2, 2});
    return Tensors{out, mask, max_pool2d_with_index_grad(x, mask, out, {3, 2}, {2, 2}),
                   max_pool2d_with_index_double_grad(x, mask, x, {3, 2}, {2, 2})};
  };
  const auto larger = [](const Tensor& x) {
    const Tensor out = bicubic_interp(x, {}, {}, {}, "NCHW", 0, 16, 9, {}, "bicubic", false, 0);
    return Tensors{out, bicubic_interp_grad(x, {}, {}, {}, out, "NCHW", 0, 16, 9, {}, "bicubic", false, 0)};
  };
  for (const std::function<Tensors(const Tensor&)>& ops :
       {std::function<Tensors(const Tensor&)>(pooling("max")), {pooling("avg")}, {with_index}, {larger}}) {
    run_ranks(3, [&](Rank&) {
      const auto run = [&](Device at) {
        const Tensor x = distribute(Tensor(copy_to(at, random_tensor({2, 2, 11, 7}, DType::float32, 1))),
                                    DistSpec::parse(mesh, "-, -, p, -"));
        std::vector<DenseTensor> whole;
        for (const Tensor& each : ops(x)) whole.push_back(copy_to(kCpu, full_tensor(each).get().value));
        return whole;
      };
      const std::vector<DenseTensor> actual = run(*device), expected = run(kCpu);
      for (size_t i = 0; i < actual.size(); ++i) {
        const std::string text = testing::difference(actual[i], expected[i]);
        check(text.empty(), "result " + std::to_string(i) + ": " + text);
      }
    });
  }
}

}  // namespace pool_test
