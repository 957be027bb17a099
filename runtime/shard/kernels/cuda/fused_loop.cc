#include "shard/kernels/cuda/fused_loop.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/error.h"
#include "shard/core/loop_functions.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cuda/loop_collector.h"
#include "shard/kernels/cuda/runtime_compiler.h"

namespace shard::cuda {
namespace {

using namespace detail;

constexpr unsigned kThreads = 256;

/// The arguments of the kernel of a loop: LoopWords of loop_kernel.cuh.
struct LoopWords {
  uint64_t words[LoopCollector::kMostWords];
};

/// The files that define the formulas of a namespace.
struct FormulaFiles {
  std::string_view formulas;
  std::vector<std::string_view> files;
};
const FormulaFiles kFormulas[] = {
    {"activation", {"shard/kernels/formulas/activation.inc"}},
    {"basic", {"shard/kernels/cuda/formulas/basic.inc", "shard/kernels/formulas/arithmetic.inc"}},
    {"gates", {"shard/kernels/cuda/formulas/gates.inc"}},
    {"logic", {"shard/kernels/formulas/logic.inc"}},
    {"scalar", {"shard/kernels/formulas/power.inc", "shard/kernels/formulas/scalar.inc"}},
    {"transcendental", {"shard/kernels/formulas/transcendental.inc"}},
    {"unary_grad", {"shard/kernels/formulas/unary_grad.inc"}},
};

const FormulaFiles* find_formulas(std::string_view name) {
  const auto found = std::find_if(std::begin(kFormulas), std::end(kFormulas),
                                  [&](const FormulaFiles& each) { return each.formulas == name; });
  return found == std::end(kFormulas) ? nullptr : found;
}

std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float";
    case DType::float64: return "double";
    case DType::float16: return "__half";
    case DType::bfloat16: return "__nv_bfloat16";
    case DType::int32: return "int32_t";
    case DType::int64: return "int64_t";
    case DType::uint8: return "uint8_t";
    case DType::boolean: return "bool";
  }
  fail(ErrorCode::internal, "dtype {} in a loop", static_cast<int>(dtype));
}

/// The begin of a source, with the formulas of the namespaces that are used.
template <class IsUsed>
std::string begin_of_source(const IsUsed& is_used) {
  std::string text = "#include \"shard/kernels/cuda/loop_kernel.cuh\"\nnamespace shard::cuda {\n";
  // Behind formulas stands what registers them, which does nothing here.
  for (const char* const name : {"add_unary", "add_binary", "add_plain", "add_question", "add_truth", "add_bits"})
    text += fmt::format("template <class...>\n__device__ void {}(const char*) {{}}\n", name);
  for (const FormulaFiles& each : kFormulas) {
    if (!is_used(each.formulas)) continue;
    text += fmt::format("namespace {} {{\n", each.formulas);
    for (const std::string_view file : each.files) text += fmt::format("#include \"{}\"\n", file);
    text += "}\n";
  }
  return text;
}

/// The text of a kernel, and its arguments.
class LoopSource {
 public:
  LoopSource(const LoopCollector& loop, std::vector<const Write*> stored) : loop_(loop), stored_(std::move(stored)) {
    find_pack();
    begin();
    for (size_t r = 0; r < loop_.reads.size(); ++r) load(r);
    for (size_t c = 0; c < loop_.calls.size(); ++c) compute(c);
    for (const Write* const write : stored_) {
      const std::string to = word(address(write->memory));
      line("  store_elements<N>(pointer<{}>({}), i, c{});", type_name(write->memory.dtype), to, write->call);
    }
    end();
  }

  const std::string& text() const { return text_; }
  const LoopWords& words() const { return words_; }
  /// How many packs of elements, which a thread computes at once, the loop has; other elements are computed one by one.
  int64_t packs() const { return aligned_ ? loop_.count / pack_ : 0; }

