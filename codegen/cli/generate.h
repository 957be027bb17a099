// `shardgen generate`: reads, checks, renders, and writes changed files.
#pragma once

#include <map>

#include "cli/inputs.h"

namespace shardgen {

struct GenerateOptions : InputOptions {
  std::string out;
  std::string umbrella = "api.h";  // the header that includes all others
  std::string templates;           // a folder whose files replace built-in ones, or empty
  std::string runtime;             // a description, or empty for the built-in one
  std::string depfile;
  bool keep_going = false;    // ops with errors are left out, and that is not a failure
  bool list_outputs = false;  // print the names of the files and write nothing
  bool check = false;         // print what is stale and write nothing
  int jobs = 0;               // threads; 0: as many as the machine has
  std::map<std::string, int> parts;
};

int run_generate(const GenerateOptions& options);
std::function<int()> add_generate(CLI::App& app);

}  // namespace shardgen
