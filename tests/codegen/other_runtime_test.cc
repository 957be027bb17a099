// Code for other runtimes: the toy of toy_runtime/, and errors of descriptions.
#include <catch2/catch.hpp>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/check.h"
#include "cli/generate.h"
#include "codegen/helpers.h"
#include "codegen/tool.h"
#include "emit/manifest.h"
#include "lower/description.h"

namespace other_runtime_test {

using namespace shardgen;
using namespace shardgen::testing;
using Json = nlohmann::json;

namespace {

const std::string kToy = source_path("tests/codegen/toy_runtime");

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string generate_toy(const std::string& out, const std::string& more = "") {
  return "generate " + kToy + "/toy_ops.yaml --runtime " + kToy + "/toy.json --out " + out + " " + more;
}

/// The problems of a description, or "" when it can be used.
std::string problem_of(const std::string& description) {
  const TempFolder folder;
  write(folder.path("runtime.json"), description);
  std::vector<std::string> problems;
  const std::optional<Runtime> runtime = load_runtime(folder.path("runtime.json"), problems);
  CHECK(runtime.has_value() == problems.empty());
  std::string text;
  for (const std::string& each : problems) text += each;
  return text;
}

std::string problem_of_symbol(const std::string& symbol, const std::string& spelling) {
  return problem_of(Json{{"symbols", {{symbol, spelling}}}}.dump());
}

Json shard_description() { return Json::parse(embedded_runtime()); }

const std::string kKernel = "infer_meta : {func : SameForm}\n  kernel : {func : k}\n";
const std::string kRandom = "  shard : {random : true}\n";

std::string toy_op(const std::string& name, const std::string& body) {
  return "- op : " + name + "\n  args : (Tensor x)\n  output : Tensor(out)\n  " + body + "\n";
}

/// The ops of the folder's ops.yaml that are left out for the toy without some symbols, with the reasons.
std::map<std::string, std::string> left_out(const TempFolder& folder, const std::vector<std::string>& symbols) {
  Json toy = Json::parse(slurp(kToy + "/toy.json"));
  for (const std::string& symbol : symbols) toy["symbols"].erase(symbol);
  toy["infer_meta"] = {kToy + "/toy_forms.h"};
  write(folder.path("toy.json"), toy.dump());
  const Ran ran = run_tool("generate --format json " + folder.path("ops.yaml") + " --runtime " +
                           folder.path("toy.json") + " --out " + folder.path("out"));
  INFO(ran.out << ran.err);
  CHECK(ran.code == 0);
  std::map<std::string, std::string> reasons;
  const Json summary = Json::parse(ran.out);
  for (const Json& each : summary["left_out"]) reasons[each["op"]] = each["reason"];
  return reasons;
}

/// The names in the first column of the table under a heading of docs/other_runtimes.md.
std::vector<std::string> documented(const std::string& heading) {
  const std::string page = slurp(source_path("docs/other_runtimes.md"));
  const size_t begin = page.find("\n## " + heading + "\n");
  std::istringstream lines(page.substr(begin, page.find("\n## ", begin + 1) - begin));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| `", 0) == 0) names.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

}  // namespace

TEST_CASE("code generated for another runtime compiles and computes", "[codegen]") {
  const TempFolder out;
  REQUIRE(run_tool(generate_toy(out.path())).code == 0);
  const Ran compiled = run_shell(compiler_path() + " -std=c++20 -Wall -Wextra -Werror -I" + kToy + " -I" + out.path() +
                                 " " + kToy + "/toy_main.cc " + out.path("*.cc") + " -o " + out.path("toy"));
  INFO(compiled.err);
  REQUIRE(compiled.code == 0);
  const Ran ran = run_shell(out.path("toy"));
  INFO(ran.out);
  CHECK(ran.code == 0);
}

TEST_CASE("Definitions are scaffolded for what another runtime lacks", "[codegen]") {
  const TempFolder out;
  REQUIRE(run_tool(generate_toy(out.path())).code == 0);
  REQUIRE(run_tool("scaffold --missing --yaml " + kToy + "/toy_ops.yaml --runtime " + kToy + "/toy.json --out " +
                   out.path())
              .code == 0);
  const std::string text = slurp(out.path("missing.cc"));
  CHECK(has(text, "toy::not_written(ctx.op, \"toy::forms::ReshapeForm\");"));
  CHECK_FALSE(has(text, "SameForm"));  // the runtime has it
  const Ran compiled = run_shell(compiler_path() + " -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I" + kToy + " -I" +
                                 out.path() + " " + out.path("missing.cc"));
  INFO(compiled.err);
  CHECK(compiled.code == 0);
}

TEST_CASE("Code for another runtime has nothing of shard in it", "[codegen]") {
  const TempFolder out;
  REQUIRE(run_tool(generate_toy(out.path())).code == 0);
  for (const auto& [name, text] : read_folder(out.path())) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("//", 0) == 0) continue;  // comments name the tool
      INFO(name << ": " << line);
      for (const char* leak :
           {"shard", "Tensor", "DType", "IntArray", "Scalar", "std::vector", "std::span", "std::string",
            "std::optional", ".meta()", ".dtype()", ".defined()", "call::", "dist", "regenerate"})
        CHECK_FALSE(has(line, leak));
    }
  }
}

TEST_CASE("Ops that need what a runtime lacks are left out with the reason", "[codegen]") {
  const TempFolder out;
  const Json json = Json::parse(run_tool(generate_toy(out.path(), "--format json")).out);
  std::map<std::string, std::string> reasons;
  for (const Json& each : json["left_out"]) reasons[each["op"]] = each["reason"];
  CHECK(reasons ==
        std::map<std::string, std::string>{{"noise", "the runtime has no symbol 'call::drawn_key'"},
                                           {"halved_precision", "the runtime does not have the dtype FLOAT16"},
                                           {"half_zeros", "the runtime does not have the dtype FLOAT16"},
                                           {"toy", "its name is that of a namespace of the runtime"}});
}

TEST_CASE("An op may have a name of this runtime that the described one does not have, and none of the described one",
          "[codegen]") {
  const TempFolder folder;
  const auto entry = [](const std::string& op) {
    return "- op : " + op +
           "\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : SameForm}\n  kernel : {func : " + op +
           "}\n";
  };
  Json toy = Json::parse(slurp(kToy + "/toy.json"));
  toy["names"] = {"launch_pad"};
  toy["infer_meta"] = {kToy + "/toy_forms.h"};
  write(folder.path("toy.json"), toy.dump());
  const std::string runtime = " --runtime " + folder.path("toy.json");
  write(folder.path("ours.yaml"), entry("Storage") + entry("records") + entry("LayoutArg"));
  write(folder.path("theirs.yaml"), entry("launch_pad"));
  CHECK(run_tool("check " + folder.path("ours.yaml")).code == 1);
  CHECK(run_tool("check " + folder.path("ours.yaml") + runtime).err == "");
  const Ran generated =
      run_tool("generate " + folder.path("ours.yaml") + runtime + " --strict --out " + folder.path("out"));
  CHECK(has(generated.err, "3 ops generated, 0 left out"));
  const Ran compiled = run_shell(compiler_path() + " -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I" + kToy + " -I" +
                                 folder.path("out") + " " + folder.path("out/*.cc"));
  INFO(compiled.err);
  CHECK(compiled.code == 0);
  CHECK(run_tool("check " + folder.path("theirs.yaml")).code == 0);
  for (const std::string& command :
       {std::string("check "), std::string("coverage "), "generate --out " + folder.path("out") + " "}) {
    const Ran refused = run_tool(command + folder.path("theirs.yaml") + runtime);
    CHECK(refused.code == 1);
    CHECK(has(refused.err, "'launch_pad' cannot name an op: the runtime has a type or function of that name"));
  }
}

TEST_CASE("A constant of a dtype that the built-in runtime lacks drops that op alone, and what invokes it",
          "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"),
        slurp(source_path("tests/codegen/fixtures/mixed.yaml")) +
            "\n- op : small_zeros\n  args : (IntArray shape)\n  output : Tensor(out)\n"
            "  invoke : full(shape, 0, DataType::INT8, CPUPlace())\n"
            "\n- op : smaller\n  args : (IntArray shape)\n  output : Tensor(out)\n  invoke : small_zeros(shape)\n");
  const Ran ran = run_tool("generate " + folder.path("ops.yaml") + " --out " + folder.path("out"));
  CHECK(ran.code == 0);
  CHECK(has(ran.err, "Op 'small_zeros' is not generated: the runtime does not have the dtype INT8."));
  CHECK(has(ran.err, "Op 'smaller' is not generated: the op that it invokes is not generated."));
  CHECK(has(ran.err, "16 ops generated, 2 left out"));
}

TEST_CASE("Each op for which a symbol of a declaration or a definition is there needs it", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), toy_op("first", "invoke : outside(x)") + toy_op("second", "invoke : outside(x)") +
                                     toy_op("third", "invoke : elsewhere(x)") + toy_op("drawn", kKernel + kRandom) +
                                     toy_op("fine", kKernel));
  CHECK(left_out(folder, {"namespace_external"}) ==
        std::map<std::string, std::string>{{"first", "the runtime has no symbol 'namespace_external'"},
                                           {"second", "the runtime has no symbol 'namespace_external'"},
                                           {"third", "the runtime has no symbol 'namespace_external'"},
                                           {"drawn", "the runtime has no symbol 'call::drawn_key'"}});
}

TEST_CASE("An op that needs a missing symbol only because another op was dropped is dropped too", "[codegen]") {
  const TempFolder folder;
  // Without 'twin_', the in-place form of 'twin' has that name.
  write(folder.path("ops.yaml"), toy_op("twin", kKernel + "  inplace : (x -> out)\n") +
                                     toy_op("twin_", kKernel + kRandom) + toy_op("fine", kKernel));
  CHECK(left_out(folder, {"call::compute_inplace"}) ==
        std::map<std::string, std::string>{{"twin_", "the runtime has no symbol 'call::drawn_key'"},
                                           {"twin", "the runtime has no symbol 'call::compute_inplace'"}});
}

TEST_CASE("What every file needs is an error of the description, and so is a symbol that no runtime has", "[codegen]") {
  const TempFolder folder;
  Json toy = Json::parse(slurp(kToy + "/toy.json"));
  toy["symbols"].erase("namespace_dense");
  toy.erase("infer_meta");
  write(folder.path("toy.json"), toy.dump());
  const std::string inputs = "generate " + kToy + "/toy_ops.yaml --out " + folder.path("out");
  const Ran lacking = run_tool(inputs + " --runtime " + folder.path("toy.json"));
  CHECK(lacking.code == 1);
  CHECK(has(lacking.err, "every file needs it, but the runtime has no symbol 'namespace_dense'."));
  write(
      folder.path("api.h.mustache"),
      "@nothing "
      "{{#headers}}{{header}}{{/headers}}{{#program}}{{register}}{{#functions}}{{function}}{{/functions}}{{/program}}");
  const Ran unknown = run_tool(inputs + " --templates " + folder.path());
  CHECK(unknown.code == 2);  // toy.json is no template
  std::filesystem::remove(folder.path("toy.json"));
  CHECK(has(run_tool(inputs + " --templates " + folder.path()).err, "a template has '@nothing', which is no symbol."));
  CHECK_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST_CASE("Without a dist layer no dist files are listed or written, and the runtime of this project works so too",
          "[codegen]") {
  const TempFolder folder;
  const std::string arguments = "generate " + source_path("tests/codegen/fixtures/mixed.yaml") + " --runtime " +
                                folder.path("r.json") + " --out " + folder.path("out");
  write(folder.path("r.json"), R"({"extends": "shard", "layers": ["dense"]})");
  CHECK(run_tool(arguments + " --list-outputs").out ==
        "mixed.h\nmixed.cc\nmixed_dense.h\nmixed_dense.cc\nmixed_ops.h\napi.h\nmanifest.json\n");
  REQUIRE(run_tool(arguments).code == 0);
  const auto files = read_folder(folder.path("out"));
  CHECK(files.size() == 7);
  for (const auto& [name, text] : files) CHECK_FALSE(has(text, "dist"));
  for (const char* source : {"mixed.cc", "mixed_dense.cc"}) {
    const Ran compiled =
        run_shell(compiler_path() + " -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I" + source_path("runtime") +
                  " -I" + folder.path("out") + " " + folder.path("out/") + source);
    INFO(compiled.err);
    CHECK(compiled.code == 0);
  }
  // Files of a layer that was removed are removed.
  write(folder.path("r.json"), R"({"extends": "shard"})");
  REQUIRE(run_tool(arguments).code == 0);
  CHECK(read_folder(folder.path("out")).size() == 16);
  write(folder.path("r.json"), R"({"extends": "shard", "layers": ["dense"]})");
  REQUIRE(run_tool(arguments).code == 0);
  CHECK(read_folder(folder.path("out")) == files);
}

TEST_CASE("An edit of a description or of a header that it names is noticed, and the depfile has both", "[codegen]") {
  const TempFolder folder;
  std::filesystem::copy(kToy, folder.path("toy"));
  GenerateOptions options;
  options.files = {kToy + "/toy_ops.yaml"};
  options.out = folder.path("out");
  options.runtime = folder.path("toy/toy.json");
  options.depfile = folder.path("deps.d");
  REQUIRE(run_generate(options) == kFine);
  CHECK(has(slurp(options.depfile), folder.path("toy/toy.json")));
  CHECK(has(slurp(options.depfile), folder.path("toy/toy_forms.h")));
  std::set<std::string> seen = {read_manifest(options.out)->inputs};
  for (const char* name : {"toy/toy.json", "toy/toy_forms.h"}) {
    write(folder.path(name), slurp(folder.path(name)) + "\n");
    REQUIRE(run_generate(options) == kFine);
    CHECK(seen.insert(read_manifest(options.out)->inputs).second);
  }
  CHECK(tool_identity().size() == 64);
}

TEST_CASE("A symbol takes an argument, which may have symbols in it", "[codegen]") {
  Runtime runtime;
  runtime.symbols = {{"list", "List<{}>"}, {"T", "a::T"}, {"size", "size({})"}};
  const std::string text = mark_symbols("@list[@list[@T]] x[2] = @T{@size[y[0]]}, @T::z;");
  CHECK(spell_symbols(runtime, text) == "List<List<a::T>> x[2] = a::T{size(y[0])}, ;");
  CHECK(missing_symbols(runtime, text) == std::set<std::string>{"T::z"});
  CHECK(spell_symbols(runtime, rt("list", rt("none"))) == "List<>");
  CHECK(missing_symbols(runtime, rt("list", rt("none"))) == std::set<std::string>{"none"});
  CHECK(missing_symbols(runtime, declare("x y")).empty());
}

TEST_CASE("A wrong description is refused with a sentence for each mistake", "[codegen]") {
  CHECK(problem_of("{}").empty());
  CHECK(has(problem_of("{\"abi\": }"), "It is not valid JSON: parse error at line 1, column 9"));
  CHECK(has(problem_of(""), "It is not valid JSON"));
  CHECK(problem_of("[]") == "It must be an object.");
  CHECK(problem_of(R"({"symbol": {}})") == "Unknown key 'symbol' in a description; did you mean 'symbols'?");
  CHECK(problem_of(R"({"symbols": {"Tensr": "T"}})") == "Unknown key 'Tensr' in 'symbols'; did you mean 'Tensor'?");
  CHECK(problem_of(R"({"dtypes": {"FLOAT33": "T"}})") == "Unknown key 'FLOAT33' in 'dtypes'; did you mean 'FLOAT32'?");
  CHECK(problem_of(R"({"types": {"string": "T"}})").rfind("Unknown key 'string' in 'types'", 0) == 0);
  CHECK(problem_of(R"({"op_table": {"rul": "T"}})") == "Unknown key 'rul' in 'op_table'; did you mean 'rule'?");
  CHECK(problem_of(R"({"op_table": {"rule": "a.b"}})") == "The text of 'rule' in 'op_table' is not a name.");
  CHECK(problem_of(R"({"headers": {"public.hh": []}})") ==
        "Unknown key 'public.hh' in 'headers'; did you mean 'public.h'?");
  CHECK(problem_of(R"({"headers": {"public.h": ["a\"\n#include <x>"]}})")
            .rfind("'a\"\n#include <x>' in 'public.h' of 'headers' is not", 0) == 0);
  CHECK(problem_of(R"({"headers": {"public.h": "a.h"}})") == "'public.h' in 'headers' must be a list of texts.");
  CHECK(problem_of(R"({"symbols": {"Tensor": 1}})") == "'Tensor' in 'symbols' must be a text.");
  CHECK(problem_of(R"({"symbols": []})") == "'symbols' must be an object of texts.");
  CHECK(problem_of(R"({"symbols": {"Tensor": "A", "Tensor": "B"}})") == "The key 'Tensor' stands twice in an object.");
  for (const char* wrong : {R"(["dist"])", R"([])", R"(["dense", "autograd"])",
                            R"(["dense", "dist", "autograd", "program", "python", "more"])", R"("dense")"}) {
    INFO(wrong);
    CHECK(problem_of(std::string("{\"layers\": ") + wrong + "}") ==
          "'layers' must be the first of \"dense\", \"dist\", \"autograd\", \"program\", \"python\", in this order.");
  }
  for (const char* right :
       {R"(["dense"])", R"(["dense", "dist", "autograd"])", R"(["dense", "dist", "autograd", "program"])",
        R"(["dense", "dist", "autograd", "program", "python"])"}) {
    INFO(right);
    CHECK(problem_of(std::string("{\"layers\": ") + right + "}").empty());
  }
  CHECK(problem_of(R"({"abi": "1"})") == "'abi' must be a whole number from 0 to 1000000000.");
  CHECK(problem_of(R"({"name": 1})") == "'name' must be a text.");
  CHECK(problem_of(R"({"extends": "sard"})") == "'extends' must be \"shard\".");
  CHECK(problem_of(R"({"rules": [1]})") == "'rules' must be a list of texts.");
  CHECK(has(problem_of(R"({"infer_meta": ["no_such.h"]})"), "no_such.h', which 'infer_meta' names."));
  CHECK(has(run_tool("generate x.yaml --out x --runtime /no/such.json").err,
            "runtime '/no/such.json': The file cannot be read."));
}

TEST_CASE("Only names, types, calls and literals of a description reach C++", "[codegen]") {
  for (const std::string good : {"T", "::a::B", "a::B<int, 4>", "const a::B*", "get<\"x\">", "f(1)", "a.b->c()"}) {
    INFO(good);
    CHECK(problem_of_symbol("Tensor", good).empty());
  }
  for (const std::string bad :
       {"",    "a; b", "a\nb", "a // b", "a /* b", "#define a", "a\\",  "f(",     "a>", "f(]",
        "\"a", "a{}",  "{}",   "a::",    "a, ",    "a = b",     "\x1f", "\u00e9", "@a", "a'b"}) {
    INFO(bad);
    CHECK_FALSE(problem_of_symbol("Tensor", bad).empty());
  }
  CHECK(problem_of_symbol("list", "List<{}>").empty());
  CHECK(problem_of_symbol("list", "List") == "The text of 'list' in 'symbols' must have '{}' once, for its argument.");
  CHECK_FALSE(problem_of_symbol("list", "List<{}, {}>").empty());
  CHECK(problem_of_symbol("namespace_api", "a::b_2").empty());
  for (const std::string bad : {"a::", "2a", "a b", "a::b<int>", "::a", ""})
    CHECK_FALSE(problem_of_symbol("namespace_api", bad).empty());
  CHECK(problem_of_symbol("note", "Run `make`; it's quick.").empty());
  CHECK_FALSE(problem_of_symbol("note", "one\ntwo").empty());
  CHECK_FALSE(problem_of_symbol("mismatch", "a\" + b + \"").empty());
}

TEST_CASE("other_runtimes.md tells of every key, symbol, and member of the op table, and of no others", "[codegen]") {
  const Json shard = shard_description();
  std::set<std::string> symbols;
  for (const char* group : {"standard", "symbols"}) {
    for (const std::string& symbol : keys_of(shard[group])) symbols.insert(symbol);
  }
  CHECK(documented("Symbols") == std::vector<std::string>(symbols.begin(), symbols.end()));
  std::vector<std::string> keys = keys_of(shard);
  std::replace(keys.begin(), keys.end(), std::string("standard"), std::string("extends"));
  std::sort(keys.begin(), keys.end());
  CHECK(documented("Keys") == keys);
  CHECK(documented("The op table") == keys_of(shard["op_table"]));
  CHECK(documented("Headers") == keys_of(shard["headers"]));
}

TEST_CASE("Every symbol is written by a template, by lower/ or by reference/", "[codegen]") {
  std::string sources;
  for (const char* folder : {"codegen/lower", "codegen/reference", "templates", "templates/scaffold"}) {
    for (const auto& entry : std::filesystem::directory_iterator(source_path(folder))) {
      if (entry.is_regular_file()) sources += slurp(entry.path().string());
    }
  }
  for (const char* group : {"standard", "symbols"}) {
    for (const std::string& symbol : keys_of(shard_description()[group])) {
      INFO(symbol);
      const bool put_together = symbol.rfind("call::read", 0) == 0 || symbol.rfind("call::write", 0) == 0;
      CHECK((has(sources, "@" + symbol) || has(sources, "\"" + symbol + "\"") ||
             (put_together && has(sources, "\"call::\" + function"))));
    }
  }
}

}  // namespace other_runtime_test
