// The register functions of the .cu files. A new file is declared here and called in register.cc.
#pragma once

namespace shard::cuda {

void register_elementwise(int backend);
void register_embedding(int backend);
void register_transcendental(int backend);
void register_activation(int backend);
void register_fill(int backend);
void register_gates(int backend);
void register_lamb(int backend);
void register_loss(int backend);
void register_loss_scaling(int backend);
void register_mixed(int backend);
void register_optim(int backend);
void register_scalar(int backend);
void register_special(int backend);
void register_unary_grad(int backend);
void register_logic(int backend);
void register_batch_norm(int backend);
void register_cast(int backend);
void register_communication(int backend);
void register_creation(int backend);
void register_cross_entropy(int backend);
void register_random(int backend);
void register_reduce(int backend);
void register_rope(int backend);
void register_softmax(int backend);
void register_transpose(int backend);
void register_matmul(int backend);
void register_image_norm(int backend);
void register_nll_loss(int backend);
void register_norm(int backend);
void register_gather(int backend);
void register_moving(int backend);
void register_running(int backend);

}  // namespace shard::cuda
