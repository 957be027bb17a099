// The register functions of the CPU kernels of sequences.
#pragma once

namespace shard::cpu {

void register_sequence();
void register_ctc();
void register_rnn();
void register_rnn_grad();

}  // namespace shard::cpu
