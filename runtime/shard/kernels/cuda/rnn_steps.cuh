// The kernels of recurrent networks: a step of a cell, the same step back, and what is between layers.
#pragma once

#include <cmath>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/meta/rnn.h"

namespace shard::cuda {

using meta::RnnMode;

template <class C>
__device__ C sigmoid_of(C x) {
  return C(1) / (C(1) + ::exp(-x));
}

/// The sizes of a call, and what it keeps for the gradient. A cell is one direction of one layer.
template <class C>
struct Network {
  int64_t time, batch, hidden, directions;
  RnnMode mode;
  meta::RnnParts parts;
  Indices lengths;  // of sequences, where there are any
  bool has_lengths;
  C* reserve;  // [cells, time, batch, parts * hidden]

  __host__ __device__ int64_t gates() const { return parts.gates * hidden; }
  __host__ __device__ int64_t kept_width() const { return parts.reserved * hidden; }
  /// The step that a cell computes as number k.
  __host__ __device__ int64_t step_of(int64_t cell, int64_t k) const {
    return cell % directions == 0 ? k : time - 1 - k;
  }
  __device__ bool is_valid(int64_t step, int64_t b) const { return !has_lengths || step < lengths[b]; }
  /// What a step of a cell keeps of sequence b: its gates, and last its h, before which an LSTM has c.
  __device__ C* kept(int64_t cell, int64_t step, int64_t b) const {
    return reserve + ((cell * time + step) * batch + b) * kept_width();
  }
  __device__ C* h_of(int64_t cell, int64_t step, int64_t b) const {
    return kept(cell, step, b) + kept_width() - hidden;
  }
  __device__ C* c_of(int64_t cell, int64_t step, int64_t b) const { return h_of(cell, step, b) - hidden; }
};

/// Step number k of a cell, for unit i % hidden of sequence i / hidden. The state is replaced by the one after the step.
template <class C>
struct Step {
  Network<C> net;
  int64_t cell, k;
  const C *projected, *recurrent;      // [time, batch, gates] and [batch, gates]
  const C *inputs_bias, *hidden_bias;  // [gates]
  C *h, *c;                            // [batch, hidden]

  __device__ void operator()(int64_t i) const {
    const int64_t n = net.hidden, b = i / n, j = i % n, step = net.step_of(cell, k), row = step * net.batch + b;
    C* const kept = net.kept(cell, step, b) + j;
    if (!net.is_valid(step, b)) {  // the state stays
      for (int64_t part = 0; part < net.kept_width(); part += n) kept[part] = 0;
      net.h_of(cell, step, b)[j] = h[i];
      if (net.mode == RnnMode::lstm) net.c_of(cell, step, b)[j] = c[i];
      return;
    }
    const auto input = [&](int64_t gate) {
      return projected[row * net.gates() + gate * n + j] + inputs_bias[gate * n + j];
    };
    const auto state = [&](int64_t gate) {
      return recurrent[b * net.gates() + gate * n + j] + hidden_bias[gate * n + j];
    };
    const auto sum = [&](int64_t gate) { return input(gate) + state(gate); };
    switch (net.mode) {
      case RnnMode::lstm: {
        const C in = sigmoid_of(sum(0)), forget = sigmoid_of(sum(1)), cell_gate = ::tanh(sum(2)),
                out = sigmoid_of(sum(3));
        kept[0] = in;
        kept[n] = forget;
        kept[2 * n] = cell_gate;
        kept[3 * n] = out;
        kept[4 * n] = c[i] = forget * c[i] + in * cell_gate;
        kept[5 * n] = h[i] = out * ::tanh(c[i]);
        return;
      }
      case RnnMode::gru: {
        const C reset = sigmoid_of(sum(0)), update = sigmoid_of(sum(1)), part = state(2),
                cell_gate = ::tanh(input(2) + reset * part);
        kept[0] = reset;
        kept[n] = update;
        kept[2 * n] = cell_gate;
        kept[3 * n] = part;
        kept[4 * n] = h[i] = (h[i] - cell_gate) * update + cell_gate;
        return;
      }
      case RnnMode::tanh: kept[0] = h[i] = ::tanh(sum(0)); return;
      case RnnMode::relu: {
        const C total = sum(0);
        kept[0] = h[i] = total < C(0) ? C(0) : total;  // NaN stays NaN
        return;
      }
    }
  }
};

/// The same step back. h and c are the gradients of the state after it, of h without what came through the product of the step
/// after it, which is `added`, and become those of the state before it.
template <class C>
struct StepBack {
  Network<C> net;
  int64_t cell, k;
  const C* out_grad;           // [time, batch, directions * hidden]
  const C *h_first, *c_first;  // [batch, hidden], before the first step
  const C* added;              // [batch, hidden]; null at the last step
  C *h, *c;                    // [batch, hidden]
  C *of_input, *of_state;      // [time, batch, gates], which are one but of a GRU

