// Where a disk is full, or a reader has gone.
#pragma once

#include <cstddef>
#include <streambuf>
#include <string>

namespace meshtrain::cli {

// Takes so many bytes, and then no more.
class ShortBuffer : public std::streambuf {
 public:
  explicit ShortBuffer(size_t room) : room_(room) {}
  const std::string& text() const { return text_; }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    if (text_.size() + static_cast<size_t>(size) > room_) return 0;
    text_.append(text, static_cast<size_t>(size));
    return size;
  }
  int overflow(int c) override {
    const char one = static_cast<char>(c);
    return xsputn(&one, 1) == 1 ? c : traits_type::eof();
  }

 private:
  const size_t room_;
  std::string text_;
};

}  // namespace meshtrain::cli
