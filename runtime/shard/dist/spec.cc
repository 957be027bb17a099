#include "shard/dist/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

namespace shard {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(trim(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string render(const Layout& layout) {
  std::string text = "[";
  for (int d = 0; d < layout.rank; ++d) {
    const AxisList& axes = layout.dims[static_cast<size_t>(d)];
    if (d != 0) text += ", ";
    if (axes.empty()) text += "-";
    for (int i = 0; i < axes.size(); ++i) text += (i == 0 ? "" : "+") + layout.mesh->name(axes[i]);
  }
  text += "]";
  for (int a = 0; a < layout.mesh->rank(); ++a) {
    if (const auto type = layout.partial[static_cast<size_t>(a)])
      text += fmt::format(" {}({})", to_string(*type), layout.mesh->name(a));
  }
  return text;
}

void validate(const Layout& layout) {
  if (layout.mesh == nullptr) fail(ErrorCode::layout, "a layout needs a mesh");
  if (layout.rank < 0 || layout.rank > kMaxRank)
    fail(ErrorCode::layout, "a layout has 0 to {} dims, not {}", kMaxRank, layout.rank);
  std::array<int, kMaxMeshRank> uses{};
  for (int d = 0; d < layout.rank; ++d) {
    const AxisList& axes = layout.dims[static_cast<size_t>(d)];
    for (int i = 0; i < axes.size(); ++i) {
      if (axes[i] < 0 || axes[i] >= layout.mesh->rank()) {
        fail(ErrorCode::layout, "dim {} names mesh axis {}, but {} has axes 0 to {}", d, axes[i],
             layout.mesh->describe(), layout.mesh->rank() - 1);
      }
      ++uses[static_cast<size_t>(axes[i])];
    }
  }
  for (int a = 0; a < kMaxMeshRank; ++a) {
    const bool partial = layout.partial[static_cast<size_t>(a)].has_value();
    if (partial && a >= layout.mesh->rank())
      fail(ErrorCode::layout, "{} has no axis {} to be partial on", layout.mesh->describe(), a);
    if (uses[static_cast<size_t>(a)] + (partial ? 1 : 0) > 1) {
      fail(ErrorCode::layout, "layout {} on {} uses axis '{}' twice; an axis shards one dim or is partial",
           render(layout), layout.mesh->describe(), layout.mesh->name(a));
    }
  }
}

}  // namespace

bool Layout::operator==(const Layout& other) const {
  if (mesh != other.mesh || rank != other.rank || partial != other.partial) return false;
  return std::equal(dims.begin(), dims.begin() + rank, other.dims.begin());
}

int Layout::dim_of(int axis) const {
  for (int d = 0; d < rank; ++d) {
    if (dims[static_cast<size_t>(d)].contains(axis)) return d;
  }
  return -1;
}

bool Layout::has_partial() const {
  return std::any_of(partial.begin(), partial.end(), [](const auto& type) { return type.has_value(); });
}

DistSpec::DistSpec(const Layout& layout) : layout_(layout), text_(render(layout)) {}

const DistSpec* DistSpec::make(const Layout& layout) {
  validate(layout);
  static std::shared_mutex mutex;
  static std::map<std::pair<const ProcessMesh*, std::string>, std::unique_ptr<const DistSpec>> table;
  const std::pair key(layout.mesh, render(layout));
  {
    const std::shared_lock lock(mutex);
    if (const auto found = table.find(key); found != table.end()) return found->second.get();
  }
  const std::unique_lock lock(mutex);
  std::unique_ptr<const DistSpec>& spec = table[key];
  if (!spec) spec.reset(new DistSpec(layout));
  return spec.get();
}

const DistSpec* DistSpec::replicated(const ProcessMesh* mesh, int rank) { return make(Layout(mesh, rank)); }

namespace {

/// The parts of the text of a layout: the dims, and the pending reductions.
struct SpecText {
  std::string_view dims;
  std::string_view partial;
};

/// Splits "dims | reductions", as people write it, or "[dims] reductions", as text() prints it.
SpecText split_text(std::string_view text) {
  const std::string_view whole = trim(text);
  const bool brackets = whole.starts_with('[');
  const size_t end = whole.find(brackets ? ']' : '|');
  if (end == std::string_view::npos) {
    if (brackets) fail(ErrorCode::layout, "layout '{}' has no ']' for its '['", text);
    return {whole, {}};
  }
  SpecText result{trim(whole.substr(brackets ? 1 : 0, end - (brackets ? 1 : 0))), trim(whole.substr(end + 1))};
  if (brackets && result.partial.starts_with('|')) result.partial = trim(result.partial.substr(1));
  if (result.partial.find('|') != std::string_view::npos)
    fail(ErrorCode::layout, "layout '{}' has more than one '|'", text);
  return result;
}

int axis_named(const ProcessMesh* mesh, std::string_view name, std::string_view text) {
  for (int axis = 0; axis < mesh->rank(); ++axis) {
    if (mesh->name(axis) == name) return axis;
  }
  std::string names;
  for (int axis = 0; axis < mesh->rank(); ++axis) names += (axis == 0 ? "" : ", ") + mesh->name(axis);
  fail(ErrorCode::layout, "layout '{}': {} has no axis '{}'; its axes are: {}", text, mesh->describe(), name, names);
}

/// Parses "sum(a), max(b)", separated by commas or spaces.
void read_partial(std::string_view rest, std::string_view text, Layout& layout) {
  while (!rest.empty()) {
    const size_t open = rest.find('(');
    const size_t close = rest.find(')');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
      fail(ErrorCode::layout, "layout '{}': '{}' must have the form sum(axis)", text, rest);
    }
    const std::string_view name = trim(rest.substr(0, open));
    const int axis = axis_named(layout.mesh, trim(rest.substr(open + 1, close - open - 1)), text);
    const auto type = find_reduce_type(name);
    if (!type)
      fail(ErrorCode::layout, "layout '{}': '{}' is not a reduce type; choose sum, max, min, prod, avg, any or all",
           text, name);
    if (layout.partial[static_cast<size_t>(axis)])
      fail(ErrorCode::layout, "layout '{}' uses axis '{}' twice", text, layout.mesh->name(axis));
    layout.partial[static_cast<size_t>(axis)] = *type;
    rest = trim(rest.substr(close + 1));
    if (!rest.starts_with(',')) continue;
    rest = trim(rest.substr(1));
    if (rest.empty()) fail(ErrorCode::layout, "layout '{}' ends with a comma", text);
  }
}

}  // namespace

const DistSpec* DistSpec::parse(const ProcessMesh* mesh, std::string_view text) {
  if (mesh == nullptr) fail(ErrorCode::layout, "layout '{}' needs a mesh", text);
  const SpecText parts = split_text(text);
  Layout layout(mesh, 0);
  if (!parts.dims.empty()) {
    for (std::string_view entry : split(parts.dims, ',')) {
      if (layout.rank == kMaxRank) fail(ErrorCode::layout, "layout '{}' has more than {} dims", text, kMaxRank);
      AxisList& axes = layout.dims[static_cast<size_t>(layout.rank++)];
      if (entry == "-") continue;
      for (std::string_view name : split(entry, '+')) {
        const int axis = axis_named(mesh, name, text);
        if (axes.contains(axis)) fail(ErrorCode::layout, "layout '{}' uses axis '{}' twice", text, name);
        axes.push_back(axis);
      }
    }
  }
  read_partial(parts.partial, text, layout);
  return make(layout);
}

Range shard_range(int64_t size, const ProcessMesh& mesh, const AxisList& axes, const Coordinate& at) {
  Range range{0, size};
  for (int i = 0; i < axes.size(); ++i) {
    const int64_t n = mesh.size(axes[i]);
    const int64_t k = at[static_cast<size_t>(axes[i])];
    const int64_t quotient = range.size / n;
    const int64_t rest = range.size % n;
    range.begin += k * quotient + std::min(k, rest);
    range.size = quotient + (k < rest ? 1 : 0);
  }
  return range;
}

ShardBox shard_box(const Layout& layout, const Dims& global, const Coordinate& at) {
  ShardBox shard;
  for (int d = 0; d < global.rank(); ++d) {
    const Range range = shard_range(global[d], *layout.mesh, layout.dims[static_cast<size_t>(d)], at);
    shard.begin.push_back(range.begin);
    shard.dims.push_back(range.size);
  }
  return shard;
}

DType shard_dtype(DType dtype, const Layout& layout) {
  if (compute_dtype(dtype) == dtype) return dtype;
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    const std::optional<ReduceType> type = layout.partial[static_cast<size_t>(axis)];
    if (type && is_linear(*type) && layout.mesh->size(axis) > 1) return compute_dtype(dtype);
  }
  return dtype;
}

Meta shard_meta(const Meta& global, const DistSpec& spec, const Coordinate& at) {
  return {shard_box(spec.layout(), global.dims, at).dims, shard_dtype(global.dtype, spec.layout())};
}

}  // namespace shard
