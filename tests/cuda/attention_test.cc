// Attention on the device over several tiles, with all that changes what a query sees, against the CPU; errors of offsets and
// lengths; equal bits of equal calls.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cuda_case.h"
#include "shard/kernels/cuda/mma_check.h"

namespace attention_test {

using namespace shard;
using namespace shard::test;

namespace {

using In = const DenseTensor&;
using Out = DenseTensor&;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

DenseTensor moved(Device device, In x) { return x.defined() ? copy_to(device, x) : x; }

DenseTensor ints(const std::vector<int64_t>& values, DType dtype) {
  const DenseTensor made = DenseTensor::allocate(kCpu, {{static_cast<int64_t>(values.size())}, dtype});
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::int64) made.data<int64_t>()[i] = values[i];
    else made.data<int32_t>()[i] = static_cast<int32_t>(values[i]);
  }
  return made;
}

/// Element i of a float tensor of the CPU.
void set(In x, int64_t i, float value) {
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) { x.data<T>()[i] = static_cast<T>(value); });
}
double get(In x, int64_t i) {
  return visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) { return static_cast<double>(x.data<T>()[i]); });
}

DType statistics(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

/// What sums of rounded weights may be off, in units of the largest element.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64: return 1e-12;
    case DType::float32: return 2e-5;
    case DType::float16: return 4e-3;
    default: return 4e-2;
  }
}

void require_near(const std::vector<DenseTensor>& actual, const std::vector<DenseTensor>& expected) {
  for (size_t n = 0; n < expected.size(); ++n) {
    const DenseTensor got = copy_to(kCpu, actual[n]);
    double largest = 1;
    for (int64_t i = 0; i < got.numel(); ++i)
      if (std::isfinite(get(expected[n], i))) largest = std::max(largest, std::abs(get(expected[n], i)));
    for (int64_t i = 0; i < got.numel(); ++i) {
      const double a = get(got, i), e = get(expected[n], i);
      if (a == e || (std::isnan(a) && std::isnan(e)) || std::abs(a - e) <= tolerance(got.dtype()) * largest) continue;
      FAIL("tensor " << n << ", " << to_string(got.meta()) << ", element " << i << ": " << a << ", expected " << e);
    }
  }
}

void require_equal_bits(const std::vector<DenseTensor>& a, const std::vector<DenseTensor>& b) {
  for (size_t n = 0; n < a.size(); ++n) {
    const DenseTensor x = copy_to(kCpu, a[n]), y = copy_to(kCpu, b[n]);
    REQUIRE(std::memcmp(x.raw(), y.raw(), x.meta().bytes()) == 0);
  }
}

struct Shape {
  int64_t batch, queries, keys, heads, kv_heads, width, value_width;
};

/// Arguments on the CPU. Scores are small, so that many weights count.
struct Arguments {
  DenseTensor q, k, v, mask, out_grad;
  float dropout = 0;
  bool causal = false;

  Arguments(const Shape& s, DType dtype)
      : q(random_tensor({s.batch, s.queries, s.heads, s.width}, dtype, 1)),
        k(random_tensor({s.batch, s.keys, s.kv_heads, s.width}, dtype, 2)),
        v(random_tensor({s.batch, s.keys, s.kv_heads, s.value_width}, dtype, 3)),
        out_grad(random_tensor({s.batch, s.queries, s.heads, s.value_width}, dtype, 4)) {
    for (int64_t i = 0; i < q.numel(); ++i) set(q, i, static_cast<float>(get(q, i)) / 2);
  }
};

