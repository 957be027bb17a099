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
#include <cstring>
#include <string>

#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/lengths.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/product.h"
#include "shard/kernels/cpu/scratch.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/cpu/vector_exp.h"
#include "shard/meta/rnn.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// What one job computes of a step: some of the sequences, and some of the units of the hidden state with all of their gates.
/// A job's part of the weights stays in the second-level cache of its thread from step to step.
struct RnnJob {
  int64_t first, count;  // sequences
  int64_t begin, end;    // units
};

/// Calls body(job) for all jobs of one step, concurrently where threads are free; results do not depend on how they are divided.
template <class Body>
void each_job(int64_t batch, int64_t units, int64_t work_of_unit, const Body& body) {
  constexpr int64_t kSequences = 64, kUnits = 32;
  const int64_t across = (units + kUnits - 1) / kUnits, down = (batch + kSequences - 1) / kSequences;
  parallel_for(across * down, std::min(batch, kSequences) * kUnits * work_of_unit, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t first = i / across * kSequences, begin = i % across * kUnits;
      body(RnnJob{first, std::min(kSequences, batch - first), begin, std::min(begin + kUnits, units)});
    }
  });
}

/// As many units of a sequence from unit j on as a vector has lanes, or the fewer that are left.
template <class C>
struct Units {
  int64_t j, count;

  HWY_INLINE Vector<C> load(const C* from) const {
    if (count == Vector<C>::kLanes) return Vector<C>::load(from + j);
    C numbers[Vector<C>::kLanes] = {};
    std::memcpy(numbers, from + j, static_cast<size_t>(count) * sizeof(C));
    return Vector<C>::load(numbers);
  }
  HWY_INLINE void store(Vector<C> x, C* to) const {
    if (count == Vector<C>::kLanes) return x.store(to + j);
    C numbers[Vector<C>::kLanes];
    x.store(numbers);
    std::memcpy(to + j, numbers, static_cast<size_t>(count) * sizeof(C));
  }
};

/// Calls body(Units) for units [begin, end).
template <class C, class Body>
HWY_INLINE void each_vector(int64_t begin, int64_t end, const Body& body) {
  for (int64_t j = begin; j < end; j += Vector<C>::kLanes) body(Units<C>{j, std::min(Vector<C>::kLanes, end - j)});
}

HWY_INLINE Vector<float> sigmoid_of(Vector<float> x) { return fast_sigmoid(x); }
HWY_INLINE Vector<double> sigmoid_of(Vector<double> x) { return 1.0 / (1.0 + exp(-x)); }
HWY_INLINE Vector<float> tanh_of(Vector<float> x) { return fast_tanh(x); }
HWY_INLINE Vector<double> tanh_of(Vector<double> x) { return tanh(x); }

/// The numbers of a tensor in the type of arithmetic: itself, or a copy of 16-bit floats.
template <class T>
class Widened {
 public:
  using C = Compute<T>;

  Widened() = default;
  Widened(Widened&&) = default;
  Widened& operator=(Widened&&) = default;
  explicit Widened(const DenseTensor& x) {
    if constexpr (!is_half<T>) {
      data_ = x.data<T>();
    } else {
      *this = Widened(Numbers<C>(static_cast<size_t>(x.numel())));
      parallel_for(x.numel(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) copy_[static_cast<size_t>(i)] = static_cast<C>(x.data<T>()[i]);
      });
    }
  }
  /// Numbers that were computed.
  explicit Widened(Numbers<C> numbers) : copy_(std::move(numbers)), data_(copy_.data()) {}

  const C* data() const { return data_; }

 private:
  Numbers<C> copy_;
  const C* data_ = nullptr;
};

/// Writes numbers in the type of arithmetic into `to`.
template <class T>
void store(const Numbers<Compute<T>>& from, DenseTensor& to) {
  parallel_for(to.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to.data<T>()[i] = T(from[static_cast<size_t>(i)]);
  });
}

/// A matrix by which others are multiplied from the left: `groups` matrices side by side, of as many columns each, in strips of
/// columns that are contiguous and padded. Rows of a wide matrix are pages apart, which costs more than the multiplications.
template <class C>
class Packed {
 public:
  Packed(int64_t rows, int64_t columns, int64_t groups, const Strided<C>& from)
      : width(columns / groups), group_step((width + kProductColumns - 1) / kProductColumns * kProductColumns),
        step(groups * group_step), rows_(rows), data_(size_t(rows * step), C(0)) {
    constexpr int64_t kSide = 16;  // of blocks whose cache lines are read and written at once
    for (int64_t first = 0; first < step; first += width_of(first % group_step)) {
      const int64_t in_group = first % group_step, strip_width = width_of(in_group),
                    source = first / group_step * width + in_group,
                    used = std::clamp<int64_t>(width - in_group, 0, strip_width);
      C* const strip = data_.data() + first * rows;
      for (int64_t block = 0; block < rows; block += kSide) {
        for (int64_t j = 0; j < used; ++j) {
          for (int64_t i = block; i < std::min(block + kSide, rows); ++i)
            strip[i * strip_width + j] = from.data[i * from.row_step + (source + j) * from.column_step];
        }
      }
    }
  }

