#include "runtime/parameter/messages/transfer.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/rpc/grpc_internal.h"
#include "runtime/wire/checksum.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;
using rpc::CallMac;

namespace {

constexpr uint32_t kMagic = 0x3346544d;  // "MTF3"
constexpr size_t kSizesBytes = 16;
constexpr size_t kSumBytes = 8;
constexpr size_t kFrontBytes = kSizesBytes + kSumBytes;
constexpr size_t kMacBytes = rpc::CallMac::kBytes;
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kCopyBelow = 2048;  // a smaller piece is copied: cheaper than counting its owner
constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 30;
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;
// How often in a row a frame that was damaged is sent again at once. On a line that damages more,
// whoever called tries again after a pause.
constexpr int kMaxResent = 8;

// A trailing header of an error: the request was damaged on the way, and nobody has read it.
constexpr const char* kDamagedKey = "meshtrain-damaged";

std::atomic<int64_t> damaged_frames = 0;

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
    if (left_ > 0) sum_.emplace();
  }

  // The next message. `mac`: of the call; the first message alone needs it.
  grpc::ByteBuffer Next(CallMac& mac) {
    std::vector<grpc::Slice> slices;
    if (first_) {
      first_ = false;
      const size_t size = kFrontBytes + frame_.head.size();
      grpc::Slice front(size + kMacBytes);
      auto* const at = const_cast<uint8_t*>(front.begin());
      Put(kMagic, at);
      Put(static_cast<uint32_t>(frame_.head.size()), at + 4);
      Put(static_cast<uint64_t>(left_), at + 8);
      Put(wire::Checksum(at, kSizesBytes), at + kSizesBytes);
      std::memcpy(at + kFrontBytes, frame_.head.data(), frame_.head.size());
      const std::string code =
          mac.Sign(std::string(reinterpret_cast<const char*>(at), kSizesBytes) + frame_.head);
      std::memcpy(at + size, code.data(), kMacBytes);
      slices.push_back(std::move(front));
    }
    for (size_t room = kChunkBytes; room > 0 && left_ > 0;) {
      const Piece& piece = frame_.payload[piece_];
      const size_t size = std::min(room, piece.bytes.size() - at_);
      if (size > 0) {
        sum_->Add(piece.bytes.data() + at_, size);
        slices.push_back(SliceOf(piece, at_, size));
      }
      at_ += size;
      room -= size;
      left_ -= size;
      if (at_ == piece.bytes.size()) {
        ++piece_;
        at_ = 0;
      }
      if (left_ == 0) {
        uint8_t sum[kSumBytes];
        Put(sum_->value(), sum);
        slices.emplace_back(sum, kSumBytes);
      }
    }
    return grpc::ByteBuffer(slices.data(), slices.size());
  }
  bool done() const { return !first_ && left_ == 0; }
  // To be sent again. No message may be under way.
  Frame TakeFrame() { return std::move(frame_); }

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
  size_t at_ = 0;                             // in it
  std::optional<wire::RunningChecksum> sum_;  // of the payload that was cut
};

// Puts a frame together, straight into where its payload goes. It asks for the place only when the
// head is known to be whole.
class FrameReader {
 public:
  explicit FrameReader(Land land) : land_(std::move(land)) {}

