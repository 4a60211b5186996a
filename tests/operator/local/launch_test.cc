#include "operator/local/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "operator/api/json.h"
#include "operator/reconcile/children.h"
#include "runtime/base/file.h"
#include "runtime/cluster/tf_config.h"
#include "tests/support/job_builder.h"

namespace meshtrain::local {
namespace {

using cluster::Role;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing_support::MakeJob;

TEST(CoresForTest, DividesWithoutRemainderOrOvercommitment) {
  for (int cores = 1; cores <= 20; ++cores) {
    for (int processes = 1; processes <= 25; ++processes) {
      int sum = 0;
      for (int place = 0; place < processes; ++place) {
        const int here = CoresFor(cores, processes, place);
        EXPECT_GE(here, 1);
        EXPECT_LE(here, CoresFor(cores, processes, 0));
        sum += here;
      }
      EXPECT_EQ(sum, std::max(cores, processes)) << cores << " for " << processes;
    }
  }
  EXPECT_EQ(CoresFor(8, 3, 0), 3);
  EXPECT_EQ(CoresFor(8, 3, 2), 2);
}

std::string Variable(const Launch& launch, const std::string& name) {
  for (const std::string& variable : launch.command.environment) {
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  }
  return "(none)";
}

reconcile::CreatePod Pod(TaskId task, int attempt = 0) {
  return {.name = cluster::PodName("mnist", task), .task = task, .attempt = attempt};
}

TEST(LauncherTest, APlaceKeepsItsPortsWhateverBecomesOfItsProcess) {
  const auto job =
      MakeJob("mnist")
          .Workers(2)
          .Template(Role::kWorker,
                    R"({"spec":{"containers":[{"name":"trainer","command":["true"]}]}})")
          .Build();
  const auto launcher = Launcher::Create(job, {.output = "out"});
  ASSERT_TRUE(launcher.ok()) << launcher.status().message();
  const auto first = (*launcher)->Prepare(Pod({Role::kWorker, 1}));
  const auto second = (*launcher)->Prepare(Pod({Role::kWorker, 1}, 3));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(Variable(*first, "TF_CONFIG"), Variable(*second, "TF_CONFIG"));
  EXPECT_EQ(first->progress_addresses, second->progress_addresses);
  EXPECT_EQ(Variable(*second, "MESHTRAIN_ATTEMPT"), "3");
  // And no two of them share one.
  const auto other = (*launcher)->Prepare(Pod({Role::kWorker, 0}));
  EXPECT_NE(other->progress_addresses, first->progress_addresses);
  EXPECT_EQ((*launcher)->OutputFolder({Role::kWorker, 0}), "out");
  EXPECT_EQ((*launcher)->OutputFolder({Role::kWorker, 1}), "out/worker-1");
}

TEST(LauncherTest, TheMetricsAddressIsTheLeaders) {
  auto job = MakeJob("mnist").Chief().Workers(1).Program(testing_support::kProgram).Build();
  for (auto& [role, replica] : job.spec.replica_specs) replica.pod_template = {};
  const auto address = [&](const std::string& given, TaskId task) {
    const auto launcher = Launcher::Create(job, {.worker = "worker", .metrics_address = given});
    const auto launch = (*launcher)->Prepare(Pod(task));
    const auto& arguments = launch->command.arguments;
    const auto at = std::find(arguments.begin(), arguments.end(), "--metrics-address");
    return at == arguments.end() ? std::string("(none)") : *(at + 1);
  };
  constexpr TaskId kChief{Role::kChief, 0};
  EXPECT_EQ(address("none", kChief), "none");
  EXPECT_EQ(address("0.0.0.0:8080", kChief), "0.0.0.0:8080");
  EXPECT_THAT(address("0.0.0.0:0", kChief), ::testing::MatchesRegex("0\\.0\\.0\\.0:[1-9][0-9]+"));
  EXPECT_THAT(address(":0", kChief), ::testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]+"));
  EXPECT_THAT(address("0.0.0.0:8080", {Role::kWorker, 0}),
              ::testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]+"));
}

TEST(LauncherTest, ALargeClusterLiesInAFileOfThisMachine) {
  auto job = MakeJob("mnist").Workers(2).Program(testing_support::kProgram).Build();
  job.spec.replica_specs.at(Role::kWorker).pod_template = {};
  // The body of a pod of a large job, with the variable that names the file.
  job.spec.replica_specs.at(Role::kWorker).pod_template = api::ReadPodTemplate(
      R"({"spec":{"containers":[{"name":"trainer","env":[{"name":"MESHTRAIN_CLUSTER_FILE",)"
      R"("value":"/etc/meshtrain/cluster/cluster.json"}]}]}})",
      "", nullptr);
  const auto launcher = Launcher::Create(job, {.worker = "worker"});
  ASSERT_TRUE(launcher.ok());
  ASSERT_TRUE((*launcher)->Make(reconcile::ClusterMap(job, {})).ok());
  const auto launch = (*launcher)->Prepare(Pod({Role::kWorker, 1}));
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  const auto text = ReadFile(Variable(*launch, "MESHTRAIN_CLUSTER_FILE"));
  ASSERT_TRUE(text.ok()) << text.status().message();
  const auto in_file = cluster::ParseClusterFile(*text);
  ASSERT_TRUE(in_file.ok());
  EXPECT_EQ(*in_file, cluster::ParseTfConfig(Variable(*launch, "TF_CONFIG"))->cluster);
  EXPECT_THAT(in_file->host({Role::kWorker, 1}), ::testing::StartsWith("127.0.0.1:"));
}

TEST(LauncherTest, ClaimsAreFoldersAndTheOutputIsOurs) {
  auto job = MakeJob("mnist").Workers(2).Evaluator().Program(testing_support::kProgram).Build();
  for (auto& [role, replica] : job.spec.replica_specs) replica.pod_template = {};
  job.spec.claims = {{.name = "digits", .path = "data"}};
  job.spec.output = api::Output{.claim = "runs"};
  const auto launcher = Launcher::Create(job, {.output = "out", .worker = "worker"});
  ASSERT_TRUE(launcher.ok()) << launcher.status().message();
  std::vector<std::string> notes;
  EXPECT_TRUE((*launcher)->Check(&notes).ok());
  EXPECT_THAT(notes, ::testing::IsEmpty()) << "nothing is left out";
  const auto launch = (*launcher)->Prepare(Pod({Role::kWorker, 1}));
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->command.directory, "") << "paths begin where the user stands";
  EXPECT_EQ(Variable(*launch, "MESHTRAIN_CHECKPOINT"),
            R"({"path":"out/checkpoints","resume":"Latest"})");
  EXPECT_EQ(Variable(*launch, "MESHTRAIN_OUTPUT"),
            std::filesystem::absolute("out/worker-1").string());
}

// What a template sets of it is the user's.
TEST(LauncherTest, ACheckpointThatIsNoneNamesNoPath) {
  for (const char* odd : {R"({\"path\":5})", "[1]", "soon"}) {
    const auto job =
        MakeJob("mnist")
            .Workers(2)
            .Program(testing_support::kProgram)
            .Template(Role::kWorker,
                      std::string(R"({"spec":{"containers":[{"name":"trainer","image":"t","env":[)"
                                  R"({"name":"MESHTRAIN_CHECKPOINT","value":")") +
                          odd + R"("}]}]}})")
            .Build();
    const auto launcher = Launcher::Create(job, {.output = "out", .worker = "worker"});
    ASSERT_TRUE(launcher.ok()) << launcher.status().message();
    EXPECT_TRUE((*launcher)->Prepare(Pod({Role::kWorker, 1})).ok());
  }
}

