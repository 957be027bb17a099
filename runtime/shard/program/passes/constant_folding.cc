#include <algorithm>
#include <cmath>
#include <optional>

#include "shard/ops/creation_ops.h"
#include "shard/program/ir/merger.h"
#include "shard/program/ir/op_table.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

Scalar element_of(const DenseTensor& tensor) {
  return visit_dtype(tensor.dtype(), [&]<class T>(TypeTag<T>) {
    const T value = *tensor.data<T>();
    if constexpr (is_floating(dtype_of<T>)) return Scalar(static_cast<double>(value));
    else return Scalar(static_cast<int64_t>(value));
  });
}

class ConstantFolder {
 public:
  explicit ConstantFolder(const Program& program)
      : program_(program), copy_(program, result_), full_(OpTable::instance().find(ops::full.name)),
        values_(program.value_count()) {}

  Program run() {
    copy_.enter_all();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      const ValueId id = op.outputs.empty() ? 0 : op.outputs[0];
      if (op.outputs.size() != 1 || id == 0 || op.writes[0]) {
        copy_.copy(i);
        continue;
      }
      values_[id] = value_of(op);
      const bool makes_buffer = program_.value(id).source == 0;
      if (makes_buffer && values_[id] && op.entry != full_) copy_full(i);
      else if (const ValueId same = makes_buffer ? unchanged(op) : 0; same == 0 || !copy_.merge(i, id, same))
        copy_.copy(i);
    }
    copy_.leave_all();
    return std::move(result_);
  }

 private:
  const Type& type_of(ValueId id) const { return program_.value(id).type; }

  /// The value of all elements of an input, if it is known.
  std::optional<Scalar> constant(const Operand& input) const {
    return input.state == 0 ? values_[input.value] : std::nullopt;
  }

  /// The value of all elements of the result, if it is known. NaN is excluded, because a Scalar may
  /// not keep its bits. Contributions to a pending reduction are excluded, because they differ from
  /// rank to rank.
  std::optional<Scalar> value_of(const Op& op) const {
    const auto is_plain = [&](const Type& type) {
      return type.device == kCpu && (type.spec == nullptr || !type.spec->layout().has_partial());
    };
    if (!is_plain(type_of(op.outputs[0])) || crosses_mesh(program_, op)) return std::nullopt;
    for (const Operand& input : op.inputs) {
      if (input.value == 0 || !is_plain(type_of(input.value))) return std::nullopt;
    }
    if (op.kind != Kind::call)
      return op.kind == Kind::alias || op.kind == Kind::copy ? std::nullopt : constant(op.inputs[0]);
    if (op.inplace) return std::nullopt;
    if (op.entry->op->rearranging) return constant(op.inputs[0]);
    return op.entry->op->exact ? compute(op) : std::nullopt;
  }

  /// Computes one element.
  std::optional<Scalar> compute(const Op& op) const {
    std::vector<DenseTensor> inputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const Operand& input = op.inputs[i];
      const std::optional<Scalar> value = constant(input);
      if (op.reads_bytes(i) && !value) return std::nullopt;
      inputs.push_back(full({1}, value.value_or(Scalar(0)), type_of(input.value).meta.dtype));
    }
    std::vector<Attr> attrs = op.attrs;
    if (op.entry == full_) attrs[0] = IntArray{1};
    try {
      const Scalar value = element_of(run(*op.entry, inputs, op.slots, attrs));
      return std::isnan(value.to<double>()) ? std::nullopt : std::optional(value);
    } catch (const Error&) {
      return std::nullopt;  // the op throws when it runs
    }
  }

  /// The only result of a functional op.
  static DenseTensor run(const OpEntry& entry, std::span<DenseTensor> inputs, std::span<const SlotRange> slots,
                         std::span<const Attr> attrs) {
    const OpContext ctx{.op = entry.op->name.data()};
    const OutputMetas outputs = infer_outputs(entry, ctx, inputs, slots, attrs);
    EntryCall call{ctx, outputs, inputs, slots, attrs, {}};
    entry.functional(call);
    return call.results[0][0];
  }

  DenseTensor full(const Dims& dims, const Scalar& value, DType dtype) const {
    const Attr attrs[] = {IntArray(dims), value, dtype, kCpu};
    return run(*full_, {}, {}, attrs);
  }

  void copy_full(size_t i) {
    const ValueId id = program_.ops[i].outputs[0];
    const Type& type = type_of(id);
    Op op;
    op.entry = full_;
    op.attrs = {IntArray(type.meta.dims), *values_[id], type.meta.dtype, kCpu};
    op.layout = type.spec;
    op.output_slots = {{0, 1}};
    copy_.copy_as(i, std::move(op), {0}, {false});
  }

  /// The input whose elements are exactly those of the result; 0 if there is none. Quiet NaNs pass
  /// through arithmetic unchanged.
  ValueId unchanged(const Op& op) const {
    const auto has_type = [&](size_t input) {
      return op.inputs[input].value != 0 && type_of(op.inputs[input].value) == type_of(op.outputs[0]);
    };
    if (op.inputs.empty() || op.inplace) return 0;
    if (op.kind != Kind::call)
      return (op.kind == Kind::reshard || op.kind == Kind::clone) && has_type(0) ? op.inputs[0].value : 0;
    if (op.entry->op->identity) return has_type(0) ? op.inputs[0].value : 0;
    for (size_t input = 0; input < 2 && op.inputs.size() == 2; ++input) {
      if (!has_type(input) || type_of(op.outputs[0]).meta.dtype == DType::boolean) continue;
      const std::optional<Scalar> other = constant(op.inputs[1 - input]);
      if (other && is_neutral(op.entry->op->neutral[1 - input], *other)) return op.inputs[input].value;
    }
    return 0;
  }
  /// Compares with a real number including its sign, since x + 0.0 is not x: -0.0 + 0.0 is 0.0. A
  /// neutral value of NaN means that there is none, and never matches.
  static bool is_neutral(double neutral, const Scalar& value) {
    const double number = value.to<double>();
    return number == neutral && (value.is_integer() || std::signbit(number) == std::signbit(neutral));
  }

  const Program& program_;
  Program result_;
  Merger copy_;
  const OpEntry* const full_;
  // For each value of the program: the value of all its elements when it is computed.
  std::vector<std::optional<Scalar>> values_;
};

}  // namespace

Program constant_folding(const Program& program) { return ConstantFolder(program).run(); }

}  // namespace shard::program
