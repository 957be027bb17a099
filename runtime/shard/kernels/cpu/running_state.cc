// CPU kernels that keep counts from call to call: average_accumulates, the sums of which parameters are averaged, and
// auc, how many predictions there were of each value.
#include <algorithm>
#include <string>
#include <utility>

#include "shard/core/convert.h"
#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

template <class T>
void average_accumulates(const OpContext&, const DenseTensor& param, const DenseTensor& in_sum_1,
                         const DenseTensor& in_sum_2, const DenseTensor& in_sum_3,
                         const DenseTensor& in_num_accumulates, const DenseTensor& in_old_num_accumulates,
                         const DenseTensor& in_num_updates, float average_window, int64_t max_average_window,
                         int64_t min_average_window, DenseTensor& out_sum_1, DenseTensor& out_sum_2,
                         DenseTensor& out_sum_3, DenseTensor& out_num_accumulates, DenseTensor& out_old_num_accumulates,
                         DenseTensor& out_num_updates) {
  using C = Compute<T>;
  constexpr int64_t kMostInOneSum = 16384;
  // A count may be the identity of a pending reduction, of which one more wraps.
  const int64_t updates = wrap_add(*in_num_updates.data<int64_t>(), int64_t{1}),
                count = wrap_add(*in_num_accumulates.data<int64_t>(), int64_t{1}),
                old_count = *in_old_num_accumulates.data<int64_t>();
  const auto share = convert<int64_t>(static_cast<float>(updates) * average_window);
  const bool moves = updates % kMostInOneSum == 0;
  const bool restarts = count >= min_average_window && count >= std::min(max_average_window, share);
  const T *added = param.data<T>(), *from_1 = in_sum_1.data<T>(), *from_2 = in_sum_2.data<T>(),
          *from_3 = in_sum_3.data<T>();
  T *to_1 = out_sum_1.data<T>(), *to_2 = out_sum_2.data<T>(), *to_3 = out_sum_3.data<T>();
  const bool adds_only = !moves && !restarts && from_2 == to_2 && from_3 == to_3;
  parallel_for(param.numel(), 4, [&](int64_t begin, int64_t end) {
    if (adds_only) {
      for (int64_t i = begin; i < end; ++i) to_1[i] = T(static_cast<C>(from_1[i]) + static_cast<C>(added[i]));
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      C newest = static_cast<C>(from_1[i]) + static_cast<C>(added[i]), middle = static_cast<C>(from_2[i]);
      if (moves) {
        middle += newest;
        newest = 0;
      }
      to_3[i] = restarts ? T(newest + middle) : from_3[i];
      to_1[i] = restarts ? T(C(0)) : T(newest);
      to_2[i] = restarts ? T(C(0)) : T(middle);
    }
  });
  *out_num_updates.data<int64_t>() = updates;
  *out_num_accumulates.data<int64_t>() = restarts ? 0 : count;
  *out_old_num_accumulates.data<int64_t>() = restarts ? count : old_count;
}

/// Throws unless the last element of each row of x is from 0 to 1.
template <class T>
void check_probabilities(const OpContext& ctx, const DenseTensor& x, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = (r + 1) * width - 1;
    const auto value = static_cast<Compute<T>>(x.data<T>()[i]);
    if (value >= 0 && value <= 1) continue;
    fail_check(ErrorCode::out_of_range, "[{}] x is {} at element {}, but must be a probability, from 0 to 1", ctx.op,
               value, index_text(ctx, 0, x, i));
  }
}

/// The area between the curve of true over false positives and the axis, as a share of the square.
double area_under(const int64_t* positives, const int64_t* negatives, int64_t buckets) {
  double area = 0, above_positive = 0, above_negative = 0;
  for (int64_t i = buckets - 1; i >= 0; --i) {
    const double positive = above_positive + static_cast<double>(positives[i]),
                 negative = above_negative + static_cast<double>(negatives[i]);
    area += (negative - above_negative) * (positive + above_positive) / 2;
    above_positive = positive;
    above_negative = negative;
  }
  return above_positive > 0 && above_negative > 0 ? area / above_positive / above_negative : 0;
}

template <class T>
void auc(const OpContext& ctx, const DenseTensor& x, const DenseTensor& label, const DenseTensor& stat_pos,
         const DenseTensor& stat_neg, const DenseTensor& ins_tag_weight, const std::string&, int num_thresholds,
         int slide_steps, DenseTensor& area, DenseTensor& stat_pos_out, DenseTensor& stat_neg_out) {
  const int64_t rows = x.dims()[0], width = x.dims()[1], buckets = int64_t{num_thresholds} + 1;
  const int64_t sums = slide_steps * buckets;  // where the counts are from which the area is computed
  check_probabilities<T>(ctx, x, rows, width);
  const int64_t calls = slide_steps > 0 ? stat_pos.data<int64_t>()[sums + buckets] : 0;
  if (calls < 0) {
    fail_check(ErrorCode::out_of_range, "[{}] stat_pos ends with {}, but must end with the number of calls, 0 or more",
               ctx.op, calls);
  }
  const bool counts = !ins_tag_weight.defined() || *ins_tag_weight.data<float>() != 0;
  const int64_t begin = slide_steps > 0 ? calls % slide_steps * buckets : 0;
  int64_t* const out[] = {stat_neg_out.data<int64_t>(), stat_pos_out.data<int64_t>()};
  std::copy_n(stat_neg.data<int64_t>(), stat_neg.numel(), out[0]);
  std::copy_n(stat_pos.data<int64_t>(), stat_pos.numel(), out[1]);
  if (slide_steps > 0) {
    for (int64_t* const stat : out) {
      for (int64_t i = 0; i < buckets; ++i) stat[sums + i] -= std::exchange(stat[begin + i], 0);
      ++stat[sums + buckets];
    }
  }
  for (int64_t r = 0; counts && r < rows; ++r) {
    const int64_t kind = integer_at(label, r);
    if (kind < 0) continue;
    const auto value = static_cast<Compute<T>>(x.data<T>()[(r + 1) * width - 1]);
    const auto at = static_cast<int64_t>(value * static_cast<Compute<T>>(num_thresholds));
    int64_t* const stat = out[kind > 0 ? 1 : 0];
    ++stat[begin + std::min<int64_t>(at, num_thresholds)];
    if (slide_steps > 0) ++stat[sums + std::min<int64_t>(at, num_thresholds)];
  }
  *area.data<double>() = area_under(out[1] + sums, out[0] + sums, buckets);
}

}  // namespace

void register_running_state() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("average_accumulates", kBackend, dtype_of<T>, &average_accumulates<T>);
    register_kernel("auc", kBackend, dtype_of<T>, &auc<T>);
  });
}

}  // namespace shard::cpu
