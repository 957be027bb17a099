// What Python sees of captured programs, shared by the files that bind it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "services.h"

namespace shard::python {

/// The lines of the text of a program, made when they are first read.
class ProgramText {
 public:
  const std::vector<std::string>& lines(const program::Program& program);

 private:
  std::once_flag once_;
  std::vector<std::string> lines_;
};

/// A program in Python: a whole trace, or the forward or backward program that was made of one.
struct HeldProgram {
  std::shared_ptr<const program::Trace> trace;  // null unless `program` is that of the trace
  std::shared_ptr<const program::Program> program;
  std::shared_ptr<ProgramText> text = std::make_shared<ProgramText>();

  bool operator==(const HeldProgram& other) const { return program == other.program; }
};

HeldProgram hold(program::Trace trace);
HeldProgram hold(program::Program program);
/// An attribute of an op as a Python object.
nb::object object_of(const Attr& attr);
/// A dict: {"hits": 3, ...}
template <size_t n>
nb::dict dict_of(const std::pair<const char*, int64_t> (&items)[n]) {
  nb::dict dict;
  for (const auto& [name, value] : items) dict[name] = value;
  return dict;
}

/// Scope, and the captured functions that shard/programs.py wraps (captured.cc).
void register_captured(nb::module_& module);
/// The ops and values of programs (ops.cc).
void register_ops(nb::module_& module);

/// An op of a program.
struct ProgramOp {
  HeldProgram owner;
  size_t index = 0;

  const program::Op& op() const { return owner.program->ops[index]; }
};

/// A value of a program, or one of its inputs, parameters and outputs, which have names.
struct ProgramValue {
  HeldProgram owner;
  program::ValueId id = 0;
  std::string name;
  int parameter = -1;  // the number of the parameter

  const program::Value& value() const { return owner.program->value(id); }
};

}  // namespace shard::python
