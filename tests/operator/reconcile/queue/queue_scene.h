// A scene with Kueue in it: what the operator writes about its Workload happens to it, and the test
// says what Kueue does.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "operator/reconcile/workload.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {

class QueueScene : public Scene {
 public:
  explicit QueueScene(JobBuilder builder, const std::string& queue = "research")
      : Scene(builder.With([&](api::TrainingJob& made) {
          if (!queue.empty()) made.metadata.labels[std::string(kLabelQueue)] = queue;
        })) {
    seen.settings.queue = QueueManager::kKueue;
    seen.queue.flavors["a100"] = {.node_labels = {{"pool", "a100"}},
                                  .tolerations = R"([{"key":"gpu","operator":"Exists"}])"};
  }

  WorkloadSeen& workload() { return *seen.queue.workload; }
  bool there() const { return seen.queue.workload.has_value(); }
  bool Has(const std::string& condition) const {
    return there() && WorkloadStatus(*seen.queue.workload).Is(condition);
  }

  // What the last Look wrote happens, to pods and to the Workload.
  QueueScene& Happen() {
    Obey();
    for (const Action& action : last.actions) {
      if (const auto* w = std::get_if<CreateWorkload>(&action.write)) {
        seen.queue.workload = WorkloadSeen{.name = w->name,
                                           .uid = "wl-" + std::to_string(++made_),
                                           .resource_version = "1",
                                           .controller_uid = job.metadata.uid,
                                           .generation = 1};
        Merge(nlohmann::json::parse(w->body));
      } else if (const auto* w = std::get_if<PatchWorkload>(&action.write)) {
        if (there()) Merge(nlohmann::json::parse(w->body));
      } else if (std::holds_alternative<DeleteWorkload>(action.write)) {
        seen.queue.workload.reset();
      }
    }
    return *this;
  }

  // --- Kueue's side.
  void Say(const std::string& type, bool status, const std::string& reason,
           const std::string& message) {
    WorkloadStatus changed(workload());
    changed.Set(type, {.status = status, .reason = reason, .message = message}, At(0));
    Merge(nlohmann::json::parse(changed.Patch(false).body));
  }
  void Pend(const std::string& message) { Say("QuotaReserved", false, "Pending", message); }
  void Admit(const std::string& flavor = "a100") {
    workload().cluster_queue = "cluster";
    for (const auto& [name, count] : workload().pod_sets) {
      workload().assigned[name] = {.count = count, .flavors = {flavor}};
    }
    Say("QuotaReserved", true, "QuotaReserved", "Quota reserved in ClusterQueue cluster");
    Say("Admitted", true, "Admitted", "The workload is admitted");
    if (Has("Evicted")) Say("Evicted", false, "QuotaReserved", "Previously: evicted");
  }
  void Evict(const std::string& reason, const std::string& message) {
    Say("Evicted", true, reason, message);
  }

 private:
  void Merge(const nlohmann::json& body) {
    WorkloadSeen& now = workload();
    now.resource_version = std::to_string(std::stoi(now.resource_version) + 1);
    if (body.contains("spec")) {
      const auto& spec = body["spec"];
      ++now.generation;
      now.queue = spec.value("queueName", now.queue);
      if (spec.contains("podSets")) {
        now.pod_sets.clear();
        for (const auto& set : spec["podSets"]) now.pod_sets[set["name"]] = set["count"];
      }
      if (spec.contains("priorityClassRef")) {
        const auto& ref = spec["priorityClassRef"];
        now.priority_class = ref.is_null() ? "" : ref["name"].get<std::string>();
        now.of_workloads = !ref.is_null() && ref["kind"] == "WorkloadPriorityClass";
      }
    }
    const nlohmann::json::json_pointer annotations("/metadata/annotations");
    if (body.contains(annotations)) {
      now.stamp = body[annotations].value(std::string(kAnnotationPodSets), now.stamp);
    }
    if (!body.contains("status")) return;
    now.conditions = body["status"]["conditions"].dump();
    if (body["status"].contains("admission")) {
      now.cluster_queue.clear();
      now.assigned.clear();
    }
  }

  int made_ = 0;
};

}  // namespace meshtrain::reconcile