  __device__ void operator()(int64_t i) const {
    const int64_t n = net.hidden, b = i / n, j = i % n, step = net.step_of(cell, k), row = step * net.batch + b;
    C *const sums = of_input + row * net.gates() + j, *const state_sums = of_state + row * net.gates() + j;
    const C above = added != nullptr ? h[i] + added[i] : h[i];
    if (!net.is_valid(step, b)) {  // the state stayed, and its gradient stays
      for (int64_t gate = 0; gate < net.gates(); gate += n) sums[gate] = state_sums[gate] = 0;
      h[i] = above;
      return;
    }
    const C of_h = above + out_grad[(row * net.directions + cell % net.directions) * n + j];
    const C* const kept = net.kept(cell, step, b) + j;
    const int64_t before = net.step_of(cell, k - 1);
    switch (net.mode) {
      case RnnMode::lstm: {
        const C in = kept[0], forget = kept[n], cell_gate = kept[2 * n], out = kept[3 * n], bent = ::tanh(kept[4 * n]),
                of_c = c[i] + of_h * out * (1 - bent * bent),
                c_before = k == 0 ? c_first[i] : net.c_of(cell, before, b)[j];
        sums[0] = of_c * cell_gate * in * (1 - in);
        sums[n] = of_c * c_before * forget * (1 - forget);
        sums[2 * n] = of_c * in * (1 - cell_gate * cell_gate);
        sums[3 * n] = of_h * bent * out * (1 - out);
        c[i] = of_c * forget;
        h[i] = 0;
        return;
      }
      case RnnMode::gru: {
        const C reset = kept[0], update = kept[n], cell_gate = kept[2 * n], part = kept[3 * n],
                of_cell = of_h * (1 - update) * (1 - cell_gate * cell_gate),
                h_before = k == 0 ? h_first[i] : net.h_of(cell, before, b)[j];
        sums[0] = state_sums[0] = of_cell * part * reset * (1 - reset);
        sums[n] = state_sums[n] = of_h * (h_before - cell_gate) * update * (1 - update);
        sums[2 * n] = of_cell;
        state_sums[2 * n] = of_cell * reset;
        h[i] = of_h * update;
        return;
      }
      case RnnMode::tanh:
        sums[0] = of_h * (1 - kept[0] * kept[0]);
        h[i] = 0;
        return;
      case RnnMode::relu:
        sums[0] = kept[0] > C(0) ? of_h : C(0);
        h[i] = 0;
        return;
    }
  }
};

struct CheckLengths {
  using IsDataCheck = void;
  Indices lengths;
  int64_t most;
  DataCheck<LengthRange> check;
  __device__ void operator()(int64_t i) const {
    if (lengths[i] < 0 || lengths[i] > most) check.report(i, lengths[i]);
  }
};

/// The states before each step [time, batch, hidden].
template <class C>
struct StatesBefore {
  Network<C> net;
  int64_t cell;
  const C* first;
  C* out;

  __device__ void operator()(int64_t i) const {
    const int64_t n = net.hidden, j = i % n, b = i / n % net.batch, k = i / n / net.batch;
    out[(net.step_of(cell, k) * net.batch + b) * n + j] =
        k == 0 ? first[b * n + j] : net.h_of(cell, net.step_of(cell, k - 1), b)[j];
  }
};

/// Values between two layers are multiplied by 0 or by the factor of dropout; a factor of 0 is none.
template <class C>
struct Dropout {
  const uint8_t* keeps;
  C factor;
  __device__ C of(C value, int64_t i) const { return factor == 0 ? value : keeps[i] != 0 ? value * factor : C(0); }
};

/// The output of a layer [time, batch, directions * hidden].
template <class C, class D>
struct Output {
  Network<C> net;
  int64_t layer;
  Dropout<C> dropout;
  D* out;

  __device__ void operator()(int64_t i) const {
    const int64_t n = net.hidden, j = i % n, d = i / n % net.directions, row = i / n / net.directions;
    const int64_t step = row / net.batch, b = row % net.batch;
    const C value = net.is_valid(step, b) ? net.h_of(layer * net.directions + d, step, b)[j] : C(0);
    out[i] = store<D>(dropout.of(value, i));
  }
};

/// `to` may be `from`.
template <class C>
struct Drop {
  Dropout<C> dropout;
  const C* from;
  C* to;
  __device__ void operator()(int64_t i) const { to[i] = dropout.of(from[i], i); }
};

template <class C>
struct AddInPlace {
  const C* from;
  C* to;
  __device__ void operator()(int64_t i) const { to[i] += from[i]; }
};

/// 1 where dropout keeps an element of a mask [time, batch, width], by its place in the whole mask.
struct DrawMask {
  uint8_t* out;
  RandomKey key;
  GlobalIndex index;
  float dropout;
  __device__ void operator()(int64_t i) const {
    PhiloxWords words(key);
    out[i] = uniform_fraction(words.at(static_cast<uint64_t>(index.of(i)))) >= dropout ? 1 : 0;
  }
};

template <class D>
struct Widen {
  const D* from;
  math_t<D>* to;
  __device__ void operator()(int64_t i) const { to[i] = load(from[i]); }
};
template <class D>
struct Narrow {
  const math_t<D>* from;
  D* to;
  __device__ void operator()(int64_t i) const { to[i] = store<D>(from[i]); }
};

}  // namespace shard::cuda
