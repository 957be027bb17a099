// Recurrent networks of cuDNN, of the host model. Its weights lie in an order that cuDNN does not promise, with gaps, so that whoever does not
// ask for their places is found.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "cudnn_model.h"

struct cudnnDropoutStruct {};
struct cudnnRNNStruct {
  cudnnRNNMode_t mode;
  cudnnDataType_t type;
  int64_t directions = 0, inputs = 0, hidden = 0, layers = 0;

  int64_t gates() const { return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1; }
  int64_t cells() const { return layers * directions; }
  int64_t width(int64_t cell) const { return cell < directions ? inputs : directions * hidden; }
  /// Of a cell: the matrices of its inputs, a gap, and for each gate that of the state, both biases, and a gap.
  int64_t gate_size() const { return hidden * hidden + 2 * hidden + 1; }
  int64_t cell_size(int64_t cell) const { return gates() * hidden * width(cell) + 5 + gates() * gate_size(); }
  int64_t first(int64_t cell) const {
    int64_t at = 3;
    for (int64_t before = 0; before < cell; ++before) at += cell_size(before);
    return at;
  }
  int64_t input_matrix(int64_t cell, int64_t gate) const { return first(cell) + gate * hidden * width(cell); }
  int64_t state_matrix(int64_t cell, int64_t gate) const {
    return input_matrix(cell, gates()) + 5 + gate * gate_size();
  }
  int64_t state_bias(int64_t cell, int64_t gate) const { return state_matrix(cell, gate) + hidden * hidden; }
  int64_t input_bias(int64_t cell, int64_t gate) const { return state_bias(cell, gate) + hidden; }
  int64_t weights() const { return first(cells()); }
};
struct cudnnRNNDataStruct {
  cudnnDataType_t type;
  int64_t time = 0, batch = 0, width = 0;
};

namespace {

using namespace cudnn_host;
using cuda_host::Kind;

std::atomic<uint64_t> issued = 0;
constexpr size_t kWorkspace = 64;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Device memory of one type, of `numel` elements.
struct Elements {
  cudnnDataType_t type;
  void* data;

  double operator[](int64_t i) const {
    return type == CUDNN_DATA_DOUBLE ? static_cast<const double*>(data)[i]
                                     : static_cast<double>(static_cast<const float*>(data)[i]);
  }
  void set(int64_t i, double value) const {
    if (type == CUDNN_DATA_DOUBLE) static_cast<double*>(data)[i] = value;
    else static_cast<float*>(data)[i] = static_cast<float>(value);
  }
};

/// One pass over a network.
struct Pass {
  cudnnRNNStruct rnn;
  int64_t time, batch;
  const void *x, *h, *c, *weights;

  /// What is kept of a step of a cell for a sequence, in elements of double: four gates, the hidden part of a GRU's, c, h, and the gradients
  /// of the sums of four gates from the input and from the state.
  enum Part : int64_t { kHiddenPart = 4, kC = 5, kH = 6, kOfInput = 7, kOfState = 11, kParts = 15 };
  double* kept = nullptr;

  static size_t reserve_of(const cudnnRNNStruct& rnn, int64_t time, int64_t batch) {
    return static_cast<size_t>(rnn.cells() * time * batch * rnn.hidden * kParts) * sizeof(double);
  }
  double& at(int64_t cell, int64_t t, int64_t b, int64_t part, int64_t j) const {
    return kept[(((cell * time + t) * batch + b) * kParts + part) * rnn.hidden + j];
  }
  Elements of(const void* data) const { return {rnn.type, const_cast<void*>(data)}; }
  double weight(int64_t place) const { return of(weights)[place]; }
  int64_t step(int64_t cell, int64_t k) const { return cell % rnn.directions == 0 ? k : time - 1 - k; }
  /// Element i of the input of a cell.
  double input(int64_t cell, int64_t t, int64_t b, int64_t i) const {
    if (cell < rnn.directions) return of(x)[(t * batch + b) * rnn.inputs + i];
    const int64_t below = (cell / rnn.directions - 1) * rnn.directions + i / rnn.hidden;
    return at(below, t, b, kH, i % rnn.hidden);
  }
  double before(int64_t cell, int64_t k, int64_t b, Part part, int64_t j) const {
    if (k > 0) return at(cell, step(cell, k - 1), b, part, j);
    return of(part == kH ? h : c)[(cell * batch + b) * rnn.hidden + j];
  }

