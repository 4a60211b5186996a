#include "runtime/recipe/blocks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/text.h"

namespace meshtrain::recipe {
namespace {

using manifest::Layer;
using manifest::Model;

// "blocks.12.mlp.up": block 12 of run "blocks", within it "mlp.up".
struct BlockName {
  std::string run;
  int64_t index = 0;
  std::string rest;
};

std::optional<BlockName> ParseBlockName(std::string_view name) {
  const std::vector<std::string> parts = Split(name, '.');
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const auto index = ParseInt(parts[i]);
    if (!index) continue;
    const auto middle = parts.begin() + static_cast<int64_t>(i);
    return BlockName{Join({parts.begin(), middle}, "."), *index,
                     Join({middle + 1, parts.end()}, ".")};
  }
  return std::nullopt;
}

std::string NameOf(const BlockName& name) {
  return name.run + "." + std::to_string(name.index) + "." + name.rest;
}

// Layer by layer, with links told from the block that they are in.
using Block = std::vector<Layer>;
using Runs = std::map<std::string, std::vector<Block>>;

// Errors: none; empty where blocks of a run do not stand one after another, 0 first.
std::optional<Runs> RunsOf(const Model& model) {
  Runs runs;
  std::string last;
  for (const Layer& layer : model.layers) {
    const auto name = ParseBlockName(layer.name);
    const std::string run = name ? name->run : "";
    if (name) {
      std::vector<Block>& blocks = runs[run];
      const auto count = static_cast<int64_t>(blocks.size());
      const bool goes_on = run == last && name->index == count - 1;
      const bool next = name->index == count && (count == 0 || run == last);
      if (!goes_on && !next) return std::nullopt;
      if (next) blocks.emplace_back();
      Layer& alike = blocks.back().emplace_back(layer);
      alike.name = name->rest;
      alike.spot = {};
      for (std::string& input : alike.inputs) {
        const auto from = ParseBlockName(input);
        if (!from || from->run != run) continue;
        input = std::to_string(from->index - name->index) + " " + from->rest;
      }
    }
    last = run;
  }
  return runs;
}

}  // namespace

std::string PlaceInBlocks(std::string_view path) {
  std::vector<std::string> parts = Split(path, '.');
  for (std::string& part : parts) {
    if (ParseInt(part)) part = "*";
  }
  return Join(parts, ".");
}

Model WithFewerBlocks(const Model& model, int64_t most) {
  const auto runs = RunsOf(model);
  if (!runs) return model;
  std::map<std::string, int64_t> blocks_of;  // of the runs that become shorter
  for (const auto& [run, blocks] : *runs) {
    const bool alike = std::all_of(blocks.begin() + 1, blocks.end(),
                                   [&](const Block& block) { return block == blocks[1]; });
    const auto count = static_cast<int64_t>(blocks.size());
    if (alike && count > most) blocks_of[run] = count;
  }
  bool linked = true;
  // What a layer that stays is linked to, or the output.
  const auto moved = [&](std::string& input) {
    auto from = ParseBlockName(input);
    const auto run = from ? blocks_of.find(from->run) : blocks_of.end();
    if (run == blocks_of.end() || from->index < most) return;
    linked = linked && from->index == run->second - 1;
    from->index = most - 1;
    input = NameOf(*from);
  };
  Model shorter = model;
  shorter.layers.clear();
  for (const Layer& layer : model.layers) {
    const auto name = ParseBlockName(layer.name);
    if (name && blocks_of.contains(name->run) && name->index >= most) continue;
    Layer& stays = shorter.layers.emplace_back(layer);
    for (std::string& input : stays.inputs) moved(input);
  }
  moved(shorter.output);
  return linked ? shorter : model;
}

}  // namespace meshtrain::recipe
