// `train`: the loop. And `checkpoint`, which stands beside the program.
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

const std::vector<Field>& ValidationFields() {
  static const std::vector<Field> kFields = {
      field::Int("every_epochs", &Train::validate_every, {.least = 1},
                 {.about = "Epochs between validations.",
                  .fallback = "1",
                  .shows = Shows::kLoop,
                  .sample = "2",
                  .context = "{train: {epochs: 4}}"}),
      field::Int("steps", &Train::validation_steps, {.least = 1},
                 {.about = "Batches of a validation, the first ones of data.test.",
                  .fallback = "all",
                  .shows = Shows::kLoop,
                  .sample = "2"})};
  return kFields;
}

void ReadValidation(Fields& in, Train& train) {
  const Node* validation = in.Get("validation");
  if (validation == nullptr) return;
  if (const auto flag = validation->AsBool()) {
    train.validate_every = *flag ? 1 : 0;
  } else {
    ReadFields(in.problems(), *validation, in.Path("validation"), ValidationFields(), &train);
  }
}
std::optional<Node> WriteValidation(const Train& train) {
  if (train.validate_every == 0) return field::ToNode(false);
  Node node = WriteFields(ValidationFields(), &train);
  if (node.members.empty()) return std::nullopt;
  return node;
}

constexpr std::string_view kStops = "{train: {early_stopping: {monitor: loss}}}";

std::vector<Field> EarlyStoppingFields() {
  return {
      field::Text("monitor", &EarlyStopping::monitor,
                  {.about = "`loss` or a metric, of the training data or, with val_ before it, of "
                            "data.test.",
                   .fallback = "val_loss",
                   .shows = Shows::kLoop,
                   .sample = "accuracy",
                   .context = kStops}),
      field::Int("patience", &EarlyStopping::patience, {.least = 0},
                 {.about = "Epochs without a better figure before the run ends.",
                  .fallback = "0",
                  .shows = Shows::kLoop,
                  .sample = "3",
                  .context = kStops}),
      field::Number("min_delta", &EarlyStopping::min_delta, {.least = 0},
                    {.about = "How much better counts as better.",
                     .fallback = "0",
                     .shows = Shows::kLoop,
                     .sample = "0.5",
                     .context = kStops}),
      field::Bool(
          "restore_best_weights", &EarlyStopping::restore_best_weights,
          {.about = "Whether the model that the run leaves is that of the best epoch, whose "
                    "checkpoint then stays.",
           .fallback = "false",
           .shows = Shows::kLoop,
           .sample = "true",
           .context = kStops})};
}

}  // namespace

std::vector<Field> TrainFields() {
  return {
      field::Int("epochs", &Train::epochs, {.least = 1},
                 {.about = "Passes over the data.",
                  .fallback = "1",
                  .shows = Shows::kLoop,
                  .sample = "3"}),
      field::Int("steps_per_epoch", &Train::steps_per_epoch, {.least = 1},
                 {.about = "Where an epoch ends.",
                  .fallback = "a pass",
                  .shows = Shows::kLoop,
                  .sample = "3"}),
      field::Int("end_after_bad_steps", &Train::end_after_bad_steps, {.least = 1},
                 {.about = "Steps in a row whose loss or a gradient is not finite, with which the "
                           "job fails. 1 under ParameterServer.",
                  .fallback = "1",
                  .shows = Shows::kLoop,
                  .sample = "3"}),
      field::Int("accumulate", &Train::accumulate, {.least = 1, .most = 64},
                 {.about = "Parts that each batch is computed in, one after the other. Their "
                           "gradients are added up, and the weights change once: the step is that "
                           "of the whole batch, and needs less memory.",
                  .fallback = "1",
                  .shows = Shows::kPlan,
                  .sample = "2"}),
      field::Number("loss_scale", &Train::loss_scale, {.most = 1e9, .above = 0},
                    {.about = "The gradient is computed of so many times the loss, and divided by "
                              "as much: with precision f16 small gradients are not lost.",
                     .fallback = "1",
                     .shows = Shows::kPlan,
                     .sample = "1024"}),
      field::Word("reduce_dtype", &Train::reduce_dtype, {"f32", "bf16", "f16"},
                  {.about = "In what devices add up their parts of a gradient: f32, or what "
                            "precision says, which sends half as many bytes and rounds each part "
                            "and each sum.",
                   .fallback = "f32",
                   .shows = Shows::kPlan,
                   .sample = "bf16",
                   .context = "{precision: bf16}"}),
      field::Texts(
          "recompute", &Train::recompute,
          {.about = "Layers whose values are computed again on the way back, not kept "
                    "for it: less memory, and more time. Regular expressions of layer "
                    "paths, matched from their start; layers of one match together.",
           .fallback = "none",
           .shows = Shows::kPlan,
           .sample = "[hidden]",
           .context = "{model: [flatten, dense: {name: hidden, units: 8, activation: tanh}, "
                      "dense: {units: 4}]}"}),
      field::Own<Train>("validation", "true, false, or a map", ReadValidation, WriteValidation,
                        {.about = "Whether and how data.test is looked at between epochs.",
                         .fallback = "true where there is data.test",
                         .shows = Shows::kLoop,
                         .sample = "false"},
                        ValidationFields()),
      field::Map("early_stopping", &Train::early_stopping, EarlyStoppingFields(),
                 {.about = "Ends the run when a figure gets no better.",
                  .fallback = "none",
                  .shows = Shows::kLoop,
                  .sample = "{monitor: loss}"}),
  };
}

const std::vector<Field>& CheckpointFields() {
  static const std::vector<Field> kFields = [] {
    Field resume = field::Own<Checkpoint>(
        "resume", "",
        [](Fields& in, Checkpoint& checkpoint) {
          checkpoint.resume = in.Choice("resume", std::vector<std::string>{"Latest", "Never"},
                                        "Latest") == "Latest";
        },
        [](const Checkpoint& checkpoint) -> std::optional<Node> {
          if (checkpoint.resume) return std::nullopt;
          return Node::Word("Never");
        },
        {.about = "Latest: go on from the newest complete checkpoint. Never: start afresh.",
         .fallback = "Latest",
         .shows = Shows::kSaving,
         .sample = "Never"});
    resume.type = FieldType::kWord;
    resume.words = {"Latest", "Never"};
    return std::vector<Field>{
        field::Path(field::Text(
            "path", &Checkpoint::path,
            {.about = "A folder that all processes share: each saves and reads its own shards.",
             .fallback = "the chief's <output>/checkpoints; the chief saves for all",
             .shows = Shows::kSaving,
             .sample = "/elsewhere"})),
        field::Int(
            "everySteps", &Checkpoint::every_steps, {.least = 0},
            {.about = "Save after so many steps; 0: after each epoch, and every ten minutes.",
             .fallback = "0",
             .shows = Shows::kSaving,
             .sample = "7"}),
        field::Int("keep", &Checkpoint::keep, {.least = 1},
                   {.about = "So many of the newest checkpoints stay.",
                    .fallback = "3",
                    .shows = Shows::kSaving,
                    .sample = "7"}),
        resume};
  }();
  return kFields;
}

}  // namespace meshtrain::manifest