  void forward(void* y, void* hy, void* cy) const {
    for (int64_t cell = 0; cell < rnn.cells(); ++cell) {
      for (int64_t k = 0; k < time; ++k) {
        for (int64_t b = 0; b < batch; ++b) {
          for (int64_t j = 0; j < rnn.hidden; ++j) compute(cell, k, b, j);
        }
      }
    }
    const int64_t top = rnn.cells() - rnn.directions, width = rnn.directions * rnn.hidden;
    for (int64_t i = 0; i < time * batch * width; ++i)
      of(y).set(i, at(top + i % width / rnn.hidden, i / width / batch, i / width % batch, kH, i % rnn.hidden));
    mark(y, time * batch * width);
    for (int64_t i = 0; i < rnn.cells() * batch * rnn.hidden; ++i) {
      const int64_t j = i % rnn.hidden, b = i / rnn.hidden % batch, cell = i / rnn.hidden / batch;
      of(hy).set(i, at(cell, step(cell, time - 1), b, kH, j));
      if (cy != nullptr) of(cy).set(i, at(cell, step(cell, time - 1), b, kC, j));
    }
    mark(hy, rnn.cells() * batch * rnn.hidden);
    if (cy != nullptr) mark(cy, rnn.cells() * batch * rnn.hidden);
  }

  void compute(int64_t cell, int64_t k, int64_t b, int64_t j) const {
    const int64_t t = step(cell, k), n = rnn.hidden, width = rnn.width(cell);
    double in[4], state[4];
    for (int64_t gate = 0; gate < rnn.gates(); ++gate) {
      in[gate] = weight(rnn.input_bias(cell, gate) + j);
      state[gate] = weight(rnn.state_bias(cell, gate) + j);
      for (int64_t i = 0; i < width; ++i)
        in[gate] += weight(rnn.input_matrix(cell, gate) + j * width + i) * input(cell, t, b, i);
      for (int64_t i = 0; i < n; ++i)
        state[gate] += weight(rnn.state_matrix(cell, gate) + j * n + i) * before(cell, k, b, kH, i);
    }
    double gates[4] = {}, h_new = 0, c_new = 0;
    if (rnn.mode == CUDNN_LSTM) {
      for (int gate = 0; gate < 4; ++gate)
        gates[gate] = gate == 2 ? std::tanh(in[2] + state[2]) : sigmoid(in[gate] + state[gate]);
      c_new = gates[1] * before(cell, k, b, kC, j) + gates[0] * gates[2];
      h_new = gates[3] * std::tanh(c_new);
    } else if (rnn.mode == CUDNN_GRU) {
      gates[0] = sigmoid(in[0] + state[0]);
      gates[1] = sigmoid(in[1] + state[1]);
      gates[2] = std::tanh(in[2] + gates[0] * state[2]);
      h_new = (1 - gates[1]) * gates[2] + gates[1] * before(cell, k, b, kH, j);
      at(cell, t, b, kHiddenPart, j) = state[2];
    } else {
      h_new = std::tanh(in[0] + state[0]);
    }
    for (int gate = 0; gate < 4; ++gate) at(cell, t, b, gate, j) = gates[gate];
    at(cell, t, b, kC, j) = c_new;
    at(cell, t, b, kH, j) = h_new;
  }

