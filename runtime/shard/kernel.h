// For those who write ops and backends: the registry of kernels, loops over elements on CPU threads, infer-meta functions, placement
// rules in code, and the interface of a device backend.
#pragma once

#include "shard/core/cuda_stream.h"
#include "shard/core/device.h"
#include "shard/core/error.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/device_work.h"
#include "shard/kernels/registry.h"
#include "shard/meta/infer_meta.h"
#include "shard/spmd/notation.h"
