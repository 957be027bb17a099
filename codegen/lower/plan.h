// What a dense function does, as typed steps: the decisions between model and text. Tests compare plans through describe().
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "model/op.h"

namespace shardgen {

enum class Form { functional, inplace };

/// What is passed to infer_meta or a kernel: an argument of the op, its dtype, or a constant.
struct Passed {
  std::optional<ArgRef> arg;
  bool dtype_of = false;
  Literal constant;
};

/// Runs infer_meta on these arguments.
struct InferMetaStep {
  std::string func;
  std::vector<Passed> args;
};

/// Takes the device from the first of these attributes that is given, else from the tensors.
struct DeviceStep {
  std::vector<int> attrs;
  bool tensors = true;
};

/// Something that can give the kernel's dtype.
struct DTypeSource {
  enum class Kind { input, attr, constant };
  Kind kind = Kind::input;
  int index = 0;
  DataType constant = DataType::undefined;
  bool to_complex = false;
};

/// Looks the kernel up by the first dtype that is given.
struct KernelStep {
  std::string table;
  std::vector<Passed> args;
  std::vector<DTypeSource> dtypes;
};

/// Casts an argument to the kernel's dtype.
struct CastStep {
  int input;
};

/// Opens the guard of writes into buffers of arguments.
struct GuardStep {};

/// Makes the tensor of an output.
struct OutputStep {
  enum class Source {
    allocate,
    allocate_if,   // only when `input` is given
    target,        // the buffer of `input`, or a new one that takes its place
    reinterpret,   // another shape or dtype on the bytes of `input`
    written_view,  // the buffer of `input`, which the kernel writes
  };
  Source source = Source::allocate;
  int output = 0;
  int input = -1;
};

/// Makes an argument safe to read while the targets are written.
struct ReaderStep {
  int input;
};

/// Draws a random key.
struct DrawStep {};

/// Calls the kernel, inside the guard of what it writes.
struct RunStep {
  bool guarded = false;
};

/// Gives the in-place argument the meta of the output.
struct RebindStep {
  int input;
  int output;
};

using Step = std::variant<InferMetaStep, DeviceStep, KernelStep, CastStep, GuardStep, OutputStep, ReaderStep, DrawStep,
                          RunStep, RebindStep>;

struct DensePlan {
  Form form = Form::functional;
  std::vector<Step> steps;
  std::vector<int> returns;  // outputs that are returned and not written in place
};

/// A plan whose outputs are all new, or all written in place, is one call: the kernel with everything around it.
struct ComputeStep {
  DeviceStep device;
  KernelStep kernel;
  std::vector<CastStep> casts;
  bool in_place = false;
  std::vector<OutputStep> outputs;
};
std::optional<ComputeStep> compute_step(const Op& op, const DensePlan& plan);
/// True when every tensor of the op is an argument of its kernel, so that those tell the device.
bool gets_all_tensors(const Op& op, const KernelStep& kernel);
/// The only output of a plan that does nothing but reinterpret it, or nothing.
std::optional<OutputStep> lone_view(const DensePlan& plan);

DensePlan plan_dense(const Op& op, Form form);
/// One line per step: "target out <- x".
std::string describe(const Op& op, const DensePlan& plan);

/// The in-place pair that writes input `index`, or null.
const AliasPair* inplace_pair_of_input(const Op& op, int index);
/// The in-place pair that makes output `index`, or null.
const AliasPair* inplace_pair_of_output(const Op& op, int index);
/// What `param` names, or all arguments.
std::vector<Passed> resolve_params(const Op& op, const std::optional<std::vector<CallArg>>& param);
enum class ViewKind { none, reinterpreting, written };
ViewKind view_kind(const Op& op, int output);
bool is_random(const Op& op);
/// True for an output whose number of rows its kernel finds in the data.
bool has_dynamic_shape(const Op& op, const Output& output);
/// True when each output element depends on one element of each input, so that an output may be exactly an input.
bool is_elementwise(const Op& op);
bool has_trait(const Op& op, Trait trait);

}  // namespace shardgen
