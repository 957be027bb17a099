// The exceptions of the runtime and the functions that throw them. Codes are added here.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "shard/core/export.h"

namespace shard {

enum class ErrorCode {
  invalid_argument,  // an attribute or argument that is invalid for any tensor
  shape_mismatch,
  dtype_mismatch,
  out_of_range,   // a dim, axis or index
  undefined,      // an undefined tensor where a tensor is needed
  no_kernel,      // no kernel for this device and dtype
  no_rule,        // no placement rule for this op
  mixed_device,   // arguments on different devices
  layout,         // incompatible meshes or layouts
  policy,         // forbidden by a policy of the caller
  view_of_copy,   // a write through a view of a resharded copy
  stale_view,     // the source of a view of a copy was written
  poisoned,       // an earlier write to this tensor failed halfway
  no_data,        // the value of a tensor of a dry world, which has no data
  wrong_rank,     // a tensor of another rank or world
  communication,  // ranks that disagree about a collective
  timeout,
  peer_failed,  // another rank of the world failed
  device,       // a device runtime reported an error
  autograd,     // gradients that cannot be computed
  capture,      // something that a captured program cannot contain
  internal,     // a defect of this library
};

SHARD_API const char* to_string(ErrorCode code);

/// The exception of every failure of the library. `what()` names the op, the argument, what was
/// expected and the fix.
class SHARD_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// The error of a kernel that refuses its arguments, or values in them, before it has written
/// anything. After any other error of a kernel, what the call writes is poisoned.
class CheckError final : public Error {
 public:
  using Error::Error;
};

/// Throws Error with a formatted text.
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

/// Throws CheckError with a formatted text.
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail_check(ErrorCode code, fmt::format_string<Args...> text,
                                                       Args&&... args) {
  throw CheckError(code, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace shard
