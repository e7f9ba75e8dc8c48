// What joining ranks agree on: a pinned record, none, or a measured one, and which differences are refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/host/copy.h"
#include "runtime/calibration/choose.h"
#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "tests/runtime/calibration/invented.h"
#include "tests/runtime/calibration/pinned.h"
#include "tests/runtime/group/ranks.h"
#include "transport/shm/reach.h"

namespace ouro {
namespace {

using testing::HasSubstr;

class Calibrated : public testing::Test {
 protected:
  Calibrated() { ::setenv("XDG_CACHE_HOME", records_.path().c_str(), 1); }
  ~Calibrated() override { ::unsetenv("XDG_CACHE_HOME"); }
  std::string pin(const rt::Calibration& c, const char* name = "record") { return records_.pin(c, name); }
  /// The digests of the records that the ranks ended up with.
  static std::set<std::uint64_t> digests(int n) {
    std::mutex mutex;
    std::set<std::uint64_t> all;
    EXPECT_EQ("", test::run_threads(n, [&](Context& c) -> std::string {
                const std::lock_guard lock(mutex);
                all.insert(c.impl()->calibration().digest());
                return "";
              }));
    return all;
  }
  test::PinnedRecords records_;
};

TEST_F(Calibrated, AllRanksUseThePinnedRecord) {
  pin(rt::invented_record());
  EXPECT_EQ(digests(4), std::set{rt::invented_record().digest()});
}

TEST_F(Calibrated, NoRankHasARecordIfCalibrationIsOff) {
  ::setenv("OURO_CALIBRATION", "off", 1);
  EXPECT_EQ(digests(3), std::set<std::uint64_t>{0});
}

TEST_F(Calibrated, AllRanksAgreeOnTheRecordWithoutAPinnedOne) { EXPECT_EQ(digests(4).size(), 1u); }

/// The figures say that plain stores are the fastest at one size; the built-in choice is `rep movsb` for
/// every size.
TEST_F(Calibrated, CopiesUseTheFastestKindOfTheRecord) {
  rt::Calibration c = rt::invented_record();
  for (rt::CopyCost& cost : c.pair[1].copies[2]) cost = {90'000, 90'000};
  c.pair[1].copies[2][0] = {20'000, 20'000};
  pin(c);
  const auto outcome = test::run_processes(3, [](Context& context) -> std::string {
    using kernels::CopyKind;
    const kernels::CopyKinds expected = {CopyKind::rep, CopyKind::rep, CopyKind::plain, CopyKind::rep};
    for (const auto memory : {kernels::Shared::slot, kernels::Shared::buffer})
      OURO_RANK_CHECK(kernels::copy_kinds(memory) == expected, "rank {}", context.rank());
    std::vector<int> in(100'000, context.rank() + 1), out(in.size());  // of that size, and staged
    OURO_RANK_OK(all_reduce(context.world(), std::span<const int>(in), std::span(out)));
    OURO_RANK_CHECK(std::count(out.begin(), out.end(), 6) == 100'000, "{} and others", out[0]);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// The algorithm that a rank would use for a broadcast of a MiB.
std::string explained(Context& context, void* buffer = nullptr) {
  rt::Operation op;
  op.collective = Collective::broadcast;
  std::vector<float> other(1 << 18);
  op.in = op.out = {buffer ? buffer : other.data(), other.size(), DType::f32};
  const auto text = context.world().impl()->explain(op);
  return text ? *text : text.status().message();
}

TEST_F(Calibrated, TheCheapestAlgorithmByTheRecordIsUsed) {
  pin(rt::far_zen3());
  const auto run = [](const char* says, bool there) {
    return test::run_processes(2, [=](Context& c) -> std::string {
      if (!c.impl()->cores().enough_here()) return "";  // one core: the rows of the table stay
      const std::string text = explained(c);
      OURO_RANK_CHECK((text.find(says) != text.npos) == there, "{}", text);
      std::vector<float> data(1 << 18, c.rank() == 0 ? 7.0f : 0.0f);
      OURO_RANK_OK(broadcast(c.world(), std::span<const float>(data), std::span(data), 0));
      OURO_RANK_CHECK(std::count(data.begin(), data.end(), 7.0f) == 1 << 18, "{}", data[0]);
      return "";
    });
  };
  EXPECT_EQ(run("pull where ranks may", true), "");  // on whatever pages
  EXPECT_EQ(run("predicted: direct ", true), "");
  rt::Calibration small = rt::far_zen3();
  for (std::uint32_t& p : small.pair[0].pull) p *= 8;
  pin(small);
  EXPECT_EQ(run("pull where all buffers lie on huge pages", true), "");
  ::setenv("OURO_SELECT", "broadcast:direct", 1);  // a row given by the user takes precedence
  EXPECT_EQ(run("pull where", false), "");
  ::unsetenv("OURO_SELECT");
  rt::Calibration slow = rt::far_zen3();
  for (std::uint32_t& p : slow.pair[0].pull_huge) p *= 8;
  pin(slow);
  EXPECT_EQ(run("pull where", false), "");
}

/// With rows for calls in place, ranks whose call is not in place decline: all use the same flow, whoever is.
TEST_F(Calibrated, RanksInPlaceAndOutOfPlaceUseOneFlow) {
  pin(rt::dear_stores());
  const auto run = [](Context& c) -> std::string {
    if (!c.impl()->cores().enough_here()) return "";  // one core: the rows of the table stay
    constexpr std::size_t kCount = 1 << 16;
    auto in = c.alloc(kCount * sizeof(float)), out = c.alloc(kCount * sizeof(float));
    OURO_RANK_CHECK(in && out, "no memory");
    auto* const x = static_cast<float*>(in->data());
    auto* const y = static_cast<float*>(out->data());
    rt::Operation op;
    op.collective = Collective::all_reduce;
    op.in = {x, kCount, DType::f32}, op.out = {y, kCount, DType::f32};
    const auto text = c.world().impl()->explain(op);
    OURO_RANK_OK(text);
    OURO_RANK_CHECK(text->find("the same memory, as here they are not") != text->npos, "{}", *text);
    for (int in_place = 0; in_place < 4; ++in_place) {  // a bit for each rank
      float* const to = in_place >> c.rank() & 1 ? x : y;
      std::fill_n(x, kCount, static_cast<float>(c.rank() + 1));
      OURO_RANK_OK(all_reduce(c.world(), CView(x, kCount, DType::f32), View(to, kCount, DType::f32)));
      OURO_RANK_CHECK(std::count(to, to + kCount, 3.0f) == kCount, "{}: {}", in_place, to[0]);
    }
    return "";
  };
  EXPECT_EQ(test::run_processes(2, run), "");
}

TEST_F(Calibrated, SpinTimeAndCacheLimitFollowTheRecord) {
  rt::Calibration c = rt::invented_record();
  c.wake = 70'000, c.cache_kib = 1024;
  pin(c);
  const auto run = [](std::size_t caches) {
    return test::run_processes(3, [=](Context& context) -> std::string {
      const rt::CoreShare& cores = context.impl()->cores();
      const Patience expected = rt::patience_by(context.impl()->calibration(), cores.enough_here());
      OURO_RANK_CHECK(cores.patience().spin == expected.spin && cores.patience().polls == 40, "{} us, {}",
                      cores.patience().spin.count(), cores.patience().polls);
      // The new group uses what the ranks' pages say now.
      auto group = context.world().split(0, context.rank());
      if (caches > 0) {
        context.impl()->members().own_page().cache = static_cast<int>(1 + context.rank() % caches);
        OURO_RANK_OK(barrier(context.world()));
        group = context.world().split(0, context.rank());
      }
      OURO_RANK_OK(group);
      rt::Operation op;
      op.collective = Collective::all_reduce;
      std::vector<float> in(1 << 20), out(1 << 20);
      op.in = {in.data(), in.size(), DType::f32}, op.out = {out.data(), out.size(), DType::f32};
      const auto text = group->impl()->explain(op);
      OURO_RANK_OK(text);
      const std::string says =
          fmt::format("as {} bytes or more", std::max<std::size_t>(caches, 1) * (8 << 20));
      OURO_RANK_CHECK(text->find(says) != text->npos, "{}", *text);
      return "";
    });
  };
  EXPECT_EQ(run(1), "");
  EXPECT_EQ(run(3), "");
}

/// A MiB on huge pages; nullptr if the system has none.
void* on_huge_pages() {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  void* const p = ::mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* const at = static_cast<std::byte*>(p) + (kHuge - reinterpret_cast<std::uintptr_t>(p) % kHuge) % kHuge;
  (void)::madvise(at, kHuge, MADV_HUGEPAGE);
  std::fill_n(at, 1 << 20, std::byte{1});
  return transport::on_huge_pages(transport::open_pagemap().get(), at, 1 << 20) ? at : nullptr;
}

/// The rules choose pull only for huge pages; if it is forced, the prediction is for the pages that the
/// buffer has.
TEST_F(Calibrated, ForcedPullIsPredictedForThePagesOfTheBuffer) {
  pin(rt::invented_record());
  ::setenv("OURO_ALGO", "pull", 1);
  const auto outcome = test::run_processes(2, [](Context& c) -> std::string {
    const auto says = [](bool huge_pages) {
      const auto ns = rt::predicted_ns(rt::invented_record(), {.collective = Collective::broadcast,
                                                               .algorithm = flow::Algorithm::pull,
                                                               .bytes = 1 << 20,
                                                               .huge_pages = huge_pages,
                                                               .forced = true});
      return fmt::format("predicted: pull {:.2f} us", ns.value_or(0) / 1e3);
    };
    std::string text = explained(c);
    OURO_RANK_CHECK(says(false) != says(true) && text.find(says(false)) != text.npos, "{}", text);
    if (void* const huge = on_huge_pages()) {
      text = explained(c, huge);
      OURO_RANK_CHECK(text.find(says(true)) != text.npos, "{}", text);
    }
    return "";
  });
  ::unsetenv("OURO_ALGO");
  EXPECT_EQ(outcome, "");
}

/// Only the result of the first rank of a host counts, so the results of other ranks change nothing.
TEST_F(Calibrated, ProcessesUseTheRecordOfTheirHostsFirstRank) {
  const std::uint64_t pinned = rt::invented_record().digest();
  pin(rt::invented_record());
  const auto outcome = test::run_processes(3, [=](Context& c) -> std::string {
    OURO_RANK_CHECK(c.impl()->calibration().digest() == pinned, "{:x}", c.impl()->calibration().digest());
    const bool first = c.rank() == 0;
    OURO_RANK_CHECK(c.impl()->members().page(c.rank()).calibration.known() == first, "rank {}", c.rank());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

TEST_F(Calibrated, InvalidRecordFilesAreRefused) {
  const auto refused = [] {
    const auto c = Context::create({.rank = 0, .world_size = 1});
    return c.ok() ? std::string("joined") : c.status().message();
  };
  ::setenv("OURO_CALIBRATION", "/nowhere/record.json", 1);
  EXPECT_THAT(refused(), HasSubstr("OURO_CALIBRATION: /nowhere/record.json: cannot be read"));
  EXPECT_THAT(refused(), HasSubstr("expected off, or a file"));
  std::ofstream(pin({})) << "{}";
  EXPECT_THAT(refused(), HasSubstr("\"ouro_calibration\": 1 is missing"));
}

TEST_F(Calibrated, RanksWithDifferentPinnedRecordsAreRefused) {
  rt::Calibration other = rt::invented_record();
  other.pair[0].handoff += 1;
  const std::string one = pin(rt::invented_record(), "one"), two = pin(other, "two");
  InitOptions o = test::quick_options();
  o.id = *UniqueId::create(), o.world_size = 2;
  const auto join = [&](int rank, const std::string& file) {
    ::setenv("OURO_CALIBRATION", file.c_str(), 1);
    o.rank = rank;
    const auto c = Context::create(o);
    return c.ok() ? std::string("joined") : c.status().message();
  };
  const pid_t first = ::fork();
  if (first == 0) ::_exit(join(0, one) == "joined");
  const std::string outcome = join(1, two);
  int ended = 0;
  ASSERT_EQ(::waitpid(first, &ended, 0), first);
  EXPECT_EQ(ended, 0);
  EXPECT_THAT(outcome, HasSubstr(fmt::format("OURO_CALIBRATION={:016x}", other.digest())));
}

}  // namespace
}  // namespace ouro
