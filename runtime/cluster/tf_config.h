// TF_CONFIG text <-> ClusterSpec and TaskId. Pure.
//
//   {"cluster":{"chief":["mnist-chief-0.mnist.ml.svc:2222"],"worker":["…"]},
//    "task":{"type":"worker","index":0},"environment":"cloud"}
//
// compact, keys of `cluster` sorted, as tf.distribute's TFConfigClusterResolver reads it (and as
// Kubeflow's TFJob wrote it). What TensorFlow 2.21 taught us stands with FormFor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::cluster {

// Who listens where: "host:port" by role and index. Dense where the indices of a role are 0..n-1.
struct ClusterSpec {
  std::map<Role, std::map<int32_t, std::string>> hosts;

  int64_t size() const;  // processes of all roles
  int64_t count(Role role) const;
  bool dense(Role role) const;  // also true of an absent role
  // Empty where there is no such task.
  std::string host(TaskId task) const;
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

struct TfConfig {
  ClusterSpec cluster;
  TaskId task;
  friend bool operator==(const TfConfig&, const TfConfig&) = default;
};

// The numeric address at which a process listens for its peers, tensors' links too; "": all of its
// host. Peers that know it by an address of the loopback, as those of `meshtrain run`, are on its
// own host, so nobody else need reach it: "127.0.0.1:10007" -> "127.0.0.1", "[::1]:10007" -> "::1",
// "localhost:10007" -> "127.0.0.1", "mnist-chief-0.mnist.ml.svc:2222" -> "".
std::string ListenAddress(const TfConfig& config);
// The port at which a process listens, whose task must be in its cluster. Errors: kInvalidArgument
// of kManifest.
Result<int> ListenPort(const TfConfig& config);

// Reads the text. Accepts: roles in any case, "master" for chief; lists (dense) or objects by index
// (sparse); the task's index as a number or as a string of digits ("index":"1" is widespread); no
// task at all where the cluster holds one process. Errors: kInvalidArgument with the field's path:
// "TF_CONFIG: task.index: must be below 2 …, got: 5".
Result<TfConfig> ParseTfConfig(std::string_view text);
// Reads {"cluster":…} (kEnvClusterFile), or the same with a task in it, which is ignored. `where`
// opens messages.
Result<ClusterSpec> ParseClusterFile(std::string_view text);

enum class Form : uint8_t {
  kDense,   // every role but the evaluator as lists; the evaluator too in its own
  kSparse,  // a worker: itself by index and all ps; a ps: all ps and no workers; the chief: dense
};

// What one replica is to see of the whole cluster. An evaluator is listed in its own only
// (ParameterServerStrategy waits for it elsewhere). kSparse keeps a worker's text unchanged while
// others come and go; TensorFlow takes it only beside parameter servers, so the caller must ask for
// it only then.
ClusterSpec ViewFor(const ClusterSpec& all, TaskId task, Form form);

// {"chief":["…"],"worker":["…"]}: the cluster's value alone, roles sorted by name; a role with a
// gap as {"1":"…"}.
std::string ClusterText(const ClusterSpec& cluster);
// {"cluster":CLUSTER,"task":{"type":"worker","index":1},"environment":"cloud"} around a
// ClusterText.
std::string TfConfigText(std::string_view cluster_text, TaskId task);
// The same from values; ParseTfConfig(FormatTfConfig(x)) == x for x with hosts.
std::string FormatTfConfig(const TfConfig& config);
// TFJob's sparse text (enableDynamicWorker): worker before ps, both always there, no environment.
// For kubeflow-v1.
std::string FormatSparseKubeflow(const ClusterSpec& view, TaskId task);

// The host of HOST:PORT; an IPv6 address without its brackets. {"[::1]:80"} gives "::1".
std::string_view HostOf(std::string_view address);

// How a job's hosts are called.
struct HostNames {
  std::string job;
  std::string namespace_name;
  std::string domain;                // "cluster.local"; empty: names end in ".svc"
  bool service_per_replica = false;  // kubeflow-v1: JOB-ROLE-INDEX.NAMESPACE.svc
};
// "mnist-worker-3.mnist.ml.svc.cluster.local:2222"
std::string HostPort(const HostNames& names, TaskId task, int32_t port);

}  // namespace meshtrain::cluster
