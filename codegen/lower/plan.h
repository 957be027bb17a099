// The plan of a dense function as typed steps: the decisions between model and text. Tests compare
// plans through describe().
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "model/op.h"

namespace shardgen {

enum class Form { functional, inplace };

/// An argument of infer_meta or a kernel: an argument of the op, its dtype, or a constant.
struct Passed {
  std::optional<ArgRef> arg;
  bool dtype_of = false;
  Literal constant;
};

/// Calls infer_meta with these arguments.
struct InferMetaStep {
  std::string func;
  std::vector<Passed> args;
};

/// Determines the device from the first of these attributes that is present, else from the tensors.
struct DeviceStep {
  std::vector<int> attrs;
  bool tensors = true;
};

/// A possible source of the kernel's dtype.
struct DTypeSource {
  enum class Kind { input, attr, constant };
  Kind kind = Kind::input;
  int index = 0;
  DataType constant = DataType::undefined;
  bool to_complex = false;
};

/// Looks the kernel up by the first dtype that is present.
struct KernelStep {
  std::string table;
  std::vector<Passed> args;
  std::vector<DTypeSource> dtypes;
};

/// Casts an argument to the kernel's dtype.
struct CastStep {
  int input;
};

/// Opens the guard of in-place writes to arguments.
struct GuardStep {};

/// Makes the tensor of an output.
struct OutputStep {
  enum class Source {
    allocate,
    allocate_if,   // only when `input` is present, if there is one
    target,        // the buffer of `input`, or a new one that replaces it
    reinterpret,   // another shape or dtype of the bytes of `input`
    written_view,  // the buffer of `input`, which the kernel writes
  };
  Source source = Source::allocate;
  int output = 0;
  int input = -1;
  bool if_wanted = false;  // only where the mask of the call has it
};

/// Makes an argument safe to read while the targets are written, by a copy if it overlaps them.
struct ReaderStep {
  int input;
};

/// Draws a random key.
struct DrawStep {};

/// Calls the kernel, inside the guard if it writes in place.
struct RunStep {
  bool guarded = false;
};

/// Sets the meta of the in-place argument to that of the output.
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

/// A plan whose outputs are all new, or all written in place, is a single call that does everything
/// around the kernel.
struct ComputeStep {
  DeviceStep device;
  KernelStep kernel;
  std::vector<CastStep> casts;
  bool in_place = false;
  std::vector<OutputStep> outputs;
};
std::optional<ComputeStep> compute_step(const Op& op, const DensePlan& plan);
/// True when every tensor of the op is an argument of its kernel, so that they determine the
/// device.
bool gets_all_tensors(const Op& op, const KernelStep& kernel);
/// The only output of a plan that does nothing but reinterpret an input, or nothing.
std::optional<OutputStep> lone_view(const DensePlan& plan);

DensePlan plan_dense(const Op& op, Form form);
/// One line per step: "target out <- x".
std::string describe(const Op& op, const DensePlan& plan);

/// The in-place pair that writes input `index`, or null.
const AliasPair* inplace_pair_of_input(const Op& op, int index);
/// The in-place pair that makes output `index`, or null.
const AliasPair* inplace_pair_of_output(const Op& op, int index);
/// The arguments that `param` names, or all arguments.
std::vector<Passed> resolve_params(const Op& op, const std::optional<std::vector<CallArg>>& param);
enum class ViewKind { none, reinterpreting, written };
ViewKind view_kind(const Op& op, int output);
bool is_random(const Op& op);
/// True for an output whose number of rows depends on data.
bool has_dynamic_shape(const Op& op, const Output& output);
/// True when each output element depends on one element of each input, so that an output may be
/// exactly an input.
bool is_elementwise(const Op& op);
bool has_trait(const Op& op, Trait trait);

}  // namespace shardgen
