// What the table of conformance is too small for: kernels whose work takes several blocks, lists that take several launches, and
// memory that is not aligned. Results are compared with the CPU's.
#include <cstring>
#include <span>

#include "cuda_case.h"
#include "shard/shard.h"
#include "support/merged_steps.h"

namespace many_test {

using namespace shard;
using namespace shard::test;

namespace {

using In = const DenseTensor&;
using Out = DenseTensor&;
using Inputs = std::span<const DenseTensor>;
using Outputs = std::span<DenseTensor>;

/// Calls kernel `name`, whose parameters are P.
template <class... P>
void run_kernel(const char* name, Device device, DType dtype, std::type_identity_t<P>... arguments) {
  const OpContext ctx{name};
  kernel_table(name).find<void(const OpContext&, P...)>(ctx, device, dtype).function(ctx, arguments...);
}

std::vector<DenseTensor> list_of(const std::vector<int64_t>& sizes, DType dtype, uint64_t seed) {
  std::vector<DenseTensor> made;
  for (const int64_t n : sizes) made.push_back(random_tensor({n}, dtype, seed++));
  return made;
}
std::vector<DenseTensor> copies(Device device, const std::vector<DenseTensor>& from) {
  std::vector<DenseTensor> made;
  for (const DenseTensor& x : from) made.push_back(copy_to(device, x));
  return made;
}
void require_all_close(const std::vector<DenseTensor>& actual, const std::vector<DenseTensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("tensor " << i << " of " << expected[i].numel());
    require_close(actual[i], expected[i]);
  }
}

/// Sizes of one chunk and of several, with and without a rest, for more tensors than a launch takes.
std::vector<int64_t> many_sizes(size_t count) {
  const std::vector<int64_t> some = {1, 4096, 5, 0, 9001, 4097, 64, 3};
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < count; ++i) sizes.push_back(some[i % some.size()]);
  return sizes;
}

/// Lists of tensors before a call, moved to a device.
struct Adam {
  std::vector<DenseTensor> param, grad, rate, first, second, power1, power2, master;

  Adam(Device device, DType dtype, const std::vector<int64_t>& sizes) {
    const std::vector<int64_t> ones(sizes.size(), 1);
    param = copies(device, list_of(sizes, dtype, 1));
    grad = copies(device, list_of(sizes, dtype, 100));
    // States are in float32, or in the dtype of their parameter.
    const auto add_state = [&](std::vector<DenseTensor>& states, const DenseTensor& x) {
      states.push_back(copy_to(device, states.size() % 3 == 1 ? convert_floats(x, dtype) : x));
    };
    for (const DenseTensor& x : list_of(sizes, DType::float32, 200)) add_state(first, x);
    for (const DenseTensor& x : list_of(sizes, DType::float32, 300)) {
      for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = std::abs(x.data<float>()[i]);
      add_state(second, x);
    }
    for (auto* numbers : {&rate, &power1, &power2}) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        const DenseTensor number = DenseTensor::allocate(kCpu, {{1}, DType::float32});
        *number.data<float>() = 0.25f + 0.01f * static_cast<float>(i);
        numbers->push_back(copy_to(device, number));
      }
    }
    if (size_of(dtype) == 2) master = copies(device, list_of(sizes, DType::float32, 1));
  }
  void step(Device device, DType dtype) {
    run_kernel<Inputs, Inputs, Inputs, Inputs, Inputs, Inputs, Inputs, Inputs, const Scalar&, const Scalar&,
               const Scalar&, bool, bool, Outputs, Outputs, Outputs, Outputs, Outputs, Outputs>(
        "merged_adam", device, dtype, param, grad, rate, first, second, power1, power2, master, Scalar(0.9),
        Scalar(0.99), Scalar(1e-8), !master.empty(), false, param, first, second, power1, power2, master);
  }
  void fused_step(Device device, DType dtype, In skip, bool decays) {
    run_kernel<Inputs, Inputs, In, Inputs, Inputs, Inputs, Inputs, Inputs, In, const Scalar&, const Scalar&,
               const Scalar&, int, float, bool, bool, bool, Outputs, Outputs, Outputs, Outputs, Outputs, Outputs>(
        "fused_adam", device, dtype, param, grad, rate[0], first, second, power1, power2, master, skip, Scalar(0.9),
        Scalar(0.99), Scalar(1e-8), 65536, 0.3f, decays, !master.empty(), false, param, first, second, power1, power2,
        master);
  }
  void step_of_each(Device device, DType dtype, In skip, bool decays) {
    DenseTensor none;
    for (size_t i = 0; i < param.size(); ++i) {
      DenseTensor& exact = master.empty() ? none : master[i];
      run_kernel<In, In, In, In, In, In, In, In, In, const Scalar&, const Scalar&, const Scalar&, float, float, bool,
                 bool, bool, Out, Out, Out, Out, Out, Out>(
          "adamw", device, dtype, param[i], grad[i], rate[0], first[i], second[i], power1[i], power2[i], exact, skip,
          Scalar(0.9), Scalar(0.99), Scalar(1e-8), 1.0f, 0.3f, decays, !master.empty(), false, param[i], first[i],
          second[i], power1[i], power2[i], exact);
    }
  }
  std::vector<DenseTensor> written() const {
    std::vector<DenseTensor> all;
    for (const auto* list : {&param, &first, &second, &power1, &power2, &master})
      all.insert(all.end(), list->begin(), list->end());
    return all;
  }
};

