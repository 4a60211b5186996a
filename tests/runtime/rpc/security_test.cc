#include "runtime/rpc/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::rpc {
namespace {

using ::testing::HasSubstr;

class SecurityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "security_test." + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<Security> Read() const {
    return SecurityFromEnvironment([this](std::string_view name) -> std::optional<std::string> {
      const auto found = variables_.find(std::string(name));
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    });
  }

  std::string folder_;
  std::map<std::string, std::string> variables_;
};

TEST_F(SecurityTest, EmptyEnvironmentGivesNoTokenAndNoCertificates) {
  const auto security = Read();
  ASSERT_TRUE(security.ok());
  EXPECT_EQ(security->token, "");
  EXPECT_FALSE(security->tls());
}

TEST_F(SecurityTest, ReadsTheTokenWithoutItsLineEnd) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/token", "s3cret\n").ok());
  variables_[std::string(cluster::kEnvTokenFile)] = folder_ + "/token";
  const auto security = Read();
  ASSERT_TRUE(security.ok()) << security.status().ToString();
  EXPECT_EQ(security->token, "s3cret");
}

TEST_F(SecurityTest, SaysWhichTokenFileIsMissingOrEmpty) {
  variables_[std::string(cluster::kEnvTokenFile)] = folder_ + "/none";
  EXPECT_EQ(Read().status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Read().status().message(), HasSubstr(folder_ + "/none"));
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/none", " \n").ok());
  EXPECT_EQ(Read().status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SecurityTest, TakesAllThreeCertificateFilesOrNone) {
  variables_[std::string(cluster::kEnvTlsCa)] = "ca.pem";
  variables_[std::string(cluster::kEnvTlsKey)] = "key.pem";
  EXPECT_EQ(Read().status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Read().status().message(), HasSubstr("expected all three or none, got: 2"));
  variables_[std::string(cluster::kEnvTlsCertificate)] = "cert.pem";
  const auto security = Read();
  ASSERT_TRUE(security.ok());
  EXPECT_TRUE(security->tls());
  EXPECT_EQ(security->certificate_file, "cert.pem");
}

constexpr TimePoint kNow{std::chrono::seconds(1'760'000'000)};
const CallClaim kClaim{.method = "/a/B",
                       .job = "ml/mnist",
                       .time_ms = 1'760'000'000'000,
                       .caller = "00ff",
                       .number = 7};

// The value of an independent implementation (Python's hmac module) over the bytes that security.cc
// describes.
TEST(ClaimTest, ProofIsHmacSha256OfTheFieldsWithTheirLengths) {
  EXPECT_EQ(ProveClaim("s3cret", kClaim),
            "ae5d86ee2cb14d1119eee31f127983e6ece56ba1fccf15f87a53168fbb8db6c7");
}

TEST(ClaimTest, RightTokenPasses) {
  EXPECT_TRUE(CheckClaim("s3cret", kClaim, ProveClaim("s3cret", kClaim), "ml/mnist", kNow).ok());
}

TEST(ClaimTest, RefusesWhatTheProofDoesNotCover) {
  const std::string proof = ProveClaim("s3cret", kClaim);
  const auto check = [&](const CallClaim& claim, std::string_view proof) {
    return CheckClaim("s3cret", claim, proof, "ml/mnist", kNow).code();
  };
  CallClaim other = kClaim;
  other.method = "/a/C";
  EXPECT_EQ(check(other, proof), StatusCode::kPermissionDenied);
  other = kClaim;
  other.time_ms += 1;
  EXPECT_EQ(check(other, proof), StatusCode::kPermissionDenied);
  other = kClaim;
  other.caller = "00fe";
  EXPECT_EQ(check(other, proof), StatusCode::kPermissionDenied);
  other = kClaim;
  other.number = 8;
  EXPECT_EQ(check(other, proof), StatusCode::kPermissionDenied);
  // The same bytes, cut differently.
  other = kClaim;
  other.method = "/a/B8";
  EXPECT_EQ(check(other, proof), StatusCode::kPermissionDenied);
  EXPECT_EQ(check(kClaim, ""), StatusCode::kPermissionDenied);
  EXPECT_EQ(check(kClaim, ProveClaim("another", kClaim)), StatusCode::kPermissionDenied);
  EXPECT_EQ(check(kClaim, ProveClaim("", kClaim)), StatusCode::kPermissionDenied);
}

TEST(ClaimTest, NamesBothJobs) {
  const Status status =
      CheckClaim("s3cret", kClaim, ProveClaim("s3cret", kClaim), "ml/other", kNow);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("expected job \"ml/other\", got: \"ml/mnist\""));
}

TEST(ClaimTest, ClocksMayDifferByTheSlackAndNotMore) {
  const std::string proof = ProveClaim("s3cret", kClaim);
  for (const auto sign : {-1, 1}) {
    EXPECT_TRUE(CheckClaim("s3cret", kClaim, proof, "ml/mnist", kNow + sign * kClockSlack).ok());
    const Status status = CheckClaim("s3cret", kClaim, proof, "ml/mnist",
                                     kNow + sign * (kClockSlack + std::chrono::seconds(1)));
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(status.message(), HasSubstr("clocks too far apart"));
  }
}

TEST(ClaimTest, ExtremeTimesAreRefusedNotOverflowed) {
  for (const int64_t time : {INT64_MIN, INT64_MAX}) {
    CallClaim claim = kClaim;
    claim.time_ms = time;
    EXPECT_EQ(CheckClaim("s3cret", claim, ProveClaim("s3cret", claim), "ml/mnist", kNow).code(),
              StatusCode::kPermissionDenied);
  }
}

class CallMacTest : public ::testing::Test {
 protected:
  static CallMac Caller(const std::string& token = "s3cret", const CallClaim& claim = kClaim) {
    return {token, ProveClaim(token, claim), CallMac::End::kCaller};
  }
  static CallMac Server(const std::string& token = "s3cret", const CallClaim& claim = kClaim) {
    return {token, ProveClaim(token, claim), CallMac::End::kServer};
  }
};

// As above, of an independent implementation.
TEST_F(CallMacTest, IsHmacSha256OfCallSenderPlaceAndMessage) {
  std::string hex;
  for (const char c : Caller().Sign("hello")) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  EXPECT_EQ(hex, "1ee1466c919367332952ac47799ee530e593e1e4b9a931559125d66e390dbfab");
}

TEST_F(CallMacTest, MessagesPassInTheOrderInWhichTheyWereSent) {
  CallMac caller = Caller(), server = Server();
  for (const std::string message : {"join", "beat", "beat", ""}) {
    EXPECT_TRUE(server.Check(message, caller.Sign(message)));
    EXPECT_TRUE(caller.Check(message, server.Sign(message)));
  }
}

TEST_F(CallMacTest, AMessageIsGoodForNoOtherPlace) {
  CallMac caller = Caller(), server = Server();
  const std::string first = caller.Sign("beat"), second = caller.Sign("beat");
  EXPECT_FALSE(server.Check("beat", second)) << "one was left out";
  EXPECT_TRUE(server.Check("beat", first)) << "what was refused counts for nothing";
  EXPECT_FALSE(server.Check("beat", first)) << "it came again";
  EXPECT_TRUE(server.Check("beat", second));
  EXPECT_FALSE(server.Check("leave", caller.Sign("beat"))) << "another message";
  EXPECT_FALSE(caller.Check("beat", first)) << "back to who sent it";
}

TEST_F(CallMacTest, AMessageIsGoodForNoOtherCall) {
  CallClaim next = kClaim;
  ++next.number;
  EXPECT_FALSE(Server("s3cret", next).Check("join", Caller().Sign("join")));
  EXPECT_FALSE(Server().Check("join", Caller("guess").Sign("join")));
  EXPECT_FALSE(Server().Check("join", ""));
}

}  // namespace
}  // namespace meshtrain::rpc
