#include "shard/kernels/epilogue_ops.h"

#include <set>
#include <utility>

namespace shard {
namespace {

/// Written while the built-in kernels are registered, and only read then.
std::set<std::pair<int, std::string_view>>& ops() {
  static std::set<std::pair<int, std::string_view>> all;
  return all;
}

}  // namespace

void note_epilogue_op(int backend, std::string_view op) { ops().insert({backend, op}); }
bool is_epilogue_op(int backend, std::string_view op) { return ops().contains({backend, op}); }

}  // namespace shard
