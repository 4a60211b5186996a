#include "operator/kube/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "runtime/base/file.h"

namespace meshtrain::kube {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] = R"(
apiVersion: v1
kind: Config
current-context: a
clusters:
- {name: c, cluster: {server: "https://10.0.0.1:6443/base", certificate-authority: pki/ca.crt, tls-server-name: kube}}
- {name: d, cluster: {server: "https://d:1", certificate-authority-data: aGVsbG8=, insecure-skip-tls-verify: true}}
contexts:
- {name: a, context: {cluster: c, user: u, namespace: team}}
- {name: b, context: {cluster: d, user: x}}
- {name: lost, context: {cluster: gone, user: u}}
users:
- {name: u, user: {client-certificate-data: Y2VydA==, client-key: /k/key.pem, tokenFile: tok}}
- name: x
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./plugin
      args: [one, two]
      env: [{name: A, value: B}]
      provideClusterInfo: true
)";

TEST(ConfigTest, ReadsTheCurrentContextWithPathsBesideTheFile) {
  const auto config = ParseKubeconfig({{"/home/me/.kube/config", kText}}, "");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ClientConfig want;
  want.server = "https://10.0.0.1:6443/base";
  want.tls_server_name = "kube";
  want.ca_file = "/home/me/.kube/pki/ca.crt";
  want.client_certificate_data = "cert";
  want.client_key_file = "/k/key.pem";
  want.token_file = "/home/me/.kube/tok";
  want.ns = "team";
  EXPECT_EQ(*config, want);
}

TEST(ConfigTest, ReadsAnExecPluginOfANamedContext) {
  const auto config = ParseKubeconfig({{"/f/config", kText}}, "b");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->ca_data, "hello");
  EXPECT_TRUE(config->insecure_skip_tls_verify);
  const ExecPlugin want{.api_version = "client.authentication.k8s.io/v1",
                        .command = "/f/plugin",
                        .args = {"one", "two"},
                        .env = {{"A", "B"}},
                        .provide_cluster_info = true};
  EXPECT_EQ(config->exec, want);
}

TEST(ConfigTest, TheFirstFileToNameAnEntryWins) {
  const std::string other =
      "current-context: z\nclusters: [{name: c, cluster: {server: 'https://other'}}]\n";
  const auto config =
      ParseKubeconfig({{"/1", "current-context: a\n"}, {"/2", other}, {"/3", kText}}, "");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->server, "https://other");
}

TEST(ConfigTest, SaysWhatIsWrong) {
  struct Case {
    std::string text, context, want;
  };
  for (const Case& c : std::vector<Case>{
           {kText, "nope", "expected one named nope"},
           {kText, "lost", "expected one named gone"},
           {"[1]", "", "/f: expected a kubeconfig"},
           {"a: {", "", "/f: expected a kubeconfig"},
           {"kind: Config", "", "current-context"},
           {"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
            "clusters: [{name: c, cluster: {server: x, certificate-authority-data: '!'}}]",
            "", "expected base64"},
       }) {
    const auto config = ParseKubeconfig({{"/f", c.text}}, c.context);
    ASSERT_FALSE(config.ok()) << c.text;
    EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), HasSubstr(c.want));
  }
}

TEST(ConfigTest, AMessageQuotesNoMoreThanTheBeginningOfAName) {
  const auto config = ParseKubeconfig(
      {{"/f", "current-context: " + std::string(30'000, 'n') + "\nkind: Config"}}, "");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr("n... (30000 bytes), got: none"));
}

TEST(ConfigTest, ReadsThePodsServiceAccount) {
  const std::string root = ::testing::TempDir() + "/config_test_root." + std::to_string(getpid());
  const std::string folder = root + "/var/run/secrets/kubernetes.io/serviceaccount";
  ASSERT_TRUE(MakeDirectories(folder).ok());
  std::map<std::string, std::string> variables = {{"KUBERNETES_SERVICE_HOST", "fd00::1"},
                                                  {"KUBERNETES_SERVICE_PORT", "443"}};
  const GetEnv env = [&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
  EXPECT_FALSE(InClusterConfig(env, root).ok()) << "there is no token yet";
  ASSERT_TRUE(WriteFileAtomically(folder + "/token", "t").ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/ca.crt", "c").ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/namespace", "ns\n").ok());
  const auto config = InClusterConfig(env, root);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->server, "https://[fd00::1]:443");
  EXPECT_EQ(config->token_file, folder + "/token");
  EXPECT_EQ(config->ns, "ns");
  variables.clear();
  EXPECT_EQ(InClusterConfig(env, root).status().code(), StatusCode::kNotFound);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace meshtrain::kube
