// infer_meta of ops of sequences: recurrent networks, CTC, and the decoding of sequences.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"
#include "shard/meta/rnn.h"

namespace shard::meta {
namespace {

/// Throws shape_mismatch unless x has the shape `expected`, which `why` names.
void check_shape(const OpContext& ctx, std::string_view name, const Meta& x, const Dims& expected,
                 std::string_view why) {
  if (x.dims == expected) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the shape {}: {}", ctx.op, name, to_string(x),
       to_string(expected), why);
}

void check_rank(const OpContext& ctx, std::string_view name, const Meta& x, int rank, std::string_view dims) {
  if (x.dims.rank() == rank) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the dims {}", ctx.op, name, to_string(x), dims);
}

/// int32 or int64 [batch].
void check_lengths(const OpContext& ctx, std::string_view name, const Meta& lengths, int64_t batch) {
  check_index(ctx, name, lengths);
  check_shape(ctx, name, lengths, {batch}, "a length for each sequence of the batch");
}

/// Throws unless element `i` of a list has the dtype of x and the shape `expected`.
void check_element(const OpContext& ctx, const char* list, int64_t i, const Meta& x, const Meta& element,
                   const Dims& expected, std::string_view why) {
  if (element.dtype == x.dtype && element.dims == expected) return;
  const std::string name = fmt::format("{}[{}]", list, i);
  check_same_dtype(ctx, "x", x, name, element);
  check_shape(ctx, name, element, expected, why);
}

/// The arguments of rnn, which rnn_grad gets too.
struct RnnArgs {
  const Meta& x;
  std::span<const Meta> pre_state, weight_list;
  const Meta* sequence_length;
  int64_t directions, input_size, hidden_size, num_layers;
  RnnMode mode;

  int64_t batch() const { return x.dims[1]; }
  int64_t cells() const { return num_layers * directions; }
  int64_t gates() const { return parts_of(mode).gates * hidden_size; }
  Meta out() const { return {Dims{x.dims[0], batch(), directions * hidden_size}, x.dtype}; }
  Meta mask() const { return {out().dims, DType::uint8}; }
  Meta state() const { return {Dims{cells(), batch(), hidden_size}, x.dtype}; }
  Meta reserve() const {
    return {Dims{cells(), x.dims[0], batch(), parts_of(mode).reserved * hidden_size}, statistics_dtype(x.dtype)};
  }
};

void check_sizes(const OpContext& ctx, int input_size, int hidden_size, int num_layers, float dropout_prob) {
  const auto check = [&](const char* name, int size, int least) {
    if (size < least)
      fail(ErrorCode::invalid_argument, "[{}] {} is {}, but must be at least {}", ctx.op, name, size, least);
  };
  check("input_size", input_size, 0);
  check("hidden_size", hidden_size, 1);
  check("num_layers", num_layers, 1);
  if (!(dropout_prob >= 0 && dropout_prob <= 1))
    fail(ErrorCode::invalid_argument, "[{}] dropout_prob is {}, but must be from 0 to 1", ctx.op, dropout_prob);
}

void check_weights(const OpContext& ctx, const RnnArgs& args) {
  const int64_t cells = args.cells(), gates = args.gates();
  if (static_cast<int64_t>(args.weight_list.size()) != 4 * cells) {
    fail(ErrorCode::invalid_argument,
         "[{}] weight_list has {} tensors, but {} layers of {} directions need {}: two weights of each, and then two "
         "biases of each",
         ctx.op, args.weight_list.size(), args.num_layers, args.directions, 4 * cells);
  }
  for (int64_t i = 0; i < 4 * cells; ++i) {
    const int64_t inputs = i < 2 * args.directions ? args.input_size : args.directions * args.hidden_size;
    const Dims expected = i >= 2 * cells ? Dims{gates} : Dims{gates, i % 2 == 0 ? inputs : args.hidden_size};
    check_element(ctx, "weight_list", i, args.x, args.weight_list[static_cast<size_t>(i)], expected,
                  i >= 2 * cells ? "the gates"
                  : i % 2 == 0   ? "the gates, and the input of its layer"
                                 : "the gates, and hidden_size");
  }
}

void check_rnn(const OpContext& ctx, const RnnArgs& args) {
  check_floating(ctx, "x", args.x);
  check_rank(ctx, "x", args.x, 3, "[time, batch, input_size]");
  check_shape(ctx, "x", args.x, {args.x.dims[0], args.x.dims[1], args.input_size}, "its last dim is input_size");
  const size_t states = args.mode == RnnMode::lstm ? 2 : 1;
  if (args.pre_state.size() != states) {
    fail(ErrorCode::invalid_argument, "[{}] pre_state has {} tensors, but this mode needs {}", ctx.op,
         args.pre_state.size(), states == 2 ? "two: h and c" : "one: h");
  }
  for (size_t i = 0; i < states; ++i) {
    check_element(ctx, "pre_state", static_cast<int64_t>(i), args.x, args.pre_state[i], args.state().dims,
                  "num_layers * directions, the batch of x, and hidden_size");
  }
  check_weights(ctx, args);
  if (args.sequence_length != nullptr) check_lengths(ctx, "sequence_length", *args.sequence_length, args.batch());
  check_size(ctx, args.reserve().dims, args.reserve().dtype);
}

RnnMode mode_of(const OpContext& ctx, const std::string& name) {
  RnnMode mode = RnnMode::lstm;
  if (!find_mode(name, mode)) {
    fail(ErrorCode::invalid_argument, "[{}] mode is {}, but must be LSTM, GRU, RNN_TANH or RNN_RELU", ctx.op, name);
  }
  return mode;
}

/// Checks the arguments of CTC.
void check_ctc(const OpContext& ctx, const Meta& logits, const Meta& label, const Meta& logits_length,
               const Meta& labels_length, int blank) {
  check_floating(ctx, "logits", logits);
  check_rank(ctx, "logits", logits, 3, "[time, batch, classes]");
  check_index(ctx, "label", label);
  check_rank(ctx, "label", label, 2, "[batch, labels]");
  check_shape(ctx, "label", label, {logits.dims[1], label.dims[1]}, "a row for each sequence of the batch of logits");
  check_lengths(ctx, "logits_length", logits_length, logits.dims[1]);
  check_lengths(ctx, "labels_length", labels_length, logits.dims[1]);
  if (blank < 0 || blank >= logits.dims[2]) {
    fail(ErrorCode::invalid_argument, "[{}] blank is {}, but must be from 0 to {}: a class of logits, which is {}",
         ctx.op, blank, logits.dims[2] - 1, to_string(logits));
  }
}

}  // namespace

void RnnInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> pre_state,
                  std::span<const Meta> weight_list, const Meta* sequence_length, float dropout_prob, bool is_bidirec,
                  int input_size, int hidden_size, int num_layers, const std::string& mode, Meta& out,
                  Meta& dropout_state_out, std::vector<Meta>& state, Meta& reserve) {
  check_sizes(ctx, input_size, hidden_size, num_layers, dropout_prob);
  const RnnArgs args{x,          pre_state,   weight_list, sequence_length,   is_bidirec ? 2 : 1,
                     input_size, hidden_size, num_layers,  mode_of(ctx, mode)};
  check_rnn(ctx, args);
  out = args.out();
  dropout_state_out = args.mask();
  state.assign(pre_state.size(), args.state());
  reserve = args.reserve();
}

void RnnGradInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> pre_state,
                      std::span<const Meta> weight_list, const Meta* sequence_length, const Meta& dropout_state_out,
                      const Meta& reserve, const Meta& out_grad, std::span<const Meta> state_grad, float dropout_prob,
                      bool is_bidirec, int input_size, int hidden_size, int num_layers, const std::string& mode,
                      Meta& x_grad, std::vector<Meta>& pre_state_grad, std::vector<Meta>& weight_list_grad) {
  Meta out, mask, kept;
  std::vector<Meta> state;
  RnnInferMeta(ctx, x, pre_state, weight_list, sequence_length, dropout_prob, is_bidirec, input_size, hidden_size,
               num_layers, mode, out, mask, state, kept);
  check_like_forward(ctx, "dropout_state_out", dropout_state_out, mask);
  check_like_forward(ctx, "reserve", reserve, kept);
  check_like_forward(ctx, "out_grad", out_grad, out);
  if (state_grad.size() != state.size()) {
    fail(ErrorCode::invalid_argument, "[{}] state_grad has {} tensors, but there are {} states", ctx.op,
         state_grad.size(), state.size());
  }
  for (size_t i = 0; i < state.size(); ++i)
    check_like_forward(ctx, fmt::format("state_grad[{}]", i), state_grad[i], state[i]);
  x_grad = x;
  pre_state_grad.assign(pre_state.begin(), pre_state.end());
  weight_list_grad.assign(weight_list.begin(), weight_list.end());
}

void WarpctcInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label, const Meta& logits_length,
                      const Meta& labels_length, int blank, Meta& loss, Meta& warpctcgrad) {
  check_ctc(ctx, logits, label, logits_length, labels_length, blank);
  loss = {Dims{logits.dims[1], 1}, logits.dtype};
  warpctcgrad = logits;
}

void WarpctcGradInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label, const Meta& logits_length,
                          const Meta& labels_length, const Meta& warpctcgrad, const Meta& loss_grad, int blank,
                          Meta& logits_grad) {
  Meta loss;
  WarpctcInferMeta(ctx, logits, label, logits_length, labels_length, blank, loss, logits_grad);
  check_like_forward(ctx, "warpctcgrad", warpctcgrad, logits_grad);
  check_like_forward(ctx, "loss_grad", loss_grad, loss);
}

void ViterbiDecodeInferMeta(const OpContext& ctx, const Meta& potentials, const Meta& transition_params,
                            const Meta& lengths, bool include_bos_eos_tag, Meta& scores, Meta& path) {
  check_floating(ctx, "potentials", potentials);
  check_same_dtype(ctx, "potentials", potentials, "transition_params", transition_params);
  check_rank(ctx, "potentials", potentials, 3, "[batch, time, tags]");
  const int64_t tags = potentials.dims[2], least = include_bos_eos_tag ? 2 : 1;
  check_shape(ctx, "transition_params", transition_params, {tags, tags}, "a row and a column for each tag");
  check_lengths(ctx, "lengths", lengths, potentials.dims[0]);
  if (tags < least) {
    fail(ErrorCode::invalid_argument, "[{}] potentials is {}, but there must be at least {} tags{}", ctx.op,
         to_string(potentials), least, include_bos_eos_tag ? ", of which the last two are the start and the stop" : "");
  }
  scores = {Dims{potentials.dims[0]}, potentials.dtype};
  path = {Dims{potentials.dims[0], potentials.dims[1]}, DType::int64};
}

void GatherTreeInferMeta(const OpContext& ctx, const Meta& ids, const Meta& parents, Meta& out) {
  check_index(ctx, "ids", ids);
  check_same_dtype(ctx, "ids", ids, "parents", parents);
  check_rank(ctx, "ids", ids, 3, "[time, batch, beams]");
  check_shape(ctx, "parents", parents, ids.dims, "that of ids");
  out = ids;
}

}  // namespace shard::meta
