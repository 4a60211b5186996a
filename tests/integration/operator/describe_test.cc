// What `kubectl describe` says of jobs in which something went wrong: docs/reference/kubectl.md
// shows the conditions and events of each as they come out here. MT_CAPTURE_FAILURES=FILE keeps
// that part of the page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <thread>

#include "operator/kube/credentials.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"
#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// What `kubectl describe` prints, as far as it is the same in every run: without times and ages,
// events in the order of their types and reasons, and without the condition and the event that
// every job has.
struct Described {
  std::vector<std::string> conditions;
  std::string advice;
  std::vector<std::string> events;

  // It is put together from two answers: the job, and then its events. One may be behind the other.
  bool IsWhole() const { return !conditions.empty() && !advice.empty() && !events.empty(); }
  std::string Text() const;
};

std::string Described::Text() const {
  std::string out = "Conditions:\n";
  for (const std::string& condition : conditions) out += condition;
  out += advice + "Events:\n";
  for (const std::string& event : events) out += event;
  return out;
}

Described WhatWentWrong(const std::string& described) {
  std::istringstream lines(described);
  Described out;
  auto& [conditions, advice, events] = out;
  enum class Part { kNone, kConditions, kEvents } part = Part::kNone;
  for (std::string line; std::getline(lines, line);) {
    const std::string_view word = Trim(line);
    if (word.starts_with("What To Do:")) {
      advice = "  What To Do:  " + std::string(Trim(word.substr(11))) + "\n";
      part = Part::kNone;
    } else if (word == "Conditions:") {
      part = Part::kConditions;
    } else if (line == "Events:") {
      part = Part::kEvents;
    } else if (part == Part::kConditions && line.starts_with("    ")) {
      if (word.starts_with("Last Transition Time:")) conditions.emplace_back();
      if (word.starts_with("Message:") || word.starts_with("Reason:") ||
          word.starts_with("Status:") || word.starts_with("Type:")) {
        conditions.back() += line + "\n";
      }
    } else if (part == Part::kConditions) {
      part = Part::kNone;
    } else if (part == Part::kEvents && !word.starts_with("Type ") && !word.starts_with("----")) {
      // Type, reason, age, whence and message, two blanks or more between them.
      std::vector<std::string> cells;
      for (size_t at = line.find_first_not_of(' '); at != std::string::npos;) {
        size_t end = cells.size() == 4 ? line.size() : line.find("  ", at);
        end = std::min(end, line.size());
        cells.push_back(line.substr(at, end - at));
        at = line.find_first_not_of(' ', end);
      }
      if (cells.size() != 5) {
        ADD_FAILURE() << "no event: " << line;
        continue;
      }
      if (cells[1] == "JobCreated") continue;
      events.push_back("  " + cells[0] + "  " + cells[1] + "  " + cells[3] + "  " + cells[4] +
                       "\n");
    }
  }
  std::erase_if(conditions, [](const std::string& text) {
    return text.find("  JobCreated\n") != std::string::npos;
  });
  std::sort(events.begin(), events.end());
  return out;
}

class DescribeTest : public OperatorTest {
 protected:
  // One failure: a job of that name is described as soon as `event` is among its events and its
  // status tells of it.
  void Show(const std::string& title, const std::string& job, const std::string& event) {
    std::string described;
    Described shown;
    EXPECT_TRUE(Eventually(
        [&] {
          if (!node_.empty()) KeepReady();
          described = TryKubectl({"describe", "tj", job}).out;
          shown = WhatWentWrong(described);
          return described.find(" " + event + " ") != std::string::npos && shown.IsWhole();
        },
        std::chrono::seconds(120)))
        << described;
    const std::string part = "### " + title + "\n\n```console\n$ kubectl describe tj " + job +
                             "\n" + shown.Text() + "```\n";
    page_ += (page_.empty() ? "" : "\n") + part;
    parts_.push_back(part);
  }

  void Patch(const std::string& pod, const json& status) {
    const auto patched =
        api().client().Patch(kube::Pods(), ns_, pod, "status", kube::PatchType::kMerge,
                             json{{"status", status}}.dump(), {});
    EXPECT_TRUE(patched.ok()) << patched.status().ToString();
  }

