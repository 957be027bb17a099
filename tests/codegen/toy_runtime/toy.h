// The runtime of another team, as far as generated code needs one: arrays on the host, kernels by name and type, no
// meshes. toy.json tells shardgen how things are called here. Nothing of shard is included.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace toy {

inline constexpr int kFormat = 8;  // toy.json has the same number

enum class Type { f32, i64 };
enum class Where { host };
using Text = std::string;
template <class T>
using Maybe = std::optional<T>;

template <class T>
class List {
 public:
  List() = default;
  List(std::initializer_list<T> items) : items_(items) {}
  T& add(T item) { return items_.emplace_back(std::move(item)); }
  int64_t count() const { return static_cast<int64_t>(items_.size()); }
  T& operator[](int64_t i) { return items_[static_cast<size_t>(i)]; }
  const T& operator[](int64_t i) const { return items_[static_cast<size_t>(i)]; }
  T* begin() { return items_.data(); }
  T* end() { return begin() + items_.size(); }
  const T* begin() const { return items_.data(); }
  const T* end() const { return begin() + items_.size(); }
  bool operator==(const List&) const = default;

 private:
  std::vector<T> items_;
};

/// Items of a list that somebody else owns.
template <class T>
class View {
 public:
  View(List<std::remove_const_t<T>>& list) : begin_(list.begin()), end_(list.end()) {}
  View(const List<std::remove_const_t<T>>& list) requires std::is_const_v<T> : begin_(list.begin()), end_(list.end()) {}
  int64_t count() const { return end_ - begin_; }
  T& first() const { return *begin_; }
  T& operator[](int64_t i) const { return begin_[i]; }
  T* begin() const { return begin_; }
  T* end() const { return end_; }

 private:
  T* begin_;
  T* end_;
};

using Ints = List<int64_t>;

struct Number {
  double value = 0;
  Number(int number) : value(number) {}
  Number(int64_t number) : value(static_cast<double>(number)) {}
  Number(double number) : value(number) {}
};

/// What is known of an array before it has elements.
struct Form {
  Ints sizes;
  Type type = Type::f32;
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t size : sizes) product *= size;
    return product;
  }
};

/// A handle; copies share the elements, which are doubles whatever the type is called. A team without distributed
/// tensors needs one class for what users hold and what kernels get.
class Array {
 public:
  Array() = default;
  explicit Array(Form form)
      : form_(std::move(form)), elements_(std::make_shared<std::vector<double>>(form_.elements())) {}
  Array(Form form, const Array& whole) : form_(std::move(form)), elements_(whole.elements_) {}

  const Form& form() const { return form_; }
  Type type() const { return form_.type; }
  bool exists() const { return elements_ != nullptr; }
  std::vector<double>& elements() const { return *elements_; }
  void overwrite(const Array& other) { *elements_ = *other.elements_; }

 private:
  Form form_;
  std::shared_ptr<std::vector<double>> elements_;
};
inline bool exists(const Array& array) { return array.exists(); }

/// One call of an op, for messages.
struct Call {
  const char* op;
};

inline Call call_of(const char* op) { return {op}; }

struct OpFacts {
  const char* id;
  bool pointwise = false;
};

/// The kernels of one name, by type. Their C++ type is checked when one is asked for.
class Kernels {
 public:
  template <class Function>
  void add(Type type, Function* kernel) {
    entries_[type] = {reinterpret_cast<void (*)()>(kernel), &typeid(Function)};
  }
  template <class Function>
  Function* find(const Call& call, Where, Type type) const {
    const auto found = entries_.find(type);
    if (found == entries_.end()) throw std::runtime_error(std::string(call.op) + ": no kernel");
    if (*found->second.type != typeid(Function))
      throw std::runtime_error(std::string(call.op) + ": a kernel of another type");
    return reinterpret_cast<Function*>(found->second.kernel);
  }

 private:
  struct Entry {
    void (*kernel)();
    const std::type_info* type;
  };
  std::map<Type, Entry> entries_;
};
inline Kernels& kernels_of(const std::string& name) {
  static std::map<std::string, Kernels> all;
  return all[name];
}

[[noreturn]] inline void not_written(const char* op, const char* function) {
  throw std::runtime_error(std::string(op) + ": " + function + " is not written");
}

// What public functions do with arguments and results.
inline const Array& use(const Call& call, const Array& array, const char* name) {
  if (!array.exists()) throw std::runtime_error(std::string(call.op) + ": " + name + " does not exist");
  return array;
}
inline Array& change(const Call& call, Array& array, const char* name) { return use(call, array, name), array; }
inline const Array& use_if_given(const Call&, const Array& array, const char*) { return array; }
inline const List<Array>& use_all(const Call& call, const List<Array>& arrays, const char* name) {
  for (const Array& array : arrays) use(call, array, name);
  return arrays;
}
template <class T>
T hand_out(T result) {
  return result;
}

// What dense functions do around their kernels.
inline List<Form> forms_of(View<const Array> arrays) {
  List<Form> forms;
  for (const Array& array : arrays) forms.add(array.form());
  return forms;
}
inline const Form* form_if_given(const Array& array) { return array.exists() ? &array.form() : nullptr; }
template <class... Arrays>
Where place_of(const Call&, const Arrays&...) {
  return Where::host;
}
inline Array make(const Call&, Where, const Form& form) { return Array(form); }
inline List<Array> make(const Call& call, Where where, const List<Form>& forms) {
  List<Array> arrays;
  for (const Form& form : forms) arrays.add(make(call, where, form));
  return arrays;
}
inline Array alias(const Call&, const Array& array, const Form& form) { return Array(form, array); }
inline void alias_into(const Call&, Array& array, const Form& form) { array = Array(form, array); }
template <class... P>
void run(void (*kernel)(const Call&, P...), const Call& call, std::type_identity_t<P>... args) {
  kernel(call, args...);
}

/// How a kernel takes an argument, and what it writes for a form.
template <class T>
using Taken = std::conditional_t<std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, View<const Array>>,
                                 T, const T&>;
template <class F>
using Made = std::conditional_t<std::is_same_v<F, Form>, Array, List<Array>>;
template <class F>
using Written = std::conditional_t<std::is_same_v<F, Form>, Array&, View<Array>>;

template <class F, class... Args>
Made<F> launch_at(Where where, const Call& call, const Kernels& kernels, Type type, const F& form,
                  const Args&... args) {
  auto* const kernel = kernels.find<void(const Call&, Taken<Args>..., Written<F>)>(call, where, type);
  Made<F> made = make(call, where, form);
  kernel(call, args..., made);
  return made;
}
template <class... F, class... Args>
std::tuple<Made<F>...> launch_at(Where where, const Call& call, const Kernels& kernels, Type type,
                                 const std::tuple<F&...>& forms, const Args&... args) {
  auto* const kernel = kernels.find<void(const Call&, Taken<Args>..., Written<F>...)>(call, where, type);
  std::tuple<Made<F>...> made =
      std::apply([&](auto&... form) { return std::tuple(make(call, where, form)...); }, forms);
  std::apply([&](auto&... each) { kernel(call, args..., each...); }, made);
  return made;
}
template <class Forms, class... Args>
auto launch(const Call& call, const Kernels& kernels, Type type, const Forms& forms, const Args&... args) {
  return launch_at(Where::host, call, kernels, type, forms, args...);
}
template <class... Args>
void launch_over(const Call& call, const OpFacts&, const Kernels& kernels, Type type, Array& target, const Form& form,
                 const Args&... args) {
  target.overwrite(launch(call, kernels, type, form, args...));
}

}  // namespace toy
