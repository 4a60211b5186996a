#include "tests/support/manifest_rows.h"

#include <cstdlib>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

void AddFields(const std::vector<Field>& fields, const std::string& prefix,
               std::vector<RowCase>* out) {
  for (const Field& field : fields) {
    const std::string path = prefix + std::string(field.name);
    if (!field.says.sample.empty()) {
      out->push_back({path, std::string(field.says.context), &field});
    }
    AddFields(field.fields, path + (field.type == FieldType::kMaps ? "[0]." : "."), out);
  }
}

// `path`: where an entry's options are, with KIND for its name; `context`: a program with KIND.
void AddEntries(const Catalogue& catalogue, const std::string& path, const std::string& context,
                std::vector<RowCase>* out) {
  const auto filled = [](std::string text, std::string_view kind) {
    for (size_t at; (at = text.find("KIND")) != std::string::npos;) text.replace(at, 4, kind);
    return text;
  };
  for (const Entry& entry : catalogue.entries) {
    Node program = Parse(filled(context, entry.name));
    const std::string options =
        entry.direct ? path.substr(0, path.rfind(".KIND")) : filled(path, entry.name);
    if (entry.several_inputs) PutAt(&program, options + ".inputs", Parse("[x, x]"));
    for (const Field& field : entry.options) {
      if (!field.required) continue;
      PutAt(&program, options + "." + std::string(field.name), Parse(field.says.sample));
    }
    std::vector<RowCase> rows;
    AddFields(entry.options, options + ".", &rows);
    for (RowCase& row : rows) {
      Node whole = program;
      if (!row.context.empty()) {
        const Node more = Parse(row.context);
        for (const Node::Member& member : more.members) {
          PutAt(&whole, options + "." + member.key, member.value);
        }
      }
      // What is required has its sample already: without it there is nothing to compare with.
      if (row.field->required) {
        const bool number = row.field->type == FieldType::kInt;
        if (!number) continue;
        PutAt(&whole, row.path, Node::Word("2"));
      }
      row.context = ToYaml(whole);
      out->push_back(std::move(row));
    }
  }
}

}  // namespace

Node Parse(std::string_view yaml) {
  auto documents = ParseDocuments(yaml, "test");
  MT_CHECK(documents.ok() && documents->size() == 1);
  return documents->front();
}

void Merge(Node* into, const Node& more) {
  if (!into->IsMap() || !more.IsMap()) {
    *into = more;
    return;
  }
  for (const Node::Member& member : more.members) {
    Node* found = nullptr;
    for (Node::Member& known : into->members) {
      if (known.key == member.key) found = &known.value;
    }
    // A program has one of each.
    bool one = member.key == "model" || member.key == "loss" || member.key == "optimizer";
    for (const Entry& source : Sources().entries) {
      one = one || member.value.Find(source.name) != nullptr;
    }
    if (found != nullptr && one) {
      *found = member.value;
    } else if (found != nullptr) {
      Merge(found, member.value);
    } else {
      into->members.push_back(member);
    }
  }
}

void PutAt(Node* root, std::string_view path, Node value) {
  Node* node = root;
  for (const std::string& step : Split(path, '.')) {
    const size_t bracket = step.find('[');
    const std::string key = step.substr(0, bracket);
    if (!node->IsMap()) *node = Node::Map();
    Node* next = nullptr;
    for (Node::Member& member : node->members) {
      if (member.key == key) next = &member.value;
    }
    if (next == nullptr) {
      node->Put(key, Node::Map());
      next = &node->members.back().value;
    }
    node = next;
    if (bracket == std::string::npos) continue;
    const size_t index = static_cast<size_t>(std::atoi(step.c_str() + bracket + 1));
    if (!node->IsList()) *node = Node::List({});
    if (node->list.size() <= index) node->list.resize(index + 1, Node::Map());
    node = &node->list[index];
  }
  *node = std::move(value);
}

std::vector<RowCase> AllRows() {
  std::vector<RowCase> rows;
  AddFields(ProgramFields(), "", &rows);
  AddFields(CheckpointFields(), "checkpoint.", &rows);
  AddEntries(Layers(), "model.layers[0].KIND",
             "{model: {layers: [KIND: {name: it, inputs: [x]}, flatten: {name: flat}, dense: "
             "{name: logits, units: 4}]}}",
             &rows);
  AddEntries(Initializers(), "model[1].dense.kernel_initializer.KIND",
             "{model: [flatten, dense: {units: 4, kernel_initializer: {KIND: {}}}]}", &rows);
  AddEntries(Losses(), "loss.KIND", "{loss: {KIND: {}}}", &rows);
  AddEntries(Optimizers(), "optimizer.KIND", "{optimizer: {KIND: {}}}", &rows);
  AddEntries(Schedules(), "optimizer.adam.learning_rate.KIND",
             "{optimizer: {adam: {learning_rate: {KIND: {}}}}}", &rows);
  AddEntries(Metrics(), "metrics[0].KIND", "{metrics: [KIND: {}]}", &rows);
  AddEntries(Sources(), "data.train.KIND", "{}", &rows);
  AddEntries(MapOps(), "data.map[0].KIND", "{data: {map: [{KIND: {}}]}}", &rows);
  AddEntries(Partitioners(), "parameter_server.variable_partitioner.KIND",
             "{parameter_server: {variable_partitioner: {KIND: {}}}}", &rows);
  return rows;
}

}  // namespace meshtrain::manifest
