#include "operator/local/nonblocking_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "runtime/base/file.h"

namespace meshtrain::local {
namespace {

using ::testing::ElementsAre;

struct Pipe {
  Pipe() {
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    ::close(ends[1]);
    if (ends[0] >= 0) ::close(ends[0]);
  }
  std::string Read(size_t most = 1 << 20) {
    std::string out(most, '\0');
    const ssize_t n = ::read(ends[0], out.data(), most);
    out.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return out;
  }
  int ends[2];
};

TEST(NonblockingWriterTest, NeverWaitsForAReaderAndLosesNothing) {
  Pipe pipe;
  NonblockingWriter writer(pipe.ends[1]);
  std::string all;
  for (int i = 0; i < 50'000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    all += line;
    writer.Write(line);
    writer.Flush();
  }
  EXPECT_TRUE(writer.full());
  std::string got;
  while (got.size() < all.size()) {
    const std::string part = pipe.Read();
    ASSERT_FALSE(part.empty() && !writer.wants_room());
    got += part;
    writer.Flush();
  }
  EXPECT_EQ(got, all);
  EXPECT_FALSE(writer.wants_room());
}

TEST(NonblockingWriterTest, AReaderThatIsGoneIsNoTrouble) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  ::close(std::exchange(pipe.ends[0], -1));
  NonblockingWriter writer(pipe.ends[1]);
  writer.Write("nobody\n");
  writer.FlushFor(1000);
  EXPECT_FALSE(writer.wants_room());
  writer.Write("nobody\n");
  EXPECT_FALSE(writer.wants_room()) << "nothing is kept for it";
}

TEST(NonblockingWriterTest, ALineStandsByItself) {
  Pipe pipe;
  NonblockingWriter writer(pipe.ends[1]);
  writer.Write("12/40 =====");
  writer.WriteLine("worker-1: hello");
  writer.WriteLine("worker-1: again");
  writer.Flush();
  EXPECT_EQ(pipe.Read(), "12/40 =====\nworker-1: hello\nworker-1: again\n");
}

TEST(LineCutterTest, CutsWhateverThePiecesAre) {
  const std::string text = "one\n\nthree\nfour";
  for (size_t size = 1; size <= text.size(); ++size) {
    LineCutter cutter;
    std::vector<std::string> lines;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    for (size_t i = 0; i < text.size(); i += size) {
      cutter.Add(std::string_view(text).substr(i, size), keep);
    }
    EXPECT_THAT(lines, ElementsAre("one", "", "three")) << size;
    cutter.Finish(keep);
    EXPECT_THAT(lines, ElementsAre("one", "", "three", "four")) << size;
  }
}

TEST(LineCutterTest, ALineWithoutEndIsNotKeptForEver) {
  LineCutter cutter;
  size_t got = 0;
  for (int i = 0; i < 1000; ++i) {
    cutter.Add(std::string(1000, 'x'), [&](std::string_view line) { got += line.size(); });
  }
  EXPECT_GE(got, 900'000u);
}

TEST(LogFileTest, GoesOnWithTheFile) {
  const std::string path =
      std::filesystem::path(::testing::TempDir()) / ("log-" + std::to_string(::getpid()));
  for (const char* text : {"a\n", "b\n"}) {
    auto log = LogFile::Open(path);
    ASSERT_TRUE(log.ok());
    log->Write(text);
  }
  EXPECT_EQ(*ReadFile(path), "a\nb\n");
  std::filesystem::remove(path);
  EXPECT_FALSE(LogFile::Open("/nowhere/at/all").ok());
}

}  // namespace
}  // namespace meshtrain::local
