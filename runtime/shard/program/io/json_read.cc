// Reads program files. Everything is checked, because files may come from other versions, be
// edited, or be truncated.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "shard/core/error.h"
#include "shard/program/io/json_reader.h"
#include "shard/program/ir/infer.h"
#include "shard/program/ir/op_table.h"

namespace shard::program {
namespace {

Device read_device(const JsonNode& node) {
  const std::string text = node.text();
  const size_t colon = text.find(':');
  const int backend = find_backend(text.substr(0, colon));
  if (backend < 0) node.expected("an available device");
  Device device{static_cast<uint8_t>(backend), 0};
  const int count = std::min(backend_of(device).device_count(), 256);
  for (int index = 0; index < count; ++index) {
    device.index = static_cast<uint8_t>(index);
    if (shard::to_string(device) == text) return device;
  }
  node.expected("an available device");
}

/// Reads an attribute of the type that the function of its op takes.
template <class T>
T read_attr(const JsonNode& node, std::type_identity<T>) {
  if constexpr (std::is_same_v<T, bool>) return node.boolean();
  else if constexpr (std::is_same_v<T, Scalar>)
    return node.is_integer() ? Scalar(node.integer<int64_t>()) : Scalar(node.real<double>());
  else if constexpr (std::is_integral_v<T>) return node.integer<T>();
  else if constexpr (std::is_floating_point_v<T>) return node.real<T>();
  else if constexpr (std::is_same_v<T, std::string>) return node.text();
  else if constexpr (std::is_same_v<T, DType>) return node.attempt([&] { return parse_dtype(node.text()); });
  else if constexpr (std::is_same_v<T, Device>) return read_device(node);
  else {
    static_assert(std::is_same_v<T, IntArray>);
    IntArray values;
    for (const JsonNode& each : node.list()) values.push_back(each.integer<int64_t>());
    return values;
  }
}
template <class T>
std::optional<T> read_attr(const JsonNode& node, std::type_identity<std::optional<T>>) {
  return node.is_null() ? std::nullopt : std::optional(read_attr(node, std::type_identity<T>()));
}
template <class T>
std::vector<T> read_attr(const JsonNode& node, std::type_identity<std::vector<T>>) {
  std::vector<T> values;
  for (const JsonNode& each : node.list()) values.push_back(read_attr(each, std::type_identity<T>()));
  return values;
}

template <size_t... i>
Attr read_attr(const JsonNode& node, size_t type, std::index_sequence<i...>) {
  Attr attr;
  ((i == type ? void(attr = read_attr(node, std::type_identity<std::variant_alternative_t<i, AttrVariant>>()))
              : void()),
   ...);
  return attr;
}

}  // namespace

Trace Reader::run() {
  check_format();
  for (const JsonNode& node : top_["meshes"].list()) meshes_.push_back(read_mesh(node));
  read_entries();
  for (const JsonNode& node : top_["ops"].list()) read_op(node);
  add_entries();
  for (const auto& [id, entry] : entries_) {
    if (id >= next())
      entry.node.refuse("expected values to be numbered from 1 in the order in which they are made, but nothing is %{}",
                        next());
  }
  for (const JsonNode& node : top_["outputs"].list()) {
    node.keys({"name", "value"});
    program_.outputs.push_back({node["name"].text(), read_id_or_none(node["value"])});
  }
  read_draws();
  for (const JsonNode& node : top_["leaves"].list()) read_leaf(node);
  for (const JsonNode& node : top_["gradients"].list()) read_effect(node);
  check_ops();
  if (top_.has("gradient")) read_gradient(top_["gradient"]);
  if (top_.has("detached")) {
    for (const JsonNode& node : top_["detached"].list()) read_detached(node);
  }
  if (top_.has("written"))
    trace_.written = top_["written"].integer<size_t>(1, trace_.gradient ? trace_.gradient->function_outputs : 0);
  if (top_.has("views")) {
    for (const JsonNode& node : top_["views"].list()) read_view(node);
  }
  check_require_grad();
  return std::move(trace_);
}

void Reader::check_format() const {
  if (!top_.has("format"))
    top_.refuse("expected a program, which has the key 'format'; this is a text of another kind");
  const JsonNode format = top_["format"];
  if (format.text() != kFileFormat) format.expected(fmt::format("\"{}\"", kFileFormat));
  const JsonNode version = top_["version"];
  const int number = version.integer<int>(1);
  if (number > kFileVersion) {
    version.refuse(
        "expected a version up to {}, but this is version {}, which a newer library has written; load it with that "
        "one, or capture the function again",
        kFileVersion, number);
  }
  top_.keys({"format", "version", "meshes", "inputs", "parameters", "ops", "outputs", "gradients", "leaves", "draws"},
            {"gradient", "detached", "views", "written"});
}

const ProcessMesh* Reader::read_mesh(const JsonNode& node) {
  node.keys({"shape", "names", "processes", "costs"});
  std::vector<int> shape, processes;
  std::vector<std::string> names;
  for (const JsonNode& each : node["shape"].list()) shape.push_back(each.integer<int>(1, 1 << 20));
  for (const JsonNode& each : node["names"].list()) names.push_back(each.text());
  for (const JsonNode& each : node["processes"].list()) processes.push_back(each.integer<int>(0));
  const JsonNode costs = node["costs"];
  costs.keys({"axes", "copy_ns_per_byte", "memory_cap"});
  MeshCosts read;
  for (const JsonNode& axis : costs["axes"].list()) {
    axis.keys({"alpha_ns", "ns_per_byte"});
    read.axes.push_back({axis["alpha_ns"].real<double>(), axis["ns_per_byte"].real<double>()});
  }
  read.copy_ns_per_byte = costs["copy_ns_per_byte"].real<double>();
  read.memory_cap = costs["memory_cap"].integer<int64_t>(0);
  if (shape.size() > kMaxMeshRank || names.size() != shape.size() || read.axes.size() != shape.size() ||
      processes.empty()) {
    node.refuse("expected a mesh: up to {} axes, for each a size, name and cost, and the ids of its processes",
                kMaxMeshRank);
  }
  return node.attempt([&] { return ProcessMesh::make(shape, processes, names, read); });
}

Type Reader::read_type(const JsonNode& node) const {
  node.keys({"dtype", "dims"}, {"device", "mesh", "layout"});
  Type type;
  type.meta.dtype = read_attr(node["dtype"], std::type_identity<DType>());
  auto bytes = static_cast<int64_t>(size_of(type.meta.dtype));
  const std::vector<JsonNode> dims = node["dims"].list();
  if (dims.size() > kMaxRank) node["dims"].refuse("expected up to {} dims, but these are {}", kMaxRank, dims.size());
  for (const JsonNode& dim : dims) {
    type.meta.dims.push_back(dim.integer<int64_t>(0));
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(type.meta.dims[type.meta.dims.rank() - 1], 1), &bytes))
      dim.refuse("expected a tensor of less than 2^63 bytes");
  }
  if (node.has("device")) type.device = read_device(node["device"]);
  if (!node.has("mesh") && !node.has("layout")) return type;
  const auto mesh = node["mesh"].integer<int64_t>(0, static_cast<int64_t>(meshes_.size()) - 1);
  const JsonNode layout = node["layout"];
  type.spec = layout.attempt([&] { return DistSpec::parse(meshes_[static_cast<size_t>(mesh)], layout.text()); });
  if (type.spec->rank() != type.meta.dims.rank())
    layout.expected(fmt::format("a layout of {} dims", type.meta.dims.rank()));
  return type;
}

