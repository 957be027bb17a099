// Attributes of every type: in keys of cached plans, and in the signature by which a kernel is found.
#include "form_testing.h"

namespace attributes_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line() { return ProcessMesh::make({2}, {}, {"p"}); }

/// The attributes of all_types, with values to start from.
struct Attributes {
  bool b = false;
  int i = 1;
  int64_t l = 2;
  float f = 0.5f;
  double d = 0.25;
  std::string s = "text";
  DType t = DType::float32;
  Device p = kCpu;
  Scalar sc = 3;
  IntArray ia = {1, 2}, il = {3}, ll = {};
  std::vector<float> fl = {1, 2};
  std::vector<double> dl = {3};
  std::vector<bool> bl = {true};
  std::vector<std::string> sl = {"a", "b"};
  std::vector<Scalar> scl = {1};
  int i1 = 0, i12 = 0;
  std::optional<DType> ot;
  std::optional<Device> op;

  Tensor call(const Tensor& x) const {
    return all_types(x, b, i, l, f, d, s, t, p, sc, ia, il, ll, fl, dl, bl, sl, scl, i1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                     i12, ot, op);
  }
  void call_inplace(Tensor& x) const {
    all_types_(x, b, i, l, f, d, s, t, p, sc, ia, il, ll, fl, dl, bl, sl, scl, i1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, i12,
               ot, op);
  }
};

using Change = std::function<void(Attributes&)>;

/// Each changes one attribute of Attributes{}.
std::vector<Change> changes() {
  using A = Attributes;
  return {[](A& a) { a.b = true; },
          [](A& a) { a.i = -1; },
          [](A& a) { a.l = int64_t{1} << 40; },
          [](A& a) { a.f = 0.75f; },
          [](A& a) { a.d = 0.125; },
          [](A& a) { a.s = "tex"; },
          [](A& a) { a.s = ""; },
          [](A& a) { a.s = "a text of more than one word"; },
          [](A& a) { a.t = DType::float64; },
          [](A& a) {
            a.p = Device{0, 1};
          },
          [](A& a) { a.sc = 3.0; },
          [](A& a) { a.sc = 4; },
          [](A& a) { a.ia = {1}; },
          [](A& a) {
            a.ia = {}, a.il = {1, 2, 3};
          },
          [](A& a) { a.il = {4}; },
          [](A& a) { a.ll = {0}; },
          [](A& a) { a.fl = {1}; },
          [](A& a) {
            a.fl = {1, 2, 0};
          },
          [](A& a) {
            a.fl = {1, 3};
          },
          [](A& a) { a.dl = {4}; },
          [](A& a) {
            a.bl = {true, false};
          },
          [](A& a) { a.bl = {false}; },
          [](A& a) { a.bl = {}; },
          [](A& a) { a.sl = {"a,b"}; },
          [](A& a) {
            a.sl = {"ab", ""};
          },
          [](A& a) {
            a.sl = {"", "ab"};
          },
          [](A& a) { a.sl = {}; },
          [](A& a) { a.scl = {1.0}; },
          [](A& a) {
            a.scl = {1, 0};
          },
          [](A& a) { a.scl = {}; },
          [](A& a) { a.i1 = 1; },
          [](A& a) { a.i12 = 1; },
          [](A& a) { a.ot = static_cast<DType>(0); },
          [](A& a) { a.ot = DType::float64; },
          [](A& a) { a.op = kCpu; }};
}

}  // namespace

TEST_CASE("12: calls that differ in one attribute have plans of their own, whatever its type") {
  use_forms();
  run_ranks(3, [](Rank& rank) {
    const Tensor x = Tensor::from_data<double>({1, 2, 3}, {3});
    const Tensor d = distribute(x, DistSpec::parse(line(), "p"));
    const auto call_both = [&](const Attributes& attributes) {
      check(same_bits<double>(attributes.call(d), attributes.call(x)), "value");
    };
    call_both({});
    std::set<double> values = {Attributes{}.call(x).to_vector<double>()[0]};
    size_t count = 1;
    for (const Change& change : changes()) {
      Attributes attributes;
      change(attributes);
      ++count;
      const auto before = call::plan_cache_stats(rank);
      call_both(attributes);
      call_both(attributes);
      const auto after = call::plan_cache_stats(rank);
      check(after.misses == before.misses + 1 && after.hits == before.hits + 1,
            fmt::format("plan of change {}", count - 2));
      values.insert(attributes.call(x).to_vector<double>()[0]);
      check(values.size() == count, fmt::format("value of change {}", count - 2));
    }
  });
}

TEST_CASE("an op with thirty arguments and more in place") {
  use_forms();
  run_ranks(3, [](Rank&) {
    Tensor x = Tensor::from_data<double>({1, 2, 3, 4, 5}, {5});
    Tensor d = distribute(x, DistSpec::parse(line(), "p"));
    Attributes attributes;
    attributes.op = kCpu;
    for (int step = 0; step < 2; ++step) {
      attributes.call_inplace(x);
      attributes.call_inplace(d);
    }
    check(same_bits<double>(d, x) && d.version() == 2, "value and version");
  });
}

TEST_CASE("a kernel with other parameter types than the op's is an error that says so") {
  use_forms();
  const Tensor x = iota<float>({2});
  CHECK_THAT(error_of([&] { mistyped(x, 1); }, ErrorCode::internal),
             Catch::Contains("[mistyped] kernel mistyped is registered with the signature") &&
                 Catch::Contains("but the op calls it as"));
}

TEST_CASE("16: an error about a missing kernel names the op, the device and what there is") {
  use_forms();
  const Tensor x = iota<float>({2});
  CHECK_THAT(
      error_of([&] { unknown_kernel(x); }, ErrorCode::no_kernel),
      Catch::Contains("[unknown_kernel] no kernel registered for unknown_kernel on cpu, nor on any other device"));
  CHECK_THAT(
      error_of([&] { jitter(iota<double>({2}), 1); }, ErrorCode::no_kernel),
      Catch::Contains("no kernel registered for jitter on cpu with float64; there are kernels for: cpu float32"));
  CHECK_THAT(error_of([&] { twice_as_complex(x); }, ErrorCode::dtype_mismatch),
             Catch::Contains("[twice_as_complex]") && Catch::Contains("complex"));
}

}  // namespace attributes_test
