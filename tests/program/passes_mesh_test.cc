// Passes on meshes: which reshards they remove, shorten and combine, and that bits do not change.
#include "shard/reshard/plan.h"
#include "shard/shard.h"
#include "support/passes.h"

namespace passes_mesh_test {

using namespace shard;
using namespace shard::test;
using program::Kind;

namespace {

Tensor moved(const Tensor& x, const char* layout) { return reshard(x, DistSpec::parse(spec_of(x)->mesh(), layout)); }

/// On each of 4 and 5 ranks (one outside the mesh), passes the program after reshard placement and dead code
/// elimination to `found`, and compares captured runs with eager ones.
void with_placed(const Function& function, const std::function<Tensors(int run)>& make,
                 const std::function<void(const Program&)>& found) {
  for (const int ranks : {4, 5}) {
    run_ranks(ranks, [&](Rank& rank) {
      Program program = program::place_reshards(traced(function, make(0)));
      program.verify();
      program = program::dce(program);
      program.verify();
      found(program);
      CapturedFunction with(function, {}), without(function, {.passes = false});
      for (int run = 0; run < 2; ++run) {
        Tensors in[3], out[3];
        for (int way = 0; way < 3; ++way) {
          rank.generator.set_seed(static_cast<uint64_t>(run));
          in[way] = make(run);
          out[way] = way == 0 ? function(in[0]) : way == 1 ? without(in[1]) : with(in[2]);
        }
        for (int way = 1; way < 3; ++way) {
          for (size_t i = 0; i < out[0].size(); ++i) {
            check(!out[0][i].is_dist() || spec_of(out[way][i]) == spec_of(out[0][i]),
                  "layout of output " + std::to_string(i));
            check(bits(whole(out[way][i])) == bits(whole(out[0][i])),
                  "output " + std::to_string(i) + " of way " + std::to_string(way));
          }
          for (size_t i = 0; i < in[0].size(); ++i)
            check(bits(whole(in[way][i])) == bits(whole(in[0][i])), "input " + std::to_string(i));
        }
      }
    });
  }
}

std::function<void(const Program&)> reshards_are(int expected, std::string part = {}) {
  return [=](const Program& program) {
    check(count(program, "reshard") == expected, std::to_string(expected) + " reshards in " + to_text(program));
    if (!part.empty()) check_contains(to_text(program), part);
  };
}

}  // namespace

TEST_CASE("passes: a move through another layout that nothing else reads becomes one move") {
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "b, -"))}; },
              [](int run) -> Tensors {
                return {on("a, b", {5, 3}, run)};
              },
              reshards_are(1));
  // An all-reduce and a slice become a reduce-scatter.
  with_placed(
      [](const Tensors& in) -> Tensors {
        return {doubled(moved(moved(matmul(scale(in[0], Scalar(0.1), Scalar(0), true), in[1]), "a, -"), "a, b"))};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 6}, run), on("b, -", {6, 3})};
      },
      [](const Program& program) {
        reshards_are(1)(program);
        for (const program::Op& op : program.ops) {
          if (op.kind != Kind::reshard) continue;
          const program::Type& from = program.value(op.inputs[0].value).type;
          check_contains(plan_reshard(from.meta, from.spec, op.layout)->describe(), "reduce_scatter");
        }
      });
}

TEST_CASE("passes: a move back to a layout that the value had is none") {
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "a, b"))}; },
              [](int run) -> Tensors {
                return {on("a, b", {5, 3}, run)};
              },
              reshards_are(0));
  // The intermediate layout is read too, so its reshard stays.
  with_placed(
      [](const Tensors& in) -> Tensors {
        return {doubled(moved(moved(in[0], "-, -"), "a, b")), softmax(moved(in[0], "-, -"), 1)};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 3}, run)};
      },
      reshards_are(1));
  // Otherwise the caller would get the buffer of the input.
  with_placed([](const Tensors& in) -> Tensors { return {moved(moved(in[0], "-, -"), "a, b")}; },
              [](int run) -> Tensors {
                return {on("a, b", {5, 3}, run)};
              },
              reshards_are(2));
}

TEST_CASE("passes: a value is moved from where it is nearest, and once to each layout") {
  // From the replicated one it is a slice.
  with_placed(
      [](const Tensors& in) -> Tensors {
        return {doubled(moved(in[0], "-, -")), tanh(moved(in[0], "b, -")), exp(moved(in[0], "-, -"))};
      },
      [](int run) -> Tensors {
        return {on("a, -", {50, 3}, run)};
      },
      [](const Program& program) {
        reshards_are(2)(program);
        int from_input = 0;
        for (const program::Op& op : program.ops)
          from_input += op.kind == Kind::reshard && op.inputs[0].value == program.inputs[0].value;
        check(from_input == 1, to_text(program));
      });
}

