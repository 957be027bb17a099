// The source location of a call of the library, for messages about an earlier call.
#pragma once

#include <cstdint>
#include <string>

#include "shard/core/export.h"

namespace shard {

/// A line of a source file. `file` lives as long as the program; null where it is not known.
struct SHARD_API CallSite {
  const char* file = nullptr;
  uint32_t line = 0;

  /// As the default of a parameter: the location where the function with that parameter is called.
  static constexpr CallSite here(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
  /// " at train.cc:41", or nothing.
  std::string text() const;
};

}  // namespace shard
