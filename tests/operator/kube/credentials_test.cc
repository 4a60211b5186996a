#include "operator/kube/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/time_text.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::kube {
namespace {

using testing::FakeClock;
using ::testing::HasSubstr;

class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/credentials_test." + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    chmod(path.c_str(), 0700);
    return path;
  }
  std::string folder_;
  FakeClock clock_;
};

TEST_F(CredentialsTest, ReadsATokenFileAgainAfterAMinute) {
  ClientConfig config;
  config.token_file = Write("token", "one\n");
  Credentials credentials(config, clock_);
  EXPECT_EQ(credentials.Current()->authorization, "Bearer one");
  Write("token", "two");
  EXPECT_EQ(credentials.Current()->authorization, "Bearer one");
  clock_.Advance(std::chrono::seconds(61));
  EXPECT_EQ(credentials.Current()->authorization, "Bearer two");
  // A file that is away for a moment leaves the last token in use.
  std::filesystem::remove(config.token_file);
  clock_.Advance(std::chrono::seconds(61));
  EXPECT_EQ(credentials.Current()->authorization, "Bearer two");
}

TEST_F(CredentialsTest, ReadsATokenFileAgainWhenRefused) {
  ClientConfig config;
  config.token_file = Write("token", "one");
  Credentials credentials(config, clock_);
  const auto first = credentials.Current();
  Write("token", "two");
  credentials.Refused(*first);
  EXPECT_EQ(credentials.Current()->authorization, "Bearer two");
}

