// The keys of an op and of its blocks. A new key is added to the table of its block.
#include "read/read_op.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "diag/printable.h"
#include "diag/utf8.h"
#include "read/phrases.h"
#include "read/signature.h"

namespace shardgen {
namespace {

using Context = const ReadContext&;
using Node = const YamlNode&;

/// `x, axis, false` or a list of the same.
std::vector<CallArg> read_params(Context c, Node n, std::string_view what) {
  std::vector<CallArg> args;
  const auto read = [&](Node item) {
    if (!expect_scalar(c, item, what)) return;
    Cursor cursor = c.cursor(item);
    for (CallArg& arg : read_call_args(cursor)) args.push_back(std::move(arg));
  };
  if (n.kind == YamlNode::Kind::sequence) {
    for (Node item : n.items) read(item);
  } else {
    read(n);
  }
  return args;
}

void read_rule(Context c, Node n, InferMeta& meta) {
  meta.spmd_rule = Name{n.text, c.file.at(n, 0)};
  for (size_t offset = 0; offset <= n.text.size(); ++offset) {
    Location at = c.file.at(n, offset);
    if (meta.rule_places.empty() || meta.rule_places.last().line != at.line)
      meta.rule_places.start_line(offset, std::move(at));
  }
  if (!shard::is_axis_expr(n.text)) return;
  shard::AxisProblem wrong;
  meta.expression = shard::parse_axis_expr(n.text, wrong);
  if (!meta.expression) meta.wrong = std::move(wrong);
}

constexpr std::array<KeyReader<InferMeta>, 5> kInferMetaKeys = {{
    {{"func", ValueKind::qualified_name,
      "The C++ function in shard::meta that infers shapes and dtypes of the outputs."},
     [](Context c, Node n, InferMeta& m) { m.func = read_name(c, n, "'infer_meta.func'", true); }},
    {{"param", ValueKind::passed, "The arguments that it gets; those of the kernel by default."},
     [](Context c, Node n, InferMeta& m) { m.param = read_params(c, n, "'infer_meta.param'"); }},
    {{"spmd_rule", ValueKind::text,
      "The placement rule: an axis expression such as \"m k, k n -> m n\", or the name of a C++ rule."},
     [](Context c, Node n, InferMeta& m) {
       if (expect_scalar(c, n, "'spmd_rule'")) read_rule(c, n, m);
     }},
    {{"local_shape", ValueKind::name,
      "The attribute that is a shape: the dense call on a rank gets the shape of its local shard instead."},
     [](Context c, Node n, InferMeta& m) { m.local_shape = read_name(c, n, "'local_shape'"); }},
    {{"global_shape", ValueKind::name, "The output whose shape 'local_shape' is; the first by default."},
     [](Context c, Node n, InferMeta& m) { m.global_shape = read_name(c, n, "'global_shape'"); }},
}};

void read_dispatch(Context c, Node n, std::string_view what, DispatchKey& key) {
  if (n.kind == YamlNode::Kind::map && !n.entries.empty()) {
    // YAML parses `{a, b}` as a flow map: its keys are the candidates.
    key.at = c.at(n);
    for (const YamlEntry& entry : n.entries) {
      if (entry.key.kind != YamlNode::Kind::scalar || entry.value.kind != YamlNode::Kind::null) {
        c.sink.error(c.at(entry.key), "syntax",
                     fmt::format("{} must be names, as in 'x' or '{{x, y}}', not a map.", what));
        continue;
      }
      Cursor cursor = c.cursor(entry.key);
      const DispatchKey part = read_dispatch_key(cursor);
      key.candidates.insert(key.candidates.end(), part.candidates.begin(), part.candidates.end());
    }
  } else if (expect_scalar(c, n, what)) {
    Cursor cursor = c.cursor(n);
    key = read_dispatch_key(cursor);
  }
}

constexpr std::array<KeyReader<KernelSpec>, 6> kKernelKeys = {{
    {{"func", ValueKind::kernels,
      "The kernel, or several with the kinds of tensors that each takes: add {dense, dense -> dense}, ..."},
     [](Context c, Node n, KernelSpec& k) {
       k.has_func = true;
       if (!expect_scalar(c, n, "'kernel.func'")) return;
       Cursor cursor = c.cursor(n);
       k.funcs = read_kernel_funcs(cursor);
     }},
    {{"param", ValueKind::passed, "The arguments that the kernel gets; all of the op by default."},
     [](Context c, Node n, KernelSpec& k) { k.param = read_params(c, n, "'kernel.param'"); }},
    {{"data_type", ValueKind::dispatch,
      "What the kernel's dtype is taken from: an argument, or several in order: dtype > x."},
     [](Context c, Node n, KernelSpec& k) { read_dispatch(c, n, "'kernel.data_type'", k.data_type); }},
    {{"backend", ValueKind::dispatch,
      "What the kernel's device is taken from: an argument, or several in order: place > x."},
     [](Context c, Node n, KernelSpec& k) { read_dispatch(c, n, "'kernel.backend'", k.backend); }},
    {{"layout", ValueKind::dispatch,
      "What the memory layout is taken from. The runtime has one layout and does not ask."},
     [](Context c, Node n, KernelSpec& k) { read_dispatch(c, n, "'kernel.layout'", k.layout); }},
    {{"force_backend", ValueKind::name, "A backend that is always used. The runtime does not ask."},
     [](Context c, Node n, KernelSpec& k) { k.force_backend = read_name(c, n, "'force_backend'"); }},
}};

constexpr std::array<KeyReader<DataTransform>, 2> kDataTransformKeys = {{
    {{"skip_transform", ValueKind::names, "The arguments that are passed as they are."},
     [](Context c, Node n, DataTransform& t) { t.skip_transform = read_names(c, n, "'skip_transform'"); }},
    {{"support_trans_dtype", ValueKind::names, "The arguments that are cast to the kernel's dtype."},
     [](Context c, Node n, DataTransform& t) { t.support_trans_dtype = read_names(c, n, "'support_trans_dtype'"); }},
}};

/// A doc becomes a comment. Text that could end the comment or be invisible in it is refused; line
/// breaks become spaces.
bool check_doc(Context c, Node n) {
  const auto fail = [&](size_t at, std::string_view what) {
    c.sink.error(c.file.at(n, at), "bad-doc", fmt::format("'doc' cannot contain {}: remove it.", what));
    return false;
  };
  for (size_t i = 0; i < n.text.size();) {
    const Utf8Char next = decode_utf8(std::string_view(n.text).substr(i));
    const bool last = i + 1 == n.text.size() || n.text[i + 1] == ' ' || n.text[i + 1] == '\n';
    if (n.text[i] == '\\' && last) return fail(i, "a backslash at the end of a word");
    if (n.text[i] != '\n' && is_invisible(next.code)) return fail(i, "an invisible character");
    i += std::max<size_t>(next.length, 1);
  }
  return true;
}

void read_save_if(Context c, Node n, Extension& e) {
  e.save_if.emplace();
  if (!expect_map(c, n, "'save_if'")) return;
  for (size_t i = 0; i < n.entries.size(); ++i) {
    const auto& [key, value] = n.entries[i];
    if (!check_key(c, n, i) || !expect_scalar(c, value, fmt::format("the condition of '{}'", key.text))) continue;
    const std::optional<Name> arg = read_name(c, key, "an argument");
    Cursor cursor = c.cursor(value);
    const std::optional<Condition> condition = read_condition(cursor);
    if (arg && condition) e.save_if->push_back({*arg, *condition});
  }
}

std::vector<Trait> read_traits(Context c, Node n) {
  std::vector<Trait> traits;
  std::string known;
  for (const TraitInfo& each : kTraits) known += (known.empty() ? "" : ", ") + std::string(each.name);
  for (const Name& name : read_names(c, n, "'traits'")) {
    const auto found =
        std::find_if(kTraits.begin(), kTraits.end(), [&](const TraitInfo& each) { return each.name == name.text; });
    if (found != kTraits.end()) traits.push_back(found->trait);
    else c.sink.error(name.at, "bad-value", fmt::format("Unknown trait '{}': an op may have {}.", name.text, known));
  }
  return traits;
}

void read_neutral(Context c, Node n, Extension& e) {
  e.neutral.emplace();
  if (!expect_map(c, n, "'neutral'")) return;
  for (size_t i = 0; i < n.entries.size(); ++i) {
    const auto& [key, value] = n.entries[i];
    if (!check_key(c, n, i) || !expect_scalar(c, value, fmt::format("the neutral value of '{}'", key.text))) continue;
    const std::optional<Name> arg = read_name(c, key, "an argument");
    double number = 0;
    const auto [end, error] = std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
    if (error != std::errc() || end != value.text.data() + value.text.size() || !std::isfinite(number)) {
      c.sink.error(c.at(value), "bad-value",
                   fmt::format("The neutral value of '{}' must be a finite number, not '{}'.", key.text, value.text));
    } else if (arg) {
      e.neutral->push_back({*arg, number});
    }
  }
}

constexpr std::array<KeyReader<Extension>, 14> kExtensionKeys = {{
    {{"partial", ValueKind::partial, "How the op commutes with a pending reduction."},
     [](Context c, Node n, Extension& e) {
       if (!expect_scalar(c, n, "'partial'")) return;
       Cursor cursor = c.cursor(n);
       e.partial = read_partial(cursor);
     }},
    {{"partial_guard", ValueKind::name, "A C++ predicate on spmd::RuleArgs that must also hold for 'partial'."},
     [](Context c, Node n, Extension& e) { e.partial_guard = read_name(c, n, "'partial_guard'"); }},
    {{"view_writes", ValueKind::names,
      "The outputs whose views the kernel writes, where they differ from those that follow from 'view' and 'inplace'."},
     [](Context c, Node n, Extension& e) {
       const bool none = n.kind == YamlNode::Kind::sequence && n.items.empty();
       e.view_writes = none ? std::vector<Name>{} : read_names(c, n, "'view_writes'");
     }},
    {{"dynamic_shape", ValueKind::names,
      "The outputs whose number of rows depends on data: their kernel allocates them."},
     [](Context c, Node n, Extension& e) { e.dynamic_shape = read_names(c, n, "'dynamic_shape'"); }},
    {{"random", ValueKind::boolean, "True for an op that draws random numbers: its kernel gets a RandomKey."},
     [](Context c, Node n, Extension& e) { e.random = read_bool(c, n, "'random'"); }},
    {{"elementwise", ValueKind::boolean, "Whether the kernel may run with an output that is exactly an input."},
     [](Context c, Node n, Extension& e) { e.elementwise = read_bool(c, n, "'elementwise'"); }},
    {{"traits", ValueKind::traits, "Facts about the op that passes over captured programs use."},
     [](Context c, Node n, Extension& e) { e.traits = read_traits(c, n); }},
    {{"neutral", ValueKind::numbers,
      "Per argument the value with which the result is the other argument: {y : 1} of a division."},
     read_neutral},
    {{"no_gradient", ValueKind::boolean,
      "True for an op whose results do not depend on the elements of its arguments, or only in steps: no gradient "
      "flows through it."},
     [](Context c, Node n, Extension& e) { e.no_gradient = read_bool(c, n, "'no_gradient'"); }},
    {{"record_composite", ValueKind::boolean,
      "True for an op whose recorded calls run 'composite', op by op, instead of the kernel; so its gradient is that "
      "of these ops, to any order."},
     [](Context c, Node n, Extension& e) { e.record_composite = read_bool(c, n, "'record_composite'"); }},
    {{"optional_outputs", ValueKind::boolean,
      "True for a backward op whose kernels leave out the outputs that nobody wants: they get undefined tensors for "
      "these."},
     [](Context c, Node n, Extension& e) { e.optional_outputs = read_bool(c, n, "'optional_outputs'"); }},
    {{"overload", ValueKind::boolean,
      "True for an op that invokes another with fewer arguments: its function has the name of the other one's."},
     [](Context c, Node n, Extension& e) { e.overload = read_bool(c, n, "'overload'"); }},
    {{"save_if", ValueKind::conditions,
      "Of a backward op: the arguments that are read under a condition only, and are saved only then."},
     read_save_if},
    {{"doc", ValueKind::text, "The comment above the declaration of the function."},
     [](Context c, Node n, Extension& e) {
       if (expect_scalar(c, n, "'doc'") && check_doc(c, n)) e.doc = n.text;
     }},
}};

template <class T, size_t N>
void read_block(Context c, Node n, const std::array<KeyReader<T>, N>& keys, std::string_view what, T& target) {
  if (expect_map(c, n, what)) read_keys<T>(c, n, keys, what, target);
}

void read_op_name(Context c, Node n, Op& op) {
  if (std::optional<Name> name = read_name(c, n, "the name of an op")) op.name = std::move(*name);
}

void read_arguments(Context c, Node n, Op& op) {
  op.args_at = c.at(n);
  const int errors = c.sink.error_count();
  if (expect_scalar(c, n, "'args'")) {
    Cursor cursor = c.cursor(n);
    read_args(cursor, op.signature);
    cursor.expect_end("the arguments");
  }
  op.complete = op.complete && c.sink.error_count() == errors;
}

void read_results(Context c, Node n, Op& op) {
  op.output_at = c.at(n);
  const int errors = c.sink.error_count();
  // An empty value is an op without outputs, as PaddlePaddle's files write it.
  if (n.kind != YamlNode::Kind::null && expect_scalar(c, n, "'output'")) {
    Cursor cursor = c.cursor(n);
    read_outputs(cursor, op.signature);
  }
  op.complete = op.complete && c.sink.error_count() == errors;
}

std::vector<AliasPair> read_pairs(Context c, Node n, std::string_view what) {
  if (!expect_scalar(c, n, what)) return {};
  Cursor cursor = c.cursor(n);
  return read_alias_pairs(cursor);
}

std::optional<Call> read_call_of(Context c, Node n, std::string_view what) {
  if (!expect_scalar(c, n, what)) return std::nullopt;
  Cursor cursor = c.cursor(n);
  return read_call(cursor);
}

constexpr std::array<KeyReader<Op>, 22> kOpKeys = {{
    {{"op", ValueKind::name, "The name of the op, which is that of its function."}, read_op_name},
    {{"backward_op", ValueKind::name, "The name of a backward op; 'forward' names its forward op."},
     [](Context c, Node n, Op& op) {
       op.is_backward = true;
       read_op_name(c, n, op);
     }},
    {{"args", ValueKind::arguments, "The arguments in order: (Tensor x, Tensor[] y, int axis=-1)."}, read_arguments},
    {{"output", ValueKind::outputs, "The outputs: Tensor(out), Tensor[](parts){n}."}, read_results},
    {{"infer_meta", ValueKind::infer_meta_block, "Shapes, dtypes and placement of the outputs."},
     [](Context c, Node n, Op& op) {
       op.infer_meta.emplace().at = c.at(n);
       read_block(c, n, kInferMetaKeys, "'infer_meta'", *op.infer_meta);
     }},
    {{"kernel", ValueKind::kernel_block, "The kernel that computes the op, and how it is chosen."},
     [](Context c, Node n, Op& op) {
       op.kernel.emplace().at = c.at(n);
       read_block(c, n, kKernelKeys, "'kernel'", *op.kernel);
     }},
    {{"invoke", ValueKind::call, "The op invokes another op: full(shape, 0, dtype, place)."},
     [](Context c, Node n, Op& op) {
       op.has_invoke = true;
       op.invoke = read_call_of(c, n, "'invoke'");
     }},
    {{"composite", ValueKind::call, "The op is composed of others, by a C++ function with these arguments."},
     [](Context c, Node n, Op& op) { op.composite = read_call_of(c, n, "'composite'"); }},
    {{"inplace", ValueKind::pairs, "Outputs that may overwrite an argument: (x -> out), (y -> y_out)."},
     [](Context c, Node n, Op& op) { op.inplace = read_pairs(c, n, "'inplace'"); }},
    {{"view", ValueKind::pairs, "Outputs that share the buffer of an argument: (x -> out)."},
     [](Context c, Node n, Op& op) { op.view = read_pairs(c, n, "'view'"); }},
    {{"optional", ValueKind::names, "Arguments that may be absent."},
     [](Context c, Node n, Op& op) { op.optional = read_names(c, n, "'optional'"); }},
    {{"intermediate", ValueKind::names, "Outputs that are kept for the backward op and not returned."},
     [](Context c, Node n, Op& op) { op.intermediate = read_names(c, n, "'intermediate'"); }},
    {{"no_need_buffer", ValueKind::names, "Arguments of which only the shape is needed."},
     [](Context c, Node n, Op& op) { op.no_need_buffer = read_names(c, n, "'no_need_buffer'"); }},
    {{"support_tensor", ValueKind::names, "Attributes that may also be given as tensors."},
     [](Context c, Node n, Op& op) { op.support_tensor = read_names(c, n, "'support_tensor'"); }},
    {{"interfaces", ValueKind::qualified_names, "Interfaces of the op in PaddlePaddle's IR. Not used here."},
     [](Context c, Node n, Op& op) { op.interfaces = read_names(c, n, "'interfaces'", true); }},
    {{"traits", ValueKind::qualified_names, "Traits of the op in PaddlePaddle's IR. Not used here."},
     [](Context c, Node n, Op& op) { op.traits = read_names(c, n, "'traits'", true); }},
    {{"data_transform", ValueKind::data_transform_block, "Which arguments are cast before the kernel."},
     [](Context c, Node n, Op& op) { read_block(c, n, kDataTransformKeys, "'data_transform'", op.data_transform); }},
    {{"backward", ValueKind::name, "The backward op."},
     [](Context c, Node n, Op& op) { op.backward = read_name(c, n, "'backward'"); }},
    {{"forward", ValueKind::forward,
      "The forward op of a backward op, with its signature: add (Tensor x, Tensor y) -> Tensor(out)."},
     [](Context c, Node n, Op& op) {
       op.has_forward = true;
       if (!expect_scalar(c, n, "'forward'")) return;
       Cursor cursor = c.cursor(n);
       op.forward = read_forward(cursor);
     }},
    {{"support_dygraph_mode", ValueKind::boolean, "Accepted and not used."},
     [](Context c, Node n, Op&) { read_bool(c, n, "'support_dygraph_mode'"); }},
    {{"data_format", ValueKind::name, "Accepted and not used."},
     [](Context c, Node n, Op&) { read_name(c, n, "'data_format'"); }},
    {{"shard", ValueKind::shard_block, "The keys of shardgen's own."},
     [](Context c, Node n, Op& op) { read_block(c, n, kExtensionKeys, "'shard'", op.extension); }},
}};

/// An entry is an op or a backward op, not both.
void check_kind(Context c, Node map) {
  const YamlNode* first = nullptr;
  for (const YamlEntry& entry : map.entries) {
    if (entry.key.text != "op" && entry.key.text != "backward_op") continue;
    if (first != nullptr && first->text != entry.key.text) {
      c.sink.error(c.at(entry.key), "two-names", "An entry names either an 'op' or a 'backward_op': make two entries.",
                   {{c.at(*first), "The other name."}});
    }
    first = &entry.key;
  }
}

template <class T, size_t N>
std::vector<KeyInfo> infos(const std::array<KeyReader<T>, N>& readers) {
  return {readers.begin(), readers.end()};
}

}  // namespace

std::vector<KeyInfo> keys_of(Block block) {
  switch (block) {
    case Block::op: return infos(kOpKeys);
    case Block::infer_meta: return infos(kInferMetaKeys);
    case Block::kernel: return infos(kKernelKeys);
    case Block::data_transform: return infos(kDataTransformKeys);
    case Block::shard: return infos(kExtensionKeys);
  }
  return {};
}

std::optional<Block> block_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::infer_meta_block: return Block::infer_meta;
    case ValueKind::kernel_block: return Block::kernel;
    case ValueKind::data_transform_block: return Block::data_transform;
    case ValueKind::shard_block: return Block::shard;
    case ValueKind::name:
    case ValueKind::qualified_name:
    case ValueKind::names:
    case ValueKind::qualified_names:
    case ValueKind::passed:
    case ValueKind::boolean:
    case ValueKind::text:
    case ValueKind::arguments:
    case ValueKind::outputs:
    case ValueKind::pairs:
    case ValueKind::kernels:
    case ValueKind::dispatch:
    case ValueKind::call:
    case ValueKind::forward:
    case ValueKind::partial:
    case ValueKind::conditions:
    case ValueKind::numbers:
    case ValueKind::traits: break;
  }
  return std::nullopt;
}

