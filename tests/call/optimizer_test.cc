// Optimisers against their formulas, with a non-default value for every attribute.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>

#include "shard/program.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace optimizer_test {

using namespace shard;

namespace {

using Numbers = std::vector<double>;

Tensor made(const Numbers& numbers) { return Tensor::from_data(numbers, {static_cast<int64_t>(numbers.size())}); }

}  // namespace

TEST_CASE("adamw_ scales step and weight decay by lr_ratio") {
  const double rate = 0.1, beta1 = 0.8, beta2 = 0.95, epsilon = 1e-3;
  const float ratio = 0.25f, decay = 0.5f;
  Numbers value = {1, -2}, first = {0.5, 0.25}, second = {0.125, 1};
  const Numbers grad = {3, -0.5};
  Tensor param = made(value), moment1 = made(first), moment2 = made(second), power1 = made({beta1}),
         power2 = made({beta2}), none;
  double p1 = beta1, p2 = beta2;
  for (int step = 0; step < 3; ++step) {
    adamw_(param, made(grad), made({rate}), moment1, moment2, power1, power2, none, none, beta1, beta2, epsilon, ratio,
           decay, true);
    const double scaled = rate * static_cast<double>(ratio);
    for (size_t i = 0; i < value.size(); ++i) {
      first[i] = beta1 * first[i] + (1 - beta1) * grad[i];
      second[i] = beta2 * second[i] + (1 - beta2) * grad[i] * grad[i];
      value[i] *= 1 - scaled * static_cast<double>(decay);
      value[i] -= scaled / (1 - p1) * first[i] / (std::sqrt(second[i]) / std::sqrt(1 - p2) + epsilon);
    }
    p1 *= beta1;
    p2 *= beta2;
    for (size_t i = 0; i < value.size(); ++i) {
      CHECK(param.to_vector<double>()[i] == Approx(value[i]).epsilon(1e-12));
      CHECK(moment1.to_vector<double>()[i] == Approx(first[i]).epsilon(1e-12));
      CHECK(moment2.to_vector<double>()[i] == Approx(second[i]).epsilon(1e-12));
    }
    CHECK(power1.to_vector<double>()[0] == Approx(p1).epsilon(1e-12));
    CHECK(power2.to_vector<double>()[0] == Approx(p2).epsilon(1e-12));
  }
}

namespace {

/// Three steps of an optimiser on two elements beside its formula, in float64 and, with a float32 master copy of a
/// bfloat16 parameter, in float32. `formula` updates the parameter and the states of one element.
struct Check {
  Numbers start_states;  // of each state
  std::function<void(Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int step)> call;
  std::function<void(double& param, double grad, Numbers& states, int step)> formula;

  void run() const {
    run_in(DType::float64, DType::float64, 1e-12);
    run_in(DType::bfloat16, DType::float32, 2e-6);
  }

 private:
  void run_in(DType dtype, DType wide, double tolerance) const {
    const Numbers grads[] = {{3, -0.5}, {-1, -2}, {0.25, 0}};  // bfloat16 represents them
    Numbers value = {1, -2};
    std::vector<Numbers> states(2, start_states);
    Tensor param = cast(made(value), dtype), master;
    if (dtype != wide) master = cast(made(value), wide);
    std::vector<Tensor> tensors;
    for (const double start : start_states) tensors.push_back(cast(made({start, start}), wide));
    for (int step = 1; step <= 3; ++step) {
      const Numbers& grad = grads[step - 1];
      call(param, cast(made(grad), dtype), tensors, master, step);
      for (size_t i = 0; i < value.size(); ++i) formula(value[i], grad[i], states[i], step);
    }
    const auto numbers = [](const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); };
    for (size_t i = 0; i < value.size(); ++i) {
      CHECK(numbers(dtype == wide ? param : master)[i] == Approx(value[i]).epsilon(tolerance));
      CHECK(numbers(param)[i] == Approx(value[i]).epsilon(dtype == wide ? tolerance : 1.0 / 256));
      for (size_t s = 0; s < tensors.size(); ++s)
        CHECK(numbers(tensors[s])[i] == Approx(states[i][s]).epsilon(tolerance));
    }
  }
};

