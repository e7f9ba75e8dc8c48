// Secrets, HMAC, HKDF and sealed frames by OpenSSL's EVP interface. See keys.h.
#include "transport/wire/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/core/fd.h"
#include "runtime/core/per_process.h"
#include "transport/wire/codec.h"

namespace ouro::wire {
namespace {

Status crypto_failed() { return {Reason::resource, "the cryptographic library cannot compute an HMAC"}; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// An HMAC-SHA256 under one key, for repeated use. OpenSSL's lookup of algorithms is slow, so it is done once
/// per process.
class Hmac {
 public:
  explicit Hmac(View key) {
    static constinit MadeOnce<EVP_MAC*> looked_up;
    EVP_MAC* const algorithm = looked_up.get([] { return EVP_MAC_fetch(nullptr, "HMAC", nullptr); });
    if (!algorithm || !(context_ = EVP_MAC_CTX_new(algorithm))) return;
    char sha256[] = "SHA256";
    const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, 0),
                                     OSSL_PARAM_construct_end()};
    good_ = EVP_MAC_init(context_, key.data(), key.size(), parameters) == 1;
  }
  ~Hmac() { EVP_MAC_CTX_free(context_); }
  Hmac(const Hmac&) = delete;
  Hmac& operator=(const Hmac&) = delete;

  bool compute(std::initializer_list<View> parts, Key& to) {
    if (!good_) return false;
    // A null key means: reuse the previous one.
    good_ = fresh_ || EVP_MAC_init(context_, nullptr, 0, nullptr) == 1;
    fresh_ = false;
    for (const View part : parts)
      good_ = good_ && (part.empty() || EVP_MAC_update(context_, part.data(), part.size()) == 1);
    std::size_t n = 0;
    good_ = good_ && EVP_MAC_final(context_, to.data(), &n, to.size()) == 1 && n == to.size();
    return good_;
  }

 private:
  EVP_MAC_CTX* context_ = nullptr;
  bool good_ = false, fresh_ = true;
};

}  // namespace

