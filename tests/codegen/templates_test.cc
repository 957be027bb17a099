// A folder of templates replaces only those that it has; imported ops may be invoked and are not
// generated.
#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>

#include "cli/check.h"
#include "cli/generate.h"
#include "codegen/helpers.h"
#include "emit/templates.h"

namespace templates_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string problem_of(const std::string& folder) {
  std::string problem;
  CHECK_FALSE(load_templates(folder, problem).has_value());
  return problem;
}

std::string op(const std::string& name, const std::string& body) {
  return "- op : " + name + "\n  args : (Tensor x)\n  output : Tensor(out)\n" + body;
}

const std::string kKernel = "  infer_meta :\n    func : UnchangedInferMeta\n  kernel :\n    func : k\n";

GenerateOptions options_for(const TempFolder& folder) {
  GenerateOptions options;
  options.files = {folder.path("own.yaml")};
  options.imports = {folder.path("base.yaml")};
  options.out = folder.path("out");
  options.strict = true;
  return options;
}

}  // namespace

TEST_CASE("A template folder with one file replaces that template alone", "[codegen]") {
  const TempFolder folder;
  std::string problem;
  const std::optional<Templates> built_in = load_templates("", problem);
  REQUIRE(built_in.has_value());
  CHECK(built_in->replaced.empty());
  write(folder.path("api.h.mustache"), "mine");
  write(folder.path(".hidden"), "an editor's file");
  std::filesystem::create_directory(folder.path("reference"));
  const std::optional<Templates> loaded = load_templates(folder.path(), problem);
  REQUIRE(loaded.has_value());
  CHECK(loaded->replaced == std::vector<std::string>{"api.h.mustache"});
  for (const auto& [name, text] : loaded->texts)
    CHECK(text == (name == "api.h.mustache" ? "mine" : built_in->texts.at(name)));
  CHECK(loaded->texts.size() == built_in->texts.size());
}

TEST_CASE("A name that no template has is an error that suggests one", "[codegen]") {
  const TempFolder folder;
  write(folder.path("dens.cc.mustache"), "");
  CHECK(problem_of(folder.path()) ==
        "'" + folder.path("dens.cc.mustache") + "' has the name of no template; did you mean 'dense.cc.mustache'?");
  CHECK_THAT(problem_of(folder.path("absent")), Catch::StartsWith("Cannot read the template folder '"));
}

TEST_CASE("The depfile names the template folder and the files that it replaces", "[codegen]") {
  const TempFolder folder, templates;
  write(folder.path("base.yaml"), op("base", kKernel));
  write(folder.path("own.yaml"), op("mine", kKernel));
  write(templates.path("api.h.mustache"),
        "// mine\n{{#headers}}\n#include \"{{header}}.h\"\n{{/headers}}\n"
        "{{#program}}\n// {{register}}:{{#functions}} {{function}}{{/functions}}\n{{/program}}\n");
  GenerateOptions options = options_for(folder);
  options.templates = templates.path();
  options.depfile = folder.path("deps.d");
  REQUIRE(run_generate(options) == kFine);
  CHECK(slurp(folder.path("out/api.h")) == "// mine\n#include \"own.h\"\n// register_api: register_api_own\n");
  const std::string text = slurp(options.depfile);
  CHECK(text.find(" " + templates.path() + " ") != std::string::npos);
  CHECK(text.find(templates.path("api.h.mustache")) != std::string::npos);
  CHECK(text.find("dense.cc.mustache") == std::string::npos);
  CHECK(text.find(folder.path("base.yaml")) != std::string::npos);
}

TEST_CASE("Imported ops are invoked through the runtime's header and not generated", "[codegen]") {
  const TempFolder folder;
  write(folder.path("base.yaml"), op("there", kKernel));
  write(folder.path("own.yaml"), op("twice", "  invoke : there(x)\n"));
  GenerateOptions options = options_for(folder);
  options.umbrella = "own_api.h";
  REQUIRE(run_generate(options) == kFine);
  const auto files = read_folder(options.out);
  CHECK(files.count("base.h") == 0);
  CHECK(files.count("api.h") == 0);
  CHECK(files.at("own_api.h").find("#include \"own.h\"") != std::string::npos);
  CHECK(files.at("own_api.h").find("base.h") == std::string::npos);
  CHECK(files.at("own.cc").find("#include \"shard/shard.h\"") != std::string::npos);
  CHECK(files.at("own.cc").find("return shard::there(x);") != std::string::npos);
  options.imports.clear();
  CHECK(run_generate(options) == kFindings);
}

TEST_CASE("An op with the name of an imported one is an error at the own op", "[codegen]") {
  std::vector<Family> families(2);
  DiagnosticSink sink;
  families[0] = read_family("base.yaml", op("there", kKernel), sink);
  families[0].imported = true;
  families[1] = read_family("own.yaml", op("there", kKernel), sink);
  check_families(families, own_runtime(), sink);
  REQUIRE(sink.error_count() == 1);
  CHECK(sink.all()[0].at.file == "own.yaml");
}

TEST_CASE("A header of a family cannot be the header that includes all others", "[codegen]") {
  const TempFolder folder;
  write(folder.path("base.yaml"), op("base", kKernel));
  write(folder.path("own.yaml"), op("mine", kKernel));
  GenerateOptions options = options_for(folder);
  options.umbrella = "own.h";
  CHECK(run_generate(options) == kUsage);
  CHECK_FALSE(std::filesystem::exists(options.out));
}

}  // namespace templates_test
