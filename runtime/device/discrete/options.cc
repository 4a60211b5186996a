// What an environment variable says of devices with walls.
#include <algorithm>
#include <string>

#include "runtime/base/text.h"
#include "runtime/device/discrete/discrete_backend.h"

namespace meshtrain::device {

Result<DiscreteOptions> ParseDiscreteOptions(std::string_view text) {
  DiscreteOptions options;
  if (Trim(text).empty()) return options;
  constexpr int64_t kLongestDelay = 1'000'000;  // a second
  constexpr int64_t kMostDevices = 1 << 20;     // as a mesh
  const auto bad = [](const std::string& expected, std::string_view got) {
    return InvalidArgument("discrete: expected " + expected + ", got: " + std::string(got))
        .From(Origin::kManifest);
  };
  for (const std::string& part : Split(text, ',')) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view name = Trim(std::string_view(part).substr(0, equals));
    const auto number = equals == part.size()
                            ? std::nullopt
                            : ParseInt(Trim(std::string_view(part).substr(equals + 1)));
    if (!number || *number < 0) return bad("options as seed=3,devices=4, of whole numbers", part);
    if (name == "seed") {
      options.seed = static_cast<uint64_t>(*number);
    } else if (name == "longest_delay_us") {
      if (*number > kLongestDelay) return bad("a delay of at most a second", part);
      options.longest_delay = std::chrono::microseconds(*number);
    } else if (name == "devices") {
      if (*number > kMostDevices) return bad("at most " + std::to_string(kMostDevices), part);
      options.devices = static_cast<int>(*number);
    } else if (name == "memory_bytes") {
      options.memory_bytes = *number;
    } else if (name == "lost") {
      if (*number > kMostDevices) return bad("at most " + std::to_string(kMostDevices), part);
      options.lost = static_cast<int>(*number);
    } else if (name == "lost_after_steps") {
      options.lost_after_steps = *number;
    } else {
      return bad(
          "one of the options seed, longest_delay_us, devices, memory_bytes, lost and "
          "lost_after_steps",
          part);
    }
  }
  return options;
}

}  // namespace meshtrain::device
