// Draws the inputs of reference calls.
#include "conformance/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

namespace shard::testing {
namespace {

/// More elements than this make a call of sizes 3 and 5 one of 2 and 3: files of expected values stay small.
constexpr int64_t kMostElements = 100;

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

int64_t count_of(const CaseCall& call) {
  int64_t sum = 0;
  for (const CaseInput& input : call.inputs) sum += input.dims.numel();
  return sum;
}

bool has_empty(const CaseCall& call) {
  return std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const CaseInput& input) { return input.dims.numel() == 0; });
}

/// The elements of an input: whole numbers from low to high that the dtype can represent, or for floats quarters in
/// draw D, and every fourth one infinite or NaN in draw E.
std::vector<double> elements(const CaseInput& input, char draw, std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity};
  int64_t low = input.low, high = input.high;
  if (input.dtype == DType::uint8 || input.dtype == DType::boolean) low = std::max<int64_t>(low, 0);
  if (input.dtype == DType::boolean) high = std::min<int64_t>(high, 1);
  const int64_t unit = draw == 'D' && is_floating(input.dtype) ? 1 : 4;
  const auto count = static_cast<uint64_t>((high - low) * 4 / unit + 1);
  std::vector<double> numbers;
  for (int64_t i = 0; i < input.dims.numel(); ++i) {
    const bool special = draw == 'E' && is_floating(input.dtype) && random() % 4 == 0;
    numbers.push_back(special ? kSpecial[random() % 3]
                              : static_cast<double>(4 * low + unit * static_cast<int64_t>(random() % count)) / 4);
  }
  return numbers;
}

/// "float[3,5] 1 -2 0.25" for each input, with tabs between them.
std::string inputs_text(const ReferenceCall& of, const CaseCall& call) {
  std::string text;
  std::mt19937_64 random(of.seed);
  for (const CaseInput& input : call.inputs) {
    text += fmt::format("{}{}[{}]", text.empty() ? "" : "\t", kind_name(input.dtype), fmt::join(input.dims, ","));
    for (const double number : elements(input, of.draw, random)) text += fmt::format(" {}", number);
  }
  return text;
}

/// Chooses sizes and a seed. False if the case has no such draw.
bool choose(ReferenceCall& call, const std::string& key) {
  const auto seed = [&](int attempt) {
    return hash_of(fmt::format("{}\t{}\t{}\t{}", key, call.draw, kind_name(call.dtype), attempt));
  };
  call.sizes = call.draw == 'A'   ? std::vector<int64_t>{3, 5}
               : call.draw == 'B' ? std::vector<int64_t>{1}
               : call.draw == 'C' ? std::vector<int64_t>{0, 2}
                                  : std::vector<int64_t>{2, 3};
  call.seed = seed(0);
  if (call.draw == 'A' && count_of(call.call(call.dtype)) > kMostElements) call.sizes = {2, 3};
  for (int attempt = 0; call.draw == 'C' && !has_empty(call.call(call.dtype)); ++attempt) {
    if (attempt == 32) return false;
    call.seed = seed(attempt);
  }
  if (call.draw < 'D') return true;
  const std::vector<CaseInput> inputs = call.call(call.dtype).inputs;
  return std::any_of(inputs.begin(), inputs.end(), [](const CaseInput& input) { return is_floating(input.dtype); });
}

/// One dtype for all floats of the case, and every other dtype.
std::vector<DType> row_dtypes(const OpCase& one) {
  std::vector<DType> dtypes;
  for (const DType dtype : one.dtypes) {
    const DType row = is_floating(dtype) ? DType::float32 : dtype;
    if (std::find(dtypes.begin(), dtypes.end(), row) == dtypes.end()) dtypes.push_back(row);
  }
  return dtypes;
}

