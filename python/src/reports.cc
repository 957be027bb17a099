// Reports of a rank: its calls, what a dry run would send and hold, and which rank holds which part of a tensor.
#include <nanobind/stl/string.h>

#include "messages.h"
#include "services.h"

namespace shard::python {
namespace {

/// The report of this rank of a dry world: its text, and the same as JSON.
nb::tuple report_of_dry_run() {
  const DryReport report = dry_report(current_rank());
  return nb::make_tuple(report.text(), report.json());
}

nb::dict record_as_dict(const CallRecord& record) {
  nb::dict dict;
  dict["op"] = record.op == "distribute" ? "shard_tensor" : record.op;
  dict["inputs"] = record.inputs;
  dict["reshards"] = record.reshards;
  dict["outputs"] = record.outputs;
  dict["aliases"] = record.aliases;
  dict["bytes"] = record.bytes;
  return dict;
}

/// Appends the calls of this rank to a list while it is entered.
class CallList {
 public:
  void enter(nb::object calls) {
    rank_ = &current_rank();
    before_ = rank_->observer;
    rank_->observer = [calls = SharedObject(calls), before = before_](const CallRecord& record) {
      if (before) before(record);
      called_back([&] {
        nb::borrow<nb::list>(calls.get()).append(record_as_dict(record));
        return 0;
      });
    };
  }
  void exit() {
    if (rank_ != nullptr && rank_ == current_rank_or_null()) rank_->observer = std::exchange(before_, {});
    rank_ = nullptr;
  }

 private:
  Rank* rank_ = nullptr;
  CallObserver before_;  // what observed the rank outside
};

/// For each rank of the mesh: the rank, where its shard begins, and its shape.
nb::list shards_of(const Tensor& x) {
  nb::list shards;
  if (!x.is_dist()) return shards;
  const DistSpec& spec = *spec_of(x);
  for (int i = 0; i < spec.mesh()->size(); ++i) {
    const ShardBox box = shard_box(spec.layout(), x.dims(), spec.mesh()->coordinate_at(i));
    nb::list begin, shape;
    for (const int64_t value : box.begin) begin.append(value);
    for (const int64_t value : box.dims) shape.append(value);
    shards.append(nb::make_tuple(spec.mesh()->processes()[static_cast<size_t>(i)], nb::tuple(begin), nb::tuple(shape)));
  }
  return shards;
}

/// Sends what the library would log (such as communication under the policy comm="warn") to a Python function.
void set_log_function(nb::object function) {
  std::function<void(std::string_view)> sink;
  if (!function.is_none()) {
    sink = [function = SharedObject(function)](std::string_view message) {
      const HoldLock lock;
      try {
        const std::string text = in_python(message);
        function.get()(nb::str(text.data(), text.size()));
      } catch (nb::python_error& error) { error.discard_as_unraisable("shard's log function"); }
    };
  }
  set_log_sink(std::move(sink));
}

}  // namespace

void register_reports(nb::module_& module) {
  module.def("_dry_report", report_of_dry_run);
  module.def("_shards", shards_of, nb::arg("x"));
  module.def(
      "_in_python", [](const std::string& text) { return in_python(text); }, nb::arg("text"));  // for tests
  module.def("_set_log", set_log_function, nb::arg("function").none());
  nb::class_<CallList>(module, "_CallObserver")
      .def(nb::init<>())
      .def("enter", &CallList::enter, nb::arg("calls"))
      .def("exit", &CallList::exit);
}

}  // namespace shard::python
