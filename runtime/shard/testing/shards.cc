// Splits and joins values by layouts, for checks.
#include "shard/testing/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

namespace shard::testing {
namespace {

/// a + b and so on, where integers wrap around.
template <class A>
A wrapped(A a, A b, char op) {
  if constexpr (std::is_integral_v<A>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<A>(op == '+' ? x + y : op == '-' ? x - y : x * y);
  } else {
    return op == '+' ? a + b : op == '-' ? a - b : a * b;
  }
}

/// The reduction of values, as the documents define it, implemented independently.
template <class A>
A reduced(const std::vector<A>& values, ReduceType type) {
  A result = values[0];
  bool any = false, all = true;
  for (size_t i = 0; i < values.size(); ++i) {
    const A v = values[i];
    any = any || v != A(0);
    all = all && v != A(0);
    if (i == 0) continue;
    if constexpr (!std::is_same_v<A, bool>) {
      if (type == ReduceType::sum || type == ReduceType::avg) result = wrapped(result, v, '+');
      if (type == ReduceType::prod) result = wrapped(result, v, '*');
    }
    if (type == ReduceType::max && (v > result || v != v)) result = v;
    if (type == ReduceType::min && (v < result || v != v)) result = v;
  }
  if (type == ReduceType::any) return static_cast<A>(any);
  if (type == ReduceType::all) return static_cast<A>(all);
  if constexpr (std::is_same_v<A, bool>) {
    if (type == ReduceType::sum || type == ReduceType::avg) return any;
    if (type == ReduceType::prod) return all;
  } else {
    if (type == ReduceType::avg) return static_cast<A>(result / static_cast<A>(values.size()));
  }
  return result;
}

/// The largest magnitude of free contributions where roundings must be small.
constexpr int64_t kGentleSpread = 1;

/// Contributions of `n` processes whose reduction is a given number.
template <class T>
class Splitter {
 public:
  using A = Compute<T>;
  Splitter(Random& random, int n, bool gentle, bool only, int64_t grid)
      : random_(random), n_(n), spread_(gentle       ? kGentleSpread
                                        : is_half<T> ? 8
                                                     : 1000),
        only_(only), grid_(grid) {}

  std::vector<A> split(A value, ReduceType type) {
    holder_ = static_cast<size_t>(pick(random_, 0, n_ - 1));
    parts_.assign(static_cast<size_t>(n_), A(0));
    // One third of the splits are as lopsided as possible.
    alone_ = pick(random_, 0, 2) == 0;
    if constexpr (std::is_same_v<T, bool>) split_bool(value, type);
    else split_number(value, type);
    return parts_;
  }

 private:
  bool chance() { return pick(random_, 0, 1) == 1; }

  template <class F>
  void others(F number) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (i != holder_) parts_[i] = number();
    }
  }

  /// Where one contribution decides, all others are free; otherwise all are equal.
  void split_bool(bool value, ReduceType type) {
    const bool is_or =
        type == ReduceType::sum || type == ReduceType::avg || type == ReduceType::max || type == ReduceType::any;
    parts_[holder_] = value;
    others([&] { return value == is_or && !alone_ ? chance() : !is_or; });
  }

  void split_number(A value, ReduceType type) {
    switch (type) {
      case ReduceType::sum: return split_sum(value);
      case ReduceType::avg: return split_average(value);
      case ReduceType::prod: return split_product(value);
      case ReduceType::max:
      case ReduceType::min: return split_extreme(value, type == ReduceType::max);
      case ReduceType::any:
        parts_[holder_] = value != A(0) ? nonzero() : A(0);
        return others([&] { return value != A(0) && chance() ? nonzero() : A(0); });
      case ReduceType::all:
        parts_[holder_] = value != A(0) ? nonzero() : A(0);
        return others([&] { return value != A(0) || chance() ? nonzero() : A(0); });
    }
  }

  A nonzero() { return static_cast<A>(pick(random_, 1, 5) * (std::is_signed_v<A> && chance() ? -1 : 1)); }
  A offset() { return static_cast<A>(pick(random_, std::is_signed_v<A> ? -spread_ : 0, spread_)); }

  void split_sum(A total, A grid = A(1)) {
    if (!alone_) others([&] { return wrapped(offset(), grid, '*'); });
    for (const A part : parts_) total = wrapped(total, part, '-');
    parts_[holder_] = total;
  }