ValueId Reader::read_entry(const JsonNode& node) {
  if (node["value"].is_null()) return 0;
  const auto id = node["value"].integer<ValueId>(1);
  if (node.has("same") && node["same"].boolean()) {
    const auto first = entries_.find(id);
    if (first == entries_.end() || !(first->second.type == read_type(node["type"])))
      node["same"].refuse("expected an input or parameter before that is %{} too, of this type", id);
    return id;
  }
  const ValueId source = node.has("shares") ? node["shares"].integer<ValueId>(1, id - 1) : 0;
  const bool added = entries_.try_emplace(id, Entry{node, read_type(node["type"]), source}).second;
  if (!added) node["value"].refuse("expected a number of its own, but another input or parameter is %{} too", id);
  return id;
}

void Reader::read_entries() {
  for (const JsonNode& node : top_["inputs"].list()) {
    node.keys({"name", "value"}, {"type", "shares", "same", "requires_grad"});
    program_.inputs.push_back({node["name"].text(), read_entry(node)});
    trace_.require_grad.push_back(node.has("requires_grad") && node["requires_grad"].boolean());
  }
  for (const JsonNode& node : top_["parameters"].list()) {
    node.keys({"name", "value", "type"},
              {"shares", "same", "requires_grad", "gradient_of", "gradient_of_input", "constant"});
    const JsonNode name = node["name"];
    const auto same = [&](const Named& other) { return other.name == name.text(); };
    if (std::any_of(program_.parameters.begin(), program_.parameters.end(), same))
      name.refuse("expected a name of its own, but another parameter is called '{}' too", name.text());
    program_.parameters.push_back({name.text(), read_entry(node)});
    if (program_.parameters.back().value == 0) node["value"].expected("the number of a value");
    trace_.parameters.push_back(find_parameter(node, entries_.at(program_.parameters.back().value).type));
  }
}

