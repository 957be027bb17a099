// Programs as files: a saved program is loaded unchanged, and everything else is an error with its position.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "shard/autograd/autograd.h"
#include "shard/call/item.h"
#include "shard/program/capture/function.h"
#include "shard/program/io/json.h"
#include "shard/program/ir/op_table.h"
#include "shard/shard.h"
#include "support/cuda_device.h"
#include "support/sanitized.h"
#include "support/tensors.h"

namespace json_test {

using namespace shard;
using namespace shard::test;
using program::from_json;
using program::to_json;
using program::to_text;
using program::Trace;

namespace {

const ProcessMesh* priced_mesh() {
  return ProcessMesh::make({2, 2}, {}, {"a", "b"}, {.axes = {{5000, 0.1}, {7000, 1.0 / 3}}, .memory_cap = 1 << 20});
}
Tensor put(const char* layout, const Dims& dims, double start = 0) { return on(layout, dims, start, priced_mesh()); }

/// A step with views, writes, lists, random numbers, and a backward pass outside.
Trace sample(Scope& scope) {
  scope.set("w", leaf({1, 2, 3, 4}));
  scope.set("state", vec({1, 1, 1, 1}));
  const Tensor w = scope.get("w"), state = scope.get("state");
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        Tensor view = reshape(state, {2, 2});
        {
          const NoGrad off;
          scale_(view, Scalar(0.5), Scalar(1), true);
        }
        const Tensors parts = split(multiply(in[0], w), {1, 3}, 0);
        return {concat({parts[1], parts[0], reshape(view, {4})}, 0),
                multiply(dropout(parts[1], {}, Scalar(0.25)), uniform({3}, DType::float64)), state};
      },
      {.scope = &scope});
  return captured.trace({vec({1, 2, 3, 4})});
}

std::string load_error(const std::string& text, const Scope& scope) {
  try {
    from_json(text, scope);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

/// `text` with the first `from` replaced.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// A text either loads as a consistent program, or is an error of this library.
bool loads(const std::string& text, const Scope& scope, const std::string& original) {
  try {
    const Trace loaded = from_json(text, scope);
    if (to_text(loaded.program) != original) loaded.program.verify();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    if (std::string_view(error.what()).find("[from_json]") == std::string_view::npos)
      throw std::runtime_error(std::string("no place: ") + error.what());
    return false;
  }
}

/// Where the keys of objects are in a text: the quotes of the names that a colon follows.
std::vector<std::pair<size_t, size_t>> keys_of(const std::string& text) {
  std::vector<std::pair<size_t, size_t>> keys;
  for (size_t open = text.find('"'); open != std::string::npos; open = text.find('"', open)) {
    const size_t close = text.find('"', open + 1);
    if (close == std::string::npos) break;
    if (text[close + 1] == ':') keys.emplace_back(open, close);
    open = close + 1;
  }
  return keys;
}

/// Mutates a text in many ways, the same in each run of the test.
int mutate(const std::string& text, const Scope& scope, const std::string& original, int random_changes) {
  constexpr int kEvery = kSanitized ? 7 : 1;  // sanitizers make tests many times slower
  int loaded = 0, attempts = 0;
  const auto attempt = [&](const std::string& mutated) {
    if (attempts++ % kEvery == 0 && loads(mutated, scope, original)) ++loaded;
  };
  for (size_t size = 0; size < text.size(); size += 97) attempt(text.substr(0, size));
  for (const auto& [open, close] : keys_of(text)) {
    attempt(text.substr(0, open + 1) + "x" + text.substr(open + 2));                                    // another key
    attempt(text.substr(0, open) + text.substr(open, close - open + 1) + ": 7, " + text.substr(open));  // twice
    attempt(text.substr(0, open) + "\"new\": 7, " + text.substr(open));                                 // one more
    attempt(text.substr(0, close + 2) + " [[], " + text.substr(close + 2));                             // invalid JSON
    const size_t end = text.find_first_of(",}]", close);
    attempt(text.substr(0, close + 2) + " null" + text.substr(end));
    attempt(text.substr(0, close + 2) + " -1" + text.substr(end));
    attempt(text.substr(0, close + 2) + " 9223372036854775807" + text.substr(end));
    attempt(text.substr(0, close + 2) + " {}" + text.substr(end));
    const size_t comma = text[end] == ',' ? end + 1 : end;
    attempt(text.substr(0, open) + text.substr(comma));  // removed
  }
  // Numbers in lists, shapes among them, and other ops of the same arguments.
  for (size_t at = text.find('['); at != std::string::npos; at = text.find_first_of("[,", at + 1)) {
    const size_t end = text.find_first_not_of("0123456789", at + 1);
    if (end == at + 1) continue;
    for (const char* number :
         {"0", "-1", "1", "2", "100000", "2147483647", "4611686018427387904", "9223372036854775807", "0.5"})
      attempt(text.substr(0, at + 1) + number + text.substr(end));
  }
  for (size_t at = text.find("\"op\":\""); at != std::string::npos; at = text.find("\"op\":\"", at + 1)) {
    const size_t begin = at + 6, end = text.find('"', begin);
    for (const std::string& name : OpTable::instance().all_names())
      attempt(text.substr(0, begin) + name + text.substr(end));
  }
  std::mt19937 random(42);
  const std::string_view bytes = "0123456789\"{}[],:.-e \n\x01\xffntf";
  for (int i = 0; i < random_changes; ++i) {
    std::string mutated = text;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      const size_t at = random() % mutated.size();
      switch (random() % 3) {
        case 0: mutated[at] = bytes[random() % bytes.size()]; break;
        case 1: mutated.erase(at, 1 + random() % 8); break;
        default: mutated.insert(at, 1, bytes[random() % bytes.size()]);
      }
    }
    attempt(mutated);
  }
  // Changing only digits keeps the text well formed.
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9') continue;
    std::string mutated = text;
    mutated[at] = static_cast<char>('0' + random() % 10);
    attempt(mutated);
  }
  return loaded;
}

}  // namespace