  /// Integers are truncated towards zero, so their sum may be slightly larger.
  void split_average(A value) {
    A total = wrapped(value, static_cast<A>(n_), '*');
    if constexpr (std::is_integral_v<A>) {
      const auto rest = static_cast<A>(only_ ? pick(random_, 0, n_ - 1) : 0);
      total = wrapped(total, rest, value < A(0) ? '-' : '+');
    }
    // Sums of unsigned numbers must not wrap around before they are divided.
    if constexpr (std::is_unsigned_v<A>) {
      others([&] {
        const auto part = static_cast<A>(pick(random_, 0, total));
        total = static_cast<A>(total - part);
        return part;
      });
      parts_[holder_] = total;
    } else {
      split_sum(total, static_cast<A>(grid_));
    }
  }

  void split_product(A value) {
    parts_[holder_] = value;
    if (alone_) return others([] { return A(1); });
    if (value == A(0)) return others([&] { return offset(); });
    others([&] {
      A factor = A(1);
      if (std::is_signed_v<A> && chance()) factor = wrapped(factor, static_cast<A>(-1), '*');
      if constexpr (std::is_floating_point_v<A>) {
        if (chance()) factor *= chance() ? 2.0f : 0.5f;
      }
      // 1 / factor is a sign or a power of two.
      parts_[holder_] = static_cast<A>(parts_[holder_] / factor);
      return factor;
    });
  }

  void split_extreme(A value, bool max) {
    using Limits = std::numeric_limits<A>;
    parts_[holder_] = value;
    others([&]() -> A {
      if (alone_) {
        if constexpr (Limits::has_infinity) return max ? -Limits::infinity() : Limits::infinity();
        else if (only_) return max ? Limits::lowest() : Limits::max();
      }
      const auto distance = static_cast<A>(pick(random_, 0, chance() ? 2 : spread_ % 250));
      if constexpr (std::is_integral_v<A>) {  // which may already be at an end of its range
        if (max)
          return value < static_cast<A>(Limits::lowest() + distance) ? Limits::lowest()
                                                                     : static_cast<A>(value - distance);
        return value > static_cast<A>(Limits::max() - distance) ? Limits::max() : static_cast<A>(value + distance);
      } else {
        return max ? value - distance : value + distance;
      }
    });
  }

  Random& random_;
  int n_;
  int64_t spread_;
  // no other axis is reduced, so that averages of integers may be truncated, and extremes be as
  // large as possible
  bool only_;
  int64_t grid_;  // contributions to an average differ by multiples of it
  size_t holder_ = 0;
  bool alone_ = false;
  std::vector<A> parts_;
};

/// The types of a layout do not commute with each other in general, and values must not depend on
/// an order. So one type is split, and the others get contributions that are the same in all
/// orders. Any and all map numbers to 0 or 1, so they go first; a product of sums is not the sum of
/// products.
std::optional<ReduceType> split_type(const Layout& layout, Random& random) {
  std::vector<ReduceType> types;
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    if (const auto type = layout.partial[static_cast<size_t>(axis)]) types.push_back(*type);
  }
  for (const ReduceType first : {ReduceType::any, ReduceType::all, ReduceType::prod}) {
    if (std::find(types.begin(), types.end(), first) != types.end()) return first;
  }
  if (types.empty()) return std::nullopt;
  return types[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(types.size()) - 1))];
}

/// The index of a coordinate among the processes.
size_t index_of(const ProcessMesh& mesh, const Coordinate& at) {
  size_t index = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis)
    index = index * static_cast<size_t>(mesh.size(axis)) + static_cast<size_t>(at[static_cast<size_t>(axis)]);
  return index;
}

int pending_axes(const Layout& layout) {
  return static_cast<int>(
      std::count_if(layout.partial.begin(), layout.partial.end(), [](const auto& type) { return type.has_value(); }));
}

/// The number of which all contributions to averages of floats, except one, are multiples. The
/// average along any axis, in any order of the axes, is then a whole number, where a third would be
/// rounded. With a single axis there is only one order.
int64_t grid_of(const Layout& layout) {
  int64_t grid = 1;
  int axes = 0;
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    if (layout.partial[static_cast<size_t>(axis)] != ReduceType::avg) continue;
    grid *= layout.mesh->size(axis);
    ++axes;
  }
  return axes > 1 ? grid : 1;
}

