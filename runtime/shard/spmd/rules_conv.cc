// Rules of ops on images, whose data_format says which dim has the channels. Of ops with windows, which read elements
// of their neighbours, space dims are not sharded.
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// Images [n, c, ...], or [n, ..., c] where the op has a data_format that ends with C.
int channel_dim(const RuleArgs& args) {
  const auto* format = args.has_attr("data_format") ? std::get_if<std::string>(&args.attr("data_format")) : nullptr;
  return format != nullptr && format->ends_with('C') ? args.tensors[0].meta.dims.rank() - 1 : 1;
}

/// The letters of an image with these of its batch and channels.
std::vector<int> image(int rank, int channel_dim, int batch, int channels) {
  std::vector<int> letters(static_cast<size_t>(rank), kNoLetter);
  letters[0] = batch;
  letters[static_cast<size_t>(channel_dim)] = channels;
  return letters;
}

/// The letters of a convolution: of the batch, and of the channels on both sides of the filter. Groups are not
/// sharded, unless each has one channel on both sides (`depthwise`): these are one letter.
struct ConvLetters {
  Notation notation;
  std::vector<int> x, filter, out;
};

ConvLetters conv_letters(const RuleArgs& args, bool transposed, bool grad) {
  ConvLetters c;
  const Dims &x = args.tensors[0].meta.dims, &filter = args.tensors[1].meta.dims;
  const int rank = x.rank(), dim = channel_dim(args);
  const int64_t groups = args.integer("groups"), in = x[dim], out = transposed ? filter[1] * groups : filter[0];
  // In a gradient an index may be summed in one result and kept in the other.
  const auto add = [&](Letter::Role role, int64_t size) { return c.notation.add({role, ReduceType::sum, size}); };
  const Letter::Role summed = grad ? Letter::Role::map : Letter::Role::reduce,
                     kept = grad ? Letter::Role::reduce : Letter::Role::map;
  const int n = add(kept, x[0]);
  int in_letter = kNoLetter, out_letter = kNoLetter;
  if (groups == 1) {
    in_letter = add(summed, in);
    out_letter = add(kept, out);
  } else if (!transposed && groups == in && groups == out) {
    in_letter = out_letter = add(Letter::Role::map, in);
  }
  c.x = image(rank, dim, n, in_letter);
  c.out = image(rank, dim, n, out_letter);
  c.filter.assign(static_cast<size_t>(rank), kNoLetter);
  c.filter[0] = transposed ? in_letter : out_letter;
  if (groups == 1) c.filter[1] = transposed ? out_letter : in_letter;
  return c;
}

template <bool transposed>
RuleResult conv(const RuleArgs& args) {
  ConvLetters c = conv_letters(args, transposed, false);
  c.notation.inputs = {c.x, c.filter};
  c.notation.outputs = {c.out};
  return solve(args, c.notation);
}

/// The gradient of the filter is summed over the batch, that of x over the output channels.
template <bool transposed>
RuleResult conv_grad(const RuleArgs& args) {
  ConvLetters c = conv_letters(args, transposed, true);
  c.notation.inputs = {c.x, c.filter, c.out};
  c.notation.outputs = {c.x, c.filter};
  return solve(args, c.notation);
}

/// All tensors that are given are images of the same batch and channels.
RuleResult pool(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int dim = channel_dim(args);
  const int batch = n.add({Letter::Role::map, ReduceType::sum, x[0]}),
            channels = n.add({Letter::Role::map, ReduceType::sum, x[dim]});
  const std::vector<int> letters = image(x.rank(), dim, batch, channels);
  for (const auto& tensor : args.tensors) n.inputs.push_back(tensor.spec != nullptr ? letters : std::vector<int>());
  n.outputs.assign(args.outputs.size(), letters);
  return solve(args, n);
}

/// Images x and statistics [n, c] or [n, groups]; scale, bias and their gradients, which are summed over the batch,
/// have the channels alone. Over sharded space dims the kernel combines the sums of groups, and over sharded channels,
/// unless each is a group of its own.
template <bool of_channels>
RuleResult image_norm(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int channels = channel_dim(args);
  const std::vector<int> of_image = fresh_letters(n, x, Letter::Role::combined);
  n.letters[0].role = Letter::Role::reduce;
  if (of_channels) n.letters[static_cast<size_t>(channels)].role = Letter::Role::map;
  const std::vector<int> statistic = {0, of_channels ? channels : kNoLetter};
  const auto slot = [&](std::string_view name) -> std::vector<int> {
    if (name.starts_with("scale") || name.starts_with("bias")) return {channels};
    return name.ends_with("mean") || name.ends_with("variance") ? statistic : of_image;
  };
  for (size_t i = 0; i < args.tensors.size(); ++i)
    n.inputs.push_back(args.tensors[i].spec != nullptr ? slot(args.op.inputs[i].name) : std::vector<int>());
  for (size_t o = 0; o < args.outputs.size(); ++o)
    n.outputs.push_back(is_absent_output(args, o) ? std::vector<int>() : slot(args.op.outputs[o].name));
  return solve(args, n);
}

/// The classes are not sharded. With a reduction the kernel adds up the sums of all shards, because a mean divides
/// by the weights of all of them.
RuleResult nll_loss(const RuleArgs& args) {
  Notation n;
  const bool none = args.outputs[0].dims == args.tensors[1].meta.dims && args.outputs[0].dims.rank() > 0;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims, none ? Letter::Role::map : Letter::Role::collective), {}, {}};
  n.inputs[0][1] = kNoLetter;
  n.inputs[1] = n.inputs[0];
  n.inputs[1].erase(n.inputs[1].begin() + 1);
  if (args.tensors[2].spec != nullptr) n.inputs[2] = {kNoLetter};
  n.outputs = {none ? n.inputs[1] : std::vector<int>(), {}};
  return solve(args, n);
}

RuleResult nll_loss_grad(const RuleArgs& args) {
  Notation n;
  std::vector<int> x = fresh_letters(n, args.tensors[0].meta.dims);
  x[1] = kNoLetter;
  std::vector<int> label = x;
  label.erase(label.begin() + 1);
  n.inputs = {x, label, {}, {}, {}};
  if (args.tensors[2].spec != nullptr) n.inputs[2] = {kNoLetter};
  if (args.tensors[4].meta.dims.rank() > 0) n.inputs[4] = label;
  n.outputs = {x};
  return solve(args, n);
}

}  // namespace

void register_conv_rules() {
  register_rule("ConvInferSpmd", conv<false>);
  register_rule("ConvGradInferSpmd", conv_grad<false>);
  register_rule("ConvTransposeInferSpmd", conv<true>);
  register_rule("ConvTransposeGradInferSpmd", conv_grad<true>);
  register_rule("PoolInferSpmd", pool);
  register_rule("GroupNormInferSpmd", image_norm<false>);
  register_rule("InstanceNormInferSpmd", image_norm<true>);
  register_rule("NllLossInferSpmd", nll_loss);
  register_rule("NllLossGradInferSpmd", nll_loss_grad);
}

}  // namespace shard::spmd
