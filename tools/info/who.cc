// Reads another process's symbol bindings. See who.h.
#include "tools/info/who.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "runtime/core/fd.h"
#include "tools/info/elf_file.h"

namespace ouro::info {
namespace {

struct Mapping {
  std::uint64_t begin = 0, end = 0, offset = 0;
  std::string file;
};

std::vector<Mapping> mappings_of(pid_t pid) {
  std::vector<Mapping> all;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    Mapping m;
    char dash;
    std::string rights, device, inode;
    words >> std::hex >> m.begin >> dash >> m.end >> rights >> m.offset >> device >> inode >> std::ws;
    std::getline(words, m.file);
    all.push_back(std::move(m));
  }
  return all;
}

bool is_nccl_name(std::string_view n) {
  return (n.starts_with("nccl") && n.size() > 4 && n[4] >= 'A' && n[4] <= 'Z') || n.starts_with("pnccl");
}
bool is_copy(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash != std::string::npos && file.substr(slash + 1).starts_with("libnccl.so");
}

/// Whether this copy is ouro's: only ouro's contains this symbol name.
bool is_ours(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return all.find(std::string_view("\0ouro_nccl_identity\0", 20)) != std::string::npos;
}

}  // namespace

Result<Who> who(pid_t pid) {
  const Fd memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory && errno == ENOENT) return invalid(fmt::format("there is no process {}", pid));
  if (!memory)
    return Status(Reason::resource, fmt::format("process {} may not be read: {}", pid, std::strerror(errno)));
  const std::vector<Mapping> mappings = mappings_of(pid);
  const auto seen = [&](const std::string& file) { return fmt::format("/proc/{}/root{}", pid, file); };
  Who w{.pid = pid};
  for (const Mapping& m : mappings)
    if (is_copy(m.file) && !w.copies.contains(m.file)) w.copies.emplace(m.file, is_ours(seen(m.file)));
  for (const Mapping& m : mappings) {
    if (m.offset != 0 || !m.file.starts_with('/') || w.copies.contains(m.file)) continue;
    const auto elf = ElfFile::open(seen(m.file));
    if (!elf) continue;
    const std::uint64_t base = m.begin - elf->first_address();
    Caller caller{.file = m.file};
    elf->for_each_reference([&](std::uint64_t place, const Elf64_Sym& symbol, std::string_view name) {
      if (symbol.st_shndx != SHN_UNDEF || !is_nccl_name(name)) return;
      std::uint64_t target = 0;
      if (pread(memory.get(), &target, sizeof target, static_cast<off_t>(base + place)) != sizeof target)
        return;
      const auto at = std::find_if(mappings.begin(), mappings.end(),
                                   [&](const Mapping& x) { return target >= x.begin && target < x.end; });
      // Until the first call the word points into the caller's own stubs (lazy binding).
      ++caller.bound_to[at == mappings.end() || at->file == m.file ? "" : at->file];
    });
    if (!caller.bound_to.empty()) w.callers.push_back(std::move(caller));
  }
  return w;
}

std::string who_text(const Who& w, bool* ours) {
  std::string text = fmt::format("process {}\n", w.pid);
  const auto copy = [&](const std::string& file) {
    const auto it = w.copies.find(file);
    return fmt::format("{} ({})", file, it != w.copies.end() && it->second ? "ouro's" : "not ouro's");
  };
  for (const auto& [file, mine] : w.copies) text += fmt::format("  mapped: {}\n", copy(file));
  int to_ours = 0, to_others = 0, unbound = 0;
  for (const Caller& c : w.callers)
    for (const auto& [file, names] : c.bound_to) {
      text += file.empty() ? fmt::format("  {}: {} names that the first call will bind\n", c.file, names)
                           : fmt::format("  {}: {} names bound to {}\n", c.file, names, copy(file));
      const auto it = w.copies.find(file);
      (file.empty() ? unbound : it != w.copies.end() && it->second ? to_ours : to_others) += names;
    }
  const auto mine = std::count_if(w.copies.begin(), w.copies.end(), [](const auto& c) { return c.second; });
  const bool only_ours = mine > 0 && mine == std::ssize(w.copies);
  *ours = to_others == 0 && (to_ours > 0 || only_ours);
  if (to_ours > 0 && to_others > 0)
    text += "a mix: some names are bound to ouro's library, some to another; this cannot work\n";
  else if (to_ours > 0)
    text += "it calls ouro's library\n";
  else if (to_others > 0)
    text += "it calls another library\n";
  else if (only_ours)
    text += unbound > 0 ? "only ouro's library is there to be called\n"
                        : "only ouro's library is mapped; calls by dlsym, as Python's ctypes makes them, "
                          "leave no trace\n";
  else if (!w.copies.empty())
    text += "nothing is bound, and not only ouro's library is mapped; calls by dlsym leave no trace\n";
  else
    text += "no libnccl is mapped\n";
  return text;
}

}  // namespace ouro::info
