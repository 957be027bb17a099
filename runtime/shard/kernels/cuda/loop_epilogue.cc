// Which calls of a loop cuBLASLt computes with the product before them.
#include <algorithm>
#include <utility>

#include "shard/kernels/cuda/loop_collector.h"
#include "shard/kernels/cuda/product.cuh"

namespace shard::cuda::detail {
namespace {

/// The first calls of a loop as the epilogue of the product before it.
class EpilogueMatch {
 public:
  EpilogueMatch(const LoopCollector& loop, size_t calls) : loop_(loop), product_(loop.product->out), calls_(calls) {}

  /// Nothing where they are none, or where it would save no pass over memory.
  std::optional<Epilogue> find() const {
    Epilogue epilogue;
    for (size_t c = 0; c < calls_; ++c) {
      if (loop_.calls[c].places.out.dtype != product_.dtype) return std::nullopt;
      if (!(c == 0 && adds_bias(epilogue)) && !activates(c, epilogue)) return std::nullopt;
    }
    const bool apart = !out().meets(Memory(loop_.product->x)) && !out().meets(Memory(loop_.product->y));
    return apart && hides_the_rest() && saves_a_pass() ? std::optional(epilogue) : std::nullopt;
  }

  const Memory& out() const { return loop_.calls[calls_ - 1].places.out; }

 private:
  bool is(size_t c, std::string_view formulas, std::string_view name) const {
    return loop_.calls[c].what.formulas == formulas && loop_.calls[c].what.name == name;
  }
  /// Whether an operand of call c is what the product and the calls before have computed.
  bool is_so_far(size_t c, size_t operand) const {
    const Value& value = loop_.calls[c].inputs[operand];
    if (c > 0) return value.computed && value.index == c - 1;
    const Read& read = loop_.calls[c].places.reads[operand];
    return read.access.length == 0 && read.memory.agrees_with(product_) && read.memory.dtype == product_.dtype;
  }

  bool adds_bias(Epilogue& epilogue) const {
    if (!is(0, "basic", "Add")) return false;
    const size_t bias = is_so_far(0, 0) ? 1 : 0;
    const auto& [memory, access] = loop_.calls[0].places.reads[bias];
    const ProductCall& call = *loop_.product;
    const int64_t columns = product_of(call.x.dims(), call.y.dims(), call.transpose_x, call.transpose_y).n;
    const bool is_row = access.length == 0 ? loop_.count == columns : access.inner == 1 && access.length == columns;
    if (!is_so_far(0, 1 - bias) || !is_row || memory.dtype != product_.dtype) return false;
    if (memory.meets(product_) || memory.meets(out())) return false;
    epilogue.bias = memory.data;
    return reinterpret_cast<uintptr_t>(memory.data) % kBiasAlignment == 0;
  }

  bool activates(size_t c, Epilogue& epilogue) const {
    if (!takes_activations(product_.dtype) || epilogue.activation != Activation::none || !is_so_far(c, 0)) return false;
    if (is(c, "basic", "Relu")) epilogue.activation = Activation::relu;
    else if (is(c, "gates", "GeluTanh")) epilogue.activation = Activation::gelu_tanh;
    return epilogue.activation != Activation::none;
  }

  /// Whether nothing reads the product, or results of the calls before the last one.
  bool hides_the_rest() const {
    const auto overwrites = [&](const Call& call) { return call.places.out.agrees_with(product_); };
    const auto end = loop_.calls.begin() + static_cast<std::ptrdiff_t>(calls_);
    if (!loop_.is_dropped(product_) && std::none_of(loop_.calls.begin(), end, overwrites)) return false;
    const auto is_hidden = [&](const Write& write) {
      return write.call + 1 >= calls_ || loop_.is_dropped(write.memory);
    };
    return std::all_of(loop_.writes.begin(), loop_.writes.end(), is_hidden) &&
           std::all_of(end, loop_.calls.end(), [&](const Call& call) { return reads_no_more(call); });
  }
  bool reads_no_more(const Call& call) const {
    for (size_t n = 0; n < call.inputs.size(); ++n) {
      const auto [computed, index] = call.inputs[n];
      if (computed ? index + 1 < calls_ : call.places.reads[n].memory.meets(product_)) return false;
    }
    return true;
  }

  /// A loop behind the epilogue reads its result again, as it would read the product: only if something else needs the result as well,
  /// one pass is left out. Calls that no loop makes are a pass each.
  bool saves_a_pass() const {
    if (!compiles_loops(loop_.device)) return true;
    const auto is_stored = [&](const Write& write) {
      return write.call + 1 == calls_ && !loop_.is_dropped(write.memory);
    };
    return calls_ == loop_.calls.size() || std::any_of(loop_.writes.begin(), loop_.writes.end(), is_stored);
  }

  const LoopCollector& loop_;
  const Memory product_;
  const size_t calls_;
};

}  // namespace

void LoopCollector::issue_product() {
  for (size_t first = std::min<size_t>(2, calls.size()); first > 0; --first) {
    const EpilogueMatch match(*this, first);
    const std::optional<Epilogue> epilogue = match.find();
    if (!epilogue || !run_product(*product, *epilogue, match.out().data)) continue;
    LoopCollector rest{device};
    rest.count = count;
    rest.dropped = std::move(dropped);
    for (size_t c = first; c < calls.size(); ++c) rest.append(calls[c].what, std::move(calls[c].places));
    *this = std::move(rest);
    return;
  }
  const ProductCall alone = *std::exchange(product, std::nullopt);
  run_product(alone, {}, alone.out.raw());
}

}  // namespace shard::cuda::detail
