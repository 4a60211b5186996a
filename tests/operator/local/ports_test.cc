#include "operator/local/ports.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

namespace meshtrain::local {
namespace {

// Binds loopback as a server without any option would. -1 where it cannot.
int Listen(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(fd, 1) == 0) {
    return fd;
  }
  ::close(fd);
  return -1;
}

TEST(PortsTest, StayOutOfTheKernelsRange) {
  EXPECT_EQ(ChoosePortRange(32768, 60999), (PortRange{10000, 32767}));
  EXPECT_EQ(ChoosePortRange(10500, 60999), (PortRange{61000, 65535}));
  EXPECT_EQ(ChoosePortRange(1024, 5000), (PortRange{10000, 65535}));
  EXPECT_EQ(ChoosePortRange(1024, 65535), (PortRange{10000, 65535})) << "nothing is left beside it";
}

TEST(PortsTest, AnyServerMayTakeAPortThatIsReserved) {
  PortReservation reservation;
  const auto port = reservation.Take();
  ASSERT_TRUE(port.ok()) << port.status().message();
  const int fd = Listen(*port);
  EXPECT_GE(fd, 0);
  ::close(fd);
}

TEST(PortsTest, NoTwoReservationsHoldOnePort) {
  PortReservation a, b;
  std::set<int> taken;
  for (int i = 0; i < 100; ++i) {
    for (PortReservation* reservation : {&a, &b}) {
      const auto port = reservation->Take();
      ASSERT_TRUE(port.ok()) << port.status().message();
      EXPECT_TRUE(taken.insert(*port).second) << *port;
    }
  }
}

TEST(PortsTest, APortThatIsInUseIsNotFree) {
  PortReservation reservation;
  const auto port = reservation.Take();
  ASSERT_TRUE(port.ok());
  EXPECT_TRUE(IsFreePort(*port));
  const int fd = Listen(*port);
  ASSERT_GE(fd, 0);
  EXPECT_FALSE(IsFreePort(*port));
  ::close(fd);
}

}  // namespace
}  // namespace meshtrain::local
