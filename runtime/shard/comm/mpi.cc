#include "shard/comm/mpi.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // after mpi.h
#endif

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>
#include <string_view>
#include <thread>

#include "shard/comm/mpi_channel.h"
#include "shard/comm/mpi_operation.h"
#include "shard/core/error.h"
#include "shard/core/waiting.h"
#include "shard/kernels/device_work.h"

namespace shard {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kGrace = 100 * kMillisecond;         // for collectives in flight when the world fails
constexpr int64_t kAnswerTime = 200 * kMillisecond;    // for answers to a question
constexpr int64_t kArrivalTime = 2000 * kMillisecond;  // for what a rank sent before it ended its program
constexpr int kPollsPerCheck = 32;                     // of the clock and of control messages
// A waiting rank polls (MPI itself yields then, if it was told that processes share cores), then
// also yields, then sleeps.
constexpr int64_t kSpinTime = kMillisecond / 2;
constexpr int64_t kYieldTime = 1000 * kMillisecond;
constexpr std::chrono::microseconds kNap{200};
constexpr int64_t kHookTime = 100 * kMillisecond;  // between calls of WaitHooks::poll
constexpr size_t kMaxText = 4000;

bool is_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

/// The MPI library in this process. It is finalised when the process exits, if it was initialised
/// here and no world has failed: with a missing rank, MPI_Finalize would not return. A process that this one
/// forks is not part of the job.
class MpiRuntime {
 public:
  static MpiRuntime& get() {
    static MpiRuntime runtime;
    return runtime;
  }
  MpiRuntime(const MpiRuntime&) = delete;
  ~MpiRuntime() {
    if (initialized_here_ && process_ == getpid() && !failed && !is_finalized()) MPI_Finalize();
  }

  bool failed = false;

 private:
  MpiRuntime() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) return;
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    initialized_here_ = true;
    if (provided < MPI_THREAD_FUNNELED)
      shard::fail(ErrorCode::communication, "this MPI library does not support programs with threads");
  }

  bool initialized_here_ = false;
  const pid_t process_ = getpid();
};

MPI_Comm duplicate_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

int rank_in(MPI_Comm communicator) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}

int members_of(MPI_Comm communicator) {
  int size = 0;
  MPI_Comm_size(communicator, &size);
  return size;
}

/// Whether this MPI library takes pointers to memory of CUDA: what the environment variable SHARD_MPI_CUDA says, or the library.
bool takes_cuda_memory() {
  if (const char* const variable = std::getenv("SHARD_MPI_CUDA"); variable != nullptr && *variable != '\0') {
    const std::string_view value = variable;
    if (value == "0" || value == "1") return value == "1";
    shard::fail(ErrorCode::invalid_argument, "SHARD_MPI_CUDA is '{}': it is 1 where MPI takes memory of CUDA, else 0",
                value);
  }
#if defined(OPEN_MPI) && defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() != 0;
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH
  int is_supported = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported) == MPI_SUCCESS && is_supported != 0;
#else
  return false;
#endif
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  shard::fail(ErrorCode::communication, "{} failed: {}", what, text);
}

namespace {

/// A message about a call: its number, a space and a text.
std::string call_message(uint64_t call, const std::string& text) { return fmt::format("{} {}", call, text); }

std::pair<uint64_t, std::string> read_call_message(const std::string& message) {
  return {std::strtoull(message.c_str(), nullptr, 10), message.substr(message.find(' ') + 1)};
}

}  // namespace

std::unique_ptr<MpiHub> MpiHub::make(const CommOptions& options, std::shared_ptr<PartialFailures> failures) {
  MpiRuntime::get();
  return std::make_unique<MpiChannel>(options, std::move(failures));
}

MpiChannel::MpiChannel(const CommOptions& options, std::shared_ptr<PartialFailures> failures)
    : options_(options), data_(duplicate_world()), notes_(duplicate_world()), control_(duplicate_world()),
      rank_(rank_in(data_)), size_(members_of(data_)), takes_cuda_memory_(takes_cuda_memory()),
      partial_failures_(std::move(failures)),
      devices_(rank_, options.timeout,
               {[this] { check_peers(); },
                [this](const std::string& reason) {
                  if (failure_.empty()) fail(kFailure, reason, reason);
                  else if (devices_.has_groups())
                    poll_until([] { return false; }, kGrace);  // while the others are told
                },
                [this] { poll_hooks(); }}) {
  void* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(data_, MPI_TAG_UB, &limit, &found);
  tag_limit_ = found != 0 ? *static_cast<int*>(limit) : 32767;
}

MpiChannel::~MpiChannel() {
  if (!failure_.empty()) {
    devices_.give_up(failure_);  // members of which some have ended may wait for each other forever
    // Freeing is collective, and other ranks may never call it. Messages that have not arrived are leaked on purpose: they are still
    // being sent from.
    static_cast<void>(new std::list<Outgoing>(std::move(outgoing_)));
    return;
  }
  if (is_finalized()) return;
  MPI_Comm_free(&data_);
  MPI_Comm_free(&notes_);
  MPI_Comm_free(&control_);
}

