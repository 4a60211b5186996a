#include "tests/contract/communicator_suite.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "runtime/base/check.h"

namespace meshtrain::collective {
namespace {

using mesh::DType;
using mesh::Mesh;
using mesh::Reduction;

// A mesh of the given text whose devices are dealt to `processes`, process-major.
Mesh MeshOf(const std::string& text, int processes) {
  Mesh plain = *Mesh::Parse(text);
  MT_CHECK(plain.size() % processes == 0);
  std::vector<mesh::Device> devices;
  const int64_t each = plain.size() / processes;
  for (int64_t i = 0; i < plain.size(); ++i) {
    devices.push_back({mesh::DeviceKind::kCpu, static_cast<int>(i / each), static_cast<int>(i % each)});
  }
  return *Mesh::Create(plain.axes(), devices);
}

// Small whole numbers, so that sums are exact in every dtype and any order; different for each rank and place.
double Element(int64_t rank, int64_t i) { return static_cast<double>((rank * 31 + i * 7) % 23); }

void Put(DType dtype, double v, std::byte* at) {
  switch (dtype) {
    case DType::kF32: { const float x = static_cast<float>(v); std::memcpy(at, &x, 4); return; }
    case DType::kF64: std::memcpy(at, &v, 8); return;
    case DType::kI32: { const int32_t x = static_cast<int32_t>(v); std::memcpy(at, &x, 4); return; }
    case DType::kI64: { const int64_t x = static_cast<int64_t>(v); std::memcpy(at, &x, 8); return; }
    default: { const uint8_t x = static_cast<uint8_t>(v); std::memcpy(at, &x, 1); return; }
  }
}

double Get(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kF32: { float x; std::memcpy(&x, at, 4); return x; }
    case DType::kF64: { double x; std::memcpy(&x, at, 8); return x; }
    case DType::kI32: { int32_t x; std::memcpy(&x, at, 4); return x; }
    case DType::kI64: { int64_t x; std::memcpy(&x, at, 8); return static_cast<double>(x); }
    default: { uint8_t x; std::memcpy(&x, at, 1); return x; }
  }
}

double Reduce(Reduction r, double a, double b) {
  return r == Reduction::kSum ? a + b : r == Reduction::kMax ? std::max(a, b) : std::min(a, b);
}

// One case: the communicators of all processes and a send and a receive buffer per rank.
class World {
 public:
  World(const CommunicatorFactory& factory, const std::string& mesh, int processes, DType dtype, int64_t send,
        int64_t receive)
      : mesh_(MeshOf(mesh, processes)), dtype_(dtype), width_(mesh::DTypeBytes(dtype)), processes_(processes),
        communicators_(factory.make(mesh_, processes)) {
    for (int64_t r = 0; r < mesh_.size(); ++r) {
      send_.emplace_back(send * width_);
      receive_.emplace_back(receive * width_, std::byte{0xEE});
      for (int64_t i = 0; i < send; ++i) Put(dtype_, Element(r, i), send_[r].data() + i * width_);
    }
  }

  const Mesh& mesh() const { return mesh_; }
  double sent(int64_t r, int64_t i) const { return Get(dtype_, send_[r].data() + i * width_); }
  double received(int64_t r, int64_t i) const { return Get(dtype_, receive_[r].data() + i * width_); }
  void Set(int64_t r, int64_t i, double v) { Put(dtype_, v, send_[r].data() + i * width_); }
  const std::vector<std::byte>& bytes(int64_t r) const { return receive_[r]; }
  Communicator& of(int process) { return *communicators_[process]; }

  using Call = std::function<Status(Communicator&, std::span<const Participant>)>;
  // Runs `call` in every process; gives the statuses. In place: receives into the send buffers, copies out after.
  std::vector<Status> Run(const Call& call, bool in_place = false) {
    if (in_place) receive_ = send_;
    std::vector<Status> statuses(processes_);
    const auto run = [&](int p) {
      std::vector<Participant> local;
      for (const int64_t r : mesh_.LocalRanks(p)) {
        local.push_back({r, in_place ? receive_[r].data() : send_[r].data(), receive_[r].data()});
      }
      std::reverse(local.begin(), local.end());  // the order of participants says nothing
      statuses[p] = call(*communicators_[p], local);
    };
    std::vector<std::jthread> threads;
    for (int p = 1; p < processes_; ++p) threads.emplace_back(run, p);
    run(0);
    return statuses;
  }

