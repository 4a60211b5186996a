#include "runtime/saving/failure.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/membership/team.h"

namespace meshtrain::saving {
namespace {

TEST(FailureTest, AFileThatFailsIsNeverALostPeer) {
  for (const int error : {EIO, ESTALE, EMFILE, ENXIO}) {
    const Status raw = ErrnoStatus(error, "cannot write", "/x");
    EXPECT_FALSE(membership::Team::IsLoss(raw)) << raw.ToString();
    for (const Origin origin : {Origin::kOutput, Origin::kInput}) {
      const Status files = raw.From(origin);
      EXPECT_FALSE(membership::Team::IsLoss(files)) << files.ToString();
      EXPECT_EQ(cluster::ExitCodeOf(files), cluster::kExitIo);
    }
  }
}

TEST(FailureTest, WhatTryingAgainCannotMendIsNotTriedAgain) {
  for (const int error : {EISDIR, ELOOP, EEXIST, ENAMETOOLONG, ENOTDIR, ENOENT, EACCES, EROFS}) {
    const Status status = OfSaving(ErrnoStatus(error, "cannot create", "/x"));
    EXPECT_FALSE(membership::Team::IsLoss(status)) << status.ToString();
    EXPECT_EQ(cluster::ExitCodeOf(status), cluster::kExitCannotCreate) << status.ToString();
  }
  for (const int error : {ENOSPC, EDQUOT, EIO}) {
    const Status status = OfSaving(ErrnoStatus(error, "cannot write", "/x"));
    EXPECT_FALSE(membership::Team::IsLoss(status)) << status.ToString();
    EXPECT_EQ(cluster::ExitCodeOf(status), cluster::kExitIo) << status.ToString();
  }
  EXPECT_EQ(cluster::ExitCodeOf(ErrnoStatus(ELOOP, "cannot open", "/x").From(Origin::kInput)),
            cluster::kExitNoInput);
}

TEST(FailureTest, OnlyAnAbandonedSaveIsALostPeer) {
  EXPECT_TRUE(membership::Team::IsLoss(OfSaving(Cancelled("abandoned"))));
  for (const Status& own : {Unavailable("EIO"), DeadlineExceeded("no part")}) {
    EXPECT_FALSE(membership::Team::IsLoss(OfSaving(own))) << own.ToString();
    EXPECT_EQ(cluster::ExitCodeOf(OfSaving(own)), cluster::kExitIo);
  }
  EXPECT_TRUE(OfSaving(OkStatus()).ok());
}

TEST(FailureTest, TheOthersLeaveWithTheSameExitCode) {
  EXPECT_TRUE(ToldFailure("worker-1", TellFailure(OkStatus())).ok());
  for (const Status& said :
       {DataLoss("a: b c"), InvalidArgument("x"), PermissionDenied("").From(Origin::kOutput),
        Unavailable("").From(Origin::kOutput), NotFound("no data").From(Origin::kInput),
        Internal("expected finite values").From(Origin::kNumbers)}) {
    const Status told = ToldFailure("worker-1", TellFailure(said));
    EXPECT_EQ(told, said.At("worker-1")) << said.ToString();
    EXPECT_EQ(told.origin(), said.origin().value_or(Origin::kPeers)) << said.ToString();
    EXPECT_EQ(cluster::ExitCodeOf(told), cluster::ExitCodeOf(said)) << said.ToString();
    EXPECT_FALSE(membership::Team::IsLoss(told)) << said.ToString();
  }
}

TEST(FailureTest, WhatDoesNotReadBackIsAMessage) {
  for (const char* other :
       {"damaged", "no code", "no code here", "0 ours fine", "17 ours x", "-1 ours x", "9 x"}) {
    const Status told = ToldFailure("worker-1", other);
    EXPECT_EQ(told, Status(StatusCode::kUnknown, std::string("worker-1: ") + other));
    EXPECT_FALSE(membership::Team::IsLoss(told));
  }
  const Status newer = ToldFailure("worker-1", "9 weather it rains");
  EXPECT_EQ(newer, FailedPrecondition("worker-1: it rains"));
  EXPECT_EQ(newer.origin(), Origin::kPeers);
}

}  // namespace
}  // namespace meshtrain::saving
