// Shape and dtype inference of images, losses, vision, graphs and sequences, and of ops that write; see infer_meta.h, which
// includes this header.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/op_context.h"

namespace shard::meta {

// Ops that sample images (image.cc). Sizes as tensors and attributes that no image has are invalid_argument errors.
SHARD_API void InterpolateInferMeta(const OpContext& ctx, const Meta& x, const Meta* out_size,
                                    std::span<const Meta> size_tensor, const Meta* scale_tensor,
                                    const std::string& data_format, int out_d, int out_h, int out_w,
                                    const std::vector<float>& scale, const std::string& interp_method,
                                    bool align_corners, int align_mode, Meta& output);
SHARD_API void InterpolateGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* out_size,
                                        std::span<const Meta> size_tensor, const Meta* scale_tensor,
                                        const Meta& output_grad, const std::string& data_format, int out_d, int out_h,
                                        int out_w, const std::vector<float>& scale, const std::string& interp_method,
                                        bool align_corners, int align_mode, Meta& x_grad);

// Convolutions and pooling (conv.cc): the arguments of PaddlePaddle. Lists with a number for each space dim, paddings also with two (invalid_argument); a filter that fits the channels and groups, windows that fit the image (shape_mismatch).
SHARD_API void ConvInferMeta(const OpContext& ctx, const Meta& input, const Meta& filter, const IntArray& strides,
                             const IntArray& paddings, const std::string& padding_algorithm, const IntArray& dilations,
                             int groups, const std::string& data_format, Meta& out);
SHARD_API void DepthwiseConvInferMeta(const OpContext& ctx, const Meta& input, const Meta& filter,
                                      const IntArray& strides, const IntArray& paddings,
                                      const std::string& padding_algorithm, const IntArray& dilations, int groups,
                                      const std::string& data_format, Meta& out);
SHARD_API void Conv2dTransposeInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter,
                                        const IntArray& strides, const IntArray& paddings,
                                        const IntArray& output_padding, const IntArray& output_size,
                                        const std::string& padding_algorithm, int groups, const IntArray& dilations,
                                        const std::string& data_format, Meta& out);
SHARD_API void ConvTransposeInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter, const IntArray& strides,
                                      const IntArray& paddings, const IntArray& output_padding,
                                      const IntArray& output_size, const std::string& padding_algorithm, int groups,
                                      const IntArray& dilations, const std::string& data_format, Meta& out);
SHARD_API void Pool2DInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_size,
                               const IntArray& strides, const IntArray& paddings, bool ceil_mode, bool,
                               const std::string& data_format, const std::string& pooling_type, bool global_pooling,
                               bool adaptive, const std::string& padding_algorithm, Meta& out);
SHARD_API void Pool3DInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_size,
                               const IntArray& strides, const IntArray& paddings, bool ceil_mode, bool,
                               const std::string& data_format, const std::string& pooling_type, bool global_pooling,
                               bool adaptive, const std::string& padding_algorithm, Meta& out);
SHARD_API void MaxPoolWithIndexInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_size,
                                         const IntArray& strides, const IntArray& paddings, bool global_pooling,
                                         bool adaptive, Meta& out, Meta& mask);
SHARD_API void ConvGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& filter, const Meta& out_grad,
                                 const IntArray& strides, const IntArray& paddings,
                                 const std::string& padding_algorithm, const IntArray& dilations, int groups,
                                 const std::string& data_format, Meta& input_grad, Meta& filter_grad);
SHARD_API void Conv2dTransposeGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter,
                                            const Meta& out_grad, const IntArray& strides, const IntArray& paddings,
                                            const IntArray& output_padding, const IntArray& output_size,
                                            const std::string& padding_algorithm, int groups, const IntArray& dilations,
                                            const std::string& data_format, Meta& x_grad, Meta& filter_grad);
SHARD_API void ConvTransposeGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter, const Meta& out_grad,
                                          const IntArray& strides, const IntArray& paddings,
                                          const IntArray& output_padding, const IntArray& output_size,
                                          const std::string& padding_algorithm, int groups, const IntArray& dilations,
                                          const std::string& data_format, Meta& x_grad, Meta& filter_grad);
SHARD_API void Pool2DGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out_grad,
                                   const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                                   bool ceil_mode, bool exclusive, const std::string& data_format,
                                   const std::string& pooling_type, bool global_pooling, bool adaptive,
                                   const std::string& padding_algorithm, Meta& x_grad);
SHARD_API void Pool3DGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out_grad,
                                   const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                                   bool ceil_mode, bool exclusive, const std::string& data_format,
                                   const std::string& pooling_type, bool global_pooling, bool adaptive,
                                   const std::string& padding_algorithm, Meta& x_grad);
SHARD_API void MaxPoolWithIndexGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& mask,
                                             const Meta& out_grad, const IntArray& kernel_size, const IntArray& strides,
                                             const IntArray& paddings, bool global_pooling, bool adaptive,
                                             Meta& x_grad);
