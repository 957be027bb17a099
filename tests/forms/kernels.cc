// CPU kernels of the ops in forms.yaml: plain loops, one element after the other.
#include <fmt/format.h>

#include <mutex>

#include "form_testing.h"
#include "shard/core/random.h"
#include "shard/kernels/registry.h"

namespace shard::test {
namespace {

using List = std::span<const DenseTensor>;
using Lists = std::span<DenseTensor>;

const float* f32(const DenseTensor& tensor) { return tensor.data<float>(); }
float* f32_out(const DenseTensor& tensor) { return tensor.data<float>(); }

void list_sgd(const OpContext&, List params, const DenseTensor& rate, List grads, List masters, Lists params_out,
              Lists masters_out) {
  const float r = *f32(rate);
  for (size_t k = 0; k < params.size(); ++k) {
    for (int64_t i = 0; i < params[k].numel(); ++i) {
      if (masters.empty()) {
        f32_out(params_out[k])[i] = f32(params[k])[i] - r * f32(grads[k])[i];
        continue;
      }
      double& master = masters_out[k].data<double>()[i];
      master = masters[k].data<double>()[i] - static_cast<double>(r) * static_cast<double>(f32(grads[k])[i]);
      f32_out(params_out[k])[i] = static_cast<float>(master);
    }
  }
}

void list_axpy(const OpContext&, List x, List y, const Scalar& a, Lists out) {
  for (size_t k = 0; k < x.size(); ++k) {
    for (int64_t i = 0; i < x[k].numel(); ++i) f32_out(out[k])[i] = f32(x[k])[i] + a.to<float>() * f32(y[k])[i];
  }
}

/// x * y, or x where it is not open.
void gated(const OpContext&, const DenseTensor& x, const DenseTensor& y, bool open, DenseTensor& out) {
  for (int64_t i = 0; i < x.numel(); ++i) f32_out(out)[i] = open ? f32(x)[i] * f32(y)[i] : f32(x)[i];
}

void list_flip(const OpContext&, List x, Lists out) {
  for (size_t k = 0; k < x.size(); ++k) {
    const int64_t n = x[k].numel();
    for (int64_t i = 0; i < n; ++i) f32_out(out[k])[i] = f32(x[k])[n - 1 - i];
  }
}

void list_widen(const OpContext&, List x, Lists out) {
  for (size_t k = 0; k < x.size(); ++k) {
    for (int64_t i = 0; i < x[k].numel(); ++i) out[k].data<double>()[i] = static_cast<double>(f32(x[k])[i]);
  }
}

/// Writes the first `good` tensors, then fails; a negative number is refused before anything is written.
void list_break(const OpContext& ctx, List x, int64_t good, Lists out) {
  if (good < 0) fail_check(ErrorCode::invalid_argument, "[{}] good is {}", ctx.op, good);
  for (size_t k = 0; k < x.size(); ++k) {
    if (static_cast<int64_t>(k) == good) throw std::runtime_error("the kernel broke");
    for (int64_t i = 0; i < x[k].numel(); ++i) f32_out(out[k])[i] = -1;
  }
}

void step_and_delta(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out,
                    DenseTensor& delta) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    f32_out(delta)[i] = f32(y)[i] - f32(x)[i];
    f32_out(out)[i] = f32(x)[i] + f32(y)[i];
  }
}

void step_and_parts(const OpContext&, const DenseTensor& x, List y, Lists parts, DenseTensor& out, DenseTensor& total) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    float sum = 0;
    for (size_t k = 0; k < y.size(); ++k) {
      sum += f32(y[k])[i];
      f32_out(parts[k])[i] = f32(x)[i] + f32(y[k])[i];
    }
    f32_out(total)[i] = sum;
    f32_out(out)[i] = f32(x)[i] + sum;
  }
}

void track(const OpContext&, const DenseTensor& x, const DenseTensor& state, const DenseTensor& y, DenseTensor& out,
           DenseTensor& state_out, DenseTensor& seen) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float before = state.defined() ? f32(state)[i] : 0;
    f32_out(seen)[i] = before - f32(y)[i];
    f32_out(out)[i] = f32(x)[i] + before;
    if (state.defined()) f32_out(state_out)[i] = before / 2 + f32(y)[i] / 2;
  }
}

void add_into(const OpContext&, const DenseTensor& x, const DenseTensor& sum, DenseTensor& out, DenseTensor& sum_out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    f32_out(out)[i] = 2 * f32(x)[i];
    if (sum.defined()) f32_out(sum_out)[i] = f32(sum)[i] + f32(x)[i];
  }
}

template <class T>
void add_extras(const OpContext&, const DenseTensor& x, List extras, DenseTensor& out) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    T sum = x.data<T>()[i];
    for (const DenseTensor& each : extras) sum += each.data<T>()[i];
    out.data<T>()[i] = sum;
  }
}

template <class T>
void add_cast(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data<T>()[i] = x.data<T>()[i] + y.data<T>()[i];
}

template <class T>
void like(const OpContext&, const DenseTensor& x, std::optional<DType> dtype, std::optional<Device> place,
          DenseTensor& out) {
  const double given = (dtype ? 100 : 0) + (place ? 1000 : 0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = x.dtype() == DType::float32 ? static_cast<double>(f32(x)[i]) : x.data<double>()[i];
    out.data<T>()[i] = static_cast<T>(value + given);
  }
}

