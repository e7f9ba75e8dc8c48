// Finding libnccl.so.2. See preload.h.
#include "tools/run/preload.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace ouro::run {

Result<std::string> preload_nccl(const std::string& before) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  std::string tried;
  for (const char* lib : {OURO_LIBDIR, "lib", "lib64"}) {
    const fs::path library =
        (program.parent_path().parent_path() / lib / "ouro/nccl/libnccl.so.2").lexically_normal();
    if (fs::exists(library, failed)) {
      if (library.string().find_first_of(" :") != std::string::npos)
        return invalid(
            fmt::format("{}: LD_PRELOAD takes no path with a blank or a colon; install ouro elsewhere",
                        library.string()));
      return before.empty() ? library.string() : library.string() + ":" + before;
    }
    tried += (tried.empty() ? "" : ", ") + library.string();
  }
  return Status(Reason::resource, fmt::format("libnccl.so.2 of ouro is in none of its places: {}", tried));
}

}  // namespace ouro::run
