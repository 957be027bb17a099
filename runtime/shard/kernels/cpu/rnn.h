// What the kernels of recurrent networks share: the sizes of a call, what it keeps for the gradient, and products of
// matrices.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_RNN_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_RNN_H
#undef SHARD_KERNELS_CPU_RNN_H
#else
#define SHARD_KERNELS_CPU_RNN_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <string>
#include <vector>

#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/lengths.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/product.h"
#include "shard/kernels/cpu/value.h"
#include "shard/meta/rnn.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// How many sequences go through all steps together: a product has as many rows, of which results do not depend.
inline int64_t sequences_of_job(int64_t batch) {
  constexpr int64_t kLeast = 4, kMost = 32;
  const int64_t share = (batch + threads() - 1) / threads();
  return std::clamp((share + kLeast - 1) / kLeast * kLeast, kLeast, kMost);
}

/// `x` in the type of arithmetic.
template <class T>
std::vector<Compute<T>> widened(const DenseTensor& x) {
  std::vector<Compute<T>> wide(static_cast<size_t>(x.numel()));
  parallel_for(x.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) wide[static_cast<size_t>(i)] = static_cast<Compute<T>>(x.data<T>()[i]);
  });
  return wide;
}

/// Writes numbers in the type of arithmetic into `to`.
template <class T>
void store(const std::vector<Compute<T>>& from, DenseTensor& to) {
  parallel_for(to.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to.data<T>()[i] = T(from[static_cast<size_t>(i)]);
  });
}

/// A matrix by which others are multiplied from the left, in strips of columns that are contiguous and padded: rows of a
/// wide matrix are pages apart, which costs more than the multiplications.
template <class C>
class Packed {
 public:
  Packed(int64_t rows, int64_t columns, const Strided<C>& from)
      : step((columns + kProductColumns - 1) / kProductColumns * kProductColumns), rows_(rows),
        data_(size_t(rows * step)) {
    constexpr int64_t kSide = 16;  // of blocks whose cache lines are read and written at once
    for (int64_t first = 0; first < columns; first += kStrip) {
      const int64_t width = width_of(first), end = std::min(first + kStrip, columns);
      C* const strip = data_.data() + first * rows;
      for (int64_t block = 0; block < rows; block += kSide) {
        for (int64_t j = first; j < end; ++j) {
          for (int64_t i = block; i < std::min(block + kSide, rows); ++i)
            strip[i * width + j - first] = from.data[i * from.row_step + j * from.column_step];
        }
      }
    }
  }

  /// out += a * this for `count` rows of a; the rows of out are `step` apart.
  void add_products(int64_t count, const Strided<C>& a, C* out) const {
    for (int64_t first = 0; first < step; first += kStrip)
      add_product(count, width_of(first), rows_, a, data_.data() + first * rows_, width_of(first), out + first, step);
  }

  const int64_t step;  // the number of columns with padding

 private:
  static constexpr int64_t kStrip = 64;
  int64_t width_of(int64_t first) const { return std::min(kStrip, step - first); }

  int64_t rows_;
  std::vector<C> data_;
};

/// out = x * y, all in the type of arithmetic.
template <class C>
void product_into(const Product& p, const C* x, const C* y, C* out) {
  constexpr int64_t kLarge = 1 << 20;  // multiplications from which libraries are faster
  if (p.work() >= kLarge) return multiply(p, {dtype_of<C>, x, y}, {dtype_of<C>, out});
  if (p.work() == 0) {
    std::fill_n(out, p.m * p.n, C(0));
    return;
  }
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  const Packed<C> packed(p.k, p.n, {y, sy.row, sy.column});
  std::vector<C> rows(static_cast<size_t>(p.m * packed.step));
  packed.add_products(p.m, Strided<C>{x, sx.row, sx.column}, rows.data());
  for (int64_t i = 0; i < p.m; ++i) std::copy_n(rows.data() + i * packed.step, p.n, out + i * p.n);
}
template <class C>
std::vector<C> product(const Product& p, const C* x, const C* y) {
  std::vector<C> out(static_cast<size_t>(p.m * p.n));
  product_into(p, x, y, out.data());
  return out;
}

