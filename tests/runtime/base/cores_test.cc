#include "runtime/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace meshtrain {
namespace {

TEST(CoresTest, GoesByTheAffinityOfWhoAsks) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(UsableCores(), CPU_COUNT(&all));
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(UsableCores(), 1);
  }).join();
}

}  // namespace
}  // namespace meshtrain
