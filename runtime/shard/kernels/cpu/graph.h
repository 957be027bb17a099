// What kernels of graphs have in common: rows that are combined into messages, and the reduction of the messages that
// arrive at a row.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/meta/graph.h"

namespace shard::cpu {

/// The type in which messages of T are reduced. Sums of integers do not wrap before a mean is taken of them.
template <class T>
using Reduced = std::conditional_t<std::is_integral_v<T>, int64_t, Compute<T>>;

/// The elements of a message that are computed at a time.
inline constexpr int64_t kMessageBlock = 256;

/// Adds a message to the reduction of those before it. NaN wins in min and max.
template <class C>
void reduce_message(meta::Reduction reduction, const C* message, int64_t columns, C* to) {
  switch (reduction) {
    case meta::Reduction::sum:
    case meta::Reduction::mean:
      for (int64_t c = 0; c < columns; ++c) to[c] = wrap_add(to[c], message[c]);
      return;
    case meta::Reduction::min:
      for (int64_t c = 0; c < columns; ++c) to[c] = message[c] < to[c] || message[c] != message[c] ? message[c] : to[c];
      return;
    case meta::Reduction::max:
      for (int64_t c = 0; c < columns; ++c) to[c] = message[c] > to[c] || message[c] != message[c] ? message[c] : to[c];
      return;
  }
}

/// Writes into row r of `to`, of `width` elements, the reduction of the messages that `edges` lists for it, in their
/// order, or zeros where there are none. write(edge, begin, columns, message) writes elements from `begin` on of the
/// message of an edge. A thread computes whole elements of a row, whatever the number of threads.
template <class T, class Write>
void reduce_messages(const Positions& edges, int64_t width, meta::Reduction reduction, const Write& write, T* to) {
  using C = Reduced<T>;
  const int64_t rows = static_cast<int64_t>(edges.begin.size()) - 1, count = static_cast<int64_t>(edges.at.size());
  const int64_t blocks = (width + kMessageBlock - 1) / kMessageBlock;
  const int64_t cost = std::min(width, kMessageBlock) * (1 + 2 * count / std::max<int64_t>(rows, 1));
  parallel_for(rows * blocks, cost, [&](int64_t first, int64_t last) {
    C total[kMessageBlock], message[kMessageBlock];
    for (int64_t job = first; job < last; ++job) {
      const auto row = static_cast<size_t>(job / blocks);
      const int64_t begin = job % blocks * kMessageBlock, columns = std::min(kMessageBlock, width - begin);
      const int64_t n = edges.begin[row + 1] - edges.begin[row];
      const int64_t* const at = edges.at.data() + edges.begin[row];
      std::fill_n(total, columns, C(0));
      if (n > 0) write(at[0], begin, columns, total);
      for (int64_t k = 1; k < n; ++k) {
        write(at[k], begin, columns, message);
        reduce_message(reduction, message, columns, total);
      }
      if (reduction == meta::Reduction::mean && n > 0) {
        for (int64_t c = 0; c < columns; ++c) total[c] /= static_cast<C>(n);
      }
      for (int64_t c = 0; c < columns; ++c)
        to[static_cast<int64_t>(row) * width + begin + c] = static_cast<T>(total[c]);
    }
  });
}

/// Writes how many edges each row has, where `counts`, int64, has a row for it.
inline void count_messages(const Positions& edges, DenseTensor& counts) {
  for (int64_t row = 0; row < counts.dims()[0]; ++row) {
    const auto r = static_cast<size_t>(row);
    counts.data<int64_t>()[row] = edges.begin[r + 1] - edges.begin[r];
  }
}

/// The rows of a tensor, broadcast to the rows of a message.
template <class T>
class Operand {
 public:
  /// `message` has the dims of a message after its first one.
  Operand(const DenseTensor& x, const Dims& message)
      : values_(x.data<T>()), width_(x.dims().numel(1, x.dims().rank())) {
    if (width_ == message.numel()) return;  // then each dim is as long as that of the message
    places_.resize(static_cast<size_t>(message.numel()));
    for (int64_t i = 0; i < message.numel(); ++i) {
      int64_t rest = i, stride = 1, place = 0;
      for (int d = message.rank() - 1, own = x.dims().rank() - 1; d >= 0 && own >= 1; --d, --own) {
        if (x.dims()[own] != 1) place += rest % message[d] * stride;
        stride *= x.dims()[own];
        rest /= message[d];
      }
      places_[static_cast<size_t>(i)] = place;
    }
  }

  bool is_broadcast() const { return !places_.empty(); }
  const T* row(int64_t i) const { return values_ + i * width_; }
  /// Where element i of a message is in a row.
  int64_t place(int64_t i) const { return places_.empty() ? i : places_[static_cast<size_t>(i)]; }

 private:
  const T* values_;
  int64_t width_;
  std::vector<int64_t> places_;  // empty where elements are at their own places
};

/// Writes elements from `begin` on of the product, or else the sum, of row i of x and row k of y.
template <class T, class To>
void write_message(bool product, const Operand<T>& x, int64_t i, const Operand<T>& y, int64_t k, int64_t begin,
                   int64_t columns, To* to) {
  using C = Compute<T>;
  const T *a = x.row(i), *b = y.row(k);
  const auto write = [&](const auto& combine) {
    if (x.is_broadcast() || y.is_broadcast()) {
      for (int64_t c = 0; c < columns; ++c)
        to[c] = static_cast<To>(combine(static_cast<C>(a[x.place(begin + c)]), static_cast<C>(b[y.place(begin + c)])));
    } else {
      for (int64_t c = 0; c < columns; ++c)
        to[c] = static_cast<To>(combine(static_cast<C>(a[begin + c]), static_cast<C>(b[begin + c])));
    }
  };
  if (product) write(wrap_mul<C>);
  else write(wrap_add<C>);
}

}  // namespace shard::cpu