  void backward(const void* dy, const void* dhy, const void* dcy, void* dx, void* dhx, void* dcx) const {
    const int64_t n = rnn.hidden;
    std::vector<double> above(static_cast<size_t>(time * batch * rnn.directions * n)), below;
    for (size_t i = 0; i < above.size(); ++i) above[i] = of(dy)[static_cast<int64_t>(i)];
    for (int64_t layer = rnn.layers; layer-- > 0;) {
      const int64_t width = rnn.width(layer * rnn.directions);
      below.assign(static_cast<size_t>(time * batch * width), 0);
      for (int64_t d = 0; d < rnn.directions; ++d) {
        const int64_t cell = layer * rnn.directions + d;
        for (int64_t b = 0; b < batch; ++b) back(cell, b, above, below, dhy, dcy, dhx, dcx);
      }
      above = below;
    }
    for (size_t i = 0; i < above.size(); ++i) of(dx).set(static_cast<int64_t>(i), above[i]);
    mark(dx, static_cast<int64_t>(above.size()));
    mark(dhx, rnn.cells() * batch * n);
    if (dcx != nullptr) mark(dcx, rnn.cells() * batch * n);
  }

  void back(int64_t cell, int64_t b, const std::vector<double>& above, std::vector<double>& below, const void* dhy,
            const void* dcy, void* dhx, void* dcx) const {
    const int64_t n = rnn.hidden, width = rnn.width(cell), d = cell % rnn.directions;
    std::vector<double> of_h(static_cast<size_t>(n)), of_c(of_h);
    for (int64_t j = 0; j < n; ++j) {
      of_h[size_t(j)] = of(dhy)[(cell * batch + b) * n + j];
      if (dcy != nullptr) of_c[size_t(j)] = of(dcy)[(cell * batch + b) * n + j];
    }
    for (int64_t k = time; k-- > 0;) {
      const int64_t t = step(cell, k);
      std::vector<double> next(static_cast<size_t>(n));
      for (int64_t j = 0; j < n; ++j) {
        const double grad = of_h[size_t(j)] + above[size_t(((t * batch + b) * rnn.directions + d) * n + j)];
        const auto gate = [&](int64_t part) { return at(cell, t, b, part, j); };
        double sums[4] = {}, state[4] = {};
        if (rnn.mode == CUDNN_LSTM) {
          const double bent = std::tanh(gate(kC)), c_grad = of_c[size_t(j)] + grad * gate(3) * (1 - bent * bent);
          sums[0] = c_grad * gate(2) * gate(0) * (1 - gate(0));
          sums[1] = c_grad * before(cell, k, b, kC, j) * gate(1) * (1 - gate(1));
          sums[2] = c_grad * gate(0) * (1 - gate(2) * gate(2));
          sums[3] = grad * bent * gate(3) * (1 - gate(3));
          of_c[size_t(j)] = c_grad * gate(1);
          std::copy(sums, sums + 4, state);
        } else if (rnn.mode == CUDNN_GRU) {
          const double of_cell = grad * (1 - gate(1)) * (1 - gate(2) * gate(2));
          sums[0] = state[0] = of_cell * gate(kHiddenPart) * gate(0) * (1 - gate(0));
          sums[1] = state[1] = grad * (before(cell, k, b, kH, j) - gate(2)) * gate(1) * (1 - gate(1));
          sums[2] = of_cell;
          state[2] = of_cell * gate(0);
          next[size_t(j)] += grad * gate(1);
        } else {
          sums[0] = state[0] = grad * (1 - gate(kH) * gate(kH));
        }
        for (int64_t g = 0; g < 4; ++g) {
          at(cell, t, b, kOfInput + g, j) = sums[g];
          at(cell, t, b, kOfState + g, j) = state[g];
        }
      }
      for (int64_t g = 0; g < rnn.gates(); ++g) {
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < width; ++i)
            below[size_t((t * batch + b) * width + i)] +=
                at(cell, t, b, kOfInput + g, j) * weight(rnn.input_matrix(cell, g) + j * width + i);
          for (int64_t i = 0; i < n; ++i)
            next[size_t(i)] += at(cell, t, b, kOfState + g, j) * weight(rnn.state_matrix(cell, g) + j * n + i);
        }
      }
      of_h = next;
    }
    for (int64_t j = 0; j < n; ++j) {
      of(dhx).set((cell * batch + b) * n + j, of_h[size_t(j)]);
      if (dcx != nullptr) of(dcx).set((cell * batch + b) * n + j, of_c[size_t(j)]);
    }
  }

  /// Adds to what is there, as cuDNN does.
  void add_weights(void* to) const {
    std::vector<double> sums(static_cast<size_t>(rnn.weights()));
    for (int64_t cell = 0; cell < rnn.cells(); ++cell) {
      const int64_t n = rnn.hidden, width = rnn.width(cell);
      for (int64_t i = 0; i < time * batch * rnn.gates() * n; ++i) {
        const int64_t j = i % n, g = i / n % rnn.gates(), b = i / n / rnn.gates() % batch,
                      k = i / n / rnn.gates() / batch;
        const double in = at(cell, step(cell, k), b, kOfInput + g, j),
                     state = at(cell, step(cell, k), b, kOfState + g, j);
        sums[size_t(rnn.input_bias(cell, g) + j)] += in;
        sums[size_t(rnn.state_bias(cell, g) + j)] += state;
        for (int64_t w = 0; w < width; ++w)
          sums[size_t(rnn.input_matrix(cell, g) + j * width + w)] += in * input(cell, step(cell, k), b, w);
        for (int64_t w = 0; w < n; ++w)
          sums[size_t(rnn.state_matrix(cell, g) + j * n + w)] += state * before(cell, k, b, kH, w);
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (sums[i] != 0) of(to).set(at, of(to)[at] + sums[i]);
    }
  }

 private:
  void mark(void* data, int64_t numel) const {
    use_bytes(data, static_cast<size_t>(numel) * size_of(rnn.type), "a result", Kind::write);
  }
};

