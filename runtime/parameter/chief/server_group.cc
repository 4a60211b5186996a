#include "runtime/parameter/chief/server_group.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/parameter/chief/repeat_log.h"
#include "runtime/parameter/messages/chief_watch.h"

namespace meshtrain::parameter {

using mesh::Tensor;

namespace {

constexpr Duration kRetryAfter = std::chrono::milliseconds(100);
// Planning and reading a checkpoint take their time.
constexpr Duration kDefineTakes = std::chrono::minutes(2);
// Writes of the coordinator are pushes of a worker that there is not.
constexpr int32_t kCoordinator = -1;

std::string Name(int server) { return "ps-" + std::to_string(server); }

}  // namespace

ServerGroup::ServerGroup(std::vector<std::unique_ptr<Peer>> peers, Duration rpc_timeout)
    : peers_(std::move(peers)),
      rpc_timeout_(rpc_timeout),
      versions_(peers_.size(), 0),
      log_bytes_(peers_.size(), 0) {}

Result<std::unique_ptr<ServerGroup>> ServerGroup::Create(const std::vector<std::string>& addresses,
                                                         const Identity& identity,
                                                         Duration rpc_timeout) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (const std::string& address : addresses) {
    MT_ASSIGN_OR_RETURN(auto peer, Peer::Create(address, identity));
    peers.push_back(std::move(peer));
  }
  return std::unique_ptr<ServerGroup>(new ServerGroup(std::move(peers), rpc_timeout));
}

template <typename Message>
std::vector<std::optional<Frame>> ServerGroup::ToAll(const Message& message) const {
  return std::vector<std::optional<Frame>>(peers_.size(), Frame{Encode(message), {}});
}

Result<std::vector<std::string>> ServerGroup::CallEach(
    const char* method, const std::vector<std::optional<Frame>>& requests, Duration timeout,
    Duration rpc_timeout, std::stop_token stop, const std::vector<Land>& lands, Again again) {
  const Duration until = SystemClock().Monotonic() + timeout;
  std::vector<std::string> answers(requests.size());
  RepeatLog notes;
  std::map<size_t, Status> refusals;  // by server, while it goes on
  std::set<size_t> open;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i]) open.insert(i);
  }
  while (!open.empty()) {
    struct Round {
      Mutex mutex;
      CondVar changed;
      std::map<size_t, Result<std::string>> results;
    } round;
    std::vector<std::function<void()>> cancels;
    const Duration left = timeout > Duration(0)
                              ? std::max<Duration>(until - SystemClock().Monotonic(), kRetryAfter)
                              : rpc_timeout;
    for (const size_t i : open) {
      cancels.push_back(peers_[i]->Call(method, *requests[i], std::min(left, rpc_timeout),
                                        lands.empty() ? nullptr : lands[i],
                                        [&round, i](Result<std::string> result) {
                                          MutexLock lock(round.mutex);
                                          round.results.emplace(i, std::move(result));
                                          round.changed.NotifyAll();
                                        }));
    }
    const auto wait = [&](std::stop_token token) {
      MutexLock lock(round.mutex);
      return round.changed.WaitFor(round.mutex, token, std::chrono::seconds(5),
                                   [&] { return round.results.size() == open.size(); });
    };
    while (!wait(stop)) {  // each call ends by its own deadline
      if (!stop.stop_requested()) continue;
      for (const auto& cancel : cancels) cancel();
      while (!wait({})) {
      }
    }
    Status away;
    for (auto& [i, result] : round.results) {
      if (result.ok()) {
        answers[i] = std::move(*result);
        open.erase(i);
        refusals.erase(i);
        continue;
      }
      const Status error = result.status().At(Name(static_cast<int>(i)));
      // A server's own disk: its answer, which may be another one in a moment.
      const bool refused = error.origin() == Origin::kOutput;
      if (!IsAway(error.code()) || (refused && again == Again::kUnlessAnswered)) return error;
      away = error;
      if (refused) refusals.insert_or_assign(i, error);
      if (notes.Due(static_cast<int>(i), SystemClock().Monotonic())) {
        LogWarning(refused ? "parameter server refuses" : "parameter server does not answer",
                   {{"ps", std::to_string(i)}, {"error", result.status().message()}});
      }
    }
    if (open.empty()) break;
    if (stop.stop_requested()) {
      return Cancelled(std::string(method) + ": stopped").From(Origin::kStop);
    }
    if (SystemClock().Monotonic() + kRetryAfter >= until) {
      if (!refusals.empty()) return refusals.begin()->second;
      return Unavailable(std::string(method) +
                         ": expected an answer in time, got: " + away.message())
          .From(Origin::kPeers);
    }
    SystemClock().SleepFor(kRetryAfter, stop);
  }
  return answers;
}

Result<int64_t> ServerGroup::NewestSession(Duration timeout, std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                      CallEach(kServerPing, ToAll(PingRequest{}), timeout, rpc_timeout_, stop));
  int64_t newest = 0;
  for (const std::string& answer : answers) {
    MT_ASSIGN_OR_RETURN(const ServerPingReply reply, Decode<ServerPingReply>(answer));
    newest = std::max(newest, reply.term);
  }
  return newest;
}

