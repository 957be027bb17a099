// Template data of the program layer: an entry of each op in the table through which programs call ops.
#include "lower/data_common.h"
#include "lower/identifiers.h"

namespace shardgen {
namespace {

/// What makes the entry: the op's facts, its infer function and its dense functions, the functional one first.
std::string entry_args(const LowerContext& context, const Op& op) {
  Texts args = {rt("ops") + "::" + cpp_name(op), rt("infer") + "::" + cpp_name(op)};
  if (is_inplace_only(op)) args.push_back("nullptr");
  for (const Form form : forms_of(context, op)) args.push_back(rt("dense") + "::" + function_name(op, form));
  return join(args);
}

}  // namespace

Json program_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["register"] = register_name(context.umbrella, part.name);
  data["entries"] = items_of(own_ops(part), [&](const Op& op, Json& entries) {
    entries.push_back({{"args", entry_args(context, op)}});
  });
  return data;
}

}  // namespace shardgen
