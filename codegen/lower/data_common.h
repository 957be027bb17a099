// What the template data of several layers share: parameter lists, return types, comments.
#pragma once

#include <string>
#include <vector>

#include "lower/plan.h"
#include "lower/runtime.h"
#include "lower/spelling.h"
#include "lower/template_data.h"

namespace shardgen {

using Texts = std::vector<std::string>;

/// A constant that is passed on, with an explicit type ("int64_t{3}"), and its type as a parameter
/// of a kernel.
std::string passed_constant(const Passed& passed);
std::string constant_type(const Literal& literal);
/// The arguments of a call to a function that returns the op's outputs: all except those outputs.
std::vector<const CallArg*> passed_in(const Op& op, const Call& call);
/// "a, b, c"
std::string join(const Texts& texts);
/// The parameters of a function of the op, and the mark that declares its arguments and outputs as
/// variables.
std::string parameter_list(const Op& op, const Texts& params);
/// True when the form of the op writes that input in place.
bool is_written_input(const Op& op, int input, Form form);
/// The names of tensors, and lists of them, that the form writes: in place, or through views that
/// it makes.
Texts written_inputs(const Op& op, Form form);
/// The parameters of a function. With `defaults`, the trailing ones have the default arguments that
/// C++ allows.
Texts parameters(const Op& op, Role role, Form form, bool defaults);
/// True for an op that makes tensors from attributes alone: it also has a form that takes their
/// layout on a mesh.
bool takes_layout(const LowerContext& context, const Op& op);
/// The name of the layout parameter, and the texts of the op's arguments with one for it before the
/// first argument with a default.
std::string layout_name(const Op& op);
Texts with_layout(const Op& op, Texts args, const std::string& layout);
/// The parameters of the public function that takes the layout.
Texts layout_parameters(const Op& op, bool defaults);
/// The return type of a form of the op. Outputs written in place are references; intermediates are
/// left out unless `all`.
std::string return_type(const Op& op, Form form, bool all);
/// The outputs that a form returns to the user, by index.
std::vector<int> returned_outputs(const Op& op, bool all);
/// "math.yaml", without the line: an edit of one op must not change the generated text of the ops
/// below it.
std::string location_of(const Op& op);
/// The output whose shape is the local shape of an op.
int local_shape_output(const Op& op);
/// The values at the head of each file.
Json file_head(const Part& part);
/// A list of what `add(op, list)` adds for each op, with its name.
template <class Add>
Json items_of(const std::vector<const Op*>& ops, const Add& add) {
  Json list = Json::array();
  for (const Op* op : ops) {
    const size_t first = list.size();
    add(*op, list);
    for (size_t i = first; i < list.size(); ++i) list[i][kOps] = Json::array({op->name.text});
  }
  return list;
}
/// The forms of the op that are generated.
std::vector<Form> forms_of(const LowerContext& context, const Op& op);
/// True when every output that users see is an argument that is written in place.
bool returns_arguments(const Op& op);
/// The value that such a form returns.
std::string written_result(const Op& op);
/// The names of the op's arguments, and of those that are tensors.
Texts arg_names(const Op& op);
Texts tensor_names(const Op& op);
/// "return x;" for one text, "return {x, y};" for more; an empty text for none.
std::string return_value(const Texts& texts);
/// Ops of the part that have kernels or are views; ops that only call others are left out.
std::vector<const Op*> own_ops(const Part& part);
/// The name of the function of that form.
std::string function_name(const Op& op, Form form);

}  // namespace shardgen
