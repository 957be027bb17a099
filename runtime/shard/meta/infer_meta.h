// Shape and dtype inference: one function per infer_meta.func of ops_yaml/, called by generated code before any kernel.
// A new op's function is declared here, or in infer_meta_layers.h, and defined in the .cc of its family.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/op_context.h"
#include "shard/meta/infer_meta_layers.h"

/// All functions write the metas of the outputs and throw Error naming op, argument, shapes and
/// fix. With `ctx.local` set the metas are those of local shards: checks of what a user may ask for
/// (empty reductions, sizes given as -1) are skipped then.
namespace shard::meta {

// Elementwise (elementwise.cc). Binary functions: equal dtypes (dtype_mismatch), broadcasting shapes (shape_mismatch).
SHARD_API void UnchangedInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
SHARD_API void ElementwiseInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out);
/// As ElementwiseInferMeta, with a bool result.
SHARD_API void CompareInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out);
/// x of any dtype; the result is bool.
SHARD_API void LogicalNotInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// With y: equal metas of a float dtype. Without y: the last dim of x is even, and is halved.
/// shape_mismatch, dtype_mismatch.
SHARD_API void SwiGLUInferMeta(const OpContext& ctx, const Meta& x, const Meta* y, Meta& out);
/// At least one tensor (invalid_argument), all of one meta (shape_mismatch, dtype_mismatch).
SHARD_API void AddNInferMeta(const OpContext& ctx, std::span<const Meta> inputs, Meta& out);
SHARD_API void CastInferMeta(const OpContext& ctx, const Meta& x, DType dtype, Meta& out);
/// Throws dtype_mismatch for a fraction on an integer tensor; so does PowInferMeta.
SHARD_API void ScaleInferMeta(const OpContext& ctx, const Meta& x, const Scalar& scale, const Scalar& bias,
                              bool bias_after_scale, Meta& out);
SHARD_API void PowInferMeta(const OpContext& ctx, const Meta& x, const Scalar& y, Meta& out);
/// Throws invalid_argument when min > max.
SHARD_API void ClipInferMeta(const OpContext& ctx, const Meta& x, const Scalar& min, const Scalar& max, Meta& out);
/// Equal shapes and dtypes; a bool without dims.
SHARD_API void AllValueCompareInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out);
/// Three tensors that broadcast against each other, of one dtype.
SHARD_API void LerpInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const Meta& weight, Meta& out);
/// x, of one element (invalid_argument).
SHARD_API void IncrementInferMeta(const OpContext& ctx, const Meta& x, float value, Meta& out);
/// x, for an order that is not negative (invalid_argument).
SHARD_API void PolygammaInferMeta(const OpContext& ctx, const Meta& x, int n, Meta& out);
/// x, for an alpha that is not 0 (invalid_argument).
SHARD_API void CeluInferMeta(const OpContext& ctx, const Meta& x, float alpha, Meta& out);
/// x, for a threshold that is not negative (invalid_argument).
SHARD_API void SoftshrinkInferMeta(const OpContext& ctx, const Meta& x, float threshold, Meta& out);
/// condition must be bool; x and y agree in dtype; all three broadcast.
SHARD_API void WhereInferMeta(const OpContext& ctx, const Meta& condition, const Meta& x, const Meta& y, Meta& out);

// Creation and random numbers (creation.cc). Negative dims and sizes beyond int64 are out_of_range.
SHARD_API void CreateInferMeta(const OpContext& ctx, const IntArray& shape, DType dtype, Meta& out);
/// Throws invalid_argument when step is 0 or not finite. If end is on the wrong side of start the
/// result is an empty tensor.
SHARD_API void ArangeInferMeta(const OpContext& ctx, const Scalar& start, const Scalar& end, const Scalar& step,
                               DType dtype, Meta& out);
/// num_columns of -1 means num_rows.
SHARD_API void EyeInferMeta(const OpContext& ctx, const Scalar& num_rows, const Scalar& num_columns, DType dtype,
                            Meta& out);
/// Float dtypes (dtype_mismatch), min <= max (invalid_argument).
SHARD_API void LinspaceInferMeta(const OpContext& ctx, int64_t number, DType dtype, Meta& out);
SHARD_API void UniformInferMeta(const OpContext& ctx, const IntArray& shape, DType dtype, const Scalar& min,
                                const Scalar& max, Meta& out);
/// Float dtypes (dtype_mismatch), std >= 0 (invalid_argument).
SHARD_API void GaussianInferMeta(const OpContext& ctx, const IntArray& shape, float std, DType dtype, Meta& out);

/// Float dtypes; min <= max and diag_num, diag_step >= 0 (invalid_argument); a last diagonal element within x
/// (out_of_range).
SHARD_API void UniformInplaceInferMeta(const OpContext& ctx, const Meta& x, float min, float max, int diag_num,
                                       int diag_step, Meta& out);
