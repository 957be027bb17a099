// Names of arguments, outputs and ops that generated code uses itself: each compiles or is refused
// with a message.
#include <catch2/catch.hpp>

#include <fstream>
#include <set>

#include "codegen/helpers.h"
#include "codegen/tool.h"

namespace names_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; }

/// Adds the words of a text, without mustache tags, comments and includes.
void add_words(const std::string& text, std::set<std::string>& words) {
  for (size_t i = 0; i < text.size();) {
    const bool line_end = text.compare(i, 2, "//") == 0 || text[i] == '#';
    if (line_end || text.compare(i, 2, "{{") == 0) {
      i = std::min(text.find(line_end ? "\n" : "}}", i), text.size());
    } else if (is_letter(text[i])) {
      const size_t begin = i;
      while (i < text.size() && is_word(text[i])) ++i;
      const std::string word = text.substr(begin, i - begin);
      if (word.find("__") == std::string::npos) words.insert(word);
    } else {
      while (i < text.size() && is_word(text[i])) ++i;
      ++i;
    }
  }
}

/// Every identifier of the description of the runtime, of the templates and of generated code with most forms of ops.
std::vector<std::string> used_names() {
  std::set<std::string> words;
  add_words(slurp(source_path("codegen/runtime/shard.json")), words);
  for (const char* folder : {"templates", "tests/codegen/golden"}) {
    for (const auto& entry : std::filesystem::directory_iterator(source_path(folder))) {
      const std::string extension = entry.path().extension();
      if (extension == ".mustache" || extension == ".cc" || extension == ".h") add_words(slurp(entry.path()), words);
    }
  }
  return {words.begin(), words.end()};
}

/// How many tensors, attributes and outputs an op of the test has; its names come in this order.
constexpr size_t kOfEach = 6;

/// `text` for each name of [first, last), which stands for its "{}".
std::string list_of(const std::vector<std::string>& names, size_t first, size_t last, const std::string& text) {
  const size_t at = text.find("{}");
  std::string list;
  for (size_t i = first; i < last; ++i) {
    list += (i == first ? "" : ", ") + text.substr(0, at) + names[i] + text.substr(at + 2);
  }
  return list;
}

std::string arguments_of(const std::vector<std::string>& names) {
  const size_t dtype = 2 * kOfEach - 1;
  return "(" + list_of(names, 0, kOfEach, "Tensor {}") + ", " + list_of(names, kOfEach, dtype, "IntArray {}={}") +
         ", DataType " + names[dtype] + "=DataType::UNDEFINED)";
}

/// An op that is written in place and also has new outputs, and its gradient.
std::string op_text(const std::string& op, const std::vector<std::string>& names) {
  return "- op : " + op + "\n  args : " + arguments_of(names) +
         "\n  output : " + list_of(names, 2 * kOfEach, 3 * kOfEach, "Tensor({})") +
         "\n  infer_meta :\n    func : NamesInferMeta\n  kernel :\n    func : names\n    data_type : " +
         names[2 * kOfEach - 1] + " > " + names[0] + "\n  inplace : (" + names[0] + " -> " + names[2 * kOfEach] +
         ")\n  backward : " + op + "_grad\n";
}

std::string gradient_text(const std::string& op, const std::vector<std::string>& names) {
  return "- backward_op : " + op + "_grad\n  forward : " + op + " " + arguments_of(names) + " -> " +
         list_of(names, 2 * kOfEach, 3 * kOfEach, "Tensor({})") + "\n  args : (" +
         list_of(names, 1, kOfEach, "Tensor {}") + ", " + list_of(names, 2 * kOfEach, 3 * kOfEach, "Tensor {}") + ", " +
         list_of(names, 2 * kOfEach, 3 * kOfEach, "Tensor {}_grad") + ", " +
         list_of(names, kOfEach, 2 * kOfEach - 1, "IntArray {}") +
         ")\n  output : " + list_of(names, 1, kOfEach, "Tensor({}_grad)") +
         "\n  infer_meta :\n    func : NamesGradInferMeta\n  kernel :\n    func : names_grad\n    data_type : " +
         names[2 * kOfEach] + "_grad\n";
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// Compiles all sources of a folder as one, because most of the time goes into the headers of the runtime.
void compile(const std::string& folder, const std::string& options) {
  std::set<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".cc") lines.insert("#include \"" + entry.path().filename().string() + "\"\n");
  }
  REQUIRE_FALSE(lines.empty());
  std::string all;
  for (const std::string& line : lines) all += line;
  const std::string unit = folder + "/all.cpp";
  write(unit, all);
  const Ran compiled = run_shell(compiler_path() + " -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I" +
                                 source_path("runtime") + " " + options + " " + unit);
  INFO(compiled.err.substr(0, 6000));
  CHECK(compiled.code == 0);
}

