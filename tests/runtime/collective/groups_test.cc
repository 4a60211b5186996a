#include "runtime/collective/groups.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace meshtrain::collective {
namespace {

using mesh::Mesh;

// `owners`: the process of each device, as digits.
Mesh Owned(const std::string& text, const std::string& owners) {
  std::vector<mesh::Device> devices;
  for (size_t i = 0; i < owners.size(); ++i) {
    devices.push_back({mesh::DeviceKind::kCpu, owners[i] - '0', static_cast<int>(i)});
  }
  return *Mesh::Create((*Mesh::Parse(text)).axes(), devices);
}

std::vector<ProcessGroup> Spanned(const Mesh& mesh, const std::vector<int>& axes, int process,
                                  const std::string& hosts) {
  std::vector<int> host_of;
  for (const char c : hosts) host_of.push_back(c - '0');
  return ProcessGroupsOf(mesh, *GroupsOver(mesh, axes), process, host_of);
}

// "members of each process of each process group, by group.member; levels"
std::string Text(const std::vector<ProcessGroup>& process_groups) {
  std::string text;
  for (const ProcessGroup& peers : process_groups) {
    text += "L" + std::to_string(peers.level) + (peers.plain ? " plain" : "");
    for (int p = 0; p < peers.size(); ++p) {
      text += (p == peers.me ? " *" : " ") + std::to_string(peers.processes[p]) + "@" +
              std::to_string(peers.hosts[p]) + "[";
      for (const Seat& seat : peers.seats[p]) {
        text += std::to_string(seat.group) + "." + std::to_string(seat.member) + ",";
      }
      text += "]";
    }
    text += ";";
  }
  return text;
}

TEST(GroupsTest, AreTheMeshsInItsOrder) {
  const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  Result<Groups> groups = GroupsOver(mesh, {0});
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->size, 4);
  EXPECT_EQ(groups->members, (std::vector<std::vector<int64_t>>{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(groups->place[5], std::pair(1, 2));
  EXPECT_EQ(GroupsOver(mesh, {2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(GroupsOver(mesh, {1, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*GroupsOver(mesh, {})).size, 1);
}

TEST(GroupsTest, ProcessGroupsOfTheWorkedExample) {
  const Mesh mesh = Owned("batch=4,model=2", "00001111");
  EXPECT_EQ(Text(Spanned(mesh, {0}, 0, "00")), "L0 *0@0[0.0,0.1,1.0,1.1,] 1@0[0.2,0.3,1.2,1.3,];");
  EXPECT_EQ(Text(Spanned(mesh, {1}, 1, "00")), "L0 *1@0[2.0,2.1,3.0,3.1,];");
}

TEST(GroupsTest, OneDeviceAProcessIsPlain) {
  EXPECT_EQ(Text(Spanned(Owned("batch=3", "012"), {0}, 1, "012")),
            "L0 plain 0@0[0.0,] *1@1[0.1,] 2@2[0.2,];");
  // Several devices in another process do not matter, one's own would.
  EXPECT_EQ(Text(Spanned(Owned("batch=3", "011"), {0}, 0, "00")),
            "L0 plain *0@0[0.0,] 1@0[0.1,0.2,];");
  EXPECT_EQ(Text(Spanned(Owned("batch=3", "011"), {0}, 1, "00")), "L0 0@0[0.0,] *1@0[0.1,0.2,];");
}

TEST(GroupsTest, ProcessesOfOneHostStandTogether) {
  // Hosts in turn: the process group's order is not that of the group, so its buffers are packed.
  EXPECT_EQ(Text(Spanned(Owned("batch=4", "0123"), {0}, 2, "0101")),
            "L0 0@0[0.0,] *2@0[0.2,] 1@1[0.1,] 3@1[0.3,];");
}

TEST(GroupsTest, ProcessGroupsThatShareAProcessHaveRisingLevels) {
  // {0,2,4} spans processes 0,1,2; {1,3,5} spans 1 and 2.
  const Mesh mesh = Owned("batch=3,model=2", "011222");
  EXPECT_EQ(Text(Spanned(mesh, {0}, 1, "000")),
            "L0 plain 0@0[0.0,] *1@0[0.1,] 2@0[0.2,];L1 plain *1@0[1.0,] 2@0[1.1,1.2,];");
  const std::vector<ProcessGroup> process_groups = Spanned(mesh, {0}, 2, "000");
  std::set<int> levels;
  for (const ProcessGroup& peers : process_groups) levels.insert(peers.level);
  EXPECT_EQ(levels.size(), process_groups.size());
}

// All processes see the same process groups: members, seats and levels; every rank has one seat;
// levels rise along each process.
TEST(GroupsTest, ProcessesAgreeOnProcessGroupsWhateverTheMesh) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 99;
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const char* meshes[] = {"a=6", "a=3,b=2", "a=2,b=2,c=3", "a=4,b=3", "a=1,b=5"};
    const std::string text = meshes[random() % 5];
    const int64_t size = (*Mesh::Parse(text)).size();
    const int processes = 1 + static_cast<int>(random() % 5);
    std::string owners, hosts;
    for (int64_t i = 0; i < size; ++i) owners += static_cast<char>('0' + random() % processes);
    for (int p = 0; p < processes; ++p) hosts += static_cast<char>('0' + random() % 3);
    const Mesh mesh = Owned(text, owners);
    std::vector<int> axes;
    for (int a = 0; a < mesh.num_axes(); ++a) {
      if (random() % 2 == 0) axes.push_back(a);
    }
    std::shuffle(axes.begin(), axes.end(), random);
    std::map<std::vector<int>, std::string> seen;  // by groups
    std::map<int64_t, int> seats;
    for (int p = 0; p < processes; ++p) {
      int last = -1;
      for (ProcessGroup peers : Spanned(mesh, axes, p, hosts)) {
        EXPECT_GT(peers.level, last);
        last = peers.level;
        EXPECT_EQ(peers.processes[peers.me], p);
        for (const Seat& seat : peers.seats[peers.me]) ++seats[seat.rank];
        for (int i = 1; i < peers.size(); ++i) EXPECT_GE(peers.hosts[i], peers.hosts[i - 1]);
        peers.me = -1;
        peers.plain = false;
        const std::string as_text = Text({peers});
        EXPECT_EQ(seen.try_emplace(peers.groups, as_text).first->second, as_text);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seats.size()), size);
    for (const auto& [rank, times] : seats) EXPECT_EQ(times, 1) << rank;
  }
}

}  // namespace
}  // namespace meshtrain::collective
