#include "tests/contract/random_programs/case.h"

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "runtime/base/text.h"

namespace meshtrain::random_programs {
namespace {

using mesh::Layout;
using mesh::Mesh;
using mesh::Partial;
using mesh::Reduction;

const std::vector<std::pair<Where, std::string>> kPlaces = {
    {Where::kIsolated, "isolated"},
    {Where::kMerged, "merged"},
    {Where::kOne, "one"},
    {Where::kSession, "session"},
    {Where::kIsolatedSession, "isolated-session"},
    {Where::kTwoProcesses, "two-processes"},
    {Where::kDiscrete, "discrete"},
    {Where::kDiscreteSession, "discrete-session"},
    {Where::kPjrt, "pjrt"},
    {Where::kPjrtSession, "pjrt-session"}};

class Chooser {
 public:
  explicit Chooser(uint64_t seed) : random_(seed ^ 0xC0FFEE) {}
  size_t Pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }

  Mesh SomeMesh() {
    static const std::vector<std::string> texts = {
        "batch=2",         "batch=3",         "batch=4",     "batch=2,model=2", "batch=2,model=3",
        "batch=1,model=4", "batch=3,model=2", "a=2,b=2,c=2", "a=3,b=1,c=2",     "a=2,b=3,c=1",
        "batch=2,model=4", "batch=5",         "model=1",     "batch=4,model=2", "batch=2,model=1"};
    return *Mesh::Parse(texts[Pick(texts.size())]);
  }

  // Some axes split dimensions, some leave the value pending where it may be.
  Layout SomeLayout(const Mesh& mesh, const mesh::TensorType& type, bool may_be_pending) {
    std::vector<mesh::DimSharding> dims(type.rank());
    std::vector<Partial> partial;
    const auto reduction = static_cast<Reduction>(Chance(0.6) ? 0 : Pick(3));
    std::vector<int> axes;
    for (int a = 0; a < mesh.num_axes(); ++a) axes.push_back(a);
    std::shuffle(axes.begin(), axes.end(), random_);
    for (const int a : axes) {
      if (Chance(0.3)) continue;
      if (may_be_pending && Chance(0.35)) {
        partial.push_back({a, reduction});
      } else if (type.rank() > 0) {
        // Batches are split most.
        dims[Chance(0.5) ? 0 : Pick(type.rank())].push_back(a);
      }
    }
    return *Layout::Create(mesh, std::move(dims), std::move(partial));
  }

  Way SomeWay(Where where, bool plain) {
    Way way{.where = where};
    if (plain) return way;
    way.plan.fuse = Chance(0.6);
    way.plan.fewest_folded = Chance(0.5) ? 2 : 0;
    way.plan.least_repeated = Chance(0.7) ? 0 : 512;
    const int64_t buckets[] = {0, 64, 4096, int64_t{4} << 20};
    way.plan.bucket_bytes = buckets[Pick(4)];
    way.plan.recorded_order = Chance(0.3);
    way.finite = Chance(0.2);
    way.threads = Chance(0.5) ? 1 : 3;
    return way;
  }

 private:
  std::mt19937_64 random_;
};

std::string Quoted(const std::string& name) {
  std::string text = "\"";
  for (const char c : name) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

// Reads what Quoted wrote from the front of `line`.
std::string TakeQuoted(std::string& line) {
  std::string name;
  size_t i = line.find('"');
  if (i == std::string::npos) return name;
  for (++i; i < line.size() && line[i] != '"'; ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      name += line[i] == 'n' ? '\n' : line[i];
    } else {
      name += line[i];
    }
  }
  line = i + 1 < line.size() ? line.substr(i + 1) : "";
  while (!line.empty() && line.front() == ' ') line.erase(0, 1);
  return name;
}

Result<Way> ParseWay(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  Way way;
  const auto place =
      std::find_if(kPlaces.begin(), kPlaces.end(), [&](const auto& p) { return p.second == word; });
  if (place == kPlaces.end()) return InvalidArgument("case: expected a way to run, got: " + word);
  way.where = place->first;
  while (words >> word) {
    const size_t equals = word.find('=');
    const auto value =
        ParseInt(equals == std::string::npos ? std::string_view()
                                             : std::string_view(word).substr(equals + 1));
    if (!value) return InvalidArgument("case: expected name=number, got: " + word);
    const std::string name = word.substr(0, equals);
    if (name == "fuse") way.plan.fuse = *value != 0;
    if (name == "folds") way.plan.fewest_folded = *value;
    if (name == "repeats") way.plan.least_repeated = *value;
    if (name == "bucket") way.plan.bucket_bytes = *value;
    if (name == "overlap") way.plan.overlap = *value != 0;
    if (name == "recorded") way.plan.recorded_order = *value != 0;
    if (name == "finite") way.finite = *value != 0;
    if (name == "threads") way.threads = static_cast<int>(*value);
  }
  return way;
}

}  // namespace