/// out, softmax, lse, the key, and the gradients of q, k and v. With a call, q is a shard. Other kernels of 16-bit floats do not
/// return the weights of softmax.
std::vector<DenseTensor> run_flash(Device device, const Arguments& a, const LocalCall* local = nullptr,
                                   bool weights = false) {
  const DType dtype = a.q.dtype();
  const Dims &q = a.q.dims(), &k = a.k.dims();
  const auto make = [&](const Dims& dims, DType of) { return DenseTensor::allocate(device, {dims, of}); };
  DenseTensor out = make(a.out_grad.dims(), dtype),
              softmax = make(weights ? Dims{q[0], q[2], q[1], k[1]} : Dims{0}, dtype),
              lse = make({q[0], q[2], q[1]}, statistics(dtype)), key = make({2}, DType::int64);
  const DenseTensor on[] = {moved(device, a.q),    moved(device, a.k),
                            moved(device, a.v),    moved(device, ints({7, 9}, DType::int64)),
                            moved(device, a.mask), moved(device, a.out_grad)};
  const OpContext ctx{"flash_attn", local}, grad_ctx{"flash_attn_grad", local};
  kernel_table("flash_attn")
      .find<void(const OpContext&, In, In, In, In, In, float, bool, bool, bool, const std::string&, RandomKey, Out, Out,
                 Out, Out)>(ctx, device, dtype)
      .function(ctx, on[0], on[1], on[2], on[3], on[4], a.dropout, a.causal, true, false, "", RandomKey{}, out, softmax,
                lse, key);
  DenseTensor grads[] = {make(q, dtype), make(k, dtype), make(a.v.dims(), dtype)};
  kernel_table("flash_attn_grad")
      .find<void(const OpContext&, In, In, In, In, In, In, In, In, float, bool, bool, Out, Out, Out)>(grad_ctx, device,
                                                                                                      dtype)
      .function(grad_ctx, on[0], on[1], on[2], out, lse, key, on[4], on[5], a.dropout, a.causal, false, grads[0],
                grads[1], grads[2]);
  return {out, softmax, lse, key, grads[0], grads[1], grads[2]};
}

void compare_flash(Device device, const Arguments& a, const LocalCall* local = nullptr) {
  for (const bool weights : {false, true}) {
    // 32 and 64 bits have one kernel for both, of which the model takes its time.
    if (size_of(a.q.dtype()) > 2 && weights != a.causal) continue;
    require_near(run_flash(device, a, local, weights), run_flash(kCpu, a, local, weights));
  }
}

constexpr DType kFloats[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64};

}  // namespace

TEST_CASE("attention on the device over several tiles and slices of columns is that of the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const Shape shapes[] = {
      {1, 70, 100, 2, 1, 72, 40}, {2, 5, 70, 1, 1, 9, 136}, {1, 66, 7, 1, 1, 130, 3}, {1, 70, 80, 1, 1, 40, 64}};
  for (const DType dtype : kFloats) {
    for (const Shape& s : shapes) {
      for (const bool causal : {false, true}) {
        INFO(to_string(dtype) << " width " << s.width << " causal " << causal);
        Arguments a(s, dtype);
        a.causal = causal;
        compare_flash(*device, a);
        a.mask = random_tensor({s.batch, 1, s.queries, s.keys}, dtype, 5);
        for (int64_t i = 0; i < a.mask.numel(); i += 3) set(a.mask, i, -kInfinity);
        a.dropout = 0.25f;
        compare_flash(*device, a);
      }
    }
  }
}

TEST_CASE("attention by the tensor cores of several blocks of aligned rows is that of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const Shape& s : {Shape{1, 133, 70, 1, 1, 16, 16}, Shape{1, 20, 70, 1, 1, 128, 120}}) {
      if (dtype == DType::float16 && s.width == 128) continue;  // the model takes time
      INFO(to_string(dtype) << " width " << s.width);
      Arguments a(s, dtype);
      a.causal = s.width == 16;
      require_near(run_flash(*device, a), run_flash(kCpu, a));
      a.mask = random_tensor({s.batch, 1, s.queries, s.keys}, dtype, 5);
      for (int64_t i = 0; i < a.mask.numel(); i += 3) set(a.mask, i, -kInfinity);
      for (int64_t i = 0; i < s.keys; ++i) set(a.mask, i, -kInfinity);  // the first query sees nothing
      require_near(run_flash(*device, a), run_flash(kCpu, a));
    }
  }
}

