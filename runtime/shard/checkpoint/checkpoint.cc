#include "shard/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "shard/call/exchange.h"
#include "shard/call/plan_cache.h"
#include "shard/checkpoint/index.h"
#include "shard/checkpoint/safetensors.h"
#include "shard/core/box_copy.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/view_use.h"
#include "shard/reshard/reshard.h"

namespace shard {
namespace {

namespace fs = std::filesystem;
using checkpoint::data_file;
using checkpoint::Piece;
using checkpoint::save_of;
using checkpoint::SavedTensor;
using checkpoint::SavedTensors;

constexpr const char* kSave = "save_checkpoint";
constexpr const char* kLoad = "load_checkpoint";

void check_not_captured(const char* op) {
  if (Tracer::current() == nullptr) return;
  fail(ErrorCode::capture, "[{}] a captured program cannot contain files; call it outside of the captured function",
       op);
}

/// The layout without its pending reductions.
const DistSpec* reduced(const DistSpec& spec) {
  Layout layout = spec.layout();
  layout.partial = {};
  return DistSpec::make(layout);
}

/// "'b', 'w'"
template <class Map>
std::string names_of(const Map& map) {
  std::string names;
  for (const auto& [name, value] : map) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", name);
  return names;
}

/// On each rank, which calls it at the same point, `words` of all ranks; without a world those given.
std::vector<uint64_t> gather(Rank* rank, std::initializer_list<uint64_t> words, const char* op) {
  if (rank == nullptr || rank->world().size() == 1) return words;
  return call::gather_words(*rank, words, {op});
}

/// Runs `step` on this rank. Where it throws on one rank it throws on all, after `undo` on each.
template <class Step, class Undo>
void together(Rank* rank, const char* op, const Step& step, const Undo& undo) {
  std::exception_ptr error;
  try {
    step();
  } catch (...) { error = std::current_exception(); }
  const std::vector<uint64_t> failed = gather(rank, {error != nullptr}, op);
  const auto other = std::find(failed.begin(), failed.end(), 1);
  if (!error && other == failed.end()) return;  // in a dry world the others say nothing
  undo();
  if (error) std::rethrow_exception(error);
  fail(ErrorCode::invalid_argument, "[{}] rank {} failed, and says why; nothing is changed", op,
       other - failed.begin());
}
template <class Step>
void together(Rank* rank, const char* op, const Step& step) {
  together(rank, op, step, [] {});
}

void check_owner(const char* op, const std::string& name, const Tensor& tensor, Rank* rank) {
  if (!tensor.is_dist() || dist_impl(tensor).owner == rank) return;
  fail(ErrorCode::wrong_rank, "[{}] '{}' ({}) belongs to another rank than the one that runs here", op, name,
       tensor.get().describe());
}

// ---- Saving ----

[[noreturn]] void fail_system(const char* verb, const std::string& path, std::error_code error) {
  fail(ErrorCode::invalid_argument, "[{}] cannot {} '{}': {}", kSave, verb, path, error.message());
}

/// The data files of a folder, each with the number of its save.
std::vector<std::pair<uint64_t, fs::path>> data_files(const std::string& folder, std::error_code& error) {
  std::vector<std::pair<uint64_t, fs::path>> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const uint64_t save = save_of(entry->path().filename().string()); save != 0)
      files.emplace_back(save, entry->path());
  }
  return files;
}

/// Makes names in a folder last. File systems that cannot do it keep them in order.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

/// Makes the folder where it is missing.
void make_folder(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> parents;  // of folders that are made
  for (fs::path at = fs::absolute(folder, error); at.has_relative_path() && !fs::exists(at, error);
       at = at.parent_path())
    parents.push_back(at.parent_path());
  fs::create_directories(folder, error);
  if (error) fail_system("make the folder", folder, error);
  for (const fs::path& parent : parents) sync_folder(parent.string());
}

/// Keeps others, in this process or another, from saving to a folder meanwhile; not on file systems that have no locks.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0) checkpoint::fail_errno(kSave, "read the folder", folder);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    ::close(descriptor_);
    fail(ErrorCode::invalid_argument, "[{}] '{}' is being saved to by others; wait for them, or save to another folder",
         kSave, folder);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { ::close(descriptor_); }

 private:
  int descriptor_;
};