std::string Way::ToString() const {
  std::string name;
  for (const auto& [place, text] : kPlaces) {
    if (place == where) name = text;
  }
  return name + " fuse=" + std::to_string(plan.fuse) +
         " folds=" + std::to_string(plan.fewest_folded) +
         " repeats=" + std::to_string(plan.least_repeated) +
         " bucket=" + std::to_string(plan.bucket_bytes) +
         " overlap=" + std::to_string(plan.overlap) +
         " recorded=" + std::to_string(plan.recorded_order) + " finite=" + std::to_string(finite) +
         " threads=" + std::to_string(threads);
}

std::string Case::ToString() const {
  std::string text = "mesh " + mesh.ToString() + "\nfeed " + std::to_string(feed) + " steps " +
                     std::to_string(steps) + "\n";
  const auto add = [&](const char* what, const std::map<std::string, Layout>& layouts) {
    for (const auto& [name, layout] : layouts) {
      text += std::string(what) + " " + Quoted(name) + " " + layout.ToString() + "\n";
    }
  };
  add("input", given.inputs);
  add("state", given.states);
  add("output", given.outputs);
  for (const Way& way : ways) text += "run " + way.ToString() + "\n";
  return text + program.ToString();
}

Result<Case> Case::Parse(std::string_view text) {
  Case c;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text.substr(at, end - at));
    if (line.starts_with("program ")) break;
    at = end + 1;
    if (line.empty() || line.front() == '#') continue;
    const size_t space = line.find(' ');
    const std::string what = line.substr(0, space);
    line = space == std::string::npos ? "" : line.substr(space + 1);
    if (what == "mesh") {
      MT_ASSIGN_OR_RETURN(c.mesh, Mesh::Parse(line));
    } else if (what == "feed") {
      std::istringstream words(line);
      std::string steps;
      if (!(words >> c.feed >> steps >> c.steps)) {
        return InvalidArgument("case: expected `feed N steps N`, got: feed " + line);
      }
    } else if (what == "run") {
      MT_ASSIGN_OR_RETURN(const Way way, ParseWay(line));
      c.ways.push_back(way);
    } else if (what == "input" || what == "state" || what == "output") {
      const std::string name = TakeQuoted(line);
      MT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(line, c.mesh));
      (what == "input"   ? c.given.inputs
       : what == "state" ? c.given.states
                         : c.given.outputs)
          .insert_or_assign(name, layout);
    } else {
      return InvalidArgument(
          "case: expected mesh, feed, input, state, output, run or program, got: " + what);
    }
  }
  MT_ASSIGN_OR_RETURN(c.program, program::ParseProgram(text.substr(std::min(at, text.size()))));
  return c;
}

Result<Case> DrawCase(uint64_t seed, const std::string& kind) {
  Chooser choose(seed);
  Case c;
  c.mesh = choose.SomeMesh();
  testing::DrawOptions options{.kind = kind};
  for (const mesh::Axis& axis : c.mesh.axes()) options.axes.push_back(axis.name);
  MT_ASSIGN_OR_RETURN(c.program, testing::DrawProgram(seed, options));
  c.feed = seed;
  c.steps = !c.program.states.empty() && choose.Chance(0.4) ? 2 : 1;
  // A sum is cut into whole numbers and a rest, which only numbers on a coarse grid survive
  // exactly; bools have no sums.
  const auto may_be_pending = [&](const std::string& name, const mesh::TensorType& type) {
    return type.dtype != mesh::DType::kBool && !name.starts_with("wide");
  };
  for (const program::Port& p : c.program.inputs) {
    if (!choose.Chance(0.7)) continue;
    const auto& type = c.program.type(p.value);
    c.given.inputs.insert_or_assign(p.name,
                                    choose.SomeLayout(c.mesh, type, may_be_pending(p.name, type)));
  }
  for (const program::State& s : c.program.states) {
    if (!choose.Chance(0.6)) continue;
    c.given.states.insert_or_assign(s.name,
                                    choose.SomeLayout(c.mesh, c.program.type(s.entry), false));
  }
  for (const program::Port& p : c.program.outputs) {
    if (!choose.Chance(0.5)) continue;
    c.given.outputs.insert_or_assign(p.name,
                                     choose.SomeLayout(c.mesh, c.program.type(p.value), false));
  }
  c.ways.push_back(choose.SomeWay(Where::kIsolated, true));
  Way other = choose.SomeWay(Where::kIsolated, false);
  other.plan.overlap = choose.Chance(0.1);
  c.ways.push_back(other);
  c.ways.push_back(choose.SomeWay(Where::kMerged, choose.Chance(0.5)));
  c.ways.push_back(choose.SomeWay(Where::kOne, choose.Chance(0.5)));
  if (choose.Chance(0.15)) {
    c.ways.push_back(choose.SomeWay(choose.Chance(0.5) ? Where::kSession : Where::kIsolatedSession,
                                    choose.Chance(0.5)));
  }
  if (c.mesh.size() % 2 == 0 && choose.Chance(0.04)) {
    c.ways.push_back(choose.SomeWay(Where::kTwoProcesses, true));
  }
  return c;
}

}  // namespace meshtrain::random_programs