  // `mac`: of the call.
  Status Take(const grpc::ByteBuffer& message, CallMac& mac) {
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) return Internal("frame: expected readable bytes, got: none");
    for (const grpc::Slice& slice : slices) {
      const uint8_t* at = slice.begin();
      const uint8_t* const end = slice.end();
      while (at != end) {
        const size_t left = static_cast<size_t>(end - at);
        if (!landed_) {
          const size_t wanted =
              (front_.size() < kFrontBytes ? kFrontBytes : kFrontBytes + head_bytes_ + kMacBytes) -
              front_.size();
          const size_t size = std::min(left, wanted);
          front_.append(reinterpret_cast<const char*>(at), size);
          at += size;
          MT_RETURN_IF_ERROR(MaybeBegin(mac));
        } else if (part_ == parts_.size()) {
          if (complete()) return Damaged("its end", "more bytes");
          const size_t size = std::min(left, kSumBytes - tail_.size());
          tail_.append(reinterpret_cast<const char*>(at), size);
          at += size;
          if (tail_.size() == kSumBytes) {
            MT_RETURN_IF_ERROR(
                CheckSum(reinterpret_cast<const uint8_t*>(tail_.data()), sum_->value(), "payload"));
          }
        } else {
          std::span<std::byte>& part = parts_[part_];
          const size_t size = std::min(left, part.size());
          std::memcpy(part.data(), at, size);
          sum_->Add(part.data(), size);
          part = part.subspan(size);
          at += size;
          while (part_ < parts_.size() && parts_[part_].empty()) ++part_;
        }
      }
    }
    return OkStatus();
  }
  bool complete() const {
    return landed_ && part_ == parts_.size() && (!sum_ || tail_.size() == kSumBytes);
  }
  // An error of Take means that the bytes are not those that were sent.
  bool damaged() const { return damaged_; }
  std::string TakeHead() { return std::move(head_); }
  Land TakeLand() { return std::move(land_); }

 private:
  Status Damaged(const std::string& expected, const std::string& got) {
    damaged_ = true;
    ++damaged_frames;
    return Unavailable("frame: expected " + expected + ", got: " + got +
                       "; bytes changed on the way")
        .From(Origin::kPeers);
  }
  Status CheckSum(const uint8_t* sent, uint64_t ours, const std::string& of) {
    if (Get<uint64_t>(sent) == ours) return OkStatus();
    return Damaged("the checksum " + wire::HexText(Get<uint64_t>(sent)) + " of its " + of,
                   wire::HexText(ours));
  }

  // Reads the front once it is here, then the head once that is, and asks where the payload goes.
  Status MaybeBegin(CallMac& mac) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(front_.data());
    if (front_.size() == kFrontBytes && !sized_) {
      sized_ = true;
      if (Get<uint32_t>(bytes) != kMagic) return Damaged("its magic number", "another");
      MT_RETURN_IF_ERROR(
          CheckSum(bytes + kSizesBytes, wire::Checksum(bytes, kSizesBytes), "sizes"));
      head_bytes_ = Get<uint32_t>(bytes + 4);
      payload_bytes_ = Get<uint64_t>(bytes + 8);
      if (head_bytes_ > kMaxHeadBytes) {
        return InvalidArgument("frame: expected a head of at most a gigabyte, got: " +
                               std::to_string(head_bytes_) + " bytes");
      }
    }
    if (!sized_ || front_.size() < kFrontBytes + head_bytes_ + kMacBytes) return OkStatus();
    head_ = front_.substr(kFrontBytes, head_bytes_);
    if (!mac.Check(front_.substr(0, kSizesBytes) + head_,
                   std::string_view(front_).substr(kFrontBytes + head_bytes_, kMacBytes))) {
      return Damaged("the seal of its head", "another");
    }
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
    if (payload_bytes_ > 0) sum_.emplace();
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
  std::optional<wire::RunningChecksum> sum_;  // of the payload until here; none: no payload
  std::string tail_;                          // the payload's checksum as it was sent
  bool damaged_ = false;
};

}  // namespace

int64_t DamagedFrames() { return damaged_frames; }

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
      : address_(std::move(address)),
        signer_(identity.security, std::move(identity.job)),
        stub_(std::move(channel)) {}

  class ClientCall;
  // What is asked, over all the calls that it may take. Whoever may cancel it holds a reference.
  struct Asked {
    std::string method;
    Repeat repeat = Repeat::kAllowed;
    TimePoint until{};
    int resent = 0;  // in a row
    Mutex mutex;
    std::shared_ptr<ClientCall> call MT_GUARDED_BY(mutex);  // the one under way
    bool cancelled MT_GUARDED_BY(mutex) = false;
  };

  const std::string address_;
  rpc::CallSigner signer_;
  grpc::GenericStub stub_;

  Mutex mutex_;
  CondVar changed_;
  std::set<std::shared_ptr<Asked>> asked_ MT_GUARDED_BY(mutex_);  // under way

  static void Cancel(Asked& asked);
};

// One call. Lives until gRPC is done with it.
class Peer::Impl::ClientCall final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<ClientCall> {
 public:
  ClientCall(std::shared_ptr<Impl> peer, std::shared_ptr<Asked> asked, Frame request, Land land,
             Done done)
      : peer_(std::move(peer)),
        asked_(std::move(asked)),
        sender_(std::move(request)),
        reader_(std::move(land)),
        done_(std::move(done)) {}