Status ServerGroup::SetUp(const SetUpRequest& request, Duration timeout, std::stop_token stop) {
  std::vector<std::optional<Frame>> requests;
  for (int s = 0; s < size(); ++s) {
    SetUpRequest one = request;
    one.server = s;
    one.servers = size();
    requests.push_back(Frame{Encode(one), {}});
  }
  MT_RETURN_IF_ERROR(CallEach(kServerSetUp, requests, timeout, rpc_timeout_, stop).status());
  MutexLock lock(mutex_);
  term_ = request.term;
  definitions_ = 0;
  return OkStatus();
}

void ServerGroup::End(bool goes_on, Duration timeout) {
  EndRequest request;
  {
    MutexLock lock(mutex_);
    request.term = term_;
  }
  const std::vector<std::optional<Frame>> requests(peers_.size(), Frame{Encode(request), {}});
  if (const auto told =
          CallEach(goes_on ? kServerLeave : kServerEnd, requests, timeout, timeout, {});
      !told.ok()) {
    LogInfo("a parameter server was not told that we leave", {{"error", told.status().message()}});
  }
}

Status ServerGroup::Define(const std::vector<Definition>& definitions, Duration timeout,
                           std::stop_token stop) {
  MT_CHECK(static_cast<int>(definitions.size()) == size());
  DefineRequest request;
  {
    MutexLock lock(mutex_);
    request.term = term_;
    request.number = definitions_;
  }
  std::vector<std::optional<Frame>> requests;
  for (const Definition& definition : definitions) {
    request.definition = definition;
    requests.push_back(Frame{Encode(request), {}});
  }
  MT_RETURN_IF_ERROR(
      CallEach(kServerDefine, requests, timeout, std::max(timeout, kDefineTakes), stop).status());
  MutexLock lock(mutex_);
  definitions_ = std::max(definitions_, request.number + 1);
  return OkStatus();
}

Result<Tensor> ServerGroup::Read(const std::vector<Planner::Part>& parts, Duration timeout,
                                 std::stop_token stop) {
  MT_CHECK(!parts.empty());
  int64_t term = 0;
  {
    MutexLock lock(mutex_);
    term = term_;
  }
  std::vector<ReadRequest> asked(peers_.size());
  std::vector<std::vector<const ServerState*>> states(peers_.size());
  std::vector<std::vector<Tensor>> values(peers_.size());
  for (const Planner::Part& part : parts) {
    if (!part.state.saved) continue;
    asked[part.server].names.push_back(part.state.name);
    states[part.server].push_back(&part.state);
    values[part.server].emplace_back(part.state.type);
  }
  std::vector<std::optional<Frame>> requests(peers_.size());
  std::vector<Land> lands(peers_.size());
  for (size_t s = 0; s < peers_.size(); ++s) {
    if (states[s].empty()) continue;
    asked[s].term = term;
    requests[s] = Frame{Encode(asked[s]), {}};
    lands[s] = [&values, s](std::string_view) -> Result<std::vector<std::span<std::byte>>> {
      std::vector<std::span<std::byte>> to;
      for (Tensor& value : values[s]) to.push_back(value.mutable_bytes());
      return to;
    };
  }
  MT_RETURN_IF_ERROR(CallEach(kServerRead, requests, timeout, rpc_timeout_, stop, lands).status());
  Tensor whole(parts[0].state.global_type);
  for (size_t s = 0; s < peers_.size(); ++s) {
    for (size_t i = 0; i < states[s].size(); ++i) whole.Paste(values[s][i], states[s][i]->offsets);
  }
  return whole;
}

Status ServerGroup::Write(const std::vector<Planner::Part>& parts, const Tensor& value,
                          Duration timeout, std::stop_token stop) {
  MT_CHECK(!parts.empty());
  if (value.type() != parts[0].state.global_type) {
    return InvalidArgument("variable `" + parts[0].state.global_name + "`: expected " +
                           parts[0].state.global_type.ToString() +
                           ", got: " + value.type().ToString());
  }
  PushRequest request;
  {
    MutexLock lock(mutex_);
    request.term = term_;
    request.id = {kCoordinator, 1, next_write_++};
    open_writes_.insert(request.id.seq);
    // An earlier one may be under way still, and come later.
    request.settled = *open_writes_.begin();
  }
  std::vector<std::optional<Frame>> requests(peers_.size());
  for (int s = 0; s < size(); ++s) {
    PushRequest one = request;
    Frame frame;
    for (const Planner::Part& part : parts) {
      if (part.server != s) continue;
      one.names.push_back(part.state.name);
      frame.payload.push_back(PieceOf(value.Slice(part.state.offsets, part.state.type.dims)));
    }
    if (one.names.empty()) continue;
    frame.head = Encode(one);
    requests[s] = std::move(frame);
  }
  auto called = CallEach(kServerPush, requests, timeout, rpc_timeout_, stop);
  {
    MutexLock lock(mutex_);
    open_writes_.erase(request.id.seq);
  }
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> answers, std::move(called));
  std::vector<int64_t> versions(peers_.size(), -1);
  for (size_t s = 0; s < answers.size(); ++s) {
    if (!requests[s]) continue;
    MT_ASSIGN_OR_RETURN(const PushReply reply, Decode<PushReply>(answers[s]));
    versions[s] = reply.version;
  }
  NoteVersions(versions);
  return OkStatus();
}