const double kRate = 0.125;
Tensor rate() { return made({kRate}); }

}  // namespace

TEST_CASE("momentum_ follows its formula") {
  for (const bool nesterov : {false, true}) {
    Check{{0.5},
          [=](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int) {
            momentum_(param, grad, states[0], rate(), master, 0.75f, nesterov, "l2_decay", 0.25f, master.defined(),
                      0.5f);
          },
          [=](double& param, double grad, Numbers& states, int) {
            const double g = 0.5 * grad + 0.25 * param;
            states[0] = 0.75 * states[0] + g;
            param -= kRate * (nesterov ? g + 0.75 * states[0] : states[0]);
          }}
        .run();
  }
  Tensor param = made({1, 2}), velocity = made({0, 0}), none;
  momentum_(param, made({4, 4}), velocity, rate(), none, 0.5f, false, "", 8);  // no decay without a method
  CHECK(param.to_vector<double>() == Numbers{0.5, 1.5});
}

TEST_CASE("rmsprop_ follows its formula") {
  for (const bool centered : {false, true}) {
    Check{{0.5, 0.25, 0.125},
          [=](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int) {
            rmsprop_(param, states[0], grad, states[1], rate(), states[2], master, 0.125f, 0.75f, 0.5f, centered,
                     master.defined());
          },
          [=](double& param, double grad, Numbers& states, int) {
            states[0] = 0.75 * states[0] + 0.25 * grad * grad;
            if (centered) states[2] = 0.75 * states[2] + 0.25 * grad;
            const double variance = states[0] - (centered ? states[2] * states[2] : 0);
            states[1] = 0.5 * states[1] + kRate * grad / std::sqrt(variance + 0.125);
            param -= states[1];
          }}
        .run();
  }
}

TEST_CASE("adagrad_ follows its formula") {
  Check{{0.5},
        [](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int) {
          adagrad_(param, grad, states[0], rate(), master, 0.125f, master.defined());
        },
        [](double& param, double grad, Numbers& states, int) {
          states[0] += grad * grad;
          param -= kRate * grad / (std::sqrt(states[0]) + 0.125);
        }}
      .run();
}

TEST_CASE("adadelta_ follows its formula") {
  Check{{0.5, 0.25},
        [](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int) {
          adadelta_(param, grad, states[0], states[1], rate(), master, 0.75f, 0.125f, master.defined());
        },
        [](double& param, double grad, Numbers& states, int) {
          states[0] = 0.75 * states[0] + 0.25 * grad * grad;
          const double update = grad * std::sqrt(states[1] + 0.125) / std::sqrt(states[0] + 0.125);
          states[1] = 0.75 * states[1] + 0.25 * update * update;
          param -= kRate * update;
        }}
      .run();
}

TEST_CASE("adamax_ follows its formula") {
  Check{{0.5, 0.25},
        [](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int step) {
          adamax_(param, grad, rate(), states[0], states[1], made({std::pow(0.75, step)}), master, 0.75f, 0.5f, 0.125f,
                  master.defined());
        },
        [](double& param, double grad, Numbers& states, int step) {
          states[0] = 0.75 * states[0] + 0.25 * grad;
          states[1] = std::max(std::abs(grad), 0.5 * states[1] + 0.125);
          param -= kRate / (1 - std::pow(0.75, step)) * states[0] / states[1];
        }}
      .run();
}

TEST_CASE("asgd_ follows its formula") {
  Check{{0.5, 0.25},
        [](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int) {
          asgd_(param, grad, rate(), states[0], states[1], made({4}), master, master.defined());
        },
        [](double& param, double grad, Numbers& states, int) {
          states[0] += grad - states[1];
          states[1] = grad;
          param -= kRate / 4 * states[0];
        }}
      .run();
}

TEST_CASE("rprop_ follows its formula") {
  Check{{0.5, 0.25},
        [](Tensor& param, const Tensor& grad, std::vector<Tensor>& states, Tensor& master, int) {
          rprop_(param, grad, states[0], states[1], master, made({0.1875, 0.3125}), made({0.5, 1.5}), master.defined());
        },
        [](double& param, double grad, Numbers& states, int) {
          const double agreement = grad * states[0];
          if (agreement > 0) states[1] = std::min(states[1] * 1.5, 0.3125);
          if (agreement < 0) states[1] = std::max(states[1] * 0.5, 0.1875), grad = 0;
          if (grad != 0) param -= std::copysign(states[1], grad);
          states[0] = grad;
        }}
      .run();
}

