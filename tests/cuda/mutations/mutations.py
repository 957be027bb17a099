"""Faults of CUDA kernels, one at a time, and the test that must fail with each. run_mutations.py builds and runs them."""
import dataclasses

KERNELS = "runtime/shard/kernels/cuda"


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    kind: str  # index, lane, mask, barrier or tail
    file: str  # of KERNELS, where `old`, which is there once, becomes `new`
    source: str  # the .cu that is compiled with it: the file itself, or one that includes it
    old: str
    new: str
    test: str  # a test of the program, by its name or the beginning of it
    program: str = "shard_tests_cuda"
    seconds: int = 300  # after which the test is stopped
    in_ctest: bool = False  # an index, a barrier and a mask, in sources that compile in seconds


MUTATIONS = [
    Mutation(
        "reductions of columns: no barrier before the next part", "barrier", "reduce.cuh", "statistics.cu",
        "finish.template operator()<Out>(all);\n    }\n    __syncthreads();\n  }\n}",
        "finish.template operator()<Out>(all);\n    }\n  }\n}",
        "reductions of any shape*"),
    Mutation(
        "reductions of columns: the first slice of the next chunk is added", "tail", "reduce.cuh", "statistics.cu",
        "min((split + 1) * shape.chunk, shape.terms);", "min((split + 1) * shape.chunk + 1, shape.terms);",
        "reductions of any shape*"),
    Mutation(
        "transpose: the column that is read is off by one", "index", "transpose.cu", "transpose.cu",
        "x + base + (row + r) * cols + from_col)", "x + base + (row + r) * cols + from_col + Count)",
        "transposes of batches with more tiles than blocks*", in_ctest=True),
    Mutation(
        "transpose: no barrier before the tile is read", "barrier", "transpose.cu", "transpose.cu",
        "    __syncthreads();\n    for (int r", "    for (int r",
        "transposes of batches with more tiles than blocks*", in_ctest=True),
    Mutation(
        "transpose: no barrier before the next tile", "barrier", "transpose.cu", "transpose.cu",
        "    }\n    __syncthreads();\n  }\n}", "    }\n  }\n}",
        "transposes of batches with more tiles than blocks*"),
    Mutation(
        "scans of a warp: the first lane that adds does not", "lane", "scan.cuh", "running.cu",
        "if (lane >= distance) value = then(below, value);", "if (lane > distance) value = then(below, value);",
        "running products do not become NaN*"),
    Mutation(
        "scans of a warp: the mask does not name the last lane", "mask", "scan.cuh", "running.cu",
        "__shfl_up_sync(kAllLanes, word, distance)", "__shfl_up_sync(kAllLanes >> 1, word, distance)",
        "running products do not become NaN*"),
    Mutation(
        "scans of numbers of boxes: the mask does not name the last lane", "mask", "scan.cuh", "nms.cu",
        "__shfl_up_sync(kAllLanes, word, distance)", "__shfl_up_sync(kAllLanes >> 1, word, distance)",
        "boxes of several chunks are kept as on the CPU", in_ctest=True),
    Mutation(
        "selection: a thread counts itself among those before it", "mask", "select.cuh", "sort.cu",
        "__popc(lanes & ((1u << lane) - 1u))", "__popc(lanes & ((2u << lane) - 1u))",
        "topk of long lines*"),
    Mutation(
        "selection: no barrier between zeros and counts", "barrier", "select.cuh", "sort.cu",
        "    if (thread < 256) counts[thread] = 0;\n    __syncthreads();\n",
        "    if (thread < 256) counts[thread] = 0;\n",
        "topk of long lines*"),
    Mutation(
        "gradients of embeddings: the last position is left out", "tail", "embedding.cu", "embedding.cu",
        "end = min(begin + s.kTile, s.count);", "end = min(begin + s.kTile, s.count - 1);",
        "embeddings and their gradients take tables and ids of every size*"),
    Mutation(
        "gradients of embeddings: a row that goes on in the next tile ends", "index", "embedding.cu", "embedding.cu",
        "    finish(s.goes_on(end));", "    finish(false);",
        "embeddings and their gradients take tables and ids of every size*"),
    Mutation(
        "attention: no barrier before factors are replaced", "barrier", "attention_tile.cuh", "attention.cu",
        "    __syncthreads();  // what was in the stage has been read\n    load_factor<C>", "    load_factor<C>",
        "a shard of queries and heads on the device*"),
    Mutation(
        "attention: the weight of the next key", "index", "attention_tile.cuh", "attention.cu",
        "read_run(&weights.lines[begin + k][row])", "read_run(&weights.lines[begin + (k + 1) % kDepth][row])",
        "a shard of queries and heads on the device*"),
    Mutation(
        "attention by tensor cores: two matrices of the keys are exchanged", "index", "attention_mma.cuh", "attention_mma.cu",
        "rows[tile], {matrices[0], matrices[2]}", "rows[tile], {matrices[0], matrices[1]}",
        "attention by the tensor cores of several blocks*"),
    Mutation(
        "attention by tensor cores: weights of another lane", "lane", "attention_mma.cuh", "attention_mma.cu",
        "weights[part / 2][c], lane.g * 4 + t)", "weights[part / 2][c], lane.g * 4 + lane.t)",
        "what a query does not see has no effect*"),
    Mutation(
        "attention by tensor cores: no barrier before keys are replaced", "barrier", "attention_mma.cu", "attention_mma.cu",
        "    __syncthreads();  // values are there, and the keys have been read\n", "",
        "attention by the tensor cores of several blocks*"),
]