std::unique_ptr<Communicator> MpiChannel::communicator(const std::vector<int>& members, int rank, CommQueue& queue) {
  return make_mpi_communicator(*this, members, rank, queue);
}

void MpiChannel::set_device(Device device) {
  device_ = device;
  constexpr size_t kIdBytes = MPI_MAX_PROCESSOR_NAME + 64;
  std::string id;
  std::exception_ptr error;  // the others are told after they have called the collective, which has no timeout
  try {
    const DeviceWork* const work = device_work(device);
    if (work != nullptr && work->machine_id != nullptr) {
      char machine[MPI_MAX_PROCESSOR_NAME] = {};
      int length = 0;
      check_mpi(MPI_Get_processor_name(machine, &length), "MPI_Get_processor_name");
      id = fmt::format("{} {}", machine, work->machine_id(device.index));
      if (id.size() > kIdBytes) shard::fail(ErrorCode::device, "the name of {} is too long: {}", to_string(device), id);
    }
  } catch (...) {
    error = std::current_exception();
    id.clear();
  }
  std::vector<char> all(kIdBytes * static_cast<size_t>(size_));
  id.resize(kIdBytes);
  check_mpi(MPI_Allgather(id.data(), kIdBytes, MPI_CHAR, all.data(), kIdBytes, MPI_CHAR, data_), "MPI_Allgather");
  device_ids_.clear();
  for (size_t i = 0; i < static_cast<size_t>(size_); ++i) {
    const std::string_view padded(all.data() + i * kIdBytes, kIdBytes);
    device_ids_.emplace_back(padded.substr(0, padded.find('\0')));
  }
  if (error) {
    const std::string reason = fmt::format("rank {} cannot use its device {}", rank_, to_string(device));
    fail(kFailure, reason, reason);
    std::rethrow_exception(error);
  }
}

std::string* MpiChannel::device_group_id(const std::vector<int>& members, Device device) {
  if (members.size() < 2 || device != device_) return nullptr;
  const auto found = device_group_ids_.find(members);
  if (found != device_group_ids_.end()) return &found->second;
  std::set<std::string_view> different;
  for (const int member : members) {
    const std::string& id = device_ids_[static_cast<size_t>(member)];
    if (id.empty() || !different.insert(id).second) return nullptr;
  }
  return &device_group_ids_[members];
}

bool MpiChannel::takes_memory_of(Device device) const {
  const DeviceWork* const work = device_work(device);
  return takes_cuda_memory_ && work != nullptr && work->is_cuda_memory;
}

int MpiChannel::tag(uint64_t hash, int phase) const {
  const auto limit = static_cast<uint64_t>(tag_limit_) / 4;
  return static_cast<int>((hash % limit) * 4) + phase;
}

std::vector<char> MpiChannel::take_scratch(size_t bytes) {
  std::vector<char> scratch;
  if (!scratch_.empty()) {
    scratch = std::move(scratch_.back());
    scratch_.pop_back();
  }
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch;
}

void MpiChannel::check_alive() const {
  if (!failure_.empty()) shard::fail(ErrorCode::peer_failed, "{}", failure_);
}

void MpiChannel::poll_hooks() {
  if (now_ns() < next_hook_ || wait_hooks().poll == nullptr) return;
  next_hook_ = now_ns() + kHookTime;
  wait_hooks().poll();
}

void MpiChannel::check_peers() {
  if (!is_finalized()) {  // a program may wait for its devices after that
    poll_all_control();
    poll_all_control();  // MPI may look at the network only after it has answered that there is nothing
  }
  check_alive();
}

void MpiChannel::send_control(int to, int tag, const std::string& text) {
  Outgoing& message = outgoing_.emplace_back(Outgoing{text.substr(0, kMaxText), MPI_REQUEST_NULL});
  // The send of a failure ends when the other rank has begun to receive it.
  const auto send = tag == kFailure || tag == kPartialFailure ? MPI_Issend : MPI_Isend;
  send(message.text.data(), static_cast<int>(message.text.size()), MPI_CHAR, to, tag, control_, &message.request);
}