TEST_CASE("34: a program that is saved and loaded is the same, and says the same when it is saved again") {
  Scope scope;
  const Trace trace = sample(scope);
  const std::string text = to_json(trace);
  const Trace loaded = from_json(text, scope);
  CHECK(to_text(loaded.program) == to_text(trace.program));
  CHECK(to_json(loaded) == text);
  CHECK(loaded.parameters[0].tensor.impl() == trace.parameters[0].tensor.impl());
  CHECK(loaded.gradient->wanted == trace.gradient->wanted);
}

TEST_CASE("34: numbers keep all bits, and infinities and NaN are kept too") {
  const double odd = std::bit_cast<double>(uint64_t{0x7ff8000000000123});
  const Values numbers = {0.1, -0.0, 1e308, 5e-324, 1.0 / 3, INFINITY, -INFINITY, odd};
  for (const double number : numbers) {
    const float small = std::isfinite(number) && std::abs(number) > 1e38 ? 1e38f : static_cast<float>(number);
    CapturedFunction captured(
        [&](const Tensors& in) -> Tensors {
          return {scale(in[0], Scalar(number), Scalar(int64_t{1} << 60), true), layer_norm(in[0], {}, {}, small)};
        },
        {});
    const Trace trace = captured.trace({Tensor::from_data(Values{1, 2}, {1, 2})});
    const Trace loaded = from_json(to_json(trace), {});
    for (size_t op = 0; op < 2; ++op) {
      for (size_t i = 0; i < trace.program.ops[op].attrs.size(); ++i) {
        const Attr &saved = trace.program.ops[op].attrs[i], &read = loaded.program.ops[op].attrs[i];
        CHECK(saved.index() == read.index());
        const auto bits = [](const Attr& attr) {
          if (const auto* scalar = std::get_if<Scalar>(&attr))
            return scalar->is_integer() ? scalar->to<int64_t>() : std::bit_cast<int64_t>(scalar->to<double>());
          if (const auto* real = std::get_if<double>(&attr)) return std::bit_cast<int64_t>(*real);
          if (const auto* real = std::get_if<float>(&attr)) return static_cast<int64_t>(std::bit_cast<int32_t>(*real));
          return int64_t{0};
        };
        CHECK(bits(saved) == bits(read));
      }
    }
  }
}