/// Float dtypes; std >= 0 (invalid_argument).
SHARD_API void GaussianInplaceInferMeta(const OpContext& ctx, const Meta& x, float std, Meta& out);
/// Float dtypes; lam > 0 (invalid_argument).
SHARD_API void ExponentialInferMeta(const OpContext& ctx, const Meta& x, float lam, Meta& out);

/// low < high (invalid_argument); dtype: int32 or int64 (dtype_mismatch).
SHARD_API void RandintInferMeta(const OpContext& ctx, int low, int high, const IntArray& shape, DType dtype, Meta& out);
/// n >= 0 (invalid_argument); dtype: int32 or int64 (dtype_mismatch).
SHARD_API void RandpermInferMeta(const OpContext& ctx, int n, DType dtype, Meta& out);

// Ops that draw from distributions whose parameters are tensors (distributions.cc).
/// prob: of the shape (shape_mismatch) and float dtype (dtype_mismatch) of count. out: int64.
SHARD_API void BinomialInferMeta(const OpContext& ctx, const Meta& count, const Meta& prob, Meta& out);
/// At least one dim (shape_mismatch), a float dtype (dtype_mismatch).
SHARD_API void DirichletInferMeta(const OpContext& ctx, const Meta& alpha, Meta& out);
/// x: one or two dims (shape_mismatch), a float dtype (dtype_mismatch); 1 <= num_samples, at most the number of
/// categories without replacement (invalid_argument). out: int64.
SHARD_API void MultinomialInferMeta(const OpContext& ctx, const Meta& x, const Scalar& num_samples, bool replacement,
                                    Meta& out);
/// x: [rows, categories] of a float dtype, with a category for each row; ps and threshold: [rows] or [rows, 1] of that
/// dtype (shape_mismatch, dtype_mismatch). ids: int64.
SHARD_API void TopPSamplingInferMeta(const OpContext& ctx, const Meta& x, const Meta& ps, const Meta* threshold,
                                     Meta& out, Meta& ids);

// Ops whose number of output rows depends on data (dynamic.cc): the metas have the largest possible
// number of rows.
SHARD_API void NonZeroInferMeta(const OpContext& ctx, const Meta& condition, Meta& out);
/// mask: bool (dtype_mismatch), of the shape of x (shape_mismatch).
SHARD_API void MaskedSelectInferMeta(const OpContext& ctx, const Meta& x, const Meta& mask, Meta& out);
/// dtype: int32 or int64 (dtype_mismatch). Outputs that are not asked for are [0].
SHARD_API void UniqueInferMeta(const OpContext& ctx, const Meta& x, bool return_index, bool return_inverse,
                               bool return_counts, DType dtype, Meta& out, Meta& indices, Meta& inverse, Meta& counts);
/// x has a first dim (shape_mismatch); dtype as for unique.
SHARD_API void UniqueConsecutiveRowsInferMeta(const OpContext& ctx, const Meta& x, bool return_inverse,
                                              bool return_counts, DType dtype, Meta& out, Meta& index, Meta& counts);
/// x: int32 or int64 [n], weights of its shape or absent. out: int64, or the float dtype in which weights are added up.
SHARD_API void BincountInferMeta(const OpContext& ctx, const Meta& x, const Meta* weights, const Scalar& minlength,
                                 Meta& out);

// Shapes (shape.cc): ops that change the dims of one tensor and keep the dtype.
// In `shape`, one -1 is inferred and a 0 keeps the dim of x. A local shape is explicit: its 0 is an
// empty dim. shape_mismatch.
SHARD_API void ReshapeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shape, Meta& out);
SHARD_API void FlattenInferMeta(const OpContext& ctx, const Meta& x, int start_axis, int stop_axis, Meta& out);
/// The global shape decides which dims have size 1.
SHARD_API void SqueezeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, Meta& out);
SHARD_API void UnsqueezeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, Meta& out);
/// perm must name every dim once (invalid_argument).
SHARD_API void TransposeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& perm, Meta& out);
/// -1 keeps the dim of x. Only dims of size 1 grow (shape_mismatch).
SHARD_API void ExpandInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shape, Meta& out);
/// To the shape of y, or without y to target_shape.
SHARD_API void ExpandAsInferMeta(const OpContext& ctx, const Meta& x, const Meta* y, const IntArray& target_shape,
                                 Meta& out);
/// Throws invalid_argument for a negative number of repetitions.
SHARD_API void TileInferMeta(const OpContext& ctx, const Meta& x, const IntArray& repeat_times, Meta& out);
/// At least two dims (shape_mismatch).
SHARD_API void TriangleInferMeta(const OpContext& ctx, const Meta& x, Meta& out);

// Concatenation and splitting (slicing.cc).
SHARD_API void ConcatInferMeta(const OpContext& ctx, std::span<const Meta> x, const Scalar& axis, Meta& out);
SHARD_API void StackInferMeta(const OpContext& ctx, std::span<const Meta> x, int axis, Meta& out);
/// One meta per section; a section of -1 is the remainder. shape_mismatch unless the sections add
/// up to the dim.
SHARD_API void SplitInferMeta(const OpContext& ctx, const Meta& x, const IntArray& sections, const Scalar& axis,
                              std::vector<Meta>& out);
