// Registers every kernel that the library is built with, by explicit calls. A new family of kernels
// adds the call of its register function here.
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_graph.h"
#include "shard/kernels/cpu/register_image.h"
#include "shard/kernels/cpu/register_linalg.h"
#include "shard/kernels/cpu/register_sequence.h"
#include "shard/kernels/cpu/register_vision.h"
#include "shard/kernels/cpu/register_writing.h"
#include "shard/kernels/cuda/register.h"

namespace shard {

void register_builtin_kernels() {
  register_cuda_kernels();
  cpu::register_binary();
  cpu::register_logic();
  cpu::register_unary();
  cpu::register_unary_grad();
  cpu::register_transcendental();
  cpu::register_special();
  cpu::register_gamma();
  cpu::register_activation();
  cpu::register_activation_grad();
  cpu::register_scalar();
  cpu::register_cast();
  cpu::register_reduce();
  cpu::register_scan();
  cpu::register_matmul();
  cpu::register_softmax();
  cpu::register_statistics();
  cpu::register_norm();
  cpu::register_norm_grad();
  cpu::register_attention();
  cpu::register_packed_attention();
  cpu::register_rope();
  cpu::register_embedding();
  cpu::register_indexing();
  cpu::register_positions();
  cpu::register_move();
  cpu::register_concat();
  cpu::register_random();
  cpu::register_distributions();
  cpu::register_optim();
  cpu::register_running_state();
  cpu::register_creation();
  cpu::register_dynamic();
  cpu::register_conv();
  cpu::register_pool();
  cpu::register_interpolate();
  cpu::register_image_norm();
  cpu::register_loss();
  cpu::register_counting();
  cpu::register_sort();
  cpu::register_nanmedian();
  cpu::register_running();
  cpu::register_linalg();
  cpu::register_linalg_factor();
  cpu::register_linalg_lu();
  cpu::register_lstsq();
  cpu::register_grid_sample();
  cpu::register_unpool();
  cpu::register_roi_align();
  cpu::register_nms();
  cpu::register_box_coder();
  cpu::register_roi_pool();
  cpu::register_graph_send();
  cpu::register_segment_pool();
  cpu::register_index_put();
  cpu::register_slice_writes();
  cpu::register_sequence();
  cpu::register_ctc();
  cpu::register_rnn();
  cpu::register_rnn_grad();
}

}  // namespace shard
