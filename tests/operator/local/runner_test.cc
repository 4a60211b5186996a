// What a job is told, says and leaves behind when it is run here. How it ends: cases_test.cc.
#include "operator/local/runner.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "operator/api/json.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/tf_config.h"
#include "tests/operator/local/play.h"

namespace meshtrain::local {
namespace {

using api::ConditionType;
using cluster::Role;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::JobBuilder;
using testing_support::MakeJob;

class RunnerTest : public PlayTest {
 protected:
  RunnerTest() { ::setenv("TMPDIR", folder_.c_str(), 1); }
  ~RunnerTest() override { ::unsetenv("TMPDIR"); }

  std::string File(const std::string& name) const {
    const auto text = ReadFile(folder_ + "/" + name);
    return text.ok() ? *text : "(none)";
  }
  RunnerOptions Quick() const {
    RunnerOptions options{.crash_loop = {.first = std::chrono::milliseconds(50)},
                          .progress_period = std::chrono::milliseconds(50),
                          .linger = std::chrono::seconds(20)};
    options.launch.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"},
                                  {"TEST_FOLDER", folder_},
                                  {"RUNNER", std::to_string(::getpid())}};
    return options;
  }
  // Waits in a shell until that file is there.
  static std::string Await(const std::string& file) {
    return "until [ -e $TEST_FOLDER/" + file + " ]; do sleep 0.02; done; ";
  }
};

// --- what a process is told

class TfConfigTest : public RunnerTest {
 protected:
  // Every replica leaves what it sees; the chief (or worker 0) ends the job when all have.
  std::map<std::string, std::string> Texts(const JobBuilder& builder) {
    const api::TrainingJob job = builder.Build();
    std::string all;
    for (const auto& [role, replica] : job.spec.replica_specs) {
      for (int i = 0; i < replica.replicas; ++i) {
        const std::string task = cluster::ToString(TaskId{role, i});
        std::filesystem::remove(folder_ + "/tf-" + task);  // a job's before this one
        all += " " + task;
      }
    }
    const std::string script =
        "cd $TEST_FOLDER; me=$MESHTRAIN_ROLE-$MESHTRAIN_INDEX; printf %s \"${TF_CONFIG-(unset)}\" "
        ">tf-$me.new; "
        "mv tf-$me.new tf-$me; for other in" +
        all + "; do until [ -e tf-$other ]; do sleep 0.02; done; done";
    const Played played = Play(WithScript(job, script), Quick());
    EXPECT_EQ(played.ending.exit_code, 0) << played.err;
    std::map<std::string, std::string> texts;
    for (const auto& [role, replica] : job.spec.replica_specs) {
      for (int i = 0; i < replica.replicas; ++i) {
        const std::string task = cluster::ToString(TaskId{role, i});
        texts[task] = File("tf-" + task);
      }
    }
    return texts;
  }
  static cluster::TfConfig Parse(const std::string& text) {
    auto config = cluster::ParseTfConfig(text);
    EXPECT_TRUE(config.ok()) << config.status().message() << "\n" << text;
    return config.ok() ? *config : cluster::TfConfig{};
  }
};

TEST_F(TfConfigTest, DenseWithLoopbackPorts) {
  const auto texts = Texts(MakeJob("mnist").Chief().Workers(2).Ps(1).Evaluator());
  ASSERT_EQ(texts.size(), 5u);
  const cluster::TfConfig evaluator = Parse(texts.at("evaluator-0"));
  std::set<std::string> hosts;
  for (const auto& [role, members] : evaluator.cluster.hosts) {
    for (const auto& [index, host] : members) {
      EXPECT_THAT(host, StartsWith("127.0.0.1:"));
      EXPECT_TRUE(hosts.insert(host).second) << host << " twice";
    }
  }
  EXPECT_EQ(hosts.size(), 5u) << "in its own, the evaluator is listed";
  cluster::ClusterSpec shared = evaluator.cluster;
  shared.hosts.erase(Role::kEvaluator);
  for (const auto& [task, text] : texts) {
    if (task == "evaluator-0") continue;
    const cluster::TfConfig config = Parse(text);
    EXPECT_EQ(config.cluster, shared) << task;
    EXPECT_EQ(cluster::ToString(config.task), task);
    EXPECT_EQ(text, cluster::FormatTfConfig(config)) << "compact, sorted, with its environment";
  }
}

TEST_F(TfConfigTest, ALoneProcessGetsNone) {
  EXPECT_EQ(Texts(MakeJob("mnist").Workers(1)).at("worker-0"), "(unset)");
}

TEST_F(TfConfigTest, SparseAndKubeflowKeepTheirSpelling) {
  const auto elastic = [](api::TrainingJob& job) {
    job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 3};
  };
  const auto texts = Texts(MakeJob("mnist").Chief().Workers(2).Ps(1).With(elastic));
  const std::string ps = Parse(texts.at("chief-0")).cluster.host({Role::kPs, 0});
  const std::string worker = Parse(texts.at("chief-0")).cluster.host({Role::kWorker, 1});
  EXPECT_EQ(texts.at("worker-1"),
            R"({"cluster":{"ps":[")" + ps + R"("],"worker":{"1":")" + worker +
                R"("}},"task":{"type":"worker","index":1},"environment":"cloud"})");
  EXPECT_EQ(texts.at("ps-0"), R"({"cluster":{"ps":[")" + ps +
                                  R"("]},"task":{"type":"ps","index":0},"environment":"cloud"})");

  const auto legacy = Texts(MakeJob("mnist").Chief().Workers(2).Ps(1).With(elastic).With(
      [](api::TrainingJob& job) { job.spec.tf_config_compat = api::kCompatKubeflowV1; }));
  EXPECT_THAT(legacy.at("worker-1"), StartsWith(R"({"cluster":{"worker":{"1":"127.0.0.1:)"));
  EXPECT_THAT(legacy.at("ps-0"), StartsWith(R"({"cluster":{"worker":{},"ps":["127.0.0.1:)"));
  EXPECT_THAT(legacy.at("ps-0"), Not(HasSubstr("environment")));
}

TEST_F(TfConfigTest, TheUsersOwnWinsWithAWarning) {
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Workers(1)
          .Template(Role::kChief, ShellTemplate("echo \"got $TF_CONFIG\"",
                                                R"("env":[{"name":"TF_CONFIG","value":"mine"}])"))
          .Template(Role::kWorker, ShellTemplate("exec sleep 1000"))
          .Build();
  RunnerOptions options = Quick();
  options.linger = {};
  const Played played = Play(job, options);
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_EQ(played.out, "got mine\n");
  EXPECT_THAT(
      played.err,
      HasSubstr("warning: ManifestWarning: spec.replicaSpecs.chief.template.spec.containers: sets "
                "TF_CONFIG itself"));
}

TEST_F(RunnerTest, TheEnvironmentIsThePodsAndLittleElse) {
  ::setenv("MESHTRAIN_PROGRAM", "of somebody else", 1);
  const auto job =
      MakeJob("mnist")
          .Workers(1)
          .Template(
              Role::kWorker,
              ShellTemplate("env >$TEST_FOLDER/env; pwd >>$TEST_FOLDER/env; echo $0 $1",
                            R"x("args":["$(MESHTRAIN_JOB)","$(NOT_THERE)"],"workingDir":"/usr")x"))
          .Build();
  const Played played = Play(job, Quick());
  ::unsetenv("MESHTRAIN_PROGRAM");
  EXPECT_EQ(played.ending.exit_code, 0) << played.err;
  const std::string env = File("env");
  for (const char* line :
       {"MESHTRAIN_JOB=ml/mnist\n", "MESHTRAIN_ROLE=worker\n", "MESHTRAIN_INDEX=0\n",
        "MESHTRAIN_ATTEMPT=0\n", "HOSTNAME=mnist-worker-0\n",
        "MESHTRAIN_METRICS_ADDRESS=127.0.0.1:", "MESHTRAIN_TERMINATION_LOG=/", "\n/usr\n"}) {
    EXPECT_THAT(env, HasSubstr(line));
  }
  EXPECT_THAT(env, Not(HasSubstr("MESHTRAIN_PROGRAM")));
  EXPECT_THAT(env, Not(HasSubstr("TMPDIR")));
}

TEST_F(RunnerTest, AJobWithAProgramRunsTheWorkerBesideUs) {
  const std::string worker = folder_ + "/fake-worker";
  const char* script =
      "#!/bin/sh\ncd $TEST_FOLDER; me=$MESHTRAIN_ROLE-$MESHTRAIN_INDEX\n"
      "echo \"$@\" >args-$me; echo \"$MESHTRAIN_CHECKPOINT\" >checkpoint-$me\n"
      "cat $MESHTRAIN_TOKEN_FILE >token-$me; echo \"$MESHTRAIN_PROGRAM\" >program-$me\n"
      "[ $me != chief-0 ] || until [ -e program-worker-1 ]; do sleep 0.02; done\n";
  ASSERT_TRUE(WriteFileAtomically(worker, script).ok());
  std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
  RunnerOptions options = Quick();
  options.launch.worker = worker;
  options.launch.cores = 8;
  options.launch.isolated = true;
  auto job = MakeJob("mnist")
                 .Chief()
                 .Workers(2)
                 .Program(testing_support::ProgramOnMesh(3))
                 .With([](api::TrainingJob& j) {
                   j.spec.strategy = api::kStrategyMesh;
                   j.spec.program_has_mesh = true;
                   j.spec.checkpoint = api::Checkpoint{.every_steps = 5};
                   for (auto& [role, replica] : j.spec.replica_specs) replica.pod_template = {};
                 })
                 .Build();
  const Played played = Play(job, options);
  EXPECT_EQ(played.ending.exit_code, 0) << played.err;
  const std::string out = folder_ + "/out";
  const std::string address = " --metrics-address 127.0.0.1:[0-9]+";
  EXPECT_THAT(File("args-chief-0"),
              testing::MatchesRegex("--output " + out + address + " --isolated --threads 3\n"));
  EXPECT_THAT(File("args-worker-1"), testing::MatchesRegex("--output " + out + "/worker-1" +
                                                           address + " --isolated --threads 2\n"));
  EXPECT_EQ(File("program-worker-1"), testing_support::ProgramOnMesh(3) + "\n");
  EXPECT_EQ(File("token-chief-0").size(), 64u);
  EXPECT_EQ(File("token-chief-0"), File("token-worker-1"));
  // One folder for all of them, since none is given.
  const auto checkpoint = nlohmann::json::parse(File("checkpoint-worker-1"));
  EXPECT_EQ(checkpoint["path"], out + "/checkpoints");
  EXPECT_EQ(checkpoint["everySteps"], 5);

  // A claim is a folder, whatever path it would have had in a pod.
  job.spec.checkpoint = api::Checkpoint{.path = "/ckpt", .volume_claim_template = R"({"spec":{}})"};
  std::filesystem::remove(folder_ + "/program-worker-1");
  EXPECT_EQ(Play(job, options).ending.exit_code, 0);
  const std::string claim = out + "/claims/mnist-checkpoint";
  EXPECT_EQ(nlohmann::json::parse(File("checkpoint-chief-0"))["path"], claim);
  EXPECT_TRUE(std::filesystem::is_directory(claim));

  // Alone it decides for itself: its threads, and where its checkpoints go.
  auto alone = MakeJob("mnist").Workers(1).Program(testing_support::ProgramOnMesh(3)).Build();
  alone.spec.replica_specs.at(Role::kWorker).pod_template = {};
  options.launch.isolated = false;
  options.launch.metrics_address = "none";
  EXPECT_EQ(Play(alone, options).ending.exit_code, 0);
  EXPECT_EQ(File("args-worker-0"), "--output " + out + " --metrics-address none\n");
  EXPECT_EQ(File("checkpoint-worker-0"), "\n");
}

// --- what it says

TEST_F(RunnerTest, OutputGoesWhereItBelongs) {
  const std::string script =
      "if [ $MESHTRAIN_ROLE = chief ]; then printf 'a\\rb'; echo; echo 'chief warns' >&2; " +
      Await("said") +
      "else echo 'worker says'; echo 'worker warns' >&2; printf 'no end' >&2; touch "
      "$TEST_FOLDER/said; fi";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_EQ(played.out, "a\rb\n") << "the leader's, unchanged";
  EXPECT_THAT(played.err, HasSubstr("chief warns\n"));
  EXPECT_THAT(played.err, HasSubstr("worker-0: worker warns\n"));
  EXPECT_THAT(played.err, HasSubstr("worker-0: no end\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr("worker says\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr("worker warns\nno end\n"));
  EXPECT_THAT(Log("worker-0"), StartsWith("--- mnist-worker-0, attempt 0, restart 0, "));
  EXPECT_THAT(Log("chief-0"), HasSubstr("chief warns\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: JobCreated: the job is created\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: JobSucceeded: mnist-chief-0 has succeeded\n"));
  const auto status = nlohmann::json::parse(Output("status.json"));
  EXPECT_EQ(status["phase"], "Succeeded");
  EXPECT_EQ(status, nlohmann::json::parse(api::StatusToJson(played.ending.status)));
}

TEST_F(RunnerTest, NothingOfMuchOutputIsLost) {
  const std::string script = "[ $MESHTRAIN_ROLE = worker ] || seq 1 100000; seq 1 50000 >&2";
  RunnerOptions options = Quick();
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), options);
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_EQ(std::count(played.out.begin(), played.out.end(), '\n'), 100000);
  EXPECT_THAT(played.out, testing::EndsWith("\n100000\n"));
  const std::string log = Log("worker-0");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 50001);
  EXPECT_THAT(played.err, HasSubstr("\nworker-0: 50000\n"));
}