/// The sizes and places of a call as its descriptors have them; false where they do not fit each other.
bool fits(const cudnnRNNStruct& rnn, const cudnnRNNDataStruct& x, const cudnnRNNDataStruct& y, const Tensor& h,
          size_t weight_bytes) {
  return x.type == rnn.type && y.type == rnn.type && h.type == rnn.type && x.width == rnn.inputs &&
         y.width == rnn.directions * rnn.hidden && x.time == y.time && x.batch == y.batch &&
         h.sizes[0] == rnn.cells() && h.sizes[1] == x.batch && h.sizes[2] == rnn.hidden &&
         weight_bytes == static_cast<size_t>(rnn.weights()) * size_of(rnn.type);
}

/// Calls body on the stream, with all memory of the call checked.
template <class Body>
void submit(cudnnHandle_t handle, const Pass& pass, const Body& body) {
  ++issued;
  cuda_host::submit(handle->stream, [pass, body] {
    const cuda_host::DeviceAccess access;
    const cudnnRNNStruct& rnn = pass.rnn;
    const size_t element = size_of(rnn.type);
    const auto reads = [&](const void* data, int64_t numel, const char* name) {
      use_bytes(data, static_cast<size_t>(numel) * element, name, Kind::read);
    };
    reads(pass.x, pass.time * pass.batch * rnn.inputs, "x");
    reads(pass.h, rnn.cells() * pass.batch * rnn.hidden, "hx");
    if (rnn.mode == CUDNN_LSTM) reads(pass.c, rnn.cells() * pass.batch * rnn.hidden, "cx");
    if (pass.weights != nullptr) reads(pass.weights, rnn.weights(), "weights");
    body(pass);
  });
}

}  // namespace

