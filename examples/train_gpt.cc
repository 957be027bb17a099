// Trains a small GPT on the characters of a text file, on dp x tp ranks: one program for one rank, threads and mpirun.
// usage: train_gpt --text FILE [--dp N] [--tp M] [..], or mpirun -n N*M train_gpt with the same options; see --help
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <iterator>

#include <shard/shard.h>
#include "gpt.h"
#include "training.h"

using namespace shard;

namespace {

struct Options : training::Options {
  std::string text;
  training::GptSize size;
};

/// A text as numbers of its own alphabet, the set of its bytes.
struct Corpus {
  std::vector<int64_t> ids;
  int64_t alphabet = 0;

  /// Throws invalid_argument for a text with fewer than `context` + 1 characters.
  Corpus(const std::string& path, int64_t context) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (static_cast<int64_t>(text.size()) <= context) {
      fail(ErrorCode::invalid_argument, "--text {}: has {} readable characters; more than the context of {} are needed",
           path, text.size(), context);
    }
    std::array<int64_t, 256> number{};
    for (const char c : text) number[static_cast<unsigned char>(c)] = 1;
    for (int64_t& n : number) n = n == 0 ? -1 : alphabet++;
    for (const char c : text) ids.push_back(number[static_cast<unsigned char>(c)]);
  }
};

training::Run start(const ProcessMesh* mesh, const Options& options, const Corpus& corpus) {
  const training::Gpt gpt(mesh, options.size, options.dtype);
  const auto batch = [draw = training::Draw(options.seed), batches = DistSpec::parse(mesh, "dp, -"),
                      size = options.size, &corpus]() mutable -> std::vector<Tensor> {
    std::vector<int64_t> ids, next;
    for (int64_t i = 0; i < size.batch; ++i) {
      const auto from = corpus.ids.begin() + draw.below(static_cast<int64_t>(corpus.ids.size()) - size.context);
      ids.insert(ids.end(), from, from + size.context);
      next.insert(next.end(), from + 1, from + size.context + 1);
    }
    const Dims shape = {size.batch, size.context};
    return {distribute(Tensor::from_data(ids, shape), batches), distribute(Tensor::from_data(next, shape), batches)};
  };
  return {gpt.parameters(), batch, [gpt](const std::vector<Tensor>& batch) { return gpt.loss(batch[0], batch[1]); }};
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  training::GptSize& size = options.size;
  CLI::App app("Trains a small GPT on the characters of a text file, on dp x tp ranks.");
  training::add_options(app, options);
  app.add_option("--text", options.text, "the file to learn")->required()->check(CLI::ExistingFile);
  app.add_option("--layers", size.layers, "layers")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", size.heads, "heads of attention; they divide the width")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--width", size.width, "features of a character")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", size.batch, "sequences of text a step, over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--context", size.context, "characters of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--flash", size.flash, "attention by flash_attn, not by matmul and softmax");
  CLI11_PARSE(app, argc, argv);
  if (size.width % size.heads != 0)
    fail(ErrorCode::invalid_argument, "--heads {} do not divide --width {}", size.heads, size.width);
  const Corpus corpus(options.text, size.context);
  size.alphabet = corpus.alphabet;
  return training::train("train_gpt", options, size.batch * size.context,
                         [&](const ProcessMesh* mesh) { return start(mesh, options, corpus); });
} catch (const std::exception& error) {
  fmt::print(stderr, "train_gpt: {}\n", error.what());
  return 1;
}
