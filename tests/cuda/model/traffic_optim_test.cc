// What steps of optimisers read and write, and how many kernels take them, by the log of the model.
#include "traffic.h"

#include <set>

namespace traffic_optim_test {

#ifdef CUDA_HOST_INSTRUMENTED  // otherwise accesses are not logged

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;

constexpr int64_t kCount = 256 * 4 * 16 + 3;

size_t launches_of(Device device, const std::function<void()>& work) {
  cuda_host::begin_log();
  work();
  backend_of(device).synchronize(device.index);
  return cuda_host::end_log().size();
}

/// A parameter with what its steps take. With a master copy the parameter itself is written only.
struct Parameter {
  Device device;
  DType dtype, state_dtype;
  bool precise;
  Tensor param = of(dtype), grad = of(dtype), master = precise ? of(DType::float32) : Tensor();
  Tensor rate = number(), power1 = number(), power2 = number(), first = of(state_dtype), second = of(state_dtype),
         third = of(state_dtype);

  Tensor of(DType type) const { return on(device, {kCount}, type); }
  Tensor number() const { return copied(Tensor::from_data(std::vector<float>{0.5f}, {1})); }
  Tensor copied(const Tensor& x) const { return Tensor(copy_to(device, x.get().value)); }

  /// Each step reads the gradient, the value and its states once, and writes the value and the states once.
  void check(const char* name, int states, const std::function<void()>& step) const {
    INFO(name << " of " << to_string(dtype) << (precise ? " with a master copy" : "") << ", states of "
              << to_string(state_dtype));
    const int64_t both = states * bytes_of(first) + (precise ? bytes_of(master) : 0);
    check_traffic(device, bytes_of(grad) + both + (precise ? 0 : bytes_of(param)), bytes_of(param) + both, step);
    CHECK(launches_of(device, step) == 1);
  }
};

}  // namespace

TEST_CASE("steps of optimisers read and write each byte once, with and without master copies") {
  const auto device = cuda_device();
  if (!device) return;
  const std::tuple<DType, DType, bool> kinds[] = {{DType::float32, DType::float32, false},
                                                  {DType::float64, DType::float64, false},
                                                  {DType::bfloat16, DType::bfloat16, false},
                                                  {DType::bfloat16, DType::float32, false},
                                                  {DType::bfloat16, DType::float32, true}};
  for (const auto& [dtype, states, precise] : kinds) {
    Parameter p{*device, dtype, states, precise};
    const Tensor none, range = p.copied(Tensor::from_data(std::vector<float>{0.125f, 2.0f}, {2}));
    p.check("sgd_", 0, [&] { sgd_(p.param, p.rate, p.grad, p.master, precise); });
    p.check("momentum_", 1,
            [&] { momentum_(p.param, p.grad, p.first, p.rate, p.master, 0.9f, true, "l2_decay", 0.1f, precise); });
    Tensor no_mean;
    p.check("rmsprop_", 2, [&] {
      rmsprop_(p.param, p.first, p.grad, p.second, p.rate, no_mean, p.master, 1e-3f, 0.9f, 0.5f, false, precise);
    });
    p.check("rmsprop_, centered", 3, [&] {
      rmsprop_(p.param, p.first, p.grad, p.second, p.rate, p.third, p.master, 1e3f, 0.9f, 0.5f, true, precise);
    });
    p.check("adagrad_", 1, [&] { adagrad_(p.param, p.grad, p.first, p.rate, p.master, 1e-3f, precise); });
    p.check("adadelta_", 2,
            [&] { adadelta_(p.param, p.grad, p.first, p.second, p.rate, p.master, 0.9f, 1e-3f, precise); });
    p.check("adamax_", 2, [&] {
      adamax_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.master, 0.9f, 0.99f, 1e-3f, precise);
    });
    p.check("asgd_", 2, [&] { asgd_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.master, precise); });
    p.check("rprop_", 2, [&] { rprop_(p.param, p.grad, p.first, p.second, p.master, range, range, precise); });
    p.check("adam_", 2, [&] {
      adam_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.power2, p.master, none, 0.9, 0.99, 1e-3, false,
            1000, precise, true);
    });
    p.check("adamw_", 2, [&] {
      adamw_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.power2, p.master, none, 0.9, 0.99, 1e-3, 1.0f,
             0.1f, true, precise, true);
    });
    // The size of the whole update decides how far it goes: it is kept in the type of arithmetic until then.
    const int64_t update = kCount * (dtype == DType::float64 ? 8 : 4);
    const int64_t moments = bytes_of(p.first, p.second), value = precise ? bytes_of(p.master) : bytes_of(p.param);
    INFO("lamb_ of " << to_string(dtype));
    check_traffic(*device, bytes_of(p.grad) + moments + update + 2 * value,
                  moments + update + bytes_of(p.param) + (precise ? value : 0), [&] {
                    lamb_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.power2, p.master, none, 0.1f, 0.9f,
                          0.99f, 1e-3f, false, precise);
                  });
  }
}

