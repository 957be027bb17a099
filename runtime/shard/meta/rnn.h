// The sizes of a recurrent network, which infer_meta and the kernels share.
#pragma once

#include <cstdint>
#include <string_view>

namespace shard::meta {

enum class RnnMode : uint8_t { lstm, gru, tanh, relu };

/// Gates of a cell, and the parts of `reserve` that it fills for each step: its gates and its state.
struct RnnParts {
  int64_t gates;
  int64_t reserved;
};

constexpr RnnParts parts_of(RnnMode mode) {
  switch (mode) {
    case RnnMode::lstm: return {4, 6};  // i, f, c, o; the cell; h
    case RnnMode::gru: return {3, 5};   // r, z, c; the hidden part of c; h
    case RnnMode::tanh:
    case RnnMode::relu: return {1, 1};  // h
  }
  return {1, 1};
}

/// False for a name that is no mode.
constexpr bool find_mode(std::string_view name, RnnMode& mode) {
  if (name == "LSTM") mode = RnnMode::lstm;
  else if (name == "GRU") mode = RnnMode::gru;
  else if (name == "RNN_TANH") mode = RnnMode::tanh;
  else if (name == "RNN_RELU") mode = RnnMode::relu;
  else return false;
  return true;
}

}  // namespace shard::meta
