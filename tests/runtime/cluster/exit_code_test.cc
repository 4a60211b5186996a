#include "runtime/cluster/exit_code.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/cluster/contract.h"

namespace meshtrain::cluster {
namespace {

constexpr int kCodes = static_cast<int>(StatusCode::kUnauthenticated);

struct Row {
  int exit_code;
  const char* why;
};

// One code of status, and what it leads to from each origin that makes a difference.
struct Rows {
  StatusCode code;
  Row output, manifest, input, peers;
};

constexpr Row kIo = {kExitIo, "none of those that stay: input or output, or the machine"};
constexpr Row kBug = {kExitInternal, "a bug stays, whoever met it"};

constexpr Rows kRows[] = {
    {StatusCode::kCancelled, kIo, kIo, kIo, {kExitRetry, "a peer has given it up"}},
    {StatusCode::kUnknown, kIo, kIo, kIo, kIo},
    {StatusCode::kInvalidArgument,
     {kExitBadConfig, "another model's checkpoint"},
     {kExitBadConfig, "a wrong manifest"},
     {kExitBadData, "bad data"},
     {kExitBadConfig, "other plans: another manifest, or another version"}},
    {StatusCode::kDeadlineExceeded,
     {kExitIo, "a part of a checkpoint that does not come from a disk"},
     kIo,
     {kExitIo, "data that takes too long"},
     {kExitRetry, "a peer that did not come, or stands still"}},
    {StatusCode::kNotFound,
     {kExitCannotCreate, "the folder is gone"},
     {kExitNoInput, "no such manifest"},
     {kExitNoInput, "no such data"},
     {kExitCannotCreate, "as an output"}},
    {StatusCode::kAlreadyExists,
     {kExitCannotCreate, "something else lies there"},
     {kExitNoInput, "there is something, but no file"},
     {kExitNoInput, "there is something, but no file"},
     {kExitCannotCreate, "as an output"}},
    {StatusCode::kPermissionDenied,
     {kExitCannotCreate, "a folder that may not be written"},
     kIo,
     kIo,
     {kExitBadConfig, "a token that they refuse"}},
    {StatusCode::kResourceExhausted,
     {kExitIo, "a full disk may be emptied"},
     {kExitBadConfig, "a manifest larger than what is read"},
     {kExitBadConfig, "more data than there is memory for"},
     kIo},
    {StatusCode::kFailedPrecondition,
     {kExitBadConfig, "no memory for a buffer"},
     {kExitBadConfig, "no memory for the program"},
     {kExitBadConfig, "no memory for the data"},
     {kExitBadConfig, "another job's name, a stale incarnation"}},
    {StatusCode::kAborted, kIo, kIo, kIo, {kExitRetry, "all start again, to agree"}},
    {StatusCode::kOutOfRange, kIo, kIo, kIo, kIo},
    {StatusCode::kUnimplemented,
     {kExitBadConfig, "a newer version's checkpoint"},
     {kExitBadConfig, "what this version has not"},
     {kExitBadData, "a type that is not read"},
     {kExitBadConfig, "another version"}},
    {StatusCode::kInternal, kBug, kBug, kBug, kBug},
    {StatusCode::kUnavailable,
     {kExitIo, "a disk that fails, or no thread left"},
     kIo,
     kIo,
     {kExitRetry, "a peer that is lost, or a port that is taken"}},
    {StatusCode::kDataLoss,
     {kExitBadData, "a damaged checkpoint"},
     kIo,
     {kExitBadData, "damaged data"},
     {kExitBadData, "a server that lost what it had acknowledged"}},
    {StatusCode::kUnauthenticated, kIo, kIo, kIo, {kExitBadConfig, "a proof that they refuse"}},
};

Status Of(StatusCode code, std::optional<Origin> origin) {
  const Status status(code, "x");
  return origin ? status.From(*origin) : status;
}

TEST(ExitCodeTest, EveryOriginAndCode) {
  ASSERT_EQ(std::size(kRows), static_cast<size_t>(kCodes));
  for (const Rows& row : kRows) {
    const std::pair<std::optional<Origin>, Row> wanted[] = {
        {std::nullopt, row.output},
        {Origin::kOurs, row.output},
        {Origin::kOutput, row.output},
        {Origin::kManifest, row.manifest},
        {Origin::kInput, row.input},
        {Origin::kPeers, row.peers},
        {Origin::kDevice, row.peers},
        {Origin::kStop, {kExitTerminated, "asked to stop, whatever was under way"}},
        {Origin::kNumbers, {kExitNotFinite, "numbers that are not finite"}},
    };
    for (const auto& [origin, want] : wanted) {
      EXPECT_EQ(ExitCodeOf(Of(row.code, origin)), want.exit_code)
          << StatusCodeName(row.code) << " from " << (origin ? OriginName(*origin) : "nobody")
          << ": " << want.why;
    }
  }
}

TEST(ExitCodeTest, AnApiServersAnswer) {
  for (int i = 1; i < kCodes + 1; ++i) {
    const auto code = static_cast<StatusCode>(i);
    int want = kExitBadConfig;
    if (code == StatusCode::kNotFound) want = kExitNoInput;
    if (code == StatusCode::kInternal) want = kExitInternal;
    if (code == StatusCode::kCancelled) want = kExitInterrupted;
    for (const StatusCode io :
         {StatusCode::kUnknown, StatusCode::kUnavailable, StatusCode::kDeadlineExceeded,
          StatusCode::kDataLoss, StatusCode::kOutOfRange}) {
      if (code == io) want = kExitIo;
    }
    EXPECT_EQ(ExitCodeOf(Of(code, Origin::kApiServer), SIGINT), want) << StatusCodeName(code);
  }
}

TEST(ExitCodeTest, OkIsDoneWhateverSignalCame) {
  EXPECT_EQ(ExitCodeOf(OkStatus()), kExitDone);
  EXPECT_EQ(ExitCodeOf(OkStatus(), SIGINT), kExitDone);
}

TEST(ExitCodeTest, AStopHasTheCodeOfItsSignal) {
  const Status stopped = Cancelled("stopped").From(Origin::kStop);
  EXPECT_EQ(ExitCodeOf(stopped), kExitTerminated);
  EXPECT_EQ(ExitCodeOf(stopped, SIGTERM), kExitTerminated);
  EXPECT_EQ(ExitCodeOf(stopped, SIGINT), kExitInterrupted);
  EXPECT_EQ(ExitCodeOf(stopped, SIGHUP), 129);
  // A signal that came while something else went wrong is not what ended the process.
  EXPECT_EQ(ExitCodeOf(Internal("x"), SIGINT), kExitInternal);
}

// A newer version's checkpoint, memory that the machine has not, and numbers stay what they are.
TEST(ExitCodeTest, WhatCannotHealIsNeverTriedAgain) {
  for (const std::optional<Origin> origin :
       {std::optional<Origin>(), std::optional(Origin::kOurs), std::optional(Origin::kManifest),
        std::optional(Origin::kInput), std::optional(Origin::kOutput),
        std::optional(Origin::kPeers), std::optional(Origin::kNumbers),
        std::optional(Origin::kDevice), std::optional(Origin::kApiServer)}) {
    for (const StatusCode code :
         {StatusCode::kUnimplemented, StatusCode::kFailedPrecondition, StatusCode::kInvalidArgument,
          StatusCode::kNotFound, StatusCode::kAlreadyExists, StatusCode::kInternal}) {
      EXPECT_EQ(ClassifyExit(ExitCodeOf(Of(code, origin))), ExitClass::kPermanent)
          << StatusCodeName(code) << " from " << (origin ? OriginName(*origin) : "nobody");
    }
  }
}

TEST(ExitCodeTest, WhatMayHealIsTriedAgain) {
  EXPECT_EQ(ClassifyExit(ExitCodeOf(ResourceExhausted("the disk is full").From(Origin::kOutput))),
            ExitClass::kRetryable);
  for (const Origin origin : {Origin::kOurs, Origin::kManifest, Origin::kInput, Origin::kOutput,
                              Origin::kPeers, Origin::kStop, Origin::kDevice, Origin::kApiServer}) {
    EXPECT_EQ(ClassifyExit(ExitCodeOf(Unavailable("x").From(origin))), ExitClass::kRetryable)
        << OriginName(origin);
  }
}

}  // namespace
}  // namespace meshtrain::cluster
