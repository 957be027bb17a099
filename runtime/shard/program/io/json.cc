#include "shard/program/io/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "shard/core/error.h"

namespace shard::program {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinities and no NaN. The bits of a NaN have to be kept too.
template <class T>
Json real_json(T value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (!std::isnan(value)) return static_cast<double>(value);
  if constexpr (sizeof(T) == 4) return fmt::format("nan:{:08x}", std::bit_cast<uint32_t>(value));
  else return fmt::format("nan:{:016x}", std::bit_cast<uint64_t>(value));
}

template <class T>
Json attr_json(const T& value) {
  if constexpr (std::is_same_v<T, Scalar>)
    return value.is_integer() ? Json(value.template to<int64_t>()) : real_json(value.template to<double>());
  else if constexpr (std::is_floating_point_v<T>) return real_json(value);
  else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) return value;
  else if constexpr (std::is_same_v<T, IntArray>) return std::vector<int64_t>(value.begin(), value.end());
  else return std::string(to_string(value));
}
template <class T>
Json attr_json(const std::optional<T>& value) {
  return value ? attr_json(*value) : Json();
}
template <class T>
Json attr_json(const std::vector<T>& values) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(attr_json(static_cast<const T&>(value)));
  return list;
}

/// The text that DistSpec::parse reads: "dp, - | sum(tp)".
std::string layout_text(const DistSpec& spec) {
  const size_t end = spec.text().find(']');
  std::string text = spec.text().substr(1, end - 1);
  for (int axis = 0; axis < spec.mesh()->rank(); ++axis) {
    const std::optional<ReduceType> type = spec.partial(axis);
    if (type)
      text += fmt::format("{}{}({})", text.find('|') == std::string::npos ? " | " : ", ", to_string(*type),
                          spec.mesh()->name(axis));
  }
  return text;
}