TEST_CASE("rprop_ compares signs of gradients whose product would be 0") {
  Tensor param = cast(made({1, 1}), DType::float32), grad = cast(made({1e-25, 1e-25}), DType::float32), none;
  Tensor prev = cast(made({1e-25, -1e-25}), DType::float32), rates = cast(made({0.25, 0.25}), DType::float32);
  rprop_(param, grad, prev, rates, none, made({0.125, 4}), made({0.5, 2}));
  CHECK(cast(rates, DType::float64).to_vector<double>() == Numbers{0.5, 0.125});
  CHECK(cast(param, DType::float64).to_vector<double>() == Numbers{0.5, 1});
}

TEST_CASE("lamb_ scales a step by the norms of the whole parameter") {
  for (const double decay : {0.0, 0.25}) {
    for (const bool adapts : {false, true}) {
      Numbers value = {1, -2, 0.5}, first = {0.5, 0.25, 0}, second = {0.125, 1, 2};
      const Numbers grad = {3, -0.5, 1};
      const double beta1 = 0.75, beta2 = 0.5, epsilon = 0.125;
      Tensor param = made(value), moment1 = made(first), moment2 = made(second), power1 = made({beta1}),
             power2 = made({beta2}), none;
      for (int step = 1; step <= 3; ++step) {
        lamb_(param, made(grad), rate(), moment1, moment2, power1, power2, none, {}, static_cast<float>(decay), 0.75f,
              0.5f, 0.125f, adapts);
        Numbers update;
        double size = 0, length = 0;
        for (size_t i = 0; i < value.size(); ++i) {
          first[i] = beta1 * first[i] + (1 - beta1) * grad[i];
          second[i] = beta2 * second[i] + (1 - beta2) * grad[i] * grad[i];
          const double m = first[i] / (1 - std::pow(beta1, step)), v = second[i] / (1 - std::pow(beta2, step));
          update.push_back(m / (std::sqrt(v) + epsilon) + decay * value[i]);
          size += value[i] * value[i];
          length += update[i] * update[i];
        }
        const double ratio = decay > 0 || adapts ? std::sqrt(size / length) : 1;
        for (size_t i = 0; i < value.size(); ++i) value[i] -= kRate * ratio * update[i];
      }
      for (size_t i = 0; i < value.size(); ++i) CHECK(param.to_vector<double>()[i] == Approx(value[i]).epsilon(1e-12));
      CHECK(power1.to_vector<double>()[0] == Approx(std::pow(beta1, 4)).epsilon(1e-12));
      CHECK(power2.to_vector<double>()[0] == Approx(std::pow(beta2, 4)).epsilon(1e-12));
      const Numbers before = param.to_vector<double>();
      lamb_(param, made(grad), rate(), moment1, moment2, power1, power2, none, full({1}, true, DType::boolean), 0.5f);
      CHECK(param.to_vector<double>() == before);
    }
  }
  Tensor zero = made({0, 0}), moment1 = made({0, 0}), moment2 = made({0, 0}), power1 = made({0}), power2 = made({0}),
         none;
  lamb_(zero, made({2, -2}), rate(), moment1, moment2, power1, power2, none, {}, 0.5f, 0, 0, 0);
  CHECK(zero.to_vector<double>() == Numbers{-kRate, kRate});  // a parameter of norm 0 takes the step as it is
}

TEST_CASE("lamb_ adds up the norms of all shards") {
  const Numbers value = {1, -2, 0.5}, grad = {3, -0.5, 1}, zeros = {0, 0, 0};
  const auto step = [&](const auto& placed, const auto& number) {
    Tensor param = placed(value), moment1 = placed(zeros), moment2 = placed(zeros), power1 = number(0.5),
           power2 = number(0.5), none;
    lamb_(param, placed(grad), number(kRate), moment1, moment2, power1, power2, none, {}, 0.25f);
    return param;
  };
  const Numbers expected =
      step([](const Numbers& x) { return made(x); }, [](double x) { return made({x}); }).to_vector<double>();
  const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"dp"});
  World::local(2)->run([&](Rank& rank) {
    const auto placed = [&](const Numbers& x) { return distribute(made(x), DistSpec::parse(mesh, "dp")); };
    const auto number = [&](double x) { return distribute(made({x}), DistSpec::replicated(mesh, 1)); };
    const Numbers got = full_tensor(step(placed, number)).to_vector<double>();
    if (rank.id() != 0) return;
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-12));
  });
}