TEST_F(RunnerTest, AReaderThatDoesNotReadKeepsNobodyFromStopping) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  RunnerOptions options = Quick();
  options.stdout_fd = ends[1];
  const std::string script =
      "if [ $MESHTRAIN_ROLE = chief ]; then yes; fi; yes | head -c 1000000 >&2; "
      "kill -TERM $RUNNER; exec sleep 1000";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), options);
  EXPECT_EQ(played.ending.exit_code, 143);
  EXPECT_THAT(Log("worker-0"), HasSubstr("y\ny\n"));
  EXPECT_LT(Log("chief-0").size(), 1'000'000u) << "it is made to wait";
  for (const int end : ends) ::close(end);
}

TEST_F(RunnerTest, ALastMessageIsProgressOrTheReason) {
  const std::string script = "if [ $MESHTRAIN_ROLE = chief ]; then " + Await("failed") +
                             "printf '{\"step\":7,\"totalSteps\":7,\"loss\":0.5}' "
                             ">$MESHTRAIN_TERMINATION_LOG; exit 0; fi; "
                             "if [ $MESHTRAIN_INDEX = 0 ]; then echo first; echo 'out of cheese' "
                             ">&2; exit 1; fi; "
                             "echo noise; printf 'told so' >$MESHTRAIN_TERMINATION_LOG; exit 1";
  RunnerOptions options = Quick();
  options.on_settled = [&](const api::TrainingJob&, const reconcile::Observed& seen) {
    const auto failed = [](const auto& pod) { return pod.phase == reconcile::PodPhase::kFailed; };
    if (std::count_if(seen.pods.begin(), seen.pods.end(), failed) < 2) return;
    EXPECT_TRUE(WriteFileAtomically(folder_ + "/failed", "").ok());  // now the chief may end
  };
  const Played played = Play(WithScript(MakeJob("mnist")
                                            .Chief()
                                            .Workers(2)
                                            .With([](api::TrainingJob& job) {
                                              job.spec.failure_rules = {{.action = "Ignore"}};
                                            })
                                            .Build(),
                                        script),
                             options);
  EXPECT_EQ(played.ending.exit_code, 0) << played.err;
  ASSERT_TRUE(played.ending.status.progress);
  EXPECT_EQ(played.ending.status.progress->step, 7);
  EXPECT_EQ(played.ending.status.progress->loss, 0.5);
  std::map<std::string, std::string> worst;
  for (const auto& trouble : played.ending.status.worst) worst[trouble.pod] = trouble.last_line;
  EXPECT_EQ(worst["mnist-worker-0"], "out of cheese") << "without a message, what it said last";
  EXPECT_EQ(worst["mnist-worker-1"], "told so");
}

