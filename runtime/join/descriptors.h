// File descriptors: how many joining takes, whether they are available, and the error if they are not. Used
// by bootstrap, local sockets and the context.
#pragma once
#include <cstddef>

#include "runtime/core/status.h"

namespace ouro::rt {

/// The most descriptors that a rank holds while a job of `world` ranks forms, in addition to those that are
/// open already: for each other rank its control page, its pidfd and, on the gathering rank, its connection;
/// between hosts a replica of its page, two control lines while one is replaced, and `lines` connections of
/// the fabric. Groups, streams and memory that others registered take more later; some of these are included.
std::size_t descriptors_to_join(int world, bool network, int lines);
/// The same for all ranks together if they are threads of this process: pages are shared, sockets are not.
std::size_t descriptors_of_threads(int world);

/// Makes sure that this process can open `more` descriptors. If the soft limit (`ulimit -Sn`) is too low,
/// raises it by what is missing and a reserve, within the hard limit, and logs an INFO line; children inherit
/// the limit. A program that uses select(), and thus must not have descriptors above 1023, sets the hard
/// limit. Errors: resource (the hard limit is too low; the text says for what, how many are needed, open and
/// allowed, and how to raise it).
Status provide_descriptors(std::size_t more, const char* what_for);

/// While an object lives, provide_descriptors does nothing, as enough has been provided: ranks of one process
/// that join together share descriptors that each of them would count as its own.
struct Provided {
  Provided();
  ~Provided();
  Provided(const Provided&) = delete;
  Provided& operator=(const Provided&) = delete;
};

/// Whether `error`, an errno, means that no descriptor was left.
bool descriptors_lack(int error);
/// The error `resource`: `what` failed because no descriptor is left; the text has the numbers.
Status no_descriptor(const char* what);

}  // namespace ouro::rt
