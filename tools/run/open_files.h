// How many descriptors this process may open. Used by whatever starts many processes.
#pragma once
#include <sys/resource.h>

#include <cstddef>

#include "runtime/core/status.h"

namespace ouro::run {

/// Raises the soft limit so that `more` descriptors fit beside those that are open, as far as the hard limit
/// lets it. Errors: resource (the text has needed and available).
Status make_room(std::size_t more);

/// The limit as this process was given it, which its children get back: what they open is theirs to decide,
/// and programs that use select() rely on the usual one. Nullptr: it was never changed.
const rlimit* given_limit();

}  // namespace ouro::run
