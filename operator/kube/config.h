// Where the API server is and who we are to it: from a kubeconfig (files, contexts, inline data,
// exec plugins) or from the ServiceAccount of the pod we run in. Format:
// https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::kube {

// A credential plugin: a command that prints an ExecCredential (client.authentication.k8s.io).
struct ExecPlugin {
  std::string api_version;
  std::string command;
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;
  bool provide_cluster_info = false;

  friend bool operator==(const ExecPlugin&, const ExecPlugin&) = default;
};

// Of each pair of `x_file` and `x_data` at most one is set; data is the decoded content.
struct ClientConfig {
  std::string server;  // "https://host:port" with an optional path
  std::string tls_server_name;
  bool insecure_skip_tls_verify = false;
  std::string ca_file, ca_data;  // both empty: the system's authorities
  std::string proxy_url;
  std::string client_certificate_file, client_certificate_data;
  std::string client_key_file, client_key_data;
  std::string token;
  std::string token_file;  // wins over token; read again every minute
  std::string username, password;
  std::optional<ExecPlugin> exec;
  std::string ns;  // the context's namespace; "" where it names none

  friend bool operator==(const ClientConfig&, const ClientConfig&) = default;
};

// One environment variable, or nothing.
using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

// Parses one or more kubeconfig texts; the first to name an entry wins, as kubectl merges them.
// Relative paths are taken from the folder of their file. `context` overrides current-context.
// Errors: kInvalidArgument naming the file and field.
struct KubeconfigText {
  std::string path;
  std::string text;
};
Result<ClientConfig> ParseKubeconfig(const std::vector<KubeconfigText>& files,
                                     std::string_view context);

// `path` may list several files separated by ':', as $KUBECONFIG does; files that are missing are
// passed over when there are several.
Result<ClientConfig> LoadKubeconfig(const std::string& path, std::string_view context);

// KUBERNETES_SERVICE_HOST/_PORT and the files under /var/run/secrets/kubernetes.io/serviceaccount
// (`root` stands before that path, for tests). kNotFound outside a pod.
Result<ClientConfig> InClusterConfig(const GetEnv& env, const std::string& root = "");

// kubectl's order: `kubeconfig` where given, $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config.
Result<ClientConfig> FindConfig(const std::string& kubeconfig, std::string_view context,
                                const GetEnv& env);

}  // namespace meshtrain::kube
