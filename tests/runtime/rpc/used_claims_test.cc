#include "runtime/rpc/used_claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshtrain::rpc {
namespace {

using ::testing::HasSubstr;

constexpr TimePoint kStart{std::chrono::seconds(1'760'000'000)};

CallClaim Claim(const std::string& caller, uint64_t number, TimePoint time = kStart) {
  return {
      .method = "/a/B",
      .job = "ml/mnist",
      .time_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count(),
      .caller = caller,
      .number = number};
}

TEST(UsedClaimsTest, AClaimIsGoodOnce) {
  UsedClaims used;
  EXPECT_TRUE(used.Use(Claim("a", 1), kStart).ok());
  const Status again = used.Use(Claim("a", 1), kStart);
  EXPECT_EQ(again.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(again.message(), HasSubstr("got: number 1, which came before"));
  EXPECT_TRUE(used.Use(Claim("a", 2), kStart).ok());
  EXPECT_TRUE(used.Use(Claim("b", 1), kStart).ok()) << "another caller's";
  EXPECT_EQ(used.Use(Claim("b", 0), kStart).code(), StatusCode::kUnauthenticated);
}

TEST(UsedClaimsTest, CallsMayOvertakeEachOtherWithinTheWindow) {
  constexpr uint64_t kFirst = 5;
  for (const uint64_t highest : {kFirst + 1, kFirst + UsedClaims::kWindow - 1}) {
    UsedClaims used;
    EXPECT_TRUE(used.Use(Claim("a", highest), kStart).ok());
    for (uint64_t n = kFirst; n < highest; ++n) {
      EXPECT_TRUE(used.Use(Claim("a", n), kStart).ok()) << n;
    }
    for (uint64_t n = kFirst; n <= highest; ++n) {
      EXPECT_FALSE(used.Use(Claim("a", n), kStart).ok()) << n;
    }
  }
}

TEST(UsedClaimsTest, WhatLiesBelowTheWindowIsRefusedSeenOrNot) {
  UsedClaims used;
  EXPECT_TRUE(used.Use(Claim("a", 3), kStart).ok());
  EXPECT_TRUE(used.Use(Claim("a", UsedClaims::kWindow + 3), kStart).ok());
  EXPECT_FALSE(used.Use(Claim("a", 3), kStart).ok());
  EXPECT_THAT(used.Use(Claim("a", 2), kStart).message(), HasSubstr("far below 1027"));
  EXPECT_TRUE(used.Use(Claim("a", 4), kStart).ok());
  // Far ahead: the numbers in between share their places with those of before.
  EXPECT_TRUE(used.Use(Claim("a", 10 * UsedClaims::kWindow), kStart).ok());
  EXPECT_TRUE(used.Use(Claim("a", 10 * UsedClaims::kWindow - 1), kStart).ok());
  EXPECT_TRUE(used.Use(Claim("a", 9 * UsedClaims::kWindow + 4), kStart).ok());
}

TEST(UsedClaimsTest, ACallerIsForgottenOnceCheckClaimRefusesAllItsClaims) {
  UsedClaims used;
  const TimePoint ahead = kStart + std::chrono::minutes(3);  // its clock
  EXPECT_TRUE(used.Use(Claim("a", 1, ahead), kStart).ok());
  // The last moment at which its claim has a good time.
  const TimePoint last = ahead + kClockSlack;
  EXPECT_TRUE(
      CheckClaim("t", Claim("a", 1, ahead), ProveClaim("t", Claim("a", 1, ahead)), "ml/mnist", last)
          .ok());
  EXPECT_FALSE(used.Use(Claim("a", 1, ahead), last).ok());
  EXPECT_EQ(used.callers(), 1u);
  EXPECT_TRUE(used.Use(Claim("b", 1, last), last + std::chrono::minutes(2)).ok());
  EXPECT_EQ(used.callers(), 1u) << "b";
}

TEST(UsedClaimsTest, SoManyCallersAreKeptAndNoMore) {
  UsedClaims used;
  for (size_t i = 0; i < UsedClaims::kMostCallers; ++i) {
    ASSERT_TRUE(used.Use(Claim(std::to_string(i), 1), kStart).ok());
  }
  const Status more = used.Use(Claim("one more", 1), kStart);
  EXPECT_EQ(more.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(used.Use(Claim("17", 2), kStart).ok()) << "who is known goes on";
  EXPECT_EQ(used.callers(), UsedClaims::kMostCallers);
  const TimePoint later = kStart + kClockSlack + std::chrono::seconds(1);
  EXPECT_TRUE(used.Use(Claim("one more", 1, later), later).ok());
}

}  // namespace
}  // namespace meshtrain::rpc