TEST_CASE("passes: a layout that is read besides is not paid for twice") {
  const auto one_from_input = [](const Program& program) {
    reshards_are(2)(program);
    int from_input = 0;
    for (const program::Op& op : program.ops)
      from_input += op.kind == Kind::reshard && op.inputs[0].value == program.inputs[0].value;
    check(from_input == 1, to_text(program));
  };
  const auto make = [](int run) -> Tensors { return {on("a, -", {50, 3}, run)}; };
  with_placed(
      [](const Tensors& in) -> Tensors {
        const Tensor middle = moved(in[0], "-, -");
        return {doubled(middle), tanh(moved(middle, "b, -"))};
      },
      make, one_from_input);
  with_placed(
      [](const Tensors& in) -> Tensors {
        const Tensor middle = moved(in[0], "-, -"), same = moved(in[0], "-, -");
        return {doubled(same), tanh(moved(middle, "b, -"))};
      },
      make, one_from_input);
}

TEST_CASE("passes: moves across a write of the source or of the moved value stay") {
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor x = in[0];
        const Tensor before = moved(x, "-, -");
        scale_(x, Scalar(2), Scalar(1), true);
        return {add(moved(before, "a, b"), x), doubled(moved(x, "-, -"))};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 3}, run)};
      },
      reshards_are(3));
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor middle = moved(in[0], "-, -");
        relu_(middle);
        return {doubled(moved(middle, "a, b")), doubled(moved(in[0], "-, -"))};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 3}, -4.0 + run)};
      },
      reshards_are(3));
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor middle = moved(in[0], "-, -");
        relu_(middle);
        return {doubled(middle), doubled(moved(in[0], "b, -"))};
      },
      [](int run) -> Tensors {
        return {on("a, -", {50, 3}, -70.0 + run)};
      },
      reshards_are(2));
  // The source is written after the reshard back, so the result is no longer equal to the source.
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor x = in[0];
        const Tensor back = moved(moved(x, "-, -"), "a, b");
        scale_(x, Scalar(2), Scalar(1), true);
        return {doubled(back)};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 3}, run)};
      },
      reshards_are(2));
}

TEST_CASE("passes: ways of moving that could round otherwise, and capped ones, stay") {
  const auto two_sums = [](const Tensors& in) -> Tensors {
    return {doubled(moved(moved(sum(in[0], {0, 1}, false), "- | sum(b)"), "-"))};
  };
  with_placed(
      two_sums,
      [](int run) -> Tensors {
        return {on("a, b, -", {5, 3, 2}, run)};
      },
      reshards_are(2));
  with_placed(
      [](const Tensors& in) -> Tensors {
        return {doubled(moved(moved(sum(in[0], {0, 1}, false), "-"), "b"))};
      },
      [](int run) -> Tensors {
        return {on("a, b, -", {5, 3, 4}, run)};
      },
      reshards_are(2));
  // The sum of -0.0 and identities is 0.0.
  with_placed([](const Tensors& in) -> Tensors { return {square(moved(moved(in[0], "a, - | sum(b)"), "a, b"))}; },
              [](int run) -> Tensors {
                return {on("a, b", {5, 3}, run)};
              },
              reshards_are(2));
  const ProcessMesh* const capped = mesh22({.memory_cap = 1 << 20});
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "b, -"))}; },
              [=](int run) -> Tensors {
                return {on("a, b", {5, 3}, run, capped)};
              },
              reshards_are(2));
}

TEST_CASE("passes: small moves with equal steps share their collectives, and large ones do not") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor x = in[0], y = in[1];
    const Tensor a = moved(doubled(x), "-, -"), b = moved(tanh(y), "-, -");
    const Tensor c = moved(x, "-, -");  // its source is written before others are ready
    scale_(x, Scalar(3), Scalar(0), true);
    const Tensor d = moved(exp(y), "-, -");
    return {add(a, b), c, matmul(d, moved(matmul(d, a), "-, -"))};
  };
  const auto make = [](Dims dims) {
    return [=](int run) -> Tensors { return {on("a, -", dims, 1e-3 * run), on("a, -", dims, -1)}; };
  };
  const auto order = [](const Program& program) {
    std::string text;
    for (const program::Op& op : program.ops) text += op.kind == Kind::reshard ? "R" : ".";
    return text;
  };
  with_placed(function, make({3, 3}), [&](const Program& program) {
    const Program batched = program::combine_collectives(program);
    batched.verify();
    check_contains(to_text(batched), "%7: f64[3, 3] [-, -] = reshard(%1, layout=[-, -]) with the one before");
    Program wrong = batched;
    wrong.ops[5].joins = true;  // an op after a reshard
    check_contains(error_of([&] { wrong.verify(); }, ErrorCode::internal),
                   fmt::format("op 5 ({}) cannot run together with the op before it", wrong.ops[5].name()));
    const Program twice = program::run_passes(program::run_passes(program));
    check(order(twice) == order(program::run_passes(program)), "passes find nothing more to do");
    check(order(program).starts_with(".R.RR..R") && order(batched).starts_with("..RRR..R"),
          order(program) + " " + order(batched));
  });
  with_placed(function, make({300, 300}), [&](const Program& program) {
    check(order(program::combine_collectives(program)) == order(program), "large ones stay");
  });
  run_ranks(4, [&](Rank& rank) {
    CapturedFunction with(function, {}), without(function, {.passes = false});
    const Tensors in = make({3, 3})(0);
    int64_t calls[2];
    for (const bool passes : {false, true}) {
      const Tensors warm = (passes ? with : without)(in);
      rank.trace.clear();
      const Tensors out = (passes ? with : without)(in);
      calls[passes] = static_cast<int64_t>(rank.trace.events().size());
    }
    check(calls[0] == 4 && calls[1] == 2,
          "collectives: " + std::to_string(calls[0]) + " and " + std::to_string(calls[1]));
  });
}