 private:
  template <class... A>
  void line(fmt::format_string<A...> format, A&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<A>(arguments)...);
    text_ += '\n';
  }
  static uint64_t address(const Memory& memory) { return reinterpret_cast<uintptr_t>(memory.data); }
  std::string word(uint64_t value) {
    words_.words[used_] = value;
    return fmt::format("a.words[{}]", used_++);
  }

  /// 16 bytes of the largest type.
  void find_pack() {
    std::vector<Memory> whole;
    for (const Read& read : loop_.reads) {
      if (read.access.length == 0) whole.push_back(read.memory);
    }
    for (const Write* const write : stored_) whole.push_back(write->memory);
    size_t largest = 1;
    for (const Memory& memory : whole) largest = std::max(largest, size_of(memory.dtype));
    pack_ = static_cast<int64_t>(16 / largest);
    aligned_ = std::all_of(whole.begin(), whole.end(), [&](const Memory& memory) {
      return address(memory) % (16 / largest * size_of(memory.dtype)) == 0;
    });
  }

  void begin() {
    text_ = begin_of_source([&](std::string_view formulas) {
      return std::any_of(loop_.calls.begin(), loop_.calls.end(),
                         [&](const Call& call) { return call.what.formulas == formulas; });
    });
    line("using Index = {};", loop_.count < int64_t{1} << 31 ? "uint32_t" : "int64_t");
    line("template <int N>\n__device__ void elements(int64_t i, const LoopWords& a) {{");
  }

  void load(size_t r) {
    const auto& [memory, access] = loop_.reads[r];
    const std::string from = fmt::format("pointer<const {}>({})", type_name(memory.dtype), word(address(memory)));
    line("  {} r{}[N];", type_name(memory.dtype), r);
    if (access.length == 0) return line("  load_elements<N>({}, i, r{});", from, r);
    std::string at = "0";
    if (access.length != 1) {
      at = "static_cast<Index>(i * N + k)";
      if (access.inner != 1) at += fmt::format(" / static_cast<Index>({})", word(static_cast<uint64_t>(access.inner)));
      if (access.inner * access.length != loop_.count)
        at = fmt::format("({}) % static_cast<Index>({})", at, word(static_cast<uint64_t>(access.length)));
    }
    line("#pragma unroll\n  for (int k = 0; k < N; ++k) r{}[k] = {}[{}];", r, from, at);
  }

  void compute(size_t c) {
    const LoopCall& what = loop_.calls[c].what;
    const std::vector<Value>& inputs = loop_.calls[c].inputs;
    const DType dtype = loop_.calls[c].places.out.dtype;
    std::string expression = fmt::format("{}<{}>(", what.name, type_name(dtype));
    if (!what.formulas.empty()) {
      const std::string in = fmt::format(fmt::runtime(what.is_vector ? "Number<{}>" : "{}"), type_name(what.number));
      std::string numbers = fmt::format("Numbers<{}>()", in);
      if (what.takes_numbers) {
        const std::string first = word(what.numbers[0]);
        numbers = fmt::format("numbers_of<{}, {}>({}, {})", in, type_name(what.number), first, word(what.numbers[1]));
      }
      expression =
          fmt::format("apply_formula<{}::{}, {}, {}>({}, ", what.formulas, what.name, in, type_name(dtype), numbers);
    }
    for (size_t n = 0; n < inputs.size(); ++n)
      expression += fmt::format("{}{}{}[k]", n == 0 ? "" : ", ", inputs[n].computed ? 'c' : 'r', inputs[n].index);
    line("  {} c{}[N];", type_name(dtype), c);
    line("#pragma unroll\n  for (int k = 0; k < N; ++k) c{}[k] = {});", c, expression);
  }

  void end() {
    line("}}");
    line("extern \"C\" __global__ void shard_loop(int64_t packs, int64_t count, LoopWords a) {{");
    line("  const int64_t thread = blockIdx.x * int64_t{{blockDim.x}} + threadIdx.x;");
    line("  const int64_t step = gridDim.x * int64_t{{blockDim.x}};");
    line("  for (int64_t i = thread; i < packs; i += step) elements<{}>(i, a);", pack_);
    line("  for (int64_t i = packs * {} + thread; i < count; i += step) elements<1>(i, a);", pack_);
    line("}}\n}}  // namespace shard::cuda");
  }

  const LoopCollector& loop_;
  const std::vector<const Write*> stored_;
  std::string text_;
  LoopWords words_{};
  size_t used_ = 0;
  int64_t pack_ = 1;
  bool aligned_ = false;
};

/// Issues the calls as kernels of their own.
void issue_one_by_one(LoopCollector& loop) {
  for (Call& call : loop.calls)
    call.what.launch_alone(OpContext{call.what.op}, call.what, call.places.inputs, call.places.result);
}

