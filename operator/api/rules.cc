// Long: one table, read from top to bottom, that the CRD and validation share.
#include "operator/api/rules.h"

#include <algorithm>
#include <array>

#include "runtime/cluster/tf_config.h"

namespace meshtrain::api {
namespace {

using cluster::kMaxNameLength;

// CEL knows no helper functions, so the words for "replicas of a role in any spelling" are spelled
// out.
#define MT_KEYS(role_list) "self.replicaSpecs.filter(k, k.lowerAscii() in " role_list ")"
#define MT_AT_MOST_ONE(role_list) MT_KEYS(role_list) ".all(k, self.replicaSpecs[k].replicas <= 1)"

bool Dns1035(const std::string& name) {
  if (name.empty() || name.front() < 'a' || name.front() > 'z' || name.back() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

std::string LongestChild(const TrainingJob& job) {
  std::string longest = job.metadata.name;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    int32_t most = replica.replicas;
    if (role == Role::kWorker && job.spec.elastic) {
      most = std::max(most, job.spec.elastic->max_replicas);
    }
    if (most < 1) continue;
    const std::string name = cluster::PodName(job.metadata.name, {role, most - 1});
    if (name.size() > longest.size()) longest = name;
  }
  return longest;
}

std::string Count(const TrainingJob& job, Role role) {
  return std::to_string(Replicas(job.spec, role));
}
bool Has(const TrainingJob& job, Role role) { return job.spec.replica_specs.contains(role); }
bool MeshStrategy(const Spec& spec) {
  return spec.strategy.empty() || spec.strategy == kStrategyMesh;
}
std::string Strategy(const TrainingJob& job) {
  return job.spec.strategy.empty() ? std::string("none") : job.spec.strategy;
}
std::string Workers(const TrainingJob& job) { return Count(job, Role::kWorker); }
const SchedulingPolicy* Gang(const Spec& spec) {
  return spec.run_policy.scheduling_policy ? &*spec.run_policy.scheduling_policy : nullptr;
}
std::string Queue(const Spec& spec) {
  return Gang(spec) != nullptr ? Gang(spec)->queue : std::string();
}
// Before the change or after it: Kueue takes its node selectors out in the write that suspends.
bool StandsStill(const TrainingJob& job, const TrainingJob& old) {
  return job.spec.run_policy.suspend || old.spec.run_policy.suspend;
}

// The same as CEL, to stand before what holds otherwise.
#define MT_STANDS_STILL                                                                    \
  "(has(self.runPolicy.suspend) && self.runPolicy.suspend) || (has(oldSelf.runPolicy) && " \
  "has(oldSelf.runPolicy.suspend) && oldSelf.runPolicy.suspend) || "

// Job-sized texts stop at what a ConfigMap can carry (1 MiB), with room for its own fields.
constexpr size_t kMaxClusterBytes = 1'000'000;

size_t ClusterBytes(const TrainingJob& job) {
  const cluster::HostNames names{
      .job = job.metadata.name,
      .namespace_name = job.metadata.namespace_name,
      .domain = std::string(32, 'd'),
      .service_per_replica = job.spec.tf_config_compat == kCompatKubeflowV1};
  size_t bytes = 0;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    if (replica.replicas < 1) continue;
    const size_t one =
        cluster::HostPort(names, {role, replica.replicas - 1}, replica.pod_template.port).size() +
        3;
    bytes += one * static_cast<size_t>(replica.replicas);
  }
  return bytes;
}

// Kubernetes' own rule for mount paths forbids ':', and its rule for subPaths "..".
bool CleanPath(const std::string& path) {
  if (path.empty() || path == "/" || path.find(':') != std::string::npos) return false;
  std::string_view rest = path;
  if (rest.front() == '/') rest.remove_prefix(1);
  while (true) {
    const size_t slash = rest.find('/');
    const std::string_view step = rest.substr(0, slash);
    if (step.empty() || step == "." || step == "..") return false;
    if (slash == std::string_view::npos) return true;
    rest.remove_prefix(slash + 1);
  }
}
bool Below(const std::string& path) { return path.empty() || (path[0] != '/' && CleanPath(path)); }
const Claim* FirstClaim(const Spec& spec, bool (*is)(const Spec&, const Claim&)) {
  for (const Claim& claim : spec.claims) {
    if (is(spec, claim)) return &claim;
  }
  return nullptr;
}
bool OddPath(const Spec&, const Claim& claim) { return !CleanPath(claim.path); }
bool OddSubPath(const Spec&, const Claim& claim) { return !Below(claim.sub_path); }
bool TakenPath(const Spec&, const Claim& claim) {
  constexpr std::string_view kTaken[] = {"output", "/tmp", "/work", "/work/output"};
  return std::find(std::begin(kTaken), std::end(kTaken), claim.path) != std::end(kTaken) ||
         claim.path.starts_with("/etc/meshtrain");
}
bool SamePath(const Spec& spec, const Claim& claim) {
  return std::count_if(spec.claims.begin(), spec.claims.end(),
                       [&](const Claim& other) { return other.path == claim.path; }) > 1;
}
#define MT_CLEAN_PATH "^/?([^/:]+/)*[^/:]+$"
#define MT_DOT_STEP "(^|/)[.][.]?(/|$)"

constexpr std::array<Role, 3> kRolesButWorker = {Role::kChief, Role::kPs, Role::kEvaluator};

constexpr Rule kRules[] = {
    {.at = "",
     .cel = "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
     .message = "must be a DNS label: lower case letters, digits and '-', beginning with a letter",
     .field = "metadata.name",
     .holds = [](const TrainingJob& job, const TrainingJob*) { return Dns1035(job.metadata.name); },
     .got =
         [](const TrainingJob& job) {
           return job.metadata.name.empty() ? std::string("nothing") : job.metadata.name;
         }},
    {.at = "",
     .cel = "size(self.metadata.name) <= 63 && self.spec.replicaSpecs.all(k, "
            "self.spec.replicaSpecs[k].replicas < 1 || "
            "size(self.metadata.name) + 2 + (k.lowerAscii() == 'master' ? 5 : size(k)) + "
            "size(string((has(self.spec.elastic) && k.lowerAscii() == 'worker' && "
            "self.spec.elastic.maxReplicas > self.spec.replicaSpecs[k].replicas ? "
            "self.spec.elastic.maxReplicas : "
            "self.spec.replicaSpecs[k].replicas) - 1)) <= 63)",
     .message = "must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 characters",
     .field = "metadata.name",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return LongestChild(job).size() <= kMaxNameLength; },
     .got =
         [](const TrainingJob& job) {
           const std::string name = LongestChild(job);
           return name + " (" + std::to_string(name.size()) + ")";
         }},
    {.at = "spec.replicaSpecs",
     .cel = "self.all(k, k.lowerAscii() in ['chief', 'master', 'worker', 'ps', 'evaluator'])",
     .message = "must have roles for keys: chief, worker, ps, evaluator",
     .field = "",
     .holds = nullptr,  // FromJson names the key
     .got = nullptr},
    {.at = "spec.replicaSpecs",
     .cel = "size(self.filter(k, k.lowerAscii() in ['chief', 'master'])) <= 1 && "
            "size(self.filter(k, k.lowerAscii() == 'worker')) <= 1 && "
            "size(self.filter(k, k.lowerAscii() == 'ps')) <= 1 && "
            "size(self.filter(k, k.lowerAscii() == 'evaluator')) <= 1",
     .message = "must name each role once (Master is another word for chief)",
     .field = "",
     .holds = nullptr,  // FromJson names the key
     .got = nullptr},
    {.at = "spec",
     .cel = MT_AT_MOST_ONE("['chief', 'master']"),
     .message = "must be at most 1",
     .field = "replicaSpecs.chief.replicas",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return Replicas(job.spec, Role::kChief) <= 1; },
     .got = [](const TrainingJob& job) { return Count(job, Role::kChief); }},
    {.at = "spec",
     .cel = MT_AT_MOST_ONE("['evaluator']"),
     .message = "must be at most 1",
     .field = "replicaSpecs.evaluator.replicas",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return Replicas(job.spec, Role::kEvaluator) <= 1; },
     .got = [](const TrainingJob& job) { return Count(job, Role::kEvaluator); }},
    {.at = "spec",
     .cel = "self.replicaSpecs.exists(k, k.lowerAscii() in ['chief', 'master', 'worker'] && "
            "self.replicaSpecs[k].replicas > 0)",
     .message = "must have a chief or at least one worker: the job ends when it does",
     .field = "replicaSpecs",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return Replicas(job.spec, Role::kChief) > 0 || Replicas(job.spec, Role::kWorker) > 0;
         },
     .got = nullptr},
    {.at = "spec",
     .cel = "has(self.program) || self.replicaSpecs.all(k, has(self.replicaSpecs[k].template) && "
            "has(self.replicaSpecs[k].template.spec) && "
            "has(self.replicaSpecs[k].template.spec.containers) && "
            "size(self.replicaSpecs[k].template.spec.containers) > 0)",
     .message = "must each have a template with at least one container where there is no program",
     .field = "replicaSpecs",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.program.empty() ||
                  std::all_of(
                      job.spec.replica_specs.begin(), job.spec.replica_specs.end(),
                      [](const auto& entry) { return entry.second.pod_template.containers > 0; });
         },
     .got = nullptr},
    {.at = "spec",
     .cel = "!self.replicaSpecs.exists(k, k.lowerAscii() == 'ps' && self.replicaSpecs[k].replicas "
            "> 0) || "
            "(!has(self.strategy) && !has(self.program)) || (has(self.strategy) && self.strategy "
            "== 'ParameterServer')",
     .message = "must be ParameterServer where there are ps replicas",
     .field = "strategy",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           if (Replicas(job.spec, Role::kPs) == 0) return true;
           if (job.spec.strategy.empty()) return job.spec.program.empty();
           return job.spec.strategy == kStrategyParameterServer;
         },
     .got = Strategy},
    {.at = "spec",
     .cel =
         "!has(self.strategy) || self.strategy != 'ParameterServer' || "
         "self.replicaSpecs.exists(k, k.lowerAscii() == 'ps' && self.replicaSpecs[k].replicas > 0)",
     .message = "must be at least 1 with the strategy ParameterServer",
     .field = "replicaSpecs.ps.replicas",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return job.spec.strategy != kStrategyParameterServer ||
                  Replicas(job.spec, Role::kPs) > 0;
         },
     .got = [](const TrainingJob& job) { return Count(job, Role::kPs); }},
    {.at = "spec",
     .cel = "!has(self.program) || !has(self.strategy) || self.strategy != 'ParameterServer' || "
            "self.replicaSpecs.exists(k, k.lowerAscii() == 'worker' && "
            "self.replicaSpecs[k].replicas > 0)",
     .message = "must be at least 1 for a program with the strategy ParameterServer, whose workers "
                "compute the steps (runPolicy.suspend stops a job for a while)",
     .field = "replicaSpecs.worker.replicas",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return job.spec.program.empty() || job.spec.strategy != kStrategyParameterServer ||
                  Replicas(job.spec, Role::kWorker) > 0;
         },
     .got = Workers},
    {.at = "spec",
     .cel = "!has(self.program) || !has(self.program.mesh) || !has(self.strategy) || self.strategy "
            "== 'Mesh'",
     .message = "must be Mesh, or absent, with program.mesh: the other strategies take no mesh",
     .field = "strategy",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.program_has_mesh || MeshStrategy(job.spec);
         },
     .got = Strategy},
    {.at = "spec",
     .cel = "!has(self.strategy) || self.strategy != 'Mesh' || !has(self.program) || "
            "has(self.program.mesh)",
     .message = "must be there with the strategy Mesh",
     .field = "program.mesh",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return job.spec.strategy != kStrategyMesh || job.spec.program.empty() ||
                  job.spec.program_has_mesh;
         },
     .got = [](const TrainingJob&) { return std::string("nothing"); }},
    {.at = "spec",
     .cel = "!has(self.elastic) || self.elastic.minReplicas <= self.elastic.maxReplicas",
     .message = "must be at least minReplicas",
     .field = "elastic.maxReplicas",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.elastic ||
                  job.spec.elastic->min_replicas <= job.spec.elastic->max_replicas;
         },
     .got =
         [](const TrainingJob& job) {
           return std::to_string(job.spec.elastic->max_replicas) + " < " +
                  std::to_string(job.spec.elastic->min_replicas);
         }},
    {.at = "spec",
     .cel = "!has(self.elastic) || self.replicaSpecs.exists(k, k.lowerAscii() == 'worker' && "
            "self.replicaSpecs[k].replicas >= self.elastic.minReplicas && "
            "self.replicaSpecs[k].replicas <= self.elastic.maxReplicas)",
     .message = "must lie between elastic.minReplicas and elastic.maxReplicas",
     .field = "replicaSpecs.worker.replicas",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           if (!job.spec.elastic) return true;
           const int32_t workers = Replicas(job.spec, Role::kWorker);
           return Has(job, Role::kWorker) && workers >= job.spec.elastic->min_replicas &&
                  workers <= job.spec.elastic->max_replicas;
         },
     .got = Workers},
    {.at = "spec",
     .cel = "!has(self.waitForEvaluator) || !self.waitForEvaluator || "
            "self.replicaSpecs.exists(k, k.lowerAscii() == 'evaluator' && "
            "self.replicaSpecs[k].replicas > 0)",
     .message = "must be false without an evaluator",
     .field = "waitForEvaluator",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.wait_for_evaluator || Replicas(job.spec, Role::kEvaluator) > 0;
         },
     .got = [](const TrainingJob&) { return std::string("true"); }},
    {.at = "spec",
     .cel = "!has(self.failurePolicy) || self.failurePolicy.rules.all(rule, !has(rule.roles) || "
            "rule.roles.all(role, role.lowerAscii() in "
            "['chief', 'master', 'worker', 'ps', 'evaluator']))",
     .message = "must be chief, worker, ps or evaluator",
     .field = "failurePolicy.rules",
     .holds = nullptr,  // FromJson names the rule
     .got = nullptr},
    {.at = "spec",
     .cel = "!has(self.claims) || self.claims.all(c, c.path.matches('" MT_CLEAN_PATH
            "') && !c.path.matches('" MT_DOT_STEP "'))",
     .message = "must have paths without '.', '..', ':' and empty parts",
     .field = "claims",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return FirstClaim(job.spec, OddPath) == nullptr; },
     .got = [](const TrainingJob& job) { return FirstClaim(job.spec, OddPath)->path; }},
    {.at = "spec",
     .cel = "!has(self.claims) || self.claims.all(c, !has(c.subPath) || c.subPath == '' || "
            "(c.subPath.matches('" MT_CLEAN_PATH "') && !c.subPath.startsWith('/') && "
            "!c.subPath.matches('" MT_DOT_STEP "')))",
     .message = "must have subPaths below the volume, without '.', '..', ':' and empty parts",
     .field = "claims",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return FirstClaim(job.spec, OddSubPath) == nullptr; },
     .got = [](const TrainingJob& job) { return FirstClaim(job.spec, OddSubPath)->sub_path; }},
    {.at = "spec",
     .cel = "!has(self.claims) || self.claims.all(c, !(c.path in ['output', '/tmp', '/work', "
            "'/work/output']) && !c.path.startsWith('/etc/meshtrain'))",
     .message = "must leave output, /tmp, /work and /etc/meshtrain to the job",
     .field = "claims",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return FirstClaim(job.spec, TakenPath) == nullptr; },
     .got = [](const TrainingJob& job) { return FirstClaim(job.spec, TakenPath)->path; }},
    {.at = "spec",
     .cel = "!has(self.claims) || self.claims.all(c, self.claims.exists_one(d, d.path == c.path))",
     .message = "must each have a path of its own",
     .field = "claims",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return FirstClaim(job.spec, SamePath) == nullptr; },
     .got = [](const TrainingJob& job) { return FirstClaim(job.spec, SamePath)->path; }},
    {.at = "spec",
     .cel = "!has(self.output) || !has(self.output.folder) || self.output.folder == '' || "
            "(self.output.folder.matches('" MT_CLEAN_PATH
            "') && !self.output.folder.startsWith('/') && "
            "!self.output.folder.matches('" MT_DOT_STEP "'))",
     .message = "must be a folder below the volume, without '.', '..', ':' and empty parts",
     .field = "output.folder",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return !job.spec.output || Below(job.spec.output->folder); },
     .got = [](const TrainingJob& job) { return job.spec.output->folder; }},
    {.at = "spec",
     .cel = "!has(self.checkpoint) || !has(self.checkpoint.volumeClaimTemplate) || "
            "has(self.checkpoint.path)",
     .message = "must be there with volumeClaimTemplate, whose volume is mounted at it",
     .field = "checkpoint.path",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.checkpoint || job.spec.checkpoint->volume_claim_template.empty() ||
                  !job.spec.checkpoint->path.empty();
         },
     .got = nullptr},
    {.at = "spec.runPolicy",
     .cel = "!has(self.managedBy) || self.managedBy in ['', 'meshtrain.dev/operator', "
            "'kueue.x-k8s.io/multikueue']",
     .message = "must be meshtrain.dev/operator or kueue.x-k8s.io/multikueue: no other controller "
                "is known, so nobody would run the job",
     .field = "managedBy",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           const std::string& manager = job.spec.run_policy.managed_by;
           return manager.empty() || manager == cluster::kManagedBy ||
                  manager == cluster::kManagedByMultiKueue;
         },
     .got = [](const TrainingJob& job) { return job.spec.run_policy.managed_by; }},
    {.at = "spec.runPolicy",
     .cel = "!has(self.backoffWindowSeconds) || has(self.backoffLimit)",
     .message = "must be there with backoffWindowSeconds",
     .field = "backoffLimit",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.run_policy.backoff_window_seconds || job.spec.run_policy.backoff_limit;
         },
     .got = nullptr},
    // The operator remembers the times of the newest 32 restarts (kMaxRecent).
    {.at = "spec.runPolicy",
     .cel = "!has(self.backoffWindowSeconds) || !has(self.backoffLimit) || self.backoffLimit < 32",
     .message = "must be below 32 with backoffWindowSeconds",
     .field = "backoffLimit",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return !job.spec.run_policy.backoff_window_seconds ||
                  job.spec.run_policy.backoff_limit.value_or(0) < 32;
         },
     .got =
         [](const TrainingJob& job) {
           return std::to_string(job.spec.run_policy.backoff_limit.value_or(0));
         }},
    {.at = "spec",
     .cel = "self.replicaSpecs.all(k, !has(self.replicaSpecs[k].restartBudget) || "
            "!has(self.replicaSpecs[k].restartBudget.windowSeconds) || "
            "self.replicaSpecs[k].restartBudget.limit < 32)",
     .message = "must have limits below 32 in restartBudgets with windowSeconds",
     .field = "replicaSpecs",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           return std::all_of(job.spec.replica_specs.begin(), job.spec.replica_specs.end(),
                              [](const auto& entry) {
                                const auto& budget = entry.second.restart_budget;
                                return !budget || !budget->window_seconds || budget->limit < 32;
                              });
         },
     .got = nullptr},
    {.at = "spec",
     .cel = "!has(self.runPolicy.schedulingPolicy) || "
            "!has(self.runPolicy.schedulingPolicy.minAvailable) || "
            "self.runPolicy.schedulingPolicy.minAvailable <= "
            "self.replicaSpecs.map(k, self.replicaSpecs[k].replicas).sum()",
     .message = "must be at most the number of all replicas",
     .field = "runPolicy.schedulingPolicy.minAvailable",
     .holds =
         [](const TrainingJob& job, const TrainingJob*) {
           const SchedulingPolicy* gang = Gang(job.spec);
           return gang == nullptr || gang->min_available.value_or(0) <= TotalReplicas(job.spec);
         },
     .got =
         [](const TrainingJob& job) {
           return std::to_string(Gang(job.spec)->min_available.value_or(0));
         }},
    {.at = "spec",
     .cel = "",  // CEL cannot add up host names within its budget
     .message = "must keep the list of all hosts within 1,000,000 bytes",
     .field = "replicaSpecs",
     .holds = [](const TrainingJob& job,
                 const TrainingJob*) { return ClusterBytes(job) <= kMaxClusterBytes; },
     .got = [](const TrainingJob& job) { return std::to_string(ClusterBytes(job)); }},

    // --- what may not change ---
    {.at = "spec",
     .cel = "(has(self.strategy) ? self.strategy : '') == (has(oldSelf.strategy) ? "
            "oldSelf.strategy : '')",
     .message = "is immutable",
     .field = "strategy",
     .holds = [](const TrainingJob& job,
                 const TrainingJob* old) { return job.spec.strategy == old->spec.strategy; },
     .got = Strategy,
     .on_change = true},
    {.at = "spec.replicaSpecs",
     .cel = "self.all(k, k in oldSelf) && oldSelf.all(k, k in self)",
     .message = "is immutable in its set of roles",
     .field = "",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return std::equal(job.spec.replica_specs.begin(), job.spec.replica_specs.end(),
                             old->spec.replica_specs.begin(), old->spec.replica_specs.end(),
                             [](const auto& a, const auto& b) { return a.first == b.first; });
         },
     .got = nullptr,
     .on_change = true},
    {.at = "spec.replicaSpecs",
     .cel = "self.all(k, k.lowerAscii() == 'worker' || !(k in oldSelf) || self[k].replicas == "
            "oldSelf[k].replicas)",
     .message = "is immutable in the replicas of chief, ps and evaluator",
     .field = "",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return std::all_of(kRolesButWorker.begin(), kRolesButWorker.end(), [&](Role role) {
             return !Has(job, role) || !Has(*old, role) ||
                    Replicas(job.spec, role) == Replicas(old->spec, role);
           });
         },
     .got = nullptr,
     .on_change = true},
    // Every process is told the whole cluster, which must not change under it.
    {.at = "spec",
     .cel = "has(self.elastic) || " MT_STANDS_STILL
            "self.replicaSpecs.all(k, k.lowerAscii() != 'worker' || !(k in oldSelf.replicaSpecs) "
            "|| self.replicaSpecs[k].replicas == oldSelf.replicaSpecs[k].replicas)",
     .message = "cannot be scaled without spec.elastic: set elastic.minReplicas and "
                "elastic.maxReplicas, or suspend the job first",
     .field = "replicaSpecs.worker.replicas",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return job.spec.elastic || StandsStill(job, *old) || !Has(job, Role::kWorker) ||
                  !Has(*old, Role::kWorker) ||
                  Replicas(job.spec, Role::kWorker) == Replicas(old->spec, Role::kWorker);
         },
     .got = Workers,
     .on_change = true},
    // In a schema CEL sees only the declared part of a template or a program; the
    // ValidatingAdmissionPolicy of the chart sees all of it and says these two.
    {.at = "spec",
     .cel = "",
     .message = "is immutable unless the job is suspended",
     .field = "program",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return StandsStill(job, *old) || job.spec.program == old->spec.program;
         },
     .got = nullptr,
     .on_change = true},
    {.at = "spec",
     .cel = "",
     .message = "is immutable in its templates unless the job is suspended",
     .field = "replicaSpecs",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           if (StandsStill(job, *old)) return true;
           for (const auto& [role, replica] : job.spec.replica_specs) {
             const auto before = old->spec.replica_specs.find(role);
             if (before != old->spec.replica_specs.end() &&
                 before->second.pod_template != replica.pod_template) {
               return false;
             }
           }
           return true;
         },
     .got = nullptr,
     .on_change = true},
    {.at = "spec",
     .cel = MT_STANDS_STILL
     "(has(self.claims) ? self.claims : []) == (has(oldSelf.claims) ? oldSelf.claims : [])",
     .message = "is immutable unless the job is suspended",
     .field = "claims",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return StandsStill(job, *old) || job.spec.claims == old->spec.claims;
         },
     .got = nullptr,
     .on_change = true},
    // A running job whose pods are replaced would go on without what sealed its links before.
    {.at = "spec",
     .cel = MT_STANDS_STILL "(has(self.security) ? self.security : '') == (has(oldSelf.security) ? "
                            "oldSelf.security : '')",
     .message = "is immutable unless the job is suspended",
     .field = "security",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return StandsStill(job, *old) || job.spec.security == old->spec.security;
         },
     .got = [](const TrainingJob& job) { return job.spec.security; },
     .on_change = true},
    {.at = "spec",
     .cel = "has(self.output) == has(oldSelf.output) && "
            "(!has(self.output) || self.output == oldSelf.output)",
     .message = "is immutable",
     .field = "output",
     .holds = [](const TrainingJob& job,
                 const TrainingJob* old) { return job.spec.output == old->spec.output; },
     .got = nullptr,
     .on_change = true},
    {.at = "spec.runPolicy",
     .cel = "(has(self.managedBy) ? self.managedBy : '') == (has(oldSelf.managedBy) ? "
            "oldSelf.managedBy : '')",
     .message = "is immutable",
     .field = "managedBy",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return job.spec.run_policy.managed_by == old->spec.run_policy.managed_by;
         },
     .got = [](const TrainingJob& job) { return job.spec.run_policy.managed_by; },
     .on_change = true},
    {.at = "spec.runPolicy",
     .cel = "(has(self.schedulingPolicy) && has(self.schedulingPolicy.queue) ? "
            "self.schedulingPolicy.queue : '') == "
            "(has(oldSelf.schedulingPolicy) && has(oldSelf.schedulingPolicy.queue) ? "
            "oldSelf.schedulingPolicy.queue : "
            "'')",
     .message = "is immutable",
     .field = "schedulingPolicy.queue",
     .holds = [](const TrainingJob& job,
                 const TrainingJob* old) { return Queue(job.spec) == Queue(old->spec); },
     .got = [](const TrainingJob& job) { return Queue(job.spec); },
     .on_change = true},
    {.at = "spec",
     .cel = "(has(self.successPolicy) ? self.successPolicy : '') == "
            "(has(oldSelf.successPolicy) ? oldSelf.successPolicy : '')",
     .message = "is immutable",
     .field = "successPolicy",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return job.spec.success_policy == old->spec.success_policy;
         },
     .got = [](const TrainingJob& job) { return job.spec.success_policy; },
     .on_change = true},
    {.at = "spec",
     .cel =
         "(has(self.tfConfig) && has(self.tfConfig.compat) ? self.tfConfig.compat : '') == "
         "(has(oldSelf.tfConfig) && has(oldSelf.tfConfig.compat) ? oldSelf.tfConfig.compat : '')",
     .message = "is immutable",
     .field = "tfConfig.compat",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return job.spec.tf_config_compat == old->spec.tf_config_compat;
         },
     .got = [](const TrainingJob& job) { return job.spec.tf_config_compat; },
     .on_change = true},
    {.at = "spec",
     .cel = "has(self.checkpoint) == has(oldSelf.checkpoint) && "
            "(!has(self.checkpoint) || (has(self.checkpoint.path) ? self.checkpoint.path : '') == "
            "(has(oldSelf.checkpoint.path) ? oldSelf.checkpoint.path : ''))",
     .message = "is immutable",
     .field = "checkpoint.path",
     .holds =
         [](const TrainingJob& job, const TrainingJob* old) {
           return job.spec.checkpoint.has_value() == old->spec.checkpoint.has_value() &&
                  (!job.spec.checkpoint || job.spec.checkpoint->path == old->spec.checkpoint->path);
         },
     .got =
         [](const TrainingJob& job) {
           return job.spec.checkpoint ? job.spec.checkpoint->path : std::string();
         },
     .on_change = true},
};

