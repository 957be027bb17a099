// Gradients that nobody asked for: kernels leave out the results that the mask of a call does not have, which costs
// neither memory nor communication, and all others have the same bits.
#include <catch2/catch.hpp>

#include "gradients/central_difference.h"
#include "shard/autograd/autograd.h"
#include "shard/call/dry_report.h"
#include "shard/program/capture/function.h"
#include "shard/program/io/json.h"
#include "shard/program/passes/passes.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test::wanted_test {
namespace {

using Tensors = std::vector<Tensor>;

template <class... T>
Tensors all(std::tuple<T...> values) {
  return std::apply([](auto&... tensors) { return Tensors{tensors...}; }, values);
}

/// A gradient function with a mask, the gradient of the output last among its arguments.
struct Masked {
  std::string name;
  std::function<Tensors(const Tensors& in, GradMask wanted)> run;
  Tensors inputs;
  std::vector<std::string> layouts;  // of all inputs on 2 ranks
};

Tensor images(uint64_t seed, const Dims& dims = {2, 4, 6, 6}) { return random_values(dims, seed); }

void add_convolutions(std::vector<Masked>& cases) {
  cases.push_back(
      {"conv2d_grad",
       [](const Tensors& in, GradMask wanted) {
         return all(conv2d_grad(in[0], in[1], in[2], {1, 1}, {1, 1}, "EXPLICIT", {1, 1}, 1, "NCHW", wanted));
       },
       {images(1), random_values({3, 4, 3, 3}, 2), images(3, {2, 3, 6, 6})},
       {"-, -, -, -", "a, -, -, -; -, -, -, -; a, -, -, -", "-, -, a, -; -, -, -, -; -, -, a, -"}});
  cases.push_back(
      {"depthwise_conv2d_grad",
       [](const Tensors& in, GradMask wanted) {
         return all(depthwise_conv2d_grad(in[0], in[1], in[2], {1, 1}, {1, 1}, "EXPLICIT", 4, {1, 1}, "NCHW", wanted));
       },
       {images(4), random_values({4, 1, 3, 3}, 5), images(6)},
       {"-, -, a, -; -, -, -, -; -, -, a, -"}});
  cases.push_back(
      {"conv3d_grad",
       [](const Tensors& in, GradMask wanted) {
         return all(conv3d_grad(in[0], in[1], in[2], {1, 1, 1}, {1, 1, 1}, "EXPLICIT", 1, {1, 1, 1}, "NCDHW", wanted));
       },
       {images(7, {1, 2, 4, 4, 4}), random_values({2, 2, 3, 3, 3}, 8), images(9, {1, 2, 4, 4, 4})},
       {"-, -, a, -, -; -, -, -, -, -; -, -, a, -, -"}});
  cases.push_back({"conv2d_transpose_grad",
                   [](const Tensors& in, GradMask wanted) {
                     return all(conv2d_transpose_grad(in[0], in[1], in[2], {1, 1}, {1, 1}, {}, {}, "EXPLICIT", 1,
                                                      {1, 1}, "NCHW", wanted));
                   },
                   {images(10), random_values({4, 3, 3, 3}, 11), images(12, {2, 3, 6, 6})},
                   {"a, -, -, -; -, -, -, -; a, -, -, -"}});
  cases.push_back({"conv3d_transpose_grad",
                   [](const Tensors& in, GradMask wanted) {
                     return all(conv3d_transpose_grad(in[0], in[1], in[2], {1, 1, 1}, {1, 1, 1}, {}, {}, "EXPLICIT", 1,
                                                      {1, 1, 1}, "NCDHW", wanted));
                   },
                   {images(13, {2, 2, 4, 4, 4}), random_values({2, 2, 3, 3, 3}, 14), images(15, {2, 2, 4, 4, 4})},
                   {"a, -, -, -, -; -, -, -, -, -; a, -, -, -, -"}});
}

void add_norms(std::vector<Masked>& cases) {
  const Tensor scale = random_values({4}, 20), bias = random_values({4}, 21);
  const Tensor variance = random_values({2}, 22, 0.5, 2), mean = random_values({2}, 23);
  cases.push_back({"layer_norm_grad",
                   [](const Tensors& in, GradMask wanted) {
                     return all(layer_norm_grad(in[0], in[1], in[2], in[3], in[4], in[5], 1e-5f, 1, wanted));
                   },
                   {random_values({2, 4}, 24), scale, bias, mean, variance, random_values({2, 4}, 25)},
                   {"a, -; -; -; a; a; a, -", "-, a; -; -; -; -; -, a"}});
  cases.push_back(
      {"rms_norm_grad",
       [](const Tensors& in, GradMask wanted) { return all(rms_norm_grad(in[0], in[1], in[2], in[3], wanted)); },
       {random_values({2, 4}, 26), scale, variance, random_values({2, 4}, 27)},
       {"a, -; -; a; a, -", "-, a; a; -; -, a"}});
  for (const bool is_test : {false, true}) {
    cases.push_back(
        {is_test ? "batch_norm_grad of constants" : "batch_norm_grad",
         [=](const Tensors& in, GradMask wanted) {
           return all(batch_norm_grad(in[0], in[1], in[2], in[3], in[4], in[5], "NCHW", is_test, false, false, wanted));
         },
         {images(28), scale, bias, random_values({4}, 29), random_values({4}, 30, 0.5, 2), images(31)},
         {"a, -, -, -; -; -; -; -; a, -, -, -"}});
  }
  for (const std::string format : {"NCHW", "NHWC"}) {
    const Dims dims = format == "NCHW" ? Dims{2, 4, 6, 6} : Dims{2, 6, 6, 4};
    cases.push_back({"group_norm_grad " + format,
                     [=](const Tensors& in, GradMask wanted) {
                       return all(group_norm_grad(in[0], in[1], in[2], in[3], in[4], in[5], 1e-5f, 2, format, wanted));
                     },
                     {images(32, dims), scale, bias, random_values({2, 2}, 33), random_values({2, 2}, 34, 0.5, 2),
                      images(35, dims)},
                     {"a, -, -, -; -; -; a, -; a, -; a, -, -, -", "-, -, a, -; -; -; -, -; -, -; -, -, a, -"}});
  }
  cases.push_back({"instance_norm_grad",
                   [](const Tensors& in, GradMask wanted) {
                     return all(instance_norm_grad(in[0], in[1], in[2], in[3], in[4], in[5], 1e-5f, wanted));
                   },
                   {images(36), scale, bias, random_values({2, 4}, 37), random_values({2, 4}, 38, 0.5, 2), images(39)},
                   {"a, -, -, -; -; -; a, -; a, -; a, -, -, -", "-, -, a, -; -; -; -, -; -, -; -, -, a, -"}});
}

void add_attention(std::vector<Masked>& cases) {
  const auto i32 = [](const std::vector<int32_t>& values) {
    return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
  };
  const Tensor seed = Tensor::from_data<int64_t>({0, 0}, {2});
  const Tensor q = random_values({2, 3, 4, 5}, 40), k = random_values({2, 7, 2, 5}, 41),
               v = random_values({2, 7, 2, 6}, 42), bias = random_values({2, 1, 3, 7}, 43);
  {
    const auto [out, softmax, lse, drawn] = flash_attn(q, k, v, {}, {});
    cases.push_back(
        {"flash_attn_grad",
         [](const Tensors& in, GradMask wanted) {
           return all(flash_attn_grad(in[0], in[1], in[2], in[3], in[4], in[5], {}, in[6], 0.0f, false, false, wanted));
         },
         {q, k, v, out, lse, seed, random_values({2, 3, 4, 6}, 44)},
         {"a, -, -, -; a, -, -, -; a, -, -, -; a, -, -, -; a, -, -; -; a, -, -, -",
          "-, -, -, -; -, a, -, -; -, a, -, -; -, -, -, -; -, -, -; -; -, -, -, -"}});
  }
  {
    const auto [out, lse, drawn] =
        memory_efficient_attention(q, k, v, bias, {}, {}, {}, {}, -1, -1, true, 0, -1, false);
    cases.push_back({"memory_efficient_attention_grad",
                     [](const Tensors& in, GradMask wanted) {
                       return all(memory_efficient_attention_grad(in[0], in[1], in[2], in[3], {}, {}, {}, {}, in[4],
                                                                  in[5], in[6], in[7], -1, -1, true, 0, -1, false,
                                                                  wanted));
                     },
                     {q, k, v, bias, out, lse, seed, random_values({2, 3, 4, 6}, 45)},
                     {"a, -, -, -; a, -, -, -; a, -, -, -; a, -, -, -; a, -, -, -; a, -, -; -; a, -, -, -",
                      "-, -, -, -; -, a, -, -; -, a, -, -; -, -, -, a; -, -, -, -; -, -, -; -; -, -, -, -"}});
  }
  const Tensor packed_q = random_values({9, 4, 5}, 46), packed_k = random_values({11, 2, 5}, 47),
               packed_v = random_values({11, 2, 6}, 48), of_q = i32({0, 4, 9}), of_k = i32({0, 5, 11});
  const auto [out, softmax, lse, drawn] =
      flash_attn_unpadded_intermediate(packed_q, packed_k, packed_v, of_q, of_k, {}, {}, 5, 6, 0.5f, 0.0f, true);
  cases.push_back({"flash_attn_unpadded_grad",
                   [](const Tensors& in, GradMask wanted) {
                     return all(flash_attn_unpadded_grad(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], {},
                                                         in[8], 5, 6, 0.5f, 0.0f, true, false, wanted));
                   },
                   {packed_q, packed_k, packed_v, of_q, of_k, out, lse, seed, random_values({9, 4, 6}, 49)},
                   {"-, a, -; -, a, -; -, a, -; -; -; -, a, -; -, a, -; -; -, a, -"}});
}

