#include "operator/kube/config.h"

#include <openssl/evp.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::kube {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr size_t kQuoted = 100;  // bytes of a name in a message

Result<std::string> DecodeBase64(std::string_view text, std::string_view where) {
  std::string compact;
  for (char c : text) {
    if (c != '\n' && c != '\r' && c != ' ') compact += c;
  }
  std::string out(compact.size() / 4 * 3 + 3, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(compact.data()),
                                static_cast<int>(compact.size()));
  if (n < 0) {
    return InvalidArgument(std::string(where) + ": expected base64 text, got: something else");
  }
  int padding = 0;
  while (padding < 2 && padding < static_cast<int>(compact.size()) &&
         compact[compact.size() - 1 - padding] == '=') {
    ++padding;
  }
  out.resize(n - padding);
  return out;
}

// A named entry of `clusters`, `users` or `contexts`, with where it stood.
struct Entry {
  YAML::Node node;
  std::string file;
};

std::optional<Entry> FindEntry(const std::vector<std::pair<std::string, YAML::Node>>& documents,
                               const char* list, const char* member, const std::string& name) {
  for (const auto& [path, document] : documents) {
    const YAML::Node entries = document[list];
    if (!entries || !entries.IsSequence()) continue;
    for (const YAML::Node& entry : entries) {
      if (entry["name"] && entry["name"].as<std::string>() == name) {
        return Entry{entry[member], path};
      }
    }
  }
  return std::nullopt;
}

std::string Text(const Entry& entry, const char* key) {
  if (!entry.node || !entry.node.IsMap()) return "";
  const YAML::Node value = entry.node[key];
  return value && value.IsScalar() ? value.as<std::string>() : "";
}

std::string RelativeTo(const std::string& file, const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  return (std::filesystem::path(file).parent_path() / path).lexically_normal().string();
}

// `key` names a file, `key`-data holds the content; the data wins, as with kubectl.
Status FileOrData(const Entry& entry, const char* key, std::string& file, std::string& data) {
  const std::string data_key = std::string(key) + "-data";
  if (const std::string encoded = Text(entry, data_key.c_str()); !encoded.empty()) {
    MT_ASSIGN_OR_RETURN(data, DecodeBase64(encoded, entry.file + ": " + data_key));
    return OkStatus();
  }
  file = RelativeTo(entry.file, Text(entry, key));
  return OkStatus();
}

Result<ExecPlugin> ParseExec(const YAML::Node& node, const std::string& file) {
  ExecPlugin plugin;
  const Entry entry{node, file};
  plugin.api_version = Text(entry, "apiVersion");
  if (plugin.api_version != "client.authentication.k8s.io/v1" &&
      plugin.api_version != "client.authentication.k8s.io/v1beta1") {
    return InvalidArgument(
        file +
        ": user.exec.apiVersion: expected client.authentication.k8s.io/v1 or v1beta1, got: " +
        Excerpt(plugin.api_version, kQuoted));
  }
  plugin.command = Text(entry, "command");
  if (plugin.command.empty()) {
    return InvalidArgument(file + ": user.exec.command: expected a command, got: none");
  }
  // A command with a slash is a path beside the file; a bare one is looked up in PATH.
  if (plugin.command.find('/') != std::string::npos) {
    plugin.command = RelativeTo(file, plugin.command);
  }
  if (const YAML::Node args = node["args"]; args && args.IsSequence()) {
    for (const YAML::Node& arg : args) plugin.args.push_back(arg.as<std::string>());
  }
  if (const YAML::Node env = node["env"]; env && env.IsSequence()) {
    for (const YAML::Node& pair : env) {
      plugin.env.emplace_back(pair["name"].as<std::string>(), pair["value"].as<std::string>());
    }
  }
  plugin.provide_cluster_info = Text(entry, "provideClusterInfo") == "true";
  return plugin;
}