Parameter Reader::find_parameter(const JsonNode& node, const Type& type) const {
  Parameter parameter;
  parameter.requires_grad = node.has("requires_grad") && node["requires_grad"].boolean();
  parameter.constant = node.has("constant");
  if (parameter.constant) {
    parameter.tensor = read_constant(node["constant"], type);
    return parameter;
  }
  if (node.has("gradient_of_input")) {
    parameter.leaf_input = node["gradient_of_input"].integer<int>(0);
    const auto number = static_cast<size_t>(parameter.leaf_input);
    if (number >= program_.inputs.size() || program_.inputs[number].value == 0)
      node["gradient_of_input"].expected("the number of an existing input");
    return parameter;
  }
  const bool gradient = node.has("gradient_of");
  const JsonNode name = node[gradient ? "gradient_of" : "name"];
  if (!scope_.has(name.text())) {
    name.refuse(
        "the program uses {}'{}', of which {} is expected, but the scope has no such tensor; set it. There are: {}",
        gradient ? "the gradient of " : "", name.text(), to_string(type), fmt::join(scope_.names(), ", "));
  }
  parameter.tensor = scope_.get(name.text());
  if (gradient) {
    parameter.leaf = parameter.tensor;
    parameter.tensor = parameter.leaf.grad();  // may be undefined now: each run reads it anew
  }
  if (!parameter.tensor.defined()) return parameter;
  const Type has = type_of(parameter.tensor.get());
  if (has == type) return parameter;
  const bool one_mesh = has.spec != nullptr && type.spec != nullptr && has.spec->mesh() == type.spec->mesh();
  const auto text = [&](const Type& each) {
    return to_string(each) + (each.spec == nullptr || one_mesh ? "" : " on " + each.spec->mesh()->describe());
  };
  name.refuse("{}'{}' of the scope is {}, but expected is {}", gradient ? "the gradient of " : "", name.text(),
              text(has), text(type));
}

Tensor Reader::read_constant(const JsonNode& node, const Type& type) {
  const std::string text = node.text();
  if (type.spec != nullptr) node.refuse("expected no elements of a distributed tensor");
  if (text.size() != 2 * type.meta.bytes())
    node.refuse("expected {} bytes, two digits each, but there are {} digits", type.meta.bytes(), text.size());
  const DenseTensor host = DenseTensor::allocate(kCpu, type.meta);
  for (size_t i = 0; i < type.meta.bytes(); ++i) {
    const char* const digits = text.data() + 2 * i;
    unsigned char& byte = static_cast<unsigned char*>(host.raw())[i];
    if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2)
      node.refuse("expected digits from 0 to f, but there is '{}{}'", digits[0], digits[1]);
    if (type.meta.dtype == DType::boolean && byte > 1)
      node.refuse("expected bools, 00 or 01, but there is '{}{}'", digits[0], digits[1]);
  }
  return Tensor(host).to(type.device);
}

