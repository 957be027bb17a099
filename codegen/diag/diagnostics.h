// Findings about the input: collected in a sink, never thrown, printed all together at the end of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/location.h"

namespace shardgen {

enum class Severity { error, warning };

/// A second place that a finding speaks of.
struct Note {
  Location at;
  std::string message;
};

struct Diagnostic {
  Severity severity = Severity::error;
  Location at;
  std::string code;     // "unknown-key"
  std::string message;  // a sentence
  std::vector<Note> notes;
};

/// Collects findings. A strict sink takes every warning as an error.
class DiagnosticSink {
 public:
  explicit DiagnosticSink(bool strict = false) : strict_(strict) {}

  void error(const Location& at, std::string code, std::string message, std::vector<Note> notes = {});
  void warning(const Location& at, std::string code, std::string message, std::vector<Note> notes = {});

  /// Takes over the findings of another sink, as they are.
  void append(const DiagnosticSink& other);
  /// An empty sink that takes warnings as this one does.
  DiagnosticSink fresh() const { return DiagnosticSink(strict_); }

  int error_count() const { return errors_; }
  const std::vector<Diagnostic>& all() const { return diagnostics_; }
  /// Orders findings by line within each file; files stay in the order in which they were read.
  void sort(const std::vector<std::string>& file_order);

 private:
  /// Messages quote the input, which may hold anything: what is kept is safe to print.
  void add(Diagnostic diagnostic);

  bool strict_;
  int errors_ = 0;
  std::vector<Diagnostic> diagnostics_;
};

/// "file:line:column: error: Sentence. [code]" and its notes, a line each.
std::string to_text(const std::vector<Diagnostic>& diagnostics);
/// An array with the same facts.
nlohmann::ordered_json json_of(const std::vector<Diagnostic>& diagnostics);
/// The text of a JSON value. Bad input may hold bytes that are not UTF-8; they must not make a report fail.
std::string dump(const nlohmann::ordered_json& json);
/// Both: the findings as JSON text.
std::string to_json(const std::vector<Diagnostic>& diagnostics);

}  // namespace shardgen