TEST_F(RunnerTest, AFailureNamesTheReplicaAndLeavesWithItsCode) {
  const std::string script =
      "[ $MESHTRAIN_ROLE = chief ] && exec sleep 1000; echo 'no such bucket' >&2; exit 66";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, 66);
  EXPECT_THAT(
      played.err,
      HasSubstr("warning: JobFailed: mnist-worker-0 failed with exit code 66 (Error), which is not "
                "retried: no such bucket\n"));
  EXPECT_THAT(played.err,
              HasSubstr("mnist: mnist-worker-0: exit code 66 (Error): no such bucket\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: Failed: ready "));
}

// --- progress

// Stands at step 3, and answers so at any free port.
class ProgressServer {
 public:
  ProgressServer() {
    server_.Get("/progress", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(R"({"step":3,"totalSteps":10,"loss":0.25,"stoppedRank":"worker-1"})",
                           "application/json");
    });
    port = std::to_string(server_.bind_to_any_port("127.0.0.1"));
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~ProgressServer() {
    server_.stop();
    thread_.join();
  }
  std::string port;

 private:
  const StopSignals before_threads_;  // the server's threads are not to take the run's signals
  httplib::Server server_;
  std::thread thread_;
};

TEST_F(RunnerTest, ProgressIsPulledAndAStallIsSeen) {
  const ProgressServer server;
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Template(Role::kChief,
                    ShellTemplate("exec sleep 1000",
                                  R"("ports":[{"name":"meshtrain-http","containerPort":)" +
                                      server.port + "}]"))
          .With([](api::TrainingJob& j) { j.spec.run_policy.progress_deadline_seconds = 3; })
          .Build();
  RunnerOptions options = Quick();
  api::JobStatus stalled;
  options.on_settled = [&](const api::TrainingJob& now, const reconcile::Observed&) {
    const bool stands = api::IsTrue(now.status, ConditionType::kStalled) && now.status.progress;
    if (!stands || stalled.progress) return;
    stalled = now.status;
    ::kill(::getpid(), SIGTERM);
  };
  const Played played = Play(job, options);
  EXPECT_EQ(played.ending.exit_code, 143);
  ASSERT_TRUE(stalled.progress);
  EXPECT_EQ(stalled.progress->step, 3);
  EXPECT_EQ(stalled.conditions.at(ConditionType::kStalled).message,
            "step 3 has not moved on for 3 s or more; worker-1 stopped first");
  EXPECT_THAT(played.err, HasSubstr("warning: JobStalled: step 3"));
}

