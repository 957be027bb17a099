#include <algorithm>
#include <unordered_map>

#include "shard/program/ir/merger.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// A byte string that is equal for equal ops. Numbers are compared by their bits: 0.0 differs from
/// -0.0 and from the integer 0.
class Key {
 public:
  const std::string& bytes() const { return bytes_; }

  template <class T>
  void add(const T& value) {
    constexpr bool is_plain = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T>;
    if constexpr (is_plain) bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    else add_parts(value);
  }

 private:
  void add_parts(const std::string& text) {
    add(text.size());
    bytes_ += text;
  }
  void add_parts(const Scalar& scalar) {
    add(scalar.is_integer());
    if (scalar.is_integer()) add(scalar.to<int64_t>());
    else add(scalar.to<double>());
  }
  void add_parts(const Device& device) { add(device.backend), add(device.index); }
  void add_parts(const IntArray& values) { add_list(values); }
  template <class T>
  void add_parts(const std::vector<T>& values) {
    add_list(values);
  }
  template <class T>
  void add_parts(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <class List>
  void add_list(const List& values) {
    add(static_cast<size_t>(values.size()));
    for (const auto& value : values) add(static_cast<std::remove_cvref_t<decltype(values[0])>>(value));
  }

  std::string bytes_;
};

/// True if calls of the op return the same for the same arguments and have no other effects.
bool is_function(const Op& op) {
  if (op.kind == Kind::copy || op.inplace || std::find(op.writes.begin(), op.writes.end(), true) != op.writes.end())
    return false;
  return op.kind != Kind::call || !op.entry->op->random;
}

class EqualOps {
 public:
  explicit EqualOps(const Program& program) : program_(program), trees_(program), copy_(program, result_) {}

  Program run() {
    copy_.enter_all();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      if (!is_function(program_.ops[i]) || crosses_mesh(program_, program_.ops[i])) {
        copy_.copy(i);
        continue;
      }
      size_t& first = first_.try_emplace(key_of(program_.ops[i]), i).first->second;
      if (first != i && share(i, first)) continue;
      copy_.copy(i);
      first = i;
    }
    copy_.leave_all();
    return std::move(result_);
  }

 private:
  /// The key of the op as it would be in the result.
  std::string key_of(const Op& op) const {
    Key key;
    key.add(op.kind);
    key.add(op.entry);
    key.add(op.layout);
    key.add(op.source_rank);
    for (const Operand& input : op.inputs) {
      const ValueId value = copy_(input.value);
      key.add(value);
      key.add(value == 0 ? 0 : result_.state_of(value));
    }
    for (const SlotRange& slot : op.slots) key.add(slot.count);
    for (const Attr& attr : op.attrs) {
      key.add(attr.index());
      std::visit([&](const auto& value) { key.add(value); }, attr);
    }
    return key.bytes();
  }

  /// Replaces the results of op `i` by those of `first` if nobody can tell the difference.
  bool share(size_t i, size_t first) {
    const std::vector<ValueId>& ours = program_.ops[i].outputs;
    const std::vector<ValueId>& theirs = program_.ops[first].outputs;
    for (size_t o = 0; o < ours.size(); ++o) {
      if (ours[o] == 0) continue;
      // Two outputs of a program are two handles. A buffer that is written no longer has what the
      // op computed.
      const bool is_view = program_.value(ours[o]).source != 0;
      if (is_view ? trees_.is_output(ours[o])
                  : is_written(ours[o]) || is_written(theirs[o]) || both_seen(ours[o], theirs[o]))
        return false;
    }
    for (size_t o = 0; o < ours.size(); ++o) {
      if (ours[o] == 0) continue;
      if (program_.value(ours[o]).source != 0) copy_.map(ours[o], copy_(theirs[o]));
      else copy_.merge(i, ours[o], theirs[o]);
    }
    return true;
  }
  bool is_written(ValueId id) const { return copy_.tree(id).last_write() >= 0; }
  bool both_seen(ValueId a, ValueId b) const { return copy_.tree(a).output && copy_.tree(b).output; }

  const Program& program_;
  const AliasTrees trees_;
  Program result_;
  Merger copy_;
  std::unordered_map<std::string, size_t> first_;  // by key: the op that computes it
};

}  // namespace

Program cse(const Program& program) { return EqualOps(program).run(); }

}  // namespace shard::program
