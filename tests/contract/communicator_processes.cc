#include "tests/contract/communicator_processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <thread>

#include "runtime/base/check.h"

namespace meshtrain::collective {
namespace {

std::string RunOne(const ProcessesOptions& options, int process, Board& board,
                   const std::function<std::string(Member&)>& body) {
  FabricOptions made;
  made.bind = "127.0.0.1";
  made.token = options.token;
  made.deadline = options.deadline;
  made.shared_memory = options.shared_memory;
  if (options.adjust_options) options.adjust_options(process, made);
  Result<std::unique_ptr<Fabric>> fabric = Fabric::Create(made);
  if (!fabric.ok()) return "create: " + fabric.status().ToString();
  board.rows[process].pid.store(getpid());
  board.rows[process].port.store((*fabric)->port());

  Member member;
  member.process = process;
  member.processes = options.processes;
  member.fabric = fabric->get();
  member.board = &board;
  member.group.incarnation = 1;
  member.group.process = process;
  for (int p = 0; p < options.processes; ++p) {
    if (!WaitUntil([&] { return board.rows[p].port.load() != 0; })) {
      return WorkerName(p) + " has no port";
    }
    member.group.processes.push_back({WorkerName(p),
                                      "127.0.0.1:" + std::to_string(board.rows[p].port.load()),
                                      options.hosts.empty() ? "host" : options.hosts[p]});
  }
  if (options.adjust_group) options.adjust_group(process, member.group, board);
  if (options.connected) member.connected = (*fabric)->Connect(member.group, options.connect, {});
  member.make = [&fabric](const mesh::Mesh& mesh) {
    return MakeProcessCommunicator(**fabric, mesh, 7);
  };
  std::string text = body(member);
  board.done.fetch_add(1);
  if (options.leave_together) WaitUntil([&] { return board.done.load() >= options.processes; });
  return text;
}

// The board lies in memory that children share.
struct BoardMemory {
  BoardMemory() {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MT_CHECK(memory != MAP_FAILED);
    board = new (memory) Board;
  }
  ~BoardMemory() { munmap(board, sizeof(Board)); }
  Board* board;
};

}  // namespace

std::string WorkerName(int process) { return "worker-" + std::to_string(process); }

bool WaitUntil(const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<std::string> RunProcesses(const ProcessesOptions& options,
                                      const std::function<std::string(Member&)>& body) {
  MT_CHECK(options.processes <= Board::kMost);
  BoardMemory memory;
  Board& board = *memory.board;
  std::vector<std::string> texts(options.processes);
  if (!options.forked) {
    std::vector<std::jthread> threads;
    for (int p = 0; p < options.processes; ++p) {
      threads.emplace_back([&, p] { texts[p] = RunOne(options, p, board, body); });
    }
    if (options.in_parent) options.in_parent(board);
    threads.clear();
    return texts;
  }
  std::vector<pid_t> children;
  for (int p = 0; p < options.processes; ++p) {
    const pid_t child = fork();
    MT_CHECK(child >= 0);
    if (child == 0) {
      alarm(300);  // a child that hangs does not outlive its test
      const std::string text = RunOne(options, p, board, body);
      std::strncpy(board.rows[p].text, text.c_str(), sizeof board.rows[p].text - 1);
      _exit(0);
    }
    children.push_back(child);
  }
  if (options.in_parent) options.in_parent(board);
  for (int p = 0; p < options.processes; ++p) {
    int how = 0;
    MT_CHECK(waitpid(children[p], &how, 0) == children[p]);
    // A sanitizer ends a process with a status, whatever it has said by then.
    texts[p] = WIFSIGNALED(how)        ? "died of signal " + std::to_string(WTERMSIG(how))
               : WEXITSTATUS(how) != 0 ? "left with " + std::to_string(WEXITSTATUS(how))
                                       : board.rows[p].text;
  }
  return texts;
}

}  // namespace meshtrain::collective
