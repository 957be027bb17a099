// The kernel of distance.yaml.
#pragma once

/// Call it once, before the first call of the op.
void register_squared_distance();
