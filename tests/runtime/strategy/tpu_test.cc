// What a TPU's address, or the variables of a TPU's host, say about it.
#include "runtime/strategy/tpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/strategy/strategy.h"
#include "tests/runtime/membership/membership_testing.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<TpuCluster> Resolve(const std::string& tpu,
                           std::map<std::string, std::string> variables = {}) {
  return ResolveTpu({.tpu = tpu}, membership::EnvironmentOf(std::move(variables)));
}

// What GKE gives the second of two pods on a v5e slice of eight chips.
const std::map<std::string, std::string> kGke = {{"TPU_WORKER_HOSTNAMES", "job-0.tpu,job-1.tpu"},
                                                 {"TPU_WORKER_ID", "1"},
                                                 {"TPU_NAME", "job"},
                                                 {"TPU_ACCELERATOR_TYPE", "v5litepod-8"},
                                                 {"TPU_CHIPS_PER_HOST_BOUNDS", "2,2,1"},
                                                 {"TPU_TOPOLOGY", "2x4"}};

TEST(TpuTest, AHostKnowsItsSlice) {
  for (const char* asked : {"", "local"}) {
    const TpuCluster tpu = Resolve(asked, kGke).value();
    EXPECT_TRUE(tpu.local);
    EXPECT_THAT(tpu.hosts, ElementsAre("job-0.tpu", "job-1.tpu"));
    EXPECT_EQ(tpu.worker, 1);
    EXPECT_EQ(tpu.chips_per_host, 4);
    EXPECT_EQ(tpu.ToString(), "2 hosts with 4 chips each (v5litepod-8)");
    const mesh::Mesh mesh = TpuMesh(tpu).value();
    EXPECT_EQ(mesh.ToString(), "batch=8");
    EXPECT_EQ(mesh.devices()[5], (mesh::Device{mesh::DeviceKind::kTpu, 1, 1}));
  }
  std::map<std::string, std::string> topology_only = kGke;
  topology_only.erase("TPU_CHIPS_PER_HOST_BOUNDS");
  EXPECT_EQ(Resolve("", topology_only)->chips_per_host, 4);
}

TEST(TpuTest, AddressesAreTakenInTheirForms) {
  EXPECT_THAT(Resolve("grpc://10.0.0.2:8470")->hosts, ElementsAre("10.0.0.2:8470"));
  EXPECT_THAT(Resolve("grpc://10.0.0.2,grpc://[fd00::3]:9000")->hosts,
              ElementsAre("10.0.0.2:8470", "[fd00::3]:9000"));
  EXPECT_THAT(Resolve("tpu.example:1234")->hosts, ElementsAre("tpu.example:1234"));
  const TpuCluster kube =
      Resolve("", {{"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://a:1,grpc://b:2"}}).value();
  EXPECT_THAT(kube.hosts, ElementsAre("a:1", "b:2"));
  EXPECT_FALSE(kube.local);
  EXPECT_EQ(kube.ToString(), "2 hosts with chips of unknown number each");
  EXPECT_THAT(TpuMesh(kube).status().message(), HasSubstr("TPU_CHIPS_PER_HOST_BOUNDS"));
  EXPECT_THAT(Resolve("", {{"TPU_NAME", "grpc://c:3"}})->hosts, ElementsAre("c:3"));
  EXPECT_THAT(Resolve("local")->hosts, ElementsAre("localhost"));
}

