// Reads descriptions of runtimes and spells their symbols.
#include "lower/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "diag/suggest.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

using Json = nlohmann::json;

constexpr char kMark = '\x1f';

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

/// Takes the members of a description over into a Runtime; what does not fit is a sentence in `problems`.
class DescriptionReader {
 public:
  DescriptionReader(Runtime& runtime, bool built_in, std::string folder, std::vector<std::string>& problems)
      : runtime_(runtime), built_in_(built_in), folder_(std::move(folder)), problems_(problems) {}

  void read(const Json& json) {
    if (!json.is_object()) return problem("it must be an object");
    for (const auto& [key, value] : json.items()) member(key, value);
  }

 private:
  void problem(const std::string& text) { problems_.push_back(text + "."); }

  void member(const std::string& key, const Json& value) {
    if (key == "symbols") return texts(key, value, runtime_.symbols, built_in_);
    if (key == "dtypes") return texts(key, value, runtime_.dtypes, true);
    if (key == "headers") return headers(value);
    if (key == "rules") return names(key, value, runtime_.rules);
    if (key == "kernels") return names(key, value, runtime_.kernels);
    if (key == "infer_meta") return declarations(value);
    if (key == "layers") return layers(value);
    if (key == "abi" && value.is_number_integer()) {
      runtime_.abi = value.get<int>();
      return;
    }
    if (key == "name" && value.is_string()) return;
    const std::vector<std::string_view> known = {"name",    "abi",   "layers",  "symbols",   "dtypes",
                                                 "headers", "rules", "kernels", "infer_meta"};
    std::string end = suggestion(key, known);
    end.pop_back();
    problem(fmt::format("'{}' is no member that it can have, or has a value of another kind{}", key, end));
  }

  /// `open`: names that are not known yet may be given.
  void texts(const std::string& key, const Json& value, std::map<std::string, std::string, std::less<>>& target, bool open) {
    if (!value.is_object()) return problem(fmt::format("'{}' must be an object of texts", key));
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) {
        problem(fmt::format("'{}' in '{}' must be a text", name, key));
      } else if (!open && !target.contains(name)) {
        std::vector<std::string_view> known;
        for (const auto& [symbol, spelling] : target) known.push_back(symbol);
        std::string end = suggestion(name, known);
        end.pop_back();
        problem(fmt::format("'{}' is no symbol of generated code{}", name, end));
      } else {
        target[name] = text.get<std::string>();
      }
    }
  }

  bool is_list(const Json& value) const {
    return value.is_array() &&
           std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
  }

  void names(const std::string& key, const Json& value, std::set<std::string>& target) {
    if (!is_list(value)) return problem(fmt::format("'{}' must be a list of texts", key));
    target = value.get<std::set<std::string>>();
  }

  void headers(const Json& value) {
    if (!value.is_object()) return problem("'headers' must be an object of lists");
    for (const auto& [file, list] : value.items()) {
      if (!is_list(list)) {
        problem(fmt::format("'{}' in 'headers' must be a list of texts", file));
      } else if (!built_in_ && !runtime_.headers.contains(file)) {
        problem(fmt::format("'{}' in 'headers' is no kind of generated file", file));
      } else {
        runtime_.headers[file] = list.get<std::vector<std::string>>();
      }
    }
  }

  void layers(const Json& value) {
    if (!is_list(value)) return problem("'layers' must be a list of \"dense\" and \"dist\"");
    const auto list = value.get<std::set<std::string>>();
    if (list != std::set<std::string>{"dense"} && list != std::set<std::string>{"dense", "dist"})
      return problem("'layers' must be [\"dense\"] or [\"dense\", \"dist\"]");
    runtime_.dist = list.contains("dist");
  }

  /// Headers that declare infer_meta functions, beside the description.
  void declarations(const Json& value) {
    if (!is_list(value)) return problem("'infer_meta' must be a list of headers");
    runtime_.infer_meta.clear();
    for (const std::string& name : value.get<std::vector<std::string>>()) {
      const std::optional<std::string> text =
          built_in_ ? std::optional(std::string(embedded_infer_meta())) : read_bytes((std::filesystem::path(folder_) / name).string());
      if (text) {
        runtime_.infer_meta.merge(read_declarations(*text));
      } else {
        problem(fmt::format("the header '{}' of 'infer_meta' cannot be read", name));
      }
    }
  }

  Runtime& runtime_;
  bool built_in_;
  std::string folder_;
  std::vector<std::string>& problems_;
};

/// The text without comments and with single spaces.
std::string plain_code(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("//")) i = std::min(text.find('\n', i), text.size() - 1);
    const bool space = text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r';
    if (!space) plain += text[i];
    if (space && !plain.empty() && plain.back() != ' ') plain += ' ';
  }
  return plain;
}

