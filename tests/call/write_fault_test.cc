// Faults after the first write of a call on a mesh: in the kernel, in the write-back and in the
// communicator. What the call was writing is poisoned on all ranks, and no rank waits forever
// (statements 4 and 9).
#include <catch2/catch.hpp>

#include <array>
#include <cstring>

#include "shard/call/dist_call.h"
#include "shard/kernels/registry.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace write_fault_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line() { return ProcessMesh::make({2}, {}, {"p"}); }

/// A backend in host memory with a relu and a softmax. The test decides what they do on a rank in
/// addition to writing.
thread_local std::function<void()> in_kernel;
thread_local bool copies_fail = false;

void write_half(const DenseTensor& out) {
  if (in_kernel) std::fill_n(out.data<float>(), out.numel() / 2, -1.0f);
  if (in_kernel) in_kernel();
  std::fill_n(out.data<float>(), out.numel(), 7.0f);
}

Device faulty_device() {
  static const int id = [] {
    const int backend = register_backend(
        {.name = "faulty",
         .device_count = [] { return 1; },
         .allocate = [](int,
                        size_t bytes) { return std::aligned_alloc(kAllocationAlignment, (bytes + 127) / 64 * 64); },
         .free = [](int, void* data) { std::free(data); },
         .copy =
             [](int, void* to, const void* from, size_t bytes) {
               std::memcpy(to, from, copies_fail ? bytes / 2 : bytes);
               if (copies_fail) throw std::runtime_error("the copy failed half way");
             },
         .copy_from_host = [](int, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
         .copy_to_host = [](int, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
         .synchronize = [](int) {}});
    using Unary = void(const OpContext&, const DenseTensor&, DenseTensor&);
    Unary* const relu = [](const OpContext&, const DenseTensor&, DenseTensor& out) { write_half(out); };
    register_kernel("relu", backend, DType::float32, relu);
    using Softmax = void(const OpContext&, const DenseTensor&, int, DenseTensor&);
    Softmax* const softmax = [](const OpContext&, const DenseTensor&, int, DenseTensor& out) { write_half(out); };
    register_kernel("softmax", backend, DType::float32, softmax);
    return backend;
  }();
  return {static_cast<uint8_t>(id), 0};
}

/// While an object exists, the relu of float64 tensors on the CPU writes and then runs in_kernel.
class FaultyRelu {
  using Kernel = void(const OpContext&, const DenseTensor&, DenseTensor&);

 public:
  FaultyRelu() : before_(kernel_table("relu").find<Kernel>({"relu"}, kCpu, DType::float64).function) {
    Kernel* const faulty = [](const OpContext&, const DenseTensor&, DenseTensor& out) {
      std::fill_n(out.data<double>(), out.numel(), 7.0);
      if (in_kernel) in_kernel();
    };
    register_kernel("relu", kCpu.backend, DType::float64, faulty);
  }
  FaultyRelu(const FaultyRelu&) = delete;
  ~FaultyRelu() { register_kernel("relu", kCpu.backend, DType::float64, before_); }

 private:
  Kernel* const before_;
};

/// A matrix whose rows are sharded, and a view of it that was resharded: what is written through
/// the view is sent back.
struct MovedView {
  Tensor source = distribute(iota<double>({3, 2}), DistSpec::parse(line(), "p, -"));
  Tensor view = reshape(source, {6});
  Tensor other = distribute(iota<double>({4}), DistSpec::parse(line(), "p"));
};

/// A tensor of shape [4, 4] whose rows are sharded, on the faulty device.
Tensor rows_on_device() {
  DenseTensor shard = DenseTensor::allocate(faulty_device(), {{2, 4}, DType::float32});
  std::fill_n(shard.data<float>(), shard.numel(), 1.0f);
  return from_local(Tensor(shard), DistSpec::parse(line(), "p, -"), {4, 4}, DType::float32);
}

/// Makes `copy` a stale copy of `source` that ViewPolicy::sync writes back with `write_back`.
void link(Tensor& copy, const Tensor& source, std::function<void()> write_back) {
  const Ref<Storage>& from = source.get().value.storage();
  copy.get().value.storage()->detach({from, from->version(), "a view", "x", "", "", [] {}, std::move(write_back)});
}

template <class F>
std::string thrown_by(F&& call) {
  try {
    call();
  } catch (const std::exception& error) { return error.what(); }
  throw std::runtime_error("nothing was thrown");
}

/// Runs `program` in a world that fails, and checks that no rank waited until a timeout for another.
void run_failing(const std::function<void(Rank&)>& program) {
  const auto begin = std::chrono::steady_clock::now();
  run_torn_world(2, program);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

/// Every read and write of x throws `poisoned`, with `cause`.
void check_poisoned(Tensor& x, const std::string& cause) {
  check_contains(error_of([&] { local(x); }, ErrorCode::poisoned), cause);
  check_contains(error_of([&] { relu(x); }, ErrorCode::poisoned), cause);
  check_contains(error_of([&] { relu_(x); }, ErrorCode::poisoned), cause);
}

}  // namespace

TEST_CASE("4, 9: a kernel that fails on one rank after its first write poisons the target on all ranks") {
  run_failing([](Rank& rank) {
    Tensor x = rows_on_device();
    const Tensor other = distribute(iota<float>({4}), DistSpec::parse(line(), "p"));
    if (rank.id() == 1) {
      in_kernel = [] { throw std::runtime_error("the kernel broke"); };
      check_contains(thrown_by([&] { relu_(x); }), "the kernel broke");
      in_kernel = nullptr;
    } else {
      relu_(x);
    }
    check_contains(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed), "the kernel broke");
    check_poisoned(x, "the kernel broke");
    check(local(other).to_vector<float>().size() == 2, "what it did not write can be read");
  });
}

TEST_CASE("4, 9: a write-back whose copy fails on one rank poisons the target on all ranks") {
  run_failing([](Rank& rank) {
    Tensor x = rows_on_device();
    const Tensor other = distribute(iota<float>({4}), DistSpec::parse(line(), "p"));
    if (rank.id() == 1) {
      copies_fail = true;
      check_contains(thrown_by([&] { softmax_(x, 1); }), "the copy failed half way");
      copies_fail = false;
    } else {
      softmax_(x, 1);
    }
    check_contains(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed), "the copy failed half way");
    check_poisoned(x, "the copy failed half way");
  });
}

