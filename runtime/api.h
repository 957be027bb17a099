// Every op that shardgen generated for this library. The header of one family is "ops/<family>.h".
#pragma once

#include "ops/api.h"
