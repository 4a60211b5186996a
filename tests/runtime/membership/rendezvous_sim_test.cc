// A job's processes and their network, simulated: the real roster and the real rendezvous clients,
// with virtual time. Streams break and lose what was under way, messages are late, processes are
// killed, stopped, replaced and resumed, the one that serves too. What must hold always is checked
// at every step; what must hold in the end, after a while of peace. Long: the processes, their
// network and the checks are one simulated world, whose parts call each other at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/membership/rendezvous_client.h"
#include "runtime/membership/roster.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kStep = milliseconds(50);
constexpr Duration kLostAfter = milliseconds(1500);
constexpr Duration kTroubled = seconds(60);
constexpr Duration kPeace = seconds(60);

struct Stream;

struct Process {
  Process(int task_index, int spawned, RendezvousClientOptions options)
      : task(task_index), number(spawned), client(std::move(options)) {}
  const int task;
  const int number;  // in the order in which processes were started; also the instance
  RendezvousClient client;
  bool alive = true;
  bool stopped = false;
  Duration act_at{};  // when the program does its next thing
  Duration connect_at{};
  std::shared_ptr<Stream> stream;
  std::unique_ptr<Roster> roster;                        // of one that serves
  std::map<uint64_t, std::shared_ptr<Stream>> accepted;  // by connection
  // The agreement under way.
  uint64_t round = 0;
  uint64_t call = 0;
  uint64_t incarnation = 0;  // the newest it was welcomed to
};

// FIFO, with a delay for each message.
template <typename T>
struct Pipe {
  std::deque<std::pair<Duration, T>> queue;
  Duration blocked_until{};
  void Push(T message, Duration due) {
    if (!queue.empty()) due = std::max(due, queue.back().first);
    queue.emplace_back(due, std::move(message));
  }
  std::optional<T> Pop(Duration now) {
    if (queue.empty() || queue.front().first > now || blocked_until > now) return std::nullopt;
    T out = std::move(queue.front().second);
    queue.pop_front();
    return out;
  }
};

struct CallUp {
  uint64_t call;
  AgreeMessage message;
};
struct Hello {};
struct Cut {};  // the other end closed
using Up = std::variant<Hello, MemberMessage, CallUp, Cut>;
using Down = std::variant<Hello, RosterMessage, Status, Answer>;

struct Stream {
  Process* client = nullptr;
  Process* server = nullptr;
  uint64_t connection = 0;  // once accepted
  Pipe<Up> up;
  Pipe<Down> down;
};

class World {
 public:
  World(uint64_t seed, int tasks) : random_(seed) {
    for (int i = 0; i < tasks; ++i) {
      tasks_.push_back(i == 0 ? cluster::TaskId{cluster::Role::kChief, 0}
                              : cluster::TaskId{cluster::Role::kWorker, i - 1});
    }
    newest_seen_.resize(tasks_.size());
    respawn_at_.resize(tasks_.size());
    for (int i = 0; i < tasks; ++i) respawn_at_[static_cast<size_t>(i)] = Some(seconds(3));
  }

  void Run() {
    for (; now_ < kTroubled && !::testing::Test::HasFailure(); now_ += kStep) {
      Trouble();
      Advance();
    }
    Heal();
    const Duration end = now_ + kPeace;
    const int64_t agreed_before = agreed_;
    for (; now_ < end && !::testing::Test::HasFailure(); now_ += kStep) Advance();
    if (::testing::Test::HasFailure()) return;
    std::set<uint64_t> incarnations;
    std::set<int> here;
    std::string states;
    for (const auto& process : processes_) {
      if (!process->alive) continue;
      states += " " + std::to_string(process->number) + ":" + cluster::ToString(Task(*process)) +
                " phase " + std::to_string(static_cast<int>(process->client.phase())) + " of " +
                std::to_string(process->incarnation);
      if (process->roster != nullptr) {
        states += " (serves; missing: " + process->roster->Missing() + ")";
      }
      if (process->client.phase() == RendezvousClient::Phase::kJoining) {
        states += " " + process->client.WaitingFor();
      }
      if (process->stream && process->stream->server) {
        states += " (at " + std::to_string(process->stream->server->number) + ")";
      }
      if (process->client.phase() != RendezvousClient::Phase::kIn) continue;
      incarnations.insert(process->incarnation);
      here.insert(process->task);
    }
    EXPECT_EQ(incarnations.size(), 1u) << "in peace all come together;" << states;
    EXPECT_EQ(here.size(), tasks_.size()) << states;
    EXPECT_GT(agreed_, agreed_before) << states;
  }

