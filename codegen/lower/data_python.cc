// Template data of the Python layer: bindings of the public functions, and their type stubs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lower/data_common.h"
#include "lower/gradients.h"
#include "lower/identifiers.h"
#include "lower/python_spelling.h"

namespace shardgen {
namespace {

/// A function that Python users call: a form of an op. Backward ops are called by autograd only.
struct PythonFunction {
  const Op& op;
  Form form;
  bool layout = false;  // takes the layout of the results

  /// Without what C++ has to avoid (`dist_op`).
  std::string name() const {
    const std::string& named = is_overload(op) ? op.invoke->function.text : op.name.text;
    return python_name(form == Form::inplace && !is_inplace_only(op) ? named + "_" : named);
  }
  std::string identifier() const { return function_name(op, form); }
};

std::vector<PythonFunction> python_functions_of(const LowerContext& context, const Op& op) {
  if (op.is_backward) return {};
  const bool layout = takes_layout(context, op);
  if (!has_body(op)) return {{op, Form::functional, layout}};
  std::vector<PythonFunction> functions;
  for (const Form form : forms_of(context, op)) functions.push_back({op, form, layout && form == Form::functional});
  return functions;
}

/// The first argument from which on all have a default. An optional tensor has one: None.
size_t first_python_default(const Op& op) {
  size_t first = op.signature.args.size();
  while (first > 0) {
    const ArgRef arg = op.signature.args[first - 1];
    if (arg.tensor) {
      if (!contains(op.optional, op.signature.inputs[arg.index].name.text)) break;
    } else {
      const Attr& attr = op.signature.attrs[arg.index];
      if (!attr.default_value || !default_argument(op, attr)) break;
    }
    --first;
  }
  return first;
}

std::string accepted(const Op& op, ArgRef arg) {
  if (!arg.tensor) return python_type(op, op.signature.attrs[arg.index]);
  const Input& input = op.signature.inputs[arg.index];
  return python_type(input, contains(op.optional, input.name.text));
}

std::string initial_of(const Op& op, ArgRef arg) {
  return arg.tensor ? "None" : python_default(op.signature.attrs[arg.index]);
}

bool is_ints(AttrType type) {
  return type == AttrType::int_array || type == AttrType::int32_list || type == AttrType::int64_list;
}

/// The argument whose ints may be passed one by one, as in reshape(x, 3, 2), or -1: the first or, behind a tensor, the second one,
/// where those after it are no numbers.
int ints_position(const Op& op) {
  const std::vector<ArgRef>& args = op.signature.args;
  const auto type_of = [&](ArgRef arg) { return arg.tensor ? AttrType::unknown : op.signature.attrs[arg.index].type; };
  const size_t first = !args.empty() && args[0].tensor ? 1 : 0;
  if (args.size() <= first || !is_ints(type_of(args[first]))) return -1;
  for (size_t i = first + 1; i < args.size(); ++i) {
    const AttrType type = type_of(args[i]);
    if (type != AttrType::dtype && type != AttrType::place && type != AttrType::str) return -1;
  }
  return static_cast<int>(first);
}

/// The name, the accepted types and the default of each argument.
Json python_parameters(const PythonFunction& function) {
  const Op& op = function.op;
  Json list = Json::array();
  const size_t optional = first_python_default(op);
  for (size_t i = 0; i < op.signature.args.size(); ++i) {
    const ArgRef arg = op.signature.args[i];
    Json parameter = {
        {"argument", python_name(name_of(op.signature, arg).text)}, {"accepts", accepted(op, arg)}, {"initial", false}};
    if (i >= optional) parameter["initial"] = {{"value", in_quotes(initial_of(op, arg))}};
    list.push_back(std::move(parameter));
  }
  if (function.layout)
    list.push_back({{"argument", layout_name(op)}, {"accepts", "Layout"}, {"initial", {{"value", "None"}}}});
  return list;
}

/// How the value of an argument is read, and the type of the variable that holds it.
std::pair<std::string, std::string> tensor_local(const PythonFunction& function, int input,
                                                 const std::string& position) {
  const Input& tensor = function.op.signature.inputs[input];
  const bool optional = contains(function.op.optional, tensor.name.text);
  const bool written = is_written_input(function.op, input, function.form);
  if (tensor.list)
    return {written ? list_of(rt("Tensor")) + "&" : "const " + list_of(rt("Tensor")), (written    ? "targets("
                                                                                       : optional ? "optional_tensors("
                                                                                                  : "tensors(") +
                                                                                          position + ")"};
  const std::string read = written ? "target(" : "tensor(";
  return {(written ? "" : "const ") + rt("Tensor") + "&", (optional ? "optional_" : "") + read + position + ")"};
}

Json python_locals(const PythonFunction& function, const std::string& arguments) {
  const Op& op = function.op;
  Json locals = Json::array();
  const size_t optional = first_python_default(op);
  for (size_t i = 0; i < op.signature.args.size(); ++i) {
    const ArgRef arg = op.signature.args[i];
    const std::string position = fmt::format("{}", i);
    std::string type, value;
    if (arg.tensor) {
      std::tie(type, value) = tensor_local(function, arg.index, position);
      value = arguments + "." + value;
    } else {
      const Attr& attr = op.signature.attrs[arg.index];
      const std::string plain = attr_value_type(op, attr);
      const std::string initial = i >= optional ? ", " + *default_argument(op, attr) : "";
      type = "const " + plain;
      value = fmt::format("{}({}, {}{})", rt("python::value", plain), arguments, position, initial);
    }
    locals.push_back({{"type", type}, {"local", name_of(op.signature, arg).text}, {"value", value}});
  }
  return locals;
}

/// The position of the argument whose length is the number of dims of the result, or -1.
int shape_position(const Op& op) {
  for (size_t i = 0; i < op.signature.args.size(); ++i) {
    const ArgRef arg = op.signature.args[i];
    if (!arg.tensor && op.signature.attrs[arg.index].type == AttrType::int_array) return static_cast<int>(i);
  }
  return -1;
}

Json python_body(const LowerContext& context, const PythonFunction& function) {
  const Op& op = function.op;
  Scope scope(op);
  const std::string arguments = scope.local("arguments"), site = site_name(op);
  const bool sited = takes_site(context, op, function.form);
  Json locals = python_locals(function, arguments);
  const std::string callee = rt("api") + "::" + (function.form == Form::inplace ? inplace_name(op) : api_name(op));
  const auto call = [&](Texts args, bool layout) {
    if (layout) args = with_layout(op, std::move(args), layout_name(op));
    else if (sited) args.push_back(site);
    return callee + "(" + join(args) + ")";
  };
  std::string result = call(arg_names(op), false);
  if (function.layout) {
    const std::string layout = layout_name(op);
    result = fmt::format("{} != nullptr ? {} : {}", layout, call(arg_names(op), true), result);
    locals.push_back(
        {{"type", "const " + rt("python::Layout") + "* const"},
         {"local", layout},
         {"value", fmt::format("{}.layout({}, {})", arguments, op.signature.args.size(), shape_position(op))}});
  }
  return {{"arguments", arguments},
          {"declared", declare(fmt::format("{}", fmt::join(arg_names(op), " ")))},
          {"locals", std::move(locals)},
          {"method", !op.view.empty() && !op.kernel && has_body(op) ? "call_view" : "call"},
          {"site", sited ? rt("CallSite") + " " + site : ""},
          {"call", std::move(result)}};
}

/// The doc of a function as lines.
Texts python_doc(const PythonFunction& function) {
  std::string text = function.op.extension.doc.value_or(
      fmt::format("The op {} of {}.", function.op.name.text, location_of(function.op)));
  for (char& c : text) c = c == '\n' || c == '\r' || c == '\t' ? ' ' : c;
  text.erase(text.find_last_not_of(' ') + 1);
  if (function.form == Form::inplace && !is_inplace_only(function.op)) text = "In place. " + text;
  Texts lines;
  constexpr size_t kWidth = 84;
  while (text.size() > kWidth) {
    size_t end = text.rfind(' ', kWidth);
    if (end == std::string::npos || end == 0) end = text.find(' ');
    if (end == std::string::npos) break;
    lines.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  lines.push_back(std::move(text));
  return lines;
}

/// The overloads of an op, last first.
std::vector<const Op*> overloads_of(const Part& part, const Op& op) {
  std::vector<const Op*> overloads;
  for (const Op* other : part.ops) {
    if (is_overload(*other) && other->invoke->function.text == op.name.text) overloads.insert(overloads.begin(), other);
  }
  return overloads;
}

bool is_method(const Op& op) {
  return !op.signature.args.empty() && op.signature.args[0].tensor &&
         !op.signature.inputs[op.signature.args[0].index].list;
}

Json python_binding(const LowerContext& context, const PythonFunction& function) {
  const std::string name = function.identifier();
  Json data = python_body(context, function);
  data["name"] = function.name();
  data["identifier"] = name;
  data["parameters"] = false;
  data["parameter_list"] = "{}";
  const bool second_form = function.form == Form::inplace && !is_inplace_only(function.op);
  if (second_form) {
    data["parameter_list"] = cpp_name(function.op) + "_parameters";  // those of the functional form
  } else if (Json parameters = python_parameters(function); !parameters.empty()) {
    data["parameters"] = {{"of", name}, {"list", std::move(parameters)}};
    data["parameter_list"] = name + "_parameters";
  }
  Json doc = Json::array();
  const Texts lines = python_doc(function);
  for (size_t i = 0; i < lines.size(); ++i)
    doc.push_back({{"line", in_quotes(lines[i]) + (i + 1 < lines.size() ? "\\n" : "")},
                   {"comma", i + 1 < lines.size() ? "" : ","}});
  data["doc"] = std::move(doc);
  data["overload"] = false;
  data["ints"] = false;
  if (const int position = ints_position(function.op); position >= 0) data["ints"] = {{"position", position}};
  return data;
}

/// The bindings of an op and, before it, those of its overloads: each names the one before it, which calls that lack arguments mean.
void add_bindings(const LowerContext& context, const Part& part, const Op& op, Json& list) {
  if (is_overload(op)) return;
  std::string overload;
  const auto add = [&](const Op& each) {
    for (const PythonFunction& function : python_functions_of(context, each)) {
      list.push_back(python_binding(context, function));
      if (overload.empty() || function.form == Form::inplace) continue;
      list.back()["overload"] = {{"next", overload}};
    }
  };
  for (const Op* other : overloads_of(part, op)) {
    add(*other);
    overload = cpp_name(*other);
  }
  add(op);
}

/// "Tensor", "tuple[Tensor, list[Tensor]]"
std::string returned_type(const PythonFunction& function) {
  const Op& op = function.op;
  Texts types;
  for (const int output : returned_outputs(op, false)) {
    const Output& each = op.signature.outputs[output];
    const bool absent = contains(op.optional, each.name.text);
    types.push_back(std::string(each.list ? "list[Tensor]" : "Tensor") + (absent && !each.list ? " | None" : ""));
  }
  if (types.empty()) return "None";
  return types.size() == 1 ? types[0] : "tuple[" + join(types) + "]";
}

/// The parameters of a stub. What has a default may be None. `one_by_one`: ints are passed one by one.
Texts stub_parameters(const PythonFunction& function, bool method, bool one_by_one) {
  const Op& op = function.op;
  Texts texts;
  const size_t optional = first_python_default(op);
  for (size_t i = 0; i < op.signature.args.size(); ++i) {
    const ArgRef arg = op.signature.args[i];
    if (i == 0 && method) {
      texts.push_back("self");
      continue;
    }
    std::string text = python_name(name_of(op.signature, arg).text) + ": " + accepted(op, arg);
    const bool ints = one_by_one && static_cast<int>(i) == ints_position(op);
    if (ints) text = "*" + python_name(name_of(op.signature, arg).text) + ": int";
    if (i >= optional && !ints) text += (text.ends_with("None") ? " = " : " | None = ") + initial_of(op, arg);
    texts.push_back(std::move(text));
  }
  if (function.layout) texts.push_back(layout_name(op) + ": Layout | None = None");
  const bool places = std::any_of(op.signature.attrs.begin(), op.signature.attrs.end(), [](const Attr& attr) {
    return attr.type == AttrType::place && attr.name.text == "place";
  });
  if (places && !find_arg(op.signature, "device")) {  // another name for it
    if (!one_by_one) texts.push_back("*");
    texts.push_back("device: Device | str | None = None");
  }
  return texts;
}

/// `overloaded`: functions of other signatures have the same name.
Json python_stub(const PythonFunction& function, bool method, bool overloaded, bool one_by_one = false) {
  Json doc = Json::array();
  Texts lines = python_doc(function);
  for (std::string& line : lines) line = in_quotes(line);  // Python's strings have the same escapes
  lines.front() = "\"\"\"" + lines.front();
  lines.back() += "\"\"\"";
  for (std::string& line : lines) doc.push_back({{"line", std::move(line)}});
  Json decorated = false;
  if (overloaded) decorated = {{"decorator", "@overload"}};
  return {{"name", function.name()},
          {"overloaded", std::move(decorated)},
          {"parameters", join(stub_parameters(function, method, one_by_one))},
          {"returns", returned_type(function)},
          {"doc", std::move(doc)}};
}

/// "MathMethods" of "math"
std::string methods_class(const std::string& part) {
  std::string name;
  bool upper = true;
  for (const char c : part) {
    if (c == '_') upper = true;
    else name += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    if (c != '_') upper = false;
  }
  return name + "Methods";
}

}  // namespace

std::string python_table_name(std::string_view umbrella, const std::string& part) {
  return register_name(umbrella, part).substr(std::string_view("register_").size()) + "_bindings";
}

Json python_source_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["table"] = python_table_name(context.umbrella, part.name);
  data["functions"] = items_of(part.ops, [&](const Op& op, Json& list) { add_bindings(context, part, op, list); });
  Json entries = items_of(part.ops, [&](const Op& op, Json& list) {
    if (is_overload(op)) return;
    for (const PythonFunction& function : python_functions_of(context, op))
      list.push_back({{"function", function.identifier()}, {"method", is_method(op) ? "true" : "false"}});
  });
  data["entries"] = false;
  if (!entries.empty()) data["entries"] = {{"list", std::move(entries)}};
  return data;
}

Json python_stub_data(const LowerContext& context, const Part& part) {
  Json data = {{"source", part.source}, {"class", methods_class(part.name)}};
  // Type checkers want overloads one after the other.
  const auto add_stubs = [&](const Op& op, bool methods, Json& list) {
    if (is_overload(op)) return;
    const std::vector<const Op*> overloads = overloads_of(part, op);
    for (const PythonFunction& function : python_functions_of(context, op)) {
      const bool one_by_one = ints_position(op) >= 0;
      const bool has_overloads = function.form == Form::functional && !overloads.empty();
      list.push_back(python_stub(function, methods, one_by_one || has_overloads));
      if (one_by_one) list.push_back(python_stub(function, methods, true, true));
      if (!has_overloads) continue;
      for (const Op* other : overloads)
        list.push_back(python_stub(python_functions_of(context, *other).front(), methods, true));
    }
  };
  data["functions"] = items_of(part.ops, [&](const Op& op, Json& list) { add_stubs(op, false, list); });
  Json methods = items_of(part.ops, [&](const Op& op, Json& list) {
    if (is_method(op)) add_stubs(op, true, list);
  });
  data["overloads"] = std::any_of(part.ops.begin(), part.ops.end(), [&](const Op* op) {
    return !python_functions_of(context, *op).empty() && (is_overload(*op) || ints_position(*op) >= 0);
  });
  data["none"] = methods.empty();
  data["methods"] = std::move(methods);
  return data;
}

Json python_umbrella_data(const LowerContext& context) {
  Json tables = Json::array(), calls = Json::array();
  for (const std::vector<Part>& family : context.parts) {
    for (const Part& part : family) {
      tables.push_back({{"table", python_table_name(context.umbrella, part.name)}});
      calls.push_back({{"called", python_table_name(context.umbrella, part.name)}});
    }
  }
  return {{"register", register_name(context.umbrella)}, {"tables", std::move(tables)}, {"calls", std::move(calls)}};
}

Json python_umbrella_stub_data(const LowerContext& context) {
  Json parts = Json::array();
  Texts classes;
  for (const std::vector<Part>& family : context.parts) {
    for (const Part& part : family) {
      parts.push_back({{"part", part.name}, {"class", methods_class(part.name)}});
      classes.push_back(methods_class(part.name));
    }
  }
  return {{"parts", std::move(parts)}, {"classes", join(classes)}};
}

}  // namespace shardgen
