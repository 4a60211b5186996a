// Long: the reader and the writer of each struct stand side by side, so that what one has and the
// other lacks is seen.
#include "operator/api/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "operator/api/check.h"
#include "operator/api/schema.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::api {
namespace {

using Json = nlohmann::json;  // std::map inside: keys come out sorted
using Problems = std::vector<FieldError>;

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Got(const Json& value) {
  std::string text = Dump(value);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return ", got: " + text;
}

bool Absent(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null();
}

// --- reading: types were checked by ApplySchema
// ---------------------------------------------------------------------------------

std::string Str(const Json& object, std::string_view name) {
  return Absent(object, name) ? std::string() : object.at(std::string(name)).get<std::string>();
}
template <typename T>
T Clamped(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return std::numeric_limits<T>::max();
  }
  return static_cast<T>(std::clamp<int64_t>(value.get<int64_t>(), std::numeric_limits<T>::min(),
                                            std::numeric_limits<T>::max()));
}
template <typename T>
std::optional<T> Maybe(const Json& object, std::string_view name) {
  if (Absent(object, name)) return std::nullopt;
  const Json& value = object.at(std::string(name));
  if constexpr (std::is_integral_v<T>) {
    return Clamped<T>(value);
  } else {
    return value.get<T>();
  }
}
template <typename T>
T Or(const Json& object, std::string_view name, T otherwise) {
  return Maybe<T>(object, name).value_or(otherwise);
}
bool Flag(const Json& object, std::string_view name) {
  return !Absent(object, name) && object.at(std::string(name)).get<bool>();
}
std::optional<TimePoint> When(const Json& object, std::string_view name) {
  return Absent(object, name)
             ? std::nullopt
             : ParseTime(object.at(std::string(name)).get_ref<const std::string&>());
}
const Json& Child(const Json& object, std::string_view name) {
  static const Json kNothing = Json::object();
  return Absent(object, name) ? kNothing : object.at(std::string(name));
}
std::string Opaque(const Json& object, std::string_view name) {
  return Absent(object, name) ? std::string() : Dump(object.at(std::string(name)));
}

