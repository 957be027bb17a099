// Errors about data that kernels find (an index outside a dim): where a kernel leaves the first one, and when the host looks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shard/core/cuda/cuda_call.cuh"

namespace shard::cuda {

/// What a kernel found. It is in pinned memory of the host, which devices write to, so that a stream that was waited for
/// anyway has left it there. Each thread has one for each device, so that the thread which made a call is told.
struct DataError {
  static constexpr size_t kDescriptionBytes = 384;

  unsigned lock;    // held by the thread of a kernel that writes the rest
  unsigned is_set;  // written last
  uint64_t check;   // the number of the check that failed
  int64_t position, value;
  /// Throws the Error of the check; a function of the host.
  void (*report)(const void* description, int64_t position, int64_t value);
  alignas(16) unsigned char description[kDescriptionBytes];
};

/// That of this thread on the current device. The first call allocates, which a recording forbids: graph_begin calls it before.
DataError* data_error();

/// A number for a check. Of the errors of one check, the one at the first position is kept; of several checks, that of the
/// kernel that ran first.
uint64_t next_check();

/// Throws what the kernels of this thread found in their data on the current device, as an Error that is no CheckError, because results
/// were written. Only where all that this thread has issued to its stream there has ended: a kernel that runs may still be writing.
void throw_data_error();

/// Waits for the stream of this thread on the current device. Throws as throw_data_error does, else Error(device) for failed work.
void wait_for_stream();
/// Waits for an event of the current device, which work may follow that still runs: what kernels found in their data is left to others.
/// Throws Error(device) for failed work.
void wait_for_event(cudaEvent_t event);

/// Called after each launch of a kernel with a check. With SHARD_CUDA_SYNC_CHECKS=1 in the environment it waits for the
/// stream, so that the call itself throws that has the wrong data; not in a recording.
void checked_launch();

}  // namespace shard::cuda
