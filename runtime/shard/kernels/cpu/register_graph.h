// The register functions of the CPU kernels of graph.yaml.
#pragma once

namespace shard::cpu {

void register_graph_send();
void register_segment_pool();

}  // namespace shard::cpu
