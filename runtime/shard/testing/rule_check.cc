// Tries all layouts of a call along one mesh axis, one by one. rule_report.cc prints the results.
#include "shard/testing/rule_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace shard::testing {
namespace {

/// A seed that depends only on what is tried, not on what was tried before.
uint64_t seed_of(uint64_t seed, const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed * 0x9e3779b97f4a7c15u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash ^ hash >> 29;
}

/// Every layout of an input along the one axis of a mesh.
Layouts layouts_of(const ProcessMesh* mesh, const CaseInput& input) {
  const int rank = input.dims.rank();
  Layouts all = {DistSpec::replicated(mesh, rank)};
  for (int d = 0; d < rank; ++d) {
    Layout layout(mesh, rank);
    layout.dims[static_cast<size_t>(d)].push_back(0);
    all.push_back(DistSpec::make(layout));
  }
  for (int t = 0; t < kNumReduceTypes; ++t) {
    const auto type = static_cast<ReduceType>(t);
    // An average of truth values is not defined; and a value that is neither 0 nor 1 is not a
    // result of any or all.
    if (is_mean(type) && input.dtype == DType::boolean) continue;
    if (is_logical(type) && (input.low > 1 || input.high < 0)) continue;
    Layout layout(mesh, rank);
    layout.partial[0] = type;
    all.push_back(DistSpec::make(layout));
  }
  return all;
}

/// The product of the layouts of all inputs, or `most` drawn elements of it.
std::vector<Layouts> choices_of(const ProcessMesh* mesh, const CaseCall& call, size_t most, uint64_t seed) {
  std::vector<Layouts> states;
  double count = 1;
  for (const CaseInput& input : call.inputs) {
    states.push_back(layouts_of(mesh, input));
    count *= static_cast<double>(states.back().size());
  }
  std::vector<Layouts> choices;
  if (count <= static_cast<double>(most)) {
    choices.emplace_back();
    for (const Layouts& state : states) {
      std::vector<Layouts> longer;
      for (const Layouts& choice : choices) {
        for (const DistSpec* spec : state) {
          longer.push_back(choice);
          longer.back().push_back(spec);
        }
      }
      choices = std::move(longer);
    }
    return choices;
  }
  Random random(seed);
  std::set<Layouts> known;
  while (known.size() < most) {
    Layouts choice;
    for (const Layouts& state : states)
      choice.push_back(state[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(state.size()) - 1))]);
    if (known.insert(choice).second) choices.push_back(choice);
  }
  return choices;
}

Layouts parse_layouts(const ProcessMesh* mesh, const std::string& text) {
  Layouts layouts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    std::string one = text.substr(begin, end - begin);
    // "[a, -] sum(a)" is parsed as "a, - | sum(a)".
    const size_t open = one.find('['), close = one.find(']');
    if (open == std::string::npos || close == std::string::npos)
      fail(ErrorCode::invalid_argument, "'{}' is not a layout; write layouts as \"[a, -] ; [-, -] sum(a)\"", one);
    const std::string partial = one.substr(close + 1);
    one = one.substr(open + 1, close - open - 1);
    if (partial.find_first_not_of(' ') != std::string::npos) one += " |" + partial;
    layouts.push_back(DistSpec::parse(mesh, one));
    begin = end + 1;
  }
  return layouts;
}

/// Whether one of the mesh axes shards a tensor, or is pending, as one of `states` says.
bool has_state(const DistSpec& spec, const std::vector<std::string>& states) {
  for (int axis = 0; axis < spec.mesh()->rank(); ++axis) {
    const std::string state = spec.partial(axis)                ? to_string(*spec.partial(axis))
                              : spec.layout().dim_of(axis) >= 0 ? "shard"
                                                                : "";
    if (std::find(states.begin(), states.end(), state) != states.end()) return true;
  }
  return false;
}

/// Tries one case in one dtype on so many ranks.
class CaseCheck {
 public:
  CaseCheck(const OpCase& one, DType dtype, CallChecker& ranks, const ProcessMesh* mesh,
            const RuleCheckOptions& options)
      : one_(one), dtype_(dtype), ranks_(ranks), mesh_(mesh), options_(options),
        name_(fmt::format("{}: {} {} on {}", one.op, one.name, to_string(dtype), mesh->size())) {}

