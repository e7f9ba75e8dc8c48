// LineSplitter: takes bytes, hands out whole lines, and on request the start of an unterminated one. Used by
// the launcher on the output of each rank.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ouro::run {

/// How a piece of a rank's output ends: with a newline; without one because the output has ended; or within a
/// line that may continue.
enum class LineEnd : char { line = '1', output = '0', piece = '2' };

class LineSplitter {
 public:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;  ///< bytes; a longer line is split here

  /// Calls line(text, shown, end) for each complete line, without its newline, and for each piece of a line
  /// longer than kLongest. The first `shown` bytes of `text` have already been passed to partial().
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
      const bool ended = take == newline;
      bytes.remove_prefix(ended ? take + 1 : take);
      hand_out(line, ended ? LineEnd::line : LineEnd::piece);
    }
  }

  /// Whether there are bytes without a newline that have not been shown.
  bool unfinished() const { return pending_.size() > shown_; }
  /// Calls more(text) with these bytes.
  template <class F>
  void partial(F&& more) {
    if (unfinished()) more(std::string_view(pending_).substr(shown_));
    shown_ = pending_.size();
  }

  /// Calls line(text, shown, end) for the remaining bytes without a newline, if there are any.
  template <class F>
  void finish(F&& line) {
    if (!pending_.empty()) hand_out(line, LineEnd::output);
  }

 private:
  template <class F>
  void hand_out(F&& line, LineEnd end) {
    line(std::string_view(pending_), shown_, end);
    pending_.clear();
    shown_ = 0;
  }

  std::string pending_;
  std::size_t shown_ = 0;
};

}  // namespace ouro::run
