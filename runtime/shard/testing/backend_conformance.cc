// Runs the conformance tests: first the table of functions, then the kernels.
#include "shard/testing/backend_conformance.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "shard/core/error.h"
#include "shard/kernels/registry.h"
#include "shard/testing/conformance_cases.h"
#include "shard/testing/tensors.h"

namespace shard::testing {
namespace {

using Findings = std::vector<std::string>;

/// Runs one test; an exception becomes a finding.
template <class Test>
void guarded(Findings& findings, const std::string& what, Test test) {
  try {
    test();
  } catch (const std::exception& error) { findings.push_back(fmt::format("{}: threw: {}", what, error.what())); }
}

/// `test` must throw an Error with that code whose text contains `part`.
template <class Test>
void expect_error(Findings& findings, const std::string& what, ErrorCode code, const std::string& part, Test test) {
  try {
    test();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() == code && text.find(part) != std::string::npos) return;
    findings.push_back(fmt::format("{}: expected an error {} with '{}', but got {}: {}", what, to_string(code), part,
                                   to_string(error.code()), text));
    return;
  }
  findings.push_back(
      fmt::format("{}: expected an error {} with '{}', but nothing was thrown", what, to_string(code), part));
}

/// Memory of the backend, freed at the end.
class Block {
 public:
  Block(const Backend& backend, int index, size_t bytes)
      : backend_(backend), index_(index), data_(backend.allocate(index, bytes)) {}
  ~Block() {
    if (data_ != nullptr) backend_.free(index_, data_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }

 private:
  const Backend& backend_;
  int index_;
  void* data_;
};

void check_allocations(const Backend& backend, int index, Findings& findings) {
  guarded(findings, "allocate(0)", [&] { const Block none(backend, index, 0); });
  for (const size_t bytes : {1u, 63u, 64u, 65u, 1000u, 4097u, 1u << 20}) {
    guarded(findings, fmt::format("allocate({})", bytes), [&] {
      const Block first(backend, index, bytes), second(backend, index, bytes);
      for (const Block* block : {&first, &second}) {
        const auto address = reinterpret_cast<uintptr_t>(block->data());
        if (address == 0) findings.push_back(fmt::format("allocate({}) returned null", bytes));
        if (address % kAllocationAlignment != 0) {
          findings.push_back(fmt::format("allocate({}) returned an address that is not a multiple of {}", bytes,
                                         kAllocationAlignment));
        }
      }
      if (first.data() == second.data())
        findings.push_back(fmt::format("allocate({}) returned the same address twice", bytes));
    });
  }
}

std::vector<unsigned char> pattern(size_t bytes, unsigned start) {
  std::vector<unsigned char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(start + 7 * i);
  return data;
}

/// Copies host to device, within the device, and back, `shift` bytes into buffers whose other bytes
/// must not change.
void check_round_trip(const Backend& backend, int index, size_t bytes, size_t shift, Findings& findings) {
  const size_t room = bytes + 2 * shift;
  const std::vector<unsigned char> sent = pattern(bytes, 1), background = pattern(room, 100);
  std::vector<unsigned char> expected = background, got(room);
  std::copy(sent.begin(), sent.end(), expected.begin() + static_cast<std::ptrdiff_t>(shift));
  const Block first(backend, index, room), second(backend, index, room);
  const auto inside = [&](const Block& block) { return static_cast<char*>(block.data()) + shift; };
  backend.copy_from_host(index, first.data(), background.data(), room);
  backend.copy_from_host(index, second.data(), background.data(), room);
  backend.copy_from_host(index, inside(first), sent.data(), bytes);
  backend.copy(index, inside(second), inside(first), bytes);
  backend.synchronize(index);
  backend.copy_to_host(index, got.data(), second.data(), room);
  if (got != expected) {
    findings.push_back(
        fmt::format("copies of {} bytes at offset {}: what came back is not what was sent", bytes, shift));
  }
}

void check_copies(const Backend& backend, int index, Findings& findings) {
  guarded(findings, "copies of 0 bytes", [&] {
    backend.copy(index, nullptr, nullptr, 0);
    backend.copy_from_host(index, nullptr, nullptr, 0);
    backend.copy_to_host(index, nullptr, nullptr, 0);
    backend.synchronize(index);
  });
  for (const size_t bytes : {1u, 3u, 64u, 1001u, 70000u}) {
    for (const size_t shift : {1u, 64u}) {
      guarded(findings, fmt::format("copies of {} bytes", bytes),
              [&] { check_round_trip(backend, index, bytes, shift, findings); });
    }
  }
}

/// A graph of the work that `work` issues, made of another one where it is given.
class Graph {
 public:
  template <class Work>
  Graph(const Backend& backend, int index, Work work, Graph* old = nullptr) : backend_(backend), index_(index) {
    backend.graph_begin(index);
    try {
      work();
    } catch (...) {
      backend.graph_abandon(index);
      throw;
    }
    handle_ = backend.graph_end(index, old == nullptr ? nullptr : std::exchange(old->handle_, nullptr));
  }
  ~Graph() {
    if (handle_ != nullptr) backend_.graph_free(index_, handle_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const { backend_.graph_launch(index_, handle_); }

 private:
  const Backend& backend_;
  int index_;
  void* handle_ = nullptr;
};

/// Copies through memory that is allocated and freed during the recording.
void check_graphs(const Backend& backend, int index, Findings& findings) {
  if (backend.graph_begin == nullptr) return;
  guarded(findings, "graphs", [&] {
    constexpr size_t bytes = 1001;
    const Block from(backend, index, bytes), to(backend, index, bytes);
    const auto set = [&](const Block& block, unsigned start) {
      backend.copy_from_host(index, block.data(), pattern(bytes, start).data(), bytes);
    };
    const auto expect = [&](unsigned start, const char* finding) {
      std::vector<unsigned char> got(bytes);
      backend.copy_to_host(index, got.data(), to.data(), bytes);
      if (got != pattern(bytes, start)) findings.push_back(std::string("graphs: ") + finding);
    };
    set(from, 1);
    set(to, 2);
    Graph graph(backend, index, [&] {
      const Block between(backend, index, bytes);
      backend.copy(index, between.data(), from.data(), bytes);
      backend.copy(index, to.data(), between.data(), bytes);
    });
    expect(2, "work was run while it was recorded");
    for (const unsigned start : {1u, 3u, 4u}) {
      set(from, start);
      graph.launch();
      expect(start, "a launch did not do the work that was recorded");
    }
    {
      const Block other(backend, index, bytes);
      const auto copy_other = [&] { backend.copy(index, to.data(), other.data(), bytes); };
      const auto copy_from = [&] { backend.copy(index, to.data(), from.data(), bytes); };
      set(other, 6);
      Graph first(backend, index, copy_from), second(backend, index, copy_other, &first);
      expect(4, "work was run while it was recorded");
      second.launch();
      expect(6, "a graph that was made of another one did not do its own work");
      const Graph larger(
          backend, index,
          [&] {
            copy_other();
            copy_from();
          },
          &second);
      set(to, 7);
      larger.launch();
      expect(4, "a graph that was made of one with other work did not do its own");
    }
    set(from, 5);
    backend.graph_begin(index);
    backend.copy(index, to.data(), from.data(), bytes);
    backend.graph_abandon(index);
    expect(4, "work of an abandoned recording was run");
    backend.copy(index, to.data(), from.data(), bytes);
    expect(5, "after an abandoned recording a copy was not run");
  });
}

void check_registration(Device device, Findings& findings) {
  const Backend& backend = backend_of(device);
  if (find_backend(backend.name) != device.backend) {
    findings.push_back(fmt::format("find_backend(\"{}\") returns {}, not {}", backend.name, find_backend(backend.name),
                                   device.backend));
  }
  expect_error(findings, "a second register_backend", ErrorCode::invalid_argument,
               fmt::format("backend '{}' is registered already", backend.name), [&] { register_backend(backend); });
  if (backend.device_count() <= device.index) {
    findings.push_back(
        fmt::format("device_count() is {}, so there is no {}", backend.device_count(), to_string(device)));
  }
  const OpContext ctx{"no_such_op"};
  expect_error(findings, "an op without kernels", ErrorCode::no_kernel,
               fmt::format("no kernel registered for no_such_op on {}", to_string(device)),
               [&] { kernel_table("no_such_op").find<void(const OpContext&)>(ctx, device, DType::float32); });
}

/// A tensor of that meta in the middle of a larger buffer, one element from its start; the
/// surrounding bytes are known.
DenseTensor inside_of_buffer(Device device, const Meta& meta) {
  const Meta room{{static_cast<int64_t>(meta.bytes() + 2 * size_of(meta.dtype))}, DType::uint8};
  const DenseTensor buffer = copy_to(device, random_tensor(room.dims, room.dtype, 99));
  return {buffer.storage(), meta, size_of(meta.dtype)};
}

bool is_intact_around(const DenseTensor& view) {
  const size_t bytes = view.storage()->bytes(), margin = view.offset();
  const Meta room{{static_cast<int64_t>(bytes)}, DType::uint8};
  const DenseTensor before = random_tensor(room.dims, room.dtype, 99);
  const DenseTensor after = copy_to(kCpu, DenseTensor(view.storage(), room));
  const auto* a = before.data<unsigned char>();
  const auto* b = after.data<unsigned char>();
  return std::memcmp(a, b, margin) == 0 && std::memcmp(a + bytes - margin, b + bytes - margin, margin) == 0;
}

void check_call(Device device, const std::string& kernel, const KernelCall& call, Findings& findings) {
  const OpContext ctx{kernel.c_str()};
  std::vector<DenseTensor> host;
  for (const Meta& meta : call.inputs)
    host.push_back(random_tensor(meta.dims, meta.dtype, 11 + static_cast<unsigned>(host.size())));
  DenseTensor expected = DenseTensor::allocate(kCpu, call.out);
  call.run(ctx, host, expected);
  for (const bool views : {false, true}) {
    const std::string what = fmt::format("{}{} {}", kernel, views ? " on views" : "", call.text);
    guarded(findings, what, [&] {
      std::vector<DenseTensor> inputs;
      for (const DenseTensor& tensor : host) {
        inputs.push_back(views ? inside_of_buffer(device, tensor.meta())
                               : DenseTensor::allocate(device, tensor.meta()));
        copy_into(inputs.back(), tensor);
      }
      DenseTensor out = views ? inside_of_buffer(device, call.out) : DenseTensor::allocate(device, call.out);
      call.run(ctx, inputs, out);
      if (const std::string problem = difference(out, expected); !problem.empty())
        findings.push_back(what + ": " + problem);
      if (views && !is_intact_around(out)) findings.push_back(what + ": bytes next to the output were written");
      if (backend_of(device).graph_begin == nullptr) return;
      DenseTensor again = views ? inside_of_buffer(device, call.out) : DenseTensor::allocate(device, call.out);
      const Graph graph(backend_of(device), device.index, [&] { call.run(ctx, inputs, again); });
      graph.launch();
      if (const std::string problem = difference(again, expected); !problem.empty())
        findings.push_back(what + " as a graph: " + problem);
    });
  }
}

void check_kernels(Device device, const KernelCases& cases, const SkipSink& skipped, Findings& findings) {
  const KernelTable& table = kernel_table(cases.kernel.c_str());
  std::string missing;
  const KernelCall* last = nullptr;
  for (const KernelCall& call : cases.calls) {
    if (table.has(device, call.dtype())) {
      check_call(device, cases.kernel, call, findings);
    } else if (last == nullptr || last->dtype() != call.dtype()) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", to_string(call.dtype()));
    }
    last = &call;
  }
  if (!missing.empty()) {
    skipped(fmt::format("{}: {} has no kernel of it for {}", cases.kernel, backend_of(device).name, missing));
  }
}

}  // namespace

std::vector<std::string> check_backend(Device device, const SkipSink& skipped) {
  Findings findings;
  const Backend& backend = backend_of(device);
  check_registration(device, findings);
  check_allocations(backend, device.index, findings);
  check_copies(backend, device.index, findings);
  check_graphs(backend, device.index, findings);
  for (const KernelCases& cases : kernel_cases()) check_kernels(device, cases, skipped, findings);
  return findings;
}

}  // namespace shard::testing
