#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "operator/reconcile/children.h"
#include "operator/reconcile/owner.h"
#include "operator/reconcile/policy.h"
#include "runtime/base/text.h"

namespace meshtrain::reconcile {
namespace {

using Json = nlohmann::json;

// Kubernetes' resource.Quantity as a number of thousandths; nothing where it does not parse.
std::optional<double> Thousandths(const Json& value) {
  if (value.is_number()) return value.get<double>() * 1000;
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  const size_t digits = text.find_first_not_of("+-0123456789.");
  const auto number = ParseDouble(std::string_view(text).substr(0, digits));
  if (!number) return std::nullopt;
  const std::string suffix = digits == std::string::npos ? "" : text.substr(digits);
  static const std::map<std::string, double> kFactors = {{"", 1e3},
                                                         {"m", 1},
                                                         {"k", 1e6},
                                                         {"M", 1e9},
                                                         {"G", 1e12},
                                                         {"T", 1e15},
                                                         {"P", 1e18},
                                                         {"Ki", 1024e3},
                                                         {"Mi", 1048576e3},
                                                         {"Gi", 1073741824e3},
                                                         {"Ti", 1099511627776e3},
                                                         {"Pi", 1125899906842624e3}};
  const auto factor = kFactors.find(suffix);
  if (factor == kFactors.end()) return std::nullopt;
  return *number * factor->second;
}

std::string Quantity(double thousandths) {
  char text[48];
  const bool whole = std::fmod(thousandths, 1000.0) == 0;
  std::snprintf(text, sizeof(text), whole ? "%.0f" : "%.0fm",
                whole ? thousandths / 1000 : thousandths);
  return text;
}

// Requests (else limits) of one pod's containers, by resource.
std::map<std::string, double> PodRequests(const api::PodTemplate& pod) {
  std::map<std::string, double> out;
  const Json json = Json::parse(pod.json.empty() ? "{}" : pod.json, nullptr, false);
  const Json none = Json::object();
  const auto member = [&](const Json& object, const char* name) -> const Json& {
    if (!object.is_object()) return none;
    const auto found = object.find(name);
    return found == object.end() ? none : *found;
  };
  for (const Json& container : member(member(json, "spec"), "containers")) {
    const Json& resources = member(container, "resources");
    Json wanted = member(resources, "limits").is_object() ? member(resources, "limits") : none;
    if (member(resources, "requests").is_object()) wanted.update(member(resources, "requests"));
    for (const auto& [name, value] : wanted.items()) {
      if (const auto amount = Thousandths(value)) out[name] += *amount;
    }
  }
  return out;
}

int32_t MinMember(const api::TrainingJob& job) {
  const auto& policy = job.spec.run_policy.scheduling_policy;
  if (policy && policy->min_available) return *policy->min_available;
  return static_cast<int32_t>(api::TotalReplicas(job.spec));
}

// The requests of the first `members` pods in the order of roles, which is the order of importance.
std::map<std::string, std::string> MinResources(const api::TrainingJob& job, int32_t members) {
  const auto& policy = job.spec.run_policy.scheduling_policy;
  if (policy && !policy->min_resources.empty()) return policy->min_resources;
  std::map<std::string, double> sum;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    const int32_t count = std::min(members, replica.replicas);
    members -= count;
    for (const auto& [name, amount] : PodRequests(replica.pod_template)) {
      sum[name] += amount * count;
    }
  }
  std::map<std::string, std::string> out;
  for (const auto& [name, amount] : sum) out[name] = Quantity(amount);
  return out;
}

std::string Body(const View& view, int32_t members) {
  const api::TrainingJob& job = view.job;
  const auto& policy = job.spec.run_policy.scheduling_policy;
  const bool volcano = view.seen.settings.gang == GangScheduler::kVolcano;
  Json spec = {{"minMember", members}};
  if (const auto resources = MinResources(job, members); !resources.empty()) {
    spec["minResources"] = resources;
  }
  if (volcano) {
    spec["queue"] = policy && !policy->queue.empty() ? policy->queue : "default";
    if (policy && !policy->priority_class.empty()) {
      spec["priorityClassName"] = policy->priority_class;
    }
  } else if (policy && policy->schedule_timeout_seconds) {
    spec["scheduleTimeoutSeconds"] = *policy->schedule_timeout_seconds;
  }
  const Json body = {
      {"apiVersion", volcano ? "scheduling.volcano.sh/v1beta1" : "scheduling.x-k8s.io/v1alpha1"},
      {"kind", "PodGroup"},
      {"metadata",
       {{"name", job.metadata.name},
        {"namespace", job.metadata.namespace_name},
        {"labels",
         {{cluster::kLabelJob, job.metadata.name},
          {cluster::kLabelManagedBy, cluster::kManagedByValue}}},
        {"ownerReferences", Json::array({Json::parse(OwnerReference(job))})}}},
      {"spec", std::move(spec)}};
  return body.dump();
}

// A pod of another scheduler is none of the gang, which then waits for it for ever.
void WarnOfOtherSchedulers(const View& view, Draft* draft) {
  const Settings& settings = view.seen.settings;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    const std::string& own = replica.pod_template.scheduler_name;
    if (own.empty() || own == GangSchedulerName(settings) || replica.replicas < 1) continue;
    draft->Wait(Reason::kOtherScheduler,
                "spec.replicaSpecs." + std::string(cluster::RoleName(role)) +
                    ".template.spec.schedulerName: is " + own + ", not the gang scheduler's " +
                    GangSchedulerName(settings) + ": its pods are no part of the gang");
    return;
  }
}

}  // namespace

