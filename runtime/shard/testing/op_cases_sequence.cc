// Cases of the ops of sequence.yaml and of their gradients.
#include "shard/ops/sequence.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

constexpr int64_t kInputSize = 3, kHiddenSize = 2;

/// A recurrent network; x is [time, batch, kInputSize].
struct Network {
  std::string name, mode;
  int64_t layers, directions;
  bool lengths;
  float dropout;

  int64_t cells() const { return layers * directions; }
  size_t states() const { return mode == "LSTM" ? 2 : 1; }
  int64_t gates() const { return kHiddenSize * (mode == "LSTM" ? 4 : mode == "GRU" ? 3 : 1); }
};

const std::vector<Network> kNetworks = {
    {"LSTM", "LSTM", 1, 1, false, 0},
    {"GRU, lengths", "GRU", 1, 1, true, 0},
    {"two layers of RNN_TANH in both directions, lengths", "RNN_TANH", 2, 2, true, 0},
    {"two layers of RNN_RELU, dropout", "RNN_RELU", 2, 1, false, 0.5f},
};

/// x, states, weights, and lengths.
std::vector<CaseInput> inputs_of(const Network& net, Draw& draw, int64_t time, int64_t batch) {
  std::vector<CaseInput> inputs = {draw.input({time, batch, kInputSize})};
  for (size_t i = 0; i < net.states(); ++i) inputs.push_back(draw.input({net.cells(), batch, kHiddenSize}));
  for (int64_t cell = 0; cell < net.cells(); ++cell) {
    const int64_t width = cell < net.directions ? kInputSize : net.directions * kHiddenSize;
    inputs.push_back(draw.input({net.gates(), width}).between(-1, 1));
    inputs.push_back(draw.input({net.gates(), kHiddenSize}).between(-1, 1));
  }
  for (int64_t i = 0; i < 2 * net.cells(); ++i) inputs.push_back(draw.input({net.gates()}).between(-1, 1));
  if (net.lengths) inputs.push_back(draw.input({batch}).of(DType::int64).between(0, time));
  return inputs;
}

/// The arguments of a call, from the tensors of inputs_of.
struct Arguments {
  Tensor x;
  Tensors states, weights;
  Tensor lengths;
  size_t count;  // of the tensors

  Arguments(const Network& net, const Tensors& t) : x(t[0]) {
    const auto weights_at = t.begin() + 1 + static_cast<ptrdiff_t>(net.states());
    const auto end = weights_at + static_cast<ptrdiff_t>(4 * net.cells());
    states.assign(t.begin() + 1, weights_at);
    weights.assign(weights_at, end);
    if (net.lengths) lengths = *end;
    count = static_cast<size_t>(end - t.begin()) + (net.lengths ? 1 : 0);
  }
};

constexpr int kSeed = 7;

Tensors run_rnn(const Network& net, const Tensors& t) {
  const Arguments a(net, t);
  auto [out, mask, states] = rnn(a.x, a.states, a.weights, a.lengths, {}, net.dropout, net.directions == 2, kInputSize,
                                 kHiddenSize, static_cast<int>(net.layers), net.mode, kSeed);
  Tensors all = {out, mask};
  all.insert(all.end(), states.begin(), states.end());
  return all;
}

/// The gradients, by what the forward op keeps for them.
Tensors run_rnn_grad(const Network& net, const Tensors& t) {
  const Arguments a(net, t);
  const bool both = net.directions == 2;
  const auto layers = static_cast<int>(net.layers);
  const auto forward = rnn_intermediate(a.x, a.states, a.weights, a.lengths, {}, net.dropout, both, kInputSize,
                                        kHiddenSize, layers, net.mode, kSeed);
  const Tensors state_grads(t.begin() + static_cast<ptrdiff_t>(a.count) + 1, t.end());
  auto [x_grad, of_states, of_weights] =
      rnn_grad(a.x, a.states, a.weights, a.lengths, std::get<1>(forward), std::get<3>(forward), t[a.count], state_grads,
               net.dropout, both, kInputSize, kHiddenSize, layers, net.mode, kSeed, false);
  Tensors all = {x_grad};
  all.insert(all.end(), of_states.begin(), of_states.end());
  all.insert(all.end(), of_weights.begin(), of_weights.end());
  return all;
}

