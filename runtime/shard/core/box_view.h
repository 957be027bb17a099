// A position in a row-major buffer.
#pragma once

#include "shard/core/dims.h"

namespace shard {

/// A row-major buffer of shape `dims`, and a position in it.
struct BoxView {
  char* data;
  const Dims& dims;
  Dims begin;
};

}  // namespace shard
