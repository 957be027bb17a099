// Loops of elementwise kernels on a device as one kernel, which is compiled when it is first needed. While a loop is open, kernels of
// formulas join it instead of being launched; other work of the thread is issued behind those that joined before.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "shard/core/dense_tensor.h"

namespace shard {
struct OpContext;
}

namespace shard::cuda {

struct LoopCall;
/// Launches the kernel of a call by itself. The tensors that the call points to may not be there any more: it gets them.
using LaunchAlone = void(const OpContext& ctx, const LoopCall& call, std::span<const DenseTensor> inputs,
                         DenseTensor& out);

/// The call of an elementwise kernel.
struct LoopCall {
  const char* op = nullptr;
  /// A formula (formula.cuh), and its namespace, with which its files are found (kFormulas in fused_loop.cc). Without a namespace, a
  /// function of elements whose template argument is the type of the result.
  std::string_view formulas = {};
  std::string_view name = {};
  /// The type that the formula computes in: `number`, or Number<number>.
  DType number = DType::float32;
  bool is_vector = false;
  /// The bits of its two numbers, if it has some.
  bool takes_numbers = false;
  std::array<uint64_t, 2> numbers = {};
  /// They are broadcast to the shape of the output.
  std::span<const DenseTensor* const> inputs = {};
  const DenseTensor* out = nullptr;
  /// For a loop that the compiler refuses.
  LaunchAlone* launch_alone = nullptr;
};

namespace detail {
/// What the open loop of this thread collects; null where none is open.
extern thread_local struct LoopCollector* open_loop;
}  // namespace detail

/// The namespace and the name of `Formula`, such as basic and Add, in the name of a function as the compiler writes it.
std::pair<std::string_view, std::string_view> formula_name(std::string_view function);

inline bool loop_is_open() { return detail::open_loop != nullptr; }
/// Keeps the call for the open loop. Returns false, and does nothing, where it cannot be part of one.
bool join_loop(const LoopCall& call);

/// Whether loops can be compiled for a device: NVRTC may be absent, refuses devices that are newer than it, and may refuse what sources include.
bool compiles_loops(int device);

/// The functions of the backend for loops (core/device.h).
void register_loops(int backend);

/// A file that sources of loops may include, whose text is part of the library.
struct SourceFile {
  const char* name;
  const char* text;
};
extern const std::span<const SourceFile> kSourceFiles;

}  // namespace shard::cuda
