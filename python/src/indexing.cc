// x[...] and x[...] = value: NumPy's basic and advanced indexing, by ops that are recorded for autograd and work on distributed tensors.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "arrays.h"
#include "index_key.h"

namespace shard::python {
namespace {

using Kind = Item::Kind;

/// A tensor with these positions, beside x.
Tensor positions_beside(const Tensor& x, const std::vector<int64_t>& values, const Dims& dims) {
  const DenseTensor host = DenseTensor::allocate(kCpu, {dims, DType::int64}, nullptr, "index");
  std::copy(values.begin(), values.end(), host.data<int64_t>());
  return beside(x, to_device(Tensor(host), x.device()));
}

/// The positions of the true elements of a mask, a tensor for each of its dims.
std::vector<Tensor> positions_of(const Tensor& mask) {
  const Tensor found = nonzero(mask);
  std::vector<Tensor> columns;
  for (int64_t d = 0; d < mask.dims().rank(); ++d) columns.push_back(slice(found, {1}, {d}, {d + 1}, {}, {1}));
  return columns;
}

Dims common_shape(const std::vector<Tensor>& tensors) {
  Dims shape;
  for (const Tensor& tensor : tensors) {
    const Dims& dims = tensor.dims();
    if (tensor.dtype() == DType::boolean) continue;  // a mask, of which the number of true elements is not known
    while (shape.rank() < dims.rank()) shape.insert(0, 1);
    for (int d = 0; d < dims.rank(); ++d) {
      int64_t& size = shape[shape.rank() - dims.rank() + d];
      if (size == 1) size = dims[d];
      if (dims[d] == size || dims[d] == 1) continue;
      fail(ErrorCode::shape_mismatch, "[index] tensors of the shapes {} and {} index together, but do not broadcast",
           to_string(tensors.front().dims()), to_string(dims));
    }
  }
  return shape;
}

Tensor transposed(const Tensor& x, const IntArray& order, CallSite site) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return transpose(x, order, site);
  }
  return x;
}

/// Moves the first `count` dims of x to begin at `place`.
Tensor moved(const Tensor& x, int count, int place, CallSite site) {
  IntArray order;
  for (int d = 0; d < place; ++d) order.push_back(count + d);
  for (int d = 0; d < count; ++d) order.push_back(d);
  for (int d = count + place; d < x.dims().rank(); ++d) order.push_back(d);
  return transposed(x, order, site);
}

/// What tensors select in some dims of a tensor.
struct Selection {
  std::vector<int> dims;
  std::vector<Tensor> positions;  // for each of these dims; empty where `mask` selects in all of them
  Tensor mask;

  /// The positions as rows, for gather_nd, and the number of dims before them.
  std::pair<Tensor, int> rows() const {
    if (mask.defined()) return {nonzero(mask), 1};
    const Dims shape = common_shape(positions);
    std::vector<Tensor> columns;
    for (const Tensor& each : positions) {
      Tensor column = each.dtype() == DType::int64 ? each : cast(each, DType::int64);
      columns.push_back(column.dims() == shape ? column : expand(column, shape));
    }
    return {stack(columns, -1), shape.rank()};
  }
};

/// The elements at positions in one dim.
Tensor select_in_one(const Tensor& x, int dim, const Tensor& positions, int place, CallSite site) {
  const int rank = positions.dims().rank();
  const Tensor flat = rank <= 1 ? positions : reshape(positions, {positions.numel()});
  Tensor result = gather(x, flat, dim, site);
  if (rank > 1) {
    IntArray shape;
    for (int d = 0; d < dim; ++d) shape.push_back(x.dims()[d]);
    for (const int64_t size : positions.dims()) shape.push_back(size);
    for (int d = dim + 1; d < x.dims().rank(); ++d) shape.push_back(x.dims()[d]);
    result = reshape(result, shape, site);
  }
  if (place == dim) return result;
  IntArray order;
  for (int d = 0; d < rank; ++d) order.push_back(dim + d);
  for (int d = 0; d < result.dims().rank(); ++d) {
    if (d < dim || d >= dim + rank) order.push_back(d);
  }
  return transposed(result, order, site);
}

/// x without the dims of the selection, and with those of its positions at `place`.
Tensor select(const Tensor& x, const Selection& selection, int place, CallSite site) {
  if (selection.dims.size() == 1 && !selection.mask.defined()) {
    return select_in_one(x, selection.dims[0], selection.positions[0], place, site);
  }
  const int rank = x.dims().rank();
  if (selection.mask.defined() && selection.mask.dims().rank() == rank) return masked_select(x, selection.mask, site);
  IntArray order;
  for (const int dim : selection.dims) order.push_back(dim);
  for (int d = 0; d < rank; ++d) {
    if (std::find(selection.dims.begin(), selection.dims.end(), d) == selection.dims.end()) order.push_back(d);
  }
  const auto [rows, count] = selection.rows();
  return moved(gather_nd(transposed(x, order, site), rows, site), count, place, site);
}

