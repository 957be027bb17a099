#include "comm/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "support/mesh_run.h"

namespace shard::test {
namespace {

using Bytes = std::vector<char>;

constexpr int64_t kLarge = 200'000;  // bytes: above what transports send at once, and above what an exchange packs

/// Byte i of what `member` has for `other`.
char pattern(int member, int other, int64_t i) { return static_cast<char>(31 * member + 17 * other + 7 * i + i / 251); }

Bytes filled(int member, int other, int64_t bytes) {
  Bytes data(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) data[static_cast<size_t>(i)] = pattern(member, other, i);
  return data;
}

void append(Bytes& to, const Bytes& data) { to.insert(to.end(), data.begin(), data.end()); }

void check_all_gather(Communicator& group) {
  const std::vector<std::function<int64_t(int)>> sizes = {[](int) { return 8; }, [](int i) { return i * 5 % 7 * 3; },
                                                          [](int i) { return i == 0 ? 12 : 0; }, [](int) { return 0; },
                                                          [](int i) { return kLarge + i; }};
  for (const auto& size : sizes) {
    std::vector<int64_t> bytes;
    Bytes expected;
    for (int i = 0; i < group.size(); ++i) {
      bytes.push_back(size(i));
      append(expected, filled(i, 0, size(i)));
    }
    const Bytes mine = filled(group.rank(), 0, size(group.rank()));
    Bytes got(expected.size(), 'x');
    group.all_gather({"test", "gather"}, mine.data(), got.data(), bytes).wait();
    check(got == expected, fmt::format("all_gather of {} bytes in all", expected.size()));
  }
}

void check_all_to_all(Communicator& group) {
  for (const int64_t unit : {int64_t{1}, int64_t{1000}, kLarge}) {
    const auto size = [&](int from, int to) { return (from * 3 + to * 5) % 4 * unit; };
    std::vector<int64_t> sends;
    std::vector<int64_t> receives;
    Bytes send;
    Bytes expected;
    for (int i = 0; i < group.size(); ++i) {
      sends.push_back(size(group.rank(), i));
      append(send, filled(group.rank(), i, sends.back()));
      receives.push_back(size(i, group.rank()));
      append(expected, filled(i, group.rank(), receives.back()));
    }
    Bytes got(expected.size(), 'x');
    group.all_to_all({"test", "shuffle"}, send.data(), sends, got.data(), receives).wait();
    check(got == expected, fmt::format("all_to_all in units of {}", unit));
  }
}

/// Small integers: every reduction of them is exact in every dtype.
template <class T>
T element(int member, int64_t i) {
  const auto small = static_cast<int>((member * 5 + i * 3) % 7);
  if constexpr (std::is_same_v<T, bool>) return small % 2 == 0;
  else if constexpr (std::is_same_v<T, uint8_t>) return static_cast<T>(small % 4);
  else return static_cast<T>(static_cast<float>(small - 3));
}

template <class T>
double as_double(T value) {
  return static_cast<double>(static_cast<Compute<T>>(value));
}

/// The reduction of element i over all members, in double; implemented independently of the library.
template <class T>
T reduced(int members, int64_t i, ReduceType type) {
  double value = as_double(element<T>(0, i));
  if (type == ReduceType::any || type == ReduceType::all) value = value != 0;
  for (int m = 1; m < members; ++m) {
    const double next = as_double(element<T>(m, i));
    switch (type) {
      case ReduceType::sum:
      case ReduceType::avg: value += next; break;
      case ReduceType::prod: value *= next; break;
      case ReduceType::max: value = std::max(value, next); break;
      case ReduceType::min: value = std::min(value, next); break;
      case ReduceType::any: value = value != 0 || next != 0; break;
      case ReduceType::all: value = value != 0 && next != 0; break;
    }
  }
  if constexpr (std::is_same_v<T, bool>) return value != 0;
  else if constexpr (std::is_same_v<T, double>) return type == ReduceType::avg ? value / members : value;
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(type == ReduceType::avg ? std::trunc(value / members) : value);
  else
    return static_cast<T>(type == ReduceType::avg ? static_cast<float>(value) / static_cast<float>(members)
                                                  : static_cast<float>(value));
}

template <class T>
void check_reductions(Communicator& group, ReduceType type) {
  const int n = group.size();
  const std::string what = fmt::format("of {} ({}) in a group of {}", to_string(dtype_of<T>), to_string(type), n);
  if (n == 1 && (type == ReduceType::any || type == ReduceType::all)) return;  // one value is unchanged
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{1000},
                              type == ReduceType::sum && size_of(dtype_of<T>) == 4 ? kLarge : int64_t{3}}) {
    const auto data = std::make_unique<T[]>(static_cast<size_t>(count) + 1);
    for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = element<T>(group.rank(), i);
    group.all_reduce({"test", "sum"}, data.get(), count, dtype_of<T>, type).wait();
    for (int64_t i = 0; i < count; ++i) {
      const T expected = reduced<T>(n, i, type);
      if (std::memcmp(&data[static_cast<size_t>(i)], &expected, sizeof(T)) == 0) continue;
      check(false, fmt::format("all_reduce {}: element {} of {} is {}, not {}", what, i, count,
                               as_double(data[static_cast<size_t>(i)]), as_double(expected)));
    }
  }
  // Uneven parts, one of them empty.
  std::vector<int64_t> counts;
  int64_t total = 0;
  int64_t begin = 0;
  for (int i = 0; i < n; ++i) {
    if (i == group.rank()) begin = total;
    counts.push_back(i == 1 ? 0 : 10 * i + 3);
    total += counts.back();
  }
  const auto send = std::make_unique<T[]>(static_cast<size_t>(total) + 1);
  for (int64_t i = 0; i < total; ++i) send[static_cast<size_t>(i)] = element<T>(group.rank(), i);
  const int64_t mine = counts[static_cast<size_t>(group.rank())];
  const auto got = std::make_unique<T[]>(static_cast<size_t>(mine) + 1);
  group.reduce_scatter({"test", "scatter"}, send.get(), got.get(), counts, dtype_of<T>, type).wait();
  for (int64_t i = 0; i < mine; ++i) {
    const T expected = reduced<T>(n, begin + i, type);
    if (std::memcmp(&got[static_cast<size_t>(i)], &expected, sizeof(T)) != 0)
      check(false, fmt::format("reduce_scatter {}: element {}", what, i));
  }
}