TEST_CASE("a step of a list of parameters is that of each in its own layout") {
  const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"dp"});
  World::local(2)->run([&](Rank&) {
    const auto placed = [&](const Numbers& x, const char* layout) {
      return distribute(made(x), DistSpec::parse(mesh, layout));
    };
    const Tensor rate = placed({0.5}, "-");
    // The first parameter is sharded, the second one is not, and its gradient is pending.
    const auto values = [&] { return std::vector<Tensor>{placed({1, 2, 3}, "dp"), placed({4, 5}, "-")}; };
    const std::vector<Tensor> grads = {placed({6, 7, 8}, "-"),
                                       reshard(placed({9, 1}, "-"), DistSpec::parse(mesh, "- | sum(dp)"))};
    std::vector<Tensor> params = values(), states = values(), masters, single = values(), single_states = values();
    merged_momentum_(params, grads, states, {rate}, masters, 0.5f, true);
    Tensor none;
    for (size_t i = 0; i < 2; ++i) {
      const DistSpec* layout = spec_of(params[i]);
      momentum_(single[i], grads[i], single_states[i], rate, none, 0.5f, true);
      test::check(spec_of(single[i]) == layout && spec_of(states[i]) == spec_of(single_states[i]), "layouts stay");
      test::check(test::full_equals(params[i], full_tensor(single[i]).to_vector<double>()), "parameters");
      test::check(test::full_equals(states[i], full_tensor(single_states[i]).to_vector<double>()), "velocities");
    }
  });
}

namespace {

/// Parameters with all that a step of Adam writes.
struct AdamState {
  std::vector<Tensor> params, moments1, moments2, powers1, powers2, masters;

  std::vector<Tensor> all() const {
    std::vector<Tensor> tensors;
    for (const auto* list : {&params, &moments1, &moments2, &powers1, &powers2, &masters})
      tensors.insert(tensors.end(), list->begin(), list->end());
    return tensors;
  }
};

/// Bit for bit, in the same layouts. Collective.
void check_equal(const AdamState& actual, const AdamState& expected, const std::string& when) {
  const auto numbers = [](const Tensor& x) {
    return cast(full_tensor(x).to(kCpu), DType::float64).to_vector<double>();
  };
  const std::vector<Tensor> ours = actual.all(), theirs = expected.all();
  for (size_t i = 0; i < theirs.size(); ++i) {
    test::check(spec_of(ours[i]) == spec_of(theirs[i]), "layouts stay");
    test::check(numbers(ours[i]) == numbers(theirs[i]), fmt::format("tensor {} {}", i, when));
  }
}

/// Steps of fused_adam_, eager and in a program, and of adamw_ or adam_ of each parameter, on this rank of two.
void compare_fused_adam(Device device, DType dtype, bool decays) {
  const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"dp"});
  const bool narrow = size_of(dtype) == 2;
  const DType wide = narrow ? DType::float32 : dtype;
  const auto placed = [&](const Numbers& x, const char* layout, DType type) {
    return distribute(cast(made(x), type).to(device), DistSpec::parse(mesh, layout));
  };
  const Numbers values[] = {{1.3, -2.7, 3.1}, {4.9, 5.3}};
  const char* const layouts[] = {"dp", "-"};
  const auto start = [&] {
    AdamState state;
    for (int i = 0; i < 2; ++i) {
      state.params.push_back(placed(values[i], layouts[i], dtype));
      if (narrow) state.masters.push_back(placed(values[i], layouts[i], wide));
      for (auto* moments : {&state.moments1, &state.moments2})
        moments->push_back(cast(full_like(state.params[i], 0.0), wide));
      state.powers1.push_back(placed({0.75}, "-", wide));
      state.powers2.push_back(placed({0.875}, "-", wide));
    }
    return state;
  };
  const Tensor rate = placed({0.1}, "-", wide);
  const auto fused = [&](AdamState& s, const std::vector<Tensor>& grads, const Tensor& skip) {
    fused_adam_(s.params, grads, rate, s.moments1, s.moments2, s.powers1, s.powers2, s.masters, skip, 0.75, 0.875, 1e-3,
                65536, 0.3f, decays, narrow, false);
  };
  AdamState eager = start(), captured = start(), single = start();
  CapturedFunction program(
      [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
        fused(captured, {in[0], in[1]}, in[2]);
        return {captured.params[0]};
      },
      {});
  for (int step = 0; step < 4; ++step) {
    const Tensor skip = distribute(full({1}, step == 1, DType::boolean).to(device), DistSpec::replicated(mesh, 1));
    // A gradient in another layout than its parameter, and one that is pending.
    const std::vector<Tensor> grads = {
        placed({6.1, 7.7 - step, -8.3}, "-", dtype),
        reshard(placed({9.1, 1.9 + step}, "-", dtype), DistSpec::parse(mesh, "- | sum(dp)"))};
    fused(eager, grads, skip);
    program({grads[0], grads[1], skip});
    for (size_t i = 0; i < 2; ++i) {
      Tensor none;
      Tensor& master = narrow ? single.masters[i] : none;
      if (decays) {
        adamw_(single.params[i], grads[i], rate, single.moments1[i], single.moments2[i], single.powers1[i],
               single.powers2[i], master, skip, 0.75, 0.875, 1e-3, 1.0f, 0.3f, true, narrow);
      } else {
        adam_(single.params[i], grads[i], rate, single.moments1[i], single.moments2[i], single.powers1[i],
              single.powers2[i], master, skip, 0.75, 0.875, 1e-3, false, 1000, narrow);
      }
    }
    for (const AdamState* state : {&eager, &captured})
      check_equal(*state, single, fmt::format("after step {} on {}", step, to_string(dtype)));
  }
}

}  // namespace

