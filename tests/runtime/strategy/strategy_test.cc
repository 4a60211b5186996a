// Making strategies, their scopes, and the variables they hold.
#include "runtime/strategy/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <thread>

#include "runtime/collective/local.h"
#include "runtime/device/pjrt/pjrt_backend.h"
#include "runtime/nn/layers.h"
#include "runtime/plan/plan.h"
#include "runtime/program/ops.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/strategy/dataset.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;
using ::testing::HasSubstr;

TEST(StrategyTest, HasTheReplicasItWasMadeWith) {
  struct Want {
    std::string name;
    int64_t replicas, local;
  };
  const std::map<std::string, Want> want = {
      {"Default", {"DefaultStrategy", 1, 1}},
      {"OneDevice", {"OneDeviceStrategy", 1, 1}},
      {"Mirrored2", {"MirroredStrategy", 2, 2}},
      {"CentralStorage2", {"CentralStorageStrategy", 2, 2}},
      {"MultiWorkerMirrored3", {"MultiWorkerMirroredStrategy", 3, 1}},
      {"MultiWorkerMirrored2Times2", {"MultiWorkerMirroredStrategy", 4, 2}}};
  size_t seen = 0;
  for (const StrategyCase& c : AllStrategies()) {
    const auto row = want.find(c.name);
    if (row == want.end()) continue;
    ++seen;
    ForReplicas(c, [&](ReplicaStrategy& s) -> Status {
      MT_WANT(s.name() == row->second.name);
      MT_WANT(s.num_replicas_in_sync() == row->second.replicas);
      MT_WANT(s.local_replicas() == row->second.local);
      MT_WANT(s.first_replica() == s.process() * s.local_replicas());
      MT_WANT(s.chief() == (s.process() == 0));
      MT_WANT(s.mesh().ToString() ==
              (row->second.replicas == 1 ? "" : "batch=" + std::to_string(row->second.replicas)));
      return OkStatus();
    });
  }
  EXPECT_EQ(seen, want.size());
}

