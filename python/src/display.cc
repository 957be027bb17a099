// repr of tensors: their values as NumPy prints arrays, shortened where there are many, and what the tensor is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "arrays.h"
#include "messages.h"

namespace shard::python {
namespace {

constexpr int64_t kMostElements = 1000;  // more are shortened to the first and last of each dim
constexpr int64_t kEdge = 3;
constexpr size_t kLineLength = 88;
constexpr int kDecimals = 4;

/// The positions of a dim that are shown; -1 stands for those between.
std::vector<int64_t> shown(int64_t size, bool shortened) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < size; ++i) {
    if (shortened && size > 2 * kEdge && i == kEdge) {
      positions.push_back(-1);
      i = size - kEdge;
    }
    positions.push_back(i);
  }
  return positions;
}

/// The elements that are shown, in their order, copied from the device. Only their bytes are.
template <class T>
class Picked {
 public:
  Picked(const DenseTensor& value, bool shortened) : value_(value), shortened_(shortened) {
    if (value.numel() != 0) visit(0, 0);
  }
  std::vector<T> values;

 private:
  void visit(int dim, int64_t from) {
    const int last = value_.dims().rank() - 1;
    if (dim > last) return read(from, 1);
    const int64_t size = value_.dims()[dim];
    if (dim == last) {
      const bool split = shortened_ && size > 2 * kEdge;
      read(from * size, split ? kEdge : size);
      if (split) read(from * size + size - kEdge, kEdge);
      return;
    }
    for (const int64_t i : shown(size, shortened_)) {
      if (i >= 0) visit(dim + 1, from * size + i);
    }
  }
  void read(int64_t from, int64_t count) {
    std::vector<char> bytes(static_cast<size_t>(count) * sizeof(T));
    const char* const source = static_cast<const char*>(value_.raw()) + static_cast<size_t>(from) * sizeof(T);
    copy_bytes(kCpu, bytes.data(), value_.device(), source, bytes.size());
    for (int64_t i = 0; i < count; ++i) {
      T each{};
      std::memcpy(static_cast<void*>(&each), bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
      values.push_back(each);
    }
  }

  const DenseTensor& value_;
  bool shortened_;
};

/// The numbers with as few decimals as show all of them, up to kDecimals, or with exponents.
std::vector<std::string> texts_of_floats(const std::vector<double>& values) {
  double largest = 0, smallest = INFINITY;
  for (const double value : values) {
    if (!std::isfinite(value) || value == 0) continue;
    largest = std::max(largest, std::abs(value));
    smallest = std::min(smallest, std::abs(value));
  }
  const bool exponents = largest >= 1e8 || (largest != 0 && (smallest < 1e-4 || largest / smallest > 1e6));
  std::vector<std::string> texts;
  size_t decimals = 0;
  for (const double value : values) {
    texts.push_back(!std::isfinite(value) ? fmt::format("{}", value)
                    : exponents           ? fmt::format("{:.{}e}", value, kDecimals)
                                          : fmt::format("{:.{}f}", value, kDecimals));
    if (exponents || !std::isfinite(value)) continue;
    const std::string& text = texts.back();
    decimals = std::max(decimals, text.find_last_not_of('0') - text.find('.'));
  }
  for (std::string& text : texts) {
    const size_t point = text.find('.');
    if (!exponents && point != std::string::npos) text.resize(point + 1 + decimals);
  }
  return texts;
}

template <class T>
std::vector<std::string> texts_of(const std::vector<T>& values) {
  std::vector<std::string> texts;
  if constexpr (std::is_integral_v<T>) {
    for (const T value : values) texts.push_back(fmt::format("{}", static_cast<int64_t>(value)));
  } else {
    std::vector<double> numbers;
    for (const T& value : values) numbers.push_back(static_cast<double>(static_cast<Compute<T>>(value)));
    return texts_of_floats(numbers);
  }
  return texts;
}

/// Writes nested brackets around the texts of the elements, in columns, with the rows below each other.
class Brackets {
 public:
  Brackets(std::vector<std::string> texts, const Dims& dims, bool shortened, size_t indent)
      : texts_(std::move(texts)), dims_(dims), shortened_(shortened), indent_(indent) {
    for (const std::string& each : texts_) width_ = std::max(width_, each.size());
    visit(0);
  }
  std::string text;

