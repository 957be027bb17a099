#include "runs.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>

namespace shard::python {
namespace {

constexpr int kSignalTime = 50;  // milliseconds between looks at signals
constexpr int kStopTime = 5000;  // that ranks get to end after a signal
constexpr int kExitTime = 2000;  // and at the end of the program

/// What peers of a failed rank get to know. The exception itself stays with the Run.
class RankFailed final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

unsigned long this_python_thread() {
  return nb::cast<unsigned long>(nb::module_::import_("_thread").attr("get_ident")());
}

/// The runs that are going on.
struct Active {
  std::mutex mutex;
  std::vector<std::weak_ptr<Run>> runs;
  bool ended = false;  // no run begins any more
};
Active& active() {
  static auto* const instance = new Active();
  return *instance;
}

struct Worlds {
  std::mutex mutex;
  std::vector<std::shared_ptr<World>> kept;
  std::shared_ptr<World> last;
};
Worlds& worlds() {
  static auto* const instance = new Worlds();  // threads of an interrupted run may go on at exit
  return *instance;
}

bool in_use(const std::shared_ptr<World>& world) {
  if (world.use_count() > 1) return true;
  const std::vector<int>& ranks = world->local_ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&](int id) { return !world->rank(id).use()->unique(); });
}

std::string text_of(nb::handle exception) {
  const std::string type = nb::cast<std::string>(nb::str(nb::handle(exception.type()).attr("__name__")));
  try {
    return type + ": " + nb::cast<std::string>(nb::str(exception));
  } catch (nb::python_error&) {  // of its __str__
    return type;
  }
}

/// Adds a line to the exception's text (as add_note does, from Python 3.11 on).
void add_note(nb::handle exception, const std::string& note) {
  try {
    if (!nb::hasattr(exception, "__notes__")) nb::setattr(exception, "__notes__", nb::list());
    exception.attr("__notes__").attr("append")(note.c_str());
  } catch (nb::python_error&) {  // an exception without attributes
  }
}

[[noreturn]] void raise(nb::handle exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  nb::raise_python_error();
}

/// Ends a process that a rank forked where the function of the rank ends: the ranks that it would join are in the other process.
[[noreturn]] void end_child(int status) {
  for (const char* const name : {"stdout", "stderr"}) {
    PyObject* const stream = PySys_GetObject(name);
    PyObject* const done = stream != nullptr ? PyObject_CallMethod(stream, "flush", nullptr) : nullptr;
    Py_XDECREF(done);
    PyErr_Clear();
  }
  _exit(status);
}

/// The exception that Python is about to raise.
nb::object take_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return nb::steal(value);
}

/// Prints what the function of a forked rank raised, and returns the status of its process.
int report(nb::python_error& error) {
  if (!error.matches(PyExc_SystemExit)) {
    error.restore();
    PyErr_Print();
    return 1;
  }
  error.restore();
  const nb::object code = take_error().attr("code");  // which makes an instance of it, where there is none yet
  return code.is_none() ? 0 : nb::isinstance<nb::int_>(code) ? nb::cast<int>(code) : 1;
}

}  // namespace

Run::Run(std::shared_ptr<World> world, nb::object function)
    : world_(std::move(world)), function_(std::move(function)), results_([&] {
        nb::list list;
        for (size_t i = 0; i < world_->local_ranks().size(); ++i) list.append(nb::none());
        return list;
      }()),
      caller_(this_python_thread()), process_(getpid()) {}

nb::object Run::execute(const std::shared_ptr<Run>& run, bool threads) {
  {
    const std::lock_guard lock(active().mutex);
    if (active().ended) fail(ErrorCode::invalid_argument, "[run] the program is ending");
    std::erase_if(active().runs, [](const auto& each) { return each.expired(); });
    active().runs.push_back(run);
  }
  if (!threads) {
    released([&] { run->run_world(); });
    return run->outcome();
  }
  std::thread thread([run] { run->run_world(); });
  run->wait(thread, run);
  released([&] { thread.join(); });
  return run->outcome();
}

void Run::run_world() {
  std::exception_ptr error;
  try {
    world_->run([this](Rank& rank) { program(rank); });
  } catch (...) { error = std::current_exception(); }
  const std::lock_guard lock(mutex_);
  error_ = error;
  done_ = true;
  changed_.notify_all();
}

void Run::program(Rank& rank) {
  const HoldLock lock;
  const unsigned long thread = this_python_thread();
  {
    const std::lock_guard guard(mutex_);
    threads_.push_back(thread);
  }
  const auto end = [&] {
    const std::lock_guard guard(mutex_);
    std::erase(threads_, thread);
  };
  try {
    const std::vector<int>& ranks = world_->local_ranks();
    const auto position = std::lower_bound(ranks.begin(), ranks.end(), rank.id()) - ranks.begin();
    const nb::object result = call(rank);
    Py_INCREF(result.ptr());  // PyList_SetItem takes it
    PyList_SetItem(results_.get().ptr(), position, result.ptr());
  } catch (...) {
    end();
    throw;
  }
  end();
}

