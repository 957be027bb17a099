// The facts about an op, as texts: explain.cc prints those of one op, docs.cc makes a page of all.
#pragma once

#include <string>
#include <vector>

#include "diag/diagnostics.h"
#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

struct ArgumentFact {
  std::string name;
  std::string type;           // as the YAML writes it
  std::string default_value;  // empty: none
  std::string note;           // "may be absent, written in place"
};

struct AliasFact {
  std::string output;
  std::string input;
  std::string kind;  // "inplace", "view" or "written view"
  std::string text;  // a sentence
};

/// A generated function and its steps, one per line.
struct LayerFact {
  std::string function;  // "dense::add_"
  std::vector<std::string> steps;
};

/// Another op that this op names; `known` when the files define it.
struct LinkFact {
  std::string role;  // "backward op", "forward op", "invokes"
  std::string name;
  std::string family;    // of the op, when it is known
  std::string location;  // "math.yaml:12" in the YAML, when it is known
  bool known = false;
};

struct OpFacts {
  std::string name;
  std::string family;
  std::string path;
  int line = 0;
  bool backward = false;
  std::string signature;
  std::string doc;
  std::string left_out;  // why it is not generated; empty when it is
  std::vector<std::string> declarations;
  std::vector<ArgumentFact> arguments;
  std::vector<ArgumentFact> outputs;
  std::vector<AliasFact> aliases;
  std::string infer_meta;
  std::string kernel;
  std::string rule;       // the expression or the name; for a backward op it may be derived from the forward op
  std::string rule_text;  // a sentence
  std::string commutes;   // a sentence
  std::vector<std::string> traits;  // "elementwise", "random", "shape of out from data"
  std::vector<LinkFact> links;
  std::vector<LayerFact> layers;
  std::vector<Diagnostic> findings;

  /// "math.yaml:12"
  std::string location() const { return base_name(path) + ":" + std::to_string(line); }
};

/// The facts about every op, in the order of the files. `findings` are those of read_and_check():
/// an op with an error is not generated, and the other ops are described as if it did not exist.
std::vector<OpFacts> collect_facts(const std::vector<Family>& families, const std::vector<Diagnostic>& findings,
                                   const Runtime& runtime);

/// The names of the functions of an op: itself, its in-place form, the one with intermediates.
std::vector<std::string> function_names(const Op& op);

}  // namespace shardgen
