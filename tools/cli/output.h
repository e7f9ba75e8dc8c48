// Standard output and standard error of the programs: lost output is noticed and counts as a failure. Used
// by all tools.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace ouro::tools {

/// Wraps the main function of a program. Descriptors 0 to 2 that are closed are occupied first, so that no
/// file or socket of the program takes their place. Returns what `body` returns. If printed text has been
/// lost (or standard output cannot be closed), it prints "NAME: cannot write standard output: WHY" and
/// returns 1 instead of 0.
int run_program(std::string_view name, const std::function<int()>& body);

/// Writes to standard output immediately. Thread-safe; each call is written as a whole. After the first
/// failure nothing more is written, so that the output has no holes. If the reader of a pipe has closed it,
/// the program ends by SIGPIPE without a message, as a filter does, even if it inherited this signal
/// as ignored.
void print_text(std::string_view);
/// Writes to standard error; a failure is ignored, because there is no place to report it.
void complain_text(std::string_view);

template <class... A>
void print(fmt::format_string<A...> format, A&&... a) {
  print_text(fmt::format(format, std::forward<A>(a)...));
}
template <class... A>
void complain(fmt::format_string<A...> format, A&&... a) {
  complain_text(fmt::format(format, std::forward<A>(a)...));
}

/// Whether descriptor 0, 1 or 2 was closed when the program started.
bool was_closed(int descriptor);

/// Writes all of `text`, even to a non-blocking descriptor. Returns 0, or errno.
int write_all(int descriptor, std::string_view text);

}  // namespace ouro::tools
