// The choice of OpenBLAS's kernels on processors that it does not know.
#include "shard/kernels/cpu/openblas.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>

extern "C" char* openblas_get_corename();
extern "C" [[gnu::weak]] void gotoblas_dynamic_init();
extern "C" [[gnu::weak]] void gotoblas_dynamic_quit();

namespace shard::openblas_test {
namespace {

constexpr char kCoreVariable[] = "OPENBLAS_CORETYPE";

/// OpenBLAS as if it were loaded anew, with the kernels of `core` or, for nullptr, those that it chooses.
void load_openblas(const char* core) {
  if (core) setenv(kCoreVariable, core, 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
}

/// The core that prepare_openblas leaves, where the user chose one or none.
std::string prepared_core(const char* chosen) {
  if (!chosen) unsetenv(kCoreVariable);
  cpu::prepare_openblas();
  return openblas_get_corename();
}

TEST_CASE("OpenBLAS has kernels for the vectors of a processor that it does not know") {
#if defined(__x86_64__)
  if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
  if (!__builtin_cpu_supports("avx2")) return;
  const char* variable = std::getenv(kCoreVariable);
  const std::optional<std::string> user = variable ? std::optional<std::string>(variable) : std::nullopt;

  load_openblas("Prescott");  // what it falls back to
  REQUIRE(std::string(openblas_get_corename()) == "Prescott");
  CHECK(prepared_core(nullptr) == (__builtin_cpu_supports("avx512bw") ? "SkylakeX" : "Haswell"));
  CHECK_FALSE(std::getenv(kCoreVariable));  // processes that this one starts choose for themselves

  load_openblas("Sandybridge");  // other choices of OpenBLAS are kept
  CHECK(prepared_core(nullptr) == "Sandybridge");
  load_openblas("Prescott");  // and so are those of the user
  CHECK(prepared_core("Prescott") == "Prescott");

  unsetenv(kCoreVariable);
  load_openblas(user ? user->c_str() : nullptr);
  prepared_core(user ? user->c_str() : nullptr);
#endif
}

}  // namespace
}  // namespace shard::openblas_test
