// The register functions of the CPU kernels of images and of losses.
#pragma once

namespace shard::cpu {

void register_conv();
void register_pool();
void register_interpolate();
void register_image_norm();
void register_loss();

}  // namespace shard::cpu
