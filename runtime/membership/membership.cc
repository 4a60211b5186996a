// Long: one class whose threads (client, heartbeat, alerts) and callers share one
// client under one mutex.
#include "runtime/membership/membership.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "proto/meshtrain/v1/rendezvous.grpc.pb.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/text.h"
#include "runtime/base/thread.h"
#include "runtime/membership/rendezvous_client.h"
#include "runtime/membership/rendezvous_server.h"
#include "runtime/membership/rendezvous_wire.h"
#include "runtime/rpc/grpc_internal.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kConnectTimeout{3000};
constexpr milliseconds kLookAgain{5000};
// How much longer than the deadline of an agreement we wait for the server to say who missed it.
constexpr milliseconds kAnswerSlack{2000};
constexpr milliseconds kServerGrace{1000};
// How often in a row an agreement is asked again at once when bytes changed on the way.
constexpr int kMostAskedAgain = 8;
constexpr std::chrono::hours kLong{1};            // of waits that a change or a stop request ends
constexpr std::chrono::hours kLongest{24 * 365};  // of waits that the caller bounds

Duration Now() { return SystemClock().Monotonic(); }

// Chief first, then workers by index: the order of processes.
std::vector<cluster::TaskId> MembersOf(const cluster::ClusterSpec& cluster) {
  std::vector<cluster::TaskId> out;
  for (const cluster::Role role : {cluster::Role::kChief, cluster::Role::kWorker}) {
    const auto hosts = cluster.hosts.find(role);
    if (hosts == cluster.hosts.end()) continue;
    for (const auto& [index, host] : hosts->second) out.push_back({role, index});
  }
  return out;
}

Result<int> PortOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : ParseInt(address.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) {
    return InvalidArgument("TF_CONFIG: expected HOST:PORT, got: \"" + address + "\"");
  }
  return static_cast<int>(*port);
}

uint64_t NewInstance() {
  std::random_device random;
  const uint64_t out = (uint64_t{random()} << 32) | random();
  return out == 0 ? 1 : out;
}

// One call of Attend: our stream to the server. `context` may be cancelled from any thread;
// `stream` is read by the attending thread and written by the beating one, until it is `over`: then
// only its status is waited for. All but `context` under the lock.
struct AttendCall {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Rendezvous::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Sealed, v1::Sealed>> stream;
  rpc::CallMac reads, writes;  // the attending thread's, the beating one's
  bool over = false;
};

}  // namespace

class Membership::Impl {
 public:
  Impl(MembershipOptions options, std::vector<cluster::TaskId> members, uint64_t instance)
      : options_(std::move(options)),
        server_address_(options_.config.cluster.host(members.front())),
        signer_(options_.security, options_.job),
        instance_(instance),
        client_({.task = options_.config.task,
                 .server = members.front(),
                 .instance = instance,
                 .data_address = options_.data_address,
                 .host = options_.host,
                 .expected = members,
                 .heartbeat = options_.heartbeat,
                 .lost_after = options_.lost_after,
                 .connect_timeout = std::max<Duration>(kConnectTimeout, 2 * options_.lost_after),
                 .look_again = kLookAgain}) {}
  ~Impl();

  Status Start(const std::vector<cluster::TaskId>& members);
  Result<Incarnation> Join(int64_t checkpoint_step, const std::stop_token& stop);
  // Waits for what comes of a Join, and says whom it waits for where that takes long.
  void AwaitAnswer(Duration patience, const std::stop_token& stop);
  Result<std::vector<std::string>> Agree(const std::string& name, const std::string& text,
                                         Duration timeout, const std::stop_token& stop);
  void ReportProgress(int64_t step, uint64_t collective, std::string waiting_at);
  void ReportBusy(std::string with);
  void ReportStepTime(Duration own);
  std::vector<double> StepSeconds() const {
    return server_ == nullptr ? std::vector<double>() : server_->StepSeconds();
  }
  void OnLost(std::function<void(const Status&)> callback);
  Status Leave(Duration timeout);

 private:
  using Phase = RendezvousClient::Phase;

