// Gradients of ops of sequence.yaml for recorded calls: the ops are computed once more, by other ops step by step, and
// these are differentiated.
#include "shard/ops/sequence_ops.h"

#include "shard/autograd/autograd.h"
#include "shard/gradients/common.h"
#include "shard/meta/rnn.h"
#include "shard/ops/api.h"

namespace shard::external {

using gradients::widened;
using meta::RnnMode;

namespace {

using Tensors = std::vector<Tensor>;

// Of a probability that is 0: finite, because differences of infinities are NaN. Its exponential is 0.
constexpr double kNever = -1e30;

/// `x` as the end of the steps that follow. The engine that runs now may be at work on its own step.
Tensor separated(const Tensor& x) { return x.requires_grad() ? assign(x) : x.detach().set_requires_grad(true); }

Tensors separated(const Tensors& list) {
  Tensors all;
  for (const Tensor& x : list) all.push_back(separated(x));
  return all;
}

Tensors widened_all(const Tensors& list) {
  Tensors all;
  for (const Tensor& x : list) all.push_back(widened(x));
  return all;
}

/// The gradients of the inputs, recorded; zeros where nothing depends on one.
Tensors recorded_grads(const Tensors& outputs, const Tensors& inputs, const Tensors& out_grads) {
  Tensors grads = grad(outputs, inputs, out_grads, {.create_graph = true}, /*allow_unused=*/true);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) grads[i] = full_like(inputs[i].detach(), 0);
  }
  return grads;
}

/// Whether a step is before the end of each sequence, as [batch, 1]; lengths are int64 [batch].
Tensor is_before(int64_t step, const Tensor& lengths) {
  return unsqueeze(less_than(full_like(lengths, step), lengths), {1});
}

// --- rnn

/// A cell; all tensors are those of its arithmetic.
struct Cell {
  RnnMode mode;
  Tensor inputs, hidden, inputs_bias, hidden_bias;
};

/// The state of a cell; c is undefined without one.
struct State {
  Tensor h, c;
};

/// The state after a step, of which `input` is the part of the input with its bias.
State next_state(const Cell& cell, const Tensor& input, const State& state) {
  const Tensor hidden = add(matmul(state.h, cell.hidden, false, true), cell.hidden_bias);
  if (cell.mode == RnnMode::tanh) return {tanh(add(input, hidden)), {}};
  if (cell.mode == RnnMode::relu) return {relu(add(input, hidden)), {}};
  if (cell.mode == RnnMode::lstm) {
    const Tensors gates = split_with_num(add(input, hidden), 4, 1);
    const Tensor c = add(multiply(sigmoid(gates[1]), state.c), multiply(sigmoid(gates[0]), tanh(gates[2])));
    return {multiply(sigmoid(gates[3]), tanh(c)), c};
  }
  const Tensors of_input = split_with_num(input, 3, 1), of_state = split_with_num(hidden, 3, 1);
  const Tensor reset = sigmoid(add(of_input[0], of_state[0])), update = sigmoid(add(of_input[1], of_state[1])),
               value = tanh(add(of_input[2], multiply(reset, of_state[2])));
  return {add(multiply(subtract(state.h, value), update), value), {}};
}

/// Runs a cell through `steps`, which it replaces by its outputs; lengths may be absent.
void run_cell(const Cell& cell, bool backwards, const Tensor& lengths, Tensors& steps, State& state) {
  for (size_t k = 0; k < steps.size(); ++k) {
    const size_t at = backwards ? steps.size() - 1 - k : k;
    const State next = next_state(cell, add(matmul(steps[at], cell.inputs, false, true), cell.inputs_bias), state);
    if (!lengths.defined()) {
      steps[at] = next.h;
      state = next;
      continue;
    }
    const Tensor valid = is_before(static_cast<int64_t>(at), lengths);
    steps[at] = where(valid, next.h, full_like(next.h, 0));
    state.h = where(valid, next.h, state.h);
    if (state.c.defined()) state.c = where(valid, next.c, state.c);
  }
}

/// The layers of a network, and the elements that are dropped between them; kept is undefined without.
struct Network {
  RnnMode mode;
  int64_t layers, directions;
  Tensor lengths, kept;
};

