// One process' part of a collective in a test: meshes whose devices lie in several processes,
// values whose reductions are exact in every dtype, and the buffers that are sent and received.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/mesh/element_type.h"
#include "runtime/mesh/tensor.h"
#include "tests/contract/communicator_suite.h"

namespace meshtrain::collective::suite {

using mesh::DType;
using mesh::Mesh;
using mesh::Reduction;

// --- meshes and who owns their devices

enum class Deal { kBlocks, kRoundRobin };

// Blocks are as equal as can be, the last ones larger; the process of the first block always has
// the fewest.
inline Mesh MeshOf(const std::string& text, int processes, Deal deal) {
  const Mesh plain = *Mesh::Parse(text);
  std::vector<mesh::Device> devices;
  std::vector<int> used(processes, 0);
  for (int64_t i = 0; i < plain.size(); ++i) {
    const int process = deal == Deal::kRoundRobin
                            ? static_cast<int>(i % processes)
                            : static_cast<int>(((i + 1) * processes - 1) / plain.size());
    devices.push_back({mesh::DeviceKind::kCpu, process, used[process]++});
  }
  return *Mesh::Create(plain.axes(), devices);
}

struct Group {
  const char* mesh;
  std::vector<int> axes;
};
inline const std::vector<Group> kGroups = {{"batch=1", {0}},
                                           {"batch=3", {0}},
                                           {"batch=4", {0}},
                                           {"batch=4,model=2", {0}},
                                           {"batch=4,model=2", {1}},
                                           {"batch=4,model=2", {0, 1}},
                                           {"batch=4,model=2", {1, 0}},
                                           {"batch=3,model=2", {0}},
                                           {"batch=3,model=2", {1}},
                                           {"a=2,b=2,c=2", {0, 2}},
                                           {"a=2,b=2,c=2", {}}};

// --- values

// Small whole numbers, so that sums are exact in every dtype and any order; different for each rank
// and place.
inline double Element(int64_t rank, int64_t i) {
  return static_cast<double>(
      (static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 2246822519u) >> 28);
}

inline void Put(DType dtype, double v, std::byte* at) {
  mesh::WithElementType(dtype, [&](auto zero) {
    const auto x = static_cast<decltype(zero)>(v);
    std::memcpy(at, &x, sizeof x);
  });
}

inline double Get(DType dtype, const std::byte* at) {
  return mesh::WithElementType(dtype, [&](auto x) -> double {
    std::memcpy(&x, at, sizeof x);
    return static_cast<double>(x);
  });
}

inline double Reduce(Reduction r, double a, double b) {
  return r == Reduction::kSum ? a + b : r == Reduction::kMax ? std::max(a, b) : std::min(a, b);
}

// --- one process' part of one case

enum class Where {
  kApart,
  kInPlace,
  kBucket
};  // the receive buffer; kBucket: in place in the communicator's memory

class Part {
 public:
  Part(Member& member, Communicator& communicator, DType dtype, int64_t send, int64_t receive,
       Where where)
      : communicator_(communicator), dtype_(dtype), width_(mesh::DTypeBytes(dtype)), where_(where) {
    std::vector<int64_t> ranks = communicator.mesh().LocalRanks(member.process);
    std::reverse(ranks.begin(), ranks.end());  // the order of participants says nothing
    for (const int64_t r : ranks) {
      Buffers& b = buffers_[r];
      b.send.resize(send * width_ + 1);
      b.receive.assign(receive * width_ + 1, std::byte{0xEE});
      b.from = b.send.data();
      b.to = where == Where::kApart ? b.receive.data() : b.send.data();
      if (where == Where::kBucket && send > 0) {
        const std::span<std::byte> bucket = communicator.BucketMemory(send * width_);
        if (!bucket.empty()) {
          b.from = b.to = bucket.data();  // else it has none to give, and nothing is to be gained
        }
      }
      for (int64_t i = 0; i < send; ++i) Put(dtype, Element(r, i), b.from + i * width_);
      participants_.push_back({r, b.from, b.to});
    }
  }

  std::span<const Participant> participants() const { return participants_; }
  void Set(int64_t rank, int64_t i, double v) {
    if (buffers_.contains(rank)) Put(dtype_, v, buffers_[rank].from + i * width_);
  }
  double received(int64_t rank, int64_t i) { return Get(dtype_, buffers_[rank].to + i * width_); }
  std::string bytes(int64_t rank, int64_t count) {
    return std::string(reinterpret_cast<const char*>(buffers_[rank].to), count * width_);
  }

  // "" if element i of each local rank is want(group, place, i), where the rank is group[place];
  // else the first that is not.
  template <typename Want>
  std::string Check(const std::vector<int>& axes, int64_t count, const Want& want) {
    for (const auto& [rank, b] : buffers_) {
      const std::vector<int64_t> group = communicator_.mesh().Group(rank, axes);
      const int64_t place = std::find(group.begin(), group.end(), rank) - group.begin();
      for (int64_t i = 0; i < count; ++i) {
        const double got = Get(dtype_, b.to + i * width_), wanted = want(group, place, i);
        if (got != wanted) {
          return "rank " + std::to_string(rank) + " element " + std::to_string(i) + ": expected " +
                 std::to_string(wanted) + ", got: " + std::to_string(got);
        }
      }
    }
    return "";
  }

 private:
  struct Buffers {
    std::vector<std::byte> send, receive;
    std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  Communicator& communicator_;
  const DType dtype_;
  const int64_t width_;
  const Where where_;
  std::map<int64_t, Buffers> buffers_;
  std::vector<Participant> participants_;
};

// Calls body(communicator, axes) in this process for every group and deal; the first text that is
// not "".
using GroupBody = std::function<std::string(Communicator& c, const std::vector<int>& axes)>;
inline std::string ForEachGroup(Member& member, const GroupBody& body) {
  for (const Group& group : kGroups) {
    for (const Deal deal : {Deal::kBlocks, Deal::kRoundRobin}) {
      if (deal == Deal::kRoundRobin && member.processes == 1) continue;
      const Mesh mesh = MeshOf(group.mesh, member.processes, deal);
      const std::unique_ptr<Communicator> communicator = member.make(mesh);
      const std::string text = body(*communicator, group.axes);
      if (!text.empty()) {
        return std::string(group.mesh) + " over " + ::testing::PrintToString(group.axes) +
               (deal == Deal::kBlocks ? " in blocks" : " in turn") + ": " + text;
      }
    }
  }
  return "";
}

inline void ForEachNumberOfProcesses(const CommunicatorFactory& factory,
                                     const std::function<std::string(Member&)>& body) {
  for (int processes = 1; processes <= factory.max_processes; ++processes) {
    SCOPED_TRACE(std::to_string(processes) + " processes");
    const std::vector<std::string> texts = factory.run(processes, [&](Member& member) {
      return member.connected.ok() ? body(member) : member.connected.ToString();
    });
    for (int p = 0; p < processes; ++p) EXPECT_EQ(texts[p], "") << "process " << p;
    if (::testing::Test::HasFailure()) return;
  }
}

inline int64_t SizeOf(const Communicator& c, const std::vector<int>& axes) {
  return static_cast<int64_t>(c.mesh().Group(0, axes).size());
}

}  // namespace meshtrain::collective::suite
