// Communicators of the processes of an MPI job, which exchange files in a folder. A call is run when it is issued: no process knows
// when another one waits for its device.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "memory.h"
#include "nccl_call.h"

namespace cuda_host::nccl {
namespace {

namespace fs = std::filesystem;

class JobLink final : public Link {
 public:
  JobLink(fs::path folder, int size, int member, int device)
      : folder_(std::move(folder)), size_(size), member_(member), device_(device) {
    write(folder_, member, name("joined", member), &device, sizeof(device), nullptr, 0);
  }

  ncclResult_t state() override {
    if (!has_joined_) {
      std::set<std::string> devices;
      for (int i = 0; i < size_; ++i) {
        if (!fs::exists(folder_ / name("joined", i))) return ncclInProgress;
        devices.insert(read(name("joined", i)));
      }
      if (devices.size() < static_cast<size_t>(size_)) return ncclInvalidUsage;  // two members on one device
      has_joined_ = true;
    }
    while (!issued_.empty()) {
      if (!finish(*issued_.front())) return ncclInProgress;
      issued_.erase(issued_.begin());
    }
    return ncclSuccess;
  }

  ncclResult_t issue(const Calls& calls) override {
    for (const auto& call : calls) {
      call->number =
          numbers_[{call->kind == Kind::receive ? call->peer : member_, call->kind == Kind::send      ? call->peer
                                                                        : call->kind == Kind::receive ? member_
                                                                                                      : -1}]++;
      const auto is_sent = std::make_shared<bool>(false);
      submit(call->stream, [call, is_sent, folder = folder_, size = size_, member = member_, device = device_] {
        const DeviceAccess access;
        arrive(*call);
        use_buffers(*call, size, device);
        if (call->kind != Kind::receive)
          write(folder, member, file_of(*call, member, member), call.get(), sizeof(Call), call->send,
                send_bytes(*call, size));
        *is_sent = true;
      });
      try {
        run_until(call->stream, [&] { return *is_sent; });
      } catch (const Stuck&) {}  // a call before it hangs
      if (!*is_sent) return ncclUnhandledCudaError;
    }
    issued_ = calls;
    return ncclSuccess;
  }

 private:
  static std::string name(const char* what, int member) { return what + std::to_string(member); }
  /// What `member` sends to this call of member `me`.
  static std::string file_of(const Call& call, int me, int member) {
    std::string text = std::to_string(call.number) + "." + std::to_string(member);
    if (is_transfer(call)) text += "to" + std::to_string(call.kind == Kind::send ? call.peer : me);
    return text;
  }
  /// Nobody sees a part of it.
  static void write(const fs::path& folder, int member, const std::string& file, const void* header,
                    size_t header_bytes, const void* data, size_t bytes) {
    const fs::path part = folder / name("part", member);
    std::ofstream out(part, std::ios::binary);
    out.write(static_cast<const char*>(header), static_cast<std::streamsize>(header_bytes));
    if (bytes > 0) out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    out.close();
    fs::rename(part, folder / file);
  }
  std::string read(const std::string& file) const {
    std::ifstream in(folder_ / file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// False while others have not come to the call.
  bool finish(Call& call) {
    if (call.kind == Kind::send) return true;
    std::vector<int> senders;
    if (call.kind == Kind::receive) senders.push_back(call.peer);
    for (int i = 0; call.kind != Kind::receive && i < size_; ++i) senders.push_back(i);
    for (const int i : senders) {
      if (!fs::exists(folder_ / file_of(call, member_, i))) return false;
    }
    Calls others;
    std::vector<std::string> data;
    for (const int i : senders) {
      data.push_back(read(file_of(call, member_, i)));
      auto other = std::make_shared<Call>(call);
      std::memcpy(static_cast<void*>(other.get()), data.back().data(), sizeof(Call));
      others.push_back(std::move(other));
    }
    for (size_t i = 0; i < others.size(); ++i) others[i]->send = data[i].data() + sizeof(Call);
    std::vector<char> result;
    std::string wrong;
    try {
      for (const auto& other : others) check_fits(call, *other);
      if (call.kind == Kind::receive) result.assign(data[0].begin() + sizeof(Call), data[0].end());
      else result = result_of(others, static_cast<size_t>(member_));
    } catch (const std::exception& error) { wrong = error.what(); }
    submit(call.stream, [call, result, wrong] {
      if (!wrong.empty()) throw Finding(wrong);
      check_runs(call);
      const DeviceAccess access;
      give(call, result);
    });
    if (call.kind == Kind::receive) fs::remove(folder_ / file_of(call, member_, call.peer));
    else if (call.number > 0) {  // others have read that of the collective before
      Call before = call;
      --before.number;
      fs::remove(folder_ / file_of(before, member_, member_));
    }
    return true;
  }

  fs::path folder_;
  int size_, member_, device_;
  bool has_joined_ = false;
  Calls issued_;
  std::map<std::pair<int, int>, size_t> numbers_;  // of the next call, by sender and receiver
};

}  // namespace

bool is_job() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr; }

void make_job_id(ncclUniqueId& id) {
  struct Folders {  // they are removed when the job has ended
    ~Folders() {
      std::error_code ignored;
      for (const std::string& folder : made) fs::remove_all(folder, ignored);
    }
    std::vector<std::string> made;
  };
  static Folders folders;
  std::string folder = (fs::temp_directory_path() / "shard-nccl-XXXXXX").string();
  if (folder.size() >= sizeof(id.internal) || mkdtemp(folder.data()) == nullptr) return;
  folders.made.push_back(folder);
  std::memcpy(id.internal, folder.data(), folder.size());
}

std::unique_ptr<Link> join_job(const ncclUniqueId& id, int size, int member, int device) {
  const std::string folder(id.internal, strnlen(id.internal, sizeof(id.internal)));
  if (folder.empty() || !fs::is_directory(folder)) return nullptr;
  return std::make_unique<JobLink>(folder, size, member, device);
}

}  // namespace cuda_host::nccl
