#include "shard/core/error.h"

namespace shard {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::shape_mismatch: return "shape_mismatch";
    case ErrorCode::dtype_mismatch: return "dtype_mismatch";
    case ErrorCode::out_of_range: return "out_of_range";
    case ErrorCode::undefined: return "undefined";
    case ErrorCode::no_kernel: return "no_kernel";
    case ErrorCode::no_rule: return "no_rule";
    case ErrorCode::mixed_device: return "mixed_device";
    case ErrorCode::layout: return "layout";
    case ErrorCode::policy: return "policy";
    case ErrorCode::view_of_copy: return "view_of_copy";
    case ErrorCode::stale_view: return "stale_view";
    case ErrorCode::poisoned: return "poisoned";
    case ErrorCode::no_data: return "no_data";
    case ErrorCode::wrong_rank: return "wrong_rank";
    case ErrorCode::communication: return "communication";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::peer_failed: return "peer_failed";
    case ErrorCode::device: return "device";
    case ErrorCode::autograd: return "autograd";
    case ErrorCode::capture: return "capture";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

}  // namespace shard
