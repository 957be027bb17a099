// Ops whose number of results depends on data, counts and decoded sequences on the device: many elements, and errors of data.
#include <functional>
#include <random>
#include <string>

#include "cuda_case.h"

namespace dynamic_test {

using namespace shard;
using namespace shard::test;

namespace {

using In = const DenseTensor&;
using Out = DenseTensor&;
/// A call of a kernel on a device; returns its outputs.
using Call = std::function<std::vector<DenseTensor>(Device)>;

template <class... Arguments>
void call_kernel(const char* name, Device device, DType dtype, std::type_identity_t<Arguments>... arguments) {
  const OpContext ctx{name};
  kernel_table(name).find<void(const OpContext&, Arguments...)>(ctx, device, dtype).function(ctx, arguments...);
}

std::vector<DenseTensor> on_cpu(std::vector<DenseTensor> tensors) {
  for (DenseTensor& tensor : tensors) tensor = copy_to(kCpu, tensor);
  return tensors;
}

void compare(Device device, const Call& call) {
  const std::vector<DenseTensor> expected = on_cpu(call(kCpu)), actual = on_cpu(call(device));
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("output " << i);
    require_close(actual[i], expected[i]);
  }
}

template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "none";
}

/// The device throws the error of the CPU, when it is waited for.
void compare_errors(Device device, const std::string& expected, const Call& call) {
  CHECK(error_of([&] { call(kCpu); }) == expected);
  CHECK(error_of([&] { on_cpu(call(device)); }) == expected);
}

DenseTensor empty(Device device, const Dims& dims, DType dtype) { return DenseTensor::allocate(device, {dims, dtype}); }

template <class T>
DenseTensor of(const std::vector<T>& values, const Dims& dims) {
  const DenseTensor x = DenseTensor::allocate(kCpu, {dims, dtype_of<T>});
  std::copy(values.begin(), values.end(), x.data<T>());
  return x;
}

/// Whole numbers from 0 to most - 1.
template <class T>
DenseTensor numbers(const Dims& dims, int64_t most, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(static_cast<size_t>(dims.numel()));
  for (T& value : values) value = static_cast<T>(random() % static_cast<uint64_t>(most));
  return of(values, dims);
}

}  // namespace

TEST_CASE("elements that are chosen among many keep their order") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Dims& dims : {Dims{50000}, Dims{7, 41, 13}}) {
    const DenseTensor x = random_tensor(dims, DType::float32, 1), mask = random_tensor(dims, DType::boolean, 2);
    compare(*device, [&](Device on) {
      DenseTensor out;
      call_kernel<In, Out>("nonzero", on, x.dtype(), copy_to(on, x), out);
      return std::vector{out};
    });
    compare(*device, [&](Device on) {
      DenseTensor out;
      call_kernel<In, In, Out>("masked_select", on, x.dtype(), copy_to(on, x), copy_to(on, mask), out);
      return std::vector{out};
    });
  }
}

TEST_CASE("unique elements of many, with their first indices, counts and the inverse, are those of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor floats = random_tensor({300, 100}, DType::float32, 3);
  floats.data<float>()[100] = floats.data<float>()[20000] = NAN;
  floats.data<float>()[7] = -0.0f;
  for (const DenseTensor& x : {floats, numbers<int64_t>({20000}, 5000, 4)}) {
    for (const DType dtype : {DType::int32, DType::int64}) {
      compare(*device, [&](Device on) {
        DenseTensor out, indices, counts, inverse = empty(on, {x.numel()}, dtype);
        call_kernel<In, bool, bool, bool, DType, Out, Out, Out, Out>("unique", on, x.dtype(), copy_to(on, x), true,
                                                                     true, true, dtype, out, indices, inverse, counts);
        return std::vector{out, indices, inverse, counts};
      });
    }
  }
}

