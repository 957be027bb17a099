#include "shard/call/local_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shard/call/dense_call.h"
#include "shard/call/exchange.h"
#include "shard/call/failed_call.h"
#include "shard/call/plan_cache.h"
#include "shard/call/view_link.h"
#include "shard/core/tracer.h"
#include "shard/reshard/execute.h"

namespace shard::call {
namespace {

/// What a rank sends to the other ranks about one output. Trivially copyable, because it is sent as
/// bytes.
struct RankOutput {
  bool failed = false;  // the function threw on this rank
  Meta meta;
};

/// The names of arguments in messages. Traces keep a reference to them, so they live as long as the
/// library.
std::string_view input_name(size_t i) {
  static constexpr std::array<std::string_view, 8> names = {"input 0", "input 1", "input 2", "input 3",
                                                            "input 4", "input 5", "input 6", "input 7"};
  return i < names.size() ? names[i] : "input";
}

/// Runs one call of local_map.
class LocalCallRun {
 public:
  LocalCallRun(std::span<const Tensor> inputs, std::span<const DistSpec* const> in_specs,
               std::span<const DistSpec* const> out_specs, const LocalMapOptions& options)
      : rank_(current_rank()), inputs_(inputs), in_specs_(in_specs), out_specs_(out_specs), options_(options),
        name_(options.name) {}

  std::vector<Tensor> run(const LocalFunction& function) {
    if (Tracer* const tracer = Tracer::current()) {
      tracer->refuse(name_,
                     "its function may differ from rank to rank, but a program is the same on all ranks. Call it "
                     "between two captured functions");
    }
    check_layouts();
    plan_reshards();
    check_policy();
    const std::vector<Tensor> outputs = compute(function);
    record(outputs);
    return outputs;
  }

 private:
  /// Calls the function and wraps its results. The function may fail on this rank alone. The other
  /// ranks learn about that when they exchange metas; without an exchange the failure is reported
  /// to the world, like that of a distributed call.
  std::vector<Tensor> compute(const LocalFunction& function) {
    CommQueue& queue = rank_.comm_queue();
    const uint64_t call = queue.calls_done() + 1;
    bool reported = false;
    try {
      reshard_inputs();
      std::vector<Tensor> results;
      std::exception_ptr failure;
      try {
        const CommQueue::InsideCall inside(queue);
        if (mesh_->coordinate(rank_.id())) results = call_function(function);
      } catch (...) { failure = std::current_exception(); }
      std::vector<Meta> metas = options_.outputs;
      if (metas.empty()) {
        reported = true;
        metas = exchange_metas(results, failure);
      }
      if (failure) std::rethrow_exception(failure);
      std::vector<Tensor> outputs = wrap_all(results, metas);
      queue.set_calls_done(call);
      return outputs;
    } catch (...) {
      queue.set_calls_done(call);
      if (!reported)
        call::report_failed_call(rank_, call, std::current_exception(),
                                 fmt::format("\n  in [{}] on {}", name_, mesh_->describe()));
      throw;
    }
  }

  std::vector<Tensor> wrap_all(const std::vector<Tensor>& results, const std::vector<Meta>& metas) const {
    std::vector<Tensor> outputs;
    for (size_t o = 0; o < out_specs_.size(); ++o) outputs.push_back(wrap(o, results, metas[o]));
    return outputs;
  }

  void check_layouts() {
    if (inputs_.size() != in_specs_.size()) {
      fail(ErrorCode::invalid_argument,
           "[{}] is called with {} tensors, but has {} input layouts; pass one for each tensor, null for a tensor that "
           "is passed as it is",
           name_, inputs_.size(), in_specs_.size());
    }
    for (const DistSpec* spec : in_specs_) check_mesh(spec, true);
    for (const DistSpec* spec : out_specs_) check_mesh(spec, false);
    if (mesh_ == nullptr)
      fail(ErrorCode::layout, "[{}] has no layout, so its mesh is unknown; pass the layout of an input or an output",
           name_);
    check_mesh_in_world(mesh_, rank_.world());
    if (!options_.outputs.empty() && options_.outputs.size() != out_specs_.size()) {
      fail(ErrorCode::invalid_argument,
           "[{}] has {} output layouts, but {} metas of outputs; pass one for each, or none", name_, out_specs_.size(),
           options_.outputs.size());
    }
    for (size_t o = 0; o < options_.outputs.size(); ++o) check_rank(o, options_.outputs[o]);
  }