TEST(StrategyTest, DevicesAreChecked) {
  EXPECT_EQ(
      Strategy::Mirrored({.devices = {"cpu:0", "cpu:1", "cpu:2"}}).value()->num_replicas_in_sync(),
      3);
  EXPECT_EQ(Strategy::Mirrored().value()->num_replicas_in_sync(), 1)
      << "what is found without GPUs";
  EXPECT_THAT(Strategy::Mirrored({.devices = {"cpu:0", "cpu:0"}}).status().message(),
              HasSubstr("got twice: cpu:0"));
  EXPECT_EQ(Strategy::Mirrored({.devices = {"cpu:0"}, .count = 2}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Strategy::Mirrored({.count = -1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Strategy::OneDevice("gpu").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Strategy::OneDevice("1/cpu:0").status().code(), StatusCode::kInvalidArgument);
  const auto cuda = Strategy::OneDevice("cuda:0");
  if (device::HasPjrt()) {
    // None is named, or the processors' is.
    ASSERT_TRUE(cuda.ok());
    EXPECT_THAT((*cuda)->session().status().message(), HasSubstr("expected a plugin"));
  } else {
    EXPECT_EQ(cuda.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(cuda.status().message(),
                HasSubstr("OneDeviceStrategy: device cuda:0: this build has no backend for cuda "
                          "devices, expected one of the kinds cpu, discrete"));
  }
  const auto walls = Strategy::Mirrored({.devices = {"discrete:1", "discrete:0"}}).value();
  EXPECT_EQ(walls->mesh().devices(),
            (std::vector<mesh::Device>{{mesh::DeviceKind::kDiscrete, 0, 1},
                                       {mesh::DeviceKind::kDiscrete, 0, 0}}));
  EXPECT_EQ(walls->session().value()->options().device_kind, "discrete");
  EXPECT_THAT(Strategy::Mirrored({.devices = {"cpu:0", "discrete:0"}}).status().message(),
              HasSubstr("expected devices of one kind, got: cpu:0 and discrete:0"));
  EXPECT_THAT(Strategy::OneDevice("cpu:0", {.device_kind = "discrete"}).status().message(),
              HasSubstr("expected devices of the kind discrete, got: cpu:0"));
}

TEST(StrategyTest, AskingForNcclWithoutGpusWarns) {
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Strategy::MultiWorkerMirrored({.communication = Communication::kNccl}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(HasSubstr("no GPUs"), HasSubstr("RING")));
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Strategy::Mirrored({.cross_device_ops = CrossDeviceOps::kNccl}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no GPUs"));
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Strategy::MultiWorkerMirrored({.communication = Communication::kRing}).ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(StrategyTest, SeveralProcessesNeedACommunicator) {
  EXPECT_THAT(Strategy::MultiWorkerMirrored({.processes = 2}).status().message(),
              HasSubstr("expected a communicator"));
  EXPECT_EQ(Strategy::MultiWorkerMirrored({.process = 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(StrategyTest, ScopesSayWhoseTheVariablesAre) {
  EXPECT_FALSE(HasStrategy());
  Strategy& own = GetStrategy();
  EXPECT_EQ(own.name(), "DefaultStrategy");
  EXPECT_EQ(&own, &GetStrategy());
  Strategy* other = nullptr;
  std::jthread([&] { other = &GetStrategy(); }).join();
  EXPECT_NE(other, &own) << "each thread has its own";

  const auto outer = Strategy::Mirrored({.count = 2}).value();
  const auto inner = Strategy::OneDevice("cpu:0").value();
  std::optional<nn::Parameter> in_outer, in_inner;
  {
    const auto scope = outer->Scope();
    EXPECT_TRUE(HasStrategy());
    EXPECT_EQ(&GetStrategy(), outer.get());
    {
      const auto nested = inner->Scope();
      EXPECT_EQ(&GetStrategy(), inner.get());
      in_inner.emplace("v", mesh::TensorType{DType::kF32, {}}, nn::Initializer::Constant(2));
    }
    EXPECT_EQ(&GetStrategy(), outer.get());
    in_outer.emplace("v", mesh::TensorType{DType::kF32, {}}, nn::Initializer::Constant(3));
  }
  EXPECT_FALSE(HasStrategy());
  EXPECT_EQ(outer->Read(*in_outer).value().Item(), 3);
  EXPECT_EQ(inner->Read(*in_inner).value().Item(), 2);
  const Status foreign = outer->Read(*in_inner).status();
  EXPECT_EQ(foreign.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(foreign.message(),
              HasSubstr("variable `v`: expected one that was made under this strategy's scope"));
  // Also when a function uses it.
  const ReplicaFunction read("read", [&]() -> Value { return *in_inner + 0.0; });
  EXPECT_EQ(outer->Run(read).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(inner->Run(read).ok());
}

TEST(StrategyTest, VariablesBeginEqualInAllReplicasAndProcesses) {
  std::vector<std::vector<float>> seen(3);
  const auto one = Strategy::Default({.seed = 11}).value();
  const auto begin = [](ReplicaStrategy& s) -> Result<std::vector<float>> {
    const auto scope = s.Scope();
    nn::Dense dense(4);
    const ReplicaFunction call("call", [&](Value x) -> Value { return dense(x); });
    PerReplica x;
    for (int64_t i = 0; i < s.local_replicas(); ++i) {
      x.values.push_back(Floats({1, 8}, std::vector<float>(8, 1)));
    }
    const std::vector<PerReplica> inputs = {x};
    MT_RETURN_IF_ERROR(s.Run(call, inputs).status());
    MT_ASSIGN_OR_RETURN(const auto copies, s.LocalResults(dense.kernel()));
    for (const Tensor& copy : copies) MT_WANT(FloatsOf(copy) == FloatsOf(copies[0]));
    return FloatsOf(copies[0]);
  };
  const std::vector<float> want = begin(*one).value();
  EXPECT_NE(want, begin(*Strategy::Default({.seed = 12}).value()).value());
  EXPECT_EQ(want, begin(*Strategy::Mirrored({.count = 3, .common = {.seed = 11}}).value()).value());
  const auto ends = RunProcesses(3, [&](FakeProcess& self) -> Status {
    MT_ASSIGN_OR_RETURN(const auto s,
                        Strategy::MultiWorkerMirrored({.process = self.process,
                                                       .processes = 3,
                                                       .communicator = self.communicator,
                                                       .devices_per_worker = 2,
                                                       .common = {.seed = 11}}));
    MT_ASSIGN_OR_RETURN(const std::vector<float> got, begin(*s));
    MT_WANT(got == want);
    return OkStatus();
  });
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
}

TEST(StrategyTest, AssignAndReadBeforeAndAfterTheFirstStep) {
  const auto s = Strategy::Mirrored({.count = 2}).value();
  const auto scope = s->Scope();
  const nn::Parameter v("v", {DType::kF32, {2}}, nn::Initializer::Ones());
  EXPECT_EQ(s->Assign(v, Tensor::Scalar(1.0f)).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(s->Assign(v, Floats({2}, {5, 6})).ok());
  EXPECT_EQ(FloatsOf(s->Read(v).value()), (std::vector<float>{5, 6}));
  const ReplicaFunction twice("twice", [&]() { program::Assign(v, v * 2.0); });
  ASSERT_TRUE(s->Run(twice).ok());
  EXPECT_EQ(FloatsOf(s->Read(v).value()), (std::vector<float>{10, 12}));
  ASSERT_TRUE(s->Assign(v, Floats({2}, {1, 2})).ok());
  ASSERT_TRUE(s->Run(twice).ok());
  const std::vector<Tensor> copies = s->LocalResults(v).value();
  for (const Tensor& copy : copies) EXPECT_EQ(FloatsOf(copy), (std::vector<float>{2, 4}));
}

TEST(StrategyTest, AFunctionIsTracedOncePerShapeAndForgottenWithItsLastCopy) {
  const auto s = Strategy::Mirrored({.count = 2}).value();
  int traces = 0;
  {
    const ReplicaFunction count("count", [&](Value x) -> Value {
      ++traces;
      return program::ReduceSum(x);
    });
    for (const int64_t n : {4, 4, 3, 4, 3}) {  // 2+2, 2+1
      const auto batch = s->DistributeBatch(
          std::vector<Tensor>{Floats({n}, std::vector<float>(static_cast<size_t>(n), 1))});
      ASSERT_TRUE(s->Run(count, *batch).ok());
    }
    // [2] of a batch of four; [2] and [1] of a batch of three.
    EXPECT_EQ(traces, 3);
    const ReplicaFunction copy = count;
    const auto batch = s->DistributeBatch(std::vector<Tensor>{Floats({4}, {1, 1, 1, 1})});
    ASSERT_TRUE(s->Run(copy, *batch).ok());
    EXPECT_EQ(traces, 3);
    EXPECT_NE(s->last_plan(copy), nullptr);
  }
  const ReplicaFunction other("other", []() -> Value { return program::Ones({}); });
  ASSERT_TRUE(s->Run(other).ok());
  EXPECT_EQ(s->last_plan(other)->local().outputs.size(), 1u);
}

// --- ways to sum

TEST(CrossDeviceTest, EveryWaySumsTheSameAndEverywhereAlike) {
  using collective::GroupCall;
  using collective::Participant;
  for (const CrossDeviceOps ops : {CrossDeviceOps::kAuto, CrossDeviceOps::kHierarchicalCopy,
                                   CrossDeviceOps::kReductionToOneDevice, CrossDeviceOps::kRing}) {
    for (const char* text :
         {"batch=1", "batch=2", "batch=3", "batch=5", "batch=8", "batch=3,model=2"}) {
      const mesh::Mesh mesh = mesh::Mesh::Parse(text).value();
      const auto communicator = MakeCrossDeviceCommunicator(mesh, ops);
      for (const int64_t count : {0, 1, 2, 7, 64}) {
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(std::string(text) + " count " + std::to_string(count));
          std::vector<std::vector<int32_t>> in(static_cast<size_t>(mesh.size())), out(in.size());
          std::vector<Participant> local;
          for (int64_t r = 0; r < mesh.size(); ++r) {
            auto& own = in[static_cast<size_t>(r)];
            for (int64_t i = 0; i < count + 1; ++i) {
              own.push_back(static_cast<int32_t>(r * 100 + i));
            }
            out[static_cast<size_t>(r)] = own;
            auto* send = reinterpret_cast<std::byte*>(own.data());
            auto* receive = reinterpret_cast<std::byte*>(out[static_cast<size_t>(r)].data());
            local.push_back({.rank = r, .send = in_place ? receive : send, .receive = receive});
          }
          const Status done =
              communicator->AllReduce({.axes = {0}, .dtype = DType::kI32, .what = "test"},
                                      mesh::Reduction::kSum, count, local);
          ASSERT_TRUE(done.ok()) << done.ToString();
          for (int64_t r = 0; r < mesh.size(); ++r) {
            for (int64_t i = 0; i < count; ++i) {
              int32_t want = 0;
              for (const int64_t member : mesh.Group(r, {0})) {
                want += in[static_cast<size_t>(member)][static_cast<size_t>(i)];
              }
              ASSERT_EQ(out[static_cast<size_t>(r)][static_cast<size_t>(i)], want);
            }
            // One past the end is nobody's.
            ASSERT_EQ(out[static_cast<size_t>(r)].back(), static_cast<int32_t>(r * 100 + count));
          }
        }
      }
      std::vector<Participant> missing;
      EXPECT_EQ(
          communicator->AllReduce({.axes = {0}, .what = "none"}, mesh::Reduction::kSum, 1, missing)
              .code(),
          StatusCode::kInvalidArgument);
    }
  }
}

TEST(CrossDeviceTest, EachWayAddsInItsOwnOrder) {
  // 2^24 + 1 is not an f32: who is added to whom first shows.
  const auto sum = [](CrossDeviceOps ops) {
    const mesh::Mesh mesh = mesh::Mesh::Parse("batch=4").value();
    std::vector<float> values = {16777216, 1, 1, 1};
    std::vector<collective::Participant> local;
    for (int64_t r = 0; r < 4; ++r) {
      auto* at = reinterpret_cast<std::byte*>(&values[static_cast<size_t>(r)]);
      local.push_back({.rank = r, .send = at, .receive = at});
    }
    EXPECT_TRUE(MakeCrossDeviceCommunicator(mesh, ops)
                    ->AllReduce({.axes = {0}, .what = "sum"}, mesh::Reduction::kSum, 1, local)
                    .ok());
    for (const float v : values) EXPECT_EQ(v, values[0]);
    return values[0];
  };
  EXPECT_EQ(sum(CrossDeviceOps::kReductionToOneDevice), 16777216);  // ((big + 1) + 1) + 1
  EXPECT_EQ(sum(CrossDeviceOps::kHierarchicalCopy), 16777218);      // (big + 1) + (1 + 1)
  EXPECT_EQ(sum(CrossDeviceOps::kRing), 16777220);                  // ((1 + 1) + 1) + big
}

TEST(CrossDeviceTest, AStrategyAddsAsItWasAsked) {
  const auto sum = [](CrossDeviceOps ops) {
    const auto strategy = Strategy::Mirrored({.count = 4, .cross_device_ops = ops}).value();
    const ReplicaFunction add("add", [](Value x) -> Value {
      return ReplicaContext::Current()->AllReduce(ReduceOp::kSum, program::ReduceSum(x));
    });
    const std::vector<Tensor> batch = {Floats({4}, {16777216, 1, 1, 1})};
    const std::vector<PerReplica> sums =
        strategy->Run(add, strategy->DistributeBatch(batch).value()).value();
    for (const Tensor& s : sums[0].values) EXPECT_EQ(s.Item(), sums[0].values[0].Item());
    return sums[0].values[0].Item();
  };
  EXPECT_EQ(sum(CrossDeviceOps::kReductionToOneDevice), 16777216);
  EXPECT_EQ(sum(CrossDeviceOps::kHierarchicalCopy), 16777218);
  EXPECT_EQ(sum(CrossDeviceOps::kRing), 16777220);
}

// Of a kind that counts its devices; of CPUs there are as many as a mesh asks for.
TEST(StrategyDevicesTest, WithoutACountAllThatAreFoundAreUsed) {
  constexpr const char* kOptions = "MESHTRAIN_DISCRETE_OPTIONS";
  ::setenv(kOptions, "devices=3", 1);
  const auto mirrored = Strategy::Mirrored({.common = {.device_kind = "discrete"}});
  const auto central = Strategy::CentralStorage({.common = {.device_kind = "discrete"}});
  const auto two = Strategy::Mirrored({.count = 2, .common = {.device_kind = "discrete"}});
  ::unsetenv(kOptions);
  ASSERT_TRUE(mirrored.ok() && central.ok() && two.ok()) << mirrored.status().message();
  EXPECT_EQ((*mirrored)->num_replicas_in_sync(), 3);
  EXPECT_EQ((*central)->num_replicas_in_sync(), 3);
  EXPECT_EQ((*two)->num_replicas_in_sync(), 2);
  EXPECT_EQ(Strategy::Mirrored({}).value()->num_replicas_in_sync(), 1);
}

}  // namespace
}  // namespace meshtrain::strategy