/// "const Meta&" of "const Meta& x".
std::string type_of(std::string_view parameter) {
  while (parameter.starts_with(' ')) parameter.remove_prefix(1);
  while (parameter.ends_with(' ')) parameter.remove_suffix(1);
  size_t end = parameter.size();
  while (end > 0 && is_word(parameter[end - 1])) --end;
  while (end > 0 && parameter[end - 1] == ' ') --end;
  return std::string(parameter.substr(0, end));
}

/// What follows from the other members: dtypes, includes and the ABI number as symbols.
void add_derived_symbols(Runtime& runtime) {
  for (const auto& [name, spelling] : runtime.dtypes) runtime.symbols["dtype::" + name] = spelling;
  for (const auto& [file, headers] : runtime.headers) {
    std::string includes;
    for (const std::string& header : headers) {
      if (!includes.empty()) includes += '\n';
      includes += "#include " + (header.starts_with('<') ? header : "\"" + header + "\"");
      if (header.starts_with('<') && &header != &headers.back() && !(&header)[1].starts_with('<')) includes += '\n';
    }
    std::string symbol = "headers_" + file;
    std::replace(symbol.begin(), symbol.end(), '.', '_');
    runtime.symbols[symbol] = includes;
  }
  runtime.symbols["abi"] = fmt::format("{}", runtime.abi);
}

}  // namespace

std::string rt(std::string_view symbol) { return kMark + std::string(symbol) + kMark; }

std::string mark_symbols(std::string_view text) {
  std::string marked;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '@') {
      marked += text[i++];
      continue;
    }
    size_t end = i + 1;
    while (end < text.size()) {
      if (is_word(text[end])) ++end;
      else if (text.substr(end).starts_with("::") && end + 2 < text.size() && is_word(text[end + 2])) end += 2;
      else break;
    }
    marked += rt(text.substr(i + 1, end - i - 1));
    i = end;
  }
  return marked;
}

std::string spell_symbols(const Runtime& runtime, std::string_view text, std::vector<std::string>& problems) {
  std::string spelled;
  spelled.reserve(text.size());
  while (true) {
    const size_t begin = text.find(kMark);
    spelled += text.substr(0, begin);
    if (begin == std::string_view::npos) return spelled;
    const size_t end = text.find(kMark, begin + 1);
    const std::string_view symbol = text.substr(begin + 1, end - begin - 1);
    const auto found = runtime.symbols.find(symbol);
    if (found != runtime.symbols.end()) spelled += found->second;
    else problems.push_back(fmt::format("the runtime has no symbol '{}'", symbol));
    if (end == std::string_view::npos) return spelled;
    text.remove_prefix(end + 1);
  }
}

std::set<std::string> read_declarations(std::string_view header) {
  std::set<std::string> signatures;
  const std::string code = plain_code(header);
  for (size_t at = code.find("void "); at != std::string::npos; at = code.find("void ", at + 1)) {
    if (at > 0 && is_word(code[at - 1])) continue;
    const size_t open = code.find('(', at);
    const size_t close = code.find(");", at);
    if (open == std::string::npos || close == std::string::npos || close < open) break;
    std::string signature = code.substr(at + 5, open - at - 5) + "(";
    int depth = 0;
    size_t begin = open + 1;
    for (size_t i = begin; i <= close; ++i) {
      if (code[i] == '<') ++depth;
      if (code[i] == '>') --depth;
      if (i < close && (depth > 0 || code[i] != ',')) continue;
      signature += (begin > open + 1 ? ", " : "") + type_of(std::string_view(code).substr(begin, i - begin));
      begin = i + 1;
    }
    signatures.insert(signature + ")");
  }
  return signatures;
}

const Runtime& own_runtime() {
  static const Runtime runtime = [] {
    std::vector<std::string> problems;
    return load_runtime("", problems).value();
  }();
  return runtime;
}

std::string spell_own(std::string_view text) {
  std::vector<std::string> problems;
  return spell_symbols(own_runtime(), text, problems);
}

std::optional<Runtime> load_runtime(const std::string& path, std::vector<std::string>& problems) {
  Runtime runtime;
  DescriptionReader(runtime, true, "", problems).read(Json::parse(embedded_runtime()));
  if (path.empty()) {
    add_derived_symbols(runtime);
    return runtime;
  }
  const std::optional<std::string> bytes = read_bytes(path);
  if (!bytes) {
    problems.push_back("the file cannot be read.");
    return std::nullopt;
  }
  const Json json = Json::parse(*bytes, nullptr, false, true);
  if (json.is_discarded()) {
    problems.push_back("the file is not valid JSON.");
    return std::nullopt;
  }
  DescriptionReader(runtime, false, std::filesystem::path(path).parent_path().string(), problems).read(json);
  if (!problems.empty()) return std::nullopt;
  add_derived_symbols(runtime);
  return runtime;
}

}  // namespace shardgen
