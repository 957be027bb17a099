// local_map: runs a Python function on the local shards of distributed tensors.
#include <mutex>
#include <unordered_set>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "layouts.h"

namespace shard::python {
namespace {

/// The name, kept for ever: traces refer to it.
const char* kept(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::unordered_set<std::string>();
  const std::lock_guard lock(mutex);
  return names->insert(name).first->c_str();
}

/// What the function returned: a tensor, or a list or tuple of them.
std::vector<Tensor> results_of(nb::handle object) {
  std::vector<Tensor> results;
  Tensor one;
  if (nb::try_cast(object, one)) return {one};
  if (!nb::isinstance<nb::list>(object) && !nb::isinstance<nb::tuple>(object))
    fail_argument("local_map", "function", "a function that returns a Tensor or a tuple of them", object);
  for (const nb::handle each : nb::borrow<nb::object>(object)) {
    if (!nb::try_cast(each, one))
      fail_argument("local_map", "function", "a function that returns a Tensor or a tuple of them", each);
    results.push_back(one);
  }
  return results;
}

std::vector<Meta> metas_of(nb::handle outputs) {
  std::vector<Meta> metas;
  if (outputs.is_none()) return metas;
  for (const nb::handle each : nb::borrow<nb::object>(outputs)) {
    const nb::tuple pair = nb::borrow<nb::tuple>(each);
    DType dtype = DType::float32;
    if (!nb::isinstance<nb::tuple>(each) || nb::len(each) != 2 || !dtype_of(pair[1], dtype))
      fail_argument("local_map", "outputs", "a list of pairs (shape, dtype)", each);
    metas.push_back({dims_of(nb::cast<std::vector<int64_t>>(pair[0])), dtype});
  }
  return metas;
}

std::vector<const DistSpec*> out_specs_of(nb::handle layouts, const std::vector<Meta>& metas) {
  std::vector<const DistSpec*> specs;
  for (const nb::handle each : nb::borrow<nb::object>(layouts)) {
    PlacedLayout* layout = nullptr;
    if (!nb::try_cast<PlacedLayout*>(each, layout, false) || layout == nullptr)
      fail_argument("local_map", "out_layouts", "a list of Layout", each);
    const bool known = specs.size() < metas.size();
    if (!known && layout->spec == nullptr)
      fail(ErrorCode::layout,
           "[local_map] the number of dims of output {} is not known: pass ndim to its Layout, or outputs",
           specs.size());
    specs.push_back(resolve(*layout, known ? metas[specs.size()].dims.rank() : -1));
  }
  return specs;
}

nb::object call_local_map(nb::object function, const std::vector<Tensor>& inputs, nb::object in_layouts,
                          nb::object out_layouts, const std::string& name, nb::object outputs) {
  LocalMapOptions options{.name = kept(name), .outputs = metas_of(outputs)};
  if (nb::len(in_layouts) != inputs.size())
    fail(ErrorCode::invalid_argument, "[{}] {} layouts for {} arguments", name, nb::len(in_layouts), inputs.size());
  std::vector<const DistSpec*> in_specs;
  for (const nb::handle each : in_layouts) {
    const int rank = inputs[in_specs.size()].dims().rank();
    const DistSpec* const spec = each.is_none() ? nullptr : layout_of(each, rank);
    if (spec == nullptr && !each.is_none()) fail_argument("local_map", "in_layouts", "a list of Layout | None", each);
    in_specs.push_back(spec);
  }
  const std::vector<const DistSpec*> out_specs = out_specs_of(out_layouts, options.outputs);
  const call::LocalFunction local = [function = SharedObject(function)](std::span<const Tensor> shards) {
    return called_back([&] {
      nb::list arguments;
      for (const Tensor& each : shards) arguments.append(wrap(each));
      const nb::object result = nb::steal(PyObject_CallObject(function.get().ptr(), nb::tuple(arguments).ptr()));
      if (!result.is_valid()) nb::raise_python_error();
      return results_of(result);
    });
  };
  std::vector<Tensor> results =
      released([&] { return detail::run_local_map(local, inputs, in_specs, out_specs, options); });
  if (out_specs.size() == 1 && results.size() == 1) return wrap(std::move(results[0]));
  nb::list list;
  for (Tensor& each : results) list.append(wrap(std::move(each)));
  return nb::tuple(list);
}

}  // namespace

void register_local_map(nb::module_& module) {
  module.def("_local_map", call_local_map, nb::arg("function"), nb::arg("inputs"), nb::arg("in_layouts"),
             nb::arg("out_layouts"), nb::arg("name"), nb::arg("outputs").none());
}

}  // namespace shard::python
