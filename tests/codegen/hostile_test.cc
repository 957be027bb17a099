// Malicious input: texts that try to become C++, files that cannot be read, files that are too
// large.
#include <catch2/catch.hpp>

#include <sys/stat.h>

#include <unistd.h>
#include <fstream>

#include "codegen/helpers.h"
#include "diag/printable.h"
#include "diag/utf8.h"
#include "emit/generate.h"
#include "emit/templates.h"
#include "lower/description.h"

namespace hostile_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

/// An op with every key, in which each value occurs once as {KEY}.
const std::vector<std::pair<std::string, std::string>> kValues = {
    {"name", "f"},
    {"type", "Tensor"},
    {"arg", "x"},
    {"attr_type", "str"},
    {"attr", "mode"},
    {"text", "\"plain\""},
    {"scalar", "\"1e-5\""},
    {"list_text", "{\"a\"}"},
    {"output", "out"},
    {"length", "n"},
    {"func", "InferMeta"},
    {"param", "x"},
    {"rule", "..., ... -> ..., [...]"},
    {"local", "shape"},
    {"global", "out"},
    {"kernel", "k"},
    {"kernel_param", "x"},
    {"dtype", "x"},
    {"backend", "x"},
    {"layout", "x"},
    {"force", "CPU"},
    {"optional", "y"},
    {"inter", "parts"},
    {"need", "y"},
    {"tensor", "mode"},
    {"interface", "a::b"},
    {"trait", "a::B"},
    {"skip", "y"},
    {"trans", "y"},
    {"view", "y"},
    {"format", "NCHW"},
    {"backward", "f_grad"},
    {"partial", "linear"},
    {"guard", "guard"},
    {"doc", "Says what."},
    {"called", "f"},
    {"constant", "2"},
    {"forward", "f"},
    {"gradient", "x_grad"},
    {"composed", "h_impl"},
    {"composed_arg", "x"},
};

const std::string kTemplate = R"(- op : "{name}"
  args : '({type} {arg}, Tensor y, IntArray shape, int n, {attr_type} {attr}={text}, Scalar s={scalar}, str[] l={list_text})'
  output : 'Tensor({output}), Tensor[](parts){{length}}'
  infer_meta :
    func : '{func}'
    param : ['{param}']
    spmd_rule : '{rule}'
    local_shape : '{local}'
    global_shape : '{global}'
  kernel : {func : '{kernel}', param : '{kernel_param}', data_type : '{dtype}', backend : '{backend}', layout : '{layout}', force_backend : '{force}'}
  optional : '{optional}'
  intermediate : '{inter}'
  no_need_buffer : '{need}'
  support_tensor : '{tensor}'
  interfaces : '{interface}'
  traits : '{trait}'
  data_transform : {skip_transform : '{skip}', support_trans_dtype : '{trans}'}
  inplace : '({arg} -> {output})'
  data_format : '{format}'
  backward : '{backward}'
  shard : {partial : '{partial}', partial_guard : '{guard}', doc : "{doc}"}
- op : g
  args : (Tensor x, Tensor y, IntArray shape)
  output : Tensor(out), Tensor[](parts)
  invoke : '{called}(x, y, shape, {constant})'
- op : h
  args : (Tensor x, int n)
  output : Tensor(out)
  composite : '{composed}({composed_arg}, {constant})'
- backward_op : f_grad
  forward : '{forward} (Tensor x) -> Tensor(out)'
  args : (Tensor x, Tensor out_grad)
  output : 'Tensor({gradient})'
  infer_meta : {func : InferMeta, param : [x]}
  kernel : {func : f_grad}
)";

