// The sources of fused loops, compiled by NVRTC itself where this machine has it, where nothing runs them; and loops that the compiler refuses.
#include <dlfcn.h>

#include <nvrtc.h>

#include "../loop_cases.h"
#include "access.h"

namespace nvrtc_test {

using namespace shard;
using namespace shard::test;

namespace {

/// The functions of the library itself. Those of the model have the same names.
struct Nvrtc {
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  bool is_there = false;

  Nvrtc() {
    void* library = nullptr;
    for (const char* const name :
         {"libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13", "/usr/local/cuda/lib/libnvrtc.so.13"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    }
    if (library == nullptr) return;
    create = reinterpret_cast<decltype(create)>(dlsym(library, "nvrtcCreateProgram"));
    compile = reinterpret_cast<decltype(compile)>(dlsym(library, "nvrtcCompileProgram"));
    destroy = reinterpret_cast<decltype(destroy)>(dlsym(library, "nvrtcDestroyProgram"));
    log_size = reinterpret_cast<decltype(log_size)>(dlsym(library, "nvrtcGetProgramLogSize"));
    log = reinterpret_cast<decltype(log)>(dlsym(library, "nvrtcGetProgramLog"));
    is_there = create != nullptr && compile != nullptr && destroy != nullptr && log_size != nullptr && log != nullptr;
  }
};

/// What NVRTC says of a source; empty where it compiles.
std::string errors_of(const Nvrtc& nvrtc, const cuda_host::CompiledSource& source) {
  nvrtcProgram program = nullptr;
  if (nvrtc.create(&program, source.text.c_str(), "loop.cu", static_cast<int>(source.names.size()), source.texts.data(),
                   source.names.data()) != NVRTC_SUCCESS)
    return "no program";
  const char* const options[] = {"--gpu-architecture=sm_90", "--std=c++20", "--fmad=false",
                                 "--device-as-default-execution-space"};
  std::string errors;
  if (nvrtc.compile(program, static_cast<int>(std::size(options)), options) != NVRTC_SUCCESS) {
    size_t bytes = 0;
    nvrtc.log_size(program, &bytes);
    errors.resize(bytes);
    nvrtc.log(program, errors.data());
    errors = errors.c_str();
  }
  nvrtc.destroy(&program);
  return errors;
}

}  // namespace

TEST_CASE("loops: NVRTC compiles every pointwise op of the library, and says what is wrong with a source",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler("probe");  // sources are made, and compiled by NVRTC alone
  if (!device || !compiler.is_there(*device)) return;
  const Nvrtc nvrtc;
  if (!nvrtc.is_there) {
    WARN("skipped: NVRTC was not found");
    return;
  }
  const PointwiseCalls calls(*device, 2);  // other sources than those of other tests, which would be refused too
  run_captured([&](const Tensors& in) { return calls(in); }, calls.inputs(), true);
  const std::vector<cuda_host::CompiledSource> compiled = cuda_host::compiled_sources();
  REQUIRE(compiled.size() > 5);
  for (const cuda_host::CompiledSource& source : compiled) {
    INFO(source.text);
    CHECK(errors_of(nvrtc, source) == "");
  }
  cuda_host::CompiledSource wrong = compiled.back();
  wrong.text += "\n__device__ int end = unknown;";
  CHECK(errors_of(nvrtc, wrong).find("unknown") != std::string::npos);
}

TEST_CASE("loops: ops are computed one by one where NVRTC refuses their loop", "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler("probe");
  if (!device || !compiler.is_there(*device)) return;
  const PointwiseCalls calls(*device, 1);  // other sources than those that other tests have compiled in this process
  const size_t fused = fused_equally([&](const Tensors& in) { return calls(in); }, calls.inputs());
  CHECK(fused >= calls.ops().size());
  CHECK(compiler.refusals() > 5);
  // What is kept behind a product, and what is written in place before it is read again.
  const auto layer = [](const Tensors& in) -> Tensors {
    Tensor sum = add(matmul(in[0], in[1]), in[2]);
    Tensor scaled = scale(sum, 0.5);
    scale_(sum, 3.0);
    return {tanh(scaled), add(sum, scaled)};
  };
  Tensors in;
  for (const Dims& dims : {Dims{33, 16}, Dims{16, 40}, Dims{40}})
    in.emplace_back(copy_to(*device, random_tensor(dims, DType::float32, static_cast<unsigned>(in.size()))));
  const int before = compiler.refusals();
  CHECK(fused_equally(layer, in) >= 5);
  CHECK(compiler.refusals() > before);
}

TEST_CASE("loops: a kernel that is first needed while a graph is recorded is loaded then, and the recording goes on") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const size_t compiled = cuda_host::compiled_sources().size();
  const DenseTensor x = random_tensor({77}, DType::float32, 1);
  const DenseTensor expected = Kernel<>{"expm1"}.run(kCpu, {Kernel<>{"asinh"}.run(kCpu, {x}, x.meta())}, x.meta());
  const Backend& backend = backend_of(*device);
  for (const uint8_t index : {uint8_t{0}, uint8_t{1}}) {  // the second has to load what is compiled already
    const Device at{device->backend, index};
    const DenseTensor in = copy_to(at, x);
    DenseTensor first = DenseTensor::allocate(at, x.meta()), second = DenseTensor::allocate(at, x.meta());
    const auto call = [&](const char* op, const DenseTensor& from, DenseTensor& to) {
      kernel_table(op)
          .find<void(const OpContext&, const DenseTensor&, DenseTensor&)>(OpContext{op}, at, DType::float32)
          .function(OpContext{op}, from, to);
    };
    backend.graph_begin(index);
    backend.loops.begin(index);
    call("asinh", in, first);
    call("expm1", first, second);
    backend.loops.end(index);
    void* const graph = backend.graph_end(index, nullptr);
    CHECK(cuda_host::compiled_sources().size() == compiled + 1);
    backend.graph_launch(index, graph);
    require_close(copy_to(kCpu, second), expected);
    backend.graph_free(index, graph);
  }
}

TEST_CASE("loops read each operand once, and write what something else reads alone") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const auto chain = [](const Tensors& in) -> Tensors {
    const Tensor sum = add(in[0], in[1]);
    return {tanh(scale(multiply(sum, in[0]), 0.5))};
  };
  const auto wait = [&] { backend_of(*device).synchronize(device->index); };
  for (const DType t : {DType::float32, DType::bfloat16}) {
    Tensors in;
    for (unsigned i = 0; i < 2; ++i) in.emplace_back(copy_to(*device, random_tensor({3, 4096}, t, i)));
    const uint64_t bytes = in[0].get().value.meta().bytes();
    const program::Trace trace = program::trace(chain, in);
    const program::Program program = program::fuse_loops(trace.program);
    program::Executor executor(program, {in, {}});
    Tensors outputs;
    for (int run = 0; run < 3; ++run) {  // alone, recorded, launched
      wait();
      cuda_host::begin_log();
      outputs = executor.run({in, {}});
      wait();
      const std::vector<cuda_host::GridLog> grids = cuda_host::end_log();
      REQUIRE(grids.size() == 1);
#ifdef CUDA_HOST_INSTRUMENTED  // otherwise accesses are not logged
      CHECK(grids[0].bytes_read == 2 * bytes);
      CHECK(grids[0].bytes_written == bytes);
      CHECK(grids[0].sectors == grids[0].least_sectors);
#endif
    }
    CHECK(executor.graphs().launches == 2);
  }
}

}  // namespace nvrtc_test