TEST_F(CredentialsTest, RunsAPluginOnceUntilItsCredentialExpires) {
  ClientConfig config;
  config.server = "https://s";
  config.exec = ExecPlugin{.api_version = "client.authentication.k8s.io/v1",
                           .command = Write("plugin", R"(#!/bin/sh
echo run >> "$COUNT"
printf '%s' "$KUBERNETES_EXEC_INFO" > "$COUNT.info"
n=$(wc -l < "$COUNT")
cat <<J
{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
 "status":{"token":"$1-$n","expirationTimestamp":"2026-01-02T04:04:05Z"}}
J
)"),
                           .args = {"tok"},
                           .env = {{"COUNT", folder_ + "/count"}},
                           .provide_cluster_info = true};
  Credentials credentials(config, clock_);  // it is 2026-01-02T03:04:05Z
  EXPECT_EQ(credentials.Current()->authorization, "Bearer tok-1");
  EXPECT_EQ(credentials.Current()->authorization, "Bearer tok-1");
  EXPECT_THAT(*ReadFile(folder_ + "/count.info"), HasSubstr(R"("server":"https://s")"));
  clock_.Advance(std::chrono::minutes(60));
  EXPECT_EQ(credentials.Current()->authorization, "Bearer tok-2");
}

TEST_F(CredentialsTest, RunsAPluginThatFailedAgainAtTheNextCall) {
  ClientConfig config;
  config.exec = ExecPlugin{.api_version = "client.authentication.k8s.io/v1",
                           .command = Write("flaky", R"(#!/bin/sh
echo run >> "$COUNT"
n=$(wc -l < "$COUNT")
[ $n -eq 2 ] && exit 3
cat <<J
{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
 "status":{"clientCertificateData":"cert-$n","clientKeyData":"key-$n",
           "expirationTimestamp":"2026-01-02T0$((3 + n)):04:05Z"}}
J
)"),
                           .env = {{"COUNT", folder_ + "/count"}}};
  Credentials credentials(config, clock_);  // it is 2026-01-02T03:04:05Z
  EXPECT_EQ(credentials.Current()->certificate, "cert-1");
  clock_.Advance(std::chrono::minutes(60));
  EXPECT_THAT(credentials.Current().status().message(), HasSubstr("expected exit code 0, got: 3"));
  // Not the first one, which has expired.
  const auto third = credentials.Current();
  ASSERT_TRUE(third.ok()) << third.status().ToString();
  EXPECT_EQ(third->certificate, "cert-3");
  // And that one is kept until it expires in its turn.
  EXPECT_EQ(credentials.Current()->certificate, "cert-3");
  EXPECT_EQ(*ReadFile(folder_ + "/count"), "run\nrun\nrun\n");
}

TEST_F(CredentialsTest, APluginWhoseClockIsAnHourOffIsNotRunForEveryRequest) {
  ClientConfig config;
  config.exec = ExecPlugin{.api_version = "client.authentication.k8s.io/v1",
                           .command = Write("early", R"(#!/bin/sh
echo run >> "$COUNT"
cat <<J
{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
 "status":{"token":"t","expirationTimestamp":"2026-01-02T02:04:05Z"}}
J
)"),
                           .env = {{"COUNT", folder_ + "/count"}}};
  Credentials credentials(config, clock_);  // it is 2026-01-02T03:04:05Z
  for (int i = 0; i < 50; ++i) EXPECT_EQ(credentials.Current()->authorization, "Bearer t");
  EXPECT_EQ(*ReadFile(folder_ + "/count"), "run\n");
  clock_.Advance(std::chrono::seconds(61));
  EXPECT_TRUE(credentials.Current().ok());
  EXPECT_EQ(*ReadFile(folder_ + "/count"), "run\nrun\n");
  credentials.Refused(*credentials.Current());
  EXPECT_TRUE(credentials.Current().ok());
  EXPECT_EQ(*ReadFile(folder_ + "/count"), "run\nrun\nrun\n") << "what is refused is renewed";
}

TEST_F(CredentialsTest, APluginThatSpeaksForEverIsEnded) {
  const ExecPlugin plugin{.api_version = "client.authentication.k8s.io/v1",
                          .command = Write("chatty", "#!/bin/sh\nexec cat /dev/zero\n")};
  EXPECT_THAT(RunExecPlugin(plugin, {}, std::chrono::minutes(10)).status().message(),
              HasSubstr("expected at most 1 MiB, got: more"));
}

TEST_F(CredentialsTest, SaysWhatAPluginDidWrong) {
  struct Case {
    std::string script, want;
  };
  for (const Case& c : std::vector<Case>{
           {"#!/bin/sh\nexit 3\n", "expected exit code 0, got: 3"},
           {"#!/bin/sh\necho hello\n", "expected an ExecCredential"},
           {"#!/bin/sh\necho "
            "'{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\"}'\n",
            "status.token or a client certificate"},
           {"#!/bin/sh\necho '{\"kind\":\"ExecCredential\",\"apiVersion\":\"x\"}'\n", "got: \"x\""},
       }) {
    const ExecPlugin plugin{.api_version = "client.authentication.k8s.io/v1",
                            .command = Write("bad", c.script)};
    const auto result = RunExecPlugin(plugin, {}, std::chrono::seconds(10));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kUnauthenticated);
    EXPECT_THAT(result.status().message(), HasSubstr(c.want));
  }
  const ExecPlugin missing{.api_version = "client.authentication.k8s.io/v1",
                           .command = folder_ + "/none"};
  EXPECT_EQ(RunExecPlugin(missing, {}, std::chrono::seconds(10)).status().code(),
            StatusCode::kUnauthenticated);
}

TEST_F(CredentialsTest, EndsAPluginThatHangs) {
  const ExecPlugin plugin{.api_version = "client.authentication.k8s.io/v1",
                          .command = Write("hang", "#!/bin/sh\nexec sleep 60\n")};
  EXPECT_THAT(RunExecPlugin(plugin, {}, std::chrono::milliseconds(100)).status().message(),
              HasSubstr("in time"));
}

TEST_F(CredentialsTest, EndsAPluginThatClosesItsOutputAndRunsOn) {
  const ExecPlugin plugin{.api_version = "client.authentication.k8s.io/v1",
                          .command = Write("closed", "#!/bin/sh\nexec >&-\nexec sleep 60\n")};
  const Status status = RunExecPlugin(plugin, {}, std::chrono::milliseconds(300)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(status.message(), HasSubstr("closed: expected its end in time, got: it has closed "
                                          "its output and runs on"));
}

TEST(ExecCredentialTest, AYearThatIsTooFarToBeReadIsAsGoodAsNever) {
  const auto read = [](const std::string& expires) {
    return ParseExecCredential(
        R"({"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",)"
        R"("status":{"token":"t","expirationTimestamp":")" +
            expires + "\"}}",
        "client.authentication.k8s.io/v1");
  };
  const auto far = read("9999-12-31T23:59:59Z");
  ASSERT_TRUE(far.ok()) << far.status().ToString();
  EXPECT_GT(far->expires, *ParseTime("2150-01-01T00:00:00Z"));
  EXPECT_FALSE(read("9999-13-31T23:59:59Z").ok());
}

}  // namespace
}  // namespace meshtrain::kube