  // A node that is there, and the pod on it.
  void Bind(const std::string& pod, const std::string& node) {
    const json object = {{"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", {{"name", node}}}};
    EXPECT_EQ(api().Kubectl({"create", "-f", "-"}, object.dump()).exit_code, 0);
    node_ = node;
    KeepReady();
    const json binding = {{"apiVersion", "v1"},
                          {"kind", "Binding"},
                          {"metadata", {{"name", pod}}},
                          {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}}}};
    Kubectl(
        {"create", "--raw", "/api/v1/namespaces/" + ns_ + "/pods/" + pod + "/binding", "-f", "-"},
        binding.dump());
  }

  // The kubelet's heartbeat, without which a node is soon taken for lost.
  void KeepReady() {
    const json ready = {{"type", "Ready"},
                        {"status", "True"},
                        {"lastHeartbeatTime", FormatTime(SystemClock().Now())}};
    const auto patched =
        api().client().Patch(kube::Nodes(), "", node_, "status", kube::PatchType::kMerge,
                             json{{"status", {{"conditions", {ready}}}}}.dump(), {});
    EXPECT_TRUE(patched.ok()) << patched.status().ToString();
  }

  // As the kubelet tells why a container waits.
  static json Waiting(const std::string& reason, const std::string& message, int restarts = 0) {
    return {{"name", "trainer"},
            {"image", "i"},
            {"imageID", ""},
            {"ready", false},
            {"restartCount", restarts},
            {"state", {{"waiting", {{"reason", reason}, {"message", message}}}}}};
  }

  std::string node_;
  std::string page_;
  std::vector<std::string> parts_;
};

