// Chooses the instruction set of the host loops, once, and turns each call into a job for the chosen kernel.
// Used by the host executor; the loops themselves are in host_loops_impl.h.
#include "kernels/host/host_loops.h"

#include <fmt/format.h>

#include <atomic>
#include <cassert>
#include <optional>
#include <string>

#include "kernels/host/host_job.h"
#include "runtime/core/env.h"
#include "runtime/core/float_mode.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ouro::kernels {
namespace {

struct InstructionSet {
  const char* name;
  Kernel (*kernel)(DType, OpKind);
  bool (*here)();  // whether this processor and this operating system can execute it
};

#if defined(__x86_64__)
// Each function checks every -m flag of its unit in CMakeLists.txt. The builtins also check whether the
// system saves the registers; not all compilers know "f16c", which needs no registers but AVX's.
bool has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

constexpr InstructionSet kSets[] = {
// best first
#if defined(__x86_64__)
    {"avx512", avx512_kernel, has_avx512},
    {"avx2", avx2_kernel, has_avx2},
#endif
    {"baseline", baseline_kernel, [] { return true; }},
};

const InstructionSet* find(std::string_view name) {
  for (const InstructionSet& set : kSets)
    if (set.name == name && set.here()) return &set;
  return nullptr;
}

const InstructionSet* best() {
  for (const InstructionSet& set : kSets)
    if (set.here()) return &set;
  return nullptr;  // not reached: the last set is always available
}

struct Choice {
  std::atomic<const InstructionSet*> set;
  std::string remark;  // why OURO_ISA was not applied
  Choice() : set(best()) {
    const Result<std::optional<std::string>> wanted = env::text("OURO_ISA");
    if (wanted.ok() && !*wanted) return;
    if (const InstructionSet* found = wanted.ok() ? find(**wanted) : nullptr) {
      set.store(found, std::memory_order_relaxed);
      return;
    }
    const char* name = set.load(std::memory_order_relaxed)->name;
    const std::string why = wanted.ok() ? "OURO_ISA=" + **wanted + " is not supported by this processor"
                                        : wanted.status().failure()->text;
    remark = fmt::format("{} ({})", name, why);
    OURO_WARN("{}; the host loops use {}", why, name);
  }
};
constinit MadeOnce<Choice> g_choice;
Choice& choice() {
  return g_choice.get([] { return Choice(); });
}

void run(const Reduction& r, const Job& job) {
  const Kernel kernel = choice().set.load(std::memory_order_relaxed)->kernel(r.dtype, r.op);
  assert(kernel != nullptr && "callers check applies(op, dtype)");
  const StandardFloats floats;
  kernel(job);
}

Job job_of(const Reduction& r, void* out, bool wide_out, std::size_t count) {
  Job job;
  job.out = out;
  job.wide_out = wide_out;
  job.ranks = r.ranks;
  job.count = count;
  return job;
}
void add_wide(Job& job, const void* acc) { job.wide_in[job.wides++] = acc; }
void add_input(Job& job, const Reduction& r, const void* const* in) {
  job.in = in;
  job.ins = 1;
  job.factor = &r.premul;
}

}  // namespace

void widen(const Reduction& r, void* acc, const void* in, std::size_t count) {
  Job job = job_of(r, acc, true, count);
  add_input(job, r, &in);
  run(r, job);
}

void reduce_input(const Reduction& r, void* acc_out, const void* acc_in, const void* in, double weight,
                  std::size_t count) {
  Job job = job_of(r, acc_out, true, count);
  add_wide(job, acc_in);
  add_input(job, r, &in);
  job.weight = weight;
  run(r, job);
}

void reduce_acc(const Reduction& r, void* acc_out, const void* acc_in, const void* acc, double weight,
                std::size_t count) {
  Job job = job_of(r, acc_out, true, count);
  add_wide(job, acc_in);
  add_wide(job, acc);
  job.weight = weight;
  run(r, job);
}

void finish(const Reduction& r, void* out, const void* acc, std::size_t count) {
  Job job = job_of(r, out, false, count);
  add_wide(job, acc);
  run(r, job);
}

void reduce_input_finish(const Reduction& r, void* out, const void* acc_in, const void* in,
                         std::size_t count) {
  Job job = job_of(r, out, false, count);
  add_wide(job, acc_in);
  add_input(job, r, &in);
  run(r, job);
}

void reduce_acc_finish(const Reduction& r, void* out, const void* acc_in, const void* acc,
                       std::size_t count) {
  Job job = job_of(r, out, false, count);
  add_wide(job, acc_in);
  add_wide(job, acc);
  run(r, job);
}

void fold(const Reduction& r, void* out, std::span<const void* const> in, std::span<const Scalar> premul,
          std::size_t count) {
  assert(!in.empty() && (r.op != OpKind::premulsum || premul.size() == in.size()));
  Fold{r}(out, in, premul, count);
}

Fold::Fold(const Reduction& r)
    : kernel_(choice().set.load(std::memory_order_relaxed)->kernel(r.dtype, r.op)), ranks_(r.ranks) {
  assert(kernel_ != nullptr && "callers check applies(op, dtype)");
}

void Fold::operator()(void* out, std::span<const void* const> in, std::span<const Scalar> premul,
                      std::size_t count) const {
  Job job;
  job.out = out;
  job.ranks = ranks_;
  job.count = count;
  job.in = in.data();
  job.ins = in.size();
  job.factor = premul.data();
  const StandardFloats floats;
  kernel_(job);
}

const char* instruction_set() {
  const Choice& c = choice();
  return c.remark.empty() ? c.set.load(std::memory_order_relaxed)->name : c.remark.c_str();
}

bool use_instruction_set(std::string_view name) {
  const InstructionSet* set = find(name);
  if (set == nullptr) return false;
  choice().set.store(set, std::memory_order_relaxed);
  return true;
}

}  // namespace ouro::kernels
