#include "runtime/distribute/parameter/transfer.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "runtime/distribute/grpc_internal.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;

namespace {

constexpr uint32_t kMagic = 0x3146544d;  // "MTF1"
constexpr size_t kFrontBytes = 16;
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kCopyBelow = 2048;  // a smaller piece is copied: cheaper than counting its owner
constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 30;
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

template <typename T>
void Put(T value, uint8_t* to) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<uint8_t>(value >> (8 * i));
}
template <typename T>
T Get(const uint8_t* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(from[i]) << (8 * i);
  return value;
}

// Cuts a frame into messages.
class FrameSender {
 public:
  explicit FrameSender(Frame frame) : frame_(std::move(frame)) {
    for (const Piece& piece : frame_.payload) left_ += piece.bytes.size();
  }

  // The next message.
  grpc::ByteBuffer Next() {
    std::vector<grpc::Slice> slices;
    if (first_) {
      first_ = false;
      grpc::Slice front(kFrontBytes + frame_.head.size());
      auto* const at = const_cast<uint8_t*>(front.begin());
      Put(kMagic, at);
      Put(static_cast<uint32_t>(frame_.head.size()), at + 4);
      Put(static_cast<uint64_t>(left_), at + 8);
      std::memcpy(at + kFrontBytes, frame_.head.data(), frame_.head.size());
      slices.push_back(std::move(front));
    }
    for (size_t room = kChunkBytes; room > 0 && left_ > 0;) {
      const Piece& piece = frame_.payload[piece_];
      const size_t size = std::min(room, piece.bytes.size() - at_);
      if (size > 0) slices.push_back(SliceOf(piece, at_, size));
      at_ += size;
      room -= size;
      left_ -= size;
      if (at_ == piece.bytes.size()) {
        ++piece_;
        at_ = 0;
      }
    }
    return grpc::ByteBuffer(slices.data(), slices.size());
  }
  bool done() const { return !first_ && left_ == 0; }

 private:
  static grpc::Slice SliceOf(const Piece& piece, size_t at, size_t size) {
    const std::byte* const bytes = piece.bytes.data() + at;
    if (size < kCopyBelow) return grpc::Slice(bytes, size);
    auto* const owner = new std::shared_ptr<const void>(piece.owner);
    return grpc::Slice(
        const_cast<std::byte*>(bytes), size,
        [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }, owner);
  }

  Frame frame_;
  bool first_ = true;
  size_t left_ = 0;  // payload bytes
  size_t piece_ = 0;
  size_t at_ = 0;  // in it
};

// Puts a frame together, straight into where its payload goes.
class FrameReader {
 public:
  explicit FrameReader(Land land) : land_(std::move(land)) {}

