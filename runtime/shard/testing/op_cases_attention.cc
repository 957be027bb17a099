// Cases of the ops of attention.yaml and of their gradients. tests/conformance/reference_attention.py reads their
// attributes from their names.
#include "shard/ops/attention.h"
#include "shard/ops/creation.h"
#include "shard/ops/math.h"
#include "shard/ops/shape.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

bool has(const std::string& name, const char* word) { return name.find(word) != std::string::npos; }

constexpr int64_t kQueries = 5, kKeys = 4;  // of all packed sequences

/// Three sequences of `rows` rows, of which the second is empty: the first has `first` [1] of them.
Tensor offsets(const Tensor& first, int64_t rows) {
  return concat({full_like(first, 0), first, first, full_like(first, rows)}, 0);
}

/// The heads of q, of k and v, for a call of either op.
struct Heads {
  int64_t q, kv;
};
Heads heads_of(const std::string& name, Draw& draw) {
  if (has(name, "groups of two")) return {4 * draw.size_above_0(), 2};
  if (has(name, "one head")) return {3 * draw.size_above_0(), 1};
  const int64_t heads = draw.size_above_0();
  return {heads, heads};
}

/// Arguments of the gradient after those of the forward op: out, the logarithms of sums, the key and out_grad. Scores
/// are a few units below the logarithms: weights below 1.
void add_results(std::vector<CaseInput>& inputs, const CaseInput& out, const Dims& sums) {
  inputs[0] = inputs[0].between(-1, 1);
  inputs[1] = inputs[1].between(-1, 1);
  inputs.push_back(out);
  inputs.push_back({sums, out.dtype, 5, 8});
  inputs.push_back({{2}, DType::int64, 1, 9});
  inputs.push_back(out);
}

const char* const kSums = "sums over queries are rounded in each shard";

/// A mask last, so that the other arguments have fixed places.
void add_unpadded(OpCases& cases, const std::string& name) {
  const bool causal = has(name, "causal"), mask = has(name, "mask");
  const float dropout = has(name, "dropout") ? 0.5f : 0;
  const auto make = [=](bool gradient, const std::function<Tensors(Tensors&)>& run) {
    return [=](Draw& draw) {
      const Heads heads = heads_of(name, draw);
      const int64_t width = draw.size_above_0();
      const CaseInput q = draw.input({kQueries, heads.q, width}), k = draw.input({kKeys, heads.kv, width}),
                      first{{1}, DType::int32, 0, kQueries}, first_key{{1}, DType::int32, 0, kKeys};
      std::vector<CaseInput> inputs = {q, k, k, first, first_key};
      if (gradient) add_results(inputs, q, {3, heads.q, kQueries});
      else inputs.push_back({{2}, DType::int64, 1, 9});
      if (mask) inputs.push_back(draw.input({3, 1, kQueries, kKeys}).between(-2, 2));
      return CaseCall{inputs, run};
    };
  };
  const auto optional_last = [=](const Tensors& t) { return mask ? t.back() : Tensor(); };
  cases.push_back({"flash_attn_unpadded", name, kFloats, make(false, [=](Tensors& t) {
                     return tensors_of(flash_attn_unpadded_intermediate(
                         t[0], t[1], t[2], offsets(t[3], kQueries), offsets(t[4], kKeys), t[5], optional_last(t),
                         kQueries, kKeys, 0.5f, dropout, causal, /*return_softmax=*/true));
                   })});
  cases.push_back({"flash_attn_unpadded_grad", name, kFloats,
                   make(true,
                        [=](Tensors& t) {
                          return tensors_of(flash_attn_unpadded_grad(
                              t[0], t[1], t[2], offsets(t[3], kQueries), offsets(t[4], kKeys), t[5], t[6], t[7],
                              optional_last(t), t[8], kQueries, kKeys, 0.5f, dropout, causal));
                        }),
                   64, kSums});
}

/// memory_efficient_attention: of the optional arguments a case has, in this order, the bias or the offsets, the
/// diagonals and the lengths.
struct Selected {
  explicit Selected(const std::string& name)
      : causal(has(name, "causal")), bias(has(name, "bias")), packed(has(name, "packed")),
        diagonals(has(name, "diagonals")), lengths(has(name, "lengths")) {}
  bool causal, bias, packed, diagonals, lengths;

