// Makes and reads files for the tests beside it:
//   e2e_python_samples checkpoint FOLDER   a checkpoint of a 2x2 mesh in FOLDER/ckpt-…, exported to
//                                          model.safetensors
//   e2e_python_samples weights FILE NAME=TYPE...   prints each tensor as NAME TYPE HEX
//   e2e_python_samples events FOLDER       event files in FOLDER/train and FOLDER/test, and
//                                          FOLDER/metrics.jsonl
//   e2e_python_samples digits FOLDER       reads make-data's files; prints SPLIT COUNT
//                                          SUM_OF_PIXELS LABEL_COUNTS
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/checkpoint/collect.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/data/pipeline.h"
#include "runtime/mesh/element_type.h"
#include "runtime/telemetry/event_file.h"
#include "runtime/telemetry/metrics_log.h"

namespace meshtrain {
namespace {

using mesh::Layout;
using mesh::Tensor;
using mesh::TensorType;

Tensor Counting(const TensorType& type) {
  Tensor t(type);
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    switch (type.dtype) {
      case mesh::DType::kBool:
        t.mutable_values<bool>()[i] = i % 3 == 0;
        break;
      case mesh::DType::kU8:
        t.mutable_values<uint8_t>()[i] = static_cast<uint8_t>(i);
        break;
      case mesh::DType::kI32:
        t.mutable_values<int32_t>()[i] = static_cast<int32_t>(i - 5);
        break;
      case mesh::DType::kI64:
        t.mutable_values<int64_t>()[i] = (i + 1) << 40;
        break;
      case mesh::DType::kF32:
        t.mutable_values<float>()[i] = static_cast<float>(i) / 7.0f;
        break;
      case mesh::DType::kF64:
        t.mutable_values<double>()[i] = static_cast<double>(i) / 7.0;
        break;
      case mesh::DType::kBF16:
        t.mutable_values<mesh::BFloat16>()[i] = mesh::BFloat16(static_cast<double>(i) / 7.0);
        break;
      case mesh::DType::kF16:
        t.mutable_values<mesh::Float16>()[i] = mesh::Float16(static_cast<double>(i) / 7.0);
        break;
    }
  }
  return t;
}

Status WriteCheckpoint(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(const mesh::Mesh mesh, mesh::Mesh::Parse("batch=2,model=2"));
  std::vector<checkpoint::VariableSpec> specs;
  const std::pair<const char*, std::pair<const char*, const char*>> variables[] = {
      {"hidden_1.kernel", {"f32[7,5]", "{batch, model}"}},
      {"hidden_1.bias", {"f64[5]", "{model}"}},
      {"ids", {"i32[9]", "{*}"}},
      {"step", {"i64[]", "{}"}},
      {"mask", {"bool[4]", "{batch}"}},
      {"pixels", {"u8[3,3]", "{*, *}"}},
      {"nothing", {"f32[0,3]", "{*, *}"}},
  };
  for (const auto& [name, how] : variables) {
    MT_ASSIGN_OR_RETURN(const TensorType type, TensorType::Parse(how.first));
    MT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(how.second, mesh));
    specs.push_back({name, type, layout});
  }
  const auto fetch = [&](int variable, int64_t rank) -> Result<Tensor> {
    const auto slice = specs[variable].layout.SliceOf(rank, specs[variable].type.dims);
    return Counting(specs[variable].type).Slice(slice.offsets, slice.sizes);
  };
  MT_ASSIGN_OR_RETURN(auto saved, checkpoint::Collect(specs, 0, fetch));
  MT_ASSIGN_OR_RETURN(
      const std::string path,
      checkpoint::Save(folder,
                       {.step = 120, .mesh = mesh.ToString(), .variables = std::move(saved)}));
  MT_ASSIGN_OR_RETURN(const auto reader, checkpoint::Checkpoint::Open(path));
  return reader->Export(folder + "/model.safetensors");
}

