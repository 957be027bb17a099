// Captured programs as data: their values and ops, alias analysis, text, drawings, differences, files, and the split into a forward and
// a backward program.
#pragma once

#include "shard/program/capture/function.h"
#include "shard/program/capture/split.h"
#include "shard/program/io/dot.h"
#include "shard/program/io/json.h"
#include "shard/program/ir/alias.h"
#include "shard/program/ir/diff.h"
#include "shard/program/passes/passes.h"
