// Long: the server, its streams and its calls end each other, under one mutex.
#include "runtime/membership/rendezvous_server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "proto/meshtrain/v1/rendezvous.grpc.pb.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/membership/rendezvous_wire.h"
#include "runtime/rpc/grpc_internal.h"

namespace meshtrain::membership {
namespace {

// What one message may take: an agreement's text and its frame.
constexpr int64_t kMaxReceiveBytes = int64_t{2} << 20;
constexpr int kMaxStreams = 8;  // a member's own stream, its agreement, and some that are ending
// Calls at a time: each task has one stream and one agreement, and may come anew before what it
// left has been noticed.
constexpr size_t kCallsPerTask = 4;
constexpr size_t kMoreCalls = 16;

Duration Now() { return SystemClock().Monotonic(); }

// Tells the server's log why somebody was sent away, but not a thousand times.
class Refusals {
 public:
  void Log(const std::string& peer, const Status& why) {
    {
      MutexLock lock(mutex_);
      const Duration now = Now();
      if (last_ && now - *last_ < std::chrono::seconds(1)) return;
      last_ = now;
    }
    LogWarning("rendezvous refused a caller", {{"peer", peer}, {"why", why.ToString()}});
  }

 private:
  Mutex mutex_;
  std::optional<Duration> last_ MT_GUARDED_BY(mutex_);
};

}  // namespace

class RendezvousServer::Impl final : public v1::Rendezvous::CallbackService {
 public:
  explicit Impl(RendezvousServerOptions options)
      : options_(std::move(options)),
        gate_(options_.security, options_.job),
        roster_(options_.roster) {}
  ~Impl() override { Stop(Duration(0)); }

  Status Start();
  int port() const { return server_->port(); }
  std::vector<double> StepSeconds() const {
    MutexLock lock(mutex_);
    return roster_.StepSeconds();
  }
  void Stop(Duration grace);

