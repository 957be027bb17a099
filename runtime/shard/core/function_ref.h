// A reference to a function object for the time of a call.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace shard {

template <class Signature>
class FunctionRef;

/// Refers to a function object, which must outlive it, and neither copies nor allocates: two words instead of a
/// std::function, whose members the compiler makes again for each type of function object.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  /// Refers to nothing and must not be called.
  FunctionRef(std::nullptr_t = nullptr) {}
  template <class F>
  requires(!std::same_as<std::remove_cv_t<F>, FunctionRef>) FunctionRef(F& function)
      : function_(&function), call_([](const void* f, Args... args) -> Result {
          return (*const_cast<F*>(static_cast<const F*>(f)))(static_cast<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(function_, static_cast<Args>(args)...); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  const void* function_ = nullptr;
  Result (*call_)(const void* function, Args... args) = nullptr;
};

}  // namespace shard
