// The CPU kernel of rnn: for each cell one product with the inputs of all steps, and then for each step a product with
// the state and one loop over all gates.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/rnn.cc"
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

/// The sums of the gates of one sequence at one step: the part of the input, its bias, and the part of the state with
/// its bias.
template <class C>
struct Sums {
  const C *input, *bias, *state;
  C operator[](int64_t i) const { return input[i] + bias[i] + state[i]; }
};

/// `kept` gets the gates and the new state.
template <class C>
void lstm_row(int64_t n, const Sums<C>& sums, const C* c, C* kept) {
#ifndef __clang__  // it does not know this pragma, and checks for overlap at run time instead
#pragma GCC ivdep
#endif
  for (int64_t j = 0; j < n; ++j) {
    const C input = sigmoid_of(sums[j]), forget = sigmoid_of(sums[n + j]), cell = tanh_of(sums[2 * n + j]),
            output = sigmoid_of(sums[3 * n + j]), next = forget * c[j] + input * cell;
    kept[j] = input;
    kept[n + j] = forget;
    kept[2 * n + j] = cell;
    kept[3 * n + j] = output;
    kept[4 * n + j] = next;
    kept[5 * n + j] = output * tanh_of(next);
  }
}

template <class C>
void gru_row(int64_t n, const Sums<C>& sums, const C* h, C* kept) {
#ifndef __clang__  // it does not know this pragma, and checks for overlap at run time instead
#pragma GCC ivdep
#endif
  for (int64_t j = 0; j < n; ++j) {
    const C reset = sigmoid_of(sums[j]), update = sigmoid_of(sums[n + j]), state = sums.state[2 * n + j],
            cell = tanh_of(sums.input[2 * n + j] + sums.bias[2 * n + j] + reset * state);
    kept[j] = reset;
    kept[n + j] = update;
    kept[2 * n + j] = cell;
    kept[3 * n + j] = state;
    kept[4 * n + j] = (h[j] - cell) * update + cell;
  }
}

template <class C>
void tanh_row(int64_t n, const Sums<C>& sums, C* kept) {
#ifndef __clang__  // it does not know this pragma, and checks for overlap at run time instead
#pragma GCC ivdep
#endif
  for (int64_t j = 0; j < n; ++j) kept[j] = tanh_of(sums[j]);
}

/// NaN stays NaN.
template <class C>
void relu_row(int64_t n, const Sums<C>& sums, C* kept) {
#ifndef __clang__  // it does not know this pragma, and checks for overlap at run time instead
#pragma GCC ivdep
#endif
  for (int64_t j = 0; j < n; ++j) kept[j] = sums[j] < C(0) ? C(0) : sums[j];
}

/// Step number k of sequence b.
template <class T, class C>
void run_row(const Network<T>& net, int64_t cell, int64_t k, int64_t b, const Sums<C>& sums) {
  const int64_t step = net.step_of(cell, k), n = net.hidden;
  C* const kept = net.kept(cell, step, b);
  const bool has_c = net.mode == meta::RnnMode::lstm;
  if (!net.is_valid(step, b)) {  // the state stays
    std::fill_n(kept, net.kept_width(), C(0));
    std::copy_n(net.h_before(cell, k, b), n, net.h_of(cell, step, b));
    if (has_c) std::copy_n(net.c_before(cell, k, b), n, net.c_of(cell, step, b));
    return;
  }
  switch (net.mode) {
    case meta::RnnMode::lstm: return lstm_row(n, sums, net.c_before(cell, k, b), kept);
    case meta::RnnMode::gru: return gru_row(n, sums, net.h_before(cell, k, b), kept);
    case meta::RnnMode::tanh: return tanh_row(n, sums, kept);
    case meta::RnnMode::relu: return relu_row(n, sums, kept);
  }
}

/// All steps of sequences [first, last), of which `projected` has the parts of the input.
template <class T, class C>
void run_sequences(const Network<T>& net, int64_t cell, int64_t first, int64_t last, const C* projected,
                   const CellWeights<T>& weights, const Packed<C>& recurrent) {
  const int64_t count = last - first, gates = net.gates();
  std::vector<C> states(static_cast<size_t>(count * recurrent.step));
  for (int64_t k = 0; k < net.time; ++k) {
    for (int64_t r = 0; r < count; ++r)
      std::copy_n(weights.hidden_bias.data(), gates, states.data() + r * recurrent.step);
    const Strided<C> h{net.h_before(cell, k, first), k == 0 ? net.hidden : net.kept_width(), 1};
    recurrent.add_products(count, h, states.data());
    for (int64_t r = 0; r < count; ++r) {
      const C* const input = projected + (net.step_of(cell, k) * net.batch + first + r) * gates;
      run_row(net, cell, k, first + r, Sums<C>{input, weights.inputs_bias.data(), states.data() + r * recurrent.step});
    }
  }
}

