#include "runtime/device/pjrt/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string_view>

#include "runtime/base/mutex.h"

namespace meshtrain::device::pjrt {
namespace {

StatusCode CodeOf(PJRT_Error_Code code) {
  // Memory that is not there is no full disk, which may heal.
  if (code == PJRT_Error_Code_RESOURCE_EXHAUSTED) return StatusCode::kFailedPrecondition;
  // The numbers are gRPC's, as ours are.
  if (code > 0 && code <= PJRT_Error_Code_UNAUTHENTICATED) return static_cast<StatusCode>(code);
  return StatusCode::kUnknown;
}

// What a plugin says of a device that it cannot reach, or of work that a lost device had. kAborted
// is ours, for numbers that are not finite.
bool IsLoss(StatusCode code, std::string_view message) {
  if (code == StatusCode::kInternal) {
    // XLA hands on what CUDA's driver says as INTERNAL. These (CUresult) are of the card's state,
    // which a program cannot cause.
    constexpr std::string_view kLost[] = {
        "CUDA_ERROR_ECC_UNCORRECTABLE",   "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",  "CUDA_ERROR_NO_DEVICE",
        "CUDA_ERROR_SYSTEM_NOT_READY",    "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_HARDWARE_STACK_ERROR"};
    return std::ranges::any_of(
        kLost, [&](std::string_view name) { return message.find(name) != std::string_view::npos; });
  }
  return code == StatusCode::kAborted || code == StatusCode::kCancelled ||
         code == StatusCode::kDeadlineExceeded || code == StatusCode::kUnavailable;
}

// The functions that we call: the API's struct must be long enough to hold the last of them.
constexpr size_t kLeastApi = offsetof(PJRT_Api, PJRT_Client_TopologyDescription);

}  // namespace

Result<PluginPtr> Plugin::Load(const std::string& path) {
  static Mutex mutex;
  static std::map<std::string, PluginPtr>* const loaded = new std::map<std::string, PluginPtr>;
  MutexLock lock(mutex);
  if (const auto known = loaded->find(path); known != loaded->end()) return known->second;
  if (path.empty()) {
    return FailedPrecondition("pjrt: expected a plugin, named by MESHTRAIN_PJRT_PLUGIN, got: none")
        .From(Origin::kManifest);
  }
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return NotFound("pjrt: expected a plugin at " + path + ", got: no such file")
        .From(Origin::kManifest);
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return FailedPrecondition("pjrt: " + path + ": expected a library, got: " + dlerror())
        .From(Origin::kManifest);
  }
  const auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) {
    return FailedPrecondition("pjrt: " + path +
                              ": expected a PJRT plugin, which has GetPjrtApi, got: " + dlerror())
        .From(Origin::kManifest);
  }
  std::shared_ptr<Plugin> plugin(new Plugin);
  plugin->path_ = path;
  plugin->api_ = get();
  const auto* api = plugin->api_;
  if (api == nullptr || api->pjrt_api_version.major_version != PJRT_API_MAJOR ||
      api->struct_size < kLeastApi) {
    return FailedPrecondition(
               "pjrt: " + path + ": expected the PJRT API " + std::to_string(PJRT_API_MAJOR) + "." +
               std::to_string(PJRT_API_MINOR) +
               " or one close to it, got: " + (api == nullptr ? "none" : plugin->version()))
        .From(Origin::kManifest);
  }
  MT_PJRT_ARGS(PJRT_Plugin_Initialize_Args, args);
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin, PJRT_Plugin_Initialize, args).At("pjrt: " + path));
  loaded->emplace(path, plugin);
  return PluginPtr(plugin);
}

std::string Plugin::version() const {
  return std::to_string(api_->pjrt_api_version.major_version) + "." +
         std::to_string(api_->pjrt_api_version.minor_version);
}

Status Plugin::ToStatus(PJRT_Error* error, std::string_view what) const {
  if (error == nullptr) return OkStatus();
  MT_PJRT_ARGS(PJRT_Error_Message_Args, message);
  message.error = error;
  api_->PJRT_Error_Message(&message);
  MT_PJRT_ARGS(PJRT_Error_GetCode_Args, code);
  code.error = error;
  StatusCode known = StatusCode::kUnknown;
  if (PJRT_Error* second = api_->PJRT_Error_GetCode(&code); second == nullptr) {
    known = CodeOf(code.code);
  }
  Status status(known,
                std::string(what) + ": " + std::string(message.message, message.message_size));
  MT_PJRT_ARGS(PJRT_Error_Destroy_Args, destroy);
  destroy.error = error;
  api_->PJRT_Error_Destroy(&destroy);
  if (IsLoss(known, status.message())) {
    return status.WithCode(StatusCode::kUnavailable).From(Origin::kDevice);
  }
  return status;
}

Status Refused(const Status& answer) {
  const StatusCode code = answer.code();
  if (code != StatusCode::kUnknown && code != StatusCode::kInvalidArgument &&
      code != StatusCode::kUnimplemented) {
    return answer;
  }
  return answer.WithCode(StatusCode::kFailedPrecondition).From(Origin::kManifest);
}

BufferHandle Own(PluginPtr plugin, PJRT_Buffer* buffer) {
  return {std::move(plugin), buffer, [](const Plugin& p, PJRT_Buffer* b) {
            MT_PJRT_ARGS(PJRT_Buffer_Destroy_Args, args);
            args.buffer = b;
            (void)MT_PJRT_CALL(p, PJRT_Buffer_Destroy, args);
          }};
}

EventHandle Own(PluginPtr plugin, PJRT_Event* event) {
  return {std::move(plugin), event, [](const Plugin& p, PJRT_Event* e) {
            MT_PJRT_ARGS(PJRT_Event_Destroy_Args, args);
            args.event = e;
            (void)MT_PJRT_CALL(p, PJRT_Event_Destroy, args);
          }};
}

ExecutableHandle Own(PluginPtr plugin, PJRT_LoadedExecutable* executable) {
  return {std::move(plugin), executable, [](const Plugin& p, PJRT_LoadedExecutable* e) {
            MT_PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, args);
            args.executable = e;
            (void)MT_PJRT_CALL(p, PJRT_LoadedExecutable_Destroy, args);
          }};
}

Status Await(const Plugin& plugin, const EventHandle& event, std::string_view what) {
  MT_PJRT_ARGS(PJRT_Event_Await_Args, args);
  args.event = event.get();
  return plugin.ToStatus(plugin.api().PJRT_Event_Await(&args), what);
}

}  // namespace meshtrain::device::pjrt
