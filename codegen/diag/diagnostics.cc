// Collects and prints findings.
#include "diag/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "diag/printable.h"
#include "diag/utf8.h"

namespace shardgen {
namespace {

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::error: return "error";
    case Severity::warning: return "warning";
  }
  return "";
}

std::string place(const Location& at) {
  const std::string file = one_line(at.file);
  return at.line > 0 ? fmt::format("{}:{}:{}", file, at.line, at.column) : file;
}

}  // namespace

void DiagnosticSink::error(const Location& at, std::string code, std::string message, std::vector<Note> notes) {
  ++errors_;
  add({Severity::error, at, std::move(code), std::move(message), std::move(notes)});
}

void DiagnosticSink::warning(const Location& at, std::string code, std::string message, std::vector<Note> notes) {
  if (strict_) return error(at, std::move(code), std::move(message), std::move(notes));
  add({Severity::warning, at, std::move(code), std::move(message), std::move(notes)});
}

void DiagnosticSink::add(Diagnostic diagnostic) {
  diagnostic.message = printable(diagnostic.message);
  for (Note& note : diagnostic.notes) note.message = printable(note.message);
  diagnostics_.push_back(std::move(diagnostic));
}

void DiagnosticSink::append(const DiagnosticSink& other) {
  diagnostics_.insert(diagnostics_.end(), other.diagnostics_.begin(), other.diagnostics_.end());
  errors_ += other.errors_;
}

void DiagnosticSink::sort(const std::vector<std::string>& file_order) {
  const auto key = [&](const Diagnostic& diagnostic) {
    const auto file = std::find(file_order.begin(), file_order.end(), diagnostic.at.file);
    return std::tuple(file - file_order.begin(), diagnostic.at.line, diagnostic.at.column);
  };
  std::stable_sort(diagnostics_.begin(), diagnostics_.end(),
                   [&](const Diagnostic& a, const Diagnostic& b) { return key(a) < key(b); });
}

std::string to_text(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    text += fmt::format("{}: {}: {} [{}]\n", place(diagnostic.at), name_of(diagnostic.severity), diagnostic.message,
                        diagnostic.code);
    for (const Note& note : diagnostic.notes) text += fmt::format("{}: note: {}\n", place(note.at), note.message);
  }
  return text;
}

nlohmann::ordered_json json_of(const std::vector<Diagnostic>& diagnostics) {
  const auto at_json = [](const Location& at) {
    return nlohmann::ordered_json{{"file", at.file}, {"line", at.line}, {"column", at.column}};
  };
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Diagnostic& diagnostic : diagnostics) {
    nlohmann::ordered_json item = at_json(diagnostic.at);
    item["severity"] = name_of(diagnostic.severity);
    item["code"] = diagnostic.code;
    item["message"] = diagnostic.message;
    item["notes"] = nlohmann::ordered_json::array();
    for (const Note& note : diagnostic.notes) {
      item["notes"].push_back(at_json(note.at));
      item["notes"].back()["message"] = note.message;
    }
    array.push_back(std::move(item));
  }
  return array;
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string to_json(const std::vector<Diagnostic>& diagnostics) { return dump(json_of(diagnostics)); }

}  // namespace shardgen
