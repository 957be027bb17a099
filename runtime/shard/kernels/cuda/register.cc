#include "shard/kernels/cuda/register.h"

#include "shard/core/device.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/fused_loop.h"

namespace shard {

void register_cuda_kernels() {
  const int backend = find_backend("cuda");
  if (backend < 0) return;
  cuda::register_loops(backend);
  cuda::register_elementwise(backend);
  cuda::register_embedding(backend);
  cuda::register_transcendental(backend);
  cuda::register_activation(backend);
  cuda::register_attention(backend);
  cuda::register_fill(backend);
  cuda::register_gates(backend);
  cuda::register_lamb(backend);
  cuda::register_linalg(backend);
  cuda::register_linalg_factor(backend);
  cuda::register_loss(backend);
  cuda::register_loss_scaling(backend);
  cuda::register_lstsq(backend);
  cuda::register_mixed(backend);
  cuda::register_optim(backend);
  cuda::register_scalar(backend);
  cuda::register_special(backend);
  cuda::register_unary_grad(backend);
  cuda::register_batch_norm(backend);
  cuda::register_cast(backend);
  cuda::register_communication(backend);
  cuda::register_creation(backend);
  cuda::register_cross_entropy(backend);
  cuda::register_random(backend);
  cuda::register_logic(backend);
  cuda::register_reduce(backend);
  cuda::register_rope(backend);
  cuda::register_softmax(backend);
  cuda::register_statistics(backend);
  cuda::register_transpose(backend);
  cuda::register_matmul(backend);
  cuda::register_image_norm(backend);
  cuda::register_nll_loss(backend);
  cuda::register_norm(backend);
  cuda::register_gather(backend);
  cuda::register_moving(backend);
  cuda::register_running(backend);
  cuda::register_divide(backend);
  cuda::register_fold(backend);
  cuda::register_writing(backend);
  cuda::register_scatter(backend);
  cuda::register_put(backend);
  cuda::register_index_put(backend);
  cuda::register_graph(backend);
  cuda::register_pool(backend);
  cuda::register_interpolate(backend);
  cuda::register_conv(backend);
  cuda::register_grid_sample(backend);
  cuda::register_roi(backend);
  cuda::register_box_coder(backend);
  cuda::register_sort(backend);
  cuda::register_index_of_best(backend);
  cuda::register_dynamic(backend);
  cuda::register_counting(backend);
  cuda::register_search(backend);
  cuda::register_nanmedian(backend);
  cuda::register_sequence(backend);
  cuda::register_nms(backend);
  cuda::register_auc(backend);
  cuda::register_ctc(backend);
  cuda::register_distributions(backend);
  cuda::register_rnn(backend);
}

}  // namespace shard
