// An operator of one namespace behind an ApiProxy: what it asks of the API server is counted, lost
// or held, and what the server tells it is held or cut.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "tests/integration/operator/api_proxy.h"
#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {

class ProxyTest : public OperatorTest {
 protected:
  void SetUp() override {
    OperatorTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto proxy = ApiProxy::Start(api().config());
    ASSERT_TRUE(proxy.ok()) << proxy.status().ToString();
    proxy_ = *std::move(proxy);
  }
  void TearDown() override {
    alone_.reset();
    OperatorTest::TearDown();
    proxy_.reset();
  }

  // An operator of this namespace behind the proxy, without an election, so that the next may start
  // at once; of all namespaces (and so of Nodes) with `everywhere`.
  void Run(bool everywhere = false, std::vector<std::string> flags = {}) {
    flags.push_back("--no-leader-elect");
    if (!everywhere) flags.insert(flags.end(), {"--namespace", ns_});
    auto next = std::make_unique<OperatorProcess>(KubeconfigFor(proxy_->url()), flags);
    {
      MutexLock lock(mutex_);
      alone_.swap(next);
    }
    ASSERT_TRUE(Eventually([&] { return alone_->Log().find("watching") != std::string::npos; }));
  }

  std::unique_ptr<ApiProxy> proxy_;
  Mutex mutex_;  // while `alone_` is changed, and while another thread uses it
  std::unique_ptr<OperatorProcess> alone_;
};

}  // namespace meshtrain::testing
