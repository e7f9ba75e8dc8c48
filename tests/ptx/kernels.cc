// See kernels.h.
#include "tests/ptx/kernels.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
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

/// A part of the demangled entry that no other has.
std::string part_of(const ouro::gpu::Kernel& kernel) {
  using namespace ouro;
  using namespace ouro::gpu;
  const std::string name = kernel.name;
  if (name.starts_with("resident_")) return "::" + name + "(";
  if (name == "fused_move" || name == "hop_move" || name == "fused_generic" || name == "hop_generic")
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

bool edit(std::string& text, std::string_view kernel, const Edit& e) {
  const Module module(text);
  for (const std::string& name : module.entries()) {
    if (demangled(name.c_str()).find(kernel) == std::string::npos) continue;
    auto [at, end] = module.extent(name);
    bool changed = false;
    for (int n = 0; (at = text.find(e.from, at)) < end; ++n) {
      if (e.which >= 0 && n != e.which) {
        at += e.from.size();
        continue;
      }
      text.replace(at, e.from.size(), e.to);
      end += e.to.size() - e.from.size();
      at += e.to.size();
      changed = true;
    }
    return changed;
  }
  return false;
}

void run_streams(std::uint64_t seed, const std::vector<Stream>& streams,
                 const std::function<void(Memory&)>& lay_out, std::uint64_t limit) {
  int lanes = 0;
  for (const Stream& s : streams)
    for (const Launch& l : s.launches) lanes += l.blocks * l.threads;
  RandomChooser chooser(seed);
  Machine machine(chooser, lanes);
  machine.limit = limit;
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

}  // namespace ptx
