// File descriptors: how many joining takes, whether they are to be had, and the words where they are not.
// Used by bootstrap, local sockets and the context.
#pragma once
#include <cstddef>

#include "runtime/core/status.h"

namespace ouro::rt {

/// Most descriptors that a rank holds while a job of `world` ranks forms, beside those that the process has
/// already: of each other rank its control page, its pidfd and, with who gathers, its connection; between
/// hosts a copy of its page, two control lines while one is made anew, and `lines` of the fabric. Groups,
/// streams and memory that others registered take more later, some of which is included.
std::size_t descriptors_to_join(int world, bool network, int lines);
/// The same where all ranks are threads of this process, of all of them together: pages are shared, sockets
/// are not.
std::size_t descriptors_of_threads(int world);

/// Makes sure that this process can open `more` descriptors. Where the soft limit (`ulimit -Sn`) is too low
/// it is raised, by what is missing and some, within the hard limit, with an INFO line; children inherit it.
/// Whoever must not have descriptors above 1023, since he uses select(), sets the hard limit. Error resource:
/// the hard limit is too low; says what for, how many are needed, open and allowed, and how to raise it.
Status provide_descriptors(std::size_t more, const char* what_for);

/// While it lives, provide_descriptors takes what has been provided as enough: ranks of one process that join
/// together share what each would count as its own.
struct Provided {
  Provided();
  ~Provided();
  Provided(const Provided&) = delete;
  Provided& operator=(const Provided&) = delete;
};

/// Whether a call of the system failed for want of a descriptor.
bool descriptors_lack(int error);
/// Error resource: `what` failed since no descriptor is left; with the numbers.
Status no_descriptor(const char* what);

}  // namespace ouro::rt
