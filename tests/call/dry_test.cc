// Dry worlds: a rank behaves as in a real world, without data.
#include "shard/api/local_map.h"
#include "shard/call/dry_report.h"
#include "shard/call/plan_cache.h"
#include "shard/dist/dist_tensor.h"
#include "shard/kernels/registry.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace dry_test {

using namespace shard;
using namespace shard::test;

namespace {

/// The facts that are compared between a rank of a real world and the same rank of a dry one.
struct Facts {
  std::map<std::string, std::string> traffic;  // by mesh, axis and kind: calls and bytes
  std::vector<std::string> calls;
  std::vector<std::string> tensors;  // meta, layout, local shard and version of the results
  RandomKey key;
  bool operator==(const Facts& other) const {
    return traffic == other.traffic && calls == other.calls && tensors == other.tensors &&
           key.offset == other.key.offset;
  }
};

std::string text_of(const Facts& facts) {
  std::string text;
  for (const auto& [key, value] : facts.traffic) text += key + " " + value + "\n";
  for (const std::string& call : facts.calls) text += call + "\n";
  for (const std::string& tensor : facts.tensors) text += tensor + "\n";
  return text;
}

using Program = std::function<std::vector<Tensor>(const ProcessMesh*)>;

/// Runs a program as `rank` and records what it did.
Facts observe(Rank& rank, const ProcessMesh* mesh, const Program& program) {
  Facts facts;
  rank.observer = [&](const CallRecord& r) {
    facts.calls.push_back(r.op + " " + r.inputs + " | " + r.reshards + " | " + r.outputs + " | " + r.aliases + " " +
                          std::to_string(r.bytes));
  };
  for (const Tensor& tensor : program(mesh)) {
    const DistTensorImpl& impl = dist_impl(tensor);
    facts.tensors.push_back(impl.describe() + " " + (impl.has_local_shard() ? to_string(impl.value.meta()) : "absent") +
                            " version " + std::to_string(tensor.version()));
  }
  for (const auto& [group, axis] : rank.groups()) {
    const CommStats stats = rank.stats(group, axis);
    for (int k = 0; k < kNumCommKinds; ++k) {
      const CommCount& count = stats[static_cast<CommKind>(k)];
      if (count.calls == 0) continue;
      facts.traffic[group->describe() + " " + std::to_string(axis) + " " +
                    std::string(to_string(static_cast<CommKind>(k)))] =
          std::to_string(count.calls) + " " + std::to_string(count.bytes_sent);
    }
  }
  facts.key = rank.generator.state();
  return facts;
}

/// Compares a program on all ranks of a real world with each of them in a dry one.
void compare(const std::string& name, const Program& program) {
  for (const ProcessMesh* mesh :
       {ProcessMesh::make({2, 2}), ProcessMesh::make({2, 3}), ProcessMesh::make({2, 2}, {3, 1, 0, 4})}) {
    const int ranks = 6;
    std::vector<Facts> real(ranks);
    World::local(ranks)->run([&](Rank& rank) { real[static_cast<size_t>(rank.id())] = observe(rank, mesh, program); });
    for (int id = 0; id < ranks; ++id) {
      Facts dry;
      const auto world = World::dry(ranks, id);
      world->run([&](Rank& rank) { dry = observe(rank, mesh, program); });
      INFO(name << " on " << mesh->describe() << " rank " << id << "\nreal:\n"
                << text_of(real[static_cast<size_t>(id)]) << "dry:\n"
                << text_of(dry));
      CHECK(dry == real[static_cast<size_t>(id)]);
    }
  }
}

const DistSpec* spec(const ProcessMesh* mesh, const char* text) { return DistSpec::parse(mesh, text); }

}  // namespace

