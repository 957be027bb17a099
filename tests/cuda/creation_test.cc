// Tensors that are made on devices have the bits of those made on the host, whole and as shards; and the default device.
#include <cstring>
#include <functional>

#include "cuda_case.h"
#include "shard/call/dense_call.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace creation_test {

using namespace shard;
using namespace shard::test;

namespace {

bool same_bits(const DenseTensor& a, const DenseTensor& b) {
  return a.meta() == b.meta() && std::memcmp(a.raw(), b.raw(), a.meta().bytes()) == 0;
}

using Make = std::function<Tensor(DType, Device)>;

void check_bits(const char* what, Device device, std::initializer_list<DType> dtypes, const Make& make) {
  for (const DType dtype : dtypes) {
    INFO(what << " of " << to_string(dtype));
    const Tensor actual = make(dtype, device);
    REQUIRE(actual.device() == device);
    CHECK(same_bits(copy_to(kCpu, actual.get().value), make(dtype, kCpu).get().value));
  }
}

}  // namespace

TEST_CASE("ranges, diagonals and constants have the same bits on a device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto numbers = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                        DType::int32,   DType::int64,   DType::uint8};
  check_bits("full", *device, {DType::float32, DType::bfloat16, DType::boolean, DType::int64},
             [](DType dtype, Device at) {
               return full({5, 7}, 1, dtype, at);
             });
  check_bits("arange of integers", *device, numbers,
             [](DType dtype, Device at) { return arange(3, 250, 7, dtype, at); });
  check_bits("arange of floats", *device, numbers,
             [](DType dtype, Device at) { return arange(0.1, 99.0, 0.3, dtype, at); });
  check_bits("linspace", *device, numbers,
             [](DType dtype, Device at) { return linspace(-1.0, 99.5, 1001, dtype, at); });
  check_bits("logspace", *device, {DType::int32, DType::bfloat16},
             [](DType dtype, Device at) { return logspace(0, 9, 10, 2, dtype, at); });
  check_bits("logspace of an exponent just below 1", *device, {DType::int32, DType::float64},
             [](DType dtype, Device at) { return logspace(0, 2, 99, 10, dtype, at); });
  CHECK(logspace(0, 2, 99, 10, DType::int32, *device).to(kCpu).to_vector<int32_t>()[49] == 10);
  check_bits("eye", *device, {DType::float32, DType::float16, DType::boolean},
             [](DType dtype, Device at) { return eye(5, 9, dtype, at); });
  CHECK(empty({3}, DType::float32, *device).device() == *device);
  CHECK(zeros({0, 3}, DType::float32, *device).numel() == 0);
}

TEST_CASE("random numbers have the same bits on a device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto floats = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  for (const int64_t rows : {1, 1000}) {
    check_bits("uniform", *device, floats, [&](DType dtype, Device at) {
      return uniform({rows, 7}, dtype, -2.0, 3.0, 5, at);
    });
    check_bits("uniform of a range that overflows", *device, {DType::float32}, [&](DType dtype, Device at) {
      return uniform({rows, 7}, dtype, -3e38, 3e38, 5, at);
    });
    check_bits("gaussian", *device, floats, [&](DType dtype, Device at) {
      return gaussian({rows, 7}, 1.0f, 2.0f, 9, dtype, at);
    });
    check_bits("randint", *device, {DType::int32, DType::int64}, [&](DType dtype, Device at) {
      return randint(-3, 1000003, {rows, 7}, dtype, 11, at);
    });
  }
}

