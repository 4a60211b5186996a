// A PJRT plugin's C API in C++: errors are Status, handles free themselves, every struct says its
// size. Programs that were compiled with this header drive newer plugins, whose structs are longer,
// and older ones that have the functions that we call.
#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::device::pjrt {

// The functions of a plugin that is loaded; it stays loaded until the process ends.
class Plugin {
 public:
  // Once per path and process. Errors: as MakePjrtBackend's.
  static Result<std::shared_ptr<const Plugin>> Load(const std::string& path);

  const PJRT_Api& api() const { return *api_; }
  const std::string& path() const { return path_; }
  std::string version() const;  // "0.81"

  // Frees `error`. `what`: who asked, for the message. A device that is lost is kUnavailable of
  // Origin::kDevice.
  Status ToStatus(PJRT_Error* error, std::string_view what) const;

 private:
  Plugin() = default;
  std::string path_;
  const PJRT_Api* api_ = nullptr;
};
using PluginPtr = std::shared_ptr<const Plugin>;

// What a compiler answered. A program that it refuses it refuses at the next attempt too:
// kFailedPrecondition of Origin::kManifest, whichever of its codes says so.
Status Refused(const Status& answer);

// An argument struct of the C API, zero but for its size.
#define MT_PJRT_ARGS(Type, name) \
  Type name{};                   \
  name.struct_size = Type##_STRUCT_SIZE
// Calls a function of `plugin` with such a struct: Status.
#define MT_PJRT_CALL(plugin, Function, args) \
  (plugin).ToStatus((plugin).api().Function(&(args)), #Function)

// Owns an object of the plugin's.
template <typename T>
class Handle {
 public:
  using Free = void (*)(const Plugin&, T*);
  Handle() = default;
  Handle(PluginPtr plugin, T* object, Free free)
      : plugin_(std::move(plugin)), object_(object), free_(free) {}
  Handle(Handle&& other) noexcept { *this = std::move(other); }
  Handle& operator=(Handle&& other) noexcept {
    std::swap(plugin_, other.plugin_);
    std::swap(object_, other.object_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~Handle() {
    if (object_ != nullptr) free_(*plugin_, object_);
  }
  T* get() const { return object_; }

 private:
  PluginPtr plugin_;
  T* object_ = nullptr;
  Free free_ = nullptr;
};
using ClientHandle = Handle<PJRT_Client>;
using BufferHandle = Handle<PJRT_Buffer>;
using EventHandle = Handle<PJRT_Event>;
using ExecutableHandle = Handle<PJRT_LoadedExecutable>;

BufferHandle Own(PluginPtr plugin, PJRT_Buffer* buffer);
EventHandle Own(PluginPtr plugin, PJRT_Event* event);
ExecutableHandle Own(PluginPtr plugin, PJRT_LoadedExecutable* executable);

// Waits for the event. Errors: what the work ended with.
Status Await(const Plugin& plugin, const EventHandle& event, std::string_view what);

// A client and its devices.
class Client {
 public:
  // `devices`, `options`: as PjrtOptions.
  static Result<std::shared_ptr<Client>> Create(PluginPtr plugin, int devices,
                                                const std::string& options);

  const PluginPtr& plugin() const { return plugin_; }
  const std::string& platform() const { return platform_; }  // "cpu", "tpu", "cuda"
  int devices() const { return static_cast<int>(devices_.size()); }
  int64_t memory_bytes() const;  // of a device; 0: unknown

  // Row-major elements, taken when the call returns.
  Result<BufferHandle> FromHost(int device, const mesh::TensorType& type,
                                const std::byte* bytes) const;
  Status ToHost(PJRT_Buffer* buffer, const mesh::TensorType& type, std::span<std::byte> to) const;
  // The same, under way when the call returns; `to` must stay until the event has come.
  Result<EventHandle> BeginToHost(PJRT_Buffer* buffer, const mesh::TensorType& type,
                                  std::span<std::byte> to) const;
  Result<BufferHandle> CopyTo(int device, PJRT_Buffer* buffer) const;

  // A program of StableHLO's text for a replica on each of `devices`. `cache`: a folder where what
  // was compiled is kept under a hash of all that it depends on; "": none. `cached`: whether it was
  // found there.
  Result<ExecutableHandle> Compile(const std::string& text, std::span<const int> devices,
                                   const std::string& cache, bool* cached) const;

  // One run. `arguments`, `results`: per replica. `kept`: indices of arguments that are not to be
  // donated. Gives each replica's end.
  Result<std::vector<EventHandle>> Execute(const ExecutableHandle& executable,
                                           const std::vector<std::vector<PJRT_Buffer*>>& arguments,
                                           const std::vector<int64_t>& kept,
                                           std::vector<std::vector<BufferHandle>>& results) const;

 private:
  Client() = default;
  Status Open(const std::string& options, int cpu_devices);
  Result<ExecutableHandle> Cached(const std::string& path) const;
  void Keep(const ExecutableHandle& executable, const std::string& path) const;

  PluginPtr plugin_;
  ClientHandle client_;
  std::string platform_, platform_version_;
  std::vector<PJRT_Device*> devices_;
  std::vector<int> ids_;                   // global, per device
  std::vector<std::string> descriptions_;  // in the plugin's words, per device
};

}  // namespace meshtrain::device::pjrt
