#include "lower/masks.h"

#include <set>
#include <string>

namespace shardgen {
namespace {

constexpr std::string_view kMask = "wanted";

std::vector<CallArg> all_arguments(const Signature& signature) {
  std::vector<CallArg> args;
  for (const ArgRef arg : signature.args) args.push_back({CallArg::Kind::name, name_of(signature, arg), {}, ""});
  return args;
}

void add_mask(Signature& signature) {
  Attr mask;
  mask.name.text = kMask;
  mask.type = AttrType::int64;
  mask.default_value = Literal{int64_t{-1}, "-1"};
  signature.args.push_back({false, static_cast<int>(signature.attrs.size())});
  signature.attrs.push_back(std::move(mask));
}

}  // namespace

bool takes_masks(const Runtime& runtime) { return runtime.autograd && runtime.symbols.contains("GradMask"); }

void add_masks(std::vector<Family>& families) {
  std::set<std::string> masked;
  for (Family& family : families) {
    for (Op& op : family.ops) {
      if (!op.extension.optional_outputs.value_or(false) || !op.kernel) continue;
      masked.insert(op.name.text);
      // Without a list, a kernel gets all arguments of the op.
      if (!op.kernel->param) op.kernel->param = all_arguments(op.signature);
      add_mask(op.signature);
    }
  }
  for (Family& family : families) {
    for (Op& op : family.ops) {
      if (op.forward && masked.contains(op.forward->name.text)) add_mask(op.forward->signature);
    }
  }
}

int mask_of(const Op& op) {
  return op.extension.optional_outputs.value_or(false) ? find_attr(op.signature, kMask) : -1;
}

bool is_masked(const Op& op, int output) { return mask_of(op) >= 0 && !op.signature.outputs[output].list; }

}  // namespace shardgen
