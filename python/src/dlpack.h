// The structures of DLPack 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html), through which libraries share the memory of arrays.
#pragma once

#include <cstdint>

namespace shard::python::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct Device {
  int32_t type;
  int32_t index;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  bool operator==(const DataType&) const = default;
};

struct Array {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null for a contiguous array
  uint64_t byte_offset;
};

/// What a capsule of the name "dltensor" holds.
struct Managed {
  Array array;
  void* context;
  void (*deleter)(Managed* self);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

/// What a capsule of the name "dltensor_versioned" holds.
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned* self);
  uint64_t flags;
  Array array;
};

inline constexpr uint64_t kReadOnly = 1;
inline constexpr uint64_t kCopied = 2;

}  // namespace shard::python::dlpack
