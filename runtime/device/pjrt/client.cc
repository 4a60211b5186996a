#include <xxhash.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/device/pjrt/compile_options.h"
#include "runtime/device/pjrt/plugin.h"

namespace meshtrain::device::pjrt {
namespace {

PJRT_Buffer_Type TypeOf(mesh::DType dtype) {
  switch (dtype) {
    case mesh::DType::kBool:
      return PJRT_Buffer_Type_PRED;
    case mesh::DType::kU8:
      return PJRT_Buffer_Type_U8;
    case mesh::DType::kI32:
      return PJRT_Buffer_Type_S32;
    case mesh::DType::kI64:
      return PJRT_Buffer_Type_S64;
    case mesh::DType::kF32:
      return PJRT_Buffer_Type_F32;
    case mesh::DType::kF64:
      return PJRT_Buffer_Type_F64;
    case mesh::DType::kBF16:
      return PJRT_Buffer_Type_BF16;
    case mesh::DType::kF16:
      return PJRT_Buffer_Type_F16;
  }
  return PJRT_Buffer_Type_INVALID;
}

// Whether the whole text is a number of the type of `to`, which it becomes.
template <typename T>
bool IsAll(std::string_view text, T& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

// "a=1,b=0.5,c=true,d=text". The values' bytes are those of `text`.
Result<std::vector<PJRT_NamedValue>> ParseOptions(std::string_view text) {
  std::vector<PJRT_NamedValue> values;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return InvalidArgument("pjrt: expected options as name=value,name=value, got: " +
                             std::string(item))
          .From(Origin::kManifest);
    }
    const std::string_view value = item.substr(equals + 1);
    MT_PJRT_ARGS(PJRT_NamedValue, named);
    named.name = item.data();
    named.name_size = equals;
    float number = 0;
    if (IsAll(value, named.int64_value)) {
      named.type = PJRT_NamedValue_kInt64;
      named.value_size = 1;
    } else if (IsAll(value, number)) {
      named.type = PJRT_NamedValue_kFloat;
      named.float_value = number;
      named.value_size = 1;
    } else if (value == "true" || value == "false") {
      named.type = PJRT_NamedValue_kBool;
      named.bool_value = value == "true";
      named.value_size = 1;
    } else {
      named.type = PJRT_NamedValue_kString;
      named.string_value = value.data();
      named.value_size = value.size();
    }
    values.push_back(named);
  }
  return values;
}

// XXH3 of 128 bits, as 32 digits.
std::string HashOf(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

// What code for this machine's processor may use: the lines of its first core that say so.
std::string Processor() {
  const auto text = ReadFile("/proc/cpuinfo");
  if (!text.ok()) return "";
  std::string said;
  for (const std::string& line : Split(*text, '\n')) {
    if (line.empty()) break;  // the next core
    for (const char* field : {"model name", "flags", "Features", "CPU part"}) {
      if (line.starts_with(field)) said += line + "\n";
    }
  }
  return said;
}

std::vector<int64_t> MinorToMajor(size_t rank) {
  std::vector<int64_t> order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = static_cast<int64_t>(rank - 1 - d);
  return order;
}

}  // namespace

Status Client::Open(const std::string& options, int cpu_devices) {
  const Plugin& plugin = *plugin_;
  MT_ASSIGN_OR_RETURN(std::vector<PJRT_NamedValue> values, ParseOptions(options));
  static constexpr std::string_view kCount = "cpu_device_count";
  if (cpu_devices > 0) {
    MT_PJRT_ARGS(PJRT_NamedValue, count);
    count.name = kCount.data();
    count.name_size = kCount.size();
    count.type = PJRT_NamedValue_kInt64;
    count.int64_value = cpu_devices;
    count.value_size = 1;
    values.push_back(count);
  }
  MT_PJRT_ARGS(PJRT_Client_Create_Args, create);
  create.create_options = values.data();
  create.num_options = values.size();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_Client_Create, create).At("pjrt: " + plugin.path()));
  client_ = ClientHandle(plugin_, create.client, [](const Plugin& p, PJRT_Client* c) {
    MT_PJRT_ARGS(PJRT_Client_Destroy_Args, args);
    args.client = c;
    (void)MT_PJRT_CALL(p, PJRT_Client_Destroy, args);
  });
  MT_PJRT_ARGS(PJRT_Client_PlatformName_Args, name);
  name.client = client_.get();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_Client_PlatformName, name));
  platform_.assign(name.platform_name, name.platform_name_size);
  MT_PJRT_ARGS(PJRT_Client_PlatformVersion_Args, version);
  version.client = client_.get();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_Client_PlatformVersion, version));
  platform_version_.assign(version.platform_version, version.platform_version_size);
  MT_PJRT_ARGS(PJRT_Client_AddressableDevices_Args, devices);
  devices.client = client_.get();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_Client_AddressableDevices, devices));
  devices_.assign(devices.addressable_devices,
                  devices.addressable_devices + devices.num_addressable_devices);
  ids_.clear();
  descriptions_.clear();
  for (PJRT_Device* device : devices_) {
    MT_PJRT_ARGS(PJRT_Device_GetDescription_Args, description);
    description.device = device;
    MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_Device_GetDescription, description));
    MT_PJRT_ARGS(PJRT_DeviceDescription_Id_Args, id);
    id.device_description = description.device_description;
    MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_DeviceDescription_Id, id));
    ids_.push_back(id.id);
    MT_PJRT_ARGS(PJRT_DeviceDescription_Kind_Args, kind);
    kind.device_description = description.device_description;
    MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_DeviceDescription_Kind, kind));
    MT_PJRT_ARGS(PJRT_DeviceDescription_DebugString_Args, words);
    words.device_description = description.device_description;
    MT_RETURN_IF_ERROR(MT_PJRT_CALL(plugin, PJRT_DeviceDescription_DebugString, words));
    descriptions_.push_back(std::string(kind.device_kind, kind.device_kind_size) + " " +
                            std::string(words.debug_string, words.debug_string_size));
  }
  return OkStatus();
}

