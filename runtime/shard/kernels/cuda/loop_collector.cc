#include "shard/kernels/cuda/loop_collector.h"

#include <algorithm>
#include <utility>

namespace shard::cuda::detail {
namespace {

/// How x is broadcast to `out`, if its dims that are not repeated stand side by side.
std::optional<Access> access_of(const Dims& x, const Dims& out) {
  const int before = out.rank() - x.rank();
  int first = 0, last = x.rank() - 1;
  while (first <= last && x[first] == 1) ++first;
  while (last >= first && x[last] == 1) --last;
  Access access{1, 1};
  for (int i = first; i <= last; ++i) {
    if (x[i] != out[before + i]) return std::nullopt;
    access.length *= x[i];
  }
  if (first > last) return access;
  for (int i = before + last + 1; i < out.rank(); ++i) access.inner *= out[i];
  return access;
}

}  // namespace

thread_local LoopCollector* open_loop = nullptr;

std::optional<Places> places_of(const LoopCall& call) {
  Places places{{}, Memory(*call.out), {}, *call.out};
  for (const DenseTensor* const input : call.inputs) {
    std::optional<Access> access = Access();
    if (input->numel() != call.out->numel()) access = access_of(input->dims(), call.out->dims());
    if (!access) return std::nullopt;
    places.reads.push_back({Memory(*input), *access});
    places.inputs.push_back(*input);
  }
  return places;
}

bool LoopCollector::fits(const Places& call, int64_t elements) const {
  if (calls.empty()) return true;
  if (elements != count || words() + 3 * call.reads.size() + 3 > kMostWords) return false;
  for (const Read& read : call.reads) {
    for (const Write& write : writes) {
      const bool same =
          read.access.length == 0 && read.memory.agrees_with(write.memory) && read.memory.dtype == write.memory.dtype;
      if (read.memory.meets(write.memory) && !same) return false;
    }
  }
  const auto apart = [&](const Memory& other) { return !call.out.meets(other) || call.out.agrees_with(other); };
  return std::all_of(writes.begin(), writes.end(), [&](const Write& w) { return apart(w.memory); }) &&
         std::all_of(reads.begin(), reads.end(), [&](const Read& read) {
           return apart(read.memory) && (read.access.length == 0 || !call.out.meets(read.memory));
         });
}

Value LoopCollector::value_of(const Read& read) {
  for (const Write& write : writes) {
    if (write.memory.data == read.memory.data && read.access.length == 0) return {true, write.call};
  }
  const auto same = [&](const Read& other) {
    return other.memory.data == read.memory.data && other.memory.dtype == read.memory.dtype &&
           other.access == read.access;
  };
  const auto found = std::find_if(reads.begin(), reads.end(), same);
  const size_t index = static_cast<size_t>(found - reads.begin());
  if (found == reads.end()) reads.push_back(read);
  return {false, index};
}

void LoopCollector::append(const LoopCall& what, Places places) {
  std::vector<Value> inputs;
  for (const Read& read : places.reads) inputs.push_back(value_of(read));
  const auto same = [&](const Write& write) { return write.memory.data == places.out.data; };
  const auto found = std::find_if(writes.begin(), writes.end(), same);
  const size_t number = calls.size();
  if (found == writes.end()) writes.push_back({places.out, number});
  else *found = {places.out, number};
  calls.push_back({what, std::move(places), std::move(inputs)});
}

}  // namespace shard::cuda::detail
