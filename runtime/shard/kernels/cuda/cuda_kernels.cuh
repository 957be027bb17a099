// The register functions of the .cu files. A new file is declared here and called in register.cc.
#pragma once

namespace shard::cuda {

void register_elementwise(int backend);
void register_transcendental(int backend);
void register_activation(int backend);
void register_logic(int backend);
void register_cast(int backend);
void register_communication(int backend);
void register_reduce(int backend);
void register_softmax(int backend);
void register_transpose(int backend);
void register_matmul(int backend);

}  // namespace shard::cuda
