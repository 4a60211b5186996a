#include "runtime/membership/rendezvous_wire.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "proto/meshtrain/v1/rendezvous.pb.h"
#include "runtime/base/log.h"
#include "runtime/rpc/peer_error.h"

namespace meshtrain::membership {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kLongest = std::chrono::hours(24 * 365);

std::atomic<int64_t> damaged_messages = 0;

v1::Sealed SealBytes(std::string bytes, rpc::CallMac& mac) {
  v1::Sealed out;
  out.set_mac(mac.Sign(bytes));
  out.set_message(std::move(bytes));
  return out;
}

// The message of type T under the seal.
template <typename T>
Result<T> Unseal(const v1::Sealed& sealed, const char* what, rpc::CallMac& mac) {
  if (!mac.Check(sealed.message(), sealed.mac())) {
    const char* const got = sealed.mac().empty() ? "none" : "another";
    LogWarning("a rendezvous message changed on the way",
               {{"what", what}, {"got_seal", got}, {"so_far", std::to_string(++damaged_messages)}});
    return DataLoss(std::string(what) + ": expected the seal of its place in its call, got: " +
                    got + "; bytes changed on the way");
  }
  T out;
  if (!out.ParseFromString(sealed.message())) {
    return InvalidArgument(std::string(what) + ": expected a message of its kind, got: " +
                           std::to_string(sealed.message().size()) + " other bytes");
  }
  return out;
}

void Write(cluster::TaskId task, v1::Task* out) {
  out->set_role(std::string(cluster::RoleName(task.role)));
  out->set_index(task.index);
}

Result<cluster::TaskId> Read(const v1::Task& task) {
  const auto role = cluster::ParseRole(task.role());
  if (!role || task.index() < 0) {
    return InvalidArgument("expected a task like worker 3, got: \"" + task.role() + "\" " +
                           std::to_string(task.index()));
  }
  return cluster::TaskId{*role, task.index()};
}

// What the rendezvous says of the processes of the job. A code that is none of ours is
// kUnavailable.
Status ErrorOf(int code, const std::string& message) {
  return rpc::FromPeer(code, message, /*origin=*/"", StatusCode::kUnavailable);
}

Status Empty() {
  return InvalidArgument("expected a message that says something, got: none that is known");
}

}  // namespace

v1::Sealed Seal(const MemberMessage& message, rpc::CallMac& mac) {
  return SealBytes(ToWire(message).SerializeAsString(), mac);
}
v1::Sealed Seal(const RosterMessage& message, rpc::CallMac& mac) {
  return SealBytes(ToWire(message).SerializeAsString(), mac);
}
v1::Sealed Seal(const AgreeMessage& message, rpc::CallMac& mac) {
  return SealBytes(ToWire(message).SerializeAsString(), mac);
}
v1::Sealed Seal(const Result<std::vector<std::string>>& agreed, rpc::CallMac& mac) {
  v1::AgreeReply reply;
  if (agreed.ok()) {
    for (const std::string& text : *agreed) reply.add_texts(text);
  } else {
    reply.set_code(static_cast<int>(agreed.status().code()));
    reply.set_message(agreed.status().message());
  }
  return SealBytes(reply.SerializeAsString(), mac);
}

Result<MemberMessage> OpenMember(const v1::Sealed& sealed, rpc::CallMac& mac) {
  MT_ASSIGN_OR_RETURN(const v1::MemberSays said,
                      Unseal<v1::MemberSays>(sealed, "a member's word", mac));
  return FromWire(said);
}
Result<RosterMessage> OpenRoster(const v1::Sealed& sealed, rpc::CallMac& mac) {
  MT_ASSIGN_OR_RETURN(const v1::RosterSays said,
                      Unseal<v1::RosterSays>(sealed, "the rendezvous' word", mac));
  return FromWire(said);
}
Result<AgreeMessage> OpenAgree(const v1::Sealed& sealed, rpc::CallMac& mac) {
  MT_ASSIGN_OR_RETURN(const v1::AgreeRequest request,
                      Unseal<v1::AgreeRequest>(sealed, "a part of an agreement", mac));
  return FromWire(request);
}
Result<Result<std::vector<std::string>>> OpenAgreed(const v1::Sealed& sealed, rpc::CallMac& mac) {
  using Agreed = Result<std::vector<std::string>>;
  MT_ASSIGN_OR_RETURN(v1::AgreeReply reply,
                      Unseal<v1::AgreeReply>(sealed, "an agreement's texts", mac));
  if (reply.code() != 0) return Agreed(ErrorOf(reply.code(), reply.message()));
  std::vector<std::string> out;
  out.reserve(static_cast<size_t>(reply.texts_size()));
  for (std::string& text : *reply.mutable_texts()) out.push_back(std::move(text));
  return Agreed(std::move(out));
}

int64_t DamagedMessages() { return damaged_messages; }

v1::MemberSays ToWire(const MemberMessage& message) {
  v1::MemberSays out;
  if (const auto* join = std::get_if<JoinMessage>(&message)) {
    v1::JoinRequest& to = *out.mutable_join();
    Write(join->task, to.mutable_task());
    to.set_instance(join->instance);
    to.set_last_incarnation(join->last_incarnation);
    to.set_checkpoint_step(join->checkpoint_step);
    to.set_data_address(join->data_address);
    to.set_host(join->host);
    for (const cluster::TaskId task : join->expected) Write(task, to.add_expected());
    for (const uint64_t instance : join->last_members) to.add_last_members(instance);
  } else if (const auto* beat = std::get_if<BeatMessage>(&message)) {
    v1::Beat& to = *out.mutable_beat();
    to.set_incarnation(beat->incarnation);
    to.set_step(beat->progress.step);
    to.set_collective(beat->progress.collective);
    to.set_waiting_at(beat->progress.waiting_at);
    to.set_agreements(beat->progress.agreements);
    to.set_busy_with(beat->progress.busy_with);
    to.set_step_seconds(beat->progress.step_seconds);
  } else {
    out.mutable_leave();
  }
  return out;
}