void number_like(const OpContext&, const Scalar& value, DenseTensor& out) {
  for (int64_t i = 0; i < out.numel(); ++i) f32_out(out)[i] = value.to<float>();
}

void constants(const OpContext&, const DenseTensor& x, int64_t integer, float single, double real, bool flag,
               const char* text, DType dtype, const IntArray& list, DenseTensor& out) {
  const double sum = static_cast<double>(integer) + static_cast<double>(single) + real + (flag ? 1 : 0) +
                     static_cast<double>(std::string(text).size()) + (dtype == DType::float32 ? 100 : 0) +
                     static_cast<double>(10 * list[0] + list[1]);
  for (int64_t i = 0; i < x.numel(); ++i) f32_out(out)[i] = f32(x)[i] + static_cast<float>(sum);
}

/// The index in the global tensor of element `i` of a local shard.
uint64_t global_index(const Box& box, const Dims& dims, int64_t i) {
  uint64_t index = 0;
  int64_t below = dims.numel();
  for (int d = 0; d < dims.rank(); ++d) {
    below /= dims[d];
    const int64_t at = i / below % dims[d] + box.begin[d];
    index = index * static_cast<uint64_t>(box.global[d]) + static_cast<uint64_t>(at);
  }
  return index;
}

void jitter(const OpContext& ctx, const DenseTensor& x, float scale, RandomKey key, DenseTensor& out) {
  const Box box = ctx.input_box(0, x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    f32_out(out)[i] = f32(x)[i] + scale * uniform01(random_word(key, global_index(box, x.dims(), i)));
  }
}

void ramp(const OpContext&, int64_t count, DenseTensor& out) {
  for (int64_t i = 0; i < count; ++i) f32_out(out)[i] = static_cast<float>(i);
}

/// Adds a number that represents the values of all attributes.
void all_types(const OpContext&, const DenseTensor& x, bool b, int i, int64_t l, float f, double d,
               const std::string& s, DType t, Device p, const Scalar& sc, const IntArray& ia, const IntArray& il,
               const IntArray& ll, const std::vector<float>& fl, const std::vector<double>& dl,
               const std::vector<bool>& bl, const std::vector<std::string>& sl, const std::vector<Scalar>& scl, int i1,
               int i2, int i3, int i4, int i5, int i6, int i7, int i8, int i9, int i10, int i11, int i12,
               std::optional<DType> ot, std::optional<Device> op, DenseTensor& out) {
  const auto number = [](const Scalar& value) {
    return fmt::format("{}{}", value.is_integer() ? "i" : "r", value.to<double>());
  };
  std::string text = fmt::format("{} {} {} {} {} <{}> {} {} {}", b, i, l, f, d, s, to_string(t), p.index, number(sc));
  text += to_string(ia) + to_string(il) + to_string(ll);
  for (const float each : fl) text += fmt::format("f{}", each);
  for (const double each : dl) text += fmt::format("d{}", each);
  for (const bool each : bl) text += fmt::format("b{}", each);
  for (const std::string& each : sl) text += fmt::format("<{}>", each);
  for (const Scalar& each : scl) text += number(each);
  for (const int each : {i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12}) text += fmt::format(",{}", each);
  text += fmt::format(" {} {}", ot ? to_string(*ot) : "open", op ? to_string(*op) : "open");
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  for (int64_t e = 0; e < x.numel(); ++e) out.data<double>()[e] = x.data<double>()[e] + static_cast<double>(hash >> 32);
}

/// The op calls it with int64_t.
void mistyped(const OpContext&, const DenseTensor&, int, DenseTensor&) {}

void register_form_kernels() {
  constexpr int cpu = 0;
  register_kernel("list_sgd", cpu, DType::float32, &list_sgd);
  register_kernel("list_axpy", cpu, DType::float32, &list_axpy);
  register_kernel("list_flip", cpu, DType::float32, &list_flip);
  register_kernel("gated", cpu, DType::float32, &gated);
  register_kernel("list_widen", cpu, DType::float32, &list_widen);
  register_kernel("list_break", cpu, DType::float32, &list_break);
  register_kernel("step_and_delta", cpu, DType::float32, &step_and_delta);
  register_kernel("step_and_parts", cpu, DType::float32, &step_and_parts);
  register_kernel("track", cpu, DType::float32, &track);
  register_kernel("add_into", cpu, DType::float32, &add_into);
  register_kernel("add_extras", cpu, DType::float32, &add_extras<float>);
  register_kernel("add_extras", cpu, DType::float64, &add_extras<double>);
  register_kernel("add_cast", cpu, DType::float32, &add_cast<float>);
  register_kernel("add_cast", cpu, DType::float64, &add_cast<double>);
  register_kernel("like", cpu, DType::float32, &like<float>);
  register_kernel("like", cpu, DType::float64, &like<double>);
  register_kernel("number_like", cpu, DType::float32, &number_like);
  register_kernel("constants", cpu, DType::float32, &constants);
  register_kernel("jitter", cpu, DType::float32, &jitter);
  register_kernel("ramp", cpu, DType::float32, &ramp);
  register_kernel("all_types", cpu, DType::float64, &all_types);
  register_kernel("mistyped", cpu, DType::float32, &mistyped);
}

}  // namespace

void use_forms() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_form_kernels();
    register_form_rules();
  });
}

}  // namespace shard::test