TEST_CASE("passes: reductions that share a collective have the bits of those alone") {
  const auto tenth = [](const Tensor& x) { return scale(x, Scalar(0.1), Scalar(0), true); };
  const auto function = [=](const Tensors& in) -> Tensors {
    const Tensor x = tenth(in[0]), w = tenth(in[1]), v = tenth(in[2]);
    const Tensor a = matmul(x, w), b = matmul(x, v), c = matmul(x, w), d = sum(x, {1}, false);
    return {multiply(relu(a), sum(relu(b), {1}, true)), moved(c, "a, b"), moved(b, "a, b"), relu(d)};
  };
  with_placed(
      function,
      [](int run) -> Tensors {
        return {on("a, b", {5, 7}, run - 10), on("b, -", {7, 3}, -8), on("b, -", {7, 5}, 2)};
      },
      [](const Program& program) {
        const auto lines = to_text(program::combine_collectives(program));
        check(count(program, "reshard") >= 4, lines);
      });
}

TEST_CASE(
    "passes: what goes on and off a mesh is left alone, because ranks may do different things with plain tensors") {
  run_ranks(4, [](Rank& rank) {
    const DistSpec* const rows = DistSpec::parse(mesh22(), "a, -");
    // Rank 0 has two different values, the others two equal placeholders; and only rank 0 uses the results.
    const auto function = [&](const Tensors& in) -> Tensors {
      const Tensor empty = full({4, 2}, Scalar(0), DType::float64);
      const Tensor a = distribute(rank.id() == 0 ? in[0] : empty, rows, from_rank(0)),
                   b = distribute(rank.id() == 0 ? doubled(in[0]) : empty, rows, from_rank(0));
      Tensor whole = full_tensor(multiply(a, b)), again = full_tensor(multiply(a, b));
      if (rank.id() != 0) return {a};
      relu_(again);
      return {a, whole, again};
    };
    CapturedFunction captured(function, {});
    const Tensor x = iota<double>({4, 2}, -3);
    const Tensors out = captured({x});
    if (rank.id() != 0) return;
    check(bits(out[1]) == bits(multiply(x, doubled(x))), "the product");
    check(bits(out[2]) == bits(out[1]), "which is not negative");
  });
}

TEST_CASE("passes: a constant that is pending is not known, because its reduction may round") {
  run_ranks(3, [](Rank&) {
    const DistSpec* const pending = DistSpec::parse(ProcessMesh::make({3}), "- | avg(a)");
    const auto function = [&](const Tensors&) -> Tensors {
      return {moved(full({2}, Scalar(0.1), pending, DType::float64), "-")};
    };
    check(count(program::constant_folding(traced(function, {})), "reshard") == 1, "the reduction stays");
    CapturedFunction captured(function, {});
    check(bits(whole(captured({})[0])) == bits(whole(function({})[0])), "the value");
  });
}

TEST_CASE("passes: programs on meshes do after all passes what eager calls do, for uneven shards") {
  with_placed(
      [](const Tensors& in) -> Tensors {
        const Tensor y = matmul(in[0], in[1]), z = matmul(in[0], in[1]);
        Tensor p =
            relu(multiply(add(y, in[2]), full({5, 3}, Scalar(1), DistSpec::parse(mesh22(), "-, a"), DType::float64)));
        softmax_(p, 0);
        const Tensor masked =
            multiply(dropout(p, {}, Scalar(0.5)),
                     full({5, 3}, Scalar(0.5), DistSpec::parse(mesh22(), "-, a | sum(b)"), DType::float64));
        return {tanh(z), softmax(p, 1), masked, sum(masked, {0}, false), reshape(tanh(p), {15})};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 14}, run), on("b, -", {14, 3}, 2 * run), on("-, a", {5, 3})};
      },
      [](const Program&) {});
}

}  // namespace passes_mesh_test
