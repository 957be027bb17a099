// The library for users: every op, and <shard/runtime.h>. Ops of one family alone are in <shard/ops/FAMILY.h>. Beside this header:
// <shard/program.h> to inspect and save captured programs, <shard/kernel.h> to write ops and backends, <shard/testing.h> to test them.
#pragma once

#include "shard/ops/api.h"
#include "shard/runtime.h"