std::vector<Masked> masked_ops() {
  std::vector<Masked> cases;
  add_convolutions(cases);
  add_norms(cases);
  add_attention(cases);
  return cases;
}

/// All masks of `count` results but the empty one.
std::vector<GradMask> masks(size_t count) {
  std::vector<GradMask> all;
  for (int64_t bits = 1; bits < int64_t{1} << count; ++bits) all.emplace_back(bits);
  return all;
}

std::vector<double> elements(const Tensor& x) { return (x.is_dist() ? full_tensor(x) : x).to_vector<double>(); }

/// Whether each mask leaves out what it should, and the others have the bits of `expected`, the results of all.
std::string difference(const Masked& op, const Tensors& inputs) {
  const Tensors expected = op.run(inputs, {});
  for (const GradMask wanted : masks(expected.size())) {
    const Tensors results = op.run(inputs, wanted);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string what = op.name + ", result " + std::to_string(i) + " of mask " + std::to_string(wanted);
      if (results[i].defined() != wanted[i]) return what + (wanted[i] ? " is absent" : " is there");
      if (!wanted[i]) continue;
      if (results[i].is_dist() && spec_of(results[i]) != spec_of(expected[i])) return what + " has another layout";
      if (elements(results[i]) != elements(expected[i])) return what + " differs";
    }
  }
  return "";
}