/// Numbers for each process, all equal at first, from which `axis` then makes contributions.
template <class T>
void split_axis(std::vector<Compute<T>>& parts, const Layout& layout, int axis, bool split, Random& random,
                bool gentle) {
  const ProcessMesh& mesh = *layout.mesh;
  const int n = mesh.size(axis);
  const ReduceType type = *layout.partial[static_cast<size_t>(axis)];
  const auto holder =
      // the same one for all lines, or sums and products would not commute
      static_cast<size_t>(pick(random, 0, n - 1));
  for (int i = 0; i < mesh.size(); ++i) {
    Coordinate at = mesh.coordinate_at(i);
    if (at[static_cast<size_t>(axis)] != 0) continue;
    const Compute<T> value = parts[static_cast<size_t>(i)];
    std::vector<Compute<T>> line(static_cast<size_t>(n), value);
    // A single process reduces nothing, so its contribution to an any is already 0 or 1.
    if (n == 1) continue;
    if (split) {
      line = Splitter<T>(random, n, gentle, pending_axes(layout) == 1,
                         std::is_floating_point_v<Compute<T>> ? grid_of(layout) : 1)
                 .split(value, type);
    } else if (type == ReduceType::sum || type == ReduceType::prod) {
      line.assign(static_cast<size_t>(n), Compute<T>(type == ReduceType::prod ? 1 : 0));
      line[holder] = value;
    }
    for (int k = 0; k < n; ++k) {
      at[static_cast<size_t>(axis)] = k;
      parts[index_of(mesh, at)] = line[static_cast<size_t>(k)];
    }
  }
}

/// Contributions must be alike on the axes that are not partial: they are copied from the first
/// process along those.
Coordinate partial_coordinate(const Layout& layout, Coordinate at) {
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    if (!layout.partial[static_cast<size_t>(axis)]) at[static_cast<size_t>(axis)] = 0;
  }
  return at;
}

/// Calls f(element of the shard, element of the whole) for each element of a local shard.
template <class F>
void for_elements(const ShardBox& shard, const Dims& global, F f) {
  const int64_t count = shard.dims.numel();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, whole = 0, stride = 1;
    for (int d = global.rank() - 1; d >= 0; --d) {
      whole += (shard.begin[d] + rest % shard.dims[d]) * stride;
      rest /= shard.dims[d];
      stride *= global[d];
    }
    f(i, whole);
  }
}

template <class T>
std::vector<DenseTensor> split_typed(const DenseTensor& value, const Layout& layout, Random& random, bool gentle) {
  const ProcessMesh& mesh = *layout.mesh;
  const auto n = static_cast<size_t>(mesh.size());
  const auto type = split_type(layout, random);
  std::vector<DenseTensor> wholes(n);
  for (DenseTensor& whole : wholes) whole = clone(value);
  std::vector<Compute<T>> parts(n);
  for (int64_t e = 0; type && e < value.numel(); ++e) {
    parts.assign(n, static_cast<Compute<T>>(value.data<T>()[e]));
    bool cut_off = false;
    for (const bool chosen : {true, false}) {
      for (int axis = 0; axis < mesh.rank(); ++axis) {
        const auto pending = layout.partial[static_cast<size_t>(axis)];
        if (!pending || (pending == type) != chosen) continue;
        split_axis<T>(parts, layout, axis, chosen && !cut_off, random, gentle);
        // Integers that are truncated twice depend on the order.
        cut_off = type == ReduceType::avg && std::is_integral_v<T>;
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const size_t from = index_of(mesh, partial_coordinate(layout, mesh.coordinate_at(static_cast<int>(i))));
      wholes[i].template data<T>()[e] = static_cast<T>(parts[from]);
    }
  }
  std::vector<DenseTensor> shards;
  for (size_t i = 0; i < n; ++i) {
    const ShardBox shard = shard_box(layout, value.dims(), mesh.coordinate_at(static_cast<int>(i)));
    DenseTensor tensor = DenseTensor::allocate(kCpu, {shard.dims, value.dtype()});
    for_elements(shard, value.dims(),
                 [&](int64_t to, int64_t from) { tensor.data<T>()[to] = wholes[i].template data<T>()[from]; });
    shards.push_back(std::move(tensor));
  }
  return shards;
}

/// The shards of the processes that differ from `at` only along partial axes, reduced axis by axis.
template <class T>
DenseTensor reduce_lines(const Layout& layout, const Coordinate& at, int axis, const std::vector<DenseTensor>& shards) {
  const ProcessMesh& mesh = *layout.mesh;
  while (axis < mesh.rank() && !layout.partial[static_cast<size_t>(axis)]) ++axis;
  if (axis == mesh.rank()) return shards[index_of(mesh, at)];
  std::vector<DenseTensor> line;
  for (int k = 0; k < mesh.size(axis); ++k) {
    Coordinate other = at;
    other[static_cast<size_t>(axis)] = k;
    line.push_back(reduce_lines<T>(layout, other, axis + 1, shards));
  }
  DenseTensor result = DenseTensor::allocate(kCpu, line[0].meta());
  std::vector<Compute<T>> values(line.size());
  for (int64_t e = 0; e < result.numel(); ++e) {
    for (size_t k = 0; k < line.size(); ++k) values[k] = static_cast<Compute<T>>(line[k].template data<T>()[e]);
    result.data<T>()[e] = static_cast<T>(reduced(values, *layout.partial[static_cast<size_t>(axis)]));
  }
  return result;
}

template <class T>
std::string join_typed(DenseTensor& value, const Layout& layout, const std::vector<DenseTensor>& shards) {
  const ProcessMesh& mesh = *layout.mesh;
  std::vector<int> written(static_cast<size_t>(value.numel()), -1);
  for (int i = 0; i < mesh.size(); ++i) {
    const Coordinate at = mesh.coordinate_at(i);
    const DenseTensor shard = reduce_lines<T>(layout, at, 0, shards);
    int differs_from = -1;
    for_elements(shard_box(layout, value.dims(), at), value.dims(), [&](int64_t from, int64_t to) {
      T& target = value.data<T>()[to];
      const T element = shard.data<T>()[from];
      if (written[static_cast<size_t>(to)] < 0) target = element;
      else if (std::memcmp(&target, &element, sizeof(T)) != 0) differs_from = written[static_cast<size_t>(to)];
      written[static_cast<size_t>(to)] = i;
    });
    if (differs_from >= 0)
      return fmt::format("processes {} and {} of the mesh hold replicas that differ", differs_from, i);
  }
  return "";
}

}  // namespace

