// Trains a small GPT on the characters of a text file, on dp x tp ranks: batches are split over dp; heads, hidden features and characters
// over tp. One program for one rank, threads and mpirun.
// usage: train_gpt --text FILE [--dp N] [--tp M] [..], or mpirun -n N*M train_gpt with the same options; see --help
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "api.h"
#include "reshard/execute.h"
#include "training.h"

using namespace shard;

namespace {

struct Options : training::Options {
  std::string text;
  int64_t layers = 2, heads = 4, width = 64, batch = 16, context = 64;
  bool flash = false;
};

/// A text as numbers of its own alphabet, the different bytes of it.
struct Corpus {
  std::vector<int64_t> ids;
  int64_t alphabet = 0;

  /// Throws invalid_argument for a text that has no piece of `context` characters and one more.
  Corpus(const std::string& path, int64_t context) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (static_cast<int64_t>(text.size()) <= context) {
      fail(ErrorCode::invalid_argument, "--text {}: has {} readable characters; more than the context of {} are needed", path, text.size(), context);
    }
    std::array<int64_t, 256> number{};
    for (const char c : text) number[static_cast<unsigned char>(c)] = 1;
    for (int64_t& n : number) n = n == 0 ? -1 : alphabet++;
    for (const char c : text) ids.push_back(number[static_cast<unsigned char>(c)]);
  }
};

/// Makes the parameters on a mesh, and lists them.
class Builder {
 public:
  Builder(const ProcessMesh* mesh, DType dtype, std::vector<Tensor>& parameters) : mesh_(mesh), dtype_(dtype), parameters_(parameters) {}

  const DistSpec* on(std::string_view layout) const { return DistSpec::parse(mesh_, layout); }
  DType dtype() const { return dtype_; }
  /// Random, and the same on every mesh.
  Tensor normal(const IntArray& shape, std::string_view layout, double deviation = 0.02) {
    return parameters_.emplace_back(gaussian(shape, on(layout), 0.0f, static_cast<float>(deviation), 0, dtype_));
  }
  Tensor constant(const IntArray& shape, std::string_view layout, double value) { return parameters_.emplace_back(full(shape, value, on(layout), dtype_)); }

 private:
  const ProcessMesh* mesh_;
  DType dtype_;
  std::vector<Tensor>& parameters_;
};

struct Norm {
  Tensor gain, shift;

  Norm(Builder& make, int64_t width) : gain(make.constant({width}, "-", 1)), shift(make.constant({width}, "-", 0)) {}
  Tensor operator()(const Tensor& x) const { return layer_norm(x, gain, shift, 1e-5f, 2); }
};

/// y = x w + b. Split by columns it gives columns; split by rows it takes columns, and adding b sums the products over tp.
struct Linear {
  Tensor weight, bias;

  static Linear by_columns(Builder& make, int64_t in, int64_t out) { return {make.normal({in, out}, "-, tp"), make.constant({out}, "tp", 0)}; }
  static Linear by_rows(Builder& make, int64_t in, int64_t out, double deviation) {
    return {make.normal({in, out}, "tp, -", deviation), make.constant({out}, "-", 0)};
  }
  Tensor operator()(const Tensor& x) const { return add(matmul(x, weight), bias); }
};

struct Layer {
  Norm before_attention, before_mlp;
  Linear qkv, joined, up, down;
  const Options& options;

  Layer(Builder& make, const Options& o)
      : before_attention(make, o.width),
        before_mlp(make, o.width),
        qkv(Linear::by_columns(make, o.width, 3 * o.width)),
        joined(Linear::by_rows(make, o.width, o.width, residual(o))),
        up(Linear::by_columns(make, o.width, 4 * o.width)),
        down(Linear::by_rows(make, 4 * o.width, o.width, residual(o))),
        options(o) {}

  /// Less for more layers, so that their sum stays small.
  static double residual(const Options& o) { return 0.02 / std::sqrt(2.0 * static_cast<double>(o.layers)); }