SHARD_API void Pool2DDoubleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& grad_x_grad,
                                         const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                                         bool ceil_mode, bool exclusive, const std::string& data_format,
                                         const std::string& pooling_type, bool global_pooling, bool adaptive,
                                         const std::string& padding_algorithm, Meta& grad_out_grad);
SHARD_API void Pool3DDoubleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& grad_x_grad,
                                         const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                                         bool ceil_mode, bool exclusive, const std::string& data_format,
                                         const std::string& pooling_type, bool global_pooling, bool adaptive,
                                         const std::string& padding_algorithm, Meta& grad_out_grad);
SHARD_API void MaxPoolWithIndexDoubleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& mask,
                                                   const Meta& grad_x_grad, const IntArray& kernel_size,
                                                   const IntArray& strides, const IntArray& paddings,
                                                   bool global_pooling, bool adaptive, Meta& grad_out_grad);

// Normalisations of images (norm.cc): scale and bias are [c] in the dtype of x or of the statistics, which are [n, groups]. groups divides the channels (invalid_argument).
SHARD_API void GroupNormInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, int groups,
                                  const std::string& data_format, Meta& y, Meta& mean, Meta& variance);
SHARD_API void InstanceNormInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, Meta& y,
                                     Meta& saved_mean, Meta& saved_variance);
SHARD_API void GroupNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                                      const Meta& mean, const Meta& variance, const Meta& y_grad, int groups,
                                      const std::string& data_format, Meta& x_grad, Meta& scale_grad, Meta& bias_grad);
SHARD_API void InstanceNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                                         const Meta& saved_mean, const Meta& saved_variance, const Meta& y_grad,
                                         Meta& x_grad, Meta& scale_grad, Meta& bias_grad);

// Losses (loss.cc): equal float dtypes and shapes; of nll_loss an integer label without the dim of classes.
SHARD_API void BCELossInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, Meta& out);
SHARD_API void LogLossInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, Meta& out);
SHARD_API void HuberLossInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, Meta& out,
                                  Meta& residual);
SHARD_API void NllLossRawInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta* weight,
                                   const std::string& reduction, Meta& out, Meta& total_weight);
/// logits [n, c], label [n] or [n, 1] of integers; nranks: 1 (invalid_argument).
SHARD_API void MarginCrossEntropyInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label, int nranks,
                                           Meta& softmax, Meta& loss);
SHARD_API void MarginCrossEntropyGradInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label,
                                               const Meta& softmax, const Meta& loss_grad, int nranks,
                                               Meta& logits_grad);
SHARD_API void LossGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta& out_grad,
                                 Meta& input_grad);
SHARD_API void HuberLossGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta& out_grad,
                                      Meta& input_grad, Meta& label_grad);
SHARD_API void NllLossGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta* weight,
                                    const Meta& total_weight, const Meta& out_grad, const std::string& reduction,
                                    Meta& input_grad);
/// Probabilities x [n, 1] or [n, 2], label [n] or [n, 1], statistics of the size that the attributes name.
SHARD_API void AucInferMeta(const OpContext& ctx, const Meta& x, const Meta& label, const Meta& stat_pos,
                            const Meta& stat_neg, const Meta* ins_tag_weight, const std::string& curve,
                            int num_thresholds, int slide_steps, Meta& auc, Meta& stat_pos_out, Meta& stat_neg_out);

// Writing (writing.cc): values have the dtype of x and broadcast to the part that is written.
/// No bool with accumulate. Sizes that depend on masks are for the kernel to check.
SHARD_API void IndexPutInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> indices, const Meta& value,
                                 bool accumulate, Meta& out);
SHARD_API void SetValueInferMeta(const OpContext& ctx, const Meta& x, const IntArray& starts, const IntArray& ends,
                                 const IntArray& steps, const IntArray& axes, const IntArray& decrease_axes,
                                 const IntArray& none_axes, const IntArray& shape, const std::vector<Scalar>& values,
                                 Meta& out);
SHARD_API void SetValueWithTensorInferMeta(const OpContext& ctx, const Meta& x, const Meta& values,
                                           const IntArray& starts, const IntArray& ends, const IntArray& steps,
                                           const IntArray& axes, const IntArray& decrease_axes,
                                           const IntArray& none_axes, Meta& out);
/// y has the shape of diagonal(x, offset, dim1, dim2) (shape_mismatch).
SHARD_API void FillDiagonalTensorInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, int64_t offset, int dim1,
                                           int dim2, Meta& out);

// Vision (vision.cc)
/// Images of x [n, c, h, w] or [n, c, d, h, w], and places in them (shape_mismatch); one float dtype.
SHARD_API void GridSampleInferMeta(const OpContext& ctx, const Meta& x, const Meta& grid, const std::string& mode,
                                   const std::string& padding_mode, Meta& out);
SHARD_API void GridSampleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& grid, const Meta& out_grad,
                                       const std::string& mode, const std::string& padding_mode, Meta& x_grad,
                                       Meta& grid_grad);