TEST_CASE("runs of equal rows are found in many short rows and in long ones") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Dims& dims : {Dims{20000}, Dims{9000, 1}, Dims{300, 3, 7}, Dims{200, 16}}) {
    const DenseTensor x = numbers<int32_t>(dims, 2, 5);
    const int64_t width = x.numel() / dims[0];
    for (int64_t row = 1; row < dims[0];
         ++row) {  // about half of the rows are those before them, or differ in the last element
      int32_t* const to = x.data<int32_t>() + row * width;
      if (row % 3 != 0) std::copy_n(to - width, width, to);
      if (row % 3 == 1) to[width - 1] ^= 1;
    }
    compare(*device, [&](Device on) {
      DenseTensor out, counts, index = empty(on, {dims[0]}, DType::int64);
      call_kernel<In, bool, bool, DType, Out, Out, Out>("unique_consecutive_rows", on, x.dtype(), copy_to(on, x), true,
                                                        true, DType::int64, out, index, counts);
      return std::vector{out, index, counts};
    });
  }
}

TEST_CASE("counts and sums of weights of few and many bins are those of the CPU, bit by bit in every run",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t bins : {5, 3000, 70000}) {
    const DenseTensor x = numbers<int32_t>({9000}, bins, 6), weights = random_tensor({9000}, DType::float32, 7);
    const auto count = [&](Device on, const DenseTensor& of_each) {
      DenseTensor out;
      call_kernel<In, In, const Scalar&, Out>("bincount", on, x.dtype(), copy_to(on, x),
                                              of_each.defined() ? copy_to(on, of_each) : of_each, Scalar(10), out);
      return std::vector{out};
    };
    compare(*device, [&](Device on) { return count(on, {}); });
    compare(*device, [&](Device on) { return count(on, weights); });
    for (int64_t i = 0; i < weights.numel(); ++i) weights.data<float>()[i] = 1.0f / static_cast<float>(i + 3);
    const DenseTensor first = copy_to(kCpu, count(*device, weights)[0]),
                      second = copy_to(kCpu, count(*device, weights)[0]);
    CHECK(std::equal(first.data<float>(), first.data<float>() + first.numel(), second.data<float>()));
  }
  for (const auto& [low, high] : {std::pair{0, 0}, std::pair{-1, 1}}) {
    const DenseTensor x = random_tensor({9000}, DType::float32, 8);
    for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] *= 1.0f + static_cast<float>(i) / 3;
    for (const int64_t bins : {7, 6000})
      Kernel<int64_t, int, int>{"histogram"}.compare(*device, {x}, {{bins}, DType::int64}, bins, low, high);
  }
}

TEST_CASE("errors of data of counting and selecting kernels are those of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor ids = of<int64_t>({3, 0, -2, 9}, {2, 2});
  compare_errors(*device,
                 "[bincount] x is -2 at element [1, 0], but must be from 0 to 1152921504606846974 (x is i64[2, 2])",
                 [&](Device on) {
                   DenseTensor out;
                   call_kernel<In, In, const Scalar&, Out>("bincount", on, DType::int64, copy_to(on, ids),
                                                           DenseTensor(), Scalar(0), out);
                   return std::vector{out};
                 });
  compare_errors(*device, "[one_hot] x is -2 at element [1, 0], but must be from 0 to 4 (x is i64[2, 2])",
                 [&](Device on) {
                   DenseTensor out = empty(on, {2, 2, 5}, DType::float32);
                   call_kernel<In, const Scalar&, Out>("one_hot", on, DType::int64, copy_to(on, ids), Scalar(5), out);
                   return std::vector{out};
                 });
  const DenseTensor infinite = of<float>({1, 2.5f, -INFINITY, NAN}, {4});
  compare_errors(
      *device, "[histogram] input is -inf at element 2, but the range of its elements must be finite; set min and max",
      [&](Device on) {
        DenseTensor out = empty(on, {3}, DType::int64);
        call_kernel<In, int64_t, int, int, Out>("histogram", on, DType::float32, copy_to(on, infinite), 3, 0, 0, out);
        return std::vector{out};
      });
  const DenseTensor parents = of<int32_t>({0, 9, 1, 0, 2, 1}, {3, 1, 2});
  compare_errors(*device, "[gather_tree] parents is 2 at element [2, 0, 0], but must be from 0 to 1, a beam of ids",
                 [&](Device on) {
                   DenseTensor out = empty(on, {3, 1, 2}, DType::int32);
                   call_kernel<In, In, Out>("gather_tree", on, DType::int32, copy_to(on, parents), copy_to(on, parents),
                                            out);
                   return std::vector{out};
                 });
}

