#include "operator/local/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::local {
namespace {

using ::testing::HasSubstr;

constexpr int kPatienceMs = 60'000;

Command Shell(const std::string& script) {
  return {.arguments = {"sh", "-c", script}, .environment = {"PATH=/usr/bin:/bin"}};
}

// Waits for its end; everything that it wrote to stdout goes into `out`.
int Finish(Process& process, std::string* out = nullptr) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  std::string ignored;
  if (out == nullptr) out = &ignored;
  char buffer[4096];
  const auto drain = [&] {
    for (ssize_t n; (n = ::read(process.stdout_fd(), buffer, sizeof buffer)) > 0;) {
      out->append(buffer, static_cast<size_t>(n));
    }
  };
  while (std::chrono::steady_clock::now() < until) {
    pollfd fds[] = {{.fd = process.status_fd(), .events = POLLIN},
                    {.fd = process.stdout_fd(), .events = POLLIN}};
    ::poll(fds, 2, 1000);
    drain();
    if (const auto code = process.Poll()) {
      drain();
      return *code;
    }
  }
  ADD_FAILURE() << "it never ended";
  return -1;
}

int RunShell(const std::string& script, std::string* out = nullptr) {
  auto process = Process::Start(Shell(script));
  EXPECT_TRUE(process.ok()) << process.status().message();
  return process.ok() ? Finish(**process, out) : -1;
}

// Reads until the process has said `word`.
void WaitFor(Process& process, const std::string& word) {
  std::string said;
  char buffer[256];
  while (said.find(word) == std::string::npos) {
    pollfd fd{.fd = process.stdout_fd(), .events = POLLIN};
    ASSERT_EQ(::poll(&fd, 1, kPatienceMs), 1) << said;
    const ssize_t n = ::read(process.stdout_fd(), buffer, sizeof buffer);
    ASSERT_GT(n, 0) << said;
    said.append(buffer, static_cast<size_t>(n));
  }
}

