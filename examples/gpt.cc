#include "gpt.h"

#include <cmath>
#include <limits>

#include <shard/shard.h>

using namespace shard;

namespace training {

Tensor Norm::operator()(const Tensor& x) const { return layer_norm(x, gain, shift, 1e-5f, x.dims().rank() - 1); }

// Where the weight is sharded by rows, adding the bias reduces the products over tp.
Tensor Linear::operator()(const Tensor& x) const { return add(matmul(x, weight), bias); }

Gpt::Gpt(const ProcessMesh* mesh, const GptSize& size, DType dtype) : mesh_(mesh), size_(size), dtype_(dtype) {
  const int64_t width = size.width;
  characters_ = normal({size.alphabet, width}, "tp, -", 0.02);
  positions_ = normal({size.context, width}, "-, -", 0.02);
  if (!size.flash) mask_ = causal_mask();
  // The elements of a braced list are evaluated in their order.
  for (int64_t i = 0; i < size.layers; ++i) {
    layers_.push_back({norm(), norm(), by_columns(width, 3 * width), by_rows(width, width),
                       by_columns(width, 4 * width), by_rows(4 * width, width)});
  }
  last_ = norm();
  scores_ = by_columns(width, size.alphabet);
}

Tensor Gpt::normal(const IntArray& shape, std::string_view layout, double deviation) {
  return parameters_.emplace_back(
      gaussian(shape, DistSpec::parse(mesh_, layout), 0.0f, static_cast<float>(deviation), 0, dtype_));
}

Tensor Gpt::constant(const IntArray& shape, std::string_view layout, double value) {
  return parameters_.emplace_back(shard::full(shape, value, DistSpec::parse(mesh_, layout), dtype_));
}

Norm Gpt::norm() { return {constant({size_.width}, "-", 1), constant({size_.width}, "-", 0)}; }

Linear Gpt::by_columns(int64_t in, int64_t out) { return {normal({in, out}, "-, tp", 0.02), constant({out}, "tp", 0)}; }

Linear Gpt::by_rows(int64_t in, int64_t out) {
  // Smaller for more layers, so that their sum stays small.
  return {normal({in, out}, "tp, -", 0.02 / std::sqrt(2.0 * static_cast<double>(size_.layers))),
          constant({out}, "-", 0)};
}

/// The mask that is added to the scores: 0 where a query may see a key, minus infinity at later
/// keys.
Tensor Gpt::causal_mask() const {
  std::vector<double> values;
  for (int64_t query = 0; query < size_.context; ++query) {
    for (int64_t key = 0; key < size_.context; ++key)
      values.push_back(key <= query ? 0 : -std::numeric_limits<double>::infinity());
  }
  return distribute(cast(Tensor::from_data(values, {size_.context, size_.context}), dtype_),
                    DistSpec::parse(mesh_, "-, -"));
}

Tensor Gpt::attention(const GptLayer& layer, const Tensor& x) const {
  const int64_t head = size_.width / size_.heads;
  // The columns of a head are contiguous, so its q, k and v are on one rank.
  const Tensor heads = reshape(layer.qkv(x), {size_.batch, size_.context, size_.heads, 3 * head});
  const std::vector<Tensor> parts = split(heads, {head, head, head}, -1);
  Tensor mixed;
  if (size_.flash) {
    mixed = std::get<0>(flash_attn(parts[0], parts[1], parts[2], {}, {}, 0.0f, true));
  } else {
    const auto by_head = [](const Tensor& part) { return transpose(part, {0, 2, 1, 3}); };
    const Tensor scores =
        scale(matmul(by_head(parts[0]), by_head(parts[1]), false, true), 1 / std::sqrt(static_cast<double>(head)));
    mixed = by_head(matmul(softmax(add(scores, mask_)), by_head(parts[2])));
  }
  return layer.joined(reshape(mixed, {size_.batch, size_.context, size_.width}));
}

Tensor Gpt::loss(const Tensor& ids, const Tensor& next) const {
  Tensor x = add(embedding(ids, characters_), positions_);
  for (const GptLayer& layer : layers_) {
    x = add(x, attention(layer, layer.before_attention(x)));
    x = add(x, layer.down(gelu(layer.up(layer.before_mlp(x)))));
  }
  return mean(std::get<1>(cross_entropy_with_softmax(scores_(last_(x)), next)));
}

}  // namespace training