// What an API server writes has the right type; of what users write, mistakes in `name` and
// `namespace` are told.
void ReadMeta(const Json& meta, ObjectMeta* out, Problems* problems) {
  const auto text = [&](const char* name) {
    const auto found = meta.find(name);
    return found != meta.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  for (const char* name : {"name", "namespace"}) {
    if (Absent(meta, name) || meta.at(name).is_string()) continue;
    problems->push_back({std::string("metadata.") + name, "must be a string" + Got(meta.at(name))});
  }
  const auto map = [&](const char* name, std::map<std::string, std::string>* into) {
    const auto found = meta.find(name);
    if (found == meta.end() || !found->is_object()) return;
    for (const auto& [key, value] : found->items()) {
      if (value.is_string()) (*into)[key] = value.get<std::string>();
    }
  };
  out->name = text("name");
  out->namespace_name = text("namespace");
  out->uid = text("uid");
  out->resource_version = text("resourceVersion");
  if (const auto found = meta.find("generation");
      found != meta.end() && found->is_number_integer()) {
    out->generation = found->get<int64_t>();
  }
  map("labels", &out->labels);
  map("annotations", &out->annotations);
  out->created = ParseTime(text("creationTimestamp"));
  out->deleted = ParseTime(text("deletionTimestamp"));
}

RunPolicy ReadRunPolicy(const Json& json) {
  RunPolicy out;
  out.clean_pod_policy = Or<std::string>(json, "cleanPodPolicy", std::string(kCleanNone));
  out.ttl_seconds_after_finished = Maybe<int64_t>(json, "ttlSecondsAfterFinished");
  out.active_deadline_seconds = Maybe<int64_t>(json, "activeDeadlineSeconds");
  out.startup_deadline_seconds = Maybe<int64_t>(json, "startupDeadlineSeconds");
  out.progress_deadline_seconds = Maybe<int64_t>(json, "progressDeadlineSeconds");
  out.dead_node_seconds = Maybe<int64_t>(json, "deadNodeSeconds");
  out.peer_return_seconds = Maybe<int64_t>(json, "peerReturnSeconds");
  out.backoff_limit = Maybe<int32_t>(json, "backoffLimit");
  out.backoff_window_seconds = Maybe<int64_t>(json, "backoffWindowSeconds");
  out.suspend = Flag(json, "suspend");
  out.managed_by = Str(json, "managedBy");
  if (!Absent(json, "schedulingPolicy")) {
    const Json& gang = json.at("schedulingPolicy");
    SchedulingPolicy policy;
    policy.min_available = Maybe<int32_t>(gang, "minAvailable");
    policy.queue = Str(gang, "queue");
    policy.priority_class = Str(gang, "priorityClass");
    for (const auto& [name, value] : Child(gang, "minResources").items()) {
      policy.min_resources[name] = value.is_string() ? value.get<std::string>() : Dump(value);
    }
    policy.schedule_timeout_seconds = Maybe<int32_t>(gang, "scheduleTimeoutSeconds");
    out.scheduling_policy = policy;
  }
  return out;
}

void ReadSpec(const Json& json, TrainingJob* job) {
  Spec* out = &job->spec;
  Problems* problems = &job->problems;
  for (const auto& [key, value] : Child(json, "replicaSpecs").items()) {
    const std::string path = "spec.replicaSpecs." + key;
    const auto role = cluster::ParseRole(key);
    if (!role) {
      const std::vector<std::string> known = {"chief", "worker", "ps", "evaluator"};
      problems->push_back(
          {path, "is not a role, must be chief, worker, ps or evaluator" + DidYouMean(key, known)});
      continue;
    }
    if (out->replica_specs.contains(*role)) {
      problems->push_back(
          {path, "is a second spelling of the role " + std::string(cluster::RoleName(*role))});
      continue;
    }
    if (*role == Role::kWorker && key != "worker") job->odd_role_keys.push_back(key);
    ReplicaSpec& spec = out->replica_specs[*role];
    spec.replicas = Or<int32_t>(value, "replicas", 1);
    spec.restart_policy = Or<std::string>(value, "restartPolicy", std::string(kRestartNever));
    if (!Absent(value, "template")) {
      // Types were checked already; what ReadPodTemplate would add is said once.
      spec.pod_template = ReadPodTemplate(Dump(value.at("template")), path + ".template", nullptr);
    }
    if (!Absent(value, "restartBudget")) {
      const Json& budget = value.at("restartBudget");
      spec.restart_budget = {.limit = Or<int32_t>(budget, "limit", 0),
                             .window_seconds = Maybe<int64_t>(budget, "windowSeconds")};
    }
  }
  out->program = Opaque(json, "program");
  out->program_has_mesh = !Absent(Child(json, "program"), "mesh");
  out->strategy = Str(json, "strategy");
  if (out->strategy.empty() && out->program_has_mesh) out->strategy = kStrategyMesh;
  for (const Json& claim : Child(json, "claims")) {
    out->claims.push_back({.name = Str(claim, "name"),
                           .path = Str(claim, "path"),
                           .sub_path = Str(claim, "subPath"),
                           .read_only = Absent(claim, "readOnly") || Flag(claim, "readOnly")});
  }
  if (!Absent(json, "output")) {
    const Json& output = json.at("output");
    out->output = {.claim = Str(output, "claim"), .folder = Str(output, "folder")};
  }
  if (!Absent(json, "checkpoint")) {
    const Json& checkpoint = json.at("checkpoint");
    out->checkpoint = {.path = Str(checkpoint, "path"),
                       .volume_claim_template = Opaque(checkpoint, "volumeClaimTemplate"),
                       .every_steps = Maybe<int64_t>(checkpoint, "everySteps"),
                       .keep = Maybe<int32_t>(checkpoint, "keep"),
                       .resume = Or<std::string>(checkpoint, "resume", "Latest")};
  }
  out->run_policy = ReadRunPolicy(Child(json, "runPolicy"));
  out->success_policy = Str(json, "successPolicy");
  out->wait_for_evaluator = Flag(json, "waitForEvaluator");
  const Json& rules = Child(Child(json, "failurePolicy"), "rules");
  for (size_t i = 0; i < rules.size(); ++i) {
    const Json& rule = rules.at(i);
    FailureRule read;
    for (const Json& name : Child(rule, "roles")) {
      if (const auto role = cluster::ParseRole(name.get_ref<const std::string&>())) {
        read.roles.push_back(*role);
      } else {
        problems->push_back({"spec.failurePolicy.rules[" + std::to_string(i) + "].roles",
                             "must be chief, worker, ps or evaluator" + Got(name)});
      }
    }
    for (const Json& code : Child(rule, "exitCodes")) {
      read.exit_codes.push_back(Clamped<int32_t>(code));
    }
    for (const Json& reason : Child(rule, "reasons")) {
      read.reasons.push_back(reason.get<std::string>());
    }
    read.action = Str(rule, "action");
    out->failure_rules.push_back(std::move(read));
  }
  if (!Absent(json, "elastic")) {
    const Json& elastic = json.at("elastic");
    out->elastic = {.min_replicas = Or<int32_t>(elastic, "minReplicas", 1),
                    .max_replicas = Or<int32_t>(elastic, "maxReplicas", 1)};
  }
  out->tf_config_compat = Str(Child(json, "tfConfig"), "compat");
  out->security = Str(json, "security");
}

constexpr ConditionType kConditions[] = {
    ConditionType::kCreated,   ConditionType::kRunning,   ConditionType::kRestarting,
    ConditionType::kSuspended, ConditionType::kSucceeded, ConditionType::kFailed,
    ConditionType::kWaiting,   ConditionType::kStalled,   ConditionType::kStraggling};

InPlace ReadInPlace(const Json& json) {
  InPlace out{.told = Or<int32_t>(json, "told", 0), .past = Or<int32_t>(json, "past", 0)};
  // Of an operator before this one: its counts stay counted.
  out.past += Or<int32_t>(json, "incidents", 0) + Or<int32_t>(json, "own", 0);
  for (const Json& item : Child(json, "lost")) {
    out.lost.push_back({Str(item, "incarnation"), Or<int32_t>(item, "pods", 0)});
  }
  return out;
}

void ReadRecovery(const Json& json, Recovery* out) {
  out->attempt = Or<int32_t>(json, "attempt", 0);
  out->restart_all_below = Or<int32_t>(json, "restartAllBelow", 0);
  out->counted = Or<int32_t>(json, "counted", 0);
  out->disruptions = Or<int32_t>(json, "disruptions", 0);
  for (const auto& [name, count] : Child(json, "countedByRole").items()) {
    if (const auto role = cluster::ParseRole(name)) {
      out->counted_by_role[*role] = Clamped<int32_t>(count);
    }
  }
  for (const auto& [name, count] : Child(json, "incidentsByRole").items()) {
    if (const auto role = cluster::ParseRole(name)) {
      out->incidents_by_role[*role] = Clamped<int32_t>(count);
    }
  }
  for (const Json& item : Child(json, "recent")) {
    const auto role = cluster::ParseRole(Str(item, "role"));
    const auto at = When(item, "at");
    if (role && at) {
      out->recent.push_back({*at, *role, Flag(item, "counted"), Flag(item, "inPlace")});
    }
  }
  out->in_place = ReadInPlace(Child(json, "inPlace"));
  for (const auto& [name, item] : Child(json, "inPlaceByRole").items()) {
    if (const auto role = cluster::ParseRole(name)) {
      out->in_place_by_role[*role] = ReadInPlace(item);
    }
  }
  for (const Json& item : Child(json, "outOfMemory")) {
    out->out_of_memory.push_back({Str(item, "replica"), Or<int32_t>(item, "attempt", 0)});
  }
  for (const Json& item : Child(json, "lostIncarnations")) {
    out->lost_incarnations.push_back(item.get<std::string>());
  }
  out->newest_pod = When(json, "newestPod");
}

void ReadProgress(const Json& json, ProgressStatus* out) {
  out->step = Or<int64_t>(json, "step", 0);
  out->total_steps = Maybe<int64_t>(json, "totalSteps");
  out->epoch = Maybe<double>(json, "epoch");
  out->loss = Maybe<double>(json, "loss");
  out->accuracy = Maybe<double>(json, "accuracy");
  out->examples_per_second = Maybe<double>(json, "examplesPerSecond");
  out->eta_seconds = Maybe<int64_t>(json, "etaSeconds");
  out->observed_at = When(json, "observedAt").value_or(TimePoint{});
  out->advanced_at = When(json, "advancedAt").value_or(TimePoint{});
  out->seconds_per_step = Maybe<double>(json, "secondsPerStep");
  if (const Json& slowest = Child(json, "slowest"); !slowest.empty()) {
    out->slowest = {.replica = Str(slowest, "replica"),
                    .seconds = Or<double>(slowest, "seconds", 0),
                    .median_seconds = Or<double>(slowest, "medianSeconds", 0)};
  }
}

void ReadStatus(const Json& json, JobStatus* out) {
  for (const Json& item : Child(json, "conditions")) {
    for (const ConditionType type : kConditions) {
      if (Str(item, "type") != ConditionName(type)) continue;
      out->conditions[type] = {
          .status = Str(item, "status") == "True",
          .reason = Str(item, "reason"),
          .message = Str(item, "message"),
          .observed_generation = Or<int64_t>(item, "observedGeneration", 0),
          .last_transition = When(item, "lastTransitionTime").value_or(TimePoint{})};
    }
  }
  out->phase = Str(json, "phase");
  out->ready = Str(json, "ready");
  out->restarts = Or<int32_t>(json, "restarts", 0);
  for (const auto& [name, item] : Child(json, "replicaStatuses").items()) {
    if (const auto role = cluster::ParseRole(name)) {
      out->replica_statuses[*role] = {.replicas = Or<int32_t>(item, "replicas", 0),
                                      .active = Or<int32_t>(item, "active", 0),
                                      .succeeded = Or<int32_t>(item, "succeeded", 0),
                                      .failed = Or<int32_t>(item, "failed", 0),
                                      .restarts = Or<int32_t>(item, "restarts", 0)};
    }
  }
  out->label_selector = Str(json, "labelSelector");
  out->security = Str(json, "security");
  out->observed_generation = Or<int64_t>(json, "observedGeneration", 0);
  out->start_time = When(json, "startTime");
  out->completion_time = When(json, "completionTime");
  out->last_reconcile_time = When(json, "lastReconcileTime");
  out->active_seconds_before = Or<double>(json, "activeSecondsBefore", 0);
  if (!Absent(json, "progress")) ReadProgress(json.at("progress"), &out->progress.emplace());
  if (!Absent(json, "plan")) {
    const Json& plan = json.at("plan");
    out->plan = {.mesh = Str(plan, "mesh"),
                 .peak_bytes_per_device = Maybe<int64_t>(plan, "peakBytesPerDevice"),
                 .collective_bytes_per_step = Maybe<int64_t>(plan, "collectiveBytesPerStep"),
                 .hash = Str(plan, "hash")};
  }
  if (!Absent(json, "checkpoint")) {
    const Json& checkpoint = json.at("checkpoint");
    out->checkpoint = {.step = Or<int64_t>(checkpoint, "step", 0), .path = Str(checkpoint, "path")};
  }
  for (const Json& item : Child(json, "worst")) {
    out->worst.push_back({.pod = Str(item, "pod"),
                          .exit_code = Maybe<int32_t>(item, "exitCode"),
                          .reason = Str(item, "reason"),
                          .last_line = Str(item, "lastLine")});
  }
  out->what_to_do = Str(json, "whatToDo");
  ReadRecovery(Child(json, "recovery"), &out->recovery);
  const Json& goodput = Child(json, "goodput");
  out->goodput = {.waiting_seconds = Or<double>(goodput, "waitingSeconds", 0),
                  .running_seconds = Or<double>(goodput, "runningSeconds", 0),
                  .restarting_seconds = Or<double>(goodput, "restartingSeconds", 0),
                  .lost_steps = Or<int64_t>(goodput, "lostSteps", 0),
                  .ratio = Maybe<double>(goodput, "ratio")};
}

// --- writing
// --------------------------------------------------------------------------------------------------------------

template <typename T>
void Put(Json* object, const char* name, const std::optional<T>& value) {
  if (!value) return;
  if constexpr (std::is_same_v<T, TimePoint>) {
    (*object)[name] = FormatTime(*value);
  } else {
    (*object)[name] = *value;
  }
}
void PutText(Json* object, const char* name, const std::string& value) {
  if (!value.empty()) (*object)[name] = value;
}
void PutOpaque(Json* object, const char* name, const std::string& text) {
  if (!text.empty()) (*object)[name] = Json::parse(text, nullptr, false);
}
void PutTime(Json* object, const char* name, TimePoint time) {
  if (time != TimePoint{}) (*object)[name] = FormatTime(time);
}
// Numbers that are no numbers (a loss of NaN) have no JSON.
void PutNumber(Json* object, const char* name, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) (*object)[name] = *value;
}

