// The tool as a user runs it: exit codes, and what is written to which stream.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/progress.h"
#include "codegen/helpers.h"
#include "codegen/tool.h"

namespace cli_test {

using namespace shardgen;
using namespace shardgen::testing;
using Json = nlohmann::json;

namespace {

const std::string kFixture = source_path("tests/codegen/fixtures/mixed.yaml");
const std::string kBad = source_path("tests/codegen/bad/unknown_key.yaml");

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace

TEST_CASE("A wrong command line ends with 2, says what is wrong on stderr and nothing on stdout", "[codegen]") {
  const std::vector<std::string> wrong = {"",
                                          "generat",
                                          "generate",
                                          "generate --out",
                                          "check --format xml " + kFixture,
                                          "check /no/such.yaml",
                                          "explain",
                                          "schema --nothing",
                                          "completion tcsh",
                                          "generate -j 0 --out x " + kFixture};
  for (const std::string& arguments : wrong) {
    INFO(arguments);
    const Ran ran = run_tool(arguments);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK_FALSE(ran.err.empty());
  }
  CHECK(has(run_tool("generat x").err, "did you mean 'generate'?"));
}

TEST_CASE("Each command has help with examples", "[codegen]") {
  const Ran top = run_tool("--help");
  CHECK(top.code == 0);
  for (const std::string command :
       {"generate", "check", "dump", "explain", "scaffold", "docs", "schema", "completion"}) {
    INFO(command);
    CHECK(has(top.out, command));
    const Ran help = run_tool(command + " --help");
    CHECK(help.code == 0);
    CHECK(has(help.out, "Examples:\n  "));
    CHECK(help.err.empty());
  }
}

TEST_CASE("check ends with 0 when all is fine and with 1 for findings", "[codegen]") {
  CHECK(run_tool("check " + kFixture).code == 0);
  const Ran bad = run_tool("check --strict " + kBad);
  CHECK(bad.code == 1);
  CHECK(bad.out.empty());
  CHECK(has(bad.err, "error: Unknown key 'kernl'"));
  const Ran json = run_tool("check --strict --format json " + kBad);
  CHECK(json.code == 1);
  CHECK(Json::parse(json.out)[0]["code"] == "unknown-key");
}

TEST_CASE("generate tells in its last line what it did", "[codegen]") {
  const TempFolder folder;
  const Ran first = run_tool("generate " + kFixture + " --out " + folder.path("out"));
  CHECK(first.code == 0);
  CHECK(first.out.empty());
  CHECK(has(first.err, " ops generated, "));
  CHECK(has(first.err, "15 files written, 0 unchanged, "));
  CHECK_FALSE(has(first.err, "\r"));  // no progress where stderr is no terminal
  CHECK(has(run_tool("generate " + kFixture + " --out " + folder.path("out")).err, "is up to date: 15 files, "));
  const Json json = Json::parse(run_tool("generate " + kFixture + " --format json --out " + folder.path("two")).out);
  CHECK(json["written"] == 15);
  CHECK(json["ops"].get<int>() > 5);
  CHECK(json["up_to_date"] == false);
}

TEST_CASE("generate --check writes nothing and prints a diff that patch takes", "[codegen]") {
  const TempFolder folder;
  const std::string out = folder.path("out");
  write(folder.path("other.yaml"),
        "- op : f\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : F}\n  kernel : {func : f}\n");
  REQUIRE(run_tool("generate " + kFixture + " " + folder.path("other.yaml") + " --out " + out).code == 0);
  const std::string check = "generate " + kFixture + " --check --out " + out;
  CHECK(run_tool("generate " + kFixture + " " + folder.path("other.yaml") + " --check --out " + out).code == 0);
  write(out + "/mixed.cc", slurp(out + "/mixed.cc") + "// changed by hand\n");
  std::filesystem::remove(out + "/mixed_ops.h");
  const auto before = read_folder(out);
  const Ran stale = run_tool(check);
  CHECK(stale.code == 1);
  CHECK(has(stale.out, "-// changed by hand\n"));
  CHECK(has(stale.err, "mixed.cc' is changed."));
  CHECK(has(stale.err, "mixed_ops.h' is missing."));
  CHECK(has(stale.err, "other.cc' is left over."));
  CHECK(read_folder(out) == before);
  const Json json = Json::parse(run_tool(check + " --format json").out);
  CHECK(json["stale"].size() == 17);  // mixed.cc, mixed_ops.h, three files of all families, and twelve of other.yaml
  if (run_shell("patch --version").code != 0) {
    WARN("skipped: the program patch is not installed");
    return;
  }
  write(folder.path("diff"), stale.out);
  CHECK(run_shell("cd " + out + " && patch -s -p1 <" + folder.path("diff")).code == 0);
  CHECK(run_tool(check).code == 0);
}

TEST_CASE("The bytes are the same for any number of threads", "[codegen]") {
  const TempFolder folder;
  std::string files;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("ops_yaml")))
    files += " " + entry.path().string();
  REQUIRE(run_tool("generate" + files + " --parts math=3 --parts shape=5 -j 1 --out " + folder.path("one")).code == 0);
  REQUIRE(run_tool("generate" + files + " --parts math=3 --parts shape=5 -j 7 --out " + folder.path("seven")).code ==
          0);
  CHECK(read_folder(folder.path("one")) == read_folder(folder.path("seven")));
}

