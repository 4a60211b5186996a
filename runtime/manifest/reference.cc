#include "runtime/manifest/reference.h"

#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

// In a cell of a table.
std::string Cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string Anchor(const Catalogue& catalogue) {
  std::string anchor;
  for (const char c : catalogue.noun) anchor += c == ' ' ? '-' : c;
  return anchor;
}

std::string WithArticle(std::string_view noun, const std::string& linked) {
  const bool vowel = std::string_view("aeiou").find(noun[0]) != std::string_view::npos;
  return (vowel ? "an " : "a ") + linked;
}

std::string CellType(const Field& field) {
  if (field.of == nullptr) return Cell(TypeText(field));
  const std::string one = WithArticle(
      field.of->noun, "[" + std::string(field.of->noun) + "](#" + Anchor(*field.of) + ")");
  if (!field.type_text.empty()) return Cell(field.type_text) + "; each " + one;
  if (field.type == FieldType::kNumberOrChoice) {
    return Cell(field.bounds.ToString(false)) + ", or " + one;
  }
  return (field.type == FieldType::kChoices ? "a list, each " : "") + one;
}

void AddRow(const Field& field, const std::string& name, std::string* out) {
  *out += "| `" + name + "` | " + CellType(field) + " | " + Cell(field.says.about) + " | " +
          (field.required ? "required" : Cell(field.says.fallback)) + " |\n";
  const std::string inner = name + (field.type == FieldType::kMaps ? "[]." : ".");
  for (const Field& below : field.fields) AddRow(below, inner + std::string(below.name), out);
}

void AddTable(const std::vector<Field>& fields, std::string_view prefix, std::string* out) {
  *out += "| field | what it may be | | default |\n|---|---|---|---|\n";
  for (const Field& field : fields)
    AddRow(field, std::string(prefix) + std::string(field.name), out);
}

void AddCatalogue(const Catalogue& catalogue, std::string* out) {
  *out += "\n## " + std::string(catalogue.noun) + "\n";
  std::string_view last;
  std::string shared;
  for (const Entry& entry : catalogue.entries) {
    *out += "\n`" + std::string(entry.name) + "`: " + std::string(entry.about);
    if (entry.several_inputs) *out += " Takes several `inputs`, so it stands in a graph.";
    *out += "\n";
    if (entry.options.empty()) continue;
    std::string table = "\n";
    AddTable(entry.options, "", &table);
    // Neighbours that take the same are said once.
    *out += table == shared ? "Options as `" + std::string(last) + "`.\n" : table;
    if (table != shared) last = entry.name;
    shared = std::move(table);
  }
}

}  // namespace

std::string ReferencePage() {
  std::string out =
      "<!-- Made of the rows in runtime/manifest by tests/runtime/manifest/reference_test.cc: "
      "change those, not this. -->\n"
      "# Fields of the manifest\n\n"
      "Every field of `program`, of `checkpoint` beside it, and everything that is chosen by name. "
      "What they mean together is in\n[the manifest](manifest.md).\n\n"
      "## program\n\n";
  AddTable(ProgramFields(), "", &out);
  out += "\n## checkpoint\n\n";
  AddTable(CheckpointFields(), "", &out);
  for (const Catalogue* catalogue :
       {&Layers(), &Initializers(), &Losses(), &Optimizers(), &Schedules(), &Metrics(), &Sources(),
        &MapOps(), &Partitioners()}) {
    AddCatalogue(*catalogue, &out);
  }
  return out;
}

}  // namespace meshtrain::manifest
