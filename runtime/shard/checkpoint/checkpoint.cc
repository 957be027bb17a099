#include "shard/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <ranges>

#include "shard/call/exchange.h"
#include "shard/call/plan_cache.h"
#include "shard/checkpoint/index.h"
#include "shard/checkpoint/safetensors.h"
#include "shard/core/box_copy.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/reshard/reshard.h"

namespace shard {
namespace {

namespace fs = std::filesystem;
using checkpoint::Piece;
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

// ---- Saving ----

/// Data files are named "SAVE.rankRANK.safetensors", with a number for each save.
constexpr std::string_view kDataSuffix = ".safetensors";
std::string data_file(uint64_t save, int rank) { return fmt::format("{:06}.rank{}{}", save, rank, kDataSuffix); }

/// The number of the save that wrote a data file; 0 for other files.
uint64_t save_of(const std::string& file) {
  uint64_t save = 0;
  const char* const end = file.data() + file.size();
  const auto number = std::from_chars(file.data(), end, save);
  const std::string_view rest(number.ptr, static_cast<size_t>(end - number.ptr));
  return number.ec == std::errc() && rest.starts_with(".rank") && rest.ends_with(kDataSuffix) ? save : 0;
}

[[noreturn]] void fail_system(const char* verb, const std::string& path, std::error_code error) {
  fail(ErrorCode::invalid_argument, "[{}] cannot {} '{}': {}", kSave, verb, path, error.message());
}

/// The data files of a folder, each with the number of its save.
std::vector<std::pair<uint64_t, fs::path>> data_files(const std::string& folder) {
  std::vector<std::pair<uint64_t, fs::path>> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const uint64_t save = save_of(entry->path().filename().string()); save != 0)
      files.emplace_back(save, entry->path());
  }
  if (error) fail_system("read the folder", folder, error);
  return files;
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

/// The tensors with their pending reductions carried out.
std::map<std::string, Tensor> checked(const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    if (name.empty() || name == "__metadata__")
      fail(ErrorCode::invalid_argument, "[{}] '{}' cannot name a tensor in a file of the safetensors format", kSave,
           name);
    const DenseTensor& value = tensor.get().value;
    const Storage::State state = value.storage()->state();
    if (!value.has_data() && state != Storage::State::absent) {
      fail(ErrorCode::no_data, "[{}] '{}' ({}) belongs to a dry world and has no value to save; skip it in a dry run",
           kSave, name, tensor.get().describe());
    }
    value.storage()->check_read();
    values[name] = tensor.is_dist() ? dist::reshard(tensor, reduced(*spec_of(tensor)), 0) : tensor;
  }
  return values;
}

/// On each rank, which calls it at the same point, `words` of all ranks; without a world those given.
std::vector<uint64_t> gather(Rank* rank, std::initializer_list<uint64_t> words) {
  if (rank == nullptr || rank->world().size() == 1) return words;
  return call::gather_words(*rank, words, {kSave});
}

/// Runs `step` on this rank, and throws on all ranks where it throws on one of them.
template <class Step>
void together(Rank* rank, const Step& step) {
  std::exception_ptr error;
  try {
    step();
  } catch (...) { error = std::current_exception(); }
  const std::vector<uint64_t> failed = gather(rank, {error != nullptr});
  if (error) std::rethrow_exception(error);
  const auto other = std::find(failed.begin(), failed.end(), 1);
  if (other != failed.end()) {
    fail(ErrorCode::invalid_argument,
         "[{}] rank {} could not write its part, and says why; the checkpoint before is unchanged", kSave,
         other - failed.begin());
  }
}

/// Writes what this rank writes of the tensors.
void write_data(const std::string& path, int rank, const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, DenseTensor> local;
  for (const auto& [name, tensor] : tensors) {
    for (const auto& [writer, box] : written_boxes(tensor)) {
      if (writer == rank) local[name] = to_device(Tensor(tensor.get().value), kCpu).get().value;
    }
  }
  if (!local.empty()) checkpoint::write_safetensors(path, local);
}

/// Makes a renamed file last.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // file systems that cannot do it keep the rename in order
  ::fsync(descriptor);
  ::close(descriptor);
}

