// rnn and its gradient on CUDA. For each cell one product with the inputs of all steps, and for each step a product with the state and one
// kernel over all gates; back, the gradients of weights are products over all steps and sequences. Arithmetic is in float or double.
#include <cmath>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/each.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/kernels/cuda/product.cuh"
#include "shard/kernels/registry.h"
#include "shard/meta/rnn.h"

namespace shard::cuda {
namespace {

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

template <class C>
struct DropInPlace {
  Dropout<C> dropout;
  C* values;
  __device__ void operator()(int64_t i) const { values[i] = dropout.of(values[i], i); }
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

/// One call. T: the dtype of its tensors.
template <class T>
class Call {
 public:
  using D = device_t<T>;
  using C = math_t<D>;

  Call(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> pre_state,
       std::span<const DenseTensor> weights, const DenseTensor& lengths, const DenseTensor& mask,
       const DenseTensor& reserve, float dropout, bool is_bidirec, int num_layers, const std::string& mode)
      : ctx_(ctx), x_(x), pre_state_(pre_state), weights_(weights),
        layers_(num_layers), net_{x.dims()[0],
                                  x.dims()[1],
                                  pre_state[0].dims()[2],
                                  is_bidirec ? 2 : 1,
                                  RnnMode::tanh,
                                  meta::RnnParts{},
                                  lengths.defined() ? Indices(lengths) : Indices(nullptr, false),
                                  lengths.defined(),
                                  elements<C>(reserve)},
        dropout_{elements<const uint8_t>(mask), dropout == 0   ? C(0)
                                                : dropout == 1 ? C(1)
                                                               : static_cast<C>(1 / (1 - double{dropout}))} {
    meta::find_mode(mode, net_.mode);
    net_.parts = meta::parts_of(net_.mode);
    if (lengths.defined()) check_lengths(lengths);
  }

  void forward(DenseTensor& out, std::span<DenseTensor> state) const {
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const DenseTensor input = input_of(layer);
      for (int64_t d = 0; d < net_.directions; ++d) run_cell(layer * net_.directions + d, input, state);
    }
    for_each(ctx_, out.numel(), Output<C, D>{net_, layers_ - 1, {nullptr, C(0)}, elements<D>(out)});
  }

  void backward(const DenseTensor& out_grad, std::span<const DenseTensor> state_grad, DenseTensor& x_grad,
                std::span<DenseTensor> pre_state_grad, std::span<DenseTensor> weight_grads) const {
    DenseTensor above = widened(out_grad);  // the gradient of the output of a layer
    for (int64_t layer = layers_ - 1; layer >= 0; --layer) {
      const DenseTensor input = input_of(layer), below = made({rows(), input.dims()[1]});
      for (int64_t d = 0; d < net_.directions; ++d)
        run_back(layer * net_.directions + d, input, above, state_grad, below, d > 0, pre_state_grad, weight_grads);
      if (layer > 0) for_each(ctx_, below.numel(), DropInPlace<C>{dropout_, elements<C>(below)});
      above = below;
    }
    narrow(above, x_grad);
  }

 private:
  int64_t rows() const { return net_.time * net_.batch; }
  /// Elements in the type of arithmetic.
  DenseTensor made(const Dims& dims) const {
    return DenseTensor::allocate(x_.device(), {dims, sizeof(C) == 8 ? DType::float64 : DType::float32});
  }
  DenseTensor widened(const DenseTensor& from) const {
    if constexpr (std::is_same_v<C, D>) return from;
    const DenseTensor wide = made(from.dims());
    for_each(ctx_, from.numel(), Widen<D>{elements<const D>(from), elements<C>(wide)});
    return wide;
  }
  void narrow(const DenseTensor& from, DenseTensor& to) const {
    for_each(ctx_, to.numel(), Narrow<D>{elements<const C>(from), elements<D>(to)});
  }
  /// Cell `cell` of a state [cells, batch, hidden], and a copy of it in the type of arithmetic, which steps write.
  DenseTensor part_of(const DenseTensor& all, int64_t cell) const {
    const Meta meta{{net_.batch, net_.hidden}, all.dtype()};
    return {all.storage(), meta, all.offset() + static_cast<size_t>(cell) * meta.bytes()};
  }
  DenseTensor copy_of(const DenseTensor& all, int64_t cell) const {
    const DenseTensor copy = made({net_.batch, net_.hidden});
    for_each(ctx_, copy.numel(), Widen<D>{elements<const D>(part_of(all, cell)), elements<C>(copy)});
    return copy;
  }
  /// Weights and biases of a cell, as the list has them: both weights of all cells, then both biases.
  DenseTensor weight(int64_t cell, int64_t which) const {
    return widened(weights_[static_cast<size_t>(2 * cell + which)]);
  }
  DenseTensor bias(int64_t cell, int64_t which) const {
    return widened(weights_[weights_.size() / 2 + static_cast<size_t>(2 * cell + which)]);
  }