/// num parts of equal size; shape_mismatch where num does not divide the dim.
SHARD_API void SplitWithNumInferMeta(const OpContext& ctx, const Meta& x, int num, const Scalar& axis,
                                     std::vector<Meta>& out);
SHARD_API void UnbindInferMeta(const OpContext& ctx, const Meta& input, int axis, std::vector<Meta>& out);
/// Throws invalid_argument for a stride of 0.
SHARD_API void StridedSliceInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axes, const IntArray& starts,
                                     const IntArray& ends, const IntArray& strides, Meta& out);
SHARD_API void SliceInferMeta(const OpContext& ctx, const Meta& input, const IntArray& axes, const IntArray& starts,
                              const IntArray& ends, const IntArray& decrease_axis, Meta& out);
/// index: int32 or int64 (dtype_mismatch), 0-d or 1-D (shape_mismatch); a 0-d index drops the axis.
SHARD_API void UnsliceInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shape, const IntArray& axes,
                                const IntArray& starts, const IntArray& ends, const IntArray& strides, Meta& out);
SHARD_API void GatherInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Scalar& axis, Meta& out);
SHARD_API void IndexSumInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, int64_t size, int axis,
                                 Meta& out);
/// index: int32 or int64 (dtype_mismatch), [n] or [n, 1]; updates: [n] and the dims of x except its
/// first (shape_mismatch).
SHARD_API void ScatterInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Meta& updates,
                                bool overwrite, Meta& out);
SHARD_API void ScatterGradInferMeta(const OpContext& ctx, const Meta& index, const Meta& out_grad, Meta& x_grad,
                                    Meta& updates_grad);
/// x: int32 or int64 (dtype_mismatch); out is float32, with num_classes as a new last dim.
SHARD_API void OneHotInferMeta(const OpContext& ctx, const Meta& x, const Scalar& num_classes, Meta& out);

// Indexing (indexing.cc). A tensor of indices is int32 or int64 (dtype_mismatch).
/// As many shifts as axes, or one and no axis (invalid_argument).
SHARD_API void RollInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shifts, const IntArray& axis,
                             Meta& out);
/// Two numbers of 0 or more for each dim (invalid_argument).
SHARD_API void PadInferMeta(const OpContext& ctx, const Meta& x, const IntArray& paddings, Meta& out);
/// index: [.., k], k at most the number of dims of x (shape_mismatch).
/// The last dim has as many bytes in dtype; bool is bool alone.
SHARD_API void ViewDTypeInferMeta(const OpContext& ctx, const Meta& input, DType dtype, Meta& out);
SHARD_API void GatherNdInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, Meta& out);
/// updates: of the dtype of x, not bool, and the shape of the result of gather_nd (shape_mismatch).
SHARD_API void ScatterNdAddInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Meta& updates,
                                     Meta& out);
/// index: [n]; add_value: as x, not bool, with n in place of axis (shape_mismatch).
SHARD_API void IndexAddInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Meta& add_value,
                                 int axis, Meta& out);
/// indices: the dims of arr but for axis (shape_mismatch).
SHARD_API void TakeAlongAxisInferMeta(const OpContext& ctx, const Meta& arr, const Meta& indices, int axis, Meta& out);
/// Also values: of the dtype of arr, not bool, and the shape of indices; a reduce of another name is invalid_argument.
SHARD_API void PutAlongAxisInferMeta(const OpContext& ctx, const Meta& arr, const Meta& indices, const Meta& values,
                                     int axis, const std::string& reduce, bool include_self, Meta& out);
/// Sizes of 0 or more (invalid_argument); dtype: int32 or int64 (dtype_mismatch).
SHARD_API void TriangleIndicesInferMeta(const OpContext& ctx, int rows, int columns, int offset, bool lower,
                                        DType dtype, Meta& out);
/// x: four dims, not bool. Two sizes, strides and dilations above 0 and four paddings of 0 or more (invalid_argument)
/// of a kernel that fits (shape_mismatch).
SHARD_API void UnfoldInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_sizes,
                               const IntArray& strides, const IntArray& paddings, const IntArray& dilations, Meta& out);
/// x: the shape of the result of unfold for an image of output_sizes (shape_mismatch).
SHARD_API void FoldInferMeta(const OpContext& ctx, const Meta& x, const IntArray& output_sizes,
                             const IntArray& kernel_sizes, const IntArray& strides, const IntArray& paddings,
                             const IntArray& dilations, Meta& out);
/// x: a matrix, or more dims that are all equal (shape_mismatch).
SHARD_API void FillDiagonalInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
SHARD_API void ShapeInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// x: int32 or int64; 0 <= shard_id < nshards and index_num > 0 (invalid_argument).
SHARD_API void ShardIndexInferMeta(const OpContext& ctx, const Meta& x, int index_num, int nshards, int shard_id,
                                   int ignore_value, Meta& out);

