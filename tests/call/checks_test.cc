// Calls that fail, and readers of buffers that a call writes: statements 4 and 5 of docs/semantics.md.
#include <catch2/catch.hpp>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "shard/call/compute.h"
#include "shard/call/dist_call.h"
#include "shard/ops/shape_dense.h"
#include "shard/ops/shape_ops.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace checks_test {

using namespace shard;
using namespace shard::test;

namespace {
const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }

Tensor images() { return iota<float>({4, 3}, 1.0f); }
auto normalise(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& scale) {
  return batch_norm(x, mean, variance, scale, Tensor(), false, 0.5f, 1e-5f, "NCHW", false, false);
}

/// A backend in host memory whose copies within the device can be made to fail halfway.
std::atomic<bool> copies_fail = false;
int frail_backend() {
  static const int id = register_backend(
      {.name = "frail",
       .device_count = [] { return 1; },
       .allocate = [](int, size_t bytes) { return std::aligned_alloc(kAllocationAlignment, (bytes + 127) / 64 * 64); },
       .free = [](int, void* data) { std::free(data); },
       .copy =
           [](int, void* to, const void* from, size_t bytes) {
             std::memcpy(to, from, copies_fail ? bytes / 2 : bytes);
             if (copies_fail) fail(ErrorCode::invalid_argument, "the copy failed half way");
           },
       .copy_from_host = [](int, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
       .copy_to_host = [](int, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
       .synchronize = [](int) {}});
  return id;
}
}  // namespace

TEST_CASE("4: a missing kernel on a mesh is found before a key is drawn or a byte is sent, on every rank") {
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<int64_t>({4}), DistSpec::parse(line(2), "p"));
    const RandomKey before = rank.generator.state();
    error_of([&] { bernoulli(x); }, ErrorCode::no_kernel);
    check(rank.generator.state().offset == before.offset, "no key is drawn");
    const Tensor pending = from_local(rank.id() < 2 ? iota<int32_t>({4}) : Tensor(),
                                      DistSpec::parse(line(2), "- | sum(p)"), {4}, DType::int32);
    Tensor target = pending;
    error_of([&] { exp(pending); }, ErrorCode::no_kernel);
    error_of([&] { exp_(target); }, ErrorCode::no_kernel);
    check(rank.stats().bytes_sent == 0 && pending.version() == 0, "nothing is sent or written");
    const Tensor statistics = distribute(iota<int32_t>({3}), DistSpec::parse(line(2), "-"));
    const Tensor numbers = distribute(iota<int32_t>({4, 3}), DistSpec::parse(line(2), "-, p"));
    error_of([&] { normalise(numbers, statistics, statistics, Tensor()); }, ErrorCode::dtype_mismatch);
    check(statistics.version() == 0 && rank.stats().bytes_sent == 0, "written views neither");
  });
}

TEST_CASE("5: an argument that is also a written view is copied before the view is written") {
  const auto expected = [] {
    const Tensor mean = iota<float>({3}, 2.0f), variance = full({3}, 4.0);
    return std::get<0>(normalise(images(), mean, variance, iota<float>({3}, 2.0f))).to_vector<float>();
  }();
  const Tensor mean = iota<float>({3}, 2.0f), variance = full({3}, 4.0);
  CHECK(std::get<0>(normalise(images(), mean, variance, mean)).to_vector<float>() == expected);
  CHECK(mean.version() == 1);
  run_ranks(3, [&](Rank&) {
    for (const char* layout : {"-", "p"}) {
      const Tensor m = distribute(iota<float>({3}, 2.0f), DistSpec::parse(line(2), layout));
      const Tensor v = distribute(full({3}, 4.0), DistSpec::parse(line(2), layout));
      const Tensor x = distribute(images(), DistSpec::parse(line(2), "-, p"));
      check(full_equals(std::get<0>(normalise(x, m, v, m)), expected), layout);
      check(m.version() == 1, "once");
    }
  });
}