TEST_CASE(
    "34: a loaded function does what the captured one does: parameters that are written, views, random numbers, "
    "gradients outside") {
  Scope a, b;
  const Trace trace = sample(a);
  sample(b);
  CapturedFunction original(trace), loaded(from_json(to_json(trace), b));
  for (int run = 0; run < 3; ++run) {
    const Tensor x = vec({1.0 + run, 2, 3, 4});
    Tensors out[2];
    for (const bool use_loaded : {false, true}) {
      call::thread_generator().set_seed(static_cast<uint64_t>(run));
      out[use_loaded] = (use_loaded ? loaded : original)({x});
      total(add(total(out[use_loaded][0]), total(out[use_loaded][1]))).backward();
    }
    for (size_t i = 0; i < out[0].size(); ++i) CHECK(values(out[0][i]) == values(out[1][i]));
    CHECK(out[1][2].impl() == b.get("state").impl());
    CHECK(values(a.get("state")) == values(b.get("state")));
    CHECK(a.get("state").version() == b.get("state").version());
    CHECK(values(a.get("w").grad()) == values(b.get("w").grad()));
  }
  CHECK(loaded.stats().hits == 2);
}

TEST_CASE("34: a training step with backward and optimiser inside is loaded with its gradients") {
  const auto make = [](Scope& scope) {
    scope.set("w", leaf({1, -2, 3}));
    scope.set("rate", vec({0.1}));
  };
  Scope a, b;
  make(a);
  make(b);
  Tensor w = a.get("w"), none;
  const auto step = [&](const Tensors& in) -> Tensors {
    const Tensor loss = total(multiply(multiply(w, w), in[0]));
    loss.backward();
    const NoGrad off;
    sgd_(w, a.get("rate"), w.grad(), none);
    return {loss};
  };
  // One program starts without a gradient, the other one adds to it.
  CapturedFunction first = capture(step, {vec({1, 2, 3})}, {.scope = &a});
  CapturedFunction loaded_first(from_json(to_json(first.trace({vec({1, 2, 3})})), b));
  CHECK(values(first({vec({1, 2, 3})})[0]) == values(loaded_first({vec({1, 2, 3})})[0]));
  const std::string text = to_json(first.trace({vec({1, 2, 3})}));
  CHECK_THAT(text, Catch::Contains("\"name\":\"w.grad\"") && Catch::Contains("\"gradient_of\":\"w\""));
  CapturedFunction loaded(from_json(text, b));
  for (int run = 0; run < 3; ++run) {
    const Tensor x = vec({1.0 + run, 2, 3});
    CHECK(values(first({x})[0]) == values(loaded({x})[0]));
    CHECK(values(w) == values(b.get("w")));
    CHECK(values(w.grad()) == values(b.get("w").grad()));
    CHECK(w.version() == b.get("w").version());
  }
  b.get("w").set_grad({});
  CHECK_THROWS_WITH(loaded({vec({1, 2, 3})}), Catch::Contains("is expected to have a gradient"));
}