/// out and the states at the end.
Tensors run_network(const Network& net, const Tensor& x, const Tensors& pre_state, const Tensors& weights) {
  const Tensors first_h = unbind(pre_state[0], 0),
                first_c = pre_state.size() > 1 ? unbind(pre_state[1], 0) : Tensors(first_h.size());
  Tensors last_h, last_c;
  Tensor values = x;
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    if (layer > 0 && net.kept.defined()) values = multiply(values, net.kept);
    Tensors outputs;
    for (int64_t d = 0; d < net.directions; ++d) {
      const auto at = static_cast<size_t>(layer * net.directions + d), biases = weights.size() / 2;
      const Cell cell{net.mode, weights[2 * at], weights[2 * at + 1], weights[biases + 2 * at],
                      weights[biases + 2 * at + 1]};
      State state{first_h[at], first_c[at]};
      Tensors steps = unbind(values, 0);
      run_cell(cell, d == 1, net.lengths, steps, state);
      outputs.push_back(stack(steps, 0));
      last_h.push_back(state.h);
      last_c.push_back(state.c);
    }
    values = outputs.size() == 1 ? outputs[0] : concat(outputs, 2);
  }
  Tensors all = {values, stack(last_h, 0)};
  if (pre_state.size() > 1) all.push_back(stack(last_c, 0));
  return all;
}

// --- CTC

/// The arguments of CTC; all integers are int64.
struct Ctc {
  Tensor label, logits_length, labels_length;  // labels beyond the length are blank
  Tensor valid, repeated;                      // of labels: before the end, and equal to the one before
  Tensor classes;                              // [batch, places]: labels with blanks around each of them
  Tensor places;                               // [batch, places]: 1, 2, ...
  Tensor may_skip;                             // [batch, places]: 1 where the place before may be left out
  int64_t count;                               // of places
};

/// a[0] b[0] a[1] b[1] .. and then `end`, which is [batch, 1].
Tensor interleaved(const Tensor& a, const Tensor& b, const Tensor& end) {
  const Dims& dims = a.dims();
  return concat({reshape(stack({a, b}, 2), {dims[0], 2 * dims[1]}), end}, 1);
}

Ctc prepare(const Tensor& given_label, const Tensor& logits_length, const Tensor& labels_length, int blank) {
  Ctc ctc;
  ctc.logits_length = cast(logits_length, DType::int64);
  ctc.labels_length = unsqueeze(cast(labels_length, DType::int64), {1});
  ctc.count = 2 * given_label.dims()[1] + 1;
  const Tensor label = cast(given_label, DType::int64), blanks = full_like(label, blank),
               end = full_like(ctc.labels_length, blank);
  ctc.valid = less_equal(cumsum(full_like(label, 1), 1), ctc.labels_length);
  ctc.label = where(ctc.valid, label, blanks);
  const Tensor before = slice(concat({end, ctc.label}, 1), {1}, {0}, {given_label.dims()[1]});
  ctc.repeated = logical_and(ctc.valid, equal(ctc.label, before));
  ctc.classes = interleaved(blanks, ctc.label, end);
  ctc.places = cumsum(full_like(ctc.classes, 1), 1);
  const Tensor differs = cast(not_equal(ctc.label, before), DType::int64);
  ctc.may_skip = interleaved(full_like(label, 0), differs, full_like(end, 0));
  return ctc;
}

/// Sums of paths, moved to the places `by` further.
Tensor moved(const Tensor& sums, int64_t by) {
  const int64_t count = sums.dims()[1];
  const Tensor never = full_like(slice(sums, {1}, {0}, {by}), kNever);
  return concat({never, slice(sums, {1}, {0}, {count - by})}, 1);
}

