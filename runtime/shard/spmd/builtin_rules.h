// The built-in rules; each group registers its own.
#pragma once

#include "shard/spmd/rule.h"

namespace shard::spmd {

/// The dim of channels of images [n, c, ...], or [n, ..., c] where the op has a data_format that ends with C.
int channel_dim(const RuleArgs& args);

void register_builtin_rules();

void register_reduction_rules();  // rules_reduce.cc
void register_shape_rules();      // rules_shape.cc
void register_indexing_rules();   // rules_indexing.cc
void register_writing_rules();    // rules_writing.cc
void register_reshape_rule();     // rule_reshape.cc
void register_nn_rules();         // rules_nn.cc
void register_dynamic_rules();    // rules_dynamic.cc
void register_attention_rules();  // rules_attention.cc
void register_conv_rules();       // rules_conv.cc
void register_graph_rules();      // rules_graph.cc
void register_vision_rules();     // rules_vision.cc

}  // namespace shard::spmd