void check_broadcast(Communicator& group) {
  for (int root = 0; root < group.size(); ++root) {
    for (const int64_t bytes : {int64_t{0}, int64_t{3}, kLarge}) {
      Bytes data = filled(group.rank() == root ? root : 9, 0, bytes);
      group.broadcast({"test", "root"}, data.data(), bytes, root).wait();
      check(data == filled(root, 0, bytes), fmt::format("broadcast of {} bytes from member {}", bytes, root));
    }
  }
}

/// A matrix of [rows, columns] by rows, row r on member r % n: after the exchange by columns, column c on member c
/// % n; some pairs exchange nothing. `width` elements of 4 bytes make an entry.
void check_exchange(Communicator& group, int64_t width) {
  const int n = group.size();
  const int me = group.rank();
  const int64_t rows = 2 * n - 1;
  const int64_t columns = n + 1;
  const auto owned = [&](int64_t total, int member) { return total / n + (total % n > member ? 1 : 0); };
  const Dims before{owned(rows, me), columns, width};
  std::vector<int32_t> send;
  for (int64_t i = 0; i < before[0]; ++i) {
    for (int64_t c = 0; c < columns * width; ++c) send.push_back(static_cast<int32_t>((i * n + me) * 1'000'000 + c));
  }
  const Dims after{rows, owned(columns, me), width};
  std::vector<int32_t> got(static_cast<size_t>(after.numel()), -1);
  // Both ends list entries by row, then column.
  std::vector<BoxTransfer> sends;
  std::vector<BoxTransfer> receives;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int from = static_cast<int>(r % n);
      const int to = static_cast<int>(c % n);
      const Dims from_dims{owned(rows, from), columns, width};
      const Dims to_dims{rows, owned(columns, to), width};
      const BoxTransfer box{0, from_dims, {r / n, c, 0}, to_dims, {r, c / n, 0}, {1, 1, width}};
      if (from == me) sends.emplace_back(box).peer = to;
      if (to == me) receives.emplace_back(box).peer = from;
    }
  }
  group.exchange({"test", "boxes"}, send.data(), sends, got.data(), receives, 4).wait();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < after[1]; ++c) {
      for (int64_t k = 0; k < width; ++k) {
        const auto expected = static_cast<int32_t>(r * 1'000'000 + (c * n + me) * width + k);
        if (got[static_cast<size_t>((r * after[1] + c) * width + k)] != expected)
          check(false, fmt::format("exchange: row {}, column {}, element {}", r, c, k));
      }
    }
  }
}

