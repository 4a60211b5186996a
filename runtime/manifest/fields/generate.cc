// `generate`: text that the trained model writes at the end of the run.
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

constexpr std::string_view kPrompt = "{generate: {prompt: The}}";

}  // namespace

Field GenerateField() {
  return field::Map(
      "generate", &Program::generate,
      {field::Required(
           field::Text("prompt", &Generate::prompt,
                       {.about = "What the text begins with, of characters that data.train knows.",
                        .shows = Shows::kText,
                        .sample = "Once"})),
       field::Int("length", &Generate::length, {.least = 1, .most = 1 << 20},
                  {.about = "Characters that the model writes behind the prompt.",
                   .fallback = "200",
                   .shows = Shows::kText,
                   .sample = "7",
                   .context = kPrompt}),
       field::Number("temperature", &Generate::temperature, {.least = 0, .most = 1e6},
                     {.about = "0: always the likeliest character. Else one is drawn by its "
                               "probability, the logits divided by this.",
                      .fallback = "0",
                      .shows = Shows::kText,
                      .sample = "0.5",
                      .context = kPrompt}),
       field::Int("seed", &Generate::seed, {},
                  {.about = "What is drawn follows from it, whatever the mesh.",
                   .fallback = "the program's seed",
                   .shows = Shows::kText,
                   .sample = "7",
                   .context = "{generate: {prompt: The, temperature: 0.5}}"})},
      {.about = "Text that the trained model writes at the end of the run, into generated.txt; of "
                "a model over the characters of the source text.",
       .fallback = "none",
       .shows = Shows::kText,
       .sample = "{prompt: The}"});
}

}  // namespace meshtrain::manifest
