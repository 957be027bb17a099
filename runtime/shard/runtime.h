// The library without its ops: tensors, meshes and layouts, worlds of ranks, autograd, captured functions, dry runs and checkpoints. For
// programs with the ops of another library, whose names may be those of ours; others include <shard/shard.h>.
#pragma once

#include "shard/api/layout.h"
#include "shard/api/local_map.h"
#include "shard/api/operators.h"
#include "shard/autograd/autograd.h"
#include "shard/call/dry_report.h"
#include "shard/call/item.h"
#include "shard/call/plan_cache.h"
#include "shard/checkpoint/checkpoint.h"
#include "shard/core/log.h"
#include "shard/core/waiting.h"
#include "shard/dist/save_trace.h"
#include "shard/dist/world.h"
#include "shard/program/capture/function.h"
