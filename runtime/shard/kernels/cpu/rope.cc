// The CPU kernels of rotary position embeddings (Su et al. 2021) and of their gradient. Attention
// itself is in attention.cc.
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/data_text.h"

namespace shard::cpu {
namespace {

/// The given sines or cosines, one row per position; empty where they are to be computed.
std::vector<double> table_of(const DenseTensor& table) {
  if (!table.defined()) return {};
  std::vector<double> values(static_cast<size_t>(table.numel()));
  visit_dtype(table.dtype(), [&]<class T>(TypeTag<T>) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<Compute<T>>(table.data<T>()[i]));
  });
  return values;
}

/// The angles of all positions. A table [positions, width] or [1, positions, 1, width] may begin at
/// a later position on this rank; the table of sines is in slot `slot`.
class Angles {
 public:
  Angles(const OpContext& ctx, size_t slot, const DenseTensor& sin, const DenseTensor& cos, int64_t width,
         bool adjacent, double base)
      : width_(width), adjacent_(adjacent), base_(base), sin_(table_of(sin)), cos_(table_of(cos)),
        given_(sin.defined()) {
    if (!given_) return;
    const Box box = ctx.input_box(slot, sin);
    const int along = box.global.rank() == 2 ? 0 : 1;
    begin_ = box.begin[along];
    positions_ = box.global[along];
  }

  bool given() const { return given_; }
  int64_t positions() const { return positions_; }

  /// The sine and cosine for each of `width` elements at a position.
  template <class C>
  void at(int64_t position, std::vector<C>& sin, std::vector<C>& cos) const {
    for (int64_t d = 0; d < width_; ++d) {
      const auto i = static_cast<size_t>(d);
      if (given_) {
        const auto from = static_cast<size_t>((position - begin_) * width_ + d);
        sin[i] = static_cast<C>(sin_[from]);
        cos[i] = static_cast<C>(cos_[from]);
        continue;
      }
      const int64_t pair = adjacent_ ? d / 2 : d % (width_ / 2);
      const double angle = static_cast<double>(position) *
                           std::pow(base_, -2.0 * static_cast<double>(pair) / static_cast<double>(width_));
      sin[i] = static_cast<C>(std::sin(angle));
      cos[i] = static_cast<C>(std::cos(angle));
    }
  }

 private:
  int64_t width_;
  bool adjacent_;
  double base_;
  std::vector<double> sin_, cos_;
  bool given_;
  int64_t begin_ = 0, positions_ = 0;
};

/// Rotates each pair of a head: neighbours, or an element and the one half a head further. The
/// backward rotation is by the transposed matrix. That is the rotation by the negative angle if
/// both elements of a pair have one angle; a table may give them different ones.
template <class T, class C>
void rotate_head(const T* x, T* out, int64_t width, bool adjacent, bool back, const std::vector<C>& sin,
                 const std::vector<C>& cos) {
  const int64_t step = adjacent ? 1 : width / 2;
  for (int64_t pair = 0; pair < width / 2; ++pair) {
    const int64_t i = adjacent ? 2 * pair : pair, j = i + step;
    const C a = static_cast<C>(x[i]), b = static_cast<C>(x[j]);
    const C first = back ? -sin[static_cast<size_t>(j)] : sin[static_cast<size_t>(i)];
    const C second = back ? -sin[static_cast<size_t>(i)] : sin[static_cast<size_t>(j)];
    out[i] = T(a * cos[static_cast<size_t>(i)] - b * first);
    out[j] = T(b * cos[static_cast<size_t>(j)] + a * second);
  }
}

/// `ids` is input `input` of the op.
void check_positions(const OpContext& ctx, size_t input, const DenseTensor& ids, int64_t positions) {
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    if (id >= 0 && id < positions) continue;
    fail_check(ErrorCode::out_of_range, "{}",
               position_outside_text(ctx.op, ArgumentPlace(ctx, input, ids), i, id, positions));
  }
}

/// One call, forward or backward: the rotated tensors, the first in slot `slot`, and the angles.
struct Rotation {
  std::pair<const DenseTensor*, DenseTensor*> tensors[3];
  size_t slot;
  const DenseTensor* position_ids;
  bool adjacent, time_major, back;
};

template <class T>
void rotate(const OpContext& ctx, const Rotation& r, const Angles& angles) {
  using C = Compute<T>;
  const DenseTensor &q = *r.tensors[0].first, &ids = *r.position_ids;
  const int along = r.time_major ? 0 : 1;
  const int64_t width = q.dims()[3], sequence = q.dims()[along], inner = q.dims()[1],
                first_position = ctx.input_box(r.slot, q).begin[along];
  if (ids.defined() && angles.given()) check_positions(ctx, r.back ? 2 : 5, ids, angles.positions());
  parallel_for(q.dims()[0] * inner, 16 * width * q.dims()[2], [&](int64_t begin, int64_t end) {
    std::vector<C> sines(static_cast<size_t>(width)), cosines(sines);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t s = r.time_major ? row / inner : row % inner, b = r.time_major ? row % inner : row / inner;
      angles.at(ids.defined() ? ids.data<int64_t>()[b * sequence + s] : first_position + s, sines, cosines);
      for (const auto& [x, out] : r.tensors) {
        if (!x->defined()) continue;
        const int64_t heads = x->dims()[2];
        for (int64_t head = row * heads; head < (row + 1) * heads; ++head) {
          rotate_head(x->template data<T>() + head * width, out->template data<T>() + head * width, width, r.adjacent,
                      r.back, sines, cosines);
        }
      }
    }
  });
}

template <class T>
void rope(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
          const DenseTensor& sin, const DenseTensor& cos, const DenseTensor& position_ids, bool use_neox_rotary_style,
          bool time_major, float rotary_emb_base, DenseTensor& out_q, DenseTensor& out_k, DenseTensor& out_v) {
  const Angles angles(ctx, 3, sin, cos, q.dims()[3], use_neox_rotary_style, static_cast<double>(rotary_emb_base));
  rotate<T>(ctx,
            {{{&q, &out_q}, {&k, &out_k}, {&v, &out_v}}, 0, &position_ids, use_neox_rotary_style, time_major, false},
            angles);
}

template <class T>
void rope_grad(const OpContext& ctx, const DenseTensor& sin, const DenseTensor& cos, const DenseTensor& position_ids,
               const DenseTensor& out_q_grad, const DenseTensor& out_k_grad, const DenseTensor& out_v_grad,
               bool use_neox_rotary_style, bool time_major, float rotary_emb_base, DenseTensor& q_grad,
               DenseTensor& k_grad, DenseTensor& v_grad) {
  const Angles angles(ctx, 0, sin, cos, out_q_grad.dims()[3], use_neox_rotary_style,
                      static_cast<double>(rotary_emb_base));
  rotate<T>(ctx,
            {{{&out_q_grad, &q_grad}, {&out_k_grad, &k_grad}, {&out_v_grad, &v_grad}},
             3,
             &position_ids,
             use_neox_rotary_style,
             time_major,
             true},
            angles);
}

}  // namespace

void register_rope() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("fused_rotary_position_embedding", kBackend, dtype_of<T>, &rope<T>);
    register_kernel("fused_rotary_position_embedding_grad", kBackend, dtype_of<T>, &rope_grad<T>);
  });
}

}  // namespace shard::cpu