namespace cuda_host {
uint64_t recurrent_passes() { return issued; }
}  // namespace cuda_host

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int count,
                                         const int sizes[], const int steps[]) {
  if (count != 3 || steps[2] != 1 || steps[1] != sizes[2] || steps[0] != sizes[1] * sizes[2])
    return CUDNN_STATUS_BAD_PARAM;
  tensor->type = type;
  tensor->count = count;
  tensor->sizes = {sizes[0], sizes[1], sizes[2], 1, 1};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* dropout) { return make(dropout); }
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout) { return drop(dropout); }
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float probability, void*, size_t,
                                        unsigned long long) {
  return probability == 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;  // its bits would be others than shard's
}
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* rnn) { return make(rnn); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn) { return drop(rnn); }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t, cudnnDirectionMode_t direction, cudnnRNNInputMode_t,
                                       cudnnDataType_t type, cudnnDataType_t compute, cudnnMathType_t math,
                                       int32_t inputs, int32_t hidden, int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  if (compute != type || math != CUDNN_FMA_MATH || (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_DOUBLE) ||
      inputs < 1 || layers < 1 || projected != hidden || dropout == nullptr || flags != CUDNN_RNN_PADDED_IO_ENABLED)
    return CUDNN_STATUS_BAD_PARAM;
  // A size that this version does not support, for a test of what is done then.
  if (hidden == 13) return CUDNN_STATUS_NOT_SUPPORTED;
  *rnn = {mode, type, direction == CUDNN_BIDIRECTIONAL ? 2 : 1, inputs, hidden, layers};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* data) { return make(data); }
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data) { return drop(data); }
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type, cudnnRNNDataLayout_t,
                                        int time, int batch, int width, const int lengths[], void*) {
  if (time < 1 || batch < 1 || width < 1 ||
      std::any_of(lengths, lengths + batch, [&](int each) { return each != time; }))
    return CUDNN_STATUS_BAD_PARAM;
  *data = {type, time, batch, width};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t* work, size_t* reserve) {
  const bool trains = mode == CUDNN_FWD_MODE_TRAINING;
  *work = trains ? 2 * kWorkspace : kWorkspace;
  *reserve = trains ? Pass::reserve_of(*rnn, x->time, x->batch) : 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t rnn, size_t* bytes) {
  *bytes = static_cast<size_t>(rnn->weights()) * size_of(rnn->type);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t rnn, int32_t cell, size_t bytes,
                                      const void* weights, int32_t number, cudnnTensorDescriptor_t, void** matrix,
                                      cudnnTensorDescriptor_t, void** bias) {
  if (const cudnnStatus_t status = wanted_status("cudnnGetRNNWeightParams"); status != CUDNN_STATUS_SUCCESS)
    return status;
  if (cell < 0 || cell >= rnn->cells() || number < 0 || number >= 2 * rnn->gates() ||
      bytes != static_cast<size_t>(rnn->weights()) * size_of(rnn->type))
    return CUDNN_STATUS_BAD_PARAM;
  const bool is_state = number >= rnn->gates();
  const int64_t gate = number % rnn->gates();
  char* const base = static_cast<char*>(const_cast<void*>(weights));
  const auto at = [&](int64_t place) { return base + place * static_cast<int64_t>(size_of(rnn->type)); };
  *matrix = at(is_state ? rnn->state_matrix(cell, gate) : rnn->input_matrix(cell, gate));
  *bias = at(is_state ? rnn->state_bias(cell, gate) : rnn->input_bias(cell, gate));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode, const int32_t[],
                              cudnnRNNDataDescriptor_t x_type, const void* x, cudnnRNNDataDescriptor_t y_type, void* y,
                              cudnnTensorDescriptor_t h_type, const void* hx, void* hy, cudnnTensorDescriptor_t,
                              const void* cx, void* cy, size_t weight_bytes, const void* weights, size_t work_bytes,
                              void* work, size_t reserve_bytes, void* reserve) {
  if (const cudnnStatus_t status = wanted_status("cudnnRNNForward"); status != CUDNN_STATUS_SUCCESS) return status;
  const bool trains = mode == CUDNN_FWD_MODE_TRAINING;
  const size_t kept = Pass::reserve_of(*rnn, x_type->time, x_type->batch);
  if (!fits(*rnn, *x_type, *y_type, *h_type, weight_bytes) || work_bytes < (trains ? 2 : 1) * kWorkspace ||
      work == nullptr || reserve_bytes != (trains ? kept : 0) || trains != (reserve != nullptr))
    return CUDNN_STATUS_BAD_PARAM;
  submit(handle, {*rnn, x_type->time, x_type->batch, x, hx, cx, weights}, [=](Pass pass) {
    std::vector<double> own;
    if (trains) {
      use_bytes(reserve, kept, "reserve", Kind::write);
    } else {
      own.resize(kept / sizeof(double));
    }
    pass.kept = trains ? static_cast<double*>(reserve) : own.data();
    pass.forward(y, hy, cy);
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t[],
                                      cudnnRNNDataDescriptor_t y_type, const void* y, const void* dy,
                                      cudnnRNNDataDescriptor_t x_type, void* dx, cudnnTensorDescriptor_t h_type,
                                      const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t,
                                      const void* cx, const void* dcy, void* dcx, size_t weight_bytes,
                                      const void* weights, size_t work_bytes, void* work, size_t reserve_bytes,
                                      void* reserve) {
  if (!fits(*rnn, *x_type, *y_type, *h_type, weight_bytes) || work_bytes < 2 * kWorkspace || work == nullptr ||
      y == nullptr || reserve_bytes != Pass::reserve_of(*rnn, x_type->time, x_type->batch))
    return CUDNN_STATUS_BAD_PARAM;
  // x is not an argument: dx has its size.
  const bool is_lstm = rnn->mode == CUDNN_LSTM;
  const int64_t y_width = y_type->width;
  submit(handle, {*rnn, x_type->time, x_type->batch, dx, hx, cx, weights}, [=](Pass pass) {
    use_bytes(reserve, reserve_bytes, "reserve", Kind::read);
    use_bytes(dy, static_cast<size_t>(pass.time * pass.batch * y_width) * size_of(pass.rnn.type), "dy", Kind::read);
    pass.kept = static_cast<double*>(reserve);
    pass.backward(dy, dhy, is_lstm ? dcy : nullptr, dx, dhx, is_lstm ? dcx : nullptr);
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode,
                                         const int32_t[], cudnnRNNDataDescriptor_t x_type, const void* x,
                                         cudnnTensorDescriptor_t h_type, const void* hx,
                                         cudnnRNNDataDescriptor_t y_type, const void* y, size_t weight_bytes,
                                         void* dweights, size_t work_bytes, void* work, size_t reserve_bytes,
                                         void* reserve) {
  if (const cudnnStatus_t status = wanted_status("cudnnRNNBackwardWeights_v8"); status != CUDNN_STATUS_SUCCESS)
    return status;
  if (mode != CUDNN_WGRAD_MODE_ADD) return CUDNN_STATUS_NOT_SUPPORTED;  // the other mode is not, in any version
  if (!fits(*rnn, *x_type, *y_type, *h_type, weight_bytes) || work_bytes < 2 * kWorkspace || work == nullptr ||
      y == nullptr || reserve_bytes != Pass::reserve_of(*rnn, x_type->time, x_type->batch))
    return CUDNN_STATUS_BAD_PARAM;
  // c is not an argument, and has the size of h.
  submit(handle, {*rnn, x_type->time, x_type->batch, x, hx, hx, nullptr}, [=](Pass pass) {
    use_bytes(dweights, weight_bytes, "the gradient of the weights", Kind::write);
    pass.kept = static_cast<double*>(reserve);
    pass.add_weights(dweights);
  });
  return CUDNN_STATUS_SUCCESS;
}
