// The kernels of my_ops.yaml.
#pragma once

/// Call it once, before the first call of one of the ops.
void register_my_kernels();