void Reader::add_entries() {
  for (auto found = entries_.find(next()); found != entries_.end(); found = entries_.find(next())) {
    const Entry& entry = found->second;
    if (entry.source != 0 && program_.value(entry.source).op >= 0)
      entry.node["shares"].expected("an input or parameter that comes before");
    program_.add_value(entry.type, entry.source);
  }
}

Operand Reader::read_operand(const JsonNode& node) {
  if (node.is_null()) return {};
  node.keys({"value"}, {"state"});
  Operand operand{node["value"].integer<ValueId>(), node.has("state") ? node["state"].integer<ValueId>(1) : 0};
  if (operand.value == 0 || operand.value >= next()) node["value"].expected("a value that is made before");
  const ValueId state = program_.state_of(operand.value);
  if (state != operand.state) {
    node.refuse("expected {}, but it is {}",
                state == 0 ? "no state, as nothing has written this value before"
                           : fmt::format("the state {}, the last write of this value before", state),
                operand.state == 0 ? "none" : std::to_string(operand.state));
  }
  return operand;
}

void Reader::read_output(const JsonNode& node, Outputs& outputs) {
  outputs.nodes.push_back(node);
  outputs.types.emplace_back();
  outputs.sources.push_back(0);
  outputs.writes.push_back(false);
  if (node.is_null()) return;
  node.keys({"value", "type"}, {"shares", "written"});
  const auto made = static_cast<ValueId>(
      std::count_if(outputs.types.begin(), outputs.types.end(), [](const auto& type) { return type.has_value(); }));
  if (node["value"].integer<ValueId>() != next() + made)
    node["value"].expected(fmt::format("{}: values are numbered in the order in which they are made", next() + made));
  outputs.types.back() = read_type(node["type"]);
  if (node.has("shares")) outputs.sources.back() = node["shares"].integer<ValueId>(1, next() - 1);
  outputs.writes.back() = node.has("written") && node["written"].boolean();
  if (outputs.writes.back() && outputs.sources.back() == 0)
    node.refuse("expected the key 'shares', because the value is written in the buffer of another value");
}

std::string Reader::changed(std::string_view op, const std::string& has) {
  return fmt::format("; [{}] has {}: it has changed since the program was saved", op, has.empty() ? "none" : has);
}

const OpEntry* Reader::find_op(const JsonNode& node, bool inplace) const {
  const OpEntry* const entry = OpTable::instance().find(node.text());
  if (entry == nullptr) {
    node.refuse(
        "there is no op '{}'. If it is one of your own, add the ops of its file first: the generated header has a "
        "function for that (register_... with "
        "OpTable::instance())",
        node.text());
  }
  if (!(inplace ? entry->inplace : entry->functional))
    node.refuse("'{}' has no {} form", node.text(), inplace ? "in-place" : "functional");
  return entry;
}

void Reader::read_attrs(const JsonNode& node, Op& op) const {
  const OpDef& def = *op.entry->op;
  const DenseEntry& function = op.inplace ? op.entry->inplace : op.entry->functional;
  node.keys(def.attrs, {}, changed(def.name, fmt::format("{}", fmt::join(def.attrs, ", "))));
  for (size_t i = 0; i < def.attrs.size(); ++i) {
    op.attrs.push_back(read_attr(node[def.attrs[i]], function.attr_types[i],
                                 std::make_index_sequence<std::variant_size_v<AttrVariant>>()));
  }
}

