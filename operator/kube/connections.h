// Connections to the API server, made ready for the credentials of who asks: kept-alive ones that
// calls take and give back, and others for watches, which belong to the caller alone.
// Internal to operator/kube.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/kube/bounded_http.h"
#include "operator/kube/config.h"
#include "operator/kube/credentials.h"
#include "operator/kube/endpoint.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::kube {

// httplib reads certificates and keys from files. A memory file gives it one without writing
// secrets to a disk.
class MemoryFile {
 public:
  MemoryFile() = default;
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Call once.
  Status Write(std::string_view text);
  // "" before Write.
  std::string path() const { return fd_ < 0 ? "" : "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_ = -1;
};

struct Connection {
  Connection();
  ~Connection();

  MemoryFile certificate, key;
  std::unique_ptr<httplib::ClientImpl> http;
  Allowance allowance;
  Credential credential;  // whose certificate it uses
};

// Safe from any thread; a Connection belongs to who took it. `config` and `clock` are borrowed.
class Connections {
 public:
  Connections(const ClientConfig& config, Endpoint endpoint, std::optional<Endpoint> proxy,
              Clock& clock);

  // Call once, before all others.
  Status Prepare();
  // A new one; it connects when the first request is sent.
  Result<std::unique_ptr<Connection>> Connect(const Credential& credential) const;
  // One that was given back and uses the same certificate; else a new one.
  Result<std::unique_ptr<Connection>> Take(const Credential& credential);
  void GiveBack(std::unique_ptr<Connection> connection);

 private:
  const ClientConfig& config_;
  const Endpoint endpoint_;
  const std::optional<Endpoint> proxy_;
  Clock& clock_;
  MemoryFile ca_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::kube
