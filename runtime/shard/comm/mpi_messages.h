// Messages of MPI in flight.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <vector>

#include "shard/comm/collective.h"
#include "shard/comm/mpi_channel.h"
#include "shard/core/error.h"

namespace shard {

/// A message in flight, or a part of one.
struct Message {
  int member;
  int64_t bytes;
  bool receive;
};

/// Requests of MPI with their messages.
class Messages {
 public:
  bool empty() const { return requests_.empty(); }
  void reserve(size_t count) {
    requests_.reserve(count);
    messages_.reserve(count);
  }
  void add(MPI_Request request, Message message) {
    requests_.push_back(request);
    messages_.push_back(message);
  }
  /// True when all are complete. Then throws communication if one of them failed or is shorter than
  /// expected.
  bool test(const Collective& c, const std::vector<int>& members) {
    int done = 0;
    statuses_.resize(requests_.size());
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (code == MPI_SUCCESS && done == 0) return false;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (code != MPI_SUCCESS) check_error(i, code, c, members);
      else if (messages_[i].receive) check_size(i, c, members);
    }
    check_mpi(code, "MPI_Testall");
    clear();
    return true;
  }
  /// The ranks, of those of the members, from or to which messages are still in flight.
  std::vector<int> unfinished(const std::vector<int>& members) const {
    std::vector<int> ranks;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);  // keeps the status for test()
      const int rank = members[static_cast<size_t>(messages_[i].member)];
      if (done == 0 && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  /// After a failure: cancels receives, so that nothing arrives in buffers that are about to be
  /// freed.
  void abandon() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (messages_[i].receive) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
    clear();
  }

 private:
  void clear() {
    requests_.clear();
    messages_.clear();
  }
  void check_error(size_t i, int code, const Collective& c, const std::vector<int>& members) const {
    const int error = code == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : code;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) return;
    int kind = MPI_SUCCESS;
    MPI_Error_class(error, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      shard::fail(ErrorCode::communication, "[{}] in {} rank {} sends more than the {} bytes that are expected",
                  c.cause.op, c.describe(), members[static_cast<size_t>(messages_[i].member)], messages_[i].bytes);
    }
    check_mpi(error, "a message of MPI");
  }
  void check_size(size_t i, const Collective& c, const std::vector<int>& members) const {
    const int peer = members[static_cast<size_t>(messages_[i].member)];
    int bytes = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    if (bytes != messages_[i].bytes) {
      shard::fail(ErrorCode::communication, "[{}] in {} rank {} sends {} bytes where {} are expected", c.cause.op,
                  c.describe(), peer, bytes, messages_[i].bytes);
    }
  }

  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace shard