TEST_CASE("fused_adam_ takes the steps of adamw_ or adam_ of each parameter in its own layout, bit for bit") {
  std::vector<Device> devices = {kCpu};
  if (const int cuda = find_backend("cuda"); cuda >= 0) devices.push_back({static_cast<uint8_t>(cuda), 0});
  for (const Device device : devices) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
      World::local(2)->run([&](Rank&) {
        for (const bool decays : {true, false}) compare_fused_adam(device, dtype, decays);
      });
    }
  }
}

TEST_CASE("numbers of an Adam step on another device than its parameter are refused") {
  const int cuda = find_backend("cuda");
  if (cuda < 0) return;
  const Device device{static_cast<uint8_t>(cuda), 0};
  const auto there = [&] { return made({1}).to(device); };
  Tensor param = there(), moment1 = there(), moment2 = there(), power1 = there(), power2 = there(),
         power_here = made({1}), none;
  const Tensor skip_here = Tensor::from_data(std::vector<bool>{false}, {1});
  const auto step = [&](Tensor& first_power, const Tensor& skip) {
    adam_(param, there(), there(), moment1, moment2, first_power, power2, none, skip);
  };
  step(power1, {});
  CHECK_THROWS_WITH(step(power_here, {}), Catch::Contains("arguments are on different devices"));
  CHECK_THROWS_WITH(step(power1, skip_here), Catch::Contains("copy one with to(device)"));
  std::vector<Tensor> params = {param}, moments1 = {moment1}, moments2 = {moment2}, powers1 = {power_here},
                      powers2 = {power2}, masters;
  CHECK_THROWS_WITH(fused_adam_(params, {there()}, there(), moments1, moments2, powers1, powers2, masters, {}, 0.5f,
                                0.5f, 1e-2f, 65536, 0.5f, true, false, false),
                    Catch::Contains("arguments are on different devices"));
}

TEST_CASE("clip_by_norm shortens only what is too long") {
  CHECK(clip_by_norm(made({3, -4}), 2.5f).to_vector<double>() == Numbers{1.5, -2});
  CHECK(clip_by_norm(made({3, -4}), 8).to_vector<double>() == Numbers{3, -4});
  CHECK(clip_by_norm(made({0, 0}), 1).to_vector<double>() == Numbers{0, 0});
  CHECK_THROWS_WITH(clip_by_norm(made({3}), 0), Catch::Contains("max_norm is 0, but must be positive"));
}

