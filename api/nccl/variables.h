// The values of NCCL's variables, wherever they are set. Used by what the environment decides in libnccl.
#pragma once
#include <map>
#include <optional>
#include <string>

namespace ouro::nccl {

/// The value of NCCL_X: of the environment, as it is now; else of the file that NCCL_CONF_FILE names, else of
/// ~/.nccl.conf; else of /etc/nccl.conf. Files are read once. nullopt: not set, or empty.
std::optional<std::string> variable(const std::string& name);

/// Every NCCL_... that is set anywhere, with where it is from: "environment", or a path and a line.
std::map<std::string, std::string> variables_set();

}  // namespace ouro::nccl
