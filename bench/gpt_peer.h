// The peer's GPT, in plain types: neither library sees the headers of the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

struct GptPeerSize {
  int64_t alphabet, layers, heads, width, batch, context;
};

/// The same model as examples/gpt.h, trained by the same AdamW.
class GptPeer {
 public:
  virtual ~GptPeer() = default;
  /// Forward, backward and update for `ids` and `next` [batch, context]; the loss before the update.
  virtual double step(const std::vector<int64_t>& ids, const std::vector<int64_t>& next) = 0;
};

/// Created from parameters in the order and layout of training::Gpt::parameters(). Null if the peer
/// is not installed.
std::unique_ptr<GptPeer> make_gpt_peer(const GptPeerSize& size, const std::vector<std::vector<float>>& parameters,
                                       double rate);
/// Sets the number of threads that its steps use.
void set_gpt_peer_threads(int threads);