/// The slices, positions and new dims of a key, and what remains to be selected in the result.
struct Split {
  std::vector<Index> basic;
  bool whole = true;  // `basic` changes nothing
  Selection selection;
};

Split split(const Key& key, const Tensor& x, CallSite site) {
  Split parts;
  const auto masks =
      std::count_if(key.items.begin(), key.items.end(), [](const Item& each) { return each.kind == Kind::mask; });
  const auto others = std::count_if(key.items.begin(), key.items.end(), [](const Item& each) {
    return each.kind == Kind::positions || each.kind == Kind::truth;
  });
  int place = 0;  // of the next dim of the result of `basic`
  const auto selects = [&](const Tensor& positions) {
    parts.selection.dims.push_back(place++);
    if (positions.defined()) parts.selection.positions.push_back(positions);
  };
  for (const Item& item : key.items) {
    parts.whole = parts.whole && (item.whole() || item.kind == Kind::positions || item.kind == Kind::mask);
    switch (item.kind) {
      case Kind::position: parts.basic.emplace_back(item.position, site); break;
      case Kind::truth:
        parts.basic.emplace_back(kNewAxis, site);
        selects(item.truth ? positions_beside(x, {0}, {1}) : positions_beside(x, {}, {0}));
        break;
      case Kind::new_axis:
        parts.basic.emplace_back(kNewAxis, site);
        ++place;
        break;
      case Kind::positions:
        parts.basic.emplace_back(Slice(), site);
        selects(item.tensor);
        break;
      case Kind::mask: {
        const bool alone = masks == 1 && others == 0;
        const std::vector<Tensor> columns = alone ? std::vector<Tensor>() : positions_of(item.tensor);
        if (alone) parts.selection.mask = item.tensor;
        for (int d = 0; d < item.dims(); ++d) {
          parts.basic.emplace_back(Slice(), site);
          selects(alone ? Tensor() : columns[static_cast<size_t>(d)]);
        }
        break;
      }
      case Kind::slice:
      case Kind::ellipsis:
        parts.basic.emplace_back(item.slice, site);
        ++place;
        break;
    }
  }
  return parts;
}

Tensor get(const Tensor& x, const Key& key, CallSite site) {
  const Split parts = split(key, x, site);
  if (!key.advanced) return x.index(parts.basic);
  const Tensor base = parts.whole ? x : x.index(parts.basic);
  return select(base, parts.selection, key.separated ? 0 : parts.selection.dims.front(), site);
}

// Assignments

/// What is assigned: a number or a tensor of the dtype of x.
struct Value {
  std::optional<Scalar> number;
  Tensor tensor;

  Tensor as_tensor(const Tensor& x) const {
    return tensor.defined() ? tensor : beside(x, full({}, *number, x.dtype(), x.device()));
  }
  Dims dims() const { return tensor.defined() ? tensor.dims() : Dims(); }
};

/// The order of the kinds of dtypes: a value is converted to a later one, but not back.
int breadth(DType dtype) { return dtype == DType::boolean ? 0 : is_integral(dtype) ? 1 : 2; }

void check_number(const Scalar& number, DType dtype) {
  if (!is_floating(dtype) && !number.is_integer()) {
    fail(ErrorCode::dtype_mismatch, "[setitem] cannot write the number {} into a tensor of {}; cast the tensor first",
         number.to<double>(), to_string(dtype));
  }
  if (!is_integral(dtype) || dtype == DType::int64) return;
  const int64_t value = number.to<int64_t>();
  const bool fits = dtype == DType::uint8 ? std::in_range<uint8_t>(value) : std::in_range<int32_t>(value);
  if (!fits) fail(ErrorCode::out_of_range, "[setitem] {} does not fit into {}", value, to_string(dtype));
}

/// The number that a Python object is. Nothing for other objects.
std::optional<Scalar> number_of(nb::handle object, DType dtype) {
  PyObject* const pointer = object.ptr();
  if (PyBool_Check(pointer)) return Scalar(pointer == Py_True);
  if (PyFloat_Check(pointer)) return Scalar(PyFloat_AsDouble(pointer));
  if (!PyLong_Check(pointer)) return std::nullopt;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(pointer, &overflow);
  if (overflow == 0) return Scalar(static_cast<int64_t>(value));
  if (!is_floating(dtype)) fail(ErrorCode::out_of_range, "[setitem] the number does not fit into {}", to_string(dtype));
  return Scalar(PyLong_AsDouble(pointer));
}

