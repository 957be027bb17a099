#include "models.h"

#include <cmath>
#include <memory>

#include <shard/shard.h>

#include "gpt.h"

namespace model_bench {
namespace {

using namespace shard;
using Tensors = std::vector<Tensor>;

constexpr int64_t kAlphabet = 80;

/// Makes the parameters of a model in the order of their use.
class Parameters {
 public:
  explicit Parameters(const ProcessMesh* mesh) : mesh_(mesh) {}
  Tensor normal(const IntArray& shape, double deviation) {
    return made_.emplace_back(gaussian(shape, layout(shape), 0.0f, static_cast<float>(deviation)));
  }
  Tensor constant(int64_t size, double value) { return made_.emplace_back(state(size, value)); }
  /// A tensor that is not trained.
  Tensor state(int64_t size, double value) const { return full({size}, value, layout({size})); }
  const Tensors& made() const { return made_; }

 private:
  const DistSpec* layout(const IntArray& shape) const {
    return DistSpec::replicated(mesh_, static_cast<int>(shape.size()));
  }
  const ProcessMesh* mesh_;
  Tensors made_;
};

Tensor on_mesh(const ProcessMesh* mesh, const Tensor& x) {
  return distribute(x, DistSpec::replicated(mesh, x.dims().rank()));
}

/// Characters and those that follow them, by a rule that can be learned: int64 of this shape.
Tensors characters(const ProcessMesh* mesh, training::Draw& draw, const Dims& shape, int64_t alphabet = kAlphabet) {
  std::vector<int64_t> ids, next;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    ids.push_back(draw.below(alphabet));
    next.push_back((ids.back() * 7 + 3) % alphabet);
  }
  return {on_mesh(mesh, Tensor::from_data(ids, shape)), on_mesh(mesh, Tensor::from_data(next, shape))};
}

Tensor mean_loss(const Tensor& scores, const Tensor& labels) {
  return mean(std::get<1>(cross_entropy_with_softmax(scores, labels)));
}

Model gpt(const ProcessMesh* mesh, const training::GptSize& size, DType dtype) {
  const auto model = std::make_shared<training::Gpt>(mesh, size, dtype);
  const auto draw = std::make_shared<training::Draw>(1);
  return {{model->parameters(),
           [=] {
             return characters(mesh, *draw, {size.batch, size.context}, size.alphabet);
           },
           [=](const Tensors& in) { return model->loss(in[0], in[1]); }}};
}

/// A convolution without bias, and the normalisation of its result.
struct ConvNorm {
  Tensor filter, scale, shift, mean, variance;
  int64_t stride, padding;

  ConvNorm(Parameters& parameters, int64_t in, int64_t out, int64_t side, int64_t stride)
      : filter(parameters.normal({out, in, side, side}, std::sqrt(2.0 / static_cast<double>(in * side * side)))),
        scale(parameters.constant(out, 1)), shift(parameters.constant(out, 0)), mean(parameters.state(out, 0)),
        variance(parameters.state(out, 1)), stride(stride), padding(side / 2) {}
  Tensor operator()(const Tensor& x) const {
    return std::get<0>(
        batch_norm(conv2d(x, filter, {stride, stride}, {padding, padding}), mean, variance, scale, shift));
  }
};

struct Block {
  ConvNorm first, second;
  std::vector<ConvNorm> shortcut;  // none where the block keeps the shape

  Block(Parameters& parameters, int64_t in, int64_t out, int64_t stride)
      : first(parameters, in, out, 3, stride), second(parameters, out, out, 3, 1) {
    if (stride != 1 || in != out) shortcut.emplace_back(parameters, in, out, 1, stride);
  }
  Tensor operator()(const Tensor& x) const {
    return relu(add(second(relu(first(x))), shortcut.empty() ? x : shortcut.front()(x)));
  }
};

/// The network of 18 layers of He et al. 2016.
struct Resnet {
  static constexpr int64_t kBatch = 4, kSide = 112, kClasses = 100;
  Parameters parameters;
  ConvNorm stem;
  std::vector<Block> blocks;
  Tensor weight, bias;