 private:
  Mesh mesh_;
  DType dtype_;
  int64_t width_;
  int processes_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::vector<std::byte>> send_, receive_;
};

void ExpectOk(const std::vector<Status>& statuses) {
  for (const Status& s : statuses) EXPECT_TRUE(s.ok()) << s.ToString();
}

struct Group {
  const char* mesh;
  std::vector<int> axes;
};
const std::vector<Group> kGroups = {{"batch=1", {0}},     {"batch=3", {0}},          {"batch=4,model=2", {0}},
                                    {"batch=4,model=2", {1}}, {"batch=4,model=2", {0, 1}}, {"batch=4,model=2", {1, 0}},
                                    {"a=2,b=2,c=2", {0, 2}},  {"a=2,b=2,c=2", {}}};
const DType kDTypes[] = {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kU8};
// One element, a few, and more than one block of any implementation.
const int64_t kCounts[] = {1, 5, 9001};

int64_t IndexIn(const std::vector<int64_t>& group, int64_t rank) {
  return std::find(group.begin(), group.end(), rank) - group.begin();
}

// Calls `body(factory, processes, group)` for every group and number of processes that can be.
template <typename Body>
void ForEachGroup(const CommunicatorFactory& factory, const Body& body) {
  for (const Group& group : kGroups) {
    const int64_t size = Mesh::Parse(group.mesh)->size();
    for (int processes = 1; processes <= factory.max_processes; processes *= 2) {
      if (size % processes != 0) continue;
      SCOPED_TRACE(std::string(group.mesh) + " over " + testing::PrintToString(group.axes) + " in " +
                   std::to_string(processes) + " processes");
      body(processes, group);
    }
  }
}

TEST_P(CommunicatorSuite, AllReduceGivesEachMemberTheReductionOfItsGroup) {
  ForEachGroup(GetParam(), [&](int processes, const Group& g) {
    for (const int64_t count : kCounts) {
      for (const DType dtype : kDTypes) {
        if (count > 5 && dtype != DType::kF32) continue;
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
          for (const bool in_place : {false, true}) {
            World world(GetParam(), g.mesh, processes, dtype, count, count);
            ExpectOk(world.Run(
                [&](Communicator& c, std::span<const Participant> local) {
                  return c.AllReduce({g.axes, dtype, "test"}, reduction, count, local);
                },
                in_place));
            for (int64_t r = 0; r < world.mesh().size(); ++r) {
              const auto group = world.mesh().Group(r, g.axes);
              for (int64_t i = 0; i < count; ++i) {
                double want = Element(group[0], i);
                for (size_t k = 1; k < group.size(); ++k) want = Reduce(reduction, want, Element(group[k], i));
                ASSERT_EQ(world.received(r, i), want) << "rank " << r << " element " << i;
              }
            }
          }
        }
      }
    }
  });
}

TEST_P(CommunicatorSuite, AllGatherJoinsTheGroupInItsOrder) {
  ForEachGroup(GetParam(), [&](int processes, const Group& g) {
    const int64_t n = static_cast<int64_t>(Mesh::Parse(g.mesh)->Group(0, g.axes).size());
    for (const int64_t count : kCounts) {
      World world(GetParam(), g.mesh, processes, DType::kF32, count, n * count);
      ExpectOk(world.Run([&](Communicator& c, std::span<const Participant> local) {
        return c.AllGather({g.axes, DType::kF32, "test"}, count, local);
      }));
      for (int64_t r = 0; r < world.mesh().size(); ++r) {
        const auto group = world.mesh().Group(r, g.axes);
        for (int64_t i = 0; i < n * count; ++i) {
          ASSERT_EQ(world.received(r, i), Element(group[i / count], i % count)) << "rank " << r << " element " << i;
        }
      }
    }
  });
}

