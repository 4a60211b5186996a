// What a process is told when a job is run here: TF_CONFIG, its environment, the worker's
// arguments.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/file.h"
#include "runtime/cluster/tf_config.h"
#include "tests/operator/local/runner_fixture.h"

namespace meshtrain::local {
namespace {

using cluster::Role;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::JobBuilder;
using testing_support::MakeJob;

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
              ::testing::MatchesRegex("--output " + out + address + " --isolated --threads 3\n"));
  EXPECT_THAT(File("args-worker-1"),
              ::testing::MatchesRegex("--output " + out + "/worker-1" + address +
                                      " --isolated --threads 2\n"));
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

  // The user's manifest stands in for what a cluster would know of it.
  options.manifest = "# mine\nprogram: {}\n";
  options.manifest_name = "jobs/mnist.yaml";
  std::filesystem::remove(folder_ + "/program-worker-1");
  EXPECT_EQ(Play(job, options).ending.exit_code, 0);
  EXPECT_EQ(Output("manifest.as-run.yaml"), options.manifest);
  EXPECT_EQ(File("program-worker-1"), "\n");
  EXPECT_THAT(File("args-worker-1"),
              ::testing::EndsWith(" --file " + out +
                                  "/manifest.as-run.yaml --manifest-name=jobs/mnist.yaml "
                                  "--checkpoint-path " +
                                  claim + "\n"));
  options.manifest.clear();

  // Alone it decides for itself: its threads, and where its checkpoints go.
  auto alone = MakeJob("mnist").Workers(1).Program(testing_support::ProgramOnMesh(3)).Build();
  alone.spec.replica_specs.at(Role::kWorker).pod_template = {};
  options.launch.isolated = false;
  options.launch.metrics_address = "none";
  EXPECT_EQ(Play(alone, options).ending.exit_code, 0);
  EXPECT_EQ(File("args-worker-0"), "--output " + out + " --metrics-address none\n");
  EXPECT_EQ(File("checkpoint-worker-0"), "\n");

  options.manifest = "program: {}";
  options.manifest_name = "-m.yaml";
  EXPECT_EQ(Play(alone, options).ending.exit_code, 0);
  EXPECT_EQ(File("args-worker-0"), "--output " + out + " --metrics-address none --file " + out +
                                       "/manifest.as-run.yaml --manifest-name=-m.yaml\n");

  // A program that the template's environment gives is not the manifest's.
  const auto own =
      MakeJob("mnist")
          .Workers(1)
          .Program(testing_support::ProgramOnMesh(3))
          .Template(Role::kWorker, R"({"spec":{"containers":[{"name":"trainer","image":"any",)"
                                   R"("env":[{"name":"MESHTRAIN_PROGRAM","value":"{}"}]}]}})")
          .Build();
  EXPECT_EQ(Play(own, options).ending.exit_code, 0);
  EXPECT_EQ(File("args-worker-0"), "--output " + out + " --metrics-address none\n");
  EXPECT_EQ(File("program-worker-0"), "{}\n");
}

}  // namespace
}  // namespace meshtrain::local