  // Unless it was cancelled before; then `done` is called at once.
  void Start() {
    self_ = shared_from_this();
    {
      MutexLock lock(asked_->mutex);
      if (!asked_->cancelled) {
        mac_ = peer_->signer_.Sign(context_, asked_->method, SystemClock().Now());
        context_.set_deadline(
            std::chrono::time_point_cast<std::chrono::system_clock::duration>(asked_->until));
        context_.set_initial_metadata_corked(true);
        peer_->stub_.PrepareBidiStreamingCall(&context_, asked_->method, {}, this);
        asked_->call = self_;
      } else {
        error_ = Cancelled("the call was cancelled");
      }
    }
    if (!error_.ok()) return OnDone(grpc::Status::OK);
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
    const Status taken = reader_.Take(incoming_, mac_);
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
    {
      MutexLock lock(asked_->mutex);
      asked_->call = nullptr;
    }
    if (SendAgain(status)) return;
    Result<std::string> result = Internal("not set");
    if (!error_.ok()) {
      result = error_.At(peer_->address_);
    } else if (!status.ok()) {
      result = StatusOf(status).At(peer_->address_);
    } else if (!reader_.complete()) {
      result = Unavailable(peer_->address_ + ": expected an answer, got: a part of one")
                   .From(Origin::kPeers);
    } else {
      result = reader_.TakeHead();
    }
    const Done done = std::move(done_);
    done(std::move(result));
    MutexLock lock(peer_->mutex_);
    peer_->asked_.erase(asked_);
    peer_->changed_.NotifyAll();
  }

 private:
  void Write() {
    outgoing_ = sender_.Next(mac_);
    if (sender_.done()) {
      StartWriteLast(&outgoing_, grpc::WriteOptions());
    } else {
      StartWrite(&outgoing_);
    }
  }

  // Where the error is not the server's own, it is one of the connection, whatever its code: bytes
  // that change on the way can make anything of gRPC's own frames.
  Status StatusOf(const grpc::Status& status) {
    Status error = rpc::FromGrpc(status);
    const bool broken =
        error.code() == StatusCode::kInternal || error.code() == StatusCode::kUnknown;
    if (broken && !context_.GetServerTrailingMetadata().contains(rpc::kAnsweredKey)) {
      return Unavailable("the connection failed: " + error.message()).From(Origin::kPeers);
    }
    return error;
  }

  // Whether another call has taken this one's place.
  bool SendAgain(const grpc::Status& status) {
    const bool answer = reader_.damaged();
    const bool request = !answer && error_.ok() && !status.ok() &&
                         context_.GetServerTrailingMetadata().contains(kDamagedKey);
    if (!request && !answer) return false;
    LogWarning("bytes changed on the way",
               {{"peer", peer_->address_},
                {"method", asked_->method},
                {"error", answer ? error_.message() : status.error_message()}});
    if (answer && asked_->repeat == Repeat::kNever) return false;
    if (asked_->resent == kMaxResent || SystemClock().Now() >= asked_->until) return false;
    ++asked_->resent;
    std::make_shared<ClientCall>(peer_, asked_, sender_.TakeFrame(), reader_.TakeLand(),
                                 std::move(done_))
        ->Start();
    return true;
  }

  const std::shared_ptr<Impl> peer_;
  const std::shared_ptr<Asked> asked_;
  CallMac mac_;  // signs and checks once each
  FrameSender sender_;
  FrameReader reader_;
  Done done_;
  grpc::ClientContext context_;
  grpc::ByteBuffer outgoing_, incoming_;
  Status error_;
  std::shared_ptr<ClientCall> self_;
};

void Peer::Impl::Cancel(Asked& asked) {
  std::shared_ptr<ClientCall> call;
  {
    MutexLock lock(asked.mutex);
    asked.cancelled = true;
    call = asked.call;
  }
  if (call) call->Cancel();
}

Result<std::unique_ptr<Peer>> Peer::Create(const std::string& address, const Identity& identity) {
  MT_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel({.address = address,
                                                      .security = identity.security,
                                                      .max_receive_bytes = kMaxMessageBytes,
                                                      .bulk = true}));
  return std::unique_ptr<Peer>(
      new Peer(std::make_shared<Impl>(address, identity, std::move(channel))));
}