TEST_CASE("explain knows ops and their functions, and suggests a name for an unknown one", "[codegen]") {
  CHECK(has(run_tool("explain add " + kFixture).out, "add(Tensor x, Tensor y) -> Tensor(out)\n"));
  CHECK(has(run_tool("explain add_ " + kFixture).out, "add(Tensor x, Tensor y) -> Tensor(out)\n"));
  CHECK(Json::parse(run_tool("explain add --format json " + kFixture).out)[0]["name"] == "add");
  const Ran unknown = run_tool("explain dropuot " + kFixture);
  CHECK(unknown.code == 2);
  CHECK(unknown.out.empty());
  CHECK(has(unknown.err, "No op 'dropuot' in these files; did you mean 'dropout'?"));
}

TEST_CASE("docs writes a page, and scaffold never overwrites a file unless it is forced to", "[codegen]") {
  const TempFolder folder;
  const Ran docs = run_tool("docs " + kFixture + " --out " + folder.path("docs"));
  CHECK(docs.code == 0);
  CHECK(docs.out.empty());
  CHECK(std::filesystem::exists(folder.path("docs/index.html")));
  const std::string scaffold = "scaffold dropout --yaml " + kFixture + " --out " + folder.path("made");
  REQUIRE(run_tool(scaffold).code == 0);
  write(folder.path("made/dropout_kernel.cc"), "mine");
  const Ran again = run_tool(scaffold);
  CHECK(again.code == 2);
  CHECK(has(again.err, "dropout_kernel.cc' exists already; --force overwrites it."));
  CHECK(slurp(folder.path("made/dropout_kernel.cc")) == "mine");
  CHECK(run_tool(scaffold + " --force").code == 0);
  CHECK(slurp(folder.path("made/dropout_kernel.cc")) != "mine");
  CHECK(run_tool("scaffold dropuot --yaml " + kFixture + " --out " + folder.path("made")).code == 2);
}

TEST_CASE("The bash completion offers subcommands, options and values", "[codegen]") {
  const TempFolder folder;
  write(
      folder.path("try.bash"),
      "source <(" + tool_path() +
          " completion bash)\n"
          "try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shardgen; echo \"${COMPREPLY[*]}\"; }\n"
          "try shardgen gen\ntry shardgen generate --str\ntry shardgen check --format ''\ntry shardgen completion f\n");
  if (run_shell("bash --version").code != 0) {
    WARN("skipped: bash is not installed");
    return;
  }
  const Ran ran = run_shell("bash " + folder.path("try.bash"));
  CHECK(ran.err.empty());
  CHECK(ran.out == "generate\n--strict\ntext json\nfish\n");
  for (const std::string shell : {"zsh", "fish"}) {
    const Ran script = run_tool("completion " + shell);
    CHECK(has(script.out, "scaffold"));
    write(folder.path(shell), script.out);
    if (run_shell(shell + " --version").code == 0) CHECK(run_shell(shell + " -n " + folder.path(shell)).code == 0);
  }
}

TEST_CASE("Progress is one line on a terminal, which goes at the end", "[codegen]") {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
    WARN("skipped: no pseudo terminal can be opened here");
    return;
  }
  FILE* terminal = std::fopen(ptsname(master), "w");
  REQUIRE(terminal != nullptr);
  {
    Progress progress("rendered part", terminal, std::chrono::milliseconds(0));
    progress.show(1, 2);
    Progress("late", terminal, std::chrono::hours(1)).show(1, 2);
  }
  std::fflush(terminal);
  // The output may arrive in several reads.
  const std::string expected = "\r\x1b[Kshardgen: rendered part 1 of 2\r\x1b[K";
  std::string shown;
  pollfd ready{master, POLLIN, 0};
  while (shown.size() < expected.size() && poll(&ready, 1, 10'000) > 0) {
    char bytes[256];
    const ssize_t count = read(master, bytes, sizeof bytes);
    if (count <= 0) break;
    shown.append(bytes, static_cast<size_t>(count));
  }
  CHECK(shown == expected);
  std::fclose(terminal);
  close(master);
}

TEST_CASE("Progress is not shown where the stream is no terminal", "[codegen]") {
  const TempFolder folder;
  FILE* file = std::fopen(folder.path("err").c_str(), "w");
  { Progress("rendered part", file, std::chrono::milliseconds(0)).show(1, 2); }
  std::fclose(file);
  CHECK(slurp(folder.path("err")).empty());
}

}  // namespace cli_test
