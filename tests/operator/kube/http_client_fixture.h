// A plain HTTP server whose answers a test scripts, and a client of it.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "operator/kube/http_client.h"

namespace meshtrain::kube {

// A plain HTTP server whose answers a test scripts. TLS is tested against the real API server
// (tests/integration).
class HttpClientTest : public ::testing::Test {
 protected:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  void SetUp() override {
    const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
      {
        std::lock_guard lock(mutex_);
        lines_.push_back(request.method + " " + request.target);
        last_ = request;
      }
      handler_(request, response);
    };
    server_.Get(".*", handle);
    server_.Post(".*", handle);
    server_.Put(".*", handle);
    server_.Patch(".*", handle);
    server_.Delete(".*", handle);
    server_.set_keep_alive_max_count(5000);
    server_.set_tcp_nodelay(true);
    port_ = server_.bind_to_any_port("127.0.0.1");
    ASSERT_GT(port_, 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  void TearDown() override {
    client_.reset();
    server_.stop();
    thread_.join();
  }

  Client& MakeClient(HttpClientOptions options = {}, ClientConfig config = {}) {
    config.server = "http://127.0.0.1:" + std::to_string(port_) + config.server;
    auto client = NewHttpClient(config, options, SystemClock());
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    client_ = *std::move(client);
    return *client_;
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

  httplib::Server server_;
  Handler handler_ = [](const httplib::Request&, httplib::Response& response) {
    response.set_content("{}", "j");
  };
  std::mutex mutex_;
  std::vector<std::string> lines_;
  httplib::Request last_;
  std::unique_ptr<Client> client_;
  int port_ = 0;
  std::atomic<bool> over_ = false;  // handlers that wait outlive the test's body
  std::thread thread_;
};

}  // namespace meshtrain::kube
