// Rules for calls for which this library has no op (gradients, fused ops of the peer), and the
// calls that the peer refuses. They are notations for the library's solvers. Where a comment says
// "the peer", the rule is wrong or worse than that of this library, and only --compat uses it.
#include "first_come.h"
#include "rules.h"
#include "shard/core/error.h"
#include "shard/reshard/boxes.h"
#include "shard/spmd/notation.h"

namespace spmd_cases {
namespace {

using namespace shard;
using namespace shard::spmd;

using Letters = std::vector<int>;

Letters letters_for(Notation& n, const RuleArgs& args, size_t slot) {
  return fresh_letters(n, args.tensors[args.slots[slot].first].meta.dims);
}
const TensorArg& tensor(const RuleArgs& args, size_t slot) { return args.tensors[args.slots[slot].first]; }
const Dims& dims(const RuleArgs& args, size_t slot) { return tensor(args, slot).meta.dims; }
bool present(const RuleArgs& args, size_t slot) { return tensor(args, slot).spec != nullptr; }
Letter& letter_at(Notation& n, int letter) { return n.letters[static_cast<size_t>(letter)]; }
int axis_of(const RuleArgs& args, std::string_view name, int rank) {
  if (rank == 0) fail(ErrorCode::out_of_range, "[{}] a tensor without dims has no axis", args.op.name);
  return normalize_axis(args.op.name, name, args.integer(name), rank);
}
Letters whole_dims(const Dims& dims) { return Letters(static_cast<size_t>(dims.rank()), kNoLetter); }
void unshard(Layout& layout, int dim) {
  if (dim < layout.rank) layout.dims[static_cast<size_t>(dim)] = {};
}

RuleResult replicated(const RuleArgs& args) { return infer_replicated(args); }

/// The first dims are one batch; no other dim is sharded.
RuleResult data_parallel(const RuleArgs& args) {
  Notation n;
  const int batch = n.add({});
  const auto name = [&](const Dims& dims) {
    Letters letters = whole_dims(dims);
    if (!letters.empty()) letters[0] = batch;
    return letters;
  };
  for (const TensorArg& t : args.tensors) n.inputs.push_back(name(t.meta.dims));
  for (const Meta& out : args.outputs) n.outputs.push_back(name(out.dims));
  return solve(args, n);
}

/// Without y, the gradient of y is the second half of that of x, so the last dim of x is not
/// sharded.
RuleResult swiglu_grad(const RuleArgs& args) {
  Notation n;
  const Letters x = letters_for(n, args, 0);
  const bool both = present(args, 1);
  if (!both && !x.empty()) letter_at(n, x.back()).role = Letter::Role::whole;
  n.inputs = {x, both ? x : Letters(), x};
  n.outputs = {x, both ? x : Letters()};
  return solve(args, n);
}

/// The peer: the layouts of two matmuls have to agree without a reshard, and everything is
/// replicated if the forward op would reshard.
RuleResult matmul_grad(const RuleArgs& args) {
  constexpr std::string_view kRule =
      "... m? k ^transpose_x, ... k n? ^transpose_y, ... m? n? -> ... m? k ^transpose_x, ... k n? ^transpose_y";
  const Notation n = from_expression(args, parsed(args, kRule), kRule);
  const auto merged = [&](size_t first, size_t second) {
    FirstCome axes(args, n);
    for (size_t t : {first, second}) axes.visit(args.tensors[t].spec->layout(), n.inputs[t]);
    axes.settle();
    return axes;
  };
  const auto as_it_is = [&](const FirstCome& axes, size_t t) {
    return axes.layout(n.inputs[t]) == args.tensors[t].spec->layout();
  };
  const FirstCome forward = merged(0, 1);
  if (!as_it_is(forward, 0) || !as_it_is(forward, 1)) return infer_replicated(args);
  const bool transpose_x = args.flag("transpose_x");
  const bool transpose_y = args.flag("transpose_y");
  const FirstCome dx = transpose_x ? merged(1, 2) : merged(2, 1);
  const FirstCome dy = transpose_y ? merged(2, 0) : merged(0, 2);
  bool agrees = as_it_is(dx, 1) && as_it_is(dy, 0) && dx.layout(n.inputs[2]) == dy.layout(n.inputs[2]);
  if (transpose_x || transpose_y) agrees = agrees && as_it_is(dx, 2);
  if (!agrees)
    fail(ErrorCode::layout, "[{}] the gradients of x and y need an argument in different layouts", args.op.name);
  RuleResult result;
  for (size_t t = 0; t < 3; ++t) result.inputs.push_back(dx.layout(n.inputs[t]));
  result.inputs[0] = args.tensors[0].spec->layout();
  result.outputs = {dx.output(0), dy.output(1)};
  return result;
}

/// The peer: the table keeps the sharding of its columns, whatever out_grad has there.
RuleResult embedding_grad(const RuleArgs& args) {
  if (args.flag("sparse")) fail(ErrorCode::layout, "[{}] no rule for sparse gradients", args.op.name);
  Notation n;
  const Letters ids = letters_for(n, args, 0);
  for (int letter : ids) letter_at(n, letter).role = Letter::Role::reduce;
  const int column = n.add({Letter::Role::map, ReduceType::sum, dims(args, 1)[1]});
  Letters grad = ids;
  grad.push_back(column);
  n.inputs = {ids, {kNoLetter, column}, grad};
  n.outputs = {{kNoLetter, column}};
  RuleResult result = solve(args, n);
  result.inputs[1] = tensor(args, 1).spec->layout();
  unshard(result.inputs[1], 0);
  return result;
}

/// Dims of x and out_grad of equal size are one index. The dims that x was expanded along are
/// summed.
RuleResult expand_as_grad(const RuleArgs& args) {
  Notation n;
  const Dims& x = dims(args, 0);
  const Dims& grad = dims(args, 1);
  if (x.rank() > grad.rank())
    fail(ErrorCode::shape_mismatch, "[{}] x has more dims than what it was expanded to", args.op.name);
  const Letters wide = fresh_letters(n, grad);
  Letters narrow = whole_dims(x);
  for (int d = 0; d < grad.rank(); ++d) {
    const int in_x = d - grad.rank() + x.rank();
    if (in_x >= 0 && x[in_x] == grad[d]) narrow[static_cast<size_t>(in_x)] = wide[static_cast<size_t>(d)];
    else letter_at(n, wide[static_cast<size_t>(d)]).role = Letter::Role::reduce;
  }
  n.inputs = {narrow, wide};
  n.outputs = {narrow};
  return solve(args, n);
}

/// Repeated dims are not sharded. New dims are sharded if the output is wanted so, and summed in
/// the gradient.
RuleResult tile(const RuleArgs& args) {
  Notation n;
  const bool gradient = args.op.name.ends_with("_grad");
  const IntArray repeats = args.integers("repeat_times");
  const Letters x = letters_for(n, args, 0);
  if (repeats.size() < x.size())
    fail(ErrorCode::shape_mismatch, "[{}] repeat_times has fewer values than x has dims", args.op.name);
  const size_t lead = repeats.size() - x.size();
  for (size_t d = 0; d < x.size(); ++d) {
    if (repeats[lead + d] != 1) letter_at(n, x[d]).role = Letter::Role::whole;
  }
  Letters out;
  for (size_t d = 0; d < lead; ++d)
    out.push_back(n.add({gradient ? Letter::Role::reduce : Letter::Role::map, ReduceType::sum, repeats[d]}));
  out.insert(out.end(), x.begin(), x.end());
  n.inputs = {x};
  if (gradient) n.inputs.push_back(out);
  n.outputs = {gradient ? x : out};
  return solve(args, n);
}

/// The peer: sharded updates leave the output pending, although each process adds x.
RuleResult scatter(const RuleArgs& args) {
  Notation n;
  const Letters updates = letters_for(n, args, 2);
  if (dims(args, 1).rank() > dims(args, 2).rank())
    fail(ErrorCode::shape_mismatch, "[{}] index has more dims than updates", args.op.name);
  if (!updates.empty()) letter_at(n, updates[0]).role = Letter::Role::reduce;
  Letters x = whole_dims(dims(args, 0));
  for (size_t d = 1; d < x.size() && d < updates.size(); ++d) x[d] = updates[d];
  n.inputs = {x, Letters(updates.begin(), updates.begin() + dims(args, 1).rank()), updates};
  n.outputs = {x};
  return solve(args, n);
}

/// Rows of out_grad go to x_grad and, at the rows that the index names, to updates_grad.
RuleResult scatter_grad(const RuleArgs& args) {
  Notation n;
  const Letters grad = letters_for(n, args, 2);
  if (grad.empty()) fail(ErrorCode::shape_mismatch, "[{}] out_grad has no dims", args.op.name);
  letter_at(n, grad[0]).role = Letter::Role::whole;
  Letters updates = whole_dims(dims(args, 1));
  for (size_t d = 1; d < updates.size() && d < grad.size(); ++d) updates[d] = grad[d];
  n.inputs = {whole_dims(dims(args, 0)), updates, grad};
  n.outputs = {grad, updates};
  return solve(args, n);
}

RuleResult gather_grad(const RuleArgs& args) {
  Notation n;
  const Letters x = letters_for(n, args, 0);
  const int axis = axis_of(args, "axis", static_cast<int>(x.size()));
  letter_at(n, x[static_cast<size_t>(axis)]).role = Letter::Role::whole;
  Letters grad = x;
  grad.erase(grad.begin() + axis);
  grad.insert(grad.begin() + axis, static_cast<size_t>(dims(args, 1).rank()), kNoLetter);
  n.inputs = {x, whole_dims(dims(args, 1)), grad};
  n.outputs = {x};
  return solve(args, n);
}

/// Each row of the index adds a slice of out_grad to x_grad. If rows are sharded, the result is a
/// pending sum.
RuleResult gather_nd_grad(const RuleArgs& args) {
  Notation n;
  const Dims& index = dims(args, 1);
  if (index.rank() == 0) fail(ErrorCode::shape_mismatch, "[{}] the index has no dims", args.op.name);
  Letters x = letters_for(n, args, 0);
  const int64_t chosen = index[index.rank() - 1];
  if (chosen < 0 || chosen > static_cast<int64_t>(x.size())) {
    fail(ErrorCode::shape_mismatch, "[{}] the last dim of the index names more dims than x has", args.op.name);
  }
  std::fill_n(x.begin(), chosen, kNoLetter);
  Letters rows;
  for (int d = 0; d + 1 < index.rank(); ++d) rows.push_back(n.add({Letter::Role::reduce, ReduceType::sum, index[d]}));
  Letters grad = rows;
  grad.insert(grad.end(), x.begin() + chosen, x.end());
  rows.push_back(kNoLetter);
  n.inputs = {x, rows, grad};
  n.outputs = {x};
  return solve(args, n);
}

RuleResult slice_grad(const RuleArgs& args) {
  Notation n;
  const Letters input = letters_for(n, args, 0);
  const int rank = static_cast<int>(input.size());
  const auto index_of = [&](std::string_view name, int64_t axis) {
    return static_cast<size_t>(normalize_axis(args.op.name, name, axis, rank));
  };
  for (int64_t axis : args.integers("axes")) letter_at(n, input[index_of("axes", axis)]).role = Letter::Role::whole;
  std::vector<bool> dropped(input.size(), false);
  for (int64_t axis : args.integers("decrease_axis")) dropped[index_of("decrease_axis", axis)] = true;
  Letters grad;
  for (size_t d = 0; d < input.size(); ++d) {
    if (!dropped[d]) grad.push_back(input[d]);
  }
  if (static_cast<int>(grad.size()) != dims(args, 1).rank()) {
    fail(ErrorCode::shape_mismatch, "[{}] out_grad has another number of dims than the slice", args.op.name);
  }
  n.inputs = {input, grad};
  n.outputs = {input};
  return solve(args, n);
}

RuleResult cumsum_grad(const RuleArgs& args) {
  Notation n;
  const Letters x = letters_for(n, args, 0);
  const bool flatten = args.flag("flatten");
  for (size_t d = 0; d < x.size(); ++d) {
    if (flatten || static_cast<int>(d) == axis_of(args, "axis", static_cast<int>(x.size())))
      letter_at(n, x[d]).role = Letter::Role::whole;
  }
  n.inputs = {x, flatten ? whole_dims(dims(args, 1)) : x};
  n.outputs = {x};
  return solve(args, n);
}

/// The peer: the class axis may be sharded if the kernel can combine over it.
RuleResult cross_entropy(const RuleArgs& args) {
  Notation n;
  const Letters x = letters_for(n, args, 0);
  const int rank = static_cast<int>(x.size());
  const auto axis = static_cast<size_t>(axis_of(args, "axis", rank));
  const bool soft = args.flag("soft_label");
  const bool combines = axis + 1 == x.size() && args.flag("use_softmax") && !soft;
  letter_at(n, x[axis]).role = combines ? Letter::Role::collective : Letter::Role::whole;
  Letters without = x;
  without[axis] = kNoLetter;
  const auto of_rank = [&](Letters letters, const Dims& dims) {
    if (dims.rank() < rank) letters.erase(letters.begin() + static_cast<long>(axis));
    return letters;
  };
  n.inputs = {x, of_rank(soft ? x : without, dims(args, 1))};
  n.outputs = {args.outputs[0].dims.rank() == 0 ? Letters() : x, of_rank(without, args.outputs[1].dims)};
  return solve(args, n);
}

/// label, softmax, loss_grad -> input_grad: the class axis stays whole.
RuleResult cross_entropy_grad(const RuleArgs& args) {
  Notation n;
  const Letters x = letters_for(n, args, 1);
  letter_at(n, x[static_cast<size_t>(axis_of(args, "axis", static_cast<int>(x.size())))]).role = Letter::Role::whole;
  n.inputs = {x, x, x};
  n.outputs = {x};
  return solve(args, n);
}

/// True if sharding the heads like those of k gives each process the heads of k and v that its
/// heads of q need.
bool shard_heads_alike(const RuleArgs& args, size_t q, size_t k, size_t v) {
  if (dims(args, q)[2] == dims(args, v)[2]) return true;
  const int64_t heads = dims(args, k)[2];
  if (is_peer(args)) {
    const AxisList& axes = tensor(args, k).spec->axes(2);
    return axes.empty() || heads % args.mesh->size(axes[0]) == 0;
  }
  return heads % args.mesh->size() == 0;
}

/// The arguments are q, k, v, and in the gradient also out and softmax_lse. Sequences and head
/// sizes are not sharded.
RuleResult flash_attention(const RuleArgs& args) {
  Notation n;
  const Letter::Role heads = shard_heads_alike(args, 0, 1, 2) ? Letter::Role::map : Letter::Role::whole;
  const int b = n.add({});
  const int h = n.add({heads, ReduceType::sum, dims(args, 0)[2]});
  const int none = kNoLetter;
  const Letters part{b, none, h, none};
  const Letters lse{b, h, none};
  if (args.op.outputs.size() == 3) {
    n.inputs = {part, part, part, part, lse, whole_dims(dims(args, 5)), whole_dims(dims(args, 6)), part};
    n.outputs = {part, part, part};
  } else {
    n.inputs = {part, part, part, whole_dims(dims(args, 3)), whole_dims(dims(args, 4))};
    n.outputs = {part, {b, h, none, none}, lse, whole_dims(dims(args, 3))};
  }
  return solve(args, n);
}

/// The positions of the arguments of rotary embeddings. Forward has q, k, v, sin, cos, ids; in the
/// gradient the tensors to rotate come last.
RuleResult rope_from(const RuleArgs& args, size_t q, size_t sin, size_t cos, size_t ids) {
  if (dims(args, q).rank() != 4)
    fail(ErrorCode::shape_mismatch, "[{}] q has dims [batch, sequence, heads, head size]", args.op.name);
  const size_t seq = args.flag("time_major") ? 0 : 1;
  const bool shards_sequence = present(args, sin) && present(args, cos) && !present(args, ids);
  Notation n;
  const Letters full = letters_for(n, args, q);
  std::vector<bool> drop = {false, false, false, true};
  drop[seq] = !shards_sequence;
  for (size_t t : {q + 1, q + 2}) {
    if (!present(args, t)) continue;
    if (dims(args, t).rank() != 4 || dims(args, t)[2] == 0 || dims(args, q)[2] % dims(args, t)[2] != 0) {
      fail(ErrorCode::shape_mismatch, "[{}] the heads of q are not a multiple of those of k and v", args.op.name);
    }
    // In reverse the peer compares head sizes, which are always equal.
    drop[2] = (!is_peer(args) || args.wanted.empty()) && !shard_heads_alike(args, q, t, t);
  }
  for (size_t d = 0; d < 4; ++d) {
    if (drop[d]) letter_at(n, full[d]).role = Letter::Role::whole;
  }
  n.inputs.resize(args.tensors.size());
  for (size_t t : {q, q + 1, q + 2}) {
    n.inputs[t] = present(args, t) ? full : Letters();
    n.outputs.push_back(n.inputs[t]);
  }
  for (size_t t : {sin, cos}) {
    n.inputs[t] = whole_dims(dims(args, t));
    if (present(args, t) && shards_sequence) n.inputs[t].at(dims(args, t).rank() == 4 ? 1 : 0) = full[seq];
  }
  if (present(args, ids)) n.inputs[ids] = {full[1 - seq], full[seq]};
  RuleResult result = solve(args, n);
  // The peer gathers the second dim of the ids, which is not the sequence if time comes first.
  if (is_peer(args)) unshard(result.inputs[ids], 1);
  return result;
}
RuleResult rope(const RuleArgs& args) { return rope_from(args, 0, 3, 4, 5); }
RuleResult rope_grad(const RuleArgs& args) { return rope_from(args, 3, 0, 1, 2); }

/// x^T dout and the sum of dout, added to existing gradients.
RuleResult linear_grad(const RuleArgs& args) {
  Notation n;
  const Letters x = letters_for(n, args, 0);
  Letters dout = x;
  for (size_t d = 0; d + 1 < x.size(); ++d) letter_at(n, x[d]).role = Letter::Role::reduce;
  dout.back() = n.add({Letter::Role::map, ReduceType::sum, dims(args, 1)[dims(args, 1).rank() - 1]});
  const Letters weight{x.back(), dout.back()};
  const Letters bias = args.flag("has_bias") ? Letters{dout.back()} : Letters();
  n.inputs = {x, dout, present(args, 2) ? weight : Letters(), present(args, 3) ? Letters{dout.back()} : Letters()};
  n.outputs = {weight, bias};
  RuleResult result = solve(args, n);
  if (!args.flag("has_bias")) result.outputs[1] = Layout(args.mesh, 0);
  if (!is_peer(args)) return result;
  // The peer takes the bias from dout as it is, and existing gradients have to fit.
  if (args.flag("has_bias")) {
    FirstCome axes(args, n);
    axes.visit(tensor(args, 1).spec->layout(), dout);
    result.outputs[1] = axes.output(1);
  }
  for (size_t i : {size_t{0}, size_t{1}}) {
    if (present(args, 2 + i) && !(tensor(args, 2 + i).spec->layout() == result.outputs[i])) {
      fail(ErrorCode::layout, "[{}] the gradient that is added to has another layout than what is added", args.op.name);
    }
  }
  return result;
}

/// The peer: param and grad are merged, and a dim keeps an axis if no moment has a different one.
RuleResult adam(const RuleArgs& args) {
  Notation n;
  const Letters all = letters_for(n, args, 0);
  FirstCome axes(args, n);
  for (size_t t : {0, 1}) axes.visit(tensor(args, t).spec->layout(), all);
  axes.settle();
  Layout common = axes.layout(all);
  for (size_t t : {3, 4}) {
    if (dims(args, t).rank() != common.rank)
      fail(ErrorCode::shape_mismatch, "[{}] a moment has another number of dims than param", args.op.name);
  }
  for (size_t d = 0; d < all.size(); ++d) {
    AxisList& kept = common.dims[d];
    for (size_t t : {3, 4}) {
      const AxisList& axis = tensor(args, t).spec->layout().dims[d];
      if (axis.empty()) continue;
      if (kept.empty()) kept = axis;
      else if (!(kept == axis)) {
        kept = {};
        break;
      }
    }
  }
  RuleResult result;
  for (size_t t = 0; t < args.tensors.size(); ++t) {
    if (!present(args, t)) result.inputs.emplace_back(args.mesh, 0);
    else if (t == 2 || t == 5 || t == 6 || t == 8) result.inputs.push_back(tensor(args, t).spec->layout());
    else result.inputs.push_back(common);
  }
  for (size_t t : {0, 3, 4, 5, 6, 7}) result.outputs.push_back(result.inputs[t]);
  return result;
}

/// flatten joins a range of dims into one and keeps all other dims.
std::vector<DimGroup> flattened_group(const RuleArgs& args, int rank) {
  const int start = normalize_axis(args.op.name, "start_axis", args.integer("start_axis"), rank);
  const int stop = normalize_axis(args.op.name, "stop_axis", args.integer("stop_axis"), rank);
  std::vector<DimGroup> groups;
  for (int d = 0; d < start; ++d) groups.push_back({d, d + 1, d, d + 1});
  groups.push_back({start, stop + 1, start, start + 1});
  for (int d = stop + 1; d < rank; ++d) groups.push_back({d, d + 1, d - stop + start, d - stop + start + 1});
  return groups;
}

/// The peer: the first dim of a group keeps its axis, but only if the axis splits it evenly. The
/// given side loses all other axes. In reverse the given side is the output.
RuleResult leading_reshape(const RuleArgs& args) {
  const PeerOptions& options = peer_options(args);
  const bool reverse = !args.wanted.empty();
  const Dims& in = args.tensors[0].meta.dims;
  const Dims& out = args.outputs[0].dims;
  RuleResult result;
  result.inputs.emplace_back(args.mesh, in.rank());
  result.outputs.emplace_back(args.mesh, out.rank());
  const DistSpec* spec = reverse ? args.wanted[0] : args.tensors[0].spec;
  if (spec == nullptr || (in.numel() == 0 && in.rank() > 0)) return result;
  const auto groups =
      args.has_attr("start_axis") && in.rank() > 0 ? flattened_group(args, in.rank()) : group_dims(in, out);
  for (const DimGroup& g : groups) {
    if (g.in_begin == g.in_end || g.out_begin == g.out_end) continue;
    const AxisList& axes = spec->axes(reverse ? g.out_begin : g.in_begin);
    if (axes.empty() || (options.ones_whole && in[g.in_begin] == 1)) continue;
    const bool splits = reverse ? g.in_end - g.in_begin > 1 : g.out_end - g.out_begin > 1;
    const int64_t first = reverse ? in[g.in_begin] : out[g.out_begin];
    if (splits && (first == 1 || first % args.mesh->size(axes[0]) != 0)) continue;
    result.inputs[0].dims[static_cast<size_t>(g.in_begin)] = axes;
    result.outputs[0].dims[static_cast<size_t>(g.out_begin)] = axes;
  }
  if (options.pending == PeerOptions::Pending::pass) {
    result.inputs[0].partial = spec->layout().partial;
    result.outputs[0].partial = spec->layout().partial;
  }
  return result;
}

/// The rule of reshape for a tensor that changes from `from` to `to`.
RuleResult reshaped(const RuleArgs& args, const DistSpec* from_spec, const Dims& from, const Dims& to) {
  if (from.numel() != to.numel()) {
    fail(ErrorCode::shape_mismatch, "[{}] {} and {} have different numbers of elements", args.op.name, to_string(from),
         to_string(to));
  }
  const OpDef* op = find_op("reshape");
  const std::vector<TensorArg> tensors = {{{from, DType::float32}, from_spec}};
  const std::vector<SlotRange> slots = {{0, 1}};
  IntArray shape;
  for (int64_t size : to) shape.push_back(size);
  const std::vector<AttrValue> attrs = {shape};
  const std::vector<Meta> outputs = {{to, DType::float32}};
  RuleArgs inner{*op, args.mesh, tensors, slots, attrs, outputs, slots};
  inner.solver = args.solver;
  return is_peer(args) ? leading_reshape(inner) : infer(inner);
}

/// x_grad has the shape in xshape. The peer starts from xshape, which must fit unchanged.
RuleResult reshape_grad(const RuleArgs& args) {
  RuleResult result;
  if (!is_peer(args)) {
    const RuleResult back = reshaped(args, tensor(args, 1).spec, dims(args, 1), args.outputs[0].dims);
    result.inputs = {tensor(args, 0).spec->layout(), back.inputs[0]};
    result.outputs = back.outputs;
    result.relayout = back.relayout;
    return result;
  }
  const RuleResult forward = reshaped(args, tensor(args, 0).spec, dims(args, 0), dims(args, 1));
  if (!(forward.inputs[0] == tensor(args, 0).spec->layout()))
    fail(ErrorCode::layout, "[{}] xshape would have to be resharded", args.op.name);
  result.inputs = {forward.inputs[0], forward.outputs[0]};
  result.outputs = {forward.inputs[0]};
  return result;
}

RuleResult squeeze_grad(const RuleArgs& args) {
  const RuleResult back = reshaped(args, tensor(args, 1).spec, dims(args, 1), args.outputs[0].dims);
  RuleResult result;
  result.inputs = {tensor(args, 0).spec->layout(), back.inputs[0]};
  result.outputs = back.outputs;
  result.relayout = back.relayout;
  return result;
}

[[noreturn]] void refuse_layout(const Call& call, std::string_view problem) {
  fail(ErrorCode::layout, "({}): {}", call.signature.text, problem);
}

bool is_sharded(const Call& call, size_t slot, int dim) {
  return !call.tensors[call.slots[slot].first].spec->axes(dim).empty();
}

}  // namespace

void check_matmul(const Call& call) {
  if (call.backward && call.given[0].rank() != std::max(call.dims(0).rank(), call.dims(1).rank()))
    refuse_layout(call, "no reverse rule for vectors");
}

void check_cross_entropy(const Call& call) {
  const int rank = call.dims(0).rank();
  const int axis = shard::normalize_axis(call.signature.text, "axis", call.integer("axis"), rank);
  if (call.backward || !is_sharded(call, 0, axis)) return;
  if (call.flag("soft_label") || axis != rank - 1 || !call.flag("use_softmax"))
    refuse_layout(call, "the class axis is sharded, and the kernel cannot combine it");
}

void check_embedding(const Call& call) {
  if (call.backward || !is_sharded(call, 1, 0)) return;
  if (call.integer("padding_idx") != -1 || call.flag("sparse"))
    refuse_layout(call, "the rows of the table are sharded, with a padding index or sparse gradients");
}

void check_swiglu(const Call& call) {
  if (!call.backward && !call.present(1) && call.dims(0).rank() > 0 && is_sharded(call, 0, call.dims(0).rank() - 1)) {
    refuse_layout(call, "the last dim is cut in halves, but is sharded");
  }
}

void check_where(const Call& call) {
  if (call.dims(0).rank() < std::max(call.dims(1).rank(), call.dims(2).rank()))
    refuse_layout(call, "the condition has fewer dims than x or y");
}

void check_last_two(const Call& call) {
  if (call.dims(0).rank() < 2) refuse_layout(call, "a matrix has two dims");
}

void check_normalized_scale(const Call& call) {
  Dims normalized = call.dims(0);
  for (int64_t d = 0; d < call.integer("begin_norm_axis"); ++d) normalized.erase(0);
  for (size_t slot : {1, 2}) {
    if (call.backward || call.dims(slot).rank() == 1 || call.dims(slot) == normalized) continue;
    refuse_layout(call, "scale and bias have one dim, or the dims that are normalized");
  }
}

void register_own_rules() {
  register_rule("cases::replicated", replicated);
  register_rule("cases::data_parallel", data_parallel);
  register_rule("cases::swiglu_grad", swiglu_grad);
  register_rule("cases::matmul_grad", matmul_grad);
  register_rule("cases::embedding_grad", embedding_grad);
  register_rule("cases::expand_as_grad", expand_as_grad);
  register_rule("cases::tile", tile);
  register_rule("cases::scatter", scatter);
  register_rule("cases::scatter_grad", scatter_grad);
  register_rule("cases::gather_grad", gather_grad);
  register_rule("cases::gather_nd_grad", gather_nd_grad);
  register_rule("cases::slice_grad", slice_grad);
  register_rule("cases::cumsum_grad", cumsum_grad);
  register_rule("cases::cross_entropy", cross_entropy);
  register_rule("cases::cross_entropy_grad", cross_entropy_grad);
  register_rule("cases::flash_attention", flash_attention);
  register_rule("cases::rope", rope);
  register_rule("cases::rope_grad", rope_grad);
  register_rule("cases::linear_grad", linear_grad);
  register_rule("cases::adam", adam);
  register_rule("cases::leading_reshape", leading_reshape);
  register_rule("cases::reshape_grad", reshape_grad);
  register_rule("cases::squeeze_grad", squeeze_grad);
}

}  // namespace spmd_cases