/// Bits on the host.
std::vector<std::string> bits_of(const std::vector<DenseTensor>& tensors) {
  std::vector<std::string> bits;
  for (const DenseTensor& x : tensors) {
    const DenseTensor here = copy_to(kCpu, x);
    bits.emplace_back(here.data<char>(), here.meta().bytes());
  }
  return bits;
}

}  // namespace

TEST_CASE("products of more matrices than a call of cuBLASLt takes are those of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const auto check = [&](const Dims& x_dims, const Dims& y_dims, const Dims& out_dims, DType dtype) {
    INFO(to_string(x_dims) << " by " << to_string(y_dims) << ", " << to_string(dtype));
    const DenseTensor x = random_tensor(x_dims, dtype, 1), y = random_tensor(y_dims, dtype, 2);
    const auto product = [&](Device on) {
      DenseTensor out = DenseTensor::allocate(on, {out_dims, dtype});
      run_kernel<In, In, bool, bool, Out>("matmul", on, dtype, copy_to(on, x), copy_to(on, y), false, false, out);
      return copy_to(kCpu, out);
    };
    require_close(product(*device), product(kCpu));
  };
  check({65536, 1, 2}, {65536, 2, 1}, {65536, 1, 1}, DType::float32);
  check({70001, 1, 3}, {70001, 3, 1}, {70001, 1, 1}, DType::bfloat16);
  check({2, 32769, 1, 2}, {32769, 2, 1}, {2, 32769, 1, 1}, DType::float32);
  check({65537, 2, 1}, {1, 2}, {65537, 2, 2}, DType::float32);
}

TEST_CASE("a step of many parameters on the device is that of the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    INFO(to_string(dtype));
    Adam expected(kCpu, dtype, many_sizes(70)), actual(*device, dtype, many_sizes(70));
    expected.step(kCpu, dtype);
    actual.step(*device, dtype);
    require_all_close(actual.param, expected.param);
    require_all_close(actual.first, expected.first);
    require_all_close(actual.second, expected.second);
    require_all_close(actual.power1, expected.power1);
    require_all_close(actual.power2, expected.power2);
    require_all_close(actual.master, expected.master);
  }
}

TEST_CASE("fused_adam has the bits of adamw of each parameter on the device") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    const std::vector<int64_t> sizes = many_sizes(34);
    Adam fused(*device, dtype, sizes), single(*device, dtype, sizes);
    for (const bool skips : {false, true}) {
      INFO(to_string(dtype) << (skips ? ", skipped" : ""));
      const DenseTensor skip = DenseTensor::allocate(kCpu, {{1}, DType::boolean});
      *skip.data<bool>() = skips;
      const DenseTensor moved = copy_to(*device, skip);
      const std::vector<std::string> before = bits_of(fused.written());
      fused.fused_step(*device, dtype, moved, dtype != DType::float64);
      single.step_of_each(*device, dtype, moved, dtype != DType::float64);
      CHECK(bits_of(fused.written()) == bits_of(single.written()));
      CHECK((bits_of(fused.written()) == before) == skips);
    }
  }
}

