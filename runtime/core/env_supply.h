// Values for parameters from another library's variables. Used by libnccl.so.2, which reads those of NCCL.
#pragma once
#include <string>
#include <string_view>

namespace ouro::env {

/// Supplies a value for parameter `name`. It ranks below a value from the environment and above one from a
/// file. Messages give `origin` as its source. The log reads its settings again only in `log::refresh`.
void supply(std::string_view name, std::string value, std::string origin);
/// Removes the supplied value of parameter `name`.
void withdraw(std::string_view name);

}  // namespace ouro::env
