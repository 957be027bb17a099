// Buffers: states, versions, detachment and poison; and how views of them overlap.
#include "shard/core/storage.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/partial_failures.h"
#include "support/mesh_run.h"

namespace storage_test {

using namespace shard;
using shard::test::error_of;

namespace {

Ref<Storage> buffer(size_t bytes = 16) { return Storage::allocate(kCpu, bytes); }

/// Makes `copy` a detached copy of `source`.
void detach(const Ref<Storage>& copy, const Ref<Storage>& source) {
  copy->detach({source, source->version(), "reshape", "x", "[p, -]", "[p]", {}, {}});
}

}  // namespace

TEST_CASE("2: an unallocated storage has a size and a version and no bytes, and its meter counts it while it lives") {
  MemoryMeter meter;
  {
    const DenseTensor x = DenseTensor::allocate(kCpu, {{int64_t{1} << 20, int64_t{1} << 20}, DType::float32}, &meter);
    CHECK(x.storage()->state() == Storage::State::unallocated);
    CHECK_FALSE(x.has_data());
    CHECK(x.raw() == nullptr);
    CHECK(x.storage()->bytes() == size_t{1} << 42);
    CHECK(meter.live == int64_t{1} << 42);
    x.storage()->bump("relu");
    CHECK(x.storage()->version() == 1);
    const DenseTensor view = x.reinterpret({{int64_t{1} << 40}, DType::float32});
    CHECK(meter.live == int64_t{1} << 42);
    const DenseTensor copy = clone(view);
    CHECK_FALSE(copy.has_data());
    CHECK(meter.live == int64_t{1} << 43);
    copy_into(copy, x);  // nothing to copy
  }
  CHECK(meter.live == 0);
  CHECK(meter.peak == int64_t{1} << 43);
}

TEST_CASE("2: a storage that drops its data becomes unallocated and keeps version and size") {
  MemoryMeter meter;
  for (const size_t bytes : {size_t{16}, size_t{4096}}) {
    const Ref<Storage> storage = Storage::allocate(kCpu, bytes);
    storage->bump("relu");
    storage->drop_data(meter);
    CHECK(storage->state() == Storage::State::unallocated);
    CHECK(storage->data() == nullptr);
    CHECK(storage->bytes() == bytes);
    CHECK(storage->version() == 1);
    CHECK(meter.live == static_cast<int64_t>(bytes));
    storage->drop_data(meter);  // once
    CHECK(meter.live == static_cast<int64_t>(bytes));
  }
  const Ref<Storage> absent = Storage::absent();
  absent->drop_data(meter);
  CHECK(absent->state() == Storage::State::absent);
  CHECK(meter.live == 0);
}

TEST_CASE("2: a storage is held, also with 0 bytes, or absent") {
  CHECK(buffer()->state() == Storage::State::held);
  CHECK(buffer(0)->state() == Storage::State::held);
  CHECK(buffer(0)->bytes() == 0);
  const Ref<Storage> absent = Storage::absent();
  CHECK(absent->state() == Storage::State::absent);
  CHECK(absent->bytes() == 0);
  absent->bump("relu_");
  CHECK(absent->version() == 1);
}

TEST_CASE("small and large buffers keep their bytes") {
  for (size_t bytes : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, size_t{1} << 20}) {
    const Ref<Storage> storage = buffer(bytes);
    std::memset(storage->data(), 0x5a, bytes);
    CHECK(static_cast<const unsigned char*>(storage->data())[bytes - 1] == 0x5a);
    CHECK(reinterpret_cast<uintptr_t>(storage->data()) % 64 % alignof(std::max_align_t) == 0);
  }
}

