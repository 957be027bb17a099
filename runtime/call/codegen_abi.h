// The version of the contract between generated code and this runtime; generated files assert it.
#pragma once

namespace shard {

/// Raised whenever docs/generated_code.md changes in a way that old generated code would not fit.
inline constexpr int kCodegenAbi = 7;

}  // namespace shard
