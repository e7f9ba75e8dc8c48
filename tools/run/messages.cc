// The encoding of messages between ouro-run and its agents. Used through messages.h.
#include "tools/run/messages.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

namespace ouro::run {
namespace {

constexpr std::size_t kLength = 4;  // bytes of a length field

void add_length(std::string& out, std::size_t value) {
  for (std::size_t i = 0; i < kLength; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

std::size_t length_at(std::string_view bytes, std::size_t at) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < kLength; ++i)
    value |= std::size_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

Status garbled(std::string_view what) {
  return Status(Reason::refused, fmt::format("no message of ouro-run and its agents: {}", what));
}

}  // namespace

std::string encode(const Message& message) {
  std::string body(1, static_cast<char>(message.kind));
  for (const std::string& field : message.fields) {
    add_length(body, field.size());
    body += field;
  }
  std::string out;
  add_length(out, body.size());
  return out + body;
}

Result<std::optional<Message>> MessageReader::next() {
  if (pending_.size() < kLength) return std::optional<Message>();
  const std::size_t length = length_at(pending_, 0);
  if (length < 1 || length > kLongest) return garbled(fmt::format("{} bytes", length));
  if (pending_.size() < kLength + length) return std::optional<Message>();
  std::string_view body = std::string_view(pending_).substr(kLength, length);
  Message message;
  message.kind = static_cast<Kind>(body[0]);
  if (message.kind < Kind::offer || message.kind > Kind::over)
    return garbled(fmt::format("kind {}", int{body[0]}));
  body.remove_prefix(1);
  while (!body.empty()) {
    if (body.size() < kLength || length_at(body, 0) > body.size() - kLength)
      return garbled("a field is cut off");
    const std::size_t size = length_at(body, 0);
    message.fields.emplace_back(body.substr(kLength, size));
    body.remove_prefix(kLength + size);
  }
  pending_.erase(0, kLength + length);
  return std::optional<Message>(std::move(message));
}

std::optional<std::string> MessageReader::next_line() {
  const std::size_t end = pending_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = pending_.substr(0, end);
  pending_.erase(0, end + 1);
  return line;
}

Result<int> number_of(const Message& message, std::size_t field, int low, int high) {
  if (field >= message.fields.size()) return garbled("a field is missing");
  const std::string& text = message.fields[field];
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    return garbled(fmt::format("'{}' is no number from {} to {}", text.substr(0, 40), low, high));
  return value;
}

Message to_message(const Orders& o) {
  Message m{Kind::start,
            {o.directory, o.host, o.secret, rt::name(o.bind), std::to_string(o.first_rank),
             std::to_string(o.local_size), std::to_string(o.size), std::to_string(o.node),
             std::to_string(o.nodes), o.rendezvous.job, o.rendezvous.address,
             std::to_string(o.rendezvous.port), o.rendezvous.rendezvous, std::to_string(o.variables.size())}};
  for (const auto& [key, value] : o.variables) {
    m.fields.push_back(key);
    m.fields.push_back(value);
  }
  m.fields.insert(m.fields.end(), o.argv.begin(), o.argv.end());
  return m;
}

Result<Orders> to_orders(const Message& m) {
  constexpr std::size_t kFixed = 14;
  constexpr int kMany = std::numeric_limits<int>::max();
  if (m.kind != Kind::start || m.fields.size() < kFixed) return garbled("no orders");
  Orders o;
  o.directory = m.fields[0];
  o.host = m.fields[1];
  o.secret = m.fields[2];
  const Result<rt::Bind> bind = rt::parse_bind(m.fields[3]);
  if (!bind.ok()) return garbled(fmt::format("binding '{}'", m.fields[3].substr(0, 40)));
  o.bind = *bind;
  struct Number {
    std::size_t field;
    int* target;
    int low, high;
  };
  int variables = 0;
  for (const Number& n : {Number{4, &o.first_rank, 0, kMaxRanks - 1}, Number{5, &o.local_size, 1, kMaxRanks},
                          Number{6, &o.size, 1, kMaxRanks}, Number{7, &o.node, 0, kMaxHosts - 1},
                          Number{8, &o.nodes, 1, kMaxHosts}, Number{11, &o.rendezvous.port, 0, 65535},
                          Number{13, &variables, 0, kMany}}) {
    OURO_ASSIGN(*n.target, number_of(m, n.field, n.low, n.high));
  }
  o.rendezvous.job = m.fields[9];
  o.rendezvous.address = m.fields[10];
  o.rendezvous.rendezvous = m.fields[12];
  if (static_cast<std::size_t>(variables) > (m.fields.size() - kFixed) / 2)
    return garbled("variables are missing");
  std::size_t at = kFixed;
  for (int i = 0; i < variables; ++i, at += 2) o.variables[m.fields[at]] = m.fields[at + 1];
  o.argv.assign(m.fields.begin() + static_cast<std::ptrdiff_t>(at), m.fields.end());
  if (o.argv.empty() || o.first_rank + o.local_size > o.size) return garbled("orders do not fit together");
  return o;
}

Message to_message(Kind kind, std::vector<std::string> head, const std::vector<Offer>& offers) {
  Message m{kind, std::move(head)};
  for (const Offer& o : offers)
    for (const std::string& field : {o.address, std::to_string(o.port), std::to_string(o.second_port)})
      m.fields.push_back(field);
  return m;
}

Result<std::vector<Offer>> to_offers(const Message& m, std::size_t skip) {
  if (m.fields.size() < skip || (m.fields.size() - skip) % 3 != 0) return garbled("offers are cut off");
  std::vector<Offer> offers;
  for (std::size_t i = skip; i < m.fields.size(); i += 3) {
    const Result<int> port = number_of(m, i + 1, 1, 65535), second = number_of(m, i + 2, 1, 65535);
    if (!port.ok()) return port.status();
    if (!second.ok()) return second.status();
    offers.push_back({m.fields[i], *port, *second});
  }
  return offers;
}

}  // namespace ouro::run