TEST_CASE("steps of long lists have the bits of the step of each parameter on the device") {
  const auto device = cuda_device();
  if (!device) return;
  std::vector<int64_t> sizes = many_sizes(34);
  sizes[3] =
      4 *
      4096;  // on the model the first launch has more chunks than blocks, so that blocks take those of several parameters
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const auto start = [&](Device on) {
      const auto list = [&](DType type, uint64_t seed, bool positive = false) {
        std::vector<Tensor> tensors;
        for (const DenseTensor& x : list_of(sizes, type, seed)) {
          const Tensor drawn(x);
          tensors.push_back((positive ? abs(drawn) : drawn).to(on));
        }
        return tensors;
      };
      const auto numbers = [&](float value) {
        std::vector<Tensor> tensors;
        for (size_t i = 0; i < sizes.size(); ++i)
          tensors.push_back(full({1}, value + 0.005f * static_cast<float>(i)).to(on));
        return tensors;
      };
      StepLists l;
      l.params = list(dtype, 1);
      l.grads = list(dtype, 100);
      l.first = list(DType::float32, 200, true);
      l.second = list(DType::float32, 300, true);
      l.third = list(DType::float32, 400);
      for (size_t i = 1; i < sizes.size(); i += 3) {  // states in the dtype of their parameter
        for (auto* states : {&l.first, &l.second, &l.third}) (*states)[i] = cast((*states)[i], dtype);
      }
      l.rates = numbers(0.25f);
      l.numbers = l.powers1 = numbers(0.5f);
      l.powers2 = numbers(0.625f);
      l.pairs = {Tensor::from_data(std::vector<float>{0.25f, 1.5f}, {2}).to(on)};
      if (size_of(dtype) == 2) l.masters = list(DType::float32, 1);
      return l;
    };
    for (const MergedStep& step : merged_steps()) {
      INFO(step.name << ", " << to_string(dtype));
      StepLists all = start(*device), each = start(*device), expected = start(kCpu);
      const auto values = [](const StepLists& l) {
        std::vector<DenseTensor> made;
        for (const Tensor& x : l.written()) made.push_back(x.get().value);
        return made;
      };
      step.of_all(all);
      for (size_t i = 0; i < sizes.size(); ++i) step.of_one(each, i);
      CHECK(bits_of(values(all)) == bits_of(values(each)));
      CHECK(bits_of(values(all)) != bits_of(values(expected)));
      step.of_all(expected);
      require_all_close(values(all), values(expected));
    }
  }
}

TEST_CASE("parameters with their own weight decay take steps of their own") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<int64_t> sizes = many_sizes(5);
  const auto step = [&](Device on) {
    std::vector<DenseTensor> param = copies(on, list_of(sizes, DType::float32, 1)),
                             velocity = copies(on, list_of(sizes, DType::float32, 20)), none;
    const std::vector<DenseTensor> grad = copies(on, list_of(sizes, DType::float32, 40)),
                                   rate = copies(on, list_of({1}, DType::float32, 60));
    run_kernel<Inputs, Inputs, Inputs, Inputs, Inputs, float, bool, const std::vector<std::string>&,
               const std::vector<float>&, bool, float, Outputs, Outputs, Outputs>(
        "merged_momentum", on, DType::float32, param, grad, velocity, rate, none, 0.9f, true,
        {"l2_decay", "", "l2_decay", "l2_decay", ""}, {0.5f, 0.5f, 0.25f, 0.5f, 0.0f}, false, 0.5f, param, velocity,
        none);
    return param;
  };
  require_all_close(step(*device), step(kCpu));
}

TEST_CASE("numbers that are not finite are found in any tensor of a long list", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<int64_t> sizes = many_sizes(200);
  for (const size_t at : {size_t{0}, size_t{4}, size_t{196}, size_t{200}}) {
    std::vector<DenseTensor> x = list_of(sizes, DType::float32, 1);
    if (at < sizes.size()) x[at].data<float>()[sizes[at] - 1] = at == 4 ? NAN : INFINITY;
    const std::vector<DenseTensor> moved = copies(*device, x);
    std::vector<DenseTensor> out = copies(*device, x);
    const DenseTensor scale = list_of({1}, DType::float32, 3)[0];
    DenseTensor found = DenseTensor::allocate(*device, {{1}, DType::boolean});
    run_kernel<Inputs, In, Outputs, Out>("check_finite_and_unscale", *device, DType::float32, moved,
                                         copy_to(*device, scale), out, found);
    CHECK(*copy_to(kCpu, found).data<bool>() == (at < sizes.size()));
    if (at < sizes.size()) continue;
    DenseTensor expected_found = DenseTensor::allocate(kCpu, found.meta());
    run_kernel<Inputs, In, Outputs, Out>("check_finite_and_unscale", kCpu, DType::float32, x, scale, x, expected_found);
    require_all_close(out, x);
  }
}

