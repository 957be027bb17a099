// Distributed tensors: global meta, layout and this rank's local shard; and conversions from and to
// local tensors that send nothing.
#pragma once

#include "shard/core/export.h"
#include "shard/core/tensor.h"
#include "shard/dist/spec.h"
#include "shard/dist/world.h"

namespace shard {

/// The implementation of a distributed Tensor. `value` is the local shard; on a rank outside the
/// mesh its storage is absent.
class SHARD_API DistTensorImpl final : public TensorImpl {
 public:
  DistTensorImpl(Rank& owner, const Meta& global, const DistSpec* spec, DenseTensor shard)
      : TensorImpl(TensorKind::dist, std::move(shard)), global(global), spec(spec), owner(&owner), use_(owner.use()) {}

  const Meta& meta() const override { return global; }
  std::string describe() const override;
  Ref<TensorImpl> alias() const override {
    return Ref<TensorImpl>::adopt(new DistTensorImpl(*owner, global, spec, value));
  }
  /// False on a rank that is not in the mesh.
  bool has_local_shard() const { return value.storage()->state() != Storage::State::absent; }

  Meta global;
  const DistSpec* spec;
  Rank* owner;

 private:
  Ref<RankUse> use_;
};

/// The implementation of a distributed tensor. Throws layout for a plain tensor, undefined for an
/// undefined one; `op` is for messages.
SHARD_API DistTensorImpl& dist_impl(const Tensor& tensor, std::string_view op = "call");
/// A tensor in messages: "argument 'x' (f32[8, 4], layout [dp, -] on mesh(dp=2))"; a plain one has no layout.
SHARD_API std::string argument_text(std::string_view name, const TensorImpl& tensor);
SHARD_API std::string argument_text(std::string_view name, const Meta& global, const DistSpec& spec);
/// A new handle to a distributed tensor.
SHARD_API Tensor make_dist(Rank& owner, const Meta& global, const DistSpec* spec, DenseTensor shard);
/// The `value` of a tensor on a rank outside the mesh: absent storage, a shape of zeros.
SHARD_API DenseTensor absent_value(const Meta& global);
/// Throws layout unless every process of the mesh is a rank of the world.
SHARD_API void check_mesh_in_world(const ProcessMesh* mesh, const World& world);

/// from_local and local (api/layout.h) without autograd.
namespace dist {
SHARD_API Tensor from_local(const Tensor& shard, const DistSpec* spec, const Dims& global, DType dtype);
SHARD_API Tensor local(const Tensor& tensor);
}  // namespace dist

/// The layout of a distributed tensor.
SHARD_API const DistSpec* spec_of(const Tensor& tensor);
/// Meta, layout and the local shard, labelled as local. Never communicates.
SHARD_API std::string to_text(const Tensor& tensor);

}  // namespace shard