// Reductions (reduce.cc): the axes (all when empty) are dropped, or kept as 1 with keepdim. A
// repeated axis is invalid_argument.
// The sum of bool, uint8 and int32 is int64.
SHARD_API void SumInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out);
SHARD_API void ProdInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out);
/// Float dtypes (dtype_mismatch).
SHARD_API void MeanInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out);
/// Throws invalid_argument over no elements.
SHARD_API void MaxInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out);
SHARD_API void MinInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out);
/// x of any dtype; the result is bool.
SHARD_API void TruthInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out);
/// Float dtypes (dtype_mismatch); out is [1].
SHARD_API void SquaredL2NormInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// Float dtypes (dtype_mismatch). `reduce_all` names all axes.
SHARD_API void FrobeniusNormInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keep_dim,
                                      bool reduce_all, Meta& out);
/// Float dtypes (dtype_mismatch), as the next four. Throws invalid_argument over no elements. `reduce_all` names all axes.
SHARD_API void LogsumexpInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim,
                                  bool reduce_all, Meta& out);
/// Throws invalid_argument over no elements where porder is infinite. `asvector` names all axes.
SHARD_API void PNormInferMeta(const OpContext& ctx, const Meta& x, float porder, int axis, float epsilon, bool keepdim,
                              bool asvector, Meta& out);
/// out has no dims.
SHARD_API void L1NormInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// norm has size 1 along the axis.
SHARD_API void NormInferMeta(const OpContext& ctx, const Meta& x, int axis, float epsilon, bool is_test, Meta& out,
                             Meta& norm);
SHARD_API void VarianceInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool unbiased, bool keepdim,
                                 Meta& out);
/// mode: "avg" or "min"; over some elements (invalid_argument).
SHARD_API void NanmedianInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim,
                                  const std::string& mode, Meta& out, Meta& medians);
/// size is a 0-d int64.
SHARD_API void NumelInferMeta(const OpContext& ctx, const Meta& x, Meta& size);
/// dtype: int32 or int64. Throws invalid_argument for an empty axis.
SHARD_API void ArgMaxInferMeta(const OpContext& ctx, const Meta& x, const Scalar& axis, bool keepdims, bool flatten,
                               DType dtype, Meta& out);
SHARD_API void CumsumInferMeta(const OpContext& ctx, const Meta& x, const Scalar& axis, bool flatten, Meta& out);
SHARD_API void LogcumsumexpInferMeta(const OpContext& ctx, const Meta& x, int axis, bool flatten, Meta& out);
/// x, for a dim of it.
SHARD_API void UnchangedInferMetaCheckAxis(const OpContext& ctx, const Meta& x, int axis, Meta& out);
/// dtype, of the indices: int32 or int64.
SHARD_API void CumWithIndicesInferMeta(const OpContext& ctx, const Meta& x, int axis, DType dtype, Meta& out,
                                       Meta& indices);

// Sorting and selection (sort.cc). indices are int64.
/// Throws invalid_argument unless k is from 1 to the size of the axis.
SHARD_API void TopKInferMeta(const OpContext& ctx, const Meta& x, const Scalar& k, int axis, Meta& out, Meta& indices);
SHARD_API void ArgsortInferMeta(const OpContext& ctx, const Meta& x, int axis, Meta& out, Meta& indices);
/// As TopKInferMeta.
SHARD_API void KthvalueInferMeta(const OpContext& ctx, const Meta& x, int k, int axis, bool keepdim, Meta& out,
                                 Meta& indices);
/// Throws invalid_argument for an empty axis.
SHARD_API void ModeInferMeta(const OpContext& ctx, const Meta& x, int axis, bool keepdim, Meta& out, Meta& indices);
/// Equal dtypes but bool, and equal leading dims or a sequence of one dim.
SHARD_API void SearchsortedInferMeta(const OpContext& ctx, const Meta& sorted_sequence, const Meta& values,
                                     bool out_int32, Meta& out);
/// bins >= 1 and min <= max (invalid_argument).
SHARD_API void HistogramInferMeta(const OpContext& ctx, const Meta& input, int64_t bins, int min, int max, Meta& out);
/// int64 indices with the dims of x but for the axis.
/// int64 indices of the shape of x.