TEST_CASE("an adopted buffer stays where it is, and drops its owner with the last reference") {
  for (const int64_t count : {4, 1000}) {  // also as small as those that are allocated with their storage
    auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(count), 1.0F);
    const std::weak_ptr<std::vector<float>> alive = values;
    float* const data = values->data();
    const Meta meta{{count}, DType::float32};
    {
      const DenseTensor x(Storage::adopt(kCpu, data, meta.bytes(), std::move(values)), meta);
      CHECK(x.raw() == data);
      CHECK(x.storage()->state() == Storage::State::held);
      CHECK(x.storage()->bytes() == meta.bytes());
      const DenseTensor copy = clone(x);
      CHECK(copy.raw() != data);
      x.data<float>()[3] = 2;
      CHECK(data[3] == 2);
      CHECK(copy.data<float>()[3] == 1);
      const Ref<Storage> view = buffer();
      detach(view, x.storage());  // the source of a copy lives on, without its bytes
      CHECK_FALSE(alive.expired());
    }
    CHECK(alive.expired());
  }
  MemoryMeter meter;
  auto values = std::make_shared<std::vector<float>>(4);
  const std::weak_ptr<std::vector<float>> alive = values;
  float* const data = values->data();
  const Ref<Storage> dropped = Storage::adopt(kCpu, data, 16, std::move(values));
  dropped->drop_data(meter);
  CHECK(alive.expired());
  CHECK(meter.live == 16);
  error_of([] { Storage::adopt(kCpu, nullptr, 0, nullptr); }, ErrorCode::internal);
}

TEST_CASE("a write counts once and leaves its name") {
  const Ref<Storage> storage = buffer();
  CHECK(storage->version() == 0);
  CHECK(storage->last_write() == nullptr);
  storage->bump("add_");
  CHECK(storage->version() == 1);
  CHECK(LastWrite::text(storage->last_write()) == "[add_]");
}

TEST_CASE("a view of a copy can be read until its source is written, and cannot be written") {
  const Ref<Storage> source = buffer();
  const Ref<Storage> view = buffer();
  detach(view, source);
  CHECK_NOTHROW(view->check_read());
  CHECK_THAT(error_of([&] { view->check_write("relu_"); }, ErrorCode::view_of_copy),
             Catch::Contains("[relu_]") && Catch::Contains("[reshape]") && Catch::Contains("from [p, -] to [p]"));
  CHECK_NOTHROW(source->check_write("exp_"));
  source->bump("exp_");
  CHECK(view->stale());
  CHECK_THAT(error_of([&] { view->check_read(); }, ErrorCode::stale_view),
             Catch::Contains("exp_ has written the source since"));
  error_of([&] { view->check_write("relu_"); }, ErrorCode::stale_view);
  view->mark_in_sync();
  CHECK_FALSE(view->stale());
  CHECK_NOTHROW(view->check_read());
}

TEST_CASE("a view of a view is stale with the first source, and the error names that writer") {
  const Ref<Storage> source = buffer();
  const Ref<Storage> middle = buffer();
  const Ref<Storage> view = buffer();
  detach(middle, source);
  detach(view, middle);
  source->bump("tanh_");
  CHECK_THAT(error_of([&] { view->check_read(); }, ErrorCode::stale_view), Catch::Contains("tanh_"));
}

TEST_CASE("a view of a copy keeps its source alive") {
  const Ref<Storage> view = buffer();
  {
    const Ref<Storage> source = buffer();
    source->bump("add_");
    detach(view, source);
  }
  REQUIRE(view->detachment() != nullptr);
  CHECK(view->detachment()->source->version() == 1);
}

TEST_CASE("a source that only its copies refer to holds no bytes, and they ask it for its version alone") {
  MemoryMeter meter;
  const auto planned = [&] { return Storage::unallocated(kCpu, 1000, meter); };
  const Ref<Storage> view = planned();
  {
    const Ref<Storage> source = planned();
    detach(view, source);
    source->bump("tanh_");
    CHECK(meter.live == 2000);
  }
  CHECK(meter.live == 1000);
  CHECK_THAT(error_of([&] { view->check_read(); }, ErrorCode::stale_view), Catch::Contains("tanh_"));
}

TEST_CASE("a copy whose source is gone is a copy of what that was a copy of") {
  MemoryMeter meter;
  const auto planned = [&] { return Storage::unallocated(kCpu, 1000, meter); };
  const Ref<Storage> root = planned();
  const Ref<Storage> view = planned();
  const Ref<Storage> late = planned();  // stale before the one in between is destroyed: it stays stale
  {
    const Ref<Storage> middle = planned();
    detach(middle, root);
    detach(late, middle);
    middle->bump("exp_");
    detach(view, middle);
    CHECK(view->detachment()->source.get() == middle.get());
  }
  CHECK(meter.live == 3000);
  CHECK(view->detachment()->source.get() == root.get());
  CHECK_FALSE(view->detachment()->origin.get() == root.get());
  CHECK(late->stale());
  CHECK_NOTHROW(view->check_read());
  error_of([&] { view->check_write("relu_"); }, ErrorCode::view_of_copy);
  root->bump("tanh_");
  CHECK_THAT(error_of([&] { view->check_read(); }, ErrorCode::stale_view), Catch::Contains("tanh_"));
  CHECK_THAT(error_of([&] { late->check_read(); }, ErrorCode::stale_view), Catch::Contains("exp_"));
}

