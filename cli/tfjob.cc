// Fields of TFJob: training-operator v1, pkg/apis/kubeflow.org/v1 (tensorflow_types.go,
// common_types.go), and the spellings of v1beta2, which stood in spec what is now in runPolicy.
#include "cli/tfjob.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/manifest/kubectl.h"
#include "runtime/manifest/reader.h"

namespace meshtrain::cli {
namespace {

using cluster::Role;
using manifest::Node;

constexpr std::array<std::string_view, 5> kRunPolicy = {"ttlSecondsAfterFinished",
                                                        "activeDeadlineSeconds", "backoffLimit",
                                                        "suspend", "cleanPodPolicy"};
constexpr std::array<std::string_view, 5> kSchedulingPolicy = {
    "minAvailable", "queue", "minResources", "priorityClass", "scheduleTimeoutSeconds"};
constexpr std::array<std::string_view, 8> kOfTheServer = {
    "uid",      "resourceVersion", "generation",        "creationTimestamp",
    "selfLink", "managedFields",   "deletionTimestamp", "deletionGracePeriodSeconds"};
constexpr std::string_view kLastApplied = "kubectl.kubernetes.io/last-applied-configuration";
constexpr std::string_view kTheirManager = "kubeflow.org/training-operator";

template <typename Names>
bool In(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string TextOf(const Node& node, std::string_view key) {
  const Node* found = node.Find(key);
  return found != nullptr && found->IsScalar() ? found->scalar : std::string();
}

class Converter {
 public:
  Converter(const TfJobOptions& options, std::string_view file)
      : options_(options), problems_(file) {}

  Result<ConvertedJob> Convert(const Node& tfjob) {
    Node job = Node::Map();
    job.Put("apiVersion", Node::Word(cluster::kApiVersion));
    job.Put("kind", Node::Word(cluster::kKind));
    for (const Node::Member& m : tfjob.members) {
      if (m.key == "metadata") {
        if (IsA(Node::Kind::kMap, m, "metadata")) job.Put("metadata", Metadata(m.value));
      } else if (m.key == "spec") {
        job.Put("spec", Spec(m.value));
      } else if (m.key == "status") {
        Tell(m, "status", "is the operator's to write");
      } else if (m.key != "apiVersion" && m.key != "kind") {
        LeaveOut(m, m.key, "is no field of TFJob");
      }
    }
    MT_RETURN_IF_ERROR(problems_.ToStatus());
    out_.job = std::move(job);
    return std::move(out_);
  }

 private:
  void Tell(const Node::Member& m, const std::string& path, std::string says) {
    out_.notes.push_back({.place = m.place, .path = path, .says = std::move(says)});
  }
  void LeaveOut(const Node::Member& m, const std::string& path, const std::string& why) {
    out_.notes.push_back(
        {.place = m.place, .path = path, .says = why + ": left out", .left_out = true});
  }

  // Whether there is a value, and it is of the kind; another is a mistake, null is none.
  bool IsA(Node::Kind kind, const Node::Member& m, const std::string& path) {
    if (m.value.IsNull() || m.value.kind == kind) return m.value.kind == kind;
    const char* wanted = kind == Node::Kind::kMap ? "a map" : "a text or a number";
    problems_.Add(m.value.place, path,
                  std::string("expected ") + wanted + ", got: " + m.value.Describe());
    return false;
  }
  // As above, of a scalar that is not empty, which Go writes in place of none.
  bool IsScalar(const Node::Member& m, const std::string& path) {
    return IsA(Node::Kind::kScalar, m, path) && !m.value.scalar.empty();
  }
  // As kubectl reads it; nothing for null and for a mistake.
  std::optional<bool> Flag(const Node::Member& m, const std::string& path) {
    const auto flag = manifest::AsKubectlBool(m.value);
    if (!flag && !m.value.IsNull()) {
      problems_.Add(m.value.place, path, "expected true or false, got: " + m.value.Describe());
    }
    return flag;
  }

  Node Metadata(const Node& metadata) {
    Node out = Node::Map();
    for (const Node::Member& m : metadata.members) {
      const std::string path = "metadata." + m.key;
      if (m.key == "name" || m.key == "generateName" || m.key == "namespace" || m.key == "labels") {
        out.Put(m.key, m.value);
      } else if (m.key == "annotations") {
        if (!IsA(Node::Kind::kMap, m, path)) continue;
        Node kept = Node::Map();
        for (const Node::Member& annotation : m.value.members) {
          if (annotation.key != kLastApplied) kept.Put(annotation.key, annotation.value);
        }
        if (!kept.members.empty()) out.Put(m.key, std::move(kept));
      } else if (In(kOfTheServer, m.key)) {
        if (!m.value.IsNull()) Tell(m, path, "is the API server's to write");
      } else {
        LeaveOut(m, path, "belongs to the TFJob itself");
      }
    }
    return out;
  }

  Node Spec(const Node& spec) {
    Node out = Node::Map();
    Node policy = Node::Map();
    const Node::Member* dynamic = nullptr;
    for (const Node::Member& m : spec.members) {
      const std::string path = "spec." + m.key;
      if (m.key == "tfReplicaSpecs") {
        out.Put("replicaSpecs", Replicas(m.value));
      } else if (m.key == "runPolicy") {
        if (!IsA(Node::Kind::kMap, m, path)) continue;
        for (const Node::Member& p : m.value.members) Policy(p, path + "." + p.key, &policy);
      } else if (In(kRunPolicy, m.key) || m.key == "schedulingPolicy") {
        Tell(m, path, "stands in spec.runPolicy");
        Policy(m, path, &policy);
      } else if (m.key == "successPolicy") {
        if (IsScalar(m, path)) out.Put("successPolicy", m.value);
      } else if (m.key == "enableDynamicWorker") {
        if (Flag(m, path) == true) dynamic = &m;
      } else {
        LeaveOut(m, path, "is no field of TFJob");
      }
    }
    if (!policy.members.empty()) out.Put("runPolicy", std::move(policy));
    // Known only when the replicas were read, wherever they stand.
    if (dynamic != nullptr) {
      const std::string least = workers_ < 1 ? "0" : "1";
      const std::string most = std::to_string(std::max<int64_t>(1, workers_));
      Node elastic = Node::Map();
      elastic.Put("minReplicas", Node::Word(least));
      elastic.Put("maxReplicas", Node::Word(most));
      out.Put("elastic", std::move(elastic));
      Tell(*dynamic, "spec.enableDynamicWorker",
           "becomes spec.elastic, which has bounds: " + least + " to " + most +
               ", the number of workers; raise maxReplicas to scale beyond it");
    }
    if (options_.keep_host_names) {
      Node compat = Node::Map();
      compat.Put("compat", Node::Word("kubeflow-v1"));
      out.Put("tfConfig", std::move(compat));
    }
    return out;
  }

  void Policy(const Node::Member& m, const std::string& path, Node* out) {
    if (m.value.IsNull()) return;
    if (m.key == "cleanPodPolicy") {
      if (IsScalar(m, path)) out->Put(m.key, m.value);
    } else if (m.key == "suspend") {
      const auto flag = Flag(m, path);
      if (flag) out->Put(m.key, Node::Word(*flag ? "true" : "false"));
    } else if (m.key == "managedBy") {
      if (!IsScalar(m, path)) return;
      if (m.value.scalar == cluster::kManagedByMultiKueue) {
        out->Put(m.key, m.value);
      } else if (m.value.scalar == kTheirManager) {
        Tell(m, path, "named Kubeflow's operator: absent, it is this one");
      } else {
        LeaveOut(m, path, "names a controller that is not known here");
      }
    } else if (m.key == "schedulingPolicy") {
      if (!IsA(Node::Kind::kMap, m, path)) return;
      Node kept = Node::Map();
      for (const Node::Member& s : m.value.members) {
        if (In(kSchedulingPolicy, s.key)) {
          if (!s.value.IsNull()) kept.Put(s.key, s.value);
        } else {
          LeaveOut(s, path + "." + s.key, "is no field of a schedulingPolicy");
        }
      }
      if (!kept.members.empty()) {
        out->Put(m.key, std::move(kept));
        Tell(m, path, "acts where the operator runs with --gang-scheduler");
      }
    } else if (In(kRunPolicy, m.key)) {
      out->Put(m.key, m.value);
      if (m.key == "backoffLimit") {
        Tell(m, path, "counts every restart, as a batch/v1 Job does; TFJob counted fewer");
      }
    } else {
      LeaveOut(m, path, "is no field of a runPolicy");
    }
  }

  Node Replicas(const Node& roles) {
    Node out = Node::Map();
    for (const Node::Member& m : roles.members) {
      const std::string path = "spec.tfReplicaSpecs." + m.key;
      const std::string lower = ToLower(m.key);
      const auto role =
          lower == "eval" ? std::optional(Role::kEvaluator) : cluster::ParseRole(m.key);
      if (!role) {
        LeaveOut(m, path, "is no role of TFJob");
        continue;
      }
      const std::string name(cluster::RoleName(*role));
      if (out.Find(name) != nullptr) {
        LeaveOut(m, path, "is a second spelling of the role " + name);
        continue;
      }
      if (!m.value.IsNull() && !IsA(Node::Kind::kMap, m, path)) continue;
      if (*role == Role::kWorker) workers_ = Count(m.value);
      out.Put(name, Replica(m.value, path));
    }
    return out;
  }

  static int64_t Count(const Node& replica) {
    const Node* count = replica.Find("replicas");
    if (count == nullptr || !count->IsScalar()) return 1;
    const auto read = manifest::AsKubectl(*count);
    const int64_t* whole = read.ok() ? std::get_if<int64_t>(&*read) : nullptr;
    return whole == nullptr ? 1 : *whole;
  }

  Node Replica(const Node& replica, const std::string& path) {
    Node out = Node::Map();
    for (const Node::Member& m : replica.members) {
      if (m.value.IsNull()) continue;
      if (m.key == "replicas" || m.key == "restartPolicy") {
        if (IsScalar(m, path + "." + m.key)) out.Put(m.key, m.value);
      } else if (m.key == "template") {
        if (IsA(Node::Kind::kMap, m, path + ".template")) out.Put(m.key, Template(m.value));
      } else {
        LeaveOut(m, path + "." + m.key, "is no field of a replica spec");
      }
    }
    return out;
  }

  // As it is, but for the null that Go writes in place of a time.
  static Node Template(const Node& given) {
    Node out = Node::Map();
    for (const Node::Member& m : given.members) {
      if (m.key != "metadata" || !m.value.IsMap()) {
        out.Put(m.key, m.value);
        continue;
      }
      Node metadata = Node::Map();
      for (const Node::Member& part : m.value.members) {
        if (!part.value.IsNull()) metadata.Put(part.key, part.value);
      }
      if (!metadata.members.empty()) out.Put(m.key, std::move(metadata));
    }
    return out;
  }

  const TfJobOptions options_;
  manifest::Problems problems_;
  ConvertedJob out_;
  int64_t workers_ = 0;
};

}  // namespace

bool IsTfJob(const Node& document) { return TextOf(document, "kind") == "TFJob"; }

Result<ConvertedJob> FromTfJob(const Node& tfjob, const TfJobOptions& options,
                               std::string_view file) {
  const auto refuse = [&](const Node* node, const char* path, const std::string& what) {
    return InvalidArgument(manifest::At(file, node == nullptr ? tfjob.place : node->place, path) +
                           what + ", got: " + (node == nullptr ? "nothing" : node->Describe()));
  };
  if (!IsTfJob(tfjob)) return refuse(tfjob.Find("kind"), "kind", "expected TFJob");
  if (!TextOf(tfjob, "apiVersion").starts_with("kubeflow.org/v1")) {
    return refuse(tfjob.Find("apiVersion"), "apiVersion", "expected kubeflow.org/v1");
  }
  const Node* spec = tfjob.Find("spec");
  const Node* roles = spec == nullptr ? nullptr : spec->Find("tfReplicaSpecs");
  if (roles == nullptr || !roles->IsMap()) {
    return refuse(roles, "spec.tfReplicaSpecs", "expected a map of roles");
  }
  return Converter(options, file).Convert(tfjob);
}

}  // namespace meshtrain::cli
