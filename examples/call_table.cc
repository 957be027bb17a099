// A table of the calls on a mesh: wraps cells into columns.
#include "call_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

using namespace shard;

namespace {

constexpr std::array<size_t, std::tuple_size_v<CallRow>> kWidths = {17, 24, 33, 23, 19};  // 120 with the gaps

/// The lines of a cell: one entry or more, each broken at spaces. A word longer than the column
/// stays whole.
std::vector<std::string> wrap(const std::string& cell, size_t width) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < cell.size();) {
    const size_t end = std::min(cell.find("; ", begin), cell.size());
    std::string entry = cell.substr(begin, end - begin);
    while (entry.size() > width) {
      size_t space = entry.rfind(' ', width);
      if (space == std::string::npos || entry.find_first_not_of(' ') > space) break;
      lines.push_back(entry.substr(0, space));
      entry = "  " + entry.substr(space + 1);
    }
    lines.push_back(entry);
    begin = end + 2;
  }
  return lines;
}

}  // namespace

void print_row(const CallRow& cells) {
  std::array<std::vector<std::string>, kWidths.size()> wrapped;
  size_t height = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    wrapped[i] = wrap(cells[i], kWidths[i]);
    height = std::max(height, wrapped[i].size());
  }
  for (size_t line = 0; line < height; ++line) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i)
      text += fmt::format("{:<{}} ", line < wrapped[i].size() ? wrapped[i][line] : "", kWidths[i]);
    text.resize(text.find_last_not_of(' ') + 1);
    fmt::print("{}\n", text);
  }
}

void print_header() {
  print_row({"op", "layouts in", "communication", "layouts out", "aliases"});
  fmt::print("{:-<120}\n", "");
}

void print_call(const CallRecord& record) {
  print_row(
      {record.op, record.inputs, record.reshards.empty() ? "-" : record.reshards, record.outputs, record.aliases});
}
