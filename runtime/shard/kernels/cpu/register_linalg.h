// The register function of the CPU kernels that factor matrices.
#pragma once

namespace shard::cpu {

void register_linalg_factor();

}  // namespace shard::cpu