TEST_CASE("check_finite_and_unscale_ finds an element that is not finite in any tensor") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double odd : {1.0, inf, -inf, std::nan("")}) {
    std::vector<Tensor> x = {made({2, 4}), made({odd})};
    const auto [out, found] = check_finite_and_unscale_(x, made({4}));
    CHECK(found.to_vector<bool>()[0] == !std::isfinite(odd));
    CHECK(x[0].to_vector<double>() == Numbers{0.5, 1});
  }
  std::vector<Tensor> half = {cast(made({60000}), DType::float16)};
  CHECK_FALSE(std::get<1>(check_finite_and_unscale_(half, made({2}))).to_vector<bool>()[0]);
  const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"dp"});
  World::local(3)->run([&](Rank&) {  // one rank alone has the element that is not finite
    std::vector<Tensor> x = {distribute(made({1, 2, inf}), DistSpec::parse(mesh, "dp")),
                             distribute(made({1, 2}), DistSpec::parse(mesh, "-"))};
    const Tensor scale = distribute(made({2}), DistSpec::replicated(mesh, 1));
    test::check(full_tensor(std::get<1>(check_finite_and_unscale_(x, scale))).to_vector<bool>()[0],
                "found on each rank");
  });
}

TEST_CASE("update_loss_scaling_ counts steps in a row") {
  std::vector<Tensor> x = {made({5, 6})};
  Tensor scaling = made({8}), good = Tensor::from_data(std::vector<int>{0}, {1}),
         bad = Tensor::from_data(std::vector<int>{0}, {1});
  const auto step = [&](bool found, bool stop = false) {
    update_loss_scaling_(x, full({1}, found, DType::boolean), scaling, good, bad, 3, 2, 4, 0.25f, stop);
    return Numbers{cast(scaling, DType::float64).to_vector<double>()[0], double(good.to_vector<int>()[0]),
                   double(bad.to_vector<int>()[0])};
  };
  CHECK(step(false) == Numbers{8, 1, 0});
  CHECK(step(false) == Numbers{8, 2, 0});
  CHECK(step(false) == Numbers{32, 0, 0});
  CHECK(x[0].to_vector<double>() == Numbers{5, 6});
  CHECK(step(true) == Numbers{32, 0, 1});
  CHECK(x[0].to_vector<double>() == Numbers{0, 0});
  CHECK(step(false) == Numbers{32, 1, 0});
  CHECK(step(true) == Numbers{32, 0, 1});
  CHECK(step(true) == Numbers{8, 0, 0});
  CHECK(step(true, true) == Numbers{8, 0, 0});
  CHECK(step(true) == Numbers{8, 0, 1});
  CHECK(step(true) == Numbers{2, 0, 0});
  CHECK((step(true), step(true)) == Numbers{1, 0, 0});  // not below 1
  scaling = cast(made({60000}), DType::float16);
  step(false), step(false), step(false);
  CHECK(cast(scaling, DType::float64).to_vector<double>()[0] == 60000 - 60000 % 32);  // not infinite
}

