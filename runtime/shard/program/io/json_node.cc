#include "shard/program/io/json_node.h"

#include <set>

namespace shard::program {
namespace {

constexpr int kMaxDepth = 16;

/// Refuses duplicate keys, of which the parser would take one, and nesting deeper than any program
/// has.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth > kMaxDepth) refuse_at(path(), "expected a program, but it is nested deeper than one");
    switch (event) {
      case Event::object_start:
      case Event::array_start: open_.push_back({event == Event::array_start, 0, {}, {}}); break;
      case Event::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!open_.back().keys.insert(key).second) refuse_at(path(), "the key '{}' occurs twice", key);
        open_.back().key = key;
        break;
      }
      case Event::object_end:
      case Event::array_end: open_.pop_back(); [[fallthrough]];
      case Event::value:
        if (!open_.empty()) ++open_.back().index;
    }
    return true;
  }

 private:
  struct Open {
    bool list;
    size_t index;
    std::string key;
    std::set<std::string> keys;
  };
  /// The path of the innermost list or object.
  std::string path() const {
    std::string path;
    for (size_t i = 0; i + 1 < open_.size(); ++i)
      path += open_[i].list ? fmt::format("/{}", open_[i].index) : "/" + open_[i].key;
    return path;
  }
  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text) {
  try {
    return Json::parse(text, [watch = Watch()](int depth, Json::parse_event_t event, Json& parsed) mutable {
      return watch(depth, event, parsed);
    });
  } catch (const Json::parse_error& error) {
    fail(ErrorCode::invalid_argument, "[from_json] at byte {}: the text is not JSON: {}", error.byte, error.what());
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "[from_json] the text has a number that is too large: {}", error.what());
  }
}

}  // namespace shard::program