  grpc::ServerBidiReactor<v1::Sealed, v1::Sealed>* Attend(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::Sealed, v1::Sealed>* Agree(
      grpc::CallbackServerContext* context) override;

 private:
  class Stream;
  class Call;
  class Refusal;

  // The roster's answers go to their streams' queues in the order in which the roster gave them:
  // under the lock. What then touches the wire runs outside it.
  void Handle(const RosterEvent& event);
  void Run(std::stop_token stop);
  void Pulse();
  void EndSilent();
  // The proof of who calls. An error is logged.
  Result<rpc::CallMac> Admit(const grpc::CallbackServerContext& context, std::string_view method);
  // Whether one more stream or call may be held; `held`: how many there are.
  Status Room(size_t held) const MT_REQUIRES(mutex_);
  void Forget(uint64_t connection);
  void ForgetCall(uint64_t call);

  const RendezvousServerOptions options_;
  rpc::CallGate gate_;
  Refusals refusals_;
  mutable Mutex mutex_;
  Roster roster_ MT_GUARDED_BY(mutex_);
  uint64_t next_number_ MT_GUARDED_BY(mutex_) = 1;
  bool stopped_ MT_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_ MT_GUARDED_BY(mutex_);
  std::set<uint64_t> broken_ MT_GUARDED_BY(mutex_);  // those of streams_ that have ended
  std::map<uint64_t, std::shared_ptr<Call>> calls_ MT_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::GrpcServer> server_;
  std::jthread ticking_;
};

// One member's stream. Lives until gRPC is done with it. Locks: the server's before the stream's,
// never the other way.
class RendezvousServer::Impl::Stream final
    : public grpc::ServerBidiReactor<v1::Sealed, v1::Sealed> {
 public:
  Stream(Impl& owner, uint64_t number, std::string peer, rpc::CallMac mac)
      : owner_(owner),
        number_(number),
        peer_(std::move(peer)),
        since_(Now()),
        reads_(mac),
        writes_(std::move(mac)) {}

  const std::string& peer() const { return peer_; }
  Duration since() const { return since_; }
  // Whether its first message has come.
  bool spoke() const { return spoke_; }

  // `self` keeps this alive until OnDone.
  void Begin(std::shared_ptr<Stream> self) {
    {
      MutexLock lock(mutex_);
      self_ = std::move(self);
    }
    StartRead(&heard_);
  }

  // Any thread, also under the server's lock: they only put things into the queue. Pump then sends
  // them.
  void Enqueue(const RosterMessage& message) {
    MutexLock lock(mutex_);
    if (!end_) queue_.push_back(Seal(message, writes_));
  }
  // A heartbeat waits for no slow reader: it is dropped.
  void EnqueuePulse(const PulseMessage& message) {
    MutexLock lock(mutex_);
    if (end_ || writing_ || !queue_.empty()) return;
    queue_.push_back(Seal(RosterMessage(message), writes_));
  }
  void End(const Status& why) {
    MutexLock lock(mutex_);
    if (!end_) end_ = why;
  }
  void Pump() {
    std::optional<Status> finish;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        writing_ = true;
        said_ = std::move(queue_.front());
        queue_.pop_front();
      } else if (end_) {
        finished_ = true;
        finish = end_;
      } else {
        return;
      }
    }
    if (finish) {
      Finish(rpc::ToGrpc(*finish));
    } else {
      StartWrite(&said_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Leave("connection closed");
      return;
    }
    Result<MemberMessage> message = [this] {
      MutexLock lock(mutex_);
      return OpenMember(heard_, reads_);
    }();
    if (!message.ok()) {
      // What changed on the way is no fault of the member's: its stream breaks, and it joins anew.
      const bool damaged = message.status().code() == StatusCode::kDataLoss;
      owner_.Handle(
          Broken{number_, (damaged ? "connection closed: " : "sent what nobody understands: ") +
                              message.status().message()});
      End(message.status());
      Pump();
      return;
    }
    spoke_ = true;
    owner_.Handle(Said{number_, std::move(*message)});
    {
      MutexLock lock(mutex_);
      if (finished_) return;
    }
    StartRead(&heard_);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) queue_.clear();
    }
    if (!ok) Leave("connection closed");
    Pump();
  }

  void OnCancel() override { Leave("connection closed"); }

  void OnDone() override {
    owner_.Forget(number_);
    std::shared_ptr<Stream> self;
    MutexLock lock(mutex_);
    self.swap(self_);
  }

 private:
  void Leave(const std::string& why) {
    owner_.Handle(Broken{number_, why});
    End(Status(StatusCode::kCancelled, why));
    Pump();
  }

  Impl& owner_;
  const uint64_t number_;
  const std::string peer_;
  const Duration since_;
  std::atomic<bool> spoke_ = false;
  v1::Sealed heard_;
  v1::Sealed said_;  // being written
  Mutex mutex_;
  rpc::CallMac reads_ MT_GUARDED_BY(mutex_);
  rpc::CallMac writes_ MT_GUARDED_BY(mutex_);  // in the order of the queue
  std::shared_ptr<Stream> self_ MT_GUARDED_BY(mutex_);
  std::deque<v1::Sealed> queue_ MT_GUARDED_BY(mutex_);
  std::optional<Status> end_ MT_GUARDED_BY(mutex_);
  bool writing_ MT_GUARDED_BY(mutex_) = false;
  bool finished_ MT_GUARDED_BY(mutex_) = false;
};

// One Agree: a question, its answer, and the caller's word that it has it. Lives until gRPC is done
// with it.
class RendezvousServer::Impl::Call final : public grpc::ServerBidiReactor<v1::Sealed, v1::Sealed> {
 public:
  Call(Impl& owner, uint64_t number, grpc::CallbackServerContext* context, rpc::CallMac mac)
      : owner_(owner), number_(number), context_(context), mac_(std::move(mac)) {}