Json WriteRunPolicy(const RunPolicy& policy) {
  Json out = Json::object();
  out["cleanPodPolicy"] = policy.clean_pod_policy;
  Put(&out, "ttlSecondsAfterFinished", policy.ttl_seconds_after_finished);
  Put(&out, "activeDeadlineSeconds", policy.active_deadline_seconds);
  Put(&out, "startupDeadlineSeconds", policy.startup_deadline_seconds);
  Put(&out, "progressDeadlineSeconds", policy.progress_deadline_seconds);
  Put(&out, "deadNodeSeconds", policy.dead_node_seconds);
  Put(&out, "peerReturnSeconds", policy.peer_return_seconds);
  Put(&out, "backoffLimit", policy.backoff_limit);
  Put(&out, "backoffWindowSeconds", policy.backoff_window_seconds);
  out["suspend"] = policy.suspend;
  PutText(&out, "managedBy", policy.managed_by);
  if (policy.scheduling_policy) {
    Json& gang = out["schedulingPolicy"] = Json::object();
    Put(&gang, "minAvailable", policy.scheduling_policy->min_available);
    PutText(&gang, "queue", policy.scheduling_policy->queue);
    PutText(&gang, "priorityClass", policy.scheduling_policy->priority_class);
    if (!policy.scheduling_policy->min_resources.empty()) {
      gang["minResources"] = policy.scheduling_policy->min_resources;
    }
    Put(&gang, "scheduleTimeoutSeconds", policy.scheduling_policy->schedule_timeout_seconds);
  }
  return out;
}

