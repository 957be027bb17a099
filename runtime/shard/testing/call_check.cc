// Runs calls on in-process ranks, collects the local shards of all ranks, and compares the values
// that they represent with one rank.
#include "shard/testing/call_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>

#include "shard/api/layout.h"

namespace shard::testing {
namespace {

/// The tensors of one rank after a call.
struct RankResult {
  std::string error;
  ErrorCode code = ErrorCode::internal;
  bool threw = false;
  int64_t bytes = 0;
  bool reduced = false;             // a pending reduction was done, or a kernel has combined values
  std::vector<DenseTensor> shards;  // for each output, then for each input
  std::vector<Meta> metas;          // global
  std::vector<const DistSpec*> specs;
  std::vector<int> targets;  // for each output: the input that it is, or -1
};

/// The input that an output is, where a call returns its in-place target.
int target_of(const Tensor& output, const Tensors& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].impl() == output.impl()) return static_cast<int>(i);
  }
  return -1;
}

bool breaks_world(ErrorCode code) {
  return code == ErrorCode::peer_failed || code == ErrorCode::timeout || code == ErrorCode::communication;
}

/// One rank's part of one call.
RankResult call_once(Rank& rank, const CaseCall& call, const Layouts& layouts, const DrawnCall& drawn) {
  RankResult result;
  const ProcessMesh& mesh = *layouts[0]->mesh();
  size_t position = mesh.processes().size();
  for (size_t i = 0; i < mesh.processes().size(); ++i) {
    if (mesh.processes()[i] == rank.id()) position = i;
  }
  Tensors inputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor shard = position < mesh.processes().size() ? Tensor(clone(drawn.shards[i][position])) : Tensor();
    inputs.push_back(from_local(shard, layouts[i], call.inputs[i].dims, call.inputs[i].dtype));
  }
  const Tensors before = inputs;
  const int64_t sent = rank.stats().bytes_sent;
  rank.trace.clear();
  const uint64_t reductions = rank.stats()[CommKind::all_reduce].calls;
  try {
    const Tensors outputs = call.run(inputs);
    result.bytes = rank.stats().bytes_sent - sent;
    const std::vector<TraceEvent> events = rank.trace.events();
    result.reduced =
        rank.stats()[CommKind::all_reduce].calls != reductions ||
        std::any_of(events.begin(), events.end(), [](const TraceEvent& e) { return e.argument == "kernel"; });
    for (const Tensor& output : outputs) result.targets.push_back(output.defined() ? target_of(output, before) : -1);
    for (const Tensors* tensors : {&outputs, &before}) {
      for (const Tensor& tensor : *tensors) {
        result.shards.push_back(tensor.defined() ? tensor.get().value : DenseTensor());
        result.metas.push_back(tensor.defined() ? tensor.meta() : Meta());
        result.specs.push_back(tensor.defined() ? spec_of(tensor) : nullptr);
      }
    }
  } catch (const Error& error) {
    result.threw = true;
    result.error = error.what();
    result.code = error.code();
  } catch (const std::exception& error) {
    result.threw = true;
    result.error = error.what();
  }
  return result;
}

/// Compares the results of all ranks with those of one.
class Judge {
 public:
  Judge(const CaseCall& call, const Layouts& layouts, const DrawnCall& drawn, const std::vector<RankResult>& ranks,
        double ulps)
      : call_(call), layouts_(layouts), drawn_(drawn), ranks_(ranks), ulps_(ulps) {}