TEST_CASE("4, 9: a kernel that fails on one rank while the others write back poisons what is written on all ranks") {
  const FaultyRelu relu;
  run_failing([](Rank& rank) {
    const PolicyScope sync(rank, {.view = ViewPolicy::sync});
    MovedView x;
    if (rank.id() == 1) {
      in_kernel = [] { throw std::runtime_error("the kernel broke"); };
      check_contains(thrown_by([&] { relu_(x.view); }), "the kernel broke");
      in_kernel = nullptr;
    } else {
      check_contains(error_of([&] { relu_(x.view); }, ErrorCode::peer_failed), "the kernel broke");
    }
    check_contains(error_of([&] { full_tensor(x.other); }, ErrorCode::peer_failed), "the kernel broke");
    check_poisoned(x.view, "the kernel broke");
    check_poisoned(x.source, "the kernel broke");
  });
}

TEST_CASE("4: a write-back that fails on all ranks poisons its source, and not that of a target which comes after it") {
  static constexpr OpDef both = {.name = "both",
                                 .inplace_name = "both_",
                                 .inputs = slots<"x", "y">,
                                 .outputs = slots<"x_out", "y_out">,
                                 .aliases = aliases<inplace_alias(0, 0), inplace_alias(1, 1)>,
                                 .rule = "..., ... -> ..., ..."};
  run_ranks(2, [](Rank& rank) {
    const PolicyScope sync(rank, {.view = ViewPolicy::sync});
    const auto make = [] { return distribute(iota<float>({4}), DistSpec::parse(line(), "p")); };
    const Tensor x_source = make(), y_source = make();
    Tensor x = make(), y = make();
    link(x, x_source, [] { throw std::runtime_error("no way back"); });
    link(y, y_source, [] {});
    constexpr auto infer = [](const OpContext&, const Meta& a, const Meta& b) { return std::tuple(a, b); };
    const auto call_both = [&] {
      call::DistCall call(call::inplace, both, x, y);
      call.run(+infer, [] {});
    };
    check_contains(thrown_by(call_both), "no way back");
    for (const Tensor& written : {x, y, x_source})
      check_contains(error_of([&] { local(written); }, ErrorCode::poisoned), "no way back");
    check(full_equals<float>(y_source, {0, 1, 2, 3}), "nothing was written to it");
  });
}

TEST_CASE("4, 9, 29: a captured call that fails on one rank poisons a target that the others write back") {
  const FaultyRelu relu;
  run_failing([](Rank& rank) {
    CapturedFunction captured(
        [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
          Tensor x = in[0];
          relu_(x);
          return {};
        },
        {});
    const DistSpec* const pending = DistSpec::parse(line(), "- | sum(p)");
    Tensor x = reshard(distribute(iota<double>({4}), DistSpec::parse(line(), "-")), pending);
    const Tensor other = distribute(iota<double>({4}), DistSpec::parse(line(), "p"));
    if (rank.id() == 1) {
      in_kernel = [] { throw std::runtime_error("the kernel broke"); };
      check_contains(thrown_by([&] { captured({x}); }), "the kernel broke");
      in_kernel = nullptr;
    } else {
      captured({x});
    }
    check_contains(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed), "the kernel broke");
    check_poisoned(x, "the kernel broke");
  });
}

TEST_CASE("4, 9: a communicator that fails in a write-back poisons what is written on all ranks") {
  const FaultyRelu relu;
  const auto program = [](Rank& rank) {
    const PolicyScope sync(rank, {.view = ViewPolicy::sync});
    MovedView x;
    // One rank starts a collective that the other does not, after its kernel has written.
    if (rank.id() == 1) {
      in_kernel = [&] {
        const int64_t bytes[] = {8, 8};
        const uint64_t mine = 0;
        std::array<uint64_t, 2> all = {};
        thrown_by([&] { rank.communicator(line(), 0).all_gather({"stray", "x"}, &mine, all.data(), bytes).wait(); });
      };
    }
    const std::string text = thrown_by([&] { relu_(x.view); });
    in_kernel = nullptr;
    check_contains(text, "stray");
    check_poisoned(x.view, "stray");
    check_poisoned(x.source, "stray");
  };
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(run_ranks(2, program, {.timeout = std::chrono::seconds(5)}), Error);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace write_fault_test