/// The inputs in layouts that are separated by ";".
Tensors distributed(const Tensors& inputs, const ProcessMesh* mesh, const std::string& layouts) {
  Tensors all;
  size_t begin = 0;
  for (const Tensor& input : inputs) {
    const size_t end = std::min(layouts.find(';', begin), layouts.size());
    const bool one = layouts.find(';') == std::string::npos;
    all.push_back(distribute(input, one ? DistSpec::replicated(mesh, input.dims().rank())
                                        : DistSpec::parse(mesh, layouts.substr(begin, end - begin))));
    begin = std::min(end + 1, layouts.size());
  }
  return all;
}

/// What a dry rank holds at most, beside its arguments, and sends, in a call.
struct Cost {
  int64_t bytes = 0, sent = 0;
};
Cost dry_cost(const Masked& op, const std::string& layouts, GradMask wanted) {
  Cost cost;
  World::dry(2, 0)->run([&](Rank& rank) {
    const Tensors inputs = distributed(op.inputs, ProcessMesh::make({2}, {}, {"a"}), layouts);
    const auto before = dry_report(rank);
    const Tensors results = op.run(inputs, wanted);
    const auto after = dry_report(rank);
    cost = {static_cast<int64_t>(after.live_bytes - before.live_bytes),
            static_cast<int64_t>(after.bytes_sent - before.bytes_sent)};
  });
  return cost;
}

}  // namespace

TEST_CASE("gradients that are not wanted are absent, and the others have the bits of the whole call") {
  for (const Masked& op : masked_ops()) CHECK(difference(op, op.inputs) == "");
}

