// Optimiser steps on devices: one launch updates a flat run, a list of tensors, or the runs of all ranks that
// share a GPU. It counts its own steps, so that a graph can replay it. Used by the trainers, tests
// and benches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/arith/optim.h"
#include "kernels/device/gpu.h"
#include "kernels/gpu/collect.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro::gpu {

/// The update of kernels/host/optim.h that a launch performs; the bits are the same.
enum class Family : std::uint8_t { sgd, adam, accum_adam };

/// The data that one launch updates, and the other work of the same pass. The numbers are the bytes moved per
/// parameter for AdamW in fp32.
enum class Form : std::uint8_t {
  plain,     ///< 28 bytes
  exchange,  ///< kernels::Exchange: mix with `neighbours`, update, write `message`; 36 bytes
  leader,    ///< ranks on one device: mix their parameters with each other, update all; 28 bytes per rank
};

/// Device memory that a launch reads when it starts and writes when its last block ends. Each launch that may
/// be in flight needs its own; steps of the same parameters follow each other in a stream.
struct Control {
  std::int64_t step = 0;  ///< steps taken. A launch performs the next one and adds one, unless it is skipped
  double lr = 1e-3;
  std::uint32_t nonfinite = 0;  ///< of the last launch: 1 if a gradient was not finite (0 if skipped)
  std::uint32_t pending = 0, ended = 0;  ///< internal to the launch; zero between launches
};

/// Parameters of one rank and the arrays that belong to them, as in kernels::Parameters. All arrays are in
/// memory that the device can access, aligned to their elements; with 16-byte alignment an access moves twice
/// as many bytes.
struct alignas(16) Tensor {
  void* value = nullptr;
  const void* gradient = nullptr;
  float* master = nullptr;  ///< set if UpdateArgs::master
  /// sgd: the momentum, if used; adam: m, v; accum_adam: m, v and the accumulator.
  void* state[3] = {};
  const void* neighbours = nullptr;  ///< Form::exchange; `message` may be the same array
  void* message = nullptr;
  std::uint64_t count = 0;
};
/// A part of a tensor: at most N elements from index * N on, where N is List::chunk_elements (kSurveyBlock
/// in List::blocks).
struct Chunk {
  std::uint32_t tensor, index;
};
/// A list of tensors in the form that kernels read, made by `lay_out`. Form::leader: `ranks` consecutive
/// records per tensor.
struct List {
  const Tensor* tensors = nullptr;
  const Chunk* chunks = nullptr;  ///< the units of work of an update's blocks
  const Chunk* blocks = nullptr;  ///< the blocks of a survey
  std::uint64_t chunk_count = 0, block_count = 0;
  std::uint32_t chunk_elements = 0;
};

/// The arguments of an update. Pointers to device memory are read at the start of each launch; if one is
/// null, the member next to it holds for all launches.
struct UpdateArgs {
  static constexpr int kMaxRanks = 8;
  Family family = Family::adam;
  Form form = Form::plain;
  DType dtype = DType::f32;  ///< f64, f32, bf16 or f16: type of value, gradient, neighbours and message
  bool master = false;       ///< 16-bit types: all tensors have a master copy
  bool lazy_zero = true;     ///< as in kernels::AccumAdamOptions
  int ranks = 1;             ///< Form::leader; else 1
  arith::Recipe recipe;      ///< options of the family; `control` holds the step and the learning rate
  Control* control = nullptr;
  /// If set and non-zero, the launch only mixes and packs, as kernels::mix and kernels::pack do (Form::plain:
  /// does nothing), and counts no step. This launch must not write the word: use the result of its survey or
  /// of a collective, not control->nonfinite.
  const std::uint32_t* skip = nullptr;
  arith::GradientScale scale[kMaxRanks];           ///< of each rank
  const arith::GradientScale* scale_at = nullptr;  ///< [ranks]
  arith::MixWeights weights;                       ///< Form::exchange
  const arith::MixWeights* weights_at = nullptr;
  /// Form::leader: before the update, x_r becomes the sum over s of matrix[r][s] * x_s, added in rank order;
  /// the entries include the adaptive factor. 16-bit parameters without a master are rounded before
  /// the update.
  double matrix[kMaxRanks][kMaxRanks] = {};
  const double* matrix_at = nullptr;  ///< [ranks][ranks]
  Tensor one[kMaxRanks];              ///< the flat run of each rank, used if there is no list; equal counts
  List list;
};
static_assert(sizeof(UpdateArgs) <= 4096);

/// The kernel and its shape on a device with `multiprocessors` multiprocessors. Fails with `invalid` on
/// types, options, counts or null arrays that do not fit; the contents of device memory are not checked. An
/// update of no elements still counts its step.
Result<Launch> update(const UpdateArgs&, int multiprocessors);

/// Bytes of a list's metadata.
std::size_t list_bytes(std::span<const Tensor>, int ranks = 1);
/// Writes the metadata of a list (for each tensor the records of all ranks side by side, with equal counts)
/// to `staging`, in the form that it must have at `home`. Both are 16-byte aligned. The caller copies it to
/// `home`, which is device memory, or pinned memory and then `staging` itself. The result can be used in
/// UpdateArgs and SurveyArgs of any launch with the same options as `kind`, whose own list and tensors are
/// ignored. Null arrays and unequal counts are `invalid`.
Result<List> lay_out(const UpdateArgs& kind, std::span<const Tensor>, std::byte* staging, const void* home);

/// The result of a survey, in device memory: squares of gradients.
struct SurveyState {
  double squares = 0;           ///< same bits as kernels::survey
  std::uint32_t nonfinite = 0;  ///< 1 if a gradient was not finite; for all_reduce and UpdateArgs::skip
  std::uint32_t pending = 0, ended = 0;  ///< internal to the launch; zero between launches
  std::uint32_t unused = 0;
  double chain[arith::kSurveyChains] = {};
};
/// One read-only pass over gradients; each counts as g * inverse.
struct SurveyArgs {
  DType dtype = DType::f32;
  double inverse = 1;
  /// If set, `inverse` is read from it, and `clip` is written to it: arith::clip_factor of the norm. The
  /// update may read the same one.
  arith::GradientScale* scale_at = nullptr;
  double clip_norm = 0;  ///< 0: no clipping, clip = 1
  SurveyState* state = nullptr;
  const void* gradient = nullptr;  ///< the flat run, used if there is no list
  std::uint64_t count = 0;
  List list;
  int ranks = 1, rank = 0;  ///< in a list for Form::leader: the rank whose gradients are surveyed
};
Result<Launch> survey(
    const SurveyArgs&);  ///< the shape is the same on every device, because the order of sums depends on it

/// All kernels of this file.
std::span<const Kernel> optim_kernels();

}  // namespace ouro::gpu
