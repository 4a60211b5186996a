#include "runtime/membership/rendezvous_client.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::membership {
namespace {

// Whether another try could end otherwise.
bool Final(StatusCode code) {
  switch (code) {
    case StatusCode::kFailedPrecondition:
    case StatusCode::kPermissionDenied:
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnimplemented:
    case StatusCode::kNotFound:
      return true;
    default:
      return false;
  }
}

}  // namespace

RendezvousClient::RendezvousClient(RendezvousClientOptions options)
    : options_(std::move(options)) {}

void RendezvousClient::Join(int64_t checkpoint_step) {
  MT_CHECK(phase_ != Phase::kLeaving && phase_ != Phase::kGone);
  if (phase_ == Phase::kOver && options_.task == options_.server && stream_ != Stream::kNone) {
    wants_end_ = true;
  }
  phase_ = Phase::kJoining;
  checkpoint_step_ = checkpoint_step;
  refused_.reset();
  missing_.clear();
  last_error_.clear();
  looking_since_.reset();
  if (stream_ == Stream::kOpen && !wants_end_) SayJoin();
}

void RendezvousClient::AbandonJoin() {
  if (phase_ != Phase::kJoining) return;
  phase_ = Phase::kOut;
  // The server may count us in at this moment: only a stream that ends tells it that we are not
  // there.
  if (stream_ != Stream::kNone) wants_end_ = true;
  outgoing_.clear();
}

void RendezvousClient::Leave() {
  if (phase_ == Phase::kGone || phase_ == Phase::kLeaving) return;
  outgoing_.clear();
  if (stream_ == Stream::kOpen && !wants_end_) {
    phase_ = Phase::kLeaving;
    outgoing_.emplace_back(LeaveMessage{});
  } else {
    AbandonLeave();
  }
}

void RendezvousClient::AbandonLeave() {
  phase_ = Phase::kGone;
  if (stream_ != Stream::kNone) wants_end_ = true;
}

void RendezvousClient::SayJoin() {
  std::vector<uint64_t> last_members;
  for (const Member& member : incarnation_.members) last_members.push_back(member.instance);
  outgoing_.emplace_back(JoinMessage{.task = options_.task,
                                     .instance = options_.instance,
                                     .last_incarnation = incarnation_.id,
                                     .checkpoint_step = checkpoint_step_,
                                     .data_address = options_.data_address,
                                     .host = options_.host,
                                     .expected = options_.expected,
                                     .last_members = std::move(last_members)});
}

bool RendezvousClient::wants_stream() const {
  return stream_ == Stream::kNone && phase_ == Phase::kJoining && !refused_;
}

void RendezvousClient::Opening(Duration now) {
  MT_CHECK(stream_ == Stream::kNone);
  stream_ = Stream::kOpening;
  heard_ = false;
  wants_end_ = false;
  end_why_.reset();
  last_heard_ = now;
  last_tick_ = now;  // a pause before this stream is no part of what it will tell
  outgoing_.clear();
}

void RendezvousClient::Opened(Duration now) {
  MT_CHECK(stream_ == Stream::kOpening);
  stream_ = Stream::kOpen;
  next_beat_ = now;
  looking_since_ = now;
  if (phase_ == Phase::kJoining && !wants_end_) SayJoin();
}

std::vector<MemberMessage> RendezvousClient::TakeOutgoing() {
  if (!has_outgoing()) return {};
  return std::exchange(outgoing_, {});
}

void RendezvousClient::Heard(const RosterMessage& message, Duration now) {
  last_heard_ = now;
  heard_ = true;
  std::visit([this](const auto& m) { On(m); }, message);
}

void RendezvousClient::On(const WelcomeMessage& message) {
  // An older one was given up meanwhile.
  if (phase_ != Phase::kJoining || message.incarnation.id <= incarnation_.id) return;
  incarnation_ = message.incarnation;
  phase_ = Phase::kIn;
  alarm_.reset();
  deserted_.reset();
  server_left_ = false;
}

