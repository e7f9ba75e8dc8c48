// The command line of ouro-perf: defaults as in nccl-tests, and clear refusals of what is not possible. Run
// by ctest.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "tools/perf/options.h"

namespace ouro::perf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Outcome {
  Parsed parsed;
  std::string errors;
};

Outcome parse(std::vector<const char*> args, const char* program = "ouro-perf") {
  args.insert(args.begin(), program);
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  Outcome o;
  o.parsed = parse_command_line(static_cast<int>(args.size()), args.data());
  o.errors = testing::internal::GetCapturedStderr() + testing::internal::GetCapturedStdout();
  return o;
}

void expect_refused(std::vector<const char*> args, const char* text) {
  const Outcome o = parse(args);
  EXPECT_FALSE(o.parsed.options) << text;
  EXPECT_EQ(o.parsed.exit_code, 2) << text;
  EXPECT_THAT(o.errors, HasSubstr(text));
}

TEST(CommandLine, DefaultsAreThoseOfNcclTests) {
  const Outcome parsed = parse({"all_reduce"});
  ASSERT_TRUE(parsed.parsed.options) << parsed.errors;
  const Options& o = *parsed.parsed.options;
  EXPECT_EQ(o.min_bytes, 32u << 20);
  EXPECT_EQ(o.max_bytes, 32u << 20);
  EXPECT_EQ(o.step_bytes, 1u << 20);
  EXPECT_EQ(o.step_factor, 1u);
  EXPECT_EQ(o.iters, 20);
  EXPECT_EQ(o.warmup, 1);
  EXPECT_EQ(o.check, 1);
  EXPECT_EQ(o.average, Average::mean);
  EXPECT_THAT(o.dtypes, ElementsAre(DType::f32));
  EXPECT_THAT(o.ops, ElementsAre(OpKind::sum));
  EXPECT_EQ(o.root, 0);
}

TEST(CommandLine, DistributionIsOnForGpusUnlessRefused) {
  const auto on = [](std::vector<const char*> args) {
    return parse(std::move(args)).parsed.options->distribution;
  };
  EXPECT_FALSE(on({"all_reduce"}));
  EXPECT_TRUE(on({"all_reduce", "--distribution", "1"}));
  EXPECT_TRUE(on({"all_reduce", "--device", "cuda"}));
  EXPECT_FALSE(on({"all_reduce", "--device", "cuda", "--distribution", "0"}));
  EXPECT_FALSE(on({"aggregation", "--device", "cuda"}));
  expect_refused({"aggregation", "--distribution", "1"}, "cannot be combined with aggregation");
}

TEST(CommandLine, ProgramNameChoosesTheCollective) {
  const Outcome o = parse({"-b", "8", "-e", "1K", "-f", "2"}, "/opt/bin/broadcast_perf");
  ASSERT_TRUE(o.parsed.options) << o.errors;
  EXPECT_EQ(o.parsed.options->kind, Kind::broadcast);
  EXPECT_EQ(o.parsed.options->max_bytes, 1024u);
}

