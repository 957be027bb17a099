// Every op that shardgen generated for this library, and the functions that take tensors into layouts and out of them. The header of one
// family of ops is "ops/<family>.h".
#pragma once

#include "api/layout.h"
#include "ops/api.h"
