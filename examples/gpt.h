// A small GPT over characters, on a mesh with the axes "dp" and "tp"; train_gpt trains it and
// bench/model_bench measures it.
#pragma once

#include <vector>

#include <shard/shard.h>

namespace training {

struct GptSize {
  int64_t alphabet = 0;  // different characters
  int64_t layers = 2, heads = 4;
  int64_t width = 64;  // features of a character; the heads divide it
  int64_t batch = 16, context = 64;
  bool flash = false;  // attention by flash_attn, not by matmul and softmax
};

/// y = layer_norm(x) over the last dim.
struct Norm {
  shard::Tensor gain, shift;
  shard::Tensor operator()(const shard::Tensor& x) const;
};

/// y = x w + b.
struct Linear {
  shard::Tensor weight, bias;
  shard::Tensor operator()(const shard::Tensor& x) const;
};

struct GptLayer {
  Norm before_attention, before_mlp;
  Linear qkv, joined, up, down;
};

/// Batches are sharded over dp; heads, hidden features and characters over tp.
class Gpt {
 public:
  /// Random parameters of `dtype`, the same on every mesh, drawn from the generator of the world.
  Gpt(const shard::ProcessMesh* mesh, const GptSize& size, shard::DType dtype);

  /// The mean of -log(probability) of the characters that follow; `ids` and `next` are int64 [batch, context].
  shard::Tensor loss(const shard::Tensor& ids, const shard::Tensor& next) const;
  /// Characters [alphabet, width] and positions [context, width]; a layer's gains and shifts
  /// [width], weights [in, out] and biases [out] in the order of GptLayer; the last norm; and the
  /// weight and bias of the scores.
  const std::vector<shard::Tensor>& parameters() const { return parameters_; }

 private:
  shard::Tensor normal(const shard::IntArray& shape, std::string_view layout, double deviation);
  shard::Tensor constant(const shard::IntArray& shape, std::string_view layout, double value);
  Norm norm();
  Linear by_columns(int64_t in, int64_t out);
  Linear by_rows(int64_t in, int64_t out);
  shard::Tensor causal_mask() const;
  shard::Tensor attention(const GptLayer& layer, const shard::Tensor& x) const;

  const shard::ProcessMesh* mesh_;
  GptSize size_;
  shard::DType dtype_;
  std::vector<shard::Tensor> parameters_;
  shard::Tensor characters_, positions_, mask_;
  std::vector<GptLayer> layers_;
  Norm last_;
  Linear scores_;
};

}  // namespace training