Json WriteSpec(const Spec& spec) {
  Json out = Json::object();
  Json& replicas = out["replicaSpecs"] = Json::object();
  for (const auto& [role, replica] : spec.replica_specs) {
    Json& one = replicas[std::string(cluster::RoleName(role))];
    one = {{"replicas", replica.replicas}, {"restartPolicy", replica.restart_policy}};
    PutOpaque(&one, "template", replica.pod_template.json);
    if (replica.restart_budget) {
      one["restartBudget"]["limit"] = replica.restart_budget->limit;
      Put(&one["restartBudget"], "windowSeconds", replica.restart_budget->window_seconds);
    }
  }
  PutText(&out, "strategy", spec.strategy);
  PutOpaque(&out, "program", spec.program);
  for (const Claim& claim : spec.claims) {
    Json one = {{"name", claim.name}, {"path", claim.path}, {"readOnly", claim.read_only}};
    PutText(&one, "subPath", claim.sub_path);
    out["claims"].push_back(std::move(one));
  }
  if (spec.output) {
    out["output"]["claim"] = spec.output->claim;
    PutText(&out["output"], "folder", spec.output->folder);
  }
  if (spec.checkpoint) {
    Json& checkpoint = out["checkpoint"];
    checkpoint = {{"resume", spec.checkpoint->resume}};
    PutText(&checkpoint, "path", spec.checkpoint->path);
    PutOpaque(&checkpoint, "volumeClaimTemplate", spec.checkpoint->volume_claim_template);
    Put(&checkpoint, "everySteps", spec.checkpoint->every_steps);
    Put(&checkpoint, "keep", spec.checkpoint->keep);
  }
  out["runPolicy"] = WriteRunPolicy(spec.run_policy);
  out["successPolicy"] = spec.success_policy;
  out["waitForEvaluator"] = spec.wait_for_evaluator;
  for (const FailureRule& rule : spec.failure_rules) {
    Json one = {{"action", rule.action}};
    for (const Role role : rule.roles) one["roles"].push_back(cluster::RoleName(role));
    if (!rule.exit_codes.empty()) one["exitCodes"] = rule.exit_codes;
    if (!rule.reasons.empty()) one["reasons"] = rule.reasons;
    out["failurePolicy"]["rules"].push_back(std::move(one));
  }
  if (spec.elastic) {
    out["elastic"] = {{"minReplicas", spec.elastic->min_replicas},
                      {"maxReplicas", spec.elastic->max_replicas}};
  }
  if (!spec.tf_config_compat.empty()) out["tfConfig"]["compat"] = spec.tf_config_compat;
  if (!spec.security.empty()) out["security"] = spec.security;
  return out;
}

