// What verbs of a cluster write, as far as it needs no cluster: tables, archives, completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/cluster/archive.h"
#include "cli/cluster/print.h"
#include "cli/cluster/redact.h"
#include "cli/verbs.h"
#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PrintTest, ColumnsAreAlignedByWhatIsSeen) {
  EXPECT_EQ(Table({{"NAME", "PHASE", "AGE"}, {"a", "\033[31mFailed\033[0m", "5s"}}),
            "NAME   PHASE    AGE\na      \033[31mFailed\033[0m   5s\n");
  EXPECT_EQ(Table({}), "");
  EXPECT_EQ(Table({{"a", ""}}), "a\n") << "no spaces at a line's end";
}

TEST(PrintTest, AgesAreKubectls) {
  const TimePoint now{std::chrono::hours(1000)};
  EXPECT_EQ(Age(now - std::chrono::seconds(119), now), "119s");
  EXPECT_EQ(Age(now - std::chrono::minutes(3), now), "3m");
  EXPECT_EQ(Age(now - std::chrono::hours(47), now), "47h");
  EXPECT_EQ(Age(now - std::chrono::hours(72), now), "3d");
  EXPECT_EQ(Age(now + std::chrono::hours(1), now), "0s") << "two clocks";
  EXPECT_EQ(Age(std::nullopt, now), "");
}

TEST(PrintTest, ColourIsForTerminalsOnly) {
  std::ostringstream out;
  EXPECT_EQ(Phase("Failed", {.out = out, .err = out}), "Failed");
  EXPECT_THAT(Phase("Failed", {.out = out, .err = out, .color = true}), HasSubstr("\033[31m"));
}

TEST(PrintTest, ObjectsAreYamlJsonOrNames) {
  const std::string job = R"({"kind":"TrainingJob","metadata":{"name":"a","managedFields":[1]}})";
  EXPECT_EQ(Objects({job}, false, "name"), "trainingjob.meshtrain.dev/a\n");
  EXPECT_THAT(Objects({job}, false, "yaml"), HasSubstr("kind: TrainingJob\n"));
  EXPECT_THAT(Objects({job, job}, true, "json"), HasSubstr("\"kind\": \"List\""));
  EXPECT_THAT(Objects({job}, false, "json"), Not(HasSubstr("managedFields")));
}

TEST(RedactedTest, TakesOutWhatLooksLikeASecretAndNothingElse) {
  const std::pair<const char*, const char*> cases[] = {
      {"step 3 loss 0.5", "step 3 loss 0.5"},
      {R"({"API_TOKEN": "abc", "steps": "3"})", R"({"API_TOKEN": "REDACTED", "steps": "3"})"},
      {R"({"password":"a\"b"})", R"({"password":"REDACTED"})"},
      {R"({"name":"DB_PASSWORD","value":"x y"})", R"({"name":"DB_PASSWORD","value":"REDACTED"})"},
      {"--token=abc --steps=3", "--token=REDACTED --steps=3"},
      {"aws_secret_access_key: AbC/1+2", "aws_secret_access_key: REDACTED"},
      {"Authorization: Bearer abc.def-g", "Authorization: Bearer REDACTED"},
      {"s3 at https://me:pw@host/x", "s3 at https://me:REDACTED@host/x"},
      {"a line\nsecret=b\n", "a line\nsecret=REDACTED\n"},
      {"tokenizer: ready, tokens: 5000", "tokenizer: ready, tokens: 5000"},
      {"SSH_PRIVATE_KEY=a encryption-key: b privateKey=c",
       "SSH_PRIVATE_KEY=REDACTED encryption-key: REDACTED privateKey=REDACTED"},
      {"train --password hunter2 key: hunter3 --keep 3",
       "train --password REDACTED key: REDACTED --keep 3"},
      {"--api-key 'a b' --use-token --steps 3", "--api-key 'REDACTED' --use-token --steps 3"},
      {R"(password="a b, c" secret=a,b;c)", R"(password="REDACTED" secret=REDACTED)"},
      {"token: Bearer abc", "token: REDACTED REDACTED"},
      {R"(['train', '--password', 'a', '--keep', '3'])",
       R"(['train', '--password', 'REDACTED', '--keep', '3'])"},
      {R"({\"password\": \"a b\", \"steps\": 3})", R"({\"password\": \"REDACTED\", \"steps\": 3})"},
      {R"({'secret': 5, 'secrets': {'n': 5}})", R"({'secret': REDACTED 'secrets': {'n': 5}})"},
      {"redis://:pw@host http://host:80/a@b", "redis://:REDACTED@host http://host:80/a@b"},
      {"monkey=1 keyboard: 2 topologyKey: a keys=3", "monkey=1 keyboard: 2 topologyKey: a keys=3"},
      {R"({"key": "disktype", "name": "key"})", R"({"key": "disktype", "name": "key"})"},
      {"the secret, the --token", "the secret, the --token"},
  };
  for (const auto& [given, want] : cases) EXPECT_EQ(Redacted(given), want);
}

