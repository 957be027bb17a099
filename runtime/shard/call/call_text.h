// How error messages name a call: on plain tensors with its arguments, and by the op that the user
// called. For distributed calls see CallArgs::text().
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "shard/core/error.h"
#include "shard/core/export.h"
#include "shard/core/op_def.h"
#include "shard/core/tensor.h"

namespace shard::call {

/// The address of a tensor or of a list of tensors; null for an attribute.
inline const void* tensor_argument(const Tensor& tensor) { return &tensor; }
inline const void* tensor_argument(const std::vector<Tensor>& tensors) { return &tensors; }
template <class T>
const void* tensor_argument(const T&) {
  return nullptr;
}

/// The text of a call: "add(x: f32[2, 3], y: f32[3])". It has the name of the function that was
/// called, and dtype and shape of its tensor arguments, with lists in braces. `arguments` are
/// tensor_argument() of each argument, in the order of the op.
SHARD_API std::string call_text(const OpDef& op, const char* function, std::initializer_list<const void*> arguments);

/// Call this in an exception handler. Throws the error again, with the text of the call appended to
/// device errors such as a lack of memory.
[[noreturn, gnu::cold]] SHARD_API void rethrow_with_call(const Error& error, const OpDef& op, const char* function,
                                                         std::initializer_list<const void*> arguments);

/// Call this in an exception handler of an op that only invokes another one. Throws the error
/// again; an error that names the invoked op then names the op that was called.
[[noreturn, gnu::cold]] SHARD_API void rethrow_as(std::string_view op, std::string_view invoked);

}  // namespace shard::call
