// Names of functions, locals and files.
#include "lower/identifiers.h"

#include <algorithm>
#include <array>

#include "lower/hash.h"

namespace shardgen {

Scope::Scope(const Op& op) {
  for (const ArgRef arg : op.signature.args) taken_.insert(name_of(op.signature, arg).text);
}

std::string Scope::local(const std::string& wanted) {
  std::string name = wanted;
  for (int number = 2; !taken_.insert(name).second; ++number) name = wanted + std::to_string(number);
  return name;
}

bool is_runtime_namespace(std::string_view name) {
  constexpr std::array<std::string_view, 13> namespaces = {"autograd", "call",    "dense", "dist", "external",
                                                           "infer",    "kernels", "meta",  "ops",  "program",
                                                           "shard",    "spmd",    "std"};
  return std::find(namespaces.begin(), namespaces.end(), name) != namespaces.end();
}

namespace {

std::string function_of(std::string name) {
  for (size_t at = name.find("__"); at != std::string::npos; at = name.find("__")) name.erase(at, 1);
  return is_runtime_namespace(name) ? name + "_op" : name;
}

}  // namespace

std::string cpp_name(const Op& op) { return function_of(op.name.text); }
std::string api_name(const Op& op) { return is_overload(op) ? function_of(op.invoke->function.text) : cpp_name(op); }

bool is_inplace_only(const Op& op) { return op.name.text.ends_with('_') && !op.inplace.empty(); }
std::string inplace_name(const Op& op) { return is_inplace_only(op) ? cpp_name(op) : cpp_name(op) + "_"; }
std::string intermediate_name(const Op& op) { return cpp_name(op) + "_intermediate"; }

std::string part_name(const std::string& family, int part, int parts) {
  return parts == 1 ? family : family + "_" + std::to_string(part);
}

std::string register_name(std::string_view umbrella, const std::string& part) {
  std::string name = "register";
  // File names may contain '-' and '.'; C++ reserves "__".
  const auto append = [&](std::string_view text) {
    name += '_';
    for (const char c : text) {
      const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      if (word || name.back() != '_') name += word ? c : '_';
    }
  };
  append(umbrella.substr(0, umbrella.rfind('.')));
  if (!part.empty()) append(part);
  return name;
}

int part_of(const std::string& op, int parts) {
  return static_cast<int>(hash_bytes(op) % static_cast<uint64_t>(parts));
}

int part_of(const Op& op, int parts) {
  return part_of(is_overload(op) ? op.invoke->function.text : op.name.text, parts);
}

}  // namespace shardgen