// Neither there nor a zombie that nobody has asked about yet.
bool IsGone(pid_t pid) {
  const auto stat = ReadFile("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!stat.ok()) return true;
  const size_t state = stat->rfind(')');
  return state != std::string::npos && stat->size() > state + 2 && (*stat)[state + 2] == 'Z';
}

bool WaitUntilGone(pid_t pid) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (!IsGone(pid)) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::path(::testing::TempDir()) / "process-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The process ids in a file of one per line, once there are `count` of them.
std::vector<pid_t> ReadPids(const std::string& path, size_t count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (std::chrono::steady_clock::now() < until) {
    std::vector<pid_t> pids;
    if (const auto text = ReadFile(path); text.ok()) {
      for (const std::string& line : Split(*text, '\n')) {
        if (const auto pid = ParseInt(line)) pids.push_back(static_cast<pid_t>(*pid));
      }
    }
    if (pids.size() >= count) return pids;
    ::poll(nullptr, 0, 5);
  }
  ADD_FAILURE() << path << ": not " << count << " processes";
  return {};
}

// Three generations, one of them a daemon that left its session; each writes its process id.
std::string Family(const std::string& file) {
  return "echo $$ >>" + file + "; (echo $$ >/dev/null; sh -c 'echo $$ >>" + file +
         "; exec sleep 1000') & " + "setsid sh -c 'echo $$ >>" + file +
         "; trap \"\" TERM INT HUP; while :; do sleep 1000; done' & " +
         "sh -c 'sh -c \"echo \\$\\$ >>" + file + "; exec sleep 1000\" & exit 0'; sleep 1000";
}

TEST(ProcessTest, GivesTheExitCodeThatARuntimeReports) {
  EXPECT_EQ(RunShell("exit 0"), 0);
  EXPECT_EQ(RunShell("exit 3"), 3);
  EXPECT_EQ(RunShell("exit 138"), 138);
  EXPECT_EQ(RunShell("kill -9 $$"), 137);
  EXPECT_EQ(RunShell("kill -11 $$"), 139);
  EXPECT_EQ(RunShell("kill -15 $$"), 143);
}

TEST(ProcessTest, HasTheEnvironmentAndNothingElse) {
  ::setenv("MESHTRAIN_TEST_LEAK", "leaked", 1);
  std::string out;
  Command command = Shell("env; pwd; cat");
  command.environment = {"PATH=/usr/bin:/bin", "A=1"};
  command.directory = "/";
  auto process = Process::Start(command);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(Finish(**process, &out), 0) << "and its standard input is empty";
  EXPECT_THAT(out, HasSubstr("A=1\n"));
  EXPECT_THAT(out, HasSubstr("\n/\n"));
  EXPECT_THAT(out, ::testing::Not(HasSubstr("LEAK")));
  ::unsetenv("MESHTRAIN_TEST_LEAK");
}

TEST(ProcessTest, HoldsNoDescriptorOfOurs) {
  const int leak = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  std::string out;
  EXPECT_EQ(RunShell("ls /proc/self/fd | wc -l", &out), 0);
  EXPECT_EQ(Trim(out), "4") << "three, and the folder that ls reads";
  ::close(leak);
}

TEST(ProcessTest, SignalsAreNeitherBlockedNorIgnored) {
  ::signal(SIGINT, SIG_IGN);
  std::string out;
  EXPECT_EQ(RunShell("grep -E 'Sig(Blk|Ign)' /proc/self/status", &out), 0);
  EXPECT_THAT(out, HasSubstr("SigBlk:\t0000000000000000"));
  EXPECT_THAT(out, HasSubstr("SigIgn:\t0000000000000000"));
  ::signal(SIGINT, SIG_DFL);
}

TEST(ProcessTest, WhatCannotBeStartedSaysWhy) {
  const auto code = [](Command command) {
    const auto process = Process::Start(command);
    return process.ok() ? StatusCode::kOk : process.status().code();
  };
  EXPECT_EQ(code({.arguments = {"no-such-program"}, .environment = {"PATH=/usr/bin:/bin"}}),
            StatusCode::kNotFound);
  EXPECT_EQ(code({.arguments = {"/no/such/program"}}), StatusCode::kNotFound);
  EXPECT_EQ(code({.arguments = {"/etc/passwd"}}), StatusCode::kPermissionDenied);
  EXPECT_EQ(code({.arguments = {"/"}}), StatusCode::kPermissionDenied);
  EXPECT_EQ(code({.arguments = {}}), StatusCode::kInvalidArgument);
  Command elsewhere = Shell("true");
  elsewhere.directory = "/no/such/folder";
  EXPECT_EQ(code(elsewhere), StatusCode::kNotFound);
  // The kernel has the last word.
  const Folder folder;
  const std::string path = folder / "broken";
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  auto process = Process::Start({.arguments = {path}});
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(Finish(**process), 127);
  EXPECT_THAT((*process)->start_error(), HasSubstr("No such file"));
}

TEST(ProcessTest, FindsProgramsAsAShellDoes) {
  const Folder folder;
  std::ofstream(folder / "mine") << "#!/bin/sh\nexit 9\n";
  std::filesystem::permissions(folder / "mine", std::filesystem::perms::owner_all);
  auto process =
      Process::Start({.arguments = {"mine"}, .environment = {"PATH=/nowhere:" + folder.path()}});
  ASSERT_TRUE(process.ok()) << process.status().message();
  EXPECT_EQ(Finish(**process), 9);
  process = Process::Start({.arguments = {"./mine"}, .directory = folder.path()});
  ASSERT_TRUE(process.ok()) << process.status().message();
  EXPECT_EQ(Finish(**process), 9);
}

TEST(ProcessTest, SignalsReachTheProcessAlone) {
  auto process = Process::Start(
      Shell("trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(process.ok());
  WaitFor(**process, "ready");
  EXPECT_EQ((*process)->Poll(), std::nullopt);
  (*process)->Signal(SIGTERM);
  std::string out;
  EXPECT_EQ(Finish(**process, &out), 143);
  EXPECT_THAT(out, HasSubstr("saved")) << "its child did not die of the signal first";
}

TEST(ProcessTest, KillEndsWhatIgnoresEverythingElse) {
  auto process =
      Process::Start(Shell("trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"));
  ASSERT_TRUE(process.ok());
  WaitFor(**process, "ready");
  (*process)->Signal(SIGTERM);
  (*process)->Kill();
  EXPECT_EQ(Finish(**process), 137);
}

TEST(ProcessTest, WhatItStartedEndsWithIt) {
  const Folder folder;
  auto process =
      Process::Start(Shell("setsid sleep 1000 & echo $! >" + (folder / "pid") + "; exit 5"));
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(Finish(**process), 5);
  EXPECT_TRUE(IsGone(ReadPids(folder / "pid", 1).at(0)));
}

TEST(ProcessTest, TheWholeFamilyEndsWithTheObject) {
  const Folder folder;
  std::vector<pid_t> family;
  {
    auto process = Process::Start(Shell(Family(folder / "pids")));
    ASSERT_TRUE(process.ok());
    family = ReadPids(folder / "pids", 4);
  }
  for (const pid_t pid : family) EXPECT_TRUE(IsGone(pid)) << pid;
}

// A process of ours that starts the family and is then killed -9.
TEST(ProcessTest, TheWholeFamilyEndsWhenWeAreKilled) {
  const Folder folder;
  const pid_t parent = ::fork();
  if (parent == 0) {
    auto process = Process::Start(Shell(Family(folder / "pids")));
    while (process.ok()) ::pause();
    ::_exit(1);
  }
  const std::vector<pid_t> family = ReadPids(folder / "pids", 4);
  ASSERT_EQ(family.size(), 4u);
  for (const pid_t pid : family) EXPECT_FALSE(IsGone(pid)) << pid;
  ::kill(parent, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  for (const pid_t pid : family) EXPECT_TRUE(WaitUntilGone(pid)) << pid;
}

TEST(ProcessTest, TheProcessEndsWhenItsGuardianIsKilled) {
  const Folder folder;
  // The guardian is the parent of the process.
  auto process =
      Process::Start(Shell("echo $PPID >" + (folder / "guardian") + "; sleep 1000 & echo $! >>" +
                           (folder / "pids") + "; echo $$ >>" + (folder / "pids") + "; wait"));
  ASSERT_TRUE(process.ok());
  const std::vector<pid_t> pids = ReadPids(folder / "pids", 2);
  ::kill(ReadPids(folder / "guardian", 1).at(0), SIGKILL);
  EXPECT_EQ(Finish(**process), 137);
  for (const pid_t pid : pids) EXPECT_TRUE(WaitUntilGone(pid)) << pid;
}

TEST(ProcessTest, ManyAtOnce) {
  std::vector<std::unique_ptr<Process>> all;
  for (int i = 0; i < 20; ++i) {
    auto process = Process::Start(Shell("exit " + std::to_string(i)));
    ASSERT_TRUE(process.ok());
    all.push_back(std::move(*process));
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Finish(*all[i]), i);
}

}  // namespace
}  // namespace meshtrain::local