void Reader::read_call(const JsonNode& node, Op& op, Outputs& outputs) {
  node.keys({"kind", "op", "inputs", "attrs", "outputs"}, {"inplace", "draw", "for"});
  op.inplace = node.has("inplace") && node["inplace"].boolean();
  op.entry = find_op(node["op"], op.inplace);
  const OpDef& def = *op.entry->op;
  const DistSpec* first = nullptr;
  read_slots(node["inputs"], def.inputs, def.name, op.slots, [&](const JsonNode& each, const SlotDef& slot) {
    op.inputs.push_back(read_operand(each));
    const ValueId id = op.inputs.back().value;
    if (id == 0 && slot.kind != SlotDef::Kind::optional) each.expected("a value, as this argument is not optional");
    if (id == 0) return;
    const DistSpec* const spec = program_.value(id).type.spec;
    const bool same = read_any(op) == id ||
                      (spec == nullptr ? nullptr : spec->mesh()) == (first == nullptr ? nullptr : first->mesh());
    if (!same) each.refuse("expected all arguments of a call to be plain tensors, or on one mesh");
    first = spec;
  });
  read_attrs(node["attrs"], op);
  read_slots(node["outputs"], def.outputs, def.name, op.output_slots,
             [&](const JsonNode& each, const SlotDef&) { read_output(each, outputs); });
  if (read_any(op) == 0) {
    for (const auto& type : outputs.types) {
      if (type && op.layout == nullptr) op.layout = type->spec;
    }
  }
  for (size_t slot = 0; slot < op.output_slots.size(); ++slot) {
    for (size_t i = 0; i < op.output_slots[slot].count; ++i)
      check_alias(op, outputs, slot, op.output_slots[slot].first + i);
  }
  if (def.random != node.has("draw"))
    node.refuse("expected {} key 'draw', as [{}] {} random", def.random ? "the" : "no", def.name,
                def.random ? "is" : "is not");
  if (!def.random) return;
  op.draw = node["draw"].integer<uint64_t>();
  draws_.emplace_back(node["draw"], op.draw, op.layout != nullptr || first != nullptr);
}

ValueId Reader::read_any(const Op& op) {
  const auto found =
      std::find_if(op.inputs.begin(), op.inputs.end(), [](const Operand& input) { return input.value != 0; });
  return found == op.inputs.end() ? 0 : found->value;
}

void Reader::check_alias(const Op& op, const Outputs& outputs, size_t slot, size_t i) const {
  if (!outputs.types[i]) return;
  bool shares = outputs.sources[i] == 0, written = false, target = false, reinterprets = false;
  for (const AliasDef& alias : op.entry->op->aliases) {
    if (alias.output != static_cast<int>(slot) || (alias.kind == AliasDef::Kind::inplace && !op.inplace)) continue;
    reinterprets = reinterprets || alias.kind == AliasDef::Kind::view;
    target = target || alias.kind == AliasDef::Kind::inplace;
    written = written || alias.kind != AliasDef::Kind::view;
    const SlotRange& from = op.slots[static_cast<size_t>(alias.input)];
    if (alias.kind == AliasDef::Kind::inplace && from.count != op.output_slots[slot].count) {
      outputs.nodes[i].refuse("expected {} outputs here, one for each argument that [{}] writes", from.count,
                              op.name());
    }
    for (size_t k = from.first; k < from.first + from.count && outputs.sources[i] != 0; ++k) {
      const ValueId input = op.inputs[k].value;
      shares = shares || (input != 0 && program_.value(input).root == program_.value(outputs.sources[i]).root);
    }
  }
  const JsonNode& node = outputs.nodes[i];
  if (!shares)
    node["shares"].refuse("expected none, as [{}] does not return this output in the buffer of %{}", op.name(),
                          outputs.sources[i]);
  if (outputs.writes[i] && !written)
    node["written"].refuse("expected none, as [{}] does not write this output", op.name());
  if (!outputs.writes[i] && target && !reinterprets && outputs.sources[i] != 0)
    node.refuse("expected the key 'written', as [{}] writes this output in place", op.name());
}