  explicit Resnet(const ProcessMesh* mesh) : parameters(mesh), stem(parameters, 3, 64, 7, 2) {
    int64_t in = 64;
    for (const int64_t out : {64, 128, 256, 512}) {
      blocks.emplace_back(parameters, in, out, out == 64 ? 1 : 2);
      blocks.emplace_back(parameters, out, out, 1);
      in = out;
    }
    weight = parameters.normal({in, kClasses}, 0.02);
    bias = parameters.constant(kClasses, 0);
  }
  Tensor loss(const Tensor& images, const Tensor& labels) const {
    Tensor x = pool2d(relu(stem(images)), {3, 3}, {2, 2}, {1, 1}, false, true, "NCHW", "max");
    for (const Block& block : blocks) x = block(x);
    return mean_loss(add(matmul(mean(x, {2, 3}), weight), bias), labels);
  }
};

Model resnet(const ProcessMesh* mesh) {
  const auto model = std::make_shared<Resnet>(mesh);
  return {{model->parameters.made(),
           [=] {
             const Tensor images = uniform({Resnet::kBatch, 3, Resnet::kSide, Resnet::kSide}, DType::float32, -2, 2);
             const Tensor labels = randint(0, static_cast<int>(Resnet::kClasses), {Resnet::kBatch});
             return Tensors{on_mesh(mesh, images), on_mesh(mesh, labels)};
           },
           [=](const Tensors& in) { return model->loss(in[0], in[1]); }},
          /*updates=*/false};
}

/// One layer over the characters of a text, time first.
struct Lstm {
  static constexpr int64_t kSteps = 64, kBatch = 32, kWidth = 256;
  Parameters parameters;
  Tensor embedded, input, recurrent, input_bias, recurrent_bias, weight, bias, none;

  explicit Lstm(const ProcessMesh* mesh) : parameters(mesh) {
    embedded = parameters.normal({kAlphabet, kWidth}, 1);
    input = parameters.normal({4 * kWidth, kWidth}, 0.06);
    recurrent = parameters.normal({4 * kWidth, kWidth}, 0.06);
    input_bias = parameters.constant(4 * kWidth, 0);
    recurrent_bias = parameters.constant(4 * kWidth, 0);
    weight = parameters.normal({kWidth, kAlphabet}, 0.06);
    bias = parameters.constant(kAlphabet, 0);
    none = on_mesh(mesh, zeros({1, kBatch, kWidth}));
  }
  Tensor loss(const Tensor& ids, const Tensor& next) const {
    const Tensor x = embedding(ids, embedded);
    const Tensor states = std::get<0>(rnn(x, {none, none}, {input, recurrent, input_bias, recurrent_bias}, {}, {}, 0,
                                          false, kWidth, kWidth, 1, "LSTM"));
    return mean_loss(add(matmul(states, weight), bias), next);
  }
};

Model lstm(const ProcessMesh* mesh) {
  const auto model = std::make_shared<Lstm>(mesh);
  const auto draw = std::make_shared<training::Draw>(1);
  return {{model->parameters.made(),
           [=] {
             return characters(mesh, *draw, {Lstm::kSteps, Lstm::kBatch});
           },
           [=](const Tensors& in) { return model->loss(in[0], in[1]); }}};
}

}  // namespace

std::map<std::string, std::function<Model(const ProcessMesh*)>> models() {
  const auto sized = [](const training::GptSize& size, DType dtype = DType::float32) {
    return [=](const ProcessMesh* mesh) { return gpt(mesh, size, dtype); };
  };
  std::map<std::string, std::function<Model(const ProcessMesh*)>> all = {
      {"gpt 2x64", sized({kAlphabet, 2, 4, 64, 16, 64, /*flash=*/true})},
      {"gpt 4x256", sized({kAlphabet, 4, 8, 256, 8, 128, /*flash=*/true})},
      {"lstm", lstm},
      {"resnet", resnet}};
  // The size of GPT-2, too large for a processor.
  if (default_device() != kCpu)
    all["gpt 12x768 bf16"] = sized({50304, 12, 12, 768, 8, 1024, /*flash=*/true}, DType::bfloat16);
  return all;
}

}  // namespace model_bench
