// The verbs that speak to a cluster, against a server whose answers stand here: what they ask for,
// what they print, how they end. The real API server has the last word in tests/integration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cluster/connection.h"
#include "cli/verbs.h"
#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "tests/cli/cluster_fixture.h"
#include "tests/cli/manifests.h"

namespace meshtrain::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(ClusterVerbsTest, StatusTellsAllThatIsKnownOfAJob) {
  json status = RunningStatus();
  status["progress"].update(
      {{"epoch", 1.5},
       {"examplesPerSecond", 5000},
       {"etaSeconds", 30},
       {"slowest", {{"replica", "worker-1"}, {"seconds", 0.5}, {"medianSeconds", 0.1}}}});
  status["plan"] = {{"mesh", "batch=2"}, {"peakBytesPerDevice", 2'000'000}};
  status["checkpoint"] = {{"step", 100}, {"path", "/ckpt"}};
  status["replicaStatuses"] = {{"worker", {{"active", 1}, {"failed", 1}, {"restarts", 1}}},
                               {"ps", {{"active", 1}}}};
  status["conditions"] = Condition("Running", "PodsRunning", "all run");
  status["worst"] = json::array({{{"pod", "mnist-worker-1"},
                                  {"exitCode", 137},
                                  {"reason", "OOMKilled"},
                                  {"lastLine", "Killed"}}});
  Answer(JobJson("mnist", status));
  EXPECT_EQ(Verb({"status", "mnist"}), 0) << err_;
  EXPECT_EQ(out_,
            "Name:         mnist\n"
            "Namespace:    ml\n"
            "Phase:        Running\n"
            "Ready:        2/3\n"
            "Restarts:     1\n"
            "Age:          0s\n"
            "Progress:     step 120 of 400, epoch 1.5, 5000 examples/s, 30 s left\n"
            "Loss:         0.25\n"
            "Accuracy:     0.875\n"
            "Slowest:      worker-1, 0.5 s a step; the median is 0.1\n"
            "Plan:         batch=2, at most 2 MB a device\n"
            "Checkpoint:   step 100 in /ckpt\n"
            "\n"
            "ROLE     WANTED   ACTIVE   SUCCEEDED   FAILED   RESTARTS\n"
            "worker   2        1        0           1        1\n"
            "ps       1        1        0           0        0\n"
            "\n"
            "CONDITION   HOLDS   SINCE   REASON\n"
            "Running     yes     0s      PodsRunning   all run\n"
            "\n"
            "IN TROUBLE       EXIT   REASON      LAST LINE\n"
            "mnist-worker-1   137    OOMKilled   Killed\n");
  EXPECT_EQ(Verb({"status", "mnist", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_), JobJson("mnist", status));
}

TEST_F(ClusterVerbsTest, StatusOfAJobThatNobodyHasSeenToOrThatIsNotThere) {
  Answer(JobJson("new", json::object()));
  EXPECT_EQ(Verb({"status", "new"}), 0);
  EXPECT_THAT(out_, HasSubstr("Phase:       not seen by the operator yet\n"));
  EXPECT_EQ(Verb({"status", "none"}), cluster::kExitNoInput);
  EXPECT_THAT(err_, HasSubstr("meshtrain status: trainingjob \"none\" in namespace ml: "));
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_EQ(Verb({"status", "none", "-n", "nlp"}), cluster::kExitNoInput);
  EXPECT_THAT(err_, HasSubstr("in namespace nlp: "));
}

TEST_F(ClusterVerbsTest, ListIsATableOrTheObjects) {
  const std::string head =
      "NAME    PHASE     READY   STEP   PROGRESS   LOSS   ACCURACY   RESTARTS   AGE\n";
  const std::string row =
      "mnist   Running   2/3     120    30%        0.25   0.875      1          0s\n";
  json bare = JobJson("mnist", RunningStatus());  // as items of a list are
  bare.erase("apiVersion");
  bare.erase("kind");
  Answer("GET " + std::string(kJobs), ListOf({bare}));
  EXPECT_EQ(Verb({"list"}), 0) << err_;
  EXPECT_EQ(out_, head + row);
  EXPECT_EQ(Verb({"list", "-q"}), 0);
  EXPECT_EQ(out_, "mnist   Running   2/3   120   30%   0.25   0.875   1   0s\n")
      << "without a head";
  EXPECT_EQ(Verb({"list", "-o", "name"}), 0);
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/mnist\n");
  EXPECT_EQ(Verb({"list", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["items"], json::array({JobJson("mnist", RunningStatus())}));
  // Of all namespaces, and by labels.
  Answer("GET /apis/meshtrain.dev/v1/trainingjobs labelSelector=team=vision", ListOf({bare}));
  EXPECT_EQ(Verb({"list", "-A", "-l", "team=vision"}), 0) << err_;
  EXPECT_EQ(out_, "NAMESPACE   " + head + "ml          " + row);
}

TEST_F(ClusterVerbsTest, AListOfNoneSaysSoBesideTheOutput) {
  Answer("GET " + std::string(kJobs), ListOf({}));
  EXPECT_EQ(Verb({"list"}), 0);
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_EQ(err_, "no TrainingJobs in namespace ml\n");
  EXPECT_EQ(Verb({"list", "-q"}), 0);
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(ClusterVerbsTest, SuspendAndResumeChangeOneFieldOfEachAndGoOnPastAnError) {
  const std::string patch = "PATCH " + std::string(kJobs) + "/mnist";
  Answer(JobJson("mnist", RunningStatus()));
  Answer(JobJson("done", EndedStatus()));
  Answer(patch, "{}");
  EXPECT_EQ(Verb({"suspend", "none", "done", "mnist"}), cluster::kExitNoInput) << "of the first";
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/mnist suspended\n");
  EXPECT_THAT(err_, HasSubstr("trainingjob \"none\""));
  EXPECT_THAT(err_, HasSubstr("\"done\": expected a job that has not ended, got: Succeeded"));
  EXPECT_EQ(asked_.back(), patch + R"( {"spec":{"runPolicy":{"suspend":true}}})");
  EXPECT_EQ(Verb({"resume", "mnist", "--quiet"}), 0);
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_EQ(asked_.back(), patch + R"( {"spec":{"runPolicy":{"suspend":false}}})");
}

TEST_F(ClusterVerbsTest, ScaleWritesTheSubresource) {
  Answer(JobJson("mnist", RunningStatus()));
  Answer("PATCH " + std::string(kJobs) + "/mnist/scale", "{}");
  EXPECT_EQ(Verb({"scale", "mnist", "--workers", "3"}), 0) << err_;
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/mnist scaled to 3 workers\n");
  EXPECT_EQ(asked_.back(),
            "PATCH " + std::string(kJobs) + R"(/mnist/scale {"spec":{"replicas":3}})");
  EXPECT_EQ(Verb({"scale", "mnist", "--workers", "-1"}), cluster::kExitUsage);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(ClusterVerbsTest, EventsAreOldestFirstAndOfThePodsWhereAsked) {
  const auto event = [](const std::string& object, const std::string& time, int count) {
    return json{{"type", "Normal"},
                {"reason", "Seen"},
                {"message", "at " + time},
                {"count", count},
                {"involvedObject", {{"name", object}}},
                {"lastTimestamp", "2149-01-01T00:00:0" + time + "Z"}};
  };
  const std::string events = "GET /api/v1/namespaces/ml/events fieldSelector=involvedObject.kind=";
  Answer(JobJson("mnist", RunningStatus()));
  json uncounted = event("mnist", "3", 1);
  uncounted["count"] = nullptr;
  Answer(events + "TrainingJob,involvedObject.name=mnist",
         ListOf({uncounted, event("mnist", "1", 4)}));
  Answer(events + "Pod", ListOf({event("mnist-worker-1", "2", 1), event("mnist-2-worker-0", "2", 1),
                                 event("mnist-web", "2", 1)}));
  EXPECT_EQ(Verb({"events", "mnist"}), 0) << err_;
  EXPECT_EQ(out_,
            "AGE   TYPE     REASON   OBJECT   MESSAGE\n"
            "0s    Normal   Seen     mnist    at 1 (4 times)\n"
            "0s    Normal   Seen     mnist    at 3\n");
  EXPECT_EQ(Verb({"events", "mnist", "--pods", "-q"}), 0);
  EXPECT_EQ(out_,
            "0s   Normal   Seen   mnist            at 1 (4 times)\n"
            "0s   Normal   Seen   mnist-worker-1   at 2\n"
            "0s   Normal   Seen   mnist            at 3\n");
}

TEST_F(ClusterVerbsTest, EventsOfTheJobStayWhereTheListOfPodsStartsAnew) {
  const auto event = [](const std::string& object) {
    return json{{"type", "Normal"},
                {"reason", "Seen"},
                {"message", "it"},
                {"involvedObject", {{"name", object}}},
                {"lastTimestamp", kLater}};
  };
  const std::string path = "GET /api/v1/namespaces/ml/events ";
  const std::string of_pods = "fieldSelector=involvedObject.kind=Pod";
  Answer(JobJson("mnist", RunningStatus()));
  Answer(path + "fieldSelector=involvedObject.kind=TrainingJob,involvedObject.name=mnist",
         ListOf({event("mnist")}));
  first_answers_[path + of_pods] = {json{
      {"metadata", {{"resourceVersion", "5"}, {"continue", "next"}}},
      {"items",
       {event("mnist-worker-0")}}}.dump()};
  Answer(path + "continue=next " + of_pods,
         R"({"kind":"Status","code":410,"reason":"Expired","message":"too old"})", 410);
  Answer(path + of_pods, ListOf({event("mnist-worker-0"), event("mnist-worker-1")}));
  EXPECT_EQ(Verb({"events", "mnist", "--pods", "-q"}), 0) << err_;
  EXPECT_EQ(out_,
            "0s   Normal   Seen   mnist            it\n"
            "0s   Normal   Seen   mnist-worker-0   it\n"
            "0s   Normal   Seen   mnist-worker-1   it\n");
  EXPECT_THAT(first_answers_, IsEmpty());
}

TEST_F(ClusterVerbsTest, LogsAreTheLeadersOrThoseOfARole) {
  const std::string pods =
      "GET " + std::string(kPods) + " labelSelector=meshtrain.dev/job-name=mnist";
  const auto log = [](const std::string& pod) {
    return "GET " + std::string(kPods) + "/" + pod + "/log";
  };
  Answer(JobJson("mnist", RunningStatus()));
  Answer(pods + ",meshtrain.dev/leader=true", ListOf({Pod("worker", 2)}));
  Answer(pods + ",meshtrain.dev/replica-type=worker",
         ListOf({Pod("worker", 10), Pod("worker", 2)}));
  Answer(pods + ",meshtrain.dev/replica-type=ps", ListOf({}));
  Answer(log("mnist-worker-2"), "two\nand no end of line");
  Answer(log("mnist-worker-10"), "ten\n");
  EXPECT_EQ(Verb({"logs", "mnist", "--tail", "5", "--previous"}), 0) << err_;
  EXPECT_EQ(out_, "two\nand no end of line\n");
  EXPECT_EQ(asked_.back(), log("mnist-worker-2") + " container=trainer previous=true tailLines=5");
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "worker"}), 0) << err_;
  EXPECT_EQ(out_, "[worker-2] two\n[worker-2] and no end of line\n[worker-10] ten\n");
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "worker", "--no-prefix"}), 0);
  EXPECT_EQ(out_, "two\nand no end of line\nten\n");
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "ps"}), cluster::kExitNoInput);
  EXPECT_THAT(err_, HasSubstr("\"mnist\": expected a pod that is chosen, got: none"));
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "boss"}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("--role: expected chief, worker, ps or evaluator, got: boss"));
}