  void Attend(std::stop_token stop);  // thread: makes streams where one is wanted, and reads
  void Beat(std::stop_token stop);    // thread: heartbeats, and all else that is written
  void Alert(std::stop_token stop);   // thread: calls the callback
  // Returns how the stream ended.
  Status AttendOnce(AttendCall& call);
  // The server's answer; or why it gave none: kDataLoss where the question or its answer changed on
  // the way.
  using Texts = Result<std::vector<std::string>>;
  Result<Texts> Ask(const AgreeMessage& message, const std::shared_ptr<grpc::Channel>& channel,
                    const std::shared_ptr<grpc::ClientContext>& context);
  MemberProgress Reported();
  // Why agreements are over; OK while they are not.
  Status AgreeState() const MT_REQUIRES(mutex_);
  // For the one thread that may be in a call.
  static Status Busy(std::string_view what) {
    return FailedPrecondition(std::string(what) + ": another thread is in it");
  }

  const MembershipOptions options_;
  const std::string server_address_;
  rpc::CallSigner signer_;
  const uint64_t instance_;
  std::unique_ptr<RendezvousServer> server_;  // where we serve

  Mutex mutex_;
  CondVar changed_;
  RendezvousClient client_ MT_GUARDED_BY(mutex_);
  std::shared_ptr<AttendCall> call_ MT_GUARDED_BY(mutex_);  // while its stream lasts
  bool writing_ MT_GUARDED_BY(mutex_) = false;
  int failures_ MT_GUARDED_BY(mutex_) = 0;  // of connecting, in a row
  bool in_join_ MT_GUARDED_BY(mutex_) = false;
  bool in_agree_ MT_GUARDED_BY(mutex_) = false;
  std::string agreeing_ MT_GUARDED_BY(mutex_);  // while in_agree_: `agree on "plans"`
  bool was_member_ MT_GUARDED_BY(mutex_) = false;
  uint64_t next_round_ MT_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<grpc::ClientContext> asking_ MT_GUARDED_BY(mutex_);
  std::function<void(const Status&)> on_lost_ MT_GUARDED_BY(mutex_);
  uint64_t alerted_ MT_GUARDED_BY(mutex_) = 0;  // the incarnation whose end was told last

  Mutex progress_mutex_;  // taken last, so that to report waits for nothing else
  MemberProgress progress_ MT_GUARDED_BY(progress_mutex_);

  std::jthread attending_, beating_, alerting_;
};

Status Membership::Impl::Start(const std::vector<cluster::TaskId>& members) {
  if (options_.config.task == members.front()) {
    MT_ASSIGN_OR_RETURN(int port, PortOf(server_address_));
    if (options_.serve_port != 0) port = options_.serve_port;
    const auto since_1970 = SystemClock().Now().time_since_epoch();
    auto server = RendezvousServer::Create(
        {.address = cluster::ListenAddress(options_.config),
         .port = port,
         .security = options_.security,
         .job = options_.job,
         .roster = {.tasks = members,
                    .first_id = static_cast<uint64_t>(
                        std::chrono::duration_cast<milliseconds>(since_1970).count()),
                    .lost_after = options_.lost_after,
                    .stuck_after = options_.stuck_after,
                    .tick = options_.heartbeat}});
    if (!server.ok()) return server.status().At("rendezvous at " + server_address_);
    server_ = std::move(*server);
  }
  MT_ASSIGN_OR_RETURN(attending_,
                      StartThread("membership", [this](std::stop_token s) { Attend(s); }));
  MT_ASSIGN_OR_RETURN(beating_, StartThread("membership", [this](std::stop_token s) { Beat(s); }));
  MT_ASSIGN_OR_RETURN(alerting_,
                      StartThread("membership", [this](std::stop_token s) { Alert(s); }));
  return OkStatus();
}

Membership::Impl::~Impl() {
  std::shared_ptr<AttendCall> call;
  std::shared_ptr<grpc::ClientContext> asking;
  attending_.request_stop();
  beating_.request_stop();
  alerting_.request_stop();
  {
    MutexLock lock(mutex_);
    call = call_;
    asking = asking_;
  }
  if (call != nullptr) call->context.TryCancel();
  if (asking != nullptr) asking->TryCancel();
  attending_ = {};
  beating_ = {};
  alerting_ = {};
}

