#include "shard/kernels/cpu/epilogue.h"

#include <set>
#include <utility>

namespace shard::cpu {
namespace {

thread_local const Epilogue* offered = nullptr;

/// Written while the built-in kernels are registered, and only read then.
std::set<std::string_view>& names() {
  static std::set<std::string_view> all;
  return all;
}

}  // namespace

OfferedEpilogue::OfferedEpilogue(const Epilogue& epilogue) { offered = &epilogue; }
OfferedEpilogue::~OfferedEpilogue() { offered = nullptr; }
bool OfferedEpilogue::taken() const { return offered == nullptr; }

const Epilogue* take_epilogue() { return std::exchange(offered, nullptr); }

void note_epilogue(std::string_view kernel) { names().insert(kernel); }
bool takes_epilogue(std::string_view kernel) { return names().contains(kernel); }

}  // namespace shard::cpu