// Linear algebra (linalg.cc): float32 and float64 (dtype_mismatch), square matrices in the last two dims (shape_mismatch).
SHARD_API void CholeskyInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
SHARD_API void InverseInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// y [.., n, k]; leading dims broadcast.
SHARD_API void TriangularSolveInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out);
/// As TriangularSolveInferMeta, or y [n].
SHARD_API void SolveInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out);
SHARD_API void DetInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
SHARD_API void SlogdetInferMeta(const OpContext& ctx, const Meta& x, Meta& out);
/// UPLO: "L" or "U" (invalid_argument).
SHARD_API void EighInferMeta(const OpContext& ctx, const Meta& x, const std::string& uplo, Meta& out_w, Meta& out_v);
/// Matrices of any shape.
SHARD_API void SvdInferMeta(const OpContext& ctx, const Meta& x, bool full_matrices, Meta& u, Meta& s, Meta& vh);
/// Matrices of any shape; mode: "reduced", "complete" or "r" (invalid_argument).
SHARD_API void QrInferMeta(const OpContext& ctx, const Meta& x, const std::string& mode, Meta& q, Meta& r);
/// Matrices of any shape.
SHARD_API void LUInferMeta(const OpContext& ctx, const Meta& x, Meta& out, Meta& pivots, Meta& infos);
/// Results of lu: y are its pivots, int32 (dtype_mismatch).
SHARD_API void LUUnpackInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, bool unpack_ludata,
                                 bool unpack_pivots, Meta& pmat, Meta& l, Meta& u);
/// Matrices of any shape with as many rows and equal leading dims (shape_mismatch); driver: "gels", "gelsy", "gelsd" or
/// "gelss" (invalid_argument).
SHARD_API void LstsqInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const std::string& driver,
                              Meta& solution, Meta& residuals, Meta& rank, Meta& singular_values);

// Neural networks (nn.cc).
// 1-D arguments are treated as a row (x) or column (y). Equal dtypes, broadcasting leading dims,
// equal inner sizes.
SHARD_API void MatmulInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, bool transpose_x, bool transpose_y,
                               Meta& out);
SHARD_API void SoftmaxInferMeta(const OpContext& ctx, const Meta& x, int axis, Meta& out);
/// Float dtypes (dtype_mismatch); prior_dist has the last dim of label, and size 1 in all other
/// dims (shape_mismatch).
SHARD_API void LabelSmoothInferMeta(const OpContext& ctx, const Meta& label, const Meta* prior_dist, Meta& out);
/// x: int32 or int64 ids; weight: [v, d].
SHARD_API void EmbeddingInferMeta(const OpContext& ctx, const Meta& x, const Meta& weight, Meta& out);
/// scale, bias: as many elements as the dims from begin_norm_axis on, dtype of x or of the statistics.
SHARD_API void LayerNormInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                                  int begin_norm_axis, Meta& out, Meta& mean, Meta& variance);
/// scale: as many elements as the last dim of x, dtype of x or of the statistics. invvar has the leading dims.
SHARD_API void RmsNormInferMeta(const OpContext& ctx, const Meta& x, const Meta& scale, Meta& out, Meta& invvar);
/// mean, variance, scale, bias: [c] in the dtype of the statistics (float32 for 16-bit x).
SHARD_API void BatchNormInferMeta(const OpContext& ctx, const Meta& x, const Meta& mean, const Meta& variance,
                                  const Meta* scale, const Meta* bias, const std::string& data_format, Meta& out,
                                  Meta& mean_out, Meta& variance_out, Meta& saved_mean, Meta& saved_variance);
/// p in [0, 1], mode upscale_in_train or downscale_in_infer (invalid_argument). mask: uint8.
SHARD_API void DropoutInferMeta(const OpContext& ctx, const Meta& x, const Meta* seed_tensor, const Scalar& p,
                                const std::string& mode, Meta& out, Meta& mask);
/// label: the shape of input with axis 1 or dropped and int32 or int64; with soft_label the meta of input.
SHARD_API void CrossEntropyWithSoftmaxInferMeta(const OpContext& ctx, const Meta& input, const Meta& label,
                                                bool soft_label, int axis, Meta& softmax, Meta& loss);
/// x [.., k] and dout [.., n] agree in dtype and leading dims; dweight [k, n] and dbias [n] have
/// the dtype of the results.
SHARD_API void FusedLinearParamGradAddInferMeta(const OpContext& ctx, const Meta& x, const Meta& dout,
                                                const Meta* dweight, const Meta* dbias, bool multi_precision,
                                                bool has_bias, Meta& dweight_out, Meta& dbias_out);

// Attention (attention.cc).
/// q, k, v: [batch, sequence, heads, width] of one float dtype; heads of k and v divide those of q.
/// attn_mask broadcasts to [batch, heads, queries, keys]; dropout in [0, 1) (invalid_argument).
SHARD_API void FlashAttnInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                                  const Meta* fixed_seed_offset, const Meta* attn_mask, float dropout,
                                  bool return_softmax, Meta& out, Meta& softmax, Meta& softmax_lse, Meta& seed_offset);
/// q, k, v: [rows, heads, width] of one float dtype, cu_seqlens_q and cu_seqlens_k: int32 [sequences + 1]; the rest as
/// for flash_attn.
SHARD_API void FlashAttnUnpaddedInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                                          const Meta& cu_seqlens_q, const Meta& cu_seqlens_k,
                                          const Meta* fixed_seed_offset, const Meta* attn_mask, int64_t max_seqlen_q,
                                          int64_t max_seqlen_k, float dropout, bool return_softmax, Meta& out,
                                          Meta& softmax, Meta& softmax_lse, Meta& seed_offset);