TEST_CASE("gradients that are not wanted are absent on meshes, and the others have the bits and layouts of the call") {
  for (const Masked& op : masked_ops()) {
    run_ranks(2, [&](Rank&) {
      const ProcessMesh* const mesh = ProcessMesh::make({2}, {}, {"a"});
      for (const std::string& layouts : op.layouts) {
        const std::string found = difference(op, distributed(op.inputs, mesh, layouts));
        check(found.empty(), found + " in " + layouts);
      }
    });
  }
}

TEST_CASE("gradients that are not wanted take no memory, and nothing is sent for them") {
  for (const Masked& op : masked_ops()) {
    for (const std::string& layouts : op.layouts) {
      INFO(op.name << " in " << layouts);
      const Tensors results = op.run(op.inputs, {});
      const Cost whole = dry_cost(op, layouts, {});
      for (const GradMask wanted : masks(results.size())) {
        const Cost part = dry_cost(op, layouts, wanted);
        bool some = false;
        for (size_t i = 0; i < results.size(); ++i) some = some || !wanted[i];
        CHECK(part.bytes + (some ? 1 : 0) <= whole.bytes);
        CHECK(part.sent <= whole.sent);
      }
    }
  }
  // Halos of the gradients of results are for the images, those of the images for the filter.
  const Masked conv = masked_ops()[0];
  const std::string rows = conv.layouts[2];
  const int64_t images = dry_cost(conv, rows, GradMask(1)).sent, filter = dry_cost(conv, rows, GradMask(2)).sent;
  CHECK(images > 0);
  CHECK(filter > 0);
  CHECK(images + filter == dry_cost(conv, rows, {}).sent);
}

TEST_CASE("backward asks kernels for the gradients of leaves alone") {
  const Tensor x = images(1), filter = random_values({3, 4, 3, 3}, 2);
  const auto loss = [](const Tensor& x, const Tensor& filter) { return sum(square(conv2d(x, filter)), {}, false); };
  const auto program_of = [&](bool of_x) {
    const program::Function gradients = [&](const Tensors& in) {
      const Tensor a = in[0].detach().set_requires_grad(of_x), b = in[1].detach().set_requires_grad(true);
      return grad({loss(a, b)}, {b});
    };
    return program::to_text(program::trace(gradients, {x, filter}).program);
  };
  CHECK_THAT(program_of(false), Catch::Contains("wanted=2"));
  // a is a leaf too, but not one of those that were asked for
  CHECK_THAT(program_of(true), Catch::Contains("wanted=2"));
}

TEST_CASE("gradients of gradients do not need those that were not wanted") {
  const Tensor x = images(1, {1, 2, 4, 4}), filter = random_values({2, 2, 3, 3}, 2);
  const auto second = [&](bool of_x) {
    const Tensor a = x.detach().set_requires_grad(of_x), b = filter.detach().set_requires_grad(true);
    const Tensor loss = sum(square(square(conv2d(a, b))), {}, false);
    const Tensor first = grad({loss}, {b}, {}, {.create_graph = true})[0];
    return elements(grad({sum(square(first), {}, false)}, {b})[0]);
  };
  const std::vector<double> alone = second(false), both = second(true);
  REQUIRE(alone.size() == both.size());
  for (size_t i = 0; i < alone.size(); ++i) CHECK(alone[i] == Approx(both[i]).epsilon(1e-12));
}

TEST_CASE("programs leave out results of gradient functions that nobody reads") {
  const Masked conv = masked_ops()[0];
  const program::Function filter_alone = [&](const Tensors& in) -> Tensors { return {conv.run(in, {})[1]}; };
  const program::Program program = program::dce(program::trace(filter_alone, conv.inputs).program);
  REQUIRE(program.ops.size() == 1);
  CHECK(program.ops[0].outputs[0] == 0);
  CHECK(program.ops[0].outputs[1] != 0);
  CHECK_THAT(program::to_text(program), Catch::Contains("wanted=-2"));
  CapturedFunction captured(filter_alone, {});
  const std::vector<double> expected = elements(conv.run(conv.inputs, {})[1]);
  CHECK(elements(captured(conv.inputs)[0]) == expected);
  program::Scope scope;
  CapturedFunction loaded(program::from_json(program::to_json(captured.trace(conv.inputs)), scope));
  CHECK(elements(loaded(conv.inputs)[0]) == expected);
}

}  // namespace shard::test::wanted_test
