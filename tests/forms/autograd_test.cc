// Residuals that are saved under a condition.
#include "shard/autograd/autograd.h"
#include "form_testing.h"
#include "forms_ops.h"

namespace shard::external {

std::tuple<Tensor, Tensor> gated_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, bool open,
                                      GradMask wanted) {
  if (!open) return {out_grad, wanted[1] ? full_like(out_grad, 0) : Tensor()};
  return {wanted[0] ? multiply(out_grad, y) : Tensor(), wanted[1] ? multiply(out_grad, x) : Tensor()};
}

}  // namespace shard::external

namespace shard::test::autograd_test {
namespace {

/// Whether backward through gated(x, y, open) reads a buffer that is written after the call.
bool reads(bool of_x, bool open) {
  const Tensor w = Tensor::from_data<float>({2, 3}, {2}).set_requires_grad(true);
  Tensor x = scale(w, 5), y = of_x ? scale(w, 7) : Tensor::from_data<float>({1, 4}, {2});
  if (of_x) x = x.detach();
  const Tensor out = gated(x, y, open);
  Tensor& written = of_x ? x : y;
  scale_(written, 2, 0, true);
  try {
    sum(out, {}, false).backward();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::autograd);
    CHECK_THAT(error.what(), Catch::Contains(std::string("[gated_grad] argument '") + (of_x ? "x" : "y") + "'"));
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("27: an argument is saved under an attribute, and for a gradient that is wanted") {
  use_forms();
  CHECK(reads(/*of_x=*/true, /*open=*/true));
  CHECK_FALSE(reads(true, false));
  CHECK(reads(false, true));
  CHECK_FALSE(reads(false, false));
  const Tensor x = Tensor::from_data<float>({2, 3}, {2}).set_requires_grad(true),
               y = Tensor::from_data<float>({5, 7}, {2}).set_requires_grad(true);
  sum(gated(x, y, true), {}, false).backward();
  CHECK(floats(x.grad()) == std::vector<float>{5, 7});
  CHECK(floats(y.grad()) == std::vector<float>{2, 3});
}

TEST_CASE("27: what is not saved on a mesh keeps its layout") {
  use_forms();
  run_ranks(2, [](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x =
        distribute(Tensor::from_data<float>({2, 3, 4}, {3}), DistSpec::parse(mesh, "p")).set_requires_grad(true);
    const Tensor y = distribute(Tensor::from_data<float>({5, 6, 7}, {3}), DistSpec::parse(mesh, "-"));
    sum(gated(x, y, true), {}, false).backward();
    check(full_equals<float>(x.grad(), {5, 6, 7}), "open");
    x.set_grad({});
    sum(gated(x, y, false), {}, false).backward();
    check(full_equals<float>(x.grad(), {1, 1, 1}), "not open");
  });
}

}  // namespace shard::test::autograd_test
