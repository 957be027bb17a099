// The typed model of an op: everything that the YAML says, without C++ text and with nothing left
// to parse.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/location.h"
#include "model/types.h"

namespace shardgen {

/// A floating-point literal; `single` when it was written with the suffix f.
struct FloatValue {
  double value = 0;
  bool single = false;
};

enum class PlaceValue { unset, cpu };

/// A constant that could not be read, and why. The spelling of its Literal is the text of the YAML.
struct Opaque {
  std::string code;
  std::string problem;
  Location at;
};

struct Literal;
using LiteralList = std::vector<Literal>;
/// A constant: `spelling` is its text in the YAML, `value` its meaning.
struct Literal {
  std::variant<bool, int64_t, FloatValue, std::string, DataType, PlaceValue, Opaque, LiteralList> value;
  std::string spelling;
};

/// A type that the tool does not know, with the text of the YAML.
struct UnknownType {
  std::string text;  // empty: the type is known
  Location at;
};

/// A tensor argument.
struct Input {
  Name name;
  bool list = false;
};

struct Attr {
  Name name;
  AttrType type = AttrType::boolean;
  std::optional<AttrType> scalar_of;  // Scalar(int): the type that it should hold
  UnknownType unknown;                // when `type` is unknown
  std::optional<Literal> default_value;
};

/// One argument of an op: an index into its inputs or its attrs.
struct ArgRef {
  bool tensor = false;
  int index = 0;
  bool operator==(const ArgRef&) const = default;
};

/// A summand of a list's length: a number, an attribute's value, the length of an argument, or an
/// uninterpreted C++ expression.
struct SizeTerm {
  enum class Kind { constant, value, length, opaque };
  Kind kind = Kind::constant;
  bool negative = false;
  int64_t constant = 0;
  Name name;
};

struct Output {
  Name name;
  bool named = true;  // false: the YAML has no name for it, and "out" is used
  bool list = false;
  bool dense = true;           // false: marked as a tensor of another kind, `out@StringTensor`
  std::vector<SizeTerm> size;  // of a list; empty: infer_meta decides
  std::string kind;            // "StringTensor" of `out@StringTensor`
  UnknownType unknown;
};

/// name(args) -> outputs
struct Signature {
  std::vector<Input> inputs;
  std::vector<Attr> attrs;
  std::vector<ArgRef> args;  // inputs and attrs in the order of the YAML
  std::vector<Output> outputs;
};

/// What is passed to a function: an argument or an output of the op, a constant, or a property of a tensor.
struct CallArg {
  enum class Kind { name, literal, dtype_of };
  Kind kind = Kind::name;
  Name name;
  Literal literal;
  std::string keyword;  // of `keyword = value`
};

struct InferMeta {
  Location at;
  std::optional<Name> func;
  std::optional<std::vector<CallArg>> param;  // absent: those of the kernel
  std::optional<Name> spmd_rule;
  TextPlaces rule_places;              // of the bytes of spmd_rule
  std::optional<AxisExpr> expression;  // spmd_rule, where it is an expression that can be parsed
  std::optional<AxisProblem> wrong;    // why it cannot be parsed
  std::optional<Name> local_shape;
  std::optional<Name> global_shape;
};

/// One of the kernels of an op, for the given formats of its tensors; without formats: all tensors
/// are dense.
struct KernelFunc {
  Name name;
  bool has_formats = false;
  std::vector<TensorFormat> inputs;
  std::vector<TensorFormat> outputs;
  std::vector<Name> unknown;  // formats that the tool does not know, in the order of the text
};

/// A source of a kernel's dtype or backend: an argument or a constant dtype.
struct Candidate {
  Name name;  // of an argument, or the constant as the YAML writes it
  std::optional<DataType> constant;
  bool to_complex = false;
};

struct DispatchKey {
  Location at;
  bool ordered = false;  // `a > b`: the first that is present
  std::vector<Candidate> candidates;
};

struct KernelSpec {
  Location at;
  bool has_func = false;  // the key exists; `funcs` is empty where it could not be read
  std::vector<KernelFunc> funcs;
  std::optional<std::vector<CallArg>> param;  // absent: all arguments
  DispatchKey data_type;
  DispatchKey backend;
  DispatchKey layout;
  std::optional<Name> force_backend;
};

struct Call {
  Name function;
  std::vector<CallArg> args;
};

/// input -> output
struct AliasPair {
  Name input;
  Name output;
};

struct DataTransform {
  std::vector<Name> skip_transform;
  std::vector<Name> support_trans_dtype;
};

struct Forward {
  Name name;
  Signature signature;
};

/// Attributes of a backward op and `wanted(x_grad)` of its results, combined by !, && and ||, in
/// the order of the text.
struct Condition {
  struct Term {
    enum class Kind { symbol, attr, wanted };
    Kind kind = Kind::symbol;
    Name name;  // "&&", or the name of an attribute or result
  };
  std::vector<Term> terms;
};

/// The condition under which an argument of a backward op is saved. Otherwise it is not read.
struct SaveIf {
  Name arg;
  Condition condition;
};

/// Facts about an op that passes over captured programs may rely on.
enum class Trait { pointwise, exact, rearranging, identity };
struct TraitInfo {
  Trait trait;
  std::string_view name;
  std::string_view meaning;  // "Exact: ..."
};
inline constexpr std::array<TraitInfo, 4> kTraits = {{
    {Trait::pointwise, "pointwise",
     "Pointwise: an element of the result depends only on those at its own position, and the kernel may run on blocks "
     "of them."},
    {Trait::exact, "exact", "Exact: each element is the correctly rounded result, at every position."},
    {Trait::rearranging, "rearranging",
     "Rearranging: its elements are those of its first argument, at other positions."},
    {Trait::identity, "identity", "Identity: where shape and dtype do not change, it copies its first argument."},
}};

/// The value of an argument with which the result is the other argument.
struct Neutral {
  Name arg;
  double value = 0;
};

/// The keys that shardgen adds to the op language, under `shard:`.
struct Extension {
  std::optional<Partial> partial;
  std::optional<Name> partial_guard;
  std::optional<std::vector<Name>> view_writes;
  std::optional<std::vector<Name>> dynamic_shape;
  std::optional<bool> random;
  std::optional<bool> elementwise;
  std::optional<std::vector<Trait>> traits;
  std::optional<std::vector<Neutral>> neutral;
  std::optional<bool> no_gradient;
  std::optional<bool> record_composite;
  std::optional<bool> optional_outputs;
  std::optional<bool> overload;
  std::optional<std::vector<SaveIf>> save_if;
  std::optional<std::string> doc;
};

struct Op {
  Name name;
  int first_line = 0;  // the first line of its entry in the file; the last line is the one before the next entry
  int last_line = 0;
  bool is_backward = false;
  bool complete = true;  // false: args or output could not be read, so names in them are unknown
  std::optional<Location> args_at;
  std::optional<Location> output_at;
  bool has_forward = false;  // the key exists; `forward` is empty where it could not be read
  bool has_invoke = false;
  Signature signature;
  std::optional<InferMeta> infer_meta;
  std::optional<KernelSpec> kernel;
  std::optional<Call> invoke;
  std::optional<Call> composite;
  std::vector<AliasPair> inplace;
  std::vector<AliasPair> view;
  std::vector<Name> optional;
  std::vector<Name> intermediate;
  std::vector<Name> no_need_buffer;
  std::vector<Name> support_tensor;
  std::vector<Name> interfaces;
  std::vector<Name> traits;
  DataTransform data_transform;
  std::optional<Name> backward;
  std::optional<Forward> forward;
  Extension extension;
};

/// The ops of one YAML file.
struct Family {
  std::string name;  // the file's name without ".yaml"
  std::string path;
  std::vector<Op> ops;
  bool imported = false;  // its code is in a library: it is not generated, and other families may invoke its ops
};

/// The index of `name` in inputs, attrs or outputs, or -1.
int find_input(const Signature& signature, std::string_view name);
int find_attr(const Signature& signature, std::string_view name);
int find_output(const Signature& signature, std::string_view name);
/// The argument of that name.
std::optional<ArgRef> find_arg(const Signature& signature, std::string_view name);
/// The arguments of infer_meta and of the kernel of an op, where the YAML lists them; nothing: all
/// arguments.
const std::optional<std::vector<CallArg>>& infer_meta_params(const Op& op);
const std::optional<std::vector<CallArg>>& kernel_params(const Op& op);
/// True when the op has a body of its own: an infer_meta, and a kernel or views. Otherwise it only
/// calls other ops.
bool has_body(const Op& op);
/// True when the functions of the op are overloads of those of the op that it invokes.
bool is_overload(const Op& op);
const Name& name_of(const Signature& signature, ArgRef arg);
bool contains(const std::vector<Name>& names, std::string_view name);

}  // namespace shardgen
