// One process' side of the rendezvous: what it wants, what it was told, what it says next. Pure:
// the code that owns the stream (membership.cc) carries out what this decides.
//
//   kOut ---Join---> kJoining ---welcome---> kIn ---alarm, or the stream breaks---> kOver
//   ---Join---> kJoining ...
//
// A stream is wanted from Join on. While joining, one that breaks is made anew; later it is not,
// until the next Join. The process that serves makes its own anew now and then while it joins: if
// it was replaced while it stood still, its name leads to another server by now, which refuses it;
// else it, and whoever is still connected to it, would wait for the others for ever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/membership/rendezvous_messages.h"

namespace meshtrain::membership {

struct RendezvousClientOptions {
  cluster::TaskId task;
  cluster::TaskId server;
  uint64_t instance = 0;  // not 0
  std::string data_address;
  std::string host;
  std::vector<cluster::TaskId> expected;
  Duration heartbeat{};
  Duration lost_after{};
  Duration connect_timeout{};  // for the first word of the server on a new stream
  Duration look_again{};       // of the process that serves, while it joins
};

class RendezvousClient {
 public:
  enum class Phase : uint8_t {
    kOut,  // no member yet, and not joining; or a join was given up
    kJoining,
    kIn,    // of incarnation().id
    kOver,  // alarm() says why
    kLeaving,
    kGone,  // left; nothing works any more
  };

  explicit RendezvousClient(RendezvousClientOptions options);

  // --- what the process wants
  void Join(int64_t checkpoint_step);  // not while leaving or gone
  void AbandonJoin();
  void Leave();
  void AbandonLeave();  // the server did not answer

  // --- what the stream does. At most one at a time: Opening, then Opened, messages, and Ended; or
  // Opening and Ended.
  void Opening(Duration now);
  void Opened(Duration now);
  void Heard(const RosterMessage& message, Duration now);
  void Ended(const Status& why);
  // Often: heartbeats, and the server's silence.
  void Tick(const MemberProgress& progress, Duration now);

  // --- what the owner of the stream is to do
  bool wants_stream() const;                     // make one, where there is none
  bool wants_end() const { return wants_end_; }  // cut the one that is there, then call Ended
  // The end is for a server that was not heard for too long, not for one that left.
  bool server_is_silent() const { return wants_end_ && end_why_.has_value(); }
  // In order; only while the stream is open, and none once it is to be cut: a join that was said
  // just before would let the others in with nobody.
  std::vector<MemberMessage> TakeOutgoing();
  bool has_outgoing() const {
    return stream_ == Stream::kOpen && !wants_end_ && !outgoing_.empty();
  }

  // --- what is known
  const RendezvousClientOptions& options() const { return options_; }
  Phase phase() const { return phase_; }
  const Incarnation& incarnation() const { return incarnation_; }  // the newest; id 0: none yet
  // kOver: why. At most one per incarnation.
  const std::optional<Status>& alarm() const { return alarm_; }
  // kIn, but agreements are over: the server left, and no stream is there to tell more.
  const std::optional<Status>& deserted() const { return deserted_; }
  // kJoining cannot succeed: why. Until the next Join.
  const std::optional<Status>& refused() const { return refused_; }
  // For the message when time is up: who is missing, or why the server is not reached.
  std::string WaitingFor() const;

 private:
  void On(const WelcomeMessage& message);
  void On(const AlarmMessage& message);
  void On(const PulseMessage& message);
  void On(const LeftMessage& message);
  void Raise(Status why);
  void SayJoin();

  RendezvousClientOptions options_;
  Phase phase_ = Phase::kOut;
  int64_t checkpoint_step_ = 0;
  Incarnation incarnation_;
  std::optional<Status> alarm_, deserted_, refused_;
  bool server_left_ = false;

  enum class Stream : uint8_t { kNone, kOpening, kOpen };
  Stream stream_ = Stream::kNone;
  bool heard_ = false;  // anything on this stream
  bool wants_end_ = false;
  std::optional<Status> end_why_;  // why we cut it
  Duration last_heard_{};
  std::optional<Duration> looking_since_;  // joining on this stream, where it is so
  std::optional<Duration> last_tick_;
  Duration next_beat_{};
  std::vector<MemberMessage> outgoing_;
  std::string missing_;     // as the server last said
  std::string last_error_;  // of the last stream
};

}  // namespace meshtrain::membership