TEST_CASE("optimisers name the argument that does not fit") {
  Tensor param = made({1, 2}), wrong = made({1}), state = made({0, 0}), none, half = cast(state, DType::float16);
  CHECK_THROWS_WITH(momentum_(param, wrong, state, rate(), none, 0.5f), Catch::Contains("grad is"));
  CHECK_THROWS_WITH(momentum_(param, param, half, rate(), none, 0.5f), Catch::Contains("velocity is"));
  CHECK_THROWS_WITH(momentum_(param, param, state, state, none, 0.5f), Catch::Contains("learning_rate is"));
  CHECK_THROWS_WITH(momentum_(param, param, state, rate(), none, 0.5f, false, "l1"),
                    Catch::Contains("regularization_method is \"l1\""));
  CHECK_THROWS_WITH(momentum_(param, param, state, rate(), none, 0.5f, false, "", 0, true),
                    Catch::Contains("multi_precision keeps param in float32"));
  Tensor narrow = cast(param, DType::bfloat16), narrow_state = cast(state, DType::bfloat16);
  CHECK_THROWS_WITH(momentum_(narrow, narrow, narrow_state, rate(), none, 0.5f, false, "", 0, true),
                    Catch::Contains("multi_precision needs master_param"));
  Tensor second = made({0, 0});
  CHECK_THROWS_WITH(rmsprop_(param, state, param, second, rate(), none, none, 0.5f, 0.5f, 0.5f, true),
                    Catch::Contains("centered needs mean_grad"));
  CHECK_THROWS_WITH(rprop_(param, param, state, second, none, rate(), rate()),
                    Catch::Contains("learning_rate_range is"));
  std::vector<Tensor> two = {made({1, 2}), made({3})}, two_states = {made({0, 0}), made({0})}, no_masters,
                      few = {made({0, 0})};
  CHECK_THROWS_WITH(merged_momentum_(two, few, two_states, {rate()}, no_masters, 0.5f),
                    Catch::Contains("grad has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_momentum_(two, two, two_states, {}, no_masters, 0.5f),
                    Catch::Contains("learning_rate has 0 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_momentum_(two, two, two_states, {rate()}, no_masters, 0.5f, false, {"l2_decay"}, {1}),
                    Catch::Contains("regularization_method has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_momentum_(two, two, two_states, {rate()}, no_masters, 0.5f, false, {"", ""}, {1}),
                    Catch::Contains("regularization_coeff has 1 entries, but regularization_method has 2"));
  CHECK_THROWS_WITH(merged_momentum_(two, two, two_states, {rate()}, no_masters, 0.5f, false, {}, {}, true),
                    Catch::Contains("master_param has 0 entries, but param has 2"));
  std::vector<Tensor> swapped = {made({0}), made({0, 0})};
  CHECK_THROWS_WITH(merged_momentum_(two, two, swapped, {rate()}, no_masters, 0.5f), Catch::Contains("velocity is"));
  std::vector<Tensor> powers = {rate(), rate()}, others = {made({0, 0}), made({0})}, one_power = {rate()};
  CHECK_THROWS_WITH(merged_adam_(two, two, {rate()}, two_states, others, powers, one_power, no_masters),
                    Catch::Contains("beta2_pow has 1 entries, but param has 2"));
  const auto fused = [&](const std::vector<Tensor>& grads, std::vector<Tensor>& last_powers, const Tensor& skip,
                         bool multi_precision) {
    fused_adam_(two, grads, rate(), two_states, others, powers, last_powers, no_masters, skip, 0.5f, 0.5f, 1e-2f, 65536,
                0.5f, true, multi_precision, false);
  };
  CHECK_THROWS_WITH(fused(few, powers, {}, false), Catch::Contains("grads has 1 entries, but params has 2"));
  CHECK_THROWS_WITH(fused(two, one_power, {}, false), Catch::Contains("beta2_pows has 1 entries, but params has 2"));
  CHECK_THROWS_WITH(fused(two, powers, {}, true), Catch::Contains("master_params has 0 entries, but params has 2"));
  CHECK_THROWS_WITH(fused(two, powers, rate(), false), Catch::Contains("skip_update is"));
  std::vector<Tensor> mixed = {made({1}), cast(made({1}), DType::float32)};
  CHECK_THROWS_WITH(check_finite_and_unscale_(mixed, rate()), Catch::Contains("x[1]"));
  std::vector<Tensor> no_params, no_states;
  CHECK_THROWS_WITH(check_finite_and_unscale_(no_params, rate()),
                    Catch::Contains("x is empty, but must have a tensor"));
  CHECK_THROWS_WITH(merged_momentum_(no_params, {}, no_states, {rate()}, no_masters, 0.5f),
                    Catch::Contains("param is empty"));
  std::vector<Tensor> one = {made({1})};
  Tensor scaling = made({8}), good = made({0}), bad = Tensor::from_data(std::vector<int>{0}, {1});
  CHECK_THROWS_WITH(update_loss_scaling_(one, full({1}, true, DType::boolean), scaling, good, bad, 3, 2, 4, 0.25f),
                    Catch::Contains("in_good_steps is"));
}

}  // namespace optimizer_test
