// Characters and their numbers, as data.train has them where its source is a text.
#include "runtime/base/text.h"
#include "runtime/manifest/manifest.h"

namespace meshtrain::manifest {

std::string Characters(const Program& program) {
  std::string alphabet = program.data.train.from.options.Text("alphabet");
  if (!alphabet.empty()) return alphabet;
  for (int byte = 0; byte < 256; ++byte) alphabet += static_cast<char>(byte);
  return alphabet;
}

Result<std::vector<int64_t>> CharacterNumbers(const Program& program, std::string_view text) {
  const std::string& kind = program.data.train.from.kind;
  if (kind != "text") {
    return InvalidArgument(
        "expected a model over characters, of the source text in data.train, "
        "got: the source " +
        kind);
  }
  if (text.empty()) return InvalidArgument("expected at least one character, got: none");
  const std::string characters = Characters(program);
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t number = characters.find(text[i]);
    if (number == std::string::npos) {
      return InvalidArgument("expected characters of data.train's alphabet, got: `" +
                             Excerpt(text.substr(i, 1)) + "` at byte " + std::to_string(i));
    }
    numbers.push_back(static_cast<int64_t>(number));
  }
  return numbers;
}

}  // namespace meshtrain::manifest
