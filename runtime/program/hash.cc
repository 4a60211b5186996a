#include <xxhash.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/program/program.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

// Feeds length-prefixed pieces, so that ("ab","c") and ("a","bc") differ.
class Hasher {
 public:
  Hasher& Add(std::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  Hasher& Add(uint64_t number) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(number >> (8 * i));
    return *this;
  }
  uint64_t Digest() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

}  // namespace

uint64_t HashProgram(const Program& program) {
  std::vector<uint64_t> hashes(program.values.size(), 0);
  for (const Port& p : program.inputs) {
    hashes[p.value] =
        Hasher().Add("input").Add(p.name).Add(program.type(p.value).ToString()).Digest();
  }
  for (const State& s : program.states) {
    hashes[s.entry] =
        Hasher().Add("state").Add(s.name).Add(program.type(s.entry).ToString()).Digest();
  }
  for (const Op& op : program.ops) {
    Hasher h;
    h.Add("op").Add(op.kind);
    for (const auto& [key, value] : op.attrs.items()) h.Add(key).Add(AttrText(value));
    for (const ValueId v : op.operands) h.Add(hashes[v]);
    const OpDef* def = Registry::Standard().Find(op.kind);
    if (def != nullptr && def->path_dependent) h.Add("path").Add(op.path);
    const uint64_t op_hash = h.Digest();
    for (size_t r = 0; r < op.results.size(); ++r) {
      hashes[op.results[r]] =
          Hasher().Add(op_hash).Add(r).Add(program.type(op.results[r]).ToString()).Digest();
    }
  }
  std::vector<std::pair<std::string, uint64_t>> effects;
  for (const Port& p : program.outputs) effects.emplace_back("output " + p.name, hashes[p.value]);
  for (const State& s : program.states) {
    if (s.exit != s.entry) effects.emplace_back("update " + s.name, hashes[s.exit]);
  }
  std::sort(effects.begin(), effects.end());
  Hasher h;
  for (const auto& [name, hash] : effects) h.Add(name).Add(hash);
  return h.Digest();
}

}  // namespace meshtrain::program
