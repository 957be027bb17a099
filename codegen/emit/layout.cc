// Breaks long lines. It knows brackets, quotes, comments and one-line lambda bodies, and nothing
// else of C++.
#include "emit/layout.h"

#include <vector>

#include "model/word.h"

namespace shardgen {
namespace {

constexpr size_t kContinuation = 4;

size_t indent_of(std::string_view line) {
  const size_t indent = line.find_first_not_of(' ');
  return indent == std::string_view::npos ? 0 : indent;
}

/// Tracks bracket depth and quotes along a line.
class Scanner {
 public:
  void step(char c, char before) {
    if (quote_ != '\0') {
      if (c == quote_) quote_ = '\0';
    } else if (c == '"') {
      quote_ = c;
    } else if (c == '(' || c == '[' || c == '{' || (c == '<' && is_word(before))) {
      ++depth_;
    } else if (c == ')' || c == ']' || c == '}' || (c == '>' && before != '-' && before != ' ')) {
      --depth_;
    }
  }
  bool quoted() const { return quote_ != '\0'; }
  int depth() const { return depth_; }

 private:
  char quote_ = '\0';
  int depth_ = 0;
};

/// A possible break: before `position`, at bracket depth `depth`.
struct Break {
  size_t position = 0;
  int depth = 0;
};

/// True when the break before `position` is after " = ", and the remainder fits into one line.
bool is_good_assignment(std::string_view line, size_t indent, size_t position) {
  return line[position - 2] == '=' && line[position - 3] == ' ' &&
         indent + kContinuation + line.size() - position <= kColumns;
}

/// The breaks after ", ", before "?" and ":", after an opening bracket, and after " = " where that
/// alone suffices. `first`: the line begins a statement, so that an " = " outside brackets is its
/// own.
std::vector<Break> breaks_of(std::string_view line, size_t indent, bool first) {
  std::vector<Break> breaks;
  Scanner scanner;
  for (size_t i = indent; i + 1 < line.size(); ++i) {
    const char c = line[i];
    scanner.step(c, i > 0 ? line[i - 1] : ' ');
    if (scanner.quoted()) continue;
    const bool separator = i > indent + 2 && (line[i - 1] == ',' || line[i + 1] == '?' || line[i + 1] == ':');
    if (c == ' ' &&
        (separator || (i > indent + 2 && first && scanner.depth() == 0 && is_good_assignment(line, indent, i + 1)))) {
      breaks.push_back({i + 1, scanner.depth()});
    } else if ((c == '(' && line[i + 1] != ')' && line[i + 1] != ' ') || (c == '{' && line[i + 1] == '.')) {
      breaks.push_back({i + 1, scanner.depth()});
    }
  }
  return breaks;
}

/// The break with the smallest depth that fits; among equal ones the last.
size_t choose_break(std::string_view line, size_t indent, bool first) {
  const Break* best = nullptr;
  const std::vector<Break> breaks = breaks_of(line, indent, first);
  for (const Break& candidate : breaks) {
    // The space before the break does not count, because it is dropped.
    const size_t used = line[candidate.position - 1] == ' ' ? candidate.position - 1 : candidate.position;
    if (used > kColumns || candidate.position <= indent + kContinuation) continue;
    if (best == nullptr || candidate.depth <= best->depth) best = &candidate;
  }
  if (best != nullptr) return best->position;
  return breaks.empty() ? std::string_view::npos : breaks.front().position;
}

/// The space at which a comment is broken; in signatures (`commas`) preferably after a comma.
size_t comment_break(std::string_view text, size_t room, bool commas) {
  const size_t comma = commas ? text.rfind(", ", room - 1) : std::string_view::npos;
  return comma != std::string_view::npos && comma > room / 2 ? comma + 1 : text.rfind(' ', room);
}

void wrap_comment(std::string_view line, size_t indent, std::string& out) {
  const std::string prefix = std::string(line.substr(0, line.find_first_not_of('/', indent))) + " ";
  const size_t room = kColumns - prefix.size();
  std::string_view rest = line.substr(prefix.size());
  while (rest.size() > room) {
    const size_t space = comment_break(rest, room, prefix.find("///") == std::string::npos);
    if (space == std::string_view::npos || space == 0) break;
    out.append(prefix).append(rest.substr(0, space)).append("\n");
    rest.remove_prefix(space + 1);
  }
  out.append(prefix).append(rest).append("\n");
}

void wrap_code(std::string line, std::string& out) {
  const std::string continuation(indent_of(line) + kContinuation, ' ');
  for (bool first = true; line.size() > kColumns; first = false) {
    const size_t indent = indent_of(line);
    const size_t at = choose_break(line, indent, first);
    if (at == std::string::npos || at <= indent) break;
    size_t end = at;
    while (line[end - 1] == ' ') --end;
    out.append(line, 0, end).append("\n");
    line = continuation + line.substr(at);
  }
  out.append(line).append("\n");
}

void wrap(std::string_view line, std::string& out);

/// "x([&] { body });" as three lines. False when the line does not have that form.
bool open_lambda(std::string_view line, size_t indent, std::string& out) {
  const size_t lambda = line.find("[&]");
  if (lambda == std::string_view::npos || !line.ends_with(" });")) return false;
  const size_t brace = line.find(" { ", lambda);
  if (brace == std::string_view::npos || brace + 3 > line.size() - 4) return false;
  wrap(line.substr(0, brace + 2), out);
  wrap(std::string(indent + 2, ' ') + std::string(line.substr(brace + 3, line.size() - 4 - brace - 3)), out);
  out.append(indent, ' ').append("});\n");
  return true;
}

/// "if (a) return b;" as a block of three lines. False when the line does not have that form.
bool open_if(std::string_view line, size_t indent, std::string& out) {
  const size_t body = line.find(") return ", indent);
  if (!line.substr(indent).starts_with("if (") || body == std::string_view::npos) return false;
  wrap(std::string(line.substr(0, body + 1)) + " {", out);
  wrap(std::string(indent + 2, ' ') + std::string(line.substr(body + 2)), out);
  out.append(indent, ' ').append("}\n");
  return true;
}

void wrap(std::string_view line, std::string& out) {
  const size_t indent = indent_of(line);
  if (line.size() <= kColumns || line[indent] == '#') {
    out.append(line).append("\n");
  } else if (line.substr(indent).starts_with("//")) {
    wrap_comment(line, indent, out);
  } else if (!open_lambda(line, indent, out) && !open_if(line, indent, out)) {
    wrap_code(std::string(line), out);
  }
}

/// The lines of a text, without trailing space and with single empty lines between them.
std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    line = line.substr(0, line.find_last_not_of(' ') + 1);
    if (!line.empty() || (!lines.empty() && !lines.back().empty())) lines.push_back(line);
  }
  return lines;
}

/// "f() { return x; }" for a function of one statement that starts at `lines[at]`, or "" when there
/// is none or it is too long.
std::string one_line_function(const std::vector<std::string_view>& lines, size_t at) {
  if (at + 2 >= lines.size() || lines[at].starts_with(' ') || !lines[at].ends_with(") {") || lines[at + 2] != "}")
    return "";
  const std::string_view body = lines[at + 1];
  if (!body.starts_with("  ") || !body.ends_with(';') || lines[at].size() + body.size() + 1 > kColumns) return "";
  return std::string(lines[at]) + std::string(body.substr(1)) + " }";
}

}  // namespace

std::string lay_out(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string function = one_line_function(lines, i);
    if (function.empty()) {
      wrap(lines[i], out);
      continue;
    }
    out.append(function).append("\n");
    i += 2;
    // Consecutive functions of one line have no empty line between them.
    if (i + 2 < lines.size() && lines[i + 1].empty() && !one_line_function(lines, i + 2).empty()) ++i;
  }
  return out;
}

}  // namespace shardgen
