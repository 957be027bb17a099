// The choice of OpenBLAS's kernels on processors that it does not know.
#include "shard/kernels/cpu/openblas.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

extern "C" char* openblas_get_corename();
extern "C" [[gnu::weak]] void gotoblas_dynamic_init();
extern "C" [[gnu::weak]] void gotoblas_dynamic_quit();

namespace shard {
namespace {

/// OpenBLAS with the kernels of `core`, nullptr for those that it chooses, as if it were loaded anew.
void load_openblas(const char* core) {
  if (core) setenv("OPENBLAS_CORETYPE", core, 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
}

TEST_CASE("OpenBLAS has kernels for the vectors of a processor that it does not know") {
#if defined(__x86_64__)
  if (std::getenv("OPENBLAS_CORETYPE") || !gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
  if (!__builtin_cpu_supports("avx2")) return;
  load_openblas("Prescott");  // what it falls back to
  REQUIRE(std::string(openblas_get_corename()) == "Prescott");
  cpu::prepare_openblas();
  CHECK(std::string(openblas_get_corename()) == (__builtin_cpu_supports("avx512bw") ? "SkylakeX" : "Haswell"));
  CHECK_FALSE(std::getenv("OPENBLAS_CORETYPE"));  // processes that this one starts choose for themselves

  load_openblas("Sandybridge");  // a choice of OpenBLAS is kept
  cpu::prepare_openblas();
  CHECK(std::string(openblas_get_corename()) == "Sandybridge");

  setenv("OPENBLAS_CORETYPE", "Prescott", 1);  // and so is one of the user
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  cpu::prepare_openblas();
  CHECK(std::string(openblas_get_corename()) == "Prescott");
  unsetenv("OPENBLAS_CORETYPE");

  load_openblas(nullptr);
  cpu::prepare_openblas();
#endif
}

}  // namespace
}  // namespace shard
