#include "runtime/strategy/strategy.h"

#include <utility>

#include "runtime/checkpoint/restore.h"
#include "runtime/saving/newest.h"

namespace meshtrain::strategy {
namespace {

// This thread's innermost scope; set and restored by StrategyScope only.
thread_local Strategy* current_strategy = nullptr;

}  // namespace

bool HasStrategy() { return current_strategy != nullptr; }

Strategy& GetStrategy() {
  if (current_strategy != nullptr) return *current_strategy;
  // What code without a strategy runs on; it holds variables, so it belongs to the thread.
  thread_local std::unique_ptr<Strategy> own;
  if (own == nullptr) own = Strategy::Default().value();
  return *own;
}

StrategyScope::StrategyScope(Strategy& strategy)
    : parameters_([&strategy](const nn::Parameter& p) { strategy.Hold(p); }),
      previous_(std::exchange(current_strategy, &strategy)) {}
StrategyScope::~StrategyScope() { current_strategy = previous_; }

Strategy::~Strategy() = default;

Result<int64_t> Strategy::Restore(const std::string& folder) {
  return saving::RestoreNewest(folder, [this](std::unique_ptr<checkpoint::Checkpoint> from) {
    return Give(std::move(from));
  });
}

}  // namespace meshtrain::strategy
