#include "runtime/base/thread.h"

#include <string>
#include <system_error>
#include <utility>

namespace meshtrain {

Result<std::jthread> StartThread(std::string_view what, std::function<void(std::stop_token)> body) {
  try {
    return std::jthread(std::move(body));
  } catch (const std::system_error& error) {
    return Unavailable(std::string(what) + ": expected a thread, got: " + error.code().message() +
                       " (is a limit of processes reached?)");
  }
}

}  // namespace meshtrain
