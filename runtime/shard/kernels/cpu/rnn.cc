// The CPU kernel of rnn: for each cell one product with the inputs of all steps, and then for each step a product with
// the state and one loop over all gates.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/rnn.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_sequence.h"
#include "shard/kernels/cpu/rnn.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// The sums of the gates of one sequence at one step: the part of the input with its bias, and the part of the state, which has
/// its own. Gates are `units` apart, and those of the state `state_step`.
template <class C>
struct Sums {
  const C *input_part, *bias, *state_part;
  int64_t units, state_step;

  HWY_INLINE Vector<C> input(int64_t gate, const Units<C>& at) const {
    return at.load(input_part + gate * units) + at.load(bias + gate * units);
  }
  HWY_INLINE Vector<C> state(int64_t gate, const Units<C>& at) const { return at.load(state_part + gate * state_step); }
  HWY_INLINE Vector<C> operator()(int64_t gate, const Units<C>& at) const { return input(gate, at) + state(gate, at); }
};

/// Units [begin, end) of n. `kept` gets the gates and the new state.
template <class C>
void lstm_row(int64_t n, int64_t begin, int64_t end, const Sums<C>& sums, const C* c, C* kept) {
  each_vector<C>(begin, end, [&](const Units<C>& at) {
    const Vector<C> input = sigmoid_of(sums(0, at)), forget = sigmoid_of(sums(1, at)), cell = tanh_of(sums(2, at)),
                    output = sigmoid_of(sums(3, at)), next = forget * at.load(c) + input * cell;
    at.store(input, kept);
    at.store(forget, kept + n);
    at.store(cell, kept + 2 * n);
    at.store(output, kept + 3 * n);
    at.store(next, kept + 4 * n);
    at.store(output * tanh_of(next), kept + 5 * n);
  });
}

template <class C>
void gru_row(int64_t n, int64_t begin, int64_t end, const Sums<C>& sums, const C* h, C* kept) {
  each_vector<C>(begin, end, [&](const Units<C>& at) {
    const Vector<C> reset = sigmoid_of(sums(0, at)), update = sigmoid_of(sums(1, at)), state = sums.state(2, at),
                    cell = tanh_of(sums.input(2, at) + reset * state);
    at.store(reset, kept);
    at.store(update, kept + n);
    at.store(cell, kept + 2 * n);
    at.store(state, kept + 3 * n);
    at.store((at.load(h) - cell) * update + cell, kept + 4 * n);
  });
}

template <class C>
void tanh_row(int64_t begin, int64_t end, const Sums<C>& sums, C* kept) {
  each_vector<C>(begin, end, [&](const Units<C>& at) { at.store(tanh_of(sums(0, at)), kept); });
}

/// NaN stays NaN.
template <class C>
void relu_row(int64_t begin, int64_t end, const Sums<C>& sums, C* kept) {
  each_vector<C>(begin, end, [&](const Units<C>& at) {
    const Vector<C> sum = sums(0, at), zero = 0.0;
    at.store(select(sum < zero, zero, sum), kept);
  });
}

/// Units [begin, end) of step number k of sequence b.
template <class T, class C>
void run_row(const Network<T>& net, int64_t cell, int64_t k, int64_t b, int64_t begin, int64_t end,
             const Sums<C>& sums) {
  const int64_t step = net.step_of(cell, k), n = net.hidden;
  C* const kept = net.kept(cell, step, b);
  if (!net.is_valid(step, b)) {  // the state stays
    for (int64_t part = 0; part < net.kept_width(); part += n) std::fill(kept + part + begin, kept + part + end, C(0));
    std::copy(net.h_before(cell, k, b) + begin, net.h_before(cell, k, b) + end, net.h_of(cell, step, b) + begin);
    if (net.mode == meta::RnnMode::lstm)
      std::copy(net.c_before(cell, k, b) + begin, net.c_before(cell, k, b) + end, net.c_of(cell, step, b) + begin);
    return;
  }
  switch (net.mode) {
    case meta::RnnMode::lstm: return lstm_row(n, begin, end, sums, net.c_before(cell, k, b), kept);
    case meta::RnnMode::gru: return gru_row(n, begin, end, sums, net.h_before(cell, k, b), kept);
    case meta::RnnMode::tanh: return tanh_row(begin, end, sums, kept);
    case meta::RnnMode::relu: return relu_row(begin, end, sums, kept);
  }
}

/// All steps, of which `projected` has the parts of the input.
template <class T, class C>
void run_steps(const Network<T>& net, int64_t cell, const C* projected, const CellWeights<T>& weights) {
  const int64_t gates = net.gates(), n = net.hidden, groups = meta::parts_of(net.mode).gates;
  const Packed<C> recurrent(n, gates, groups, {weights.hidden.data(), 1, n});
  Numbers<C> states(static_cast<size_t>(net.batch * recurrent.step), C(0));
  for (int64_t k = 0; k < net.time; ++k) {
    each_job(net.batch, n, groups * (n / 8 + 8), [&](const RnnJob& job) {
      C* const sums = states.data() + job.first * recurrent.step;
      for (int64_t r = 0; r < job.count; ++r) {
        for (int64_t g = 0; g < groups; ++g)
          std::copy(weights.hidden_bias.data() + g * n + job.begin, weights.hidden_bias.data() + g * n + job.end,
                    sums + r * recurrent.step + g * recurrent.group_step + job.begin);
      }
      const Strided<C> h{net.h_before(cell, k, job.first), k == 0 ? n : net.kept_width(), 1};
      recurrent.add_products(job.count, h, job.begin, job.end, sums);
      for (int64_t r = 0; r < job.count; ++r) {
        const C* const input = projected + (net.step_of(cell, k) * net.batch + job.first + r) * gates;
        run_row(net, cell, k, job.first + r, job.begin, job.end,
                Sums<C>{input, weights.inputs_bias.data(), sums + r * recurrent.step, n, recurrent.group_step});
      }
    });
  }
}

template <class T, class C>
void run_cell(const Network<T>& net, int64_t cell, const C* input, std::span<const DenseTensor> list) {
  const CellWeights<T> weights(list, cell);
  const int64_t gates = net.gates(), inputs = net.inputs_of(cell / net.directions);
  const Numbers<C> projected =
      product(Product{net.time * net.batch, gates, inputs, false, true}, input, weights.inputs.data());
  run_steps(net, cell, projected.data(), weights);
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
    const Widened<T> input = net.input_of(layer, x);
    for (int64_t d = 0; d < net.directions; ++d) run_cell(net, layer * net.directions + d, input.data(), weight_list);
  }
  net.write_output(net.layers - 1, out.data<T>());
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
