// How the gradient function of an op is called: which of its arguments are saved, and where its results go.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lower/plan.h"
#include "lower/view.h"
#include "model/op.h"

namespace shardgen {

/// An argument of a backward op, as what it is of the forward op.
struct GradientArg {
  enum class Source { input, output, gradient, attr };
  Source source = Source::input;
  int index = 0;                       // of the input, the output (or the one whose gradient it is), or the attribute
  bool shape_only = false;             // its elements are not read
  bool optional = false;               // may be left out
  const Condition* save_if = nullptr;  // its elements are read only then
};

struct Gradient {
  const Op* op = nullptr;           // the backward op
  std::vector<GradientArg> args;    // in its order
  std::vector<int> gives;           // by output of the backward op, the forward input whose gradient it is
  std::vector<int> differentiable;  // the forward outputs whose gradients it reads
};

/// The gradient of an op, or nothing where it has none that its arguments and results suffice for.
std::optional<Gradient> gradient_of(const LowerContext& context, const Op& op);
/// True when the public function of that form, or of an op that invokes another, takes the place that it is called from: it saves tensors
/// or writes them, so that a version error may have to name it.
bool takes_site(const LowerContext& context, const Op& op, Form form);
/// The name of that parameter.
std::string site_name(const Op& op);
/// True when calls of that form are recorded with that gradient. Else those with tensors that require a gradient end it with an error.
bool records(const LowerContext& context, const Op& op, const Gradient& gradient, Form form);

}  // namespace shardgen
