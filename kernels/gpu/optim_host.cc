// Checks each optimiser launch and picks its kernel; lays out lists; the host half of the kernels. Used by
// the trainers, tests and benches.
#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/gpu/optim_list.h"

namespace ouro::gpu {
namespace {

using namespace optim;

template <class V>
void run_update(const void* args, int block, int blocks) {
  BlockScratch<typename V::L::Computed> scratch;
  update_body<V>(HostBlock{block, blocks}, *static_cast<const UpdateArgs*>(args), scratch);
}
template <class T>
void run_survey(const void* args, int block, int blocks) {
  SurveyScratch scratch;
  survey_body<T>(HostBlock{block, blocks}, *static_cast<const SurveyArgs*>(args), scratch);
}

/// The properties by which an update finds its kernel.
struct Key {
  DType dtype;
  bool master;
  Family family;
  Form form;
  int ranks;  // at most
  int resident;
};
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, arith::BFloat16>) return DType::bf16;
  if constexpr (std::is_same_v<T, arith::Half>) return DType::f16;
}

struct Table {
  std::array<Key, kOptimKernels> keys = {};  // surveys have the dtype only
  std::array<std::string, kOptimKernels> names;
  std::array<Kernel, kOptimKernels> kernels = {};

  Table() {
    const auto entries = optim_entries();
    std::size_t k = 0;
    each_variant([&](auto v) {
      using V = decltype(v);
      using L = typename V::L;
      constexpr const char* kFamilies[] = {"sgd", "adam", "accum_adam"};
      constexpr const char* kForms[] = {"", " exchange", " leader"};
      keys[k] = {dtype_of<typename L::Element>(), L::kMaster, V::kFamily, V::kForm, V::kRanks, V::kResident};
      names[k] = std::string(kFamilies[static_cast<int>(V::kFamily)]) + " " + name(keys[k].dtype) +
                 (L::kMaster ? " master" : "") + kForms[static_cast<int>(V::kForm)];
      if (V::kForm == Form::leader) names[k] += " " + std::to_string(V::kRanks);
      // On the host one body serves all numbers of ranks.
      using Host = Variant<L, V::kFamily, V::kForm, V::kForm == Form::leader ? UpdateArgs::kMaxRanks : 1, 16>;
      kernels[k] = {names[k].c_str(), entries[k], &run_update<Host>, sizeof(UpdateArgs)};
      ++k;
    });
    each_survey([&](auto t) {
      keys[k].dtype = dtype_of<decltype(t)>();
      names[k] = std::string("survey ") + name(keys[k].dtype);
      kernels[k] = {names[k].c_str(), entries[k], &run_survey<decltype(t)>, sizeof(SurveyArgs)};
      ++k;
    });
  }
};
const Table& table() {
  static const Table* const made =
      new Table;  // never destroyed: kernel names are used until the process ends
  return *made;
}

