// Worlds of ranks: how runs begin, waits without the interpreter's lock, and what a rank tells and sets.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#if defined(Py_LIMITED_API)
#include <dlfcn.h>
#endif

#include <cmath>
#include <cstdlib>

#include "runs.h"

namespace shard::python {
namespace {

/// Whether this thread holds the interpreter's lock. The limited API lacks the function, but all interpreters have it.
bool holds_lock() {
#if defined(Py_LIMITED_API)
  static const auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check != nullptr && check() != 0;
#else
  return PyGILState_Check() != 0;
#endif
}

/// A thread that waits for other ranks lets them run: destructors of tensors, which wait for collectives in flight, hold the lock.
void install_wait_hooks() {
  set_wait_hooks({.begin = []() -> void* { return Py_IsInitialized() && holds_lock() ? PyEval_SaveThread() : nullptr; },
                  .end =
                      [](void* state) {
                        if (state != nullptr) restore_thread(static_cast<PyThreadState*>(state));
                      },
                  .poll =
                      [] {
                        if (!Py_IsInitialized()) return;
                        const HoldLock lock;
                        if (PyErr_CheckSignals() != 0) throw PythonError();
                      }});
}

/// As World::from_environment decides.
bool in_mpi_job() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value) > 0;
  }
  return false;
}

WorldOptions options_of(std::optional<double> timeout, uint64_t seed, nb::handle devices, bool debug) {
  WorldOptions options;
  if (timeout) {
    if (!(*timeout > 0))
      fail(ErrorCode::invalid_argument, "[run] timeout must be a number of seconds greater than 0, not {}", *timeout);
    const double milliseconds = std::min(*timeout * 1000, 1e12);
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(milliseconds)));
  }
  options.seed = seed;
  options.debug_comm = debug;
  if (devices.is_none()) return options;
  const bool one = nb::isinstance<nb::str>(devices) || nb::isinstance<Device>(devices);
  for (const nb::handle each : one ? nb::object(nb::make_tuple(devices)) : nb::borrow(devices)) {
    Device device;
    if (!device_of(each, device))
      throw nb::type_error("run(): argument 'devices' must be Device | str | Sequence[Device | str] | None");
    options.devices.push_back(device);
  }
  return options;
}

/// The world of this MPI job. Runs use it again, because making and destroying one is collective.
std::shared_ptr<World> mpi_world(const WorldOptions& options, bool& made) {
  struct Cached {
    std::shared_ptr<World> world;
    WorldOptions options;
  };
  static auto* const cached = new Cached();
  const bool same = cached->world && cached->options.timeout == options.timeout &&
                    cached->options.devices == options.devices && cached->options.debug_comm == options.debug_comm;
  made = !same;
  if (!same) {
    *cached = {released([&] { return std::shared_ptr<World>(World::mpi(options)); }), options};
    static_cast<void>(new std::shared_ptr<World>(cached->world));  // lives until the process ends
  }
  Rank& rank = cached->world->rank(cached->world->local_ranks()[0]);
  rank.generator.set_seed(options.seed);
  rank.plain_generator.set_seed(options.seed);
  rank.policies = {};
  rank.trace.clear();
  return cached->world;
}

nb::object run_ranks(nb::object function, int nranks, std::optional<double> timeout, uint64_t seed, nb::object devices,
                     bool debug, bool trace_calls) {
  drop_worlds();
  const WorldOptions options = options_of(timeout, seed, devices, debug);
  const bool mpi = in_mpi_job() && current_rank_or_null() == nullptr;
  bool made = true;
  std::shared_ptr<World> world =
      mpi ? mpi_world(options, made) : released([&] { return std::shared_ptr<World>(World::local(nranks, options)); });
  for (const int id : world->local_ranks()) world->rank(id).trace_calls = trace_calls;
  if (made) keep_world(world);
  const auto started = std::make_shared<Run>(std::move(world), std::move(function));
  return Run::execute(started, !mpi);
}

/// The world of a plain script: the thread that calls init() is a rank from then on until the script ends.
struct Script {
  std::shared_ptr<World> world;
  std::unique_ptr<DefaultDevice> device;
  pid_t process = 0;
};
Script& script() {
  static auto* const instance = new Script();
  return *instance;
}

void begin_script(std::optional<double> timeout, uint64_t seed, nb::handle devices, bool debug) {
  Script& state = script();
  if (current_rank_or_null() != nullptr || state.world)
    fail(ErrorCode::invalid_argument,
         "[init] ranks run in this process already: call it once, and not inside World::run");
  const WorldOptions options = options_of(timeout, seed, devices, debug);
  bool made = true;
  state.world = in_mpi_job() ? mpi_world(options, made) : std::shared_ptr<World>(World::local(1, options));
  if (made) keep_world(state.world);
  Rank& rank = state.world->rank(state.world->local_ranks()[0]);
  state.device = std::make_unique<DefaultDevice>(rank.device());
  state.process = getpid();
  set_current_rank(&rank);
}

