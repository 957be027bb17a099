// CPU kernels of activations with at most two numbers, and of their gradients. relu, sigmoid, silu,
// which swish is too, and gelu are in unary.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/activation.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

// Piecewise linear functions. NaN passes through each of them. In gradients g is the gradient of
// the output, and p has the numbers of the forward op.

struct LeakyRelu {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return select(x > V(0), x, p.first * x);
  }
};
struct LeakyReluGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return select(x < V(0), p.first * g, g);
  }
};

/// x between two bounds; a comparison with NaN is false.
template <class V>
HWY_INLINE V limited(V x, V low, V high) {
  const V raised = select(x < low, low, x);
  return select(raised > high, high, raised);
}
/// g where x is inside the bounds, else 0.
template <class V>
HWY_INLINE V inside(V x, V g, V low, V high) {
  return select(hn::And(x > low, x < high), g, V(0));
}

struct Relu6 {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return limited(x, V(0), V(6));
  }
};
struct Relu6Grad {
  template <class V>
  static HWY_INLINE V apply(V out, V g) {
    return inside(out, g, V(0), V(6));
  }
};
struct Hardtanh {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return limited(x, p.first, p.second);
  }
};
struct HardtanhGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return inside(x, g, p.first, p.second);
  }
};
struct Hardsigmoid {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return limited(p.first * x + p.second, V(0), V(1));
  }
};
struct HardsigmoidGrad {
  template <class V>
  static HWY_INLINE V apply(V out, V g, const Numbers<V>& p) {
    return inside(out, p.first * g, V(0), V(1));
  }
};
struct Hardshrink {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return select(abs(x) <= p.first, V(0), x);
  }
};
struct HardshrinkGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return select(abs(x) > p.first, g, V(0));  // 0 for NaN
  }
};
struct Softshrink {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return select(abs(x) <= p.first, V(0), x - copysign(p.first, x));
  }
};
struct ThresholdedRelu {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return select(x <= p.first, V(0), x);
  }
};
struct ThresholdedReluGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return select(x > p.first, g, V(0));  // 0 for NaN
  }
};
/// x * relu6(x + 3) / 6.
struct Hardswish {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return select(x <= V(-3), V(0), x * (limited(x + 3.0, V(0), V(6)) / 6.0));
  }
};
struct HardswishGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    const V middle = g * (2.0 * x + 3.0) / 6.0;
    return select(x <= V(-3), V(0), select(x >= V(3), g, middle));
  }
};

// Functions with exponentials.

struct Elu {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return select(x < V(0), p.first * expm1(x), x);
  }
};
/// Of x: the output, from which Paddle computes it, has lost the last bits of small slopes.
struct EluGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return select(x > V(0), g, g * (p.first * exp(x)));
  }
};
struct Celu {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return select(x < V(0), p.first * expm1(x / p.first), x);
  }
};
struct CeluGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return select(x > V(0), g, g * exp(x / p.first));
  }
};
/// The numbers are scale and alpha.
struct Selu {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return p.first * select(x < V(0), p.second * expm1(x), x);
  }
};
struct SeluGrad {
  template <class V>
  static HWY_INLINE V apply(V out, V g, const Numbers<V>& p) {
    return g * select(out > V(0), p.first, out + p.first * p.second);
  }
};

/// exp(-|x|), which neither overflows nor cancels in what follows.
template <class V>
HWY_INLINE V decay(V x) {
  return exp(-abs(x));
}
/// log(1 + exp(x)).
template <class V>
HWY_INLINE V softplus_of(V x) {
  return select(x > V(0), x, V(0)) + log1p(decay(x));
}
template <class V>
HWY_INLINE V vector_sigmoid(V x) {
  const V e = decay(x);
  return select(x < V(0), e, V(1)) / (1.0 + e);
}

