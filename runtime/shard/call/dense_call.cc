#include "shard/call/dense_call.h"

#include <algorithm>

#include "shard/core/tracer.h"
#include "shard/core/writing.h"
#include "shard/dist/view_use.h"
#include "shard/dist/world.h"
#include "shard/kernels/registry.h"

namespace shard::call {

void fail_no_data(const OpContext& ctx, const DenseTensor& tensor, std::string_view name) {
  if (tensor.storage()->state() == Storage::State::shape_only) {
    fail(ErrorCode::no_data,
         "[{}] argument '{}' ({}) was saved without its buffer, because the gradient function said that it reads its "
         "shape only; take it out "
         "of that op's 'no_need_buffer'",
         ctx.op, name, to_string(tensor.meta()));
  }
  if (tensor.symbol() != 0) fail_escaped(ctx.op, fmt::format("argument '{}' ({})", name, to_string(tensor.meta())));
  fail(ErrorCode::no_data,
       "[{}] argument '{}' ({}) belongs to a dry world, which has no data; use it inside of that world's run", ctx.op,
       name, to_string(tensor.meta()));
}

void fail_unbounded(const OpContext& ctx, const Meta& most) {
  if (Tracer* const tracer = Tracer::current()) {
    tracer->refuse(
        ctx.op,
        fmt::format("the number of rows of its result comes from data, which is known only when the program runs; it "
                    "is at most {}. Call it between two "
                    "captured functions, or use an op whose result has a fixed shape (where, multiply by a mask)",
                    to_string(most)));
  }
  fail(ErrorCode::no_data,
       "[{}] the number of rows of its result comes from data, which a dry world does not have; it is at most {}. Make "
       "a tensor of the shape that you "
       "expect (empty) and go on with that",
       ctx.op, to_string(most));
}

void fail_undefined(const OpContext& ctx, std::string_view name) {
  fail(ErrorCode::undefined, "[{}] argument '{}' is an undefined tensor; pass a tensor", ctx.op, name);
}

void fail_missing(std::string_view op, std::string_view function) {
  fail(
      ErrorCode::no_kernel,
      "[{}] no kernel registered for {}: {} is only scaffolded; write it, and register the kernel with register_kernel",
      op, op, function);
}

const DenseTensor& shape_of(const OpContext& ctx, const Tensor& tensor, std::string_view name, bool optional) {
  static const DenseTensor none{};
  if (tensor.defined()) return tensor.impl()->value;
  if (!optional) fail_undefined(ctx, name);
  return none;
}

const DenseTensor& read_optional(const OpContext& ctx, const Tensor& tensor, std::string_view name) {
  static const DenseTensor none{};
  return tensor.defined() ? read(ctx, tensor, name) : none;
}

std::vector<DenseTensor> read_list(const OpContext& ctx, const std::vector<Tensor>& tensors, std::string_view name) {
  std::vector<DenseTensor> values;
  values.reserve(tensors.size());
  for (const Tensor& tensor : tensors) values.push_back(read(ctx, tensor, name));
  return values;
}

DenseTensor& write(const OpContext& ctx, Tensor& tensor, std::string_view name) {
  if (!tensor.defined()) fail_undefined(ctx, name);
  DenseTensor& value = tensor.impl()->value;
  check_write(*value.storage(), ctx.op, view_policy());
  if (!value.has_data() && ctx.launcher == nullptr) fail_no_data(ctx, value, name);
  return value;
}

DenseTensor& write_optional(const OpContext& ctx, Tensor& tensor, std::string_view name) {
  // All threads share this absent target. It is never written, since kernels see that it is
  // undefined.
  static DenseTensor none;
  return tensor.defined() ? write(ctx, tensor, name) : none;
}

std::vector<DenseTensor*> write_list(const OpContext& ctx, std::vector<Tensor>& tensors, std::string_view name) {
  std::vector<DenseTensor*> targets;
  targets.reserve(tensors.size());
  for (Tensor& tensor : tensors) targets.push_back(&write(ctx, tensor, name));
  return targets;
}

std::vector<Tensor> wrap(std::vector<DenseTensor> values) {
  std::vector<Tensor> tensors;
  tensors.reserve(values.size());
  for (DenseTensor& value : values) tensors.emplace_back(std::move(value));
  return tensors;
}

void gather_device(const OpContext& ctx, std::span<const DenseTensor> tensors, const DenseTensor*& first) {
  for (const DenseTensor& tensor : tensors) gather_device(ctx, tensor, first);
}

void gather_device(const OpContext& ctx, Targets tensors, const DenseTensor*& first) {
  for (const DenseTensor* tensor : tensors) gather_device(ctx, *tensor, first);
}

void fail_device(const OpContext& ctx, const DenseTensor& a, const DenseTensor& b) {
  fail(ErrorCode::mixed_device,
       "[{}] arguments are on different devices: {} on {} and {} on {}; copy one with to(device)", ctx.op,
       to_string(a.meta()), to_string(a.device()), to_string(b.meta()), to_string(b.device()));
}

std::vector<Meta> metas(Targets tensors) { return metas(values(tensors)); }

std::vector<DenseTensor> values(Targets tensors) {
  std::vector<DenseTensor> all;
  all.reserve(tensors.size());
  for (const DenseTensor* tensor : tensors) all.push_back(*tensor);
  return all;
}

std::vector<Meta> metas(std::span<const DenseTensor> tensors) {
  std::vector<Meta> all;
  all.reserve(tensors.size());
  for (const DenseTensor& tensor : tensors) all.push_back(tensor.meta());
  return all;
}

std::vector<DenseTensor> allocate_list(const OpContext& ctx, Device device, std::span<const Meta> metas) {
  std::vector<DenseTensor> all;
  all.reserve(metas.size());
  for (const Meta& meta : metas) all.push_back(allocate(ctx, device, meta));
  return all;
}

DenseTensor reinterpret(const OpContext& ctx, const DenseTensor& x, const Meta& meta) {
  if (!x.defined()) return {};
  if (meta.bytes() != x.meta().bytes()) {
    fail(ErrorCode::shape_mismatch, "[{}] a view of {} as {} would change its byte size", ctx.op, to_string(x.meta()),
         to_string(meta));
  }
  return x.reinterpret(meta);
}

void reinterpret_inplace(const OpContext& ctx, DenseTensor& x, const Meta& meta) { x = reinterpret(ctx, x, meta); }

DenseTensor cast_to(const OpContext& ctx, const DenseTensor& tensor, DType dtype) {
  if (!tensor.defined() || tensor.dtype() == dtype) return tensor;
  static const KernelTable& kernels = kernel_table("cast");
  const auto kernel = kernels.find<void(const OpContext&, const DenseTensor&, DType, DenseTensor&)>(
      ctx, tensor.device(), tensor.dtype());
  DenseTensor out = allocate(ctx, tensor.device(), {tensor.dims(), dtype});
  run(kernel, ctx, tensor, dtype, out);
  return out;
}

std::vector<DenseTensor> cast_list_to(const OpContext& ctx, std::span<const DenseTensor> tensors, DType dtype) {
  std::vector<DenseTensor> all;
  all.reserve(tensors.size());
  for (const DenseTensor& tensor : tensors) all.push_back(cast_to(ctx, tensor, dtype));
  return all;
}

DType complex_dtype(const OpContext& ctx, DType dtype) {
  fail(ErrorCode::dtype_mismatch, "[{}] computes in the complex dtype of {}, and there are no complex tensors", ctx.op,
       to_string(dtype));
}

Generator& thread_generator() {
  if (Rank* const rank = current_rank_or_null()) return rank->plain_generator;
  static thread_local Generator generator;
  return generator;
}

RandomKey draw(const OpContext& ctx) {
  if (ctx.launcher != nullptr && !ctx.launcher->draws()) return {};
  return ctx.local != nullptr ? ctx.local->random : thread_generator().draw();
}

DenseTensor copy_of(const OpContext& ctx, const DenseTensor& tensor) {
  DenseTensor result = allocate(ctx, tensor.device(), tensor.meta());
  copy(ctx, result, tensor);
  return result;
}

namespace {

class BoundCopy final : public BoundStep {
 public:
  BoundCopy(Binder& binder, const DenseTensor& to, const DenseTensor& from) : to_(to), from_(from) {
    binder.tensors.push_back(&to_);
    binder.tensors.push_back(&from_);
  }
  void run() override { copy_into(to_, from_); }
  std::vector<const DenseTensor*> replayable_tensors() override { return {&to_, &from_}; }

