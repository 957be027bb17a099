// Edit distance with transpositions, bounded by the length of the word.
#include "diag/suggest.h"

#include <algorithm>

namespace shardgen {
namespace {

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = previous[j - 1] + (a[i - 1] != b[j - 1]);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string_view>& known) {
  // A long word is not a misspelling of anything, and comparing it would be slow.
  if (word.size() > 64) return ".";
  const size_t limit = word.size() <= 3 ? 1 : word.size() <= 6 ? 2 : 3;
  std::string_view best;
  size_t best_distance = limit + 1;
  for (const std::string_view candidate : known) {
    const size_t longer = std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (longer >= best_distance) continue;
    const size_t d = distance(word, candidate);
    if (d < best_distance && d < candidate.size()) {
      best = candidate;
      best_distance = d;
    }
  }
  return best.empty() ? "." : "; did you mean '" + std::string(best) + "'?";
}

}  // namespace shardgen