/// Texts that could end a name, a string, a comment, a line or a statement. Each contains the word
/// that must not reach C++.
const std::vector<std::string> kHostile = {
    "x); pwned(); //",
    "x */ pwned(); /*",
    "x\\\" + pwned + \\\"",  // an escaped quote, to YAML's double quotes
    "x\\npwned();",          // a line break, to YAML's double quotes
    "x\\\\",                 // a backslash at the end
    "x\npwned();",           // a line break in the file
    "x ? pwned : 1",
    "(pwned())",
    "x;pwned",
    "x\"; pwned(); \"",
    "x'; pwned(); '",
    "R\"(pwned)\"",
    "pwned\\u202ex",
    "p\xD0\xB0wned",       // a Cyrillic letter
    "x\xE2\x80\x8Bpwned",  // a space of no width
    "%:define pwned",
    "?\?/\npwned",
    "{{pwned}}",  // a tag of a template
    "$(pwned)",
    "x, int pwned = system(0)",
    "std::pwned<int>",
    "x->pwned",
};

std::string fill(const std::string& hostile_key, const std::string& value) {
  std::string text = kTemplate;
  for (const auto& [key, plain] : kValues) {
    const std::string tag = "{" + key + "}";
    for (size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, at)) {
      const std::string& chosen = key == hostile_key ? value : plain;
      text.replace(at, tag.size(), chosen);
      at += chosen.size();
    }
  }
  return text;
}

/// C++ without its comments and the insides of its string literals, as a compiler sees it: a backslash joins lines
/// first.
std::string code_of(const std::string& source) {
  std::string joined;
  for (size_t i = 0; i < source.size(); ++i) {
    size_t next = i + 1;
    while (source[i] == '\\' && next < source.size() && (source[next] == ' ' || source[next] == '\t')) ++next;
    if (source[i] == '\\' && next < source.size() && source[next] == '\n') {
      i = next;
    } else {
      joined += source[i];
    }
  }
  std::string code;
  for (size_t i = 0; i < joined.size(); ++i) {
    if (joined.compare(i, 2, "//") == 0) {
      while (i < joined.size() && joined[i] != '\n') ++i;
    } else if (joined.compare(i, 2, "/*") == 0) {
      i = joined.find("*/", i + 2) + 1;
    } else if (joined[i] == '"') {
      for (++i; i < joined.size() && joined[i] != '"'; ++i) i += joined[i] == '\\' ? 1 : 0;
    } else {
      code += joined[i];
    }
  }
  return code;
}

/// The runtime, with every function that an op names added.
Runtime any_runtime() {
  std::vector<std::string> problems;
  Runtime runtime = *load_runtime("", problems);
  runtime.infer_meta.clear();
  runtime.rules.clear();
  runtime.kernels.clear();
  return runtime;
}

std::string generate_all(const std::vector<Family>& families) {
  std::string problem, all;
  static const std::optional<Templates> templates = load_templates("", problem);
  static const Runtime runtime = any_runtime();
  static const std::map<std::string, int> parts;
  const Generated generated = generate(families, {runtime, templates->texts, "api.h", parts, {}});
  CHECK(generated.problems.empty());
  for (const auto& [name, text] : generated.files) all += code_of(text) + "\n";
  return all;
}

}  // namespace

TEST_CASE("The hostile test's own op is generated when its values are harmless", "[codegen]") {
  DiagnosticSink sink;
  std::vector<Family> families = {read_family("a.yaml", fill("", ""), sink)};
  check_families(families, own_runtime(), sink);
  INFO(to_text(sink.all()));
  REQUIRE(sink.error_count() == 0);
  CHECK(generate_all(families).find("f_intermediate(const Tensor& x") != std::string::npos);
}

TEST_CASE("No value of any key gets into C++ as code", "[codegen]") {
  int refused = 0, generated = 0;
  for (const auto& [key, plain] : kValues) {
    for (const std::string& hostile : kHostile) {
      INFO("key " << key << ", value " << hostile);
      DiagnosticSink sink;
      std::vector<Family> families = {read_family("a.yaml", fill(key, hostile), sink)};
      check_families(families, own_runtime(), sink);
      const std::string report = to_text(sink.all());
      CHECK(find_invalid_utf8(report) == std::string::npos);
      if (sink.error_count() > 0) {
        ++refused;
        continue;
      }
      ++generated;
      CHECK(generate_all(families).find("pwned") == std::string::npos);
    }
  }
  CHECK(refused > 600);
  CHECK(generated > 0);
}

