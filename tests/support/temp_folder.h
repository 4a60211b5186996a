// A folder of its own for a test, gone after it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace meshtrain::testing_folder {

class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / "meshtrain-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string At(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace meshtrain::testing_folder