TEST_CASE("the lowest finite number of a mask hides no keys from a query that sees no others") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    INFO(to_string(dtype));
    const Shape s{1, 20, 24, 1, 1, 16, 16};
    Arguments a(s, dtype);
    a.mask = random_tensor({1, 1, s.queries, s.keys}, dtype, 5);
    for (int64_t i = 0; i < s.keys; ++i) set(a.mask, i, -kInfinity);
    const float lowest = dtype == DType::bfloat16 ? -3.38953139e38f : -65504.0f;
    for (int64_t i = s.keys; i < 2 * s.keys; ++i) set(a.mask, i, lowest);
    std::vector<DenseTensor> actual = run_flash(*device, a), expected = run_flash(kCpu, a);
    CHECK(std::isfinite(get(expected[2], 1)));
    actual.resize(4);  // that number leaves no digits of the scores and of the sum of weights, which gradients need
    expected.resize(4);
    require_near(actual, expected);
  }
}

TEST_CASE("gradients of scores beyond the range of float16 give the gradients of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  Arguments a({1, 20, 70, 1, 1, 16, 16}, DType::float16);
  const auto scale = [](In x, float by) {
    for (int64_t i = 0; i < x.numel(); ++i) set(x, i, static_cast<float>(get(x, i)) * by);
  };
  for (In x : {a.q, a.k}) scale(x, 1.0f / 1024);
  for (In x : {a.v, a.out_grad}) scale(x, 4096);  // gradients of weights of 2^24
  const std::vector<DenseTensor> expected = run_flash(kCpu, a);
  double most = 0;
  for (int64_t i = 0; i < expected[4].numel(); ++i) most = std::max(most, std::abs(get(expected[4], i)));
  REQUIRE(std::isfinite(most));
  // A gradient of q is a quarter of the sum over 70 keys, which are up to 2^-9, so that a gradient of a score is above 65504.
  REQUIRE(most > 65504.0 * 70 / 512 / 4);
  require_near(run_flash(*device, a), expected);
}

TEST_CASE("attention of no keys, no queries and to queries that see nothing") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Shape& s : {Shape{1, 3, 0, 1, 1, 4, 4}, Shape{2, 0, 3, 1, 1, 4, 4}, Shape{1, 80, 5, 2, 2, 4, 4}}) {
    Arguments a(s, DType::float32);
    a.causal = true;
    compare_flash(*device, a);
  }
}

TEST_CASE("equal calls of attention on the device have equal bits, in gradients too", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : kFloats) {
    Arguments a({1, 70, 90, 4, 2, 16, 16}, dtype);
    a.dropout = 0.5f;
    a.causal = true;
    require_equal_bits(run_flash(*device, a), run_flash(*device, a));
  }
}

TEST_CASE("a shard of queries and heads on the device sees and drops what it does in the whole") {
  const auto device = cuda_device();
  if (!device) return;
  // Queries 40 to 70 and heads 3 and 4 of eight, whose keys are the heads 1 to 3 of four.
  const Box q{{1, 90, 8, 8}, {0, 40, 3, 0}}, k{{1, 80, 4, 8}, {0, 0, 1, 0}};
  const Box inputs[] = {q, k, k, {{2}, {0}}, {}, {}, {}, {}};
  const LocalCall local{inputs, {}, nullptr, {}};
  for (const DType dtype : kFloats) {
    Arguments a({1, 30, 80, 2, 2, 8, 8}, dtype);
    a.dropout = 0.5f;
    a.causal = true;
    compare_flash(*device, a, &local);
  }
}

TEST_CASE("what a query does not see has no effect on it on the device, even if it is not finite") {
  const auto device = cuda_device();
  if (!device) return;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : kFloats) {
    for (const float value : {kInfinity, nan}) {
      Arguments a({1, 70, 70, 1, 1, 8, 8}, dtype);
      a.causal = true;
      for (int64_t i = 66 * 8; i < 70 * 8; ++i) {  // the last keys, which only the last queries see
        set(a.k, i, value);
        set(a.v, i, value);
      }
      const std::vector<DenseTensor> got = run_flash(*device, a), expected = run_flash(kCpu, a);
      const DenseTensor out = copy_to(kCpu, got[0]), q_grad = copy_to(kCpu, got[4]);
      for (int64_t i = 0; i < 66 * 8; ++i) {
        REQUIRE(std::isfinite(get(out, i)));
        REQUIRE(std::isfinite(get(q_grad, i)));
      }
      require_near({got[0], got[2]}, {expected[0], expected[2]});
    }
  }
}