  void Begin(std::shared_ptr<Call> self) {
    {
      MutexLock lock(mutex_);
      self_ = std::move(self);
    }
    StartRead(&asked_);
  }
  void OnReadDone(bool ok) override {
    const bool again = [this] {
      MutexLock lock(mutex_);
      return std::exchange(spoke_, true);
    }();
    if (again) return ok ? EndAt(InvalidArgument("a second question")) : Close();
    if (!ok) return EndAt(Status(StatusCode::kCancelled, "expected a question, got: none"));
    {
      MutexLock lock(mutex_);
      if (finished_) return;
      waited_for_since_.reset();
    }
    Result<AgreeMessage> message = OpenAgree(asked_, mac_);
    asked_.Clear();
    if (!message.ok()) {
      owner_.refusals_.Log(context_->peer(), message.status());
      return EndAt(message.status());
    }
    StartRead(&asked_);
    owner_.Handle(Asked{number_, std::move(*message)});
  }
  // Its answer is decided, and Reply will be called: also under the server's lock.
  void Promise() {
    MutexLock lock(mutex_);
    promised_ = true;
  }
  void Reply(const Answer& answer) {
    {
      MutexLock lock(mutex_);
      if (finished_) return;
      replying_ = true;  // whoever ends the call now lets the write go first
      waited_for_since_ = Now();
    }
    reply_ = answer.texts != nullptr ? Seal(*answer.texts, mac_) : Seal(answer.status, mac_);
    StartWrite(&reply_);
  }
  void OnWriteDone(bool) override {
    {
      MutexLock lock(mutex_);
      replying_ = false;
      replied_ = true;
      if (finished_ || !over_) return;
      finished_ = true;
    }
    Finish(grpc::Status::OK);
  }
  // As a connection that breaks: what the roster says of the caller's stream tells it more. Not
  // where an answer is on its way.
  void End(const Status& why) {
    {
      MutexLock lock(mutex_);
      if (promised_) return;
    }
    EndAt(why);
  }
  // Where its question, or its word that it has the answer, has not come since `before`.
  void EndSilent(Duration before, const Status& why) {
    {
      MutexLock lock(mutex_);
      if (!waited_for_since_ || *waited_for_since_ >= before) return;
    }
    EndAt(why);
  }
  void OnCancel() override {
    owner_.Handle(Withdrawn{number_});
    EndAt(Status(StatusCode::kCancelled, "the caller waits no longer"));
  }
  void OnDone() override {
    owner_.ForgetCall(number_);
    std::shared_ptr<Call> self;
    MutexLock lock(mutex_);
    self.swap(self_);
  }

 private:
  void EndAt(const Status& why) {
    {
      MutexLock lock(mutex_);
      over_ = true;
      if (finished_ || replying_) return;
      finished_ = true;
    }
    Finish(rpc::ToGrpc(why));
  }
  // The caller says no more: it has the answer, or, before that, will not say that it has it.
  void Close() {
    {
      MutexLock lock(mutex_);
      over_ = true;
      if (finished_ || !replied_) return;
      finished_ = true;
    }
    Finish(grpc::Status::OK);
  }

  Impl& owner_;
  const uint64_t number_;
  grpc::CallbackServerContext* const context_;
  // The reading thread's; then of whoever replies, which is after the question was read.
  rpc::CallMac mac_;
  v1::Sealed asked_, reply_;
  Mutex mutex_;
  bool spoke_ MT_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Call> self_ MT_GUARDED_BY(mutex_);
  // Since when it is the caller's turn; nothing while it is ours.
  std::optional<Duration> waited_for_since_ MT_GUARDED_BY(mutex_) = Now();
  bool promised_ MT_GUARDED_BY(mutex_) = false;
  bool replying_ MT_GUARDED_BY(mutex_) = false;
  bool replied_ MT_GUARDED_BY(mutex_) = false;
  bool over_ MT_GUARDED_BY(mutex_) = false;  // as soon as the answer is written
  bool finished_ MT_GUARDED_BY(mutex_) = false;
};