  Status Take(const grpc::ByteBuffer& message) {
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) return Internal("frame: expected readable bytes, got: none");
    for (const grpc::Slice& slice : slices) {
      const uint8_t* at = slice.begin();
      const uint8_t* const end = slice.end();
      while (at != end) {
        const size_t left = static_cast<size_t>(end - at);
        if (!landed_) {
          const size_t wanted =
              (front_.size() < kFrontBytes ? kFrontBytes : kFrontBytes + head_bytes_) -
              front_.size();
          const size_t size = std::min(left, wanted);
          front_.append(reinterpret_cast<const char*>(at), size);
          at += size;
          MT_RETURN_IF_ERROR(MaybeBegin());
        } else {
          if (part_ == parts_.size()) return Unexpected("more bytes");
          std::span<std::byte>& part = parts_[part_];
          const size_t size = std::min(left, part.size());
          if (size > 0) std::memcpy(part.data(), at, size);
          part = part.subspan(size);
          at += size;
          while (part_ < parts_.size() && parts_[part_].empty()) ++part_;
        }
      }
    }
    return OkStatus();
  }
  bool complete() const { return landed_ && part_ == parts_.size(); }
  std::string TakeHead() { return std::move(head_); }

 private:
  static Status Unexpected(const std::string& got) {
    return InvalidArgument("frame: expected its end, got: " + got);
  }

  // Reads the front once it is here, then the head once that is, and asks where the payload goes.
  Status MaybeBegin() {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(front_.data());
    if (front_.size() == kFrontBytes && !sized_) {
      sized_ = true;
      if (Get<uint32_t>(bytes) != kMagic) {
        return InvalidArgument("frame: expected its magic number, got: another");
      }
      head_bytes_ = Get<uint32_t>(bytes + 4);
      payload_bytes_ = Get<uint64_t>(bytes + 8);
      if (head_bytes_ > kMaxHeadBytes) {
        return InvalidArgument("frame: expected a head of at most a gigabyte, got: more");
      }
    }
    if (!sized_ || front_.size() < kFrontBytes + head_bytes_) return OkStatus();
    head_ = front_.substr(kFrontBytes);
    front_.clear();
    if (land_) {
      MT_ASSIGN_OR_RETURN(parts_, land_(head_));
    }
    uint64_t bytes_wanted = 0;
    for (const auto& part : parts_) bytes_wanted += part.size();
    if (bytes_wanted != payload_bytes_) {
      return InvalidArgument("frame: expected a payload of " + std::to_string(bytes_wanted) +
                             " bytes, got: " + std::to_string(payload_bytes_));
    }
    while (part_ < parts_.size() && parts_[part_].empty()) ++part_;
    landed_ = true;
    return OkStatus();
  }

  Land land_;
  std::string front_;
  std::string head_;
  bool sized_ = false;
  bool landed_ = false;  // the head is read, `parts_` are known
  uint64_t head_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
  std::vector<std::span<std::byte>> parts_;  // what is left of each
  size_t part_ = 0;
};

}  // namespace

uint64_t DrawBoot() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) | 1;
}

bool IsAway(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kCancelled || code == StatusCode::kResourceExhausted;
}

Piece PieceOf(const Tensor& tensor) {
  auto owner = std::make_shared<const Tensor>(tensor);
  const auto bytes = owner->bytes();
  return {bytes, std::move(owner)};
}

Piece RowsOf(const Tensor& tensor, int64_t row, int64_t rows) {
  Piece piece = PieceOf(tensor);
  if (tensor.dims().empty()) return piece;
  MT_CHECK(row >= 0 && rows >= 0 && row + rows <= tensor.dims()[0]);
  const int64_t row_bytes =
      tensor.dims()[0] == 0 ? 0 : tensor.type().num_bytes() / tensor.dims()[0];
  piece.bytes = piece.bytes.subspan(static_cast<size_t>(row * row_bytes),
                                    static_cast<size_t>(rows * row_bytes));
  return piece;
}

// --- the calling side

class Peer::Impl {
 public:
  Impl(std::string address, Identity identity, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)), identity_(std::move(identity)), stub_(std::move(channel)) {}

  class ClientCall;

  const std::string address_;
  const Identity identity_;
  grpc::GenericStub stub_;

  Mutex mutex_;
  CondVar changed_;
  std::set<ClientCall*> calls_ MT_GUARDED_BY(mutex_);  // under way
};

// One call. Lives until gRPC is done with it; whoever may cancel it holds a reference too.
class Peer::Impl::ClientCall final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<ClientCall> {
 public:
  ClientCall(std::shared_ptr<Impl> peer, Frame request, Land land, Done done)
      : peer_(std::move(peer)),
        sender_(std::move(request)),
        reader_(std::move(land)),
        done_(std::move(done)) {}

