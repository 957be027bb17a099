// Myers' greedy algorithm over lines (An O(ND) Difference Algorithm, 1986), after common heads and
// tails are removed.
#include "reference/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace shardgen {
namespace {

using Lines = std::vector<std::string_view>;

constexpr int kContext = 3;
/// With more edits the search would be slow; all lines are then shown as replaced, which is a
/// correct diff too.
constexpr int kMaxEdits = 2000;

/// Lines with their ends, so that a last line without one differs from the same line with one.
Lines split(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

/// For each line, whether it is removed (old lines) or added (new lines).
struct Marks {
  std::vector<bool> removed;
  std::vector<bool> added;
};

/// Finds the edits between a[begin..a_end) and b[begin..b_end).
class Search {
 public:
  Search(const Lines& a, const Lines& b, int begin, int a_end, int b_end)
      : a_(a), b_(b), begin_(begin), n_(a_end - begin), m_(b_end - begin) {}

  void run(Marks& marks) {
    const int limit = std::min(n_ + m_, kMaxEdits);
    std::vector<int> furthest(2 * static_cast<size_t>(limit) + 3, 0);
    const int middle = limit + 1;
    for (int edits = 0; edits <= limit; ++edits) {
      trace_.push_back(
          std::vector<int>(furthest.begin() + (middle - edits - 1), furthest.begin() + (middle + edits + 2)));
      for (int k = -edits; k <= edits; k += 2) {
        const auto at = static_cast<size_t>(middle + k);
        int x = down(k, edits, furthest[at - 1], furthest[at + 1]) ? furthest[at + 1] : furthest[at - 1] + 1;
        while (x < n_ && x - k < m_ && equal(x, x - k)) ++x;
        furthest[at] = x;
        if (k == n_ - m_ && x >= n_) return backtrack(edits, marks);
      }
    }
    std::fill_n(marks.removed.begin() + begin_, n_, true);
    std::fill_n(marks.added.begin() + begin_, m_, true);
  }

 private:
  bool equal(int x, int y) const { return a_[static_cast<size_t>(begin_ + x)] == b_[static_cast<size_t>(begin_ + y)]; }

  /// True when diagonal k is reached by adding a new line, from k + 1, and not by removing an old
  /// one, from k - 1.
  static bool down(int k, int edits, int left, int right) { return k == -edits || (k != edits && left < right); }

  /// Walks backwards through what each number of edits could reach.
  void backtrack(int edits, Marks& marks) const {
    int x = n_, y = m_;
    for (; edits > 0; --edits) {
      const std::vector<int>& furthest = trace_[static_cast<size_t>(edits)];  // diagonals -edits - 1 .. edits + 1
      const int k = x - y;
      const auto at = static_cast<size_t>(k + edits + 1);
      const bool took_new = down(k, edits, furthest[at - 1], furthest[at + 1]);
      x = took_new ? furthest[at + 1] : furthest[at - 1];
      y = x - (took_new ? k + 1 : k - 1);
      if (took_new) marks.added[static_cast<size_t>(begin_ + y)] = true;
      else marks.removed[static_cast<size_t>(begin_ + x)] = true;
    }
  }

  const Lines& a_;
  const Lines& b_;
  int begin_, n_, m_;
  std::vector<std::vector<int>> trace_;  // before each round, what the diagonals reached
};

Marks compare(const Lines& a, const Lines& b) {
  Marks marks{std::vector<bool>(a.size()), std::vector<bool>(b.size())};
  size_t begin = 0, a_end = a.size(), b_end = b.size();
  while (begin < a_end && begin < b_end && a[begin] == b[begin]) ++begin;
  while (a_end > begin && b_end > begin && a[a_end - 1] == b[b_end - 1]) --a_end, --b_end;
  Search(a, b, static_cast<int>(begin), static_cast<int>(a_end), static_cast<int>(b_end)).run(marks);
  return marks;
}

struct Edit {
  char sign;  // ' ', '-' or '+'
  std::string_view line;
  size_t a, b;  // the number of lines of each file before it
};

std::vector<Edit> edits_of(const Lines& a, const Lines& b, const Marks& marks) {
  std::vector<Edit> edits;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (i < a.size() && marks.removed[i]) {
      edits.push_back({'-', a[i], i, j});
      ++i;
    } else if (j < b.size() && marks.added[j]) {
      edits.push_back({'+', b[j], i, j});
      ++j;
    } else {
      edits.push_back({' ', a[i], i, j});
      ++i, ++j;
    }
  }
  return edits;
}

/// "12,3", as in the head of a hunk: an empty range is named by the line before it.
std::string range(size_t before, size_t count) {
  if (count == 1) return fmt::format("{}", before + 1);
  return fmt::format("{},{}", count == 0 ? before : before + 1, count);
}

void add_hunk(const std::vector<Edit>& edits, size_t begin, size_t end, std::string& text) {
  size_t old_count = 0, new_count = 0;
  for (size_t i = begin; i < end; ++i) {
    old_count += edits[i].sign != '+';
    new_count += edits[i].sign != '-';
  }
  text += fmt::format("@@ -{} +{} @@\n", range(edits[begin].a, old_count), range(edits[begin].b, new_count));
  for (size_t i = begin; i < end; ++i) {
    text += edits[i].sign;
    text += edits[i].line;
    if (!edits[i].line.ends_with('\n')) text += "\n\\ No newline at end of file\n";
  }
}

}  // namespace

std::string unified_diff(const std::string& old_name, const std::string& new_name, std::string_view before,
                         std::string_view after) {
  if (before == after) return "";
  const Lines a = split(before), b = split(after);
  const std::vector<Edit> edits = edits_of(a, b, compare(a, b));
  std::string text = fmt::format("--- {}\n+++ {}\n", old_name, new_name);
  for (size_t i = 0; i < edits.size();) {
    if (edits[i].sign == ' ') {
      ++i;
      continue;
    }
    // A hunk continues while the next change is so near that their contexts would touch.
    size_t last = i;
    for (size_t j = i; j < edits.size() && j <= last + 2 * kContext + 1; ++j) {
      if (edits[j].sign != ' ') last = j;
    }
    const size_t end = std::min(last + 1 + kContext, edits.size());
    add_hunk(edits, i - std::min<size_t>(i, kContext), end, text);
    i = end;
  }
  return text;
}

}  // namespace shardgen