/// x [n, c, h, w] and indices of its shape; output_size has two sizes or none (invalid_argument).
SHARD_API void UnpoolInferMeta(const OpContext& ctx, const Meta& x, const Meta& indices, const IntArray& ksize,
                               const IntArray& strides, const IntArray& padding, const IntArray& output_size,
                               const std::string& data_format, Meta& out);
/// Images x [n, c, h, w], boxes [r, 4] of its dtype, boxes_num [n]; sizes of at least 1 (invalid_argument).
SHARD_API void RoiAlignInferMeta(const OpContext& ctx, const Meta& x, const Meta& boxes, const Meta& boxes_num,
                                 int pooled_height, int pooled_width, float spatial_scale, Meta& out);
SHARD_API void RoiAlignGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& boxes, const Meta& boxes_num,
                                     const Meta& out_grad, int pooled_height, int pooled_width, float spatial_scale,
                                     Meta& x_grad);
SHARD_API void RoiPoolInferMeta(const OpContext& ctx, const Meta& x, const Meta& boxes, const Meta& boxes_num,
                                int pooled_height, int pooled_width, float spatial_scale, Meta& out, Meta& arg_max);
/// Boxes [r, 4] of a float dtype; the result has at most as many rows.
SHARD_API void NmsInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// Boxes [m, 4] and variances of their shape, or four (invalid_argument); target_box is [n, 4], or [n, m, 4] to decode.
SHARD_API void BoxCoderInferMeta(const OpContext& ctx, const Meta& prior_box, const Meta* prior_box_var,
                                 const Meta& target_box, const std::string& code_type, int axis,
                                 const std::vector<float>& variance, Meta& output_box);

// Graphs (graph.cc): rows are along the first dim; indices are int32 or int64, of one dim.
/// The result has out_size[0] rows if that is above 0, else those of x. dst_count is [rows] for MEAN, else [0].
SHARD_API void SendURecvInferMeta(const OpContext& ctx, const Meta& x, const Meta& src_index, const Meta& dst_index,
                                  const std::string& reduce_op, const IntArray& out_size, Meta& out, Meta& dst_count);
/// y has a row for each edge; the rows of x and y broadcast against each other (shape_mismatch).
SHARD_API void SendUERecvInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const Meta& src_index,
                                   const Meta& dst_index, const std::string& message_op, const std::string& reduce_op,
                                   const IntArray& out_size, Meta& out, Meta& dst_count);
SHARD_API void SendUVInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const Meta& src_index,
                               const Meta& dst_index, const std::string& message_op, Meta& out);
/// The results have the largest possible number of rows.
SHARD_API void SegmentPoolInferMeta(const OpContext& ctx, const Meta& x, const Meta& segment_ids,
                                    const std::string& pooltype, Meta& out, Meta& summed_ids);

// Sequences (sequence.cc): lengths are int32 or int64 [batch].
/// Sizes of at least 1 and dropout_prob from 0 to 1 (invalid_argument); one float dtype. reserve is in the dtype of
/// statistics.
SHARD_API void RnnInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> pre_state,
                            std::span<const Meta> weight_list, const Meta* sequence_length, float dropout_prob,
                            bool is_bidirec, int input_size, int hidden_size, int num_layers, const std::string& mode,
                            Meta& out, Meta& dropout_state_out, std::vector<Meta>& state, Meta& reserve);
SHARD_API void RnnGradInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> pre_state,
                                std::span<const Meta> weight_list, const Meta* sequence_length,
                                const Meta& dropout_state_out, const Meta& reserve, const Meta& out_grad,
                                std::span<const Meta> state_grad, float dropout_prob, bool is_bidirec, int input_size,
                                int hidden_size, int num_layers, const std::string& mode, Meta& x_grad,
                                std::vector<Meta>& pre_state_grad, std::vector<Meta>& weight_list_grad);
/// Float logits, an integer label (dtype_mismatch), and a class as blank (invalid_argument).
SHARD_API void WarpctcInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label, const Meta& logits_length,
                                const Meta& labels_length, int blank, Meta& loss, Meta& warpctcgrad);
SHARD_API void WarpctcGradInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label,
                                    const Meta& logits_length, const Meta& labels_length, const Meta& warpctcgrad,
                                    const Meta& loss_grad, int blank, Meta& logits_grad);
/// One float dtype (dtype_mismatch); at least one tag, with include_bos_eos_tag two (invalid_argument).
SHARD_API void ViterbiDecodeInferMeta(const OpContext& ctx, const Meta& potentials, const Meta& transition_params,
                                      const Meta& lengths, bool include_bos_eos_tag, Meta& scores, Meta& path);
/// Equal shapes (shape_mismatch) and integer dtypes (dtype_mismatch).
SHARD_API void GatherTreeInferMeta(const OpContext& ctx, const Meta& ids, const Meta& parents, Meta& out);

}  // namespace shard::meta
