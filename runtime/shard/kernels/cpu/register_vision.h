// The register functions of the CPU kernels of vision.yaml.
#pragma once

namespace shard::cpu {

void register_grid_sample();
void register_unpool();
void register_roi_align();
void register_nms();
void register_box_coder();
void register_roi_pool();

}  // namespace shard::cpu
