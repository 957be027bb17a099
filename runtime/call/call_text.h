// How messages name a call: on plain tensors with its arguments, and by the op that the user called. That of distributed calls: DistCall::call_text().
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/op_def.h"
#include "core/tensor.h"

namespace shard::call {

/// The address of a tensor or of a list of them; null for an attribute.
inline const void* tensor_argument(const Tensor& tensor) { return &tensor; }
inline const void* tensor_argument(const std::vector<Tensor>& tensors) { return &tensors; }
template <class T>
const void* tensor_argument(const T&) {
  return nullptr;
}

/// "add(x: f32[2, 3], y: f32[3])": the function that was called, with dtype and shape of its tensor arguments, lists in braces. `arguments`
/// are tensor_argument() of each, in the order of the op.
std::string call_text(const OpDef& op, const char* function, std::initializer_list<const void*> arguments);

/// In a handler: throws the error again, with the call where it is one of a device, such as a lack of memory.
[[noreturn, gnu::cold]] void rethrow_with_call(const Error& error, const OpDef& op, const char* function,
                                               std::initializer_list<const void*> arguments);

/// In a handler of an op that only invokes another: throws the error again; where it names the invoked op, it names the one that was called.
[[noreturn, gnu::cold]] void rethrow_as(std::string_view op, std::string_view invoked);

}  // namespace shard::call
