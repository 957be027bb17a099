// The one translation unit with Catch2's implementation.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