/// query, key, value as q, k, v of flash_attn, in a batch of 1 with cu_seqlens_q and cu_seqlens_k (shape_mismatch).
/// bias: [queries, keys] or as attn_mask, and not of packed sequences (invalid_argument); causal_diagonal, which needs
/// causal (invalid_argument), and seqlen_k: int32, one for each batch or sequence.
SHARD_API void MemoryEfficientAttentionInferMeta(const OpContext& ctx, const Meta& query, const Meta& key,
                                                 const Meta& value, const Meta* bias, const Meta* cu_seqlens_q,
                                                 const Meta* cu_seqlens_k, const Meta* causal_diagonal,
                                                 const Meta* seqlen_k, const Scalar& max_seqlen_q,
                                                 const Scalar& max_seqlen_k, bool causal, double dropout_p,
                                                 Meta& output, Meta& logsumexp, Meta& seed_and_offset);
/// q, k, v: four dims, the last even, that differ in dim 2 only. sin, cos: [positions, width] or
/// [1, positions, 1, width]; position_ids: int64 [batch, sequence].
SHARD_API void FusedRopeInferMeta(const OpContext& ctx, const Meta& q, const Meta* k, const Meta* v, const Meta* sin,
                                  const Meta* cos, const Meta* position_ids, bool time_major, Meta& out_q, Meta& out_k,
                                  Meta& out_v);

// Optimisers (optim.cc). The metas of outputs are those of the inputs whose buffers they share.
SHARD_API void SgdInferMeta(const OpContext& ctx, const Meta& param, const Meta& learning_rate, const Meta& grad,
                            const Meta* master_param, bool multi_precision, Meta& param_out, Meta& master_param_out);
SHARD_API void AdamwInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& learning_rate,
                              const Meta& moment1, const Meta& moment2, const Meta& beta1_pow, const Meta& beta2_pow,
                              const Meta* master_param, const Meta* skip_update, bool multi_precision, Meta& param_out,
                              Meta& moment1_out, Meta& moment2_out, Meta& beta1_pow_out, Meta& beta2_pow_out,
                              Meta& master_param_out);
SHARD_API void MomentumInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& velocity,
                                 const Meta& learning_rate, const Meta* master_param,
                                 const std::string& regularization_method, bool multi_precision, Meta& param_out,
                                 Meta& velocity_out, Meta& master_param_out);
SHARD_API void RmspropInferMeta(const OpContext& ctx, const Meta& param, const Meta& mean_square, const Meta& grad,
                                const Meta& moment, const Meta& learning_rate, const Meta* mean_grad,
                                const Meta* master_param, bool centered, bool multi_precision, Meta& param_out,
                                Meta& moment_out, Meta& mean_square_out, Meta& mean_grad_out, Meta& master_param_out);
SHARD_API void AdagradInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& moment,
                                const Meta& learning_rate, const Meta* master_param, bool multi_precision,
                                Meta& param_out, Meta& moment_out, Meta& master_param_out);
SHARD_API void AdadeltaInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad,
                                 const Meta& avg_squared_grad, const Meta& avg_squared_update,
                                 const Meta& learning_rate, const Meta* master_param, bool multi_precision,
                                 Meta& param_out, Meta& moment_out, Meta& inf_norm_out, Meta& master_param_out);
SHARD_API void AdamaxInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& learning_rate,
                               const Meta& moment, const Meta& inf_norm, const Meta& beta1_pow,
                               const Meta* master_param, bool multi_precision, Meta& param_out, Meta& moment_out,
                               Meta& inf_norm_out, Meta& master_param_out);
SHARD_API void ASGDInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& learning_rate,
                             const Meta& d, const Meta& y, const Meta& n, const Meta* master_param,
                             bool multi_precision, Meta& param_out, Meta& d_out, Meta& y_out, Meta& master_param_out);
SHARD_API void RpropInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& prev,
                              const Meta& learning_rate, const Meta* master_param, const Meta& learning_rate_range,
                              const Meta& etas, bool multi_precision, Meta& param_out, Meta& prev_out,
                              Meta& learning_rate_out, Meta& master_param_out);
/// Steps of lists of parameters: each as the step of one, and invalid_argument for lists that do not have as many
/// entries as param. master_param is empty where there is none.
SHARD_API void MergedMomentumInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                       std::span<const Meta> velocity, std::span<const Meta> learning_rate,
                                       std::span<const Meta> master_param,
                                       const std::vector<std::string>& regularization_method,
                                       const std::vector<float>& regularization_coeff, bool multi_precision,
                                       std::vector<Meta>& param_out, std::vector<Meta>& velocity_out,
                                       std::vector<Meta>& master_param_out);
