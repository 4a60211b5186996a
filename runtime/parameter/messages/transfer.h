// Frames between the processes of a job: a small head (a protobuf message) and tensors' bytes
// behind it.
//
// gRPC carries them as bidirectional streams of byte buffers: one message of at most a megabyte of
// payload after the other, whose slices point at the tensors. Nothing is copied on the sending
// side, and once, into its tensor, on the receiving one. (Measured: protobuf `bytes` move at 1 GB/s
// over loopback, this at 4 to 6, raw TCP at 5 to 7.)
//
// A frame on the wire, over all messages of its stream (little-endian):
//   u32 magic "MTF3" | u32 head bytes | u64 payload bytes | u64 XXH3-64 of these 16 |
//   head | 32 bytes CallMac of those 16 and it | payload | u64 XXH3-64 of it, where there is one
//
// A frame whose bytes changed on the way is counted and sent again; nobody acts upon it.
//
// Every call has a deadline and the job's proof (security.h), which a Listener checks before it
// takes a byte of the frame. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"
#include "runtime/rpc/security.h"

namespace meshtrain::parameter {

// What a process shows and checks on every call.
struct Identity {
  std::string job;  // "namespace/name"
  rpc::Security security;
};

// Bytes to send; `owner` keeps them until the last has left.
struct Piece {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};
Piece PieceOf(const mesh::Tensor& tensor);
// Rows [row, row + rows) of a tensor; all of a scalar.
Piece RowsOf(const mesh::Tensor& tensor, int64_t row, int64_t rows);

// Tells two lives of a process apart; not 0.
uint64_t DrawBoot();

// Whether a call's error says that the peer may be back, or have room, in a moment.
bool IsAway(StatusCode code);

// Frames that came to this process and had changed on the way, since it began.
int64_t DamagedFrames();

struct Frame {
  std::string head;
  std::vector<Piece> payload;
};

// --- the calling side

// Where the payload behind this head goes, in order; its sizes must add up. Called on a gRPC
// thread, and again for an answer that comes again because its payload was damaged: then it must
// point at what was given before, or at other places. What it points at must stay until the call is
// done.
using Land = std::function<Result<std::vector<std::span<std::byte>>>(std::string_view head)>;

// Whether a method does the same when it is called twice with the same request.
enum class Repeat { kAllowed, kNever };

// Another process at "HOST:PORT".
class Peer {
 public:
  // Connects on the first call, and anew after a loss. Errors: of the certificate files.
  static Result<std::unique_ptr<Peer>> Create(const std::string& address, const Identity& identity);
  // Cancels what is under way and waits for it.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& address() const;

  using Done = std::function<void(Result<std::string> head)>;
  // `done` is called once, on a gRPC thread, and must not block; with the answer's head, or the
  // server's error, or kUnavailable (no connection, or it broke), kDeadlineExceeded, kCancelled.
  // Without `land` the answer has no payload. Returns what cancels the call; it may be dropped, and
  // called at any time.
  //
  // A request that was damaged on the way is sent again, within `timeout`. So is the request of an
  // answer that was damaged, where `repeat` allows the method to be carried out twice; else, and
  // after a few times in a row, it is kUnavailable.
  std::function<void()> Call(const std::string& method, Frame request, Duration timeout, Land land,
                             Done done, Repeat repeat = Repeat::kAllowed);
  Result<std::string> CallAndWait(const std::string& method, Frame request, Duration timeout,
                                  std::stop_token stop, Land land = nullptr);

 private:
  class Impl;
  explicit Peer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// --- the serving side

struct Request {
  std::string head;
  std::vector<mesh::Tensor> payload;
  Duration left{};  // until the caller gives up
};

// Answers one request, from any thread, once. One that is dropped without an answer says
// kCancelled.
class Reply {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void Send(Result<Frame> answer) = 0;
  };
  explicit Reply(Sink* sink) : sink_(sink) {}
  Reply(Reply&& other) noexcept : sink_(std::exchange(other.sink_, nullptr)) {}
  Reply& operator=(Reply&& other) noexcept {
    std::swap(sink_, other.sink_);
    return *this;
  }
  ~Reply() {
    if (sink_ != nullptr) sink_->Send(Cancelled("the process is shutting down"));
  }
  void operator()(Result<Frame> answer) { std::exchange(sink_, nullptr)->Send(std::move(answer)); }

 private:
  Sink* sink_;
};

struct ListenAt {
  std::string address;  // a numeric one; "": all of the host
  int port = 0;         // 0: any free one
};

// Both are called on gRPC threads and must not block.
struct Method {
  // The tensors behind a head; absent: none.
  std::function<Result<std::vector<mesh::TensorType>>(std::string_view head)> payload;
  std::function<void(Request request, Reply reply)> handle;
};

// Listens and answers.
class Listener {
 public:
  // `methods` by full name, "/meshtrain.v1.ParameterServer/Push". `at`: where to listen. Errors:
  // kUnavailable (port taken); of the certificate files.
  static Result<std::unique_ptr<Listener>> Create(const ListenAt& at, const Identity& identity,
                                                  std::map<std::string, Method> methods);
  // Every reply must have been given, or dropped, by then or soon.
  ~Listener();
  int port() const;
  // Takes no more calls and ends those still open after `grace`.
  void Shutdown(Duration grace);

 private:
  class Impl;
  explicit Listener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::parameter