TEST_CASE("dropout on the device keeps what the CPU keeps, several blocks") {
  const auto device = cuda_device();
  if (!device) return;
  const auto drop = [&](Device on, DType dtype, int64_t count) {
    const DenseTensor x = copy_to(on, random_tensor({count}, dtype, 5));
    std::vector<DenseTensor> made = {DenseTensor::allocate(on, x.meta()),
                                     DenseTensor::allocate(on, {{count}, DType::uint8})};
    run_kernel<In, In, const Scalar&, bool, const std::string&, int, bool, RandomKey, Out, Out>(
        "dropout", on, dtype, x, DenseTensor(), Scalar(0.3), false, "upscale_in_train", 0, false,
        RandomKey{11, uint64_t{1} << 33}, made[0], made[1]);
    return made;
  };
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    for (const int64_t count : {1, 4099, 20000})
      require_all_close(drop(*device, dtype, count), drop(kCpu, dtype, count));
  }
}

TEST_CASE("swiglu of rows whose halves begin anywhere, and add_n of long lists, on the device as on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t width : {1, 7, 8, 1024}) {
    const auto gate = [&](Device on) {
      const DenseTensor x = copy_to(on, random_tensor({37, 2 * width}, DType::bfloat16, 6)),
                        grad = copy_to(on, random_tensor({37, width}, DType::bfloat16, 7));
      std::vector<DenseTensor> made = {DenseTensor::allocate(on, grad.meta()), DenseTensor::allocate(on, x.meta())};
      DenseTensor none;
      run_kernel<In, In, Out>("swiglu", on, DType::bfloat16, x, none, made[0]);
      run_kernel<In, In, In, Out, Out>("swiglu_grad", on, DType::bfloat16, x, none, grad, made[1], none);
      return made;
    };
    require_all_close(gate(*device), gate(kCpu));
  }
  for (const size_t inputs : {size_t{1}, size_t{32}, size_t{70}}) {
    const auto sum = [&](Device on) {
      const std::vector<DenseTensor> x = copies(on, list_of(std::vector<int64_t>(inputs, 5003), DType::bfloat16, 9));
      std::vector<DenseTensor> made = {DenseTensor::allocate(on, x[0].meta())};
      run_kernel<Inputs, Out>("add_n", on, DType::bfloat16, x, made[0]);
      return made;
    };
    require_all_close(sum(*device), sum(kCpu));
  }
}

TEST_CASE("lamb_ adds up in one order, whether its tensors are aligned or not") {
  const auto device = cuda_device();
  if (!device) return;
  // Sums in another order are often equal once they are rounded: in several sizes they are not.
  for (const int64_t count : {4097, 5003, 6011, 7001, 8009, 9001, 10007, 11003}) {
    const DType dtype = DType::float64;
    const auto step = [&](int64_t skipped) {
      const auto made = [&](uint64_t seed) {  // numbers whose squares do not add up exactly
        const DenseTensor whole = scale(Tensor(random_tensor({count + 1}, dtype, seed)), 0.7).get().value;
        const auto part = [&](const DenseTensor& of) {
          return DenseTensor(of.storage(), {{count}, dtype}, size_of(dtype));
        };
        return skipped == 0 ? copy_to(*device, part(whole)) : part(copy_to(*device, whole));
      };
      const auto number = [&](float value) { return Tensor::from_data(std::vector<float>{value}, {1}).to(*device); };
      Tensor param(made(1)), grad(made(2));
      CHECK((reinterpret_cast<uintptr_t>(param.get().value.raw()) % 16 == 0) == (skipped == 0));
      Tensor first = scale(param, 0.0), second = scale(param, 0.0), power1 = number(0.9f), power2 = number(0.99f), none;
      lamb_(param, grad, number(0.5f), first, second, power1, power2, none, Tensor(), 0.1f, 0.9f, 0.99f);
      return copy_to(kCpu, param.get().value);
    };
    const DenseTensor one = step(1), other = step(0);
    CHECK(std::memcmp(one.raw(), other.raw(), one.meta().bytes()) == 0);
  }
}

}  // namespace many_test