  void run(const std::vector<Accepted>& accepted, RuleReport& report) {
    // Regular sizes first, whose bytes count; then sizes such as 0 and 1, which leave ranks without
    // elements.
    const std::vector<std::vector<int64_t>> sizes = {{2, 3, 5, 7}, {1, 2, 3, 5}, {0, 1, 2, 7}};
    Draw first = draw(0, sizes[0]);
    const std::vector<Layouts> choices =
        options_.layouts.empty()
            ? choices_of(mesh_, one_.make(first), options_.most_layouts, seed_of(options_.seed, name_))
            : std::vector<Layouts>(1, parse_layouts(mesh_, options_.layouts));
    std::vector<Outcome> worst(choices.size());
    for (int trial = 0; trial < options_.trials; ++trial) {
      Draw drawn = draw(trial, sizes[static_cast<size_t>(trial) % sizes.size()]);
      const CaseCall call = one_.make(drawn);
      const std::vector<Outcome> outcomes =
          ranks_.check(call, choices, one_.ulps, seed_of(options_.seed, fmt::format("{} values {}", name_, trial)));
      for (size_t k = 0; k < choices.size(); ++k) take(worst[k], outcomes[k], call, trial == 0);
    }
    RuleCounts& counts = report.ops[one_.op];
    for (size_t k = 0; k < choices.size(); ++k) count(choices[k], worst[k], accepted, counts, report.findings);
  }

 private:
  Draw draw(int trial, const std::vector<int64_t>& sizes) const {
    return {seed_of(options_.seed, fmt::format("{} sizes {}", name_, trial)), dtype_, sizes};
  }

  /// Keeps the worst outcome: wrong before refused before correct; and the bytes of the first
  /// trial.
  static void take(Outcome& worst, const Outcome& outcome, const CaseCall& call, bool first) {
    const auto badness = [](Outcome::Kind kind) {
      switch (kind) {
        case Outcome::Kind::right: return 0;
        case Outcome::Kind::refused: return 1;
        case Outcome::Kind::invalid: return 2;
        case Outcome::Kind::wrong: return 3;
      }
      return 3;
    };
    const int64_t bytes = first ? outcome.bytes : worst.bytes;
    if (badness(outcome.kind) > badness(worst.kind)) {
      worst = outcome;
      worst.text += " (with";
      for (const CaseInput& input : call.inputs) worst.text += " " + shard::to_string(Meta{input.dims, input.dtype});
      worst.text += ")";
    }
    worst.bytes = bytes;
  }

  void count(const Layouts& layouts, const Outcome& worst, const std::vector<Accepted>& accepted, RuleCounts& counts,
             std::vector<RuleFinding>& findings) {
    RuleFinding finding{Verdict::correct, one_.op, to_string(layouts), worst.text, command(layouts)};
    switch (worst.kind) {
      case Outcome::Kind::wrong:
      case Outcome::Kind::invalid: finding.verdict = Verdict::wrong; break;
      case Outcome::Kind::refused:
        finding.verdict = Verdict::missing;
        if (const Accepted* one = find_accepted(accepted, Accepted::What::refusal, one_.op, dtype_, layouts))
          finding.accepted = one->reason;
        break;
      case Outcome::Kind::right:
        if (worst.bytes == 0) break;
        if (const std::string outputs = outputs_without_moves(layouts); !outputs.empty()) {
          finding.verdict = Verdict::suboptimal;
          finding.detail = fmt::format("sent {} bytes, but the op on the local shards, without a reshard, computes {}",
                                       worst.bytes, outputs);
          if (const Accepted* one = find_accepted(accepted, Accepted::What::move, one_.op, dtype_, layouts))
            finding.accepted = one->reason;
        }
    }
    switch (finding.verdict) {
      case Verdict::correct: ++counts.correct; return;
      case Verdict::wrong: ++counts.wrong; break;
      case Verdict::missing: ++(finding.accepted.empty() ? counts.missing : counts.accepted); break;
      case Verdict::suboptimal: ++(finding.accepted.empty() ? counts.suboptimal : counts.accepted); break;
    }
    findings.push_back(std::move(finding));
  }

  std::string command(const Layouts& layouts) const {
    return fmt::format("shard_verify_rules --op {} --case \"{}\" --dtype {} --layouts \"{}\" --ranks {} --seed {}",
                       one_.op, one_.name, to_string(dtype_), to_string(layouts), mesh_->size(), options_.seed);
  }

  /// The layouts of the outputs with which the op, run on the local shards in their given layouts,
  /// yields the right result for many sizes and values; empty where there are none.
  std::string outputs_without_moves(const Layouts& layouts) const {
    constexpr int kTrials = 32;
    std::vector<Layouts> possible;
    for (int trial = 0; trial < kTrials; ++trial) {
      const std::string name = fmt::format("{} shards {}", name_, trial);
      Draw drawn(seed_of(options_.seed, name), dtype_, {2, 3, 5, 7});
      const CaseCall call = one_.make(drawn);
      const DrawnCall values(call, layouts, seed_of(options_.seed, name + to_string(layouts)), one_.ulps > 0);
      try {
        if (!narrow(possible, call, values, layouts, trial == 0)) return "";
      } catch (const Error&) {
        return "";  // the shards do not fit together
      }
    }
    Layouts chosen;
    for (const Layouts& output : possible) chosen.push_back(output[0]);
    return to_string(chosen);
  }

