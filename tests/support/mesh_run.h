// Helpers for tests that run on the ranks of a local world.
#pragma once

#include <catch2/catch.hpp>

#include <chrono>
#include <mutex>
#include <numeric>

#include "shard/api/layout.h"
#include "shard/dist/dist_tensor.h"

namespace shard::test {

/// Runs `program` on `ranks` threads. Catch2's assertions are not thread safe: tests report
/// findings with check() instead.
inline void run_ranks(int ranks, const std::function<void(Rank&)>& program, WorldOptions options = {}) {
  World::local(ranks, options)->run(program);
}

/// Throws unless `condition` holds, which makes the test fail through World::run.
inline void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("check failed: " + what);
}

/// As run_ranks, for a program in which a call fails on only some ranks: they may catch the error,
/// but their world has failed.
inline void run_torn_world(int ranks, const std::function<void(Rank&)>& program) {
  try {
    run_ranks(ranks, program, {.timeout = std::chrono::seconds(30)});
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::peer_failed);
    CHECK_THAT(error.what(), Catch::Contains("failed in a distributed call that succeeded on rank"));
    return;
  }
  FAIL("the world has not failed");
}

template <class T>
Tensor iota(const Dims& dims, T start = T(0)) {
  std::vector<T> values(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(start + static_cast<T>(i));
  return Tensor::from_data(values, dims);
}

/// The text of the Error that `call` throws; the check fails if it throws none.
template <class F>
std::string error_of(F&& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    check(error.code() == code, std::string("expected code ") + to_string(code) + " but got " +
                                    to_string(error.code()) + ": " + error.what());
    return error.what();
  }
  throw std::runtime_error(std::string("no error was thrown, expected ") + to_string(code));
}

inline void check_contains(const std::string& text, const std::string& part) {
  check(text.find(part) != std::string::npos, "'" + part + "' in: " + text);
}

/// Checks that `call` throws an Error of that code whose text has `part`.
template <class F>
void check_refused(F&& call, ErrorCode code, const std::string& part) {
  check_contains(error_of(call, code), part);
}

/// True when `tensor` equals `expected` in the ranks of its mesh. Collective.
template <class T>
bool full_equals(const Tensor& tensor, const std::vector<T>& expected) {
  const Tensor whole = full_tensor(tensor);
  return !whole.defined() || whole.to_vector<T>() == expected;
}

}  // namespace shard::test
