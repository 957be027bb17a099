// The CPU kernel of the gradient of rnn: back through all steps, and then the gradients of weights as products over
// all steps and sequences.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/rnn_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <vector>

#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_sequence.h"
#include "shard/kernels/cpu/rnn.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// Gradients of the sums of gates [time, batch, gates]: of the parts of the input, and of those of the state where they
/// differ, which is in a GRU.
template <class C>
struct GateGrads {
  std::vector<C> of_input, of_state;

  const std::vector<C>& state() const { return of_state.empty() ? of_input : of_state; }
};

/// The gradients of the state of one sequence, [hidden] each; c is null without one. Each row function replaces them by
/// the gradients of the state before the step, except for what comes through the product with the weights.
template <class C>
struct StateGrads {
  C *h, *c;
};

template <class C>
void lstm_row(int64_t n, const C* kept, const C* c_before, const StateGrads<C>& state, C* sums) {
  for (int64_t j = 0; j < n; ++j) {
    const C input = kept[j], forget = kept[n + j], cell = kept[2 * n + j], output = kept[3 * n + j],
            bent = tanh_of(kept[4 * n + j]), of_c = state.c[j] + state.h[j] * output * (1 - bent * bent);
    sums[j] = of_c * cell * input * (1 - input);
    sums[n + j] = of_c * c_before[j] * forget * (1 - forget);
    sums[2 * n + j] = of_c * input * (1 - cell * cell);
    sums[3 * n + j] = state.h[j] * bent * output * (1 - output);
    state.c[j] = of_c * forget;
    state.h[j] = 0;
  }
}

template <class C>
void gru_row(int64_t n, const C* kept, const C* h_before, const StateGrads<C>& state, C* input_sums, C* state_sums) {
  for (int64_t j = 0; j < n; ++j) {
    const C reset = kept[j], update = kept[n + j], cell = kept[2 * n + j], part = kept[3 * n + j], of_h = state.h[j],
            of_cell = of_h * (1 - update) * (1 - cell * cell);
    input_sums[j] = state_sums[j] = of_cell * part * reset * (1 - reset);
    input_sums[n + j] = state_sums[n + j] = of_h * (h_before[j] - cell) * update * (1 - update);
    input_sums[2 * n + j] = of_cell;
    state_sums[2 * n + j] = of_cell * reset;
    state.h[j] = of_h * update;
  }
}

/// Of tanh and relu, whose slopes follow from their results.
template <class C>
void simple_row(int64_t n, bool is_tanh, const C* kept, const StateGrads<C>& state, C* sums) {
  for (int64_t j = 0; j < n; ++j) {
    sums[j] = is_tanh ? state.h[j] * (1 - kept[j] * kept[j]) : kept[j] > C(0) ? state.h[j] : C(0);
    state.h[j] = 0;
  }
}

/// Step number k of sequence b, whose output has the gradient `out_grad`.
template <class T, class C>
void run_row(const Network<T>& net, int64_t cell, int64_t k, int64_t b, const C* out_grad, const StateGrads<C>& state,
             GateGrads<C>& grads) {
  const int64_t step = net.step_of(cell, k), n = net.hidden, at = (step * net.batch + b) * net.gates();
  if (!net.is_valid(step, b)) return;  // the state stayed, and its gradient stays
  for (int64_t j = 0; j < n; ++j) state.h[j] += out_grad[j];
  const C* const kept = net.kept(cell, step, b);
  C* const sums = grads.of_input.data() + at;
  switch (net.mode) {
    case meta::RnnMode::lstm: return lstm_row(n, kept, net.c_before(cell, k, b), state, sums);
    case meta::RnnMode::gru: return gru_row(n, kept, net.h_before(cell, k, b), state, sums, grads.of_state.data() + at);
    case meta::RnnMode::tanh: return simple_row(n, true, kept, state, sums);
    case meta::RnnMode::relu: return simple_row(n, false, kept, state, sums);
  }
}

/// The gradients of h and c [cells, batch, hidden]: at first of the last states, at last of those before the first
/// step.
template <class C>
struct States {
  std::vector<C> h, c;
};

/// Goes back through all steps of sequences [first, last).
template <class T, class C>
void run_sequences(const Network<T>& net, int64_t cell, int64_t first, int64_t last, const std::vector<C>& out_grad,
                   const Packed<C>& recurrent, States<C>& states, GateGrads<C>& grads) {
  const int64_t n = net.hidden, count = last - first, direction = cell % net.directions, gates = net.gates();
  std::vector<C> h(static_cast<size_t>(count * recurrent.step));
  C* const ends = states.h.data() + (cell * net.batch + first) * n;
  for (int64_t r = 0; r < count; ++r) std::copy_n(ends + r * n, n, h.data() + r * recurrent.step);
  for (int64_t k = net.time - 1; k >= 0; --k) {
    const int64_t row = net.step_of(cell, k) * net.batch + first;
    for (int64_t r = 0; r < count; ++r) {
      C* const c = states.c.empty() ? nullptr : states.c.data() + (cell * net.batch + first + r) * n;
      run_row(net, cell, k, first + r, out_grad.data() + ((row + r) * net.directions + direction) * n,
              StateGrads<C>{h.data() + r * recurrent.step, c}, grads);
    }
    // Rows of steps beyond a sequence are zeros.
    recurrent.add_products(count, {grads.state().data() + row * gates, gates, 1}, h.data());
  }
  for (int64_t r = 0; r < count; ++r) std::copy_n(h.data() + r * recurrent.step, n, ends + r * n);
}