  void check_lengths(const DenseTensor& lengths) const {
    const ArgumentPlace place(ctx_, 1 + pre_state_.size() + weights_.size(), lengths);
    const DataCheck<LengthRange> check(LengthRange{ctx_.op, "sequence_length", 0, net_.time, place});
    for_each(ctx_, lengths.numel(), CheckLengths{Indices(lengths), net_.time, check});
  }

  /// The input of a layer [time * batch, inputs].
  DenseTensor input_of(int64_t layer) const {
    if (layer == 0) return widened(x_.reinterpret({{rows(), x_.dims()[2]}, x_.dtype()}));
    const DenseTensor input = made({rows(), net_.directions * net_.hidden});
    for_each(ctx_, input.numel(), Output<C, C>{net_, layer - 1, dropout_, elements<C>(input)});
    return input;
  }

  void run_cell(int64_t cell, const DenseTensor& input, std::span<DenseTensor> state) const {
    const bool is_lstm = net_.mode == RnnMode::lstm;
    DenseTensor projected = made({rows(), net_.gates()}), recurrent = made({net_.batch, net_.gates()});
    matmul(ctx_, input, weight(cell, 0), false, true, projected);
    const DenseTensor weights = weight(cell, 1), inputs_bias = bias(cell, 0), hidden_bias = bias(cell, 1);
    const DenseTensor h = copy_of(pre_state_[0], cell), c = is_lstm ? copy_of(pre_state_[1], cell) : h;
    for (int64_t k = 0; k < net_.time; ++k) {
      matmul(ctx_, h, weights, false, true, recurrent);
      for_each(ctx_, h.numel(),
               Step<C>{net_, cell, k, elements<const C>(projected), elements<const C>(recurrent),
                       elements<const C>(inputs_bias), elements<const C>(hidden_bias), elements<C>(h), elements<C>(c)});
    }
    store_state(h, state[0], cell);
    if (is_lstm) store_state(c, state[1], cell);
  }

  void store_state(const DenseTensor& from, const DenseTensor& all, int64_t cell) const {
    DenseTensor to = part_of(all, cell);
    narrow(from, to);
  }

  void run_back(int64_t cell, const DenseTensor& input, const DenseTensor& out_grad,
                std::span<const DenseTensor> state_grad, const DenseTensor& below, bool adds,
                std::span<DenseTensor> pre_state_grad, std::span<DenseTensor> weight_grads) const {
    const bool is_lstm = net_.mode == RnnMode::lstm;
    const DenseTensor of_input = made({rows(), net_.gates()}),
                      of_state = net_.mode == RnnMode::gru ? made(of_input.dims()) : of_input;
    const DenseTensor h_first = copy_of(pre_state_[0], cell),
                      c_first = is_lstm ? copy_of(pre_state_[1], cell) : h_first;
    const DenseTensor h = copy_of(state_grad[0], cell), c = is_lstm ? copy_of(state_grad[1], cell) : h,
                      weights = weight(cell, 1);
    DenseTensor added = made(h.dims());
    for (int64_t k = net_.time - 1; k >= 0; --k) {
      const C* const from_later = k == net_.time - 1 ? nullptr : elements<const C>(added);
      for_each(ctx_, h.numel(),
               StepBack<C>{net_, cell, k, elements<const C>(out_grad), elements<const C>(h_first),
                           elements<const C>(c_first), from_later, elements<C>(h), elements<C>(c),
                           elements<C>(of_input), elements<C>(of_state)});
      const Meta step{{net_.batch, net_.gates()}, of_state.dtype()};
      const DenseTensor sums{of_state.storage(), step,
                             of_state.offset() + static_cast<size_t>(net_.step_of(cell, k)) * step.bytes()};
      matmul(ctx_, sums, weights, false, false, added);
    }
    if (net_.time > 0) for_each(ctx_, h.numel(), AddInPlace<C>{elements<const C>(added), elements<C>(h)});
    store_state(h, pre_state_grad[0], cell);
    if (is_lstm) store_state(c, pre_state_grad[1], cell);

    DenseTensor part = adds ? made(below.dims()) : below;
    matmul(ctx_, of_input, weight(cell, 0), false, false, part);
    if (adds) for_each(ctx_, part.numel(), AddInPlace<C>{elements<const C>(part), elements<C>(below)});
    const DenseTensor before = made({rows(), net_.hidden});
    for_each(ctx_, before.numel(), StatesBefore<C>{net_, cell, elements<const C>(h_first), elements<C>(before)});
    store_product(of_input, input, weight_grads[static_cast<size_t>(2 * cell)]);
    store_product(of_state, before, weight_grads[static_cast<size_t>(2 * cell + 1)]);
    store_sums(of_input, weight_grads[weight_grads.size() / 2 + static_cast<size_t>(2 * cell)]);
    store_sums(of_state, weight_grads[weight_grads.size() / 2 + static_cast<size_t>(2 * cell + 1)]);
  }

