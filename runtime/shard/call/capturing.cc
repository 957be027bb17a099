#include "shard/call/capturing.h"

#include "shard/call/dense_call.h"

namespace shard::call {

uint64_t Capturing::draws() { return thread_generator().state().offset; }

void Capturing::tensor(const Tensor& tensor) {
  tracer_.adopt(tensor);
  slots_.push_back({inputs_.size(), 1});
  inputs_.push_back({tensor.impl().get(), tensor.defined() ? tensor.impl()->value : DenseTensor()});
}

void Capturing::list(const std::vector<Tensor>& tensors) {
  tracer_.adopt(tensors);
  slots_.push_back({inputs_.size(), tensors.size()});
  for (const Tensor& tensor : tensors)
    inputs_.push_back({tensor.impl().get(), tensor.defined() ? tensor.impl()->value : DenseTensor()});
}

TracedOutput Capturing::describe(const DenseTensor& output, const AliasDef* alias, bool reinterprets) const {
  TracedOutput recorded;
  recorded.present = output.defined();
  if (!recorded.present) return recorded;
  recorded.meta = output.meta();
  recorded.device = output.device();
  for (size_t i = 0; i < inputs_.size() && recorded.shares < 0; ++i) {
    if (inputs_[i].value.defined() && inputs_[i].value.storage() == output.storage())
      recorded.shares = static_cast<int>(i);
  }
  recorded.written = recorded.shares >= 0 && alias != nullptr && alias->kind != AliasDef::Kind::view && !reinterprets;
  return recorded;
}

/// Records the call. An output that is an argument written in place is that argument. All other
/// outputs are the results that the call returned, in their order.
void Capturing::record() {
  std::vector<TracedOutput> outputs;
  std::vector<SlotRange> output_slots;
  std::vector<TensorImpl*> impls;  // one entry for each flat output
  auto next = results_.begin();
  for (size_t o = 0; o < op_.outputs.size(); ++o) {
    const AliasDef* target = nullptr;
    const AliasDef* any = nullptr;
    bool view = false;
    for (const AliasDef& alias : op_.aliases) {
      if (alias.output != static_cast<int>(o)) continue;
      if (alias.kind == AliasDef::Kind::inplace && inplace_) target = &alias;
      if (alias.kind == AliasDef::Kind::view) view = true;
      if (any == nullptr || alias.kind != AliasDef::Kind::inplace) any = &alias;
    }
    SlotRange range{outputs.size(), 0};
    if (target != nullptr) {
      const SlotRange& from = slots_[static_cast<size_t>(target->input)];
      for (size_t i = from.first; i < from.first + from.count; ++i) impls.push_back(inputs_[i].impl);
    } else {
      for (const Tensor& result : *next) impls.push_back(result.impl().get());
      ++next;
    }
    range.count = impls.size() - range.first;
    for (size_t i = range.first; i < impls.size(); ++i) {
      outputs.push_back(describe(impls[i] == nullptr ? DenseTensor() : impls[i]->value,
                                 target != nullptr ? target : any, target != nullptr && view));
    }
    output_slots.push_back(range);
  }
  std::vector<const DenseTensor*> inputs;
  for (const Input& input : inputs_) inputs.push_back(input.value.defined() ? &input.value : nullptr);
  const std::vector<uint32_t> symbols = tracer_.call({.op = op_,
                                                      .inplace = inplace_,
                                                      .inputs = inputs,
                                                      .slots = slots_,
                                                      .attrs = std::move(attrs_),
                                                      .outputs = outputs,
                                                      .output_slots = output_slots,
                                                      .draw = draws_});
  for (size_t i = 0; i < impls.size(); ++i) {
    if (impls[i] != nullptr) impls[i]->value.set_symbol(symbols[i]);
  }
}

}  // namespace shard::call