TEST_F(RunnerTest, ProgressIsPulledFromTheMetricsAddressWhichMayBeAName) {
  const ProgressServer server;
  RunnerOptions options = Quick();
  options.launch.metrics_address = "localhost:" + server.port;
  bool seen = false;
  options.on_settled = [&](const api::TrainingJob& now, const reconcile::Observed&) {
    if (now.status.progress && !std::exchange(seen, true)) ::kill(::getpid(), SIGTERM);
  };
  const auto job =
      MakeJob("mnist")
          .Chief()
          .With([](api::TrainingJob& j) { j.spec.run_policy.active_deadline_seconds = 60; })
          .Build();
  const Played played = Play(WithScript(job, "exec sleep 1000"), options);
  EXPECT_EQ(played.ending.exit_code, 143);
  ASSERT_TRUE(played.ending.status.progress);
  EXPECT_EQ(played.ending.status.progress->step, 3);
}

// --- deadlines and other ends

TEST_F(RunnerTest, TheActiveDeadlineEndsIt) {
  const auto job = WithScript(
      MakeJob("mnist")
          .Chief()
          .Workers(1)
          .With([](api::TrainingJob& j) { j.spec.run_policy.active_deadline_seconds = 3; })
          .Build(),
      "trap 'echo saved; exit 143' TERM; while :; do sleep 0.02; done");
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 70) << "no replica failed";
  EXPECT_EQ(played.condition(ConditionType::kFailed).reason, "DeadlineExceeded");
  EXPECT_EQ(played.out, "saved\n") << "asked to end before it is killed";
}