/// Issues the calls as one kernel, where there are several and a compiler that takes them.
void issue_together(LoopCollector& loop) {
  if (loop.calls.size() == 1 || !compiles_loops(loop.device)) return issue_one_by_one(loop);
  std::vector<const Write*> stored;
  for (const Write& write : loop.writes) {
    if (!loop.is_dropped(write.memory)) stored.push_back(&write);
  }
  if (stored.empty()) return;
  const DeviceScope scope(loop.device);
  const LoopSource source(loop, std::move(stored));
  const void* const kernel = compile_kernel(source.text(), "shard_loop");
  if (kernel == nullptr) return issue_one_by_one(loop);
  int64_t packs = source.packs(), count = loop.count;
  LoopWords words = source.words();
  void* arguments[] = {&packs, &count, &words};
  const unsigned grid = grid_for(packs > 0 ? packs + 1 : count, kThreads);
  const cudaError_t status = cudaLaunchKernel(kernel, dim3(grid), dim3(kThreads), arguments, 0, stream());
  if (status != cudaSuccess) {
    std::string names;
    for (const Call& call : loop.calls) names += fmt::format("{}{}", names.empty() ? "" : ", ", call.what.name);
    check(status, fmt::format("cudaLaunchKernel (loop of {})", names).c_str());
  }
}

/// Issues what was kept: the product if there is one, and the calls.
void issue(LoopCollector& loop) {
  if (loop.product) loop.issue_product();
  if (loop.calls.empty()) return;
  issue_together(loop);
  loop.reads.clear();
  loop.calls.clear();
  loop.writes.clear();
}

/// Other work of the thread comes behind the loop so far.
void issue_before_work() {
  LoopCollector* const loop = std::exchange(open_loop, nullptr);
  before_work = nullptr;
  issue(*loop);
  open_loop = loop;
  before_work = issue_before_work;
}

/// The collector of a thread, while its loop is open.
thread_local std::unique_ptr<LoopCollector> collector;

void close() {
  open_loop = nullptr;
  before_work = nullptr;
}

void begin_loop(int device) {
  collector = std::make_unique<LoopCollector>(LoopCollector{device});
  open_loop = collector.get();
  before_work = issue_before_work;
}

void drop_result(int, const void* result) { open_loop->dropped.push_back(result); }

void end_loop(int) {
  const std::unique_ptr<LoopCollector> loop = std::move(collector);
  close();
  issue(*loop);
}

void abandon_loop(int) {
  close();
  collector.reset();
}

}  // namespace

bool compiles_loops(int device) {
  static const std::string probe = begin_of_source([](std::string_view) { return true; }) + R"(
extern "C" __global__ void shard_probe(__nv_bfloat16* out, __half* in) { *out = convert_element<__nv_bfloat16>(*in); }
}  // namespace shard::cuda
)";
  return compiles_at_runtime(device, probe);
}

std::pair<std::string_view, std::string_view> formula_name(std::string_view function) {
  const std::string_view marker = "Formula = ";  // "... [with Formula = shard::cuda::{anonymous}::basic::Add; ..."
  const size_t begin = function.find(marker) + marker.size();
  const std::string_view type = function.substr(begin, function.find_first_of(",;]", begin) - begin);
  const size_t name = type.rfind("::");
  const size_t space = type.rfind("::", name - 1);
  return {type.substr(space + 2, name - space - 2), type.substr(name + 2)};
}

bool join_loop(const LoopCall& call) {
  if (!call.formulas.empty() && find_formulas(call.formulas) == nullptr) return false;
  std::optional<Places> places = places_of(call);
  LoopCollector& loop = *open_loop;
  const int64_t count = call.out->numel();
  if (!places || call.out->device().index != loop.device) return false;
  if (!loop.fits(*places, count)) {
    issue_before_work();
    if (!loop.fits(*places, count)) return false;
  }
  loop.count = count;
  loop.append(call, *std::move(places));
  return true;
}

bool lead_loop(const ProductCall& call) {
  if (call.out.device().index != open_loop->device) return false;
  issue_before_work();
  open_loop->product = call;
  return true;
}

void register_loops(int backend) {
  set_loop_functions(backend, {compiles_loops, begin_loop, drop_result, end_loop, abandon_loop});
}

}  // namespace shard::cuda