struct Secret::Page {
  explicit Page(View secret) : bytes(secret.size()) {
    at = mmap(nullptr, kMaxBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    // Independent precautions: the job continues even if the system refuses one.
    (void)mlock(at, kMaxBytes);
    (void)madvise(at, kMaxBytes, MADV_DONTDUMP);
    (void)madvise(at, kMaxBytes, MADV_WIPEONFORK);
    std::copy(secret.begin(), secret.end(), static_cast<std::uint8_t*>(at));
  }
  ~Page() {
    if (at == MAP_FAILED) return;
    OPENSSL_cleanse(at, bytes);
    munmap(at, kMaxBytes);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  void* at;
  std::size_t bytes;
};

Result<Secret> Secret::from_bytes(View bytes) {
  if (bytes.size() < kMinBytes)
    return invalid(
        fmt::format("a secret of {} bytes; at least {} random ones are needed, so that nobody can guess it "
                    "from a recorded handshake",
                    bytes.size(), kMinBytes));
  if (bytes.size() > kMaxBytes)
    return invalid(fmt::format("a secret of {} bytes; at most {}", bytes.size(), kMaxBytes));
  Secret s;
  auto page = std::make_shared<Page>(bytes);
  if (page->at == MAP_FAILED) return Status(Reason::resource, "no memory for the job's secret");
  s.page_ = std::move(page);
  return s;
}

Result<Secret> Secret::from_hex(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  text = first == text.npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  if (text.size() % 2 != 0 || text.size() > 2 * kMaxBytes ||
      !std::all_of(text.begin(), text.end(), [](char c) { return hex_digit(c) >= 0; }))
    return invalid("a secret is an even number of hexadecimal digits, 32 to 2048 of them");
  std::array<std::uint8_t, kMaxBytes> bytes;
  for (std::size_t i = 0; i < text.size() / 2; ++i)
    bytes[i] = static_cast<std::uint8_t>(hex_digit(text[2 * i]) * 16 + hex_digit(text[2 * i + 1]));
  auto secret = from_bytes({bytes.data(), text.size() / 2});
  wipe(bytes);
  return secret;
}

namespace {

/// A launcher may name one of this process's descriptors, which needs no /proc if it is there by its number.
Fd inherited(const std::string& path) {
  constexpr std::string_view kBegin = "/proc/self/fd/";
  int number = -1;
  if (!path.starts_with(kBegin) ||
      std::from_chars(path.data() + kBegin.size(), path.data() + path.size(), number).ptr !=
          path.data() + path.size())
    return {};
  return Fd(::fcntl(number, F_DUPFD_CLOEXEC, 3));
}

}  // namespace

Result<Secret> Secret::from_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd && errno == ENOENT) fd = inherited(path);
  struct stat file {};
  if (!fd || fstat(fd.get(), &file) != 0)
    return invalid(fmt::format("cannot read the secret file '{}': {}", path, std::strerror(errno)));
  // Mode and owner are checked for regular files only: a pipe from a launcher is as private as
  // its descriptors.
  if (S_ISREG(file.st_mode) && ((file.st_mode & 077) != 0 || file.st_uid != geteuid()))
    return invalid(fmt::format("the secret file '{}' has mode {:03o} and owner {}; expected 600 and {}", path,
                               file.st_mode & 0777, file.st_uid, geteuid()));
  std::array<char, 2 * kMaxBytes + 16> text;
  std::size_t n = 0;
  while (n < text.size()) {
    // Others may read by the same description of an open file.
    const ssize_t got = S_ISREG(file.st_mode)
                            ? ::pread(fd.get(), text.data() + n, text.size() - n, static_cast<off_t>(n))
                            : ::read(fd.get(), text.data() + n, text.size() - n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return invalid(fmt::format("cannot read the secret file '{}': {}", path, std::strerror(errno)));
    if (got == 0) break;
    n += static_cast<std::size_t>(got);
  }
  auto secret = from_hex({text.data(), n});
  OPENSSL_cleanse(text.data(), text.size());
  return secret.ok() ? std::move(secret)
                     : Result<Secret>(invalid(
                           fmt::format("the secret file '{}': {}", path, secret.status().failure()->text)));
}

View Secret::bytes() const {
  return page_ ? View(static_cast<const std::uint8_t*>(page_->at), page_->bytes) : View();
}

bool equal(View a, View b) {
  return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

void wipe(std::span<std::uint8_t> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

Result<Key> hmac(View key, std::initializer_list<View> parts) {
  Key result;
  return Hmac(key).compute(parts, result) ? Result<Key>(result) : Result<Key>(crypto_failed());
}

Result<Key> hkdf(View key, std::initializer_list<View> info) {
  const Key no_salt{};
  Hmac extract(no_salt);
  Key pseudorandom, result;
  if (!extract.compute({key}, pseudorandom)) return crypto_failed();
  Hmac expand(pseudorandom);
  wipe(pseudorandom);
  Bytes all;
  for (const View part : info) all.insert(all.end(), part.begin(), part.end());
  const std::uint8_t first_block = 1;  // one block has the length of a key
  if (!expand.compute({all, {&first_block, 1}}, result)) return crypto_failed();
  return result;
}

Status random_bytes(std::span<std::uint8_t> to) {
  while (!to.empty()) {
    const ssize_t n = getrandom(to.data(), to.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {Reason::resource, fmt::format("no random bytes: {}", std::strerror(errno))};
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

struct FrameSealer::Mac {
  explicit Mac(const Key& key) : hmac(key) {}
  Hmac hmac;
};

FrameSealer::FrameSealer(const Key& key) : mac_(std::make_unique<Mac>(key)) {}
FrameSealer::FrameSealer(FrameSealer&&) noexcept = default;
FrameSealer& FrameSealer::operator=(FrameSealer&&) noexcept = default;
FrameSealer::~FrameSealer() = default;

Status FrameSealer::seal(View payload, Bytes& to) {
  std::array<std::uint8_t, kSealHead> head;
  put_number(head.data(), static_cast<std::uint32_t>(payload.size()));
  put_number(head.data() + 4, seq_++);
  Key mac;
  if (!mac_->hmac.compute({head, payload}, mac)) return crypto_failed();
  to.reserve(to.size() + kSealBytes + payload.size());
  to.insert(to.end(), head.begin(), head.end());
  to.insert(to.end(), payload.begin(), payload.end());
  to.insert(to.end(), mac.begin(), mac.begin() + kSealMac);
  return {};
}

FrameOpener::FrameOpener(const Key& key, std::size_t max_payload)
    : mac_(std::make_unique<FrameSealer::Mac>(key)), max_payload_(max_payload) {}
FrameOpener::FrameOpener(FrameOpener&&) noexcept = default;
FrameOpener& FrameOpener::operator=(FrameOpener&&) noexcept = default;
FrameOpener::~FrameOpener() = default;

void FrameOpener::push(View bytes) {
  if (!failed_.ok()) return;
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(std::exchange(read_, 0)));
  kept_.insert(kept_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<View>> FrameOpener::next() {
  const auto fail = [this](Status why) -> Status {
    kept_ = {};
    read_ = 0;
    return failed_ = std::move(why);
  };
  if (!failed_.ok()) return failed_;
  const View rest = View(kept_).subspan(read_);
  if (rest.size() < kSealHead) return std::optional<View>();
  const std::size_t length = get_number<std::uint32_t>(rest.data());
  const auto seq = get_number<std::uint64_t>(rest.data() + 4);
  if (length > max_payload_)
    return fail(
        {Reason::data_corrupt, fmt::format("a sealed frame of {} bytes; at most {}", length, max_payload_)});
  if (seq != seq_)
    return fail({Reason::data_corrupt,
                 fmt::format("a sealed frame has number {}, expected {}: replayed or lost", seq, seq_)});
  if (rest.size() < kSealBytes + length) return std::optional<View>();
  Key mac;
  if (!mac_->hmac.compute({rest.first(kSealHead + length)}, mac)) return fail(crypto_failed());
  if (!equal(View(mac).first(kSealMac), rest.subspan(kSealHead + length, kSealMac)))
    return fail({Reason::data_corrupt, "bad-mac: a sealed frame was changed on its way"});
  ++seq_;
  read_ += kSealBytes + length;
  return std::optional<View>(rest.subspan(kSealHead, length));
}

}  // namespace ouro::wire