Value value_of(nb::handle object, const Tensor& x) {
  Value value;
  value.number = number_of(object, x.dtype());
  if (value.number) {
    check_number(*value.number, x.dtype());
    return value;
  }
  const Tensor* const given = services->tensor(object.ptr());
  Tensor tensor = given != nullptr ? *given : tensor_from(object, std::nullopt, x.device(), "setitem");
  if (breadth(tensor.dtype()) > breadth(x.dtype())) {
    fail(ErrorCode::dtype_mismatch, "[setitem] cannot write {} into a tensor of {}; cast one of them first",
         tensor.get().describe(), to_string(x.dtype()));
  }
  value.tensor = released([&] {
    if (given == nullptr) tensor = beside(x, tensor);
    if (tensor.dtype() != x.dtype()) return cast(tensor, x.dtype());
    return tensor.shares_buffer_with(x) ? assign(tensor) : tensor;
  });
  return value;
}

/// The arguments of set_value for a key without tensors.
struct Target {
  IntArray axes, starts, ends, steps, dropped, inserted;
};

Target target_of(const Key& key, const Dims& dims) {
  Target target;
  int dim = 0;
  for (const Item& item : key.items) {
    if (item.kind == Kind::new_axis) {
      target.inserted.push_back(dim);
      continue;
    }
    const int64_t size = dims[dim], at = item.position < 0 ? item.position + size : item.position;
    const bool one = item.kind == Kind::position;
    if (one) target.dropped.push_back(dim);
    if (!item.whole()) {
      const SliceRange range = one ? SliceRange{at, at + 1, 1} : range_of(item.slice, size);
      target.axes.push_back(dim);
      target.starts.push_back(range.start);
      target.ends.push_back(range.stop);
      target.steps.push_back(range.step);
    }
    ++dim;
  }
  return target;
}

void set_basic(Tensor& x, const Key& key, const Value& value, CallSite site) {
  const Target t = target_of(key, x.dims());
  if (value.number) {
    set_value_(x, t.starts, t.ends, t.steps, t.axes, t.dropped, t.inserted, {}, {*value.number}, site);
  } else {
    set_value_with_tensor_(x, value.tensor, t.starts, t.ends, t.steps, t.axes, t.dropped, t.inserted, site);
  }
}

/// An item for each dim of the tensor that is written: masks are replaced by positions.
struct Written {
  std::vector<Item> items;

  /// The number of leading dims that are not written whole.
  size_t named() const {
    size_t count = items.size();
    while (count > 0 && items[count - 1].whole()) --count;
    return count;
  }
};

Written written(const Key& key) {
  Written all;
  for (const Item& item : key.items) {
    if (item.kind != Kind::mask) {
      all.items.push_back(item);
      continue;
    }
    for (const Tensor& column : positions_of(item.tensor))
      all.items.push_back({.kind = Kind::positions, .tensor = column});
  }
  return all;
}

/// Positions in the first dims of x, all dims that are not whole, that broadcast to the places of the key in NumPy's order.
std::vector<Tensor> places_of(const Tensor& x, const Key& key) {
  const Written all = written(key);
  const size_t named = all.named();
  std::vector<Tensor> tensors;
  int slices = 0;
  for (size_t i = 0; i < named; ++i) {
    const Item& item = all.items[i];
    if (item.kind == Kind::positions) tensors.push_back(item.tensor);
    if (item.kind == Kind::slice) ++slices;
  }
  const auto first = std::find_if(all.items.begin(), all.items.end(), [](const Item& item) { return item.selects(); });
  const int place = key.separated ? 0 : static_cast<int>(first - all.items.begin());
  const Dims shape = common_shape(tensors);
  const int rank = shape.rank() + slices;
  std::vector<Tensor> places;
  int slice_dim = 0;  // of the slices that were seen
  for (size_t i = 0; i < named; ++i) {
    const Item& item = all.items[i];
    const int64_t size = x.dims()[static_cast<int>(i)];
    if (item.kind == Kind::position) {
      places.push_back(positions_beside(x, {item.position}, {}));
    } else if (item.kind == Kind::slice) {
      const SliceRange range = range_of(item.slice, size);
      std::vector<int64_t> values(static_cast<size_t>(range.count()));
      for (size_t k = 0; k < values.size(); ++k) values[k] = range.start + static_cast<int64_t>(k) * range.step;
      Dims dims = Dims::filled(rank, 1);
      dims[slice_dim < place ? slice_dim : slice_dim + shape.rank()] = range.count();
      ++slice_dim;
      places.push_back(positions_beside(x, values, dims));
    } else {
      Tensor positions = item.tensor;
      IntArray dims = positions.dims();
      for (int d = place + shape.rank(); d < rank; ++d) dims.push_back(1);
      places.push_back(static_cast<int>(dims.size()) == positions.dims().rank() ? positions : reshape(positions, dims));
    }
  }
  return places;
}