/// One call, forward or backward. A cell is one direction of one layer.
template <class T>
struct Network {
  using C = Compute<T>;
  int64_t time, batch, inputs, hidden, layers, directions;
  meta::RnnMode mode;
  const DenseTensor& lengths;  // may be absent
  const DenseTensor& mask;     // of dropout between layers
  C factor;                    // of what dropout keeps; 0 without dropout
  C* reserve;                  // [cells, time, batch, parts * hidden]
  std::vector<C> first_h, first_c;

  Network(const DenseTensor& x, std::span<const DenseTensor> pre_state, const DenseTensor& sequence_length,
          const DenseTensor& dropped, const DenseTensor& kept, double dropout, bool is_bidirec, int num_layers,
          const std::string& name)
      : time(x.dims()[0]), batch(x.dims()[1]), inputs(x.dims()[2]), hidden(pre_state[0].dims()[2]), layers(num_layers),
        directions(is_bidirec ? 2 : 1), mode(), lengths(sequence_length), mask(dropped),
        factor(dropout == 0   ? C(0)
               : dropout == 1 ? C(1)
                              : static_cast<C>(1 / (1 - dropout))),
        reserve(kept.data<C>()), first_h(widened<T>(pre_state[0])),
        first_c(pre_state.size() > 1 ? widened<T>(pre_state[1]) : std::vector<C>()) {
    meta::find_mode(name, mode);
  }

  int64_t cells() const { return layers * directions; }
  int64_t gates() const { return meta::parts_of(mode).gates * hidden; }
  int64_t kept_width() const { return meta::parts_of(mode).reserved * hidden; }
  int64_t inputs_of(int64_t layer) const { return layer == 0 ? inputs : directions * hidden; }
  /// The step that a cell computes as number k.
  int64_t step_of(int64_t cell, int64_t k) const { return cell % directions == 0 ? k : time - 1 - k; }
  bool is_valid(int64_t step, int64_t b) const { return !lengths.defined() || step < integer_at(lengths, b); }

  /// What a step of a cell keeps of sequence b: its gates, and last its h.
  C* kept(int64_t cell, int64_t step, int64_t b) const {
    return reserve + ((cell * time + step) * batch + b) * kept_width();
  }
  C* h_of(int64_t cell, int64_t step, int64_t b) const { return kept(cell, step, b) + kept_width() - hidden; }
  C* c_of(int64_t cell, int64_t step, int64_t b) const { return h_of(cell, step, b) - hidden; }
  /// h and c of sequence b before step number k.
  const C* h_before(int64_t cell, int64_t k, int64_t b) const {
    return k == 0 ? first_h.data() + (cell * batch + b) * hidden : h_of(cell, step_of(cell, k - 1), b);
  }
  const C* c_before(int64_t cell, int64_t k, int64_t b) const {
    return k == 0 ? first_c.data() + (cell * batch + b) * hidden : c_of(cell, step_of(cell, k - 1), b);
  }

  /// Multiplies values [time, batch, directions * hidden] between two layers by 0 or by the factor of dropout.
  void drop(std::vector<C>& values) const {
    if (factor == 0) return;
    const uint8_t* const keeps = mask.data<uint8_t>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = keeps[i] != 0 ? values[i] * factor : C(0);
  }
  /// The output of a layer [time, batch, directions * hidden], from what was kept.
  std::vector<C> output_of(int64_t layer) const {
    std::vector<C> out(static_cast<size_t>(time * batch * directions * hidden));
    parallel_for(time * batch, directions * hidden, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (!is_valid(row / batch, row % batch)) continue;
        for (int64_t d = 0; d < directions; ++d)
          std::copy_n(h_of(layer * directions + d, row / batch, row % batch), hidden,
                      out.data() + (row * directions + d) * hidden);
      }
    });
    return out;
  }
  /// The input of a layer above the first one.
  std::vector<C> input_of(int64_t layer) const {
    std::vector<C> values = output_of(layer - 1);
    drop(values);
    return values;
  }
};

/// The weights of a cell in the type of arithmetic, from the list of rnn.
template <class T>
struct CellWeights {
  std::vector<Compute<T>> inputs, hidden, inputs_bias, hidden_bias;

  CellWeights(std::span<const DenseTensor> list, int64_t cell)
      : inputs(widened<T>(list[size_t(2 * cell)])), hidden(widened<T>(list[size_t(2 * cell + 1)])),
        inputs_bias(widened<T>(list[list.size() / 2 + size_t(2 * cell)])),
        hidden_bias(widened<T>(list[list.size() / 2 + size_t(2 * cell + 1)])) {}
};

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
