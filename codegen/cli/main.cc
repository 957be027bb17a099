// The command line of shardgen: `generate` and `check`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "cli/commands.h"

namespace {

using shardgen::Options;

/// "family=2" into the map of parts; an error text otherwise.
std::string read_parts(const std::string& text, Options& options) {
  const size_t equals = text.find('=');
  int count = 0;
  if (equals != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, count);
    if (error != std::errc() || stop != end) count = 0;
  }
  if (count < 1 || count > 4096) return "--parts takes FAMILY=COUNT";
  options.parts[text.substr(0, equals)] = count;
  return "";
}

void add_common(CLI::App& command, Options& options, std::string& format) {
  command.add_option("files", options.files, "Op YAML files")->required();
  command.add_option("--import", options.imports, "Op YAML file of a library that is linked: its ops may be invoked")
      ->expected(1)
      ->take_all();
  command.add_flag("--strict", options.strict, "Take warnings as errors");
  command.add_option("--format", format, "How findings are printed")->check(CLI::IsMember({"text", "json"}));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Generates a distributed tensor library from op YAML.", "shardgen"};
  app.require_subcommand(1);
  app.set_version_flag("--version", shardgen::kToolVersion);
  Options options;
  std::string format = "text";
  std::vector<std::string> parts;
  bool list_outputs = false;
  CLI::App* generate = app.add_subcommand("generate", "Write C++ for the ops");
  add_common(*generate, options, format);
  generate->add_option("--out", options.out, "Folder to write to")->required();
  generate->add_option("--umbrella", options.umbrella, "Name of the header that includes all others")->capture_default_str();
  generate->add_option("--templates", options.templates, "Folder whose files replace the built-in templates of their names");
  generate->add_option("--depfile", options.depfile, "Write what the output depends on, for make and ninja");
  generate->add_option("--parts", parts, "FAMILY=COUNT: split that family into so many parts")->expected(1)->take_all();
  generate->add_flag("--list-outputs", list_outputs, "Print the names of the files and write nothing");
  CLI::App* check = app.add_subcommand("check", "Report what is wrong in the files");
  add_common(*check, options, format);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? shardgen::kFine : shardgen::kUsage;
  }
  options.json = format == "json";
  for (const std::string& part : parts) {
    if (const std::string problem = read_parts(part, options); !problem.empty()) {
      fmt::print(stderr, "shardgen: {}, not '{}'.\n", problem, part);
      return shardgen::kUsage;
    }
  }
  if (check->parsed()) return shardgen::run_check(options);
  return list_outputs ? shardgen::run_list_outputs(options) : shardgen::run_generate(options);
}
