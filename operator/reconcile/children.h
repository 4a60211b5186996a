// The objects that a job wants, as JSON bodies ready to POST: the headless Service, pods with their
// TF_CONFIG, and what large or declared jobs need beside them. Pure functions of the job and the
// operator's settings.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "operator/reconcile/reconcile.h"
#include "runtime/base/status.h"
#include "runtime/cluster/tf_config.h"

namespace meshtrain::reconcile {

// Labels that every child of the job carries; the informer's selector is
// kLabelManagedBy=kManagedByValue.
std::map<std::string, std::string> SelectorLabels(const api::TrainingJob& job);
// "meshtrain.dev/job-name=mnist", for status.labelSelector.
std::string LabelSelector(const api::TrainingJob& job);

// Host and port of every replica; evaluators included.
cluster::ClusterSpec JobCluster(const api::TrainingJob& job, const Settings& settings);
// The text for one replica, empty where it gets none (a lone process, a text past the size limit,
// the user's own).
std::string TfConfigFor(const api::TrainingJob& job, cluster::TaskId task,
                        const Settings& settings);
// Which cluster the job's processes are told, as a short text for kAnnotationCluster: equal where
// they are told the same. Elastic workers beside parameter servers come and go without telling the
// others, so they are not part of it.
std::string ClusterStamp(const api::TrainingJob& job, const Settings& settings);
// The schedulerName of pods under gang scheduling.
std::string GangSchedulerName(const Settings& settings);
// Elastic workers beside parameter servers: they get the sparse form, which TensorFlow refuses
// elsewhere, and come and go without a restart of the others.
bool ElasticBesideServers(const api::TrainingJob& job);
// Whether some replica needs the cluster as a file.
bool NeedsClusterFile(const api::TrainingJob& job, const Settings& settings);

// What kEnvOutput says to a replica: "/work/output/mnist" to the leader,
// "/work/output/mnist/worker-1" to another; empty where the job has no spec.output.
std::string OutputFolder(const api::TrainingJob& job, cluster::TaskId task);
// The folder of checkpoints that all replicas are told: the manifest's, else the output's where
// several need to see it; empty: the leader's output folder has a place.
std::string CheckpointPath(const api::TrainingJob& job);

namespace internal {
struct Devices;
}

// Makes bodies of pods; keeps the cluster's text, so that 2,000 pods do not format it 2,000 times.
// Borrows `job`.
class PodRenderer {
 public:
  PodRenderer(const api::TrainingJob& job, const Settings& settings,
              const Placements& placements = {});
  ~PodRenderer();
  PodRenderer(const PodRenderer&) = delete;
  PodRenderer& operator=(const PodRenderer&) = delete;
  // The pod as compact JSON.
  std::string Body(const CreatePod& pod) const;

 private:
  const api::TrainingJob& job_;
  Settings settings_;
  Placements placements_;
  cluster::ClusterSpec cluster_;
  std::string cluster_text_;  // of pods that see everything but the evaluator
  std::string cluster_stamp_;
  std::string cluster_map_name_;  // empty: no file
  std::unique_ptr<const internal::Devices> devices_;
};

// PodRenderer(job, settings).Body(pod).
std::string PodBody(const api::TrainingJob& job, const Settings& settings, const CreatePod& pod,
                    const Placements& placements = {});

std::vector<CreateService> WantedServices(const api::TrainingJob& job);
// Whether the job's processes speak mutual TLS once there are several: it has a program, and its
// manifest says so, or says nothing and the job began under an operator that seals
// (JobStatus::security).
bool SealedIfSeveral(const api::TrainingJob& job, const Settings& settings);
// Whether they do: there are several now.
bool Sealed(const api::TrainingJob& job, const Settings& settings);
// The certificates of such a job.
CreateSecret TlsSecret(const api::TrainingJob& job, const Settings& settings, bool probe = false);
CreateSecret TokenSecret(const api::TrainingJob& job, bool probe = false);
CreateClaim CheckpointClaim(const api::TrainingJob& job);
CreateConfigMap ClusterMap(const api::TrainingJob& job, const Settings& settings,
                           bool probe = false);
// Keeps a job's ports for its own processes, but for meshtrain-http, which Settings::http_peers may
// reach too.
// Its name, "mnist-network-811c9dc5", ends in the hash of the job's uid, as those of what pods
// mount.
CreateNetworkPolicy JobNetworkPolicy(const api::TrainingJob& job, const Settings& settings);
// Whether a text may be Settings::http_peers: each peer names its namespaces, or addresses, since
// one without would be another in each job's namespace. Errors: kInvalidArgument.
Status CheckHttpPeers(const std::string& peers);
// {"metadata":{"uid":…,"ownerReferences":[…]}}: the strategic merge patches of AdoptPod and
// ReleasePod, which leave other owners in place.
std::string AdoptBody(const api::TrainingJob& job, const AdoptPod& pod);
std::string ReleaseBody(const api::TrainingJob& job, const ReleasePod& pod);

}  // namespace meshtrain::reconcile