Json WriteInPlace(const InPlace& tally) {
  Json out = Json::object();
  if (tally.told != 0) out["told"] = tally.told;
  if (tally.past != 0) out["past"] = tally.past;
  for (const InPlace::Lost& lost : tally.lost) {
    out["lost"].push_back({{"incarnation", lost.incarnation}, {"pods", lost.pods}});
  }
  return out;
}

Json WriteRecovery(const Recovery& recovery) {
  Json out = Json::object();
  const auto number = [&](const char* name, int32_t value) {
    if (value != 0) out[name] = value;
  };
  number("attempt", recovery.attempt);
  number("restartAllBelow", recovery.restart_all_below);
  number("counted", recovery.counted);
  number("disruptions", recovery.disruptions);
  for (const auto& [role, count] : recovery.counted_by_role) {
    out["countedByRole"][std::string(cluster::RoleName(role))] = count;
  }
  for (const auto& [role, count] : recovery.incidents_by_role) {
    out["incidentsByRole"][std::string(cluster::RoleName(role))] = count;
  }
  for (const auto& recent : recovery.recent) {
    out["recent"].push_back({{"at", FormatTime(recent.at)},
                             {"role", cluster::RoleName(recent.role)},
                             {"counted", recent.counted}});
    if (recent.in_place) out["recent"].back()["inPlace"] = true;
  }
  if (recovery.in_place != InPlace{}) out["inPlace"] = WriteInPlace(recovery.in_place);
  for (const auto& [role, tally] : recovery.in_place_by_role) {
    out["inPlaceByRole"][std::string(cluster::RoleName(role))] = WriteInPlace(tally);
  }
  for (const auto& entry : recovery.out_of_memory) {
    out["outOfMemory"].push_back({{"replica", entry.replica}, {"attempt", entry.attempt}});
  }
  if (!recovery.lost_incarnations.empty()) out["lostIncarnations"] = recovery.lost_incarnations;
  Put(&out, "newestPod", recovery.newest_pod);
  return out;
}

