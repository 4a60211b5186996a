// What our gRPC services and clients share: channels, servers, the proof on every call, statuses.
// For the .cc files of this folder only; gRPC's types are only named here, so that no header leans
// on gRPC's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/rpc/half_open.h"
#include "runtime/rpc/security.h"
#include "runtime/rpc/used_claims.h"

namespace grpc {
class Channel;
class ClientContext;
class ServerContextBase;
class ServerCredentials;
class Service;
class Status;
}  // namespace grpc

namespace meshtrain::rpc {

// gRPC's codes and numbers are ours. A message longer than 2 kB is cut: it travels as a header. The
// origin travels in gRPC's error details, as "meshtrain-origin=NAME"; peer_error.h says what it is
// to who receives it.
grpc::Status ToGrpc(const Status& status);
Status FromGrpc(const grpc::Status& status);

struct ChannelOptions {
  std::string address;  // HOST:PORT
  Security security;
  int64_t max_receive_bytes = int64_t{4} << 20;  // of one message; -1: any
  bool bulk = false;                             // for tensors: see BulkArguments
};
// A channel of its own connection, backoff and name look-up (a second channel to the same address
// shares nothing with it): to make one anew is to look the name up and connect at once. It never
// goes through an HTTP proxy, and does not resend calls by itself. Connects on the first call.
// Errors: of the certificate files.
Result<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options);

// Channel arguments, both sides', under which messages of megabytes move at about TCP's speed; with
// gRPC's own a third of it. They cost memory per connection.
std::span<const std::pair<const char*, int>> BulkArguments();

// Errors: of the certificate files.
Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Security& security);

// Signs the calls of one caller to one server. Thread-safe.
class CallSigner {
 public:
  CallSigner(Security security, std::string job);
  // Puts the caller's claim, its proof and our protocol's version on a call that is about to begin.
  // What its messages are sealed with.
  CallMac Sign(grpc::ClientContext& context, std::string_view method, TimePoint now);

 private:
  const std::string token_;
  const std::string job_;
  const std::string caller_;
  std::atomic<uint64_t> number_ = 0;
};

// The server's side of it, and who may hold its connections. Thread-safe.
class CallGate {
 public:
  CallGate(Security security, std::string job);
  // First thing in every method, before a message is read. What the call's messages are sealed
  // with. Errors: kFailedPrecondition (another job, another version of the protocol),
  // kPermissionDenied (no or a wrong proof), kUnauthenticated (a claim that was used before).
  Result<CallMac> Admit(const grpc::ServerContextBase& context, std::string_view method,
                        TimePoint now);
  const Security& security() const { return security_; }
  HalfOpen& half_open() { return half_open_; }

 private:
  const Security security_;
  const std::string job_;
  HalfOpen half_open_;
  Mutex mutex_;
  UsedClaims used_ MT_GUARDED_BY(mutex_);
};

// Raised when an older process could misread what a newer one sends.
inline constexpr int kProtocolVersion = 6;

// A trailing header that says: this error is the server's own word, not one of the connection.
inline constexpr const char* kAnsweredKey = "meshtrain-answered";

struct ServerOptions {
  // A numeric address to listen at; "": all addresses of the host, IPv6 and IPv4.
  std::string address;
  int port = 0;              // 0: any free one
  CallGate* gate = nullptr;  // of all `services`; outlives the server
  int max_streams = 100;     // calls at a time over one connection; more wait at the caller
  int64_t max_receive_bytes = int64_t{4} << 20;  // of one message; -1: any
  bool bulk = false;                             // for tensors: see BulkArguments
};

// A gRPC server at a port. The port is listened at by a thread of ours that hands connections over:
// gRPC's own listener never accepts again after the process once ran out of file descriptors (grpc
// issue 20418), and shares a taken port instead of saying so. Connections on which no call was
// proven are few and short (HalfOpen); a call's headers take at most 8 KiB.
class GrpcServer {
 public:
  // Serves `services`, which must outlive it. Errors: kUnavailable (of Origin::kPeers where
  // the port is taken); of the certificate files.
  static Result<std::unique_ptr<GrpcServer>> Create(const ServerOptions& options,
                                                    const std::vector<grpc::Service*>& services);
  ~GrpcServer();  // Shutdown(0)

  int port() const;
  // Accepts nothing more; calls still open after `grace` are cancelled. Returns when the last has
  // ended.
  void Shutdown(Duration grace);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::rpc