  void store_product(const DenseTensor& grads, const DenseTensor& values, DenseTensor& to) const {
    DenseTensor product = made({grads.dims()[1], values.dims()[1]});
    matmul(ctx_, grads, values, true, false, product);
    narrow(product, to);
  }
  void store_sums(const DenseTensor& grads, DenseTensor& to) const {
    DenseTensor sums = made(to.dims());
    sum_columns(ctx_, grads, {}, sums);
    narrow(sums, to);
  }

  const OpContext& ctx_;
  const DenseTensor& x_;
  std::span<const DenseTensor> pre_state_, weights_;
  int64_t layers_;
  Network<C> net_;
  Dropout<C> dropout_;
};

/// The probability by which elements between layers are dropped in this call.
float dropout_of(float dropout_prob, bool is_test, int num_layers) {
  return is_test || num_layers <= 1 ? 0 : dropout_prob;
}

template <class T>
void rnn(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> pre_state,
         std::span<const DenseTensor> weight_list, const DenseTensor& sequence_length, float dropout_prob,
         bool is_bidirec, int num_layers, const std::string& mode, int seed, bool is_test, RandomKey drawn,
         DenseTensor& out, DenseTensor& dropout_state_out, std::span<DenseTensor> state, DenseTensor& reserve) {
  const DeviceScope scope(x.device().index);
  const float dropout = dropout_of(dropout_prob, is_test, num_layers);
  uint8_t* const mask = elements<uint8_t>(dropout_state_out);
  if (dropout > 0) {
    const RandomKey key = seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn;
    for_each(ctx, dropout_state_out.numel(),
             DrawMask{mask, key, {ctx.output_box(1, dropout_state_out), dropout_state_out.dims()}, dropout});
  } else if (dropout_state_out.numel() > 0) {
    check(cudaMemsetAsync(mask, 1, dropout_state_out.meta().bytes(), stream()), "cudaMemsetAsync");
  }
  Call<T>(ctx, x, pre_state, weight_list, sequence_length, dropout_state_out, reserve, dropout, is_bidirec, num_layers,
          mode)
      .forward(out, state);
}

template <class T>
void rnn_grad(const OpContext& ctx, const DenseTensor& x, std::span<const DenseTensor> pre_state,
              std::span<const DenseTensor> weight_list, const DenseTensor& sequence_length,
              const DenseTensor& dropout_state_out, const DenseTensor& reserve, const DenseTensor& out_grad,
              std::span<const DenseTensor> state_grad, float dropout_prob, bool is_bidirec, int num_layers,
              const std::string& mode, bool is_test, DenseTensor& x_grad, std::span<DenseTensor> pre_state_grad,
              std::span<DenseTensor> weight_list_grad) {
  const DeviceScope scope(x.device().index);
  const float dropout = dropout_of(dropout_prob, is_test, num_layers);
  Call<T>(ctx, x, pre_state, weight_list, sequence_length, dropout_state_out, reserve, dropout, is_bidirec, num_layers,
          mode)
      .backward(out_grad, state_grad, x_grad, pre_state_grad, weight_list_grad);
}

}  // namespace

void register_rnn(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("rnn", backend, dtype_of<T>, &rnn<T>);
    register_kernel("rnn_grad", backend, dtype_of<T>, &rnn_grad<T>);
  });
}

}  // namespace shard::cuda