/// Makes the files of `save` the checkpoint.
void publish(const std::string& folder, uint64_t save, const SavedTensors& index) {
  const std::string text = checkpoint::to_json(index);
  const std::string path = checkpoint::index_path(folder);
  const std::string written = path + ".new";
  checkpoint::write_file(written, {{text.data(), text.size()}});
  std::error_code error;
  fs::rename(written, path, error);
  if (error) fail_system("write", path, error);
  sync_folder(folder);
  for (const auto& [number, file] : data_files(folder)) {
    if (number != save) fs::remove(file, error);  // one that stays does no harm
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

/// A box of a saved tensor, on the host.
DenseTensor read_box(Files& files, const std::string& name, const SavedTensor& saved, const ShardBox& box) {
  const DenseTensor host = DenseTensor::allocate(kCpu, {box.dims, saved.meta.dtype}, nullptr, kLoad);
  int64_t found = 0;
  for (const Piece& piece : saved.pieces) {
    const std::optional<ShardBox> both = common(box, piece.box);
    if (!both) continue;
    char* const elements = files[piece.file].elements(name, {piece.box.dims, saved.meta.dtype});
    copy_box({static_cast<char*>(host.raw()), host.dims(), difference(both->begin, box.begin)},
             {elements, piece.box.dims, difference(both->begin, piece.box.begin)}, both->dims,
             size_of(saved.meta.dtype));
    found += both->dims.numel();
  }
  if (found != box.dims.numel()) {
    fail(ErrorCode::invalid_argument,
         "[{}] the pieces of '{}' in checkpoint.json overlap, so that some of it is nowhere", kLoad, name);
  }
  return host;
}

/// The value that the local shard of `tensor` gets.
DenseTensor read_local(Files& files, const std::string& name, const SavedTensor& saved, const Tensor& tensor) {
  const Dims& dims = saved.meta.dims;
  if (!tensor.is_dist()) return read_box(files, name, saved, {Dims::filled(dims.rank(), 0), dims});
  DistTensorImpl& impl = dist_impl(tensor);
  const DistSpec* const spec = reduced(*impl.spec);
  const std::optional<Coordinate> at = spec->mesh()->coordinate(impl.owner->id());
  DenseTensor value = absent_value(saved.meta);
  if (at) value = read_box(files, name, saved, shard_box(spec->layout(), dims, *at));
  if (spec == impl.spec) return value;
  if (at) value = to_device(Tensor(value), impl.value.device()).get().value;
  return dist::reshard(make_dist(*impl.owner, saved.meta, spec, value), impl.spec, 0).get().value;
}

bool writes_back(const Tensor& tensor) {
  return tensor.is_dist() && dist_impl(tensor).owner->policies.view == ViewPolicy::sync;
}

void check_target(const std::string& name, const SavedTensor& saved, const Tensor& tensor) {
  const auto differs = [&](ErrorCode code, const char* what) {
    fail(code, "[{}] '{}' is {} in the checkpoint, and the tensor to load it into is {}: {}", kLoad, name,
         to_string(saved.meta), to_string(tensor.meta()), what);
  };
  if (!(saved.meta.dims == tensor.dims()))
    differs(ErrorCode::shape_mismatch, "load it into one of the same shape (checkpoint_tensors tells it)");
  if (saved.meta.dtype != tensor.dtype())
    differs(ErrorCode::dtype_mismatch, "load it into one of the same dtype, and cast that");
  const Storage& target = *tensor.get().value.storage();
  target.wait_before_write();
  if (!writes_back(tensor)) target.check_write(kLoad);
}

}  // namespace

void save_checkpoint(const std::string& folder, const std::map<std::string, Tensor>& tensors) {
  check_not_captured(kSave);
  Rank* const rank = current_rank_or_null();
  const int id = rank == nullptr ? 0 : rank->id();
  const std::map<std::string, Tensor> values = checked(tensors);
  const std::string text = checkpoint::to_json(index_of(values, 0));
  uint64_t save = 0;
  together(rank, [&] {
    if (id != 0) return;
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail_system("make the folder", folder, error);
    for (const auto& [number, path] : data_files(folder)) save = std::max(save, number);
    ++save;
  });
  const uint64_t hash = call::hash_bytes(0, text.data(), text.size());
  const std::vector<uint64_t> all = gather(rank, {hash, save});
  save = all[1];
  for (size_t other = 1; 2 * other < all.size(); ++other) {
    if (all[2 * other] == all[0]) continue;
    fail(ErrorCode::communication,
         "[{}] rank {} saves other tensors than rank 0: all ranks must pass the same names, with the same shapes, "
         "dtypes and "
         "layouts; rank {} passes {}",
         kSave, other, id, fmt::join(tensors | std::views::keys, ", "));
  }
  together(rank, [&] { write_data((fs::path(folder) / data_file(save, id)).string(), id, values); });
  together(rank, [&] {
    if (id == 0) publish(folder, save, index_of(values, save));
  });
}

void load_checkpoint(const std::string& folder, const std::map<std::string, Tensor>& tensors) {
  check_not_captured(kLoad);
  const SavedTensors index = checkpoint::read_index(kLoad, folder);
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : tensors) {
    if (!index.contains(name)) missing.push_back(name);
  }
  if (!missing.empty()) {
    fail(ErrorCode::invalid_argument, "[{}] the checkpoint in '{}' lacks '{}'; it has '{}'", kLoad, folder,
         fmt::join(missing, "', '"), fmt::join(index | std::views::keys, "', '"));
  }
  for (const auto& [name, tensor] : tensors) check_target(name, index.at(name), tensor);
  Files files(folder);
  for (const auto& [name, tensor] : tensors) {
    const DenseTensor& target = tensor.get().value;
    if (target.storage()->state() != Storage::State::unallocated)  // as those of a dry world are
      copy_into(target, read_local(files, name, index.at(name), tensor));
    target.storage()->bump(kLoad);
    if (writes_back(tensor)) target.storage()->write_back_to_source(kLoad);
  }
}

std::map<std::string, Meta> checkpoint_tensors(const std::string& folder) {
  std::map<std::string, Meta> metas;
  for (const auto& [name, tensor] : checkpoint::read_index("checkpoint_tensors", folder)) metas[name] = tensor.meta;
  return metas;
}

}  // namespace shard
