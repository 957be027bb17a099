// A device in host memory that records: its kernels are those of the CPU. During a recording they
// and copies are added to a journal, which a launch executes.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shard/core/error.h"
#include "shard/core/op_context.h"
#include "shard/core/op_def.h"
#include "shard/kernels/registry.h"

namespace shard::test::recording {

struct Journal {
  std::vector<std::function<void()>> work;
  std::vector<void*> freed;  // during the recording; launches use it
  Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal() {
    for (void* data : freed) std::free(data);
  }
};

/// What has been done, and which failures to simulate. Tests reset it.
struct State {
  int recordings = 0, launches = 0, abandoned = 0;
  int kept = 0;              // graphs that are not freed
  bool refuses_end = false;  // graph_end throws
  bool refuses_launch = false;
  int refused_relu = 0;  // this many calls of relu from now on throw ...
  bool checks = false;   // ... a CheckError; else an Error
};
inline State state;
inline thread_local std::unique_ptr<Journal> journal;  // null when nothing is recorded

inline void submit(std::function<void()> work) {
  if (journal) journal->work.push_back(std::move(work));
  else work();
}

inline void* allocate(int, size_t bytes) {
  constexpr size_t unit = kAllocationAlignment;
  return bytes == 0 ? nullptr : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}
inline void release(int, void* data) {
  if (journal) journal->freed.push_back(data);
  else std::free(data);
}
inline void copy(int, void* to, const void* from, size_t bytes) {
  if (bytes != 0) submit([=] { std::memcpy(to, from, bytes); });
}
inline void copy_with_host(int, void* to, const void* from, size_t bytes) {
  if (journal) fail(ErrorCode::device, "a copy between device and host cannot be recorded");
  if (bytes != 0) std::memcpy(to, from, bytes);
}

inline void graph_begin(int) {
  if (journal) fail(ErrorCode::device, "a recording is on already");
  journal = std::make_unique<Journal>();
}
inline void graph_free(int, void* graph) {
  delete static_cast<Journal*>(graph);
  --state.kept;
}
inline void* graph_end(int index, void* old) {
  if (old != nullptr) graph_free(index, old);
  std::unique_ptr<Journal> made = std::move(journal);
  if (state.refuses_end) fail(ErrorCode::device, "no graph can be made of this");
  ++state.recordings;
  ++state.kept;
  return made.release();
}
inline void graph_abandon(int) {
  journal.reset();
  ++state.abandoned;
}
inline void graph_launch(int, void* graph) {
  if (state.refuses_launch) fail(ErrorCode::device, "the graph cannot be launched");
  ++state.launches;
  for (const std::function<void()>& work : static_cast<Journal*>(graph)->work) work();
}

/// A tensor by its address: a journal holds no reference to a buffer.
struct Operand {
  void* data;
  Meta meta;
  explicit Operand(const DenseTensor& tensor) : data(tensor.raw()), meta(tensor.meta()) {}
  DenseTensor read() const {
    DenseTensor host = DenseTensor::allocate(kCpu, meta);
    copy_with_host(0, host.raw(), data, meta.bytes());
    return host;
  }
  void write(const DenseTensor& host) const { copy_with_host(0, data, host.raw(), meta.bytes()); }
};

/// Submits the CPU's kernel of that name.
template <FixedString name, class... Args>
void run_on_host(const std::vector<Operand>& inputs, const Operand& out, const Args&... args) {
  submit([=] {
    const OpContext ctx{name.text};
    std::vector<DenseTensor> hosts;
    for (const Operand& input : inputs) hosts.push_back(input.read());
    DenseTensor result = DenseTensor::allocate(kCpu, out.meta);
    const KernelTable& table = kernels<name>();
    const DType dtype = inputs[0].meta.dtype;
    using In = const DenseTensor&;
    if (inputs.size() == 2)
      table.find<void(const OpContext&, In, In, Args..., DenseTensor&)>(ctx, kCpu, dtype)
          .function(ctx, hosts[0], hosts[1], args..., result);
    else
      table.find<void(const OpContext&, In, Args..., DenseTensor&)>(ctx, kCpu, dtype)
          .function(ctx, hosts[0], args..., result);
    out.write(result);
  });
}

template <FixedString name>
void binary(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  run_on_host<name>({Operand(x), Operand(y)}, Operand(out));
}
inline void assign(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  copy(0, out.raw(), x.raw(), x.meta().bytes());
}
inline void relu(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  if (state.refused_relu > 0) {
    --state.refused_relu;
    if (state.checks) fail_check(ErrorCode::invalid_argument, "relu refuses");
    fail(ErrorCode::invalid_argument, "relu refuses");
  }
  run_on_host<"relu">({Operand(x)}, Operand(out));
}
inline void bernoulli(const OpContext&, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  run_on_host<"bernoulli">({Operand(x)}, Operand(out), key);
}
inline void softmax(const OpContext&, const DenseTensor& x, int axis, DenseTensor& out) {
  run_on_host<"softmax">({Operand(x)}, Operand(out), axis);
}
/// The concat of a list along dim 0.
inline void concat(const OpContext&, std::span<const DenseTensor> x, const Scalar&, DenseTensor& out) {
  char* to = static_cast<char*>(out.raw());
  for (const DenseTensor& each : x) {
    copy(0, to, each.raw(), each.meta().bytes());
    to += each.meta().bytes();
  }
}

inline Backend backend() {
  return {.name = "recording",
          .device_count = [] { return 1; },
          .allocate = allocate,
          .free = release,
          .copy = copy,
          .copy_from_host = copy_with_host,
          .copy_to_host = copy_with_host,
          .synchronize = [](int) {},
          .graph_begin = graph_begin,
          .graph_end = graph_end,
          .graph_abandon = graph_abandon,
          .graph_launch = graph_launch,
          .graph_free = graph_free};
}

/// Registered at the first call. It has a few kernels, for float32.
inline Device device() {
  static const int id = [] {
    const int backend = register_backend(recording::backend());
    register_kernel("add", backend, DType::float32, &binary<"add">);
    register_kernel("multiply", backend, DType::float32, &binary<"multiply">);
    register_kernel("assign", backend, DType::float32, &assign);
    register_kernel("relu", backend, DType::float32, &relu);
    register_kernel("bernoulli", backend, DType::float32, &bernoulli);
    register_kernel("softmax", backend, DType::float32, &softmax);
    register_kernel("concat", backend, DType::float32, &concat);
    return backend;
  }();
  return {static_cast<uint8_t>(id), 0};
}

}  // namespace shard::test::recording
