#include "runtime/saving/file_error.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/membership/team.h"

namespace meshtrain::saving {
namespace {

TEST(FileErrorTest, AFileThatFailsIsNeverALostPeer) {
  for (const int error : {EIO, ESTALE, EMFILE, ENXIO}) {
    const Status raw = ErrnoStatus(error, "cannot write", "/x");
    const Status files = OfFiles(raw);
    EXPECT_FALSE(membership::Team::IsLoss(files)) << files.ToString();
    EXPECT_EQ(cluster::OutputExitCode(files), cluster::kExitIo);
    EXPECT_EQ(cluster::DataExitCode(files), cluster::kExitIo);
    EXPECT_EQ(files.message(), raw.message());
  }
  // What is no loss stays as it is, with its own exit code.
  EXPECT_TRUE(OfFiles(OkStatus()).ok());
  for (const Status& other : {DataLoss("d"), PermissionDenied("p"), ResourceExhausted("r")}) {
    EXPECT_EQ(OfFiles(other), other);
  }
  EXPECT_EQ(*OfFiles(Result<int>(7)), 7);
  EXPECT_FALSE(membership::Team::IsLoss(OfFiles(Result<int>(Unavailable("u"))).status()));
}

TEST(FileErrorTest, WhatTryingAgainCannotMendIsNotTriedAgain) {
  for (const int error : {EISDIR, ELOOP, EEXIST, ENAMETOOLONG, ENOTDIR, ENOENT, EACCES, EROFS}) {
    const Status status = OfFiles(ErrnoStatus(error, "cannot create", "/x"));
    EXPECT_FALSE(membership::Team::IsLoss(status)) << status.ToString();
    EXPECT_EQ(cluster::OutputExitCode(status), cluster::kExitCannotCreate) << status.ToString();
  }
  for (const int error : {ENOSPC, EDQUOT, EIO}) {
    const Status status = OfFiles(ErrnoStatus(error, "cannot write", "/x"));
    EXPECT_FALSE(membership::Team::IsLoss(status)) << status.ToString();
    EXPECT_EQ(cluster::OutputExitCode(status), cluster::kExitIo) << status.ToString();
  }
  EXPECT_EQ(cluster::DataExitCode(ErrnoStatus(ELOOP, "cannot open", "/x")), cluster::kExitNoInput);
}

TEST(FileErrorTest, OnlyAnAbandonedSaveIsALostPeer) {
  EXPECT_TRUE(membership::Team::IsLoss(OfSaving(Cancelled("abandoned"))));
  for (const Status& own : {Unavailable("EIO"), DeadlineExceeded("no part")}) {
    EXPECT_FALSE(membership::Team::IsLoss(OfSaving(own))) << own.ToString();
    EXPECT_EQ(cluster::OutputExitCode(OfSaving(own)), cluster::kExitIo);
  }
  EXPECT_TRUE(OfSaving(OkStatus()).ok());
}

TEST(FileErrorTest, TheOthersGetTheSameCode) {
  EXPECT_TRUE(ToldFailure("worker-1", TellFailure(OkStatus())).ok());
  for (const Status& said : {DataLoss("a: b c"), OfFiles(Unavailable("")), InvalidArgument("x")}) {
    EXPECT_EQ(ToldFailure("worker-1", TellFailure(said)), said.At("worker-1")) << said.ToString();
  }
  for (const char* other : {"damaged", "no code", "0 fine", "17 x", "-1 x"}) {
    EXPECT_EQ(ToldFailure("worker-1", other),
              Status(StatusCode::kUnknown, std::string("worker-1: ") + other));
  }
}

}  // namespace
}  // namespace meshtrain::saving