TEST_CASE("draws by the elements of tensors have the same bits on a device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto floats = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  for (const int64_t rows : {1, 300}) {
    const auto of = [rows](double low, double high, DType dtype, Device at) {  // exact in 16 bits
      const Tensor numbers = floor(uniform({rows, 7}, DType::float64, low * 16, high * 16, 3, kCpu));
      call::thread_generator().set_seed(5);
      return to_device(cast(scale(numbers, 1.0 / 16), dtype), at);
    };
    check_bits("bernoulli", *device, floats, [&](DType dtype, Device at) { return bernoulli(of(0, 1, dtype, at)); });
    check_bits("poisson", *device, floats, [&](DType dtype, Device at) { return poisson(of(0, 40, dtype, at)); });
    check_bits("standard_gamma", *device, floats,
               [&](DType dtype, Device at) { return standard_gamma(of(0, 4, dtype, at)); });
    check_bits("binomial", *device, floats,
               [&](DType dtype, Device at) { return binomial(floor(of(0, 99, dtype, at)), of(0, 1, dtype, at)); });
    check_bits("truncated_gaussian_random", *device, floats, [&](DType dtype, Device at) {
      return truncated_gaussian_random({rows, 7}, 1.0f, 2.0f, 9, dtype, at);
    });
    check_bits("uniform_inplace", *device, floats, [&](DType dtype, Device at) {
      return uniform_inplace(of(0, 1, dtype, at), -1.0f, 1.0f, 7, 2, 3, 0.5f);
    });
  }
  for (const int64_t n : {1, 5, 4096, 5000}) {
    check_bits("randperm", *device, {DType::int32, DType::int64}, [&](DType dtype, Device at) {
      call::thread_generator().set_seed(static_cast<uint64_t>(n));
      return randperm(static_cast<int>(n), dtype, at);
    });
  }
  for (const int offset : {-9, -2, 0, 3, 9}) {
    check_bits("tril_indices", *device, {DType::int32, DType::int64},
               [&](DType dtype, Device at) { return tril_indices(5, 7, offset, dtype, at); });
    check_bits("triu_indices", *device, {DType::int32, DType::int64},
               [&](DType dtype, Device at) { return triu_indices(6, 4, offset, dtype, at); });
  }
}

TEST_CASE("draws from rows of weights are those of the CPU on a device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const int64_t categories : {1, 9, 150}) {
      // Sixteenths with many equal ones and zeros; the first is above 0.
      const auto weights = [&](Device at) {
        std::vector<double> values;
        for (int64_t i = 0; i < 6 * categories; ++i)
          values.push_back(i % categories == 0 ? 0.5 : static_cast<double>(i * 7 % 11) / 16);
        call::thread_generator().set_seed(8);
        return to_device(cast(Tensor::from_data<double>(values, {6, categories}), dtype), at);
      };
      const auto same = [&](const char* what, const std::function<std::vector<Tensor>(Device)>& call) {
        INFO(what << " of " << to_string(dtype) << " and " << categories << " categories");
        const std::vector<Tensor> expected = call(kCpu), actual = call(*device);
        for (size_t i = 0; i < expected.size(); ++i) {
          REQUIRE(actual[i].device() == *device);
          CHECK(same_bits(copy_to(kCpu, actual[i].get().value), expected[i].get().value));
        }
      };
      same("multinomial with replacement",
           [&](Device at) { return std::vector<Tensor>{multinomial(weights(at), 20, true)}; });
      same("multinomial",
           [&](Device at) { return std::vector<Tensor>{multinomial(weights(at), categories == 1 ? 1 : 4, false)}; });
      same("dirichlet", [&](Device at) {
        const Tensor alpha = weights(at);
        return std::vector<Tensor>{dirichlet(scale(alpha, 1.0, 0.25))};
      });
      for (const double p : {0.0, 0.5, 3.0, 1e4}) {
        for (const double bound : {-1.0, 0.3, 9.0}) {
          same("top_p_sampling", [&](Device at) {
            const Tensor x = weights(at);
            auto [out, ids] =
                top_p_sampling(x, full({6}, p, dtype, at), bound < 0 ? Tensor() : full({6}, bound, dtype, at));
            return std::vector<Tensor>{out, ids};
          });
        }
      }
    }
  }
}