void Membership::Impl::Attend(std::stop_token stop) {
  std::minstd_rand random(static_cast<uint32_t>(instance_));
  while (!stop.stop_requested()) {
    auto call = std::make_shared<AttendCall>();
    {
      MutexLock lock(mutex_);
      if (!changed_.WaitFor(mutex_, stop, kLong,
                            [this]() MT_REQUIRES(mutex_) { return client_.wants_stream(); })) {
        continue;
      }
      if (failures_ > 0) {
        // Jitter: all of them lost the server at the same moment.
        const auto pause =
            std::min(kLongestPause, kFirstPause * (1 << std::min(failures_ - 1, 10)));
        const auto spread = std::uniform_int_distribution<int64_t>(pause.count() / 2,
                                                                   pause.count() * 3 / 2)(random);
        changed_.WaitFor(mutex_, stop, milliseconds(spread),
                         [this]() MT_REQUIRES(mutex_) { return !client_.wants_stream(); });
        if (!client_.wants_stream()) continue;
      }
      if (stop.stop_requested()) {
        return;  // from here on the destructor sees the call, and cancels it
      }
      ++failures_;
      client_.Opening(Now());
      call_ = call;
    }
    const Status ended = AttendOnce(*call);
    MutexLock lock(mutex_);
    call_.reset();
    client_.Ended(ended);
    changed_.NotifyAll();
  }
}

Status Membership::Impl::AttendOnce(AttendCall& call) {
  auto channel = rpc::MakeChannel(
      {.address = server_address_, .security = options_.security, .max_receive_bytes = -1});
  if (!channel.ok()) return channel.status();
  auto stub = v1::Rendezvous::NewStub(*channel);
  call.reads = signer_.Sign(call.context, kAttendMethod, SystemClock().Now());
  call.writes = call.reads;
  auto stream = stub->Attend(&call.context);  // returns when connected, failed or cancelled
  {
    MutexLock lock(mutex_);
    call.channel = std::move(*channel);
    call.stub = std::move(stub);
    call.stream = std::move(stream);
    client_.Opened(Now());
    changed_.NotifyAll();
  }
  v1::Sealed said;
  Status broken;
  while (call.stream->Read(&said)) {
    Result<RosterMessage> message = OpenRoster(said, call.reads);
    if (!message.ok()) {
      broken = message.status();
      call.context.TryCancel();
      break;
    }
    MutexLock lock(mutex_);
    const uint64_t before = client_.incarnation().id;
    client_.Heard(*message, Now());
    failures_ = 0;
    if (client_.incarnation().id != before) {
      next_round_ = 0;
      was_member_ = true;
      // What was said of the incarnation before counts no longer; nobody is ahead by it. Before
      // Join returns, so that what its caller reports then stands.
      ReportProgress(0, 0, "");
    }
    changed_.NotifyAll();
  }
  {
    // The beating thread is out of the stream before it is finished. A call that is over takes no
    // time to write to. One that broke off because a message did not parse is not over for the
    // server: the call stays for who cancels it, at the silence that follows or at the end.
    MutexLock lock(mutex_);
    call.over = true;
    changed_.WaitFor(mutex_, {}, kLong, [this]() MT_REQUIRES(mutex_) { return !writing_; });
  }
  const Status finished = rpc::FromGrpc(call.stream->Finish());
  return broken.ok() ? finished : broken;
}

void Membership::Impl::Beat(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::vector<MemberMessage> outgoing;
    std::shared_ptr<AttendCall> call;
    std::shared_ptr<grpc::ClientContext> asking;
    bool end = false;
    bool silent = false;
    {
      MutexLock lock(mutex_);
      MemberProgress progress = Reported();
      const Phase before = client_.phase();
      progress.agreements = next_round_;
      if (in_agree_) progress.waiting_at = agreeing_;
      client_.Tick(progress, Now());
      if (client_.phase() != before) changed_.NotifyAll();
      outgoing = client_.TakeOutgoing();
      call = call_;
      end = client_.wants_end();
      silent = client_.server_is_silent();
      asking = asking_;
      if (call != nullptr && call->over) outgoing.clear();
      writing_ = call != nullptr && !outgoing.empty();
    }
    if (call != nullptr) {
      for (const MemberMessage& message : outgoing) {
        if (!call->stream->Write(Seal(message, call->writes)))
          break;  // the attending thread sees why
      }
      if (end) call->context.TryCancel();
    }
    // A server that stands still does not answer, and its connection does not close. One that
    // left may have answered first: that answer is still to be read.
    if (silent && asking != nullptr) asking->TryCancel();
    MutexLock lock(mutex_);
    if (std::exchange(writing_, false)) changed_.NotifyAll();
    changed_.WaitFor(mutex_, stop, options_.heartbeat / 2, [&]() MT_REQUIRES(mutex_) {
      return client_.has_outgoing() || (client_.wants_end() && !end);
    });
  }
}