TEST_CASE("a chain of copies is as long as what tensors refer to, whichever goes first") {
  MemoryMeter meter;
  constexpr int kRounds = 150'000;
  // Like a tensor whose buffer is replaced again and again, while another one keeps its first buffer, and a third
  // the second to last.
  Ref<Storage> now = Storage::unallocated(kCpu, 1000, meter);
  const Ref<Storage> first = now;
  Ref<Storage> before;
  for (int i = 0; i < kRounds; ++i) {
    const Ref<Storage> next = Storage::unallocated(kCpu, 1000, meter);
    detach(now, next);
    before = now;
    now = next;
    REQUIRE(meter.live <= 4000);
  }
  int length = 0;
  for (const Storage* s = first.get(); s->detachment() != nullptr; s = s->detachment()->source.get()) ++length;
  CHECK(length == 2);
  CHECK_FALSE(first->stale());
  now->bump("add_");
  CHECK(first->stale());
  before = nullptr;
  now = nullptr;
  CHECK(meter.live == 1000);
}

TEST_CASE("copies are handed over to the source of their source where they can follow it, and stale ones stay stale") {
  const Ref<Storage> root = buffer();
  const Ref<Storage> middle = buffer();
  const Ref<Storage> behind = buffer();
  const Ref<Storage> view = buffer();
  const Ref<Storage> other = buffer();
  const auto all = [](const Detachment&) { return true; };
  detach(behind, middle);
  middle->bump("exp_");
  detach(view, middle);
  other->detach({middle, middle->version(), "flatten", "x", "[p, -]", "[p]", {}, {}});
  middle->reparent_copies(all);  // it is not a copy
  CHECK(view->detachment()->source.get() == middle.get());
  detach(middle, root);
  middle->reparent_copies([](const Detachment& copy) { return copy.op == "reshape"; });
  CHECK(view->detachment()->source.get() == root.get());
  CHECK(behind->detachment()->source.get() == root.get());
  CHECK(other->detachment()->source.get() == middle.get());
  CHECK_NOTHROW(view->check_read());
  CHECK_THAT(error_of([&] { behind->check_read(); }, ErrorCode::stale_view), Catch::Contains("exp_"));
  root->bump("tanh_");
  CHECK((view->stale() && behind->stale() && other->stale()));
}

TEST_CASE(
    "a chain of views that keep their sources is freed, refreshed and written back without a call inside a call") {
  MemoryMeter meter;
  constexpr int kRounds = 150'000;
  const Ref<Storage> root = Storage::unallocated(kCpu, 8, meter);
  Ref<Storage> last = root;
  int moves = 0;
  for (int i = 0; i < kRounds; ++i) {
    const Ref<Storage> next = Storage::unallocated(kCpu, 8, meter);
    const auto move = [source = last, &moves] { ++moves; };
    next->detach({last, last->version(), "reshape", "x", "[p]", "[-]", move, move});
    last = next;
  }
  root->bump("tanh_");
  last->refresh_if_stale();
  CHECK(moves == kRounds);
  last->write_back_to_source("relu_");
  CHECK(moves == 2 * kRounds);
  last = nullptr;
  CHECK(meter.live == 8);
}