 private:
  void visit(int dim) {
    if (dim == dims_.rank()) {
      text += fmt::format("{:>{}}", texts_[next_++], width_);
      return;
    }
    const bool last = dim == dims_.rank() - 1;
    const size_t indent = indent_ + static_cast<size_t>(dim) + 1;
    const std::string line = "\n" + std::string(indent, ' ');
    std::string rows;
    for (int d = dim + 2; d < dims_.rank(); ++d) rows += "\n";
    text += "[";
    size_t column = indent;
    bool first = true;
    for (const int64_t i : shown(dims_[dim], shortened_)) {
      if (!first) text += last ? "," : "," + rows + line;
      if (last && !first) {
        const bool full = column + width_ + 2 > kLineLength;
        text += full ? line : " ";
        column = full ? indent : column;
      }
      column += width_ + 2;
      first = false;
      if (i < 0) text += "...";
      else visit(dim + 1);
    }
    text += "]";
  }

  std::vector<std::string> texts_;
  const Dims& dims_;
  bool shortened_;
  size_t indent_, width_ = 0, next_ = 0;
};

std::string values_of(const DenseTensor& value, size_t indent) {
  const bool shortened = value.numel() > kMostElements;
  const std::string text = visit_dtype(value.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (value.numel() == 0) return std::string("[]");
    std::vector<std::string> texts;
    if constexpr (std::is_same_v<T, bool>) {  // of which std::vector keeps bits
      for (const uint8_t each : Picked<uint8_t>(value, shortened).values)
        texts.emplace_back(each != 0 ? "True" : "False");
    } else {
      texts = texts_of(Picked<T>(value, shortened).values);
    }
    return Brackets(std::move(texts), value.dims(), shortened, indent).text;
  });
  return text;
}

std::string shape_of(const Dims& dims) {
  std::string text = "(";
  for (int d = 0; d < dims.rank(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", dims[d]);
  return text + (dims.rank() == 1 ? ",)" : ")");
}

/// The values, or why there are none.
std::string body_of(const Tensor& x) {
  const DenseTensor& value = x.get().value;
  if (x.is_dist() && !dist_impl(x).has_local_shard()) return "no local shard on this rank";
  if (!value.has_data()) return value.symbol() != 0 ? "a value of a captured function" : "no data: of a dry run";
  try {
    value.storage()->check_read();
  } catch (const Error& error) { return fmt::format("no value: {}", in_python(error.what())); }
  if (!x.is_dist()) return values_of(value, sizeof("tensor(") - 1);
  const bool partial = dist_impl(x).spec->layout().has_partial();
  const std::string label =
      fmt::format("{} {}", partial ? "local contribution, not the value," : "local shard", shape_of(value.dims()));
  return label + (value.dims().rank() > 1 ? "\n       " : " ") + values_of(value, sizeof("tensor(") - 1);
}

std::string described(const Tensor& x) {
  std::string text = "tensor(" + body_of(x);
  const std::string about =
      fmt::format("shape={}, dtype={}, device={}", shape_of(x.dims()), to_string(x.dtype()), to_string(x.device()));
  const size_t start = text.rfind('\n');
  const size_t line = start == std::string::npos ? text.size() : text.size() - start;
  text += line + about.size() > kLineLength ? ",\n       " + about : ", " + about;
  if (x.is_dist())
    text += fmt::format(", layout={} on {}", dist_impl(x).spec->text(), dist_impl(x).spec->mesh()->describe());
  if (x.get().grad.requires_grad && is_floating(x.dtype())) text += ", requires_grad=True";
  return text + ")";
}

}  // namespace

std::string text_of(const Tensor& x) noexcept {
  try {
    if (!x.defined()) return "tensor(undefined)";
    return released([&] { return described(x); });
  } catch (const std::exception& error) {  // such as that of a device
    try {
      return fmt::format("<shard.Tensor without a value: {}>", in_python(error.what()));
    } catch (...) { return "<shard.Tensor>"; }
  }
}

}  // namespace shard::python
