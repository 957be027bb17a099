// The register functions of the CPU kernels that factor matrices and solve equations by factors.
#pragma once

namespace shard::cpu {

void register_linalg_factor();
void register_linalg_lu();
void register_lstsq();

}  // namespace shard::cpu
