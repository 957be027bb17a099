// Verifies the placement rules of this library's ops; see docs/rules.md.
#include "shard/testing/rule_check.h"

int main(int argc, char** argv) {
  return shard::testing::verify_rules_main(argc, argv, shard::testing::op_cases(), shard::testing::accepted_by_rules());
}
