// The JSON document.
// Used by rank 0 of the rank program and by the tests.
#include "tools/perf/json_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/perf/report.h"

extern char** environ;

namespace ouro::perf {
namespace {

using Json = nlohmann::ordered_json;

std::string text(bool b) { return b ? "true" : "false"; }

Json half_json(const Half& h) {
  Json j{{"time", h.us}, {"alg_bw", h.algbw}, {"bus_bw", h.busbw}};
  if (h.wrong) {
    j["nwrong"] = *h.wrong;
  } else {
    j["nwrong"] = "N/A";
  }
  if (h.samples)
    j.update(Json{{"i_min", h.samples->min},
                  {"i_max", h.samples->max},
                  {"i_p99", h.samples->p99},
                  {"i_cv_percent", h.samples->cv}});
  if (const auto& d = h.distribution)
    j.update(Json{{"min", d->min},
                  {"median", d->median},
                  {"p95", d->p95},
                  {"halves", d->halves},
                  {"maps", d->maps},
                  {"warmup", d->warmup},
                  {"marked", text(d->marked())}});
  return j;
}

/// The variables that affect the run; no other part of the user's environment leaves the process.
Json relevant_env() {
  Json j = Json::object();
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const auto equals = entry.find('=');
    if (equals == std::string_view::npos || !(entry.starts_with("OURO_") || entry.starts_with("NCCL_")))
      continue;
    const std::string key(entry.substr(0, equals));
    const bool secret =
        key.find("SECRET") != key.npos || key.find("KEY") != key.npos || key.find("TOKEN") != key.npos;
    j[key] = secret ? std::string("(hidden)") : std::string(entry.substr(equals + 1));
  }
  return j;
}

Json config_json(const Options& o, int group_size) {
  static constexpr const char* kAverage[] = {"rank0", "avg", "min", "max"};
  Json config{{"collective", o.name()},
              {"nthreads", o.threads},
              {"ngpus", o.gpus},
              {"minbytes", o.min_bytes},
              {"maxbytes", o.max_bytes},
              {"stepbytes", o.step_bytes},
              {"stepfactor", o.step_factor},
              {"iters", o.iters},
              {"warmup_iters", o.warmup},
              {"agg_iters", o.aggregate},
              {"run_cycles", o.cycles},
              {"check", o.check},
              {"blocking", static_cast<int>(o.blocking)},
              {"parallel_init", text(o.parallel_init)},
              {"average", kAverage[static_cast<int>(o.average)]},
              {"local_register", o.registered ? 1 : 0},
              {"unalign", o.unalign},
              {"timeout", o.timeout_s},
              {"cudagraph", o.graph},
              {"memory", o.device ? "cuda" : "host"},
              {"report_cputime", o.cpu_time ? 1 : 0},
              {"device_clock", text(o.events)},
              {"group_size", group_size}};
  if (!o.aggregation) return config;
  const AggregationOptions& a = *o.aggregation;
  const auto sites = sites_of(a, group_size);
  config["sites"] = sites ? *sites : a.sites;
  config["hsdp"] = a.hsdp ? Json(*a.hsdp) : Json(nullptr);
  config["groups"] = name(a.groups);
  config["layers"] = a.layers;
  return config;
}

}  // namespace

std::string json_document(const Options& o, std::span<const Row> rows, const Summary& s, const RunFacts& f) {
  Json j;
  j["version"] = 3;
  j["start_time"] = f.start_time;
  j["end_time"] = f.end_time;
  j["args"] = o.args;
  j["env"] = relevant_env();
  j["nccl_version"] = "ouro " + f.version;
  j["config"] = config_json(o, f.group_size);
  j["devices"] = Json::array();
  for (const RankInfo& r : f.ranks)
    j["devices"].push_back({{"rank", r.rank},
                            {"group", r.group},
                            {"pid", r.pid},
                            {"hostname", r.host},
                            {"device", std::max(r.gpu, 0)},
                            {"device_bus", r.gpu < 0 ? "host" : r.bus},
                            {"device_name", r.device}});
  j["results"] = Json::array();
  for (const Row& r : rows) {
    Json row{{"size", r.size}, {"count", r.count}, {"type", r.type}, {"redop", r.redop}, {"root", r.root}};
    if (o.aggregation) row.update(Json{{"strategy", r.strategy}, {"streams", r.streams}});
    row[sides(o).first.key] = half_json(r.out_of_place);
    row[sides(o).second.key] = r.in_place ? half_json(*r.in_place) : Json(nullptr);
    if (o.explain) row["explain"] = r.explain;
    if (o.timestamps) row["timestamp"] = r.timestamp;
    j["results"].push_back(std::move(row));
  }
  j["out_of_bounds"] = {{"count", s.wrong}, {"okay", text(s.right())}, {"checked", text(s.checked)}};
  j["average_bus_bandwidth"] = {{"bandwidth", s.average_busbw}, {"okay", text(s.fast_enough())}};
  if (f.copy_bandwidth > 0) j["memory_copy_bandwidth"] = f.copy_bandwidth;
  j["errors"] = s.errors;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ouro::perf