  Outcome outcome(const Tensors& expected) {
    Outcome outcome;
    for (const RankResult& rank : ranks_) outcome.bytes += rank.bytes;
    const RankResult& first = ranks_[0];
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].threw != first.threw || ranks_[r].code != first.code)
        return wrong(fmt::format("ranks disagree: {}; {}", describe(0), describe(r)));
    }
    if (first.threw) {
      outcome.kind = breaks_world(first.code) ? Outcome::Kind::wrong : Outcome::Kind::refused;
      outcome.text = first.error;
      outcome.code = first.code;
      return outcome;
    }
    if (first.targets.size() != expected.size())
      return wrong(fmt::format("{} outputs, expected {}", first.targets.size(), expected.size()));
    outcome.outputs.assign(first.specs.begin(), first.specs.begin() + static_cast<std::ptrdiff_t>(expected.size()));
    std::string problem;
    for (size_t o = 0; o < expected.size() && problem.empty(); ++o) problem = output_problem(o, expected[o]);
    for (size_t i = 0; i < call_.inputs.size() && problem.empty(); ++i) problem = input_problem(i, expected.size());
    return problem.empty() ? outcome : wrong(problem);
  }

 private:
  static Outcome wrong(const std::string& text) { return {.kind = Outcome::Kind::wrong, .text = text}; }
  std::string describe(size_t rank) const {
    return fmt::format("rank {} {}", rank,
                       ranks_[rank].threw ? "threw: " + ranks_[rank].error : std::string("ended its call"));
  }

  /// The value that all ranks together hold of the tensor `t` of a RankResult; a problem where they
  /// disagree about it.
  Joined joined(size_t t) const {
    const RankResult& first = ranks_[0];
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].specs[t] != first.specs[t] || !(ranks_[r].metas[t] == first.metas[t]))
        return {{}, fmt::format("ranks 0 and {} disagree about its meta or layout", r)};
    }
    const ProcessMesh& mesh = *first.specs[t]->mesh();
    std::vector<DenseTensor> shards;
    for (const int process : mesh.processes()) shards.push_back(ranks_[static_cast<size_t>(process)].shards[t]);
    return join_shards(first.metas[t], first.specs[t]->layout(), shards);
  }

  std::string output_problem(size_t o, const Tensor& expected) const {
    const RankResult& first = ranks_[0];
    if (expected.defined() != (first.specs[o] != nullptr))
      return fmt::format("output {} is {}", o, expected.defined() ? "undefined" : "defined, but not on one rank");
    if (!expected.defined()) return "";
    const Joined got = joined(o);
    // Reshards preserve values exactly, so a rank computes from them what one rank computes, unless
    // the kernel combines values over ranks, in another order than one rank.
    const bool combined =
        std::any_of(ranks_.begin(), ranks_.end(), [](const RankResult& rank) { return rank.reduced; });
    const bool pending = is_pending(first.specs[o]) || std::any_of(layouts_.begin(), layouts_.end(), is_pending);
    const double ulps = pending || combined ? std::max(ulps_, rounding_of_target(o)) : 0;
    const std::string problem =
        got.problem.empty() ? value_difference(got.value, expected.get().value, ulps) : got.problem;
    return problem.empty() ? "" : fmt::format("output {} in {}: {}", o, first.specs[o]->text(), problem);
  }

  static bool is_pending(const DistSpec* spec) {
    const auto& partial = spec->layout().partial;
    return std::any_of(partial.begin(), partial.end(), [](const auto& type) { return type.has_value(); });
  }

  /// For a result that is written into a pending average, every rank holds it: reading it adds it
  /// up n times, and each addition rounds by at most half a unit. With two ranks the addition only
  /// doubles it, which is exact.
  double rounding_of_target(size_t o) const {
    if (ranks_[0].targets[o] < 0) return 0;
    const DistSpec& spec = *ranks_[0].specs[o];
    double ulps = 0;
    for (int axis = 0; axis < spec.mesh()->rank(); ++axis) {
      const int size = spec.mesh()->size(axis);
      const auto type = spec.partial(axis);
      if (type && is_mean(*type) && size > 2) ulps += 0.5 * size;
    }
    return ulps;
  }

  /// Inputs that are not returned as outputs must not have changed.
  std::string input_problem(size_t i, size_t outputs) const {
    for (const int target : ranks_[0].targets) {
      if (target == static_cast<int>(i)) return "";
    }
    const size_t t = outputs + i;
    if (ranks_[0].specs[t] != layouts_[i])
      return fmt::format("input {} changed its layout from {} to {}", i, layouts_[i]->text(),
                         ranks_[0].specs[t]->text());
    const Joined got = joined(t);
    const std::string problem = got.problem.empty() ? value_difference(got.value, drawn_.values[i], 0) : got.problem;
    return problem.empty() ? "" : fmt::format("input {} was changed: {}", i, problem);
  }

  const CaseCall& call_;
  const Layouts& layouts_;
  const DrawnCall& drawn_;
  const std::vector<RankResult>& ranks_;
  double ulps_;
};

}  // namespace

std::string to_string(const Layouts& layouts) {
  std::string text;
  for (const DistSpec* spec : layouts) text += (text.empty() ? "" : " ; ") + spec->text();
  return text;
}

DrawnCall::DrawnCall(const CaseCall& call, const Layouts& layouts, uint64_t seed, bool gentle) {
  Random random(seed);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    values.push_back(draw_value(call.inputs[i], layouts[i]->layout(), random));
    shards.push_back(split_value(values[i], layouts[i]->layout(), random, gentle));
  }
}

Tensors DrawnCall::expected(const CaseCall& call) const {
  Tensors plain;
  for (const DenseTensor& value : values) plain.emplace_back(clone(value));
  return call.run(plain);
}

std::vector<Outcome> CallChecker::check(const CaseCall& call, const std::vector<Layouts>& layouts, double ulps,
                                        uint64_t seed, const Policies& policies) {
  std::vector<DrawnCall> drawn;
  for (const Layouts& choice : layouts) drawn.emplace_back(call, choice, seed, ulps > 0);
  std::vector<Tensors> expected(layouts.size());
  std::vector<Outcome> outcomes(layouts.size());
  for (size_t k = 0; k < layouts.size(); ++k) {
    try {
      expected[k] = drawn[k].expected(call);
    } catch (const std::exception& error) { outcomes[k] = {.kind = Outcome::Kind::invalid, .text = error.what()}; }
  }
  for (size_t begin = 0; begin < layouts.size();) {
    if (!world_) world_ = World::local(ranks_, {.timeout = std::chrono::seconds(20)});
    std::vector<std::vector<RankResult>> results(layouts.size(), std::vector<RankResult>(static_cast<size_t>(ranks_)));
    std::barrier<> together(ranks_);
    std::atomic<size_t> end = layouts.size();  // of the layouts that this world has tried
    try {
      world_->run([&](Rank& rank) {
        const PolicyScope scope(rank, policies);
        for (size_t k = begin; k < layouts.size(); ++k) {
          if (outcomes[k].kind == Outcome::Kind::invalid) continue;
          RankResult& result = results[k][static_cast<size_t>(rank.id())];
          result = call_once(rank, call, layouts[k], drawn[k]);
          if (result.threw && breaks_world(result.code)) end = k + 1;
          together.arrive_and_wait();
          if (end == k + 1) break;
        }
      });
    } catch (const Error&) { end = begin + 1; }
    for (size_t k = begin; k < end; ++k) {
      if (outcomes[k].kind != Outcome::Kind::invalid)
        outcomes[k] = Judge(call, layouts[k], drawn[k], results[k], ulps).outcome(expected[k]);
    }
    const auto& last = results[end - 1];
    const bool broken = end < layouts.size() || std::any_of(last.begin(), last.end(), [](const RankResult& r) {
                          return r.threw && breaks_world(r.code);
                        });
    results.clear();  // no tensor may outlive its world
    if (broken) world_.reset();
    begin = end;
  }
  return outcomes;
}

}  // namespace shard::testing