TEST_F(DescribeTest, TheDocsShowWhatIsSaidOfEachFailure) {
  StartOperator();

  // The API server's quota.
  Kubectl({"create", "quota", "team", "--hard=pods=0"});
  ASSERT_TRUE(Eventually([&] {
    return TryKubectl({"get", "quota", "team", "-o", "jsonpath={.status.hard.pods}"}).out == "0";
  }));
  ApplyJob("over-quota", 0, 1);
  Show("A quota", "over-quota", "QuotaExceeded");
  Kubectl({"delete", "quota", "team"});
  Kubectl({"delete", "tj", "over-quota"});

  // A volume that does not mount: the kubelet tells nothing in the pod's status, so it takes a
  // minute to be noticed.
  ApplyJob("no-mount", 0, 1);
  ASSERT_TRUE(WaitForPods("no-mount", 1));
  Bind("no-mount-worker-0", "node-7");
  Patch("no-mount-worker-0", {{"conditions", {{{"type", "PodScheduled"}, {"status", "True"}}}},
                              {"containerStatuses", {Waiting("ContainerCreating", "")}}});

  // A Service of somebody else's.
  Kubectl({"create", "service", "clusterip", "name-taken", "--tcp=80"});
  ApplyJob("name-taken", 0, 1);
  Show("A name that is taken", "name-taken", "NameTaken");

  // A part of the manifest that only pods' own rules refuse.
  const json asks = {{"requests", {{"cpu", "2"}}}, {"limits", {{"cpu", "1"}}}};
  ApplyJob("refused", 0, 1,
           {{"replicaSpecs",
             {{"worker",
               {{"template",
                 {{"spec",
                   {{"containers",
                     {{{"name", "trainer"}, {"image", "i"}, {"resources", asks}}}}}}}}}}}}});
  Show("A manifest that pods' rules refuse", "refused", "Refused");

  // What the scheduler tells.
  ApplyJob("no-room", 0, 1);
  ASSERT_TRUE(WaitForPods("no-room", 1));
  Patch("no-room-worker-0",
        {{"conditions",
          {{{"type", "PodScheduled"},
            {"status", "False"},
            {"reason", "Unschedulable"},
            {"message",
             "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 "
             "nodes are available: 3 No preemption victims found for incoming pod."}}}}});
  Show("No node has room", "no-room", "Unschedulable");

  // What the kubelet tells.
  ApplyJob("no-image", 0, 1);
  ASSERT_TRUE(WaitForPods("no-image", 1));
  Patch("no-image-worker-0",
        {{"containerStatuses",
          {Waiting("ImagePullBackOff",
                   "Back-off pulling image \"registry.example/mnist:2\": ErrImagePull: rpc error: "
                   "code = NotFound desc = failed to pull and unpack image "
                   "\"registry.example/mnist:2\": not found")}}});
  Show("An image that cannot be pulled", "no-image", "ImagePull");

  ApplyJob("crashes", 0, 1, {{"replicaSpecs", {{"worker", {{"restartPolicy", "OnFailure"}}}}}});
  ASSERT_TRUE(WaitForPods("crashes", 1));
  json crashed = Waiting("CrashLoopBackOff",
                         "back-off 1m20s restarting failed container=trainer "
                         "pod=crashes-worker-0_ml(0b4bd9b8-38ba-4dd6-8d0b-100000000000)",
                         /*restarts=*/4);
  const std::string now = FormatTime(SystemClock().Now());
  crashed["lastState"]["terminated"] = {
      {"exitCode", 1},
      {"reason", "Error"},
      {"startedAt", now},
      {"finishedAt", now},
      {"message",
       "Traceback (most recent call last):\n  File \"/app/train.py\", line 3, in "
       "<module>\n    import data\nModuleNotFoundError: No module named 'data'\n"}};
  Patch("crashes-worker-0", {{"phase", "Running"}, {"containerStatuses", {crashed}}});
  Show("A program that ends again and again", "crashes", "CrashLoop");

  ApplyJob("no-secret", 0, 1);
  ASSERT_TRUE(WaitForPods("no-secret", 1));
  Patch("no-secret-worker-0",
        {{"containerStatuses",
          {Waiting("CreateContainerConfigError", "secret \"wandb-key\" not found")}}});
  Show("A container that waits", "no-secret", "ContainerWaits");

  Show("A volume that does not mount", "no-mount", "SlowStart");

  // A program that fails.
  ApplyJob("fails", 0, 1, {{"runPolicy", {{"backoffLimit", 0}}}});
  ASSERT_TRUE(WaitForPods("fails", 1));
  Patch("fails-worker-0",
        {{"phase", "Failed"},
         {"containerStatuses",
          {{{"name", "trainer"},
            {"image", "i"},
            {"imageID", "i"},
            {"ready", false},
            {"restartCount", 0},
            {"state",
             {{"terminated",
               {{"exitCode", 1},
                {"reason", "Error"},
                {"startedAt", now},
                {"finishedAt", now},
                {"message", "ValueError: expected 784 columns, got: 783\n"}}}}}}}}});
  Show("A program that fails", "fails", "JobFailed");

  // A rank that stands still, as the chief tells.
  httplib::Server chief;
  chief.Get("/progress", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"step":1200,"totalSteps":4000,"stoppedRank":"worker-1"})",
                         "application/json");
  });
  const int port = chief.bind_to_any_port("127.0.0.1");
  ASSERT_GT(port, 0);
  std::jthread serving([&] { chief.listen_after_bind(); });
  const std::shared_ptr<void> stops(nullptr, [&](void*) { chief.stop(); });
  const json container = {{"name", "trainer"},
                          {"image", "i"},
                          {"ports", {{{"name", "meshtrain-http"}, {"containerPort", port}}}}};
  ApplyJob(
      "stalls", 1, 2,
      {{"runPolicy", {{"progressDeadlineSeconds", 12}}},
       {"replicaSpecs", {{"chief", {{"template", {{"spec", {{"containers", {container}}}}}}}}}}});
  ASSERT_TRUE(WaitForPods("stalls", 3));
  for (const char* pod : {"stalls-chief-0", "stalls-worker-0", "stalls-worker-1"}) SetRunning(pod);
  Patch("stalls-chief-0", {{"podIP", "127.0.0.1"}, {"podIPs", {{{"ip", "127.0.0.1"}}}}});
  Show("A rank that stands still", "stalls", "JobStalled");

  // Under gang scheduling, a template with a scheduler of its own.
  StopOperators();
  Kubectl({"apply", "-f",
           std::string(MT_SOURCE_DIR) + "/tests/testdata/crds/scheduling.x-k8s.io_podgroups.yaml"});
  AwaitCrd("podgroups.scheduling.x-k8s.io");
  const CommandResult rights =
      api().Helm({"template", "meshtrain", std::string(MT_SOURCE_DIR) + "/helm/meshtrain",
                  "--namespace", "meshtrain-system", "--kube-version", "v1.34.0", "--set",
                  "gangScheduler=scheduler-plugins", "-s", "templates/rbac.yaml"});
  ASSERT_EQ(rights.exit_code, 0) << rights.out;
  ASSERT_EQ(api().Kubectl({"apply", "-f", "-"}, rights.out).exit_code, 0);
  const OperatorProcess gang(operator_kubeconfig_, {"--no-leader-elect", "--namespace", ns_,
                                                    "--gang-scheduler", "scheduler-plugins"});
  ASSERT_TRUE(Eventually([&] { return gang.Log().find("watching") != std::string::npos; }));
  const json own = {{"schedulerName", "bin-packer"},
                    {"containers", {{{"name", "trainer"}, {"image", "i"}}}}};
  ApplyJob("not-in-gang", 0, 2, {{"replicaSpecs", {{"worker", {{"template", {{"spec", own}}}}}}}});
  Show("A template's own scheduler under gang scheduling", "not-in-gang", "OtherScheduler");

  if (const char* file = std::getenv("MT_CAPTURE_FAILURES")) {
    EXPECT_TRUE(WriteFileAtomically(file, page_).ok());
  }
  const auto docs = ReadFile(std::string(MT_SOURCE_DIR) + "/docs/reference/kubectl.md");
  ASSERT_TRUE(docs.ok());
  EXPECT_GE(parts_.size(), 10u);
  for (const std::string& part : parts_) {
    EXPECT_THAT(*docs, HasSubstr(part)) << "capture it again: MT_CAPTURE_FAILURES";
  }
}

}  // namespace
}  // namespace meshtrain::testing