TEST_CASE("a stale view is refreshed, and a written one written back, through every view between") {
  const Ref<Storage> source = buffer();
  const Ref<Storage> middle = buffer();
  const Ref<Storage> view = buffer();
  int refreshed = 0;
  int written = 0;
  const auto count = [](int& counter) { return [&counter] { ++counter; }; };
  middle->detach({source, 0, "reshape", "x", "a", "b", count(refreshed), count(written)});
  view->detach({middle, 0, "reshape", "x", "b", "c", count(refreshed), count(written)});
  view->refresh_if_stale();
  CHECK(refreshed == 0);
  source->bump("add_");
  view->refresh_if_stale();
  CHECK(refreshed == 2);
  CHECK_FALSE(view->stale());
  CHECK(view->version() == 1);  // its bytes have changed
  view->write_back_to_source("relu_");
  CHECK(written == 2);
  CHECK(source->version() == 2);
  CHECK(middle->version() == 2);
  CHECK_FALSE(view->stale());
  source->bump("add_");
  middle->refresh_if_stale();
  CHECK(view->stale());  // the one in between is not stale yet
  view->refresh_if_stale();
  CHECK_FALSE(view->stale());
}

TEST_CASE("a stale view without a way back stays stale") {
  const Ref<Storage> source = buffer();
  const Ref<Storage> view = buffer();
  detach(view, source);
  source->bump("add_");
  error_of([&] { view->refresh_if_stale(); }, ErrorCode::stale_view);
}

TEST_CASE("a poisoned storage tells its cause at every read and write") {
  const Ref<Storage> storage = buffer();
  storage->poison(std::make_exception_ptr(std::runtime_error("disk on fire")), "add_");
  for (int i = 0; i < 2; ++i) {
    CHECK_THAT(error_of([&] { storage->check_read(); }, ErrorCode::poisoned),
               Catch::Contains("add_") && Catch::Contains("disk on fire"));
    error_of([&] { storage->check_write("relu_"); }, ErrorCode::poisoned);
  }
}

TEST_CASE(
    "4: what a call wrote that failed on another rank is poisoned once that is known, and what was written before is "
    "not") {
  const auto calls = std::make_shared<PartialFailures>();
  const Ref<Storage> before = buffer();
  const Ref<Storage> written = buffer();
  before->mark_maybe_poisoned(calls, 6);
  written->mark_maybe_poisoned(calls, 7);
  CHECK_NOTHROW(written->check_read());
  calls->set(7, "rank 1 failed in divide_");
  calls->set(3, "a later one does not count");
  CHECK_NOTHROW(before->check_read());
  CHECK_THAT(error_of([&] { written->check_read(); }, ErrorCode::poisoned),
             Catch::Contains("failed on some ranks only: rank 1 failed in divide_"));
  error_of([&] { written->check_write("relu_"); }, ErrorCode::poisoned);
}

TEST_CASE("overlap is told by storage and byte range") {
  const Ref<Storage> storage = buffer(16);
  const auto part = [&](size_t offset, int64_t count) {
    return DenseTensor(storage, {{count}, DType::float32}, offset);
  };
  CHECK(overlap(part(0, 4), part(0, 4)) == Overlap::equal);
  CHECK(overlap(part(0, 3), part(4, 3)) == Overlap::partial);
  CHECK(overlap(part(0, 4), part(4, 2)) == Overlap::partial);
  CHECK(overlap(part(0, 2), part(8, 2)) == Overlap::none);
  CHECK(overlap(part(0, 0), part(0, 4)) == Overlap::none);
  CHECK(overlap(part(0, 4), DenseTensor(buffer(16), {{4}, DType::float32})) == Overlap::none);
  CHECK(overlap(part(0, 4), DenseTensor()) == Overlap::none);
  CHECK(part(0, 4).reinterpret({{2, 2}, DType::int32}).storage() == storage);
}

TEST_CASE("a clone has bytes of its own") {
  const DenseTensor x = DenseTensor::allocate(kCpu, {{2}, DType::int32});
  x.data<int32_t>()[0] = 7;
  x.data<int32_t>()[1] = 8;
  const DenseTensor y = clone(x);
  x.data<int32_t>()[1] = 9;
  CHECK_FALSE(x.storage() == y.storage());
  CHECK(y.data<int32_t>()[0] == 7);
  CHECK(y.data<int32_t>()[1] == 8);
}

namespace {

/// Counts how often it was waited for; fails on request.
struct FakeWork final : Work::State {
  FakeWork(int& waits, bool fails) : waits(waits), fails(fails) {}
  void wait() override {
    ++waits;
    if (fails) fail(ErrorCode::timeout, "rank 3 never joined");
  }
  int& waits;
  bool fails;
};

std::shared_ptr<Work> fake_work(int& waits, bool fails = false) {
  return std::make_shared<Work>(std::make_unique<FakeWork>(waits, fails));
}

}  // namespace