Json WriteProgress(const ProgressStatus& progress) {
  Json out = {{"step", progress.step}};
  Put(&out, "totalSteps", progress.total_steps);
  PutNumber(&out, "epoch", progress.epoch);
  PutNumber(&out, "loss", progress.loss);
  PutNumber(&out, "accuracy", progress.accuracy);
  PutNumber(&out, "examplesPerSecond", progress.examples_per_second);
  Put(&out, "etaSeconds", progress.eta_seconds);
  if (progress.total_steps && *progress.total_steps > 0) {
    const double percent =
        100.0 * static_cast<double>(progress.step) / static_cast<double>(*progress.total_steps);
    out["percent"] = std::to_string(static_cast<int64_t>(std::clamp(percent, 0.0, 100.0))) + "%";
  }
  PutTime(&out, "observedAt", progress.observed_at);
  PutTime(&out, "advancedAt", progress.advanced_at);
  PutNumber(&out, "secondsPerStep", progress.seconds_per_step);
  if (progress.slowest) {
    out["slowest"] = {{"replica", progress.slowest->replica},
                      {"seconds", progress.slowest->seconds},
                      {"medianSeconds", progress.slowest->median_seconds}};
  }
  return out;
}

Json WriteStatus(const JobStatus& status) {
  Json out = Json::object();
  for (const ConditionType type : kConditions) {
    const auto found = status.conditions.find(type);
    if (found == status.conditions.end()) continue;
    const Condition& condition = found->second;
    Json one = {{"type", ConditionName(type)}, {"status", condition.status ? "True" : "False"}};
    PutText(&one, "reason", condition.reason);
    PutText(&one, "message", condition.message);
    if (condition.observed_generation != 0) {
      one["observedGeneration"] = condition.observed_generation;
    }
    PutTime(&one, "lastTransitionTime", condition.last_transition);
    out["conditions"].push_back(std::move(one));
  }
  PutText(&out, "phase", status.phase);
  PutText(&out, "ready", status.ready);
  // Columns and the scale subresource read these, so they are there even at 0 once anything is.
  if (!out.empty()) out["restarts"] = status.restarts;
  for (const auto& [role, replica] : status.replica_statuses) {
    out["replicaStatuses"][std::string(cluster::RoleName(role))] = {
        {"replicas", replica.replicas},
        {"active", replica.active},
        {"succeeded", replica.succeeded},
        {"failed", replica.failed},
        {"restarts", replica.restarts}};
  }
  PutText(&out, "labelSelector", status.label_selector);
  PutText(&out, "security", status.security);
  if (status.observed_generation != 0) out["observedGeneration"] = status.observed_generation;
  Put(&out, "startTime", status.start_time);
  Put(&out, "completionTime", status.completion_time);
  Put(&out, "lastReconcileTime", status.last_reconcile_time);
  if (status.active_seconds_before != 0) out["activeSecondsBefore"] = status.active_seconds_before;
  if (status.progress) out["progress"] = WriteProgress(*status.progress);
  if (status.plan) {
    Json& plan = out["plan"] = Json::object();
    PutText(&plan, "mesh", status.plan->mesh);
    Put(&plan, "peakBytesPerDevice", status.plan->peak_bytes_per_device);
    Put(&plan, "collectiveBytesPerStep", status.plan->collective_bytes_per_step);
    PutText(&plan, "hash", status.plan->hash);
  }
  if (status.checkpoint) {
    out["checkpoint"] = {{"step", status.checkpoint->step}};
    PutText(&out["checkpoint"], "path", status.checkpoint->path);
  }
  for (const Trouble& trouble : status.worst) {
    Json one = {{"pod", trouble.pod}};
    Put(&one, "exitCode", trouble.exit_code);
    PutText(&one, "reason", trouble.reason);
    PutText(&one, "lastLine", trouble.last_line);
    out["worst"].push_back(std::move(one));
  }
  PutText(&out, "whatToDo", status.what_to_do);
  if (Json recovery = WriteRecovery(status.recovery); !recovery.empty()) {
    out["recovery"] = std::move(recovery);
  }
  const Goodput& goodput = status.goodput;
  Json spent = Json::object();
  if (goodput.waiting_seconds != 0) spent["waitingSeconds"] = goodput.waiting_seconds;
  if (goodput.running_seconds != 0) spent["runningSeconds"] = goodput.running_seconds;
  if (goodput.restarting_seconds != 0) spent["restartingSeconds"] = goodput.restarting_seconds;
  if (goodput.lost_steps != 0) spent["lostSteps"] = goodput.lost_steps;
  PutNumber(&spent, "ratio", goodput.ratio);
  if (!spent.empty()) out["goodput"] = std::move(spent);
  return out;
}