TEST_CASE("34: programs on meshes are saved and loaded on each rank, gradients inside and outside") {
  // The last rank is outside of the mesh. The texts of all ranks are equal.
  std::vector<std::string> texts(5);
  run_ranks(5, [&](Rank& rank) {
    const auto make = [] {
      Scope scope;
      scope.set("w0", put("-, b", {4, 6}, -3).set_requires_grad(true));
      scope.set("w1", put("b, -", {6, 3}, 1).set_requires_grad(true));
      scope.set("rate", distribute(vec({1e-4}), DistSpec::replicated(priced_mesh(), 1)));
      return scope;
    };
    const Scope a = make(), b = make();
    for (const bool inside : {false, true}) {
      Tensors w = {a.get("w0"), a.get("w1")};
      CapturedFunction captured(
          [&](const Tensors& in) -> Tensors {
            const Tensor y = matmul(relu(matmul(in[0], w[0])), w[1]);
            const Tensor loss = mean(multiply(y, y), {}, false);
            if (!inside) return {loss, dropout(y, {}, Scalar(0.5))};
            for (const Tensor& each : w) each.set_grad({});
            loss.backward();
            const NoGrad off;
            Tensor none;
            for (Tensor& each : w) sgd_(each, a.get("rate"), each.grad(), none);
            return {loss};
          },
          {.scope = &a});
      for (const Scope* scope : {&a, &b}) {
        for (const char* name : {"w0", "w1"})
          scope->get(name).set_grad(put(name[1] == '0' ? "-, b" : "b, -", name[1] == '0' ? Dims{4, 6} : Dims{6, 3}));
      }
      const Trace trace = captured.trace({put("a, -", {5, 4})});
      const Trace read = from_json(to_json(trace), b);
      check(to_text(read.program) == to_text(trace.program), "the same program");
      check(to_json(read) == to_json(trace), "the same text");
      texts[static_cast<size_t>(rank.id())] += to_json(trace);
      CapturedFunction loaded(read);
      for (int run = 0; run < 3; ++run) {
        const Tensor x = put("a, -", {5, 4}, run);
        Tensor losses[2];
        for (const bool use_loaded : {false, true}) {
          losses[use_loaded] = (use_loaded ? loaded : captured)({x})[0];
          if (!inside) losses[use_loaded].backward();
        }
        check(whole(losses[0]) == whole(losses[1]), "the loss");
        for (const char* name : {"w0", "w1"}) {
          check(whole(a.get(name)) == whole(b.get(name)), name);
          check(whole(a.get(name).grad()) == whole(b.get(name).grad()), std::string("gradient of ") + name);
        }
      }
    }
  });
  for (const std::string& text : texts) CHECK(text == texts[0]);
}

TEST_CASE(
    "34: a constant that is made inside of the function is saved with its bytes, and bytes that are no bools are "
    "refused") {
  const auto function = [](const Tensors& in) -> Tensors {
    return {where(Tensor::from_data<bool>({true, false, true}, {3}), in[0], scale(in[0], -1.0))};
  };
  const std::string text = to_json(program::trace(function, {vec({1, 2, 3})}));
  CapturedFunction loaded(from_json(text, {}));
  CHECK(values(loaded({vec({4, 5, 6})})[0]) == std::vector<double>{4, -5, 6});
  CHECK_THAT(load_error(with(text, "\"010001\"", "\"010002\""), {}),
             Catch::Contains("/parameters/0/constant: expected bools, 00 or 01, but there is '02'"));
  CHECK_THAT(load_error(with(text, "\"010001\"", "\"01000g\""), {}), Catch::Contains("expected digits from 0 to f"));
}

TEST_CASE("34: copies and their sources that go in a circle are refused") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor x = add(in[0], in[0]);
    const Tensor alias = reshape(x, {6});
    transpose_(x, {1, 0});
    return {x, alias};
  };
  auto json =
      nlohmann::ordered_json::parse(to_json(program::trace(function, {reshape(vec({1, 2, 3, 4, 5, 6}), {2, 3})})));
  REQUIRE(json["detached"].size() == 1);
  auto copy = json["detached"][0];
  REQUIRE(copy["output"] == 1);
  CHECK(load_error(json.dump(), {}) == "no error");
  copy["output"] = 0;
  copy["source"] = json["outputs"][1]["value"];
  json["detached"].push_back(copy);
  CHECK_THAT(load_error(json.dump(), {}),
             Catch::Contains("/detached/1/source: expected a buffer that is not a copy of this output"));
  json["detached"][1]["output"] = 1;
  CHECK_THAT(load_error(json.dump(), {}),
             Catch::Contains("/detached/1/output: expected an output in another buffer than those before"));
}

TEST_CASE("34: inputs that do not fit a loaded program are an error with the expected types") {
  Scope scope;
  CapturedFunction loaded(from_json(to_json(sample(scope)), scope));
  CHECK_THROWS_WITH(loaded({vec({1, 2})}), Catch::Contains("input 'input_0': expected f64[4], but given f64[2]"));
  CHECK_THROWS_WITH(loaded({}), Catch::Contains("expected 1 inputs, but 0 are given") &&
                                    Catch::Contains("input 'input_0': expected f64[4], but given none"));
  CHECK_THROWS_WITH(loaded({leaf({1, 2, 3, 4})}), Catch::Contains("but given f64[4], requires a gradient"));
  CHECK_THROWS_WITH(loaded({scope.get("state")}),
                    Catch::Contains("parameter 'state': expected to be in another buffer than 'input_0'"));
  CHECK_THROWS_WITH(capture([&](const Tensors& in) { return loaded(in); }, {vec({1, 2, 3, 4})}),
                    Catch::Contains("[captured] a loaded program runs neither in a dry world"));
  const NoGrad off;
  CHECK_THROWS_WITH(loaded({vec({1, 2, 3, 4})}),
                    Catch::Contains("parameter 'w': expected f64[4], requires a gradient, but given f64[4]"));
}

