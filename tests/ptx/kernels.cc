// Finds entries, runs launches and plants faults. See kernels.h.
#include "tests/ptx/kernels.h"

#include <cxxabi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <typeinfo>

#include "kernels/gpu/collect_body.h"
#include "kernels/gpu/optim_list.h"

namespace ptx {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? text.get() : name;
}

/// A part of the demangled name of the kernel's entry that no other entry has.
std::string part_of(const ouro::gpu::Kernel& kernel) {
  using namespace ouro;
  using namespace ouro::gpu;
  const std::string name = kernel.name;
  if (name.starts_with("resident_")) return "::" + name + "(";
  if (name == "fused_move" || name == "hop_move" || name == "fused_generic" || name == "hop_generic" ||
      name == "gather_runs" || name == "meet")
    return "::" + name + "_kernel(";
  std::string part;
#define OURO_X(t, op)                                                                                \
  {                                                                                                  \
    const std::string pair = "_kernel<(ouro::DType)" + std::to_string(static_cast<int>(DType::t)) +  \
                             ", (ouro::OpKind)" + std::to_string(static_cast<int>(OpKind::op));      \
    if (name == "hop_" #t "_" #op) part = "::hop" + pair + ">";                                      \
    for (int ranks : collect::kHotRanks)                                                             \
      if (name == "fused_" #t "_" #op "_" + (ranks == 0 ? std::string("n") : std::to_string(ranks))) \
        part = "::fused" + pair + ", " + std::to_string(ranks) + ">";                                \
  }
  OURO_HOT_REDUCTIONS(OURO_X)
#undef OURO_X
  if (!part.empty()) return part;
  std::size_t k = 0;
  const auto& all = optim_kernels();
  optim::each_variant([&](auto v) {
    if (name == all[k++].name) part = demangled(typeid(v).name());
  });
  optim::each_survey([&](auto t) {
    if (name == all[k++].name) part = "optim_survey<" + demangled(typeid(t).name()) + ">";
  });
  return part;
}

std::string entry_name(const Module& module, const ouro::gpu::Kernel& kernel) {
  const std::string part = part_of(kernel);
  for (const std::string& e : module.entries())
    if (!part.empty() && demangled(e.c_str()).find(part) != std::string::npos) return e;
  return {};
}

}  // namespace

Totals& totals() {
  static Totals all;
  return all;
}

std::uint64_t first_seed() {
  const char* text = std::getenv("OURO_PTX_FIRST");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

std::string read_ptx(const std::string& name) {
  const char* folder = std::getenv("OURO_PTX");
  if (folder == nullptr) return {};
  std::ifstream file(std::string(folder) + "/" + name + ".ptx");
  return {std::istreambuf_iterator<char>(file), {}};
}

const Function* entry_of(Module& module, const ouro::gpu::Kernel& kernel) {
  const std::string name = entry_name(module, kernel);
  if (name.empty()) return nullptr;
  auto& ran = totals().kernels;
  if (std::find(ran.begin(), ran.end(), name) == ran.end()) ran.push_back(name);
  return &module.function(name);
}

void run_streams(std::uint64_t seed, const std::vector<Stream>& streams,
                 const std::function<void(Memory&)>& lay_out, std::uint64_t limit,
                 const std::function<void(const Lane&, const Instr&, std::uint64_t)>& watch) {
  int lanes = 0;
  for (const Stream& s : streams)
    for (const Launch& l : s.launches) lanes += l.blocks * l.threads;
  RandomChooser chooser(seed);
  Machine machine(chooser, lanes);
  machine.limit = limit;
  machine.watch = watch;
  lay_out(machine.memory());
  const auto count = [&] {
    totals().instructions += machine.executed();
    totals().strong += machine.memory().strong;
    totals().stale += machine.memory().stale;
  };
  try {
    machine.run(streams);
  } catch (...) {
    count();
    throw;
  }
  count();
}

namespace {

/// The text with the fault planted, or nothing if it has no match.
std::optional<std::string> planted(const std::string& text, const Fault& fault) {
  const Module module(text);
  std::string entry;
  for (const ouro::gpu::Kernel* k : ouro::gpu::all_kernels())
    if (fault.kernel == k->name) entry = entry_name(module, *k);
  if (entry.empty()) return std::nullopt;
  const auto [begin, end] = module.extent(entry);
  const std::string before = text.substr(begin, end - begin);
  const std::regex from(fault.from);
  std::string after;
  auto rest = before.cbegin();
  int n = 0, changes = 0;
  for (std::sregex_iterator m(before.cbegin(), before.cend(), from), none; m != none; ++m, ++n) {
    after.append(rest, (*m)[0].first);
    const bool here = fault.which < 0 || fault.which == n;
    after += here ? m->format(fault.to) : m->str();
    changes += here;
    rest = (*m)[0].second;
  }
  after.append(rest, before.cend());
  if (changes == 0) return std::nullopt;
  return text.substr(0, begin) + after + text.substr(end);
}

}  // namespace

void expect_found(const std::string& text, const Fault& fault,
                  const std::function<std::optional<std::string>(Module&, std::uint64_t seed)>& run,
                  std::uint64_t seeds) {
  ++totals().planted;
  std::optional<std::string> changed = planted(text, fault);
  if (!changed) {
    ADD_FAILURE() << "nothing to change in " << fault.kernel << ": " << fault.what;
    return;
  }
  Module module(std::move(*changed));
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::optional<std::string> wrong = run(module, seed);
    if (!wrong) continue;
    ++totals().found;
    std::string line = wrong->substr(0, 160);
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::printf("found: %s: %s: %s\n", fault.kernel.c_str(), fault.what, line.c_str());
    return;
  }
  ADD_FAILURE() << "not found in " << fault.kernel << ": " << fault.what;
}

}  // namespace ptx
