// Loaded before a program (LD_PRELOAD): opening a file stands still as long as the file that
// MT_HOLD_FILE names is there and holds a part of the file's path. So a test can kill a process in
// the middle of a write, whatever is opened without waiting.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

using Open = int (*)(const char* path, int flags, ...);

bool IsHeld(const char* path) {
  const char* const marker = std::getenv("MT_HOLD_FILE");
  if (marker == nullptr) return false;
  static const auto real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "open"));
  const int fd = real(marker, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char part[1024];
  const ssize_t n = read(fd, part, sizeof part);
  close(fd);
  return n > 0 && memmem(path, std::strlen(path), part, static_cast<size_t>(n)) != nullptr;
}

int OpenWhenReleased(const char* name, const char* path, int flags, mode_t mode) {
  while (IsHeld(path)) usleep(2000);
  return reinterpret_cast<Open>(dlsym(RTLD_NEXT, name))(path, flags, mode);
}

}  // namespace

#define MT_HOLDING(name)                                              \
  extern "C" int name(const char* path, int flags, ...) {             \
    mode_t mode = 0;                                                  \
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) { \
      va_list more;                                                   \
      va_start(more, flags);                                          \
      mode = va_arg(more, mode_t);                                    \
      va_end(more);                                                   \
    }                                                                 \
    return OpenWhenReleased(#name, path, flags, mode);                \
  }
MT_HOLDING(open)
MT_HOLDING(open64)
#undef MT_HOLDING