TEST_P(CommunicatorSuite, ReduceScatterGivesEachMemberItsBlockReduced) {
  ForEachGroup(GetParam(), [&](int processes, const Group& g) {
    const int64_t n = static_cast<int64_t>(Mesh::Parse(g.mesh)->Group(0, g.axes).size());
    for (const int64_t count : kCounts) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
        World world(GetParam(), g.mesh, processes, DType::kF64, n * count, count);
        ExpectOk(world.Run([&](Communicator& c, std::span<const Participant> local) {
          return c.ReduceScatter({g.axes, DType::kF64, "test"}, reduction, count, local);
        }));
        for (int64_t r = 0; r < world.mesh().size(); ++r) {
          const auto group = world.mesh().Group(r, g.axes);
          const int64_t from = IndexIn(group, r) * count;
          for (int64_t i = 0; i < count; ++i) {
            double want = Element(group[0], from + i);
            for (size_t k = 1; k < group.size(); ++k) want = Reduce(reduction, want, Element(group[k], from + i));
            ASSERT_EQ(world.received(r, i), want) << "rank " << r << " element " << i;
          }
        }
      }
    }
  });
}

TEST_P(CommunicatorSuite, AllToAllSendsBlockIToMemberI) {
  ForEachGroup(GetParam(), [&](int processes, const Group& g) {
    const int64_t n = static_cast<int64_t>(Mesh::Parse(g.mesh)->Group(0, g.axes).size());
    for (const int64_t count : kCounts) {
      World world(GetParam(), g.mesh, processes, DType::kI32, n * count, n * count);
      ExpectOk(world.Run([&](Communicator& c, std::span<const Participant> local) {
        return c.AllToAll({g.axes, DType::kI32, "test"}, count, local);
      }));
      for (int64_t r = 0; r < world.mesh().size(); ++r) {
        const auto group = world.mesh().Group(r, g.axes);
        for (int64_t i = 0; i < n * count; ++i) {
          ASSERT_EQ(world.received(r, i), Element(group[i / count], IndexIn(group, r) * count + i % count));
        }
      }
    }
  });
}

TEST_P(CommunicatorSuite, BroadcastGivesEveryoneTheRoots) {
  ForEachGroup(GetParam(), [&](int processes, const Group& g) {
    const int64_t n = static_cast<int64_t>(Mesh::Parse(g.mesh)->Group(0, g.axes).size());
    for (const int64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        World world(GetParam(), g.mesh, processes, DType::kI64, count, count);
        ExpectOk(world.Run(
            [&](Communicator& c, std::span<const Participant> local) {
              return c.Broadcast({g.axes, DType::kI64, "test"}, n - 1, count, local);
            },
            in_place));
        for (int64_t r = 0; r < world.mesh().size(); ++r) {
          const int64_t root = world.mesh().Group(r, g.axes)[n - 1];
          for (int64_t i = 0; i < count; ++i) ASSERT_EQ(world.received(r, i), Element(root, i));
        }
      }
    }
  });
}

TEST_P(CommunicatorSuite, SumsAreEqualOnEveryMemberAndFromRunToRun) {
  const std::vector<int> axes = {0};
  std::vector<std::byte> first;
  for (int run = 0; run < 3; ++run) {
    World world(GetParam(), "batch=8", 1, DType::kF32, 50000, 50000);
    for (int64_t r = 0; r < 8; ++r) {
      // Magnitudes far apart, so that another order of adding gives other bits.
      for (int64_t i = 0; i < 50000; ++i) world.Set(r, i, std::ldexp(1.0 + 1e-7 * static_cast<double>(i * r), static_cast<int>(r * i % 29)));
    }
    ExpectOk(world.Run([&](Communicator& c, std::span<const Participant> local) {
      return c.AllReduce({axes, DType::kF32, "test"}, Reduction::kSum, 50000, local);
    }));
    if (run == 0) first = world.bytes(0);
    for (int64_t r = 0; r < 8; ++r) ASSERT_EQ(world.bytes(r), first) << "rank " << r << " run " << run;
  }
}

