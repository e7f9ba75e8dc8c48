// Optimiser steps on devices: one launch updates a run, a list of tensors, or the runs of all ranks that
// share a GPU, and counts its steps when a graph replays it. Used by the trainers, tests and benches.
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

/// The update of kernels/host/optim.h that a launch performs, with the same bits.
enum class Family : std::uint8_t { sgd, adam, accum_adam };

/// What is updated at once, and what happens in the same pass. Bytes are of AdamW in fp32, a parameter.
enum class Form : std::uint8_t {
  plain,     ///< 28 bytes
  exchange,  ///< kernels::Exchange: mix with `neighbours`, update, write `message`; 36 bytes
  leader,    ///< ranks on one device: mix their parameters with each other, update all; 28 bytes a rank
};

/// What a launch reads in device memory when it starts, and writes there when its last block ends. One for
/// each launch that may be under way: steps of the same parameters follow each other in a stream.
struct Control {
  std::int64_t step = 0;  ///< steps taken. A launch takes the next one and adds one, unless it is skipped
  double lr = 1e-3;
  std::uint32_t nonfinite = 0;  ///< of the last launch: 1 if a gradient was not finite (0 if skipped)
  std::uint32_t pending = 0, ended = 0;  ///< the launch's own; zero between launches
};

/// Parameters of one rank and what belongs to them, as in kernels::Parameters. All in memory that the device
/// can reach, aligned to their elements; 16-byte aligned arrays move twice as many bytes an access.
struct alignas(16) Tensor {
  void* value = nullptr;
  const void* gradient = nullptr;
  float* master = nullptr;  ///< where UpdateArgs::master
  /// sgd: the momentum, if there is any; adam: m, v; accum_adam: m, v and the accumulator.
  void* state[3] = {};
  const void* neighbours = nullptr;  ///< Form::exchange; `message` may be the same array
  void* message = nullptr;
  std::uint64_t count = 0;
};
/// A part of a tensor: elements index * N and up to N of them, N being List::chunk_elements (kSurveyBlock in
/// List::blocks).
struct Chunk {
  std::uint32_t tensor, index;
};
/// A list of tensors as kernels read it, made by `lay_out`. Form::leader: `ranks` records a tensor, side by
/// side.
struct List {
  const Tensor* tensors = nullptr;
  const Chunk* chunks = nullptr;  ///< what a block of an update takes at a time
  const Chunk* blocks = nullptr;  ///< the blocks of a survey
  std::uint64_t chunk_count = 0, block_count = 0;
  std::uint32_t chunk_elements = 0;
};

/// An update. Pointers to device memory are read at the start of each launch; where they are null the value
/// beside them holds for all launches.
struct UpdateArgs {
  static constexpr int kMaxRanks = 8;
  Family family = Family::adam;
  Form form = Form::plain;
  DType dtype = DType::f32;  ///< f64, f32, bf16 or f16: of value, gradient, neighbours and message
  bool master = false;       ///< 16-bit types: all tensors have one
  bool lazy_zero = true;     ///< as in kernels::AccumAdamOptions
  int ranks = 1;             ///< Form::leader; else 1
  arith::Recipe recipe;      ///< options of the family; `control` has the step and the learning rate
  Control* control = nullptr;
  /// Non-zero: no update, as kernels::mix and kernels::pack do it (Form::plain: nothing), and no step. A word
  /// that this launch does not write: what its survey or a collective says, not control->nonfinite.
  const std::uint32_t* skip = nullptr;
  arith::GradientScale scale[kMaxRanks];           ///< of each rank
  const arith::GradientScale* scale_at = nullptr;  ///< [ranks]
  arith::MixWeights weights;                       ///< Form::exchange
  const arith::MixWeights* weights_at = nullptr;
  /// Form::leader: x_r becomes the sum over s of matrix[r][s] * x_s, added in rank order, before the update;
  /// the adaptive factor is in it. 16-bit parameters without a master are rounded in between.
  double matrix[kMaxRanks][kMaxRanks] = {};
  const double* matrix_at = nullptr;  ///< [ranks][ranks]
  Tensor one[kMaxRanks];              ///< the flat run of each rank, if there is no list; equal counts
  List list;
};
static_assert(sizeof(UpdateArgs) <= 4096);

/// The kernel and its shape on a device of `multiprocessors`. `invalid`: types, options, counts or null
/// arrays that do not fit; what device memory holds is not looked at. A run of no elements counts its step.
Result<Launch> update(const UpdateArgs&, int multiprocessors);

/// Bytes of a list's metadata.
std::size_t list_bytes(std::span<const Tensor>, int ranks = 1);
/// Writes the metadata of a list (the records of a tensor's ranks side by side, equal counts) to `staging` as
/// it shall stand at `home`, 16-byte aligned, where the caller takes it: device memory, or pinned memory that
/// is `staging` itself. The result goes to UpdateArgs and SurveyArgs of any launch that `kind` is like; its
/// own list and tensors are not looked at. Null arrays and unequal counts are `invalid`.
Result<List> lay_out(const UpdateArgs& kind, std::span<const Tensor>, std::byte* staging, const void* home);

/// Squares of gradients, in device memory; what a survey leaves there.
struct SurveyState {
  double squares = 0;           ///< the bits of kernels::survey
  std::uint32_t nonfinite = 0;  ///< 1 if a gradient was not finite; for all_reduce and UpdateArgs::skip
  std::uint32_t pending = 0, ended = 0;  ///< the launch's own; zero between launches
  std::uint32_t unused = 0;
  double chain[arith::kSurveyChains] = {};
};
/// One reading pass over gradients, unscaled: g * inverse.
struct SurveyArgs {
  DType dtype = DType::f32;
  double inverse = 1;
  /// If set, `inverse` is read there, and `clip` written: arith::clip_factor of the norm. It may be the one
  /// that the update reads.
  arith::GradientScale* scale_at = nullptr;
  double clip_norm = 0;  ///< 0: no clipping, clip = 1
  SurveyState* state = nullptr;
  const void* gradient = nullptr;  ///< the flat run, if there is no list
  std::uint64_t count = 0;
  List list;
  int ranks = 1, rank = 0;  ///< of a list for Form::leader: whose gradients
};
Result<Launch> survey(const SurveyArgs&);  ///< the same shape on every device, as the order of sums asks

/// All kernels of this file.
std::span<const Kernel> optim_kernels();

}  // namespace ouro::gpu