  void check_mesh(const DistSpec* spec, bool input) {
    if (spec == nullptr && input) return;
    if (spec == nullptr)
      fail(ErrorCode::layout, "[{}] the layout of an output is null; pass one for each output", name_);
    if (mesh_ == nullptr) mesh_ = spec->mesh();
    if (spec->mesh() != mesh_) {
      fail(ErrorCode::layout, "[{}] layout {} is on {}, but the layouts before it are on {}; all must be on one mesh",
           name_, spec->text(), spec->mesh()->describe(), mesh_->describe());
    }
  }

  void check_rank(size_t o, const Meta& meta) const {
    if (meta.dims.rank() == out_specs_[o]->rank()) return;
    fail(ErrorCode::layout, "[{}] output {} has layout {} with {} dims, but is {}", name_, o, out_specs_[o]->text(),
         out_specs_[o]->rank(), to_string(meta));
  }

  void plan_reshards() {
    reshards_.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const DistSpec* want = in_specs_[i];
      if (!inputs_[i].defined())
        fail(ErrorCode::undefined, "[{}] argument '{}' is an undefined tensor; pass a value", name_, input_name(i));
      if (!inputs_[i].is_dist()) {
        if (want == nullptr) continue;
        fail(ErrorCode::layout,
             "[{}] argument '{}' is a plain tensor ({}), but must be {}; make it distributed with distribute(tensor, "
             "spec), or pass null as its layout to pass it as it is",
             name_, input_name(i), inputs_[i].get().describe(), want->text());
      }
      const DistTensorImpl& impl = dist_impl(inputs_[i]);
      if (impl.owner != &rank_) {
        fail(ErrorCode::wrong_rank,
             "[{}] argument '{}' belongs to rank {}, not to rank {}; each rank uses its own tensors", name_,
             input_name(i), impl.owner->id(), rank_.id());
      }
      if (want == nullptr && impl.spec->mesh() != mesh_) {
        fail(ErrorCode::layout,
             "[{}] argument '{}' ({}) is passed as it is, but the function runs on {}; pass a layout on that mesh",
             name_, input_name(i), impl.describe(), mesh_->describe());
      }
      stale_.add(*impl.value.storage(), rank_.policies.view);
      if (want == nullptr || want == impl.spec) continue;
      reshards_[i] = plan_reshard(impl.global, impl.spec, want, 0, {name_, input_name(i)}, rank_.policies.sums);
      bytes_ += reshards_[i]->bytes;
    }
  }