  int64_t opened() const { return opened_; }
  int64_t agreed() const { return agreed_; }
  int64_t refused() const { return refused_; }

 private:
  cluster::TaskId Task(const Process& process) const {
    return tasks_[static_cast<size_t>(process.task)];
  }
  uint64_t Pick(uint64_t below) { return random_() % below; }
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  Duration Some(Duration most) {
    return now_ + Duration(static_cast<int64_t>(Pick(static_cast<uint64_t>(most.count()))));
  }
  Duration Soon() { return Chance(0.05) ? Some(milliseconds(900)) : Some(milliseconds(60)); }

  Process* Current(int task) {
    for (auto it = processes_.rbegin(); it != processes_.rend(); ++it) {
      if ((*it)->task == task) return it->get();
    }
    return nullptr;
  }

  void Spawn(int task) {
    const int number = static_cast<int>(processes_.size()) + 1;
    auto process =
        std::make_unique<Process>(task, number,
                                  RendezvousClientOptions{.task = tasks_[static_cast<size_t>(task)],
                                                          .server = tasks_[0],
                                                          .instance = static_cast<uint64_t>(number),
                                                          .data_address = "d",
                                                          .host = "h",
                                                          .expected = tasks_,
                                                          .heartbeat = milliseconds(100),
                                                          .lost_after = kLostAfter,
                                                          .connect_timeout = seconds(3),
                                                          .look_again = seconds(5)});
    process->act_at = Some(seconds(1));
    if (task == 0) {
      // The clock of a new host may be behind.
      const uint64_t clock =
          1'000'000 +
          static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(now_).count()) -
          Pick(3'000);
      process->roster = std::make_unique<Roster>(RosterOptions{.tasks = tasks_,
                                                               .first_id = clock,
                                                               .lost_after = kLostAfter,
                                                               .stuck_after = seconds(1000),
                                                               .tick = milliseconds(100)});
    }
    processes_.push_back(std::move(process));
  }

  // --- faults
  void Trouble() {
    if (!Chance(0.02)) return;
    Process* victim = Current(static_cast<int>(Pick(tasks_.size())));
    if (victim == nullptr || !victim->alive) return;
    switch (Pick(7)) {
      case 0:
        Kill(*victim);
        break;
      case 1:
        victim->stopped = true;
        // It counts as dead, which takes longer than it takes the others to see it as lost.
        if (Chance(0.5)) {
          respawn_at_[static_cast<size_t>(victim->task)] = 2 * kLostAfter + Some(seconds(2));
        }
        break;
      case 2:
        if (victim->stream != nullptr) Break(victim->stream);
        break;
      case 3:
        if (victim->stream != nullptr) victim->stream->up.blocked_until = Some(seconds(4));
        break;
      case 4:
        if (victim->stream != nullptr) victim->stream->down.blocked_until = Some(seconds(4));
        break;
      case 5:
        if (!victim->stopped && victim->client.phase() == RendezvousClient::Phase::kIn)
          Join(*victim);
        break;
      default:
        if (!victim->stopped && Chance(0.3)) victim->client.Leave();
    }
    for (const auto& process : processes_) {
      if (!process->alive || !process->stopped || !Chance(0.3)) continue;
      process->stopped = false;
      if (Current(process->task) == process.get()) {
        respawn_at_[static_cast<size_t>(process->task)].reset();
      }
    }
  }