std::string FieldPath(const Rule& rule) {
  std::string path(rule.at);
  if (!rule.field.empty()) path += (path.empty() ? "" : ".") + std::string(rule.field);
  return path;
}

FieldError Broken(const Rule& rule, const TrainingJob& job) {
  std::string message(rule.message);
  if (rule.got != nullptr) message += ", got: " + rule.got(job);
  return {FieldPath(rule), message};
}

}  // namespace

std::span<const Rule> Rules() { return kRules; }

std::vector<FieldError> Validate(const TrainingJob& job) {
  std::vector<FieldError> errors = job.problems;
  for (const Rule& rule : kRules) {
    if (rule.holds == nullptr || rule.on_change || rule.holds(job, nullptr)) continue;
    FieldError error = Broken(rule, job);
    // A field that could not be read has been named already; what follows from that would only
    // confuse.
    const bool known = std::any_of(errors.begin(), errors.end(), [&](const FieldError& other) {
      return other.path == error.path || other.path.starts_with(error.path + ".");
    });
    if (!known) errors.push_back(std::move(error));
  }
  return errors;
}

std::vector<FieldError> ValidateUpdate(const TrainingJob& before, const TrainingJob& after) {
  std::vector<FieldError> errors;
  for (const Rule& rule : kRules) {
    if (rule.holds != nullptr && rule.on_change && !rule.holds(after, &before)) {
      errors.push_back(Broken(rule, after));
    }
  }
  return errors;
}

