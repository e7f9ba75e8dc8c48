// The smallest program: every rank contributes its number, and every rank gets the sum. Run it with: ouro-run
// -n 4 example-allreduce
#include <iostream>

#include "ouro/ouro.hpp"

int main() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return std::cerr << context.status().message() << '\n', 1;
  std::vector<float> mine(1000, static_cast<float>(context->rank())), sum(1000);
  const ouro::Status done = ouro::all_reduce(context->world(), std::span(mine), std::span(sum));
  if (!done) return std::cerr << done.message() << '\n', 1;
  std::cout << "rank " << context->rank() << " of " << context->world_size() << ": " << sum[0] << '\n';
}