  void Heal() {
    for (const auto& process : processes_) {
      process->stopped = false;
      if (process->stream != nullptr) {
        process->stream->up.blocked_until = process->stream->down.blocked_until = {};
      }
    }
  }

  void Kill(Process& process) {
    process.alive = false;
    if (process.stream != nullptr) CloseClient(process);
    for (auto& [connection, stream] : process.accepted) {
      CloseServer(*stream, Unavailable("Socket closed"));
    }
    process.accepted.clear();
    if (Current(process.task) == &process) {
      respawn_at_[static_cast<size_t>(process.task)] = Some(seconds(5));
    }
  }
  // The network loses the connection: each end notices by itself, and a part of what was under way
  // is gone.
  void Break(const std::shared_ptr<Stream>& stream) {
    while (!stream->up.queue.empty() && Chance(0.5)) stream->up.queue.pop_back();
    while (!stream->down.queue.empty() && Chance(0.5)) stream->down.queue.pop_back();
    stream->up.Push(Cut{}, Soon());
    stream->down.Push(Unavailable("Socket closed"), Soon());
  }
  void CloseClient(Process& client) {
    client.stream->up.Push(Cut{}, Soon());
    client.stream->client = nullptr;
    client.stream.reset();
    client.call = 0;
  }
  void CloseServer(Stream& stream, const Status& why) {
    stream.server = nullptr;
    if (stream.client != nullptr) stream.down.Push(why, Soon());
  }

  // --- life
  void Advance() {
    for (size_t task = 0; task < tasks_.size(); ++task) {
      Process* current = Current(static_cast<int>(task));
      const bool gone = current == nullptr || !current->alive || current->stopped;
      if (gone && respawn_at_[task] && now_ >= *respawn_at_[task]) {
        respawn_at_[task].reset();
        Spawn(static_cast<int>(task));
      }
    }
    std::vector<Process*> order;
    for (const auto& process : processes_) {
      if (process->alive && !process->stopped) order.push_back(process.get());
    }
    std::shuffle(order.begin(), order.end(), random_);
    for (Process* process : order) {
      if (process->alive && process->roster != nullptr) Serve(*process);
      if (process->alive) Attend(*process);
    }
  }

  void Serve(Process& server) {
    const auto streams = server.accepted;
    for (const auto& [connection, stream] : streams) {
      while (const auto message = stream->up.Pop(now_)) {
        if (std::holds_alternative<Cut>(*message)) {
          Handle(server, Broken{connection, "connection closed"});
          for (const uint64_t call : std::exchange(pending_[connection], {})) {
            Handle(server, Withdrawn{call});
          }
          server.accepted.erase(connection);
          stream->server = nullptr;
          break;
        }
        if (stream->server == nullptr) continue;  // ended here
        if (const auto* said = std::get_if<MemberMessage>(&*message)) {
          Handle(server, Said{connection, *said});
        } else if (const auto* call = std::get_if<CallUp>(&*message)) {
          pending_[connection].insert(call->call);
          call_streams_[call->call] = stream;
          Handle(server, Asked{call->call, call->message});
        } else {
          stream->down.Push(Hello{}, Soon());
        }
      }
    }
    Handle(server, Tick{});
    for (const auto& [connection, stream] : server.accepted) {
      if (stream->server != nullptr && server.roster != nullptr) {
        stream->down.Push(RosterMessage(PulseMessage{server.roster->Missing()}), Soon());
      }
    }
  }

  void Handle(Process& server, const RosterEvent& event) {
    const uint64_t before = server.roster->open();
    for (const RosterAnswer& answer : server.roster->Handle(event, now_)) {
      if (const auto* tell = std::get_if<Tell>(&answer)) {
        const auto stream = server.accepted.find(tell->connection);
        if (stream != server.accepted.end()) stream->second->down.Push(tell->message, Soon());
      } else if (const auto* end = std::get_if<End>(&answer)) {
        const auto stream = server.accepted.find(end->connection);
        if (stream != server.accepted.end()) CloseServer(*stream->second, end->why);
      } else {
        const auto& of_call = std::get<Answer>(answer);
        const auto stream = call_streams_.find(of_call.call);
        if (stream != call_streams_.end()) stream->second->down.Push(of_call, Soon());
      }
    }
    const uint64_t after = server.roster->open();
    if (after != 0 && after != before) {
      EXPECT_TRUE(opened_ids_.insert(after).second) << "an id twice: " << after;
      ++opened_;
    }
  }