/// The bytes of a plain tensor, two hexadecimal digits each.
std::string bytes_text(const Tensor& tensor) {
  const DenseTensor host = tensor.to(kCpu).get().value;
  const std::span bytes(static_cast<const unsigned char*>(host.raw()), host.meta().bytes());
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

class Writer {
 public:
  explicit Writer(const Trace& trace) : trace_(trace), program_(trace.program) {}

  std::string run() {
    Json inputs = Json::array(), parameters = Json::array(), ops = Json::array();
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      inputs.push_back(entry(program_.inputs[i]));
      if (i < trace_.require_grad.size() && trace_.require_grad[i]) inputs.back()["requires_grad"] = true;
    }
    check_names();
    for (size_t i = 0; i < program_.parameters.size(); ++i) {
      parameters.push_back(entry(program_.parameters[i]));
      const Parameter& parameter = trace_.parameters[i];
      if (parameter.leaf_input >= 0) parameters.back()["gradient_of_input"] = parameter.leaf_input;
      if (parameter.leaf.defined()) parameters.back()["gradient_of"] = name_of(parameter.leaf);
      if (parameter.requires_grad) parameters.back()["requires_grad"] = true;
      if (parameter.constant) parameters.back()["constant"] = bytes_text(parameter.tensor);
    }
    for (const Op& op : program_.ops) ops.push_back(op_json(op));
    Json text;
    text["format"] = kFileFormat;
    text["version"] = kFileVersion;
    text["meshes"] = meshes();  // the meshes that the parts before refer to
    text["inputs"] = std::move(inputs);
    text["parameters"] = std::move(parameters);
    text["ops"] = std::move(ops);
    text["outputs"] = Json::array();
    for (const Named& output : program_.outputs)
      text["outputs"].push_back({{"name", output.name}, {"value", id_json(output.value)}});
    text["gradients"] = Json::array();
    for (const GradientEffect& each : program_.gradients)
      text["gradients"].push_back({{"leaf", each.leaf}, {"gradient", id_json(each.gradient)}});
    text["leaves"] = Json::array();
    for (const Leaf& leaf : trace_.leaves) text["leaves"].push_back(leaf_json(leaf));
    text["draws"] = {{"world", program_.world_draws},
                     {"plain", program_.plain_draws},
                     {"world_before", program_.world_before},
                     {"plain_before", program_.plain_before}};
    if (trace_.gradient) text["gradient"] = gradient_json(*trace_.gradient);
    for (const DetachedOutput& each : trace_.detached) text["detached"].push_back(detached_json(each));
    if (trace_.written != 0) text["written"] = trace_.written;
    for (const ViewOutput& each : trace_.views) {
      Json view = {{"output", each.output}};
      if (each.source != 0) view["source"] = each.source;
      else view["other"] = each.other;
      text["views"].push_back(std::move(view));
    }
    return render(text);
  }

 private:
  static Json id_json(ValueId id) { return id == 0 ? Json() : Json(id); }

  /// Renders lists of objects with one line per object, so that files can be compared by lines.
  static std::string render(const Json& text) {
    std::string lines = "{";
    for (const auto& [key, value] : text.items()) {
      lines += fmt::format("{}\n \"{}\": ", lines.size() == 1 ? "" : ",", key);
      if (!value.is_array() || value.empty()) {
        lines += value.dump();
        continue;
      }
      for (const Json& each : value) lines += fmt::format("{}\n  {}", &each == &value.front() ? "[" : ",", each.dump());
      lines += "\n ]";
    }
    return lines + "\n}\n";
  }

  void check_names() const {
    std::set<std::string> names;
    for (const Named& parameter : program_.parameters) {
      if (names.insert(parameter.name).second) continue;
      fail(ErrorCode::invalid_argument,
           "[to_json] two parameters of the program are called '{}', so a file cannot distinguish them; capture with a "
           "Scope that has names for both",
           parameter.name);
    }
  }

  /// The name of a parameter, by its handle.
  std::string name_of(const Tensor& tensor) const {
    for (size_t i = 0; i < trace_.parameters.size(); ++i) {
      if (trace_.parameters[i].tensor.impl() == tensor.impl()) return program_.parameters[i].name;
    }
    fail(ErrorCode::internal, "[to_json] {}, whose gradient the program uses, is not one of its parameters",
         tensor.get().describe());
  }

  Json type_json(const Type& type) {
    Json json = {{"dtype", to_string(type.meta.dtype)}, {"dims", attr_json(IntArray(type.meta.dims))}};
    if (type.device != kCpu) json["device"] = shard::to_string(type.device);
    if (type.spec == nullptr) return json;
    const auto mesh = std::find(meshes_.begin(), meshes_.end(), type.spec->mesh());
    json["mesh"] = mesh - meshes_.begin();
    json["layout"] = layout_text(*type.spec);
    if (mesh == meshes_.end()) meshes_.push_back(type.spec->mesh());
    return json;
  }

  Json meshes() const {
    Json list = Json::array();
    for (const ProcessMesh* mesh : meshes_) {
      Json shape = Json::array(), names = Json::array(), axes = Json::array();
      for (int axis = 0; axis < mesh->rank(); ++axis) {
        shape.push_back(mesh->size(axis));
        names.push_back(mesh->name(axis));
        axes.push_back({{"alpha_ns", mesh->cost(axis).alpha_ns}, {"ns_per_byte", mesh->cost(axis).ns_per_byte}});
      }
      const Json costs = {{"axes", axes},
                          {"copy_ns_per_byte", mesh->costs().copy_ns_per_byte},
                          {"memory_cap", mesh->costs().memory_cap}};
      list.push_back({{"shape", shape}, {"names", names}, {"processes", mesh->processes()}, {"costs", costs}});
    }
    return list;
  }

  Json value_json(ValueId id) {
    if (id == 0) return Json();
    const Value& value = program_.value(id);
    Json json = {{"value", id}, {"type", type_json(value.type)}};
    if (value.source != 0) json["shares"] = value.source;
    return json;
  }

  Json entry(const Named& named) {
    Json json = {{"name", named.name}};
    if (named.value == 0) json["value"] = nullptr;
    else json.update(value_json(named.value));
    if (named.value != 0 && !entered_.insert(named.value).second) json["same"] = true;
    return json;
  }

  static Json operand_json(const Operand& operand) {
    if (operand.value == 0) return Json();
    Json json = {{"value", operand.value}};
    if (operand.state != 0) json["state"] = operand.state;
    return json;
  }

  Json output_json(const Op& op, size_t i) {
    Json json = value_json(op.outputs[i]);
    if (op.outputs[i] != 0 && op.writes[i]) json["written"] = true;
    return json;
  }

  /// One entry per slot: a list for a list slot, a single entry for the others.
  template <class F>
  static Json slots_json(std::span<const SlotDef> defs, const std::vector<SlotRange>& slots, F&& json_of) {
    Json json = Json::object();
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      Json each = Json::array();
      for (size_t i = slots[slot].first; i < slots[slot].first + slots[slot].count; ++i) each.push_back(json_of(i));
      json[std::string(defs[slot].name)] = defs[slot].kind == SlotDef::Kind::list ? each : each.at(0);
    }
    return json;
  }

  /// The attributes and layouts of reshards are those of their results, so they are not written.
  Json op_json(const Op& op) {
    Json json = {{"kind", to_string(op.kind)}};
    const auto input = [&](size_t i) { return operand_json(op.inputs[i]); };
    const auto output = [&](size_t i) { return output_json(op, i); };
    if (op.kind == Kind::call) {
      const OpDef& def = *op.entry->op;
      json["op"] = def.name;
      if (op.inplace) json["inplace"] = true;
      json["inputs"] = slots_json(def.inputs, op.slots, input);
      json["attrs"] = Json::object();
      for (size_t i = 0; i < op.attrs.size(); ++i) {
        json["attrs"][std::string(def.attrs[i])] =
            std::visit([](const auto& value) { return attr_json(value); }, op.attrs[i]);
      }
      json["outputs"] = slots_json(def.outputs, op.output_slots, output);
      if (def.random) json["draw"] = op.draw;
    } else {
      json["inputs"] = Json::array();
      for (size_t i = 0; i < op.inputs.size(); ++i) json["inputs"].push_back(input(i));
      json["output"] = output(0);
    }
    if (op.source_rank >= 0) json["source_rank"] = op.source_rank;
    if (!op.cause.empty()) json["for"] = op.cause;
    return json;
  }

  Json leaf_json(const Leaf& leaf) const {
    Json json;
    if (leaf.tensor.defined()) json["parameter"] = name_of(leaf.tensor);
    else json["input"] = leaf.input;
    json["value"] = leaf.value;
    json["had_gradient"] = leaf.had_gradient;
    return json;
  }

  static Json gradient_json(const TracedGradient& gradient) {
    Json json = {{"forward_ops", gradient.forward_ops},
                 {"world_draws", gradient.world_draws},
                 {"plain_draws", gradient.plain_draws},
                 {"function_inputs", gradient.function_inputs},
                 {"function_outputs", gradient.function_outputs},
                 {"outputs", gradient.outputs},
                 {"wanted", gradient.wanted}};
    if (group_count(gradient) > 1) {
      json["output_groups"] = gradient.output_groups;
      json["wanted_groups"] = gradient.wanted_groups;
    }
    if (!gradient.reaches.empty()) json["reaches"] = gradient.reaches;
    if (!gradient.error.empty()) json["error"] = gradient.error;
    return json;
  }

  static Json detached_json(const DetachedOutput& each) {
    return {{"output", each.output},     {"source", each.source}, {"stale", each.stale}, {"op", each.op},
            {"argument", each.argument}, {"from", each.from},     {"to", each.to}};
  }

  const Trace& trace_;
  const Program& program_;
  std::vector<const ProcessMesh*> meshes_;
  std::set<ValueId> entered_;
};

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