template <class T, class C>
GateGrads<C> run_cell(const Network<T>& net, int64_t cell, const std::vector<C>& out_grad,
                      const CellWeights<T>& weights, States<C>& states) {
  const int64_t gates = net.gates();
  GateGrads<C> grads;
  grads.of_input.resize(static_cast<size_t>(net.time * net.batch * gates));
  if (net.mode == meta::RnnMode::gru) grads.of_state.resize(grads.of_input.size());
  const Packed<C> recurrent(gates, net.hidden, {weights.hidden.data(), net.hidden, 1});
  const int64_t together = sequences_of_job(net.batch), jobs = (net.batch + together - 1) / together;
  parallel_for(jobs, together * net.time * gates * (net.hidden / 8 + 8), [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job)
      run_sequences(net, cell, job * together, std::min((job + 1) * together, net.batch), out_grad, recurrent, states,
                    grads);
  });
  return grads;
}

/// The sums of the columns of [rows, columns], in the order of the rows.
template <class C>
std::vector<C> column_sums(const std::vector<C>& values, int64_t columns) {
  std::vector<C> sums(static_cast<size_t>(columns));
  for (size_t i = 0; i < values.size(); i += sums.size()) {
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += values[i + j];
  }
  return sums;
}

/// The states before each step, [time, batch, hidden].
template <class T, class C>
std::vector<C> states_before(const Network<T>& net, int64_t cell) {
  std::vector<C> states(static_cast<size_t>(net.time * net.batch * net.hidden));
  for (int64_t k = 0; k < net.time; ++k) {
    for (int64_t b = 0; b < net.batch; ++b)
      std::copy_n(net.h_before(cell, k, b), net.hidden,
                  states.data() + (net.step_of(cell, k) * net.batch + b) * net.hidden);
  }
  return states;
}

template <class T, class C>
void store_weight_grads(const Network<T>& net, int64_t cell, const std::vector<C>& input, const GateGrads<C>& grads,
                        std::span<DenseTensor> list) {
  const int64_t gates = net.gates(), rows = net.time * net.batch, inputs = net.inputs_of(cell / net.directions);
  const auto at = [&](int64_t i) -> DenseTensor& { return list[static_cast<size_t>(i)]; };
  const std::vector<C> states = states_before<T, C>(net, cell);
  store<T>(product(Product{gates, inputs, rows, true, false}, grads.of_input.data(), input.data()), at(2 * cell));
  store<T>(product(Product{gates, net.hidden, rows, true, false}, grads.state().data(), states.data()),
           at(2 * cell + 1));
  store<T>(column_sums(grads.of_input, gates), at(2 * (net.cells() + cell)));
  store<T>(column_sums(grads.state(), gates), at(2 * (net.cells() + cell) + 1));
}

template <class T>
void rnn_grad(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> pre_state,
              std::span<const DenseTensor> weight_list, const DenseTensor& sequence_length,
              const DenseTensor& dropout_state_out, const DenseTensor& reserve, const DenseTensor& out_grad,
              std::span<const DenseTensor> state_grad, float dropout_prob, bool is_bidirec, int num_layers,
              const std::string& mode, bool is_test, DenseTensor& x_grad, std::span<DenseTensor> pre_state_grad,
              std::span<DenseTensor> weight_list_grad) {
  using C = Compute<T>;
  if (sequence_length.defined())
    check_lengths(ctx, "sequence_length", 1 + pre_state.size() + weight_list.size(), sequence_length, 0, x.dims()[0]);
  const bool drops = dropout_prob > 0 && !is_test && num_layers > 1;
  const Network<T> net(x, pre_state, sequence_length, dropout_state_out, reserve,
                       drops ? static_cast<double>(dropout_prob) : 0.0, is_bidirec, num_layers, mode);
  States<C> states{widened<T>(state_grad[0]), state_grad.size() > 1 ? widened<T>(state_grad[1]) : std::vector<C>()};
  std::vector<C> above = widened<T>(out_grad);  // the gradient of the output of a layer
  for (int64_t layer = net.layers - 1; layer >= 0; --layer) {
    const std::vector<C> input = layer == 0 ? widened<T>(x) : net.input_of(layer);
    std::vector<C> below(input.size());
    for (int64_t d = 0; d < net.directions; ++d) {
      const int64_t cell = layer * net.directions + d;
      const CellWeights<T> weights(weight_list, cell);
      const GateGrads<C> grads = run_cell(net, cell, above, weights, states);
      const Product p{net.time * net.batch, net.inputs_of(layer), net.gates(), false, false};
      const std::vector<C> part = product(p, grads.of_input.data(), weights.inputs.data());
      for (size_t i = 0; i < below.size(); ++i) below[i] += part[i];
      store_weight_grads(net, cell, input, grads, weight_list_grad);
    }
    if (layer > 0) net.drop(below);
    above = std::move(below);
  }
  store<T>(above, x_grad);
  store<T>(states.h, pre_state_grad[0]);
  if (pre_state_grad.size() > 1) store<T>(states.c, pre_state_grad[1]);
}

void register_rnn_grad_for_target() {
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("rnn_grad", kBackend, dtype_of<T>, &rnn_grad<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_rnn_grad_for_target);
void register_rnn_grad() { HWY_DYNAMIC_DISPATCH(register_rnn_grad_for_target)(); }
}  // namespace shard::cpu
#endif