std::vector<FieldError> Warnings(const TrainingJob& job) {
  std::vector<FieldError> warnings;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    const std::string path =
        "spec.replicaSpecs." + std::string(cluster::RoleName(role)) + ".template";
    if (!replica.pod_template.restart_policy.empty()) {
      warnings.push_back(
          {path + ".spec.restartPolicy", "is replaced by the replica spec's restartPolicy, got: " +
                                             replica.pod_template.restart_policy});
    }
    if (replica.pod_template.has_tf_config) {
      warnings.push_back(
          {path + ".spec.containers", "sets TF_CONFIG itself: the operator's is not given to it"});
    }
  }
  for (const std::string& key : job.odd_role_keys) {
    warnings.push_back({"spec.replicaSpecs." + key,
                        "is read as worker, but kubectl scale acts on the key worker only"});
  }
  // The list itself, without roles and task: a little under the exact limit.
  if (ClusterBytes(job) + 200 > cluster::kMaxEnvironmentBytes) {
    warnings.push_back({"spec.replicaSpecs",
                        "is too large for one TF_CONFIG (131,072 bytes): the cluster is mounted as "
                        "a file, named in " +
                            std::string(cluster::kEnvClusterFile) +
                            ", which TensorFlow does not read"});
  }
  return warnings;
}

}  // namespace meshtrain::api
