// The calling side of transfers: a Peer, its calls, and requests that are sent again after damage.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <optional>
#include <set>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/parameter/messages/frame_stream.h"
#include "runtime/parameter/messages/transfer.h"
#include "runtime/rpc/grpc_internal.h"

namespace meshtrain::parameter {

using rpc::CallMac;

namespace {

// How often in a row a frame that was damaged is sent again at once. On a line that damages more,
// whoever called tries again after a pause.
constexpr int kMaxResent = 8;

}  // namespace

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

}  // namespace meshtrain::parameter