Status check_dtype(DType t) {
  if (t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::f16) return {};
  return invalid(std::string("optimisers take double, float, bfloat16 and half, not ") + name(t));
}
bool aligned(const void* p, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

Status check_options(const UpdateArgs& a) {
  OURO_TRY(check_dtype(a.dtype));
  if (a.master && size_of(a.dtype) != 2)
    return invalid(std::string("a master copy belongs to 16-bit parameters, not to ") + name(a.dtype));
  const arith::SgdOptions& sgd = a.recipe.sgd;
  const arith::AdamOptions& adam = a.recipe.adam;
  if (!std::isfinite(a.family == Family::sgd ? sgd.lr : adam.lr))
    return invalid("the learning rate must be a finite number");
  if (a.family == Family::sgd) {
    if (sgd.nesterov && (sgd.momentum == 0 || sgd.dampening != 0))
      return invalid("Nesterov's form needs a momentum and no dampening");
  } else {
    // The conditions are written so that NaN fails too.
    if (!(adam.beta1 >= 0 && adam.beta1 < 1) || !(adam.beta2 >= 0 && adam.beta2 < 1))
      return invalid("beta1 and beta2 must be at least 0 and less than 1");
    if (!(adam.eps >= 0)) return invalid("eps must not be negative");
    if (a.family == Family::accum_adam && a.recipe.accum_iter < 1)
      return invalid("accum_iter must be at least 1");
  }
  if (a.form == Form::leader ? a.ranks < 1 || a.ranks > UpdateArgs::kMaxRanks : a.ranks != 1)
    return invalid("an update is of one rank, with a leader of 1 to " +
                   std::to_string(UpdateArgs::kMaxRanks));
  return {};
}

int states_of(const UpdateArgs& a) {
  if (a.family == Family::sgd) return a.recipe.sgd.momentum != 0 ? 1 : 0;
  return a.family == Family::adam ? 2 : 3;
}

/// `of`: the tensor's records, one per rank.
Status check_tensor(const UpdateArgs& a, std::span<const Tensor> of) {
  const std::size_t element = size_of(a.dtype), wide = a.dtype == DType::f64 ? 8 : 4;
  for (const Tensor& t : of) {
    if (t.count != of[0].count) return invalid("the ranks of a leader have different counts");
    if (t.count == 0) continue;
    if (t.value == nullptr || t.gradient == nullptr)
      return invalid("the parameters or their gradient are a null pointer");
    if (a.master && t.master == nullptr) return invalid("the master copy is a null pointer");
    bool fits = aligned(t.value, element) && aligned(t.gradient, element);
    if (a.master) fits &= aligned(t.master, wide);
    for (int k = 0; k < states_of(a); ++k) {
      if (t.state[k] == nullptr) return invalid("a state of the optimiser is a null pointer");
      fits &= aligned(t.state[k], wide);
    }
    if (a.form == Form::exchange) {
      if (t.neighbours == nullptr || t.message == nullptr)
        return invalid("an exchange needs both neighbours and message");
      fits &= aligned(t.neighbours, element) && aligned(t.message, element);
    }
    if (!fits) return invalid("an array on a device must be aligned to its elements");
  }
  return {};
}

std::uint64_t total_of(std::span<const Tensor> tensors, std::size_t ranks) {
  std::uint64_t total = 0;
  for (std::size_t t = 0; t < tensors.size(); t += ranks) total += tensors[t].count;
  return total;
}
std::uint64_t chunk_count(std::span<const Tensor> tensors, std::size_t ranks, std::uint64_t size) {
  std::uint64_t n = 0;
  for (std::size_t t = 0; t < tensors.size(); t += ranks) n += chunks_of(tensors[t].count, size);
  return n;
}

}  // namespace

Result<Launch> update(const UpdateArgs& a, int multiprocessors) {
  OURO_TRY(check_options(a));
  if (a.control == nullptr) return invalid("an update needs a Control in device memory");
  if (a.skip == &a.control->nonfinite) return invalid("a launch that reads its own report has a race");
  const bool flat = a.list.tensors == nullptr;
  if (flat) OURO_TRY(check_tensor(a, {a.one, static_cast<std::size_t>(a.ranks)}));
  const Table& all = table();
  const auto fits = [&](const Key& k) {
    return k.dtype == a.dtype && k.master == a.master && k.family == a.family && k.form == a.form &&
           k.ranks >= a.ranks;
  };
  const auto found = std::find_if(all.keys.begin(), all.keys.begin() + kUpdates, fits);
  const std::uint64_t chunks =
      flat ? chunks_of(a.one[0].count, chunk_elements(a.one[0].count)) : a.list.chunk_count;
  // No more blocks than are resident at once: more would only repeat the work that each block does first.
  const std::uint64_t scratch =
      static_cast<std::uint64_t>(found->resident) * static_cast<std::uint64_t>(std::max(multiprocessors, 1));
  const int blocks = static_cast<int>(std::clamp<std::uint64_t>(chunks, 1, scratch));
  return Launch{&all.kernels[static_cast<std::size_t>(found - all.keys.begin())], {blocks, kOptimThreads}};
}

