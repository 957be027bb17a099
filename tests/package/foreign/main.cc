// Calls generated functions of a foreign op file: one that the runtime can compute, one without a kernel, one whose
// functions are only scaffolded, and a backward op.
#include <cstdio>
#include <string>
#include <vector>

#include <shard/runtime.h>
#include "foreign_api.h"

using namespace shard;

namespace {

int failures = 0;

void check(bool good, const char* what) {
  std::printf("%s: %s\n", good ? "ok" : "WRONG", what);
  failures += good ? 0 : 1;
}

Tensor values(const std::vector<float>& numbers) {
  return Tensor::from_data(numbers, {static_cast<int64_t>(numbers.size())});
}

bool equals(const Tensor& tensor, const std::vector<float>& numbers) { return tensor.to_vector<float>() == numbers; }

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  std::printf("  got: %s\n", text.c_str());
  return false;
}

}  // namespace

int main() {
  const Tensor x = values({1, -2, 3}), y = values({10, 20, 30});
  check(equals(add(x, y), {11, 18, 33}), "add computes");
  check(equals(relu(x), {1, 0, 3}), "relu computes");
  check(equals(scale(x, 2.0f, 1.0f), {3, -3, 7}), "scale takes defaults");
  check(has(error_of([&] { conj(x); }), "no kernel registered for conj"), "an op without a kernel says so");
  check(has(error_of([&] { renorm_grad(x, y, 2, 0, 1); }), "no kernel registered for renorm_grad"),
        "a backward op without a kernel says so");
  check(has(error_of([&] { bmm(x, y); }), "no kernel registered for bmm: shard::meta::BmmInferMeta is only scaffolded"),
        "a scaffold says what to write");
  check(has(error_of([&] {
              add_n({x, y});
            }),
            "shard::external::add_n_impl is only scaffolded"),
        "an invoked function that nobody wrote says so");
  Tensor target = values({1, 2, 3});
  check(equals(add_(target, y), {11, 22, 33}) && equals(target, {11, 22, 33}), "add_ writes its argument");
  World::local(2)->run([&](Rank& rank) {
    const Tensor shard = distribute(x, DistSpec::parse(ProcessMesh::make({2}, {}, {"p"}), "p"));
    const Tensor whole = relu(shard);
    const Tensor result = shard::full_tensor(whole);
    if (rank.id() == 0) check(equals(result, {1, 0, 3}), "relu computes on a mesh");
  });
  return failures == 0 ? 0 : 1;
}
