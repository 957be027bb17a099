#include "shard/program/capture/call_key.h"

#include <algorithm>
#include <functional>

#include "shard/autograd/leaf.h"
#include "shard/autograd/record.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/world.h"
#include "shard/program/capture/adopted.h"

namespace shard::program {
namespace {

const DistSpec* spec_or_null(const Tensor& tensor) { return tensor.is_dist() ? dist_impl(tensor).spec : nullptr; }

/// Compares a key with a known one while it is being made, so that a run allocates no memory for
/// it.
class KeyMatch {
 public:
  explicit KeyMatch(const KeyWords& known) : known_(known) {}
  void push_back(uint64_t word) { equal_ = equal_ && at_ < known_.size() && known_[at_++] == word; }
  bool matches() const { return equal_ && at_ == known_.size(); }

 private:
  const KeyWords& known_;
  size_t at_ = 0;
  bool equal_ = true;
};

template <class Key>
void add_type(Key& key, const Tensor& tensor) {
  if (!tensor.defined()) {
    key.push_back(0);
    return;
  }
  const Meta& meta = tensor.meta();
  const Device device = tensor.device();
  // Views that were resharded are captured differently: they are not written with a history.
  const bool is_view = tensor.get().grad.root && !autograd::shares_root(tensor.get());
  key.push_back(1 | static_cast<uint64_t>(tensor.requires_grad()) << 1 | static_cast<uint64_t>(is_view) << 2 |
                static_cast<uint64_t>(meta.dtype) << 8 | static_cast<uint64_t>(meta.dims.rank()) << 16 |
                static_cast<uint64_t>(device.backend) << 24 | static_cast<uint64_t>(device.index) << 32);
  key.push_back(reinterpret_cast<uintptr_t>(spec_or_null(tensor)));
  for (const int64_t size : meta.dims) key.push_back(static_cast<uint64_t>(size));
  if (!tensor.requires_grad()) return;
  // What a backward pass inside the function does at a leaf.
  const autograd::LeafExtra* const extra = autograd::extra_or_null(tensor);
  const GradLayout layout = extra == nullptr ? GradLayout::of_leaf : extra->layout;
  key.push_back(static_cast<uint64_t>(tensor.is_leaf()) | static_cast<uint64_t>(layout) << 1);
  if (extra == nullptr) return;
  for (const auto& [id, hook] : extra->hooks) key.push_back(id);
}

template <class Key>
void add_types(Key& key, std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) add_type(key, tensor);
}

/// Adds which of the tensors share bytes: for each tensor the first one on the same buffer, its
/// offset from that one, and the first argument that is the same tensor.
template <class Key>
void add_sharing(Key& key, const Arguments& arguments) {
  struct Place {
    const Storage* storage;
    const TensorImpl* tensor;
    size_t number, offset, first, distance, same;
    const TensorImpl* root;  // for a view in the buffer of its base: the base
  };
  std::vector<Place> places;
  places.reserve(arguments.inputs.size() + arguments.parameters.size());
  for (const std::vector<Tensor>* tensors : {&arguments.inputs, &arguments.parameters}) {
    for (const Tensor& tensor : *tensors) {
      const size_t number = places.size();
      if (!tensor.defined()) {
        places.push_back({nullptr, nullptr, number, 0, ~size_t{0}, 0, number, nullptr});
        continue;
      }
      const TensorImpl& impl = tensor.get();
      const TensorImpl* const root = autograd::shares_root(impl) ? impl.grad.root.get() : nullptr;
      places.push_back({impl.value.storage().get(), &impl, number, impl.value.offset(), number, 0, number, root});
    }
  }
  // Addresses only determine which tensors are equal. The key has numbers alone.
  const auto before = [](const Place& a, const Place& b) {
    if (a.storage != b.storage) return std::less<>()(a.storage, b.storage);
    return a.tensor != b.tensor ? std::less<>()(a.tensor, b.tensor) : a.number < b.number;
  };
  std::sort(places.begin(), places.end(), before);
  for (auto group = places.begin(); group != places.end();) {
    const auto end =
        std::find_if(group, places.end(), [&](const Place& each) { return each.storage != group->storage; });
    const Place first =
        *std::min_element(group, end, [](const Place& a, const Place& b) { return a.number < b.number; });
    const Place* same = &*group;
    for (; group != end; ++group) {
      if (group->storage == nullptr) continue;
      if (group->tensor != same->tensor) same = &*group;
      group->first = first.number;
      group->distance = group->offset - first.offset;
      group->same = same->number;
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.number < b.number; });
  for (const Place& place : places) {
    key.push_back(place.first);
    key.push_back(place.distance);
    key.push_back(place.same);
  }
  // Adds which tensors are views of other arguments.
  for (const Place& place : places) {
    if (place.root == nullptr) continue;
    const auto root =
        std::find_if(places.begin(), places.end(), [&](const Place& each) { return each.tensor == place.root; });
    if (root == places.end()) continue;
    key.push_back(place.number);
    key.push_back(root->number);
  }
  key.push_back(~uint64_t{0});
}

/// Adds which of the tensors are views that were resharded, and from which other ones. The sources
/// must not be written before the views are read.
template <class Key>
void add_resharded_views(Key& key, const Arguments& arguments) {
  const size_t inputs = arguments.inputs.size();
  const auto storage_of = [&](size_t i) -> const Storage* {
    const Tensor& tensor = i < inputs ? arguments.inputs[i] : arguments.parameters[i - inputs];
    return tensor.defined() ? tensor.get().value.storage().get() : nullptr;
  };
  const size_t count = inputs + arguments.parameters.size();
  for (size_t i = 0; i < count; ++i) {
    const Storage* const storage = storage_of(i);
    if (storage == nullptr || storage->detachment() == nullptr) continue;
    size_t source = count;
    nearest_source(*storage, [&](const Storage* known) {
      for (source = 0; source < count && storage_of(source) != known;) ++source;
      return source < count;
    });
    key.push_back(i);
    key.push_back(source);
  }
}

}  // namespace

/// The part of the key that is known from the call alone, before a program is chosen.
KeyWords key_of(const std::vector<Tensor>& inputs) {
  KeyWords key;
  Rank* const rank = current_rank_or_null();
  key.push_back(reinterpret_cast<uintptr_t>(rank));
  if (rank != nullptr) key.push_back(shard::key_of(rank->policies));
  key.push_back(static_cast<uint64_t>(grad_enabled()) | inputs.size() << 1);
  add_types(key, inputs);
  return key;
}

KeyWords types_key(const std::vector<Tensor>& parameters) {
  KeyWords key;
  add_types(key, parameters);
  return key;
}

KeyWords sharing_key(const Arguments& arguments) {
  KeyWords key;
  add_sharing(key, arguments);
  add_resharded_views(key, arguments);
  return key;
}

bool has_types(const KeyWords& known, const std::vector<Tensor>& parameters) {
  KeyMatch match(known);
  add_types(match, parameters);
  return match.matches();
}

bool has_sharing(const KeyWords& known, const Arguments& arguments) {
  KeyMatch match(known);
  add_sharing(match, arguments);
  add_resharded_views(match, arguments);
  return match.matches();
}

}  // namespace shard::program
