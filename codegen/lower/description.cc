// Reads the members of a description. description_text.cc decides which texts are allowed.
#include "lower/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "diag/suggest.h"
#include "model/types.h"
#include "model/word.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string_view>;

constexpr std::array<std::string_view, 13> kTypes = {"bool",     "int",    "int64_t", "float",     "double",
                                                     "str",      "bool[]", "int[]",   "int64_t[]", "float[]",
                                                     "double[]", "str[]",  "Scalar[]"};

template <class Map>
Names names_of(const Map& map) {
  Names names;
  for (const auto& [name, value] : map) names.push_back(name);
  return names;
}

bool is_list(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
}

bool is_header(std::string_view name) {
  if (name.starts_with('<') && name.ends_with('>') && name.size() > 2) name = name.substr(1, name.size() - 2);
  const auto allowed = [](char c) { return is_word(c) || c == '.' || c == '/' || c == '-' || c == '+'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), allowed);
}

/// Copies the members of a description into a Runtime; each mistake becomes a sentence in
/// `problems`. Without `built_in`, the built-in description itself is read.
class DescriptionReader {
 public:
  DescriptionReader(Runtime& runtime, const Runtime* built_in, std::string folder, std::vector<std::string>& problems)
      : runtime_(runtime), built_in_(built_in), folder_(std::move(folder)), problems_(problems) {}

  void read(const Json& json) {
    if (!json.is_object()) return problem("It must be an object");
    for (const auto& [key, value] : json.items()) member(key, value);
  }

 private:
  void problem(const std::string& text) { problems_.push_back(text + "."); }

  void member(const std::string& key, const Json& value) {
    static constexpr std::array<std::string_view, 13> known = {"name",    "extends", "abi",       "layers",  "symbols",
                                                               "types",   "dtypes",  "op_table",  "headers", "rules",
                                                               "kernels", "names",   "infer_meta"};
    if (key == "symbols" || (key == "standard" && built_in_ == nullptr)) return symbols(key, value);
    if (key == "types") return spellings(key, value, Names(kTypes.begin(), kTypes.end()), runtime_.types);
    if (key == "dtypes") return spellings(key, value, data_type_names(), runtime_.dtypes);
    if (key == "op_table") return op_table(value);
    if (key == "headers") return headers(value);
    if (key == "rules") return names(key, value, runtime_.rules);
    if (key == "kernels") return names(key, value, runtime_.kernels);
    if (key == "names") return names(key, value, runtime_.names);
    if (key == "infer_meta") return declarations(value);
    if (key == "layers") return layers(value);
    if (key == "abi") return abi(value);
    if (key == "name") return value.is_string() ? void() : problem("'name' must be a text");
    if (key == "extends") return value == "shard" ? void() : problem("'extends' must be \"shard\"");
    unknown("a description", key, Names(known.begin(), known.end()));
  }

  /// "Unknown key 'dtyps' in a description; did you mean 'dtypes'?"
  void unknown(const std::string& where, const std::string& key, const Names& known) {
    problems_.push_back(fmt::format("Unknown key '{}' in {}{}", key, where, suggestion(key, known)));
  }

  /// Calls `take` with the name and text of each member of an object of texts. The names must be
  /// known.
  template <class F>
  void each_text(const std::string& key, const Json& value, const Names* known, F&& take) {
    if (!value.is_object()) return problem(fmt::format("'{}' must be an object of texts", key));
    for (const auto& [name, text] : value.items()) {
      if (known != nullptr && std::find(known->begin(), known->end(), name) == known->end())
        unknown("'" + key + "'", name, *known);
      else if (!text.is_string()) problem(fmt::format("'{}' in '{}' must be a text", name, key));
      else take(name, text.template get<std::string>());
    }
  }

  void spell(const std::string& key, const std::string& name, SymbolKind kind, const std::string& text,
             Runtime::Texts& target) {
    if (const std::string why = refusal(kind, text); !why.empty())
      problem(fmt::format("The text of '{}' in '{}' {}", name, key, why));
    else target[name] = text;
  }

  void symbols(const std::string& key, const Json& value) {
    const Names known = built_in_ != nullptr ? names_of(built_in_->symbols) : Names();
    each_text(key, value, built_in_ != nullptr ? &known : nullptr,
              [&](const std::string& name, const std::string& text) {
                spell(key, name, kind_of(name, built_in_ != nullptr ? built_in_->symbols.at(name) : text), text,
                      runtime_.symbols);
              });
  }

