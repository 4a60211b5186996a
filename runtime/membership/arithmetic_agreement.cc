#include "runtime/membership/arithmetic_agreement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/text.h"

namespace meshtrain::membership {
namespace {

constexpr std::string_view kAgreed = "agreed";
constexpr std::string_view kFree = "free";
constexpr int64_t kMostThreads = 1 << 20;

}  // namespace

Status LimitInstructionSetBy(const Environment& environment) {
  const auto text = environment(kEnvInstructionSet);
  if (!text || text->empty()) return OkStatus();
  return device::LimitInstructionSet(*text).At(kEnvInstructionSet);
}

std::string ForcedInstructionSet(const Environment& environment) {
  return environment(kEnvForcedInstructionSet).value_or("");
}

std::string ArithmeticOffer::ToText() const {
  return sets.least + " " + sets.best + " " + std::to_string(threads) + " " +
         std::string(agreed ? kAgreed : kFree);
}

Result<ArithmeticOffer> ArithmeticOffer::Parse(std::string_view text) {
  const auto bad = [&] {
    return InvalidArgument("arithmetic: expected LEAST BEST THREADS and agreed or free, got: " +
                           std::string(text.substr(0, 80)));
  };
  std::vector<std::string_view> words;
  std::string_view rest = text;
  for (size_t space = rest.find(' '); space != std::string_view::npos; space = rest.find(' ')) {
    words.push_back(rest.substr(0, space));
    rest.remove_prefix(space + 1);
  }
  words.push_back(rest);
  if (words.size() != 4) return bad();
  const auto threads = ParseInt(words[2]);
  if (!threads || *threads < 1 || *threads > kMostThreads) return bad();
  if (words[3] != kAgreed && words[3] != kFree) return bad();
  // Both are known, and in order.
  MT_ASSIGN_OR_RETURN(const bool wrong, device::IsLesserInstructionSet(words[1], words[0]));
  if (wrong) return bad();
  return ArithmeticOffer{.sets = {std::string(words[0]), std::string(words[1])},
                         .threads = static_cast<int>(*threads),
                         .agreed = words[3] == kAgreed};
}

Result<Arithmetic> AgreedArithmetic(std::span<const std::string> offers,
                                    const std::function<std::string(int)>& name) {
  std::vector<ArithmeticOffer> parsed;
  size_t least = 0;  // whose best is the least
  for (size_t p = 0; p < offers.size(); ++p) {
    auto offer = ArithmeticOffer::Parse(offers[p]);
    if (!offer.ok()) return offer.status().At(name(static_cast<int>(p)));
    parsed.push_back(std::move(*offer));
    MT_ASSIGN_OR_RETURN(const bool lesser, device::IsLesserInstructionSet(parsed[p].sets.best,
                                                                          parsed[least].sets.best));
    if (lesser) least = p;
  }
  if (parsed.empty()) return InvalidArgument("arithmetic: expected a process, got: none");
  const std::string& set = parsed[least].sets.best;
  Status aborted;
  for (size_t p = 0; p < parsed.size(); ++p) {
    MT_ASSIGN_OR_RETURN(const bool above,
                        device::IsLesserInstructionSet(set, parsed[p].sets.least));
    if (!above) continue;
    const std::string who = name(static_cast<int>(p)), other = name(static_cast<int>(least));
    const std::string got = ", got: " + other + " has no better than " + set;
    if (!parsed[p].agreed) {
      return FailedPrecondition(
          "instruction set: " + who + " computed with " + parsed[p].sets.least +
          " before it joined: expected processes that all have it" + got + " (join first, or set " +
          std::string(kEnvInstructionSet) + "=" + set + ")");
    }
    if (!aborted.ok()) continue;
    aborted = Aborted("instruction set: " + who + " runs with " + parsed[p].sets.least +
                      " since it joined: expected a replacement that has it" + got +
                      "; every process starts again, to agree on " + set)
                  .From(Origin::kPeers);
  }
  if (!aborted.ok()) return aborted;
  int threads = parsed[0].threads;
  for (const ArithmeticOffer& offer : parsed) {
    if (offer.agreed) {
      threads = offer.threads;
      break;
    }
    threads = std::min(threads, offer.threads);
  }
  return Arithmetic{set, threads};
}

}  // namespace meshtrain::membership
