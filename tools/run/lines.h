// LineSplitter: bytes in, whole lines out. Used by the launcher on the output of each rank.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ouro::run {

class LineSplitter {
 public:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;  ///< bytes; a longer line is broken here

  /// Calls line(text) for each complete line, without its newline.
  template <class F>
  void add(std::string_view bytes, F&& line) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      if (newline == std::string_view::npos && pending_.size() + bytes.size() < kLongest) {
        pending_ += bytes;
        return;
      }
      const std::size_t room = kLongest - pending_.size();
      const std::size_t take = newline < room ? newline : room;
      pending_ += bytes.substr(0, take);
      bytes.remove_prefix(take == newline ? take + 1 : take);
      line(std::string_view(pending_));
      pending_.clear();
    }
  }

  /// Calls line(text) for what is left without a newline, if anything.
  template <class F>
  void finish(F&& line) {
    if (!pending_.empty()) line(std::string_view(pending_));
    pending_.clear();
  }

 private:
  std::string pending_;
};

}  // namespace ouro::run