TEST_CASE("the tests of traffic have every optimiser") {
  const auto device = cuda_device();
  if (!device) return;
  const std::set<std::string> bounded = {"sgd_",
                                         "momentum_",
                                         "rmsprop_",
                                         "adagrad_",
                                         "adadelta_",
                                         "adamax_",
                                         "asgd_",
                                         "rprop_",
                                         "adam_",
                                         "adamw_",
                                         "lamb_",
                                         "merged_adam_",
                                         "fused_adam_",
                                         "merged_momentum_",
                                         "merged_sgd_",
                                         "merged_rmsprop_",
                                         "merged_adagrad_",
                                         "merged_adadelta_",
                                         "merged_adamax_",
                                         "merged_asgd_",
                                         "merged_rprop_",
                                         "merged_lamb_",
                                         "check_finite_and_unscale_",
                                         "average_accumulates_",
                                         "update_loss_scaling_"};
  std::set<std::string> all;
  for (const std::string& name : OpTable::instance().all_names()) {
    const OpDef& op = *OpTable::instance().find(name)->op;
    if (op.location.starts_with("optim.yaml")) all.insert(std::string(op.name));
  }
  CHECK(all == bounded);
}

TEST_CASE("a step that is skipped writes nothing, and reads less than a number of each parameter") {
  const auto device = cuda_device();
  if (!device) return;
  Parameter p{*device, DType::float32, DType::float32, false};
  const Tensor skip = p.copied(cast(Tensor::from_data(std::vector<float>{1}, {1}), DType::boolean));
  const auto check = [&](const std::function<void()>& step) {
    const cuda_host::GridLog log = traffic_of(*device, step);
    CHECK(log.bytes_written <= 64);  // sums of lamb_, which are zeros
    CHECK(log.bytes_read < 2 * kCount);
  };
  check([&] {
    adamw_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.power2, p.master, skip, 0.9, 0.99, 1e-3, 1.0f, 0.1f);
  });
  check([&] { lamb_(p.param, p.grad, p.rate, p.first, p.second, p.power1, p.power2, p.master, skip, 0.1f); });
}

TEST_CASE("scaling of losses and sums of averages read and write each byte once") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    INFO(to_string(dtype));
    Parameter p{*device, dtype, dtype, false};
    Tensors list = {p.param, p.grad};
    const int64_t all = bytes_of(list);
    check_traffic(*device, all, all, [&] { check_finite_and_unscale_(list, p.rate); });
    const auto flag = [&](float value) {
      return p.copied(cast(Tensor::from_data(std::vector<float>{value}, {1}), DType::boolean));
    };
    const auto count = [&](float value) {
      return p.copied(cast(Tensor::from_data(std::vector<float>{value}, {1}), DType::int64));
    };
    Tensor good = p.copied(cast(Tensor::from_data(std::vector<float>{1}, {1}), DType::int32)),
           bad = p.copied(cast(Tensor::from_data(std::vector<float>{1}, {1}), DType::int32));
    const Tensor found = flag(1), finite = flag(0);
    const auto scale = [&](const Tensor& infinite) {
      return traffic_of(*device, [&] { update_loss_scaling_(list, infinite, p.rate, good, bad, 5, 5, 2.0f, 0.5f); });
    };
    const cuda_host::GridLog zeroed = scale(found), left = scale(finite);
    CHECK(zeroed.bytes_written >= static_cast<uint64_t>(all));
    CHECK(ratio(zeroed.bytes_written, all) <= kMost);
    CHECK(ratio(zeroed.bytes_read, all) <= 0.3);  // each thread reads the flag
    CHECK(left.bytes_written <= 64);
    // The sums of the last 16384 steps take the parameter; the others change when a window begins.
    Tensor accumulates = count(3), old = count(2), updates = count(3);
    check_traffic(*device, 2 * bytes_of(p.param), bytes_of(p.param), [&] {
      average_accumulates_(p.param, p.first, p.second, p.third, accumulates, old, updates, 0.5f, 100, 100);
    });
  }
}