namespace {

/// The keys of infer_meta that concern placement, not computation.
constexpr std::array kPlacementKeys = {kInferMetaKeys[2], kInferMetaKeys[3], kInferMetaKeys[4]};

void read_overlay_name(Context c, Node n, OverlayEntry& entry) {
  if (std::optional<Name> name = read_name(c, n, "The name of an op")) entry.name = std::move(*name);
}

constexpr std::array<KeyReader<OverlayEntry>, 4> kOverlayKeys = {{
    {{"op", ValueKind::name, "The op that the entry adds to."}, read_overlay_name},
    {{"backward_op", ValueKind::name, "The same for a backward op."}, read_overlay_name},
    {{"infer_meta", ValueKind::infer_meta_block, "Its placement rule."},
     [](Context c, Node n, OverlayEntry& e) {
       read_block(c, n, kPlacementKeys, "'infer_meta' of an overlay", e.infer_meta);
     }},
    {{"shard", ValueKind::shard_block, "Its keys of our own."},
     [](Context c, Node n, OverlayEntry& e) { read_block(c, n, kExtensionKeys, "'shard'", e.extension); }},
}};

}  // namespace

std::optional<OverlayEntry> read_overlay_entry(const ReadContext& context, const YamlNode& node) {
  if (!expect_map(context, node, "An entry of an overlay")) return std::nullopt;
  OverlayEntry entry;
  read_keys<OverlayEntry>(context, node, kOverlayKeys, "an overlay", entry);
  if (!entry.name.text.empty()) return entry;
  const bool tried = std::any_of(node.entries.begin(), node.entries.end(),
                                 [](const YamlEntry& e) { return e.key.text == "op" || e.key.text == "backward_op"; });
  if (!tried)
    context.sink.error(context.at(node), "missing-key",
                       "An entry of an overlay needs the key 'op' with the name of an op.");
  return std::nullopt;
}

std::optional<Op> read_op(const ReadContext& context, const YamlNode& entry) {
  if (!expect_map(context, entry, "an op")) return std::nullopt;
  Op op;
  read_keys<Op>(context, entry, kOpKeys, "an op", op);
  check_kind(context, entry);
  op.complete = op.complete && op.args_at && op.output_at;
  if (!op.name.text.empty()) return op;
  const bool tried = std::any_of(entry.entries.begin(), entry.entries.end(),
                                 [](const YamlEntry& e) { return e.key.text == "op" || e.key.text == "backward_op"; });
  if (!tried) context.sink.error(context.at(entry), "missing-key", "An op needs the key 'op' with its name.");
  return std::nullopt;
}

}  // namespace shardgen