  void Start(const std::string& method, Duration timeout) {
    self_ = shared_from_this();
    const TimePoint now = SystemClock().Now();
    distribute::SignCall(context_, method, peer_->identity_.job, peer_->identity_.security, now);
    context_.set_deadline(
        std::chrono::time_point_cast<std::chrono::system_clock::duration>(now + timeout));
    context_.set_initial_metadata_corked(true);
    peer_->stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartRead(&incoming_);
    Write();
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    if (ok && !sender_.done()) Write();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const Status taken = reader_.Take(incoming_);
    incoming_.Clear();
    if (!taken.ok()) {
      error_ = taken;
      context_.TryCancel();
      return;
    }
    if (!reader_.complete()) StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<ClientCall> self = std::move(self_);
    Result<std::string> result = Internal("not set");
    if (!error_.ok()) {
      result = error_.At(peer_->address_);
    } else if (!status.ok()) {
      result = distribute::FromGrpc(status).At(peer_->address_);
    } else if (!reader_.complete()) {
      result = Internal(peer_->address_ + ": expected an answer, got: a part of one");
    } else {
      result = reader_.TakeHead();
    }
    const Done done = std::move(done_);
    done(std::move(result));
    MutexLock lock(peer_->mutex_);
    peer_->calls_.erase(this);
    peer_->changed_.NotifyAll();
  }

 private:
  void Write() {
    outgoing_ = sender_.Next();
    if (sender_.done()) {
      StartWriteLast(&outgoing_, grpc::WriteOptions());
    } else {
      StartWrite(&outgoing_);
    }
  }

  const std::shared_ptr<Impl> peer_;
  FrameSender sender_;
  FrameReader reader_;
  Done done_;
  grpc::ClientContext context_;
  grpc::ByteBuffer outgoing_, incoming_;
  Status error_;
  std::shared_ptr<ClientCall> self_;
};

Result<std::unique_ptr<Peer>> Peer::Create(const std::string& address, const Identity& identity) {
  MT_ASSIGN_OR_RETURN(auto channel, distribute::MakeChannel({.address = address,
                                                             .security = identity.security,
                                                             .max_receive_bytes = kMaxMessageBytes,
                                                             .bulk = true}));
  return std::unique_ptr<Peer>(
      new Peer(std::make_shared<Impl>(address, identity, std::move(channel))));
}

