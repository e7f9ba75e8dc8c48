// Names of the shared vocabulary and their parsers. The lists in types.h are the only source of the names;
// this file adds aliases, the spellings that other tools use.
#include "runtime/core/types.h"

#include <array>
#include <utility>

#include "runtime/core/collectives.h"

namespace ouro {
namespace {

// clang-format off
constexpr std::pair<std::string_view, DType> kDTypeAliases[] = {
    {"char", DType::i8},      {"i8", DType::i8},        {"byte", DType::u8},     {"u8", DType::u8},
    {"short", DType::i16},    {"i16", DType::i16},      {"u16", DType::u16},
    {"int", DType::i32},      {"i32", DType::i32},      {"u32", DType::u32},
    {"i64", DType::i64},      {"u64", DType::u64},
    {"float16", DType::f16},  {"f16", DType::f16},      {"bf16", DType::bf16},
    {"float32", DType::f32},  {"f32", DType::f32},      {"float64", DType::f64}, {"f64", DType::f64},
    {"fp8_e4m3", DType::f8e4m3}, {"float8_e4m3fn", DType::f8e4m3},
    {"fp8_e5m2", DType::f8e5m2}, {"float8_e5m2", DType::f8e5m2},
    {"boolean", DType::boolean},
};
// clang-format on

constexpr std::pair<std::string_view, OpKind> kOpAliases[] = {
    {"product", OpKind::prod},
    {"mean", OpKind::avg},
    {"premulsum", OpKind::premulsum},
};

constexpr std::pair<std::string_view, Collective> kCollectiveAliases[] = {
    {"alltoall", Collective::all_to_all},
};

}  // namespace

const char* name(DType t) {
  switch (t) {
#define OURO_X(e, b, n) \
  case DType::e:        \
    return n;
    OURO_DTYPES(OURO_X)
#undef OURO_X
  }
  return "?";
}

const char* name(OpKind op) {
  switch (op) {
#define OURO_X(e, n) \
  case OpKind::e:    \
    return n;
    OURO_OPS(OURO_X)
#undef OURO_X
  }
  return "?";
}

const char* name(Numerics n) {
  switch (n) {
    case Numerics::inherit:
      return "inherit";
    case Numerics::fast:
      return "fast";
    case Numerics::canonical:
      return "canonical";
  }
  return "?";
}

const char* name(Collective c) {
  switch (c) {
#define OURO_X(e, ...) \
  case Collective::e:  \
    return #e;
    OURO_COLLECTIVES(OURO_X)
#undef OURO_X
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (int i = 0; i < kDTypes; ++i) {
    if (text == name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  for (const auto& [alias, type] : kDTypeAliases) {
    if (text == alias) return type;
  }
  return std::nullopt;
}

std::optional<OpKind> parse_op(std::string_view text) {
  for (int i = 0; i < kOps; ++i) {
    if (text == name(static_cast<OpKind>(i))) return static_cast<OpKind>(i);
  }
  for (const auto& [alias, op] : kOpAliases) {
    if (text == alias) return op;
  }
  return std::nullopt;
}

std::optional<Collective> parse_collective(std::string_view text) {
  for (int i = 1; i < kCollectives; ++i)
    if (text == name(static_cast<Collective>(i))) return static_cast<Collective>(i);
  for (const auto& [alias, collective] : kCollectiveAliases)
    if (text == alias) return collective;
  return std::nullopt;
}

}  // namespace ouro