DenseTensor draw_value(const CaseInput& input, const Layout& layout, Random& random) {
  bool logical = input.dtype == DType::boolean;
  for (const auto& type : layout.partial) logical = logical || (type && is_logical(*type));
  int64_t low = input.low, high = input.high;
  if (input.dtype == DType::uint8 && high < 0) std::tie(low, high) = std::pair(-high, -low);
  if (input.dtype == DType::uint8) low = std::max<int64_t>(low, 0);
  if (logical && low <= 1 && high >= 0) {
    low = std::max<int64_t>(low, 0);
    high = std::min<int64_t>(high, 1);
  }
  DenseTensor value = DenseTensor::allocate(kCpu, {input.dims, input.dtype});
  visit_dtype(input.dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < value.numel(); ++i)
      value.data<T>()[i] = static_cast<T>(static_cast<Compute<T>>(pick(random, low, high)));
  });
  return value;
}

std::vector<DenseTensor> split_value(const DenseTensor& value, const Layout& layout, Random& random, bool gentle) {
  return visit_dtype(value.dtype(), [&]<class T>(TypeTag<T>) { return split_typed<T>(value, layout, random, gentle); });
}

Joined join_shards(const Meta& global, const Layout& layout, const std::vector<DenseTensor>& shards) {
  const DType dtype = shard_dtype(global.dtype, layout);
  for (size_t i = 0; i < shards.size(); ++i) {
    const Meta expected{shard_box(layout, global.dims, layout.mesh->coordinate_at(static_cast<int>(i))).dims, dtype};
    if (!(shards[i].meta() == expected)) {
      return {{},
              fmt::format("process {} of the mesh holds {}, but its layout requires {}", i, to_string(shards[i].meta()),
                          to_string(expected))};
    }
  }
  Joined joined{DenseTensor::allocate(kCpu, {global.dims, dtype}), ""};
  joined.problem = visit_dtype(dtype, [&]<class T>(TypeTag<T>) { return join_typed<T>(joined.value, layout, shards); });
  joined.value = convert_floats(joined.value, global.dtype);
  return joined;
}

std::string value_difference(const DenseTensor& actual, const DenseTensor& expected, double ulps) {
  if (!(actual.meta() == expected.meta()))
    return fmt::format("it is {}, expected {}", to_string(actual.meta()), to_string(expected.meta()));
  return visit_dtype(expected.dtype(), [&]<class T>(TypeTag<T>) -> std::string {
    double largest = 1;
    for (int64_t i = 0; ulps > 0 && i < expected.numel(); ++i) {
      const double e = std::abs(static_cast<double>(static_cast<Compute<T>>(expected.data<T>()[i])));
      if (std::isfinite(e)) largest = std::max(largest, e);
    }
    const double tolerance = ulps * epsilon_of(expected.dtype()) * largest;
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const T &a = actual.data<T>()[i], &e = expected.data<T>()[i];
      if (std::memcmp(&a, &e, sizeof(T)) == 0) continue;
      const auto x = static_cast<double>(static_cast<Compute<T>>(a)),
                 y = static_cast<double>(static_cast<Compute<T>>(e));
      // A sum that is zero may have either sign, depending on the order of its terms.
      if ((x != x && y != y) || x == y || std::abs(x - y) <= tolerance) continue;
      return fmt::format("element {} of {} is {}, expected {}", i, to_string(expected.meta()), x, y);
    }
    return "";
  });
}

}  // namespace shard::testing