/// Generates the files and compiles everything that is written; returns the messages of the tool.
std::string generate_and_compile(const TempFolder& folder, const std::string& files) {
  const Ran generated = run_tool("generate " + files + " --keep-going --out " + folder.path("out"));
  INFO(generated.err);
  REQUIRE(generated.code == 0);
  compile(folder.path("out"), "");
  const Ran python = run_shell("python3-config --includes");
  if (python.code != 0) WARN("skipped for bindings: python3-config is not installed");
  else
    compile(folder.path("out/python"),
            "-I" + source_path("python/include") + " " + python.out.substr(0, python.out.find('\n')));
  return generated.err;
}

bool is_refused(const std::string& findings, const std::string& name) {
  return findings.find("'" + name + "' cannot name") != std::string::npos;
}

}  // namespace

TEST_CASE(
    "Arguments and outputs with the names that generated code uses compile, and only words of C++ and macros are "
    "refused",
    "[codegen]") {
  const TempFolder folder;
  std::vector<std::string> names = used_names();
  CHECK(names.size() > 300);
  // Refused names are found first, so that each takes no other name of its op with it.
  std::string all = "- op : all\n  args : (Tensor x";
  for (const std::string& name : names) all += ", Tensor " + name;
  write(folder.path("all.yaml"),
        all + ")\n  output : Tensor\n  infer_meta :\n    func : F\n  kernel :\n    func : f\n");
  const std::string findings = run_tool("check " + folder.path("all.yaml")).err;
  std::set<std::string> refused;
  for (const std::string& name : names) {
    if (is_refused(findings, name)) refused.insert(name);
  }
  for (const char* runtime_name : {"kernels", "CallSite", "BackwardContext", "Recording", "Writing", "call", "ctx",
                                   "ops", "dist", "std", "Tensor", "Meta"}) {
    INFO(runtime_name);
    CHECK(std::find(names.begin(), names.end(), runtime_name) != names.end());
    CHECK_FALSE(refused.contains(runtime_name));
  }
  for (const char* word : {"auto", "namespace", "true", "int64_t", "SHARD_API"}) {
    INFO(word);
    CHECK(refused.contains(word));
  }
  std::erase_if(names, [&](const std::string& name) {
    return refused.contains(name) || name.ends_with("_grad") || name.ends_with('_');
  });
  constexpr size_t of_op = 3 * kOfEach;
  while (names.size() % of_op != 0) names.push_back("other" + std::to_string(names.size()));
  std::string forward, backward;
  // In the three turns each name is that of a tensor, of an attribute and of an output.
  for (size_t turn = 0; turn < of_op; turn += kOfEach) {
    for (size_t at = 0; at < names.size(); at += of_op) {
      std::vector<std::string> those;
      for (size_t i = 0; i < of_op; ++i) those.push_back(names[at + (i + turn) % of_op]);
      const std::string op = "op" + std::to_string(turn) + "_" + std::to_string(at);
      forward += op_text(op, those);
      backward += gradient_text(op, those);
    }
  }
  write(folder.path("forward.yaml"), forward);
  write(folder.path("backward.yaml"), backward);
  const std::string err =
      generate_and_compile(folder, folder.path("forward.yaml") + " " + folder.path("backward.yaml"));
  INFO(err.substr(0, 3000));
  CHECK(err.find(": error:") == std::string::npos);
  CHECK(err.find("0 left out") != std::string::npos);
}

TEST_CASE("Ops with the names that generated code uses compile or are refused", "[codegen]") {
  const TempFolder folder;
  std::string text;
  int count = 0;
  for (const std::string& name : used_names()) {
    text += "- op : " + name +
            "\n  args : (Tensor x, int axis=0)\n  output : Tensor(out)\n  infer_meta :\n    func : NamesInferMeta\n    "
            "param : [x]\n" +
            "  kernel :\n    func : names\n";
    // All names are declared where the code of each op is: that of some in-place forms meets them all.
    if (count++ % 16 == 0) text += "  inplace : (x -> out)\n";
  }
  write(folder.path("named.yaml"), text);
  const std::string findings = generate_and_compile(folder, folder.path("named.yaml"));
  for (const char* name : {"Tensor", "CallSite", "slots", "records", "auto"}) {
    INFO(name);
    CHECK(is_refused(findings, name));
  }
  for (const char* name : {"dispatch", "wrap", "record", "kernel"}) {
    INFO(name);
    CHECK_FALSE(is_refused(findings, name));
  }
}

}  // namespace names_test
