// The members of a job. See job_members.h.
#include "runtime/job/job_members.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/job/remarks.h"

namespace ouro::rt {

JobMembers::JobMembers(int rank, std::vector<Peer> peers)
    : rank_(rank), peers_(std::move(peers)), dead_(peers_.size()) {}

Status JobMembers::read_pages() {
  for (int r = 0; r < size(); ++r)
    if (page(r).magic != kControlMagic || page(r).rank != static_cast<std::uint32_t>(r))
      return {Reason::ring_corrupt, fmt::format("the control page of rank {} is not one", r)};
  for (int r = 0; r < size(); ++r) {
    if (!is_remote(r)) continue;
    wire::Bytes& all = peers_[static_cast<std::size_t>(r)].address;
    const auto read = read_remarks(all, &page(r));
    if (!read)
      return {Reason::ring_corrupt,
              fmt::format("what rank {} of {} says of itself, {} bytes, makes no sense: is it another "
                          "build of this library?",
                          r, peer(r).host, all.size())};
    peers_[static_cast<std::size_t>(r)].process = page(r).process;
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(*read));
  }
  return {};
}

GroupRecord* JobMembers::find_record(int r, std::uint64_t key) const {
  for (GroupRecord& record : page(r).groups)
    if (record.key.get() == key) return &record;
  return nullptr;
}

}  // namespace ouro::rt
