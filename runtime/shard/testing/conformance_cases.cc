// The shapes and attributes of the conformance cases.
#include "shard/testing/conformance_cases.h"

#include <fmt/format.h>

#include <type_traits>

#include "shard/kernels/registry.h"

namespace shard::testing {
namespace {

/// A kernel of that name whose arguments are `count` tensors, then attributes of the types `Attrs`,
/// and which has one output.
template <int count, class... Attrs>
RunKernel call(const char* kernel, std::decay_t<Attrs>... attrs) {
  return [=](const OpContext& ctx, std::span<const DenseTensor> in, DenseTensor& out) {
    using In = const DenseTensor&;
    const KernelTable& table = kernel_table(kernel);
    const Device device = in[0].device();
    if constexpr (count == 1) {
      table.find<void(const OpContext&, In, Attrs..., DenseTensor&)>(ctx, device, in[0].dtype())
          .function(ctx, in[0], attrs..., out);
    } else {
      table.find<void(const OpContext&, In, In, Attrs..., DenseTensor&)>(ctx, device, in[0].dtype())
          .function(ctx, in[0], in[1], attrs..., out);
    }
  };
}

/// Calls `add(dtype, calls)` for every dtype for which the CPU has the kernel.
template <class Add>
KernelCases for_dtypes(const char* kernel, Add add) {
  KernelCases cases{kernel, {}};
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (kernel_table(kernel).has(kCpu, dtype)) add(dtype, cases.calls);
  }
  return cases;
}

std::string text_of(const std::vector<Meta>& inputs, const Meta& out, const std::string& attributes) {
  std::string text;
  for (const Meta& input : inputs) text += (text.empty() ? "" : ", ") + to_string(input);
  if (!attributes.empty()) text += ", " + attributes;
  return text + " -> " + to_string(out);
}

void add_call(std::vector<KernelCall>& calls, std::vector<Meta> inputs, const Meta& out, RunKernel run,
              const std::string& attributes = "") {
  std::string text = text_of(inputs, out, attributes);
  calls.push_back({std::move(text), std::move(inputs), out, std::move(run)});
}

const std::vector<Dims>& plain_shapes() {
  static const std::vector<Dims> shapes = {{}, {1}, {0}, {3, 0, 2}, {7}, {1031}, {7, 149}, {2, 3, 1, 5, 7}};
  return shapes;
}

KernelCases unary_cases(const char* kernel) {
  return for_dtypes(kernel, [&](DType dtype, std::vector<KernelCall>& calls) {
    for (const Dims& dims : plain_shapes()) add_call(calls, {{dims, dtype}}, {dims, dtype}, call<1>(kernel));
  });
}

struct Broadcast {
  Dims x, y, out;
};

const std::vector<Broadcast>& broadcasts() {
  static const std::vector<Broadcast> shapes = {
      {{}, {}, {}},
      {{1}, {1}, {1}},
      {{1031}, {1031}, {1031}},
      {{64, 33}, {64, 33}, {64, 33}},
      {{64, 33}, {33}, {64, 33}},
      {{64, 33}, {64, 1}, {64, 33}},
      {{64, 1}, {1, 33}, {64, 33}},
      {{}, {4, 5}, {4, 5}},
      {{2, 1, 4, 1, 3}, {5, 1, 6, 1}, {2, 5, 4, 6, 3}},
      {{3, 0, 2}, {1, 1, 2}, {3, 0, 2}},
  };
  return shapes;
}

KernelCases binary_cases(const char* kernel, bool returns_bool = false) {
  return for_dtypes(kernel, [&](DType dtype, std::vector<KernelCall>& calls) {
    for (const Broadcast& shape : broadcasts()) {
      add_call(calls, {{shape.x, dtype}, {shape.y, dtype}}, {shape.out, returns_bool ? DType::boolean : dtype},
               call<2>(kernel));
    }
  });
}

KernelCases cast_cases() {
  return for_dtypes("cast", [](DType from, std::vector<KernelCall>& calls) {
    for (int i = 0; i < kNumDTypes; ++i) {
      const DType to = static_cast<DType>(i);
      for (const Dims& dims : {Dims{}, Dims{0, 3}, Dims{3, 171}}) {
        add_call(calls, {{dims, from}}, {dims, to}, call<1, DType>("cast", to));
      }
    }
  });
}

KernelCases scale_cases() {
  return for_dtypes("scale", [](DType dtype, std::vector<KernelCall>& calls) {
    for (const bool bias_last : {true, false}) {
      for (const Dims& dims : plain_shapes()) {
        add_call(calls, {{dims, dtype}}, {dims, dtype},
                 call<1, const Scalar&, const Scalar&, bool>("scale", Scalar(2), Scalar(1), bool{bias_last}),
                 fmt::format("2, 1, bias_after_scale={}", bias_last));
      }
    }
  });
}

Dims permuted(const Dims& dims, const IntArray& perm) {
  Dims out;
  for (int64_t entry : perm) out.push_back(dims[static_cast<int>(entry < 0 ? entry + dims.rank() : entry)]);
  return out;
}

KernelCases transpose_cases() {
  static const std::vector<std::pair<Dims, IntArray>> shapes = {
      {{}, {}},
      {{9}, {0}},
      {{33, 65}, {1, 0}},
      {{33, 65}, {0, 1}},
      {{3, 40, 70}, {0, 2, 1}},
      {{3, 40, 70}, {-2, -1, 0}},
      {{4, 5, 6, 7}, {0, 2, 1, 3}},
      {{4, 5, 6, 7}, {3, 2, 1, 0}},
      {{2, 3, 1, 4, 5}, {2, 0, 1, 4, 3}},
      {{3, 0, 2}, {2, 1, 0}},
  };
  return for_dtypes("transpose", [](DType dtype, std::vector<KernelCall>& calls) {
    for (const auto& [dims, perm] : shapes) {
      add_call(calls, {{dims, dtype}}, {permuted(dims, perm), dtype}, call<1, const IntArray&>("transpose", perm),
               "perm=" + to_string(perm));
    }
  });
}

struct Product {
  Dims x, y, out;
  bool transpose_x = false, transpose_y = false;
};

KernelCases matmul_cases() {
  static const std::vector<Product> products = {
      {{5, 7}, {7, 3}, {5, 3}},
      {{1, 1}, {1, 1}, {1, 1}},
      {{64, 96}, {96, 128}, {64, 128}},
      {{7, 5}, {7, 3}, {5, 3}, true, false},
      {{5, 7}, {3, 7}, {5, 3}, false, true},
      {{7, 5}, {3, 7}, {5, 3}, true, true},
      {{7}, {7}, {}},
      {{7}, {7, 3}, {3}},
      {{5, 7}, {7}, {5}},
      {{4, 5, 7}, {7}, {4, 5}},
      {{7}, {4, 7, 3}, {4, 3}},
      {{4, 5, 7}, {7, 3}, {4, 5, 3}},
      {{4, 7, 5}, {7, 3}, {4, 5, 3}, true, false},
      {{4, 5, 7}, {4, 7, 3}, {4, 5, 3}},
      {{5, 7}, {4, 7, 3}, {4, 5, 3}},
      {{2, 1, 5, 7}, {3, 7, 4}, {2, 3, 5, 4}},
      {{2, 1, 6, 5, 7}, {1, 3, 6, 4, 7}, {2, 3, 6, 5, 4}, false, true},
      {{1, 3, 5, 7}, {2, 3, 7, 4}, {2, 3, 5, 4}},
      {{5, 0}, {0, 3}, {5, 3}},
      {{0, 7}, {7, 3}, {0, 3}},
  };
  return for_dtypes("matmul", [](DType dtype, std::vector<KernelCall>& calls) {
    for (const Product& p : products) {
      add_call(calls, {{p.x, dtype}, {p.y, dtype}}, {p.out, dtype},
               call<2, bool, bool>("matmul", p.transpose_x, p.transpose_y),
               fmt::format("transpose_x={}, transpose_y={}", p.transpose_x, p.transpose_y));
    }
  });
}

struct Reduction {
  Dims x;
  IntArray axes;
  Dims out;
  bool keepdim = false;
};

const std::vector<Reduction>& reductions() {
  static const std::vector<Reduction> all = {
      {{}, {}, {}},
      {{1}, {0}, {}},
      {{1000}, {}, {}},
      {{100000}, {0}, {}},
      {{17, 1000}, {}, {}},
      {{17, 1000}, {1}, {17}},
      {{3, 20000}, {-1}, {3}},
      {{17, 1000}, {0}, {1000}},
      {{20000, 3}, {0}, {3}},
      {{5, 7, 11}, {1}, {5, 11}},
      {{5, 7, 11}, {1}, {5, 1, 11}, true},
      {{5, 7, 11}, {0, 2}, {7}},
      {{5, 7, 11, 13}, {0, 2}, {7, 13}},
      {{5, 1, 11}, {1}, {5, 11}},
      {{0, 3}, {1}, {0}},
      {{4, 0, 3}, {1}, {4, 3}},  // over no elements
  };
  return all;
}

/// Sums and means over no elements have a value (0 and NaN), maxima have none.
KernelCases reduce_cases(const char* kernel, bool sums, bool of_none) {
  return for_dtypes(kernel, [&](DType dtype, std::vector<KernelCall>& calls) {
    const DType out = sums && !is_floating(dtype) ? DType::int64 : dtype;
    for (const Reduction& r : reductions()) {
      if (compute_dtype(dtype) != dtype && r.x.numel() > 20000) continue;  // beyond what 16-bit sums compare to
      if (!of_none && r.x.numel() == 0 && r.out.numel() != 0) continue;
      add_call(calls, {{r.x, dtype}}, {r.out, out}, call<1, const IntArray&, bool>(kernel, r.axes, r.keepdim),
               fmt::format("axis={}, keepdim={}", to_string(r.axes), r.keepdim));
    }
  });
}

KernelCases softmax_cases() {
  static const std::vector<std::pair<Dims, int>> shapes = {{{1}, 0},          {{5}, 0},           {{7, 31}, -1},
                                                           {{3, 2000}, 1},    {{130, 9}, 0},      {{3, 1}, 1},
                                                           {{4, 5, 6, 7}, 1}, {{4, 5, 6, 7}, -2}, {{2, 0, 3}, 1}};
  return for_dtypes("softmax", [](DType dtype, std::vector<KernelCall>& calls) {
    for (const auto& [dims, axis] : shapes) {
      add_call(calls, {{dims, dtype}}, {dims, dtype}, call<1, int>("softmax", axis), fmt::format("axis={}", axis));
    }
  });
}

}  // namespace

std::vector<KernelCases> kernel_cases() {
  std::vector<KernelCases> all;
  for (const char* kernel : {"add", "subtract", "multiply", "maximum", "minimum"}) all.push_back(binary_cases(kernel));
  all.push_back(binary_cases("equal", true));
  for (const char* kernel : {"assign", "relu", "exp", "log", "tanh", "sqrt", "rsqrt", "sigmoid", "silu"}) {
    all.push_back(unary_cases(kernel));
  }
  all.push_back(cast_cases());
  all.push_back(scale_cases());
  all.push_back(transpose_cases());
  all.push_back(matmul_cases());
  all.push_back(reduce_cases("sum", true, true));
  all.push_back(reduce_cases("mean", false, true));
  all.push_back(reduce_cases("max", false, false));
  all.push_back(softmax_cases());
  return all;
}

}  // namespace shard::testing