  void check_policy() {
    const bool all = rank_.policies.comm == CommPolicy::forbid_reshards;
    call::PlannedTraffic traffic;
    stale_.plan(traffic, all);
    bytes_ += traffic.bytes;
    traffic.bytes = bytes_;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!reshards_[i] || (reshards_[i]->bytes == 0 && !all)) continue;
      traffic.text +=
          fmt::format(" argument '{}' ({}) from {} to {} ({} bytes);", input_name(i), to_string(reshards_[i]->meta),
                      reshards_[i]->from->text(), reshards_[i]->to->text(), reshards_[i]->bytes);
    }
    if (options_.outputs.empty()) {
      traffic.text += " the shapes of the outputs' local shards, because LocalMapOptions::outputs is not set;";
      traffic.bytes +=
          call::gather_bytes(rank_.world().size(), std::max<size_t>(out_specs_.size(), 1) * sizeof(RankOutput));
    }
    call::check_comm_policy(rank_, name_, *mesh_, traffic);
  }

  void reshard_inputs() {
    stale_.settle(rank_.policies.view);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].is_dist()) {
        shards_.push_back(inputs_[i]);
        continue;
      }
      const DenseTensor& value = dist_impl(inputs_[i]).value;
      shards_.emplace_back(reshards_[i] ? execute_reshard(rank_, *reshards_[i], value, {name_, input_name(i)}) : value);
    }
  }

  std::vector<Tensor> call_function(const LocalFunction& function) {
    std::vector<uint64_t> versions;
    for (const Tensor& shard : shards_) versions.push_back(shard.version());
    std::vector<Tensor> results = function(shards_);
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (reshards_[i] || shards_[i].version() == versions[i]) continue;
      fail(ErrorCode::invalid_argument,
           "[{}] the function has written its argument '{}', which shares the buffer of the distributed tensor; write "
           "a copy (assign(x)) instead",
           name_, input_name(i));
    }
    if (results.size() != out_specs_.size()) fail_result_count(options_, results.size(), out_specs_.size());
    for (size_t o = 0; o < results.size(); ++o) own(results, o);
    return results;
  }

  /// Ensures that each output has a buffer of its own: a result that shares its buffer with a local
  /// shard of an input, or with an earlier output, is copied.
  void own(std::vector<Tensor>& results, size_t o) const {
    Tensor& result = results[o];
    if (!result.defined())
      fail(ErrorCode::undefined,
           "[{}] the function has returned an undefined tensor as output {}; return its local shard (it may be empty)",
           name_, o);
    if (result.is_dist()) {
      fail(ErrorCode::layout,
           "[{}] the function has returned a distributed tensor ({}) as output {}; return the local shard", name_,
           result.get().describe(), o);
    }
    const auto shared = [&](const Tensor& other) { return other.shares_buffer_with(result); };
    const bool copy = std::any_of(shards_.begin(), shards_.end(), shared) ||
                      std::any_of(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(o), shared);
    if (copy) result = Tensor(clone(result.get().value));
  }

  /// The metas of the global outputs. They are exchanged between all ranks of the world, so that
  /// ranks outside the mesh learn them too, and every rank learns where the function failed.
  /// Rethrows `failure`.
  std::vector<Meta> exchange_metas(const std::vector<Tensor>& results, const std::exception_ptr& failure) {
    if (rank_.dry) {
      fail(ErrorCode::no_data,
           "[{}] a dry world has no other ranks to exchange shapes with; pass the metas of the outputs "
           "(LocalMapOptions::outputs)",
           name_);
    }
    const auto ranks = static_cast<size_t>(rank_.world().size());
    // Even without outputs the ranks exchange one entry, from which they learn who has failed.
    const size_t count = std::max<size_t>(out_specs_.size(), 1);
    std::vector<RankOutput> mine(count), all(count * ranks);
    for (size_t o = 0; o < count; ++o) mine[o] = {failure != nullptr, o < results.size() ? results[o].meta() : Meta()};
    const std::vector<int64_t> sizes(ranks, static_cast<int64_t>(count * sizeof(RankOutput)));
    rank_.communicator(ProcessMesh::make({static_cast<int>(ranks)}))
        .all_gather({name_, "shapes of outputs"}, mine.data(), all.data(), sizes)
        .wait();
    if (failure) std::rethrow_exception(failure);
    for (size_t process = 0; process < ranks; ++process) {
      if (all[process * count].failed)
        fail(ErrorCode::peer_failed, "[{}] the function has failed on rank {}; see the error of that rank", name_,
             process);
    }
    std::vector<Meta> metas;
    for (size_t o = 0; o < out_specs_.size(); ++o) {
      metas.push_back(whole_meta(
          o, [&](int process) -> const Meta& { return all[static_cast<size_t>(process) * count + o].meta; }));
    }
    return metas;
  }

  /// The meta of the global output of which each process of the mesh has a local shard. Every rank
  /// computes the same meta or throws the same error.
  template <class MetaOf>
  Meta whole_meta(size_t o, const MetaOf& meta_of) const {
    const DistSpec& spec = *out_specs_[o];
    const Meta& first = meta_of(mesh_->processes()[0]);
    Meta whole = first;
    check_rank(o, whole);
    for (int d = 0; d < whole.dims.rank(); ++d)
      whole.dims[d] = whole_size(spec.axes(d), 0, Coordinate{}, [&](const Coordinate& at) {
        const Dims& dims = meta_of(mesh_->process_at(at)).dims;
        return d < dims.rank() ? dims[d] : 0;
      });
    for (int i = 0; i < mesh_->size(); ++i) {
      const int process = mesh_->processes()[static_cast<size_t>(i)];
      const Meta& shard = meta_of(process);
      if (shard.dtype != whole.dtype) {
        fail(ErrorCode::dtype_mismatch,
             "[{}] output {} is {} on rank {}, but {} on rank {}; the function must return one dtype on all ranks",
             name_, o, to_string(first), mesh_->processes()[0], to_string(shard), process);
      }
      check_output(o, process, mesh_->coordinate_at(i), shard, whole);
    }
    return whole;
  }

  /// The sum of the local sizes along the axes that shard a dim, at coordinate 0 of all other axes.
  template <class SizeAt>
  int64_t whole_size(const AxisList& axes, int next, Coordinate at, const SizeAt& size_at) const {
    if (next == axes.size()) return size_at(at);
    int64_t sum = 0;
    for (int i = 0; i < mesh_->size(axes[next]); ++i) {
      at[static_cast<size_t>(axes[next])] = i;
      sum += whole_size(axes, next + 1, at, size_at);
    }
    return sum;
  }

  void check_output(size_t o, int process, const Coordinate& at, const Meta& shard, const Meta& whole) const {
    const Meta expected = shard_meta(whole, *out_specs_[o], at);
    if (shard == expected || shard == Meta{expected.dims, whole.dtype}) return;
    fail(ErrorCode::shape_mismatch,
         "[{}] output {}: rank {}'s local shard of {} {} on {} must be {}, but the function has returned {}", name_, o,
         process, to_string(whole), out_specs_[o]->text(), mesh_->describe(), to_string(expected), to_string(shard));
  }

  Tensor wrap(size_t o, const std::vector<Tensor>& results, const Meta& meta) const {
    const auto at = mesh_->coordinate(rank_.id());
    if (!at) return make_dist(rank_, meta, out_specs_[o], absent_value(meta));
    check_output(o, rank_.id(), *at, results[o].meta(), meta);
    return make_dist(rank_, meta, out_specs_[o],
                     convert_floats(results[o].get().value, shard_dtype(meta.dtype, out_specs_[o]->layout())));
  }

  /// Reports the call to the dry report and to observers, like the call of an op.
  void record(const std::vector<Tensor>& outputs) {
    call::PlanCache& cache = call::PlanCache::of(rank_);
    if (rank_.dry) {
      std::string text;
      for (const Tensor& output : outputs) {
        const DistTensorImpl& impl = dist_impl(output);
        text +=
            (text.empty() ? "" : "; ") +
            call::describe_shard("", impl.has_local_shard() ? &impl.value.dims() : nullptr, impl.global, *impl.spec);
      }
      cache.dry_calls.add(options_.name, text, rank_.stats(), before_);
    }
    if (!rank_.observer) return;
    CallRecord record;
    record.op = name_;
    record.bytes = bytes_;
    const auto join = [](std::string& text, const std::string& entry) { text += text.empty() ? entry : "; " + entry; };
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].is_dist()) join(record.inputs, fmt::format("{} {}", input_name(i), spec_of(inputs_[i])->text()));
      if (reshards_[i]) join(record.reshards, fmt::format("{}: {}", input_name(i), reshards_[i]->describe()));
    }
    for (const DistSpec* spec : out_specs_) join(record.outputs, spec->text());
    rank_.observer(record);
  }

  Rank& rank_;
  std::span<const Tensor> inputs_;
  std::span<const DistSpec*const> in_specs_, out_specs_;
  const LocalMapOptions& options_;
  std::string_view name_;
  const ProcessMesh* mesh_ = nullptr;
  CommStats before_ = rank_.stats();
  std::vector<std::shared_ptr<const ReshardPlan>> reshards_;
  call::StaleViews stale_;
  int64_t bytes_ = 0;  // bytes sent by reshards of inputs and by refreshes of stale views
  std::vector<Tensor> shards_;
};

}  // namespace

void fail_result_count(const LocalMapOptions& options, size_t results, size_t specs) {
  fail(ErrorCode::invalid_argument,
       "[{}] the function has returned {} tensors, but there are {} output layouts; pass one for each", options.name,
       results, specs);
}

std::vector<Tensor> run_local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                                  std::span<const DistSpec* const> in_specs, std::span<const DistSpec* const> out_specs,
                                  const LocalMapOptions& options) {
  return LocalCallRun(inputs, in_specs, out_specs, options).run(function);
}

}  // namespace shard::call
