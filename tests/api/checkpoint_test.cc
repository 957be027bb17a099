// Checkpoints: what is saved from one layout, mesh and device is loaded into any other, and bad files are refused.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "reshard/layouts.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/temp_folder.h"

namespace checkpoint_test {

using namespace shard;
using namespace shard::test;

namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// The names of the files in a folder.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// A checkpoint of one tensor, "w", with the values 1, 2, ... in the shape [2, 3].
void save_small(const std::string& folder) { save_checkpoint(folder, {{"w", iota<float>({2, 3}, 1)}}); }

/// While an object exists, files of this process cannot grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_;
};

Tensor zeros_like_small() { return full({2, 3}, 0.0, DType::float32); }

/// The error of loading "w" of a checkpoint in which `from` is replaced by `to` in a file.
std::string error_after_change(const std::string& file, const std::string& from, const std::string& to) {
  const TempFolder folder;
  save_small(folder.path());
  std::string text = read(folder.path(file));
  const size_t at = text.find(from);
  INFO(from << " in " << text);
  REQUIRE(at != std::string::npos);
  write(folder.path(file), text.replace(at, from.size(), to));
  return error_of([&] { load_checkpoint(folder.path(), {{"w", zeros_like_small()}}); }, ErrorCode::invalid_argument);
}

}  // namespace

TEST_CASE("plain tensors of every dtype and shape are loaded as they were saved") {
  const TempFolder folder;
  const std::string path = folder.path("new/folder");
  Tensors saved, loaded;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const Dims& dims : {Dims{}, Dims{0}, Dims{3, 5}, Dims{2, 0, 4}}) {
      const std::string name = std::string(to_string(dtype)) + " " + to_string(dims);
      saved[name] = cast(iota<float>(dims, -3), dtype);
      loaded[name] = full(dims, 7.0, dtype);
    }
  }
  save_checkpoint(path, saved);
  const std::map<std::string, Meta> metas = checkpoint_tensors(path);
  CHECK(metas.size() == saved.size());
  const uint64_t version = loaded.at("float32 [3, 5]").version();
  load_checkpoint(path, loaded);
  CHECK(loaded.at("float32 [3, 5]").version() > version);
  for (const auto& [name, tensor] : saved) {
    INFO(name);
    CHECK(metas.at(name) == tensor.meta());
    CHECK(cast(loaded.at(name), DType::float32).to_vector<float>() == cast(tensor, DType::float32).to_vector<float>());
  }
}

TEST_CASE("a tensor that any layout has saved is loaded into any other") {
  const TempFolder folder;
  const Dims dims{5, 3};
  const std::vector<float> expected = iota<float>(dims, 1).to_vector<float>();
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const auto layouts = all_layouts(mesh, dims.rank(), {ReduceType::sum, ReduceType::max});
  run_ranks(4, [&](Rank&) {
    Tensors targets;
    for (const DistSpec* spec : layouts) targets[spec->text()] = distribute(full(dims, 0.0, DType::float32), spec);
    for (const DistSpec* from : layouts) {
      Tensors saved;
      for (const auto& [name, target] : targets) saved[name] = distribute(iota<float>(dims, 1), from);
      save_checkpoint(folder.path(), saved);
      for (const auto& [name, target] : targets) scale_(const_cast<Tensor&>(target), 0.0);
      load_checkpoint(folder.path(), targets);
      for (const auto& [name, target] : targets)
        check(full_equals(target, expected), "from " + from->text() + " to " + name);
    }
  });
}

