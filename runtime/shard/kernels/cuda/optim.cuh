// Steps of optimisers on CUDA: one launch for as many parameters as the arguments of a kernel have room for. Numbers
// that are in tensors, such as the learning rate, are read by the kernel, so that the host does not wait for them.
#pragma once

#include <array>
#include <vector>

#include "shard/kernels/cuda/map.cuh"
#include "shard/kernels/lists.h"

namespace shard::cuda {

/// A number in a tensor of any float dtype.
struct DeviceNumber {
  void* data = nullptr;
  DType dtype = DType::float32;

  DeviceNumber() = default;
  explicit DeviceNumber(const DenseTensor& x) : data(x.defined() ? x.raw() : nullptr), dtype(x.dtype()) {}

  __device__ double read(int i = 0) const {
    switch (dtype) {
      case DType::float64: return static_cast<const double*>(data)[i];
      case DType::float16: return static_cast<double>(load(static_cast<const __half*>(data)[i]));
      case DType::bfloat16: return static_cast<double>(load(static_cast<const __nv_bfloat16*>(data)[i]));
      case DType::int32: return static_cast<const int32_t*>(data)[i];
      case DType::int64: return static_cast<double>(static_cast<const int64_t*>(data)[i]);
      default: return static_cast<double>(static_cast<const float*>(data)[i]);
    }
  }
  __device__ void write(double value) const {
    switch (dtype) {
      case DType::float64: *static_cast<double*>(data) = value; break;
      case DType::float16: *static_cast<__half*>(data) = store<__half>(static_cast<float>(value)); break;
      case DType::bfloat16: *static_cast<__nv_bfloat16*>(data) = store<__nv_bfloat16>(static_cast<float>(value)); break;
      default: *static_cast<float*>(data) = static_cast<float>(value);
    }
  }
};

template <int n>
inline constexpr int kAtLeastOne = n < 1 ? 1 : n;

/// A parameter with its gradient, its states, its numbers, and a master copy or null.
template <class T, class S, int States, int NumberCount>
struct Parameter {
  T* values;
  float* master;
  const T* grad;
  S* states[kAtLeastOne<States>];
  DeviceNumber numbers[NumberCount];
  int64_t count;
  int64_t chunks_before;  // of the parameters before it
};

/// The arguments of a launch: at most 4 KB.
template <class Plan, class T, class S, int Capacity>
struct Steps {
  Plan plan;
  const bool* skip;  // null: never
  int parameters;
  int64_t chunks;
  Parameter<T, S, Plan::kStates, Plan::kNumbers> of[Capacity];
};

constexpr int kPacksOfThread = 4;

/// The one of `count` tensors that a chunk belongs to: the last that begins at or before it.
template <class P, int Capacity>
__device__ const P& owner_of(const P (&of)[Capacity], int count, int64_t chunk) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (of[middle].chunks_before <= chunk ? low : high) = middle;
  }
  return of[low];
}

template <int N, class Step, class P>
__device__ void step_elements(const Step& step, const P& p, int64_t i) {
  using T = std::remove_const_t<std::remove_pointer_t<decltype(p.grad)>>;
  using S = std::remove_pointer_t<std::remove_cvref_t<decltype(p.states[0])>>;
  using C = math_t<T>;
  constexpr int kStates = Step::kStates;
  C grad[N], values[N];
  math_t<S> states[kAtLeastOne<kStates>][N];
  load_numbers<N>(p.grad, i, grad);
#pragma unroll
  for (int s = 0; s < kStates; ++s) load_numbers<N>(p.states[s], i, states[s]);
  if (p.master != nullptr) {
    float exact[N];
    load_elements<N>(p.master, i, exact);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = static_cast<C>(exact[k]);
  } else {
    load_numbers<N>(p.values, i, values);
  }
  float exact[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    C own[kAtLeastOne<kStates>] = {};
#pragma unroll
    for (int s = 0; s < kStates; ++s) own[s] = static_cast<C>(states[s][k]);
    values[k] = step.formula.apply(values[k], grad[k], own);
#pragma unroll
    for (int s = 0; s < kStates; ++s) states[s][k] = static_cast<math_t<S>>(own[s]);
    if (p.master != nullptr) {
      exact[k] = static_cast<float>(values[k]);
      values[k] = static_cast<C>(exact[k]);
    }
  }
#pragma unroll
  for (int s = 0; s < kStates; ++s) store_numbers<N>(p.states[s], i, states[s]);
  if (p.master != nullptr) store_elements<N>(p.master, i, exact);
  store_numbers<N>(p.values, i, values);
}

/// A formula with its number of states.
template <class Formula, int States>
struct StepOf {
  static constexpr int kStates = States;
  Formula formula;
};

