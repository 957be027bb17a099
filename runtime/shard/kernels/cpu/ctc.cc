// CPU kernels of CTC (Graves et al. 2006): the loss by sums over all paths in log space, which are computed in float64,
// and its gradient.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/lengths.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_sequence.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();  // the logarithm of probability 0

double log_sum(double a, double b) {
  const double most = std::max(a, b);
  return most == kNever ? kNever : most + std::log1p(std::exp(std::min(a, b) - most));
}

/// One sequence: its labels with blanks around each of them, and the logarithms of sums over paths.
class Paths {
 public:
  Paths(const DenseTensor& label, int64_t sequence, int64_t count, int blank) : classes_(size_t(2 * count + 1), blank) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = integer_at(label, sequence * label.dims()[1] + i);
      if (i > 0 && value == classes_[size_t(2 * i - 1)]) ++repeats_;
      classes_[size_t(2 * i + 1)] = value;
    }
  }

  size_t size() const { return classes_.size(); }
  int64_t class_of(size_t place) const { return classes_[place]; }
  /// Equal labels need a blank between them.
  bool fit_into(int64_t steps) const { return static_cast<int64_t>(size() / 2) + repeats_ <= steps; }

  /// Extends sums over paths that end at each place by the step with the logarithms of probabilities `step`.
  void forward(const double* before, const double* step, double* after) const {
    for (size_t s = 0; s < size(); ++s) {
      double sum = before[s];
      if (s > 0) sum = log_sum(sum, before[s - 1]);
      if (skips_to(s)) sum = log_sum(sum, before[s - 2]);
      after[s] = sum + step[s];
    }
  }
  void start(const double* step, double* first) const {
    std::fill(first, first + size(), kNever);
    for (size_t s = 0; s < std::min<size_t>(size(), 2); ++s) first[s] = step[s];
  }
  /// The sum of all paths, from the sums of the last step.
  double total(const double* last) const { return size() == 1 ? last[0] : log_sum(last[size() - 1], last[size() - 2]); }

  /// Sums over the paths that go on from each place after the step before `step`, from the sums `after` it.
  void backward(const double* after, const double* step, double* before) const {
    for (size_t s = 0; s < size(); ++s) {
      double sum = after[s] + step[s];
      if (s + 1 < size()) sum = log_sum(sum, after[s + 1] + step[s + 1]);
      if (s + 2 < size() && skips_to(s + 2)) sum = log_sum(sum, after[s + 2] + step[s + 2]);
      before[s] = sum;
    }
  }
  void finish(double* last) const {
    std::fill(last, last + size(), kNever);
    for (size_t s = size() - std::min<size_t>(size(), 2); s < size(); ++s) last[s] = 0;
  }

 private:
  /// Whether the blank before a label may be left out: between labels that differ.
  bool skips_to(size_t s) const { return s % 2 == 1 && s > 1 && classes_[s] != classes_[s - 2]; }

  std::vector<int64_t> classes_;
  int64_t repeats_ = 0;
};

/// The logarithms of the probabilities of one sequence.
template <class T>
struct Steps {
  const T* logits;
  int64_t classes, stride;       // from one step of the sequence to the next
  std::vector<double> divisors;  // the logarithm of the sum of exponentials of each step

  Steps(const DenseTensor& x, int64_t sequence, int64_t steps)
      : logits(x.data<T>() + sequence * x.dims()[2]), classes(x.dims()[2]), stride(x.dims()[1] * x.dims()[2]) {
    for (int64_t t = 0; t < steps; ++t) {
      double most = kNever, sum = 0;
      for (int64_t c = 0; c < classes; ++c) most = std::max(most, logit(t, c));
      for (int64_t c = 0; c < classes; ++c) sum += std::exp(logit(t, c) - most);
      divisors.push_back(most + std::log(sum));
    }
  }
  double logit(int64_t step, int64_t c) const {
    return static_cast<double>(static_cast<Compute<T>>(logits[step * stride + c]));
  }
  double at(int64_t step, int64_t c) const { return logit(step, c) - divisors[static_cast<size_t>(step)]; }
};