TEST(CommandLine, EveryFlagOfNcclTestsIsParsed) {
  const Outcome o = parse({"reduce", "--nthreads",
                           "2",      "--ngpus",
                           "1",      "--minbytes",
                           "1K",     "--maxbytes",
                           "2K",     "--stepbytes",
                           "1K",     "--stepfactor",
                           "1",      "--iters",
                           "7",      "--warmup_iters",
                           "3",      "--agg_iters",
                           "2",      "--run_cycles",
                           "2",      "--parallel_init",
                           "1",      "--check",
                           "4",      "--op",
                           "max",    "--datatype",
                           "int8",   "--root",
                           "all",    "--blocking",
                           "3",      "--stream_null",
                           "0",      "--timeout",
                           "9",      "--cudagraph",
                           "0",      "--report_cputime",
                           "0",      "--average",
                           "3",      "--local_register",
                           "1",      "--cta_policy",
                           "0",      "--device_implementation",
                           "0",      "--device_cta_count",
                           "16",     "--output_file",
                           "x.json", "--report_timestamps",
                           "1",      "--memory_report",
                           "1"});
  ASSERT_TRUE(o.parsed.options) << o.errors;
  const Options& p = *o.parsed.options;
  EXPECT_EQ(p.threads, 2);
  EXPECT_EQ(p.iters, 7);
  EXPECT_EQ(p.warmup, 3);
  EXPECT_EQ(p.aggregate, 2);
  EXPECT_EQ(p.cycles, 2);
  EXPECT_TRUE(p.parallel_init);
  EXPECT_EQ(p.check, 4);
  EXPECT_THAT(p.ops, ElementsAre(OpKind::max));
  EXPECT_THAT(p.dtypes, ElementsAre(DType::i8));
  EXPECT_FALSE(p.root);
  EXPECT_EQ(p.blocking, Blocking::stream_wait);
  EXPECT_EQ(p.timeout_s, 9);
  EXPECT_EQ(p.average, Average::max);
  EXPECT_TRUE(p.registered);
  EXPECT_TRUE(p.timestamps);
  EXPECT_TRUE(p.memory_report);
  EXPECT_EQ(p.json_file, "x.json");
}

TEST(CommandLine, BindingIsTakenFromTheFlagOrTheEnvironment) {
  EXPECT_EQ(parse({"all_reduce"}).parsed.options->bind, rt::Bind::none);
  EXPECT_EQ(parse({"all_reduce", "--bind", "core"}).parsed.options->bind, rt::Bind::core);
  ::setenv("OURO_BIND", "numa", 1);
  EXPECT_EQ(parse({"all_reduce"}).parsed.options->bind, rt::Bind::numa);
  EXPECT_EQ(parse({"all_reduce", "--bind", "none"}).parsed.options->bind, rt::Bind::none);
  ::setenv("OURO_BIND", "socket", 1);
  expect_refused({"all_reduce"}, "OURO_BIND=socket");
  ::unsetenv("OURO_BIND");
}

TEST(CommandLine, FlagsThatNeedAGpuAreRefusedOnTheHost) {
  expect_refused({"all_reduce", "-g", "2"}, "-g 2");
  expect_refused({"all_reduce", "-G", "1"}, "CUDA graphs");
  expect_refused({"all_reduce", "-C", "1"}, "-C");
  expect_refused({"all_reduce", "-y", "1"}, "null stream");
  expect_refused({"all_reduce", "-x", "1"}, "-x");
  expect_refused({"all_reduce", "-D", "1"}, "-D");
  expect_refused({"all_reduce", "-V", "4"}, "-V");
  expect_refused({"all_reduce", "-R", "2"}, "-R 2");
}

TEST(CommandLine, GpuFlagsAreAcceptedOnGpus) {
  const Outcome o =
      parse({"all_reduce", "--device", "cuda", "-t", "2", "-g", "3", "-G", "4", "--events", "--limit"});
  ASSERT_TRUE(o.parsed.options) << o.errors;
  const Options& p = *o.parsed.options;
  EXPECT_TRUE(p.device && p.events && p.limit && !p.cpu_time && !p.null_stream);
  EXPECT_EQ(p.local_threads(), 6);
  EXPECT_EQ(p.graph, 4);
  EXPECT_EQ(p.blocking, Blocking::stream);
  const Outcome q = parse({"all_reduce", "--device", "cuda", "-y", "1", "-C", "1", "-z", "2"});
  ASSERT_TRUE(q.parsed.options) << q.errors;
  EXPECT_TRUE(q.parsed.options->null_stream && q.parsed.options->cpu_time);
  EXPECT_EQ(parse({"all_reduce", "--device", "cuda", "-z", "1"}).parsed.options->blocking, Blocking::barrier);
  const Outcome host = parse({"all_reduce", "--device", "host"});
  ASSERT_TRUE(host.parsed.options) << host.errors;
  EXPECT_FALSE(host.parsed.options->device);
  EXPECT_EQ(host.parsed.options->blocking, Blocking::back_to_back);
}