namespace {

/// The arguments of memory_efficient_attention that are not of flash_attn, on the CPU, and the most lengths.
struct Selection {
  DenseTensor q_offsets, k_offsets, diagonals, lengths;
  int64_t most_queries = 0, most_keys = 0;
};

/// output, logsumexp, and the gradients of q, k, v and the bias.
std::vector<DenseTensor> run_efficient(Device device, const Arguments& a, const Selection& s) {
  const DType dtype = a.q.dtype();
  const bool packed = s.q_offsets.defined();
  const Dims& q = a.q.dims();
  const auto make = [&](const Dims& dims, DType of) { return DenseTensor::allocate(device, {dims, of}); };
  const Dims sums = packed ? Dims{s.q_offsets.numel() - 1, q[2], s.most_queries} : Dims{q[0], q[2], q[1]};
  DenseTensor out = make(a.out_grad.dims(), dtype), lse = make(sums, statistics(dtype)), key = make({2}, DType::int64);
  const DenseTensor on[] = {moved(device, a.q),         moved(device, a.k),         moved(device, a.v),
                            moved(device, a.mask),      moved(device, s.q_offsets), moved(device, s.k_offsets),
                            moved(device, s.diagonals), moved(device, s.lengths),   moved(device, a.out_grad)};
  const OpContext ctx{"memory_efficient_attention"}, grad_ctx{"memory_efficient_attention_grad"};
  const Scalar most_queries(s.most_queries), most_keys(s.most_keys);
  kernel_table("memory_efficient_attention")
      .find<void(const OpContext&, In, In, In, In, In, In, In, In, const Scalar&, const Scalar&, bool, double, float,
                 bool, RandomKey, Out, Out, Out)>(ctx, device, dtype)
      .function(ctx, on[0], on[1], on[2], on[3], on[4], on[5], on[6], on[7], most_queries, most_keys, a.causal,
                static_cast<double>(a.dropout), -1, false, RandomKey{5, 6}, out, lse, key);
  DenseTensor grads[] = {make(q, dtype), make(a.k.dims(), dtype), make(a.v.dims(), dtype),
                         a.mask.defined() ? make(a.mask.dims(), dtype) : DenseTensor()};
  kernel_table("memory_efficient_attention_grad")
      .find<void(const OpContext&, In, In, In, In, In, In, In, In, In, In, In, In, const Scalar&, const Scalar&, bool,
                 double, float, bool, Out, Out, Out, Out)>(grad_ctx, device, dtype)
      .function(grad_ctx, on[0], on[1], on[2], on[3], on[4], on[5], on[6], on[7], out, lse, key, on[8], most_queries,
                most_keys, a.causal, static_cast<double>(a.dropout), -1, false, grads[0], grads[1], grads[2], grads[3]);
  std::vector<DenseTensor> all = {out, lse, key, grads[0], grads[1], grads[2]};
  if (a.mask.defined()) all.push_back(grads[3]);
  return all;
}

template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "none";
}

/// What both say of the same wrong arguments: the device when its results are copied.
void compare_errors(Device device, const Arguments& a, const Selection& s) {
  const std::string expected = error_of([&] { run_efficient(kCpu, a, s); });
  REQUIRE(expected != "none");
  std::vector<DenseTensor> results;
  CHECK(error_of([&] {
          results = run_efficient(device, a, s);
          copy_to(kCpu, results[0]);
        }) == expected);
  REQUIRE(!results.empty());
  for (const size_t n : {0u, 3u, 4u, 5u}) {
    DenseTensor zeros;
    error_of([&] { zeros = copy_to(kCpu, results[n]); });  // the gradient has found the same
    if (!zeros.defined()) zeros = copy_to(kCpu, results[n]);
    for (int64_t i = 0; i < zeros.numel(); ++i) REQUIRE(get(zeros, i) == 0);
  }
}

}  // namespace

