#include "runtime/checkpoint/weights.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/mesh/cast.h"

namespace meshtrain::checkpoint {
namespace {

using mesh::Tensor;
using mesh::TensorType;

// Either kind of file behind one face.
struct Weights {
  std::map<std::string, std::optional<TensorType>> types;
  std::function<Result<Tensor>(const std::string&)> read;
};

Result<Weights> OpenWeights(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    MT_ASSIGN_OR_RETURN(auto opened, SafetensorsReader::Open(path));
    std::shared_ptr<SafetensorsReader> file = std::move(opened);
    Weights weights;
    for (const SafetensorsEntry& e : file->header().entries) weights.types[e.name] = e.type();
    weights.read = [file](const std::string& name) { return file->Read(name); };
    return weights;
  }
  std::string folder = path;
  if (!fs::exists(fs::path(path) / kIndexName, ignored)) {
    MT_ASSIGN_OR_RETURN(const Candidate newest, FindLatest(path));
    folder = newest.path;
  }
  MT_ASSIGN_OR_RETURN(auto opened, Checkpoint::Open(folder));
  std::shared_ptr<Checkpoint> checkpoint = std::move(opened);
  Weights weights;
  for (const auto& [name, v] : checkpoint->index().variables) weights.types[name] = v.type;
  weights.read = [checkpoint](const std::string& name) { return checkpoint->Load(name); };
  return weights;
}

bool Convertible(const TensorType& from, const TensorType& to) {
  return from.dims == to.dims &&
         (from.dtype == to.dtype || (mesh::IsFloat(from.dtype) && mesh::IsFloat(to.dtype)));
}

}  // namespace

namespace {

Result<std::vector<Tensor>> ReadWeights(const std::string& path,
                                        std::span<const mesh::NamedType> parameters,
                                        std::string_view whose) {
  MT_ASSIGN_OR_RETURN(const Weights weights, OpenWeights(path));
  std::vector<std::string> names;
  for (const auto& [name, type] : weights.types) names.push_back(name);
  std::vector<std::string> wrong;
  for (const mesh::NamedType& p : parameters) {
    const auto found = weights.types.find(p.name);
    if (found == weights.types.end()) {
      wrong.push_back("expected `" + p.name + "` " + p.type.ToString() +
                      ", got: no tensor of that name" + DidYouMean(p.name, names));
    } else if (!found->second || !Convertible(*found->second, p.type)) {
      wrong.push_back(
          "`" + p.name + "`: expected " + p.type.ToString() + ", got: " +
          (found->second ? found->second->ToString() : "an element type that Meshtrain has not"));
    }
  }
  if (!wrong.empty()) {
    const std::string of = whose.empty() ? "" : " (" + std::string(whose) + ")";
    return InvalidArgument(path + ": " + Join(wrong, "; ") + of);
  }
  std::vector<Tensor> out;
  for (const mesh::NamedType& p : parameters) {
    MT_ASSIGN_OR_RETURN(const Tensor value, weights.read(p.name));
    out.push_back(mesh::CastTensor(value, p.type.dtype));
  }
  return out;
}

}  // namespace

Result<std::vector<Tensor>> LoadWeights(const std::string& path,
                                        std::span<const mesh::NamedType> parameters,
                                        std::string_view whose) {
  return ReadWeights(path, parameters, whose).From(Origin::kInput);
}

}  // namespace meshtrain::checkpoint
