// Rules of ops on images, whose data_format says which dim has the channels. Space dims are sharded where the kernel fetches
// what its windows read of other shards.
#include <algorithm>

#include "shard/meta/image.h"
#include "shard/meta/window.h"
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {

int channel_dim(const RuleArgs& args) {
  const auto* format = args.has_attr("data_format") ? std::get_if<std::string>(&args.attr("data_format")) : nullptr;
  return format != nullptr && format->ends_with('C') ? args.tensors[0].meta.dims.rank() - 1 : 1;
}

namespace {

/// The letters of an image with these of its batch and channels.
std::vector<int> image_letters(int rank, int channel_dim, int batch, int channels) {
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
  c.x = image_letters(rank, dim, n, in_letter);
  c.out = image_letters(rank, dim, n, out_letter);
  c.filter.assign(static_cast<size_t>(rank), kNoLetter);
  c.filter[0] = transposed ? in_letter : out_letter;
  if (groups == 1) c.filter[1] = transposed ? out_letter : in_letter;
  return c;
}

const std::string& text(const RuleArgs& args, std::string_view name) { return std::get<std::string>(args.attr(name)); }

/// What a rank receives of a dim of `size` elements if the axis alone shards it, as a part of the dim: the most that any
/// rank needs for its part of the other dim, of `other` elements, and does not have.
double fetched_part(const ProcessMesh& mesh, int axis, int64_t size, int64_t other, const auto& needed) {
  int64_t most = 0;
  Coordinate at{};
  for (int& i = at[static_cast<size_t>(axis)]; i < mesh.size(axis); ++i) {
    const Range held = shard_range(size, mesh, {axis}, at), need = needed(shard_range(other, mesh, {axis}, at));
    const int64_t begin = std::max(held.begin, need.begin),
                  end = std::min(held.begin + held.size, need.begin + need.size);
    most = std::max(most, need.size - std::max<int64_t>(end - begin, 0));
  }
  return static_cast<double>(most) / static_cast<double>(size);
}

/// The letters of space dims that images and the results of their windows have in common, and what the kernel fetches
/// along them. A dim of one element, or that windows reduce to one, is not sharded.
class SpaceLetters {
 public:
  SpaceLetters(const RuleArgs& args, const meta::Image& image, const meta::Windows& windows, Letter::Role role,
               Notation& notation)
      : mesh_(*args.mesh), notation_(notation) {
    for (int i = 0; i < image.space; ++i) {
      const meta::Window& window = windows[static_cast<size_t>(3 - image.space + i)];
      if (window.in == 1 || window.out == 1) continue;
      all_.push_back({image.first() + i, notation.add({role, ReduceType::sum, window.in}), window});
    }
  }
  void add_to(std::vector<int>& letters) const {
    for (const One& one : all_) letters[static_cast<size_t>(one.dim)] = one.letter;
  }
  /// Input `input` is like the images, and the kernel fetches what its outputs read of it.
  void fetch_read(size_t input) const {
    add(input, &meta::Window::in, &meta::Window::out,
        [](const meta::Window& window, Range outputs) { return elements_read(window, outputs); });
  }
  /// Input `input` is like the results, and the kernel fetches those that read its part of an image.
  void fetch_reading(size_t input) const {
    add(input, &meta::Window::out, &meta::Window::in,
        [](const meta::Window& window, Range elements) { return outputs_reading(window, elements); });
  }
  /// Input `input` is like the images, and the kernel fetches what those results read.
  void fetch_read_with(size_t input) const {
    add(input, &meta::Window::in, &meta::Window::in, [](const meta::Window& window, Range elements) {
      return elements_read(window, outputs_reading(window, elements));
    });
  }

 private:
  struct One {
    int dim, letter;
    meta::Window window;
  };
  void add(size_t input, int64_t meta::Window::*size, int64_t meta::Window::*other, const auto& needed) const {
    for (const One& one : all_) {
      Fetch& fetch = notation_.fetches.emplace_back(Fetch{input, one.letter, {}});
      for (int axis = 0; axis < mesh_.rank(); ++axis) {
        fetch.part.push_back(fetched_part(mesh_, axis, one.window.*size, one.window.*other,
                                          [&](Range range) { return needed(one.window, range); }));
      }
    }
  }

  const ProcessMesh& mesh_;
  Notation& notation_;
  std::vector<One> all_;
};

/// The windows of a convolution, or of the one that a transposed convolution is the transpose of.
meta::Windows windows_of(const RuleArgs& args, const OpContext& ctx, const meta::Image& image, bool transposed) {
  const Dims &x = args.tensors[0].meta.dims, &filter = args.tensors[1].meta.dims;
  const IntArray strides = args.integers("strides"), paddings = args.integers("paddings"),
                 dilations = args.integers("dilations");
  const std::string& algorithm = text(args, "padding_algorithm");
  return transposed
             ? meta::conv_transpose_windows(ctx, image, x, filter, strides, paddings, args.integers("output_padding"),
                                            args.integers("output_size"), algorithm, dilations)
             : meta::conv_windows(ctx, image, x, filter, strides, paddings, algorithm, dilations);
}

/// A convolution whose kernel fetches halos. The gradient of the filter is summed over space, too.
template <bool transposed, bool grad>
RuleResult halo_conv(const RuleArgs& args) {
  ConvLetters c = conv_letters(args, transposed, grad);
  const OpContext ctx{args.op.name.data()};
  const int dims = args.tensors[0].meta.dims.rank() - 2;
  const std::string& format = text(args, "data_format");
  const meta::Image image =
      transposed ? meta::transposed_image_of(ctx, format, dims) : meta::image_of(ctx, format, dims);
  const SpaceLetters space(args, image, windows_of(args, ctx, image, transposed),
                           grad ? Letter::Role::reduce : Letter::Role::map, c.notation);
  space.add_to(c.x);
  space.add_to(c.out);
  if (transposed) {  // the images that windows read are like the result
    if (grad) space.fetch_read(2);
    else space.fetch_reading(0);
  } else {
    space.fetch_read(0);
    if (grad) space.fetch_reading(2);
  }
  c.notation.inputs = {c.x, c.filter};
  if (grad) c.notation.inputs.push_back(c.out);
  if (grad) c.notation.outputs = {c.x, c.filter};
  else c.notation.outputs = {c.out};
  return solve(args, c.notation);
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
  const std::vector<int> letters = image_letters(x.rank(), dim, batch, channels);
  for (const auto& tensor : args.tensors) n.inputs.push_back(tensor.spec != nullptr ? letters : std::vector<int>());
  n.outputs.assign(args.outputs.size(), letters);
  return solve(args, n);
}

bool flag_or(const RuleArgs& args, std::string_view name) { return args.has_attr(name) && args.flag(name); }
const char* text_or(const RuleArgs& args, std::string_view name, const char* missing) {
  return args.has_attr(name) ? text(args, name).c_str() : missing;
}

/// Pooling whose kernel fetches halos, as `fetch(space)` says. All tensors are images of the same batch and channels.
template <class Fetch>
RuleResult halo_pool_with(const RuleArgs& args, const Fetch& fetch) {
  Notation n;
  const OpContext ctx{args.op.name.data()};
  const Dims& x = args.tensors[0].meta.dims;
  const int dims = x.rank() - 2;
  const meta::Image image = meta::image_of(ctx, text_or(args, "data_format", dims == 2 ? "NCHW" : "NCDHW"), dims);
  const IntArray kernel_size = args.integers("kernel_size"), strides = args.integers("strides"),
                 paddings = args.integers("paddings");
  const meta::Windows windows =
      meta::pool_windows(ctx, image, x,
                         {kernel_size, strides, paddings, flag_or(args, "ceil_mode"), args.flag("global_pooling"),
                          args.flag("adaptive"), text_or(args, "padding_algorithm", "EXPLICIT")});
  const int batch = n.add({Letter::Role::map, ReduceType::sum, x[0]}),
            channels = n.add({Letter::Role::map, ReduceType::sum, x[image.channel()]});
  std::vector<int> letters = image_letters(x.rank(), image.channel(), batch, channels);
  const SpaceLetters space(args, image, windows, Letter::Role::map, n);
  space.add_to(letters);
  fetch(space);
  n.inputs.assign(args.tensors.size(), letters);
  n.outputs.assign(args.outputs.size(), letters);
  return solve(args, n);
}

/// Images, or, in a gradient, the gradients of results, are fetched. The images x are read for the places of maxima alone.
template <bool grad>
RuleResult halo_pool(const RuleArgs& args) {
  const bool max = text(args, "pooling_type") == "max";
  return halo_pool_with(args, [&](const SpaceLetters& space) {
    if (grad) {
      space.fetch_reading(1);
      if (max) space.fetch_read_with(0);
    } else {
      if (max || args.tensors.size() == 1) space.fetch_read(0);
      if (args.tensors.size() > 1) space.fetch_read(1);
    }
  });
}

/// Those of x, and of x, mask and the images whose elements at the places in mask are taken.
RuleResult halo_index_pool(const RuleArgs& args) {
  return halo_pool_with(args, [&](const SpaceLetters& space) { space.fetch_read(args.tensors.size() == 1 ? 0 : 2); });
}

RuleResult halo_index_pool_grad(const RuleArgs& args) {
  return halo_pool_with(args, [](const SpaceLetters& space) {
    space.fetch_reading(1);
    space.fetch_reading(2);
  });
}

/// Interpolation of x, or its gradient, the last argument. The kernel fetches what places between elements need.
template <bool grad>
RuleResult halo_interpolate(const RuleArgs& args) {
  Notation n;
  const std::string &format = text(args, "data_format"), &method = text(args, "interp_method");
  const auto& given = std::get<std::vector<double>>(args.attr("scale"));
  const std::vector<float> scale(given.begin(), given.end());
  const meta::Interpolation how{format, scale, method, args.flag("align_corners"),
                                static_cast<int>(args.integer("align_mode"))};
  const size_t fetched = grad ? args.tensors.size() - 1 : 0;
  const Dims &x = args.tensors[0].meta.dims, &out = grad ? args.tensors[fetched].meta.dims : args.outputs[0].dims;
  const meta::Samplings samplings = meta::samplings_of(how, x, out);
  const int dim = channel_dim(args), batch = n.add({Letter::Role::map, ReduceType::sum, x[0]}),
            channels = n.add({Letter::Role::map, ReduceType::sum, x[dim]});
  std::vector<int> letters = image_letters(x.rank(), dim, batch, channels);
  for (int i = 0; i < x.rank() - 2; ++i) {
    const meta::Sampling& sampling = samplings[static_cast<size_t>(5 - x.rank() + i)];
    if (sampling.in == 1 || sampling.out == 1) continue;
    const int letter = letters[static_cast<size_t>(how.first() + i)] =
        n.add({Letter::Role::map, ReduceType::sum, sampling.in});
    Fetch& fetch = n.fetches.emplace_back(Fetch{fetched, letter, {}});
    for (int axis = 0; axis < args.mesh->rank(); ++axis) {
      fetch.part.push_back(grad ? fetched_part(*args.mesh, axis, sampling.out, sampling.in,
                                               [&](Range part) { return outputs_reading(sampling, part); })
                                : fetched_part(*args.mesh, axis, sampling.in, sampling.out,
                                               [&](Range part) { return elements_read(sampling, part); }));
    }
  }
  for (const auto& tensor : args.tensors) n.inputs.push_back(tensor.spec != nullptr ? letters : std::vector<int>());
  n.outputs = {letters};
  return solve(args, n);
}

/// Images x and statistics [n, c] or [n, groups]; scale, bias and their gradients, which are summed over the batch,
/// have the channels alone. Space dims are not sharded, nor are channels, unless each is a group of its own
/// (`of_channels`) or the kernel combines the sums of groups.
template <bool of_channels, bool combines>
RuleResult image_norm(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int channels = channel_dim(args);
  const std::vector<int> of_image = fresh_letters(n, x, combines ? Letter::Role::combined : Letter::Role::whole);
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
  register_rule("HaloConvInferSpmd", halo_conv<false, false>);
  register_rule("HaloConvGradInferSpmd", halo_conv<false, true>);
  register_rule("HaloConvTransposeInferSpmd", halo_conv<true, false>);
  register_rule("HaloConvTransposeGradInferSpmd", halo_conv<true, true>);
  register_rule("HaloPoolInferSpmd", halo_pool<false>);
  register_rule("HaloPoolGradInferSpmd", halo_pool<true>);
  register_rule("HaloIndexPoolInferSpmd", halo_index_pool);
  register_rule("HaloIndexPoolGradInferSpmd", halo_index_pool_grad);
  register_rule("HaloInterpolateInferSpmd", halo_interpolate<false>);
  register_rule("HaloInterpolateGradInferSpmd", halo_interpolate<true>);
  register_rule("ConvInferSpmd", conv<false>);
  register_rule("ConvGradInferSpmd", conv_grad<false>);
  register_rule("ConvTransposeInferSpmd", conv<true>);
  register_rule("ConvTransposeGradInferSpmd", conv_grad<true>);
  register_rule("PoolInferSpmd", pool);
  register_rule("GroupNormInferSpmd", image_norm<false, false>);
  register_rule("InstanceNormInferSpmd", image_norm<true, false>);
  register_rule("CombinedGroupNormInferSpmd", image_norm<false, true>);
  register_rule("CombinedInstanceNormInferSpmd", image_norm<true, true>);
  register_rule("NllLossInferSpmd", nll_loss);
  register_rule("NllLossGradInferSpmd", nll_loss_grad);
}

}  // namespace shard::spmd
