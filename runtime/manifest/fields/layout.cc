// `layout`: how weights and inputs lie on the mesh.
#include "runtime/manifest/fields/fields.h"
#include "runtime/manifest/manifest.h"

namespace meshtrain::manifest {
namespace {

// A rule that the samples change.
constexpr std::string_view kRule =
    "{layout: {rules: [{match: '.*kernel', spec: [unsharded, batch]}]}}";

const std::vector<Field>& RuleFields() {
  static const std::vector<Field> kFields = {
      field::Required(field::Text(
          "match", &LayoutRule::match,
          {.about = "A regular expression for paths of weights, hidden_1.kernel, from their start.",
           .sample = "'hidden.*kernel'",
           .context = kRule})),
      field::Required(
          field::Texts("spec", &LayoutRule::specs,
                       {.about = "An axis of the mesh, or unsharded, for each dimension.",
                        .sample = "[batch, unsharded]",
                        .context = kRule}))};
  return kFields;
}

// The names that are there already are those that may be given.
void ReadInputs(Fields& in, Layout& layout) {
  const Node* inputs = in.Get("inputs");
  if (inputs == nullptr) return;
  Fields f(in.problems(), *inputs, in.Path("inputs"), "input");
  for (auto& [name, specs] : layout.inputs) {
    if (f.Get(name) != nullptr) specs = f.Texts(name);
  }
}
std::optional<Node> WriteInputs(const Layout& layout) {
  if (layout.inputs.empty()) return std::nullopt;
  Node node = Node::Map();
  for (const auto& [name, specs] : layout.inputs) node.Put(name, field::ToNode(specs));
  return node;
}

void ReadRules(Fields& in, Layout& layout) {
  const Node* rules = in.Get("rules");
  if (rules == nullptr) return;
  if (!rules->IsList()) in.Wrong("rules", "a list");
  for (size_t i = 0; i < rules->list.size(); ++i) {
    LayoutRule rule;
    rule.spot = {rules->list[i].place, in.Path("rules") + "[" + std::to_string(i) + "]"};
    ReadFields(in.problems(), rules->list[i], rule.spot.path, RuleFields(), &rule);
    layout.rules.push_back(std::move(rule));
  }
}
std::optional<Node> WriteRules(const Layout& layout) {
  if (layout.rules.empty()) return std::nullopt;
  std::vector<Node> rules;
  for (const LayoutRule& rule : layout.rules) rules.push_back(WriteFields(RuleFields(), &rule));
  return Node::List(std::move(rules));
}

const std::vector<Field>& LayoutFields() {
  static const std::vector<Field> kFields = [] {
    Field rules = field::Own<Layout>(
        "rules", "", ReadRules, WriteRules,
        {.about = "Layouts of weights. The first rule that matches wins; what none matches is "
                  "replicated; a rule that matches nothing is an error.",
         .fallback = "none",
         .sample = "[{match: '.*kernel', spec: [unsharded, batch]}]"},
        RuleFields());
    rules.type = FieldType::kMaps;
    return std::vector<Field>{
        field::Word("update", &Layout::update, {"auto", "shared", "copied"},
                    {.about = "shared: each device updates a part of a weight, and all gather it; "
                              "copied: each does the whole update; auto: shared where several "
                              "processes hold the mesh.",
                     .fallback = "auto",
                     .sample = "shared",
                     .context = "{optimizer: adam, model: [flatten, dense: {units: 5000}, dense: "
                                "{units: 4}]}"}),
        rules,
        field::Own<Layout>("inputs", "a map from x and y to layouts", ReadInputs, WriteInputs,
                           {.about = "Layouts of the features (x) and the labels (y).",
                            .fallback = "dimension 0 over the axis batch",
                            .sample = "{x: [unsharded, batch, unsharded]}"})};
  }();
  return kFields;
}

void ReadLayout(Fields& in, Program& program) {
  const Node* node = in.Get("layout");
  if (node == nullptr) return;
  if (node->IsScalar() && node->scalar == "auto") {
    program.layout.automatic = true;
  } else if (node->IsScalar()) {
    in.Wrong("layout", "auto, or a map with rules");
  } else {
    auto& inputs = program.layout.inputs;
    for (const std::string& name : Components(program)) inputs[name];
    ReadFields(in.problems(), *node, in.Path("layout"), LayoutFields(), &program.layout);
    std::erase_if(inputs, [](const auto& input) { return input.second.empty(); });
  }
}
std::optional<Node> WriteLayout(const Program& program) {
  if (program.layout.automatic) return Node::Word("auto");
  Node node = WriteFields(LayoutFields(), &program.layout);
  if (node.members.empty()) return std::nullopt;
  return node;
}

}  // namespace

Field LayoutField() {
  return field::Own<Program>(
      "layout", "auto, or a map", ReadLayout, WriteLayout,
      {.about = "How weights and inputs lie on the mesh. auto: layouts of the weights by the "
                "predicted time of a step.",
       .fallback = "weights replicated, inputs split over the axis batch",
       .sample = "auto",
       .context = "{data: {batch: 4}, model: [flatten, dense: {units: 20000}, dense: {units: 4}]}"},
      LayoutFields());
}

}  // namespace meshtrain::manifest