TEST_CASE("a checkpoint of four ranks is loaded by three, by one without a world, and into a part of the ranks") {
  const TempFolder folder;
  const Dims dims{7, 4};
  const std::vector<float> expected = iota<float>(dims, 1).to_vector<float>();
  run_ranks(4, [&](Rank&) {
    const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    save_checkpoint(folder.path(), {{"w", distribute(iota<float>(dims, 1), DistSpec::parse(mesh, "b, a"))},
                                    {"plain", iota<int64_t>({3})},
                                    {"replicated", distribute(iota<float>({2}), DistSpec::parse(mesh, "-"))}});
  });
  // One file for each rank: rank 0 alone has what is equal on all.
  CHECK(files_of(folder.path()).size() == 5);
  const auto replicated = [&](int rank) {
    return read(folder.path("000001.rank" + std::to_string(rank) + ".safetensors")).find("replicated") !=
           std::string::npos;
  };
  CHECK(replicated(0));
  CHECK_FALSE(replicated(3));
  run_ranks(3, [&](Rank&) {
    const Tensor w = distribute(full(dims, 0.0, DType::float32), DistSpec::parse(ProcessMesh::make({3}), "a, -"));
    load_checkpoint(folder.path(), {{"w", w}});
    check(full_equals(w, expected), "three ranks");
    const Tensor two =
        distribute(full(dims, 0.0, DType::float32), DistSpec::parse(ProcessMesh::make({2}, {1, 2}), "-, a"));
    load_checkpoint(folder.path(), {{"w", two}});
    check(full_equals(two, expected), "ranks 1 and 2");
    save_checkpoint(folder.path("again"), {{"w", two}});
  });
  for (const std::string& path : {folder.path(), folder.path("again")}) {
    const Tensor w = full(dims, 0.0, DType::float32);
    load_checkpoint(path, {{"w", w}});
    CHECK(w.to_vector<float>() == expected);
  }
  const Tensor plain = full({3}, 0.0, DType::int64);
  load_checkpoint(folder.path(), {{"plain", plain}});
  CHECK(plain.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("a save replaces the checkpoint before, and one that ends early leaves it") {
  const TempFolder folder;
  save_small(folder.path());
  write(folder.path("notes.txt"), "of the user");
  write(folder.path("1.rank0.safetensors"), "of the user");
  write(folder.path("000001.rank-model.safetensors"), "of the user");
  save_checkpoint(folder.path(), {{"v", iota<float>({2})}});
  CHECK(files_of(folder.path()) == std::vector<std::string>{"000001.rank-model.safetensors", "000002.rank0.safetensors",
                                                            "1.rank0.safetensors", "checkpoint.json", "notes.txt"});
  // What a save leaves that was stopped before its last step.
  write(folder.path("000003.rank0.safetensors"), "half of a file");
  write(folder.path("checkpoint.json.new"), "{");
  const Tensor v = full({2}, 5.0, DType::float32);
  load_checkpoint(folder.path(), {{"v", v}});
  CHECK(v.to_vector<float>() == std::vector<float>{0, 1});
  save_small(folder.path());
  CHECK(files_of(folder.path()) == std::vector<std::string>{"000001.rank-model.safetensors", "000004.rank0.safetensors",
                                                            "1.rank0.safetensors", "checkpoint.json", "notes.txt"});
}

TEST_CASE("while others save to a folder a save is refused, on all ranks") {
  const TempFolder folder;
  const std::string path = folder.path("new/checkpoint");
  save_small(path);
  const int other = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(other, LOCK_EX | LOCK_NB) == 0);
  const std::string expected =
      "[save_checkpoint] '" + path + "' is being saved to by others; wait for them, or save to another folder";
  CHECK(error_of([&] { save_small(path); }, ErrorCode::invalid_argument) == expected);
  run_ranks(2, [&](Rank& rank) {
    const std::string error = error_of([&] { save_small(path); }, ErrorCode::invalid_argument);
    check(rank.id() == 0 ? error == expected : error.find("rank 0 failed") != std::string::npos, "the error of a rank");
  });
  ::close(other);
  save_small(path);
  CHECK(checkpoint_tensors(path).size() == 1);
  check_contains(error_of([] { save_small(""); }, ErrorCode::invalid_argument), "cannot make the folder ''");
}

TEST_CASE("parameters that require gradients are loaded, and what was saved of them for backward is known to be old") {
  const TempFolder folder;
  save_small(folder.path());
  const Tensor w = zeros_like_small();
  w.set_requires_grad(true);
  const Tensor loss = sum(multiply(w, w));
  load_checkpoint(folder.path(), {{"w", w}});
  CHECK(w.requires_grad());
  CHECK(w.is_leaf());
  check_refused([&] { loss.backward(); }, ErrorCode::autograd, "load_checkpoint");
  sum(multiply(w, w)).backward();
  CHECK(w.grad().to_vector<float>() == std::vector<float>{2, 4, 6, 8, 10, 12});
}

TEST_CASE("a tensor is loaded only where its name, shape and dtype are those of the checkpoint") {
  const TempFolder folder;
  save_small(folder.path());
  const Tensor good = zeros_like_small();
  const auto refused = [&](const char* name, const Tensor& tensor, ErrorCode code, const char* part) {
    check_refused([&] { load_checkpoint(folder.path(), {{"w", good}, {name, tensor}}); }, code, part);
  };
  refused("x", zeros_like_small(), ErrorCode::invalid_argument, "lacks 'x'; it has 'w'");
  check_refused(
      [&] {
        load_checkpoint(folder.path(), {{"w", full({3, 2}, 0.0, DType::float32)}});
      },
      ErrorCode::shape_mismatch, "'w' is f32[2, 3] in the checkpoint, and the tensor to load it into is f32[3, 2]");
  check_refused(
      [&] {
        load_checkpoint(folder.path(), {{"w", full({2, 3}, 0.0, DType::bfloat16)}});
      },
      ErrorCode::dtype_mismatch, "load it into one of the same dtype, and cast that");
  check_refused([&] { load_checkpoint(folder.path(), {{"w", Tensor()}}); }, ErrorCode::undefined, "");
  CHECK(good.to_vector<float>() == std::vector<float>(6, 0.0f));
  check_refused(
      [&] {
        load_checkpoint(folder.path("none"), {{"w", good}});
      },
      ErrorCode::invalid_argument, "it is written by save_checkpoint");
  check_refused(
      [&] {
        save_checkpoint(folder.path("other"), {{"", good}});
      },
      ErrorCode::invalid_argument, "cannot name");
  check_refused([&] { save_checkpoint(folder.path("other"), {{"\xff", good}}); }, ErrorCode::invalid_argument, "UTF-8");
  check_refused(
      [&] {
        save_checkpoint(folder.path("checkpoint.json"), {{"w", good}});
      },
      ErrorCode::invalid_argument, "checkpoint.json");
}

TEST_CASE("damaged checkpoints are refused, and the message says which file") {
  const std::string data = "000001.rank0.safetensors";
  check_contains(error_after_change("checkpoint.json", "\"begin\": [\n      0", "\"begin\": [\n      1"),
                 "is outside of [2, 3]");
  check_contains(error_after_change("checkpoint.json", "\"begin\": [\n      0", "\"begin\": [\n      1e300"),
                 "no list of integers");
  check_contains(error_after_change("checkpoint.json", "float32", "float33"), "unknown dtype 'float33'");
  check_contains(error_after_change("checkpoint.json", "\"version\": 1", "\"version\": 2"), "version 2");
  check_contains(error_after_change("checkpoint.json", data, "../" + data), "is no name of a data file");
  check_contains(error_after_change("checkpoint.json", "{", "["), "is no index of a checkpoint");
  check_contains(error_after_change(data, "\"w\"", "\"v\""), data);
  check_contains(error_after_change(data, "F32", "I32"), "the file is damaged");
  check_contains(error_after_change(data, "[0,24]", "[8,32]"), "the file is damaged");
  check_contains(error_after_change(data, "{", "["), "is no file of the safetensors format");
  for (const size_t size : {0, 4, 20, 95}) {
    const TempFolder folder;
    save_small(folder.path());
    fs::resize_file(folder.path(data), size);
    check_contains(error_of(
                       [&] {
                         load_checkpoint(folder.path(), {{"w", zeros_like_small()}});
                       },
                       ErrorCode::invalid_argument),
                   data);
  }
  const TempFolder folder;
  save_small(folder.path());
  fs::remove(folder.path(data));
  check_contains(error_of(
                     [&] {
                       load_checkpoint(folder.path(), {{"w", zeros_like_small()}});
                     },
                     ErrorCode::invalid_argument),
                 "No such file");
}

TEST_CASE(
    "a tensor is read only where each of its elements is in one piece, and none is written where one cannot be read") {
  const TempFolder folder;
  save_checkpoint(folder.path(), {{"a", iota<float>({2}, 1)}, {"b", iota<float>({4}, 1)}});
  for (int save = 2; save < 4; ++save) {
    const TempFolder other;
    save_checkpoint(other.path(), {{"b", iota<float>({2}, 1)}});
    fs::copy(other.path("000001.rank0.safetensors"), folder.path(fmt::format("00000{}.rank0.safetensors", save)));
  }
  const auto load_pieces = [&](const std::string& pieces) {
    write(
        folder.path("checkpoint.json"),
        R"({"format": "shardgen checkpoint", "version": 1, "tensors": {"a": {"dtype": "float32", "shape": [2], "pieces": [
             {"file": "000001.rank0.safetensors", "begin": [0], "shape": [2]}]}, "b": {"dtype": "float32", "shape": [4], "pieces": [)" +
            pieces + "]}}}");
    const Tensor a = full({2}, 0.0, DType::float32), b = full({4}, 0.0, DType::float32);
    const std::string error = error_of(
        [&] {
          load_checkpoint(folder.path(), {{"a", a}, {"b", b}});
        },
        ErrorCode::invalid_argument);
    CHECK(a.to_vector<float>() == std::vector<float>{0, 0});
    return error;
  };
  const auto piece = [](int begin, int size, int file) {
    return fmt::format(R"({{"file": "00000{}.rank0.safetensors", "begin": [{}], "shape": [{}]}})", file, begin, size);
  };
  check_contains(load_pieces(""), "leave some of it out");
  check_contains(load_pieces(piece(0, 2, 2)), "leave some of it out");
  check_contains(load_pieces(piece(0, 2, 2) + "," + piece(1, 2, 3)), "overlap");
  check_contains(load_pieces(piece(0, 4, 4)), "No such file");
}

