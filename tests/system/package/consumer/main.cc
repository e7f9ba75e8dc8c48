// A program that uses ouro only as an installed package. Built and run
// by tests/system/package/package_test.sh.
#include <cstdio>

#include "ouro/ouro.hpp"

int main() {
  auto context = ouro::Context::from_env();
  if (!context.ok()) return std::fprintf(stderr, "%s\n", context.status().message().c_str()), 1;
  std::vector<float> in(1000, static_cast<float>(context->rank() + 1)), out(in.size());
  const ouro::Status status =
      ouro::all_reduce(context->world(), std::span<const float>(in), std::span<float>(out));
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  const int n = context->world_size();
  const bool right = out.front() == static_cast<float>(n * (n + 1) / 2) && out.back() == out.front();
  std::printf("ouro %s, %d ranks: %s\n", ouro::version(), n, right ? "right" : "WRONG");
  return right && context->close().ok() ? 0 : 1;
}