TEST_CASE("12, 19: a dry rank sends what the real one sends: reshards of uneven shards") {
  compare("reshard", [](const ProcessMesh* m) {
    Tensor x = distribute(iota<float>({7, 5}), spec(m, "a, b"));
    for (const char* layout : {"b, a", "-, a+b", "b+a, -", "a, -", "-, - | sum(a), max(b)", "-, b", "-, -"})
      x = reshard(x, spec(m, layout));
    const Tensor y = distribute(iota<double>({3, 1}), spec(m, "a, -"), from_rank(m->processes()[1]));
    full_tensor(y);
    return std::vector<Tensor>{x, y};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: ops, pending sums, reshapes with and without relayout") {
  compare("ops", [](const ProcessMesh* m) {
    const Tensor x = distribute(iota<float>({5, 4}), spec(m, "a, b"));
    const Tensor w = ones({4, 6}, spec(m, "b, -"));
    const Tensor product = matmul(x, w);        // pending over b
    const Tensor active = relu(product);        // reduced first
    const Tensor flat = reshape(active, {30});  // uneven rows: maybe a relayout
    const Tensor rows = reshape(flat, {5, 3, 2});
    const Tensor soft = softmax(add(product, product), 0);
    const Tensor joined = concat({x, x}, 1);
    return std::vector<Tensor>{product, active, flat, rows, soft, joined, sum(joined, {0}), mean(x, {1})};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: in-place writes, views and write-backs") {
  compare("in place", [](const ProcessMesh* m) {
    Tensor x = distribute(iota<float>({6, 4}), spec(m, "a, -"));
    const Tensor view = reshape(x, {24});
    relu_(x);
    Tensor pending = ones({6, 4}, spec(m, "a, - | sum(b)"));
    relu_(pending);  // reduced, and back
    add_(x, pending);
    transpose_(pending, {1, 0});
    return std::vector<Tensor>{x, view, pending};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: reductions inside of kernels") {
  compare("batch_norm", [](const ProcessMesh* m) {
    const Tensor x = distribute(iota<float>({7, 3}), spec(m, "a+b, -"));
    const Tensor mean = zeros({3}, spec(m, "b")), variance = ones({3}, spec(m, "-"));
    const Tensor scale = ones({3}, spec(m, "-")), bias = zeros({3}, spec(m, "-"));
    const auto out = batch_norm(x, mean, variance, scale, bias, false, 0.9f, 1e-5f, "NCHW", false, false);
    const auto given = batch_norm(x, mean, variance, scale, bias, true, 0.9f, 1e-5f, "NCHW", false, false);
    const auto grads = [&](bool is_test) {
      return batch_norm_grad(x, scale, bias, std::get<3>(out), std::get<4>(out), std::get<0>(out), "NCHW", is_test,
                             false, false);
    };
    const auto [x_grad, scale_grad, bias_grad] = grads(false);
    const auto [x_given, scale_given, bias_given] = grads(true);
    return std::vector<Tensor>{std::get<0>(out), std::get<1>(out), std::get<0>(given), mean,    variance,
                               x_grad,           scale_grad,       bias_grad,          x_given, scale_given};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: a norm whose squares are added up by the kernel") {
  compare("frobenius_norm", [](const ProcessMesh* m) {
    const Tensor x = distribute(iota<float>({7, 3}), spec(m, "a, b"));
    return std::vector<Tensor>{frobenius_norm(x, {0}, false, false), frobenius_norm(x, {}, false, true)};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: lines whose parts are combined by kernels") {
  compare("lines", [](const ProcessMesh* m) {
    const Tensor x = distribute(iota<float>({4, 12}), spec(m, "a, b"));
    const Tensor scale = ones({12}, spec(m, "b")), whole = ones({12}, spec(m, "-"));
    const Tensor label = zeros({4, 1}, spec(m, "a, -"), DType::int64);
    const Tensor soft = softmax(x, -1), log_soft = log_softmax(x, 0);
    const auto [probabilities, loss] = cross_entropy_with_softmax(x, label);
    const auto [soft_probabilities, soft_loss] = cross_entropy_with_softmax(x, soft, true);
    const auto [margin_probabilities, margin_loss] = margin_cross_entropy(x, label, false, 0, 0, 1, 1, 0, 0.5f, 1);
    const auto [normal, mean_of, variance] = layer_norm_intermediate(x, whole, whole, 1e-5f, 1);
    const auto [rms, inverse] = rms_norm(x, scale);
    const auto [x_grad, scale_grad, bias_grad] = layer_norm_grad(x, whole, whole, mean_of, variance, normal, 1e-5f, 1);
    const auto [rms_grad, rms_scale_grad] = rms_norm_grad(x, scale, inverse, rms);
    return std::vector<Tensor>{soft,
                               log_soft,
                               softmax_grad(soft, x, -1),
                               log_softmax_grad(log_soft, x, 0),
                               probabilities,
                               loss,
                               soft_loss,
                               margin_probabilities,
                               margin_loss,
                               cross_entropy_with_softmax_grad(label, probabilities, loss),
                               cross_entropy_with_softmax_grad(soft, soft_probabilities, soft_loss, true),
                               normal,
                               rms,
                               x_grad,
                               scale_grad,
                               bias_grad,
                               rms_grad,
                               rms_scale_grad,
                               argmax(x, 1, false, false),
                               argmin(x, 0, false, true)};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: parts of lines and images that kernels combine") {
  compare("parts", [](const ProcessMesh* m) {
    const Tensor x = distribute(iota<float>({4, 60}), spec(m, "a, b")),
                 y = distribute(iota<float>({61}), spec(m, "b+a"));
    const Tensor image = distribute(iota<float>({2, 4, 5, 3}), spec(m, "-, a, b, -"));
    const Tensor scale = ones({4}, spec(m, "-")), bias = zeros({4}, spec(m, "-"));
    const auto [largest, at] = cummax(y);
    const auto [first, where] = topk(y, 2);
    const auto [normal, mean_of, variance] = group_norm_intermediate(image, scale, bias, 1e-5f, 2);
    const auto [x_grad, scale_grad, bias_grad] =
        group_norm_grad(image, scale, bias, mean_of, variance, normal, 1e-5f, 2);
    const auto [of_channels, saved_mean, inverse] = instance_norm_intermediate(image, scale, bias);
    const auto [image_grad, factor_grad, offset_grad] =
        instance_norm_grad(image, scale, bias, saved_mean, inverse, of_channels);
    const Tensor query = ones({2, 3, 4, 5}, spec(m, "-, -, -, -")), keys = ones({2, 71, 2, 5}, spec(m, "-, a+b, -, -"));
    const auto [attended, weights, lse, seed] = flash_attn(query, keys, keys, {}, {});
    const auto [q_grad, k_grad, v_grad] = flash_attn_grad(query, keys, keys, attended, lse, seed, {}, attended);
    const auto [selected, sums_of, drawn] =
        memory_efficient_attention(query, keys, keys, {}, {}, {}, {}, {}, -1, -1, true, 0, -1, true);
    const Tensor products = cumprod(x, 1), sums = cumsum(x, 1), sums_behind = cumsum(y, 0, false, true, true);
    return std::vector<Tensor>{products,  sums,        sums_behind, logcumsumexp(y), largest,     at,
                               first,     where,       normal,      mean_of,         x_grad,      scale_grad,
                               bias_grad, of_channels, image_grad,  factor_grad,     offset_grad, attended,
                               lse,       q_grad,      k_grad,      v_grad,          selected,    sums_of};
  });
}

TEST_CASE("12, 19: a dry rank sends what the real one sends: windows that reach into other shards") {
  compare("halos", [](const ProcessMesh* m) {
    const Tensor filter = ones({3, 4, 3, 4}, spec(m, "-, -, -, -"));
    std::vector<Tensor> results;
    for (const char* layout : {"-, -, a, b", "-, -, -, b+a", "a, -, b, -"}) {
      const Tensor x = distribute(iota<float>({2, 4, 7, 5}), spec(m, layout));
      const Tensor out = conv2d(x, filter, {2, 1}, {1, 2});
      const auto [x_grad, filter_grad] = conv2d_grad(x, filter, out, {2, 1}, {1, 2}, "EXPLICIT", {1, 1}, 1, "NCHW");
      results.insert(results.end(), {out, x_grad, filter_grad});
      const Tensor weight = ones({4, 3, 3, 4}, spec(m, "-, -, -, -"));
      const Tensor larger = conv2d_transpose(x, weight, {2, 1}, {1, 2});
      const auto [grad, weight_grad] =
          conv2d_transpose_grad(x, weight, larger, {2, 1}, {1, 2}, {}, {}, "EXPLICIT", 1, {1, 1}, "NCHW");
      const auto [largest, mask] = max_pool2d_with_index(x, {3, 2}, {2, 1}, {1, 0});
      const Tensor spread = max_pool2d_with_index_grad(x, mask, largest, {3, 2}, {2, 1}, {1, 0}, false, false);
      const Tensor taken = max_pool2d_with_index_double_grad(x, mask, x, {3, 2}, {2, 1}, {1, 0}, false, false);
      const Tensor smooth = bicubic_interp(x, {}, {}, {}, "NCHW", 0, 12, 4);
      results.insert(results.end(),
                     {larger, grad, weight_grad, largest, mask, spread, taken, smooth,
                      bicubic_interp_grad(x, {}, {}, {}, smooth, "NCHW", 0, 12, 4, {}, "bicubic", true, 1)});
      for (const std::string type : {"max", "avg"}) {
        const Tensor pooled = pool2d(x, {3, 2}, {2, 1}, {1, 0}, false, true, "NCHW", type);
        results.push_back(
            pool2d_grad(x, pooled, {3, 2}, {2, 1}, {1, 0}, false, true, "NCHW", type, false, false, "EXPLICIT"));
        results.push_back(
            pool2d_double_grad(x, x, {3, 2}, {2, 1}, {1, 0}, false, true, "NCHW", type, false, false, "EXPLICIT"));
        results.push_back(pooled);
      }
    }
    return results;
  });
}

TEST_CASE("16: a kernel with a reducer that a dry world does not know is an error that says what to register") {
  World::dry(2, 0)->run([](Rank&) {
    struct Reducer final : AxisReducer {
      void all_reduce(DenseTensor&, ReduceType) override {}
      Gathered all_gather(const DenseTensor& value) override { return {value}; }
    } reducer;
    LocalCall local;
    local.reducer = &reducer;
    OpContext ctx = call::context("mine");
    ctx.local = &local;
    using Kernel = void(const OpContext&, DenseTensor&);
    register_kernel("dry_test_kernel", 0, DType::float32, static_cast<Kernel*>([](const OpContext&, DenseTensor&) {}));
    DenseTensor out = call::allocate(ctx, kCpu, {{1}, DType::float32});
    const auto run = [&] {
      call::run(kernel_table("dry_test_kernel").find<Kernel>(ctx, kCpu, DType::float32), ctx, out);
    };
    check_contains(error_of(run, ErrorCode::no_kernel), "[mine] kernel dry_test_kernel combines values over mesh axes");
    register_dry_kernel("dry_test_kernel", static_cast<Kernel*>([](const OpContext&, DenseTensor&) {}));
    run();
  });
}

TEST_CASE("12, 35: random keys advance in a dry world as in a real one") {
  compare("random", [](const ProcessMesh* m) {
    const Tensor x = uniform({9, 2}, spec(m, "a, b"));
    return std::vector<Tensor>{x, dropout(x, Tensor()), gaussian({5}, spec(m, "b+a"))};
  });
}

TEST_CASE("local_map in a dry world runs the function on shards without data") {
  compare("local_map", [](const ProcessMesh* m) {
    const Tensor x = distribute(iota<float>({5, 4}), spec(m, "a, -"));
    const auto f = local_map([](const Tensor& x) { return add(relu(x), ones({1})); }, {spec(m, "-, b")},
                             {spec(m, "-, b")}, {.name = "mine", .outputs = {{{5, 4}, DType::float32}}});
    return std::vector<Tensor>{f(x)};
  });
  World::dry(4, 1)->run([](Rank&) {
    const auto* mesh = ProcessMesh::make({2, 2});
    const Tensor x = ones({5, 4}, spec(mesh, "a, -"));
    const auto f = local_map([](const Tensor& x) { return relu(x); }, {spec(mesh, "a, -")}, {spec(mesh, "a, -")});
    check_contains(error_of([&] { f(x); }, ErrorCode::no_data), "LocalMapOptions::outputs");
  });
}

TEST_CASE("2, 6: tensors of a dry world are unallocated, and reading a value is an error that says so") {
  Tensor kept;
  const auto world = World::dry(64, 5);
  world->run([&](Rank& rank) {
    check(rank.id() == 5 && rank.world().size() == 64 && current_rank_or_null() == &rank, "the rank");
    const DistSpec* rows = spec(ProcessMesh::make({64}), "a, -");
    const Tensor given = iota<float>({128, 2});
    const Tensor x = distribute(given, rows);
    check(local(x).get().value.storage()->state() == Storage::State::unallocated && local(x).dims() == Dims{2, 2},
          "unallocated");
    check(given.to_vector<float>()[3] == 3, "a plain tensor that was given keeps its data");
    kept = full_tensor(x);
    check_contains(error_of([&] { kept.to_vector<float>(); }, ErrorCode::no_data), "belongs to a dry world");
    check_contains(error_of([&] { kept.to_vector<int>(); }, ErrorCode::dtype_mismatch), "cast it first");
    check_contains(to_text(x), "without data");
    check(!relu(kept).get().value.has_data() && !zeros({4}).get().value.has_data(),
          "plain calls compute nothing either");
    Tensor written = iota<float>({4});
    scale_(written, 2.0);
    error_of([&] { written.to_vector<float>(); }, ErrorCode::no_data);  // not the old value
    check_contains(error_of([&] { item(zeros({1})); }, ErrorCode::no_data), "belongs to a dry world");
    check(from_local(iota<float>({2, 2}), rows, {128, 2}, DType::float32).get().value.storage()->meter() != nullptr,
          "from_local too");
    check(kept.to(kCpu).meta() == kept.meta() && x.version() == 0, "meta");
  });
  check_contains(error_of([&] { relu(kept); }, ErrorCode::no_data),
                 "[relu] argument 'x' (f32[128, 2]) belongs to a dry world");
  kept = Tensor();
}

TEST_CASE("4, 36: errors in a dry world are those of the real one") {
  const auto program = [](Rank&) {
    const auto* mesh = ProcessMesh::make({2, 2});
    std::vector<std::string> errors;
    const Tensor x = ones({5, 4}, spec(mesh, "a, b"));
    errors.push_back(error_of([&] { matmul(x, x); }, ErrorCode::shape_mismatch));
    errors.push_back(error_of([&] { add(x, iota<float>({5, 4})); }, ErrorCode::layout));
    errors.push_back(error_of([&] { zeros({3}, spec(mesh, "a, -")); }, ErrorCode::layout));
    errors.push_back(error_of([&] { dropout(x, Tensor(), 2.0); }, ErrorCode::invalid_argument));
    errors.push_back(error_of([&] { arange(0, 4, spec(mesh, "a"), 1, DType::boolean); }, ErrorCode::no_kernel));
    return errors;
  };
  std::vector<std::string> real, dry;
  World::local(4)->run([&](Rank& rank) {
    const auto errors = program(rank);
    if (rank.id() == 2) real = errors;
  });
  World::dry(4, 2)->run([&](Rank& rank) { dry = program(rank); });
  CHECK(dry == real);
}

TEST_CASE("12, 19: local shards of a dry world may have more than 2^31 elements, in one dim too") {
  World::dry(4, 1)->run([](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    const int64_t many = int64_t{3} << 33;
    const Tensor x = full({many, 2}, 1.0, DistSpec::parse(mesh, "a, -"));
    check(local(x).dims() == Dims{many / 2, 2}, "a shard");
    check(local(add(x, x)).dims() == Dims{many / 2, 2}, "elementwise");
    check(reshape(x, {2 * many}).dims() == Dims{2 * many} && local(reshape(x, {2, many})).dims() == Dims{1, many},
          "views");
    check(local(slice(x, {1}, {1}, {2})).dims() == Dims{many / 2, 1}, "a slice");
    check(sum(x, {0}).dims() == Dims{2} && local(transpose(x, {1, 0})).dims() == Dims{2, many / 2},
          "a sum and a transpose");
    const int64_t before = rank.stats().bytes_sent;
    reshard(x, DistSpec::parse(mesh, "-, -"));
    check(rank.stats().bytes_sent - before == many / 2 * 2 * 4, "an all-gather of 96 GiB");
  });
}

TEST_CASE("22: views of copies are known in a dry world too") {
  World::dry(4, 0)->run([](Rank& rank) {
    const auto* mesh = ProcessMesh::make({2, 2});
    Tensor x = ones({5, 4}, spec(mesh, "-, a"));
    Tensor view = reshape(x, {20});
    check(view.get().value.storage()->detachment() != nullptr, "the input was resharded");
    error_of([&] { relu_(view); }, ErrorCode::view_of_copy);
    relu_(x);
    error_of([&] { relu(view); }, ErrorCode::stale_view);
    PolicyScope sync(rank, {.view = ViewPolicy::sync});
    relu_(view);
    check(x.version() == 2, "written back");
  });
}

TEST_CASE("a dry rank counts the bytes that are alive and the most that ever were") {
  const auto world = World::dry(8, 3);
  const auto* mesh = ProcessMesh::make({2, 4});
  world->run([&](Rank& rank) {
    const auto live = [&] { return dry_report(rank).live_bytes; };
    const auto peak = [&] { return dry_report(rank).peak_bytes; };
    {
      const Tensor x = zeros({16, 8}, spec(mesh, "a, b"));  // local shards of 8 x 2 floats
      check(live() == 64 && peak() == 64, "made in place: nothing but the shard");
      const Tensor y = reshard(x, spec(mesh, "a, -"));  // 8 x 8 floats, and a buffer for the received shards
      check(live() == 64 + 256 && peak() >= 64 + 256, "a second tensor");
      relu(y);
      check(live() == 64 + 256 && peak() >= 64 + 256 + 256, "freed again");
      const Tensor view = reshape(y, {128});
      check(live() == 64 + 256, "a view takes nothing");
    }
    check(live() == 0, "all are gone");
    const Tensor huge = uniform({int64_t{1} << 20, int64_t{1} << 20}, spec(mesh, "a, b"), DType::float64);
    check(live() == int64_t{1} << 40, "a TiB on this rank alone");
  });
}

TEST_CASE("the dry report tells calls, shards, traffic by axis and kind, and predicted time") {
  const auto world = World::dry(6, 4);
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"dp", "tp"}, {.axes = {{1000, 0.5}, {3000, 0.25}}});
  world->run([&](Rank&) {
    const Tensor x = zeros({7, 4}, spec(mesh, "dp, -"));
    const Tensor w = zeros({4, 6}, spec(mesh, "-, tp"));
    for (int i = 0; i < 3; ++i) matmul(x, w);
    reshard(matmul(x, w), spec(mesh, "dp, -"));
    sum(x, {});
    full_tensor(sum(x, {}));
  });
  const DryReport report = dry_report(world->rank(4));
  REQUIRE(report.rank == 4);
  CHECK(report.world_size == 6);
  REQUIRE(report.calls.size() == 4);
  CHECK(report.calls[0].op == "full");
  CHECK(report.calls[2].op == "matmul");
  CHECK(report.calls[2].calls == 4);
  CHECK(report.calls[2].outputs == "out f32[3, 2] of f32[7, 6] [dp, tp]");
  REQUIRE(report.traffic.size() == 2);
  CHECK(report.traffic[0].axis == "dp");
  CHECK(report.traffic[0].kind == "all_reduce");
  CHECK(report.traffic[0].collectives == 1);
  CHECK(report.traffic[1].axis == "tp");
  CHECK(report.traffic[1].kind == "exchange");  // of shards along dim 1
  CHECK(report.traffic[1].bytes_sent == 3 * 2 * 4 * 2);
  CHECK(report.traffic[0].predicted_ns == 2 * 1000 + 0.5 * static_cast<double>(report.traffic[0].bytes_sent));
  CHECK(report.traffic[1].predicted_ns == 3000 + 0.25 * 48);
  CHECK(report.predicted_ns == report.traffic[0].predicted_ns + report.traffic[1].predicted_ns);
  CHECK(report.collectives == 2);
  CHECK(report.bytes_sent == report.traffic[0].bytes_sent + report.traffic[1].bytes_sent);
  CHECK(report.text().find("matmul") != std::string::npos);
  CHECK(report.text().find("tp         exchange") != std::string::npos);
  CHECK(report.json().find(R"("op": "matmul", "outputs": "out f32[3, 2] of f32[7, 6] [dp, tp]", "calls": 4)") !=
        std::string::npos);
  CHECK(report.json().find(R"("kind": "exchange", "collectives": 1, "bytes_sent": 48)") != std::string::npos);
  const auto real = World::local(1);
  CHECK_THROWS_WITH(dry_report(real->rank(0)), Catch::Contains("World::dry"));
}

TEST_CASE("19: a dry world refuses ranks that it has not, and runs no more after a failure") {
  CHECK_THROWS_WITH(World::dry(4, 4), Catch::Contains("its ranks are 0 to 3"));
  CHECK_THROWS_WITH(World::dry(0, 0), Catch::Contains("at least one rank"));
  const auto world = World::dry(4, 1);
  CHECK_THROWS_WITH(world->run([](Rank&) { fail(ErrorCode::internal, "mine"); }), Catch::Contains("mine"));
  CHECK_THROWS_WITH(world->run([](Rank&) {}), Catch::Contains("cannot run again"));
}

}  // namespace dry_test
