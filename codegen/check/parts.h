// The checks of one op, one file each; check.cc calls them.
#pragma once

#include <string_view>
#include <vector>

#include "diag/diagnostics.h"
#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

/// Names that reach C++: they are identifiers, not keywords, not duplicated, and no op has the name
/// of a type or function of the runtime.
void check_names(const Op& op, const Runtime& runtime, DiagnosticSink& sink);
/// True when the op has arguments and outputs to which the other keys can refer.
bool check_signature_given(const Op& op, DiagnosticSink& sink);
/// Default values fit their types, and arguments with default values come last.
void check_defaults(const Op& op, DiagnosticSink& sink);
/// Names in lists, maps and parameters exist.
void check_references(const Op& op, DiagnosticSink& sink);
/// In-place and view pairs can share a buffer.
void check_aliases(const Op& op, DiagnosticSink& sink);
/// Kernel, infer_meta and rule are present where needed, and have the right arity.
void check_kernel(const Op& op, DiagnosticSink& sink);
/// The placement rule of an op that has one: a name, or an expression that fits the op's signature.
void check_rule(const Op& op, DiagnosticSink& sink);
/// Targets and arguments of `invoke`, over all ops.
void check_invokes(const std::vector<Family>& families, DiagnosticSink& sink);
/// `backward:` and `forward:` refer to each other, and agree on arguments and outputs.
void check_links(const std::vector<Family>& families, DiagnosticSink& sink);
/// Names of files, or of their generated files, that clash.
void check_family_names(const std::vector<Family>& families, DiagnosticSink& sink);

/// Reports texts in a constant that a C++ string literal cannot contain. `what` begins the
/// sentence.
bool check_texts(const Literal& value, const Location& at, std::string_view what, DiagnosticSink& sink);
/// Reports a constant that does not fit `attr`. `what` begins the sentence: "Default value".
void check_constant(const Attr& attr, const Literal& value, const Location& at, std::string_view what,
                    DiagnosticSink& sink);

/// True for a name that C++ code cannot use for a variable or a function of the API.
bool is_reserved(std::string_view name);

}  // namespace shardgen
