// The whole command line as a CLI11 app: main.cc parses with it, completion.cc inspects it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"

namespace shardgen {

/// The app with every subcommand. Parsing sets `run`, which must outlive the app, to the function
/// that runs the chosen command.
std::unique_ptr<CLI::App> make_app(std::function<int()>& run);

}  // namespace shardgen
