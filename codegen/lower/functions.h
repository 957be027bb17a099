// C++ functions that generated code calls and the runtime lacks: infer_meta functions of users, and
// functions that `invoke` and `composite` name and that are not ops. Generated headers declare
// them; `scaffold` writes definitions.
#pragma once

#include <string>
#include <vector>

#include "lower/template_data.h"
#include "model/op.h"

namespace shardgen {

struct FunctionDecl {
  std::string space;   // the namespace, as a symbol of the runtime: "namespace_meta"
  std::string nested;  // "sparse" of `sparse::AddInferMeta`, or empty
  std::string name;
  std::string returns;
  std::vector<std::string> params;  // types, without names
  std::vector<const Op*> ops;       // those that need it

  /// "AddInferMeta(const Meta&, Meta&)": equal for equal functions.
  std::string signature() const;
};

/// The function that infers the metas of an op, whether the runtime has it or not.
FunctionDecl infer_meta_function(const Op& op);
/// The call of an op whose body is a C++ function: an `invoke` that names no op, or a `composite`
/// without a kernel. Null for other ops.
const Call* external_call(const LowerContext& context, const Op& op);
/// The composite that recorded calls run instead of the kernel (`record_composite`), or null.
const Call* recorded_composite(const LowerContext& context, const Op& op);
FunctionDecl external_function(const LowerContext& context, const Op& op, const Call& call);
/// True for a gradient of several results that is composed of other ops: it gets a mask of the
/// results that are wanted.
bool takes_mask(const LowerContext& context, const Op& op);

/// Every function that the ops of a part need and the runtime lacks, without duplicates, in the
/// order of the ops.
std::vector<FunctionDecl> missing_functions(const LowerContext& context, const Part& part);
/// The declarations for a header, by namespace.
Json declarations_data(const std::vector<FunctionDecl>& functions);

}  // namespace shardgen
