#include "shard/kernels/cuda/rnn_cudnn.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "shard/kernels/cuda/cudnn_call.cuh"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // see cudnn_library.cuh

namespace shard::cuda {
namespace {

using meta::RnnMode;

struct RnnPlan {
  CudnnOwned<cudnnDropoutDescriptor_t> dropout;  // none, but a descriptor is wanted
  CudnnOwned<cudnnRNNDescriptor_t> rnn;
  CudnnOwned<cudnnRNNDataDescriptor_t> x, y;
  CudnnOwned<cudnnTensorDescriptor_t> state;
  std::shared_ptr<RnnBuffers> buffers = std::make_shared<RnnBuffers>();
  size_t inference_bytes = 0, training_bytes = 0;  // of work space
};

cudnnRNNMode_t mode_of(RnnMode mode) {
  switch (mode) {
    case RnnMode::lstm: return CUDNN_LSTM;
    case RnnMode::gru: return CUDNN_GRU;
    case RnnMode::tanh: return CUDNN_RNN_TANH;
    case RnnMode::relu: return CUDNN_RNN_RELU;
  }
  return CUDNN_RNN_TANH;
}

int number(int64_t value) { return static_cast<int>(value); }

CudnnOwned<cudnnRNNDataDescriptor_t> make_sequences(const CudnnLibrary& library, const RnnLayers& layers,
                                                    int64_t width) {
  auto sequences =
      make_cudnn<cudnnRNNDataDescriptor_t>(library, library.create_rnn_data, "cudnnCreateRNNDataDescriptor");
  const std::vector<int> lengths(static_cast<size_t>(layers.batch), number(layers.time));
  check(library.set_rnn_data(sequences.get(), cudnn_type(layers.dtype), CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                             number(layers.time), number(layers.batch), number(width), lengths.data(), nullptr),
        "cudnnSetRNNDataDescriptor");
  return sequences;
}

/// Adds a run, or makes the last one longer.
void add_run(std::vector<RnnRun>& runs, const RnnRun& run) {
  if (!runs.empty()) {
    RnnRun& last = runs.back();
    if (last.cell == run.cell && last.parameter == run.parameter && last.place + last.numel == run.place) {
      last.numel += run.numel;
      return;
    }
  }
  runs.push_back(run);
}

/// Where cuDNN has the weights. Its matrices number the gates as the op does: first those for inputs, then those for the state.
std::vector<RnnRun> find_weights(const Cudnn& cudnn, const RnnLayers& layers, const RnnPlan& plan) {
  const CudnnLibrary& library = cudnn.library();
  const Scratch space(plan.buffers->weight_bytes);
  const auto matrix =
                 make_cudnn<cudnnTensorDescriptor_t>(library, library.create_tensor, "cudnnCreateTensorDescriptor"),
             bias = make_cudnn<cudnnTensorDescriptor_t>(library, library.create_tensor, "cudnnCreateTensorDescriptor");
  const int64_t gates = meta::parts_of(layers.mode).gates, element = static_cast<int64_t>(size_of(layers.dtype));
  std::vector<RnnRun> runs;
  for (int64_t cell = 0; cell < layers.layers * layers.directions; ++cell) {
    const int64_t width = cell < layers.directions ? layers.inputs : layers.directions * layers.hidden;
    for (const bool is_bias : {false, true}) {
      for (int64_t number_of = 0; number_of < 2 * gates; ++number_of) {
        void *matrix_at = nullptr, *bias_at = nullptr;
        check(library.rnn_weight(cudnn.handle(), plan.rnn.get(), number(cell), plan.buffers->weight_bytes, space.data(),
                                 number(number_of), matrix.get(), &matrix_at, bias.get(), &bias_at),
              "cudnnGetRNNWeightParams");
        const bool is_state = number_of >= gates;
        const void* const at = is_bias ? bias_at : matrix_at;
        if (at == nullptr) fail(ErrorCode::internal, "cuDNN has no weights {} of cell {}", number_of, cell);
        const int64_t numel = layers.hidden * (is_bias ? 1 : is_state ? layers.hidden : width);
        const int64_t place = (static_cast<const char*>(at) - static_cast<const char*>(space.data())) / element;
        const RnnRun::Parameter parameter = is_bias    ? is_state ? RnnRun::state_bias : RnnRun::inputs_bias
                                            : is_state ? RnnRun::state
                                                       : RnnRun::inputs;
        add_run(runs, {cell, parameter, number_of % gates * numel, numel, place});
      }
    }
  }
  return runs;
}

std::optional<RnnPlan> make_plan(const Cudnn& cudnn, const RnnLayers& layers) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const int64_t outputs = layers.directions * layers.hidden, gates = meta::parts_of(layers.mode).gates * layers.hidden;
  // The second is what a layer computes of its inputs before its first step.
  for (const int64_t numel :
       {layers.time * layers.batch * layers.inputs, layers.time * layers.batch * layers.directions * gates,
        layers.layers * layers.batch * outputs, gates * layers.inputs, gates * outputs}) {
    if (numel > kMost) return std::nullopt;
  }
  const CudnnLibrary& library = cudnn.library();
  const cudnnDataType_t type = cudnn_type(layers.dtype);
  RnnPlan plan{make_cudnn<cudnnDropoutDescriptor_t>(library, library.create_dropout, "cudnnCreateDropoutDescriptor"),
               make_cudnn<cudnnRNNDescriptor_t>(library, library.create_rnn, "cudnnCreateRNNDescriptor"),
               make_sequences(library, layers, layers.inputs), make_sequences(library, layers, outputs),
               make_cudnn<cudnnTensorDescriptor_t>(library, library.create_tensor, "cudnnCreateTensorDescriptor")};
  check(library.set_dropout(plan.dropout.get(), cudnn.handle(), 0, nullptr, 0, 0), "cudnnSetDropoutDescriptor");
  // Products of floats are not rounded to TF32.
  check(library.set_rnn(plan.rnn.get(), CUDNN_RNN_ALGO_STANDARD, mode_of(layers.mode), CUDNN_RNN_DOUBLE_BIAS,
                        layers.directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type,
                        type, CUDNN_FMA_MATH, number(layers.inputs), number(layers.hidden), number(layers.hidden),
                        number(layers.layers), plan.dropout.get(), CUDNN_RNN_PADDED_IO_ENABLED),
        "cudnnSetRNNDescriptor_v8");
  const std::array<int, 3> sizes{number(layers.layers * layers.directions), number(layers.batch),
                                 number(layers.hidden)},
      steps{sizes[1] * sizes[2], sizes[2], 1};
  check(library.set_tensor_steps(plan.state.get(), type, 3, sizes.data(), steps.data()), "cudnnSetTensorNdDescriptor");
  check(library.rnn_weight_space(cudnn.handle(), plan.rnn.get(), &plan.buffers->weight_bytes),
        "cudnnGetRNNWeightSpaceSize");
  size_t none = 0;
  check(library.rnn_space(cudnn.handle(), plan.rnn.get(), CUDNN_FWD_MODE_INFERENCE, plan.x.get(), &plan.inference_bytes,
                          &none),
        "cudnnGetRNNTempSpaceSizes");
  check(library.rnn_space(cudnn.handle(), plan.rnn.get(), CUDNN_FWD_MODE_TRAINING, plan.x.get(), &plan.training_bytes,
                          &plan.buffers->reserve_bytes),
        "cudnnGetRNNTempSpaceSizes");
  plan.buffers->weights = find_weights(cudnn, layers, plan);
  return plan;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Cudnn of the current device, which is there, and its plan, unless there is none.
std::pair<const Cudnn&, std::optional<RnnPlan>&> plan_of(const RnnLayers& layers) {
  Cudnn& cudnn = *Cudnn::of(current_device());
  return {cudnn, cudnn.plan(layers, make_plan)};
}

}  // namespace

bool has_cudnn_rnn(RnnMode mode, bool has_lengths) {
  return cudnn_library() != nullptr && !has_lengths && mode != RnnMode::relu;
}

std::shared_ptr<const RnnBuffers> find_cudnn_rnn(const RnnLayers& layers) {
  const std::optional<RnnPlan>& plan = plan_of(layers).second;
  return plan ? plan->buffers : nullptr;
}

bool rnn_by_cudnn(const RnnLayers& layers, const RnnArguments& arguments, void* y, void* h_out, void* c_out) {
  const auto [cudnn, plan] = plan_of(layers);
  if (!plan) return false;
  const bool trains = arguments.reserve != nullptr;
  const size_t bytes = trains ? plan->training_bytes : plan->inference_bytes;
  const Scratch space(bytes);
  const cudnnStatus_t status = cudnn.library().rnn_forward(
      cudnn.handle(), plan->rnn.get(), trains ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, nullptr,
      plan->x.get(), arguments.x, plan->y.get(), y, plan->state.get(), arguments.h, h_out, plan->state.get(),
      arguments.c, c_out, plan->buffers->weight_bytes, arguments.weights, bytes, space.data(),
      trains ? plan->buffers->reserve_bytes : 0, arguments.reserve);
  return is_done(status, plan, "a recurrent network of cuDNN");
}

bool rnn_grad_by_cudnn(const RnnLayers& layers, const RnnArguments& arguments, const void* y,
                       const RnnGradients& gradients) {
  const auto [cudnn, plan] = plan_of(layers);
  if (!plan) return false;
  const Scratch space(plan->training_bytes);
  const cudnnStatus_t of_data = cudnn.library().rnn_backward_data(
      cudnn.handle(), plan->rnn.get(), nullptr, plan->y.get(), y, gradients.y, plan->x.get(), gradients.x,
      plan->state.get(), arguments.h, gradients.h_out, gradients.h, plan->state.get(), arguments.c, gradients.c_out,
      gradients.c, plan->buffers->weight_bytes, arguments.weights, plan->training_bytes, space.data(),
      plan->buffers->reserve_bytes, arguments.reserve);
  if (!is_done(of_data, plan, "the gradient of a recurrent network of cuDNN")) return false;
  // It adds to what is there.
  check(cudaMemsetAsync(gradients.weights, 0, plan->buffers->weight_bytes, stream()), "cudaMemsetAsync");
  const cudnnStatus_t of_weights = cudnn.library().rnn_backward_weights(
      cudnn.handle(), plan->rnn.get(), CUDNN_WGRAD_MODE_ADD, nullptr, plan->x.get(), arguments.x, plan->state.get(),
      arguments.h, plan->y.get(), y, plan->buffers->weight_bytes, gradients.weights, plan->training_bytes, space.data(),
      plan->buffers->reserve_bytes, arguments.reserve);
  return is_done(of_weights, plan, "the gradient of the weights of a recurrent network of cuDNN");
}

}  // namespace shard::cuda