/// The numbers are beta and the threshold above which the function is x itself.
struct Softplus {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    const V scaled = p.first * x;
    return select(scaled > p.second, x, softplus_of(scaled) / p.first);
  }
};
struct SoftplusGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    const V scaled = p.first * x;
    return select(scaled > p.second, g, g * vector_sigmoid(scaled));
  }
};
struct Logsigmoid {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return -softplus_of(-x);
  }
};
struct LogsigmoidGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    return g * vector_sigmoid(-x);
  }
};
/// tanh(log(1 + e)) for e = exp(x) is (2 e + e^2) / (2 e + e^2 + 2), which is 1 above 20.
template <class V>
HWY_INLINE V tanh_of_softplus(V x) {
  const V e = exp(select(x > V(20), V(20), x));
  const V n = e * (e + 2.0);
  return n / (n + 2.0);
}
/// The number is the threshold above which softplus is x itself.
struct Mish {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    const V near = select(x < V(-1000), V(-1000), x);  // it is 0 below, where x may be infinite
    return near * select(x > p.first, tanh(x), tanh_of_softplus(near));
  }
};
struct MishGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    const V near = limited(x, V(-1000), V(1000));
    const V t = select(x > p.first, tanh(near), tanh_of_softplus(near));
    const V slope = select(x > p.first, V(1), vector_sigmoid(near));
    return g * (t + near * ((1.0 - t) * (1.0 + t)) * slope);
  }
};
struct SwishGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    const V near = limited(x, V(-1000), V(1000));
    const V s = vector_sigmoid(near);
    return g * (s * (1.0 + near * vector_sigmoid(-near)));
  }
};
struct TanhShrink {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return x - tanh(x);
  }
};
struct TanhShrinkGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    const V t = tanh(x);
    return g * (t * t);
  }
};
/// The numbers are the factors of x and of the result.
struct Stanh {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    return p.second * tanh(p.first * x);
  }
};
struct StanhGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    const V t = tanh(p.first * x);
    return g * (p.first * p.second * ((1.0 - t) * (1.0 + t)));
  }
};
struct Softsign {
  template <class V>
  static HWY_INLINE V apply(V x) {
    const V size = abs(x);
    return select(size > V(1e30), copysign(V(1), x), x / (1.0 + size));
  }
};
struct SoftsignGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    const V root = 1.0 / (1.0 + abs(x));
    return g * (root * root);
  }
};

void register_activation_for_target() {
  add_unary<LeakyRelu, float>("leaky_relu");
  add_binary<LeakyReluGrad, float>("leaky_relu_grad");
  add_unary<Relu6>("relu6");
  add_binary<Relu6Grad>("relu6_grad");
  add_unary<Hardtanh, float, float>("hardtanh");
  add_binary<HardtanhGrad, float, float>("hardtanh_grad");
  add_unary<Hardsigmoid, float, float>("hardsigmoid");
  add_binary<HardsigmoidGrad, float, float>("hardsigmoid_grad");
  add_unary<Hardshrink, float>("hard_shrink");
  add_binary<HardshrinkGrad, float>("hard_shrink_grad");
  add_unary<Softshrink, float>("softshrink");
  add_binary<HardshrinkGrad, float>("softshrink_grad");
  add_unary<ThresholdedRelu, float>("thresholded_relu");
  add_binary<ThresholdedReluGrad, float>("thresholded_relu_grad");
  add_unary<Hardswish>("hardswish");
  add_binary<HardswishGrad>("hardswish_grad");
  add_unary<Elu, float>("elu");
  add_binary<EluGrad, float>("elu_grad");
  add_unary<Celu, float>("celu");
  add_binary<CeluGrad, float>("celu_grad");
  add_unary<Selu, float, float>("selu");
  add_binary<SeluGrad, float, float>("selu_grad");
  add_unary<Softplus, float, float>("softplus");
  add_binary<SoftplusGrad, float, float>("softplus_grad");
  add_unary<Logsigmoid>("logsigmoid");
  add_binary<LogsigmoidGrad>("logsigmoid_grad");
  add_unary<Mish, float>("mish");
  add_binary<MishGrad, float>("mish_grad");
  add_binary<SwishGrad>("swish_grad");
  add_unary<TanhShrink>("tanh_shrink");
  add_binary<TanhShrinkGrad>("tanh_shrink_grad");
  add_unary<Stanh, float, float>("stanh");
  add_binary<StanhGrad, float, float>("stanh_grad");
  add_unary<Softsign>("softsign");
  add_binary<SoftsignGrad>("softsign_grad");
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_activation_for_target);
void register_activation() { HWY_DYNAMIC_DISPATCH(register_activation_for_target)(); }
}  // namespace shard::cpu
#endif