std::string read_file(const std::string& path) {
  const std::unique_ptr<FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(ErrorCode::invalid_argument, "[load] cannot read '{}': {}", path, std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  while (const size_t size = std::fread(buffer, 1, sizeof buffer, file.get())) text.append(buffer, size);
  if (std::ferror(file.get()) != 0)
    fail(ErrorCode::invalid_argument, "[load] cannot read '{}': {}", path, std::strerror(errno));
  return text;
}

}  // namespace

std::string to_json(const Trace& trace) {
  try {
    return Writer(trace).run();
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument,
         "[to_json] the program has a name or an attribute that JSON cannot hold, which must be UTF-8: {}",
         error.what());
  }
}

void save(const Trace& trace, const std::string& path) {
  const std::string text = to_json(trace);
  // The name must be unique: no other thread or process may write the same temporary file.
  static std::atomic<int> number{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, getpid(), number++);
  FILE* const file = std::fopen(temporary.c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = errno;
  if (file != nullptr && std::fclose(file) != 0 && good) {
    good = false;
    error = errno;
  }
  std::error_code problem;
  if (good) std::filesystem::rename(temporary, path, problem);
  else problem = std::error_code(error, std::generic_category());
  if (!problem) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  fail(ErrorCode::invalid_argument, "[save] cannot write '{}': {}", path, problem.message());
}

Trace load(const std::string& path, const Scope& scope) {
  const std::string text = read_file(path);
  try {
    return from_json(text, scope);
  } catch (const Error& error) { throw Error(error.code(), fmt::format("'{}': {}", path, error.what())); }
}

}  // namespace shard::program
