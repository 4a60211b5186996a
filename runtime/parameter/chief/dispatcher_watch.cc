// Who is there: pings, and who did not come back in time.
#include "runtime/base/log.h"
#include "runtime/parameter/chief/dispatcher_impl.h"

namespace meshtrain::parameter {
namespace {

// How often it is tried to set a worker up that is away.
constexpr Duration kTryEvery = std::chrono::milliseconds(300);

std::string Seconds(Duration d) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count()) + " s";
}

}  // namespace

void Dispatcher::Impl::Monitor(std::stop_token stop) {
  Duration next_try{};  // monotonic
  while (!stop.stop_requested()) {
    const Duration now = SystemClock().Monotonic();
    const bool may_try = now >= next_try;
    if (may_try) next_try = now + kTryEvery;
    {
      MutexLock lock(mutex_);
      if (now - looked_ > kStoodStill) woke_ = now;
      looked_ = now;
    }
    for (int w = 0; w < workers(); ++w) {
      bool away = false, ready = false, failed = false;
      int64_t incarnation = 0;
      {
        MutexLock lock(mutex_);
        away = schedule_.away(w);
        ready = schedule_.ready(w);
        incarnation = schedule_.incarnation(w);
        failed = schedule_.error().has_value();
      }
      // One that is being set up is not judged: it only hears that we are there.
      if (!away) PingWorker(w, incarnation, ready);
      if (away && may_try && !failed) Feed(WorkerTried{w});
    }
    for (int s = 0; s < servers_->size(); ++s) PingServer(s);
    CheckTimes();
    SystemClock().SleepFor(options_.ping, stop);
  }
}

std::vector<std::string> Dispatcher::Impl::LostNames() {
  std::vector<std::string> names;
  for (int w = 0; w < workers(); ++w) {
    if (lost_workers_[w]) names.push_back(WorkerName(w));
  }
  for (const auto& [server, since] : server_away_since_) names.push_back(ServerName(server));
  return names;
}

void Dispatcher::Impl::PingWorker(int worker, int64_t incarnation, bool judge) {
  PingRequest request;
  {
    MutexLock lock(mutex_);
    if (pinging_workers_[worker]) return;
    pinging_workers_[worker] = true;
    request.lost = LostNames();
  }
  const Duration asked = SystemClock().Monotonic();
  peers_[worker]->Call(
      kWorkerPing, {Encode(request), {}}, options_.lost_after, nullptr,
      [this, worker, incarnation, judge, asked](const Result<std::string>& answer) {
        {
          MutexLock lock(mutex_);
          pinging_workers_[worker] = false;
        }
        if (!judge) return;
        if (answer.status().code() == StatusCode::kDeadlineExceeded && StoodStillSince(asked)) {
          return;
        }
        if (!answer.ok()) return Lost(worker, incarnation, answer.status());
        const auto reply = Decode<WorkerPingReply>(*answer);
        if (reply.ok() && reply->term == options_.term && reply->incarnation == incarnation) {
          return;
        }
        Lost(worker, incarnation, FailedPrecondition("its process is another one"));
      });
}

void Dispatcher::Impl::PingServer(int server) {
  std::vector<std::string> names;
  std::vector<int64_t> live;
  {
    MutexLock lock(mutex_);
    if (closed_ || pinging_servers_[server]) return;
    pinging_servers_[server] = true;
    names = LostNames();
    live = LiveIncarnations();
  }
  const Duration asked = SystemClock().Monotonic();
  servers_->Ping(server, std::move(names), std::move(live), options_.lost_after,
                 [this, server, asked](const Status& status) {
                   const bool says_nothing =
                       status.code() == StatusCode::kDeadlineExceeded && StoodStillSince(asked);
                   if (!says_nothing) ServerAnswered(server, status);
                   MutexLock lock(mutex_);
                   pinging_servers_[server] = false;
                   changed_.NotifyAll();
                 });
}

bool Dispatcher::Impl::LoseServer(int server, const Status& why, Starts* starts) {
  const bool news = server_away_since_.emplace(server, SystemClock().Monotonic()).second;
  if (news) ++stats_.servers_lost;
  server_error_[server] = why;
  HandleEvent(ServerLost{server}, starts);
  return news;
}

void Dispatcher::Impl::WarnServerAway(int server, const Status& why) {
  LogWarning("parameter server is away",
             {{"ps", std::to_string(server)}, {"error", why.message()}});
}

void Dispatcher::Impl::ServerAnswered(int server, const Status& status) {
  Starts starts;
  bool lost = false, back = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (status.ok()) {
      back = server_away_since_.erase(server) > 0;
      HandleEvent(ServerBack{server}, &starts);
    } else if (status.code() == StatusCode::kDataLoss) {
      // There is nothing wrong with the job's files: who begins anew goes on from its checkpoint.
      HandleEvent(JobFailed{status.WithCode(StatusCode::kUnavailable).From(Origin::kPeers)},
                  &starts);
    } else {
      lost = LoseServer(server, status, &starts);
    }
  }
  if (lost) WarnServerAway(server, status);
  if (back) LogInfo("parameter server is back", {{"ps", std::to_string(server)}});
  Perform(starts);
}

Status Dispatcher::Impl::MissingServer(Duration away) {
  const Duration now = SystemClock().Monotonic();
  for (const auto& [server, since] : server_away_since_) {
    if (now - since < away) continue;
    return Unavailable(ServerName(server) + ": expected it back within " + Seconds(away) +
                       ", got: " + server_error_[server].message())
        .From(Origin::kPeers);
  }
  return OkStatus();
}

// Who did not come back in time ends the job's steps.
void Dispatcher::Impl::CheckTimes() {
  Starts starts;
  std::map<std::pair<int, int64_t>, std::function<void()>> cancels;
  {
    MutexLock lock(mutex_);
    if (closed_ || schedule_.idle() || schedule_.error()) {
      if (no_worker_since_ >= Duration(0) && schedule_.idle()) {
        no_worker_since_ = SystemClock().Monotonic();
      }
      return;
    }
    const Duration now = SystemClock().Monotonic();
    if (const Status missing = MissingServer(options_.return_timeout); !missing.ok()) {
      HandleEvent(JobFailed{missing}, &starts);
    }
    const Duration patience = had_worker_ ? options_.return_timeout : options_.start_timeout;
    if (no_worker_since_ >= Duration(0) && now - no_worker_since_ >= patience) {
      std::string got;
      for (int w = 0; w < workers(); ++w) {
        got += (w > 0 ? "; " : "") + WorkerName(w) + ": " + last_error_[w].message();
      }
      HandleEvent(
          JobFailed{Unavailable("expected a worker within " + Seconds(patience) + ", got: " + got)
                        .From(Origin::kPeers)},
          &starts);
    }
    // What still runs waits for the same.
    if (schedule_.error()) cancels.swap(cancels_);
  }
  Perform(starts);
  for (const auto& [place, cancel] : cancels) cancel();
}

}  // namespace meshtrain::parameter