TEST_CASE("34: parameters are found by name, and one that is missing or differs is an error that names it") {
  Scope scope, other;
  const std::string text = to_json(sample(scope));
  CHECK_THAT(load_error(text, {}),
             Catch::Contains("/parameters/0/name: the program uses 'state', of which f64[4] is expected"));
  other.set("state", vec({1, 2}));
  CHECK_THAT(load_error(text, other), Catch::Contains("'state' of the scope is f64[2], but expected is f64[4]"));
}

TEST_CASE("34: foreign, newer and broken texts are errors that say where and what was expected") {
  Scope scope;
  const std::string text = to_json(sample(scope));
  const auto error = [&](const std::string& from, const std::string& to) {
    return load_error(with(text, from, to), scope);
  };
  CHECK_THAT(load_error("", scope), Catch::Contains("at byte 1: the text is not JSON"));
  CHECK_THAT(load_error("[1, 2]", scope), Catch::Contains("at the top: expected a program"));
  CHECK_THAT(load_error(R"({"format": "other", "version": 1})", scope),
             Catch::Contains("at /format: expected \"shard.program\", but it is \"other\""));
  CHECK_THAT(error("\"version\": 1", "\"version\": 2"),
             Catch::Contains(
                 "at /version: expected a version up to 1, but this is version 2, which a newer library has written"));
  CHECK_THAT(error("\"leaves\"", "\"leafs\""),
             Catch::Contains("at the top: expected the key 'leaves', which is missing"));
  CHECK_THAT(error("\"ops\": [", "\"ops\": 3, \"ops\": ["), Catch::Contains("the key 'ops' occurs twice"));
  CHECK_THAT(error("\"op\":\"reshape\"", "\"op\":\"no_such\""),
             Catch::Contains("at /ops/0/op: there is no op 'no_such'") && Catch::Contains("register_"));
  CHECK_THAT(error("\"attrs\":{\"shape\":[2,2]}", "\"attrs\":{\"size\":[2,2]}"),
             Catch::Contains("at /ops/0/attrs: expected the key 'shape'") &&
                 Catch::Contains("it has changed since the program was saved"));
  CHECK_THAT(error("\"shape\":[2,2]", "\"shape\":\"2\""),
             Catch::Contains("at /ops/0/attrs/shape: expected a list, but it is \"2\""));
  CHECK_THAT(error("\"shape\":[2,2]", "\"shape\":[2,3]"), Catch::Contains("at /ops: expected ops that fit each other"));
  CHECK_THAT(error("\"inputs\":{\"x\":", "\"inputs\":{\"y\":"),
             Catch::Contains("at /ops/0/inputs: expected the key 'x'"));
  CHECK_THAT(error("\"inputs\":{\"x\":{\"value\":", "\"inputs\":{\"x\":{\"value\":9"),
             Catch::Contains("at /ops/0/inputs/x/value: expected a value that is made before"));
  CHECK_THAT(error("\"state\":", "\"state\":1"), Catch::Contains("the last write of this value before"));
  CHECK_THAT(error("\"written\":true", "\"written\":false"),
             Catch::Contains("expected the key 'written', as [scale_] writes this output in place"));
  CHECK_THAT(error("\"dims\":[4]", "\"dims\":[-4]"), Catch::Contains("/type/dims/0: expected an integer from 0"));
  CHECK_THAT(error("\"forward_ops\":", "\"forward_ops\":100"),
             Catch::Contains("at /gradient/forward_ops: expected an integer from 0"));
  CHECK_THAT(error("\"version\": 1", "\"version\": 1e999"), Catch::Contains("too large"));
  CHECK_THAT(load_error(std::string(100000, '['), scope), Catch::Contains("nested deeper"));
}

