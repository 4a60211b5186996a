// Rendezvous messages as protobuf and back, sealed with the code of their call (CallMac). What
// comes is checked here: a message that changed on the way, or stands where another was sent, is
// kDataLoss, and nothing of it is read; one that says nothing, or names a role that does not exist,
// is kInvalidArgument.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/membership/rendezvous_messages.h"
#include "runtime/rpc/security.h"

namespace meshtrain::v1 {
class AgreeRequest;
class MemberSays;
class RosterSays;
class Sealed;
}  // namespace meshtrain::v1

namespace meshtrain::membership {

// As gRPC calls the methods, which a call's code covers too.
inline constexpr std::string_view kAttendMethod = "/meshtrain.v1.Rendezvous/Attend";
inline constexpr std::string_view kAgreeMethod = "/meshtrain.v1.Rendezvous/Agree";

// What goes over the wire, and what came, in the order of the call.
v1::Sealed Seal(const MemberMessage& message, rpc::CallMac& mac);
v1::Sealed Seal(const RosterMessage& message, rpc::CallMac& mac);
v1::Sealed Seal(const AgreeMessage& message, rpc::CallMac& mac);
// What an agreement gives, or why there is none.
v1::Sealed Seal(const Result<std::vector<std::string>>& agreed, rpc::CallMac& mac);
Result<MemberMessage> OpenMember(const v1::Sealed& sealed, rpc::CallMac& mac);
Result<RosterMessage> OpenRoster(const v1::Sealed& sealed, rpc::CallMac& mac);
Result<AgreeMessage> OpenAgree(const v1::Sealed& sealed, rpc::CallMac& mac);
// The outer error: this message's; the inner one: the server's answer.
Result<Result<std::vector<std::string>>> OpenAgreed(const v1::Sealed& sealed, rpc::CallMac& mac);
// How many that changed on the way this process was asked to open. Each is also logged.
int64_t DamagedMessages();

// What is under the seal.
v1::MemberSays ToWire(const MemberMessage& message);
Result<MemberMessage> FromWire(const v1::MemberSays& message);
v1::RosterSays ToWire(const RosterMessage& message);
Result<RosterMessage> FromWire(const v1::RosterSays& message);
v1::AgreeRequest ToWire(const AgreeMessage& message);
Result<AgreeMessage> FromWire(const v1::AgreeRequest& message);

}  // namespace meshtrain::membership