/// A number that is larger than those of all saves which have left files in the folder.
uint64_t next_save(const std::string& folder) {
  std::error_code error;
  uint64_t last = 0;
  for (const auto& [number, path] : data_files(folder, error)) last = std::max(last, number);
  if (error) fail_system("read the folder", folder, error);
  return last + 1;
}

/// The boxes of a tensor and the ranks that write them: of those with the same box, the first one in the mesh.
std::vector<std::pair<int, ShardBox>> written_boxes(const Tensor& tensor) {
  if (!tensor.is_dist()) return {{0, {Dims::filled(tensor.dims().rank(), 0), tensor.dims()}}};
  const Layout& layout = spec_of(tensor)->layout();
  const ProcessMesh& mesh = *layout.mesh;
  std::vector<std::pair<int, ShardBox>> boxes;
  for (int i = 0; i < mesh.size(); ++i) {
    const Coordinate at = mesh.coordinate_at(i);
    bool first = true;
    for (int axis = 0; axis < mesh.rank(); ++axis)
      first = first && (at[static_cast<size_t>(axis)] == 0 || layout.dim_of(axis) >= 0);
    ShardBox box = shard_box(layout, tensor.dims(), at);
    if (first && box.dims.numel() != 0) boxes.emplace_back(mesh.processes()[static_cast<size_t>(i)], std::move(box));
  }
  return boxes;
}

SavedTensors index_of(const std::map<std::string, Tensor>& tensors, uint64_t save) {
  SavedTensors index;
  for (const auto& [name, tensor] : tensors) {
    SavedTensor& saved = index[name];
    saved.meta = tensor.meta();
    for (const auto& [rank, box] : written_boxes(tensor)) saved.pieces.push_back({data_file(save, rank), box});
  }
  return index;
}

/// What all ranks must agree on.
std::string agreement(const std::map<std::string, Tensor>& tensors) {
  std::string text = checkpoint::to_json(index_of(tensors, 0));
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_dist()) text += spec_of(tensor)->text() + spec_of(tensor)->mesh()->describe();
  }
  return text;
}

void check_source(const std::string& name, const Tensor& tensor, Rank* rank) {
  if (name.empty() || name == "__metadata__") {
    fail(ErrorCode::invalid_argument, "[{}] '{}' cannot name a tensor in a file of the safetensors format", kSave,
         name);
  }
  check_owner(kSave, name, tensor, rank);
}

/// Writes what this rank writes of the tensors, whose reductions have been carried out.
void write_data(const std::string& path, int rank, const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, DenseTensor> local;
  for (const auto& [name, tensor] : tensors) {
    for (const auto& [writer, box] : written_boxes(tensor)) {
      if (writer == rank) local[name] = to_device(Tensor(tensor.get().value), kCpu).get().value;
    }
  }
  if (!local.empty()) checkpoint::write_safetensors(path, local);
}

/// Makes the files of `save` the checkpoint.
void publish(const std::string& folder, uint64_t save, const SavedTensors& index) {
  const std::string text = checkpoint::to_json(index);
  const std::string path = checkpoint::index_path(folder);
  const std::string written = path + ".new";
  checkpoint::write_file(written, {{text.data(), text.size()}});
  sync_folder(folder);
  std::error_code error;
  fs::rename(written, path, error);
  if (error) fail_system("write", path, error);
  sync_folder(folder);
  // From here on the save is done: files that stay do no harm.
  for (const auto& [number, file] : data_files(folder, error)) {
    if (number != save) fs::remove(file, error);
  }
}

// ---- Loading ----

/// The open files of a checkpoint.
class Files {
 public:
  explicit Files(std::string folder) : folder_(std::move(folder)) {}
  const checkpoint::SafetensorsFile& operator[](const std::string& name) {
    std::unique_ptr<checkpoint::SafetensorsFile>& file = files_[name];
    if (!file) file = std::make_unique<checkpoint::SafetensorsFile>((fs::path(folder_) / name).string());
    return *file;
  }

