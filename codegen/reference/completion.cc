// A function per shell. Texts come from the tool itself, but are quoted nevertheless.
#include "reference/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardgen {
namespace {

using Kind = CompletionValue::Kind;

/// Quotes a text with single quotes, for all three shells.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string all_names(const CompletionCommand& command) {
  std::vector<std::string> names;
  for (const CompletionOption& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return fmt::format("{}", fmt::join(names, " "));
}

/// The arguments of bash's compgen.
std::string compgen(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::file: return "-f";
    case Kind::folder: return "-d";
    case Kind::choice: return fmt::format("-W {}", quoted(fmt::format("{}", fmt::join(value.choices, " "))));
    case Kind::none:
    case Kind::other: break;
  }
  return "";
}

/// The words of an enumerated positional are offered together with files for the next positional.
std::string bash_positionals(const CompletionCommand& command) {
  std::string asked;
  for (const CompletionValue& value : command.positionals) {
    if (const std::string part = compgen(value); !part.empty() && asked.find(part) == std::string::npos)
      asked += (asked.empty() ? "" : " ") + part;
  }
  return asked;
}

/// The end of an item of zsh's _arguments: ":what:how".
std::string zsh_action(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::file: return ":file:_files";
    case Kind::folder: return ":folder:_files -/";
    case Kind::choice: return fmt::format(":value:({})", fmt::join(value.choices, " "));
    case Kind::other: return ":value: ";
    case Kind::none: break;
  }
  return "";
}

/// The text without the characters that end a description.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string fish_value(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::file: return " -r -F";
    case Kind::folder: return " -x -a '(__fish_complete_directories)'";
    case Kind::choice: return fmt::format(" -x -a {}", quoted(fmt::format("{}", fmt::join(value.choices, " "))));
    case Kind::other: return " -x";
    case Kind::none: break;
  }
  return "";
}

std::string fish_option(const CompletionOption& option) {
  std::string text;
  for (const std::string& name : option.names)
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return text + fish_value(option.value) + " -d " + quoted(option.about);
}

}  // namespace

std::string bash_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands) {
  std::vector<std::string> names;
  for (const CompletionCommand& command : commands) names.push_back(command.name);
  std::string values, words;
  for (const CompletionCommand& command : commands) {
    for (const CompletionOption& option : command.options) {
      if (option.value.kind == Kind::none) continue;
      std::vector<std::string> labels;
      for (const std::string& name : option.names) labels.push_back(command.name + ":" + name);
      const std::string asked = compgen(option.value);
      values +=
          fmt::format("    {}) {}return ;;\n", fmt::join(labels, "|"),
                      asked.empty() ? "" : fmt::format("mapfile -t COMPREPLY < <(compgen {} -- \"$cur\"); ", asked));
    }
    const std::string asked = bash_positionals(command);
    words += fmt::format("    {}) options={}; asked=({}) ;;\n", command.name, quoted(all_names(command)), asked);
  }
  return fmt::format(R"(# bash completion of {0}; written by: {0} completion bash
_{0}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= options= i
  local -a asked=()
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in {1}) command=${{COMP_WORDS[i]}}; break ;; esac
  done
  case $command:$prev in
{2}  esac
  case $command in
    '') options={3}; asked=(-W {4}) ;;
{5}  esac
  if [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
  elif ((${{#asked[@]}} > 0)); then
    mapfile -t COMPREPLY < <(compgen "${{asked[@]}}" -- "$cur")
  fi
}}
complete -o filenames -F _{0} {0}
)",
                     root.name, fmt::join(names, "|"), values, quoted(all_names(root)),
                     quoted(fmt::format("{}", fmt::join(names, " "))), words);
}

std::string zsh_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands) {
  const auto items = [](const CompletionCommand& command) {
    std::string text;
    for (const CompletionOption& option : command.options) {
      for (const std::string& name : option.names)
        text += " \\\n    " + quoted(fmt::format("{}[{}]{}", name, zsh_text(option.about), zsh_action(option.value)));
    }
    return text;
  };
  std::string described, cases;
  for (const CompletionCommand& command : commands) {
    described += fmt::format("      {}\n", quoted(zsh_text(command.name) + ":" + command.about));
    std::string arguments = items(command);
    for (size_t i = 0; i < command.positionals.size(); ++i) {
      const std::string place = i + 1 == command.positionals.size() ? "*" : fmt::format("{}", i + 1);
      arguments += " \\\n    " + quoted(place + zsh_action(command.positionals[i]));
    }
    cases += fmt::format("    {}) _arguments{} ;;\n", command.name, arguments);
  }
  return fmt::format(R"(#compdef {0}
# zsh completion of {0}; written by: {0} completion zsh
_{0}() {{
  local line state
  local -a commands
  _arguments -C{1} \
    '1:command:->command' '*::argument:->argument'
  if [[ $state == command ]]; then
    commands=(
{2}    )
    _describe command commands
    return
  fi
  case $line[1] in
{3}  esac
}}
_{0} "$@"
)",
                     root.name, items(root), described, cases);
}

std::string fish_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands) {
  std::string text =
      fmt::format("# fish completion of {0}; written by: {0} completion fish\ncomplete -c {0} -f\n", root.name);
  for (const CompletionOption& option : root.options)
    text += fmt::format("complete -c {} -n __fish_use_subcommand{}\n", root.name, fish_option(option));
  for (const CompletionCommand& command : commands) {
    const std::string seen = fmt::format("complete -c {} -n '__fish_seen_subcommand_from {}'", root.name, command.name);
    text += fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d {}\n", root.name, command.name,
                        quoted(command.about));
    for (const CompletionOption& option : command.options) text += seen + fish_option(option) + "\n";
    for (const CompletionValue& value : command.positionals) {
      if (value.kind == Kind::file) text += seen + " -F\n";
      if (value.kind == Kind::choice) text += seen + fish_value(value) + "\n";
    }
  }
  return text;
}

}  // namespace shardgen