  /// Removes from the possible layouts of each output those that do not hold for these values;
  /// false when an output has none left.
  bool narrow(std::vector<Layouts>& possible, const CaseCall& call, const DrawnCall& values, const Layouts& layouts,
              bool first) const {
    const Tensors expected = values.expected(call);
    std::vector<Tensors> got;  // for each process
    std::vector<int> targets(expected.size(), -1);
    for (int i = 0; i < mesh_->size(); ++i) {
      Tensors inputs;
      for (const auto& shards : values.shards) inputs.emplace_back(clone(shards[static_cast<size_t>(i)]));
      const Tensors before = inputs;
      got.push_back(call.run(inputs));
      // the number of outputs is the size of some dim of the shard
      if (got.back().size() != expected.size()) return false;
      for (size_t o = 0; o < targets.size(); ++o) {
        for (size_t t = 0; t < before.size(); ++t) {
          if (got.back()[o].impl() == before[t].impl()) targets[o] = static_cast<int>(t);
        }
      }
    }
    if (first) {
      for (size_t o = 0; o < expected.size(); ++o) {
        const CaseInput output{expected[o].dims(), expected[o].dtype(), 0, 1};
        // A target that keeps its shape, for these sizes or others, must keep its own layout.
        const bool stays = targets[o] >= 0 &&
                           call.inputs[static_cast<size_t>(targets[o])].dims.rank() == expected[o].dims().rank() &&
                           call.inputs[static_cast<size_t>(targets[o])].dtype == expected[o].dtype();
        possible.push_back(stays ? Layouts{layouts[static_cast<size_t>(targets[o])]} : layouts_of(mesh_, output));
      }
    }
    if (possible.size() != expected.size())
      return false;  // other sizes have another number of outputs: no layout holds for all
    for (size_t o = 0; o < expected.size(); ++o) {
      std::vector<DenseTensor> values;
      for (const Tensors& outputs : got) values.push_back(outputs[o].get().value);
      std::erase_if(possible[o], [&](const DistSpec* spec) {
        std::vector<DenseTensor> shards;
        for (const DenseTensor& shard : values) {
          shards.push_back(shard.dtype() == expected[o].dtype()
                               ? convert_floats(shard, shard_dtype(shard.dtype(), spec->layout()))
                               : shard);
        }
        const Joined joined = join_shards(expected[o].meta(), spec->layout(), shards);
        return !joined.problem.empty() || !value_difference(joined.value, expected[o].get().value, one_.ulps).empty();
      });
      if (possible[o].empty()) return false;
    }
    return true;
  }

  const OpCase& one_;
  DType dtype_;
  CallChecker& ranks_;
  const ProcessMesh* mesh_;
  const RuleCheckOptions& options_;
  std::string name_;
};

}  // namespace

const Accepted* find_accepted(const std::vector<Accepted>& accepted, Accepted::What what, std::string_view op,
                              DType dtype, const Layouts& layouts) {
  const std::string_view plain = op.ends_with('_') ? op.substr(0, op.size() - 1) : op;
  for (const Accepted& one : accepted) {
    if (one.what != what || (one.op != "*" && one.op != op && one.op != plain)) continue;
    if (!one.dtypes.empty() && std::find(one.dtypes.begin(), one.dtypes.end(), dtype) == one.dtypes.end()) continue;
    const bool there =
        std::any_of(layouts.begin(), layouts.end(), [&](const DistSpec* spec) { return has_state(*spec, one.states); });
    if (there) return &one;
  }
  return nullptr;
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::correct: return "correct";
    case Verdict::wrong: return "wrong";
    case Verdict::missing: return "missing";
    case Verdict::suboptimal: return "suboptimal";
  }
  return "";
}

RuleReport check_rules(const OpCases& cases, const std::vector<Accepted>& accepted, const RuleCheckOptions& options) {
  RuleReport report;
  for (const int count : options.ranks) {
    CallChecker ranks(count);
    const ProcessMesh* mesh = ProcessMesh::make({count});
    for (const OpCase& one : cases) {
      if ((!options.op.empty() && one.op != options.op) || (!options.name.empty() && one.name != options.name))
        continue;
      for (const DType dtype : one.dtypes) {
        if (options.dtype.empty() || options.dtype == to_string(dtype))
          CaseCheck(one, dtype, ranks, mesh, options).run(accepted, report);
      }
    }
  }
  return report;
}

}  // namespace shard::testing