/// A large box that is not contiguous in memory on either side, from each member to the next; and a call without
/// boxes.
void check_strided_exchange(Communicator& group) {
  const int n = group.size();
  const Dims dims{300, 400};
  std::vector<int32_t> send(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < send.size(); ++i) send[i] = group.rank() * 1'000'000 + static_cast<int32_t>(i);
  std::vector<int32_t> got(send.size(), -1);
  const int next = (group.rank() + 1) % n;
  const int last = (group.rank() + n - 1) % n;
  const std::vector<BoxTransfer> sends = {{next, dims, {10, 20}, dims, {5, 7}, {200, 300}}};
  const std::vector<BoxTransfer> receives = {{last, dims, {10, 20}, dims, {5, 7}, {200, 300}}};
  group.exchange({"test", "stride"}, send.data(), sends, got.data(), receives, 4).wait();
  for (int64_t r = 0; r < 300; ++r) {
    for (int64_t c = 0; c < 400; ++c) {
      const bool inside = r >= 5 && r < 205 && c >= 7 && c < 307;
      const auto expected = inside ? static_cast<int32_t>(last * 1'000'000 + (r + 5) * 400 + c + 13) : -1;
      if (got[static_cast<size_t>(r * 400 + c)] != expected)
        check(false, fmt::format("strided exchange: row {}, column {}", r, c));
    }
  }
  group.exchange({"test", "nothing"}, nullptr, {}, nullptr, {}, 4).wait();
}

/// Floats that do not add exactly: all members must get the same bits, those of the sum in member order.
void check_same_bits(Communicator& group) {
  const auto value = [](int member, int i) { return 1.0f / static_cast<float>(1 + i * 7 + member * 13); };
  std::vector<float> sum;
  std::vector<float> expected;
  for (int i = 0; i < 5000; ++i) {
    sum.push_back(value(group.rank(), i));
    float in_order = value(0, i);
    for (int m = 1; m < group.size(); ++m) in_order += value(m, i);
    expected.push_back(in_order);
  }
  group.all_reduce({"test", "bits"}, sum.data(), 5000, DType::float32, ReduceType::sum).wait();
  check(sum == expected, "the sum of floats is that in member order");
}

/// Several collectives in flight at once, waited for in another order on each member.
void check_handles(Communicator& group) {
  std::vector<std::vector<int64_t>> words(4, std::vector<int64_t>(1000, group.rank() + 1));
  std::vector<Work> works;
  for (auto& data : words)
    works.push_back(group.all_reduce({"test", "async"}, data.data(), 1000, DType::int64, ReduceType::sum));
  std::rotate(works.begin(), works.begin() + group.rank() % 4, works.end());
  const int64_t expected = int64_t{group.size()} * (group.size() + 1) / 2;
  for (Work& work : works) {
    work.wait();
    work.wait();
  }
  for (const auto& data : words)
    check(data == std::vector<int64_t>(1000, expected), "all_reduce under way with others");
}