TEST_CASE("A file name that could get into C++ is refused", "[codegen]") {
  for (const std::string name :
       {"a.ya\nint pwned;//", "a\".yaml", "a b.yaml", ".yaml", "", "..", "a\\.yaml", "7.yaml"}) {
    INFO(name);
    DiagnosticSink sink;
    read_text(fill("", ""), sink, name);
    CHECK(sink.error_count() > 0);
    CHECK(to_text(sink.all()).find("\nint pwned") == std::string::npos);
  }
}

TEST_CASE("Inputs that cannot be read are reported with the reason, and do not hang", "[codegen]") {
  const TempFolder folder;
  const std::string fifo = folder.path("pipe.yaml");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  std::ofstream(folder.path("locked.yaml")) << "- op : f\n";
  REQUIRE(chmod(folder.path("locked.yaml").c_str(), 0) == 0);
  const auto problem_of = [&](const std::string& path) {
    DiagnosticSink sink;
    CHECK_FALSE(read_input(path, sink).has_value());
    return sink.all().empty() ? "" : sink.all()[0].code + ": " + sink.all()[0].message;
  };
  CHECK(problem_of(folder.path()) == "unreadable: The file cannot be read: it is a folder; name the YAML files in it.");
  CHECK(problem_of(folder.path("missing.yaml")) == "unreadable: The file cannot be read: No such file or directory.");
  CHECK(problem_of(fifo) == "unreadable: The file cannot be read: it is not a regular file.");
  CHECK(problem_of("/dev/zero") == "unreadable: The file cannot be read: it is not a regular file.");
  // The superuser may read everything.
  if (geteuid() != 0)
    CHECK(problem_of(folder.path("locked.yaml")) == "unreadable: The file cannot be read: Permission denied.");
}

TEST_CASE("Too many entries, too long texts and too many ops are refused in time", "[codegen]") {
  const auto refused = [](const std::string& text) {
    DiagnosticSink sink;
    read_text(text, sink);
    return sink.all().size() == 1 && sink.all()[0].code == "too-large";
  };
  std::string keys = "- op : f\n", list = "- op : f\n  optional : [x", ops, nested = "- ";
  for (int i = 0; i < 2000; ++i) {
    keys += "  key" + std::to_string(i) + " : 1\n";
    list += ", x";
  }
  for (int i = 0; i < 20000; ++i) ops += "- {op : f}\n";
  for (int i = 0; i < 100000; ++i) nested += "- ";
  CHECK(refused(keys));
  CHECK(refused(list + "]\n"));
  CHECK(refused(ops));
  CHECK(refused("- op : " + std::string(100000, 'f') + "\n"));
  DiagnosticSink sink;
  read_text(nested, sink);
  REQUIRE(sink.all().size() == 1);
  CHECK(sink.all()[0].code == "too-deep");
}

TEST_CASE("Messages are one short line of valid text, whatever they quote", "[codegen]") {
  CHECK(printable("plain 'x'.") == "plain 'x'.");
  CHECK(printable("a\nb\tc\x01") == "a\\nb\\tc\\x01");
  CHECK(printable("\xD0\xBE") == "\xD0\xBE(U+043E)");
  CHECK(printable("x\xE2\x80\x8By") == "x(U+200B)y");
  CHECK(printable("\xFF") == "\\xFF");
  const std::string cut = printable(std::string(300, 'a') + std::string(5000, '\n') + "the end.");
  CHECK(cut.size() < 420);
  CHECK(cut.find(" [...] ") != std::string::npos);
  CHECK(cut.substr(cut.size() - 8) == "the end.");
}

}  // namespace hostile_test