void add_networks(OpCases& cases) {
  for (const Network& net : kNetworks) {
    cases.push_back({"rnn", net.name, kFloats, [=](Draw& draw) {
                       const int64_t time = draw.between(1, 3), batch = draw.size();
                       return CaseCall{inputs_of(net, draw, time, batch), [=](Tensors& t) { return run_rnn(net, t); }};
                     }});
    cases.push_back({"rnn_grad", net.name, kFloats,
                     [=](Draw& draw) {
                       const int64_t time = draw.between(1, 3), batch = draw.size();
                       std::vector<CaseInput> inputs = inputs_of(net, draw, time, batch);
                       inputs.push_back(draw.input({time, batch, net.directions * kHiddenSize}));
                       for (size_t i = 0; i < net.states(); ++i)
                         inputs.push_back(draw.input({net.cells(), batch, kHiddenSize}));
                       return CaseCall{inputs, [=](Tensors& t) { return run_rnn_grad(net, t); }};
                     },
                     64, "gradients of weights are added up over the batch in another order"});
  }
}

void add_ctc(OpCases& cases) {
  for (const bool normed : {false, true}) {
    const std::string name = normed ? "the last class is blank, norm_by_times, int32" : "the first class is blank";
    const int blank = normed ? 3 : 0;
    const auto make = [=](bool grad, auto run) {
      return [=](Draw& draw) {
        const int64_t time = draw.between(1, 4), batch = draw.size();
        const DType integers = normed ? DType::int32 : DType::int64;
        const CaseInput logits = draw.input({time, batch, 4}), lengths = draw.input({batch}).of(integers);
        std::vector<CaseInput> inputs = {logits,
                                         draw.input({batch, 2}).of(integers).between(normed ? 0 : 1, normed ? 2 : 3),
                                         lengths.between(0, time), lengths.between(0, 2)};
        if (grad) inputs.insert(inputs.end(), {logits, draw.input({batch, 1})});
        return CaseCall{inputs, run};
      };
    };
    cases.push_back({"warpctc", name, kFloats, make(false, [=](Tensors& t) {
                       const auto [loss, gradient] = warpctc_intermediate(t[0], t[1], t[2], t[3], blank, normed);
                       return Tensors{loss, gradient};
                     })});
    cases.push_back({"warpctc_grad", name, kFloats, make(true, [=](Tensors& t) {
                       return Tensors{warpctc_grad(t[0], t[1], t[2], t[3], t[4], t[5], blank, normed)};
                     })});
  }
}

void add_decoders(OpCases& cases) {
  for (const bool ends : {true, false}) {
    cases.push_back({"viterbi_decode", ends ? "a start and a stop" : "without ends", kFloats, [=](Draw& draw) {
                       const int64_t time = draw.between(1, 4), batch = draw.size();
                       return CaseCall{{draw.input({batch, time, 3}), draw.input({3, 3}),
                                        draw.input({batch}).of(DType::int64).between(1, time)},
                                       [=](Tensors& t) {
                                         const auto [scores, path] = viterbi_decode(t[0], t[1], t[2], ends);
                                         return Tensors{scores, path};
                                       }};
                     }});
  }
  cases.push_back({"gather_tree", "two beams", {DType::int32, DType::int64}, [](Draw& draw) {
                     const Dims dims = {draw.between(1, 4), draw.size(), 2};
                     return CaseCall{{draw.input(dims), draw.input(dims).between(0, 1)},
                                     [](Tensors& t) { return Tensors{gather_tree(t[0], t[1])}; }};
                   }});
}

}  // namespace

void add_sequence_cases(OpCases& cases) {
  add_networks(cases);
  add_ctc(cases);
  add_decoders(cases);
}

}  // namespace shard::testing
