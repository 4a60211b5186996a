// Tensors and variables on a mesh, with devices that share memory and with devices that do not.
#include "runtime/execute/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/collective/local.h"
#include "runtime/execute/function.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/program/ops.h"

namespace meshtrain::execute {
namespace {

using mesh::DType;

Tensor Numbered(mesh::Dims dims) {
  Tensor t(TensorType{DType::kF32, std::move(dims)});
  const auto values = t.mutable_values<float>();
  std::iota(values.begin(), values.end(), 1.0f);
  return t;
}

std::vector<float> Values(const Tensor& t) {
  const auto values = t.values<float>();
  return {values.begin(), values.end()};
}

Layout L(const std::string& text, const Mesh& mesh) { return Layout::Parse(text, mesh).value(); }

class SessionTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Session> session_ = Session::Create({.isolated = GetParam()}).value();
  Mesh mesh_ = Mesh::Parse("batch=4,model=2").value();
};
INSTANTIATE_TEST_SUITE_P(Memory, SessionTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Isolated" : "Shared"; });

TEST_P(SessionTest, WhatIsCopiedToTheMeshComesBack) {
  for (const char* layout :
       {"{*, *}", "{batch, *}", "{model, batch}", "{batch+model, *}", "{*, model+batch}"}) {
    for (const mesh::Dims& dims : {mesh::Dims{8, 16}, mesh::Dims{5, 3}, mesh::Dims{1, 1}}) {
      SCOPED_TRACE(layout);
      const Tensor x = Numbered(dims);
      const auto on_mesh = session_->CopyToMesh(x, L(layout, mesh_));
      ASSERT_TRUE(on_mesh.ok()) << on_mesh.status().message();
      EXPECT_EQ(FetchLayout(*on_mesh), L(layout, mesh_));
      EXPECT_EQ(Values(session_->ToHost(*on_mesh).value()), Values(x));
    }
  }
}

TEST_P(SessionTest, UnpackGivesEachDevicesShardAndPackUndoesIt) {
  const Tensor x = Numbered({6, 4});  // over batch=4: rows 2, 2, 2, 0
  const DTensor on_mesh = session_->CopyToMesh(x, L("{batch, model}", mesh_)).value();
  const std::vector<Tensor> parts = session_->Unpack(on_mesh).value();
  ASSERT_EQ(parts.size(), 8u);
  EXPECT_EQ(Values(parts[0]), (std::vector<float>{1, 2, 5, 6}));
  EXPECT_EQ(Values(parts[1]), (std::vector<float>{3, 4, 7, 8}));
  EXPECT_EQ(Values(parts[5]), (std::vector<float>{19, 20, 23, 24}));
  EXPECT_EQ(parts[6].dims(), (mesh::Dims{0, 2}));
  const auto again = session_->Pack(parts, L("{batch, model}", mesh_));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(Values(session_->ToHost(*again).value()), Values(x));
}

TEST_P(SessionTest, PackNamesTheDeviceWhoseComponentDoesNotFit) {
  std::vector<Tensor> parts(8, Numbered({2, 2}));
  EXPECT_EQ(
      session_->Pack(std::span(parts).subspan(1), L("{batch, model}", mesh_)).status().message(),
      "pack: expected one component for each of the 8 devices, got: 7");
  parts[3] = Numbered({2, 3});
  const Status wrong = session_->Pack(parts, L("{batch, model}", mesh_)).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.message().find("cpu:3"), std::string::npos) << wrong.message();
}

// The four shards of a vector lie in two processes along `batch`: one after another, or by turns.
TEST(SessionOfOneProcessTest, PackTakesShardsThatStandBesideEachOther) {
  std::vector<mesh::Device> devices;
  for (int r = 0; r < 4; ++r) devices.push_back({mesh::DeviceKind::kCpu, r / 2, r % 2});
  const Mesh mesh = Mesh::Create({{"batch", 2}, {"model", 2}}, devices).value();
  auto session = Session::Create({.threads = 1, .process = 1}).value();
  const std::vector<Tensor> parts = {Numbered({1}), Numbered({1})};
  const auto fits = session->Pack(parts, L("{batch+model}", mesh), mesh::Dims{4});
  EXPECT_TRUE(fits.ok()) << fits.status().message();
  const Status turns = session->Pack(parts, L("{model+batch}", mesh), mesh::Dims{4}).status();
  EXPECT_EQ(turns.code(), StatusCode::kFailedPrecondition) << "some are the other process's";
  EXPECT_EQ(session->Pack(parts, L("{batch+model}", mesh)).status().code(),
            StatusCode::kFailedPrecondition)
      << "nobody says what the other process has";
  EXPECT_EQ(session->Pack(parts, L("{batch+model}", mesh), mesh::Dims{4, 1}).status().message(),
            "pack: expected dims of rank 1, got: 2");
  EXPECT_EQ(session->Pack(parts, L("{batch+model}", mesh), mesh::Dims{3}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_P(SessionTest, RelayoutThereAndBackIsIdentity) {
  const Tensor x = Numbered({7, 5});
  const std::vector<std::string> layouts = {"{*, *}", "{batch, *}", "{*, batch}", "{model, batch}",
                                            "{batch+model, *}"};
  for (const std::string& a : layouts) {
    for (const std::string& b : layouts) {
      SCOPED_TRACE(a + " -> " + b);
      const DTensor first = session_->CopyToMesh(x, L(a, mesh_)).value();
      const auto second = session_->Relayout(first, L(b, mesh_));
      ASSERT_TRUE(second.ok()) << second.status().message();
      EXPECT_EQ(second->layout(), L(b, mesh_));
      const auto third = session_->Relayout(*second, L(a, mesh_));
      ASSERT_TRUE(third.ok()) << third.status().message();
      EXPECT_EQ(Values(session_->ToHost(*third).value()), Values(x));
    }
  }
}

TEST_P(SessionTest, FourAxesCarryTensorsThereAndBack) {
  const Mesh mesh = Mesh::Create({{"batch", 2}, {"model", 2}, {"a", 2}, {"b", 1}}).value();
  // Rank 5 is batch 1, model 0, a 1: rows 2 and 3, column 0, the second of each pair.
  const DTensor small =
      session_->CopyToMesh(Numbered({4, 2, 2}), L("{batch, model, a}", mesh)).value();
  const std::vector<Tensor> parts = session_->Unpack(small).value();
  ASSERT_EQ(parts.size(), 8u);
  EXPECT_EQ(parts[5].dims(), (mesh::Dims{2, 1, 1}));
  EXPECT_EQ(Values(parts[5]), (std::vector<float>{10, 14}));

  const std::vector<std::string> layouts = {"{batch, model, a}", "{a+batch, b, *}",
                                            "{model, a+batch, b}", "{b, *, batch+model+a}",
                                            "{*, *, *}"};
  const Tensor x = Numbered({5, 3, 7});
  for (const std::string& from : layouts) {
    const DTensor first = session_->CopyToMesh(x, L(from, mesh)).value();
    EXPECT_EQ(Values(session_->ToHost(first).value()), Values(x)) << from;
    const auto packed = session_->Pack(session_->Unpack(first).value(), L(from, mesh));
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    EXPECT_EQ(Values(session_->ToHost(*packed).value()), Values(x)) << from;
    for (const std::string& to : layouts) {
      SCOPED_TRACE(from + " -> " + to);
      const auto second = session_->Relayout(first, L(to, mesh));
      ASSERT_TRUE(second.ok()) << second.status().message();
      EXPECT_EQ(Values(session_->ToHost(*second).value()), Values(x));
    }
  }
}

TEST_P(SessionTest, OneTensorOnTwoMeshesUnderThreeLayouts) {
  const Mesh other = Mesh::Parse("x=2,y=3").value();
  const Tensor x = Numbered({6, 6});
  for (const Layout& layout :
       {L("{x, *}", other), L("{*, y}", other), L("{*, *}", other), L("{batch, *}", mesh_)}) {
    EXPECT_EQ(Values(session_->ToHost(session_->CopyToMesh(x, layout).value()).value()), Values(x));
  }
  const DTensor here = session_->CopyToMesh(x, L("{batch, *}", mesh_)).value();
  EXPECT_EQ(session_->Relayout(here, L("{x, *}", other)).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_P(SessionTest, PartialOrWronglyRankedLayoutsHoldNoTensor) {
  EXPECT_EQ(session_->CopyToMesh(Numbered({4}), L("{*} sum(batch)", mesh_)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(session_->CopyToMesh(Numbered({4}), L("{*, *}", mesh_)).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_P(SessionTest, RepackSplitsAlongEveryDimensionAndRefusesOrAllowsUnevenShards) {
  const Tensor x = Numbered({8, 4});
  const auto even = RepackLocalTensor(*session_, x, L("{batch, model}", mesh_));
  ASSERT_TRUE(even.ok());
  EXPECT_EQ(Values(session_->ToHost(*even).value()), Values(x));
  const Tensor y = Numbered({9, 4});
  EXPECT_EQ(RepackLocalTensor(*session_, y, L("{batch, *}", mesh_)).status().message(),
            "repack: dimension 0 of f32[9,4]: expected a size that the 4 shards of `batch` divide, "
            "got: 9 "
            "(Uneven::kAllow permits unequal shards)");
  const auto uneven = RepackLocalTensor(*session_, y, L("{batch, *}", mesh_), Uneven::kAllow);
  ASSERT_TRUE(uneven.ok()) << uneven.status().message();
  EXPECT_EQ(Values(session_->ToHost(*uneven).value()), Values(y));
}

// Sessions lay tensors out each in its own way: a shared one has one buffer for all devices.
TEST_P(SessionTest, ATensorOfAnotherSessionIsRefused) {
  const Layout layout = L("{*}", mesh_);
  for (const bool isolated : {false, true}) {
    const auto other = Session::Create({.isolated = isolated}).value();
    const DTensor theirs = other->CopyToMesh(Numbered({4}), layout).value();
    const auto refused = [](const Status& status, const std::string& where) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message(), where +
                                      "expected a tensor of this session, got: f32[4] of "
                                      "another; its DTensor::Whole gives the values");
    };
    refused(DVariable::Create(*session_, "v", theirs).status(), "variable `v`: ");
    const auto v =
        DVariable::Create(*session_, "v", session_->CopyToMesh(Numbered({4}), layout).value());
    ASSERT_TRUE(v.ok()) << v.status().message();
    refused(v->Assign(theirs), "variable `v`: ");
    EXPECT_EQ(Values(v->ToHost().value()), Values(Numbered({4})));
    refused(session_->ToHost(theirs).status(), "");
    refused(session_->Unpack(theirs).status(), "");
    refused(session_->Relayout(theirs, L("{batch}", mesh_)).status(), "relayout: ");
    Function twice(*session_, "twice", {"x"}, [](const Value& x) -> Outputs {
      return {{"y", x + x}};
    });
    refused(twice(theirs).status(), "input `x`: ");
    EXPECT_TRUE(v->Assign(theirs.Whole().value()).ok());
  }
}

// A step is prepared, not run: nobody answers its collectives.
TEST(FedRowsTest, AreThoseThatTheDevicesOfTheProcessTake) {
  using Rows = std::pair<int64_t, int64_t>;
  const Mesh mesh = Mesh::Parse("batch=4").value().OverProcesses(2).value();
  const auto rows_of = [&](const std::string& layout, int64_t rows, bool isolated) {
    std::vector<Rows> all;
    for (const int process : {0, 1}) {
      const auto session =
          Session::Create({.isolated = isolated,
                           .process = process,
                           .communicator = [](const Mesh& m, uint64_t)
                               -> Result<std::unique_ptr<collective::Communicator>> {
                             return collective::MakeLocalCommunicator(m);
                           }})
              .value();
      Function twice(*session, "twice", {"x"}, [](const Value& x) -> Outputs {
        return {{"y", x + x}};
      });
      const auto step = twice.Prepare(std::vector{TensorType{DType::kF32, {rows, 4}}},
                                      std::vector{L(layout, mesh)});
      EXPECT_TRUE(step.ok()) << step.status().message();
      all.push_back((*step)->FedRows(0));
    }
    return all;
  };
  for (const bool isolated : {false, true}) {
    SCOPED_TRACE(isolated);
    EXPECT_EQ(rows_of("{batch, *}", 8, isolated), (std::vector<Rows>{{0, 4}, {4, 8}}));
    EXPECT_EQ(rows_of("{batch, *}", 3, isolated), (std::vector<Rows>{{0, 2}, {2, 3}}));
    EXPECT_EQ(rows_of("{batch, *}", 1, isolated), (std::vector<Rows>{{0, 1}, {0, 0}}));
    EXPECT_EQ(rows_of("{*, batch}", 5, isolated), (std::vector<Rows>{{0, 5}, {0, 5}}));
    EXPECT_EQ(rows_of("{*, *}", 5, isolated), (std::vector<Rows>{{0, 5}, {0, 5}}));
  }
}

}  // namespace
}  // namespace meshtrain::execute