void Membership::Impl::Alert(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::function<void(const Status&)> callback;
    Status why;
    {
      MutexLock lock(mutex_);
      if (!changed_.WaitFor(mutex_, stop, kLong, [this]() MT_REQUIRES(mutex_) {
            return on_lost_ != nullptr && client_.phase() == Phase::kOver &&
                   alerted_ != client_.incarnation().id;
          })) {
        continue;
      }
      alerted_ = client_.incarnation().id;
      callback = on_lost_;
      why = *client_.alarm();
    }
    callback(why);
  }
}

void Membership::Impl::AwaitAnswer(Duration patience, const std::stop_token& stop) {
  const Duration end = Now() + patience;
  for (Duration quiet = std::max<Duration>(options_.say_after, std::chrono::milliseconds(1));;
       quiet *= 2) {
    std::string waiting_for;
    {
      MutexLock lock(mutex_);
      const Duration left = std::max(Duration(0), end - Now());
      const bool last = left <= quiet;
      const bool answered =
          changed_.WaitFor(mutex_, stop, last ? left : quiet, [this]() MT_REQUIRES(mutex_) {
            return client_.phase() != Phase::kJoining || client_.refused();
          });
      if (answered || last || stop.stop_requested()) return;
      waiting_for = client_.WaitingFor();
    }
    LogWarning("waiting for the other processes of the job", {{"for", waiting_for}});
  }
}

Result<Incarnation> Membership::Impl::Join(int64_t checkpoint_step, const std::stop_token& stop) {
  Duration patience{};
  {
    MutexLock lock(mutex_);
    if (in_join_) return Busy("join");
    const Phase phase = client_.phase();
    if (phase == Phase::kLeaving || phase == Phase::kGone) {
      return FailedPrecondition("join: this process has left");
    }
    patience = was_member_ ? options_.peer_return : options_.join_timeout;
    if (was_member_ && patience <= Duration(0)) {
      return Unavailable(
                 (client_.alarm() ? client_.alarm()->message() : "the incarnation was given up") +
                 "; nobody waits for its return (peerReturnSeconds: 0)")
          .From(Origin::kPeers);
    }
    in_join_ = true;
    failures_ = 0;
    client_.Join(checkpoint_step);
    changed_.NotifyAll();
  }
  AwaitAnswer(patience, stop);
  MutexLock lock(mutex_);
  in_join_ = false;
  if (client_.phase() == Phase::kIn) return client_.incarnation();
  // Welcomed, and lost somebody before this thread woke up: the next call finds out.
  if (client_.phase() == Phase::kOver) return client_.incarnation();
  if (client_.refused()) return client_.refused()->At("join");
  if (client_.phase() != Phase::kJoining) return Cancelled("join: this process leaves");
  const std::string waiting_for = client_.WaitingFor();
  client_.AbandonJoin();
  changed_.NotifyAll();
  if (stop.stop_requested()) {
    return Cancelled("join: stopped; " + waiting_for).From(Origin::kStop);
  }
  return DeadlineExceeded("join: expected " + std::to_string(client_.options().expected.size()) +
                          " members within " + SecondsText(patience) + "; " + waiting_for)
      .From(Origin::kPeers);
}

Status Membership::Impl::AgreeState() const {
  switch (client_.phase()) {
    case Phase::kIn:
      return client_.deserted() ? *client_.deserted() : OkStatus();
    case Phase::kOver:
      return *client_.alarm();
    case Phase::kLeaving:
    case Phase::kGone:
      return Cancelled("this process has left");
    case Phase::kOut:
    case Phase::kJoining:
      break;
  }
  return FailedPrecondition("expected a member of an incarnation, got: none joined");
}

