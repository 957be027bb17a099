#include "shard/core/attr.h"

namespace shard {

Attr::Attr() = default;
Attr::Attr(const Attr& other) = default;
Attr::Attr(Attr&& other) noexcept = default;
Attr& Attr::operator=(const Attr& other) = default;
Attr& Attr::operator=(Attr&& other) noexcept = default;
Attr::~Attr() = default;

std::vector<AttrRef> attr_refs(std::span<const Attr> attrs) {
  std::vector<AttrRef> refs;
  for (const Attr& attr : attrs) refs.push_back(std::visit([](const auto& value) { return AttrRef(&value); }, attr));
  return refs;
}

}  // namespace shard