TEST_CASE("34: no bytes crash the loader", "[slow_in_tsan]") {
  Scope scope;
  const Trace trace = sample(scope);
  const int loaded = mutate(to_json(trace), scope, to_text(trace.program), 1500);
  // Some changes, of names or numbers, result in a valid program.
  CHECK(loaded > 0);
}

TEST_CASE("34: no bytes of a program on a mesh crash the loader", "[slow_in_tsan]") {
  run_ranks(4, [](Rank& rank) {
    Scope scope;
    scope.set("w", put("-, b", {4, 6}).set_requires_grad(true));
    const Tensor w = scope.get("w");
    CapturedFunction captured(
        [&](const Tensors& in) -> Tensors {
          Tensor x = in[0];
          softmax_(x, 0);
          const Tensor y = reshape(matmul(x, w), {6, 5});
          return {relu(y), distribute(full_tensor(x), DistSpec::parse(priced_mesh(), "b, -"), from_rank(1)),
                  uniform({4}, DistSpec::parse(priced_mesh(), "a"), DType::float64)};
        },
        {.scope = &scope});
    const Trace trace = captured.trace({put("a, b", {5, 4})});
    if (rank.id() == 0)
      check(mutate(to_json(trace), scope, to_text(trace.program), 700) > 0, "some changes leave a program");
  });
}

TEST_CASE("34: files are there whole or not at all, and errors say the path") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "shard_json_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = (folder / "program.json").string();
  Scope scope;
  const Trace trace = sample(scope);
  program::save(trace, path);
  program::save(trace, path);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  CapturedFunction loaded = load_function(path, scope);
  CHECK(loaded({vec({1, 2, 3, 4})}).size() == 3);
  CHECK_THROWS_WITH(load_function((folder / "none.json").string(), scope),
                    Catch::Contains("[load] cannot read") && Catch::Contains("none.json': No such file"));
  CHECK_THROWS_WITH(program::load(folder.string(), scope), Catch::Contains("[load] cannot read '" + folder.string()));
  CHECK_THROWS_WITH(program::save(trace, (folder / "no" / "program.json").string()),
                    Catch::Contains("[save] cannot write") && Catch::Contains("No such file"));
  std::ofstream(path, std::ios::app) << "}";
  CHECK_THROWS_WITH(program::load(path, scope), Catch::Contains(path) && Catch::Contains("at byte"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("34: two parameters of one name cannot be saved") {
  Scope scope;
  const Tensor named = vec({1}), other = vec({2});
  scope.set("p1", named);
  CapturedFunction captured([&](const Tensors& in) -> Tensors { return {add(add(in[0], named), other)}; },
                            {.scope = &scope});
  program::Trace trace = captured.trace({vec({1})});
  CHECK_NOTHROW(to_json(trace));
  for (program::Named& each : trace.program.parameters) each.name = "p1";
  CHECK_THROWS_WITH(to_json(trace), Catch::Contains("two parameters of the program are called 'p1'"));
}

TEST_CASE("a program on devices, with a gradient, is loaded by ranks outside of its mesh too") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2}, {}, {"a"});
  const auto options = WorldOptions{.devices = {*device}};
  run_ranks(
      3,
      [&](Rank&) {
        const Tensor x = distribute(iota<double>({5, 4}), DistSpec::parse(mesh, "-, -")).set_requires_grad(true);
        const auto scaled = [&](const Tensors& in) {
          return Tensors{multiply(amax(x, {0}, true), reshard(in[0], DistSpec::parse(mesh, "a, -")))};
        };
        const Tensor in = distribute(iota<double>({1, 4}), DistSpec::parse(mesh, "-, -")).set_requires_grad(true);
        Scope scope;
        scope.set("x", x);
        CapturedFunction captured(scaled, {.scope = &scope});
        CapturedFunction loaded(from_json(to_json(captured.trace({in})), scope));
        const Tensor out = loaded({in})[0];
        backward({out}, {full_like(out.detach(), 1)});
        const Values found = whole(in.grad());  // none outside of the mesh
        check(found.empty() || found == Values{16, 17, 18, 19}, "the gradient of the input is the maxima");
      },
      options);
}

}  // namespace json_test