TEST_P(CommunicatorSuite, MaxKeepsNan) {
  for (int64_t bad = 0; bad < 3; ++bad) {
    World world(GetParam(), "batch=3", 1, DType::kF32, 2, 2);
    world.Set(bad, 1, std::numeric_limits<double>::quiet_NaN());
    ExpectOk(world.Run([&](Communicator& c, std::span<const Participant> local) {
      return c.AllReduce({{0}, DType::kF32, "test"}, Reduction::kMax, 2, local);
    }));
    for (int64_t r = 0; r < 3; ++r) {
      EXPECT_FALSE(std::isnan(world.received(r, 0)));
      EXPECT_TRUE(std::isnan(world.received(r, 1))) << "NaN on rank " << bad;
    }
  }
}

TEST_P(CommunicatorSuite, CountsTheBytesOfTheRing) {
  struct Case {
    const char* what;
    int64_t send, receive, want;
    World::Call call;
  };
  const std::vector<int> axes = {0};  // 4 members of batch=4,model=2
  const Case cases[] = {
      {"all_reduce", 100, 100, 2 * 3 * 400 / 4,
       [&](Communicator& c, std::span<const Participant> p) { return c.AllReduce({axes, DType::kF32, "t"}, Reduction::kSum, 100, p); }},
      {"all_gather", 100, 400, 3 * 400,
       [&](Communicator& c, std::span<const Participant> p) { return c.AllGather({axes, DType::kF32, "t"}, 100, p); }},
      {"reduce_scatter", 400, 100, 3 * 400,
       [&](Communicator& c, std::span<const Participant> p) { return c.ReduceScatter({axes, DType::kF32, "t"}, Reduction::kSum, 100, p); }},
      {"all_to_all", 400, 400, 3 * 400,
       [&](Communicator& c, std::span<const Participant> p) { return c.AllToAll({axes, DType::kF32, "t"}, 100, p); }},
  };
  for (const Case& k : cases) {
    SCOPED_TRACE(k.what);
    World world(GetParam(), "batch=4,model=2", 1, DType::kF32, k.send, k.receive);
    ExpectOk(world.Run(k.call));
    ExpectOk(world.Run(k.call));
    for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(world.of(0).BytesSent(r), 2 * k.want) << "rank " << r;
  }
  World world(GetParam(), "batch=4,model=2", 1, DType::kF32, 100, 100);
  ExpectOk(world.Run([&](Communicator& c, std::span<const Participant> p) {
    return c.Broadcast({axes, DType::kF32, "t"}, 2, 100, p);
  }));
  for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(world.of(0).BytesSent(r), r / 2 == 2 ? 400 : 0);
}

TEST_P(CommunicatorSuite, RefusesCallsThatMakeNoSense) {
  World world(GetParam(), "batch=2,model=2", 1, DType::kF32, 8, 8);
  const auto code = [&](const World::Call& call) { return world.Run(call)[0].code(); };
  EXPECT_EQ(code([](Communicator& c, std::span<const Participant> p) {
              return c.AllReduce({{2}, DType::kF32, "t"}, Reduction::kSum, 8, p);
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Communicator& c, std::span<const Participant> p) {
              return c.AllReduce({{0, 0}, DType::kF32, "t"}, Reduction::kSum, 8, p);
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Communicator& c, std::span<const Participant> p) {
              return c.AllReduce({{0}, DType::kBool, "t"}, Reduction::kSum, 8, p);
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Communicator& c, std::span<const Participant> p) {
              return c.AllReduce({{0}, DType::kF32, "t"}, Reduction::kSum, 8, p.subspan(1));
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Communicator& c, std::span<const Participant> p) {
              return c.Broadcast({{0}, DType::kF32, "t"}, 2, 8, p);
            }),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::collective
