#include "shard/dist/dist_tensor.h"

#include <fmt/format.h>

#include "shard/core/tracer.h"
#include "shard/dist/view_use.h"

namespace shard {
namespace {

constexpr int64_t kShownElements = 64;

/// A program is the same on all ranks, but what is done with local shards may differ.
void refuse_local_access(std::string_view function) {
  if (Tracer* const tracer = Tracer::current()) {
    tracer->refuse(function,
                   "a local shard belongs to one rank, but a program is the same on all ranks. Call it between two "
                   "captured functions");
  }
}

/// Writes the elements of `dims` from number `from` in nested braces, and "..." after kShownElements.
template <class T>
void write_elements(std::string& text, const T* values, std::span<const int64_t> dims, int64_t from) {
  if (dims.empty()) {
    text += fmt::format("{}", static_cast<Compute<T>>(values[from]));
    return;
  }
  int64_t stride = 1;
  for (const int64_t dim : dims.subspan(1)) stride *= dim;
  text += "{";
  for (int64_t i = 0; i < dims[0]; ++i) {
    if (i != 0) text += ", ";
    if (from + i * stride >= kShownElements) {
      text += "...";
      break;
    }
    write_elements(text, values, dims.subspan(1), from + i * stride);
  }
  text += "}";
}

std::string elements_text(const DenseTensor& host) {
  if (host.numel() == 0) return "{}";
  std::string text;
  visit_dtype(host.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    write_elements(text, host.data<T>(), host.dims(), 0);
  });
  return text;
}

std::string describe_dist(const Meta& global, const DistSpec& spec) {
  return fmt::format("{}, layout {} on {}", to_string(global), spec.text(), spec.mesh()->describe());
}

}  // namespace

std::string DistTensorImpl::describe() const { return describe_dist(global, *spec); }

std::string argument_text(std::string_view name, const Meta& global, const DistSpec& spec) {
  return fmt::format("argument '{}' ({})", name, describe_dist(global, spec));
}

std::string argument_text(std::string_view name, const TensorImpl& tensor) {
  return fmt::format("argument '{}' ({})", name, tensor.describe());
}

DistTensorImpl& dist_impl(const Tensor& tensor, std::string_view op) {
  TensorImpl& impl = tensor.get();
  if (impl.kind() != TensorKind::dist) {
    fail(ErrorCode::layout, "[{}] {} is a plain tensor, but must be distributed; use distribute(tensor, spec) first",
         op, argument_text("tensor", impl));
  }
  return static_cast<DistTensorImpl&>(impl);
}

Tensor make_dist(Rank& owner, const Meta& global, const DistSpec* spec, DenseTensor shard) {
  return Tensor(Ref<TensorImpl>::adopt(new DistTensorImpl(owner, global, spec, std::move(shard))));
}

DenseTensor absent_value(const Meta& global) {
  return {Storage::absent(), {Dims::filled(global.dims.rank(), 0), global.dtype}};
}

void check_mesh_in_world(const ProcessMesh* mesh, const World& world) {
  for (int process : mesh->processes()) {
    if (process >= world.size()) {
      fail(ErrorCode::layout,
           "{} names process {}, but the world has ranks 0 to {}; make a mesh of those, or a larger world",
           mesh->describe(), process, world.size() - 1);
    }
  }
}

namespace dist {

Tensor from_local(const Tensor& shard, const DistSpec* spec, const Dims& global, DType dtype) {
  refuse_local_access("from_local");
  Rank& rank = current_rank();
  check_mesh_in_world(spec->mesh(), rank.world());
  const Meta meta{global, dtype};
  checked_bytes(meta, "from_local");
  if (global.rank() != spec->rank()) {
    fail(ErrorCode::layout,
         "[from_local] layout {} on {} has {} dims, but the global shape {} has {}; use a layout with an entry for "
         "each dim",
         spec->text(), spec->mesh()->describe(), spec->rank(), to_string(meta), global.rank());
  }
  const auto at = spec->mesh()->coordinate(rank.id());
  if (!at) return make_dist(rank, meta, spec, absent_value(meta));
  const Meta expected = shard_meta(meta, *spec, *at);
  if (shard.is_dist())
    fail(ErrorCode::layout,
         "[from_local] {} is distributed, but must be this rank's local shard, a plain tensor; use local(tensor), or "
         "reshard it",
         argument_text("shard", shard.get()));
  if (!(shard.meta() == expected) && !(shard.meta() == Meta{expected.dims, dtype})) {
    fail(ErrorCode::shape_mismatch,
         "[from_local] argument 'shard' of rank {} is {}, but must be {}: its local shard of {} with layout {} on {}. "
         "shard_meta(global, spec, coordinate) computes the shape and dtype of a local shard",
         rank.id(), to_string(shard.meta()), to_string(expected), to_string(meta), spec->text(),
         spec->mesh()->describe());
  }
  // In a dry world no distributed tensor has data.
  if (rank.dry && shard.get().value.has_data())
    return make_dist(rank, meta, spec, DenseTensor::allocate(shard.device(), expected, rank.dry.get(), "from_local"));
  return make_dist(rank, meta, spec, convert_floats(shard.get().value, expected.dtype));
}

Tensor local(const Tensor& tensor) {
  refuse_local_access("local");
  DistTensorImpl& impl = dist_impl(tensor, "local");
  if (!impl.has_local_shard()) {
    fail(ErrorCode::wrong_rank,
         "[local] {} has no local shard on rank {}, which is not in its mesh; call local() only on ranks of the mesh",
         argument_text("tensor", impl), impl.owner->id());
  }
  check_read(*impl.value.storage(), impl.owner->policies.view);
  return Tensor(impl.value);
}

}  // namespace dist

const DistSpec* spec_of(const Tensor& tensor) { return dist_impl(tensor, "spec_of").spec; }

std::string to_text(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined tensor";
  const DenseTensor& value = tensor.get().value;
  value.storage()->check_read();  // on ranks outside the mesh, too: their storage records what happened to the tensor
  if (tensor.is_dist() && !dist_impl(tensor).has_local_shard())
    return tensor.get().describe() + ", no local shard on this rank";
  if (!value.has_data()) {
    return fmt::format("{}, local shard {} without data, {}", tensor.get().describe(), to_string(value.dims()),
                       value.symbol() != 0 ? "of a captured function" : "of a dry world");
  }
  DenseTensor host = value;
  if (value.device() != kCpu) {
    host = DenseTensor::allocate(kCpu, value.meta(), nullptr, "to_text");
    copy_into(host, value);
  }
  if (!tensor.is_dist()) return tensor.get().describe() + " " + elements_text(host);
  const char* label =
      dist_impl(tensor).spec->layout().has_partial() ? "local contribution, not the value" : "local shard";
  return fmt::format("{}, {} {} {}", tensor.get().describe(), label, to_string(value.dims()), elements_text(host));
}

}  // namespace shard