Result<std::shared_ptr<Client>> Client::Create(PluginPtr plugin, int devices,
                                               const std::string& options) {
  std::shared_ptr<Client> client(new Client);
  client->plugin_ = std::move(plugin);
  MT_RETURN_IF_ERROR(client->Open(options, 0));
  if (client->platform_ == "cpu" && devices > 0 && client->devices() != devices &&
      options.find("cpu_device_count") == std::string::npos) {
    client->client_ = {};
    MT_RETURN_IF_ERROR(client->Open(options, devices));
  }
  if (client->devices() < devices) {
    return InvalidArgument("pjrt: " + client->plugin_->path() + ": expected at least " +
                           std::to_string(devices) + " devices, got: " +
                           std::to_string(client->devices()) + " of " + client->platform_)
        .From(Origin::kManifest);
  }
  return client;
}

int64_t Client::memory_bytes() const {
  MT_PJRT_ARGS(PJRT_Device_MemoryStats_Args, args);
  args.device = devices_[0];
  // Not every device knows.
  if (!MT_PJRT_CALL(*plugin_, PJRT_Device_MemoryStats, args).ok()) return 0;
  return args.bytes_limit_is_set ? args.bytes_limit : 0;
}

Result<BufferHandle> Client::FromHost(int device, const mesh::TensorType& type,
                                      const std::byte* bytes) const {
  MT_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args, args);
  args.client = client_.get();
  args.data = bytes;
  args.type = TypeOf(type.dtype);
  args.dims = type.dims.data();
  args.num_dims = type.dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = devices_[device];
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin_, PJRT_Client_BufferFromHostBuffer, args));
  BufferHandle buffer = Own(plugin_, args.buffer);
  const EventHandle done = Own(plugin_, args.done_with_host_buffer);
  MT_RETURN_IF_ERROR(Await(*plugin_, done, "pjrt: copy from the host"));
  return buffer;
}

Status Client::ToHost(PJRT_Buffer* buffer, const mesh::TensorType& type,
                      std::span<std::byte> to) const {
  MT_ASSIGN_OR_RETURN(const EventHandle arrived, BeginToHost(buffer, type, to));
  return Await(*plugin_, arrived, "pjrt: copy to the host");
}

Result<EventHandle> Client::BeginToHost(PJRT_Buffer* buffer, const mesh::TensorType& type,
                                        std::span<std::byte> to) const {
  const std::vector<int64_t> order = MinorToMajor(type.dims.size());
  MT_PJRT_ARGS(PJRT_Buffer_MemoryLayout, layout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = order.data();
  layout.tiled.minor_to_major_size = order.size();
  MT_PJRT_ARGS(PJRT_Buffer_ToHostBuffer_Args, args);
  args.src = buffer;
  args.host_layout = &layout;
  args.dst = to.data();
  args.dst_size = to.size();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin_, PJRT_Buffer_ToHostBuffer, args));
  return Own(plugin_, args.event);
}

Result<BufferHandle> Client::CopyTo(int device, PJRT_Buffer* buffer) const {
  MT_PJRT_ARGS(PJRT_Buffer_CopyToDevice_Args, args);
  args.buffer = buffer;
  args.dst_device = devices_[device];
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin_, PJRT_Buffer_CopyToDevice, args));
  return Own(plugin_, args.dst_buffer);
}

