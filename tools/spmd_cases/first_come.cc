#include "first_come.h"

#include <limits>
#include <numeric>

#include "shard/core/error.h"

namespace spmd_cases {
namespace {

using namespace shard;
using namespace shard::spmd;

size_t index(int i) { return static_cast<size_t>(i); }

std::vector<int> order_of(const std::vector<int>& visit, size_t count) {
  if (!visit.empty()) return visit;
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool is_empty(const Dims& dims) { return dims.rank() == 0 || dims[0] == 0; }

/// True for a letter that the peer never shards.
bool stays_whole(const Letter& letter) {
  return letter.role == Letter::Role::whole || letter.role == Letter::Role::combined;
}

/// Finds a common layout for the visited arguments. An axis that all of them use in the same way
/// stays. Any other axis is assigned to the letter for which the fewest elements are sent, or to
/// none. Each letter gets one axis.
class Aligner {
 public:
  Aligner(const RuleArgs& args, const Notation& notation) : args_(args), notation_(notation) {
    for (int t : order_of(peer_options(args).visit, args.tensors.size())) {
      if (args.tensors[index(t)].spec != nullptr && !is_empty(args.tensors[index(t)].meta.dims))
        tensors_.push_back(index(t));
    }
    if (tensors_.empty()) return;
    // The letters of the tensor with the fewest dims are the letters that all tensors have.
    for (size_t t : tensors_) {
      const std::vector<int>& letters = notation.inputs[t];
      if (t == tensors_[0] || letters.size() < shared_.size()) shared_ = letters;
    }
    std::erase_if(shared_,
                  [&](int letter) { return letter == kNoLetter || stays_whole(notation.letters[index(letter)]); });
  }

  /// The layouts of all flat inputs; inputs that were not visited are replicated.
  std::vector<Layout> align() {
    const int axes = args_.mesh->rank();
    letter_of_.assign(index(axes), kNoLetter);
    std::vector<std::optional<ReduceType>> pending(index(axes));
    for (int axis = 0; axis < axes; ++axis) {
      if (tensors_.empty() || !agree(axis)) continue;
      const Layout& first = layout(tensors_[0]);
      const int dim = first.dim_of(axis);
      const auto type = first.partial[index(axis)];
      if (dim >= 0 && is_shared(notation_.inputs[tensors_[0]][index(dim)]))
        letter_of_[index(axis)] = notation_.inputs[tensors_[0]][index(dim)];
      if (type && is_linear(*type)) pending[index(axis)] = type;
    }
    for (int axis = 0; axis < axes; ++axis) {
      if (!tensors_.empty() && !agree(axis)) letter_of_[index(axis)] = cheapest(axis);
    }
    const bool keep = peer_options(args_).pending == PeerOptions::Pending::pass;
    std::vector<Layout> result;
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      Layout layout(args_.mesh, args_.tensors[t].meta.dims.rank());
      const bool visited = std::find(tensors_.begin(), tensors_.end(), t) != tensors_.end();
      for (int axis = 0; visited && axis < axes; ++axis) {
        const auto& letters = notation_.inputs[t];
        const auto found = std::find(letters.begin(), letters.end(), letter_of_[index(axis)]);
        if (letter_of_[index(axis)] != kNoLetter && found != letters.end())
          layout.dims[index(static_cast<int>(found - letters.begin()))].push_back(axis);
        if (keep) layout.partial[index(axis)] = pending[index(axis)];
      }
      result.push_back(layout);
    }
    return result;
  }

 private:
  const Layout& layout(size_t t) const { return args_.tensors[t].spec->layout(); }
  bool is_shared(int letter) const { return std::find(shared_.begin(), shared_.end(), letter) != shared_.end(); }
  bool is_taken(int letter) const {
    return std::find(letter_of_.begin(), letter_of_.end(), letter) != letter_of_.end();
  }

  bool agree(int axis) const {
    return std::all_of(tensors_.begin(), tensors_.end(), [&](size_t t) {
      const Layout& first = layout(tensors_[0]);
      return layout(t).dim_of(axis) == first.dim_of(axis) &&
             layout(t).partial[index(axis)] == first.partial[index(axis)];
    });
  }

  int cheapest(int axis) const {
    int best = kNoLetter;
    double best_cost = std::numeric_limits<double>::infinity();
    for (int letter : shared_) {
      if (is_taken(letter)) continue;
      const double cost = cost_of(axis, letter);
      if (cost < best_cost) {
        best = letter;
        best_cost = cost;
      }
    }
    return best;
  }

  double cost_of(int axis, int letter) const {
    double cost = 0;
    for (size_t t : tensors_) {
      const Dims& dims = args_.tensors[t].meta.dims;
      const auto& letters = notation_.inputs[t];
      const auto dim = static_cast<int>(std::find(letters.begin(), letters.end(), letter) - letters.begin());
      if (dims[dim] < args_.mesh->size(axis)) return std::numeric_limits<double>::infinity();
      if (!layout(t).dims[index(dim)].empty()) continue;
      double local = 1;
      for (int d = 0; d < dims.rank(); ++d) {
        const AxisList& axes = layout(t).dims[index(d)];
        const int64_t parts = axes.empty() ? 1 : args_.mesh->size(axes[0]);
        local *= static_cast<double>((dims[d] + parts - 1) / parts);
      }
      cost += local * args_.mesh->size(axis);
    }
    return cost;
  }

  const RuleArgs& args_;
  const Notation& notation_;
  std::vector<size_t> tensors_;  // visited, present and not empty
  std::vector<int> shared_;      // the letters that may be sharded and that all of them have
  std::vector<int> letter_of_;   // for each axis
};

/// The notation in which no dim of size 1 has a letter.
Notation without_ones(const RuleArgs& args, Notation notation) {
  const auto drop = [](std::vector<int>& letters, const Dims& dims) {
    for (size_t d = 0; d < letters.size() && d < index(dims.rank()); ++d) {
      if (dims[static_cast<int>(d)] == 1) letters[d] = kNoLetter;
    }
  };
  for (size_t t = 0; t < args.tensors.size(); ++t) drop(notation.inputs[t], args.tensors[t].meta.dims);
  for (size_t o = 0; o < args.outputs.size(); ++o) drop(notation.outputs[o], args.outputs[o].dims);
  return notation;
}

}  // namespace

FirstCome::FirstCome(const RuleArgs& args, const Notation& notation)
    : options_(peer_options(args)), args_(args), notation_(notation), axis_(notation.letters.size(), -1),
      letters_(index(args.mesh->rank())) {}

bool FirstCome::is_whole(int letter) const { return stays_whole(notation_.letters[index(letter)]); }

void FirstCome::visit(const Layout& layout, const std::vector<int>& letters) {
  for (size_t d = 0; d < letters.size() && d < index(layout.rank); ++d) {
    const int letter = letters[d];
    if (letter == kNoLetter || (is_whole(letter) && !options_.whole_claims)) continue;
    const AxisList& axes = layout.dims[d];
    for (int i = 0; i < axes.size(); ++i) {
      int& axis = axis_[index(letter)];
      if (axis >= 0 && axis != axes[i]) {
        fail(ErrorCode::layout,
             "[{}] one index of the op is sharded by two mesh axes, '{}' and '{}'; reshard an argument, or let costs "
             "decide",
             args_.op.name, args_.mesh->name(axis), args_.mesh->name(axes[i]));
      }
      axis = axes[i];
      std::vector<int>& known = letters_[index(axis)];
      if (std::find(known.begin(), known.end(), letter) == known.end()) known.push_back(letter);
    }
  }
}

void FirstCome::settle() {
  for (size_t axis = 0; axis < letters_.size(); ++axis) {
    if (letters_[axis].size() < 2) continue;
    if (options_.conflict == PeerOptions::Conflict::error) {
      fail(ErrorCode::layout,
           "[{}] mesh axis '{}' shards two indices of the op; reshard an argument, or let costs decide", args_.op.name,
           args_.mesh->name(static_cast<int>(axis)));
    }
    for (size_t i = 1; i < letters_[axis].size(); ++i) axis_[index(letters_[axis][i])] = -1;
  }
}

Layout FirstCome::layout(const std::vector<int>& letters) const {
  Layout layout(args_.mesh, static_cast<int>(letters.size()));
  for (size_t d = 0; d < letters.size(); ++d) {
    if (letters[d] != kNoLetter && !is_whole(letters[d]) && axis_[index(letters[d])] >= 0)
      layout.dims[d].push_back(axis_[index(letters[d])]);
  }
  return layout;
}

Layout FirstCome::output(size_t o) const {
  Layout result = layout(notation_.outputs[o]);
  for (size_t i = 0; i < axis_.size(); ++i) {
    const Letter& letter = notation_.letters[i];
    if (axis_[i] < 0 || letter.role != Letter::Role::reduce || notation_.has(o, static_cast<int>(i))) continue;
    result.partial[index(axis_[i])] = letter.type;
  }
  return result;
}

RuleResult FirstComeSolver::solve(const RuleArgs& args, const Notation& given) const {
  const Notation notation = options_.ones_whole ? without_ones(args, given) : given;
  const bool reverse = !args.wanted.empty();
  const bool aligned = !reverse && options_.conflict == PeerOptions::Conflict::align;
  const std::vector<Layout> common = aligned ? Aligner(args, notation).align() : std::vector<Layout>();

  FirstCome axes(args, notation);
  if (reverse) {
    for (int o : order_of(options_.visit_outputs, args.wanted.size())) {
      if (args.wanted[index(o)] != nullptr) axes.visit(args.wanted[index(o)]->layout(), notation.outputs[index(o)]);
    }
  } else {
    for (int t : order_of(options_.visit, args.tensors.size())) {
      if (args.tensors[index(t)].spec == nullptr) continue;
      axes.visit(aligned ? common[index(t)] : args.tensors[index(t)].spec->layout(), notation.inputs[index(t)]);
    }
  }
  axes.settle();

  RuleResult result;
  for (size_t t = 0; t < args.tensors.size(); ++t) {
    const TensorArg& tensor = args.tensors[t];
    if (tensor.spec == nullptr) {
      result.inputs.emplace_back(args.mesh, 0);
    } else if (!reverse && (options_.untouched >> t & 1u) != 0) {
      result.inputs.push_back(tensor.spec->layout());
    } else {
      result.inputs.push_back(axes.layout(notation.inputs[t]));
      if (aligned) result.inputs[t].partial = common[t].partial;
      else if (!reverse && options_.pending == PeerOptions::Pending::pass)
        result.inputs[t].partial = tensor.spec->layout().partial;
    }
  }
  const bool outputs_pend =
      !reverse && !aligned &&
      (options_.pending == PeerOptions::Pending::pass || options_.pending == PeerOptions::Pending::copy);
  for (size_t o = 0; o < args.outputs.size(); ++o) {
    const bool kept = reverse && options_.keeps_outputs && args.wanted[o] != nullptr;
    result.outputs.push_back(kept ? args.wanted[o]->layout() : axes.output(o));
    if (outputs_pend && args.tensors[0].spec != nullptr)
      result.outputs[o].partial = args.tensors[0].spec->layout().partial;
  }
  return result;
}

}  // namespace spmd_cases
