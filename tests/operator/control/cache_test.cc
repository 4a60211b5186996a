#include "operator/control/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace meshtrain::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CacheTest : public ::testing::Test {
 protected:
  std::vector<std::string> log_;
  Cache<std::string> cache_{
      [this](const std::string& key, const std::string* before, const std::string* after) {
        log_.push_back(key + ": " + (before ? *before : "-") + " > " + (after ? *after : "-"));
      }};
};

TEST_F(CacheTest, FollowsTheWatch) {
  cache_.Watched("a", 5, "x");
  cache_.Watched("a", 6, "y");
  cache_.Watched("a", 7, std::nullopt);
  EXPECT_THAT(log_, ElementsAre("a: - > x", "a: x > y", "a: y > -"));
  EXPECT_EQ(cache_.Find("a"), nullptr);
}

TEST_F(CacheTest, IsSilentWhenTheWatchRepeatsOurOwnWrite) {
  cache_.Watched("other", 4, "o");
  cache_.Wrote("a", 5, "x");
  log_.clear();
  cache_.Watched("a", 5, "x");
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(CacheTest, DoesNotBringBackWhatTheWatchSawEnd) {
  cache_.Watched("a", 5, "x");
  cache_.Watched("a", 6, std::nullopt);
  cache_.Wrote("a", 5, "x");  // the answer to our creation was slow
  EXPECT_EQ(cache_.Find("a"), nullptr);
  cache_.Bookmark("", 20);
  cache_.Wrote("b", 15, "z");
  EXPECT_EQ(cache_.Find("b"), nullptr);
}

TEST_F(CacheTest, KeepsTheNewerOfTwoAnswers) {
  cache_.Wrote("a", 9, "new");
  cache_.Wrote("a", 8, "old");
  EXPECT_EQ(*cache_.Find("a"), "new");
  cache_.Watched("a", 8, "old");
  EXPECT_EQ(*cache_.Find("a"), "new");
}

TEST_F(CacheTest, AListReplacesAllButWhatWasWrittenAfterIt) {
  cache_.Watched("gone", 5, "g");
  cache_.Watched("same", 6, "s");
  cache_.Watched("changed", 7, "c");
  cache_.BeginList("");
  cache_.Listed("same", 6, "s");
  cache_.Listed("changed", 9, "C");
  cache_.Listed("new", 8, "n");
  cache_.Wrote("ours", 12, "o");  // while the list was under way
  log_.clear();
  cache_.EndList("", 10);
  EXPECT_THAT(log_, ::testing::UnorderedElementsAre("gone: g > -", "changed: c > C", "new: - > n"));
  EXPECT_EQ(*cache_.Find("ours"), "o");
}

TEST_F(CacheTest, AListThatIsOlderThanTheWatchIsAllThereIs) {
  // The etcd was restored to what it was at 10.
  cache_.Watched("kept", 6, "k");
  cache_.Watched("changed", 15, "later");
  cache_.Watched("made", 16, "m");
  cache_.Wrote("ours", 17, "o");
  cache_.BeginList("");
  cache_.Listed("kept", 6, "k");
  cache_.Listed("changed", 9, "before");
  cache_.EndList("", 10);
  EXPECT_EQ(*cache_.Find("kept"), "k");
  EXPECT_EQ(*cache_.Find("changed"), "before");
  EXPECT_EQ(cache_.Find("made"), nullptr);
  EXPECT_EQ(cache_.Find("ours"), nullptr);
  // From there on it is as with any list.
  cache_.Wrote("ours", 11, "again");
  cache_.Watched("made", 12, "again");
  EXPECT_EQ(*cache_.Find("ours"), "again");
  EXPECT_EQ(*cache_.Find("made"), "again");
}

TEST_F(CacheTest, AListAnewTakesNothingOver) {
  // Restored to 10, and written to up to 20 since: its versions look as if they had only grown.
  cache_.Watched("same version", 15, "then");
  cache_.Watched("newer then", 17, "then");
  cache_.Wrote("ours", 25, "o");
  cache_.BeginList("");
  cache_.Listed("same version", 15, "now");
  cache_.Listed("newer then", 12, "now");
  cache_.EndList("", 20, /*anew=*/true);
  EXPECT_EQ(*cache_.Find("same version"), "now");
  EXPECT_EQ(*cache_.Find("newer then"), "now");
  EXPECT_EQ(cache_.Find("ours"), nullptr);
}

// Each namespace is watched for itself, and the watches are not equally fast.
TEST_F(CacheTest, OneNamespacesWatchSaysNothingOfAnothers) {
  for (const char* ns : {"ml", "bio"}) {
    cache_.BeginList(ns);
    cache_.EndList(ns, 10);
  }
  cache_.Watched("ml/a", 15, "x");
  cache_.Bookmark("ml", 20);
  cache_.Wrote("bio/b", 14, "y");  // an answer, before the watch of bio has told it
  ASSERT_NE(cache_.Find("bio/b"), nullptr);
  cache_.Wrote("ml/c", 14, "z");
  EXPECT_EQ(cache_.Find("ml/c"), nullptr) << "the watch of ml has told all up to 20";
  cache_.BeginList("bio");
  cache_.Listed("bio/d", 16, "w");
  cache_.EndList("bio", 17);
  EXPECT_EQ(cache_.Find("bio/b"), nullptr) << "the list lacks it";
  EXPECT_EQ(*cache_.Find("ml/a"), "x") << "not in this list, which is not of ml";
  // Two lists at once; one of them anew.
  cache_.BeginList("ml");
  cache_.BeginList("bio");
  cache_.Listed("ml/a", 15, "x");
  cache_.EndList("bio", 5, /*anew=*/true);
  cache_.EndList("ml", 21);
  EXPECT_EQ(*cache_.Find("ml/a"), "x");
  EXPECT_EQ(cache_.Find("bio/d"), nullptr);
}

// However answers and events interleave, once all events are in the cache equals the server.
TEST_F(CacheTest, ConvergesToTheServerForAnyInterleaving) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    Cache<std::string> cache([](const std::string&, const std::string*, const std::string*) {});
    std::map<std::string, std::pair<int64_t, std::string>> server;
    struct Event {
      std::string key;
      int64_t version;
      std::optional<std::string> value;
    };
    std::vector<Event> history, answers;
    size_t delivered = 0;
    for (int64_t version = 1; version < 60; ++version) {
      const std::string key(1, static_cast<char>('a' + random() % 4));
      if (server.contains(key) && random() % 3 == 0) {
        server.erase(key);
        history.push_back({key, version, std::nullopt});
      } else {
        server[key] = {version, std::to_string(version)};
        history.push_back({key, version, std::to_string(version)});
        if (random() % 2) answers.push_back(history.back());  // this write was ours
      }
      while (delivered < history.size() && random() % 2) {
        cache.Watched(history[delivered].key, history[delivered].version, history[delivered].value);
        ++delivered;
      }
      if (!answers.empty() && random() % 2) {
        const size_t i = random() % answers.size();
        cache.Wrote(answers[i].key, answers[i].version, *answers[i].value);
        answers.erase(answers.begin() + static_cast<long>(i));
      }
      if (random() % 20 == 0) {
        cache.BeginList("");
        for (const auto& [k, v] : server) cache.Listed(k, v.first, v.second);
        cache.EndList("", version);
        delivered = history.size();
      }
    }
    for (; delivered < history.size(); ++delivered) {
      cache.Watched(history[delivered].key, history[delivered].version, history[delivered].value);
    }
    for (const Event& late : answers) cache.Wrote(late.key, late.version, *late.value);
    std::map<std::string, std::string> got, want;
    cache.ForEach([&](const std::string& k, const std::string& v) { got[k] = v; });
    for (const auto& [k, v] : server) want[k] = v.second;
    ASSERT_EQ(got, want) << "seed " << seed;
  }
}

