// Ops of sequences: what their cases do not show, which are errors, ends, long sequences, and dropout between layers.
#include <catch2/catch.hpp>

#include <cmath>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace sequence_test {

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;

Tensor reals(const std::vector<double>& values, const Dims& dims) { return Tensor::from_data(values, dims); }
Tensor integers(const std::vector<int64_t>& values, const Dims& dims) { return Tensor::from_data(values, dims); }
std::vector<double> of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

/// Simple cells of one element, whose weights are 1 and whose biases are 0.
struct Chain {
  int layers = 1;
  bool both = false;
  Tensor lengths = {};
  float dropout = 0;
  bool is_test = false;
  int seed = 5;
  std::string mode = "RNN_RELU";

  Tensors weights() const {
    const int cells = layers * (both ? 2 : 1);
    Tensors all;
    for (int i = 0; i < 2 * cells; ++i) {
      const int64_t width = both && i % 2 == 0 && i >= 4 ? 2 : 1;
      all.push_back(full({1, width}, 1, DType::float64));
    }
    for (int i = 0; i < 2 * cells; ++i) all.push_back(zeros({1}, DType::float64));
    return all;
  }
  auto run(const Tensor& x, const Tensor& h) const {
    return rnn(x, {h}, weights(), lengths, {}, dropout, both, 1, 1, layers, mode, seed, is_test);
  }
};

}  // namespace

TEST_CASE("rnn stops at the end of each sequence, in both directions") {
  const Tensor x = reals({1, 10, 2, 20, 4, 40}, {3, 2, 1}), h = reals({100, 200, 300, 400}, {2, 2, 1});
  Chain chain;
  chain.both = true;
  chain.lengths = integers({2, 0}, {2});
  const auto [out, mask, states] = chain.run(x, h);
  CHECK(of(out) == std::vector<double>{101, 303, 0, 0, 103, 302, 0, 0, 0, 0, 0, 0});
  REQUIRE(states.size() == 1);
  CHECK(of(states[0]) == std::vector<double>{103, 200, 303, 400});
  CHECK(of(mask) == std::vector<double>(12, 1));
}

TEST_CASE("rnn of no steps and of no sequences keeps the states") {
  const Tensor h = reals({1, 2}, {1, 2, 1});
  const auto [out, mask, states] = Chain().run(zeros({0, 2, 1}, DType::float64), h);
  CHECK(out.dims() == Dims{0, 2, 1});
  CHECK(of(states[0]) == std::vector<double>{1, 2});
  const auto [none, masked, no_states] =
      Chain().run(zeros({3, 0, 1}, DType::float64), zeros({1, 0, 1}, DType::float64));
  CHECK(none.dims() == Dims{3, 0, 1});
  CHECK(no_states[0].dims() == Dims{1, 0, 1});
}

TEST_CASE("dropout of rnn is between layers, and upscales what it keeps") {
  const Tensor x = full({1, 64, 1}, 3, DType::float64), h = zeros({2, 64, 1}, DType::float64);
  Chain chain;
  chain.layers = 2;
  chain.dropout = 0.25f;
  const auto [out, mask, states] = chain.run(x, h);
  const std::vector<double> kept = of(mask), result = of(out);
  double count = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    CHECK(result[i] == Approx(kept[i] * 3 / 0.75));
    count += kept[i];
  }
  CHECK(count > 32);
  CHECK(count < 64);
  chain.is_test = true;
  CHECK(of(std::get<0>(chain.run(x, h))) == std::vector<double>(64, 3));
  chain.is_test = false;
  chain.dropout = 1;
  CHECK(of(std::get<0>(chain.run(x, h))) == std::vector<double>(64, 0));
}

TEST_CASE("rnn refuses arguments that do not fit") {
  const Tensor x = zeros({3, 2, 1}, DType::float64), h = zeros({1, 2, 1}, DType::float64);
  Chain chain;
  chain.mode = "lstm";
  check_refused([&] { chain.run(x, h); }, ErrorCode::invalid_argument, "mode is lstm");
  chain.mode = "LSTM";
  check_refused([&] { chain.run(x, h); }, ErrorCode::invalid_argument, "pre_state has 1 tensors");
  chain.mode = "GRU";
  check_refused([&] { chain.run(x, h); }, ErrorCode::shape_mismatch, "weight_list[0]");
  chain = {};
  check_refused([&] { chain.run(x, zeros({1, 3, 1}, DType::float64)); }, ErrorCode::shape_mismatch, "pre_state[0]");
  check_refused([&] { chain.run(zeros({3, 2, 4}, DType::float64), h); }, ErrorCode::shape_mismatch, "input_size");
  check_refused([&] { chain.run(cast(x, DType::float32), h); }, ErrorCode::dtype_mismatch, "pre_state[0]");
  chain.dropout = 2;
  check_refused([&] { chain.run(x, h); }, ErrorCode::invalid_argument, "dropout_prob is 2");
  chain = {};
  chain.lengths = integers({1, 4}, {2});
  check_refused([&] { chain.run(x, h); }, ErrorCode::out_of_range, "sequence_length is 4 at element 1");
  check_refused([&] { rnn(x, {h}, {}, {}, {}, 0, false, 1, 1); }, ErrorCode::invalid_argument, "weight_list has 0");
}

