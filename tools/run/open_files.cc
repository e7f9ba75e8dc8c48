// RLIMIT_NOFILE of the launcher. Used through open_files.h.
#include "tools/run/open_files.h"

#include <optional>

#include "runtime/join/descriptors.h"
#include "tools/run/system.h"

namespace ouro::run {
namespace {

std::optional<rlimit> given;  // not synchronised: one thread starts processes

}  // namespace

Status make_room(std::size_t more, const std::string& what_for) {
  rlimit before{};
  if (::getrlimit(RLIMIT_NOFILE, &before) != 0) return system_error("cannot read the limit of open files");
  OURO_TRY(rt::provide_descriptors(more, what_for.c_str()));
  rlimit now{};
  if (!given && ::getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur != before.rlim_cur) given = before;
  return {};
}

const rlimit* given_limit() { return given ? &*given : nullptr; }

}  // namespace ouro::run
