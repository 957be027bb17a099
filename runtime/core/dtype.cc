#include "core/dtype.h"

namespace shard {
namespace {

struct Names {
  const char* full;
  const char* brief;
};
constexpr Names kNames[kNumDTypes] = {{"float32", "f32"}, {"float64", "f64"}, {"bfloat16", "bf16"}, {"float16", "f16"},
                                      {"int32", "i32"},   {"int64", "i64"},   {"uint8", "u8"},      {"bool", "bool"}};

}  // namespace

const char* to_string(DType dtype) { return kNames[static_cast<int>(dtype)].full; }
const char* short_name(DType dtype) { return kNames[static_cast<int>(dtype)].brief; }

DType parse_dtype(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == kNames[i].full || name == kNames[i].brief) return static_cast<DType>(i);
  }
  fail(ErrorCode::invalid_argument,
       "'{}' is no dtype; choose float32, float64, bfloat16, float16, int32, int64, uint8 or bool", name);
}

}  // namespace shard