TEST_CASE("numbers from which nothing can be drawn are the error of the CPU on a device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto error_of = [](const std::function<Tensor()>& call) {
    try {
      copy_to(kCpu, call().get().value);
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string("none");
  };
  const auto alike = [&](const std::function<Tensor(Device)>& call, const std::string& text) {
    const std::string expected = error_of([&] { return call(kCpu); });
    CHECK_THAT(expected, Catch::Contains(text));
    CHECK(error_of([&] { return call(*device); }) == expected);
  };
  const auto x = [](double value, DType dtype, Device at) {
    return to_device(cast(Tensor::from_data<double>({0.5, value, 0.5}, {3}), dtype), at);
  };
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    alike([&](Device at) { return bernoulli(x(1.1, dtype, at)); }, "which must be from 0 to 1; clip it (element 1 of");
    alike([&](Device at) { return poisson(x(-1.5, dtype, at)); },
          "argument 'x' has the element -1.5, which must be finite and 0 or more");
    alike([&](Device at) { return standard_gamma(x(INFINITY, dtype, at)); }, "has the element inf");
    alike([&](Device at) { return binomial(full({3}, 2, dtype, at), x(1.5, dtype, at)); },
          "argument 'prob' has the element 1.5");
    alike([&](Device at) { return dirichlet(x(0.0, dtype, at)); },
          "argument 'alpha' has the element 0, which must be finite and above 0");
    alike([&](Device at) { return multinomial(x(-2.0, dtype, at), 1, true); }, "argument 'x' has the element -2");
    alike([&](Device at) { return multinomial(x(0.0, dtype, at), 3, false); },
          "has 2 weights above 0, but 3 must be drawn from it");
    alike(
        [&](Device at) {
          return std::get<1>(top_p_sampling(full({1, 3}, 0, dtype, at), full({1}, 0.5, dtype, at), {}));
        },
        "has no probability above 0, so nothing can be drawn");
    alike(
        [&](Device at) {
          return std::get<1>(top_p_sampling(full({1, 3}, 1, dtype, at), full({1}, -1, dtype, at), {}));
        },
        "argument 'ps' has the element -1");
    alike([&](Device at) { return binomial(x(0.25, dtype, at), full({3}, 0.5, dtype, at)); },
          "a whole number from 0 to 2^53");
  }
}

TEST_CASE("shards of random numbers on devices are parts of the whole, and drawn where the world's devices are") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const Device last{device->backend, static_cast<uint8_t>(backend_of(*device).device_count() - 1)};
  run_ranks(4,
            [&](Rank& rank) {
              check(rank.device() == (rank.id() % 2 == 0 ? *device : last), "devices are taken in turn");
              const DistSpec* const spec = DistSpec::parse(mesh, "b, a");
              const Tensor here = gaussian({9, 14}, spec, 0.0f, 1.0f, 3),
                           there = gaussian({9, 14}, spec, 0.0f, 1.0f, 3, DType::float32, kCpu);
              check(here.device() == rank.device() && there.device() == kCpu, "the default is the rank's device");
              check(same_bits(copy_to(kCpu, here.get().value), there.get().value), "equal bits");
              check(Tensor::from_data<float>({1, 2}, {2}).device() == rank.device(), "data goes to the default device");
            },
            {.devices = {*device, last}});
}

TEST_CASE("the default device is that of the innermost scope") {
  const auto device = cuda_device();
  if (!device) return;
  const Device before = default_device();
  {
    const DefaultDevice outer(*device);
    CHECK(zeros({2}).device() == *device);
    CHECK(Tensor::from_data<float>({1, 2}, {2}).to_vector<float>() == std::vector<float>{1, 2});
    const DefaultDevice inner(kCpu);
    CHECK(zeros({2}).device() == kCpu);
  }
  CHECK(default_device() == before);
}

TEST_CASE("names of devices") {
  const auto device = cuda_device();
  if (!device) return;
  CHECK(parse_device("cpu") == kCpu);
  CHECK(parse_device("cuda") == *device);
  CHECK(parse_device("cuda:0") == *device);
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99", "cpu:1"}) {
    try {
      parse_device(wrong);
      FAIL_CHECK("'" << wrong << "' was taken");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK_THAT(error.what(), Catch::Contains("name one of cpu, cuda"));
    }
  }
}

}  // namespace creation_test