TEST_CASE("biases of all shapes on the device have their gradients, over several tiles", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    for (const Dims& dims :
         {Dims{2, 2, 70, 90}, Dims{1, 2, 1, 90}, Dims{2, 1, 70, 90}, Dims{70, 90}, Dims{2, 1, 1, 90}}) {
      for (const bool causal : {false, true}) {
        INFO(to_string(dtype) << " bias " << to_string(dims) << " causal " << causal);
        Arguments a({2, 70, 90, 2, 1, 8, 8}, dtype);
        a.mask = random_tensor(dims, dtype, 5);
        a.causal = causal;
        a.dropout = causal ? 0.25f : 0;
        Selection s;
        s.lengths = ints({80, 33}, DType::int32);
        s.diagonals = ints({-3, 20}, DType::int32);
        require_near(run_efficient(*device, a, s), run_efficient(kCpu, a, s));
      }
    }
  }
}

TEST_CASE("packed sequences on the device: empty ones, ones of several tiles, diagonals, lengths", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : kFloats) {
    Arguments a({1, 100, 110, 4, 2, 8, 12}, dtype);
    a.causal = true;
    a.dropout = 0.25f;
    Selection s{ints({0, 0, 20, 100}, DType::int32),
                ints({0, 5, 40, 110}, DType::int32),
                ints({3, -4, 1}, DType::int32),
                ints({5, 30, 0}, DType::int32),
                80,
                70};
    require_near(run_efficient(*device, a, s), run_efficient(kCpu, a, s));
    s.lengths = s.diagonals = DenseTensor();
    require_near(run_efficient(*device, a, s), run_efficient(kCpu, a, s));
  }
}

TEST_CASE("wrong offsets and lengths of sequences on the device are the CPU's errors, and give zeros") {
  const auto device = cuda_device();
  if (!device) return;
  const Arguments a({1, 10, 12, 1, 1, 4, 4}, DType::float32);
  const auto offsets = [](const std::vector<int64_t>& q, const std::vector<int64_t>& k) {
    return Selection{ints(q, DType::int32), ints(k, DType::int32), {}, {}, 8, 9};
  };
  compare_errors(*device, a, offsets({0, 5, 4, 10}, {0, 4, 8, 12}));
  compare_errors(*device, a, offsets({1, 5, 7, 10}, {0, 4, 8, 12}));
  compare_errors(*device, a, offsets({0, 9, 9, 10}, {0, 4, 8, 12}));
  compare_errors(*device, a, offsets({0, 5, 7, 10}, {0, 4, 8, 11}));
  compare_errors(*device, a, offsets({0, 5, 7, 11}, {0, 4, -8, 12}));
  Selection s = offsets({0, 5, 7, 10}, {0, 4, 8, 12});
  s.lengths = ints({4, 5, 2}, DType::int32);
  compare_errors(*device, a, s);
  Selection lengths;
  lengths.lengths = ints({-1}, DType::int32);
  compare_errors(*device, a, lengths);
}

TEST_CASE("tensor cores and their portable variants multiply a tile") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const DenseTensor x = random_tensor({16, 16}, dtype, 1), y = random_tensor({16, 16}, dtype, 2);
    for (const auto& [wide, portable] : {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
      INFO(to_string(dtype) << (wide ? ", tf32" : "") << (portable ? ", portable" : ""));
      const DenseTensor out = copy_to(kCpu, cuda::multiply_tile(moved(*device, x), moved(*device, y), wide, portable));
      for (int64_t i = 0; i < 256; ++i) {
        double sum = 0, most = 0;
        for (int64_t k = 0; k < 16; ++k) {
          const double product = get(x, i / 16 * 16 + k) * get(y, k * 16 + i % 16);
          sum += product;
          most += std::abs(product);
        }
        REQUIRE(std::abs(get(out, i) - sum) <= 1e-6 * most);
      }
    }
  }
}

}  // namespace attention_test