TEST_CASE("warpctc of a long sequence neither underflows nor loses digits") {
  const int64_t time = 2000;
  for (const DType dtype : {DType::float32, DType::float64}) {
    const Tensor logits = zeros({time, 2, 4}, dtype), lengths = integers({time, time}, {2});
    const std::vector<double> loss = of(warpctc(logits, integers({1, 1}, {2, 1}), lengths, integers({0, 1}, {2})));
    const double all = static_cast<double>(time) * std::log(4.0);
    CHECK(loss[0] == Approx(all));
    // The label may start at each step and end at each later one.
    CHECK(loss[1] == Approx(all - std::log(static_cast<double>(time * (time + 1) / 2))));
  }
}

TEST_CASE("warpctc is 0 where the labels need more steps") {
  const Tensor logits = reals({1, 0, 2, 1, 0, 3, 0, 1, 1, 2, 0, 1}, {2, 2, 3}).set_requires_grad(true);
  // Equal labels need a blank between them.
  const Tensor loss = warpctc(logits, integers({1, 1, 1, 2}, {2, 2}), integers({2, 1}, {2}), integers({2, 2}, {2}));
  CHECK(of(loss) == std::vector<double>{0, 0});
  sum(loss).backward();
  CHECK(of(logits.grad()) == std::vector<double>(12, 0));
}

TEST_CASE("norm_by_times of warpctc divides the gradient alone") {
  const auto run = [](bool normed) {
    const Tensor logits = reals({1, 0, 2, 1, 0, 3}, {2, 1, 3}).set_requires_grad(true);
    const Tensor loss = warpctc(logits, integers({2}, {1, 1}), integers({2}, {1}), integers({1}, {1}), 0, normed);
    sum(loss).backward();
    std::vector<double> all = of(loss);
    for (const double each : of(logits.grad())) all.push_back(each * (normed ? 2 : 1));
    return all;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("warpctc refuses labels and lengths that do not fit, but reads none beyond them") {
  const Tensor logits = zeros({2, 1, 3}), two = integers({2}, {1}), one = integers({1}, {1});
  const auto run = [&](const Tensor& label, const Tensor& time, const Tensor& count, int blank = 0) {
    warpctc(logits, label, time, count, blank);
  };
  run(integers({1, 99}, {1, 2}), two, one);
  check_refused([&] { run(integers({1, 3}, {1, 2}), two, two); }, ErrorCode::out_of_range, "label is 3");
  check_refused([&] { run(integers({1, 0}, {1, 2}), two, two); }, ErrorCode::out_of_range, "label is 0");
  check_refused(
      [&] {
        run(integers({1, 1}, {1, 2}), integers({3}, {1}), two);
      },
      ErrorCode::out_of_range, "logits_length is 3");
  check_refused([&] { run(integers({1}, {1, 1}), two, two); }, ErrorCode::out_of_range, "labels_length is 2");
  check_refused([&] { run(integers({1}, {1, 1}), two, one, 3); }, ErrorCode::invalid_argument, "blank is 3");
  check_refused([&] { run(integers({1}, {1}), two, one); }, ErrorCode::shape_mismatch, "label is");
  check_refused(
      [&] {
        warpctc(zeros({2, 3}), integers({1}, {1, 1}), two, one);
      },
      ErrorCode::shape_mismatch, "[time, batch, classes]");
}

TEST_CASE("viterbi_decode refuses lengths outside of time, and too few tags") {
  const Tensor potentials = zeros({1, 2, 3}), transitions = zeros({3, 3});
  for (const int64_t length : {0, 3}) {
    check_refused([&] { viterbi_decode(potentials, transitions, integers({length}, {1})); }, ErrorCode::out_of_range,
                  "must be from 1 to 2");
  }
  check_refused(
      [&] {
        viterbi_decode(potentials, zeros({3, 2}), integers({1}, {1}));
      },
      ErrorCode::shape_mismatch, "transition_params");
  check_refused(
      [&] {
        viterbi_decode(zeros({1, 2, 1}), zeros({1, 1}), integers({1}, {1}));
      },
      ErrorCode::invalid_argument, "at least 2 tags");
  const auto [scores, path] = viterbi_decode(zeros({0, 2, 3}), transitions, zeros({0}, DType::int64));
  CHECK(path.dims() == Dims{0, 2});
}

TEST_CASE("gather_tree refuses parents that are no beams, but does not read those of the first step") {
  const Tensor ids = integers({1, 2, 3, 4}, {2, 1, 2});
  CHECK(gather_tree(ids, integers({9, 9, 1, 0}, {2, 1, 2})).to_vector<int64_t>() == std::vector<int64_t>{2, 1, 3, 4});
  check_refused(
      [&] {
        gather_tree(ids, integers({0, 0, 0, 2}, {2, 1, 2}));
      },
      ErrorCode::out_of_range, "parents is 2 at element [1, 0, 1]");
  check_refused([&] { gather_tree(ids, integers({0, 0}, {2, 1, 1})); }, ErrorCode::shape_mismatch, "parents is");
  CHECK(gather_tree(zeros({0, 1, 2}, DType::int64), zeros({0, 1, 2}, DType::int64)).dims() == Dims{0, 1, 2});
}

}  // namespace sequence_test
