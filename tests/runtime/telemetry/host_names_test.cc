#include "runtime/telemetry/host_names.h"

#include <gtest/gtest.h>

namespace meshtrain::telemetry {
namespace {

TEST(HostNamesTest, AddressesLocalhostAndItsOwnNamesAreItsOwn) {
  for (const char* host :
       {"", "127.0.0.1", "10.244.0.7:2280", "[::1]", "[fd00::7]:2280", "localhost", "LocalHost:80",
        "tensor.localhost:8080", "trainer", "Trainer:2280", "mnist-chief-0.mnist.ml.svc:2280",
        "mnist-chief-0.mnist.ml.svc."}) {
    EXPECT_TRUE(IsOwnHost(host, {"trainer", "mnist-chief-0.mnist.ml.svc"})) << host;
  }
}

TEST(HostNamesTest, AnyOtherNameIsNot) {
  for (const char* host : {"rebound.example", "rebound.example:2280", "trainer.rebound.example",
                           "10.244.0.7.rebound.example", "localhost.rebound.example", "mylocalhost",
                           "127.0.0.1:80:80", "127.0.0.1:80x", "1.2.3", "[::1", "[rebound.example]",
                           "[::1]x", ":80", "trainer:123456", "trainer ", "."}) {
    EXPECT_FALSE(IsOwnHost(host, {"trainer"})) << host;
  }
}

}  // namespace
}  // namespace meshtrain::telemetry
