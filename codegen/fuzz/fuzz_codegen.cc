// libFuzzer target: runs any bytes through reading and checking and, if there are no errors,
// through printing, planning and rendering.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "check/check.h"
#include "diag/diagnostics.h"
#include "diag/utf8.h"
#include "emit/generate.h"
#include "emit/templates.h"
#include "lower/description.h"
#include "model/print.h"
#include "read/cursor.h"
#include "read/read_file.h"
#include "read/signature.h"

namespace {

using namespace shardgen;

/// Separates two files of one input, so that links between files are reached.
constexpr std::string_view kNextFile = "\n#file\n";
constexpr size_t kMaxBytes = size_t{64} << 10;
constexpr size_t kMaxFiles = 4;

void require(bool holds, const char* what, const std::string& text) {
  if (holds) return;
  std::fprintf(stderr, "Broken promise: %s\n%s\n", what, text.c_str());
  std::abort();
}

std::vector<std::string> split_files(std::string_view bytes) {
  std::vector<std::string> files;
  while (files.size() + 1 < kMaxFiles) {
    const size_t end = bytes.find(kNextFile);
    if (end == std::string_view::npos) break;
    files.emplace_back(bytes.substr(0, end));
    bytes.remove_prefix(end + kNextFile.size());
  }
  files.emplace_back(bytes);
  return files;
}

void check_findings(const DiagnosticSink& sink) {
  for (const Diagnostic& each : sink.all()) {
    const std::string text = to_text({each});
    require(each.at.line > 0 && each.at.column > 0, "a finding has a place", text);
    require(each.message.ends_with('.') || each.message.ends_with('?'), "a message is a sentence", text);
    require(find_invalid_utf8(text) == std::string::npos, "a message is UTF-8", text);
    const size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    require(lines == 1 + each.notes.size(), "a message is one line", text);
  }
  to_json(sink.all());
}

/// The runtime, with every function that an op names added; otherwise most ops would be left out.
Runtime any_runtime() {
  std::vector<std::string> problems;
  Runtime runtime = *load_runtime("", problems);
  runtime.infer_meta.clear();
  runtime.rules.clear();
  runtime.kernels.clear();
  return runtime;
}

/// Printed text must parse to the same model.
void check_round_trip(const Op& op) {
  const std::string printed = args_to_string(op.signature);
  DiagnosticSink sink;
  Cursor cursor(printed, sink);
  Signature again;
  read_args(cursor, again);
  require(!cursor.failed() && args_to_string(again) == printed, "printed arguments read the same", printed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kMaxBytes) return -1;
  static std::string problem;
  static const auto templates = load_templates("", problem);
  static const std::map<std::string, int> parts;
  static const Runtime runtime = any_runtime();
  DiagnosticSink sink;
  std::vector<Family> families;
  std::vector<std::string> paths;
  for (std::string& bytes : split_files({reinterpret_cast<const char*>(data), size})) {
    paths.push_back("f" + std::to_string(paths.size()) + ".yaml");
    families.push_back(read_family(paths.back(), std::move(bytes), sink));
  }
  check_families(families, runtime, sink);
  sink.sort(paths);
  check_findings(sink);
  if (sink.error_count() > 0) return 0;
  for (const Family& family : families) {
    for (const Op& op : family.ops) check_round_trip(op);
  }
  const Generated generated = generate(families, {runtime, templates->texts, "api.h", parts, {}});
  require(generated.problems.empty(), "templates have a value for each tag", "");
  return 0;
}
