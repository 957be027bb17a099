// The register functions of the .cu files. A new file is declared here and called in register.cc.
#pragma once

namespace shard::cuda {

void register_elementwise(int backend);
void register_embedding(int backend);
void register_transcendental(int backend);
void register_activation(int backend);
void register_attention(int backend);
void register_fill(int backend);
void register_gates(int backend);
void register_lamb(int backend);
void register_linalg(int backend);
void register_linalg_factor(int backend);
void register_loss(int backend);
void register_loss_scaling(int backend);
void register_lstsq(int backend);
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
void register_divide(int backend);
void register_fold(int backend);
void register_writing(int backend);
void register_scatter(int backend);
void register_put(int backend);
void register_index_put(int backend);
void register_graph(int backend);
void register_pool(int backend);
void register_interpolate(int backend);
void register_conv(int backend);
void register_grid_sample(int backend);
void register_roi(int backend);
void register_box_coder(int backend);
void register_sort(int backend);
void register_index_of_best(int backend);
void register_dynamic(int backend);
void register_counting(int backend);
void register_search(int backend);
void register_nanmedian(int backend);
void register_sequence(int backend);
void register_nms(int backend);
void register_auc(int backend);
void register_ctc(int backend);
void register_distributions(int backend);
void register_rnn(int backend);

}  // namespace shard::cuda