TEST_CASE("5: the kernel of an op with several targets never reads one of them through another argument") {
  static std::vector<bool> copied;
  static const OpDef op = {
      .name = "two_targets", .inputs = slots<"x", "y", "z">, .outputs = slots<"a", "b">, .elementwise = true};
  using Kernel =
      void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, DenseTensor&, DenseTensor&);
  Kernel* const kernel = [](const OpContext&, const DenseTensor& x, const DenseTensor& y, const DenseTensor& z,
                            DenseTensor& a, DenseTensor& b) {
    copied = {!(x.raw() == a.raw()), !(y.raw() == b.raw()), !(z.raw() == a.raw())};
  };
  register_kernel("two_targets", 0, DType::float32, kernel);
  DenseTensor x = clone(iota<float>({4}).get().value), y = clone(x);
  const DenseTensor& z = x;  // the handle of a target, as two_targets_(x, y, x) passes it
  const Meta meta = x.meta();
  const OpContext ctx{"two_targets_"};
  call::compute_inplace(ctx, op, kernel_table("two_targets"), DType::float32, std::tie(x, y), std::tie(meta, meta), x,
                        y, z);
  CHECK(copied == std::vector<bool>{false, false, true});
}

TEST_CASE("4: a result that cannot be copied back poisons its target, whatever the error is") {
  const Device device{static_cast<uint8_t>(frail_backend()), 0};
  using Kernel = void(const OpContext&, const DenseTensor&, DenseTensor&);
  Kernel* const nothing = [](const OpContext&, const DenseTensor&, DenseTensor&) {};
  register_kernel("into_new_buffer", device.backend, DType::float32, nothing);
  static const OpDef op = {.name = "into_new_buffer", .inputs = slots<"x">, .outputs = slots<"out">};
  DenseTensor x = DenseTensor::allocate(device, {{4}, DType::float32});
  const Meta meta = x.meta();
  const OpContext ctx{"into_new_buffer_"};
  copies_fail = true;
  error_of([&] { call::compute_inplace(ctx, op, kernel_table("into_new_buffer"), DType::float32, x, meta, x); },
           ErrorCode::invalid_argument);
  copies_fail = false;
  CHECK_THAT(error_of([&] { x.storage()->check_read(); }, ErrorCode::poisoned),
             Catch::Contains("the copy failed half way"));
}

TEST_CASE(
    "4: a placement rule that promises other local shapes than the op computes is an internal error, on every call") {
  // transpose, under a rule by which each rank would have rows of the result.
  static constexpr OpDef op = {.name = "swapped",
                               .inputs = slots<"x">,
                               .attrs = names<"perm">,
                               .outputs = slots<"out">,
                               .rule = "a b -> a b",
                               .kernel = "transpose",
                               .kernel_dtypes = dtype_sources<input_dtype(0)>};
  run_ranks(2, [](Rank&) {
    const Tensor x = distribute(iota<float>({4, 4}), DistSpec::parse(line(2), "p, -"));
    const IntArray perm = {1, 0};
    for (int i = 0; i < 2; ++i) {
      const std::string text = error_of(
          [&] {
            call::DistCall call(op, x, perm);
            call.run(infer::transpose, [&] { return dense::transpose(call, call.meta(0), call[0], perm); });
          },
          ErrorCode::internal);
      check_contains(text, "computes a local shard f32[4, 2] where layout [p, -] of f32[4, 4] has f32[2, 4]");
    }
  });
}

TEST_CASE("4: a list of shards that is shorter or longer than the plan says is an internal error") {
  run_ranks(2, [](Rank&) {
    const Tensor x = distribute(iota<float>({4, 4}), DistSpec::parse(line(2), "p, -"));
    const IntArray sections = {1, 3};
    const Scalar axis = 1;
    for (const size_t count : {1, 3}) {
      call::DistCall call(ops::split, x, sections, axis);
      const std::string text = error_of(
          [&] {
            call.run(infer::split, [&] {
              std::vector<DenseTensor> shards = dense::split(call, call.metas(0), call[0], sections, axis);
              shards.resize(count);
              return shards;
            });
          },
          ErrorCode::internal);
      check_contains(text, fmt::format("computed {} local shards of 'out', but there are 2", count));
    }
  });
}

}  // namespace checks_test