template <class T, class C>
void run_cell(const Network<T>& net, int64_t cell, const std::vector<C>& input, std::span<const DenseTensor> list) {
  const CellWeights<T> weights(list, cell);
  const int64_t gates = net.gates(), inputs = net.inputs_of(cell / net.directions);
  // Not a vector, which would set zeros, in pages that are new each time.
  const DenseTensor kept = DenseTensor::allocate(kCpu, {Dims{net.time * net.batch, gates}, dtype_of<C>});
  C* const projected = kept.data<C>();
  product_into(Product{net.time * net.batch, gates, inputs, false, true}, input.data(), weights.inputs.data(),
               projected);
  const Packed<C> recurrent(net.hidden, gates, {weights.hidden.data(), 1, net.hidden});
  const int64_t together = sequences_of_job(net.batch), jobs = (net.batch + together - 1) / together;
  parallel_for(jobs, together * net.time * gates * (net.hidden / 8 + 8), [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job)
      run_sequences(net, cell, job * together, std::min((job + 1) * together, net.batch), projected, weights,
                    recurrent);
  });
}

/// 1 where dropout keeps an element, which depends on its place in the whole mask.
void draw_mask(const Box& box, RandomKey key, float dropout, DenseTensor& mask) {
  const int64_t batch = mask.dims()[1], width = mask.dims()[2];
  uint8_t* const to = mask.data<uint8_t>();
  parallel_for(mask.dims()[0] * batch, 64 * width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t global = (row / batch * box.global[1] + box.begin[1] + row % batch) * width;
      for (int64_t j = 0; j < width; ++j)
        to[row * width + j] = uniform01(random_word(key, static_cast<uint64_t>(global + j))) >= dropout ? 1 : 0;
    }
  });
}

/// h, or c, of all cells after the last step.
template <class T, class C>
void store_state(const Network<T>& net, bool is_c, DenseTensor& to) {
  const int64_t n = net.hidden;
  for (int64_t i = 0; i < net.cells() * net.batch; ++i) {
    const int64_t cell = i / net.batch, b = i % net.batch;
    const C* const from = is_c ? net.c_before(cell, net.time, b) : net.h_before(cell, net.time, b);
    for (int64_t j = 0; j < n; ++j) to.data<T>()[i * n + j] = T(from[j]);
  }
}

template <class T>
void rnn(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> pre_state,
         std::span<const DenseTensor> weight_list, const DenseTensor& sequence_length, float dropout_prob,
         bool is_bidirec, int num_layers, const std::string& mode, int seed, bool is_test, RandomKey drawn,
         DenseTensor& out, DenseTensor& dropout_state_out, std::span<DenseTensor> state, DenseTensor& reserve) {
  using C = Compute<T>;
  if (sequence_length.defined())
    check_lengths(ctx, "sequence_length", 1 + pre_state.size() + weight_list.size(), sequence_length, 0, x.dims()[0]);
  const bool drops = dropout_prob > 0 && !is_test && num_layers > 1;
  const Network<T> net(x, pre_state, sequence_length, dropout_state_out, reserve,
                       drops ? static_cast<double>(dropout_prob) : 0.0, is_bidirec, num_layers, mode);
  if (drops) {
    draw_mask(ctx.output_box(1, dropout_state_out), seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn,
              dropout_prob, dropout_state_out);
  } else {
    std::fill_n(dropout_state_out.data<uint8_t>(), dropout_state_out.numel(), uint8_t{1});
  }
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    const std::vector<C> input = layer == 0 ? widened<T>(x) : net.input_of(layer);
    for (int64_t d = 0; d < net.directions; ++d) run_cell(net, layer * net.directions + d, input, weight_list);
  }
  store<T>(net.output_of(net.layers - 1), out);
  for (size_t i = 0; i < state.size(); ++i) store_state<T, C>(net, i == 1, state[i]);
}

void register_rnn_for_target() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) { register_kernel("rnn", kBackend, dtype_of<T>, &rnn<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_rnn_for_target);
void register_rnn() { HWY_DYNAMIC_DISPATCH(register_rnn_for_target)(); }
}  // namespace shard::cpu
#endif
