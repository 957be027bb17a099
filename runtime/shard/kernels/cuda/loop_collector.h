// What an open loop (fused_loop.h) keeps: a product that may lead it, and calls of elementwise kernels with their places in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "shard/kernels/cuda/epilogue.h"
#include "shard/kernels/cuda/fused_loop.h"

namespace shard::cuda::detail {

/// Which element of an operand belongs to element i of the loop: (i / inner) % length, or i where the length is 0.
struct Access {
  int64_t inner = 1, length = 0;

  bool operator==(const Access&) const = default;
};

struct Memory {
  char* data;
  size_t bytes;
  DType dtype;

  explicit Memory(const DenseTensor& tensor)
      : data(static_cast<char*>(tensor.raw())), bytes(tensor.meta().bytes()), dtype(tensor.dtype()) {}
  bool meets(const Memory& other) const { return data < other.data + other.bytes && other.data < data + bytes; }
  /// Whether element i of both is at the same place for each i.
  bool agrees_with(const Memory& other) const {
    return data == other.data && bytes == other.bytes && size_of(dtype) == size_of(other.dtype);
  }
};

struct Read {
  Memory memory;
  Access access;
};

/// The operand of a call: the result of another one, or what is read.
struct Value {
  bool computed;
  size_t index;
};

/// A call's operands and its result, and their places in memory.
struct Places {
  std::vector<Read> reads;
  Memory out;
  std::vector<DenseTensor> inputs;
  DenseTensor result;
};

struct Call {
  LoopCall what;  // without its tensors
  Places places;
  std::vector<Value> inputs;
};

struct Write {
  Memory memory;
  size_t call;  // the last one that computes it
};

/// The places of a call, if a loop can read its operands.
std::optional<Places> places_of(const LoopCall& call);

struct LoopCollector {
  static constexpr size_t kMostWords = 120;  // of a kernel's arguments: those of LoopWords in loop_kernel.cuh

  int device;
  std::optional<ProductCall> product = {};  // comes before the calls
  int64_t count = 0;
  std::vector<Read> reads = {};
  std::vector<Call> calls = {};
  std::vector<Write> writes = {};
  std::vector<const void*> dropped = {};  // addresses of results that nothing reads any more

  /// Whether the results of the loop with this call, of `elements` elements, are those of one kernel after the other: a thread has its
  /// elements alone.
  bool fits(const Places& call, int64_t elements) const;
  void append(const LoopCall& what, Places places);
  /// Issues the product, with the first calls as its epilogue where that saves a pass over memory. The loop then has neither.
  void issue_product();
  bool is_dropped(const Memory& memory) const {
    return std::find(dropped.begin(), dropped.end(), memory.data) != dropped.end();
  }

 private:
  size_t words() const { return 3 * reads.size() + 2 * calls.size() + writes.size(); }  // at most
  /// What an operand is in the loop: a result so far, what was read already, or a new read.
  Value value_of(const Read& read);
};

}  // namespace shard::cuda::detail
