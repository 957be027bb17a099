// Kernels of attention and rotary positions against plain references, whole and in shards.
#include <tbb/global_control.h>

#include <algorithm>

#include "kernels/kernel_testing.h"
#include "shard/core/random.h"

namespace shard::testing::attention_test {
namespace {

using FlashAttn = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                       const DenseTensor&, float, bool, bool, bool, const std::string&, RandomKey, DenseTensor&,
                       DenseTensor&, DenseTensor&, DenseTensor&);

struct Shape {
  int64_t batch, queries, keys, heads, kv_heads, width, value_width;
};

struct Result {
  std::vector<double> out, softmax, lse;
};

/// By the definition, in double.
Result reference(const Shape& s, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                 const DenseTensor& mask, bool causal) {
  const std::vector<double> qs = values(q), ks = values(k), vs = values(v),
                            ms = mask.defined() ? values(mask) : std::vector<double>();
  Result result{std::vector<double>(size_t(s.batch * s.queries * s.heads * s.value_width)), {}, {}};
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) {
        std::vector<double> scores(size_t(s.keys), -INFINITY);
        const int64_t kv = h / (s.heads / s.kv_heads);
        for (int64_t j = 0; j < s.keys; ++j) {
          if (causal && j > i + s.keys - s.queries) continue;
          double dot = 0;
          for (int64_t d = 0; d < s.width; ++d) {
            dot += qs[size_t(((b * s.queries + i) * s.heads + h) * s.width + d)] *
                   ks[size_t(((b * s.keys + j) * s.kv_heads + kv) * s.width + d)];
          }
          scores[size_t(j)] = dot / std::sqrt(static_cast<double>(s.width));
          if (mask.defined())
            scores[size_t(j)] += ms[broadcast_index({s.batch, s.heads, s.queries, s.keys}, mask.dims(),
                                                    ((b * s.heads + h) * s.queries + i) * s.keys + j)];
        }
        const double largest = s.keys == 0 ? -INFINITY : *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (double score : scores) total += largest == -INFINITY ? 0 : std::exp(score - largest);
        result.lse.push_back(largest + std::log(total));
        for (int64_t j = 0; j < s.keys; ++j) {
          const double weight = total == 0 ? 0 : std::exp(scores[size_t(j)] - largest) / total;
          result.softmax.push_back(weight);
          for (int64_t d = 0; d < s.value_width; ++d) {
            result.out[size_t(((b * s.queries + i) * s.heads + h) * s.value_width + d)] +=
                weight * vs[size_t(((b * s.keys + j) * s.kv_heads + kv) * s.value_width + d)];
          }
        }
      }
    }
  }
  return result;
}

/// Close in units of the largest element.
void check_near(const DenseTensor& got, const std::vector<double>& expected, double roundings) {
  const std::vector<double> actual = values(got);
  REQUIRE(actual.size() == expected.size());
  double largest = 1;
  for (double value : expected) largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i] || std::abs(actual[i] - expected[i]) <= roundings * rounding(got.dtype()) * largest)
      continue;
    FAIL("element " << i << " of " << to_string(got.meta()) << ": " << actual[i] << ", expected " << expected[i]);
  }
}

struct Outputs {
  Outputs(const Shape& s, DType dtype, bool with_softmax)
      : out(uninitialized({s.batch, s.queries, s.heads, s.value_width}, dtype)),
        softmax(uninitialized(with_softmax ? Dims{s.batch, s.heads, s.queries, s.keys} : Dims{0}, dtype)),
        lse(uninitialized({s.batch, s.heads, s.queries}, dtype == DType::float64 ? dtype : DType::float32)),
        seed_offset(uninitialized({2}, DType::int64)) {}
  DenseTensor out, softmax, lse, seed_offset;
};