void RendezvousClient::On(const AlarmMessage& message) {
  if (phase_ == Phase::kIn && message.incarnation == incarnation_.id) Raise(message.why);
}

void RendezvousClient::On(const PulseMessage& message) { missing_ = message.missing; }

void RendezvousClient::On(const LeftMessage& message) {
  if (message.task == options_.task) {
    if (phase_ == Phase::kLeaving) phase_ = Phase::kGone;
  } else if (message.task == options_.server) {
    server_left_ = true;
  }
}

void RendezvousClient::Raise(Status why) {
  alarm_ = std::move(why);
  phase_ = Phase::kOver;
}

void RendezvousClient::Ended(const Status& why) {
  stream_ = Stream::kNone;
  const Status cause = end_why_ ? *end_why_ : why;
  wants_end_ = false;
  end_why_.reset();
  outgoing_.clear();
  last_error_ = cause.ok() ? "the connection ended" : cause.message();
  switch (phase_) {
    case Phase::kJoining:
      if (Final(cause.code())) refused_ = cause;
      break;
    case Phase::kIn:
      if (server_left_) {
        deserted_ = Unavailable(cluster::ToString(options_.server) + " left").From(Origin::kPeers);
      } else if (cause.code() == StatusCode::kAborted) {  // the server gave us up
        Raise(Unavailable(cause.message()).From(Origin::kPeers));
      } else if (Final(cause.code())) {
        Raise(cause);
      } else {
        const bool silent = cause.code() == StatusCode::kDeadlineExceeded;
        Raise(Unavailable(cluster::ToString(options_.server) +
                          " lost: " + (silent ? "" : "connection closed: ") + last_error_)
                  .From(Origin::kPeers));
      }
      break;
    case Phase::kLeaving:
      phase_ = Phase::kGone;
      break;
    case Phase::kOut:
    case Phase::kOver:
    case Phase::kGone:
      break;
  }
}

void RendezvousClient::Tick(const MemberProgress& progress, Duration now) {
  if (last_tick_ && now - *last_tick_ > options_.heartbeat + options_.lost_after / 2) {
    // It is we who stood still; what the server said meanwhile is about to be read.
    const Duration pause = now - *last_tick_;
    last_heard_ = std::min(now, last_heard_ + pause);
    // The others may have gone on without us, or the server may have stood still with us and all of
    // us been replaced.
    if (pause > options_.lost_after && phase_ == Phase::kIn) {
      Raise(Unavailable(cluster::ToString(options_.task) + " lost: stood still for " +
                        SecondsText(pause))
                .From(Origin::kPeers));
    }
    if (pause > options_.lost_after && phase_ == Phase::kJoining && stream_ != Stream::kNone) {
      wants_end_ = true;
    }
  }
  last_tick_ = now;
  if (stream_ == Stream::kNone || wants_end_) return;
  const Duration patience = heard_ ? options_.lost_after : options_.connect_timeout;
  if (now - last_heard_ > patience) {
    wants_end_ = true;
    end_why_ = DeadlineExceeded("silent for " + SecondsText(now - last_heard_));
    return;
  }
  if (!looking_since_) looking_since_ = now;
  if (phase_ == Phase::kJoining && options_.task == options_.server && stream_ == Stream::kOpen &&
      now - *looking_since_ > options_.look_again) {
    wants_end_ = true;
    return;
  }
  if (stream_ == Stream::kOpen && now >= next_beat_ &&
      (phase_ != Phase::kLeaving && phase_ != Phase::kGone)) {
    outgoing_.emplace_back(BeatMessage{incarnation_.id, progress});
    next_beat_ = now + options_.heartbeat;
  }
}

std::string RendezvousClient::WaitingFor() const {
  if (stream_ == Stream::kOpen && heard_ && !missing_.empty()) return "missing: " + missing_;
  const std::string server = cluster::ToString(options_.server);
  return server + " does not answer" + (last_error_.empty() ? "" : ": " + last_error_);
}

}  // namespace meshtrain::membership
