// The commands of the tool, apart from the reading of its command line.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shardgen {

inline constexpr const char* kToolVersion = "0.1.0";

enum ExitCode { kFine = 0, kFindings = 1, kUsage = 2 };

struct Options {
  std::vector<std::string> files;
  std::vector<std::string> imports;  // files whose ops exist already: `files` may invoke them
  std::string out;
  std::string umbrella = "api.h";  // the header that includes all others
  std::string templates;           // a folder whose files replace built-in ones, or empty
  std::string depfile;
  bool strict = false;
  bool json = false;
  std::map<std::string, int> parts;
};

int run_check(const Options& options);
int run_generate(const Options& options);
/// Prints the names of the files that generate would write.
int run_list_outputs(const Options& options);

}  // namespace shardgen
