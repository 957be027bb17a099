// Products of two matrices, by the library or loop that is fastest for their sizes and dtype.
#pragma once

#include <cstdint>

#include "shard/core/dtype.h"
#include "shard/kernels/cpu/epilogue.h"

namespace shard::cpu {

/// out [m, n] = x [m, k] * y [k, n], row-major and contiguous. With a flag, the matrix is stored as its transpose.
struct Product {
  int64_t m, n, k;
  bool transpose_x, transpose_y;
  int64_t work() const { return m * n * k; }
};

/// How the elements of one factor are spaced: element (row, column) is at row * row_step + column * column_step.
struct Steps {
  int64_t row, column;
};
inline Steps steps_of_x(const Product& p) { return p.transpose_x ? Steps{1, p.m} : Steps{p.k, 1}; }
inline Steps steps_of_y(const Product& p) { return p.transpose_y ? Steps{1, p.k} : Steps{p.n, 1}; }

/// The factors of a product and its result, whose dtype is that of the factors or that of sums:
/// float32 for 16-bit factors. An epilogue gets rows of the result when they are complete.
struct Factors {
  DType dtype;
  const void *x, *y;
};
struct Result {
  DType dtype;
  void* data;
  const Epilogue* epilogue = nullptr;
  int64_t first = 0;  // the number of the first element, as the epilogue counts
};

/// Tells the epilogue, if there is one, that these elements are complete.
inline void finish(const Result& out, int64_t begin, int64_t end) {
  if (out.epilogue != nullptr) (*out.epilogue)(out.first + begin, out.first + end);
}

/// The product of floats, on the threads of the caller. Sums are in the dtype of sums, and each is
/// rounded once. The result does not depend on the number of threads.
void multiply(const Product& p, const Factors& factors, const Result& out);

/// How many products of a batch one call of multiply_by_onednn should have, so that what a call costs is little beside them; 1 where
/// multiply() takes another way, or where one is enough. Each product has the same bits either way.
int64_t products_of_call(const Product& p, DType dtype);

/// A product where m or n is 1: the matrix is read once, in order. This and the next leave the epilogue to the caller; those that
/// run on several threads call it.
void multiply_vector(const Product& p, const Factors& factors, const Result& out);

/// The same by oneDNN on the calling thread, of each of a batch of matrices that follow each other. Dtypes are float32 or bfloat16.
void multiply_by_onednn(const Product& p, const Factors& factors, const Result& out, int64_t batch = 1);

/// The same on several threads, for large products of bfloat16: blocks of y are copied once into the format that oneDNN multiplies
/// fastest by, and then serve all rows of x. The result does not depend on the number of threads.
void multiply_blocks_by_onednn(const Product& p, const Factors& factors, const Result& out);

/// The same by our own code on several threads, of float32 or 16-bit floats. Each result is added up in the same order,
/// whatever its place in the matrix and the number of threads.
void multiply_packed(const Product& p, const Factors& factors, const Result& out);

/// Whether the processor, and the system, allow products of bfloat16 by tiles.
bool processor_has_tiles();
/// The same by tiles on several threads, of bfloat16, where processor_has_tiles(). Subnormal numbers count as zeros.
void multiply_tiled(const Product& p, const Factors& factors, const Result& out);

/// How many parts of rows and of columns are jobs of their own, as many as the threads of the caller can use. Parts have
/// whole tiles of `tile_rows` and `tile_columns`.
struct GemmGrid {
  int64_t rows, columns;
};
GemmGrid grid_of(const Product& p, int64_t tile_rows, int64_t tile_columns);

/// out = x * y, or out += x * y where it `adds`, by oneDNN on the calling thread, for blocks in the caches that are
/// multiplied again and again: each thread keeps the code for their sizes. Dtypes of factors are float32 or, where
/// onednn_multiplies_bfloat16(), bfloat16. An element of the result depends only on its row of x and column of y,
/// whatever m and n are, and factors of 0 at the end of k do not change it, if sizes are multiples of kBlockStep; m may
/// also be 8, 16 or 24 for float32.
void multiply_block(const Product& p, const Factors& factors, float* out, bool adds);
inline constexpr int64_t kBlockStep = 32;

/// The instruction set that oneDNN uses, a dnnl::cpu_isa: each has the bits of those that it contains.
unsigned onednn_isa();
/// False where oneDNN has no fast code for products of bfloat16 on this processor.
bool onednn_multiplies_bfloat16();

}  // namespace shard::cpu
