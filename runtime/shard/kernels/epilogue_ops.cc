#include "shard/kernels/epilogue_ops.h"

#include <map>
#include <utility>

namespace shard {
namespace {

/// Written while the built-in kernels are registered, and only read then.
std::map<std::pair<int, std::string_view>, EpilogueTest>& ops() {
  static std::map<std::pair<int, std::string_view>, EpilogueTest> all;
  return all;
}

}  // namespace

void note_epilogue_op(int backend, std::string_view op, EpilogueTest test) { ops()[{backend, op}] = test; }
bool is_epilogue_op(int backend, std::string_view op, DType dtype, const std::vector<Attr>& attrs) {
  const auto found = ops().find({backend, op});
  return found != ops().end() && found->second(dtype, attrs);
}

}  // namespace shard