  Dims bias_dims(const std::string& name, int64_t batch, int64_t heads, int64_t queries, int64_t keys) const {
    if (has(name, "two dims")) return {queries, keys};
    if (has(name, "bias of heads")) return {1, heads, 1, keys};
    return {batch, 1, queries, keys};
  }
  /// The optional arguments from t[3] on.
  std::array<Tensor, 5> optional(const Tensors& t) const {
    std::array<Tensor, 5> found;
    size_t next = 3;
    if (bias) found[0] = t[next++];
    if (packed) {
      const Tensor &first = t[next], &first_key = t[next + 1];
      next += 2;
      found[1] = offsets(first, kQueries);
      found[2] = offsets(first_key, kKeys);
      if (diagonals) found[3] = concat({first, first, scale(first, -1)}, 0);
      // All keys of the first sequence, and none of the last.
      if (lengths) found[4] = concat({first_key, full_like(first_key, 0), full_like(first_key, 0)}, 0);
      return found;
    }
    if (diagonals) found[3] = t[next++];
    if (lengths) found[4] = t[next++];
    return found;
  }
};

void add_efficient(OpCases& cases, const std::string& name) {
  const Selected select(name);
  const double dropout = has(name, "dropout") ? 0.5 : 0;
  const float scale = has(name, "half") ? 0.5f : -1;
  const auto make = [=](bool gradient, const std::function<Tensors(Tensors&)>& run) {
    return [=](Draw& draw) {
      const int64_t b = select.packed ? 1 : draw.size(), s = select.packed ? kQueries : draw.size(),
                    t = select.packed ? kKeys : draw.size();
      const Heads heads = heads_of(name, draw);
      const int64_t width = draw.size_above_0();
      const CaseInput q = draw.input({b, s, heads.q, width}), k = draw.input({b, t, heads.kv, width});
      std::vector<CaseInput> inputs = {q, k, k};
      if (select.bias) inputs.push_back(draw.input(select.bias_dims(name, b, heads.q, s, t)).between(-2, 2));
      if (select.packed) {
        inputs.push_back({{1}, DType::int32, 0, kQueries});
        inputs.push_back({{1}, DType::int32, 0, kKeys});
      } else {
        if (select.diagonals) inputs.push_back({{b}, DType::int32, -2, 2});
        if (select.lengths) inputs.push_back({{b}, DType::int32, 0, t});
      }
      if (gradient) add_results(inputs, q, {select.packed ? 3 : b, heads.q, s});
      return CaseCall{inputs, run};
    };
  };
  if (dropout == 0) {  // with dropout the generator decides
    cases.push_back({"memory_efficient_attention", name, kFloats,
                     make(false,
                          [=](Tensors& t) {
                            const auto o = select.optional(t);
                            return tensors_of(memory_efficient_attention(t[0], t[1], t[2], o[0], o[1], o[2], o[3], o[4],
                                                                         kQueries, kKeys, select.causal, 0, scale,
                                                                         false));
                          }),
                     16, "sums of parts of the keys are combined in another order"});
  }
  cases.push_back({"memory_efficient_attention_grad", name, kFloats,
                   make(true,
                        [=](Tensors& t) {
                          const auto o = select.optional(t);
                          const size_t n = t.size();
                          Tensors grads = tensors_of(memory_efficient_attention_grad(
                              t[0], t[1], t[2], o[0], o[1], o[2], o[3], o[4], t[n - 4], t[n - 3], t[n - 2], t[n - 1],
                              kQueries, kKeys, select.causal, dropout, scale, false));
                          if (!select.bias) grads.pop_back();
                          return grads;
                        }),
                   64, kSums});
}

}  // namespace

void add_attention_cases(OpCases& cases) {
  for (const char* name :
       {"plain", "causal with mask", "heads in groups of two, causal", "one head of k and v, mask", "dropout"})
    add_unpadded(cases, name);
  for (const char* name :
       {"plain", "causal, half", "causal with bias", "bias of two dims", "bias of heads, one head of k and v",
        "heads in groups of two, causal, diagonals", "lengths", "causal, diagonals, lengths", "packed",
        "packed, causal, heads in groups of two", "packed, causal, diagonals, lengths", "dropout"})
    add_efficient(cases, name);
}

}  // namespace shard::testing