Status ServerGroup::Cut(int64_t step, const std::string& folder, std::vector<int64_t> incarnations,
                        bool cuts_log, Duration timeout, std::stop_token stop) {
  CutRequest request{.step = step,
                     .folder = folder,
                     .incarnations = std::move(incarnations),
                     .cuts_log = cuts_log};
  {
    MutexLock lock(mutex_);
    request.term = term_;
  }
  const auto called = CallEach(kServerCut, ToAll(request), timeout, rpc_timeout_, stop);
  // A term that is over: it came back without its state, or serves another coordinator.
  if (called.status().code() == StatusCode::kFailedPrecondition) {
    return called.status().WithCode(StatusCode::kUnavailable).From(Origin::kPeers);
  }
  if (!called.ok()) return called.status();
  const std::vector<std::string>& answers = *called;
  std::string versions;
  for (const std::string& answer : answers) {
    MT_ASSIGN_OR_RETURN(const CutReply reply, Decode<CutReply>(answer));
    versions += (versions.empty() ? "" : ",") + std::to_string(reply.version);
  }
  MutexLock lock(mutex_);
  cut_versions_ = std::move(versions);
  return OkStatus();
}

Result<std::vector<checkpoint::Index>> ServerGroup::WriteParts(
    int64_t step, const std::string& program_hash,
    const std::map<std::string, std::string>& metadata, Duration timeout, std::stop_token stop) {
  WriteRequest request{.step = step, .program_hash = program_hash, .metadata = metadata};
  {
    MutexLock lock(mutex_);
    request.term = term_;
    request.metadata[std::string(kVersionsKey)] = cut_versions_;
  }
  MT_ASSIGN_OR_RETURN(const auto answers, CallEach(kServerWrite, ToAll(request), timeout, timeout,
                                                   stop, {}, Again::kUnlessAnswered));
  std::vector<checkpoint::Index> parts;
  for (int s = 0; s < size(); ++s) {
    MT_ASSIGN_OR_RETURN(const WriteReply reply, Decode<WriteReply>(answers[s]));
    MT_ASSIGN_OR_RETURN(checkpoint::Index part, checkpoint::Index::ParsePart(reply.index, Name(s)));
    parts.push_back(std::move(part));
  }
  return parts;
}

Status ServerGroup::Committed(int64_t step, Duration timeout, std::stop_token stop) {
  CommittedRequest request{.step = step};
  {
    MutexLock lock(mutex_);
    request.term = term_;
  }
  return CallEach(kServerCommitted, ToAll(request), timeout, rpc_timeout_, stop).status();
}

std::vector<int64_t> ServerGroup::versions() const {
  MutexLock lock(mutex_);
  return versions_;
}

void ServerGroup::NoteVersions(const std::vector<int64_t>& versions) {
  MutexLock lock(mutex_);
  for (size_t s = 0; s < std::min(versions.size(), versions_.size()); ++s) {
    versions_[s] = std::max(versions_[s], versions[s]);
  }
}

void ServerGroup::Ping(int server, std::vector<std::string> lost, std::vector<int64_t> incarnations,
                       Duration timeout, std::function<void(Status)> done) {
  // What it had acknowledged before it was asked.
  int64_t term = 0, definitions = 0, version = 0;
  {
    MutexLock lock(mutex_);
    term = term_;
    definitions = definitions_;
    version = versions_[server];
  }
  peers_[server]->Call(
      kServerPing, {Encode(PingRequest{std::move(lost), term, std::move(incarnations)}), {}},
      timeout, nullptr,
      [this, server, term, definitions, version, done](const Result<std::string>& answer) {
        if (!answer.ok()) return done(answer.status().At(Name(server)));
        const auto reply = Decode<ServerPingReply>(*answer);
        if (!reply.ok()) return done(reply.status());
        {
          MutexLock lock(mutex_);
          log_bytes_[server] = reply->log_bytes;
        }
        if (reply->term == term && reply->definitions >= definitions && reply->version >= version) {
          return done(OkStatus());
        }
        done(DataLoss(Name(server) + ": expected term " + std::to_string(term) + " with " +
                      std::to_string(definitions) + " definitions at version " +
                      std::to_string(version) + " or later, got: term " +
                      std::to_string(reply->term) + " with " + std::to_string(reply->definitions) +
                      " at version " + std::to_string(reply->version)));
      });
}

int64_t ServerGroup::log_bytes() const {
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (const int64_t b : log_bytes_) bytes += b;
  return bytes;
}

}  // namespace meshtrain::parameter
