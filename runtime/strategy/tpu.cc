#include "runtime/strategy/tpu.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/text.h"

namespace meshtrain::strategy {
namespace {

constexpr std::string_view kEndpoints = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS";
constexpr std::string_view kHostnames = "TPU_WORKER_HOSTNAMES";
constexpr std::string_view kWorkerId = "TPU_WORKER_ID";
constexpr std::string_view kName = "TPU_NAME";
constexpr std::string_view kChipsPerHost = "TPU_CHIPS_PER_HOST_BOUNDS";
constexpr std::string_view kTopology = "TPU_TOPOLOGY";
constexpr std::string_view kAccelerator = "TPU_ACCELERATOR_TYPE";
constexpr std::string_view kScheme = "grpc://";
constexpr int64_t kDefaultPort = 8470;
constexpr int64_t kMostChips = int64_t{1} << 20;

std::string Value(const membership::Environment& environment, std::string_view name) {
  return std::string(Trim(environment(name).value_or("")));
}

// "2,2,1" or "4x4": the product, 0 for "". Errors: kInvalidArgument.
Result<int64_t> Product(std::string_view name, const std::string& text, char separator) {
  if (text.empty()) return int64_t{0};
  int64_t product = 1;
  for (const std::string& part : Split(text, separator)) {
    const auto size = ParseInt(Trim(part));
    if (!size || *size < 1 || *size > kMostChips || product * *size > kMostChips) {
      return InvalidArgument(std::string(name) + ": expected sizes from 1, as in 2" + separator +
                             "2, got: " + text);
    }
    product *= *size;
  }
  return product;
}

// HOST:PORT of "grpc://10.0.0.2:8470", "10.0.0.2:8470" or "grpc://10.0.0.2".
Result<std::string> Address(const std::string& where, const std::string& text) {
  std::string address(Trim(text));
  if (address.starts_with(kScheme)) address.erase(0, kScheme.size());
  const size_t colon = address.rfind(':');
  const bool bare_v6 =
      colon != std::string::npos && address.find(':') != colon && !address.starts_with('[');
  const bool has_port = colon != std::string::npos && !bare_v6 && !address.ends_with(']');
  const std::string host = has_port ? address.substr(0, colon) : address;
  const auto port = has_port ? ParseInt(address.substr(colon + 1)) : std::optional(kDefaultPort);
  if (host.empty() || bare_v6 || host.find_first_of("/ ") != std::string::npos || !port ||
      *port < 1 || *port > 65535) {
    return InvalidArgument(where + ": expected HOST:PORT or grpc://HOST:PORT, got: " + text);
  }
  return host + ":" + std::to_string(*port);
}

Result<TpuCluster> Remote(const std::string& where, const std::string& text) {
  TpuCluster cluster;
  for (const std::string& part : Split(text, ',')) {
    MT_ASSIGN_OR_RETURN(std::string address, Address(where, part));
    cluster.hosts.push_back(std::move(address));
  }
  return cluster;
}

Result<TpuCluster> Local(const membership::Environment& environment) {
  TpuCluster cluster{.local = true};
  for (const std::string& name : Split(Value(environment, kHostnames), ',')) {
    if (!Trim(name).empty()) cluster.hosts.emplace_back(Trim(name));
  }
  if (cluster.hosts.empty()) cluster.hosts = {"localhost"};
  const auto n = static_cast<int64_t>(cluster.hosts.size());
  const std::string id = Value(environment, kWorkerId);
  const auto worker = id.empty() && n == 1 ? std::optional<int64_t>(0) : ParseInt(id);
  if (!worker || *worker < 0 || *worker >= n) {
    return InvalidArgument(std::string(kWorkerId) + ": expected a number below the " +
                           std::to_string(n) + " hosts of " + std::string(kHostnames) +
                           ", got: " + (id.empty() ? "nothing" : id));
  }
  cluster.worker = static_cast<int>(*worker);
  return cluster;
}

Result<TpuCluster> Find(const std::string& asked, const membership::Environment& environment) {
  std::string tpu = asked, where = "TPUClusterResolver";
  if (tpu.empty()) {
    if (const std::string endpoints = Value(environment, kEndpoints); !endpoints.empty()) {
      return Remote(std::string(kEndpoints), endpoints);
    }
    if (!Value(environment, kHostnames).empty()) return Local(environment);
    tpu = Value(environment, kName);
    where = kName;
    if (tpu.empty()) {
      return InvalidArgument("TPUClusterResolver: expected a TPU's address, `local`, or one of " +
                             std::string(kEndpoints) + ", " + std::string(kHostnames) + " and " +
                             std::string(kName) + " in the environment, got: none of them");
    }
  }
  if (tpu == "local") return Local(environment);
  if (tpu.find_first_of(":,") != std::string::npos) return Remote(where, tpu);
  return Unimplemented(where + ": `" + tpu +
                       "` is a name that only Cloud TPU's own service can look up: expected " +
                       "grpc://HOST:PORT, or `local` on the TPU's own hosts");
}

}  // namespace

std::string TpuCluster::ToString() const {
  const auto count = [](size_t n, std::string_view one) {
    return std::to_string(n) + " " + std::string(one) + (n == 1 ? "" : "s");
  };
  std::string text = count(hosts.size(), "host") + " with ";
  text += chips_per_host > 0 ? count(static_cast<size_t>(chips_per_host), "chip")
                             : "chips of unknown number";
  if (hosts.size() > 1) text += " each";
  return text + (accelerator_type.empty() ? "" : " (" + accelerator_type + ")");
}

Result<TpuCluster> ResolveTpu(const TpuClusterResolver& resolver,
                              const membership::Environment& environment) {
  MT_ASSIGN_OR_RETURN(TpuCluster cluster, Find(std::string(Trim(resolver.tpu)), environment));
  if (!cluster.local) return cluster;  // what the environment says of chips is about this host's
  cluster.accelerator_type = Value(environment, kAccelerator);
  MT_ASSIGN_OR_RETURN(cluster.chips_per_host,
                      Product(kChipsPerHost, Value(environment, kChipsPerHost), ','));
  MT_ASSIGN_OR_RETURN(const int64_t chips, Product(kTopology, Value(environment, kTopology), 'x'));
  const auto hosts = static_cast<int64_t>(cluster.hosts.size());
  if (cluster.chips_per_host == 0 && chips % hosts == 0) cluster.chips_per_host = chips / hosts;
  return cluster;
}

Result<mesh::Mesh> TpuMesh(const TpuCluster& cluster) {
  if (cluster.chips_per_host < 1) {
    return FailedPrecondition("TPU: expected " + std::string(kChipsPerHost) + " or " +
                              std::string(kTopology) +
                              " to say how many chips there are, got: neither");
  }
  std::vector<mesh::Device> devices;
  for (int host = 0; host < static_cast<int>(cluster.hosts.size()); ++host) {
    for (int chip = 0; chip < cluster.chips_per_host; ++chip) {
      devices.push_back({mesh::DeviceKind::kTpu, host, chip});
    }
  }
  const auto size = static_cast<int64_t>(devices.size());
  return mesh::Mesh::Create({{"batch", size}}, std::move(devices));
}

}  // namespace meshtrain::strategy