/// The loss [batch, 1] of logits [time, batch, classes], of at least one step.
Tensor ctc_loss(const Ctc& ctc, const Tensor& logits) {
  const int64_t batch = logits.dims()[1];
  const Tensor index = expand(unsqueeze(ctc.classes, {0}), {logits.dims()[0], batch, ctc.count});
  const Tensors steps = unbind(take_along_axis(log_softmax(logits, -1), index, 2), 0);
  const Tensor none = full_like(steps[0].detach(), 0), never = full_like(none, kNever);
  const auto only = [&](const Tensor& condition) { return where(condition, none, never); };
  const auto is_place = [&](int64_t offset) {
    return equal(ctc.places, add(scale(ctc.labels_length, 2), full_like(ctc.labels_length, offset)));
  };
  Tensor sums = add(steps[0], only(less_equal(ctc.places, full_like(ctc.places, 2))));
  const Tensor skips = only(greater_than(ctc.may_skip, full_like(ctc.may_skip, 0)));
  for (size_t t = 1; t < steps.size(); ++t) {
    Tensors ways = {sums};
    if (ctc.count > 1) {
      ways.push_back(moved(sums, 1));
      ways.push_back(add(moved(sums, 2), skips));
    }
    const Tensor next = add(logsumexp(stack(ways, 0), {0}, false, false), steps[t]);
    sums = where(is_before(static_cast<int64_t>(t), ctc.logits_length), next, sums);
  }
  const Tensor last = only(logical_or(is_place(1), is_place(0)));
  const Tensor loss = scale(logsumexp(add(sums, last), {1}, true, false), -1);
  const Tensor needed = add(ctc.labels_length, sum(cast(ctc.repeated, DType::int64), {1}, true)),
               length = unsqueeze(ctc.logits_length, {1});
  const Tensor fits = logical_and(less_equal(needed, length), greater_than(length, full_like(length, 0)));
  return where(fits, loss, full_like(loss.detach(), 0));
}

}  // namespace

std::tuple<Tensor, std::vector<Tensor>, std::vector<Tensor>> rnn_grad(
    const Tensor& x, const std::vector<Tensor>& pre_state, const std::vector<Tensor>& weight_list,
    const Tensor& sequence_length, const Tensor& dropout_state_out, const Tensor& out_grad,
    const std::vector<Tensor>& state_grad, float dropout_prob, bool is_bidirec, int num_layers, const std::string& mode,
    bool is_test) {
  const auto none_of = [](const Tensors& list) {
    Tensors zeros;
    for (const Tensor& each : list) zeros.push_back(full_like(each.detach(), 0));
    return zeros;
  };
  if (x.dims()[0] == 0) return {full_like(x.detach(), 0), state_grad, none_of(weight_list)};
  Network net{RnnMode::lstm, num_layers, is_bidirec ? 2 : 1, {}, {}};
  meta::find_mode(mode, net.mode);
  if (sequence_length.defined()) net.lengths = cast(sequence_length, DType::int64);
  const Tensor leaf = separated(x);
  const Tensors states = separated(pre_state), weights = separated(weight_list);
  const Tensor wide = widened(leaf);
  if (dropout_prob > 0 && !is_test) {
    const double factor = dropout_prob == 1 ? 1.0 : 1.0 / (1.0 - static_cast<double>(dropout_prob));
    net.kept = scale(cast(dropout_state_out, wide.dtype()), factor);
  }
  Tensors inputs = {leaf}, out_grads = {widened(out_grad)};
  inputs.insert(inputs.end(), states.begin(), states.end());
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  for (const Tensor& each : state_grad) out_grads.push_back(widened(each));
  const Tensors grads =
      recorded_grads(run_network(net, wide, widened_all(states), widened_all(weights)), inputs, out_grads);
  const auto first_weight = grads.begin() + 1 + static_cast<ptrdiff_t>(states.size());
  return {grads[0], Tensors(grads.begin() + 1, first_weight), Tensors(first_weight, grads.end())};
}

Tensor warpctc_grad(const Tensor& logits, const Tensor& label, const Tensor& logits_length, const Tensor& labels_length,
                    const Tensor& loss_grad, int blank, bool norm_by_times) {
  if (logits.dims()[0] == 0) return full_like(logits.detach(), 0);
  const Tensor leaf = separated(logits);
  const Ctc ctc = prepare(label, logits_length, labels_length, blank);
  Tensor grad = widened(loss_grad);
  if (norm_by_times) {
    const Tensor length = unsqueeze(ctc.logits_length, {1}), one = full_like(length, 1);
    grad = divide(grad, cast(maximum(length, one), grad.dtype()));
  }
  return recorded_grads({ctc_loss(ctc, widened(leaf))}, {leaf}, {grad})[0];
}

}  // namespace shard::external
