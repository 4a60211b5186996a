#include <CLI/CLI.hpp>
#include <memory>
#include <ostream>

#include "cli/cluster/connection.h"
#include "cli/cluster/print.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::cli {
namespace {

struct StatusFlags {
  ClusterFlags cluster;
  std::string name, format = "table";
};

std::string Progress(const api::ProgressStatus& progress) {
  std::string out = "step " + std::to_string(progress.step);
  if (progress.total_steps) out += " of " + std::to_string(*progress.total_steps);
  if (progress.epoch) out += ", epoch " + Number(progress.epoch);
  if (progress.examples_per_second) {
    out += ", " + Number(progress.examples_per_second) + " examples/s";
  }
  if (progress.eta_seconds) out += ", " + std::to_string(*progress.eta_seconds) + " s left";
  return out;
}

std::string Told(const api::TrainingJob& job, TimePoint now, const Console& console) {
  const api::JobStatus& s = job.status;
  std::vector<std::vector<std::string>> head = {
      {"Name:", job.metadata.name},
      {"Namespace:", job.metadata.namespace_name},
      {"Phase:", Phase(s.phase.empty() ? "not seen by the operator yet" : s.phase, console)},
      {"Ready:", s.ready},
      {"Restarts:", std::to_string(s.restarts)},
      {"Age:", Age(job.metadata.created, now)}};
  if (s.progress) {
    head.push_back({"Progress:", Progress(*s.progress)});
    if (s.progress->loss) head.push_back({"Loss:", Number(s.progress->loss)});
    if (s.progress->accuracy) head.push_back({"Accuracy:", Number(s.progress->accuracy)});
    if (const auto& slow = s.progress->slowest) {
      head.push_back({"Slowest:", slow->replica + ", " + Number(slow->seconds) +
                                      " s a step; the median is " + Number(slow->median_seconds)});
    }
  }
  if (s.plan) {
    std::string plan = s.plan->mesh;
    if (s.plan->peak_bytes_per_device) {
      plan += ", at most " + HumanBytes(*s.plan->peak_bytes_per_device) + " a device";
    }
    head.push_back({"Plan:", plan});
  }
  if (s.checkpoint) {
    head.push_back({"Checkpoint:", "step " + std::to_string(s.checkpoint->step) +
                                       (s.checkpoint->path.empty() ? "" : " in ") +
                                       s.checkpoint->path});
  }
  std::string out = Table(head);
  std::vector<std::vector<std::string>> replicas = {
      {"ROLE", "WANTED", "ACTIVE", "SUCCEEDED", "FAILED", "RESTARTS"}};
  for (const auto& [role, wanted] : job.spec.replica_specs) {
    const auto found = s.replica_statuses.find(role);
    const api::ReplicaStatus r =
        found == s.replica_statuses.end() ? api::ReplicaStatus{} : found->second;
    replicas.push_back({std::string(cluster::RoleName(role)), std::to_string(wanted.replicas),
                        std::to_string(r.active), std::to_string(r.succeeded),
                        std::to_string(r.failed), std::to_string(r.restarts)});
  }
  out += "\n" + Table(replicas);
  if (!s.conditions.empty()) {
    std::vector<std::vector<std::string>> rows = {{"CONDITION", "HOLDS", "SINCE", "REASON", ""}};
    for (const auto& [type, c] : s.conditions) {
      rows.push_back({std::string(api::ConditionName(type)), c.status ? "yes" : "no",
                      Age(c.last_transition, now), c.reason, Printable(c.message)});
    }
    out += "\n" + Table(rows);
  }
  if (!s.worst.empty()) {
    std::vector<std::vector<std::string>> rows = {{"IN TROUBLE", "EXIT", "REASON", "LAST LINE"}};
    for (const api::Trouble& t : s.worst) {
      rows.push_back({t.pod, t.exit_code ? std::to_string(*t.exit_code) : "", t.reason,
                      Printable(t.last_line)});
    }
    out += "\n" + Table(rows);
  }
  if (!s.what_to_do.empty()) out += "\nWhat to do: " + Printable(s.what_to_do) + "\n";
  return out;
}

Status Tell(const StatusFlags& flags, const Console& console) {
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  MT_ASSIGN_OR_RETURN(const std::string text, GetJobText(cluster, flags.name));
  if (flags.format != "table") {
    console.out << Objects({text}, /*list=*/false, flags.format);
    return OkStatus();
  }
  MT_ASSIGN_OR_RETURN(const api::TrainingJob job, JobOf(text));
  console.out << Told(job, SystemClock().Now(), console);
  return OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* verb = app.add_subcommand(
      "status", "Tell how a job stands: progress, replicas, conditions, pods in trouble");
  verb->add_option("job", flags->name, "The job's name")->required()->check(CheckJobName);
  AddClusterFlags(verb, &flags->cluster);
  AddFormatFlag(verb, &flags->format);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("status", Tell(*flags, console), console);
    };
  });
}

}  // namespace meshtrain::cli