TEST_F(ClusterVerbsTest, SubmitCreatesWhatWasWrittenInTheNamespaceThatIsMeant) {
  const std::string file = Write("job.yaml", JobText());
  const json made = JobJson("digits", json::object());
  Answer("POST " + std::string(kJobs), made.dump(), 201);
  EXPECT_EQ(Verb({"submit", "-f", file}), 0) << err_;
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/digits created\n");
  const std::string post = "POST " + std::string(kJobs) + " ";
  ASSERT_THAT(asked_, ElementsAre(::testing::StartsWith(post)));
  const json sent = json::parse(asked_[0].substr(post.size()));
  EXPECT_EQ(sent["metadata"]["namespace"], "ml");
  EXPECT_EQ(sent["spec"]["program"]["data"]["batch"], 64);
  EXPECT_EQ(Verb({"submit", "-f", file, "--dry-run"}), 0) << err_;
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/digits created (dry run)\n");
  EXPECT_THAT(asked_, ElementsAre(HasSubstr(" dryRun=All ")));
  EXPECT_EQ(Verb({"submit", "-f", file, "-o", "name"}), 0);
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/digits\n");

  const std::string own =
      Write("own.yaml", Replaced(JobText(), "{name: digits}", "{name: digits, namespace: nlp}"));
  EXPECT_EQ(Verb({"submit", "-f", own, "-n", "ml"}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("metadata.namespace: expected ml as --namespace says, got: nlp"));
  EXPECT_THAT(asked_, IsEmpty());
  Answer("POST /apis/meshtrain.dev/v1/namespaces/nlp/trainingjobs", made.dump(), 201);
  EXPECT_EQ(Verb({"submit", "-f", own}), 0) << err_;
  for (const auto& [given, code] :
       {std::pair("5", int{cluster::kExitBadConfig}), std::pair("null", 0)}) {
    const std::string odd =
        Write("odd.yaml", Replaced(JobText(), "{name: digits}",
                                   "{name: digits, namespace: " + std::string(given) + "}"));
    EXPECT_EQ(Verb({"submit", "-f", odd}), code) << given << ": " << err_;
  }

  Answer("POST " + std::string(kJobs),
         R"({"kind":"Status","code":409,"reason":"AlreadyExists","message":"is there"})", 409);
  EXPECT_EQ(Verb({"submit", "-f", file}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("\"digits\" in namespace ml: expected a new name"));
  EXPECT_THAT(out_, IsEmpty());
}

TEST_F(ClusterVerbsTest, SubmitThatWaitsEndsAsTheJobDid) {
  const std::string file = Write("job.yaml", JobText());
  Answer("POST " + std::string(kJobs), JobJson("digits", json::object()).dump(), 201);
  Answer(JobJson("digits",
                 {{"phase", "Failed"},
                  {"conditions", Condition("Failed", "Permanent", "bad data")},
                  {"worst", json::array({{{"pod", "digits-worker-0"}, {"exitCode", 65}}})}}));
  EXPECT_EQ(Verb({"submit", "-f", file, "--wait"}), 65);
  EXPECT_THAT(err_, HasSubstr("trainingjob.meshtrain.dev/digits Failed: bad data\n"));
  Answer(JobJson("digits", EndedStatus()));
  EXPECT_EQ(Verb({"submit", "-f", file, "--wait", "-q"}), 0);
  EXPECT_THAT(out_ + err_, IsEmpty());
}

TEST_F(ClusterVerbsTest, AReportHoldsWhatCouldBeReadAndNoSecret) {
  json job = JobJson("mnist", RunningStatus());
  job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"] =
      json::array({{{"name", "trainer"},
                    {"env", json::array({{{"name", "API_TOKEN"}, {"value", "abc"}},
                                         {{"name", "STEPS"}, {"value", "300"}}})}}});
  Answer(job);
  Answer("GET /api/v1/namespaces/ml/events", ListOf({}));
  Answer("GET " + std::string(kPods), ListOf({Pod("worker", 0)}));
  Answer("GET " + std::string(kPods) + "/mnist-worker-0/log", "step 1\npassword=abc\n");
  const std::string file = folder_.path() + "/r.tar.gz";
  EXPECT_EQ(Verb({"report", "mnist", "-f", file}), 0) << err_;
  EXPECT_EQ(out_, file + "\n");
  EXPECT_THAT(err_, HasSubstr("missing.txt in the archive says what"));
  ASSERT_EQ(std::system(("tar -C " + folder_.path() + " -xzf " + file).c_str()), 0);
  const auto read = [&](const std::string& name) {
    const auto text = ReadFile(folder_.path() + "/mnist-report/" + name);
    return text.ok() ? *text : text.status().ToString();
  };
  EXPECT_THAT(read("job.json"), HasSubstr("\"value\": \"300\""));
  EXPECT_THAT(read("job.json"), Not(HasSubstr("abc")));
  EXPECT_EQ(read("logs/worker-0.log"), "step 1\npassword=REDACTED\n");
  EXPECT_THAT(read("missing.txt"), HasSubstr("mnist-worker-0: ")) << "the pod itself";
  EXPECT_EQ(Verb({"report", "mnist", "-f", file}), cluster::kExitCannotCreate);
  EXPECT_EQ(err_, "meshtrain report: " + file +
                      ": expected no file of this name, got: one that is there already\n");
}

TEST_F(ClusterVerbsTest, AnEmptyNameIsNoJob) {
  Answer("GET " + std::string(kJobs), ListOf({}));
  for (const char* verb : {"status", "logs", "events", "report", "suspend", "resume"}) {
    EXPECT_EQ(Verb({verb, ""}), cluster::kExitUsage) << verb;
    EXPECT_THAT(err_, HasSubstr("expected a job's name, got: an empty one"));
  }
  EXPECT_EQ(Verb({"scale", "mnist", "", "--workers", "1"}), cluster::kExitUsage);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(ClusterVerbsTest, VerboseTellsEachRequest) {
  Answer("GET " + std::string(kJobs), ListOf({}));
  EXPECT_EQ(Verb({"list", "-v"}), 0);
  EXPECT_THAT(err_, HasSubstr("meshtrain: GET 200 in "));
}

TEST(EndOfCallTest, EachErrorHasItsExitCode) {
  const auto server = [](const Status& status) { return status.From(Origin::kApiServer); };
  const std::pair<Status, int> cases[] = {
      {OkStatus(), cluster::kExitDone},
      {server(NotFound("x")), cluster::kExitNoInput},
      {server(Unavailable("x")), cluster::kExitIo},
      {server(DeadlineExceeded("x")), cluster::kExitIo},
      {server(Internal("x")), cluster::kExitInternal},
      {Cancelled("x").From(Origin::kStop), cluster::kExitInterrupted},
      {server(PermissionDenied("x")), cluster::kExitBadConfig},
      {server(InvalidArgument("x")), cluster::kExitBadConfig},
      // What nobody says anything of is ours, and no answer of the server's.
      {NotFound("x"), cluster::kExitCannotCreate},
      {Internal("x"), cluster::kExitInternal},
      {Unavailable("x").From(Origin::kOutput), cluster::kExitIo},
      {NotFound("x").From(Origin::kManifest), cluster::kExitNoInput},
  };
  for (const auto& [status, want] : cases) {
    std::ostringstream out, err;
    EXPECT_EQ(EndOfCall("list", status, {.out = out, .err = err}), want) << status.ToString();
    EXPECT_EQ(err.str(), status.ok() ? "" : "meshtrain list: x\n");
  }
}

}  // namespace
}  // namespace meshtrain::cli
