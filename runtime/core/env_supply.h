// Values for parameters from another library's variables. Used by libnccl.so.2, which reads NCCL's.
#pragma once
#include <string>
#include <string_view>

namespace ouro::env {

/// From now on parameter `name` has this value unless the environment has one of its own; files count less.
/// `origin` is what messages say that it comes from. The log reads its settings again where `log::refresh` is
/// called.
void supply(std::string_view name, std::string value, std::string origin);
/// From now on it has no such value.
void withdraw(std::string_view name);

}  // namespace ouro::env
