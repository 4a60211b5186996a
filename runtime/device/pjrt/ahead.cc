#include "runtime/device/pjrt/ahead.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/device/pjrt/lowering.h"
#include "runtime/device/pjrt/topology.h"

namespace meshtrain::device {
namespace {

// What the child says on its pipe, a line each: "api 0.116 8", then "sizes CODE ARGUMENTS OUTPUTS
// IN_PLACE TEMPORARY SECONDS" for each program, then "end"; or, as its last, "error CODE ORIGIN"
// and all that follows is the message.

void Say(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(1);  // who asked is gone
    text.remove_prefix(static_cast<size_t>(n));
  }
}

Status CompileHere(const AheadOptions& options, std::span<const std::string> names,
                   std::span<const std::string> texts, int answers) {
  MT_ASSIGN_OR_RETURN(const pjrt::PluginPtr plugin, pjrt::Plugin::Load(options.library));
  MT_ASSIGN_OR_RETURN(const auto topology,
                      pjrt::Topology::Create(plugin, LibtpuTopology(options.target)));
  Say(answers, "api " + plugin->version() + " " + std::to_string(topology->devices()) + "\n");
  if (topology->devices() != options.target.devices) {
    return Internal("topology " + LibtpuTopology(options.target) + ": expected " +
                    std::to_string(options.target.devices) +
                    " devices, got: " + std::to_string(topology->devices()));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    auto sizes = topology->Compile(texts[i]);
    if (!sizes.ok()) return sizes.status().At(names[i]);
    std::ostringstream line;
    line << "sizes " << sizes->code << " " << sizes->arguments << " " << sizes->outputs << " "
         << sizes->in_place << " " << sizes->temporary << " " << sizes->seconds << "\n";
    Say(answers, line.str());
  }
  return OkStatus();
}

[[noreturn]] void Child(const AheadOptions& options, std::span<const std::string> names,
                        std::span<const std::string> texts, const std::string& folder, int answers,
                        int words, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(words, STDERR_FILENO);
  const std::string accelerator(options.target.accelerator);
  const std::pair<const char*, const char*> environment[] = {
      {"TPU_SKIP_MDS_QUERY", "1"},  // else it asks the metadata service for minutes
      {"TPU_WORKER_HOSTNAMES", "localhost"}, {"TPU_ACCELERATOR_TYPE", accelerator.c_str()},
      {"ALLOW_MULTIPLE_LIBTPU_LOAD", "1"},  // no lock on this machine's TPUs
      {"TPU_LOG_DIR", folder.c_str()},       {"TMPDIR", folder.c_str()},
  };
  for (const auto& [name, value] : environment) ::setenv(name, value, 1);
  const Status status = CompileHere(options, names, texts, answers);
  if (status.ok()) {
    Say(answers, "end\n");
  } else {
    const std::string origin(status.origin() ? OriginName(*status.origin()) : "none");
    Say(answers, "error " + std::to_string(static_cast<int>(status.code())) + " " + origin + "\n" +
                     status.message());
  }
  ::_exit(0);  // its destructors are of no use, and not all of them end
}

// The line that says why a process was ended: glog's fatal one, else the last.
std::string LastWords(const std::string& words) {
  std::string last, fatal;
  for (const std::string& line : Split(words, '\n')) {
    if (Trim(line).empty()) continue;
    last = line;
    if (line.size() > 1 && line[0] == 'F' && line[1] >= '0' && line[1] <= '9') fatal = line;
  }
  return fatal.empty() ? last : fatal;
}

struct Heard {
  std::string answers, words;
};
// Until the child has closed both pipes. Errors: kDeadlineExceeded after `longest` without an
// answer.
Status Listen(const FileDescriptor& answers, const FileDescriptor& words, Duration longest,
              Heard* heard) {
  std::array<pollfd, 2> waits{pollfd{answers.get(), POLLIN, 0}, pollfd{words.get(), POLLIN, 0}};
  Duration last = SystemClock().Monotonic();
  while (waits[0].fd >= 0 || waits[1].fd >= 0) {
    const Duration left = longest - (SystemClock().Monotonic() - last);
    if (left <= Duration::zero()) {
      return DeadlineExceeded("expected an answer within " +
                              std::to_string(longest / std::chrono::seconds(1)) + " s, got: none");
    }
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int ready =
        ::poll(waits.data(), waits.size(), static_cast<int>(std::min<int64_t>(ms, 60'000)));
    if (ready < 0 && errno != EINTR) return Internal("poll failed");
    for (size_t i = 0; ready > 0 && i < waits.size(); ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(waits[i].fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        waits[i].fd = -1;
        continue;
      }
      if (i == 0) last = SystemClock().Monotonic();
      std::string& to = i == 0 ? heard->answers : heard->words;
      if (to.size() < (size_t{1} << 22)) to.append(buffer, static_cast<size_t>(n));
    }
  }
  return OkStatus();
}

// What was heard, as far as it came.
Status Parse(const std::string& answers, Ahead* ahead, bool* ended) {
  std::istringstream lines(answers);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "api") {
      words >> ahead->api >> ahead->devices;
    } else if (kind == "sizes") {
      CompiledSizes s;
      words >> s.code >> s.arguments >> s.outputs >> s.in_place >> s.temporary >> s.seconds;
      if (words) ahead->sizes.push_back(s);
    } else if (kind == "error") {
      int code = 0;
      std::string origin;
      words >> code >> origin;
      const std::string message{std::istreambuf_iterator<char>(lines), {}};
      const Status status(static_cast<StatusCode>(code), message);
      const auto whose = ParseOrigin(origin);
      return whose ? status.From(*whose) : status;
    } else if (kind == "end") {
      *ended = true;
    }
  }
  return OkStatus();
}

Result<std::pair<FileDescriptor, FileDescriptor>> Pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Unavailable("cannot make a pipe");
  return std::pair(FileDescriptor(ends[0]), FileDescriptor(ends[1]));
}

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code ignored;
    path_ = (std::filesystem::temp_directory_path(ignored) / "meshtrain-ahead-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

Result<Ahead> CompileAhead(const AheadOptions& options, std::span<const AheadProgram> programs) {
  const std::string target = "target tpu:" + std::string(options.target.name);
  std::vector<std::string> names, texts;
  for (const AheadProgram& program : programs) {
    const mesh::Mesh& mesh = program.plan->partitioned.mesh;
    if (mesh.size() != options.target.devices) {
      return InvalidArgument(target + ": expected a mesh of its " +
                             std::to_string(options.target.devices) +
                             (options.target.devices == 1 ? " device" : " devices") +
                             ", got: " + std::to_string(mesh.size()) + " (" + mesh.ToString() + ")")
          .From(Origin::kManifest);
    }
    MT_ASSIGN_OR_RETURN(pjrt::Lowered lowered, pjrt::Lower(*program.plan));
    names.push_back(program.name);
    texts.push_back(std::move(lowered.text));
  }
  if (options.library.empty()) {
    return FailedPrecondition(
               target +
               ": expected libtpu, named by MESHTRAIN_LIBTPU (scripts/install-libtpu "
               "fetches it), got: none")
        .From(Origin::kManifest);
  }
  MT_ASSIGN_OR_RETURN(auto answers, Pipe());
  MT_ASSIGN_OR_RETURN(auto words, Pipe());
  const ScratchFolder folder;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Unavailable(target + ": cannot start a process");
  if (child == 0) {
    Child(options, names, texts, folder.path(), answers.second.get(), words.second.get(), parent);
  }
  answers.second.Close();
  words.second.Close();
  Heard heard;
  const Status listened = Listen(answers.first, words.first, options.longest, &heard);
  if (!listened.ok()) ::kill(child, SIGKILL);
  int how = 0;
  while (::waitpid(child, &how, 0) < 0 && errno == EINTR) {
  }
  Ahead ahead;
  bool ended = false;
  MT_RETURN_IF_ERROR(Parse(heard.answers, &ahead, &ended).At(target));
  const std::string at =
      target + (ahead.sizes.size() < names.size() ? ": " + names[ahead.sizes.size()] : "") + ": ";
  MT_RETURN_IF_ERROR(listened.At(at + options.library));
  if (!ended || ahead.sizes.size() != names.size()) {
    std::string end = "exit code " + std::to_string(WEXITSTATUS(how));
    if (WIFSIGNALED(how)) end = "signal " + std::to_string(WTERMSIG(how));
    return Internal(at + options.library +
                    ": expected a compiled program, got: the end of its process by " + end + ": " +
                    Excerpt(LastWords(heard.words), 600));
  }
  return ahead;
}

}  // namespace meshtrain::device
