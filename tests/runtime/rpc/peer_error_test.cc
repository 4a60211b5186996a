#include "runtime/rpc/peer_error.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "runtime/rpc/grpc_internal.h"

namespace meshtrain::rpc {
namespace {

constexpr Origin kAll[] = {Origin::kOurs,    Origin::kManifest, Origin::kInput,
                           Origin::kOutput,  Origin::kPeers,    Origin::kStop,
                           Origin::kNumbers, Origin::kDevice,   Origin::kApiServer};

// What the origin of a peer's error is to us.
Origin ForUs(std::optional<Origin> theirs) {
  switch (theirs.value_or(Origin::kOurs)) {
    case Origin::kManifest:
    case Origin::kInput:
    case Origin::kOutput:
    case Origin::kNumbers:
      return *theirs;
    default:
      return Origin::kPeers;
  }
}

TEST(PeerErrorTest, WhatIsWrongForEveryProcessKeepsItsOrigin) {
  for (const Origin origin : kAll) {
    const Status error = NotFound("x").From(origin);
    EXPECT_EQ(FromPeer(error), error);
    EXPECT_EQ(FromPeer(error).origin(), ForUs(origin)) << OriginName(origin);
  }
  EXPECT_EQ(FromPeer(NotFound("x")).origin(), Origin::kPeers);
  EXPECT_TRUE(FromPeer(OkStatus()).ok());
  EXPECT_EQ(FromPeer(OkStatus()).origin(), std::nullopt);
}

TEST(PeerErrorTest, WhatAnotherVersionSaysIsAPeersError) {
  const Status newer = FromPeer(99, "x", "weather");
  EXPECT_EQ(newer, Status(StatusCode::kUnknown, "x"));
  EXPECT_EQ(newer.origin(), Origin::kPeers);
  EXPECT_EQ(FromPeer(0, "x", "", StatusCode::kUnavailable), Unavailable("x"));
  EXPECT_EQ(FromPeer(5, "x", "input").origin(), Origin::kInput);
}

TEST(PeerErrorTest, TravelsInGrpcsDetails) {
  EXPECT_EQ(ToGrpc(NotFound("x").From(Origin::kInput)).error_details(), "meshtrain-origin=input");
  EXPECT_EQ(ToGrpc(NotFound("x")).error_details(), "");
  for (const Origin origin : kAll) {
    const Status error = NotFound("x").From(origin);
    const Status got = FromGrpc(ToGrpc(error));
    EXPECT_EQ(got, error);
    EXPECT_EQ(got.origin(), ForUs(origin)) << OriginName(origin);
  }
  EXPECT_EQ(FromGrpc(ToGrpc(Internal("x"))).origin(), Origin::kPeers);
  EXPECT_TRUE(FromGrpc(ToGrpc(OkStatus())).ok());
}

TEST(PeerErrorTest, AnErrorOfTheConnectionIsAPeers) {
  const Status lost = FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused"));
  EXPECT_EQ(lost, Unavailable("connection refused"));
  EXPECT_EQ(lost.origin(), Origin::kPeers);
  // Somebody else's details.
  const grpc::Status other(grpc::StatusCode::INTERNAL, "x", std::string("\x08\x0d", 2));
  EXPECT_EQ(FromGrpc(other).origin(), Origin::kPeers);
}

}  // namespace
}  // namespace meshtrain::rpc
