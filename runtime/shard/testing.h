// Tests for ops and backends of other projects (link shard::testing): the conformance table, checks of placement rules, and helpers
// that make tensors.
#pragma once

#include "shard/testing/backend_conformance.h"
#include "shard/testing/rule_check.h"
#include "shard/testing/tensors.h"