TEST_F(RunnerTest, AProgramThatIsNotThereFailsForGood) {
  auto job =
      MakeJob("mnist")
          .Chief()
          .Template(Role::kChief,
                    R"({"spec":{"containers":[{"name":"trainer","command":["no-such-program"]}]}})")
          .Build();
  Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 127);
  EXPECT_THAT(played.err, HasSubstr("mnist-chief-0: no-such-program: expected a program in PATH"));
  job.spec.replica_specs.at(Role::kChief).pod_template = api::ReadPodTemplate(
      ShellTemplate("exit 0", R"("workingDir":"/no/such/folder")"), "", nullptr);
  played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 127);
  EXPECT_THAT(played.err, HasSubstr("/no/such/folder"));
}

TEST_F(RunnerTest, AnImageAloneCannotRunHere) {
  const Played played = Play(MakeJob("mnist").Chief().Workers(1).Build(), Quick());
  EXPECT_EQ(played.ending.exit_code, 78);
  for (const char* role : {"chief", "worker"}) {
    EXPECT_THAT(played.err,
                HasSubstr("spec.replicaSpecs." + std::string(role) +
                          ".template.spec.containers[trainer].command: expected a command"));
  }
}

TEST_F(RunnerTest, WhatAPodHasAndAProcessHasNotIsSaid) {
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Template(
              Role::kChief,
              ShellTemplate("exit 0", R"("volumeMounts":[{"name":"data","mountPath":"/data"}])",
                            R"("initContainers":[{"name":"fetch","image":"f"}])"))
          .Build();
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_THAT(played.err,
              HasSubstr("spec.replicaSpecs.chief.template: a local process goes without "
                        "spec.initContainers, volume data at /data\n"));
}

