#include "case.h"

#include <fmt/format.h>

#include <charconv>
#include <initializer_list>
#include <string_view>

namespace spmd_cases {
namespace {

using nlohmann::json;

/// A value and its path within its case, "args[0].tensor.shape", for messages.
struct Node {
  const json& value;
  std::string of;     // "case 'matmul-1'"
  std::string where;  // empty for the case itself

  [[noreturn]] void refuse(std::string_view problem) const {
    throw BadInput(fmt::format("{}: {}{}{}", of, where, where.empty() ? "" : ": ", problem));
  }

  void check_object(std::initializer_list<std::string_view> known) const {
    if (!value.is_object()) refuse(fmt::format("expected an object, found {}", value.type_name()));
    for (const auto& [key, unused] : value.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) refuse(fmt::format("unknown key '{}'", key));
    }
  }
  bool has(const char* key) const { return value.contains(key); }
  Node operator[](const char* key) const {
    if (!value.contains(key)) refuse(fmt::format("key '{}' is missing", key));
    return {value[key], of, fmt::format("{}{}{}", where, where.empty() ? "" : ".", key)};
  }
  Node operator[](size_t i) const { return {value[i], of, fmt::format("{}[{}]", where, i)}; }

  std::string text() const {
    if (!value.is_string()) refuse(fmt::format("expected a string, found {}", value.type_name()));
    return value.get<std::string>();
  }
  bool flag() const {
    if (!value.is_boolean()) refuse(fmt::format("expected true or false, found {}", value.type_name()));
    return value.get<bool>();
  }
  int64_t integer() const {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
      refuse(fmt::format("expected an integer, found {}", value.is_number() ? value.dump() : value.type_name()));
    }
    return value.get<int64_t>();
  }
  size_t size() const {
    if (!value.is_array()) refuse(fmt::format("expected a list, found {}", value.type_name()));
    return value.size();
  }
  std::vector<int64_t> integers(int64_t least, const char* problem) const {
    std::vector<int64_t> list;
    for (size_t i = 0; i < size(); ++i) {
      list.push_back((*this)[i].integer());
      if (list.back() < least) (*this)[i].refuse(fmt::format("{} {}", list.back(), problem));
    }
    return list;
  }
};

std::vector<int64_t> read_axes(const Node& node) { return node.integers(0, "is not a mesh axis"); }

std::vector<int> read_small(const Node& node, int64_t least, const char* problem) {
  std::vector<int> list;
  for (int64_t value : node.integers(least, problem)) {
    if (value > INT32_MAX) node.refuse(fmt::format("{} is too large", value));
    list.push_back(static_cast<int>(value));
  }
  return list;
}

TensorCase read_tensor(const Node& node) {
  node.check_object({"shape", "dims_mapping", "partial"});
  return {node["shape"].integers(-1, "is not a size; -1 is an unknown one"),
          node["dims_mapping"].integers(-1, "is not a mesh axis; -1 is none"),
          node.has("partial") ? read_axes(node["partial"]) : std::vector<int64_t>()};
}

Argument read_argument(const Node& node) {
  node.check_object({"tensor", "tensors", "attr"});
  if (node.value.size() != 1) node.refuse("expected one key: 'tensor', 'tensors' or 'attr'");
  Argument argument;
  if (node.has("attr")) {
    argument.attribute = node.value["attr"];
  } else if (node.has("tensor")) {
    argument.kind = Argument::Kind::tensor;
    argument.tensors.push_back(read_tensor(node["tensor"]));
  } else {
    argument.kind = Argument::Kind::list;
    const Node list = node["tensors"];
    for (size_t i = 0; i < list.size(); ++i) argument.tensors.push_back(read_tensor(list[i]));
  }
  return argument;
}

/// Reads a position: "2" or "0.1".
void read_position(const Node& at, const std::string& text, Expected& expected) {
  const char* end = text.data() + text.size();
  auto [next, problem] = std::from_chars(text.data(), end, expected.slot);
  if (problem == std::errc() && next != end && *next == '.') {
    size_t element = 0;
    const auto second = std::from_chars(next + 1, end, element);
    next = second.ptr;
    problem = second.ec;
    expected.element = element;
  }
  if (problem != std::errc() || next != end || text.empty()) {
    at.refuse(fmt::format("'{}' is not a position; write \"1\", or \"0.1\" for an element of a list", text));
  }
}

ExpectedSide read_side(const Node& node) {
  node.check_object({"count", "at"});
  ExpectedSide side;
  if (node.has("count")) {
    const int64_t count = node["count"].integer();
    if (count < 0) node["count"].refuse("a count is not negative");
    side.count = static_cast<size_t>(count);
  }
  if (!node.has("at")) return side;
  const Node at = node["at"];
  if (!at.value.is_object()) at.refuse(fmt::format("expected an object, found {}", at.value.type_name()));
  for (const auto& [key, value] : at.value.items()) {
    Expected expected;
    read_position(at, key, expected);
    const Node entry{value, at.of, fmt::format("{}.{}", at.where, key)};
    entry.check_object({"dims_mapping", "partial", "is_partial"});
    if (entry.has("dims_mapping"))
      expected.mapping = entry["dims_mapping"].integers(-1, "is not a mesh axis; -1 is none");
    if (entry.has("partial")) expected.partial = read_axes(entry["partial"]);
    if (entry.has("is_partial")) expected.is_partial = entry["is_partial"].flag();
    side.at.push_back(expected);
  }
  return side;
}

Case read_case(const json& value, size_t number) {
  const Node unnamed{value, fmt::format("case #{}", number), {}};
  unnamed.check_object({"id", "rule", "direction", "mesh", "args", "expect"});
  Case result;
  result.id = unnamed["id"].text();
  const Node node{value, fmt::format("case '{}'", result.id), {}};
  result.rule = node["rule"].text();
  const std::string direction = node["direction"].text();
  if (direction != "forward" && direction != "backward")
    node["direction"].refuse(fmt::format("'{}' is neither forward nor backward", direction));
  result.backward = direction == "backward";
  const Node mesh = node["mesh"];
  mesh.check_object({"shape", "process_ids"});
  result.mesh_shape = read_small(mesh["shape"], 1, "is not a size of a mesh axis");
  result.processes = read_small(mesh["process_ids"], 0, "is not a process id");
  int64_t processes = 1;
  for (int size : result.mesh_shape) processes = std::min<int64_t>(processes * size, INT32_MAX);
  if (processes != static_cast<int64_t>(result.processes.size())) {
    mesh["process_ids"].refuse(fmt::format("{} ids for a mesh of {} processes", result.processes.size(), processes));
  }
  const Node args = node["args"];
  for (size_t i = 0; i < args.size(); ++i) result.args.push_back(read_argument(args[i]));
  const Node expect = node["expect"];
  expect.check_object({"error", "inputs", "outputs"});
  result.error = expect.has("error") && expect["error"].flag();
  if (expect.has("inputs")) result.inputs = read_side(expect["inputs"]);
  if (expect.has("outputs")) result.outputs = read_side(expect["outputs"]);
  return result;
}

}  // namespace

std::vector<Case> read_cases(const std::string& text) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::parse_error& problem) { throw BadInput(fmt::format("not JSON: {}", problem.what())); }
  if (!root.is_array()) throw BadInput(fmt::format("expected a list of cases, found {}", root.type_name()));
  std::vector<Case> cases;
  for (size_t i = 0; i < root.size(); ++i) cases.push_back(read_case(root[i], i));
  return cases;
}

}  // namespace spmd_cases
