// Opens stores, applies single pushes and saves checkpoints, for the tests of a store.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "runtime/checkpoint/save.h"
#include "runtime/parameter/server/store.h"
#include "tests/runtime/parameter/server/store_testing.h"

namespace meshtrain::parameter::testing_store {

inline std::unique_ptr<Store> OpenStore(StoreOptions options = {}) {
  auto store = Store::Open(std::move(options));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? std::move(*store) : nullptr;
}

inline PushReply ApplyOne(Store& store, const Push& push) {
  const auto results = store.Apply({&push, 1});
  EXPECT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0].ok()) << results[0].status().ToString();
  return results[0].ok() ? *results[0] : PushReply{};
}

inline Status ErrorOf(Store& store, const Push& push) {
  return store.Apply({&push, 1})[0].status();
}

inline std::map<std::string, std::string> VersionOf(const Cut& cut) {
  return {{std::string(kVersionsKey), std::to_string(cut.version)}};
}

// Cuts, writes and commits the checkpoint of `step`, as a coordinator does.
inline Status SaveCheckpoint(Store& store, const std::string& folder, int64_t step,
                             bool tell_the_store = true) {
  MT_ASSIGN_OR_RETURN(const Cut cut, store.MakeCut({store.term(), step, folder}));
  MT_ASSIGN_OR_RETURN(const checkpoint::Index part, WriteCut(cut, "hash", VersionOf(cut)));
  MT_RETURN_IF_ERROR(checkpoint::Commit(folder, {part}, {.keep = 2}).status());
  return tell_the_store ? store.Committed({store.term(), step}) : OkStatus();
}

}  // namespace meshtrain::parameter::testing_store
