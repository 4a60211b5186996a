// Rendezvous messages as protobuf and back. What a stranger sends is checked here: a message that
// says nothing, or a role that does not exist, is kInvalidArgument.
#pragma once

#include "runtime/distribute/rendezvous_messages.h"

namespace meshtrain::v1 {
class AgreeRequest;
class MemberSays;
class RosterSays;
}  // namespace meshtrain::v1

namespace meshtrain::distribute {

v1::MemberSays ToWire(const MemberMessage& message);
Result<MemberMessage> FromWire(const v1::MemberSays& message);
v1::RosterSays ToWire(const RosterMessage& message);
Result<RosterMessage> FromWire(const v1::RosterSays& message);
v1::AgreeRequest ToWire(const AgreeMessage& message);
Result<AgreeMessage> FromWire(const v1::AgreeRequest& message);

}  // namespace meshtrain::distribute