  void spellings(const std::string& key, const Json& value, const Names& known, Runtime::Texts& target) {
    each_text(key, value, &known, [&](const std::string& name, const std::string& text) {
      spell(key, name, SymbolKind::code, text, target);
    });
  }

  void op_table(const Json& value) {
    const Names known = built_in_ != nullptr ? names_of(built_in_->op_table) : Names();
    runtime_.op_table.clear();
    each_text("op_table", value, built_in_ != nullptr ? &known : nullptr,
              [&](const std::string& name, const std::string& text) {
                spell("op_table", name, SymbolKind::identifier, text, runtime_.op_table);
              });
  }

  template <class Set>
  void names(const std::string& key, const Json& value, Set& target) {
    if (!is_list(value)) return problem(fmt::format("'{}' must be a list of texts", key));
    target = value.get<Set>();
  }

  void headers(const Json& value) {
    if (!value.is_object()) return problem("'headers' must be an object of lists");
    const Names known = built_in_ != nullptr ? names_of(built_in_->headers) : Names();
    for (const auto& [file, list] : value.items()) {
      if (built_in_ != nullptr && !built_in_->headers.contains(file)) {
        unknown("'headers'", file, known);
      } else if (!is_list(list)) {
        problem(fmt::format("'{}' in 'headers' must be a list of texts", file));
      } else {
        runtime_.headers[file] = list.get<std::vector<std::string>>();
        for (const std::string& header : runtime_.headers[file]) {
          if (!is_header(header))
            problem(fmt::format("'{}' in '{}' of 'headers' is not the name of a header", header, file));
        }
      }
    }
  }

  void layers(const Json& value) {
    const auto list = is_list(value) ? value.get<std::vector<std::string>>() : std::vector<std::string>();
    // Each layer needs those before it.
    static constexpr std::array<std::string_view, 5> all = {"dense", "dist", "autograd", "program", "python"};
    if (list.empty() || list.size() > all.size() || !std::equal(list.begin(), list.end(), all.begin()))
      return problem(
          "'layers' must be the first of \"dense\", \"dist\", \"autograd\", \"program\", \"python\", in this order");
    const auto has = [&](std::string_view layer) { return std::find(list.begin(), list.end(), layer) != list.end(); };
    runtime_.dist = has("dist");
    runtime_.autograd = has("autograd");
    runtime_.program = has("program");
    runtime_.python = has("python");
  }

  void abi(const Json& value) {
    if (!value.is_number_integer() || value < 0 || value > 1'000'000'000)
      return problem("'abi' must be a whole number from 0 to 1000000000");
    runtime_.abi = value.get<int>();
  }

  /// Reads headers that declare infer_meta functions, relative to the description.
  void declarations(const Json& value) {
    if (!is_list(value)) return problem("'infer_meta' must be a list of headers");
    runtime_.infer_meta.clear();
    for (const std::string& name : value.get<std::vector<std::string>>()) {
      const std::string path = (std::filesystem::path(folder_) / name).string();
      const std::optional<std::string> text =
          built_in_ == nullptr ? std::optional(std::string(embedded_infer_meta())) : read_bytes(path);
      if (!text) {
        problem(fmt::format("Cannot read '{}', which 'infer_meta' names", path));
        continue;
      }
      runtime_.infer_meta.merge(read_declarations(*text));
      if (built_in_ != nullptr) runtime_.files.push_back(path);
    }
  }

  Runtime& runtime_;
  const Runtime* built_in_;
  std::string folder_;
  std::vector<std::string>& problems_;
};

/// Parses the JSON of a description. A duplicate key, which JSON parsers ignore, is a problem.
std::optional<Json> parse(const std::string& bytes, std::vector<std::string>& problems) {
  std::vector<std::set<std::string>> keys;
  const auto note = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      problems.push_back(fmt::format("The key '{}' stands twice in an object.", value.get<std::string>()));
    return true;
  };
  try {
    return Json::parse(bytes, note);
  } catch (const Json::parse_error& error) {
    const std::string_view text =
        error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const size_t id = text.find("] ");
    problems.push_back(
        fmt::format("It is not valid JSON: {}.", text.substr(id == std::string_view::npos ? 0 : id + 2)));
    return std::nullopt;
  }
}

