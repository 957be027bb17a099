// CPU kernels of comparisons, and of logic on bits and truth values. Arithmetic on two tensors is
// in binary.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/logic.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/binary_row.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

struct Equal {
  template <class C>
  static bool apply(C a, C b) {
    return a == b;
  }
};
struct NotEqual {
  template <class C>
  static bool apply(C a, C b) {
    return a != b;
  }
};
struct Less {
  template <class C>
  static bool apply(C a, C b) {
    return a < b;
  }
};
struct LessEqual {
  template <class C>
  static bool apply(C a, C b) {
    return a <= b;
  }
};
struct Greater {
  template <class C>
  static bool apply(C a, C b) {
    return a > b;
  }
};
struct GreaterEqual {
  template <class C>
  static bool apply(C a, C b) {
    return a >= b;
  }
};

// & and | evaluate both sides; && and || would be branches.
struct And {
  template <class C>
  static bool apply(C a, C b) {
    return (a != C(0)) & (b != C(0));
  }
};
struct Or {
  template <class C>
  static bool apply(C a, C b) {
    return (a != C(0)) | (b != C(0));
  }
};
struct Xor {
  template <class C>
  static bool apply(C a, C b) {
    return (a != C(0)) != (b != C(0));
  }
};
struct Not {
  template <class C>
  static bool apply(C a) {
    return a == C(0);
  }
};

struct BitAnd {
  template <class C>
  static C apply(C a, C b) {
    return static_cast<C>(a & b);
  }
};
struct BitOr {
  template <class C>
  static C apply(C a, C b) {
    return static_cast<C>(a | b);
  }
};
struct BitXor {
  template <class C>
  static C apply(C a, C b) {
    return static_cast<C>(a ^ b);
  }
};
struct BitNot {
  template <class C>
  static C apply(C a) {
    return static_cast<C>(~a);
  }
};

template <class Op, class T, class R>
void unary(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  run_unary(
      [](const Row& row) {
        const T* from = static_cast<const T*>(row.in[0]);
        R* to = static_cast<R*>(row.out);
        for (int64_t i = 0, n = row.n; i < n; ++i)
          to[i] = Op::template apply<Compute<T>>(static_cast<Compute<T>>(from[i]));
      },
      x, out);
}

template <class Op>
void add_truth(const char* name) {
  for_types(AllTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, bool>); });
}

/// A bool has the bits of a byte that is 0 or 1.
template <class Op>
void add_bits(const char* name) {
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, T>); });
  register_kernel(name, kBackend, DType::boolean, &binary<Op, uint8_t, uint8_t>);
}

void register_logic_for_target() {
  add_truth<Equal>("equal");
  add_truth<NotEqual>("not_equal");
  add_truth<Less>("less_than");
  add_truth<LessEqual>("less_equal");
  add_truth<Greater>("greater_than");
  add_truth<GreaterEqual>("greater_equal");
  add_truth<And>("logical_and");
  add_truth<Or>("logical_or");
  add_truth<Xor>("logical_xor");
  for_types(AllTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("logical_not", kBackend, dtype_of<T>, &unary<Not, T, bool>); });
  add_bits<BitAnd>("bitwise_and");
  add_bits<BitOr>("bitwise_or");
  add_bits<BitXor>("bitwise_xor");
  for_types(IntTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("bitwise_not", kBackend, dtype_of<T>, &unary<BitNot, T, T>); });
  register_kernel("bitwise_not", kBackend, DType::boolean, &unary<Not, bool, bool>);
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_logic_for_target);
void register_logic() { HWY_DYNAMIC_DISPATCH(register_logic_for_target)(); }
}  // namespace shard::cpu
#endif