bool MpiChannel::all_sent() {
  outgoing_.remove_if([](Outgoing& message) {
    int done = 0;
    MPI_Test(&message.request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
  return outgoing_.empty();
}

std::vector<int> MpiChannel::ended_of(const std::vector<int>& ranks, int64_t begin) const {
  std::vector<int> found;
  for (const int rank : ranks) {
    const auto end = ended_.find(rank);
    if (end == ended_.end()) continue;
    if (now_ns() - std::max(end->second.time, begin) > kArrivalTime) found.push_back(rank);
  }
  return found;
}

void MpiChannel::call_failed(uint64_t call, const std::string& text) noexcept {
  try {
    failed_calls_.add(call, rank_, size_, text);
    for (int to = 0; to < size_; ++to) {
      if (to != rank_) send_control(to, kCallFailed, call_message(call, text));
    }
  } catch (...) {  // out of memory: ranks that wait for this one find out by their timeouts
  }
}

void MpiChannel::report_calls_done(uint64_t calls) {
  calls_done_ = calls;
  poll_all_control();
  fail_on_partial_failure();
  check_alive();
}

void MpiChannel::fail_on_partial_failure() {
  if (failed_calls_.empty() || !failure_.empty()) return;
  const FailedCalls::PartialFailure failure = failed_calls_.find_partial_failure(rank_, calls_done_);
  if (failure.text.empty()) return;
  partial_failures_->set(failure.call, failure.text);
  fail(kPartialFailure, failure.text, call_message(failure.call, failure.text));
}

void MpiChannel::fail(ControlTag tag, const std::string& reason, const std::string& message) noexcept {
  if (!failure_.empty()) return;
  try {
    failure_ = reason;
    if (is_finalized()) return;
    MpiRuntime::get().failed = true;
    for (int to = 0; to < size_; ++to) {
      if (to != rank_) send_control(to, tag, message);
    }
    poll_until([this] { return all_sent(); }, kGrace);
  } catch (...) {  // out of memory: the others find out by their timeouts
  }
}

bool MpiChannel::poll_control() {
  int there = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &there, &status);
  if (there == 0) return false;
  int length = 0;
  MPI_Get_count(&status, MPI_CHAR, &length);
  std::string text(static_cast<size_t>(length), ' ');
  MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, control_, MPI_STATUS_IGNORE);
  switch (status.MPI_TAG) {
    case kFailure:
      answers_.push_back(text);
      if (failure_.empty()) failure_ = text;
      MpiRuntime::get().failed = true;
      break;
    case kPartialFailure: {
      const auto [call, reason] = read_call_message(text);
      partial_failures_->set(call, reason);
      if (failure_.empty()) failure_ = reason;
      MpiRuntime::get().failed = true;
      break;
    }
    case kCallFailed: {
      auto [call, reason] = read_call_message(text);
      failed_calls_.add(call, status.MPI_SOURCE, size_, std::move(reason));
      fail_on_partial_failure();
      break;
    }
    case kQuestion:
      send_control(status.MPI_SOURCE, kAnswer,
                   fmt::format("rank {} is {}", rank_,
                               rank_status_ ? rank_status_() : "between collectives, or waits for its device"));
      break;
    case kEnded: ended_[status.MPI_SOURCE] = {std::strtoull(text.c_str(), nullptr, 10), now_ns()}; break;
    default: answers_.push_back(text);
  }
  return true;
}

bool MpiChannel::poll_until(const std::function<bool()>& done, int64_t timeout_ns) {
  const int64_t begin = now_ns();
  int64_t waited = 0;
  int64_t next_hook = kHookTime;
  for (int polls = 1; !done(); ++polls) {
    if (polls % kPollsPerCheck == 0) {
      poll_all_control();
      waited = now_ns() - begin;
      if (waited > next_hook && failure_.empty() && wait_hooks().poll != nullptr) {
        next_hook = waited + kHookTime;
        wait_hooks().poll();
      }
      if (waited > timeout_ns) return done();
      if (waited > kYieldTime) std::this_thread::sleep_for(kNap);
    }
    if (waited > kSpinTime) std::this_thread::yield();
  }
  return true;
}

bool MpiChannel::wait(const std::function<bool()>& done, std::chrono::milliseconds timeout) {
  const int64_t limit = timeout.count() == 0 ? INT64_MAX : std::chrono::nanoseconds(timeout).count();
  const bool in_time = poll_until([&] { return !failure_.empty() || done(); }, limit);
  // A rank reports a failed call before it starts its next collective.
  if (in_time && failure_.empty()) poll_all_control();
  if (failure_.empty()) return in_time;
  // Peers may be reading this rank's buffers, so they get time to finish.
  poll_until(done, kGrace);
  check_alive();
  return false;
}

std::string MpiChannel::ask_rank_status(const std::vector<int>& ranks) {
  answers_.clear();
  for (const int rank : ranks) send_control(rank, kQuestion, "");
  poll_until([&] { return answers_.size() >= ranks.size(); }, kAnswerTime);
  std::string text;
  for (const std::string& answer : answers_) text += "; " + answer;
  if (answers_.size() < ranks.size()) text += "; a rank that does not answer is computing, or has exited";
  failure_.clear();  // this rank has a failure of its own to report
  return text;
}

void MpiChannel::meet(uint64_t calls) {
  report_calls_done(calls);
  const WaitScope scope;
  set_rank_status([] { return "at the end of its program"; });
  for (int to = 0; to < size_; ++to) {
    if (to != rank_) send_control(to, kEnded, std::to_string(meetings_));
  }
  const auto all_here = [&] {
    const auto is_here = [&](const auto& end) { return end.second.meeting >= meetings_; };
    return std::count_if(ended_.begin(), ended_.end(), is_here) == size_ - 1 && all_sent();
  };
  wait(all_here, std::chrono::milliseconds(0));
  ++meetings_;
  std::erase_if(ended_, [&](const auto& end) { return end.second.meeting < meetings_; });
  set_rank_status({});
}

}  // namespace shard