/// The text without comments, with runs of space replaced by single spaces.
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

std::string includes_of(const std::vector<std::string>& headers) {
  std::string includes;
  for (size_t i = 0; i < headers.size(); ++i) {
    const bool system = headers[i].starts_with('<');
    if (i > 0) includes += headers[i - 1].starts_with('<') && !system ? "\n\n" : "\n";
    includes += "#include " + (system ? headers[i] : "\"" + headers[i] + "\"");
  }
  return includes;
}

/// Adds the names in `spelling` before ::, which are namespaces or types.
void add_namespaces(std::string_view spelling, std::set<std::string>& namespaces) {
  for (size_t at = spelling.find("::"); at != std::string_view::npos; at = spelling.find("::", at + 2)) {
    size_t begin = at;
    while (begin > 0 && is_word(spelling[begin - 1])) --begin;
    if (begin < at) namespaces.emplace(spelling.substr(begin, at - begin));
  }
}

/// Derives symbols from the other members: types, includes and the ABI number.
void add_derived(Runtime& runtime) {
  static constexpr std::array spaces = {"api", "dense", "dist", "external", "infer", "meta", "ops"};
  for (const auto& [name, spelling] : runtime.symbols) {
    add_namespaces(spelling, runtime.namespaces);
    const bool space = name.starts_with("namespace_") || std::find(spaces.begin(), spaces.end(), name) != spaces.end();
    if (space) add_namespaces(spelling + "::", runtime.namespaces);
    else if (kind_of(name, spelling) != SymbolKind::text && !leading_name(spelling).empty())
      runtime.names.emplace(leading_name(spelling));
  }
  for (const auto& [name, spelling] : runtime.dtypes) runtime.symbols["dtype::" + name] = spelling;
  for (const std::string_view name : kTypes) {
    const std::string_view element = name.substr(0, name.find('['));
    const bool integers = name == "int[]" || name == "int64_t[]";
    const std::string derived =
        integers ? rt("IntArray")
                 : rt("list", element == "Scalar" ? rt("Scalar") : rt("type::" + std::string(element)));
    const auto given = runtime.types.find(name);
    const std::string symbol = "type::" + std::string(name);
    if (given != runtime.types.end()) runtime.symbols[symbol] = given->second;
    else if (missing_symbols(runtime, derived).empty()) runtime.symbols[symbol] = spell_symbols(runtime, derived);
  }
  for (const auto& [file, headers] : runtime.headers) {
    std::string symbol = "headers_" + file;
    std::replace(symbol.begin(), symbol.end(), '.', '_');
    runtime.symbols[symbol] = includes_of(headers);
  }
  runtime.symbols["abi"] = fmt::format("{}", runtime.abi);
}

/// The built-in runtime, or only its part that is common to every runtime: the names of headers,
/// and symbols of the C++ library.
Runtime built_in_runtime(bool only_standard, std::vector<std::string>& problems) {
  Json json = Json::parse(embedded_runtime());
  if (only_standard) {
    for (const char* own : {"symbols", "dtypes", "infer_meta", "rules", "kernels", "names", "op_table"})
      json.erase(own);
    for (Json& list : json["headers"]) list = Json::array();
  }
  Runtime runtime;
  DescriptionReader(runtime, nullptr, "", problems).read(json);
  return runtime;
}

}  // namespace

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

std::optional<Runtime> load_runtime(const std::string& path, std::vector<std::string>& problems) {
  const Runtime built_in = built_in_runtime(false, problems);
  if (path.empty()) {
    Runtime runtime = built_in;
    add_derived(runtime);
    return runtime;
  }
  const std::optional<std::string> bytes = read_bytes(path);
  if (!bytes) {
    problems.push_back("The file cannot be read.");
    return std::nullopt;
  }
  const std::optional<Json> json = parse(*bytes, problems);
  if (!json) return std::nullopt;
  Runtime runtime = json->is_object() && json->contains("extends") ? built_in : built_in_runtime(true, problems);
  runtime.files = {path};
  DescriptionReader(runtime, &built_in, std::filesystem::path(path).parent_path().string(), problems).read(*json);
  if (!problems.empty()) return std::nullopt;
  add_derived(runtime);
  return runtime;
}

}  // namespace shardgen
