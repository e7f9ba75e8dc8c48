// The number of descriptors that this process may open. Used by code that starts many processes.
#pragma once
#include <sys/resource.h>

#include <cstddef>
#include <string>

#include "runtime/core/status.h"

namespace ouro::run {

/// Makes sure that this process can open `more` descriptors for `what_for`, as rt::provide_descriptors does.
/// Errors: resource.
Status make_room(std::size_t more, const std::string& what_for);

/// The limit that this process was started with, which its children get back: they open files as they see
/// fit, and programs that use select() rely on the usual limit. nullptr: the limit was never changed.
const rlimit* given_limit();

}  // namespace ouro::run
