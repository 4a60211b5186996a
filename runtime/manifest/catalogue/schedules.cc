#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

Field Initial() {
  return field::Required(
      option::Number("initial", {.above = 0}, {.about = "The rate at first.", .sample = "0.5"}));
}

Field WarmUpSteps() {
  return option::Int("warmup_steps", {.least = 0},
                     {.about = "The rate rises evenly over so many steps; the schedule begins "
                               "after them.",
                      .fallback = "0",
                      .sample = "10"});
}

Field DecaySteps() {
  return field::Required(option::Number("decay_steps", {.above = 0},
                                        {.about = "The steps of one decay.", .sample = "100"}));
}

std::vector<Field> Decay() {
  return {Initial(), DecaySteps(),
          field::Required(option::Number("decay_rate", {.above = 0},
                                         {.about = "How strong one decay is.", .sample = "0.5"})),
          option::Bool("staircase", {.about = "Whether the rate falls once every decay_steps, not "
                                              "evenly.",
                                     .fallback = "false",
                                     .sample = "true"}),
          WarmUpSteps()};
}

// One more than boundaries.
Field PiecewiseValues() {
  Field field = field::Required(
      option::Numbers("values", {.above = 0},
                      {.about = "The rate up to each boundary, and the one after the last.",
                       .sample = "[0.5, 0.25]"}));
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const Options& options = *static_cast<const Options*>(out);
    const auto values = options.Numbers("values");
    const auto boundaries = options.Ints("boundaries");
    if (values && boundaries && values->size() != boundaries->size() + 1) {
      in.Wrong("values",
               std::to_string(boundaries->size() + 1) + " numbers, one more than boundaries");
    }
  };
  return field;
}

Field Boundaries() {
  Field field = field::Required(option::Ints(
      "boundaries", {.about = "Steps, rising, up to which a value holds.", .sample = "[10]"}));
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const auto boundaries = static_cast<const Options*>(out)->Ints("boundaries");
    if (!boundaries) return;
    for (size_t i = 0; i < boundaries->size(); ++i) {
      if ((*boundaries)[i] >= (i == 0 ? 0 : (*boundaries)[i - 1] + 1)) continue;
      in.Wrong("boundaries", "whole numbers of at least 0, each above the one before");
      return;
    }
  };
  field.type_text = "a list of whole numbers, rising";
  return field;
}

}  // namespace

const Catalogue& Schedules() {
  static const Catalogue kSchedules = {
      .noun = "schedule",
      .entries = {
          {.name = "constant",
           .about = "One rate, for warmup_steps before it.",
           .options = {Initial(), WarmUpSteps()}},
          {.name = "exponential_decay",
           .about = "initial * decay_rate^(step / decay_steps).",
           .options = Decay()},
          {.name = "inverse_time_decay",
           .about = "initial / (1 + decay_rate * step / decay_steps).",
           .options = Decay()},
          {.name = "polynomial_decay",
           .about = "From initial to end over decay_steps, along (1 - step / decay_steps)^power.",
           .options =
               {Initial(), DecaySteps(),
                option::Number(
                    "end", {.least = 0},
                    {.about = "The rate at the end.", .fallback = "0.0001", .sample = "0.25"}),
                option::Number(
                    "power", {.above = 0},
                    {.about = "The exponent; 1: a straight line.", .fallback = "1", .sample = "2"}),
                option::Bool("cycle", {.about = "Whether the rate rises again after "
                                                "decay_steps, to a longer decay.",
                                       .fallback = "false",
                                       .sample = "true"}),
                WarmUpSteps()}},
          {.name = "cosine_decay",
           .about = "From initial to alpha * initial over decay_steps, along half a cosine's wave.",
           .options = {Initial(), DecaySteps(),
                       option::Number("alpha", {.least = 0},
                                      {.about = "The rate at the end, as a part of initial.",
                                       .fallback = "0",
                                       .sample = "0.25"}),
                       WarmUpSteps()}},
          {.name = "piecewise_constant_decay",
           .about = "One rate up to each boundary.",
           .options = {Boundaries(), PiecewiseValues(), WarmUpSteps()}},
      }};
  return kSchedules;
}

}  // namespace meshtrain::manifest
