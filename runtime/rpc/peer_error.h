// An error that another process told us: whose it is for us.
//
// A peer's own trouble (kOurs, or nobody has said: its bug, its machine) is a peer's to us, kPeers,
// and so is an error of the connection itself. That it was asked to stop (kStop) is its own affair:
// nobody asked us, and what we wanted of it is gone, so that is kPeers too. What is wrong for every
// process of the job keeps its origin: the manifest, the data, the job's files, numbers that are
// not finite. A peer's peer (kPeers) is a peer.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::rpc {

// `error` as a peer told it, with the origin that it has there, if any.
Status FromPeer(const Status& error);

// From the wire. A code that is none of ours is `unknown`; an origin that is none of ours, as of a
// newer version, is none.
Status FromPeer(int code, std::string message, std::string_view origin,
                StatusCode unknown = StatusCode::kUnknown);

// What FromPeer reads: "" where there is none.
std::string_view OriginOnWire(const Status& error);

}  // namespace meshtrain::rpc