TEST(LauncherTest, SecretsAreNobodyElsesAndGoWithIt) {
  const auto job = MakeJob("mnist").Workers(1).Program(testing_support::kProgram).Build();
  std::string path;
  {
    const auto launcher = Launcher::Create(job, {.worker = "worker"});
    ASSERT_TRUE((*launcher)->Make(reconcile::TokenSecret(job)).ok());
    const auto launch = (*launcher)->Prepare(Pod({Role::kWorker, 0}));
    path = Variable(*launch, "MESHTRAIN_TOKEN_FILE");
    const std::string token = ReadFile(path).value();
    EXPECT_EQ(token.size(), 64u);
    ASSERT_TRUE((*launcher)->Make(reconcile::TokenSecret(job)).ok());
    EXPECT_EQ(ReadFile(path).value(), token) << "asked for again, it stays";
    const auto folder = std::filesystem::path(path).parent_path();
    EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(LauncherTest, OnlyWhatCannotRunIsRefused) {
  const std::string env =
      R"("env":[{"name":"KEY","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}])";
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Workers(1)
          .Ps(1)
          .Template(Role::kChief, R"({"spec":{"containers":[{"name":"trainer","args":["--x"]}]}})")
          .Template(Role::kWorker,
                    R"({"spec":{"containers":[{"name":"t","command":["true"],)" + env + "}]}}")
          .Template(Role::kPs, R"({"spec":{"containers":[{"name":"t","command":["true"]}]}})")
          .Build();
  const auto launcher = Launcher::Create(job, {});
  std::vector<std::string> notes;
  const Status status = (*launcher)->Check(&notes);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("spec.replicaSpecs.chief.template.spec.containers[trainer].command"));
  EXPECT_THAT(status.message(),
              HasSubstr("spec.replicaSpecs.worker.template.spec.containers: env KEY"));
  EXPECT_THAT(status.message(), ::testing::Not(HasSubstr(".ps.")));
}

}  // namespace
}  // namespace meshtrain::local