// As above, of two namespaces with a watch each.
TEST_F(CacheTest, ConvergesWithAWatchOfEachNamespace) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    Cache<int64_t> cache([](const std::string&, const int64_t*, const int64_t*) {});
    std::map<std::string, int64_t> server;  // a value is its version
    struct Event {
      std::string key;
      int64_t version;
      bool there;
    };
    std::map<std::string, std::vector<Event>> history = {{"ml", {}}, {"bio", {}}};
    std::map<std::string, size_t> delivered;
    std::vector<Event> answers;
    const auto deliver = [&](const std::string& ns) {
      const Event& event = history[ns][delivered[ns]++];
      cache.Watched(event.key, event.version,
                    event.there ? std::optional(event.version) : std::nullopt);
    };
    for (const auto& [ns, events] : history) {
      cache.BeginList(ns);
      cache.EndList(ns, 0);
    }
    for (int64_t version = 1; version < 80; ++version) {
      const std::string ns = random() % 2 ? "ml" : "bio";
      const std::string key = ns + "/" + static_cast<char>('a' + random() % 3);
      const bool gone = server.contains(key) && random() % 3 == 0;
      history[ns].push_back({key, version, !gone});
      if (gone) {
        server.erase(key);
      } else {
        server[key] = version;
        // Ours, and its answer is here before the next event: the cache may not be behind it.
        if (random() % 3 == 0) {
          cache.Wrote(key, version, version);
          ASSERT_TRUE(cache.Find(key) && *cache.Find(key) == version) << "seed " << seed;
        } else if (random() % 2) {
          answers.push_back(history[ns].back());
        }
      }
      const std::string of = random() % 4 ? "ml" : "bio";  // the watch of ml is the faster one
      while (delivered[of] < history[of].size() && random() % 2) deliver(of);
      if (!answers.empty() && random() % 2) {
        cache.Wrote(answers.back().key, answers.back().version, answers.back().version);
        answers.pop_back();
      }
      if (random() % 20 == 0) {
        cache.BeginList(of);
        for (const auto& [k, v] : server) {
          if (k.starts_with(of + "/")) cache.Listed(k, v, v);
        }
        cache.EndList(of, version);
        delivered[of] = history[of].size();
      }
    }
    for (const auto& [ns, events] : history) {
      while (delivered[ns] < events.size()) deliver(ns);
    }
    for (const Event& late : answers) cache.Wrote(late.key, late.version, late.version);
    std::map<std::string, int64_t> got;
    cache.ForEach([&](const std::string& k, const int64_t& v) { got[k] = v; });
    ASSERT_EQ(got, server) << "seed " << seed;
  }
}

}  // namespace
}  // namespace meshtrain::control