TEST_CASE("flash_attn agrees with the definition: heads in groups, causal, masks, several blocks, no keys") {
  const Shape shapes[] = {{2, 3, 5, 2, 2, 4, 4},     {1, 40, 150, 4, 2, 8, 6}, {2, 9, 4, 3, 1, 2, 2},
                          {1, 70, 70, 1, 1, 16, 16}, {1, 2, 0, 1, 1, 4, 4},    {2, 0, 3, 1, 1, 4, 4}};
  for (const DType dtype : kFloatDTypes) {
    for (const Shape& s : shapes) {
      const DenseTensor q = arbitrary({s.batch, s.queries, s.heads, s.width}, dtype, 1),
                        k = arbitrary({s.batch, s.keys, s.kv_heads, s.width}, dtype, 2);
      const DenseTensor v = arbitrary({s.batch, s.keys, s.kv_heads, s.value_width}, dtype, 3);
      for (const bool causal : {false, true}) {
        for (const Dims& mask_dims : {Dims{}, Dims{s.batch, 1, s.queries, s.keys}, Dims{1, s.heads, 1, s.keys}}) {
          INFO(to_string(q.meta()) << to_string(k.meta()) << " causal " << causal << " mask " << to_string(mask_dims));
          const DenseTensor mask = mask_dims.rank() == 0 ? DenseTensor() : arbitrary(mask_dims, dtype, 4);
          Outputs o(s, dtype, true);
          call<FlashAttn>("flash_attn", dtype, q, k, v, DenseTensor(), mask, 0.0f, causal, true, false, "",
                          RandomKey{1, 2}, o.out, o.softmax, o.lse, o.seed_offset);
          const Result expected = reference(s, q, k, v, mask, causal);
          check_near(o.out, expected.out, 30);
          check_near(o.softmax, expected.softmax, 30);
          check_near(o.lse, expected.lse, 30);
          CHECK(values(o.seed_offset) == std::vector<double>{0, 0});
        }
      }
    }
  }
}

/// Rows, heads or batches [first, first + n) of dim d of a tensor.
DenseTensor piece_of(const DenseTensor& x, int d, int64_t first, int64_t n) {
  Dims dims = x.dims();
  dims[d] = n;
  const int64_t inner = x.dims().numel(d + 1, x.dims().rank()), size = x.dims()[d];
  const std::vector<double> all = values(x);
  std::vector<double> some;
  for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
    const int64_t at = i / inner % size;
    if (at >= first && at < first + n) some.push_back(all[size_t(i)]);
  }
  return tensor(some, dims, x.dtype());
}

TEST_CASE("a shard of the queries, heads or batches has the bits of the whole, with dropout too") {
  const DType dtype = GENERATE(DType::float32, DType::bfloat16, DType::float64);
  const Shape s{2, 20, 80, 4, 2, 8, 8};
  const DenseTensor q = arbitrary({2, 20, 4, 8}, dtype, 1);
  const DenseTensor k = arbitrary({2, 80, 2, 8}, dtype, 2), v = arbitrary({2, 80, 2, 8}, dtype, 3);
  const DenseTensor seed = tensor({7, 9}, {2}, DType::int64);
  Outputs whole(s, dtype, false);
  call<FlashAttn>("flash_attn", dtype, q, k, v, seed, DenseTensor(), 0.5f, true, false, false, "", RandomKey{},
                  whole.out, whole.softmax, whole.lse, whole.seed_offset);
  CHECK(values(whole.seed_offset) == std::vector<double>{7, 9});
  Outputs undropped(s, dtype, false);
  call<FlashAttn>("flash_attn", dtype, q, k, v, seed, DenseTensor(), 0.5f, true, false, true, "", RandomKey{},
                  undropped.out, undropped.softmax, undropped.lse, undropped.seed_offset);
  CHECK(values(undropped.out) != values(whole.out));
  CHECK(values(undropped.lse) == values(whole.lse));
  struct Cut {
    int dim;
    int64_t first, n;
    bool keep_kv;  // heads of k and v are not sharded, so the kernel finds those of its queries in them
  };
  for (const Cut& cut : {Cut{0, 1, 1, false}, Cut{1, 5, 11, false}, Cut{2, 2, 2, false}, Cut{2, 3, 1, true}}) {
    INFO("dim " << cut.dim << " from " << cut.first);
    const DenseTensor shard = piece_of(q, cut.dim, cut.first, cut.n);
    DenseTensor kp = k, vp = v;
    Box q_box{q.dims(), {0, 0, 0, 0}}, k_box{k.dims(), {0, 0, 0, 0}};
    q_box.begin[cut.dim] = cut.first;
    if (cut.dim == 0 || (cut.dim == 2 && !cut.keep_kv)) {
      const int64_t group = cut.dim == 2 ? 2 : 1;
      k_box.begin[cut.dim] = cut.first / group;
      kp = piece_of(k, cut.dim, cut.first / group, cut.n / group);
      vp = piece_of(v, cut.dim, cut.first / group, cut.n / group);
    }
    const Box inputs[] = {q_box, k_box, k_box, {{2}, {0}}, {}};
    const LocalCall local{inputs, {}, nullptr, {}};
    const Dims& d = shard.dims();
    Outputs part({d[0], d[1], 80, d[2], kp.dims()[2], 8, 8}, dtype, false);
    call_in<FlashAttn>({"flash_attn", &local}, "flash_attn", dtype, shard, kp, vp, seed, DenseTensor(), 0.5f, true,
                       false, false, "", RandomKey{}, part.out, part.softmax, part.lse, part.seed_offset);
    CHECK(values(part.out) == values(piece_of(whole.out, cut.dim, cut.first, cut.n)));
  }
}

using FlashAttnGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                           const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                           const DenseTensor&, float, bool, bool, DenseTensor&, DenseTensor&, DenseTensor&);

TEST_CASE("gradients of few heads have the same bits on one thread and on several, which divide heads",
          "[slow_in_asan]") {
  const Shape s{1, 300, 700, 2, 1, 24, 20};
  const DenseTensor seed = tensor({7, 9}, {2}, DType::int64), none;
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor q = arbitrary({1, 300, 2, 24}, dtype, 1), k = arbitrary({1, 700, 1, 24}, dtype, 2),
                      v = arbitrary({1, 700, 1, 20}, dtype, 3), out_grad = arbitrary({1, 300, 2, 20}, dtype, 4);
    for (const bool causal : {false, true}) {
      std::vector<std::vector<double>> all[2];
      for (const size_t threads : {1, 4}) {
        const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
        Outputs o(s, dtype, false);
        call<FlashAttn>("flash_attn", dtype, q, k, v, seed, none, 0.25f, causal, false, false, "", RandomKey{}, o.out,
                        o.softmax, o.lse, o.seed_offset);
        DenseTensor grads[] = {uninitialized(q.dims(), dtype), uninitialized(k.dims(), dtype),
                               uninitialized(v.dims(), dtype)};
        call<FlashAttnGrad>("flash_attn_grad", dtype, q, k, v, o.out, o.lse, o.seed_offset, none, out_grad, 0.25f,
                            causal, false, grads[0], grads[1], grads[2]);
        all[threads == 4].push_back(values(o.out));
        for (const DenseTensor& each : grads) all[threads == 4].push_back(values(each));
      }
      CHECK(all[0] == all[1]);
    }
  }
}

using Rope = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                  const DenseTensor&, const DenseTensor&, bool, bool, float, DenseTensor&, DenseTensor&, DenseTensor&);

/// x [1, s, 1, 4] with its two pairs rotated by position and position / 10.
std::vector<double> turned(const std::vector<double>& x, const std::vector<int64_t>& positions, bool adjacent) {
  std::vector<double> result(x.size());
  for (size_t s = 0; s < positions.size(); ++s) {
    for (size_t pair = 0; pair < 2; ++pair) {
      const double angle = static_cast<double>(positions[s]) * (pair == 0 ? 1 : 0.1);
      const size_t i = 4 * s + (adjacent ? 2 * pair : pair), j = i + (adjacent ? 1 : 2);
      result[i] = x[i] * std::cos(angle) - x[j] * std::sin(angle);
      result[j] = x[j] * std::cos(angle) + x[i] * std::sin(angle);
    }
  }
  return result;
}