Result<Launch> survey(const SurveyArgs& a) {
  OURO_TRY(check_dtype(a.dtype));
  if (a.state == nullptr) return invalid("a survey needs a SurveyState in device memory");
  const bool flat = a.list.tensors == nullptr;
  if (flat && a.count > 0 && (a.gradient == nullptr || !aligned(a.gradient, size_of(a.dtype))))
    return invalid("the gradient is a null pointer or not aligned to its elements");
  if (a.rank < 0 || a.rank >= a.ranks || a.ranks > UpdateArgs::kMaxRanks)
    return invalid("a survey is of one of 1 to " + std::to_string(UpdateArgs::kMaxRanks) + " ranks");
  const Table& all = table();
  const auto found = std::find_if(all.keys.begin() + kUpdates, all.keys.end(),
                                  [&](const Key& k) { return k.dtype == a.dtype; });
  const std::uint64_t blocks = flat ? chunks_of(a.count, arith::kSurveyBlock) : a.list.block_count;
  const std::uint64_t groups =
      chunks_of(std::min<std::uint64_t>(blocks, arith::kSurveyChains), kSurveyGroups);
  return Launch{&all.kernels[static_cast<std::size_t>(found - all.keys.begin())],
                {static_cast<int>(std::max<std::uint64_t>(groups, 1)), static_cast<int>(kSurveyThreads)}};
}

std::size_t list_bytes(std::span<const Tensor> tensors, int ranks) {
  const std::size_t n = static_cast<std::size_t>(std::max(ranks, 1));
  const std::uint64_t size = chunk_elements(total_of(tensors, n));
  return tensors.size_bytes() +
         sizeof(Chunk) * (chunk_count(tensors, n, size) + chunk_count(tensors, n, arith::kSurveyBlock));
}

Result<List> lay_out(const UpdateArgs& kind, std::span<const Tensor> tensors, std::byte* staging,
                     const void* home) {
  OURO_TRY(check_options(kind));
  const std::size_t ranks = static_cast<std::size_t>(kind.ranks);
  if (tensors.size() % ranks != 0) return invalid("a list has as many records a tensor as there are ranks");
  if (staging == nullptr || home == nullptr || !aligned(staging, alignof(Tensor)) ||
      !aligned(home, alignof(Tensor)))
    return invalid("the metadata of a list needs memory, aligned to 16 bytes");
  for (std::size_t t = 0; t < tensors.size(); t += ranks)
    OURO_TRY(check_tensor(kind, tensors.subspan(t, ranks)));

  List list;
  list.chunk_elements = chunk_elements(total_of(tensors, ranks));
  std::copy(tensors.begin(), tensors.end(), reinterpret_cast<Tensor*>(staging));
  Chunk* next = reinterpret_cast<Chunk*>(staging + tensors.size_bytes());
  const auto cut = [&](std::uint64_t size) {
    Chunk* const begin = next;
    for (std::size_t t = 0; t < tensors.size(); t += ranks) {
      const std::uint64_t n = chunks_of(tensors[t].count, size);
      for (std::uint64_t k = 0; k < n; ++k)
        *next++ = {static_cast<std::uint32_t>(t / ranks), static_cast<std::uint32_t>(k)};
    }
    return static_cast<std::uint64_t>(next - begin);
  };
  list.chunk_count = cut(list.chunk_elements);
  list.block_count = cut(arith::kSurveyBlock);
  const auto* const at = static_cast<const std::byte*>(home);
  list.tensors = reinterpret_cast<const Tensor*>(at);
  list.chunks = reinterpret_cast<const Chunk*>(at + tensors.size_bytes());
  list.blocks = list.chunks + list.chunk_count;
  return list;
}

std::span<const Kernel> optim_kernels() { return table().kernels; }

}  // namespace ouro::gpu
