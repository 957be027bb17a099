// What reductions, norms and cross entropies read and write, by the log of the model: each byte as often as they need it.
#include <set>

#include "traffic.h"

namespace traffic_norm_test {

#ifdef CUDA_HOST_INSTRUMENTED  // otherwise accesses are not logged

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;

template <class... T>
Tensors list_of(std::tuple<T...> values) {
  return std::apply([](auto&... tensors) { return Tensors{tensors...}; }, values);
}
Tensors list_of(const Tensor& value) { return {value}; }

/// The kernels of call(), which returns its results, read `inputs` and write the results. `again` is how many bytes they need to read or write
/// besides, because of sums that they have to know first.
template <class Call>
void check_call(Device device, const Tensors& inputs, const Call& call, int64_t again = 0, const Excess& excess = {}) {
  Tensors results;
  const cuda_host::GridLog sum = traffic_of(device, [&] { results = list_of(call()); });
  check_total(sum, bytes_of(inputs) + bytes_of(results) + again, excess);
}

DType statistics_of(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

}  // namespace

TEST_CASE("reductions read each byte once, in accesses without gaps") {
  const auto device = cuda_device();
  if (!device) return;
  struct Case {
    Dims dims;
    int axis;
  };
  const std::vector<Case> cases = {{{300, 512}, 1}, {{500, 256}, 0}, {{9, 128, 96}, 1},
                                   {{6, 8000}, 1},  {{8000, 16}, 0}, {{70000}, 0}};
  using Reduce = std::function<Tensor(const Tensor&, const IntArray&)>;
  struct Op {
    const char* name;
    Reduce reduce;
    std::vector<DType> dtypes;
  };
  const std::vector<DType> any = {DType::float32, DType::bfloat16, DType::int32, DType::uint8},
                           floats = {DType::float32, DType::bfloat16};
  const auto p_norm_of = [](float order) {
    return [order](const Tensor& x, const IntArray& axes) { return p_norm(x, order, static_cast<int>(axes[0])); };
  };
  const std::vector<Op> ops = {
      {"sum", [](const Tensor& x, const IntArray& axes) { return sum(x, axes); }, any},
      {"argmax", [](const Tensor& x, const IntArray& axes) { return argmax(x, axes[0]); }, any},
      {"logsumexp", [](const Tensor& x, const IntArray& axes) { return logsumexp(x, axes, false, false); }, floats},
      {"var", [](const Tensor& x, const IntArray& axes) { return var(x, axes); }, floats},
      {"std", [](const Tensor& x, const IntArray& axes) { return std_op(x, axes); }, floats},
      {"max", [](const Tensor& x, const IntArray& axes) { return max(x, axes); }, any},
      {"min", [](const Tensor& x, const IntArray& axes) { return min(x, axes); }, any},
      {"amax", [](const Tensor& x, const IntArray& axes) { return amax(x, axes); }, any},
      {"amin", [](const Tensor& x, const IntArray& axes) { return amin(x, axes); }, any},
      {"prod", [](const Tensor& x, const IntArray& axes) { return prod(x, axes); }, any},
      {"all", [](const Tensor& x, const IntArray& axes) { return all(x, axes); }, any},
      {"any", [](const Tensor& x, const IntArray& axes) { return shard::any(x, axes); }, any},
      {"argmin", [](const Tensor& x, const IntArray& axes) { return argmin(x, axes[0]); }, any},
      {"mean", [](const Tensor& x, const IntArray& axes) { return mean(x, axes); }, floats},
      {"p_norm", p_norm_of(0), floats},
      {"p_norm", p_norm_of(1), floats},
      {"p_norm", p_norm_of(3), floats},
      {"p_norm", p_norm_of(INFINITY), floats},
      {"frobenius_norm", [](const Tensor& x, const IntArray& axes) { return frobenius_norm(x, axes, false, false); },
       floats},
      {"squared_l2_norm", [](const Tensor& x, const IntArray&) { return squared_l2_norm(x); }, floats},
      {"l1_norm", [](const Tensor& x, const IntArray&) { return l1_norm(x); }, floats},
      {"mean_all", [](const Tensor& x, const IntArray&) { return mean_all(x); }, floats}};
  std::set<std::string> tried;
  for (const DType t : any) {
    for (size_t c = 0; c < cases.size(); ++c) {
      const auto& [dims, axis] = cases[c];
      const Tensor x = on(*device, dims, t);
      for (size_t o = 0; o < ops.size(); ++o) {
        const Op& op = ops[o];
        tried.insert(op.name);
        // Ops share their kernels but for the combination of elements: the first ones are tried with all cases.
        if (std::find(op.dtypes.begin(), op.dtypes.end(), t) == op.dtypes.end() || (o >= 4 && c >= 2)) continue;
        INFO(op.name << " along axis " << axis << " of " << to_string(dims) << " in " << to_string(t));
        const bool has_wide_parts = op.name == std::string("argmax") && dims == Dims{8000, 16};
        const double sectors = t == DType::uint8 ? 2.24 : t == DType::bfloat16 ? 1.12 : 1.06;
        check_call(
            *device, {x}, [&, axis = axis] { return op.reduce(x, {axis}); }, 0,
            has_wide_parts ? Excess{t == DType::uint8 ? 1.05 : 1, sectors,
                                    "parts have a key and a place for each column, rows of bytes half a sector"}
                           : Excess{});
      }
    }
  }
  for (const DType t : floats) {
    INFO("reduce_as and norm in " << to_string(t));
    const Tensor x = on(*device, {500, 256}, t), target = on(*device, {256}, t);
    check_call(*device, {x}, [&] { return reduce_as(x, target); });
    check_call(*device, {x}, [&] { return norm(x, 1); });
    // Columns are read again, and their roots for each element.
    check_call(
        *device, {x}, [&] { return norm(x, 0); }, bytes_of(x) + x.numel() * 4);
  }
  tried.insert({"reduce_as", "norm"});
  const std::set<std::string> no_combinations = {"numel", "median",
                                                 "nanmedian"};  // of shapes alone, and of sorted elements
  std::set<std::string> names;
  testing::OpCases all_cases;
  testing::add_reduce_cases(all_cases);
  for (const testing::OpCase& one : all_cases) {
    if (no_combinations.count(one.op) == 0) names.insert(one.op);
  }
  CHECK(tried == names);
}

TEST_CASE("norms and cross entropies of rows read and write each byte once") {
  const auto device = cuda_device();
  if (!device) return;
  struct Case {
    DType dtype;
    int64_t rows, width;
  };
  for (const auto& [t, rows, width] : {Case{DType::float32, 2000, 512}, Case{DType::bfloat16, 500, 4096}}) {
    INFO(rows << " rows of " << width << " in " << to_string(t));
    const Tensor x = on(*device, {rows, width}, t), grad = on(*device, {rows, width}, t),
                 weight = on(*device, {width}, t), label = on(*device, {rows, 1}, DType::int64),
                 statistic = on(*device, {rows}, DType::float32), loss = on(*device, {rows, 1}, t);
    check_call(*device, {x, weight, weight}, [&] { return layer_norm_intermediate(x, weight, weight); });
    check_call(*device, {x, weight}, [&] { return rms_norm(x, weight); });
    check_call(*device, {x}, [&] { return softmax(x); });
    check_call(*device, {x}, [&] { return log_softmax(x); });
    check_call(*device, {x, label}, [&] { return cross_entropy_with_softmax(x, label); });
    check_call(*device, {x, grad}, [&] { return cross_entropy_with_softmax(x, grad, true); });
    check_call(*device, {x, grad, weight, statistic, statistic},
               [&] { return layer_norm_grad(x, weight, weight, statistic, statistic, grad); });
    check_call(*device, {x, grad, weight, statistic}, [&] { return rms_norm_grad(x, weight, statistic, grad); });
    check_call(*device, {x, grad}, [&] { return softmax_grad(x, grad); });
    check_call(*device, {x, grad}, [&] { return log_softmax_grad(x, grad); });
    check_call(*device, {x, label, loss}, [&] { return cross_entropy_with_softmax_grad(label, x, loss); });
    check_call(*device, {x, grad, loss}, [&] { return cross_entropy_with_softmax_grad(grad, x, loss, true); });
  }
}

TEST_CASE("rows that registers cannot hold are read once for each sum that their results need") {
  const auto device = cuda_device();
  if (!device) return;
  const int64_t rows = 3, width = 40000;
  const DType t = DType::float32;
  const Tensor x = on(*device, {rows, width}, t), grad = on(*device, {rows, width}, t),
               weight = on(*device, {width}, t);
  const Tensor statistic = on(*device, {rows}, t), label = on(*device, {rows, 1}, DType::int64);
  const int64_t all = bytes_of(x);
  // The numbers of columns are read again for each row, too.
  check_call(
      *device, {x}, [&] { return layer_norm_intermediate(x, weight, weight); }, 2 * all + 2 * all);
  check_call(
      *device, {x}, [&] { return rms_norm(x, weight); }, all + all);
  check_call(
      *device, {x}, [&] { return softmax(x); }, all);
  check_call(
      *device, {x}, [&] { return cross_entropy_with_softmax(x, label); }, all);
  check_call(*device, {x, grad}, [&] { return layer_norm_grad(x, weight, weight, statistic, statistic, grad); },
             2 * all + 2 * all + 2 * all,
             {1.145, 1.19, "sums of columns are kept, and warps read the numbers of each row"});
  check_call(
      *device, {x, grad}, [&] { return softmax_grad(x, grad); }, 2 * all);
}

TEST_CASE("norms over channels read images once for their statistics and once for the result") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    for (const std::string& format : {std::string("NCHW"), std::string("NHWC")}) {
      INFO(format << " in " << to_string(t));
      const bool last = format == "NHWC";
      const int64_t images = t == DType::float32 ? 2 : last ? 1 : 4, channels = 64, places = 56 * 56;
      const Dims dims = last ? Dims{images, places, channels} : Dims{images, channels, places};
      const Tensor x = on(*device, dims, t), grad = on(*device, dims, t);
      const Tensor weight = on(*device, {channels}, statistics_of(t)), mean = on(*device, {channels}, statistics_of(t)),
                   variance = on(*device, {channels}, statistics_of(t)), narrow = on(*device, {channels}, t);
      const Tensor of_groups = on(*device, {images, 8}, statistics_of(t)),
                   of_channels = on(*device, {images, channels}, statistics_of(t));
      const int64_t all = bytes_of(x);
      const auto with_numbers = [&](double bytes, double sectors) {
        return last && t == DType::bfloat16
                   ? Excess{bytes, sectors,
                            "a thread has few packs of its channels, whose numbers it reads from caches"}
                   : Excess{};
      };
      check_call(
          *device, {x}, [&] { return batch_norm(x, mean, variance, weight, weight, false, 0.9f, 1e-5f, format); }, all,
          with_numbers(1.09, 1.24));
      check_call(
          *device, {x}, [&] { return batch_norm(x, mean, variance, weight, weight, true, 0.9f, 1e-5f, format); }, 0,
          with_numbers(1.12, 1.27));
      check_call(
          *device, {x, grad}, [&] { return batch_norm_grad(x, weight, weight, weight, weight, grad, format); }, 2 * all,
          with_numbers(1.08, 1.17));
      check_call(
          *device, {x}, [&] { return group_norm_intermediate(x, narrow, narrow, 1e-5f, 8, format); }, all,
          with_numbers(1.09, 1.22));
      check_call(
          *device, {x, grad},
          [&] { return group_norm_grad(x, narrow, narrow, of_groups, of_groups, grad, 1e-5f, 8, format); }, 2 * all,
          with_numbers(1.07, 1.17));
      if (last) continue;
      check_call(
          *device, {x}, [&] { return instance_norm_intermediate(x, narrow, narrow); }, all);
      check_call(
          *device, {x, grad}, [&] { return instance_norm_grad(x, narrow, narrow, of_channels, of_channels, grad); },
          2 * all);
    }
  }
}

#endif

}  // namespace traffic_norm_test