Status PrintWeights(const std::string& path, const std::vector<std::string>& wanted) {
  std::vector<mesh::NamedType> parameters;
  for (const std::string& w : wanted) {
    const size_t cut = w.find('=');
    MT_ASSIGN_OR_RETURN(const TensorType type, TensorType::Parse(w.substr(cut + 1)));
    parameters.push_back({w.substr(0, cut), type});
  }
  MT_ASSIGN_OR_RETURN(const std::vector<Tensor> values, checkpoint::LoadWeights(path, parameters));
  for (size_t i = 0; i < values.size(); ++i) {
    std::printf("%s %s ", parameters[i].name.c_str(), values[i].type().ToString().c_str());
    for (const std::byte b : values[i].bytes()) std::printf("%02x", std::to_integer<unsigned>(b));
    std::printf("\n");
  }
  return OkStatus();
}

Status WriteEvents(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(auto train, telemetry::EventFileWriter::Create(folder + "/train"));
  MT_ASSIGN_OR_RETURN(auto test, telemetry::EventFileWriter::Create(folder + "/test"));
  MT_ASSIGN_OR_RETURN(auto log, telemetry::MetricsLog::Open(folder + "/metrics.jsonl"));
  for (int64_t step = 1; step <= 300; ++step) {
    const double loss = 2.0 / std::sqrt(static_cast<double>(step));
    const std::vector<telemetry::NamedValue> values = {{"loss", loss}, {"accuracy", 1 - loss / 2}};
    MT_RETURN_IF_ERROR(train->Add(step, values));
    MT_RETURN_IF_ERROR(log->Add(telemetry::StepRecord{.step = step,
                                                      .epoch = 1 + (step - 1) / 100,
                                                      .loss = loss,
                                                      .metrics = std::span(values).subspan(1)}));
    if (step % 100 == 0) MT_RETURN_IF_ERROR(test->Add(step, values));
  }
  MT_RETURN_IF_ERROR(log->Close());
  MT_RETURN_IF_ERROR(test->Close());
  return train->Close();
}

Status PrintDigits(const std::string& folder) {
  for (const char* split : {"train", "t10k"}) {
    data::PipelineSpec spec{
        .source = {.from = data::IdxFiles{folder + "/" + split + "-images-idx3-ubyte.gz",
                                          folder + "/" + split + "-labels-idx1-ubyte.gz"}},
        .stages = {data::BatchStage{100}}};
    MT_ASSIGN_OR_RETURN(auto pipeline, data::Pipeline::Create(std::move(spec)));
    int64_t count = 0;
    int64_t sum = 0;
    std::vector<int64_t> labels(10);
    for (;;) {
      MT_ASSIGN_OR_RETURN(const auto batch, pipeline->Next());
      if (!batch) break;
      count += batch->size;
      for (const uint8_t pixel : batch->components[0].values<uint8_t>()) sum += pixel;
      for (const int32_t label : batch->components[1].values<int32_t>()) {
        ++labels.at(static_cast<size_t>(label));
      }
    }
    std::printf("%s %lld %lld", split, static_cast<long long>(count), static_cast<long long>(sum));
    for (const int64_t n : labels) std::printf(" %lld", static_cast<long long>(n));
    std::printf("\n");
  }
  return OkStatus();
}

Status Main(const std::vector<std::string>& args) {
  if (args.size() < 2) return InvalidArgument("expected a verb and a path");
  if (args[0] == "checkpoint") return WriteCheckpoint(args[1]);
  if (args[0] == "weights") return PrintWeights(args[1], {args.begin() + 2, args.end()});
  if (args[0] == "events") return WriteEvents(args[1]);
  if (args[0] == "digits") return PrintDigits(args[1]);
  return InvalidArgument("expected checkpoint, weights, events or digits, got: " + args[0]);
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) {
  const meshtrain::Status status = meshtrain::Main({argv + 1, argv + argc});
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
