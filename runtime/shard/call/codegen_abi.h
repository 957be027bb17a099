// The version of the contract between generated code and this runtime; generated files assert it.
#pragma once

namespace shard {

/// Increased whenever docs/generated_code.md changes in a way that breaks existing generated code.
inline constexpr int kCodegenAbi = 8;

}  // namespace shard
