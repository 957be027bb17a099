// Ops on CUDA that decode sequences: viterbi_decode and gather_tree.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kSequenceThreads = 128;

/// The arguments of viterbi_decode: potentials [batch, time, tags] and transitions [from, to]. If `ends`, the last two rows and columns
/// of these are those of the stop and of the start.
template <class D>
struct Viterbi {
  using C = math_t<D>;
  const D *potentials, *transitions;
  Indices lengths;
  int64_t batch, time, tags;
  bool ends;
  // for each sequence two rows of sums, and for each step and tag the one that it came from
  C* sums;
  int32_t* came;
  D* scores;
  int64_t* path;

  __device__ C transition(int64_t from, int64_t to) const { return load(transitions[from * tags + to]); }

  /// The last tag of the best path of a sequence, and its score; the first of equal ones.
  __device__ int64_t last_tag(const C* row, C& score) const {
    const auto value = [&](int64_t tag) { return row[tag] + (ends ? transition(tags - 2, tag) : C(0)); };
    int64_t best = 0;
    score = value(0);
    for (int64_t tag = 1; tag < tags; ++tag) {
      const C other = value(tag);
      if (!(other > score)) continue;
      best = tag;
      score = other;
    }
    return best;
  }
  /// One thread follows the tags from the last to the first.
  __device__ void write_path(int64_t sequence, int64_t length, const C* row) const {
    C score;
    int64_t tag = last_tag(row, score);
    scores[sequence] = store<D>(score);
    for (int64_t step = length - 1; step >= 0; --step) {
      path[sequence * time + step] = tag;
      if (step > 0) tag = came[(sequence * time + step) * tags + tag];
    }
  }
};

/// One block for each sequence, and one thread for each tag of a step.
template <class D>
__global__ void viterbi_kernel(Viterbi<D> call, DataCheck<LengthRange> check) {
  using C = math_t<D>;
  for (int64_t sequence = blockIdx.x; sequence < call.batch; sequence += gridDim.x) {
    int64_t length = call.lengths[sequence];
    const bool is_wrong = length < 1 || length > call.time;
    if (is_wrong && threadIdx.x == 0) {
      check.report(sequence, length);
      call.scores[sequence] = store<D>(C(0));
    }
    if (is_wrong) length = 0;
    for (int64_t step = length + threadIdx.x; step < call.time; step += kSequenceThreads)
      call.path[sequence * call.time + step] = 0;
    if (is_wrong) continue;
    const D* const potentials = call.potentials + sequence * call.time * call.tags;
    C *row = call.sums + 2 * sequence * call.tags, *next = row + call.tags;
    for (int64_t tag = threadIdx.x; tag < call.tags; tag += kSequenceThreads)
      row[tag] = load(potentials[tag]) + (call.ends ? call.transition(call.tags - 1, tag) : C(0));
    __syncthreads();
    for (int64_t step = 1; step < length; ++step) {
      const int64_t at = step * call.tags;
      for (int64_t tag = threadIdx.x; tag < call.tags; tag += kSequenceThreads) {
        int64_t best = 0;
        C most = row[0] + call.transition(0, tag);
        for (int64_t from = 1; from < call.tags; ++from) {
          const C other = row[from] + call.transition(from, tag);
          if (!(other > most)) continue;
          best = from;
          most = other;
        }
        call.came[sequence * call.time * call.tags + at + tag] = static_cast<int32_t>(best);
        next[tag] = most + load(potentials[at + tag]);
      }
      __syncthreads();
      C* const before = row;
      row = next;
      next = before;
    }
    if (threadIdx.x == 0) call.write_path(sequence, length, row);
  }
}

template <class T>
void viterbi_decode(const OpContext& ctx, const DenseTensor& potentials, const DenseTensor& transition_params,
                    const DenseTensor& lengths, bool include_bos_eos_tag, DenseTensor& scores, DenseTensor& path) {
  using D = device_t<T>;
  using C = math_t<D>;
  const int64_t batch = potentials.dims()[0], time = potentials.dims()[1], tags = potentials.dims()[2];
  if (batch == 0) return;
  const DeviceScope scope(scores.device().index);
  const Scratch sums(static_cast<size_t>(2 * batch * tags) * sizeof(C)),
      came(static_cast<size_t>(batch * time * tags) * sizeof(int32_t));
  const Viterbi<D> call{elements<const D>(potentials),
                        elements<const D>(transition_params),
                        Indices(lengths),
                        batch,
                        time,
                        tags,
                        include_bos_eos_tag,
                        static_cast<C*>(sums.data()),
                        static_cast<int32_t*>(came.data()),
                        elements<D>(scores),
                        elements<int64_t>(path)};
  const DataCheck<LengthRange> check(LengthRange{ctx.op, "lengths", 1, time, ArgumentPlace(ctx, 2, lengths)});
  launch(ctx, viterbi_kernel<D>, grid_for(batch * kSequenceThreads, kSequenceThreads), kSequenceThreads, call, check);
}

/// Describes a parent that is no beam.
struct alignas(8) BeamRange {
  const char* op;
  int64_t beams;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "[{}] parents is {} at element {}, but must be from 0 to {}, a beam of ids", op,
               value, place.index_text(position), beams - 1);
  }
};

/// One thread for each beam at the end, neighbouring ones for those beside each other. It checks the parents of its own place too,
/// which may not be on any path.
template <class I>
__global__ void gather_tree_kernel(const I* ids, const I* parents, int64_t time, int64_t row, int64_t beams,
                                   DataCheck<BeamRange> check, I* out) {
  for (int64_t i = grid_first<int64_t>(); i < row; i += grid_step<int64_t>()) {
    const int64_t first = i / beams * beams;
    int64_t beam = i - first;
    for (int64_t step = time - 1; step >= 0; --step) {
      const int64_t base = step * row + first;
      out[step * row + i] = ids[base + beam];
      if (step == 0) continue;
      const int64_t own = parents[step * row + i], parent = parents[base + beam];
      if (own < 0 || own >= beams) check.report(step * row + i, own);
      beam = parent >= 0 && parent < beams ? parent : 0;
    }
  }
}

template <class I>
void gather_tree(const OpContext& ctx, const DenseTensor& ids, const DenseTensor& parents, DenseTensor& out) {
  if (out.numel() == 0) return;
  const int64_t time = ids.dims()[0], beams = ids.dims()[2], row = ids.dims()[1] * beams;
  const DeviceScope scope(out.device().index);
  const DataCheck<BeamRange> check(BeamRange{ctx.op, beams, ArgumentPlace(ctx, 1, parents)});
  launch(ctx, gather_tree_kernel<I>, grid_for(row, kSequenceThreads), kSequenceThreads, elements<const I>(ids),
         elements<const I>(parents), time, row, beams, check, elements<I>(out));
}

}  // namespace

void register_sequence(int backend) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("viterbi_decode", backend, dtype_of<T>, &viterbi_decode<T>); });
  for_types(Types<int32_t, int64_t>{},
            [&]<class T>(TypeTag<T>) { register_kernel("gather_tree", backend, dtype_of<T>, &gather_tree<T>); });
}

}  // namespace shard::cuda
