// Reads the keys of x[...].
#include "index_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "arrays.h"

namespace shard::python {
namespace {

using Kind = Item::Kind;

Item slice_item(PyObject* object) {
  Py_ssize_t start = 0, stop = 0, step = 0;
  if (PySlice_Unpack(object, &start, &stop, &step) != 0) nb::raise_python_error();
  constexpr Py_ssize_t kMost = std::numeric_limits<Py_ssize_t>::max();
  if (start == 0 && stop == kMost && step == 1) return {.kind = Kind::slice};
  return {.kind = Kind::slice, .slice = Slice(start, stop, step)};
}

Item position_item(PyObject* object) {
  const Py_ssize_t position = PyNumber_AsSsize_t(object, PyExc_IndexError);
  if (position == -1 && PyErr_Occurred()) nb::raise_python_error();
  return {.kind = Kind::position, .position = position};
}

/// An item of a tensor that indexes, with positions or as a mask.
Item tensor_item(Tensor tensor) {
  if (tensor.dtype() == DType::boolean) {
    if (tensor.dims().rank() > 0) return {.kind = Kind::mask, .tensor = std::move(tensor)};
    return {.kind = Kind::truth, .truth = released([&] { return is_true(tensor); })};
  }
  if (!is_integral(tensor.dtype())) {
    fail(ErrorCode::dtype_mismatch, "[index] a tensor that indexes must have integers or bools, but is {}; cast it",
         tensor.get().describe());
  }
  if (tensor.dtype() == DType::uint8) tensor = released([&] { return cast(tensor, DType::int64); });
  return {.kind = Kind::positions, .tensor = std::move(tensor)};
}

std::optional<std::pair<int64_t, int64_t>> extremes(const Tensor& tensor) {
  if (tensor.numel() == 0 || !is_integral(tensor.dtype())) return std::nullopt;
  const std::vector<int64_t> values =
      released([&] { return (tensor.dtype() == DType::int64 ? tensor : cast(tensor, DType::int64)).to_vector<int64_t>(); });
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return std::pair(*low, *high);
}

/// An item of a list or an array.
Item data_item(nb::handle data, const Tensor& x) {
  nb::object values = nb::borrow(data);
  if (is_numpy(data)) {
    const auto kind = nb::cast<nb::str>(data.attr("dtype").attr("kind"));
    if (std::string_view("iu").find(kind.c_str()[0]) != std::string_view::npos) values = data.attr("astype")("int64");
  }
  Tensor tensor = tensor_from(values, std::nullopt, kCpu, "index");
  const bool empty_list = tensor.numel() == 0 && !is_numpy(data);
  if (empty_list && is_floating(tensor.dtype())) tensor = released([&] { return cast(tensor, DType::int64); });
  const auto range = this_thread.tracer == nullptr ? extremes(tensor) : std::nullopt;
  tensor = released([&] { return beside(x, to_device(tensor, x.device())); });
  Item item = tensor_item(std::move(tensor));
  item.range = range;
  return item;
}

Item item_of(nb::handle object, const Tensor& x) {
  PyObject* const pointer = object.ptr();
  if (pointer == Py_None) return {.kind = Kind::new_axis};
  if (pointer == Py_Ellipsis) return {.kind = Kind::ellipsis};
  if (PyBool_Check(pointer)) return {.kind = Kind::truth, .truth = pointer == Py_True};
  if (PySlice_Check(pointer)) return slice_item(pointer);
  if (PyLong_Check(pointer)) return position_item(pointer);
  if (const Tensor* const tensor = services->tensor(pointer)) return tensor_item(*tensor);
  if (nb::isinstance<nb::list>(object)) return data_item(object, x);
  if (is_numpy(object)) {
    if (nb::cast<int>(object.attr("ndim")) > 0) return data_item(object, x);
    const auto kind = nb::cast<nb::str>(object.attr("dtype").attr("kind"));
    if (kind.c_str()[0] == 'b') return {.kind = Kind::truth, .truth = PyObject_IsTrue(pointer) == 1};
  }
  if (PyIndex_Check(pointer) && !PyFloat_Check(pointer)) return position_item(pointer);
  if (nb::hasattr(object, "__array__") && !is_numpy(object)) {
    return data_item(nb::module_::import_("numpy").attr("asarray")(object), x);
  }
  raise_type_error(fmt::format(
      "x[...]: an index must be an int, a slice, None, ..., a bool, or a tensor, an array or a list of ints or bools, "
      "not {}",
      name_of_type(object)));
}

/// Replaces the ellipsis, and adds one at the end where there is none.
void expand_ellipsis(Key& key, const Tensor& x) {
  int named = 0, ellipses = 0;
  for (const Item& item : key.items) {
    named += item.dims();
    ellipses += item.kind == Kind::ellipsis ? 1 : 0;
  }
  const int rank = x.dims().rank();
  if (named > rank) {
    fail(ErrorCode::out_of_range, "[index] {} indices for {}, which has {} dims", named, x.get().describe(), rank);
  }
  if (ellipses > 1) fail(ErrorCode::out_of_range, "[index] {} ellipses; at most one is allowed", ellipses);
  if (ellipses == 0) key.items.push_back({.kind = Kind::ellipsis});
  const auto at = std::find_if(key.items.begin(), key.items.end(),
                               [](const Item& item) { return item.kind == Kind::ellipsis; });
  const auto place = key.items.erase(at);
  key.items.insert(place, static_cast<size_t>(rank - named), Item{.kind = Kind::slice});
}

bool separated(const Key& key) {
  bool begun = false, ended = false;
  for (const Item& item : key.items) {
    if (item.selects() && ended) return true;
    ended = begun && !item.selects();
    begun = begun || item.selects();
  }
  return false;
}

void check_position(int64_t position, int dim, int64_t size) {
  if (position >= -size && position < size) return;
  fail(ErrorCode::out_of_range, "[index] position {} is outside dim {} of size {}", position, dim, size);
}

void check(const Key& key, const Tensor& x) {
  int dim = 0;
  for (const Item& item : key.items) {
    if (item.kind == Kind::position) check_position(item.position, dim, x.dims()[dim]);
    if (item.kind == Kind::positions && item.range) {
      check_position(item.range->first, dim, x.dims()[dim]);
      check_position(item.range->second, dim, x.dims()[dim]);
    }
    for (int d = 0; item.kind == Kind::mask && d < item.dims(); ++d) {
      if (item.tensor.dims()[d] == x.dims()[dim + d]) continue;
      fail(ErrorCode::out_of_range, "[index] the mask has size {} in dim {}, but x has size {} in dim {}, which it selects in",
           item.tensor.dims()[d], d, x.dims()[dim + d], dim + d);
    }
    dim += item.dims();
  }
}

}  // namespace

int Item::dims() const {
  if (kind == Kind::mask) return tensor.dims().rank();
  return kind == Kind::position || kind == Kind::slice || kind == Kind::positions ? 1 : 0;
}

Key key_of(nb::handle object, const Tensor& x) {
  Key key;
  if (nb::isinstance<nb::tuple>(object)) {
    const auto size = PyTuple_Size(object.ptr());
    for (Py_ssize_t i = 0; i < size; ++i) key.items.push_back(item_of(PyTuple_GetItem(object.ptr(), i), x));
  } else {
    key.items.push_back(item_of(object, x));
  }
  for (const Item& item : key.items) key.advanced = key.advanced || (item.selects() && item.kind != Kind::position);
  key.separated = separated(key);  // also by an ellipsis that stands for no dims
  expand_ellipsis(key, x);
  check(key, x);
  return key;
}

SliceRange range_of(const Slice& slice, int64_t size) {
  const int64_t step = slice.step;
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;  // -1: before the first element
  const auto place = [&](std::optional<int64_t> position, int64_t absent) {
    if (!position) return absent;
    return std::clamp(*position < 0 ? *position + size : *position, low, high);
  };
  const SliceRange range{place(slice.start, step > 0 ? low : high), place(slice.stop, step > 0 ? high : low), step};
  return (step > 0 ? range.start < range.stop : range.start > range.stop) ? range : SliceRange{0, 0, step};
}

int64_t SliceRange::count() const {
  const int64_t distance = step > 0 ? stop - start : start - stop, size = step > 0 ? step : -step;
  return distance <= 0 ? 0 : (distance + size - 1) / size;
}

}  // namespace shard::python
