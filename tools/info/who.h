// Which libnccl a process uses: what is mapped, and where its calls go. Used by ouro-info --who.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::info {

/// A library or program that refers to names of NCCL, and the file that each of them is bound to: "" where
/// the first call has yet to bind it.
struct Caller {
  std::string file;
  std::map<std::string, int> bound_to;  ///< a file, and how many names
};

/// What is known of a process.
struct Who {
  pid_t pid = 0;
  std::map<std::string, bool> copies;  ///< of libnccl that are mapped, and whether each is ouro's
  std::vector<Caller> callers;
};

/// Reads the mappings of a process and the words through which its objects call NCCL. Errors: invalid (no
/// such process), resource (it may not be read: it is another user's).
Result<Who> who(pid_t pid);

/// As text, with a verdict in the last line. `*ours`: whether all that is known leads to ouro's library.
std::string who_text(const Who&, bool* ours);

}  // namespace ouro::info
