// The smaller languages inside op YAML: alias maps, kernel functions, dispatch keys, calls, kinds
// of commutation.
#pragma once

#include <optional>
#include <vector>

#include "model/op.h"
#include "read/cursor.h"

namespace shardgen {

/// "(x -> out), (mean -> mean_out)"
std::vector<AliasPair> read_alias_pairs(Cursor& cursor);
/// "sgd {dense, dense -> dense}, sgd_sparse {dense, selected_rows -> dense}"; the commas between
/// kernels are optional.
std::vector<KernelFunc> read_kernel_funcs(Cursor& cursor);
/// "x", "dtype > x", "complex(x)", "{a, b}", "DataType::FLOAT32"
DispatchKey read_dispatch_key(Cursor& cursor);
/// "full(shape, 0, dtype, place)"
std::optional<Call> read_call(Cursor& cursor);
/// "x, false, grad.dtype()"
std::vector<CallArg> read_call_args(Cursor& cursor);
/// "monotone(max)"
std::optional<Partial> read_partial(Cursor& cursor);
/// "use_global_stats || wanted(x_grad)"
std::optional<Condition> read_condition(Cursor& cursor);

}  // namespace shardgen