/// All dtypes with all reductions.
void check_all_reductions(Communicator& group) {
  for (int d = 0; d < kNumDTypes; ++d) {
    visit_dtype(static_cast<DType>(d), [&](auto tag) {
      for (int t = 0; t < kNumReduceTypes; ++t)
        check_reductions<typename decltype(tag)::type>(group, static_cast<ReduceType>(t));
    });
  }
}

void check_group(Communicator& group) {
  check_all_gather(group);
  check_all_to_all(group);
  check_reductions<float>(group, ReduceType::sum);
  check_reductions<bfloat16>(group, ReduceType::avg);
  check_reductions<int64_t>(group, ReduceType::max);
  check_broadcast(group);
  check_exchange(group, 1);
  check_exchange(group, 50);
  check_exchange(group, kLarge / 8);
  check_strided_exchange(group);
  check_same_bits(group);
  check_handles(group);
}

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const ProcessMesh* grid() { return ProcessMesh::make({2, 2}, {}, {"a", "b"}); }

void sum_of_one(Rank& rank, const ProcessMesh* mesh, int axis, CommCause cause) {
  int32_t word = 1;
  rank.communicator(mesh, axis).all_reduce(cause, &word, 1, DType::int32, ReduceType::sum).wait();
}

void gather_words(Rank& rank, const ProcessMesh* mesh, CommCause cause) {
  std::vector<int32_t> out(static_cast<size_t>(mesh->size()));
  const int32_t word = rank.id();
  rank.communicator(mesh, 0).all_gather(cause, &word, out.data(), std::vector<int64_t>(out.size(), 4)).wait();
}

}  // namespace

void check_collectives(Rank& rank) {
  const int n = rank.world().size();
  check_group(rank.communicator(line(n), 0));
  check_all_reductions(rank.communicator(line(n), 0));
  if (n < 3) return;
  // Members in another order, and a group without rank 1.
  const ProcessMesh* others = ProcessMesh::make({2}, {2, 0}, {"q"});
  if (others->coordinate(rank.id())) check_group(rank.communicator(others, 0));
  if (n < 4) return;
  check_group(rank.communicator(grid(), 0));
  check_group(rank.communicator(grid(), 1));
}