/// The tensors of a key whose first items are tensors and masks, and whose others are whole. Empty for other keys.
std::vector<Tensor> leading_tensors(const Key& key) {
  std::vector<Tensor> tensors;
  size_t i = 0;
  for (; i < key.items.size() && key.items[i].tensor.defined(); ++i) tensors.push_back(key.items[i].tensor);
  for (; i < key.items.size(); ++i) {
    if (!key.items[i].whole()) return {};
  }
  return tensors;
}

/// The value without leading dims of size 1 beyond those that are written.
Tensor fitting(const Tensor& value, int rank) {
  int more = value.dims().rank() - rank;
  for (int d = 0; d < more; ++d) {
    if (value.dims()[d] != 1) return value;
  }
  if (more <= 0) return value;
  return reshape(value, IntArray(std::span<const int64_t>(value.dims()).subspan(static_cast<size_t>(more))));
}

int rank_of_places(const Tensor& x, const std::vector<Tensor>& places) {
  int chosen = 0, rank = 0;
  for (const Tensor& each : places) {
    const bool mask = each.dtype() == DType::boolean;
    chosen += mask ? each.dims().rank() : 1;
    rank = std::max(rank, mask ? 1 : each.dims().rank());
  }
  return rank + x.dims().rank() - chosen;
}

void set_advanced(Tensor& x, Key key, const Value& value, CallSite site) {
  // New dims are those of a view, which shares the buffer.
  IntArray inserted;
  int dim = 0;
  for (Item& item : key.items) {
    if (item.kind == Kind::truth) {
      item.tensor = item.truth ? positions_beside(x, {0}, {1}) : positions_beside(x, {}, {0});
      item.kind = Kind::positions;
      inserted.push_back(dim);
    } else if (item.kind == Kind::new_axis) {
      item = {.kind = Kind::slice, .slice = Slice(0, 1)};
      inserted.push_back(dim);
    }
    dim += item.dims();
  }
  Tensor view;
  if (!inserted.empty()) view = unsqueeze(x, inserted, site);
  Tensor& target = inserted.empty() ? x : view;
  std::vector<Tensor> places = leading_tensors(key);
  if (places.empty()) places = places_of(target, key);
  else common_shape(places);  // its message is that of reads
  index_put_(target, places, fitting(value.as_tensor(x), rank_of_places(target, places)), false, site);
}

}  // namespace

PyObject* get_item(PyObject* object, PyObject* key) noexcept {
  try {
    const Tensor& x = tensor_in(object);
    const CallSite site = site_of(x);
    const Key items = key_of(key, x);
    return services->wrap(released([&] { return get(x, items, site); }));
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

int set_item(PyObject* object, PyObject* key, PyObject* value) noexcept {
  if (value == nullptr) {
    PyErr_SetString(PyExc_TypeError, "elements of a tensor cannot be deleted");
    return -1;
  }
  try {
    Tensor& x = tensor_in(object);
    const CallSite site = current_site();
    const Key items = key_of(key, x);
    const Value given = value_of(value, x);
    released([&] {
      if (items.advanced) set_advanced(x, items, given, site);
      else set_basic(x, items, given, site);
      return 0;
    });
    return 0;
  } catch (...) {
    raise_current();
    return -1;
  }
}

namespace {

/// Iterates over the slices of dim 0.
class Rows {
 public:
  explicit Rows(nb::object tensor) : tensor_(std::move(tensor)), count_(tensor_in(tensor_.ptr()).dims()[0]) {}
  nb::object next() {
    if (at_ >= count_) throw nb::stop_iteration();
    const nb::object position = nb::int_(at_++);
    return nb::steal(check_result(get_item(tensor_.ptr(), position.ptr())));
  }

 private:
  static PyObject* check_result(PyObject* object) {
    if (object == nullptr) nb::raise_python_error();
    return object;
  }
  nb::object tensor_;
  int64_t count_;
  int64_t at_ = 0;
};

}  // namespace

void register_indexing(nb::module_& module) {
  nb::class_<Rows>(module, "_Rows")
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &Rows::next);
  auto tensor = nb::borrow<TensorClass>(nb::type<Tensor>());
  tensor.def(
      "__iter__",
      [](nb::handle self) {
        if (tensor_in(self.ptr()).dims().rank() == 0) raise_type_error("a tensor without dims cannot be iterated over");
        return Rows(nb::borrow(self));
      },
      "Iterates over x[0], x[1], ...");
  tensor.def(
      "copy_",
      [](nb::handle self, nb::handle other) {
        if (set_item(self.ptr(), Py_Ellipsis, other.ptr()) != 0) nb::raise_python_error();
        return nb::borrow(self);
      },
      nb::arg("other"),
      "x[...] = other: writes a tensor, an array or a number that broadcasts to the shape of x, in place. Returns x.\n"
      "DTypeError for floats into integers or bools, and integers into bools.");
}

}  // namespace shard::python
