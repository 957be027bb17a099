// "Did you mean": finds the known word nearest to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

/// The end of a sentence: "; did you mean 'kernel'?" when a known word is near enough, else ".".
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known);

/// The same for many words of one run. It stops searching after kMost comparisons, so that the time
/// does not grow with the square of the number of unknown names.
class Suggester {
 public:
  static constexpr size_t kMost = 200'000;

  explicit Suggester(std::vector<std::string_view> known) : known_(std::move(known)) {}
  std::string operator()(std::string_view word) {
    if (comparisons_ >= kMost) return ".";
    comparisons_ += known_.size();
    return suggestion(word, known_);
  }
  size_t comparisons() const { return comparisons_; }

 private:
  std::vector<std::string_view> known_;
  size_t comparisons_ = 0;
};

}  // namespace shardgen
