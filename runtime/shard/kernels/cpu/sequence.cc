// CPU kernels that decode sequences: viterbi_decode and gather_tree.
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/lengths.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_sequence.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// One call of viterbi_decode, in the dtype of sums.
template <class C>
struct Viterbi {
  int64_t time, tags;
  bool ends;                   // the last two rows of the transitions are those of the stop and of the start
  std::vector<C> transitions;  // [to, from], so that the best predecessor is searched in order

  C start(int64_t tag) const { return ends ? transitions[static_cast<size_t>(tag * tags + tags - 1)] : C(0); }
  C stop(int64_t tag) const { return ends ? transitions[static_cast<size_t>(tag * tags + tags - 2)] : C(0); }
};

/// The first of the largest sums of scores and of the transitions to one tag.
template <class C>
int64_t best_of(const std::vector<C>& scores, const C* transitions) {
  int64_t best = 0;
  for (int64_t from = 1; from < static_cast<int64_t>(scores.size()); ++from) {
    const auto value = [&](int64_t tag) { return scores[static_cast<size_t>(tag)] + transitions[tag]; };
    if (value(from) > value(best)) best = from;
  }
  return best;
}

/// Decodes one sequence of `length` steps; returns its score. `came` has room for a tag of each step and tag.
template <class T, class C>
C decode(const Viterbi<C>& call, const T* potentials, int64_t length, std::vector<int64_t>& came, int64_t* path) {
  const auto tags = static_cast<size_t>(call.tags);
  std::vector<C> scores(tags), next(tags);
  for (size_t tag = 0; tag < tags; ++tag)
    scores[tag] = static_cast<C>(potentials[tag]) + call.start(static_cast<int64_t>(tag));
  for (int64_t step = 1; step < length; ++step) {
    const size_t row = static_cast<size_t>(step) * tags;
    for (size_t tag = 0; tag < tags; ++tag) {
      const C* const transitions = call.transitions.data() + tag * tags;
      const int64_t from = best_of(scores, transitions);
      came[row + tag] = from;
      next[tag] = scores[static_cast<size_t>(from)] + transitions[from] + static_cast<C>(potentials[row + tag]);
    }
    scores.swap(next);
  }
  for (size_t tag = 0; tag < tags; ++tag) scores[tag] += call.stop(static_cast<int64_t>(tag));
  const std::vector<C> none(tags);
  int64_t tag = best_of(scores, none.data());
  const C score = scores[static_cast<size_t>(tag)];
  for (int64_t step = length - 1; step >= 0; --step) {
    path[step] = tag;
    if (step > 0) tag = came[static_cast<size_t>(step) * tags + static_cast<size_t>(tag)];
  }
  std::fill(path + length, path + call.time, 0);
  return score;
}

template <class T>
void viterbi_decode(const OpContext& ctx, const DenseTensor& potentials, const DenseTensor& transition_params,
                    const DenseTensor& lengths, bool include_bos_eos_tag, DenseTensor& scores, DenseTensor& path) {
  using C = Compute<T>;
  check_lengths(ctx, "lengths", 2, lengths, 1, potentials.dims()[1]);
  const int64_t tags = potentials.dims()[2];
  Viterbi<C> call{potentials.dims()[1], tags, include_bos_eos_tag, std::vector<C>(static_cast<size_t>(tags * tags))};
  for (int64_t from = 0; from < tags; ++from) {
    for (int64_t to = 0; to < tags; ++to) {
      call.transitions[static_cast<size_t>(to * tags + from)] =
          static_cast<C>(transition_params.data<T>()[from * tags + to]);
    }
  }
  parallel_for(potentials.dims()[0], call.time * tags * tags, [&](int64_t first, int64_t last) {
    std::vector<int64_t> came(static_cast<size_t>(call.time * tags));
    for (int64_t i = first; i < last; ++i) {
      scores.data<T>()[i] = T(decode(call, potentials.data<T>() + i * call.time * tags, integer_at(lengths, i), came,
                                     path.data<int64_t>() + i * call.time));
    }
  });
}

/// The beams of a step are followed together, because they are beside each other.
template <class T>
void gather_tree(const OpContext& ctx, const DenseTensor& ids, const DenseTensor& parents, DenseTensor& out) {
  const int64_t time = ids.dims()[0], batch = ids.dims()[1], beams = ids.dims()[2], row = batch * beams;
  for (int64_t i = row; i < parents.numel(); ++i) {
    const auto parent = static_cast<int64_t>(parents.data<T>()[i]);
    if (parent >= 0 && parent < beams) continue;
    fail_check(ErrorCode::out_of_range, "[{}] parents is {} at element {}, but must be from 0 to {}, a beam of ids",
               ctx.op, parent, index_text(ctx, 1, parents, i), beams - 1);
  }
  parallel_for(batch, 4 * time * beams, [&](int64_t first, int64_t last) {
    std::vector<int64_t> at(static_cast<size_t>(beams));
    for (int64_t b = first; b < last; ++b) {
      for (int64_t k = 0; k < beams; ++k) at[static_cast<size_t>(k)] = k;
      for (int64_t step = time - 1; step >= 0; --step) {
        const int64_t base = step * row + b * beams;
        for (int64_t k = 0; k < beams; ++k) {
          int64_t& beam = at[static_cast<size_t>(k)];
          out.data<T>()[base + k] = ids.data<T>()[base + beam];
          beam = step > 0 ? static_cast<int64_t>(parents.data<T>()[base + beam]) : 0;
        }
      }
    }
  });
}

}  // namespace

void register_sequence() {
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("viterbi_decode", kBackend, dtype_of<T>, &viterbi_decode<T>); });
  for_types(Types<int32_t, int64_t>{},
            []<class T>(TypeTag<T>) { register_kernel("gather_tree", kBackend, dtype_of<T>, &gather_tree<T>); });
}

}  // namespace shard::cpu