SHARD_API void MergedAdamInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                   std::span<const Meta> learning_rate, std::span<const Meta> moment1,
                                   std::span<const Meta> moment2, std::span<const Meta> beta1_pow,
                                   std::span<const Meta> beta2_pow, std::span<const Meta> master_param,
                                   bool multi_precision, std::vector<Meta>& param_out, std::vector<Meta>& moment1_out,
                                   std::vector<Meta>& moment2_out, std::vector<Meta>& beta1_pow_out,
                                   std::vector<Meta>& beta2_pow_out, std::vector<Meta>& master_param_out);
SHARD_API void FusedAdamInferMeta(const OpContext& ctx, std::span<const Meta> params, std::span<const Meta> grads,
                                  const Meta& learning_rate, std::span<const Meta> moments1,
                                  std::span<const Meta> moments2, std::span<const Meta> beta1_pows,
                                  std::span<const Meta> beta2_pows, std::span<const Meta> master_params,
                                  const Meta* skip_update, const Scalar& beta1, const Scalar& beta2,
                                  const Scalar& epsilon, int chunk_size, float weight_decay, bool use_adamw,
                                  bool multi_precision, bool use_global_beta_pow, std::vector<Meta>& params_out,
                                  std::vector<Meta>& moments1_out, std::vector<Meta>& moments2_out,
                                  std::vector<Meta>& beta1_pows_out, std::vector<Meta>& beta2_pows_out,
                                  std::vector<Meta>& master_params_out);
SHARD_API void MergedSgdInferMeta(const OpContext& ctx, std::span<const Meta> param,
                                  std::span<const Meta> learning_rate, std::span<const Meta> grad,
                                  std::span<const Meta> master_param, bool multi_precision,
                                  std::vector<Meta>& param_out, std::vector<Meta>& master_param_out);
SHARD_API void MergedRmspropInferMeta(const OpContext& ctx, std::span<const Meta> param,
                                      std::span<const Meta> mean_square, std::span<const Meta> grad,
                                      std::span<const Meta> moment, std::span<const Meta> learning_rate,
                                      std::span<const Meta> mean_grad, std::span<const Meta> master_param,
                                      bool centered, bool multi_precision, std::vector<Meta>& param_out,
                                      std::vector<Meta>& moment_out, std::vector<Meta>& mean_square_out,
                                      std::vector<Meta>& mean_grad_out, std::vector<Meta>& master_param_out);
SHARD_API void MergedAdagradInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                      std::span<const Meta> moment, std::span<const Meta> learning_rate,
                                      std::span<const Meta> master_param, bool multi_precision,
                                      std::vector<Meta>& param_out, std::vector<Meta>& moment_out,
                                      std::vector<Meta>& master_param_out);
SHARD_API void MergedAdadeltaInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                       std::span<const Meta> avg_squared_grad, std::span<const Meta> avg_squared_update,
                                       std::span<const Meta> learning_rate, std::span<const Meta> master_param,
                                       bool multi_precision, std::vector<Meta>& param_out,
                                       std::vector<Meta>& moment_out, std::vector<Meta>& inf_norm_out,
                                       std::vector<Meta>& master_param_out);
SHARD_API void MergedAdamaxInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                     std::span<const Meta> learning_rate, std::span<const Meta> moment,
                                     std::span<const Meta> inf_norm, std::span<const Meta> beta1_pow,
                                     std::span<const Meta> master_param, bool multi_precision,
                                     std::vector<Meta>& param_out, std::vector<Meta>& moment_out,
                                     std::vector<Meta>& inf_norm_out, std::vector<Meta>& master_param_out);
SHARD_API void MergedAsgdInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                   std::span<const Meta> learning_rate, std::span<const Meta> d,
                                   std::span<const Meta> y, std::span<const Meta> n, std::span<const Meta> master_param,
                                   bool multi_precision, std::vector<Meta>& param_out, std::vector<Meta>& d_out,
                                   std::vector<Meta>& y_out, std::vector<Meta>& master_param_out);
SHARD_API void MergedRpropInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                    std::span<const Meta> prev, std::span<const Meta> learning_rate,
                                    std::span<const Meta> master_param, std::span<const Meta> learning_rate_range,
                                    std::span<const Meta> etas, bool multi_precision, std::vector<Meta>& param_out,
                                    std::vector<Meta>& prev_out, std::vector<Meta>& learning_rate_out,
                                    std::vector<Meta>& master_param_out);
SHARD_API void MergedLambInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                                   std::span<const Meta> learning_rate, std::span<const Meta> moment1,
                                   std::span<const Meta> moment2, std::span<const Meta> beta1_pow,
                                   std::span<const Meta> beta2_pow, std::span<const Meta> master_param,
                                   std::span<const Meta> skip_update, bool multi_precision,
                                   std::vector<Meta>& param_out, std::vector<Meta>& moment1_out,
                                   std::vector<Meta>& moment2_out, std::vector<Meta>& beta1_pow_out,
                                   std::vector<Meta>& beta2_pow_out, std::vector<Meta>& master_param_out);
