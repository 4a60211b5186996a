#include "runtime/cluster/exit_code.h"

#include <gtest/gtest.h>

#include "runtime/cluster/contract.h"

namespace meshtrain::cluster {
namespace {

// A newer version's checkpoint, and memory that the machine has not, stay what they are.
TEST(ExitCodeTest, WhatCannotHealIsNeverTriedAgain) {
  for (const auto exit_of : {ManifestExitCode, DataExitCode, OutputExitCode, JoinExitCode}) {
    for (const StatusCode code :
         {StatusCode::kUnimplemented, StatusCode::kFailedPrecondition, StatusCode::kInvalidArgument,
          StatusCode::kNotFound, StatusCode::kAlreadyExists, StatusCode::kInternal}) {
      EXPECT_EQ(ClassifyExit(exit_of(Status(code, ""))), ExitClass::kPermanent)
          << Status(code, "").ToString();
    }
    EXPECT_EQ(exit_of(FailedPrecondition("no memory")), kExitBadConfig);
  }
  EXPECT_EQ(OutputExitCode(Unimplemented("a newer checkpoint")), kExitBadConfig);
  EXPECT_EQ(DataExitCode(Unimplemented("a type that is not read")), kExitBadData);
  EXPECT_EQ(ManifestExitCode(ResourceExhausted("larger than what is read")), kExitBadConfig);
  EXPECT_EQ(DataExitCode(ResourceExhausted("no memory")), kExitBadConfig);
}

TEST(ExitCodeTest, WhatMayHealIsTriedAgain) {
  EXPECT_EQ(OutputExitCode(ResourceExhausted("the disk is full")), kExitIo);
  for (const auto exit_of : {ManifestExitCode, DataExitCode, OutputExitCode}) {
    EXPECT_EQ(exit_of(Unavailable("no thread, or input and output that failed")), kExitIo);
  }
}

TEST(ExitCodeTest, ATokenThatIsRefusedIsAWrongConfiguration) {
  EXPECT_EQ(JoinExitCode(PermissionDenied("token")), kExitBadConfig);
  EXPECT_EQ(JoinExitCode(Status(StatusCode::kUnauthenticated, "")), kExitBadConfig);
  EXPECT_EQ(OutputExitCode(PermissionDenied("folder")), kExitCannotCreate);
}

}  // namespace
}  // namespace meshtrain::cluster
