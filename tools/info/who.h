// Finds which libnccl a process uses: which copies are mapped, and to which its calls lead. Used by
// ouro-info --who.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::info {

/// A library or program that refers to NCCL functions, and the file that each of these is bound to; "" if it
/// is only bound at the first call.
struct Caller {
  std::string file;
  std::map<std::string, int> bound_to;  ///< by file: the number of functions bound to it
};

/// The findings about a process.
struct Who {
  pid_t pid = 0;
  std::map<std::string, bool> copies;  ///< mapped copies of libnccl, and whether each is ouro's
  std::vector<Caller> callers;
};

/// Reads the mappings of a process and the words (entries of the global offset table) through which its
/// objects call NCCL. Errors: invalid (no such process), resource (no permission to read it: it belongs to
/// another user).
Result<Who> who(pid_t pid);

/// The findings as text, with a verdict in the last line. `*ours`: whether every known binding leads to
/// ouro's library.
std::string who_text(const Who&, bool* ours);

}  // namespace ouro::info