 private:
  DenseTensor to_, from_;
};

}  // namespace

void Binder::copy(const DenseTensor& to, const DenseTensor& from) {
  steps.push_back(std::make_unique<BoundCopy>(*this, to, from));
}

namespace {

/// Counts the write of a plain call. A dry world writes nothing, so existing bytes of the target
/// are no longer valid and are dropped.
void count_write(const OpContext& ctx, const DenseTensor& target) {
  target.storage()->bump(ctx.op);
  if (ctx.launcher != nullptr) target.storage()->drop_data(ctx.launcher->meter);
}

/// Throws if two of the tensors share elements. After sorting by address such tensors are adjacent.
void check_no_overlap(const OpContext& ctx, std::vector<const DenseTensor*> written) {
  std::erase_if(written, [](const DenseTensor* tensor) { return !tensor->defined() || tensor->numel() == 0; });
  std::sort(written.begin(), written.end(), [](const DenseTensor* a, const DenseTensor* b) {
    return std::pair(a->storage().get(), a->offset()) < std::pair(b->storage().get(), b->offset());
  });
  const auto same = std::adjacent_find(written.begin(), written.end(), [](const DenseTensor* a, const DenseTensor* b) {
    return overlap(*a, *b) != Overlap::none;
  });
  if (same != written.end()) fail_written_twice(ctx, to_string((*same)->meta()));
}

}  // namespace

void fail_written_twice(const OpContext& ctx, const std::string& what) {
  fail(ErrorCode::invalid_argument,
       "[{}] a buffer of {} is written twice, by two arguments that share it; pass each tensor once, or a copy of it "
       "(assign(x))",
       ctx.op, what);
}

DenseTensor InplaceWrite::target(DenseTensor& x, const Meta& result) {
  if (!x.defined()) return {};
  if (op_.elementwise && !(result.dims == x.dims())) {
    fail(ErrorCode::shape_mismatch,
         "[{}] the result has shape {}, but its target has {}: an in-place op cannot grow its target by broadcasting; "
         "use {} instead",
         ctx_.op, to_string(result.dims), to_string(x.dims()), op_.name);
  }
  const bool replace = ctx_.local != nullptr && ctx_.local->replace_targets;
  Write& write = next_write();
  write.x = &x;
  write.over_input = op_.elementwise && result == x.meta() && !replace;
  if (write.over_input) {
    write.result = x;
  } else {
    write.result = allocate(ctx_, x.device(), result);
    // Kernels of optimisers read the values from their targets, or leave some of them; pointwise ones write all of them.
    if (op_.elementwise && !op_.pointwise && result == x.meta()) copy(ctx_, write.result, x);
  }
  return write.result;
}

InplaceWrite::Write& InplaceWrite::next_write() {
  if (single_.x == nullptr) return single_;
  if (several_.empty()) several_.push_back(single_);
  return several_.emplace_back();
}

std::vector<DenseTensor> InplaceWrite::targets(Targets list, std::span<const Meta> results) {
  if (list.empty()) return {};
  if (list.size() != results.size()) {
    fail(ErrorCode::internal, "[{}] has {} results for {} tensors that it writes; its infer_meta function is wrong",
         ctx_.op, results.size(), list.size());
  }
  std::vector<DenseTensor> all;
  for (size_t i = 0; i < list.size(); ++i) all.push_back(target(*list[i], results[i]));
  return all;
}

DenseTensor InplaceWrite::written_view(const DenseTensor& x, const Meta& meta) {
  if (!x.defined()) return {};
  if (!(meta == x.meta())) {
    fail(ErrorCode::shape_mismatch,
         "[{}] writes {} into the buffer of an argument that is {}; its infer_meta function is wrong", ctx_.op,
         to_string(meta), to_string(x.meta()));
  }
  // A distributed call has checked its targets already: under ViewPolicy::sync it writes through
  // views.
  if (ctx_.local == nullptr) check_write(*x.storage(), ctx_.op, view_policy());
  views_.push_back(&x);
  return x;
}

bool InplaceWrite::must_copy(const DenseTensor& tensor) const {
  bool copies = false;
  for (const Write& write : writes()) {
    const Overlap common = overlap(tensor, write.result);
    // With several targets, a kernel may write this one before it reads the element for another
    // target.
    copies = copies || common == Overlap::partial ||
             (common == Overlap::equal && (writes().size() > 1 || tensor.numel() != write.result.numel()));
  }
  for (const DenseTensor* view : views_) copies = copies || overlap(tensor, *view) != Overlap::none;
  return copies;
}

std::vector<DenseTensor> InplaceWrite::readers(std::span<const DenseTensor> tensors) const {
  std::vector<DenseTensor> all;
  for (const DenseTensor& tensor : tensors) all.push_back(reader(tensor));
  return all;
}

void InplaceWrite::check_disjoint_targets() const {
  std::vector<const DenseTensor*> written;
  for (const Write& write : writes()) written.push_back(write.x);
  written.insert(written.end(), views_.begin(), views_.end());
  check_no_overlap(ctx_, std::move(written));
}

void InplaceWrite::finish() {
  finishing_ = true;
  // In a distributed call CallExecution bumps the versions.
  for (const DenseTensor* view : views_) {
    if (ctx_.local == nullptr) count_write(ctx_, *view);
  }
  for (Write& write : writes()) {
    if (write.over_input) {
      if (ctx_.local == nullptr) count_write(ctx_, *write.x);
      continue;
    }
    const bool same = write.result.meta() == write.x->meta();
    if (ctx_.local != nullptr && (!same || ctx_.local->replace_targets)) {
      *write.x = std::move(write.result);  // the distributed call replaces the handle's buffer
      continue;
    }
    if (!same) {
      replace_buffer(ctx_.op, *write.x, std::move(write.result), true);
      continue;
    }
    copy(ctx_, *write.x, write.result);
    if (ctx_.local == nullptr) count_write(ctx_, *write.x);
  }
}

void InplaceWrite::poison() const {
  for (const Write& write : writes()) {
    const bool begun = finishing_ || write.result.storage() == write.x->storage();
    if (begun) write.x->storage()->poison(std::current_exception(), ctx_.op);
  }
  for (const DenseTensor* view : views_) view->storage()->poison(std::current_exception(), ctx_.op);
}

void replace_buffer(const char* op, DenseTensor& x, DenseTensor value, bool written) {
  const Ref<Storage> old = x.storage();
  value.storage()->set_version(old->version());
  if (written) value.storage()->bump(op);
  // Tensors that share the old buffer keep the value before this write, as copies. A view leaves
  // the buffer to them and is separated from its source.
  const Writing* const writing = Writing::current();
  const bool view = old->detachment() != nullptr || (writing != nullptr && writing->views_of(*old).count != 0);
  if (!view && view_policy() != ViewPolicy::temporary)
    old->detach(
        {value.storage(), value.storage()->version(), op, "", to_string(x.meta()), to_string(value.meta()), {}, {}});
  x = std::move(value);
}

}  // namespace shard::call