/// Waits until the scripts of all ranks have ended. With an error the others fail, as they do when a rank of a run throws.
void end_script(std::optional<std::string> error) {
  Script& state = script();
  if (!state.world || state.process != getpid()) return;
  const std::shared_ptr<World> world = std::exchange(state.world, nullptr);
  set_current_rank(nullptr);
  state.device.reset();
  struct Leave {  // waits after the script are not those of a rank
    ~Leave() { device_watch() = nullptr; }
  } const leave;
  released([&] {
    try {
      world->run([&](Rank&) {
        if (error) throw std::runtime_error(*error);
      });
    } catch (...) {
      if (!error) throw;
    }
  });
}

nb::object run_dry(nb::object function, int nranks, int rank, uint64_t seed, nb::object devices) {
  drop_worlds();
  const WorldOptions options = options_of({}, seed, devices, false);
  std::shared_ptr<World> world = World::dry(nranks, rank, options);
  keep_world(world);
  return Run::execute(std::make_shared<Run>(std::move(world), std::move(function)), true);
}

std::vector<std::string> write_trace(const std::string& path) {
  if (current_rank_or_null() != nullptr) {
    fail(ErrorCode::invalid_argument,
         "[save_trace] ranks are running: call it after shard.run(...), or pass trace=path to that");
  }
  const std::shared_ptr<World> world = last_world();
  if (!world) fail(ErrorCode::invalid_argument, "[save_trace] no world has run yet");
  return save_trace(*world, path);
}

// The state of generators: the one of distributed calls and the one of plain calls. Outside of ranks there is only the latter.
nb::object generator_state() {
  const auto pair = [](RandomKey key) { return nb::make_tuple(key.seed, key.offset); };
  Rank* const rank = current_rank_or_null();
  if (rank == nullptr) return nb::make_tuple(nb::none(), pair(call::thread_generator().state()));
  return nb::make_tuple(pair(rank->generator.state()), pair(rank->plain_generator.state()));
}

void set_generator_state(nb::tuple state) {
  const auto key = [](nb::handle pair) {
    return RandomKey{nb::cast<uint64_t>(nb::borrow<nb::tuple>(pair)[0]),
                     nb::cast<uint64_t>(nb::borrow<nb::tuple>(pair)[1])};
  };
  Rank* const rank = current_rank_or_null();
  if (rank != nullptr && !state[0].is_none()) rank->generator.set_state(key(state[0]));
  call::thread_generator().set_state(key(state[1]));
}

/// A default device for a scope of one thread. Scopes keep what was before by value: those of generators and coroutines may end in
/// another order than that in which they began.
struct DeviceScope {
  explicit DeviceScope(Device device) : device(device) {}

  Device device;
  std::vector<std::optional<Device>> before;
};

void set_default_device(std::optional<Device> device) {
  thread_local Device chosen;
  if (device) chosen = *device;
  this_thread.device = device ? &chosen : nullptr;
}

void register_device_scope(nb::module_& module) {
  nb::class_<DeviceScope>(
      module, "default_device",
      "with shard.default_device(\"cuda\"): ops that create tensors without a device put them there.\n\n"
      "Args:\n  device: a Device, or its name: \"cpu\", \"cuda\" or \"cuda:1\". Raises ArgumentError where there is "
      "none of that name.")
      .def(
          "__init__",
          [](DeviceScope* self, nb::object object) {
            Device device;
            if (!device_of(object, device))
              throw nb::type_error("default_device(): argument 'device' must be Device | str");
            new (self) DeviceScope(device);
          },
          nb::arg("device"))
      .def("__enter__",
           [](DeviceScope& self) {
             self.before.push_back(this_thread.device != nullptr ? std::optional(*this_thread.device) : std::nullopt);
             set_default_device(self.device);
             return self.device;
           })
      .def("__exit__", [](DeviceScope& self, nb::args) {
        if (self.before.empty()) fail(ErrorCode::invalid_argument, "[default_device] the scope was not entered");
        set_default_device(self.before.back());
        self.before.pop_back();
      });
  module.def(
      "get_default_device", [] { return default_device(); },
      "Where ops that create tensors put them when no device is given.");
  module.def(
      "synchronize",
      [](nb::handle object) {
        Device device = default_device();
        if (!object.is_none() && !device_of(object, device))
          throw nb::type_error("synchronize(): argument 'device' must be Device | str | None");
        released([&] { backend_of(device).synchronize(device.index); });
      },
      nb::arg("device") = nb::none(),
      "Waits for the work that this thread has submitted to the device. Call it before reading a clock, and before\n"
      "another thread uses tensors that this one has computed, if either is a rank that is a thread.\n\n"
      "Args:\n  device: a Device, or its name; the default device if None.\n\n"
      "Raises DeviceError, and errors that kernels have found, such as OutOfRangeError for an index.");
}

