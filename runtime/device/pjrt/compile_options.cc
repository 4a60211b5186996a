#include "runtime/device/pjrt/compile_options.h"

#include <cstdint>

namespace meshtrain::device::pjrt {
namespace {

// --- the few bytes of protobuf that CompileOptionsProto needs, without XLA's .proto files: fields
// by their numbers (xla/pjrt/proto/compile_options.proto)

void Varint(std::string& out, uint64_t v) {
  for (; v > 127; v >>= 7) out += static_cast<char>(v | 128);
  out += static_cast<char>(v);
}
void Field(std::string& out, int number, uint64_t v) {
  Varint(out, static_cast<uint64_t>(number) << 3);
  Varint(out, v);
}
void Field(std::string& out, int number, const std::string& bytes) {
  Varint(out, static_cast<uint64_t>(number) << 3 | 2);
  Varint(out, bytes.size());
  out += bytes;
}

}  // namespace

std::string CompileOptions(std::span<const int> ids, bool cpu) {
  std::string replicas, computation, assignment, build, options;
  for (const int id : ids) Varint(replicas, static_cast<uint64_t>(id));
  Field(computation, 1, replicas);    // replica_device_ids
  Field(assignment, 1, ids.size());   // replica_count
  Field(assignment, 2, 1);            // computation_count
  Field(assignment, 3, computation);  // computation_devices
  Field(build, 1, ~uint64_t{0});      // device_ordinal: none
  Field(build, 4, ids.size());        // num_replicas
  Field(build, 5, 1);                 // num_partitions
  Field(build, 9, assignment);        // device_assignment
  Field(options, 3, build);           // executable_build_options
  if (cpu) {
    std::string off;
    Field(off, 2, 0);  // bool_field
    for (const std::string flag : {"xla_cpu_use_xnnpack", "xla_cpu_enable_fast_min_max"}) {
      std::string entry;
      Field(entry, 1, flag);     // key
      Field(entry, 2, off);      // value
      Field(options, 7, entry);  // env_option_overrides
    }
  }
  return options;
}

}  // namespace meshtrain::device::pjrt
