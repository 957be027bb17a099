// One transformer layer on 4096 ranks, run dry: what a rank of the mesh (dp=64, tp=8, sp=8)
// computes, sends and holds, without any data. Batches are split over dp, heads and hidden features
// over tp, the sequence over sp. usage: dry_transformer [RANK] [--json]
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <string_view>

#include <shard/shard.h>

using namespace shard;

namespace {

constexpr int64_t kBatch = 512, kSequence = 8192, kHeads = 64, kHeadSize = 128;
constexpr int64_t kModel = kHeads * kHeadSize, kHidden = 4 * kModel;

const ProcessMesh* mesh() {
  static const ProcessMesh* const grid = ProcessMesh::make({64, 8, 8}, {}, {"dp", "tp", "sp"});
  return grid;
}

const DistSpec* on(std::string_view layout) { return DistSpec::parse(mesh(), layout); }

/// A linear layer: y = x w + b.
struct Linear {
  Tensor weight, bias;

  /// `layout` is that of the weight; the bias is sharded like its columns.
  Linear(int64_t in, int64_t out, std::string_view layout, std::string_view columns)
      : weight(gaussian({in, out}, on(layout), 0.0f, 0.02f)), bias(zeros({out}, on(columns))) {}
  /// With `rows` the weight's rows are sharded: the product is a sum over tp, reduced before the
  /// bias is added.
  Tensor operator()(const Tensor& x, const DistSpec* rows = nullptr) const {
    const Tensor product = matmul(x, weight);
    return add(rows == nullptr ? product : reshard(product, rows), bias);
  }
};

struct Norm {
  Tensor gain = ones({kModel}, on("-")), shift = zeros({kModel}, on("-"));
  Tensor operator()(const Tensor& x) const { return layer_norm(x, gain, shift, 1e-5f, 2); }
};

struct Layer {
  Norm before_attention, before_mlp;
  Linear query{kModel, kModel, "-, tp", "tp"}, key{kModel, kModel, "-, tp", "tp"}, value{kModel, kModel, "-, tp", "tp"};
  Linear joined{kModel, kModel, "tp, -", "-"};
  Linear up{kModel, kHidden, "-, tp", "tp"}, down{kHidden, kModel, "tp, -", "-"};

  static Tensor heads(const Tensor& x) {
    return transpose(reshape(x, {kBatch, kSequence, kHeads, kHeadSize}), {0, 2, 1, 3});
  }

  Tensor attention(const Tensor& x) const {
    const Tensor q = heads(query(x));
    // Every part of the sequence attends to the whole sequence.
    const Tensor k = reshard(heads(key(x)), on("dp, tp, -, -"));
    const Tensor v = reshard(heads(value(x)), on("dp, tp, -, -"));
    const Tensor scores = scale(matmul(q, k, false, true), 1.0 / 11.3137085, 0.0f);
    const Tensor mixed = matmul(dropout(softmax(scores, -1), Tensor(), 0.1), v);
    const Tensor all = reshape(transpose(mixed, {0, 2, 1, 3}), {kBatch, kSequence, kModel});
    return joined(all, on("dp, sp, -"));
  }

  Tensor mlp(const Tensor& x) const { return down(gelu(up(x)), on("dp, sp, -")); }

  Tensor operator()(const Tensor& x) const {
    const Tensor y = add(x, attention(before_attention(x)));
    return add(y, mlp(before_mlp(y)));
  }
};

}  // namespace

int main(int argc, char** argv) {
  int rank = 0;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") json = true;
    else rank = std::atoi(argv[i]);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto world = World::dry(mesh()->size(), rank);
  std::string text;
  world->run([&](Rank& self) {
    const Layer layer;
    const Tensor x = gaussian({kBatch, kSequence, kModel}, on("dp, sp, -"));
    const Tensor y = layer(x);
    const DryReport report = dry_report(self);
    text = json ? report.json() + "\n" : report.text();
  });
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{}", text);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (!json) fmt::print("\n{:.1f} ms, {:.1f} MB resident at most\n", ms, static_cast<double>(usage.ru_maxrss) / 1024);
}