template <int N, class Plan, class T, class S, int Capacity>
__global__ void step_kernel(const __grid_constant__ Steps<Plan, T, S, Capacity> steps) {
  constexpr int64_t kChunk = int64_t{kElementThreads} * kPacksOfThread * N;
  using Formula = decltype(steps.plan.template step<math_t<T>>(steps.of[0].numbers));
  SHARD_SHARED(shared_formula, Formula);  // one thread reads the numbers, and divides in double
  const void* formula_is_of = nullptr;
  if (steps.skip != nullptr && *steps.skip) return;
  for (int64_t chunk = blockIdx.x; chunk < steps.chunks; chunk += gridDim.x) {
    const auto& p = owner_of(steps.of, steps.parameters, chunk);
    if (&p != formula_is_of) {
      __syncthreads();  // all have read the last one
      if (threadIdx.x == 0) shared_formula = steps.plan.template step<math_t<T>>(p.numbers);
      __syncthreads();
      formula_is_of = &p;
    }
    const StepOf<Formula, Plan::kStates> step{shared_formula};
    const int64_t begin = (chunk - p.chunks_before) * kChunk, end = min(begin + kChunk, p.count);
    bool aligned = packs_are_aligned<N>(p.values, p.master, p.grad);
    for (int s = 0; s < Plan::kStates; ++s) aligned = aligned && packs_are_aligned<N>(p.states[s]);
    const int64_t packs_end = aligned ? end / N : begin / N;
    for (int64_t i = begin / N + threadIdx.x; i < packs_end; i += kElementThreads) step_elements<N>(step, p, i);
    for (int64_t i = packs_end * N + threadIdx.x; i < end; i += kElementThreads) step_elements<1>(step, p, i);
  }
}

/// A parameter of a call, on the host.
template <int States, int NumberCount>
struct ParameterTensors {
  const DenseTensor& param;
  const DenseTensor& grad;
  const DenseTensor* master;  // null: none
  const DenseTensor* states[kAtLeastOne<States>];
  const DenseTensor* numbers[NumberCount];
};

template <class Plan>
using TensorsOf = ParameterTensors<Plan::kStates, Plan::kNumbers>;

using Tensors = std::span<const DenseTensor>;
using Outputs = std::span<DenseTensor>;

constexpr int kMerged = 32;  // parameters of a launch

/// The parameters of lists. A list of numbers may have one for all, and master copies are used with multi_precision.
template <class Plan>
std::vector<TensorsOf<Plan>> parameters_of(Outputs param, Tensors grad, bool multi_precision, Outputs master,
                                           const std::array<Outputs, Plan::kStates>& states,
                                           const std::array<Tensors, Plan::kNumbers>& numbers) {
  std::vector<TensorsOf<Plan>> all;
  for (size_t i = 0; i < param.size(); ++i) {
    TensorsOf<Plan>& one = all.emplace_back(
        TensorsOf<Plan>{param[i], entry_of(grad, i), multi_precision ? &entry_of(master, i) : nullptr, {}, {}});
    for (size_t s = 0; s < states.size(); ++s) one.states[s] = &entry_of(states[s], i);
    for (size_t n = 0; n < numbers.size(); ++n) one.numbers[n] = &entry_of(numbers[n], i);
  }
  return all;
}

template <class Plan, class T, class S, int Capacity>
void run_steps_as(const OpContext& ctx, const Plan& plan, const bool* skip, const std::vector<TensorsOf<Plan>>& all) {
  constexpr int kN = kTogether<T, S, float>;
  constexpr int64_t kChunk = int64_t{kElementThreads} * kPacksOfThread * kN;
  static_assert(sizeof(Steps<Plan, T, S, Capacity>) <= 4096);
  for (size_t first = 0; first < all.size(); first += Capacity) {
    Steps<Plan, T, S, Capacity> steps{plan, skip, 0, 0, {}};
    for (size_t i = first; i < std::min(all.size(), first + Capacity); ++i) {
      const TensorsOf<Plan>& from = all[i];
      const int64_t count = from.param.numel();
      if (count == 0) continue;
      auto& to = steps.of[steps.parameters++];
      to.values = elements<T>(from.param);
      to.master = from.master == nullptr ? nullptr : elements<float>(*from.master);
      to.grad = elements<const T>(from.grad);
      for (int s = 0; s < Plan::kStates; ++s) to.states[s] = elements<S>(*from.states[s]);
      for (int n = 0; n < Plan::kNumbers; ++n) to.numbers[n] = DeviceNumber(*from.numbers[n]);
      to.count = count;
      to.chunks_before = steps.chunks;
      steps.chunks += (count + kChunk - 1) / kChunk;
    }
    if (steps.parameters == 0) continue;
    const unsigned grid = grid_for(steps.chunks * kElementThreads, kElementThreads);
    launch(ctx, step_kernel<kN, Plan, T, S, Capacity>, grid, kElementThreads, steps);
  }
}

/// The step of each parameter of dtype T. States of a parameter have its dtype, or all are float32.
template <int Capacity, class T, class Plan>
void run_steps(const OpContext& ctx, const Plan& plan, const bool* skip, const std::vector<TensorsOf<Plan>>& all) {
  using D = device_t<T>;
  if (all.empty()) return;
  const DeviceScope scope(all[0].param.device().index);
  if constexpr (!std::is_same_v<T, float> && Plan::kStates > 0) {
    // Each parameter decides for its own states.
    std::vector<TensorsOf<Plan>> like_param, in_float;
    for (const TensorsOf<Plan>& one : all)
      (one.states[0]->dtype() == dtype_of<T> ? like_param : in_float).push_back(one);
    run_steps_as<Plan, D, D, Capacity>(ctx, plan, skip, like_param);
    run_steps_as<Plan, D, float, Capacity>(ctx, plan, skip, in_float);
  } else {
    run_steps_as<Plan, D, D, Capacity>(ctx, plan, skip, all);
  }
}

}  // namespace shard::cuda
