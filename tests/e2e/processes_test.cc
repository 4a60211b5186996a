// The core MLP on one mesh of eight devices that lie in 1, 2, 4 or 8 processes: the same losses,
// step by step.
#include <gtest/gtest.h>

#include <thread>

#include "runtime/collective/fabric.h"
#include "tests/e2e/core_mlp_run.h"
#include "tests/support/tls_contexts.h"

namespace meshtrain {
namespace {

constexpr Duration kConnect = std::chrono::seconds(60);

enum class Links { kMemory, kNetwork, kSealed, kBoth };  // kBoth: two processes a host

struct Case {
  std::string mesh;
  int processes;
  Links links;
  bool isolated;
};

std::string Name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.mesh + "_in_" + std::to_string(info.param.processes) +
                     (info.param.links == Links::kMemory    ? "_memory"
                      : info.param.links == Links::kNetwork ? "_network"
                      : info.param.links == Links::kSealed  ? "_sealed"
                                                            : "_both") +
                     (info.param.isolated ? "_isolated" : "");
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

// Every process as a thread of this one, joined by real links; what each of them saw.
std::vector<Trained> TrainInProcesses(const Case& c, int steps, DType dtype) {
  const Mesh mesh = Mesh::Parse(c.mesh).value().OverProcesses(c.processes).value();
  std::vector<std::unique_ptr<collective::Fabric>> fabrics;
  collective::FabricGroup group{.incarnation = 1};
  const auto tls = c.links == Links::kSealed ? testing_support::NewTlsContext() : nullptr;
  for (int p = 0; p < c.processes; ++p) {
    fabrics.push_back(
        collective::Fabric::Create({.bind = "127.0.0.1", .token = "secret", .tls = tls}).value());
    const int host = c.links == Links::kMemory ? 0 : c.links == Links::kBoth ? p / 2 : p;
    group.processes.push_back({"worker-" + std::to_string(p),
                               "127.0.0.1:" + std::to_string(fabrics[p]->port()),
                               collective::Fabric::HostId() + std::to_string(host)});
  }
  std::vector<Trained> trained(c.processes);
  std::vector<std::jthread> threads;
  for (int p = 0; p < c.processes; ++p) {
    threads.emplace_back([&, p] {
      collective::FabricGroup mine = group;
      mine.process = p;
      const Status connected = fabrics[p]->Connect(mine, kConnect, {});
      ASSERT_TRUE(connected.ok()) << connected.message();
      SessionOptions options{.isolated = c.isolated, .threads = 1, .process = p};
      options.communicator =
          [&, p](const Mesh& m,
                 uint64_t hash) -> Result<std::unique_ptr<collective::Communicator>> {
        return collective::MakeProcessCommunicator(*fabrics[p], m, hash);
      };
      trained[p] = TrainCoreMlp(mesh, std::move(options), steps, dtype);
    });
  }
  threads.clear();
  return trained;
}

class ProcessesTest : public ::testing::TestWithParam<Case> {};

TEST_P(ProcessesTest, GiveTheLossesOfOne) {
  static const Trained one =
      TrainCoreMlp(Mesh::Parse("batch=1").value(), {}, kGoldenSteps, DType::kF32);
  const std::vector<Trained> all = TrainInProcesses(GetParam(), kGoldenSteps, DType::kF32);
  for (const Trained& t : all) {
    ExpectClose(t.losses, one.losses, kGoldenSteps, 1e-5);
    ExpectClose(t.losses, Golden("text_adam_t_counts_f32"), kGoldenSteps, 1e-4);
    EXPECT_EQ(t.losses, all[0].losses);  // the same bits in every process
    if (GetParam().isolated) {
      EXPECT_EQ(t.counted_bytes, t.planned_bytes * kGoldenSteps);
    }
  }
}

// What seals the links changes no bit.
TEST(SealedLinksTest, GiveTheSameLossesBitForBit) {
  constexpr int kSteps = 10;
  const auto of = [](Links links) {
    return TrainInProcesses({"batch=4,model=2", 2, links, false}, kSteps, DType::kF32)[0].losses;
  };
  const auto sealed = of(Links::kSealed);
  EXPECT_EQ(sealed.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(sealed, of(Links::kNetwork));
}

class DoublePrecisionTest : public ::testing::TestWithParam<Case> {};

TEST_P(DoublePrecisionTest, AHundredAndTwentyStepsAgree) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kSteps = 6;
#else
  constexpr int kSteps = 120;
#endif
  static const Trained one = TrainCoreMlp(Mesh::Parse("batch=1").value(), {}, kSteps, DType::kF64);
  for (const Trained& t : TrainInProcesses(GetParam(), kSteps, DType::kF64)) {
    ExpectClose(t.losses, one.losses, kSteps, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, ProcessesTest,
                         ::testing::Values(Case{"batch=8", 2, Links::kMemory, false},
                                           Case{"batch=8", 4, Links::kNetwork, false},
                                           Case{"batch=8", 8, Links::kBoth, false},
                                           Case{"batch=4,model=2", 2, Links::kNetwork, true},
                                           Case{"batch=4,model=2", 4, Links::kBoth, false},
                                           Case{"batch=4,model=2", 8, Links::kMemory, false},
                                           Case{"model=8", 2, Links::kMemory, true},
                                           Case{"model=8", 4, Links::kNetwork, false}),
                         Name);

INSTANTIATE_TEST_SUITE_P(Meshes, DoublePrecisionTest,
                         ::testing::Values(Case{"batch=8", 1, Links::kMemory, true},
                                           Case{"batch=8", 2, Links::kNetwork, false},
                                           Case{"batch=8", 4, Links::kBoth, false},
                                           Case{"batch=8", 8, Links::kMemory, false},
                                           Case{"batch=4,model=2", 4, Links::kBoth, false}),
                         Name);

}  // namespace
}  // namespace meshtrain
