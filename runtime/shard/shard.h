// The library for users: every op, tensors, meshes and layouts, worlds of ranks, autograd, captured functions and dry runs. Ops of one
// family alone are in <shard/ops/FAMILY.h>. Beside this header: <shard/program.h> to inspect and save captured programs,
// <shard/kernel.h> to write ops and backends, <shard/testing.h> to test them.
#pragma once

#include "shard/api/layout.h"
#include "shard/api/local_map.h"
#include "shard/api/operators.h"
#include "shard/autograd/autograd.h"
#include "shard/call/dry_report.h"
#include "shard/call/plan_cache.h"
#include "shard/dist/save_trace.h"
#include "shard/dist/world.h"
#include "shard/ops/api.h"
#include "shard/program/capture/function.h"