Json Difference(const Json& before, const Json& after) {
  Json patch = Json::object();
  for (const auto& [name, value] : after.items()) {
    const auto old = before.find(name);
    if (old == before.end()) {
      patch[name] = value;
    } else if (old->is_object() && value.is_object()) {
      if (Json inner = Difference(*old, value); !inner.empty()) patch[name] = std::move(inner);
    } else if (*old != value) {
      patch[name] = value;
    }
  }
  for (const auto& [name, unused] : before.items()) {
    if (!after.contains(name)) patch[name] = nullptr;
  }
  return patch;
}

}  // namespace

PodTemplate ReadPodTemplate(std::string_view text, const std::string& path,
                            std::vector<FieldError>* problems) {
  PodTemplate out;
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    if (problems != nullptr) problems->push_back({path, "must be an object" + Got(json)});
    return out;
  }
  out.json = Dump(json);
  const Json& spec = Child(json, "spec");
  if (!spec.is_object()) return out;
  const auto text_of = [](const Json& object, const char* name) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() && found->is_string()
               ? found->get<std::string>()
               : std::string();
  };
  out.restart_policy = text_of(spec, "restartPolicy");
  out.scheduler_name = text_of(spec, "schedulerName");
  const Json& containers = Child(spec, "containers");
  if (!containers.is_array()) return out;
  out.containers = static_cast<int32_t>(containers.size());
  const Json* training = containers.empty() ? nullptr : &containers.front();
  for (const std::string_view name : cluster::kTrainingContainers) {
    const auto found =
        std::find_if(containers.begin(), containers.end(),
                     [&](const Json& container) { return text_of(container, "name") == name; });
    if (found != containers.end()) {
      training = &*found;
      break;
    }
  }
  if (training == nullptr || !training->is_object()) return out;
  out.training_container = text_of(*training, "name");
  out.has_image = !text_of(*training, "image").empty();
  out.working_directory = text_of(*training, "workingDir");
  for (const Json& port : Child(*training, "ports")) {
    if (!port.is_object() || !port.contains("containerPort") ||
        !port["containerPort"].is_number_integer()) {
      continue;
    }
    const auto number = Clamped<int32_t>(port["containerPort"]);
    if (text_of(port, "name") == cluster::kTrainingPortName) {
      out.port = number;
      out.has_port = true;
    } else if (text_of(port, "name") == cluster::kHttpPortName) {
      out.http_port = number;
    }
  }
  for (const Json& variable : Child(*training, "env")) {
    if (text_of(variable, "name") == cluster::kEnvTfConfig) out.has_tf_config = true;
  }
  return out;
}