const std::vector<Fault>& faults() {
  using namespace std::chrono_literals;
  static const std::vector<Fault> table = {
      {"a rank throws",
       [](Rank& rank) {
         if (rank.id() == 1) throw std::runtime_error("disk on fire");
         sum_of_one(rank, line(4), 0, {"sum", "x"});
       },
       {"disk on fire"}},
      {"a rank throws while others copy from it",
       [](Rank& rank) {
         std::vector<float> data(100'000, 1.0f);
         const Work work = rank.communicator(line(4), 0)
                               .all_reduce({"sum", "x"}, data.data(), 100'000, DType::float32, ReduceType::sum);
         if (rank.id() == 1) throw std::runtime_error("disk on fire");
       },
       {"disk on fire"}},
      {"a rank never joins",
       [](Rank& rank) {
         if (rank.id() != 1) gather_words(rank, line(4), {"matmul", "y"});
       },
       {"rank 1 never joined #0 all_gather for matmul argument 'y'"},
       400ms},
      {"a rank stops after some collectives",
       [](Rank& rank) {
         for (int i = 0; i < 5 && (rank.id() != 2 || i < 3); ++i) gather_words(rank, line(4), {"matmul", "y"});
       },
       {"rank 2 never joined #3 all_gather for matmul argument 'y'"},
       400ms},
      {"a rank is in another collective",
       [](Rank& rank) {
         if (rank.id() == 2) sum_of_one(rank, line(4), 0, {"sum", "x"});
         else gather_words(rank, line(4), {"matmul", "y"});
       },
       {"ranks have diverged"},
       20s,
       true},
      {"a rank has another dtype",
       [](Rank& rank) {
         int64_t word = 1;
         const DType dtype = rank.id() == 3 ? DType::float32 : DType::int32;
         rank.communicator(line(4), 0).all_reduce({"sum", "x"}, &word, 1, dtype, ReduceType::sum).wait();
       },
       {"1 float32 (sum) for sum argument 'x'"},
       20s,
       true},
      {"a rank has another count",
       [](Rank& rank) {
         std::array<int32_t, 9> words = {};
         rank.communicator(line(4), 0)
             .all_reduce({"sum", "x"}, words.data(), rank.id() == 0 ? 9 : 8, DType::int32, ReduceType::sum)
             .wait();
       },
       {"all_reduce of 9 int32 (sum)"},
       20s,
       true},
      {"a rank runs another op",
       [](Rank& rank) {
         sum_of_one(rank, line(4), 0, {rank.id() == 1 ? "add" : "multiply", "x"});
       },
       {"all_reduce of 1 int32 (sum) for add argument 'x'"},
       20s,
       true},
      {"the sizes of two members differ",
       [](Rank& rank) {
         const std::vector<int64_t> sends(4, 8);
         const std::vector<int64_t> receives(4, rank.id() == 1 ? 4 : 8);
         std::array<int64_t, 4> words = {};
         std::array<int64_t, 4> got = {};
         rank.communicator(line(4), 0).all_to_all({"move", "x"}, words.data(), sends, got.data(), receives).wait();
       },
       {"[move]"},
       20s},
      {"ranks visit two groups in different orders",
       [](Rank& rank) {
         for (const int turn : {0, 1})
           sum_of_one(rank, grid(), rank.id() == 0 || rank.id() == 3 ? turn : 1 - turn, {"sum", "x"});
       },
       {"never joined #0 all_reduce for sum argument 'x'"},
       400ms},
      {"a distributed call fails on one rank alone",
       [](Rank& rank) {
         const uint64_t call = rank.comm_queue().calls_done() + 1;
         rank.comm_queue().set_calls_done(call);
         if (rank.id() == 1) rank.call_failed(call, "an element is 0");
         sum_of_one(rank, line(4), 0, {"sum", "x"});
       },
       {"rank 1 failed in a distributed call that succeeded on rank"}},
      {"a distributed call fails on one rank while others wait for it",
       [](Rank& rank) {
         const uint64_t call = rank.comm_queue().calls_done() + 1;
         rank.comm_queue().set_calls_done(call);
         if (rank.id() == 1) {
           std::this_thread::sleep_for(50ms);
           rank.call_failed(call, "an element is 0");
           return gather_words(rank, grid(), {"matmul", "y"});
         }
         sum_of_one(rank, line(4), 0, {"sum", "x"});
       },
       {"rank 1 failed in a distributed call that succeeded on rank"}},
      {"a failure is caught, and the next collective fails at once",
       [](Rank& rank) {
         try {
           if (rank.id() != 1) gather_words(rank, line(4), {"matmul", "y"});
         } catch (const Error& error) {
           check(error.code() == ErrorCode::peer_failed, error.what());
           error_of([&] { sum_of_one(rank, line(4), 0, {"sum", "x"}); }, ErrorCode::peer_failed);
           throw std::runtime_error("told at once");
         }
       },
       {"told at once", "never joined"},
       400ms},
  };
  return table;
}

void check_fault(const Fault& fault, const std::function<std::unique_ptr<World>(WorldOptions)>& make_world) {
  auto world = make_world({.timeout = fault.timeout, .debug_comm = fault.debug});
  const int64_t begin = now_ns();
  std::string text;
  try {
    world->run(fault.program);
  } catch (const std::exception& error) { text = error.what(); }
  const auto told = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  check(!text.empty(), fault.name + ": nothing was thrown");
  check(std::any_of(fault.told.begin(), fault.told.end(), told),
        fmt::format("{}: '{}' in: {}", fault.name, fault.told.front(), text));
  check(now_ns() - begin < 10'000'000'000, fault.name + ": it took longer than 10 s");
  check_contains(error_of([&] { world->run([](Rank&) {}); }, ErrorCode::peer_failed), "has failed before");
}

}  // namespace shard::test
