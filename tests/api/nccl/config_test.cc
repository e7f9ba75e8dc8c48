// Configurations of programs that were compiled with other versions of nccl.h: each size, with garbage in
// fields that it does not have.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "ranks.h"

namespace ouro::test {
namespace {

struct Layout {
  unsigned version;
  std::size_t bytes;
};
// Every past size, and one of the future.
constexpr Layout kLayouts[] = {{21400, 24}, {21700, 40}, {21800, 48}, {22600, 48},  {22700, 72}, {22800, 80},
                               {22900, 88}, {23003, 96}, {23007, 96}, {23100, 112}, {29900, 256}};

/// A configuration as a program of that version passes it: the fields that it knows are undefined except
/// `blocking`; everything that it does not know, including padding, is garbage.
std::vector<unsigned char> config_of(const Layout& l, int blocking) {
  std::vector<unsigned char> memory(std::max(l.bytes, sizeof(ncclConfig_t)), 0xdb);
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  c.size = l.bytes, c.version = l.version, c.blocking = blocking;
  const auto copy = [&](std::size_t from, std::size_t to, unsigned since) {
    if (l.version >= since)
      std::memcpy(memory.data() + from, reinterpret_cast<unsigned char*>(&c) + from, to - from);
  };
  copy(0, 20, 0);
  copy(20, 40, 21700);
  copy(40, 44, 21800);
  copy(44, 48, 22600);
  copy(48, 72, 22700);
  copy(72, 80, 22800);
  copy(80, 88, 22900);
  copy(88, 92, 23003);
  copy(92, 96, 23007);
  return memory;
}

ncclResult_t init(void* config, ncclComm_t* comm) {
  ncclUniqueId id;
  EXPECT_OK(ncclGetUniqueId(&id));
  return ncclCommInitRankConfig(comm, 1, id, 0, static_cast<ncclConfig_t*>(config));
}

TEST(Config, ConfigOfEachVersionIsReadUpToItsOwnSize) {
  for (const Layout& l : kLayouts) {
    SCOPED_TRACE(l.version);
    ncclComm_t comm = nullptr;
    auto blocking = config_of(l, 1);
    EXPECT_OK(init(blocking.data(), &comm));
    EXPECT_OK(ncclCommDestroy(comm));
    auto undefined = config_of(l, INT_MIN);
    EXPECT_OK(init(undefined.data(), &comm));
    EXPECT_OK(ncclCommDestroy(comm));
    auto other = config_of(l, 0);
    EXPECT_EQ(init(other.data(), &comm), ncclInProgress);
    EXPECT_EQ(settle(comm), ncclSuccess);
    EXPECT_OK(ncclCommDestroy(comm));
    auto wrong = config_of(l, 7);
    EXPECT_EQ(init(wrong.data(), &comm), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), ::testing::HasSubstr("blocking is 7"));
    EXPECT_EQ(comm, nullptr);
  }
}

struct Field {
  const char* name;
  std::size_t offset;
  unsigned since;
  int wrong;  ///< an invalid value of the field
};
#define OURO_FIELD(name, since, wrong) \
  { #name, offsetof(ncclConfig_t, name), since, wrong }
constexpr Field kFields[] = {OURO_FIELD(blocking, 21400, 2),
                             OURO_FIELD(cgaClusterSize, 21700, 9),
                             OURO_FIELD(minCTAs, 21700, 0),
                             OURO_FIELD(maxCTAs, 21700, -4),
                             OURO_FIELD(splitShare, 21800, 2),
                             OURO_FIELD(trafficClass, 22600, -1),
                             OURO_FIELD(collnetEnable, 22700, 2),
                             OURO_FIELD(CTAPolicy, 22700, 4),
                             OURO_FIELD(shrinkShare, 22700, -1),
                             OURO_FIELD(nvlsCTAs, 22700, 0),
                             OURO_FIELD(nChannelsPerNetPeer, 22800, 0),
                             OURO_FIELD(nvlinkCentricSched, 22800, 2),
                             OURO_FIELD(graphUsageMode, 22900, 3),
                             OURO_FIELD(numRmaCtx, 22900, 0),
                             OURO_FIELD(maxP2pPeers, 23003, 0),
                             OURO_FIELD(graphStreamOrdering, 23007, 2)};

/// An invalid value is refused, naming the field, from the version on that introduced the field; in older
/// configurations it is garbage that must not be read.
TEST(Config, FieldIsReadOnlyFromTheVersionThatIntroducedIt) {
  for (const Layout& l : kLayouts)
    for (const Field& f : kFields) {
      SCOPED_TRACE(std::string(f.name) + " in " + std::to_string(l.version));
      auto memory = config_of(l, INT_MIN);
      std::memcpy(memory.data() + f.offset, &f.wrong, sizeof f.wrong);
      ncclComm_t comm = nullptr;
      const ncclResult_t made = init(memory.data(), &comm);
      if (l.version < f.since) {
        EXPECT_EQ(made, ncclSuccess);
        EXPECT_OK(ncclCommDestroy(comm));
      } else {
        EXPECT_EQ(made, ncclInvalidArgument);
        EXPECT_THAT(ncclGetLastError(nullptr),
                    ::testing::HasSubstr(std::string(f.name) + " is " + std::to_string(f.wrong)));
      }
    }
}

/// A string of the caller is copied; before 2.27 the field does not exist, and its place must not be read.
TEST(Config, NameIsCopiedOnlyFromTheVersionThatIntroducedIt) {
  for (const Layout& l : kLayouts) {
    SCOPED_TRACE(l.version);
    auto memory = config_of(l, INT_MIN);
    std::string name = "pipeline";
    const char* const at = name.c_str();
    if (l.version >= 22700) std::memcpy(memory.data() + offsetof(ncclConfig_t, commName), &at, sizeof at);
    ncclComm_t comm = nullptr;
    OURO_OK(init(memory.data(), &comm));
    name.assign(name.size(), '-');
    EXPECT_EQ(ncclBcast(&comm, 1, ncclInt8, 1, comm, nullptr), ncclInvalidArgument);
    const auto named = ::testing::HasSubstr("communicator pipeline");
    if (l.version >= 22700)
      EXPECT_THAT(ncclGetLastError(comm), named);
    else
      EXPECT_THAT(ncclGetLastError(comm), ::testing::Not(named));
    EXPECT_OK(ncclCommDestroy(comm));
  }
}

TEST(Config, WrongSizeOrMagicIsRefused) {
  ncclComm_t comm = nullptr;
  for (const std::size_t size : {0, 8, 23}) {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.size = size;
    EXPECT_EQ(init(&c, &comm), ncclInvalidArgument) << size;
  }
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  c.magic = 0xcafebabe;
  EXPECT_EQ(init(&c, &comm), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), ::testing::HasSubstr("0xcafebabe"));
}

TEST(Config, FieldsOutOfTheirRangeAreRefusedAndHintsAccepted) {
  ncclComm_t comm = nullptr;
  const auto with = [&](int ncclConfig_t::*field, int value) {
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.*field = value;
    const ncclResult_t r = init(&c, &comm);
    if (r == ncclSuccess) EXPECT_OK(ncclCommDestroy(comm));
    return r;
  };
  EXPECT_EQ(with(&ncclConfig_t::minCTAs, 0), ncclInvalidArgument);
  EXPECT_EQ(with(&ncclConfig_t::maxCTAs, -4), ncclInvalidArgument);
  EXPECT_EQ(with(&ncclConfig_t::splitShare, 2), ncclInvalidArgument);
  EXPECT_EQ(with(&ncclConfig_t::cgaClusterSize, 9), ncclInvalidArgument);
  EXPECT_EQ(with(&ncclConfig_t::nvlinkCentricSched, 2), ncclInvalidArgument);
  EXPECT_EQ(with(&ncclConfig_t::minCTAs, 4), ncclSuccess);  // without maxCTAs
  EXPECT_EQ(with(&ncclConfig_t::nvlinkCentricSched, 1), ncclSuccess);
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  c.minCTAs = 8, c.maxCTAs = 4;
  EXPECT_EQ(init(&c, &comm), ncclInvalidArgument);
}

TEST(CollConfig, ChoosesNumericsAndRefusesWhatItDoesNotKnow) {
  in_threads(2, [](int, ncclComm_t comm) {
    float in = 1, out = 0;
    ncclCollConfig_t c = NCCL_COLLCONFIG_INITIALIZER;
    ncclConfigExt_t foreign = {nullptr, {4242, 1}, {}};
    ncclConfigExt_t numerics = {&foreign, {OURO_NCCL_VENDOR, OURO_NCCL_OPTION_NUMERICS}, {}};
    numerics.val.i = 1;
    c.ext = &numerics;
    EXPECT_OK(ncclAllReduceConfig(&in, &out, 1, ncclFloat32, ncclSum, comm, nullptr, &c));
    EXPECT_EQ(out, 2);
    EXPECT_OK(ncclAllReduceConfig(&in, &out, 1, ncclFloat32, ncclSum, comm, nullptr, nullptr));
    numerics.val.i = 3;
    EXPECT_EQ(ncclAllReduceConfig(&in, &out, 1, ncclFloat32, ncclSum, comm, nullptr, &c),
              ncclInvalidArgument);
    numerics.key.optionId = 99;
    EXPECT_EQ(ncclAllReduceConfig(&in, &out, 1, ncclFloat32, ncclSum, comm, nullptr, &c),
              ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("option 99"));
    c.magic = 1;
    EXPECT_EQ(ncclAllReduceConfig(&in, &out, 1, ncclFloat32, ncclSum, comm, nullptr, &c),
              ncclInvalidArgument);
  });
}

}  // namespace
}  // namespace ouro::test