class RendezvousServer::Impl::Refusal final
    : public grpc::ServerBidiReactor<v1::Sealed, v1::Sealed> {
 public:
  explicit Refusal(const Status& why) { Finish(rpc::ToGrpc(why)); }
  void OnDone() override { delete this; }
};

Status RendezvousServer::Impl::Start() {
  MT_ASSIGN_OR_RETURN(server_, rpc::GrpcServer::Create({.address = options_.address,
                                                        .port = options_.port,
                                                        .gate = &gate_,
                                                        .max_streams = kMaxStreams,
                                                        .max_receive_bytes = kMaxReceiveBytes},
                                                       {this}));
  MT_ASSIGN_OR_RETURN(ticking_, StartThread("rendezvous", [this](std::stop_token s) { Run(s); }));
  return OkStatus();
}

void RendezvousServer::Impl::Stop(Duration grace) {
  if (server_ == nullptr) return;
  const Status why = Unavailable("the rendezvous ends");
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Call>> calls;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (const auto& [number, stream] : streams_) streams.push_back(stream);
    for (const auto& [number, call] : calls_) calls.push_back(call);
  }
  for (const auto& stream : streams) {
    stream->End(why);
    stream->Pump();
  }
  for (const auto& call : calls) call->End(why);
  streams.clear();
  calls.clear();
  ticking_.request_stop();
  if (ticking_.joinable()) ticking_.join();
  server_->Shutdown(grace);
  server_.reset();
}

Result<rpc::CallMac> RendezvousServer::Impl::Admit(const grpc::CallbackServerContext& context,
                                                   std::string_view method) {
  Result<rpc::CallMac> mac = gate_.Admit(context, method, SystemClock().Now());
  if (!mac.ok()) refusals_.Log(context.peer(), mac.status());
  return mac;
}

Status RendezvousServer::Impl::Room(size_t held) const {
  if (stopped_) return Unavailable("the rendezvous ends");
  const size_t most = kCallsPerTask * options_.roster.tasks.size() + kMoreCalls;
  if (held < most) return OkStatus();
  return Unavailable("rendezvous: expected at most " + std::to_string(most) +
                     " calls of one kind at a time, got: one more");
}

grpc::ServerBidiReactor<v1::Sealed, v1::Sealed>* RendezvousServer::Impl::Attend(
    grpc::CallbackServerContext* context) {
  Result<rpc::CallMac> mac = Admit(*context, kAttendMethod);
  if (!mac.ok()) return new Refusal(mac.status());
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    if (const Status room = Room(streams_.size()); !room.ok()) return new Refusal(room);
    const uint64_t number = next_number_++;
    stream = std::make_shared<Stream>(*this, number, context->peer(), *std::move(mac));
    streams_[number] = stream;
  }
  stream->Begin(stream);
  return stream.get();
}

grpc::ServerBidiReactor<v1::Sealed, v1::Sealed>* RendezvousServer::Impl::Agree(
    grpc::CallbackServerContext* context) {
  Result<rpc::CallMac> mac = Admit(*context, kAgreeMethod);
  if (!mac.ok()) return new Refusal(mac.status());
  std::shared_ptr<Call> call;
  {
    MutexLock lock(mutex_);
    if (const Status room = Room(calls_.size()); !room.ok()) return new Refusal(room);
    const uint64_t number = next_number_++;
    call = std::make_shared<Call>(*this, number, context, *std::move(mac));
    calls_[number] = call;
  }
  call->Begin(call);
  return call.get();
}