TEST_CASE("boxes of several chunks are kept as on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({1100, 4}, DType::float32, 9);
  std::mt19937 random(9);
  for (int64_t i = 0; i < x.numel(); i += 4) {
    float* const box = x.data<float>() + i;
    for (int k = 0; k < 2; ++k) {
      box[k] = static_cast<float>(random() % 100);
      box[k + 2] = box[k] + 5 + static_cast<float>(random() % 20);
    }
  }
  compare(*device, [&](Device on) {
    DenseTensor out;
    call_kernel<In, float, Out>("nms", on, DType::float32, copy_to(on, x), 0.3f, out);
    return std::vector{out};
  });
}

TEST_CASE("sequences of many tags and beams are decoded as on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor potentials = random_tensor({3, 6, 150}, DType::float32, 10),
                    transitions = random_tensor({150, 150}, DType::float32, 11);
  for (const bool ends : {false, true}) {
    compare(*device, [&](Device on) {
      DenseTensor scores = empty(on, {3}, DType::float32), path = empty(on, {3, 6}, DType::int64);
      call_kernel<In, In, In, bool, Out, Out>("viterbi_decode", on, DType::float32, copy_to(on, potentials),
                                              copy_to(on, transitions), copy_to(on, of<int64_t>({6, 1, 4}, {3})), ends,
                                              scores, path);
      return std::vector{scores, path};
    });
  }
  compare_errors(*device, "[viterbi_decode] lengths is 7 at element 1, but must be from 1 to 6, the size of that dim",
                 [&](Device on) {
                   DenseTensor scores = empty(on, {3}, DType::float32), path = empty(on, {3, 6}, DType::int64);
                   call_kernel<In, In, In, bool, Out, Out>(
                       "viterbi_decode", on, DType::float32, copy_to(on, potentials), copy_to(on, transitions),
                       copy_to(on, of<int64_t>({6, 7, 0}, {3})), true, scores, path);
                   return std::vector{scores, path};
                 });
  const DenseTensor ids = numbers<int64_t>({5, 40, 10}, 1000, 12), parents = numbers<int64_t>({5, 40, 10}, 10, 13);
  compare(*device, [&](Device on) {
    DenseTensor out = empty(on, ids.dims(), DType::int64);
    call_kernel<In, In, Out>("gather_tree", on, DType::int64, copy_to(on, ids), copy_to(on, parents), out);
    return std::vector{out};
  });
}

TEST_CASE("the area under a curve of many buckets is that of the CPU, with and without steps") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5000, 2}, DType::float32, 16), label = numbers<int64_t>({5000, 1}, 2, 17);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i * 7919 % 5000) / 5000;
  const int thresholds = 3000;
  for (const int steps : {0, 2}) {
    const Dims dims = steps == 0 ? Dims{1, thresholds + 1} : Dims{(steps + 1) * (thresholds + 1) + 1};
    compare(*device, [&](Device on) {
      DenseTensor area = empty(on, {}, DType::float64);
      const DenseTensor zeros = empty(kCpu, dims, DType::int64);
      std::fill_n(zeros.data<int64_t>(), zeros.numel(), int64_t{0});
      DenseTensor positive = copy_to(on, zeros), negative = copy_to(on, zeros);
      for (int call = 0; call < 3; ++call) {  // in place; the third replaces the first
        call_kernel<In, In, In, In, In, const std::string&, int, int, Out, Out, Out>(
            "auc", on, x.dtype(), copy_to(on, x), copy_to(on, label), positive, negative, DenseTensor(), "ROC",
            thresholds, steps, area, positive, negative);
      }
      return std::vector{area, positive, negative};
    });
  }
}

}  // namespace dynamic_test