Result<ClientConfig> ParseDocuments(const std::vector<KubeconfigText>& files,
                                    std::string_view wanted_context) {
  std::vector<std::pair<std::string, YAML::Node>> documents;
  for (const KubeconfigText& file : files) {
    YAML::Node document = YAML::Load(file.text);
    if (!document.IsMap()) {
      return InvalidArgument(file.path +
                             ": expected a kubeconfig (a YAML map), got: something else");
    }
    documents.emplace_back(file.path, document);
  }
  std::string context_name(wanted_context);
  for (const auto& [path, document] : documents) {
    if (!context_name.empty()) break;
    context_name = Text(Entry{document, path}, "current-context");
  }
  const std::string first = files.front().path;
  if (context_name.empty()) {
    return InvalidArgument(first + ": current-context: expected a context's name, got: none");
  }
  const auto context = FindEntry(documents, "contexts", "context", context_name);
  if (!context) {
    return InvalidArgument(first + ": contexts: expected one named " +
                           Excerpt(context_name, kQuoted) + ", got: none");
  }
  const std::string cluster_name = Text(*context, "cluster");
  const auto cluster = FindEntry(documents, "clusters", "cluster", cluster_name);
  if (!cluster) {
    return InvalidArgument(first + ": clusters: expected one named " +
                           Excerpt(cluster_name, kQuoted) + ", got: none");
  }

  ClientConfig config;
  config.ns = Text(*context, "namespace");
  config.server = Text(*cluster, "server");
  if (config.server.empty()) {
    return InvalidArgument(cluster->file + ": clusters." + Excerpt(cluster_name, kQuoted) +
                           ".server: expected a URL, got: none");
  }
  config.tls_server_name = Text(*cluster, "tls-server-name");
  config.insecure_skip_tls_verify = Text(*cluster, "insecure-skip-tls-verify") == "true";
  config.proxy_url = Text(*cluster, "proxy-url");
  MT_RETURN_IF_ERROR(FileOrData(*cluster, "certificate-authority", config.ca_file, config.ca_data));

  const std::string user_name = Text(*context, "user");
  if (user_name.empty()) return config;  // anonymous
  const auto user = FindEntry(documents, "users", "user", user_name);
  if (!user) {
    return InvalidArgument(first + ": users: expected one named " + Excerpt(user_name, kQuoted) +
                           ", got: none");
  }
  MT_RETURN_IF_ERROR(FileOrData(*user, "client-certificate", config.client_certificate_file,
                                config.client_certificate_data));
  MT_RETURN_IF_ERROR(
      FileOrData(*user, "client-key", config.client_key_file, config.client_key_data));
  config.token = Text(*user, "token");
  config.token_file = RelativeTo(user->file, Text(*user, "tokenFile"));
  config.username = Text(*user, "username");
  config.password = Text(*user, "password");
  if (user->node && user->node.IsMap() && user->node["exec"]) {
    MT_ASSIGN_OR_RETURN(config.exec, ParseExec(user->node["exec"], user->file));
  }
  if (user->node && user->node.IsMap() && user->node["auth-provider"]) {
    return Unimplemented(user->file + ": users." + Excerpt(user_name, kQuoted) +
                         ".auth-provider: expected `exec` instead (Kubernetes " +
                         "removed auth providers in 1.26), got: auth-provider");
  }
  return config;
}

}  // namespace

Result<ClientConfig> ParseKubeconfig(const std::vector<KubeconfigText>& files,
                                     std::string_view context) {
  if (files.empty()) return InvalidArgument("kubeconfig: expected at least one file, got: none");
  try {
    return ParseDocuments(files, context);
  } catch (const YAML::Exception& e) {
    return InvalidArgument(files.front().path +
                           ": expected a kubeconfig, got: " + Excerpt(e.what()));
  }
}

Result<ClientConfig> LoadKubeconfig(const std::string& path, std::string_view context) {
  const std::vector<std::string> paths = Split(path, ':');
  std::vector<KubeconfigText> files;
  for (const std::string& one : paths) {
    if (one.empty()) continue;
    Result<std::string> text = ReadFile(one, kMaxConfigBytes);
    if (!text.ok()) {
      if (paths.size() > 1 && text.status().code() == StatusCode::kNotFound) continue;
      return text.status();
    }
    files.push_back({one, *std::move(text)});
  }
  if (files.empty()) return NotFound("kubeconfig: expected a file, got: none of " + path);
  return ParseKubeconfig(files, context);
}

Result<ClientConfig> InClusterConfig(const GetEnv& env, const std::string& root) {
  const std::string folder = root + "/var/run/secrets/kubernetes.io/serviceaccount";
  const auto host = env("KUBERNETES_SERVICE_HOST");
  const auto port = env("KUBERNETES_SERVICE_PORT");
  if (!host || !port || host->empty() || port->empty()) {
    return NotFound(
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT: expected both (inside a pod), got: "
        "none");
  }
  ClientConfig config;
  config.server =
      "https://" + (host->find(':') == std::string::npos ? *host : "[" + *host + "]") + ":" + *port;
  config.ca_file = folder + "/ca.crt";
  config.token_file = folder + "/token";
  for (const std::string& needed : {config.ca_file, config.token_file}) {
    if (Result<std::string> text = ReadFile(needed, kMaxConfigBytes); !text.ok()) {
      return text.status();
    }
  }
  if (Result<std::string> ns = ReadFile(folder + "/namespace", kMaxConfigBytes); ns.ok()) {
    config.ns = std::string(Trim(*ns));
  }
  return config;
}

Result<ClientConfig> FindConfig(const std::string& kubeconfig, std::string_view context,
                                const GetEnv& env) {
  if (!kubeconfig.empty()) return LoadKubeconfig(kubeconfig, context);
  if (const auto path = env("KUBECONFIG"); path && !path->empty()) {
    return LoadKubeconfig(*path, context);
  }
  if (Result<ClientConfig> inside = InClusterConfig(env);
      inside.ok() || inside.status().code() != StatusCode::kNotFound) {
    return inside;
  }
  const auto home = env("HOME");
  if (!home) {
    return NotFound(
        "kubeconfig: expected --kubeconfig, $KUBECONFIG, a pod or ~/.kube/config, got: none");
  }
  return LoadKubeconfig(*home + "/.kube/config", context);
}

}  // namespace meshtrain::kube