TEST_CASE("rotary positions turn pairs by their place, by an id, or by given sines") {
  const DenseTensor none;
  for (const DType dtype : kFloatDTypes) {
    for (const bool adjacent : {true, false}) {
      const DenseTensor q = arbitrary({1, 3, 1, 4}, dtype), ids = tensor({5, 0, 2}, {1, 3}, DType::int64);
      DenseTensor out = uninitialized({1, 3, 1, 4}, dtype), absent;
      const auto rotate = [&](const OpContext& ctx, const DenseTensor& sin, const DenseTensor& cos,
                              const DenseTensor& positions) {
        call_in<Rope>(ctx, "fused_rotary_position_embedding", dtype, q, none, none, sin, cos, positions, adjacent,
                      false, 100.0f, out, absent, absent);
        return out;
      };
      const DType wide = dtype == DType::float64 ? dtype : DType::float32;  // of the tables
      const OpContext plain{"fused_rotary_position_embedding"};
      check_near(rotate(plain, none, none, none), turned(values(q), {0, 1, 2}, adjacent), 4);
      check_near(rotate(plain, none, none, ids), turned(values(q), {5, 0, 2}, adjacent), 4);
      std::vector<double> sines, cosines;
      for (int64_t position = 0; position < 6; ++position) {
        for (int d = 0; d < 4; ++d) {
          const double angle = static_cast<double>(position) * ((adjacent ? d / 2 : d % 2) == 0 ? 1 : 0.1);
          sines.push_back(std::sin(angle));
          cosines.push_back(std::cos(angle));
        }
      }
      check_near(rotate(plain, tensor(sines, {6, 4}, wide), tensor(cosines, {6, 4}, wide), ids),
                 turned(values(q), {5, 0, 2}, adjacent), 4);
      // A later shard of the sequence, with its shard of a table.
      Box inputs[] = {{{1, 8, 1, 4}, {0, 3, 0, 0}}, {}, {}, {{1, 8, 1, 4}, {0, 3, 0, 0}},
                      {{1, 8, 1, 4}, {0, 3, 0, 0}}, {}};
      const LocalCall local{inputs, {}, nullptr, {}};
      const OpContext shards{"fused_rotary_position_embedding", &local};
      check_near(rotate(shards, none, none, none), turned(values(q), {3, 4, 5}, adjacent), 4);
      const std::vector<double> late_sines(sines.begin() + 12, sines.end()),
          late_cosines(cosines.begin() + 12, cosines.end());
      check_near(rotate(shards, tensor(late_sines, {1, 3, 1, 4}, wide), tensor(late_cosines, {1, 3, 1, 4}, wide), none),
                 turned(values(q), {3, 4, 5}, adjacent), 4);
    }
  }
  DenseTensor out = uninitialized({1, 1, 1, 2}, DType::float32), absent;
  const DenseTensor x = tensor({1, 2}, {1, 1, 1, 2}), table = tensor({0, 0}, {1, 2});
  CHECK_THROWS_WITH(call<Rope>("fused_rotary_position_embedding", DType::float32, x, none, none, table, table,
                               tensor({1}, {1, 1}, DType::int64), true, false, 10.0f, out, absent, absent),
                    Catch::Contains("position_ids has 1, but sin and cos have the positions 0 to 0"));
}

TEST_CASE("rotary positions turn all heads of q, k and v, also where the sequence comes first") {
  const DenseTensor none, q = arbitrary({3, 2, 2, 4}, DType::float64, 1),
                          k = arbitrary({3, 2, 1, 4}, DType::float64, 2);
  DenseTensor out_q = uninitialized({3, 2, 2, 4}, DType::float64), out_k = uninitialized({3, 2, 1, 4}, DType::float64),
              absent;
  const DenseTensor ids = tensor({0, 1, 2, 7, 8, 9}, {2, 3}, DType::int64);
  call<Rope>("fused_rotary_position_embedding", DType::float64, q, k, none, none, none, ids, true, true, 100.0f, out_q,
             out_k, absent);
  const std::vector<double> qs = values(q), ks = values(k), got_q = values(out_q), got_k = values(out_k);
  for (size_t s = 0; s < 3; ++s) {
    for (size_t b = 0; b < 2; ++b) {
      const int64_t position = static_cast<int64_t>(s + 7 * b);
      const size_t row = 2 * s + b;
      for (size_t h = 0; h < 2; ++h) {
        const std::vector<double> head(qs.begin() + long(8 * row + 4 * h), qs.begin() + long(8 * row + 4 * h + 4)),
            expected = turned(head, {position}, true);
        for (size_t d = 0; d < 4; ++d) CHECK(got_q[8 * row + 4 * h + d] == Approx(expected[d]).margin(1e-12));
      }
      const std::vector<double> head(ks.begin() + long(4 * row), ks.begin() + long(4 * row + 4)),
          expected = turned(head, {position}, true);
      for (size_t d = 0; d < 4; ++d) CHECK(got_k[4 * row + d] == Approx(expected[d]).margin(1e-12));
    }
  }
}

}  // namespace
}  // namespace shard::testing::attention_test