Result<ExecutableHandle> Client::Compile(const std::string& text, std::span<const int> devices,
                                         const std::string& cache, bool* cached) const {
  std::vector<int> ids;
  for (const int device : devices) ids.push_back(ids_[device]);
  const std::string options = CompileOptions(ids, platform_ == "cpu");
  std::string path;
  if (!cache.empty()) {
    std::string key = platform_ + "\n" + platform_version_ + "\n" + plugin_->version() + "\n" +
                      options + "\n" + text;
    for (const char* flags : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
      const char* value = std::getenv(flags);
      if (value != nullptr) key += "\n" + std::string(value);
    }
    for (const int device : devices) key += "\n" + descriptions_[device];
    if (platform_ == "cpu") key += "\n" + Processor();
    path = cache + "/" + HashOf(key) + ".pjrt";
    if (auto found = Cached(path); found.ok()) {
      *cached = true;
      return found;
    }
  }
  *cached = false;
  MT_PJRT_ARGS(PJRT_Program, program);
  static constexpr std::string_view kFormat = "mlir";
  std::string code = text;
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  MT_PJRT_ARGS(PJRT_Client_Compile_Args, args);
  args.client = client_.get();
  args.program = &program;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  MT_RETURN_IF_ERROR(Refused(MT_PJRT_CALL(*plugin_, PJRT_Client_Compile, args)));
  ExecutableHandle made = Own(plugin_, args.executable);
  if (!path.empty()) Keep(made, path);
  return made;
}

// A kept program is its hash, then its bytes: plugins take damaged ones, which compute something
// else. What is damaged or cannot be loaded, as after another version wrote it, is compiled anew.
Result<ExecutableHandle> Client::Cached(const std::string& path) const {
  MT_ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  const size_t front = std::min(file.size(), HashOf("").size());
  const std::string_view bytes = std::string_view(file).substr(front);
  if (file.substr(0, front) != HashOf(bytes)) return DataLoss(path + ": expected another hash");
  MT_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad_Args, args);
  args.client = client_.get();
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin_, PJRT_Executable_DeserializeAndLoad, args));
  return Own(plugin_, args.loaded_executable);
}

// A cache that cannot be written costs time, not the run.
void Client::Keep(const ExecutableHandle& executable, const std::string& path) const {
  MT_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, get);
  get.loaded_executable = executable.get();
  Status status = MT_PJRT_CALL(*plugin_, PJRT_LoadedExecutable_GetExecutable, get);
  if (status.ok()) {
    MT_PJRT_ARGS(PJRT_Executable_Serialize_Args, args);
    args.executable = get.executable;
    status = MT_PJRT_CALL(*plugin_, PJRT_Executable_Serialize, args);
    if (status.ok()) {
      status = MakeDirectories(path.substr(0, path.rfind('/')));
      if (status.ok()) {
        const std::string_view bytes(args.serialized_bytes, args.serialized_bytes_size);
        status = WriteFileAtomically(path, HashOf(bytes) + std::string(bytes));
      }
      args.serialized_executable_deleter(args.serialized_executable);
    }
    MT_PJRT_ARGS(PJRT_Executable_Destroy_Args, destroy);
    destroy.executable = get.executable;
    (void)MT_PJRT_CALL(*plugin_, PJRT_Executable_Destroy, destroy);
  }
  if (!status.ok()) LogWarning("pjrt: the compiled program was not kept: " + status.message());
}

Result<std::vector<EventHandle>> Client::Execute(
    const ExecutableHandle& executable, const std::vector<std::vector<PJRT_Buffer*>>& arguments,
    const std::vector<int64_t>& kept, std::vector<std::vector<BufferHandle>>& results) const {
  const size_t replicas = arguments.size();
  std::vector<PJRT_Buffer* const*> in;
  std::vector<std::vector<PJRT_Buffer*>> made(replicas);
  std::vector<PJRT_Buffer**> out;
  for (size_t r = 0; r < replicas; ++r) {
    made[r].resize(results[r].size());
    in.push_back(arguments[r].data());
    out.push_back(made[r].data());
  }
  std::vector<PJRT_Event*> events(replicas, nullptr);
  MT_PJRT_ARGS(PJRT_ExecuteOptions, options);
  options.non_donatable_input_indices = kept.data();
  options.num_non_donatable_input_indices = kept.size();
  MT_PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args, args);
  args.executable = executable.get();
  args.options = &options;
  args.argument_lists = in.data();
  args.num_devices = replicas;
  args.num_args = arguments[0].size();
  args.output_lists = out.data();
  args.device_complete_events = events.data();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin_, PJRT_LoadedExecutable_Execute, args));
  std::vector<EventHandle> ends;
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t i = 0; i < made[r].size(); ++i) results[r][i] = Own(plugin_, made[r][i]);
    ends.push_back(Own(plugin_, events[r]));
  }
  return ends;
}

}  // namespace meshtrain::device::pjrt