 private:
  std::string folder_;
  std::map<std::string, std::unique_ptr<checkpoint::SafetensorsFile>> files_;
};

/// The common part of two boxes; nothing where they have no element in common.
std::optional<ShardBox> common(const ShardBox& a, const ShardBox& b) {
  ShardBox both = a;
  for (int d = 0; d < a.dims.rank(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.dims[d] = std::min(a.begin[d] + a.dims[d], b.begin[d] + b.dims[d]) - both.begin[d];
    if (both.dims[d] <= 0) return std::nullopt;
  }
  return both;
}

Dims difference(const Dims& a, const Dims& b) {
  Dims result = a;
  for (int d = 0; d < a.rank(); ++d) result[d] -= b[d];
  return result;
}

/// A part of a piece that belongs to a box.
struct Source {
  const Piece& piece;
  ShardBox part;
  char* elements;  // of the piece
};

/// What a box of a saved tensor is read from. Opens the files.
std::vector<Source> sources_of(Files& files, const std::string& name, const SavedTensor& saved, const ShardBox& box) {
  std::vector<Source> sources;
  int64_t elements = 0;
  bool overlap = false;
  for (const Piece& piece : saved.pieces) {
    const std::optional<ShardBox> part = common(box, piece.box);
    if (!part) continue;
    for (const Source& other : sources) overlap = overlap || common(other.part, *part);
    elements += part->dims.numel();
    sources.push_back({piece, *part, files[piece.file].elements(name, {piece.box.dims, saved.meta.dtype})});
    if (overlap) break;
  }
  if (overlap || elements != box.dims.numel()) {
    fail(ErrorCode::invalid_argument, "[{}] the pieces of '{}' in checkpoint.json {}", kLoad, name,
         overlap ? "overlap" : "leave some of it out");
  }
  return sources;
}

/// A box of a saved tensor, on the host.
DenseTensor read_box(Files& files, const std::string& name, const SavedTensor& saved, const ShardBox& box) {
  const DenseTensor host = DenseTensor::allocate(kCpu, {box.dims, saved.meta.dtype}, nullptr, kLoad);
  for (const Source& source : sources_of(files, name, saved, box)) {
    copy_box({static_cast<char*>(host.raw()), host.dims(), difference(source.part.begin, box.begin)},
             {source.elements, source.piece.box.dims, difference(source.part.begin, source.piece.box.begin)},
             source.part.dims, size_of(saved.meta.dtype));
  }
  return host;
}

/// The box that this rank reads; nothing outside of the tensor's mesh, and for a tensor of a dry world.
std::optional<ShardBox> read_by_this_rank(const Tensor& tensor) {
  if (tensor.get().value.storage()->state() == Storage::State::unallocated) return std::nullopt;
  if (!tensor.is_dist()) return ShardBox{Dims::filled(tensor.dims().rank(), 0), tensor.dims()};
  const DistTensorImpl& impl = dist_impl(tensor);
  const std::optional<Coordinate> at = impl.spec->mesh()->coordinate(impl.owner->id());
  if (!at) return std::nullopt;
  return shard_box(impl.spec->layout(), tensor.dims(), *at);
}

/// The value that the local shard of `tensor` gets.
DenseTensor read_local(Files& files, const std::string& name, const SavedTensor& saved, const Tensor& tensor) {
  const std::optional<ShardBox> box = read_by_this_rank(tensor);
  DenseTensor value = box ? read_box(files, name, saved, *box) : absent_value(saved.meta);
  if (!tensor.is_dist() || !spec_of(tensor)->layout().has_partial()) return value;
  DistTensorImpl& impl = dist_impl(tensor);
  if (box) value = to_device(Tensor(value), impl.value.device()).get().value;
  return dist::reshard(make_dist(*impl.owner, saved.meta, reduced(*impl.spec), value), impl.spec, 0).get().value;
}

/// Throws unless the tensor may be overwritten, and what it gets is there.
void check_target(Files& files, const std::string& name, const SavedTensor& saved, const Tensor& tensor, Rank* rank) {
  const auto differs = [&](ErrorCode code, const char* what) {
    fail(code, "[{}] '{}' is {} in the checkpoint, and the tensor to load it into is {}: {}", kLoad, name,
         to_string(saved.meta), to_string(tensor.meta()), what);
  };
  if (!(saved.meta.dims == tensor.dims()))
    differs(ErrorCode::shape_mismatch, "load it into one of the same shape (checkpoint_tensors tells it)");
  if (saved.meta.dtype != tensor.dtype())
    differs(ErrorCode::dtype_mismatch, "load it into one of the same dtype, and cast that");
  check_owner(kLoad, name, tensor, rank);
  Storage& target = *tensor.get().value.storage();
  target.wait_before_write();
  check_write(target, kLoad, view_policy());
  if (const std::optional<ShardBox> box = read_by_this_rank(tensor)) sources_of(files, name, saved, *box);
}

}  // namespace