TEST_F(RunnerTest, ASuspendedJobRunsNothingAndSaysSo) {
  const Played played = Play(
      WithScript(MakeJob("mnist").Chief().Suspended().Build(), "touch $TEST_FOLDER/ran"), Quick());
  EXPECT_EQ(played.ending.exit_code, 78);
  EXPECT_TRUE(played.Is(ConditionType::kSuspended));
  EXPECT_THAT(played.err, HasSubstr("spec.runPolicy.suspend is true: nothing was run\n"));
  EXPECT_EQ(File("ran"), "(none)");
}

TEST_F(RunnerTest, AnInvalidJobIsRefused) {
  auto job = WithScript(MakeJob("mnist").Chief().Build(), "exit 0");
  job.spec.replica_specs.at(Role::kChief).replicas = 2;
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 78);
  EXPECT_THAT(played.err, HasSubstr("spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"));
}

TEST_F(RunnerTest, WhatIsAClustersMeansNothingHere) {
  const auto job = WithScript(MakeJob("mnist")
                                  .Chief()
                                  .With([](api::TrainingJob& j) {
                                    j.spec.run_policy.managed_by = "kueue.x-k8s.io/multikueue";
                                    j.spec.run_policy.ttl_seconds_after_finished = 0;
                                    j.spec.run_policy.scheduling_policy =
                                        api::SchedulingPolicy{.queue = "big"};
                                  })
                                  .Build(),
                              "exit 0");
  EXPECT_EQ(Play(job, Quick()).ending.exit_code, 0);
}

TEST_F(RunnerTest, AnOutputFolderThatCannotBe) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/file", "in the way").ok());
  RunnerOptions options = Quick();
  options.launch.output = folder_ + "/file/out";
  const Played played = Play(WithScript(MakeJob("mnist").Chief().Build(), "exit 0"), options);
  EXPECT_EQ(played.ending.exit_code, 73);
  EXPECT_THAT(played.err, HasSubstr("file/out"));
}

TEST_F(RunnerTest, AfterASuccessOthersMayComeToTheirEnd) {
  const std::string script =
      "[ $MESHTRAIN_ROLE = chief ] && exit 0; trap 'echo asked; exit 143' TERM; "
      "[ $MESHTRAIN_ROLE = ps ] && { touch $TEST_FOLDER/ps; while :; do sleep 0.02; done; }; "
      "sleep 0.3; echo 'at its end'";
  // The chief must not be done before the ps has set its trap.
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Ps(1).Build(),
                      "[ $MESHTRAIN_ROLE = chief ] && { " + Await("ps") + "}; " + script),
           Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_THAT(Log("worker-0"), HasSubstr("at its end\n"));
  EXPECT_THAT(Log("worker-0"), Not(HasSubstr("asked")));
  EXPECT_THAT(Log("ps-0"), HasSubstr("asked\n")) << "a ps would never end";
}

TEST_F(RunnerTest, NothingIsLeftBehind) {
  // $$ is Kubernetes' way to write $.
  const std::string script =
      "setsid sh -c 'echo $$$$ >>$TEST_FOLDER/pids; exec sleep 1000' & "
      "until [ $(cat $TEST_FOLDER/pids | wc -l) = 2 ]; do sleep 0.02; done; exit 0";
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/pids", "").ok());
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  int looked = 0;
  for (const std::string& line : Split(File("pids"), '\n')) {
    if (const auto pid = ParseInt(line)) {
      ++looked;
      EXPECT_NE(::kill(static_cast<pid_t>(*pid), 0), 0) << *pid;
    }
  }
  EXPECT_EQ(looked, 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(StartsWith("meshtrain-")))
        << "the private folder";
  }
}

