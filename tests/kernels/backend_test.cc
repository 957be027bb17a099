// Backends and the table of kernels: built-in ones exist from the start, the CPU conforms, and users may register
// more.
#include <catch2/catch.hpp>

#include <thread>

#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/error.h"
#include "shard/kernels/registry.h"
#include "shard/testing/backend_conformance.h"
#include "shard/testing/tensors.h"
#include "support/recording_backend.h"

namespace backend_test {

using namespace shard;

namespace {

/// The text of the Error that `call` throws, or "" when it throws none.
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "";
}

void add_twos(const OpContext&, const DenseTensor& x, const DenseTensor&, DenseTensor& out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data<double>()[i] = 2;
}

/// The state seen by a process that looks for backends before it calls any op, from several threads.
struct FirstLook {
  int cpu[4], cuda[4];

  FirstLook() {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([this, t] {
        cpu[t] = find_backend("cpu");
        cuda[t] = find_backend("cuda");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};
const FirstLook first_look;  // before main, so before any kernel is looked up

}  // namespace

TEST_CASE("Built-in backends are found before any kernel is looked up", "[kernels]") {
  const bool has_cuda = std::string(cuda_status()).rfind("ready: ", 0) == 0;
  for (int t = 0; t < 4; ++t) {
    CHECK(first_look.cpu[t] == 0);
    CHECK((first_look.cuda[t] >= 0) == has_cuda);
  }
}

TEST_CASE("The CPU passes the conformance tests of backends", "[kernels]") {
  std::vector<std::string> skipped;
  const std::vector<std::string> findings =
      testing::check_backend(kCpu, [&](const std::string& reason) { skipped.push_back(reason); });
  CHECK(findings == std::vector<std::string>());
  CHECK(skipped == std::vector<std::string>());
}

TEST_CASE("A backend that records graphs passes the conformance tests", "[kernels]") {
  const Device device = test::recording::device();
  CHECK(testing::check_backend(device, [](const std::string&) {}) == std::vector<std::string>());
  CHECK(test::recording::state.launches > 10);
  CHECK(test::recording::state.kept == 0);
}

TEST_CASE("A backend that is not whole is refused by the name of what it lacks", "[kernels]") {
  Backend backend = backend_of(kCpu);
  backend.name = "partial";
  backend.synchronize = nullptr;
  CHECK(error_of([&] { register_backend(backend); }) ==
        "backend 'partial' has no function synchronize; set every member of Backend that is not optional");
  backend = test::recording::backend();
  backend.name = "partial";
  backend.graph_launch = nullptr;
  CHECK(error_of([&] { register_backend(backend); }) ==
        "backend 'partial' has graph functions, but no function graph_launch; set all of them or none");
  backend = backend_of(kCpu);
  backend.name = "partial";
  backend.loops.begin = [](int) {};
  backend.loops.end = [](int) {};
  CHECK(error_of([&] { register_backend(backend); }) ==
        "backend 'partial' has 2 of the 5 loop functions; set all of them or none");
  backend.name = "";
  CHECK(error_of([&] { register_backend(backend); }) == "a backend needs a name; set Backend::name");
  CHECK(find_backend("partial") == -1);
}

TEST_CASE("The conformance tests find what a backend does wrong", "[kernels]") {
  static const Backend cpu = backend_of(kCpu);
  Backend bad = cpu;
  bad.name = "bad";
  bad.allocate = [](int index, size_t bytes) -> void* {
    return static_cast<char*>(cpu.allocate(index, bytes + 64)) + 16;
  };
  bad.free = [](int index, void* data) { cpu.free(index, static_cast<char*>(data) - 16); };
  bad.copy = [](int index, void* to, const void* from, size_t bytes) { cpu.copy(index, to, from, bytes / 2); };
  bad.graph_begin = [](int) {};  // runs everything at once
  bad.graph_end = [](int, void*) -> void* { return nullptr; };
  bad.graph_abandon = [](int) {};
  bad.graph_launch = [](int, void*) {};
  bad.graph_free = [](int, void*) {};
  const Device device{static_cast<uint8_t>(register_backend(bad)), 0};
  register_kernel(
      "relu", device.backend, DType::float32, +[](const OpContext&, const DenseTensor& x, DenseTensor& out) {
        for (int64_t i = 0; i < x.numel(); ++i) out.data<float>()[i] = x.data<float>()[i];
        out.data<float>()[x.numel()] = 5;
      });
  std::string all;
  int skipped = 0;
  for (const std::string& finding : testing::check_backend(device, [&](const std::string&) { ++skipped; }))
    all += finding + "\n";
  CHECK_THAT(all, Catch::Contains("allocate(1000) returned an address that is not a multiple of 64"));
  CHECK_THAT(all, Catch::Contains("copies of 1001 bytes at offset 1: what came back is not what was sent"));
  CHECK_THAT(all, Catch::Contains("graphs: work was run while it was recorded"));
  CHECK_THAT(all, Catch::Contains("graphs: a launch did not do the work that was recorded"));
  CHECK_THAT(all, Catch::Contains("graphs: work of an abandoned recording was run"));
  CHECK_THAT(all, Catch::Contains("relu f32[7] -> f32[7]: "));
  CHECK_THAT(all, Catch::Contains("bytes next to the output were written"));
  CHECK(skipped > 10);
}

TEST_CASE("A kernel of the user replaces a built-in one, whenever it is registered", "[kernels]") {
  const OpContext ctx{"add"};
  using Add = void(const OpContext&, const DenseTensor&, const DenseTensor&, DenseTensor&);
  Add* const built_in = kernel_table("add").find<Add>(ctx, kCpu, DType::float64).function;
  register_kernel("add", 0, DType::float64, &add_twos);
  CHECK(kernel_table("add").find<Add>(ctx, kCpu, DType::float64).function == &add_twos);
  register_kernel("add", 0, DType::float64, built_in);
}

}  // namespace backend_test