void save_checkpoint(const std::string& folder, const std::map<std::string, Tensor>& tensors) {
  check_not_captured(kSave);
  Rank* const rank = current_rank_or_null();
  if (rank != nullptr && rank->dry)
    fail(ErrorCode::no_data, "[{}] a dry world has no values to save; skip it in a dry run", kSave);
  const int id = rank == nullptr ? 0 : rank->id();
  std::string text;
  uint64_t save = 0;
  std::unique_ptr<FolderLock> lock;
  together(rank, kSave, [&] {
    for (const auto& [name, tensor] : tensors) check_source(name, tensor, rank);
    text = agreement(tensors);
    if (id != 0) return;
    make_folder(folder);
    lock = std::make_unique<FolderLock>(folder);
    save = next_save(folder);
  });
  const std::vector<uint64_t> all = gather(rank, {call::hash_bytes(0, text.data(), text.size()), save}, kSave);
  save = all[1];
  for (size_t other = 1; 2 * other < all.size(); ++other) {
    if (all[2 * other] == all[0]) continue;
    fail(ErrorCode::communication,
         "[{}] rank {} saves other tensors than rank 0: all ranks must pass the same names, with the same shapes, "
         "dtypes and layouts; rank {} passes {}",
         kSave, other, id, names_of(tensors));
  }
  std::map<std::string, Tensor> values;
  for (const auto& [name, tensor] : tensors)
    values[name] = tensor.is_dist() ? dist::reshard(tensor, reduced(*spec_of(tensor)), 0) : tensor;
  const std::string path = (fs::path(folder) / data_file(save, id)).string();
  const auto remove = [&] {
    std::error_code error;
    fs::remove(path, error);  // one that stays does no harm
  };
  together(
      rank, kSave, [&] { write_data(path, id, values); }, remove);
  together(
      rank, kSave,
      [&] {
        if (id == 0) publish(folder, save, index_of(values, save));
      },
      remove);
}

void load_checkpoint(const std::string& folder, const std::map<std::string, Tensor>& tensors) {
  check_not_captured(kLoad);
  Rank* const rank = current_rank_or_null();
  SavedTensors index;
  Files files(folder);
  together(rank, kLoad, [&] {
    index = checkpoint::read_index(kLoad, folder);
    std::vector<std::string> missing;
    for (const auto& [name, tensor] : tensors) {
      if (!index.contains(name)) missing.push_back(name);
    }
    if (!missing.empty()) {
      fail(ErrorCode::invalid_argument, "[{}] the checkpoint in '{}' lacks '{}'; it has {}", kLoad, folder,
           fmt::join(missing, "', '"), names_of(index));
    }
    for (const auto& [name, tensor] : tensors) check_target(files, name, index.at(name), tensor, rank);
  });
  for (const auto& [name, tensor] : tensors) {
    const DenseTensor& target = tensor.get().value;
    copy_into(target, read_local(files, name, index.at(name), tensor));
    target.storage()->bump(kLoad);
    if (tensor.is_dist() && view_policy() == ViewPolicy::sync) target.storage()->write_back_to_source(kLoad);
  }
}

std::map<std::string, Meta> checkpoint_tensors(const std::string& folder) {
  std::map<std::string, Meta> metas;
  for (const auto& [name, tensor] : checkpoint::read_index("checkpoint_tensors", folder)) metas[name] = tensor.meta;
  return metas;
}

}  // namespace shard
