// How the gradient function of an op is called: which of its arguments are saved, and where its
// results go.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lower/plan.h"
#include "lower/template_data.h"
#include "model/op.h"

namespace shardgen {

/// An argument of a backward op, mapped to the forward op.
struct GradientArg {
  enum class Source { input, output, gradient, attr, mask };
  Source source = Source::input;
  int index =
      0;  // none of a mask; else of the input, of the output (or the output whose gradient it is), or of the attribute
  bool shape_only = false;             // its elements are not read
  bool optional = false;               // may be absent
  const Condition* save_if = nullptr;  // its elements are read only under this condition
};

struct Gradient {
  const Op* op = nullptr;           // the backward op
  std::vector<GradientArg> args;    // in the order of the backward op
  std::vector<int> forward_inputs;  // for each output of the backward op, the forward input whose gradient it is
  std::vector<int> differentiable;  // the forward outputs whose gradients it reads
};

/// The gradient of an op, or nothing if it has none, or none that its arguments and results suffice
/// for.
std::optional<Gradient> gradient_of(const LowerContext& context, const Op& op);
/// True when the public function of that form, or of an op that invokes another, takes a call site:
/// it saves or writes tensors, so a version error may have to name the call.
bool takes_site(const LowerContext& context, const Op& op, Form form);
/// The name of the call site parameter.
std::string site_name(const Op& op);
/// True when calls of that form are recorded with that gradient. Otherwise backward through such a
/// call is an error.
bool records(const LowerContext& context, const Op& op, const Gradient& gradient, Form form);

}  // namespace shardgen
