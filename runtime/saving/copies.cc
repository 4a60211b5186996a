#include "runtime/saving/copies.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "runtime/saving/failure.h"

namespace meshtrain::saving {
namespace {

constexpr size_t kHashText = 16;  // hexadecimal digits
// Hashes in one agreement, whose texts are bounded (Membership::Agree).
constexpr size_t kMostHashes = 32768;

// The hashes of all copies, of which this process knows its own: `mine[i]` is of the i-th copy
// whose process is ours.
Result<std::vector<uint64_t>> Exchange(const std::vector<std::vector<size_t>>& of_process,
                                       const std::vector<uint64_t>& mine, size_t copies,
                                       membership::Team& team, int64_t step) {
  size_t longest = 0;
  for (const auto& indices : of_process) longest = std::max(longest, indices.size());
  std::vector<uint64_t> all(copies);
  for (size_t begin = 0; begin < longest; begin += kMostHashes) {
    std::string text;
    for (size_t i = begin; i < std::min(mine.size(), begin + kMostHashes); ++i) {
      text += fmt::format("{:016x}", mine[i]);
    }
    const std::string name =
        fmt::format("copies of step {}{}", step, begin == 0 ? "" : fmt::format(" from {}", begin));
    MT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        team.Agree(name, text, kAgreeTimeout, {}));
    for (size_t p = 0; p < of_process.size(); ++p) {
      const size_t end = std::min(of_process[p].size(), begin + kMostHashes);
      const size_t want = end > begin ? end - begin : 0;
      if (p >= texts.size() || texts[p].size() != want * kHashText) {
        return Internal(fmt::format("{} of {}: expected the hashes of {} copies, got: {} bytes",
                                    name, team.name(static_cast<int>(p)), want,
                                    p < texts.size() ? texts[p].size() : 0));
      }
      for (size_t i = 0; i < want; ++i) {
        const char* digits = texts[p].data() + i * kHashText;
        uint64_t& hash = all[of_process[p][begin + i]];
        if (std::from_chars(digits, digits + kHashText, hash, 16).ptr != digits + kHashText) {
          return Internal(name + " of " + team.name(static_cast<int>(p)) +
                          ": expected hexadecimal digits, got: " + std::string(digits, kHashText));
        }
      }
    }
  }
  return all;
}

}  // namespace

std::vector<Copy> CopiesOf(std::span<const StoredVariable> variables) {
  std::vector<Copy> copies;
  for (size_t v = 0; v < variables.size(); ++v) {
    const mesh::Layout& layout = variables[v].layout;
    struct Part {
      int number = 0;
      int64_t holders = 0;
    };
    std::map<std::pair<mesh::Dims, mesh::Dims>, Part> parts;
    std::vector<Part*> held;  // by rank; null: nothing of it
    for (int64_t rank = 0; rank < layout.mesh().size(); ++rank) {
      const mesh::Layout::Slice slice = layout.SliceOf(rank, variables[v].dims);
      if (mesh::NumElements(slice.sizes) == 0) {
        held.push_back(nullptr);
        continue;
      }
      const auto [at, added] = parts.try_emplace({slice.offsets, slice.sizes});
      if (added) at->second.number = static_cast<int>(parts.size()) - 1;
      ++at->second.holders;
      held.push_back(&at->second);
    }
    for (size_t rank = 0; rank < held.size(); ++rank) {
      if (held[rank] == nullptr || held[rank]->holders < 2) continue;
      copies.push_back({.variable = static_cast<int>(v),
                        .rank = static_cast<int64_t>(rank),
                        .part = held[rank]->number});
    }
  }
  return copies;
}

Status CompareCopies(std::span<const StoredVariable> variables, std::span<const Copy> copies,
                     std::span<const uint64_t> hashes,
                     const std::function<std::string(int)>& name) {
  std::map<std::pair<int, int>, std::map<uint64_t, std::vector<int64_t>>> parts;
  for (size_t i = 0; i < copies.size(); ++i) {
    parts[{copies[i].variable, copies[i].part}][hashes[i]].push_back(copies[i].rank);
  }
  std::string first;
  std::set<int> others;  // further variables that differ
  int named = -1;
  for (const auto& [part, ranks_of] : parts) {
    if (ranks_of.size() == 1) continue;
    const StoredVariable& v = variables[static_cast<size_t>(part.first)];
    if (named < 0) {
      named = part.first;
      for (const auto& [hash, ranks] : ranks_of) {
        std::string holders;
        for (const int64_t rank : ranks) {
          const auto& device = v.layout.mesh().devices()[static_cast<size_t>(rank)];
          holders += fmt::format("{}rank {} ({})", holders.empty() ? "" : ", ", rank,
                                 name(device.process));
        }
        first += fmt::format("{}{:016x} on {}", first.empty() ? "" : "; ", hash, holders);
      }
    } else if (part.first != named) {
      others.insert(part.first);
    }
  }
  if (named < 0) return OkStatus();
  return Internal(fmt::format(
      "variable `{}`{}: expected equal copies on all ranks, got hashes: {}",
      variables[static_cast<size_t>(named)].name,
      others.empty() ? "" : fmt::format(" and {} other variables", others.size()), first));
}

Status CheckCopies(execute::Session& session, std::span<const program::Variable> variables,
                   membership::Team* team, int64_t step) {
  std::vector<StoredVariable> stored;
  for (const program::Variable& v : variables) {
    MT_ASSIGN_OR_RETURN(mesh::Layout layout, session.StoredLayoutOf(v));
    stored.push_back({v.name(), v.dims(), std::move(layout)});
  }
  const std::vector<Copy> copies = CopiesOf(stored);
  if (copies.empty()) return OkStatus();
  const int processes = team == nullptr ? 1 : team->processes();
  std::vector<std::vector<size_t>> of_process(static_cast<size_t>(processes));
  std::vector<uint64_t> mine;
  std::optional<membership::Team::Busy> busy(std::in_place, team, "hashing the state");
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& c = copies[i];
    const auto variable = static_cast<size_t>(c.variable);
    const int process =
        stored[variable].layout.mesh().devices()[static_cast<size_t>(c.rank)].process;
    if (process < 0 || process >= processes) {
      return Internal(fmt::format("variable `{}`: rank {} lies in process {} of {}",
                                  stored[variable].name, c.rank, process, processes));
    }
    of_process[static_cast<size_t>(process)].push_back(i);
    if (process != session.options().process) continue;
    MT_RETURN_IF_ERROR(
        session.UseStored(variables[variable], c.rank, [&](std::span<const std::byte> bytes) {
          mine.push_back(XXH3_64bits(bytes.data(), bytes.size()));
        }));
  }
  busy.reset();
  std::vector<uint64_t> all = mine;
  if (team != nullptr) {
    MT_ASSIGN_OR_RETURN(all, Exchange(of_process, mine, copies.size(), *team, step));
  }
  const auto name = [team](int process) {
    return team == nullptr ? std::string("this process") : team->name(process);
  };
  return CompareCopies(stored, copies, all, name).At(fmt::format("step {}", step));
}

}  // namespace meshtrain::saving
