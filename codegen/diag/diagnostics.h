// Findings about the input: collected in a sink, never thrown, and printed together at the end of a
// run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/location.h"

namespace shardgen {

enum class Severity { error, warning };

/// A second position that a finding refers to.
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

/// Collects findings. A strict sink turns every warning into an error.
class DiagnosticSink {
 public:
  explicit DiagnosticSink(bool strict = false) : strict_(strict) {}

  void error(const Location& at, std::string code, std::string message, std::vector<Note> notes = {});
  void warning(const Location& at, std::string code, std::string message, std::vector<Note> notes = {});

  /// Appends the findings of another sink unchanged.
  void append(const DiagnosticSink& other);
  /// An empty sink with the same strictness.
  DiagnosticSink fresh() const { return DiagnosticSink(strict_); }

  int error_count() const { return errors_; }
  const std::vector<Diagnostic>& all() const { return diagnostics_; }
  /// Sorts findings by line within each file; files keep the order in which they were read.
  void sort(const std::vector<std::string>& file_order);

 private:
  /// Messages quote the input, which may contain anything, so the stored message is made printable.
  void add(Diagnostic diagnostic);

  bool strict_;
  int errors_ = 0;
  std::vector<Diagnostic> diagnostics_;
};

/// "file:line:column: error: Sentence. [code]" and its notes, one per line.
std::string to_text(const std::vector<Diagnostic>& diagnostics);
/// An array with the same facts.
nlohmann::ordered_json json_of(const std::vector<Diagnostic>& diagnostics);
/// The text of a JSON value. Invalid input may contain bytes that are not UTF-8; they do not make a
/// report fail.
std::string dump(const nlohmann::ordered_json& json);
/// The findings as JSON text.
std::string to_json(const std::vector<Diagnostic>& diagnostics);

}  // namespace shardgen
