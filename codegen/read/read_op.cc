// The keys of an op and of its blocks. A new key is added to the table of its block.
#include "read/read_op.h"

#include <array>

#include "diag/printable.h"
#include "diag/utf8.h"
#include "read/phrases.h"
#include "read/signature.h"

namespace shardgen {
namespace {

using Context = const ReadContext&;
using Node = const YamlNode&;

constexpr std::array<KeyReader<InferMeta>, 5> kInferMetaKeys = {{
    {"func", [](Context c, Node n, InferMeta& m) { m.func = read_name(c, n, "'infer_meta.func'", true); }},
    {"param", [](Context c, Node n, InferMeta& m) { m.param = read_names(c, n, "'infer_meta.param'"); }},
    {"spmd_rule",
     [](Context c, Node n, InferMeta& m) {
       if (expect_scalar(c, n, "'spmd_rule'")) m.spmd_rule = Name{n.text, c.file.at(n, 0)};
     }},
    {"local_shape", [](Context c, Node n, InferMeta& m) { m.local_shape = read_name(c, n, "'local_shape'"); }},
    {"global_shape", [](Context c, Node n, InferMeta& m) { m.global_shape = read_name(c, n, "'global_shape'"); }},
}};

void read_dispatch(Context c, Node n, std::string_view what, DispatchKey& key) {
  if (n.kind == YamlNode::Kind::map && !n.entries.empty()) {
    // `{a, b}` is a flow map to YAML: its keys are the candidates.
    key.at = c.at(n);
    for (const YamlEntry& entry : n.entries) {
      if (entry.key.kind != YamlNode::Kind::scalar || entry.value.kind != YamlNode::Kind::null) {
        c.sink.error(c.at(entry.key), "syntax", fmt::format("{} must be names, as in 'x' or '{{x, y}}', not a map.", what));
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
    {"func",
     [](Context c, Node n, KernelSpec& k) {
       k.has_func = true;
       if (!expect_scalar(c, n, "'kernel.func'")) return;
       Cursor cursor = c.cursor(n);
       k.funcs = read_kernel_funcs(cursor);
     }},
    {"param", [](Context c, Node n, KernelSpec& k) { k.param = read_names(c, n, "'kernel.param'"); }},
    {"data_type", [](Context c, Node n, KernelSpec& k) { read_dispatch(c, n, "'kernel.data_type'", k.data_type); }},
    {"backend", [](Context c, Node n, KernelSpec& k) { read_dispatch(c, n, "'kernel.backend'", k.backend); }},
    {"layout", [](Context c, Node n, KernelSpec& k) { read_dispatch(c, n, "'kernel.layout'", k.layout); }},
    {"force_backend", [](Context c, Node n, KernelSpec& k) { k.force_backend = read_name(c, n, "'force_backend'"); }},
}};

constexpr std::array<KeyReader<DataTransform>, 2> kDataTransformKeys = {{
    {"skip_transform", [](Context c, Node n, DataTransform& t) { t.skip_transform = read_names(c, n, "'skip_transform'"); }},
    {"support_trans_dtype",
     [](Context c, Node n, DataTransform& t) { t.support_trans_dtype = read_names(c, n, "'support_trans_dtype'"); }},
}};

/// A doc becomes a comment. What could end that comment or hide in it is refused; line breaks become spaces.
bool check_doc(Context c, Node n) {
  const auto fail = [&](size_t at, std::string_view what) {
    c.sink.error(c.file.at(n, at), "bad-doc", fmt::format("'doc' cannot hold {}: leave it out.", what));
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

constexpr std::array<KeyReader<Extension>, 6> kExtensionKeys = {{
    {"partial",
     [](Context c, Node n, Extension& e) {
       if (!expect_scalar(c, n, "'partial'")) return;
       Cursor cursor = c.cursor(n);
       e.partial = read_partial(cursor);
     }},
    {"partial_guard", [](Context c, Node n, Extension& e) { e.partial_guard = read_name(c, n, "'partial_guard'"); }},
    {"view_writes",
     [](Context c, Node n, Extension& e) {
       const bool none = n.kind == YamlNode::Kind::sequence && n.items.empty();
       e.view_writes = none ? std::vector<Name>{} : read_names(c, n, "'view_writes'");
     }},
    {"random", [](Context c, Node n, Extension& e) { e.random = read_bool(c, n, "'random'"); }},
    {"elementwise", [](Context c, Node n, Extension& e) { e.elementwise = read_bool(c, n, "'elementwise'"); }},
    {"doc",
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
  if (expect_scalar(c, n, "'output'")) {
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
    {"op", read_op_name},
    {"backward_op",
     [](Context c, Node n, Op& op) {
       op.is_backward = true;
       read_op_name(c, n, op);
     }},
    {"args", read_arguments},
    {"output", read_results},
    {"infer_meta",
     [](Context c, Node n, Op& op) {
       read_block(c, n, kInferMetaKeys, "'infer_meta'", op.infer_meta.emplace(InferMeta{c.at(n), {}, {}, {}, {}, {}}));
     }},
    {"kernel",
     [](Context c, Node n, Op& op) {
       op.kernel.emplace().at = c.at(n);
       read_block(c, n, kKernelKeys, "'kernel'", *op.kernel);
     }},
    {"invoke",
     [](Context c, Node n, Op& op) {
       op.has_invoke = true;
       op.invoke = read_call_of(c, n, "'invoke'");
     }},
    {"composite", [](Context c, Node n, Op& op) { op.composite = read_call_of(c, n, "'composite'"); }},
    {"inplace", [](Context c, Node n, Op& op) { op.inplace = read_pairs(c, n, "'inplace'"); }},
    {"view", [](Context c, Node n, Op& op) { op.view = read_pairs(c, n, "'view'"); }},
    {"optional", [](Context c, Node n, Op& op) { op.optional = read_names(c, n, "'optional'"); }},
    {"intermediate", [](Context c, Node n, Op& op) { op.intermediate = read_names(c, n, "'intermediate'"); }},
    {"no_need_buffer", [](Context c, Node n, Op& op) { op.no_need_buffer = read_names(c, n, "'no_need_buffer'"); }},
    {"support_tensor", [](Context c, Node n, Op& op) { op.support_tensor = read_names(c, n, "'support_tensor'"); }},
    {"interfaces", [](Context c, Node n, Op& op) { op.interfaces = read_names(c, n, "'interfaces'", true); }},
    {"traits", [](Context c, Node n, Op& op) { op.traits = read_names(c, n, "'traits'", true); }},
    {"data_transform",
     [](Context c, Node n, Op& op) { read_block(c, n, kDataTransformKeys, "'data_transform'", op.data_transform); }},
    {"backward", [](Context c, Node n, Op& op) { op.backward = read_name(c, n, "'backward'"); }},
    {"forward",
     [](Context c, Node n, Op& op) {
       op.has_forward = true;
       if (!expect_scalar(c, n, "'forward'")) return;
       Cursor cursor = c.cursor(n);
       op.forward = read_forward(cursor);
     }},
    {"support_dygraph_mode", [](Context c, Node n, Op&) { read_bool(c, n, "'support_dygraph_mode'"); }},
    {"data_format", [](Context c, Node n, Op&) { read_name(c, n, "'data_format'"); }},
    {"shard", [](Context c, Node n, Op& op) { read_block(c, n, kExtensionKeys, "'shard'", op.extension); }},
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

}  // namespace

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