TEST_CASE("where a rank cannot save, all ranks learn it, may go on, and the checkpoint before stays") {
  const TempFolder folder;
  save_small(folder.path());
  const FileSizeLimit limit(10000);
  run_ranks(2, [&](Rank& rank) {
    const auto* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor w = distribute(iota<float>({4}), DistSpec::parse(mesh, "a"));
    const Tensor large = distribute(iota<float>({10000}), DistSpec::parse(ProcessMesh::make({1}, {1}), "-"));
    const std::string error = error_of(
        [&] {
          save_checkpoint(folder.path(), {{"large", large}, {"w", w}});
        },
        ErrorCode::invalid_argument);
    check_contains(error, rank.id() == 0 ? "rank 1 failed, and says why" : "File too large");
    const Tensors other = {{rank.id() == 0 ? "v" : "w", w}};
    check_refused([&] { save_checkpoint(folder.path(), other); }, ErrorCode::communication,
                  "rank 1 saves other tensors");
    save_checkpoint(folder.path("good"), {{"w", w}});
    // Rank 1 alone reads the file of rank 1.
    if (rank.id() == 0) fs::remove(folder.path("good/000001.rank1.safetensors"));
    check(full_equals(w, std::vector<float>{0, 1, 2, 3}), "until the file is removed");
    const Tensor target = distribute(full({4}, 7.0, DType::float32), DistSpec::parse(mesh, "a"));
    const auto load = [&] { load_checkpoint(folder.path("good"), {{"w", target}}); };
    check_contains(error_of(load, ErrorCode::invalid_argument),
                   rank.id() == 0 ? "rank 1 failed, and says why" : "No such file");
    check(full_equals(target, std::vector<float>(4, 7)), "nothing is loaded");
  });
  CHECK(files_of(folder.path()) == std::vector<std::string>{"000001.rank0.safetensors", "checkpoint.json", "good"});
  CHECK(checkpoint_tensors(folder.path()).at("w").dims == Dims{2, 3});
  CHECK(checkpoint_tensors(folder.path("good")).at("w").dims == Dims{4});
}

