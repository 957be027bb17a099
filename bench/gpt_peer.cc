// The GPT of examples/gpt.cc, written with libtorch.
#include "gpt_peer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>

namespace {

using at::Tensor;

class Gpt final : public GptPeer {
 public:
  Gpt(const GptPeerSize& size, const std::vector<std::vector<float>>& parameters, double rate)
      : size_(size), mask_(causal_mask(size.context)) {
    const int64_t width = size.width;
    auto from = parameters.begin();
    const auto next = [&](at::IntArrayRef shape) {
      return at::from_blob(const_cast<float*>((from++)->data()), shape, at::kFloat);
    };
    const auto leaf = [&](const Tensor& value) {
      parameters_.push_back(value.clone().set_requires_grad(true));
      return parameters_.back();
    };
    const auto norm = [&] { return Affine{leaf(next({width})), leaf(next({width}))}; };
    // libtorch stores weights as [out, in].
    const auto linear = [&](int64_t in, int64_t out) {
      return Affine{leaf(next({in, out}).t().contiguous()), leaf(next({out}))};
    };
    characters_ = leaf(next({size.alphabet, width}));
    positions_ = leaf(next({size.context, width}));
    for (int64_t i = 0; i < size.layers; ++i) {
      layers_.push_back({norm(), norm(), linear(width, 3 * width), linear(width, width), linear(width, 4 * width),
                         linear(4 * width, width)});
    }
    last_ = norm();
    scores_ = linear(width, size.alphabet);
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        parameters_, torch::optim::AdamWOptions(rate).betas({0.9, 0.99}).eps(1e-8).weight_decay(0.01));
  }

  double step(const std::vector<int64_t>& ids, const std::vector<int64_t>& next) override {
    const auto batch = [&](const std::vector<int64_t>& values) {
      return at::from_blob(const_cast<int64_t*>(values.data()), {size_.batch, size_.context}, at::kLong);
    };
    const Tensor result = loss(batch(ids), batch(next));
    result.backward();
    optimizer_->step();
    for (Tensor& parameter : parameters_) parameter.mutable_grad() = Tensor();
    return result.item<double>();
  }

 private:
  struct Affine {
    Tensor weight, bias;
  };
  struct Layer {
    Affine before_attention, before_mlp, qkv, joined, up, down;
  };

  static Tensor causal_mask(int64_t context) {
    return at::full({context, context}, -std::numeric_limits<float>::infinity(), at::kFloat).triu(1);
  }
  Tensor normalised(const Affine& norm, const Tensor& x) const {
    return at::layer_norm(x, {size_.width}, norm.weight, norm.bias, 1e-5);
  }
  static Tensor product(const Affine& linear, const Tensor& x) { return at::linear(x, linear.weight, linear.bias); }

  Tensor attention(const Layer& layer, const Tensor& x) const {
    const int64_t head = size_.width / size_.heads;
    const std::vector<Tensor> parts =
        product(layer.qkv, x).view({size_.batch, size_.context, size_.heads, 3 * head}).split(head, -1);
    const auto by_head = [](const Tensor& part) { return part.transpose(1, 2); };
    const Tensor scores =
        at::matmul(by_head(parts[0]), by_head(parts[1]).transpose(-2, -1)) * (1 / std::sqrt(static_cast<double>(head)));
    const Tensor mixed = by_head(at::matmul(at::softmax(scores + mask_, -1), by_head(parts[2])));
    return product(layer.joined, mixed.reshape({size_.batch, size_.context, size_.width}));
  }

  Tensor loss(const Tensor& ids, const Tensor& next) const {
    Tensor x = at::embedding(characters_, ids) + positions_;
    for (const Layer& layer : layers_) {
      x = x + attention(layer, normalised(layer.before_attention, x));
      x = x + product(layer.down, at::gelu(product(layer.up, normalised(layer.before_mlp, x))));
    }
    return at::cross_entropy_loss(product(scores_, normalised(last_, x)).view({-1, size_.alphabet}), next.view({-1}));
  }

  const GptPeerSize size_;
  const Tensor mask_;
  std::vector<Tensor> parameters_;
  Tensor characters_, positions_;
  std::vector<Layer> layers_;
  Affine last_, scores_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

}  // namespace

std::unique_ptr<GptPeer> make_gpt_peer(const GptPeerSize& size, const std::vector<std::vector<float>>& parameters,
                                       double rate) {
  return std::make_unique<Gpt>(size, parameters, rate);
}

void set_gpt_peer_threads(int threads) { at::set_num_threads(threads); }
