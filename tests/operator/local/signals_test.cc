#include "operator/local/signals.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "runtime/base/file.h"

namespace meshtrain::local {
namespace {

TEST(StopSignalsTest, AFileThatMayNotGrowIsTheWritesError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = ::testing::TempDir() + "signals_test." + std::to_string(getpid());
  EXPECT_EXIT(
      {
        const StopSignals signals;
        rlimit limit;
        limit.rlim_cur = limit.rlim_max = 4;
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(2);
        const Status written = WriteFileAtomically(path, "more than four bytes");
        std::_Exit(written.code() == StatusCode::kResourceExhausted ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopSignalsTest, WhatItIgnoredIsAsBeforeAtItsEnd) {
  const auto handler = [](int signal) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    return now.sa_handler;
  };
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    const auto before = handler(signal);
    {
      const StopSignals signals;
      EXPECT_EQ(handler(signal), SIG_IGN);
    }
    EXPECT_EQ(handler(signal), before);
  }
}

}  // namespace
}  // namespace meshtrain::local
