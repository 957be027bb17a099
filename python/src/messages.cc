#include "messages.h"

#include <array>
#include <cctype>
#include <cstdint>

#include <shard/shard.h>

namespace shard::python {
namespace {

struct Spelling {
  std::string_view cpp;
  std::string_view python;
};

// A text that begins another one stands behind it.
constexpr auto kSpellings = std::to_array<Spelling>({
    {"inside World::run", "inside shard.run(), or after shard.init()"},
    {"World::run", "shard.run"},
    {"World::local", "shard.run"},
    {"World::dry", "shard.dry_run"},
    {"[set_requires_grad]", "[requires_grad_]"},
    {"set_requires_grad(true)", "requires_grad_()"},
    {"set_requires_grad", "requires_grad_"},
    {"[set_grad]", "[grad]"},
    {"set_grad)", "grad)"},
    {"NoGrad", "shard.no_grad()"},
    {"[CapturedFunction]", "[capture]"},
    {"shard::", "shard."},
    {"assign(x)", "x.clone()"},
    {"DistSpec::replicated(mesh, dims)", "Layout(mesh, [Replicate()])"},
    {"full_tensor(tensor)", "tensor.full_tensor()"},
    {"full_tensor(gradient)", "gradient.full_tensor()"},
    {"local(tensor)", "tensor.local()"},
    {"distribute(gradient, spec)", "shard_tensor(gradient, mesh, placements)"},
    {"distribute(tensor, spec)", "shard_tensor(tensor, mesh, placements)"},
    {"reshard(tensor, spec)", "tensor.reshard(mesh, placements)"},
});

// "CommPolicy::" and "comm", of each policy.
constexpr auto kPolicies = std::to_array<Spelling>({
#define SHARD_ROW(member, Type, ...) {#Type "::", #member},
    SHARD_POLICIES(SHARD_ROW)
#undef SHARD_ROW
});

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Appends the policy that the text begins with, and returns its length; 0 where it begins with none.
size_t append_policy(std::string_view text, std::string& out) {
  for (const Spelling& each : kPolicies) {
    if (!text.starts_with(each.cpp)) continue;
    size_t end = each.cpp.size();
    while (end < text.size() && in_word(text[end])) ++end;
    out.append("policies(")
        .append(each.python)
        .append("='")
        .append(text.substr(each.cpp.size(), end - each.cpp.size()))
        .append("')");
    return end;
  }
  return 0;
}

size_t append_spelling(std::string_view text, std::string& out) {
  for (const Spelling& each : kSpellings) {
    const size_t size = each.cpp.size();
    if (!text.starts_with(each.cpp) || (in_word(each.cpp.back()) && size < text.size() && in_word(text[size])))
      continue;
    out += each.python;
    return size;
  }
  return append_policy(text, out);
}

}  // namespace

std::string in_python(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool begins = at == 0 || !in_word(text[at - 1]);
    const size_t length = begins ? append_spelling(text.substr(at), out) : 0;
    if (length == 0) out += text[at];
    at += length > 0 ? length : 1;
  }
  return out;
}

}  // namespace shard::python
