// Session::Pack over two processes of one mesh, as threads: every one has the same whole, or the
// same error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "runtime/collective/local.h"
#include "runtime/collective/thread_parties.h"
#include "runtime/execute/session.h"

namespace meshtrain::execute {
namespace {

using ::testing::HasSubstr;

// body(process, its session), in each of two.
void InTwoProcesses(bool isolated, const std::function<void(int, Session&)>& body) {
  collective::ThreadParties parties({"process 0", "process 1"});
  std::vector<std::jthread> threads;
  for (int p = 0; p < 2; ++p) {
    threads.emplace_back([&, p] {
      SessionOptions options{.isolated = isolated, .threads = 1, .process = p};
      options.communicator =
          [&, p](const Mesh& mesh,
                 uint64_t hash) -> Result<std::unique_ptr<collective::Communicator>> {
        return parties.Join(p, mesh.LocalRanks(p), hash, collective::MakeLocalCommunicator(mesh));
      };
      body(p, *Session::Create(std::move(options)).value());
    });
  }
}

Tensor Counted(const mesh::Dims& dims, mesh::DType dtype = mesh::DType::kF32) {
  Tensor t(TensorType{dtype, dims});
  if (dtype != mesh::DType::kF32) return t;
  const auto values = t.mutable_values<float>();
  std::iota(values.begin(), values.end(), 1.0f);
  return t;
}

// The shards of the mesh's devices in process `p`, cut out of the whole.
std::vector<Tensor> ShardsOf(const Tensor& whole, const Layout& layout, int p) {
  std::vector<Tensor> shards;
  for (const int64_t rank : layout.mesh().LocalRanks(p)) {
    const Layout::Slice slice = layout.SliceOf(rank, whole.dims());
    shards.push_back(whole.Slice(slice.offsets, slice.sizes));
  }
  return shards;
}

class PackTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Memory, PackTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Isolated" : "Shared"; });

TEST_P(PackTest, ProcessesAgreeOnTheWholeOfUnequalShards) {
  const Mesh mesh = Mesh::Parse("batch=4,model=2").value().OverProcesses(2).value();
  InTwoProcesses(GetParam(), [&](int p, Session& session) {
    for (const char* text : {"{*, *}", "{batch, *}", "{*, batch}", "{model, batch}",
                             "{batch+model, *}", "{model+batch, *}"}) {
      const Layout layout = Layout::Parse(text, mesh).value();
      for (const mesh::Dims& dims : {mesh::Dims{8, 8}, mesh::Dims{7, 5}, mesh::Dims{3, 1}}) {
        const Tensor x = Counted(dims);
        for (const bool said : {false, true}) {
          SCOPED_TRACE(std::string(text) + " of " + x.type().ToString());
          const auto packed = session.Pack(ShardsOf(x, layout, p), layout,
                                           said ? std::optional(dims) : std::nullopt);
          ASSERT_TRUE(packed.ok()) << packed.status().ToString();
          EXPECT_EQ(packed->dims(), dims);
          const Tensor whole = packed->Whole().value();
          EXPECT_TRUE(std::ranges::equal(whole.values<float>(), x.values<float>()));
        }
      }
    }
  });
}

TEST_P(PackTest, WhatDoesNotFitInOneProcessIsAnErrorInAll) {
  const Mesh mesh = Mesh::Parse("batch=4").value().OverProcesses(2).value();
  const Layout layout = Layout::Parse("{batch, *}", mesh).value();
  std::array<std::vector<Status>, 2> ends;
  InTwoProcesses(GetParam(), [&](int p, Session& session) {
    std::vector<Tensor> shards = ShardsOf(Counted({8, 3}), layout, p);
    const auto pack = [&] {
      ends[static_cast<size_t>(p)].push_back(session.Pack(shards, layout).status());
    };
    const std::vector<Tensor> good = shards;
    if (p == 1) shards[1] = Counted({1, 2});  // of another width
    pack();
    shards = good;
    if (p == 1) shards[0] = Counted({2, 3}, mesh::DType::kF64);
    pack();
    shards = good;
    if (p == 0) shards.pop_back();
    pack();
    shards = good;
    if (p == 1) shards = {Counted({2, 3}, mesh::DType::kF64), Counted({2, 3}, mesh::DType::kF64)};
    pack();
    shards = good;
    pack();  // and nothing is left of them
  });
  const char* const said[] = {"component of 1/cpu:1: expected f32[1,3]", "component of 1/cpu:", "",
                              "component of 1/cpu:0: expected f32[2,3]"};
  for (const auto& process : ends) {
    ASSERT_EQ(process.size(), 5u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(process[i].code(), StatusCode::kInvalidArgument) << process[i].ToString();
      EXPECT_THAT(process[i].message(), HasSubstr(said[i]));
    }
    EXPECT_TRUE(process[4].ok()) << process[4].ToString();
  }
}

}  // namespace
}  // namespace meshtrain::execute
