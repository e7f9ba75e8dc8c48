// The symbols that a 64-bit ELF file refers to. The file is untrusted: every offset in it is checked against
// its size before use. Used by who.cc.
#pragma once
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/fd.h"

namespace ouro::info {

/// A mapped 64-bit ELF file. All accesses are bounded by the size of the file.
class ElfFile {
 public:
  static std::optional<ElfFile> open(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat about {};
    if (!fd || fstat(fd.get(), &about) != 0 || !S_ISREG(about.st_mode)) return std::nullopt;
    const auto bytes = static_cast<std::size_t>(about.st_size);
    if (bytes < sizeof(Elf64_Ehdr)) return std::nullopt;
    void* const data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) return std::nullopt;
    ElfFile file(static_cast<const char*>(data), bytes);
    const auto head = file.at<Elf64_Ehdr>(0);
    if (std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64)
      return std::nullopt;
    file.read_dynamic(*head);
    return file;
  }
  ElfFile(ElfFile&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_), loads_(std::move(o.loads_)) {
    std::copy(std::begin(o.dynamic_), std::end(o.dynamic_), std::begin(dynamic_));
  }
  ElfFile& operator=(ElfFile&&) = delete;
  ~ElfFile() {
    if (data_) munmap(const_cast<char*>(data_), bytes_);
  }

  /// The address of the first loaded byte, as given in the file.
  std::uint64_t first_address() const {
    return loads_.empty() ? 0 : loads_.front().p_vaddr & ~std::uint64_t{4095};
  }

  /// Calls f with the address and the symbol of every word that the dynamic linker fills with a
  /// symbol's address.
  template <class F>
  void for_each_reference(F&& f) const {
    const std::pair<int, int> tables[] = {{DT_JMPREL, DT_PLTRELSZ}, {DT_RELA, DT_RELASZ}};
    for (const auto& [table, size] : tables) {
      if (dynamic_[table] == 0) continue;
      for (std::uint64_t k = 0; k + sizeof(Elf64_Rela) <= dynamic_[size]; k += sizeof(Elf64_Rela)) {
        const auto rela = at<Elf64_Rela>(offset_of(dynamic_[table] + k));
        if (!rela) break;
        const auto symbol =
            at<Elf64_Sym>(offset_of(dynamic_[DT_SYMTAB] + ELF64_R_SYM(rela->r_info) * sizeof(Elf64_Sym)));
        if (ELF64_R_SYM(rela->r_info) != 0 && symbol) f(rela->r_offset, *symbol, name(symbol->st_name));
      }
    }
  }

 private:
  ElfFile(const char* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  /// Returns a copy, because the data may be unaligned; nullopt if it is not within the file.
  template <class T>
  std::optional<T> at(std::uint64_t offset) const {
    if (offset > bytes_ || sizeof(T) > bytes_ - offset) return std::nullopt;
    T x;
    std::memcpy(&x, data_ + offset, sizeof x);
    return x;
  }
  std::uint64_t offset_of(std::uint64_t address) const {
    for (const Elf64_Phdr& p : loads_)
      if (address >= p.p_vaddr && address - p.p_vaddr < p.p_filesz) return address - p.p_vaddr + p.p_offset;
    return ~std::uint64_t{0};
  }
  std::string_view name(std::uint32_t index) const {
    const std::uint64_t offset = offset_of(dynamic_[DT_STRTAB] + index);
    return offset < bytes_ ? std::string_view(data_ + offset, strnlen(data_ + offset, bytes_ - offset))
                           : std::string_view();
  }
  void read_dynamic(const Elf64_Ehdr& head) {
    std::optional<Elf64_Phdr> dynamic;
    for (int i = 0; i < head.e_phnum; ++i) {
      const auto p = at<Elf64_Phdr>(head.e_phoff + static_cast<std::uint64_t>(i) * sizeof(Elf64_Phdr));
      if (p && p->p_type == PT_LOAD) loads_.push_back(*p);
      if (p && p->p_type == PT_DYNAMIC) dynamic = p;
    }
    for (std::uint64_t k = 0; dynamic && k < dynamic->p_filesz; k += sizeof(Elf64_Dyn)) {
      const auto d = at<Elf64_Dyn>(dynamic->p_offset + k);
      if (!d || d->d_tag == DT_NULL) break;
      if (d->d_tag > 0 && d->d_tag < kTags) dynamic_[d->d_tag] = d->d_un.d_val;
    }
  }

  static constexpr int kTags = DT_JMPREL + 1;
  const char* data_;
  std::size_t bytes_;
  std::vector<Elf64_Phdr> loads_;
  std::uint64_t dynamic_[kTags] = {};
};

}  // namespace ouro::info