TEST_CASE("tensors of another rank are neither saved nor loaded") {
  const TempFolder folder;
  Tensor given[2];
  run_ranks(2, [&](Rank& rank) {
    const Tensor w = distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({2}), "a"));
    given[1 - rank.id()] = w;
    save_checkpoint(folder.path(), {{"w", w}});  // after which both are there
    const Tensors others = {{"w", given[rank.id()]}};
    check_refused([&] { save_checkpoint(folder.path(), others); }, ErrorCode::wrong_rank, "belongs to another rank");
    check_refused([&] { load_checkpoint(folder.path(), others); }, ErrorCode::wrong_rank, "belongs to another rank");
    given[rank.id()] = {};
    save_checkpoint(folder.path(), {{"w", w}});
  });
}

TEST_CASE("a dry world has nothing to save, and loads nothing") {
  const TempFolder folder;
  run_ranks(2, [&](Rank&) {
    save_checkpoint(folder.path(), {{"w", distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({2}), "a"))}});
  });
  World::dry(2, 1)->run([&](Rank&) {
    const Tensor w = distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({2}), "a"));
    const Tensor elsewhere = distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({1}, {0}), "-"));
    for (const Tensor& tensor : {w, elsewhere, iota<float>({4})})
      check_refused([&] { save_checkpoint(folder.path(), {{"w", tensor}}); }, ErrorCode::no_data, "dry world");
    check_refused([&] { load_checkpoint(folder.path(), {{"v", w}}); }, ErrorCode::invalid_argument, "lacks 'v'");
    const uint64_t version = w.version();
    load_checkpoint(folder.path(), {{"w", w}});
    check(w.version() > version, "the write is counted");
  });
}

}  // namespace checkpoint_test