  /// `mask` [context, context] is added to the scores.
  Tensor attention(const Tensor& x, const Tensor& mask) const {
    const int64_t head = options.width / options.heads;
    const IntArray joined_shape = {options.batch, options.context, options.width};
    // The columns of a head lie together: its q, k and v are on one rank.
    const Tensor heads = reshape(qkv(x), {options.batch, options.context, options.heads, 3 * head});
    const std::vector<Tensor> parts = split(heads, {head, head, head}, -1);
    if (options.flash) return joined(reshape(std::get<0>(flash_attn(parts[0], parts[1], parts[2], {}, {}, 0.0f, true)), joined_shape));
    const auto by_head = [&](int i) { return transpose(parts[static_cast<size_t>(i)], {0, 2, 1, 3}); };
    const Tensor scores = scale(matmul(by_head(0), by_head(1), false, true), 1 / std::sqrt(static_cast<double>(head)));
    const Tensor mixed = matmul(softmax(add(scores, mask)), by_head(2));
    return joined(reshape(transpose(mixed, {0, 2, 1, 3}), joined_shape));
  }

  Tensor operator()(const Tensor& x, const Tensor& mask) const {
    const Tensor y = add(x, attention(before_attention(x), mask));
    return add(y, down(gelu(up(before_mlp(y)))));
  }
};

struct Gpt {
  Tensor characters, positions, mask;
  std::vector<Layer> layers;
  Norm last;
  Linear scores;

  Gpt(Builder& make, const Options& o, int64_t alphabet)
      : characters(make.normal({alphabet, o.width}, "tp, -")),
        positions(make.normal({o.context, o.width}, "-, -")),
        mask(causal_mask(make, o.context)),
        layers(make_layers(make, o)),
        last(make, o.width),
        scores(Linear::by_columns(make, o.width, alphabet)) {}

  static std::vector<Layer> make_layers(Builder& make, const Options& o) {
    std::vector<Layer> layers;
    for (int64_t i = 0; i < o.layers; ++i) layers.emplace_back(make, o);
    return layers;
  }

  /// 0 where a query may see a key, minus infinity at later keys.
  static Tensor causal_mask(const Builder& make, int64_t context) {
    std::vector<double> values;
    for (int64_t query = 0; query < context; ++query) {
      for (int64_t key = 0; key < context; ++key) values.push_back(key <= query ? 0 : -std::numeric_limits<double>::infinity());
    }
    return distribute(cast(Tensor::from_data(values, {context, context}), make.dtype()), make.on("-, -"));
  }

  /// The mean of -log(probability) of the characters that follow; `ids` and `next` are [batch, context].
  Tensor loss(const Tensor& ids, const Tensor& next) const {
    Tensor x = add(embedding(ids, characters), positions);
    for (const Layer& layer : layers) x = layer(x, mask);
    return mean(std::get<1>(cross_entropy_with_softmax(scores(last(x)), next)));
  }
};

training::Run start(const ProcessMesh* mesh, const Options& options, const Corpus& corpus) {
  training::Run run;
  Builder make(mesh, options.dtype, run.parameters);
  run.loss = [gpt = Gpt(make, options, corpus.alphabet), draw = training::Draw(options.seed), batches = make.on("dp, -"), &options, &corpus]() mutable {
    std::vector<int64_t> ids, next;
    for (int64_t i = 0; i < options.batch; ++i) {
      const auto from = corpus.ids.begin() + draw.below(static_cast<int64_t>(corpus.ids.size()) - options.context);
      ids.insert(ids.end(), from, from + options.context);
      next.insert(next.end(), from + 1, from + options.context + 1);
    }
    const Dims shape = {options.batch, options.context};
    return gpt.loss(distribute(Tensor::from_data(ids, shape), batches), distribute(Tensor::from_data(next, shape), batches));
  };
  return run;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  CLI::App app("Trains a small GPT on the characters of a text file, on dp x tp ranks.");
  training::add_options(app, options);
  app.add_option("--text", options.text, "the file to learn")->required()->check(CLI::ExistingFile);
  app.add_option("--layers", options.layers, "layers")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", options.heads, "heads of attention; they divide the width")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", options.width, "features of a character")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "pieces of text a step, over all ranks")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--context", options.context, "characters of a piece")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--flash", options.flash, "attention by flash_attn, not by matmul and softmax");
  CLI11_PARSE(app, argc, argv);
  if (options.width % options.heads != 0) fail(ErrorCode::invalid_argument, "--heads {} do not divide --width {}", options.heads, options.width);
  const Corpus corpus(options.text, options.context);
  return training::train("train_gpt", options, options.batch * options.context, [&](const ProcessMesh* mesh) { return start(mesh, options, corpus); });
} catch (const std::exception& error) {
  fmt::print(stderr, "train_gpt: {}\n", error.what());
  return 1;
}
