// Replays the accumulating optimisers' reference files through the public functions: host and device, with
// and without streams, every field after every step.
#include <cmath>

#include "tests/api/train/arrays.h"
#include "tests/golden_data.h"

namespace ouro::train {
namespace {

using namespace ouro::test;

/// fp64: two units in the last place; fp32: 4e-6, and what rounding leaves where terms cancel.
bool near_golden(double got, double want) {
  return std::fabs(got - want) <= 2 * (std::nextafter(std::fabs(want), INFINITY) - std::fabs(want));
}
bool near_golden(float got, double want) { return std::fabs(got - want) <= 4e-6 * std::fabs(want) + 1e-8; }

template <class T>
struct Run {
  static constexpr DType kType = DTypeOf<T>::value;
  Array p, g, step, m, v, a;
  AccumAdamState state;

  Run(Device d, const std::vector<T>& p0)
      : p(d, p0),
        g(d, p0.size(), kType),
        step(d, 1, DType::i64),
        m(d, p0.size(), kType),
        v(d, p0.size(), kType),
        a(d, p0.size(), kType),
        state{step.view(), m.view(), v.view(), a.view(), {}} {}
  std::vector<std::vector<T>> fields() const {
    return {p.template read<T>(), m.template read<T>(), v.template read<T>(), a.template read<T>()};
  }
};

template <class T>
void replay(const char* file, CasesRun& cases) {
  constexpr const char* kFields[] = {"param", "exp_avg", "exp_avg_sq", "accum_grad"};
  const nlohmann::json all = golden(file);
  const std::string kind = std::string(file) + " cases in " + ouro::name(DTypeOf<T>::value);
  cases.none_yet(kind);
  for (const auto& c : all.at("cases")) {
    cases.add(kind);
    const auto& config = c.at("config");
    const AccumAdamOptions options{.lr = config.at("lr"),
                                   .beta1 = config.at("betas")[0],
                                   .beta2 = config.at("betas")[1],
                                   .eps = config.at("eps"),
                                   .weight_decay = config.at("weight_decay"),
                                   .accum_iter = config.at("accum_iter"),
                                   .decoupled = config.at("kind") == "adamw"};
    std::vector<std::vector<std::vector<T>>> of_host;
    for (const Where where : kEverywhere) {
      Run<T> run(device_of(where), c.at("p0").template get<std::vector<T>>());
      const Stream& stream = stream_of(where);
      std::size_t t = 0;
      for (const auto& want : c.at("trajectory")) {
        run.g.write(c.at("grads")[t].template get<std::vector<T>>());
        ASSERT_TRUE(ok(accum_adam(run.p.view(), run.g.view(), run.state, options, stream)));
        ASSERT_TRUE(ok(stream.synchronize()));
        EXPECT_EQ(run.step.template read<std::int64_t>()[0], want.at("step"));
        const auto got = run.fields();
        if (where == Where::host) of_host.push_back(got);
        ASSERT_EQ(got, of_host[t]) << file << ' ' << config << " on " << name(where) << " step " << t + 1;
        for (std::size_t k = 0; k < std::size(kFields); ++k)
          for (std::size_t i = 0; i < got[k].size(); ++i)
            ASSERT_TRUE(near_golden(got[k][i], want.at(kFields[k])[i].template get<double>()))
                << file << ' ' << config << ' ' << kFields[k] << '[' << i << "] step " << t + 1 << ": "
                << got[k][i];
        cases.add("steps");
        ++t;
      }
    }
  }
}

TEST(AccumGolden, EveryFieldOfEveryStepMatchesTheRecord) {
  CasesRun cases{"steps"};
  for (const char* file : {"accum_adam.json", "accum_adamw.json"}) {
    replay<double>(file, cases);
    replay<float>(file, cases);
  }
}

}  // namespace
}  // namespace ouro::train