std::vector<ReferenceCall> calls_of(const OpCase& one, const std::string& op) {
  std::vector<ReferenceCall> calls;
  for (const DType dtype : row_dtypes(one)) {
    for (const char* draw = kDraws; *draw != 0; ++draw) {
      ReferenceCall call{op, one.name, &one, *draw, dtype, 0, {}, ""};
      if (!choose(call, op + "\t" + one.name)) continue;
      call.inputs = inputs_text(call, call.call(dtype));
      calls.push_back(call);
    }
  }
  return calls;
}

}  // namespace

std::string kind_name(DType dtype) { return is_floating(dtype) ? "float" : to_string(dtype); }

int64_t margin_of(const Dims& dims) { return dims.rank() == 0 || dims[0] == 0 ? 1 : dims.numel() / dims[0]; }

std::string ReferenceCall::title() const {
  return fmt::format("{}: {}, draw {} of {}", one->op, one->name, draw, kind_name(dtype));
}

uint32_t ReferenceCall::checksum() const { return static_cast<uint32_t>(hash_of(inputs) >> 32); }

std::vector<DType> ReferenceCall::dtypes() const {
  const auto has = [](const std::vector<DType>& list, DType each) {
    return std::find(list.begin(), list.end(), each) != list.end();
  };
  std::vector<DType> all;
  if (is_floating(dtype)) {
    std::copy_if(one->dtypes.begin(), one->dtypes.end(), std::back_inserter(all), is_floating);
    for (const DType each : dtypes_of(FloatTypes{})) {
      if (!has(all, each)) all.push_back(each);
    }
    return all;
  }
  const bool of_bits = op == "bitwise_right_shift" && name == "logical";
  all.push_back(dtype);
  for (const DType other : {DType::int32, DType::int64}) {
    if (dtype != DType::uint8 && is_integral(dtype) && !has(one->dtypes, other) && !of_bits) all.push_back(other);
  }
  return all;
}

CaseCall ReferenceCall::call(DType dtype) const {
  Draw draw(seed, dtype, sizes);
  return one->make(draw);
}

std::vector<DenseTensor> ReferenceCall::values(const CaseCall& call, bool offset) const {
  std::vector<DenseTensor> values;
  std::mt19937_64 random(seed);
  for (const CaseInput& input : call.inputs) {
    const Meta meta{input.dims, input.dtype};
    const int64_t margin = offset && values.empty() ? margin_of(input.dims) : 0;
    const DenseTensor whole = DenseTensor::allocate(kCpu, {{input.dims.numel() + 2 * margin}, input.dtype});
    const std::vector<double> numbers = elements(input, draw, random);
    visit_dtype(input.dtype, [&]<class T>(TypeTag<T>) {
      std::fill_n(whole.data<T>(), whole.numel(), static_cast<T>(1));
      for (size_t i = 0; i < numbers.size(); ++i)
        whole.data<T>()[static_cast<size_t>(margin) + i] = static_cast<T>(static_cast<Compute<T>>(numbers[i]));
    });
    values.emplace_back(whole.storage(), meta, static_cast<size_t>(margin) * size_of(input.dtype));
  }
  return values;
}

std::vector<ReferenceCall> reference_calls(const OpCases& cases) {
  std::map<std::string, const OpCase*> by_key;
  for (const OpCase& one : cases) by_key[one.op + "\t" + one.name] = &one;
  std::vector<ReferenceCall> all;
  for (const OpCase& one : cases) {
    std::vector<ReferenceCall> calls;
    const std::string base = one.op.substr(0, one.op.size() - 1);
    const auto found = one.op.ends_with('_') ? by_key.find(base + "\t" + one.name) : by_key.end();
    if (found != by_key.end()) {
      calls = calls_of(one, base);
      const std::vector<ReferenceCall> of_base = calls_of(*found->second, base);
      const bool equal = std::equal(calls.begin(), calls.end(), of_base.begin(), of_base.end(),
                                    [](const auto& a, const auto& b) { return a.inputs == b.inputs; });
      if (!equal) calls.clear();
    }
    if (calls.empty()) calls = calls_of(one, one.op);
    all.insert(all.end(), calls.begin(), calls.end());
  }
  return all;
}

}  // namespace shard::testing