void RendezvousServer::Impl::Handle(const RosterEvent& event) {
  std::vector<std::shared_ptr<Stream>> touched;
  std::vector<std::pair<std::shared_ptr<Call>, Answer>> answered;
  std::vector<std::pair<std::string, Status>> refused;
  std::optional<Status> over;
  uint64_t opened = 0;
  {
    MutexLock lock(mutex_);
    // All streams end now, one after another: nobody is lost by that.
    if (stopped_) return;
    // A stream's end may overtake what was read from it last: nobody joins from a broken one.
    if (const auto* broken = std::get_if<Broken>(&event)) broken_.insert(broken->connection);
    if (const auto* said = std::get_if<Said>(&event); said && broken_.contains(said->connection)) {
      return;
    }
    const uint64_t before = roster_.open();
    for (RosterAnswer& answer : roster_.Handle(event, Now())) {
      if (auto* tell = std::get_if<Tell>(&answer)) {
        if (const auto* alarm = std::get_if<AlarmMessage>(&tell->message)) over = alarm->why;
        const auto stream = streams_.find(tell->connection);
        if (stream == streams_.end()) continue;
        stream->second->Enqueue(tell->message);
        touched.push_back(stream->second);
      } else if (auto* end = std::get_if<End>(&answer)) {
        const auto stream = streams_.find(end->connection);
        if (stream == streams_.end()) continue;
        if (!end->why.ok()) refused.emplace_back(stream->second->peer(), end->why);
        stream->second->End(end->why);
        touched.push_back(stream->second);
      } else {
        auto& of_call = std::get<Answer>(answer);
        const auto call = calls_.find(of_call.call);
        if (call == calls_.end()) continue;
        // Who is answered first may leave, and stop the server before the others are.
        call->second->Promise();
        answered.emplace_back(call->second, std::move(of_call));
      }
    }
    if (roster_.open() != before) opened = roster_.open();
  }
  for (const auto& stream : touched) stream->Pump();
  for (const auto& [call, answer] : answered) call->Reply(answer);
  for (const auto& [peer, why] : refused) refusals_.Log(peer, why);
  if (over) LogWarning("the incarnation is over", {{"why", over->message()}});
  if (opened != 0) LogInfo("all members are here", {{"incarnation", std::to_string(opened)}});
}

void RendezvousServer::Impl::Run(std::stop_token stop) {
  while (SystemClock().SleepFor(options_.roster.tick, stop)) {
    Handle(Tick{});
    Pulse();
    EndSilent();
  }
}

void RendezvousServer::Impl::EndSilent() {
  const Duration before = Now() - options_.first_word_within;
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Call>> calls;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, stream] : streams_) {
      if (!stream->spoke() && stream->since() < before) streams.push_back(stream);
    }
    for (const auto& [number, call] : calls_) calls.push_back(call);
  }
  const Status why = DeadlineExceeded("rendezvous: expected a first message within " +
                                      SecondsText(options_.first_word_within) + ", got: none");
  for (const auto& stream : streams) {
    stream->End(why);
    stream->Pump();
  }
  for (const auto& call : calls) call->EndSilent(before, why);
}

void RendezvousServer::Impl::Pulse() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(mutex_);
    const PulseMessage waiting{roster_.open() == 0 ? roster_.Missing() : ""};
    for (const auto& [number, stream] : streams_) {
      stream->EnqueuePulse(roster_.joining(number) ? waiting : PulseMessage{});
      streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->Pump();
}

void RendezvousServer::Impl::Forget(uint64_t connection) {
  MutexLock lock(mutex_);
  streams_.erase(connection);
  broken_.erase(connection);
}

void RendezvousServer::Impl::ForgetCall(uint64_t call) {
  MutexLock lock(mutex_);
  calls_.erase(call);
}

RendezvousServer::RendezvousServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RendezvousServer::~RendezvousServer() = default;

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::Create(
    RendezvousServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  MT_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(std::move(impl)));
}

int RendezvousServer::port() const { return impl_->port(); }
std::vector<double> RendezvousServer::StepSeconds() const { return impl_->StepSeconds(); }
void RendezvousServer::Stop(Duration grace) { impl_->Stop(grace); }

}  // namespace meshtrain::membership
