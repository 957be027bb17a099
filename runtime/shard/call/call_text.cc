#include "shard/call/call_text.h"

#include <fmt/format.h>

#include <span>

namespace shard::call {

std::string call_text(const OpDef& op, const char* function, std::initializer_list<const void*> arguments) {
  std::string text;
  size_t at = 0;
  for (const void* argument : arguments) {
    if (argument == nullptr) continue;
    const SlotDef& slot = op.inputs[at++];
    const bool list = slot.kind == SlotDef::Kind::list;
    const std::span<const Tensor> tensors = list ? std::span(*static_cast<const std::vector<Tensor>*>(argument))
                                                 : std::span(static_cast<const Tensor*>(argument), 1);
    std::string shapes;
    for (const Tensor& tensor : tensors)
      shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ",
                            tensor.defined() ? to_string(tensor.get().value.meta()) : "none");
    text += fmt::format("{}{}: {}{}{}", text.empty() ? "" : ", ", slot.name, list ? "{" : "", shapes, list ? "}" : "");
  }
  return fmt::format("{}({})", function, text);
}

void rethrow_with_call(const Error& error, const OpDef& op, const char* function,
                       std::initializer_list<const void*> arguments) {
  if (error.code() != ErrorCode::device) throw;
  fail(error.code(), "{}\n  in the call {}", error.what(), call_text(op, function, arguments));
}

void rethrow_as(std::string_view op, std::string_view invoked) {
  try {
    throw;
  } catch (const Error& error) {
    const std::string tag = fmt::format("[{}]", invoked);
    const std::string_view text = error.what();
    if (!text.starts_with(tag)) throw;
    fail(error.code(), "[{}]{}", op, text.substr(tag.size()));
  }
}

}  // namespace shard::call
