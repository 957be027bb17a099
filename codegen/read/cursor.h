// A reading position in one of the small languages inside YAML scalars (args, output, maps, kernel
// functions).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "diag/diagnostics.h"
#include "model/location.h"
#include "read/yaml_tree.h"

namespace shardgen {

/// Reads tokens of a scalar from left to right. After the first error it reports nothing more, and
/// `failed()` is true.
class Cursor {
 public:
  Cursor(const YamlFile& file, const YamlNode& scalar, DiagnosticSink& sink)
      : text_(scalar.text), sink_(&sink), locate_([&file, &scalar](size_t offset) { return file.at(scalar, offset); }) {
  }
  /// For text that is not in a file.
  Cursor(std::string_view text, DiagnosticSink& sink)
      : text_(text), sink_(&sink), locate_([](size_t offset) {
          return Location{"", 1, static_cast<int>(offset) + 1};
        }) {}

  /// The same position, reporting to another sink.
  Cursor with_sink(DiagnosticSink& sink) const {
    Cursor copy = *this;
    copy.sink_ = &sink;
    return copy;
  }

  bool failed() const { return failed_; }
  DiagnosticSink& sink() { return *sink_; }
  bool at_end();
  /// Skips space; the next character, or 0 at the end.
  char peek();
  size_t offset();
  /// The position of the next token.
  Location here() { return locate_(offset()); }
  Location at(size_t offset) const { return locate_(offset); }
  std::string_view text_between(size_t begin, size_t end) const { return text_.substr(begin, end - begin); }

  bool eat(std::string_view token);
  /// Like eat(), but reports an error when the token is missing. `after` completes "Expected ')'
  /// after ...".
  bool expect(std::string_view token, std::string_view after);
  /// Reads a word of letters, digits and underscores, with `::` between words when `qualified`.
  /// Empty if there is none.
  Name word(bool qualified = false);
  /// Like word(), but reports an error when there is none: "Expected <what>".
  std::optional<Name> expect_word(std::string_view what, bool qualified = false);
  /// Reads the text of a number, "-1.0e-8f", or returns an empty text.
  std::string_view number();
  /// Reads text in double or single quotes and returns it without them; nothing when the next
  /// character is not a quote.
  std::optional<std::string> quoted();
  /// Reads up to the next of `ends` outside brackets and quotes, and trims spaces.
  Name raw_until(std::string_view ends);
  /// Reads such a text as a C++ expression, which is shown only in comments. Reports an error, and
  /// returns nothing, when a comment cannot contain it.
  std::optional<Name> expression(std::string_view ends);
  void rewind(size_t offset) { position_ = offset; }
  void fail(const std::string& message, std::string code = "syntax") { fail_at(offset(), message, std::move(code)); }
  /// Reports a failure that another cursor found.
  void fail_as(const Location& at, std::string code, const std::string& message);
  void fail_at(size_t offset, const std::string& message, std::string code = "syntax");
  /// Reports remaining text after `what`.
  void expect_end(std::string_view what);
  /// "'x'" or "the end", for messages.
  std::string describe_next();

 private:
  void skip_space();

  std::string_view text_;
  size_t position_ = 0;
  bool failed_ = false;
  DiagnosticSink* sink_;
  std::function<Location(size_t)> locate_;
};

}  // namespace shardgen