TEST_CASE("a step of many parameters is one launch that reads and writes each byte once") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<int64_t> sizes = {kCount, 5, 256 * 16, 3 * 256 * 16 + 1, 0, 1};
  for (const DType t : {DType::float32, DType::bfloat16}) {
    INFO(to_string(t));
    const auto list = [&](DType dtype, bool numbers = false) {
      Tensors made;
      for (const int64_t n : sizes) made.push_back(on(*device, {numbers ? 1 : n}, dtype));
      return made;
    };
    Tensors params = list(t), grads = list(t), means = list(DType::float32), squares = list(DType::float32), masters;
    Tensors rates = list(DType::float32, true), powers1 = list(DType::float32, true),
            powers2 = list(DType::float32, true);
    const auto check = [&](int64_t states, const std::function<void()>& step) {
      check_traffic(*device, bytes_of(params) + bytes_of(grads) + states, bytes_of(params) + states, step);
      CHECK(launches_of(*device, step) == 1);
    };
    const int64_t moments = bytes_of(means) + bytes_of(squares);
    check(moments, [&] {
      merged_adam_(params, grads, rates, means, squares, powers1, powers2, masters, 0.9, 0.99, 1e-8, false, true);
    });
    check(moments, [&] {
      fused_adam_(params, grads, rates[0], means, squares, powers1, powers2, masters, {}, 0.9, 0.99, 1e-8, 65536, 0.3f,
                  true, false, true);
    });
    check(bytes_of(means), [&] { merged_momentum_(params, grads, means, rates, masters, 0.9f, true); });
    check(0, [&] { merged_sgd_(params, rates, grads, masters); });
    Tensors none, grad_means = list(DType::float32);
    const Tensors pair = {on(*device, {2}, DType::float32)};
    check(moments, [&] { merged_rmsprop_(params, squares, grads, means, rates, none, masters); });
    check(moments + bytes_of(grad_means),
          [&] { merged_rmsprop_(params, squares, grads, means, rates, grad_means, masters, 1e3f, 0.9f, 0.0f, true); });
    check(bytes_of(squares), [&] { merged_adagrad_(params, grads, squares, rates, masters); });
    check(moments, [&] { merged_adadelta_(params, grads, means, squares, rates, masters, 0.9f, 1e-3f, false); });
    check(moments, [&] { merged_adamax_(params, grads, rates, means, squares, powers1, masters); });
    check(moments, [&] { merged_asgd_(params, grads, rates, means, squares, powers1, masters); });
    check(moments, [&] { merged_rprop_(params, grads, means, squares, masters, pair, pair); });
    // The update, kept as in lamb_; and the launches of moments, of sums and of steps.
    const auto lamb = [&] { merged_lamb_(params, grads, rates, means, squares, powers1, powers2, masters, {}, 0.1f); };
    const int64_t update = bytes_of(means), values = bytes_of(params);
    check_traffic(*device, bytes_of(grads) + moments + update + 2 * values, moments + update + values, lamb);
    CHECK(launches_of(*device, lamb) == 3);
  }
}

TEST_CASE("fused_adam launches one kernel for the steps of 32 parameters, and one for the powers of their betas") {
  const auto device = cuda_device();
  if (!device) return;
  for (const size_t count : {size_t{1}, size_t{32}, size_t{33}, size_t{70}}) {
    const auto list = [&](int64_t n) {
      Tensors made;
      for (size_t i = 0; i < count; ++i) made.push_back(on(*device, {n}, DType::float32));
      return made;
    };
    Tensors params = list(3), means = list(3), squares = list(3), powers1 = list(1), powers2 = list(1), masters;
    const Tensors grads = list(3);
    const Tensor rate = on(*device, {1}, DType::float32);
    const auto step = [&] {
      fused_adam_(params, grads, rate, means, squares, powers1, powers2, masters, {}, 0.9, 0.99, 1e-8, 65536, 0.3f,
                  true, false, false);
    };
    CHECK(launches_of(*device, step) == 2 * ((count + 31) / 32));
  }
}

#endif

}  // namespace traffic_optim_test