TEST(CommandLine, ContradictoryGpuFlagsAreRefused) {
  const auto refused = [](std::vector<const char*> args, const char* text) {
    args.insert(args.begin(), {"all_reduce", "--device", "cuda"});
    expect_refused(args, text);
  };
  refused({"-G", "2", "-z", "1"}, "-z 1 and 3");
  refused({"-G", "2", "-I", "1"}, "-I 1 times each");
  refused({"-G", "2", "-y", "1"}, "null stream");
  refused({"-y", "1", "-g", "2"}, "share one null stream");
  refused({"-C", "1", "--events"}, "one of them");
  refused({"-C", "1", "-z", "3"}, "do not wait");
  refused({"-I", "1"}, "--events");
  refused({"-I", "1", "--events", "-n", "100000"}, "65536");
  refused({"-g", "2", "--ranks", "2"}, "one of them");
  refused({"-t", "100", "-g", "100"}, "256");
  refused({"-R", "2"}, "symmetric");
  refused({"-x", "1"}, "-x");
  refused({"-D", "1"}, "-D");
  refused({"-V", "4"}, "-V");
  refused({"--tune", "x.json"}, "cannot be combined with --tune");
  expect_refused({"all_reduce", "--device", "gpu"}, "--device");
  expect_refused({"all_reduce", "--events"}, "--device cuda");
  expect_refused({"all_reduce", "--limit"}, "--device cuda");
}

TEST(CommandLine, WrongArgumentsAreRefused) {
  expect_refused({}, "collective");
  expect_refused({"allreduce"}, "unknown collective");
  expect_refused({"all_reduce", "--what"}, "--what");
  expect_refused({"all_reduce", "-n", "0"}, "0");
  expect_refused({"all_reduce", "-n", "many"}, "many");
  expect_refused({"all_reduce", "-b", "1X"}, "not a size");
  expect_refused({"all_reduce", "-b", "2K", "-e", "1K"}, "larger");
  expect_refused({"all_reduce", "-b", "1K", "-e", "2K", "-i", "0"}, "never reaches");
  expect_refused({"all_reduce", "-f", "0"}, "--stepfactor: expected a whole number of 1 or more, found 0");
  expect_refused({"all_reduce", "-f", "-2"}, "--stepfactor: expected a whole number of 1 or more, found -2");
  expect_refused({"all_reduce", "-a", "4"}, "4");
  expect_refused({"all_reduce", "-z", "4"}, "4");
  expect_refused({"all_reduce", "--bind", "socket"}, "one of: core, cache, numa, none");
  expect_refused({"all_reduce", "-d", "fp32"}, "unknown type");
  expect_refused({"all_reduce", "-o", "median"}, "unknown operation");
  expect_refused({"all_reduce", "-o", "band"}, "not defined on float");
  expect_refused({"all_reduce", "-r", "1"}, "no root");
  expect_refused({"broadcast", "-r", "-1"}, "-1");
  expect_refused({"broadcast", "-r", "one"}, "a rank or all");
  expect_refused({"broadcast", "-o", "max"}, "does not reduce");
  expect_refused({"all_reduce", "-K", "3"}, "-I 1");
  expect_refused({"all_reduce", "-I", "1", "-K", "20"}, "leaves no sample");
  expect_refused({"all_reduce", "-t", "2", "--ranks", "2"}, "one of them");
  expect_refused({"all_reduce", "--csv", "--osu"}, "--");
}

TEST(CommandLine, HelpAndVersionExitWithZero) {
  for (const char* flag : {"--help", "-h", "--version"}) {
    const Outcome o = parse({flag});
    EXPECT_FALSE(o.parsed.options);
    EXPECT_EQ(o.parsed.exit_code, 0) << flag;
    EXPECT_THAT(o.errors, HasSubstr("ouro-perf"));
  }
}

}  // namespace
}  // namespace ouro::perf