SHARD_API void CheckFiniteAndUnscaleInferMeta(const OpContext& ctx, std::span<const Meta> x, const Meta& scale,
                                              std::vector<Meta>& out, Meta& found_infinite);
SHARD_API void UpdateLossScalingInferMeta(const OpContext& ctx, std::span<const Meta> x, const Meta& found_infinite,
                                          const Meta& prev_loss_scaling, const Meta& in_good_steps,
                                          const Meta& in_bad_steps, std::vector<Meta>& out, Meta& loss_scaling,
                                          Meta& out_good_steps, Meta& out_bad_steps);
/// Sums like param, counts of one int64 (dtype_mismatch), a least window up to the largest (invalid_argument).
SHARD_API void AverageAccumulatesInferMeta(const OpContext& ctx, const Meta& param, const Meta& in_sum_1,
                                           const Meta& in_sum_2, const Meta& in_sum_3, const Meta& in_num_accumulates,
                                           const Meta& in_old_num_accumulates, const Meta& in_num_updates,
                                           float average_window, int64_t max_average_window, int64_t min_average_window,
                                           Meta& out_sum_1, Meta& out_sum_2, Meta& out_sum_3, Meta& out_num_accumulates,
                                           Meta& out_old_num_accumulates, Meta& out_num_updates);

// Gradients of layers, beside their forward functions (nn.cc, attention.cc, elementwise.cc).
// Arguments and results of the forward op must have the metas that they had there, and a gradient
// must match the tensor that it belongs to: shape_mismatch, dtype_mismatch.
SHARD_API void SoftmaxGradInferMeta(const OpContext& ctx, const Meta& out, const Meta& out_grad, int axis,
                                    Meta& x_grad);
SHARD_API void EmbeddingGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& weight, const Meta& out_grad,
                                      Meta& weight_grad);
SHARD_API void LayerNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                                      const Meta& mean, const Meta& variance, const Meta& out_grad, int begin_norm_axis,
                                      Meta& x_grad, Meta& scale_grad, Meta& bias_grad);
SHARD_API void RmsNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& scale, const Meta& invvar,
                                    const Meta& out_grad, Meta& x_grad, Meta& scale_grad);
SHARD_API void BatchNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                                      const Meta& saved_mean, const Meta& saved_variance, const Meta& out_grad,
                                      const std::string& data_format, Meta& x_grad, Meta& scale_grad, Meta& bias_grad);
SHARD_API void DropoutGradInferMeta(const OpContext& ctx, const Meta& mask, const Meta& out_grad, const Scalar& p,
                                    const std::string& mode, Meta& x_grad);
SHARD_API void CrossEntropyWithSoftmaxGradInferMeta(const OpContext& ctx, const Meta& label, const Meta& softmax,
                                                    const Meta& loss_grad, bool soft_label, int axis, Meta& input_grad);
SHARD_API void FlashAttnGradInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                                      const Meta& out, const Meta& softmax_lse, const Meta& seed_offset,
                                      const Meta* attn_mask, const Meta& out_grad, Meta& q_grad, Meta& k_grad,
                                      Meta& v_grad);
SHARD_API void FlashAttnUnpaddedGradInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                                              const Meta& cu_seqlens_q, const Meta& cu_seqlens_k, const Meta& out,
                                              const Meta& softmax_lse, const Meta& seed_offset, const Meta* attn_mask,
                                              const Meta& out_grad, int64_t max_seqlen_q, int64_t max_seqlen_k,
                                              Meta& q_grad, Meta& k_grad, Meta& v_grad);
SHARD_API void MemoryEfficientAttentionGradInferMeta(const OpContext& ctx, const Meta& query, const Meta& key,
                                                     const Meta& value, const Meta* bias, const Meta* cu_seqlens_q,
                                                     const Meta* cu_seqlens_k, const Meta* causal_diagonal,
                                                     const Meta* seqlen_k, const Meta& output, const Meta& logsumexp,
                                                     const Meta& seed_and_offset, const Meta& output_grad,
                                                     const Scalar& max_seqlen_q, const Scalar& max_seqlen_k,
                                                     bool causal, double dropout_p, Meta& query_grad, Meta& key_grad,
                                                     Meta& value_grad, Meta& bias_grad);
SHARD_API void FusedRopeGradInferMeta(const OpContext& ctx, const Meta* sin, const Meta* cos, const Meta* position_ids,
                                      const Meta& out_q_grad, const Meta* out_k_grad, const Meta* out_v_grad,
                                      bool time_major, Meta& q_grad, Meta& k_grad, Meta& v_grad);
/// For a function of one tensor, from its input or its output x: equal metas of a float dtype.
SHARD_API void ActivationGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out_grad, Meta& x_grad);
SHARD_API void SiluGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out, const Meta& out_grad,
                                 Meta& x_grad);
SHARD_API void SwiGLUGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* y, const Meta& out_grad,
                                   Meta& x_grad, Meta& y_grad);

}  // namespace shard::meta