Result<std::vector<std::string>> Membership::Impl::Agree(const std::string& name,
                                                         const std::string& text, Duration timeout,
                                                         const std::stop_token& stop) {
  const std::string where = "agree on \"" + name + "\"";
  if (name.size() + text.size() > kMaxAgreeBytes) {
    return InvalidArgument(where + ": expected at most " + std::to_string(kMaxAgreeBytes) +
                           " bytes, got: " + std::to_string(name.size() + text.size()));
  }
  AgreeMessage message{.task = options_.config.task,
                       .instance = instance_,
                       .name = name,
                       .text = text,
                       .timeout = std::clamp<Duration>(timeout, Duration(0), kLongest)};
  const Duration end = Now() + message.timeout;
  auto context = std::make_shared<grpc::ClientContext>();
  std::shared_ptr<grpc::Channel> channel;
  {
    MutexLock lock(mutex_);
    if (in_agree_) return Busy(where);
    if (stop.stop_requested()) return Cancelled(where + ": stopped").From(Origin::kStop);
    MT_RETURN_IF_ERROR(AgreeState().At(where));
    if (call_ != nullptr && !call_->over) channel = call_->channel;
    message.incarnation = client_.incarnation().id;
    message.round = next_round_++;
    in_agree_ = true;
    agreeing_ = where;
    asking_ = context;
  }
  Result<Texts> answer = Unavailable("connection closed").From(Origin::kPeers);
  for (int again = 0; channel != nullptr; ++again) {
    {
      const std::stop_callback cancel(stop, [context] { context->TryCancel(); });
      answer = Ask(message, channel, context);
    }
    if (answer.ok() || answer.status().code() != StatusCode::kDataLoss) break;
    // The question or the answer changed on the way. The roster knows the round: asked again, it
    // answers as it would have, or as it did. A line that changes everything is a lost one.
    answer = Unavailable(answer.status().message()).From(Origin::kPeers);
    if (again == kMostAskedAgain) break;
    MutexLock lock(mutex_);
    if (!AgreeState().ok() || client_.incarnation().id != message.incarnation) break;
    context = std::make_shared<grpc::ClientContext>();
    asking_ = context;
    message.timeout = std::max(Duration(0), end - Now());
  }
  MutexLock lock(mutex_);
  asking_.reset();
  if (answer.ok() && answer->ok()) {
    in_agree_ = false;
    return *std::move(answer);
  }
  if (!stop.stop_requested() && !answer.ok()) {
    // The connection failed. Its stream did too, or is about to: that says who was lost.
    changed_.WaitFor(mutex_, stop, options_.lost_after, [&]() MT_REQUIRES(mutex_) {
      return client_.phase() != Phase::kIn || client_.incarnation().id != message.incarnation ||
             client_.deserted();
    });
  }
  in_agree_ = false;
  if (stop.stop_requested()) return Cancelled(where + ": stopped").From(Origin::kStop);
  if (const Status state = AgreeState(); !state.ok()) return state.At(where);
  return (answer.ok() ? answer->status() : answer.status()).At(where);
}

Result<Membership::Impl::Texts> Membership::Impl::Ask(
    const AgreeMessage& message, const std::shared_ptr<grpc::Channel>& channel,
    const std::shared_ptr<grpc::ClientContext>& context) {
  const auto stub = v1::Rendezvous::NewStub(channel);
  rpc::CallMac mac = signer_.Sign(*context, kAgreeMethod, SystemClock().Now());
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(
                            message.timeout + kAnswerSlack));
  const auto stream = stub->Agree(context.get());
  // One that fails shows in the status.
  (void)stream->Write(Seal(message, mac));
  v1::Sealed reply;
  const bool replied = stream->Read(&reply);
  // That we have it: the server may leave. How the call ends after that matters no more.
  stream->WritesDone();
  const Status ended = rpc::FromGrpc(stream->Finish());
  if (replied) return OpenAgreed(reply, mac);
  switch (ended.code()) {
    case StatusCode::kOk:
      return DataLoss("an agreement's texts: expected some, got: none");
    // gRPC says these, on either side, where a message did not parse.
    case StatusCode::kInternal:
    case StatusCode::kUnimplemented:
    case StatusCode::kUnknown:
      return DataLoss(ended.message());
    default:
      return ended;
  }
}

