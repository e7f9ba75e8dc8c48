// The values of NCCL's variables, from the environment or from files. Used by the parts of libnccl that
// depend on them.
#pragma once
#include <map>
#include <optional>
#include <string>

namespace ouro::nccl {

/// The value of NCCL_X, searched in this order: the current environment; the file that NCCL_CONF_FILE names,
/// or else ~/.nccl.conf; /etc/nccl.conf. Files are read once. nullopt: not set, or empty.
std::optional<std::string> variable(const std::string& name);

/// Every NCCL_... variable that is set anywhere, with its origin: "environment", or a path and a line.
std::map<std::string, std::string> variables_set();

}  // namespace ouro::nccl