nb::object Run::call(const Rank& rank) {
  try {
    nb::object result = function_.get()();
    if (getpid() != process_) end_child(0);
    return result;
  } catch (nb::python_error& error) {
    if (getpid() != process_) end_child(report(error));
    fail_rank(rank, error);
  }
}

void Run::fail_rank(const Rank& rank, nb::python_error& error) {
  error.restore();
  const nb::object exception = take_error();
  const std::string text = text_of(exception);
  if (nb::hasattr(exception, "code") && nb::isinstance<nb::str>(exception.attr("code")) &&
      nb::cast<std::string>(exception.attr("code")) == to_string(ErrorCode::peer_failed)) {
    throw Error(ErrorCode::peer_failed, nb::cast<std::string>(nb::str(exception)));
  }
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = !failure_;
    if (first) failure_.emplace(exception);
  }
  // Without the mutex: this may run Python code, and give the interpreter's lock to a thread that waits for the mutex.
  if (first) add_note(exception, fmt::format("raised by rank {} of {}", rank.id(), world_->size()));
  throw RankFailed(text);
}

bool Run::done_within(int milliseconds) {
  return released([&] {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return done_; });
  });
}

void Run::wait(std::thread& thread, const std::shared_ptr<Run>& run) {
  while (!done_within(kSignalTime)) {
    if (PyErr_CheckSignals() != 0) stop(thread, run);
  }
}

void Run::stop(std::thread& thread, const std::shared_ptr<Run>& run) {
  nb::object exception = take_error();
  interrupt(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())));
  bool done = false;
  for (int waited = 0; !done && waited < kStopTime; waited += kSignalTime) {
    done = done_within(kSignalTime);
    if (!done && PyErr_CheckSignals() != 0) {  // the user insists
      exception = take_error();
      break;
    }
  }
  if (done) {
    released([&] { thread.join(); });
  } else {
    add_note(exception,
             "some ranks go on, because they are in functions that cannot be interrupted (such as time.sleep)");
    thread.detach();  // it holds the run, and with it the world
  }
  static_cast<void>(run);
  raise(exception);
}

void Run::interrupt(PyObject* type) {
  released([&] { world_->interrupt("the run was interrupted"); });
  std::vector<unsigned long> threads;
  {
    const std::lock_guard lock(mutex_);
    threads = threads_;
  }
  std::vector<std::shared_ptr<Run>> inner;
  {
    const std::lock_guard lock(active().mutex);
    for (const auto& each : active().runs) {
      const std::shared_ptr<Run> run = each.lock();
      if (run && std::find(threads.begin(), threads.end(), run->caller_) != threads.end()) inner.push_back(run);
    }
  }
  for (const unsigned long thread : threads) PyThreadState_SetAsyncExc(thread, type);
  for (const std::shared_ptr<Run>& run : inner) run->interrupt(type);
}

void Run::end_all() {
  for (int waited = 0; waited < kExitTime; waited += 10) {
    std::vector<std::shared_ptr<Run>> runs;
    {
      const std::lock_guard lock(active().mutex);
      active().ended = true;
      for (const auto& each : active().runs) {
        if (std::shared_ptr<Run> run = each.lock()) runs.push_back(std::move(run));
      }
    }
    if (runs.empty()) return;
    if (waited == 0) {
      for (const std::shared_ptr<Run>& run : runs) run->interrupt(PyExc_SystemExit);
    }
    runs.clear();
    released([] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  }
}

void Run::forget_all() {
  // Threads that are not in this process may hold the mutexes, so these are not used again, and what they guard is not freed.
  new (&active()) Active();
  new (&worlds()) Worlds();
  set_current_rank(nullptr);
  this_thread.launcher = nullptr;
}

nb::object Run::outcome() {
  if (failure_) {
    const nb::object exception = nb::borrow(failure_->get());
    failure_.reset();
    raise(exception);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return nb::borrow(results_.get());
}

void keep_world(std::shared_ptr<World> world) {
  const std::lock_guard lock(worlds().mutex);
  worlds().last = world;
  worlds().kept.push_back(std::move(world));
}

void drop_worlds() {
  std::vector<std::shared_ptr<World>> gone;
  {
    const std::lock_guard lock(worlds().mutex);
    std::vector<std::shared_ptr<World>>& kept = worlds().kept;
    for (size_t i = 0; i < kept.size();) {
      if (in_use(kept[i])) {
        ++i;
        continue;
      }
      // Plain tensors of a dry world, which nothing counts, refer to its meter for as long as they live.
      for (const int id : kept[i]->local_ranks()) static_cast<void>(kept[i]->rank(id).dry.release());
      gone.push_back(std::move(kept[i]));
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  released([&] { gone.clear(); });
}

std::shared_ptr<World> last_world() {
  const std::lock_guard lock(worlds().mutex);
  return worlds().last;
}

}  // namespace shard::python