std::string GangSchedulerName(const Settings& settings) {
  if (settings.gang == GangScheduler::kVolcano && settings.gang_scheduler_name.empty()) {
    return "volcano";
  }
  return settings.gang_scheduler_name;
}

// Volcano wants the group admitted before pods exist; scheduler-plugins holds the pods back itself.
// A queue comes before: the group of a job that it holds back is not made (queue.cc).
bool Gang(const View& view, Draft* draft) {
  if (view.seen.settings.gang == GangScheduler::kNone) return true;
  if (!view.Is(ConditionType::kRunning)) WarnOfOtherSchedulers(view, draft);
  const bool volcano = view.seen.settings.gang == GangScheduler::kVolcano;
  const int32_t members = MinMember(view.job);
  const std::string& name = view.job.metadata.name;
  const auto& group = view.seen.pod_group;
  if (!group) {
    if (!MayAsk(view, draft)) return false;
    draft->Add(Phase::kPrepare, CreatePodGroup{.name = name, .body = Body(view, members)},
               "the gang scheduler wants one");
    if (volcano) draft->Wait(Reason::kPodGroupPending, "the pod group is not admitted yet");
    return !volcano;
  }
  if (group->deleting) {
    draft->Wait(Reason::kNameHeld, "the pod group " + name + " is still going away");
    return false;
  }
  if (group->controller_uid != view.job.metadata.uid) {
    draft->Wait(Reason::kNameTaken, "a pod group of the name " + name + " belongs to another");
    return false;
  }
  if (group->min_member != members) {
    // What it is to hold at least goes with how many it is for; a limit that is gone is taken out.
    const auto resources = MinResources(view.job, members);
    const Json body = {
        {"metadata", {{"uid", group->uid}, {"resourceVersion", group->resource_version}}},
        {"spec",
         {{"minMember", members},
          {"minResources", resources.empty() ? Json(nullptr) : Json(resources)}}}};
    draft->Add(
        Phase::kPrepare, PatchPodGroup{.name = name, .body = body.dump()},
        "it is for " + std::to_string(group->min_member) + " pods, not " + std::to_string(members));
  }
  if (volcano && (group->phase.empty() || group->phase == "Pending")) {
    draft->Wait(Reason::kPodGroupPending, "the pod group is not admitted yet");
    return false;
  }
  return true;
}

void DeleteGang(const View& view, const char* why, Draft* draft) {
  const auto& group = view.seen.pod_group;
  if (!group || group->deleting || group->controller_uid != view.job.metadata.uid) return;
  draft->Add(Phase::kRemove, DeletePodGroup{.name = view.job.metadata.name, .uid = group->uid},
             why);
}

}  // namespace meshtrain::reconcile
