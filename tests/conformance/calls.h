// The calls whose results reference.py computes: those of the table of op cases, for a few draws of sizes and elements
// each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/testing/op_cases.h"

namespace shard::testing {

/// One draw of a case. All float dtypes share a row, since the elements are numbers that each of them can represent.
struct ReferenceCall {
  std::string op, name;  // the key of the expected row: of an in-place form that of its op, if that has an equal case
  const OpCase* one;
  char draw;
  DType dtype;  // of the row; float32 stands for all floats
  uint64_t seed;
  std::vector<int64_t> sizes;
  std::string inputs;  // the text of the inputs, as reference.py reads it

  bool is_shared() const { return op != one->op; }
  /// "add: [m, n] and [n], draw A of floats"
  std::string title() const;
  /// The first 32 bits of a hash of `inputs`.
  uint32_t checksum() const;
  /// The dtypes to call it in, those of the case first: for floats all of them, for int32 and int64 the other one too
  /// unless the case has a row of it, or results depend on the width.
  std::vector<DType> dtypes() const;
  /// The call with inputs of the kind of `dtype`, one of dtypes().
  CaseCall call(DType dtype) const;
  /// The inputs of call(dtype). With `offset` the first of them starts within a larger buffer.
  std::vector<DenseTensor> values(const CaseCall& call, bool offset = false) const;
};

/// The letters of all draws: sizes of 3 and 5 (of 2 and 3 where that makes many elements), of 1, some of 0, and for
/// floats elements that are quarters, or of which some are infinite or NaN.
inline constexpr const char* kDraws = "ABCDE";

/// All calls of `cases`, which must stay where they are.
std::vector<ReferenceCall> reference_calls(const OpCases& cases);

/// The elements that lie before and after the first input in its larger buffer: as many as a row of dim 0 on each side.
int64_t margin_of(const Dims& dims);

/// "float" for all float dtypes, else the name of the dtype.
std::string kind_name(DType dtype);

}  // namespace shard::testing
