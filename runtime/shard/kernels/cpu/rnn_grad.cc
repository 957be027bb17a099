// The CPU kernel of the gradient of rnn: back through all steps, and then the gradients of weights as products over
// all steps and sequences.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/rnn_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <functional>

#include "shard/core/independent.h"
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
  Numbers<C> of_input, of_state;

  const Numbers<C>& state() const { return of_state.empty() ? of_input : of_state; }
};

/// The gradients of the state of one sequence, [hidden] each; c is null without one. Each row function replaces them by
/// the gradients of units [begin, end) of the state before the step, except for what comes through the product with the weights.
template <class C>
struct StateGrads {
  C *h, *c;
};

template <class C>
void lstm_row(int64_t n, int64_t begin, int64_t end, const C* kept, const C* c_before, const StateGrads<C>& state,
              C* sums) {
  each_vector<C>(begin, end, [&](const Units<C>& at) {
    const Vector<C> one = 1.0, input = at.load(kept), forget = at.load(kept + n), cell = at.load(kept + 2 * n),
                    output = at.load(kept + 3 * n), bent = tanh_of(at.load(kept + 4 * n)), of_h = at.load(state.h),
                    of_c = at.load(state.c) + of_h * output * (one - bent * bent);
    at.store(of_c * cell * input * (one - input), sums);
    at.store(of_c * at.load(c_before) * forget * (one - forget), sums + n);
    at.store(of_c * input * (one - cell * cell), sums + 2 * n);
    at.store(of_h * bent * output * (one - output), sums + 3 * n);
    at.store(of_c * forget, state.c);
    at.store(0.0, state.h);
  });
}

template <class C>
void gru_row(int64_t n, int64_t begin, int64_t end, const C* kept, const C* h_before, const StateGrads<C>& state,
             C* input_sums, C* state_sums) {
  SHARD_INDEPENDENT
  for (int64_t j = begin; j < end; ++j) {
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
void simple_row(int64_t begin, int64_t end, bool is_tanh, const C* kept, const StateGrads<C>& state, C* sums) {
  SHARD_INDEPENDENT
  for (int64_t j = begin; j < end; ++j) {
    sums[j] = is_tanh ? state.h[j] * (1 - kept[j] * kept[j]) : kept[j] > C(0) ? state.h[j] : C(0);
    state.h[j] = 0;
  }
}

/// Units [begin, end) of step number k of sequence b, whose output has the gradient `out_grad`.
template <class T, class C>
void run_row(const Network<T>& net, int64_t cell, int64_t k, int64_t b, int64_t begin, int64_t end, const C* out_grad,
             const StateGrads<C>& state, GateGrads<C>& grads) {
  const int64_t step = net.step_of(cell, k), n = net.hidden, at = (step * net.batch + b) * net.gates();
  C* const sums = grads.of_input.data() + at;
  if (!net.is_valid(step, b)) {  // the state stayed, and its gradient stays
    for (int64_t gate = 0; gate < net.gates(); gate += n) {
      std::fill(sums + gate + begin, sums + gate + end, C(0));
      if (!grads.of_state.empty()) std::fill_n(grads.of_state.data() + at + gate + begin, end - begin, C(0));
    }
    return;
  }
  for (int64_t j = begin; j < end; ++j) state.h[j] += out_grad[j];
  const C* const kept = net.kept(cell, step, b);
  switch (net.mode) {
    case meta::RnnMode::lstm: return lstm_row(n, begin, end, kept, net.c_before(cell, k, b), state, sums);
    case meta::RnnMode::gru:
      return gru_row(n, begin, end, kept, net.h_before(cell, k, b), state, sums, grads.of_state.data() + at);
    case meta::RnnMode::tanh: return simple_row(begin, end, true, kept, state, sums);
    case meta::RnnMode::relu: return simple_row(begin, end, false, kept, state, sums);
  }
}

/// The gradients of h and c [cells, batch, hidden]: at first of the last states, at last of those before the first
/// step.
template <class C>
struct States {
  Numbers<C> h, c;
};

template <class T>
Numbers<Compute<T>> copied(const DenseTensor& x) {
  Numbers<Compute<T>> copy(static_cast<size_t>(x.numel()));
  std::transform(x.data<T>(), x.data<T>() + x.numel(), copy.begin(),
                 [](T number) { return static_cast<Compute<T>>(number); });
  return copy;
}

/// Goes back through all steps. A job computes the gates of its units, which all jobs need for what comes through the product with
/// the weights; so it does that for step k and then the gates of step k - 1, which need only its own units.
template <class T, class C>
GateGrads<C> run_cell(const Network<T>& net, int64_t cell, const C* out_grad, const CellWeights<T>& weights,
                      States<C>& states) {
  const int64_t gates = net.gates(), n = net.hidden, direction = cell % net.directions;
  GateGrads<C> grads;
  grads.of_input.resize(static_cast<size_t>(net.time * net.batch * gates));
  if (net.mode == meta::RnnMode::gru) grads.of_state.resize(grads.of_input.size());
  const Packed<C> recurrent(gates, n, 1, {weights.hidden.data(), n, 1});
  Numbers<C> h(static_cast<size_t>(net.batch * recurrent.step), C(0));
  C* const ends = states.h.data() + cell * net.batch * n;
  for (int64_t b = 0; b < net.batch; ++b) std::copy_n(ends + b * n, n, h.data() + b * recurrent.step);
  for (int64_t k = net.time; k >= 0; --k) {
    each_job(net.batch, n, gates / 8 + 8, [&](const RnnJob& job) {
      if (k < net.time) {
        const int64_t row = net.step_of(cell, k) * net.batch + job.first;
        // Rows of steps beyond a sequence are zeros.
        recurrent.add_products(job.count, {grads.state().data() + row * gates, gates, 1}, job.begin, job.end,
                               h.data() + job.first * recurrent.step);
      }
      for (int64_t b = job.first; k > 0 && b < job.first + job.count; ++b) {
        const int64_t row = net.step_of(cell, k - 1) * net.batch + b;
        C* const c = states.c.empty() ? nullptr : states.c.data() + (cell * net.batch + b) * n;
        run_row(net, cell, k - 1, b, job.begin, job.end, out_grad + (row * net.directions + direction) * n,
                StateGrads<C>{h.data() + b * recurrent.step, c}, grads);
      }
    });
  }
  for (int64_t b = 0; b < net.batch; ++b) std::copy_n(h.data() + b * recurrent.step, n, ends + b * n);
  return grads;
}

/// The sums of the columns of [rows, columns], in the order of the rows.
template <class C>
Numbers<C> column_sums(const Numbers<C>& values, int64_t columns) {
  constexpr int64_t kColumns = 256;  // of a job
  const auto count = static_cast<int64_t>(values.size());
  Numbers<C> sums(static_cast<size_t>(columns), C(0));
  parallel_for((columns + kColumns - 1) / kColumns, count / std::max<int64_t>(columns, 1) * kColumns,
               [&](int64_t first, int64_t last) {
                 C* const to = sums.data();
                 for (int64_t i = 0; i < count; i += columns) {
                   for (int64_t j = first * kColumns; j < std::min(last * kColumns, columns); ++j)
                     to[j] += values[static_cast<size_t>(i + j)];
                 }
               });
  return sums;
}

/// The states before each step, [time, batch, hidden].
template <class T, class C>
Numbers<C> states_before(const Network<T>& net, int64_t cell) {
  Numbers<C> states(static_cast<size_t>(net.time * net.batch * net.hidden));
  parallel_for(net.time * net.batch, net.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t k = row / net.batch, b = row % net.batch;
      std::copy_n(net.h_before(cell, k, b), net.hidden,
                  states.data() + (net.step_of(cell, k) * net.batch + b) * net.hidden);
    }
  });
  return states;
}

