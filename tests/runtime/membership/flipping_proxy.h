// A line that changes bytes on the way, between gRPC processes of this host.
//
// It follows HTTP/2's frames (RFC 9113, 4.1 and 6.1) and gRPC's messages in them (a flag, a length
// of four bytes, then so many bytes) and flips a bit inside messages only: what TCP's own checksum
// lets through is seldom so kind, but a connection whose framing is broken ends without our help.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <random>
#include <string>
#include <thread>

namespace meshtrain::membership {

class FlippingProxy {
 public:
  // Passes connections on to a port of 127.0.0.1. Of the messages that go there and of those that
  // come back, these parts have a bit flipped.
  struct Share {
    double requests = 0;
    double answers = 0;
  };
  FlippingProxy(int to, Share share, uint64_t seed) : to_(to), share_(share), seed_(seed) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    auto* const a = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, a, size), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    EXPECT_EQ(::getsockname(listener_, a, &size), 0);
    port_ = ntohs(address.sin_port);
    accepting_ = std::jthread([this](std::stop_token stop) { Accept(stop); });
  }
  ~FlippingProxy() {
    accepting_ = {};
    for (Connection& c : connections_) {
      ::shutdown(c.caller, SHUT_RDWR);
      ::shutdown(c.server, SHUT_RDWR);
    }
    for (Connection& c : connections_) {
      c.there = {};
      c.back = {};
      ::close(c.caller);
      ::close(c.server);
    }
    ::close(listener_);
  }
  FlippingProxy(const FlippingProxy&) = delete;
  FlippingProxy& operator=(const FlippingProxy&) = delete;

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int64_t flipped() const { return flipped_; }

 private:
  struct Connection {
    int caller = -1, server = -1;
    std::jthread there, back;
  };
  // Of one stream, in one direction.
  struct Message {
    uint8_t prefix[5] = {};
    size_t prefix_bytes = 0;
    uint32_t left = 0;
    int64_t flip_in = -1;  // bytes until the one to flip; -1: none
  };

  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void Accept(std::stop_token stop) {
    while (!stop.stop_requested()) {
      pollfd waiting{listener_, POLLIN, 0};
      if (::poll(&waiting, 1, 20) <= 0) continue;
      const int caller = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (caller < 0) continue;
      const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = Loopback(to_);
      if (::connect(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        ::close(caller);
        ::close(server);
        continue;
      }
      const int one = 1;
      ::setsockopt(caller, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      ::setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      Connection& c = connections_.emplace_back();
      c.caller = caller;
      c.server = server;
      // What a caller sends begins with a text of 24 bytes (RFC 9113, 3.4).
      const uint64_t seed = 2 * connections_.size() + seed_;
      c.there = std::jthread([this, caller, server, seed] {
        Pass(caller, server, 24, share_.requests, std::mt19937_64(seed));
      });
      c.back = std::jthread([this, caller, server, seed] {
        Pass(server, caller, 0, share_.answers, std::mt19937_64(seed + 1));
      });
    }
  }

  void Pass(int from, int to, size_t preface, double share, std::mt19937_64 random) {
    std::map<uint32_t, Message> messages;  // by stream
    uint8_t header[9] = {};
    size_t header_bytes = 0;
    uint32_t frame_left = 0;
    std::string buffer(1 << 16, '\0');
    for (;;) {
      const ssize_t got = ::recv(from, buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      for (ssize_t i = 0; i < got; ++i) {
        auto& byte = reinterpret_cast<uint8_t&>(buffer[static_cast<size_t>(i)]);
        if (preface > 0) {
          --preface;
        } else if (frame_left == 0) {
          header[header_bytes++] = byte;
          if (header_bytes < sizeof(header)) continue;
          header_bytes = 0;
          frame_left = uint32_t{header[0]} << 16 | uint32_t{header[1]} << 8 | header[2];
        } else {
          --frame_left;
          constexpr uint8_t kData = 0;
          if (header[3] == kData) Look(messages[Number(header + 5)], share, random, byte);
        }
      }
      for (ssize_t sent = 0; sent < got;) {
        const ssize_t n =
            ::send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += n;
      }
    }
    ::shutdown(to, SHUT_RDWR);
    ::shutdown(from, SHUT_RDWR);
  }

  static uint32_t Number(const uint8_t* at) {
    return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
  }

  void Look(Message& message, double share, std::mt19937_64& random, uint8_t& byte) {
    if (message.left == 0) {
      message.prefix[message.prefix_bytes++] = byte;
      if (message.prefix_bytes < sizeof(message.prefix)) return;
      message.prefix_bytes = 0;
      message.left = Number(message.prefix + 1);
      message.flip_in = -1;
      if (message.left > 0 && std::uniform_real_distribution<>()(random) < share) {
        message.flip_in = static_cast<int64_t>(random() % message.left);
      }
      return;
    }
    --message.left;
    if (message.flip_in < 0) return;
    if (message.flip_in-- > 0) return;
    byte ^= static_cast<uint8_t>(1u << random() % 8);
    ++flipped_;
  }

  const int to_;
  const Share share_;
  const uint64_t seed_;
  std::atomic<int64_t> flipped_ = 0;
  int listener_ = -1;
  int port_ = 0;
  std::list<Connection> connections_;  // the accepting thread's, until it has ended
  std::jthread accepting_;
};

}  // namespace meshtrain::membership