Peer::~Peer() {
  {
    MutexLock lock(impl_->mutex_);
    for (const auto& asked : impl_->asked_) impl_->Cancel(*asked);
    // gRPC ends a cancelled call at once; what may take a moment is a `done` that is running.
    while (!impl_->changed_.WaitFor(
        impl_->mutex_, {}, std::chrono::minutes(1),
        [&]() MT_REQUIRES(impl_->mutex_) { return impl_->asked_.empty(); })) {
    }
  }
  // A call that has told its end is still being destroyed on gRPC's thread. The channel must not go
  // with it there: the last one of a process ends gRPC's threads, and a thread that ends itself
  // leaves its queue to be used after it is gone.
  while (impl_.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

const std::string& Peer::address() const { return impl_->address_; }

std::function<void()> Peer::Call(const std::string& method, Frame request, Duration timeout,
                                 Land land, Done done, Repeat repeat) {
  auto asked = std::make_shared<Impl::Asked>();
  asked->method = method;
  asked->repeat = repeat;
  asked->until = SystemClock().Now() + timeout;
  {
    MutexLock lock(impl_->mutex_);
    impl_->asked_.insert(asked);
  }
  std::make_shared<Impl::ClientCall>(impl_, asked, std::move(request), std::move(land),
                                     std::move(done))
      ->Start();
  return [weak = std::weak_ptr<Impl::Asked>(asked)] {
    if (const auto still = weak.lock()) Impl::Cancel(*still);
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
    if (stop.stop_requested()) return Cancelled(method + ": stopped").From(Origin::kStop);
  }
  return std::move(*waiting.result);
}

// --- the serving side

class Listener::Impl final : public grpc::Service {
 public:
  Impl(const Identity& identity, std::map<std::string, Method> methods);

  rpc::CallGate gate_;
  std::unique_ptr<rpc::GrpcServer> server_;

 private:
  class ServerCall;
  const std::map<std::string, Method> methods_;
};

// One request and its answer. gRPC is done with it only after Finish, so a reply always finds it.
class Listener::Impl::ServerCall final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public Reply::Sink {
 public:
  ServerCall(Impl& listener, grpc::CallbackServerContext* context, const std::string& name,
             const Method& method)
      : context_(context),
        method_(method),
        reader_([this](std::string_view head) { return Allocate(head); }) {
    Result<CallMac> mac = listener.gate_.Admit(*context, name, SystemClock().Now());
    if (!mac.ok()) {
      FinishWith(mac.status());
      return;
    }
    mac_ = *std::move(mac);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(rpc::ToGrpc(Cancelled("expected a request, got: a part of one")));
      return;
    }
    const Status taken = reader_.Take(incoming_, mac_);
    incoming_.Clear();
    if (!taken.ok()) {
      if (reader_.damaged()) context_->AddTrailingMetadata(kDamagedKey, "1");
      FinishWith(taken);
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
      FinishWith(answer.status());
      return;
    }
    sender_.emplace(std::move(*answer));
    Write();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(rpc::ToGrpc(Cancelled("the caller has gone")));
      return;
    }
    Write();
  }

  void OnDone() override { delete this; }

 private:
  void FinishWith(const Status& error) {
    context_->AddTrailingMetadata(rpc::kAnsweredKey, "1");
    Finish(rpc::ToGrpc(error));
  }
  void Write() {
    outgoing_ = sender_->Next(mac_);
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
  CallMac mac_;
  FrameReader reader_;
  std::optional<FrameSender> sender_;
  std::vector<Tensor> payload_;
  grpc::ByteBuffer incoming_, outgoing_;
};

Listener::Impl::Impl(const Identity& identity, std::map<std::string, Method> methods)
    : gate_(identity.security, identity.job), methods_(std::move(methods)) {
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

Result<std::unique_ptr<Listener>> Listener::Create(const ListenAt& at, const Identity& identity,
                                                   std::map<std::string, Method> methods) {
  auto impl = std::make_unique<Impl>(identity, std::move(methods));
  MT_ASSIGN_OR_RETURN(impl->server_, rpc::GrpcServer::Create({.address = at.address,
                                                              .port = at.port,
                                                              .gate = &impl->gate_,
                                                              .max_receive_bytes = kMaxMessageBytes,
                                                              .bulk = true},
                                                             {impl.get()}));
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

int Listener::port() const { return impl_->server_->port(); }
void Listener::Shutdown(Duration grace) { impl_->server_->Shutdown(grace); }

}  // namespace meshtrain::parameter