template <class T, class C>
void store_weight_grads(const Network<T>& net, int64_t cell, const C* input, const GateGrads<C>& grads,
                        std::span<DenseTensor> list) {
  const int64_t gates = net.gates(), rows = net.time * net.batch, inputs = net.inputs_of(cell / net.directions);
  const auto at = [&](int64_t i) -> DenseTensor& { return list[static_cast<size_t>(i)]; };
  const Numbers<C> states = states_before<T, C>(net, cell);
  store<T>(product(Product{gates, inputs, rows, true, false}, grads.of_input.data(), input), at(2 * cell));
  store<T>(product(Product{gates, net.hidden, rows, true, false}, grads.state().data(), states.data()),
           at(2 * cell + 1));
  const Numbers<C> bias_grad = column_sums(grads.of_input, gates);
  store<T>(bias_grad, at(2 * (net.cells() + cell)));
  store<T>(grads.of_state.empty() ? bias_grad : column_sums(grads.of_state, gates), at(2 * (net.cells() + cell) + 1));
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
  States<C> states{copied<T>(state_grad[0]), state_grad.size() > 1 ? copied<T>(state_grad[1]) : Numbers<C>()};
  Widened<T> above(out_grad);  // the gradient of the output of a layer
  for (int64_t layer = net.layers - 1; layer >= 0; --layer) {
    const Widened<T> input = net.input_of(layer, x);
    Numbers<C> below;
    for (int64_t d = 0; d < net.directions; ++d) {
      const int64_t cell = layer * net.directions + d;
      const CellWeights<T> weights(weight_list, cell);
      const GateGrads<C> grads = run_cell(net, cell, above.data(), weights, states);
      const Product p{net.time * net.batch, net.inputs_of(layer), net.gates(), false, false};
      Numbers<C> part = product(p, grads.of_input.data(), weights.inputs.data());
      if (d == 0) below = std::move(part);
      else std::transform(below.begin(), below.end(), part.begin(), below.begin(), std::plus<C>());
      store_weight_grads(net, cell, input.data(), grads, weight_list_grad);
    }
    if (layer == 0) {
      store<T>(below, x_grad);
    } else {
      net.drop(below);
      above = Widened<T>(std::move(below));
    }
  }
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
