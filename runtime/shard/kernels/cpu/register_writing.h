// The register functions of the CPU kernels of writing.yaml.
#pragma once

namespace shard::cpu {

void register_index_put();
void register_slice_writes();

}  // namespace shard::cpu