/// Writes the gradient of the loss, a probability minus the share of the paths that have the class at that step, into
/// the rows of one sequence. `sums` has the forward sums of each step, `logs` the logarithms of its places.
template <class T>
void store_gradient(const Paths& paths, const Steps<T>& steps, const std::vector<double>& sums,
                    const std::vector<double>& logs, double total, T* to) {
  const size_t places = paths.size();
  std::vector<double> after(places), before(places), row(static_cast<size_t>(steps.classes));
  paths.finish(after.data());
  for (auto t = static_cast<int64_t>(steps.divisors.size()) - 1; t >= 0; --t) {
    const size_t base = static_cast<size_t>(t) * places;
    for (int64_t c = 0; c < steps.classes; ++c) row[static_cast<size_t>(c)] = std::exp(steps.at(t, c));
    for (size_t s = 0; s < places; ++s)
      row[static_cast<size_t>(paths.class_of(s))] -= std::exp(sums[base + s] + after[s] - total);
    for (int64_t c = 0; c < steps.classes; ++c)
      to[t * steps.stride + c] = T(static_cast<Compute<T>>(row[static_cast<size_t>(c)]));
    paths.backward(after.data(), logs.data() + base, before.data());
    after.swap(before);
  }
}

/// The loss of one sequence, and its gradient where there is a path.
template <class T>
double run_sequence(const DenseTensor& logits, const Paths& paths, int64_t sequence, int64_t length, T* to) {
  if (length == 0 || !paths.fit_into(length)) return 0;
  const Steps<T> steps(logits, sequence, length);
  const size_t places = paths.size();
  std::vector<double> sums(static_cast<size_t>(length) * places), logs(sums.size());
  for (int64_t t = 0; t < length; ++t) {
    const size_t base = static_cast<size_t>(t) * places;
    for (size_t s = 0; s < places; ++s) logs[base + s] = steps.at(t, paths.class_of(s));
    if (t == 0) paths.start(logs.data(), sums.data());
    else paths.forward(sums.data() + base - places, logs.data() + base, sums.data() + base);
  }
  const double total = paths.total(sums.data() + sums.size() - places);
  store_gradient(paths, steps, sums, logs, total, to);
  return -total;
}

void check_labels(const OpContext& ctx, const DenseTensor& label, const DenseTensor& labels_length, int64_t classes,
                  int blank) {
  const int64_t width = label.dims()[1];
  for (int64_t i = 0; i < label.numel(); ++i) {
    const int64_t value = integer_at(label, i);
    if (i % width >= integer_at(labels_length, i / width)) continue;
    if (value >= 0 && value < classes && value != blank) continue;
    fail_check(ErrorCode::out_of_range,
               "[{}] label is {} at element {}, but must be from 0 to {}, and not blank, which is {}; elements beyond "
               "labels_length are not read",
               ctx.op, value, index_text(ctx, 1, label, i), classes - 1, blank);
  }
}

template <class T>
void warpctc(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label,
             const DenseTensor& logits_length, const DenseTensor& labels_length, int blank, DenseTensor& loss,
             DenseTensor& warpctcgrad) {
  const int64_t time = logits.dims()[0], batch = logits.dims()[1], classes = logits.dims()[2];
  check_lengths(ctx, "logits_length", 2, logits_length, 0, time);
  check_lengths(ctx, "labels_length", 3, labels_length, 0, label.dims()[1]);
  check_labels(ctx, label, labels_length, classes, blank);
  parallel_for(batch, 16 * time * (classes + 8 * label.dims()[1]), [&](int64_t first, int64_t last) {
    for (int64_t t = 0; t < time; ++t)
      std::fill_n(warpctcgrad.data<T>() + (t * batch + first) * classes, (last - first) * classes, T(Compute<T>(0)));
    for (int64_t i = first; i < last; ++i) {
      const Paths paths(label, i, integer_at(labels_length, i), blank);
      const double value =
          run_sequence<T>(logits, paths, i, integer_at(logits_length, i), warpctcgrad.data<T>() + i * classes);
      loss.data<T>()[i] = T(static_cast<Compute<T>>(value));
    }
  });
}

template <class T>
void warpctc_grad(const OpContext&, const DenseTensor& logits_length, const DenseTensor& warpctcgrad,
                  const DenseTensor& loss_grad, bool norm_by_times, DenseTensor& logits_grad) {
  using C = Compute<T>;
  const int64_t batch = warpctcgrad.dims()[1], classes = warpctcgrad.dims()[2];
  parallel_for(warpctcgrad.dims()[0] * batch, classes, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t i = row % batch, length = norm_by_times ? integer_at(logits_length, i) : 1;
      const C factor = static_cast<C>(loss_grad.data<T>()[i]) / static_cast<C>(std::max<int64_t>(length, 1));
      const T* const from = warpctcgrad.data<T>() + row * classes;
      T* const to = logits_grad.data<T>() + row * classes;
      for (int64_t c = 0; c < classes; ++c) to[c] = T(static_cast<C>(from[c]) * factor);
    }
  });
}

}  // namespace

void register_ctc() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("warpctc", kBackend, dtype_of<T>, &warpctc<T>);
    register_kernel("warpctc_grad", kBackend, dtype_of<T>, &warpctc_grad<T>);
  });
}

}  // namespace shard::cpu
