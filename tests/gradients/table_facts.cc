#include "gradients/table_facts.h"

namespace shard::test {

/// Inputs of a floating dtype for which the op has no gradient.
const std::vector<TensorsOfCase> kConstantInputs = {
    {"batch_norm", {1, 2}},  // running statistics, which are written
    {"sync_batch_norm_", {1, 2}},
    {"bce_loss", {1}},  // labels
    {"log_loss", {1}},
    {"nll_loss", {2}},  // the weights of classes
    {"nll_loss_grad", {0, 2, 4}},
    {"pool2d_grad", {0}},  // the image, of which the largest elements are looked up
    {"pool2d_double_grad", {0}},
    {"pool3d_grad", {0}},
    {"pool3d_double_grad", {0}},
    {"max_pool2d_with_index_grad", {0}},
    {"max_pool2d_with_index_double_grad", {0}},
    {"max_pool3d_with_index_grad", {0}},
    {"max_pool3d_with_index_double_grad", {0}},
    {"cross_entropy_with_softmax", {1}},  // a soft label
    {"flash_attn", {4}},                  // the mask
    {"flash_attn_unpadded", {6}},
    {"fused_rotary_position_embedding", {2, 3}, "table"},  // sines and cosines
    {"fused_rotary_position_embedding", {1, 2}, "table and ids, sequence first"},
    {"fused_rotary_position_embedding_grad", {2, 3}, "table"},
    {"fused_rotary_position_embedding_grad", {1, 2}, "table and ids, sequence first"},
    {"label_smooth", {1}},  // the prior
    {"lerp", {2}},          // the weight
    {"roi_align", {1}},     // boxes
    {"roi_align_grad", {0, 1}},
    {"roi_pool", {1}},
};
const std::vector<TensorsOfCase> kConstantOutputs = {
    {"batch_norm", {1, 2, 3, 4, 5, 6}},  // statistics
    {"sync_batch_norm_", {1, 2, 3, 4, 5, 6}},
    {"flash_attn", {1, 2, 3}},  // the weights, what the gradient uses, and the seed
    {"flash_attn_unpadded", {1, 2, 3}},
    {"memory_efficient_attention", {1, 2}},
    {"group_norm", {1, 2}},  // statistics
    {"huber_loss", {1}},     // what the gradient uses
    {"instance_norm", {1, 2}},
    {"layer_norm", {1, 2}},  // statistics
    {"lu_unpack", {0}},      // the permutation
    {"nll_loss", {1}},       // the weights of the labels
    {"rms_norm", {1}},
    {"warpctc", {1}},  // what the gradient uses
};
/// Cases whose gradient is by definition another than that of the value, in `places` inputs: divided by a count, or also
/// that of elements of which only the last is in the result, or several times that of an element which edges send several
/// times.
const std::vector<TensorsOfCase> kScaledGradients = {{"warpctc", {0}, "the last class is blank, norm_by_times, int32"},
                                                     {"unpool", {0}, "several at one place"},
                                                     {"send_u_recv", {0}, "MAX, int32"}};
/// Inputs that must be positive: powers of them are real then, roots have a derivative, and no two have one absolute value.
const std::vector<TensorsOfCase> kPositiveInputs = {{"elementwise_pow", {0}},
                                                    {"frobenius_norm", {0}},
                                                    {"p_norm", {0}, "of order inf"},
                                                    {"p_norm", {0}, "of order inf, as a vector, keepdim"},
                                                    {"p_norm", {0}, "of order -inf"},
                                                    {"p_norm", {0}, "of order -inf, as a vector, keepdim"},
                                                    {"sqrt", {0}}};

}  // namespace shard::test
