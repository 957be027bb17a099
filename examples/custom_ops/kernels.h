// The kernels of fused.yaml.
#pragma once

/// Call it once, before the first call of one of the ops.
void register_fused_kernels();
