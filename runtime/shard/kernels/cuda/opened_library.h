// Libraries that are opened when the program runs: what can be done without them is.
#pragma once

#include <dlfcn.h>

#include <initializer_list>

namespace shard::cuda {

class OpenedLibrary {
 public:
  /// The first of these that is found.
  explicit OpenedLibrary(std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
  }
  template <class F>
  void find(F& function, const char* name) {
    function = library_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library_, name));
    complete_ = complete_ && function != nullptr;
  }
  /// Whether it was found, and has all that was asked for.
  bool is_complete() const { return complete_; }

 private:
  void* library_ = nullptr;
  bool complete_ = true;
};

}  // namespace shard::cuda
