// The values of NCCL's variables, from the environment or from files. Used by the parts of libnccl that
// depend on them.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "runtime/core/status.h"

namespace ouro::nccl {

/// The value of NCCL_X, searched in this order: the current environment; the file that NCCL_CONF_FILE names,
/// or else ~/.nccl.conf; /etc/nccl.conf. Files are read once. Blanks around a value do not count. nullopt:
/// not set, or empty.
std::optional<std::string> variable(const std::string& name);
/// The same as a number, in the notations of NCCL (those of strtoll): decimal, 0x..., and 0... for octal.
/// Errors: invalid; the text says what was `expected`.
Result<std::optional<long long>> number(const std::string& name, const char* expected = "a number");
/// The same as a switch: any number but 0 is on, as with NCCL. Errors: invalid.
Result<bool> flag(const std::string& name, bool fallback);

/// Every NCCL_... variable that is set anywhere, with its origin: "environment", or a path and a line.
std::map<std::string, std::string> variables_set();

}  // namespace ouro::nccl