  /// out += a * this for `count` rows of a and columns [begin, end) of each group, where begin is a multiple of kStrip. The rows of
  /// out are `step` apart, and groups `group_step`.
  void add_products(int64_t count, const Strided<C>& a, int64_t begin, int64_t end, C* out) const {
    for (int64_t group = 0; group < step; group += group_step) {
      for (int64_t first = begin; first < end; first += kStrip)
        add_product(count, width_of(first), rows_, a, data_.data() + (group + first) * rows_, width_of(first),
                    out + group + first, step);
    }
  }

  static constexpr int64_t kStrip = 32;
  const int64_t width;       // columns of a group
  const int64_t group_step;  // the same with padding
  const int64_t step;        // of all groups

 private:
  int64_t width_of(int64_t first) const { return std::min(kStrip, group_step - first); }

  int64_t rows_;
  Numbers<C> data_;
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
  const Packed<C> packed(p.k, p.n, 1, {y, sy.row, sy.column});
  Numbers<C> rows(static_cast<size_t>(p.m * packed.step), C(0));
  packed.add_products(p.m, Strided<C>{x, sx.row, sx.column}, 0, p.n, rows.data());
  for (int64_t i = 0; i < p.m; ++i) std::copy_n(rows.data() + i * packed.step, p.n, out + i * p.n);
}
template <class C>
Numbers<C> product(const Product& p, const C* x, const C* y) {
  Numbers<C> out(static_cast<size_t>(p.m * p.n));
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
  Widened<T> first_h, first_c;

  Network(const DenseTensor& x, std::span<const DenseTensor> pre_state, const DenseTensor& sequence_length,
          const DenseTensor& dropped, const DenseTensor& kept, double dropout, bool is_bidirec, int num_layers,
          const std::string& name)
      : time(x.dims()[0]), batch(x.dims()[1]), inputs(x.dims()[2]), hidden(pre_state[0].dims()[2]), layers(num_layers),
        directions(is_bidirec ? 2 : 1), mode(), lengths(sequence_length), mask(dropped),
        factor(dropout == 0   ? C(0)
               : dropout == 1 ? C(1)
                              : static_cast<C>(1 / (1 - dropout))),
        reserve(kept.data<C>()), first_h(pre_state[0]),
        first_c(pre_state.size() > 1 ? Widened<T>(pre_state[1]) : Widened<T>()) {
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
  void drop(Numbers<C>& values) const {
    if (factor == 0) return;
    const uint8_t* const keeps = mask.data<uint8_t>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = keeps[i] != 0 ? values[i] * factor : C(0);
  }
  /// Writes the output of a layer [time, batch, directions * hidden], from what was kept.
  template <class To>
  void write_output(int64_t layer, To* out) const {
    parallel_for(time * batch, directions * hidden, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const bool valid = is_valid(row / batch, row % batch);
        for (int64_t d = 0; d < directions; ++d) {
          To* const to = out + (row * directions + d) * hidden;
          const C* const h = h_of(layer * directions + d, row / batch, row % batch);
          for (int64_t j = 0; j < hidden; ++j) to[j] = static_cast<To>(valid ? h[j] : C(0));
        }
      }
    });
  }
  /// The input of a layer, which is x for the first one.
  Widened<T> input_of(int64_t layer, const DenseTensor& x) const {
    if (layer == 0) return Widened<T>(x);
    Numbers<C> values(static_cast<size_t>(time * batch * directions * hidden));
    write_output(layer - 1, values.data());
    drop(values);
    return Widened<T>(std::move(values));
  }
};

/// The weights of a cell in the type of arithmetic, from the list of rnn.
template <class T>
struct CellWeights {
  Widened<T> inputs, hidden, inputs_bias, hidden_bias;

  CellWeights(std::span<const DenseTensor> list, int64_t cell)
      : inputs(list[size_t(2 * cell)]), hidden(list[size_t(2 * cell + 1)]),
        inputs_bias(list[list.size() / 2 + size_t(2 * cell)]),
        hidden_bias(list[list.size() / 2 + size_t(2 * cell + 1)]) {}
};

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