TEST(TpuTest, SaysWhatIsWrong) {
  struct Case {
    std::string tpu;
    std::map<std::string, std::string> variables;
    StatusCode code;
    std::string want;
  };
  const Case cases[] = {
      {"",
       {},
       StatusCode::kInvalidArgument,
       "one of KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_WORKER_HOSTNAMES and TPU_NAME"},
      {"my-tpu",
       {},
       StatusCode::kUnimplemented,
       "TPUClusterResolver: `my-tpu` is a name that only Cloud TPU's own"},
      {"", {{"TPU_NAME", "my-tpu"}}, StatusCode::kUnimplemented, "TPU_NAME: `my-tpu` is a name"},
      {"grpc://host:0",
       {},
       StatusCode::kInvalidArgument,
       "expected HOST:PORT or grpc://HOST:PORT, got: grpc://host:0"},
      {"http://host:1", {}, StatusCode::kInvalidArgument, "got: http://host:1"},
      {"fd00::3", {}, StatusCode::kInvalidArgument, "got: fd00::3"},
      {"a:1,", {}, StatusCode::kInvalidArgument, "expected HOST:PORT"},
      {"local",
       {{"TPU_WORKER_HOSTNAMES", "a,b"}},
       StatusCode::kInvalidArgument,
       "TPU_WORKER_ID: expected a number below the 2 hosts of TPU_WORKER_HOSTNAMES, got: nothing"},
      {"local",
       {{"TPU_WORKER_HOSTNAMES", "a,b"}, {"TPU_WORKER_ID", "2"}},
       StatusCode::kInvalidArgument,
       "got: 2"},
      {"local",
       {{"TPU_CHIPS_PER_HOST_BOUNDS", "2,x"}},
       StatusCode::kInvalidArgument,
       "TPU_CHIPS_PER_HOST_BOUNDS: expected sizes from 1, as in 2,2, got: 2,x"},
      {"local",
       {{"TPU_TOPOLOGY", "4x0"}},
       StatusCode::kInvalidArgument,
       "TPU_TOPOLOGY: expected sizes from 1, as in 2x2"},
      {"local",
       {{"TPU_TOPOLOGY", "99999999999x99999999999"}},
       StatusCode::kInvalidArgument,
       "TPU_TOPOLOGY"},
  };
  for (const Case& c : cases) {
    const Status status = Resolve(c.tpu, c.variables).status();
    EXPECT_EQ(status.code(), c.code) << c.want << ": " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(c.want));
  }
}

TEST(TpuTest, TheStrategyIsOverTheChipsOfThisHost) {
  const auto of = [](const TpuClusterResolver& resolver, const std::string& kind,
                     std::map<std::string, std::string> variables) {
    return Strategy::Tpu(resolver, {.device_kind = kind},
                         membership::EnvironmentOf(std::move(variables)));
  };
  std::map<std::string, std::string> one_host = kGke;
  one_host["TPU_WORKER_HOSTNAMES"] = "job-0.tpu";
  one_host["TPU_WORKER_ID"] = "0";
  const auto found = of({}, "cpu", one_host).value();
  EXPECT_EQ(found->name(), "TPUStrategy");
  EXPECT_EQ(found->num_replicas_in_sync(), 4);
  EXPECT_EQ(found->mesh().devices()[3], (mesh::Device{mesh::DeviceKind::kPjrt, 0, 3}));
  EXPECT_EQ(of({.chips = 2}, "pjrt", one_host).value()->num_replicas_in_sync(), 2);
  // A plugin may have devices where no variable tells of a TPU.
  EXPECT_EQ(of({.chips = 8}, "pjrt", {}).value()->mesh().ToString(), "batch=8");
  EXPECT_THAT(of({.chips = 8}, "discrete", {}).status().message(),
              HasSubstr("TPUStrategy: expected devices of the kind tpu or pjrt, got: discrete"));
  const Status far = of({.tpu = "grpc://10.0.0.2"}, "pjrt", {}).status();
  EXPECT_EQ(far.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(far.message(), HasSubstr("got: a server at 10.0.0.2:8470"));
  const Status many = of({}, "pjrt", kGke).status();
  EXPECT_EQ(many.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(many.message(),
              HasSubstr("TPUStrategy on 2 hosts with 4 chips each (v5litepod-8): expected the "
                        "chips of this host alone"));
  EXPECT_EQ(Strategy::Tpu({}, {}, membership::EnvironmentOf({})).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::strategy
