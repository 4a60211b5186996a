#include "runtime/cluster/contract.h"

#include <gtest/gtest.h>

#include "runtime/cluster/stop_grace.h"

namespace meshtrain::cluster {
namespace {

TEST(ContractTest, ReadsRolesInAnyCaseAndTheOldWordForChief) {
  EXPECT_EQ(ParseRole("Chief"), Role::kChief);
  EXPECT_EQ(ParseRole("MASTER"), Role::kChief);
  EXPECT_EQ(ParseRole("PS"), Role::kPs);
  EXPECT_EQ(ParseRole("Evaluator"), Role::kEvaluator);
  EXPECT_EQ(ParseRole("eval"), std::nullopt);
  EXPECT_EQ(ParseRole(""), std::nullopt);
  for (const Role role : kRoles) EXPECT_EQ(ParseRole(RoleName(role)), role);
}

TEST(ContractTest, AGracePeriodIsAnyNumberOfSeconds) {
  EXPECT_EQ(*ParseStopGrace("0"), Duration());
  EXPECT_EQ(*ParseStopGrace("30"), kDefaultStopGrace);
  EXPECT_EQ(*ParseStopGrace("9999999999"), std::chrono::seconds(INT32_MAX));
  for (const char* bad : {"-1", "", "soon", "1.5"}) EXPECT_FALSE(ParseStopGrace(bad).ok()) << bad;
}

TEST(ContractTest, NamesPodsByJobRoleAndIndex) {
  EXPECT_EQ(PodName("mnist", {Role::kWorker, 3}), "mnist-worker-3");
  EXPECT_EQ(PodName("mnist", {Role::kEvaluator, 0}), "mnist-evaluator-0");
}

TEST(ContractTest, ClassifiesEveryExitCode) {
  for (int code = 0; code < 256; ++code) {
    ExitClass want = code < 128 ? ExitClass::kPermanent : ExitClass::kRetryable;
    if (code == 0) want = ExitClass::kDone;
    if (code == 74) want = ExitClass::kRetryable;
    if (code == 134 || code == 139) want = ExitClass::kPermanent;
    EXPECT_EQ(ClassifyExit(code), want) << code;
  }
}

TEST(ContractTest, NumbersThatAreNotFiniteAreSoAtTheNextAttemptToo) {
  EXPECT_EQ(ClassifyExit(kExitNotFinite), ExitClass::kPermanent);
  EXPECT_NE(kExitNotFinite, kExitInternal);
}

TEST(ContractTest, EnvironmentLimitCountsNameAndTerminator) {
  EXPECT_TRUE(FitsEnvironment(9, 131072 - 11));
  EXPECT_FALSE(FitsEnvironment(9, 131072 - 10));
}

}  // namespace
}  // namespace meshtrain::cluster