TEST(RedactedTest, OfAnObjectFlagsAndTheirElementsAndVariables) {
  const auto redacted = [](const nlohmann::json& object) {
    return nlohmann::json::parse(RedactedObject(object.dump()));
  };
  const nlohmann::json innocent = {
      {"command", {"train", "--keep", "3", "--use-token", "--steps", "300"}},
      {"env", {{{"name", "STEPS"}, {"value", "300"}}}},
      {"affinity", {{"key", "disktype"}, {"topologyKey", "zone"}}},
      {"automountServiceAccountToken", false}};
  EXPECT_EQ(redacted(innocent), innocent);
  const nlohmann::json given = {
      {"metadata",
       {{"annotations", {{"example.com/api-token", "a"}, {"note", "{\"password\":\"a\"}"}}}}},
      {"command", {"train", "--password", "a", "--api-key", "b", "--db-password=c d", "--token"}},
      {"args", {"--key=e", "PRIVATE_KEY=f\nsteps=3", "sh -c 'x --secret g'"}},
      {"env", {{{"name", "ENCRYPTION_KEY"}, {"value", "i"}}, {{"value", "j"}, {"name", "KEY"}}}}};
  const nlohmann::json want = {
      {"metadata",
       {{"annotations",
         {{"example.com/api-token", "REDACTED"}, {"note", "{\"password\":\"REDACTED\"}"}}}}},
      {"command",
       {"train", "--password", "REDACTED", "--api-key", "REDACTED", "--db-password=REDACTED",
        "--token"}},
      {"args", {"--key=REDACTED", "PRIVATE_KEY=REDACTED\nsteps=3", "sh -c 'x --secret REDACTED'"}},
      {"env",
       {{{"name", "ENCRYPTION_KEY"}, {"value", "REDACTED"}},
        {{"value", "REDACTED"}, {"name", "KEY"}}}}};
  EXPECT_EQ(redacted(given), want);
}

TEST(TarGzTest, TarReadsIt) {
  testing_folder::TempFolder folder;
  const std::string long_text(5000, 'x');
  const auto archive = TarGz({{"r/a.txt", "hello\n"}, {"r/logs/b.log", long_text}, {"r/c", ""}}, 9);
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  const std::string file = folder.path() + "/a.tar.gz";
  ASSERT_TRUE(WriteFileAtomically(file, *archive).ok());
  ASSERT_EQ(std::system(("tar -C " + folder.path() + " -xzf " + file).c_str()), 0);
  EXPECT_EQ(ReadFile(folder.path() + "/r/a.txt").value(), "hello\n");
  EXPECT_EQ(ReadFile(folder.path() + "/r/logs/b.log").value(), long_text);
  EXPECT_EQ(ReadFile(folder.path() + "/r/c").value(), "");
  EXPECT_EQ(TarGz({{std::string(101, 'a'), ""}}, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(CompletionTest, EachShellReadsItsScriptAndItKnowsEveryVerb) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    std::ostringstream out, err;
    const char* argv[] = {"meshtrain", "completion", shell};
    ASSERT_EQ(RunCommand(3, argv, {.out = out, .err = err}), 0) << err.str();
    for (const char* word : {"submit", "status", "convert", "follow", "kubeconfig"}) {
      EXPECT_THAT(out.str(), HasSubstr(word)) << shell;
    }
    testing_folder::TempFolder folder;
    const std::string file = folder.path() + "/script";
    ASSERT_TRUE(WriteFileAtomically(file, out.str()).ok());
    if (std::string(shell) != "bash") continue;  // the others may not be here
    EXPECT_EQ(std::system(("bash -n " + file).c_str()), 0);
    // In a shell: `meshtrain sta<TAB>`, `meshtrain submit --fo<TAB>`.
    const std::string ask = "bash -c 'source " + file +
                            "; COMP_WORDS=(meshtrain sta) COMP_CWORD=1; _meshtrain; echo "
                            "${COMPREPLY[*]}; COMP_WORDS=(meshtrain submit --fo) COMP_CWORD=2; "
                            "_meshtrain; echo ${COMPREPLY[*]}' > " +
                            folder.path() + "/out";
    ASSERT_EQ(std::system(ask.c_str()), 0);
    EXPECT_EQ(ReadFile(folder.path() + "/out").value(), "status\n--follow\n");
  }
}

TEST(PluginTest, UnderItsOtherNameItIsKubectlsPlugin) {
  std::ostringstream out, err;
  const char* argv[] = {"/usr/bin/kubectl-meshtrain", "--help"};
  EXPECT_EQ(RunCommand(2, argv, {.out = out, .err = err}), 0);
  EXPECT_THAT(out.str(), HasSubstr("kubectl meshtrain"));
  EXPECT_THAT(out.str(), HasSubstr("Exit codes: 0 done; 64 wrong usage"));
}

TEST(ErrorsTest, EveryErrorBeginsWithTheProgramsName) {
  for (const std::vector<const char*>& argv :
       std::vector<std::vector<const char*>>{{"meshtrain"},
                                             {"meshtrain", "stauts"},
                                             {"meshtrain", "status"},
                                             {"meshtrain", "list", "-o", "wide"},
                                             {"meshtrain", "scale", "a"}}) {
    std::ostringstream out, err;
    EXPECT_EQ(RunCommand(static_cast<int>(argv.size()), argv.data(), {.out = out, .err = err}),
              cluster::kExitUsage);
    EXPECT_THAT(err.str(), ::testing::StartsWith("meshtrain: ")) << argv.back();
  }
}

}  // namespace
}  // namespace meshtrain::cli