void Membership::Impl::ReportProgress(int64_t step, uint64_t collective, std::string waiting_at) {
  MutexLock lock(progress_mutex_);
  progress_.step = step;
  progress_.collective = collective;
  progress_.waiting_at = std::move(waiting_at);
}

MemberProgress Membership::Impl::Reported() {
  MutexLock lock(progress_mutex_);
  return progress_;
}

void Membership::Impl::ReportBusy(std::string with) {
  MutexLock lock(progress_mutex_);
  progress_.busy_with = std::move(with);
}

void Membership::Impl::ReportStepTime(Duration own) {
  MutexLock lock(progress_mutex_);
  progress_.step_seconds = std::chrono::duration<double>(own).count();
}

void Membership::Impl::OnLost(std::function<void(const Status&)> callback) {
  MutexLock lock(mutex_);
  on_lost_ = std::move(callback);
  alerted_ = 0;
  changed_.NotifyAll();
}

Status Membership::Impl::Leave(Duration timeout) {
  bool noted = false;
  std::shared_ptr<grpc::ClientContext> asking;
  {
    MutexLock lock(mutex_);
    client_.Leave();
    asking = asking_;
    changed_.NotifyAll();
  }
  if (asking != nullptr) asking->TryCancel();
  {
    MutexLock lock(mutex_);
    noted = changed_.WaitFor(mutex_, {}, timeout, [this]() MT_REQUIRES(mutex_) {
      return client_.phase() == Phase::kGone;
    });
    client_.AbandonLeave();
    changed_.NotifyAll();
  }
  if (server_ != nullptr) server_->Stop(kServerGrace);
  if (noted) return OkStatus();
  return DeadlineExceeded("leave: expected the server at " + server_address_ +
                          " to note it within " + SecondsText(timeout))
      .From(Origin::kPeers);
}

Membership::Membership(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Membership::~Membership() = default;

Result<std::unique_ptr<Membership>> Membership::Create(MembershipOptions options) {
  const std::vector<cluster::TaskId> members = MembersOf(options.config.cluster);
  if (std::find(members.begin(), members.end(), options.config.task) == members.end()) {
    return InvalidArgument("TF_CONFIG: expected a task among its chief and workers, got: " +
                           cluster::ToString(options.config.task));
  }
  if (!options.config.cluster.dense(cluster::Role::kWorker)) {
    return InvalidArgument(
        "TF_CONFIG: expected every worker's address (the dense form), got: a part of them");
  }
  if (options.heartbeat <= Duration(0) || options.lost_after < 2 * options.heartbeat) {
    return InvalidArgument(
        "membership: expected a silence that counts as lost of at least two heartbeats, got: " +
        SecondsText(options.lost_after) + " and heartbeats of " + SecondsText(options.heartbeat));
  }
  options.join_timeout = std::min<Duration>(options.join_timeout, kLongest);
  options.peer_return = std::min<Duration>(options.peer_return, kLongest);
  auto impl = std::make_unique<Impl>(std::move(options), members, NewInstance());
  MT_RETURN_IF_ERROR(impl->Start(members));
  return std::unique_ptr<Membership>(new Membership(std::move(impl)));
}

Result<Incarnation> Membership::Join(int64_t checkpoint_step, std::stop_token stop) {
  return impl_->Join(checkpoint_step, stop);
}
Result<std::vector<std::string>> Membership::Agree(const std::string& name, const std::string& text,
                                                   Duration timeout, std::stop_token stop) {
  return impl_->Agree(name, text, timeout, stop);
}
void Membership::ReportProgress(int64_t step, uint64_t collective, std::string waiting_at) {
  impl_->ReportProgress(step, collective, std::move(waiting_at));
}
void Membership::ReportStepTime(Duration own) { impl_->ReportStepTime(own); }
std::vector<double> Membership::StepSeconds() const { return impl_->StepSeconds(); }
void Membership::ReportBusy(std::string with) { impl_->ReportBusy(std::move(with)); }
void Membership::OnLost(std::function<void(const Status&)> callback) {
  impl_->OnLost(std::move(callback));
}
Status Membership::Leave(Duration timeout) { return impl_->Leave(timeout); }

}  // namespace meshtrain::membership