Peer::~Peer() {
  {
    MutexLock lock(impl_->mutex_);
    for (Impl::ClientCall* call : impl_->calls_) call->Cancel();
    // gRPC ends a cancelled call at once; what may take a moment is a `done` that is running.
    while (!impl_->changed_.WaitFor(impl_->mutex_, {}, std::chrono::minutes(1),
                                    [&] { return impl_->calls_.empty(); })) {
    }
  }
  // A call that has told its end is still being destroyed on gRPC's thread. The channel must not go
  // with it there: the last one of a process ends gRPC's threads, and a thread that ends itself
  // leaves its queue to be used after it is gone.
  while (impl_.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

const std::string& Peer::address() const { return impl_->address_; }

std::function<void()> Peer::Call(const std::string& method, Frame request, Duration timeout,
                                 Land land, Done done) {
  auto call = std::make_shared<Impl::ClientCall>(impl_, std::move(request), std::move(land),
                                                 std::move(done));
  {
    MutexLock lock(impl_->mutex_);
    impl_->calls_.insert(call.get());
  }
  call->Start(method, timeout);
  return [weak = std::weak_ptr<Impl::ClientCall>(call)] {
    if (const auto still = weak.lock()) still->Cancel();
  };
}

Result<std::string> Peer::CallAndWait(const std::string& method, Frame request, Duration timeout,
                                      std::stop_token stop, Land land) {
  struct Waiting {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<std::string>> result;
  };
  Waiting waiting;
  const auto cancel =
      Call(method, std::move(request), timeout, std::move(land), [&](Result<std::string> result) {
        MutexLock lock(waiting.mutex);
        waiting.result = std::move(result);
        waiting.changed.NotifyAll();
      });
  const auto wait = [&](std::stop_token until, Duration how_long) {
    MutexLock lock(waiting.mutex);
    return waiting.changed.WaitFor(waiting.mutex, until, how_long,
                                   [&] { return waiting.result.has_value(); });
  };
  if (!wait(stop, timeout + std::chrono::seconds(1))) {
    cancel();
    while (!wait({}, std::chrono::minutes(1))) {
    }
    if (stop.stop_requested()) return Cancelled(method + ": stopped");
  }
  return std::move(*waiting.result);
}

// --- the serving side

class Listener::Impl final : public grpc::Service {
 public:
  Impl(const Identity& identity, std::map<std::string, Method> methods);

  std::unique_ptr<distribute::GrpcServer> server_;

 private:
  class ServerCall;
  const Identity identity_;
  const std::map<std::string, Method> methods_;
};

// One request and its answer. gRPC is done with it only after Finish, so a reply always finds it.
class Listener::Impl::ServerCall final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public Reply::Sink {
 public:
  ServerCall(const Impl& listener, grpc::CallbackServerContext* context, const std::string& name,
             const Method& method)
      : context_(context),
        method_(method),
        reader_([this](std::string_view head) { return Allocate(head); }) {
    const Status allowed = distribute::CheckCaller(
        *context, name, listener.identity_.job, listener.identity_.security, SystemClock().Now());
    if (!allowed.ok()) {
      Finish(distribute::ToGrpc(allowed));
      return;
    }
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(distribute::ToGrpc(Cancelled("expected a request, got: a part of one")));
      return;
    }
    const Status taken = reader_.Take(incoming_);
    incoming_.Clear();
    if (!taken.ok()) {
      Finish(distribute::ToGrpc(taken));
      return;
    }
    if (!reader_.complete()) {
      StartRead(&incoming_);
      return;
    }
    const auto deadline = std::chrono::time_point_cast<Duration>(context_->deadline());
    Request request{reader_.TakeHead(), std::move(payload_),
                    std::max(Duration(0), deadline - SystemClock().Now())};
    method_.handle(std::move(request), Reply(this));
  }

  void Send(Result<Frame> answer) override {
    if (!answer.ok()) {
      Finish(distribute::ToGrpc(answer.status()));
      return;
    }
    sender_.emplace(std::move(*answer));
    Write();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(distribute::ToGrpc(Cancelled("the caller has gone")));
      return;
    }
    Write();
  }

  void OnDone() override { delete this; }

 private:
  void Write() {
    outgoing_ = sender_->Next();
    if (sender_->done()) {
      StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&outgoing_);
    }
  }

  Result<std::vector<std::span<std::byte>>> Allocate(std::string_view head) {
    std::vector<std::span<std::byte>> parts;
    if (!method_.payload) return parts;
    MT_ASSIGN_OR_RETURN(const std::vector<TensorType> types, method_.payload(head));
    for (const TensorType& type : types) payload_.emplace_back(type);
    for (Tensor& tensor : payload_) parts.push_back(tensor.mutable_bytes());
    return parts;
  }

  grpc::CallbackServerContext* const context_;
  const Method& method_;
  FrameReader reader_;
  std::optional<FrameSender> sender_;
  std::vector<Tensor> payload_;
  grpc::ByteBuffer incoming_, outgoing_;
};

Listener::Impl::Impl(const Identity& identity, std::map<std::string, Method> methods)
    : identity_(identity), methods_(std::move(methods)) {
  int index = 0;
  for (const auto& [name, method] : methods_) {
    // What generated code does for a method of raw messages; gRPC owns both objects.
    AddMethod(new grpc::internal::RpcServiceMethod(
        name.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        index++, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                     [this, name = &name, method = &method](grpc::CallbackServerContext* context) {
                       return new ServerCall(*this, context, *name, *method);
                     }));
  }
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Listener::~Listener() { Shutdown(Duration(0)); }

Result<std::unique_ptr<Listener>> Listener::Create(int port, const Identity& identity,
                                                   std::map<std::string, Method> methods) {
  auto impl = std::make_unique<Impl>(identity, std::move(methods));
  MT_ASSIGN_OR_RETURN(impl->server_,
                      distribute::GrpcServer::Create({.port = port,
                                                      .security = identity.security,
                                                      .max_receive_bytes = kMaxMessageBytes,
                                                      .bulk = true},
                                                     {impl.get()}));
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

int Listener::port() const { return impl_->server_->port(); }
void Listener::Shutdown(Duration grace) { impl_->server_->Shutdown(grace); }

}  // namespace meshtrain::parameter