namespace {

// All of it but the spec, and but who wrote which field.
Json ParseWithoutSpec(std::string_view text) {
  bool in_metadata = false;
  const auto kept = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key) return true;
    if (depth == 1) in_metadata = parsed == "metadata";
    if (depth == 1) return parsed != "spec";
    return depth != 2 || !in_metadata || parsed != "managedFields";
  };
  return Json::parse(text, kept, /*allow_exceptions=*/false);
}

}  // namespace

Result<TrainingJob> FromJson(std::string_view text, const TrainingJob* before) {
  Json root = before == nullptr ? Json::parse(text, nullptr, /*allow_exceptions=*/false)
                                : ParseWithoutSpec(text);
  if (root.is_discarded() || !root.is_object()) {
    return InvalidArgument("TrainingJob: must be a JSON object, got: " +
                           std::string(text.substr(0, 80)));
  }
  const auto head = [&](const char* name, std::string_view want) -> Status {
    const auto found = root.find(name);
    if (found != root.end() && found->is_string() && found->get_ref<const std::string&>() == want) {
      return OkStatus();
    }
    return InvalidArgument(std::string(name) + ": must be " + std::string(want) +
                           (found == root.end() ? std::string(", got: nothing") : Got(*found)));
  };
  MT_RETURN_IF_ERROR(head("apiVersion", cluster::kApiVersion));
  MT_RETURN_IF_ERROR(head("kind", cluster::kKind));

  TrainingJob job;
  if (const auto meta = root.find("metadata"); meta != root.end() && meta->is_object()) {
    ReadMeta(*meta, &job.metadata, &job.problems);
  }
  if (before != nullptr && (job.metadata.uid != before->metadata.uid ||
                            job.metadata.generation != before->metadata.generation)) {
    return FromJson(text);
  }
  const std::vector<std::string> known = {"apiVersion", "kind", "metadata", "spec", "status"};
  for (const auto& [name, unused] : root.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      job.problems.push_back({name, "is not a field" + DidYouMean(name, known)});
    }
  }
  if (before != nullptr) {
    job.spec = before->spec;
    job.problems = before->problems;
    job.odd_role_keys = before->odd_role_keys;
  } else {
    Json spec = root.contains("spec") ? std::move(root["spec"]) : Json::object();
    ApplySchema({&spec}, SpecField(), "spec", &job.problems);
    if (spec.is_object()) ReadSpec(spec, &job);
  }

  // The status is ours alone: what cannot be read of it is dropped, never held against the job.
  Json status = root.contains("status") ? std::move(root["status"]) : Json::object();
  Problems ignored;
  ApplySchema({&status}, StatusField(), "status", &ignored);
  if (status.is_object()) ReadStatus(status, &job.status);
  return job;
}

std::string ToJson(const TrainingJob& job) {
  Json meta = Json::object();
  PutText(&meta, "name", job.metadata.name);
  PutText(&meta, "namespace", job.metadata.namespace_name);
  PutText(&meta, "uid", job.metadata.uid);
  PutText(&meta, "resourceVersion", job.metadata.resource_version);
  if (job.metadata.generation != 0) meta["generation"] = job.metadata.generation;
  if (!job.metadata.labels.empty()) meta["labels"] = job.metadata.labels;
  if (!job.metadata.annotations.empty()) meta["annotations"] = job.metadata.annotations;
  Put(&meta, "creationTimestamp", job.metadata.created);
  Put(&meta, "deletionTimestamp", job.metadata.deleted);
  Json root = {{"apiVersion", cluster::kApiVersion},
               {"kind", cluster::kKind},
               {"metadata", std::move(meta)},
               {"spec", WriteSpec(job.spec)}};
  if (Json status = WriteStatus(job.status); !status.empty()) root["status"] = std::move(status);
  return Dump(root);
}

std::string StatusToJson(const JobStatus& status) { return Dump(WriteStatus(status)); }

std::string StatusMergePatch(const JobStatus& before, const JobStatus& after) {
  const Json patch = Difference(WriteStatus(before), WriteStatus(after));
  return patch.empty() ? std::string() : Dump(Json{{"status", patch}});
}

}  // namespace meshtrain::api