Result<MemberMessage> FromWire(const v1::MemberSays& message) {
  switch (message.kind_case()) {
    case v1::MemberSays::kJoin: {
      const v1::JoinRequest& from = message.join();
      JoinMessage out;
      MT_ASSIGN_OR_RETURN(out.task, Read(from.task()));
      out.instance = from.instance();
      out.last_incarnation = from.last_incarnation();
      out.checkpoint_step = from.checkpoint_step();
      out.data_address = from.data_address();
      out.host = from.host();
      for (const v1::Task& task : from.expected()) {
        MT_ASSIGN_OR_RETURN(const cluster::TaskId expected, Read(task));
        out.expected.push_back(expected);
      }
      out.last_members.assign(from.last_members().begin(), from.last_members().end());
      return MemberMessage(std::move(out));
    }
    case v1::MemberSays::kBeat: {
      const v1::Beat& from = message.beat();
      return MemberMessage(
          BeatMessage{from.incarnation(), MemberProgress{.step = from.step(),
                                                         .collective = from.collective(),
                                                         .waiting_at = from.waiting_at(),
                                                         .agreements = from.agreements(),
                                                         .busy_with = from.busy_with(),
                                                         .step_seconds = from.step_seconds()}});
    }
    case v1::MemberSays::kLeave:
      return MemberMessage(LeaveMessage{});
    case v1::MemberSays::KIND_NOT_SET:
      break;
  }
  return Empty();
}

v1::RosterSays ToWire(const RosterMessage& message) {
  v1::RosterSays out;
  if (const auto* welcome = std::get_if<WelcomeMessage>(&message)) {
    v1::Welcome& to = *out.mutable_welcome();
    to.set_incarnation(welcome->incarnation.id);
    to.set_process(welcome->incarnation.process);
    for (const Member& member : welcome->incarnation.members) {
      v1::Member& one = *to.add_members();
      Write(member.task, one.mutable_task());
      one.set_data_address(member.data_address);
      one.set_host(member.host);
      one.set_checkpoint_step(member.checkpoint_step);
      one.set_instance(member.instance);
    }
  } else if (const auto* alarm = std::get_if<AlarmMessage>(&message)) {
    v1::Alarm& to = *out.mutable_alarm();
    to.set_incarnation(alarm->incarnation);
    to.set_code(static_cast<int>(alarm->why.code()));
    to.set_message(alarm->why.message());
  } else if (const auto* pulse = std::get_if<PulseMessage>(&message)) {
    out.mutable_pulse()->set_missing(pulse->missing);
  } else {
    Write(std::get<LeftMessage>(message).task, out.mutable_left()->mutable_task());
  }
  return out;
}

Result<RosterMessage> FromWire(const v1::RosterSays& message) {
  switch (message.kind_case()) {
    case v1::RosterSays::kWelcome: {
      const v1::Welcome& from = message.welcome();
      WelcomeMessage out{{.id = from.incarnation(), .process = from.process(), .members = {}}};
      for (const v1::Member& one : from.members()) {
        MT_ASSIGN_OR_RETURN(const cluster::TaskId task, Read(one.task()));
        out.incarnation.members.push_back(
            {task, one.data_address(), one.host(), one.checkpoint_step(), one.instance()});
      }
      if (out.incarnation.process < 0 ||
          out.incarnation.process >= static_cast<int>(out.incarnation.members.size())) {
        return InvalidArgument("expected a place among " +
                               std::to_string(out.incarnation.members.size()) +
                               " members, got: " + std::to_string(out.incarnation.process));
      }
      return RosterMessage(std::move(out));
    }
    case v1::RosterSays::kAlarm: {
      const v1::Alarm& from = message.alarm();
      return RosterMessage(AlarmMessage{from.incarnation(), ErrorOf(from.code(), from.message())});
    }
    case v1::RosterSays::kPulse:
      return RosterMessage(PulseMessage{message.pulse().missing()});
    case v1::RosterSays::kLeft: {
      MT_ASSIGN_OR_RETURN(const cluster::TaskId task, Read(message.left().task()));
      return RosterMessage(LeftMessage{task});
    }
    case v1::RosterSays::KIND_NOT_SET:
      break;
  }
  return Empty();
}

v1::AgreeRequest ToWire(const AgreeMessage& message) {
  v1::AgreeRequest out;
  Write(message.task, out.mutable_task());
  out.set_instance(message.instance);
  out.set_incarnation(message.incarnation);
  out.set_round(message.round);
  out.set_name(message.name);
  out.set_text(message.text);
  out.set_timeout_ms(duration_cast<milliseconds>(message.timeout).count());
  return out;
}

Result<AgreeMessage> FromWire(const v1::AgreeRequest& message) {
  AgreeMessage out;
  MT_ASSIGN_OR_RETURN(out.task, Read(message.task()));
  out.instance = message.instance();
  out.incarnation = message.incarnation();
  out.round = message.round();
  out.name = message.name();
  out.text = message.text();
  out.timeout = milliseconds(std::clamp<int64_t>(message.timeout_ms(), 0, kLongest.count()));
  return out;
}

}  // namespace meshtrain::membership