template <class Policy>
struct PolicyNames;
#define SHARD_NAMES(Policy, ...)                          \
  template <>                                             \
  struct PolicyNames<Policy> {                            \
    static constexpr const char* names[] = {__VA_ARGS__}; \
  }
SHARD_NAMES(ViewPolicy, "strict", "sync", "temporary");
SHARD_NAMES(InplacePolicy, "keep", "error", "adopt");
SHARD_NAMES(CommPolicy, "allow", "warn", "forbid", "forbid_reshards");
SHARD_NAMES(FallbackPolicy, "error", "replicate");
SHARD_NAMES(PromotionPolicy, "error", "replicate", "replicate_checked");
SHARD_NAMES(SavePolicy, "original", "resharded");
SHARD_NAMES(SumPolicy, "float32", "rounded");
SHARD_NAMES(AlgorithmPolicy, "deterministic", "fastest");
#undef SHARD_NAMES

template <class Policy>
Policy policy_named(const char* member, nb::handle value) {
  std::string accepted;
  int index = 0;
  for (const char* const name : PolicyNames<Policy>::names) {
    if (nb::isinstance<nb::str>(value) && nb::cast<std::string>(value) == name) return static_cast<Policy>(index);
    accepted += (index++ == 0 ? "" : ", ") + std::string("'") + name + "'";
  }
  fail(ErrorCode::invalid_argument, "[policies] {}={} is not a policy; there are {}", member,
       nb::cast<std::string>(nb::repr(value)), accepted);
}

nb::dict policies_as_dict(const Policies& policies) {
  nb::dict dict;
#define SHARD_ROW(member, Type, ...) dict[#member] = PolicyNames<Type>::names[static_cast<size_t>(policies.member)];
  SHARD_POLICIES(SHARD_ROW)
#undef SHARD_ROW
  return dict;
}

/// Sets policies of the rank and returns those from before. All names are checked before one is set.
nb::dict set_policies(nb::dict wanted) {
  Rank& rank = current_rank();
  Policies policies = rank.policies;
  for (const auto [key, value] : wanted) {
    const std::string name = nb::cast<std::string>(key);
    bool known = false;
    std::string all;
#define SHARD_ROW(member, Type, ...)                       \
  all += (all.empty() ? "" : ", ") + std::string(#member); \
  if (name == #member) known = true, policies.member = policy_named<Type>(#member, value);
    SHARD_POLICIES(SHARD_ROW)
#undef SHARD_ROW
    if (!known) fail(ErrorCode::invalid_argument, "[policies] there is no policy '{}'; there are {}", name, all);
  }
  return policies_as_dict(std::exchange(rank.policies, policies));
}

}  // namespace

void register_worlds(nb::module_& module) {
  nb::set_leak_warnings(false);  // threads that still run at exit keep what they use
  install_wait_hooks();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { Run::end_all(); }));
  const nb::object os = nb::module_::import_("os");
  if (nb::hasattr(os, "register_at_fork"))
    os.attr("register_at_fork")(nb::arg("after_in_child") = nb::cpp_function([] { Run::forget_all(); }));
  module.def("_run", run_ranks, nb::arg("function"), nb::arg("nranks"), nb::arg("timeout").none(), nb::arg("seed"),
             nb::arg("devices").none(), nb::arg("debug"), nb::arg("trace_calls"));
  module.def("_begin_script", begin_script, nb::arg("timeout").none(), nb::arg("seed"), nb::arg("devices").none(),
             nb::arg("debug"));
  module.def("_end_script", end_script, nb::arg("error").none());
  module.def("_run_dry", run_dry, nb::arg("function"), nb::arg("nranks"), nb::arg("rank"), nb::arg("seed"),
             nb::arg("devices").none());
  module.def(
      "rank", [] { return current_rank().id(); },
      "The rank that this thread runs, an int. Raises LayoutError outside of ranks.");
  module.def(
      "world_size", [] { return current_rank().world().size(); },
      "The number of ranks of the world. Raises LayoutError outside of ranks.");
  module.def(
      "in_world", [] { return current_rank_or_null() != nullptr; }, "Whether this thread runs a rank.");
  module.def(
      "in_mpi_job", in_mpi_job,
      "Whether mpirun or mpiexec started this process: shard.run() and shard.init() then make it a rank of the job.");
  module.def("_save_trace", write_trace, nb::arg("path"));
  module.def("_generator_state", generator_state);
  module.def("_set_generator_state", set_generator_state, nb::arg("state"));
  module.def("_set_policies", set_policies, nb::arg("wanted"));
  module.def(
      "get_policies", [] { return policies_as_dict(current_rank().policies); },
      "The policies of this rank, a dict of names. Raises LayoutError outside of ranks.");
  register_device_scope(module);
}

}  // namespace shard::python