// --- signals

struct SignalCase {
  std::string name;
  std::string script;  // $SIGNAL is sent to the run; the job ends no other way
  int want = 0;
  std::string said;
};
void PrintTo(const SignalCase& c, std::ostream* out) { *out << c.name; }
class SignalTest : public RunnerTest, public testing::WithParamInterface<SignalCase> {};

TEST_P(SignalTest, StopsEverything) {
  const std::string script = "if [ $MESHTRAIN_ROLE = chief ]; then " + Await("ready") +
                             GetParam().script +
                             "; else trap 'echo saved; exit 143' TERM; touch $TEST_FOLDER/ready; "
                             "while :; do sleep 0.02; done; fi";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, GetParam().want) << played.err;
  EXPECT_THAT(played.out + played.err, HasSubstr(GetParam().said));
  if (GetParam().name != "TheSecondKills") {
    EXPECT_THAT(Log("worker-0"), HasSubstr("saved\n"));
  }
  EXPECT_THAT(played.err, HasSubstr("stopping; its processes have 30 s to save"));
}

const SignalCase kSignals[] = {
    {"Term",
     "trap 'echo chief saved; exit 143' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done",
     143, "chief saved\n"},
    {"SaysWhereItIs",
     R"(trap 'printf %s "{\"step\":7,\"checkpoint\":{\"step\":6,\"path\":\"/c/6\"}}" > $MESHTRAIN_TERMINATION_LOG; )"
     "exit 143' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done",
     143, "mnist: stopped at step 7; checkpoint of step 6 in /c/6\n"},
    {"Int",
     "trap 'echo chief saved; exit 143' TERM; kill -INT $RUNNER; while :; do sleep 0.02; done", 130,
     "chief saved\n"},
    {"Hangup",
     "trap 'echo chief saved; exit 143' TERM; kill -HUP $RUNNER; while :; do sleep 0.02; done", 129,
     "chief saved\n"},
    {"ZeroIsNoSuccess", "trap 'exit 0' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done", 143,
     ""},
    {"SavingFailed", "trap 'exit 73' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done", 73,
     "mnist: stopped; its leader left with exit code 73\n"},
    {"TheSecondKills",
     "trap '[ $again ] || { again=1; echo asked; kill -TERM $RUNNER; }' TERM; kill -TERM $RUNNER; "
     "while :; do sleep "
     "0.02; done",
     143, "its leader was killed before it had saved"},
    {"TheProgramOfItsOwnDoesNotCatchIt", "kill -TERM $RUNNER; exec sleep 1000", 143, ""},
};
INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, testing::ValuesIn(kSignals),
                         [](const auto& i) { return i.param.name; });

TEST_F(RunnerTest, WhoDoesNotEndInTimeIsKilled) {
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Template(Role::kChief,
                    ShellTemplate("trap '' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done",
                                  "", R"("terminationGracePeriodSeconds":1)"))
          .Build();
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 143);
  EXPECT_THAT(played.err, HasSubstr("its processes have 1 s to save"));
  EXPECT_THAT(played.err, HasSubstr("killed before it had saved"));
}

TEST_F(RunnerTest, ASignalAfterTheEndHurriesIt) {
  // The worker would be waited for, and does not end when asked to.
  const std::string script =
      "if [ $MESHTRAIN_ROLE = chief ]; then " + Await("ready") +
      "exit 0; fi; trap 'kill -TERM $RUNNER' TERM; touch $TEST_FOLDER/ready; "
      "while :; do sleep 0.02; done";
  RunnerOptions options = Quick();
  options.on_settled = [told = false](const api::TrainingJob& job,
                                      const reconcile::Observed&) mutable {
    if (api::IsFinished(job.status) && !std::exchange(told, true)) ::kill(::getpid(), SIGINT);
  };
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), options);
  EXPECT_EQ(played.ending.exit_code, 0) << "it had succeeded";
}

}  // namespace
}  // namespace meshtrain::local
