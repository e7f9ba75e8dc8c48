// Secrets, keys derived from them, and sealed frames.
#include "transport/wire/keys.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "transport/wire/codec.h"

namespace ouro::wire {
namespace {

using testing::HasSubstr;

TEST(Secrets, ShortOnesAreRefused) {
  EXPECT_EQ(Secret::from_bytes(Bytes(15, 1)).status().reason(), Reason::invalid);
  EXPECT_TRUE(Secret::from_bytes(Bytes(16, 1)).ok());
  EXPECT_EQ(Secret::from_bytes(Bytes(1025, 1)).status().reason(), Reason::invalid);
  EXPECT_FALSE(Secret::from_hex("0011").ok());
  EXPECT_FALSE(Secret::from_hex("").ok());
  EXPECT_FALSE(Secret::from_hex(std::string(33, 'a')).ok()) << "an odd number of digits";
  EXPECT_FALSE(Secret::from_hex(std::string(30, 'a').append("xy")).ok());
  const auto s = Secret::from_hex(" \n000102030405060708090a0b0c0d0e0F\n");
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->bytes()[15], 15);
  EXPECT_FALSE(Secret());
}

TEST(Secrets, FilesThatOthersMayReadAreRefused) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("ouro-secret-{}", getpid())).string();
  std::ofstream(path) << std::string(64, 'a') << "\n";
  chmod(path.c_str(), 0644);
  EXPECT_THAT(Secret::from_file(path).status().message(), HasSubstr("mode 644"));
  chmod(path.c_str(), 0600);
  EXPECT_TRUE(Secret::from_file(path).ok());
  std::ofstream(path) << "abc";
  EXPECT_THAT(Secret::from_file(path).status().message(), HasSubstr(path));
  std::filesystem::remove(path);
  EXPECT_FALSE(Secret::from_file(path).ok());
}

/// The VmFlags of the mapping that contains an address; see proc(5).
std::string flags_at(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (here && line.starts_with("VmFlags:")) return line + ' ';
  }
  return "";
}

TEST(Secrets, AreInNoCoreDumpAndNoForkedChild) {
  const Secret s = *Secret::from_bytes(Bytes(32, 7));
  EXPECT_THAT(flags_at(s.bytes().data()), testing::AllOf(HasSubstr(" dd "), HasSubstr(" wf ")));
  const pid_t child = fork();
  if (child == 0) _exit(s.bytes()[0] == 0 && s.bytes()[31] == 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

/// RFC 4231, case 2, and RFC 5869, case 3 (no salt, no info), cut to 32 bytes.
TEST(Keys, MatchTheTestVectorsOfTheRfcs) {
  EXPECT_EQ(hex(*hmac(view("Jefe"), {view("what do ya want "), view("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(*hkdf(Bytes(22, 0x0b), {})),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
  EXPECT_TRUE(equal(view("abc"), view("abc")));
  EXPECT_FALSE(equal(view("abc"), view("abd")));
  EXPECT_FALSE(equal(view("abc"), view("ab")));
}

TEST(Sealed, FramesSurviveArrivalInAnyPieces) {
  std::mt19937 random(3);
  const Key key{1, 2, 3};
  FrameSealer sealer(key);
  Bytes stream;
  std::vector<Bytes> said;
  for (int i = 0; i < 200; ++i) {
    said.emplace_back(random() % 300, static_cast<std::uint8_t>(i));
    ASSERT_TRUE(sealer.seal(said.back(), stream).ok());
  }
  for (const std::size_t most : {1, 5, 100, 100'000}) {
    FrameOpener opener(key);
    std::size_t heard = 0;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t n = std::min<std::size_t>(1 + random() % most, stream.size() - at);
      opener.push({stream.data() + at, n});
      at += n;
      for (;;) {
        auto payload = opener.next();
        ASSERT_TRUE(payload.ok()) << payload.status().message();
        if (!*payload) break;
        ASSERT_TRUE(equal(**payload, said[heard++]));
      }
    }
    EXPECT_EQ(heard, said.size());
  }
}

TEST(Sealed, ReplaysLossesAndChangesAreRefused) {
  const Key key{1, 2, 3};
  const auto frames = [&] {
    FrameSealer sealer(key);
    std::vector<Bytes> all(3);
    for (auto& f : all) EXPECT_TRUE(sealer.seal(view("payload"), f).ok());
    return all;
  }();
  const auto outcome = [&](const std::vector<Bytes>& said, const Key& with) -> Status {
    FrameOpener opener(with, 100);
    for (const Bytes& b : said) {
      opener.push(b);
      if (auto p = opener.next(); !p.ok()) {
        opener.push(frames[0]);
        EXPECT_FALSE(opener.next().ok()) << "nothing is accepted after an error";
        return p.status();
      }
    }
    return {};
  };
  EXPECT_TRUE(outcome(frames, key).ok());
  EXPECT_THAT(outcome({frames[0], frames[0]}, key).message(), HasSubstr("number 0, expected 1"));
  EXPECT_THAT(outcome({frames[0], frames[2]}, key).message(), HasSubstr("number 2, expected 1"));
  EXPECT_THAT(outcome({frames[0]}, Key{9}).message(), HasSubstr("bad-mac"));
  for (std::size_t at = 0; at < frames[0].size(); ++at) {
    Bytes b = frames[0];
    b[at] ^= 1;
    if (at == 0) b.push_back(0), b.push_back(0);  // a longer frame needs more bytes before it is checked
    EXPECT_EQ(outcome({b}, key).reason(), Reason::data_corrupt) << at;
  }
  Bytes huge = frames[0];
  huge[3] = 0x7f;
  EXPECT_THAT(outcome({huge}, key).message(), HasSubstr("at most 100"));
}

TEST(Sealed, AHundredThousandReplaysAreRefused) {
  const Key key{4};
  FrameSealer sealer(key);
  Bytes first;
  ASSERT_TRUE(sealer.seal(view("go"), first).ok());
  int refused = 0;
  for (int i = 0; i < 100'000; ++i) {
    FrameOpener opener(key);
    opener.push(first);
    (void)opener.next().ok();
    opener.push(first);
    refused += opener.next().status().reason() == Reason::data_corrupt;
  }
  EXPECT_EQ(refused, 100'000);
}

}  // namespace
}  // namespace ouro::wire