  void Attend(Process& process) {
    RendezvousClient& client = process.client;
    const auto stream = process.stream;
    while (stream != nullptr && process.stream == stream) {
      auto message = stream->down.Pop(now_);
      if (!message) break;
      Hear(process, *message);
      if (!process.alive) return;
    }
    client.Tick({}, now_);
    if (client.wants_end() && process.stream != nullptr) {
      CloseClient(process);
      client.Ended(Status(StatusCode::kCancelled, "cancelled"));
    }
    for (MemberMessage& message : client.TakeOutgoing()) {
      process.stream->up.Push(std::move(message), Soon());
    }
    if (client.wants_stream() && now_ >= process.connect_at) Connect(process);
    Act(process);
  }

  void Connect(Process& process) {
    process.connect_at = Some(milliseconds(1000));
    process.client.Opening(now_);
    Process* server = Current(0);  // what the name says
    if (server == nullptr || !server->alive) {
      process.client.Ended(Unavailable("connection refused"));
      return;
    }
    auto stream = std::make_shared<Stream>();
    stream->client = &process;
    stream->server = server;
    stream->connection = next_number_++;
    stream->up.Push(Hello{}, Soon());
    server->accepted[stream->connection] = stream;
    process.stream = stream;
  }

  void Hear(Process& process, const Down& message) {
    RendezvousClient& client = process.client;
    if (std::holds_alternative<Hello>(message)) {
      client.Opened(now_);
    } else if (const auto* said = std::get_if<RosterMessage>(&message)) {
      client.Heard(*said, now_);
      if (client.incarnation().id != process.incarnation) Welcomed(process);
    } else if (const auto* why = std::get_if<Status>(&message)) {
      CloseClient(process);
      client.Ended(*why);
    } else {
      const auto& answer = std::get<Answer>(message);
      if (answer.call != process.call) return;
      process.call = 0;
      if (answer.status.ok()) {
        Agreed(process, *answer.texts);
      } else if (answer.status.code() == StatusCode::kUnavailable &&
                 client.phase() == RendezvousClient::Phase::kIn) {
        Join(process);  // somebody was lost or left
      }
    }
  }

  void Welcomed(Process& process) {
    const Incarnation& incarnation = process.client.incarnation();
    EXPECT_GT(incarnation.id, process.incarnation) << "ids rise";
    const uint64_t before = std::exchange(process.incarnation, incarnation.id);
    process.round = 0;
    process.call = 0;
    ASSERT_EQ(incarnation.members.size(), tasks_.size());
    EXPECT_EQ(incarnation.members[static_cast<size_t>(incarnation.process)].instance,
              static_cast<uint64_t>(process.number));
    std::vector<uint64_t> members;
    for (const Member& member : incarnation.members) members.push_back(member.instance);
    const auto [at, first] = members_.try_emplace(incarnation.id, members);
    EXPECT_EQ(at->second, members) << "one incarnation, two lists of members";
    if (!first) return;
    // The newest incarnation, before this one, that a member knows.
    const auto known = [&](uint64_t member) {
      return member == static_cast<uint64_t>(process.number) ? before
                                                             : processes_[member - 1]->incarnation;
    };
    for (size_t task = 0; task < members.size(); ++task) {
      const auto newer = newest_seen_[task];
      if (newer.first == members[task]) continue;
      newest_seen_[task] = {members[task], incarnation.id};
      // One that stood still since its start never heard that it is a member: nothing of it is
      // stale.
      if (newer.first < members[task] || known(members[task]) == 0) continue;
      // It was a member before another process of its task was. Then nobody here can know of that
      // other.
      for (const uint64_t member : members) {
        EXPECT_LT(known(member), newer.second)
            << "a process that was replaced is a member again: " << cluster::ToString(tasks_[task])
            << " " << members[task];
      }
    }
  }

