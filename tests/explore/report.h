// The commands and the output of the program explore. Used by main.cc.
#pragma once
#include <cstdint>
#include <string>

namespace explore {

struct Settings {
  std::string only;
  std::uint64_t executions = 250'000;  ///< in each search
  std::uint64_t minutes = 0, seed = 1, fault = 0;
  bool random_only = false;  ///< no exhaustive searches and no faults
};

// Each returns the exit code of the program.
int run_litmus();
int run_protocols(const Settings&);
int list_protocols();
int weaken_orders(const Settings&);
int list_sites(const char* name);
int repeat(const char* name, const char* choices, const Settings&);

}  // namespace explore
