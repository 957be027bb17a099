#include "shard/program/capture/fit_check.h"
#include "shard/program/ir/alias.h"

#include <algorithm>

#include "shard/autograd/grad_mode.h"
#include "shard/autograd/record.h"
#include "shard/core/error.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/world.h"
#include "shard/program/capture/captured_entry.h"

namespace shard::program {
namespace {

std::string text_of(const Type& type, bool requires_grad) {
  const std::string mesh = type.spec == nullptr ? "" : " on " + type.spec->mesh()->describe();
  return fmt::format("{}{}{}", to_string(type), mesh, requires_grad ? ", requires a gradient" : "");
}

/// Collects how arguments differ from those that a loaded program takes.
class FitCheck {
 public:
  FitCheck(const Trace& trace, const Arguments& arguments)
      : trace_(trace), program_(trace.program), arguments_(arguments) {}

  void run() {
    const std::span<const Named> inputs = std::span(program_.inputs).first(trace_.require_grad.size());
    if (arguments_.inputs.size() != inputs.size())
      problem(fmt::format("expected {} inputs, but {} are given", inputs.size(), arguments_.inputs.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor given = i < arguments_.inputs.size() ? arguments_.inputs[i] : Tensor();
      check("input", inputs[i], given, trace_.require_grad[i]);
    }
    for (size_t i = 0; i < program_.parameters.size(); ++i)
      check("parameter", program_.parameters[i], arguments_.parameters[i], trace_.parameters[i].requires_grad);
    for (const Leaf& leaf : trace_.leaves) {
      const Tensor tensor = leaf.tensor.defined() || leaf.input < arguments_.inputs.size()
                                ? tensor_of(leaf, arguments_.inputs)
                                : Tensor();
      if (!tensor.defined() || tensor.grad().defined() == leaf.had_gradient) continue;
      problem(fmt::format("{} is expected to have {} gradient (set_grad)", tensor.get().describe(),
                          leaf.had_gradient ? "a" : "no"));
    }
    for (ValueId id = 1; id < program_.value_count(); ++id) check_world(program_.value(id).type.spec);
    if (program_.world_draws != 0 && current_rank_or_null() == nullptr)
      problem("it draws random numbers on meshes: call it on a rank of a world");
    if (!problems_.empty())
      fail(ErrorCode::invalid_argument, "[captured] the loaded program cannot run with these arguments:{}", problems_);
  }

 private:
  void problem(const std::string& text) { problems_ += "\n  " + text; }

  void check(const char* what, const Named& named, const Tensor& given, bool requires_grad) {
    const bool requires_now = given.defined() && grad_enabled() && given.requires_grad();
    const std::string expected = named.value == 0 ? "none" : text_of(program_.value(named.value).type, requires_grad);
    const std::string has = given.defined() ? text_of(type_of(given.get()), requires_now) : "none";
    if (expected != has)
      return problem(fmt::format("{} '{}': expected {}, but given {}", what, named.name, expected, has));
    if (named.value == 0) return;
    check_history(what, named, given);
    // Arguments share a buffer exactly if their values are in the same alias tree.
    const Storage* const storage = given.get().value.storage().get();
    const ValueId root = program_.value(named.value).root;
    for (const Seen& other : seen_) {
      const bool one = other.value == named.value, shares = other.root == root;
      if (!one && shares != (other.storage == storage)) {
        problem(fmt::format("{} '{}': expected {} '{}'", what, named.name,
                            shares ? "to share the buffer of" : "to be in another buffer than", other.name));
      } else if (one != (other.tensor == given.impl().get())) {
        problem(fmt::format("{} '{}': expected {} '{}'", what, named.name,
                            one ? "the tensor that is also" : "another tensor than", other.name));
      }
    }
    seen_.push_back({named.value, root, given.impl().get(), storage, named.name});
  }

  /// In each run the program gives a history to what it writes with one. These cannot take it: a
  /// leaf, a view that was resharded, and a tensor that shares its buffer with another argument.
  void check_history(const char* what, const Named& named, const Tensor& given) {
    if (!trace_.gradient) return;
    const bool is_leaf = given.requires_grad() && given.is_leaf();
    const bool resharded_view = given.get().grad.root && !autograd::shares_root(given.get());
    const auto on_root = [&](const Named& other) {
      return other.value != 0 && program_.value(other.value).root == program_.value(named.value).root;
    };
    const auto inputs = program_.inputs.begin();
    const bool shares =
        std::count_if(inputs, inputs + static_cast<std::ptrdiff_t>(trace_.require_grad.size()), on_root) > 1;
    if (!resharded_view && !is_leaf && !shares) return;
    for (const size_t output : trace_.gradient->outputs) {
      const ValueId value = program_.outputs[output].value;
      if (value == 0 || handle_of(program_, value) != named.value) continue;
      problem(fmt::format(
          "{} '{}': the program writes it with a history, so it must not be a leaf that requires a gradient, nor a "
          "view of a resharded copy, nor share its buffer with another argument; pass a copy (assign(x))",
          what, named.name));
    }
  }

  void check_world(const DistSpec* spec) {
    const Rank* const rank = current_rank_or_null();
    if (spec == nullptr || checked_ == spec->mesh()) return;
    checked_ = spec->mesh();
    const std::vector<int>& processes = checked_->processes();
    const int last = *std::max_element(processes.begin(), processes.end());
    if (rank == nullptr || last >= rank->world().size())
      problem(fmt::format("it computes on {}: call it on a rank of a world that has these processes",
                          checked_->describe()));
  }

  const Trace& trace_;
  const Program& program_;
  const Arguments& arguments_;
  const ProcessMesh* checked_ = nullptr;
  struct Seen {
    ValueId value, root;
    const TensorImpl* tensor;
    const Storage* storage;
    std::string name;
  };
  std::vector<Seen> seen_;
  std::string problems_;
};

}  // namespace

void check_fit(const Trace& trace, const Arguments& arguments) { FitCheck(trace, arguments).run(); }

}  // namespace shard::program