void Reader::read_move(const JsonNode& node, Op& op, Outputs& outputs) {
  if (op.kind == Kind::distribute) node.keys({"kind", "inputs", "output"}, {"for", "source_rank"});
  else node.keys({"kind", "inputs", "output"}, {"for"});
  for (const JsonNode& each : node["inputs"].list()) {
    op.slots.push_back({op.inputs.size(), 1});
    op.inputs.push_back(read_operand(each));
    if (op.inputs.back().value == 0) each.expected("a value");
  }
  const size_t count = op.kind == Kind::copy ? 2 : 1;
  if (op.inputs.size() != count) node["inputs"].refuse("expected {} inputs, but these are {}", count, op.inputs.size());
  const JsonNode output = node["output"];
  read_output(output, outputs);
  if (!outputs.types[0]) output.expected("a value");
  op.output_slots = {{0, 1}};
  const Type& from = program_.value(op.inputs[0].value).type;
  const Type& to = *outputs.types[0];
  const bool same_elements = from.meta.dtype == to.meta.dtype && from.meta.numel() == to.meta.numel();
  const bool shares = op.kind == Kind::copy || op.kind == Kind::alias;
  bool right =
      (outputs.sources[0] == (shares ? op.inputs[0].value : 0)) && outputs.writes[0] == (op.kind == Kind::copy);
  switch (op.kind) {
    case Kind::reshard: right = right && from.spec != nullptr && to.spec != nullptr; break;
    case Kind::relayout:
      right =
          right && from.spec != nullptr && to.spec != nullptr && from.spec->mesh() == to.spec->mesh() && same_elements;
      break;
    case Kind::distribute: right = right && from.spec == nullptr && to.spec != nullptr; break;
    case Kind::full_tensor: right = right && from.spec != nullptr; break;
    case Kind::alias:
      right = right && from.meta.bytes() == to.meta.bytes() && (from.spec == nullptr) == (to.spec == nullptr);
      break;
    default: break;
  }
  if (!right) output.refuse("this is not the type that a {} computes from {}", to_string(op.kind), to_string(from));
  if (op.kind == Kind::relayout || op.kind == Kind::alias) op.attrs.emplace_back(IntArray(to.meta.dims));
  if (op.kind == Kind::alias) op.attrs.emplace_back(to.meta.dtype);
  if (op.kind == Kind::clone) op.attrs.emplace_back(to.device);
  if (op.kind != Kind::copy && op.kind != Kind::full_tensor && op.kind != Kind::clone) op.layout = to.spec;
  if (!node.has("source_rank")) return;
  const JsonNode source = node["source_rank"];
  op.source_rank = source.integer<int>(0);
  if (!to.spec->mesh()->coordinate(op.source_rank))
    source.expected(fmt::format("a rank of {}", to.spec->mesh()->describe()));
}

void Reader::read_op(const JsonNode& node) {
  add_entries();
  Op op;
  const std::string kind = node["kind"].text();
  constexpr Kind kinds[] = {Kind::call,       Kind::reshard,     Kind::relayout, Kind::copy,
                            Kind::distribute, Kind::full_tensor, Kind::clone,    Kind::alias};
  const auto found =
      std::find_if(std::begin(kinds), std::end(kinds), [&](Kind each) { return to_string(each) == kind; });
  if (found == std::end(kinds))
    node["kind"].expected("call, reshard, relayout, copy, distribute, full_tensor, clone or alias");
  op.kind = *found;
  Outputs outputs;
  if (op.kind == Kind::call) read_call(node, op, outputs);
  else read_move(node, op, outputs);
  if (node.has("for")) op.cause = node["for"].text();
  program_.add_op(std::move(op), outputs.types, outputs.sources, outputs.writes);
}

void Reader::read_draws() {
  const JsonNode node = top_["draws"];
  node.keys({"world", "plain", "world_before", "plain_before"});
  constexpr uint64_t most = uint64_t{1} << 62;
  program_.world_draws = node["world"].integer<uint64_t>(0, most);
  program_.plain_draws = node["plain"].integer<uint64_t>(0, most);
  program_.world_before = node["world_before"].integer<uint64_t>(0, most);
  program_.plain_before = node["plain_before"].integer<uint64_t>(0, most);
  for (const auto& [place, draw, on_mesh] : draws_) {
    const uint64_t end =
        on_mesh ? program_.world_before + program_.world_draws : program_.plain_before + program_.plain_draws;
    if (draw >= end) place.expected(fmt::format("less than {}, the number of /draws", end));
  }
}

void Reader::check_ops() const {
  try {
    program_.verify();
  } catch (const Error& error) { refuse_at("/ops", "expected ops that fit each other: {}", error.what()); }
}

Trace from_json(std::string_view text, const Scope& scope) {
  const Json json = parse_json(text);
  try {
    return Reader(json, scope).run();
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::invalid_argument,
         "[from_json] the program has sizes for which there is not enough memory; its text is not what was saved");
  } catch (const std::length_error&) {
    fail(ErrorCode::invalid_argument,
         "[from_json] the program has a list of a size that cannot be; its text is not what was saved");
  }
}

}  // namespace shard::program
