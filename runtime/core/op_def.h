// The facts about an op that generated code hands to the runtime: names, aliases, placement rule. One table per op.
#pragma once

#include <span>
#include <string_view>

namespace shard {

/// A tensor argument or output.
struct SlotDef {
  enum class Kind { single, optional, list };
  std::string_view name;
  Kind kind = Kind::single;
};

/// `output` shares the buffer of `input`.
struct AliasDef {
  enum class Kind {
    view,          // the op only reinterprets the bytes
    written_view,  // the kernel writes the shared buffer
    inplace        // only in the in-place variant: output is input
  };
  int output;
  int input;
  Kind kind;
};

/// How the op commutes with a pending reduction of its arguments (statement 14 of docs/semantics.md).
enum class Commutes {
  no,
  jointly,      // all tensor arguments partial on the same axes, with the same type
  multilinear,  // at most one argument partial
};

/// All text is null-terminated and lives as long as the library.
struct OpDef {
  std::string_view name;
  std::string_view inplace_name;  // of the in-place variant, "relu_"; empty where there is none
  std::string_view location;  // "math.yaml:12"
  std::span<const SlotDef> inputs;
  std::span<const std::string_view> attrs;  // in the order of the op's args
  std::span<const SlotDef> outputs;
  std::span<const AliasDef> aliases;
  std::string_view rule;        // a registered rule's name, or an axis expression (it has "->"); empty: none
  Commutes commutes = Commutes::no;
  unsigned commute_types = 0;   // bit per ReduceType
  std::string_view commute_guard;  // a registered predicate that must hold too; empty: always
  bool elementwise = false;     // kernels may run with an output that is exactly an input
  bool random = false;          // each call draws from the generator
};

}  // namespace shard