  void Agreed(Process& process, const std::vector<std::string>& texts) {
    ++agreed_;
    std::vector<std::string> want;
    for (const uint64_t member : members_.at(process.incarnation)) {
      want.push_back(std::to_string(process.incarnation) + "/" + std::to_string(process.round - 1) +
                     "/" + std::to_string(member));
    }
    EXPECT_EQ(texts, want) << "an agreement is of the members of one incarnation, in one round";
  }

  void Join(Process& process) {
    process.client.Join(0);
    process.connect_at = now_;
  }

  // The program: joins, agrees, joins again after a loss.
  void Act(Process& process) {
    if (now_ < process.act_at) return;
    process.act_at = Some(milliseconds(700));
    RendezvousClient& client = process.client;
    switch (client.phase()) {
      case RendezvousClient::Phase::kOut:
      case RendezvousClient::Phase::kOver:
        Join(process);
        break;
      case RendezvousClient::Phase::kJoining:
        if (client.refused()) {
          ++refused_;
          EXPECT_EQ(client.refused()->code(), StatusCode::kFailedPrecondition)
              << client.refused()->ToString();
          Kill(process);
        } else if (now_ < kTroubled && Chance(0.02)) {
          client.AbandonJoin();
        }
        break;
      case RendezvousClient::Phase::kIn:
        if (client.deserted()) {
          Join(process);
        } else if (process.call == 0 && process.stream != nullptr) {
          process.call = next_number_++;
          const std::string text = std::to_string(process.incarnation) + "/" +
                                   std::to_string(process.round) + "/" +
                                   std::to_string(process.number);
          process.stream->up.Push(
              CallUp{process.call,
                     AgreeMessage{Task(process), static_cast<uint64_t>(process.number),
                                  process.incarnation, process.round, "n", text, seconds(20)}},
              Soon());
          ++process.round;
        }
        break;
      case RendezvousClient::Phase::kLeaving:
        break;
      case RendezvousClient::Phase::kGone:
        Kill(process);
        break;
    }
  }

  std::mt19937_64 random_;
  Duration now_ = seconds(1);
  std::vector<cluster::TaskId> tasks_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::optional<Duration>> respawn_at_;
  uint64_t next_number_ = 1;
  std::map<uint64_t, std::set<uint64_t>> pending_;  // calls by connection
  std::map<uint64_t, std::shared_ptr<Stream>> call_streams_;

  std::set<uint64_t> opened_ids_;
  std::map<uint64_t, std::vector<uint64_t>> members_;  // by incarnation, as members were told
  std::vector<std::pair<uint64_t, uint64_t>>
      newest_seen_;  // by task: process, the first incarnation it was a member of
  int64_t opened_ = 0, agreed_ = 0, refused_ = 0;
};

TEST(RendezvousSimTest, MembersComeTogetherAndNeverDisagree) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const uint64_t seeds = given != nullptr ? 1 : 200;
  int64_t opened = 0, agreed = 0, refused = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    World world(seed, 2 + static_cast<int>(seed % 3));
    world.Run();
    opened += world.opened();
    agreed += world.agreed();
    refused += world.refused();
    if (::testing::Test::HasFailure()) break;
  }
  std::cout << opened << " incarnations, " << agreed << " agreements, " << refused
            << " stale processes refused\n";
  if (given == nullptr) {  // the test saw what it is about
    EXPECT_GT(opened, 5 * static_cast<int64_t>(seeds));
    EXPECT_GT(agreed, 50 * static_cast<int64_t>(seeds));
    EXPECT_GT(refused, static_cast<int64_t>(seeds) / 4);
  }
}

}  // namespace
}  // namespace meshtrain::membership