TEST_CASE("work under way is waited for when its bytes are first needed, and before they are freed") {
  int waits = 0;
  {
    const auto source = Storage::allocate(kCpu, 8);
    const auto result = Storage::allocate(kCpu, 8);
    const auto work = fake_work(waits);
    source->set_pending(work, Storage::Use::reads);
    result->set_pending(work, Storage::Use::writes);
    source->check_read();
    CHECK((waits == 0 && result->pending()));
    result->check_read();
    CHECK((waits == 1 && !source->pending()));
    source->check_write("relu_");
    CHECK(waits == 1);
    source->set_pending(fake_work(waits), Storage::Use::reads);
    source->check_write("relu_");
    CHECK(waits == 2);
    result->set_pending(fake_work(waits), Storage::Use::writes);
  }
  CHECK(waits == 3);
  const auto failed = Storage::allocate(kCpu, 8);
  failed->set_pending(fake_work(waits, true), Storage::Use::writes);
  for (int i = 0; i < 2; ++i)
    CHECK_THAT(error_of([&] { failed->check_read(); }, ErrorCode::timeout), Catch::Contains("rank 3"));
}

TEST_CASE("out of memory: the error names the op, the tensor, what was asked for and what is held, and what to do",
          "[slow_in_asan][slow_in_tsan]") {
  const DenseTensor large = DenseTensor::allocate(kCpu, {{1 << 20}, DType::float32});
  const Meta too_large{{int64_t{1} << 44, 8}, DType::float32};  // 2^49 bytes: more than addresses reach
  const std::string text =
      error_of([&] { DenseTensor::allocate(kCpu, too_large, nullptr, "matmul"); }, ErrorCode::device);
  CHECK_THAT(text, Catch::StartsWith("[matmul] no memory for f32[17592186044416, 8] on cpu: 562949953421312 bytes were "
                                     "requested, while tensors of this process hold "));
  const size_t at = text.find(" hold ") + 6;
  const long long held = std::stoll(text.substr(at));
  CHECK(held >= (4 << 20));
  CHECK_THAT(text, Catch::Contains("recompute") && Catch::Contains("more ranks"));
  const auto held_now = [&] {
    const std::string now = error_of([&] { DenseTensor::allocate(kCpu, too_large); }, ErrorCode::device);
    return std::stoll(now.substr(now.find(" hold ") + 6));
  };
  CHECK(held_now() == held);
  {
    const DenseTensor another = DenseTensor::allocate(kCpu, {{3 << 20}, DType::uint8});
    CHECK(held_now() == held + (3 << 20));
  }
  CHECK(held_now() == held);
}

TEST_CASE("out of memory: to_vector of a tensor whose elements do not fit a vector is an error of the library",
          "[slow_in_asan][slow_in_tsan]") {
  // Too large to be copied; its own bytes are never accessed.
  const Tensor tensor(DenseTensor(Storage::allocate(kCpu, 4), {{int64_t{1} << 44}, DType::float32}));
  CHECK_THAT(error_of([&] { tensor.to_vector<float>(); }, ErrorCode::device),
             Catch::Contains("[to_vector] no memory for f32[17592186044416]"));
  const Tensor endless(DenseTensor(Storage::allocate(kCpu, 8), {{int64_t{1} << 61}, DType::float64}));
  error_of([&] { endless.to_vector<double>(); }, ErrorCode::device);
}

TEST_CASE("values for a shape whose product overflows are refused") {
  CHECK_THAT(error_of(
                 [] {
                   Tensor::from_data(std::vector<float>{}, {int64_t{1} << 62, 4});
                 },
                 ErrorCode::out_of_range),
             Catch::Contains("[from_data] a tensor of shape"));
  error_of([] { DenseTensor::allocate(kCpu, {{int64_t{1} << 62, 4}, DType::uint8}); }, ErrorCode::out_of_range);
  error_of([] { Tensor::from_data(std::vector<float>{1, 2, 3, 4}, {-2, -2}); }, ErrorCode::invalid_argument);
}

}  // namespace storage_test
