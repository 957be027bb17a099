// The tool's output is complete or the exit code says so; files that are not its own are never
// replaced.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fstream>

#include "codegen/helpers.h"
#include "codegen/tool.h"

namespace output_test {

using namespace shardgen;
using namespace shardgen::testing;

namespace {

const char* const kOps =
    "- op : f\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : UnchangedInferMeta}\n  kernel : "
    "{func : relu}\n";

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Ran generate(const TempFolder& folder, const std::string& options) {
  return run_tool("generate " + folder.path("ops.yaml") + " --out " + folder.path("out") + " " + options);
}

}  // namespace

TEST_CASE("A result that stdout does not take is exit code 2 with a message", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  write(folder.path("bad.yaml"), "- op : f\n  kernl : f\n");
  const std::string ops = " " + folder.path("ops.yaml");
  const std::vector<std::string> commands = {"schema",
                                             "dump" + ops,
                                             "coverage" + ops,
                                             "check" + ops + " --format json",
                                             "explain f" + ops,
                                             "completion bash",
                                             "explain f" + ops + " --format json",
                                             "generate" + ops + " --check --out " + folder.path("none"),
                                             "generate" + ops + " --list-outputs --out " + folder.path("none"),
                                             "generate" + ops + " --format json --out " + folder.path("out"),
                                             "scaffold f --force --yaml" + ops + " --out " + folder.path("made"),
                                             "--help",
                                             "check --help",
                                             "--version"};
  for (const std::string& command : commands) {
    INFO(command);
    for (const char* where : {" >/dev/full", " >&-"}) {
      const Ran ran = run_tool(command + where);
      INFO(where << ": " << ran.err);
      CHECK(ran.code == 2);
      CHECK(has(ran.err, "shardgen: Cannot write to stdout: "));
    }
    // A reader that has closed its end.
    const std::string pipe = folder.path("reader");
    const Ran piped = run_shell("rm -f " + pipe + "; mkfifo " + pipe + "; exec 4<>" + pipe + " 3>" + pipe + " 4<&-; " +
                                tool_path() + " " + command + " >&3; echo code $? >&2");
    CHECK(has(piped.err, "code 2"));
  }
  for (const char* where : {" 2>/dev/full", " 2>&-"})
    CHECK(run_tool("check " + folder.path("bad.yaml") + where).code == 2);
  // The files were written nevertheless.
  CHECK(run_tool("generate" + ops + " --out " + folder.path("said") + " 2>&-").code == 2);
  CHECK(run_tool("generate" + ops + " --check --out " + folder.path("said")).code == 0);
  // With closed streams no file of the run gets their descriptors.
  CHECK(run_tool("generate" + ops + " --out " + folder.path("closed") + " <&- >&- 2>/dev/null").code == 0);
  CHECK(run_tool("generate" + ops + " --check --out " + folder.path("closed")).code == 0);
}

TEST_CASE("No output replaces what is not a regular file, and links are followed", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  REQUIRE(mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  std::filesystem::create_directory(folder.path("folder"));
  for (const char* name : {"pipe", "folder"}) {
    const Ran ran = generate(folder, "--depfile " + folder.path(name));
    INFO(ran.err);
    CHECK(ran.code == 2);
    CHECK(has(ran.err, std::string("Cannot write '") + folder.path(name) + "': it is "));
  }
  CHECK(std::filesystem::is_fifo(folder.path("pipe")));
  std::filesystem::create_directory(folder.path("other"));
  std::filesystem::create_symlink("other/deps.d", folder.path("link.d"));
  REQUIRE(generate(folder, "--depfile " + folder.path("link.d")).code == 0);
  CHECK(std::filesystem::is_symlink(folder.path("link.d")));
  CHECK(has(slurp(folder.path("other/deps.d")), "ops.yaml"));
  // The same for generated files, skeletons and pages.
  std::filesystem::remove(folder.path("out/ops.h"));
  REQUIRE(mkfifo(folder.path("out/ops.h").c_str(), 0600) == 0);
  CHECK(generate(folder, "").code == 2);
  CHECK(std::filesystem::is_fifo(folder.path("out/ops.h")));
  std::filesystem::create_directory(folder.path("page"));
  REQUIRE(mkfifo(folder.path("page/index.html").c_str(), 0600) == 0);
  CHECK(run_tool("docs " + folder.path("ops.yaml") + " --out " + folder.path("page")).code == 2);
  CHECK(std::filesystem::is_fifo(folder.path("page/index.html")));
}

TEST_CASE("The option --umbrella takes the name of a file that is no other output", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  for (const char* name :
       {"../x.h", "a/x.h", "''", "'x\ny.h'", ".", "..", ".x.h", "manifest.json", "ops.h", "ops_dense.cc", "'x y.h'"}) {
    const Ran ran = generate(folder, std::string("--umbrella ") + name);
    INFO(name << ran.err);
    CHECK(ran.code == 2);
    CHECK(has(ran.err, "--umbrella"));
    CHECK_FALSE(std::filesystem::exists(folder.path("out")));
  }
  CHECK(generate(folder, "--umbrella my-ops_2.api.h").code == 0);
  CHECK(std::filesystem::exists(folder.path("out/my-ops_2.api.h")));
}

TEST_CASE("Temporary files of killed runs are removed, and those of others stay", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  REQUIRE(generate(folder, "").code == 0);
  const std::vector<std::string> gone = {"ops.h.123.tmp", "manifest.json.4.tmp",
                                         "ops_dense.cc.18446744073709551615.tmp"};
  const std::vector<std::string> stay = {"mine.h.123.tmp", "ops.h.x.tmp", "ops.h.tmp", "ops.h..tmp", "ops.h.1x.tmp"};
  for (int round = 0; round < 2; ++round) {
    for (const std::string& name : gone) write(folder.path("out/" + name), "x");
    for (const std::string& name : stay) write(folder.path("out/" + name), "x");
    if (round == 1) write(folder.path("ops.yaml"), std::string(kOps) + "# new\n");  // else the folder is up to date
    REQUIRE(generate(folder, "").code == 0);
    for (const std::string& name : gone) CHECK_FALSE(std::filesystem::exists(folder.path("out/" + name)));
    for (const std::string& name : stay) CHECK(std::filesystem::exists(folder.path("out/" + name)));
  }
}

TEST_CASE("Temporary files stay while a run writes to their folder, one of another container too", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  REQUIRE(generate(folder, "").code == 0);
  const std::string temporary = folder.path("out/ops.h.99999999.tmp");  // no process of this machine has the number
  write(temporary, "x");
  const int writer = open(folder.path("out").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(flock(writer, LOCK_SH) == 0);  // as a run does from its first temporary file to its last rename
  write(folder.path("ops.yaml"), std::string(kOps) + "# new\n");
  CHECK(generate(folder, "").code == 0);
  CHECK(std::filesystem::exists(temporary));
  close(writer);
  CHECK(generate(folder, "").code == 0);
  CHECK_FALSE(std::filesystem::exists(temporary));
}

TEST_CASE("Templates that cannot be used are refused with a message that a terminal can show", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  std::filesystem::create_directory(folder.path("t"));
  const std::string options = "--templates " + folder.path("t"), path = folder.path("t/program.cc.mustache");
  std::string nested;
  for (int i = 0; i < 300000; ++i) nested += "{{#entries}}";
  write(path, nested);
  Ran ran = generate(folder, options);
  INFO(ran.err.substr(0, 1000));
  CHECK(ran.code == 1);
  CHECK(has(ran.err, "section 'entries' is nested deeper than 64 sections"));

  for (const std::string& binary :
       {std::string("a\n\x1b[31m{{name}}"), std::string("a\nb\0", 4), std::string("a\n\xff")}) {
    write(path, binary);
    ran = generate(folder, options);
    CHECK(ran.code == 2);
    CHECK(has(ran.err, "Template '" + path + "' is no text: line 2 has the byte 0x"));
    CHECK(ran.err.find('\x1b') == std::string::npos);
  }
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  ran = generate(folder, options);
  CHECK(ran.code == 2);
  CHECK(has(ran.err, "'" + path + "' has the name of a template and is a folder"));
  std::filesystem::remove(path);
  write(folder.path("t/\x1b[31mx"), "");
  ran = generate(folder, options);
  CHECK(ran.code == 2);
  CHECK(ran.err.find('\x1b') == std::string::npos);
}

TEST_CASE("The option --parts takes the name of a family that is there", "[codegen]") {
  const TempFolder folder;
  write(folder.path("ops.yaml"), kOps);
  for (const char* parts : {"=3", "ops", "ops=", "ops=0", "ops=x"}) {
    const Ran ran = generate(folder, std::string("--parts ") + parts);
    INFO(parts << ran.err);
    CHECK(ran.code == 2);
    CHECK(has(ran.err, "takes FAMILY=COUNT, not '"));
  }
  const Ran ran = generate(folder, "--parts opz=2");
  CHECK(ran.code == 2);
  CHECK(has(ran.err, "--parts names 'opz', which is not the family of any of the files; did you mean 'ops'?"));
  CHECK(generate(folder, "--parts ops=2").code == 0);
}

}  // namespace output_test
