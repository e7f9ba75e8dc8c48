// ouro-train: trains a small model over the ranks of a job, data-parallel, sharded, federated or
// decentralised, as a demonstration and a check. The loops are in sharded.cc, federated.cc
// and decentralised.cc.
#include <fmt/format.h>

#include "kernels/device/gpu.h"
#include "tools/cli/output.h"
#include "tools/train/checkpoint.h"
#include "tools/train/command_line.h"
#include "tools/train/decentralised.h"
#include "tools/train/federated.h"
#include "tools/train/sharded.h"

namespace {

using namespace ouro;         // NOLINT
using namespace ouro::tools;  // NOLINT

int fail(const Status& status) {
  complain("{}\n", status.message());
  return 1;
}

/// "NVIDIA H200", or a generic name.
std::string gpu_name(const Context& context) {
  const auto properties = gpu::gpu().properties(context.device().index);
  return properties ? properties->name : "a GPU";
}

Result<TrainReport> train_by_strategy(Context& context, const TrainOptions& options) {
  switch (options.strategy) {
    case Strategy::ddp:
    case Strategy::fsdp:
      return train_sharded(context, options);
    case Strategy::federated:
    case Strategy::diloco:
      return train_federated(context, options);
    case Strategy::decentralised:
      break;
  }
  return train_decentralised(context, options);
}

/// Trains, then writes the files of rank 0, which alone uses `losses`.
Result<TrainReport> train_and_write(Context& context, CommandLine& line, LossFile& losses) {
  const bool speaks = context.rank() == 0;
  if (speaks)
    line.options.on_step = [&losses, quiet = line.quiet,
                            progress = Progress(end_of(line.options))](const Step& step) {
      losses.add(step);
      if (!quiet) progress(step);
    };
  OURO_ASSIGN(auto report, train_by_strategy(context, line.options));
  if (speaks) OURO_TRY(losses.finish());
  if (speaks) OURO_TRY(write_outputs(line.outputs, report));
  return report;
}

Status run(Context& context, CommandLine line) {
  Group& world = context.world();
  const bool speaks = context.rank() == 0;
  OURO_TRY(same_options(world, line.options));
  OURO_TRY(agree(world, speaks ? try_outputs(line.outputs) : Status{}));
  OURO_TRY(try_checkpoint(world, line.options));
  LossFile losses(line.outputs.csv, line.options.strategy);
  const auto trained = train_and_write(context, line, losses);
  if (!trained && !losses.where().empty())
    complain("ouro-train: the losses of the steps that were taken are in {}\n", losses.where());
  OURO_ASSIGN(const auto& report, trained);
  const std::string last = summary(report, line.options.device ? gpu_name(context) : "");
  OURO_TRY(context.close());
  // After close(), so the other ranks do not wait for a slow reader.
  if (speaks && !line.instead) print("{}\n", last);
  return {};
}

int run(int argc, char** argv) {
  Parsed parsed = parse_command_line(argc, argv);
  if (!parsed.line) return parsed.exit;
  InitOptions init;
  if (!parsed.line->options.device) init.gpu = -1;
  Result<Context> context = Context::from_env(init);
  if (!context) return fail(context.status());
  const Status status = run(*context, std::move(*parsed.line));
  return status.ok() ? 0 : fail(status);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("ouro-train", [&] { return run(argc, argv); });
}
