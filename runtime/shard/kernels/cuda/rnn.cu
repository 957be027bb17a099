// rnn and its gradient on CUDA. For each cell one product with the inputs of all steps, and for each step a product with the state and one
// kernel over all gates; back, the gradients of weights are products over all steps and sequences. cuDNN's are used where it has them.
// Arithmetic is in float or double.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/each.cuh"
#include "shard/kernels/cuda/product.cuh"
#include "shard/kernels/cuda/rnn_cudnn.h"
#include "shard/kernels/cuda/rnn_steps.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

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

  /// What is kept for the gradient is not written where cuDNN computes the network: its gradient runs the network again.
  void forward(DenseTensor& out, std::span<DenseTensor> state) const {
    if (is_for_cudnn() && forward_by_cudnn(out, state)) return;
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const DenseTensor input = input_of(layer);
      for (int64_t d = 0; d < net_.directions; ++d) run_cell(layer * net_.directions + d, input, state);
    }
    for_each(ctx_, out.numel(), Output<C, D>{net_, layers_ - 1, {nullptr, C(0)}, elements<D>(out)});
  }

  void backward(const DenseTensor& out_grad, std::span<const DenseTensor> state_grad, DenseTensor& x_grad,
                std::span<DenseTensor> pre_state_grad, std::span<DenseTensor> weight_grads) {
    if (is_for_cudnn()) {
      if (backward_by_cudnn(out_grad, state_grad, x_grad, pre_state_grad, weight_grads)) return;
      keep_again();
    }
    DenseTensor above = widened(out_grad);  // the gradient of the output of a layer
    for (int64_t layer = layers_ - 1; layer >= 0; --layer) {
      const DenseTensor input = input_of(layer), below = made({rows(), input.dims()[1]});
      for (int64_t d = 0; d < net_.directions; ++d)
        run_back(layer * net_.directions + d, input, above, state_grad, below, d > 0, pre_state_grad, weight_grads);
      if (layer > 0) for_each(ctx_, below.numel(), Drop<C>{dropout_, elements<const C>(below), elements<C>(below)});
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
  /// The same elements at an address that cuDNN takes: a multiple of 16, as those of allocations are.
  DenseTensor aligned(const DenseTensor& from) const {
    if (reinterpret_cast<uintptr_t>(from.raw()) % 16 == 0) return from;
    const DenseTensor copy = DenseTensor::allocate(from.device(), from.meta());
    check(cudaMemcpyAsync(copy.raw(), from.raw(), from.meta().bytes(), cudaMemcpyDeviceToDevice, stream()),
          "cudaMemcpyAsync");
    return copy;
  }
  void narrow(const DenseTensor& from, DenseTensor& to) const {
    for_each(ctx_, to.numel(), Narrow<D>{elements<const C>(from), elements<D>(to)});
  }
  /// Cells of a state [cells, batch, hidden], and a copy of them in the type of arithmetic, which steps write.
  DenseTensor part_of(const DenseTensor& all, int64_t cell, int64_t cells = 1) const {
    const Meta one{{net_.batch, net_.hidden}, all.dtype()};
    return {all.storage(),
            {{cells * net_.batch, net_.hidden}, all.dtype()},
            all.offset() + static_cast<size_t>(cell) * one.bytes()};
  }
  DenseTensor copy_of(const DenseTensor& all, int64_t cell, int64_t cells = 1) const {
    const DenseTensor copy = made({cells * net_.batch, net_.hidden});
    for_each(ctx_, copy.numel(), Widen<D>{elements<const D>(part_of(all, cell, cells)), elements<C>(copy)});
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
    DenseTensor projected = made({rows(), net_.gates()}), recurrent = made({net_.batch, net_.gates()});
    matmul(ctx_, input, weight(cell, 0), false, true, projected);
    const DenseTensor weights = weight(cell, 1), inputs_bias = bias(cell, 0), hidden_bias = bias(cell, 1);
    const DenseTensor h = copy_of(pre_state_[0], cell), c = is_lstm() ? copy_of(pre_state_[1], cell) : h;
    for (int64_t k = 0; k < net_.time; ++k) {
      matmul(ctx_, h, weights, false, true, recurrent);
      for_each(ctx_, h.numel(),
               Step<C>{net_, cell, k, elements<const C>(projected), elements<const C>(recurrent),
                       elements<const C>(inputs_bias), elements<const C>(hidden_bias), elements<C>(h), elements<C>(c)});
    }
    store_state(h, state[0], cell);
    if (is_lstm()) store_state(c, state[1], cell);
  }

  void store_state(const DenseTensor& from, const DenseTensor& all, int64_t cell, int64_t cells = 1) const {
    DenseTensor to = part_of(all, cell, cells);
    narrow(from, to);
  }

  void run_back(int64_t cell, const DenseTensor& input, const DenseTensor& out_grad,
                std::span<const DenseTensor> state_grad, const DenseTensor& below, bool adds,
                std::span<DenseTensor> pre_state_grad, std::span<DenseTensor> weight_grads) const {
    const DenseTensor of_input = made({rows(), net_.gates()}),
                      of_state = net_.mode == RnnMode::gru ? made(of_input.dims()) : of_input;
    const DenseTensor h_first = copy_of(pre_state_[0], cell),
                      c_first = is_lstm() ? copy_of(pre_state_[1], cell) : h_first;
    const DenseTensor h = copy_of(state_grad[0], cell), c = is_lstm() ? copy_of(state_grad[1], cell) : h,
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
    if (is_lstm()) store_state(c, pre_state_grad[1], cell);

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

  bool is_for_cudnn() const { return has_cudnn_rnn(net_.mode, net_.has_lengths); }
  bool is_lstm() const { return net_.mode == RnnMode::lstm; }

  /// Runs the network to keep what its gradient needs, in memory of this call.
  void keep_again() {
    kept_again_ = made({layers_ * net_.directions * rows(), net_.kept_width()});
    net_.reserve = elements<C>(kept_again_);
    std::vector<DenseTensor> state;
    for (const DenseTensor& each : pre_state_) state.push_back(DenseTensor::allocate(x_.device(), each.meta()));
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const DenseTensor input = input_of(layer);
      for (int64_t d = 0; d < net_.directions; ++d) run_cell(layer * net_.directions + d, input, state);
    }
  }

  /// Layers that cuDNN computes in one call: all, or one where elements between layers are dropped.
  struct CudnnLayers {
    RnnLayers shape;
    std::shared_ptr<const RnnBuffers> buffers;
    int64_t first_cell, cells;
    DenseTensor x, h, c, weights;  // c: undefined but for LSTM
    DenseTensor y, reserve;        // of its forward pass; the reserve only where a gradient follows

    RnnArguments arguments() const {
      return {x.raw(), h.raw(), c.defined() ? c.raw() : nullptr, weights.raw(),
              reserve.defined() ? reserve.raw() : nullptr};
    }
  };

  DenseTensor bytes_of(size_t bytes) const {
    return DenseTensor::allocate(x_.device(), {{static_cast<int64_t>(bytes)}, DType::uint8});
  }
  const DenseTensor& parameter(std::span<const DenseTensor> list, const RnnRun& run, int64_t cell) const {
    const size_t first = run.parameter >= RnnRun::inputs_bias ? list.size() / 2 : 0;
    return list[first + static_cast<size_t>(2 * cell + run.parameter % 2)];
  }

  /// Nullopt where cuDNN does not support such layers.
  std::optional<CudnnLayers> layers_for_cudnn(int64_t layer, int64_t layers, const DenseTensor& input,
                                              bool trains) const {
    CudnnLayers of{{net_.mode, sizeof(C) == 8 ? DType::float64 : DType::float32, net_.time, net_.batch, input.dims()[1],
                    net_.hidden, net_.directions, layers},
                   nullptr,
                   layer * net_.directions,
                   layers * net_.directions,
                   input,
                   {},
                   {},
                   {},
                   {},
                   {}};
    of.buffers = find_cudnn_rnn(of.shape);
    if (of.buffers == nullptr) return std::nullopt;
    of.h = copy_of(pre_state_[0], of.first_cell, of.cells);
    if (is_lstm()) of.c = copy_of(pre_state_[1], of.first_cell, of.cells);
    of.weights = bytes_of(of.buffers->weight_bytes);
    for (const RnnRun& run : of.buffers->weights) {
      const D* const from = elements<const D>(parameter(weights_, run, of.first_cell + run.cell)) + run.begin;
      for_each(ctx_, run.numel, Widen<D>{from, static_cast<C*>(of.weights.raw()) + run.place});
    }
    of.y = made({rows(), net_.directions * net_.hidden});
    if (trains) of.reserve = bytes_of(of.buffers->reserve_bytes);
    return of;
  }

  /// Runs all layers, of which `state` gets the states after the last step where it is not empty. Nullopt where cuDNN does not support them.
  std::optional<std::vector<CudnnLayers>> run_by_cudnn(std::span<DenseTensor> state, bool trains) const {
    if (rows() == 0 || net_.hidden == 0 || x_.dims()[2] == 0) return std::nullopt;
    std::vector<CudnnLayers> all;
    DenseTensor input = aligned(widened(x_.reinterpret({{rows(), x_.dims()[2]}, x_.dtype()})));
    const int64_t at_once = dropout_.factor == 0 ? layers_ : 1;
    for (int64_t layer = 0; layer < layers_; layer += at_once) {
      std::optional<CudnnLayers> layers = layers_for_cudnn(layer, at_once, input, trains);
      if (!layers) return std::nullopt;
      const DenseTensor h = made(layers->h.dims()), c = is_lstm() ? made(h.dims()) : DenseTensor();
      if (!rnn_by_cudnn(layers->shape, layers->arguments(), layers->y.raw(), h.raw(), is_lstm() ? c.raw() : nullptr))
        return std::nullopt;
      if (!state.empty()) {
        store_state(h, state[0], layers->first_cell, layers->cells);
        if (is_lstm()) store_state(c, state[1], layers->first_cell, layers->cells);
      }
      input = layers->y;
      if (layer + at_once < layers_) {  // y itself belongs to the gradient
        input = made(layers->y.dims());
        for_each(ctx_, input.numel(), Drop<C>{dropout_, elements<const C>(layers->y), elements<C>(input)});
      }
      all.push_back(std::move(*layers));
    }
    return all;
  }

  bool forward_by_cudnn(DenseTensor& out, std::span<DenseTensor> state) const {
    const auto all = run_by_cudnn(state, false);
    if (all) narrow(all->back().y, out);
    return all.has_value();
  }

  bool backward_by_cudnn(const DenseTensor& out_grad, std::span<const DenseTensor> state_grad, DenseTensor& x_grad,
                         std::span<DenseTensor> pre_state_grad, std::span<DenseTensor> weight_grads) const {
    const auto all = run_by_cudnn({}, true);
    if (!all) return false;
    DenseTensor above = aligned(widened(out_grad));
    for (size_t i = all->size(); i-- > 0;) {
      const CudnnLayers& layers = (*all)[i];
      const auto states = [&](size_t which) { return copy_of(state_grad[which], layers.first_cell, layers.cells); };
      const DenseTensor h_out = states(0), c_out = is_lstm() ? states(1) : DenseTensor();
      const DenseTensor below = made(layers.x.dims()), h = made(layers.h.dims()),
                        c = is_lstm() ? made(h.dims()) : DenseTensor(),
                        weights = bytes_of(layers.buffers->weight_bytes);
      const auto raw = [](const DenseTensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; };
      if (!rnn_grad_by_cudnn(layers.shape, layers.arguments(), layers.y.raw(),
                             {above.raw(), h_out.raw(), raw(c_out), below.raw(), h.raw(), raw(c), weights.raw()}))
        return false;
      store_state(h, pre_state_grad[0], layers.first_cell, layers.cells);
      if (is_lstm()) store_state(c, pre_state_grad[1], layers.first_cell, layers.cells);
      for (const RnnRun& run : layers.buffers->weights) {
        D* const to = elements<D>(parameter(weight_grads, run, layers.first_cell + run.cell)) + run.begin;
        for_each(ctx_, run.numel, Narrow<D>{static_cast<const C*>(weights.raw()) + run.place, to});
      }
      if (i > 0) for_each(ctx_, below.numel(), Drop<C>{dropout_, elements<const C>(below), elements<C>(below)});
      above = below;
    }
    narrow(above, x_grad);
    return true;
  }

  const OpContext& ctx_;
  const DenseTensor& x_;
  std::span<const DenseTensor> pre_state_, weights_;
  int64_t layers_;
  Network<C> net_;
  Dropout<C> dropout_;
  DenseTensor kept_again_;
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
