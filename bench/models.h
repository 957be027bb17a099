// The models of model_bench: a GPT, a residual network over images, and an LSTM over characters.
#pragma once

#include <map>
#include <string>

#include "training.h"

namespace model_bench {

struct Model {
  training::Run run;
  bool updates = true;  // whether a step ends with AdamW; else it is forward and backward alone
};

/// What builds each model on a mesh of one rank, with the axes "dp" and "tp", by its name.
std::map<std::string, std::function<Model(const shard::ProcessMesh*)>> models();

}  // namespace model_bench
