// Layouts and small models of one element type for the tests of federated averages. Used by tests/api/train.
#pragma once
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "ouro/train/federation.hpp"

namespace ouro::test {

inline constexpr train::Strategy kStrategies[] = {
    train::Strategy::layer_by_layer,           train::Strategy::layer_by_layer_optimized,
    train::Strategy::bucket_flatten,           train::Strategy::bucket_coalesced,
    train::Strategy::bucket_optimized_flatten, train::Strategy::bucket_optimized_coalesced};

inline Result<train::LayoutGroups> groups_of(Context& c, const std::vector<int>& sizes,
                                             std::optional<int> hsdp, int streams,
                                             train::FederatedGroups kind = train::FederatedGroups::senders) {
  const auto layout = train::ParallelLayout::make({.rank = c.rank(),
                                                   .world_size = c.world_size(),
                                                   .federations = sizes,
                                                   .hsdp = hsdp,
                                                   .streams = streams,
                                                   .groups = kind});
  if (!layout.ok()) return layout.status();
  return create_groups(c, *layout);
}

/// Named arrays on the host. Views stay valid while layers are added.
template <class T>
class NamedArrays {
 public:
  void add(std::string name, std::vector<T> values) {
    layers_.push_back({std::move(name), std::move(values)});
  }
  std::size_t size() const { return layers_.size(); }
  std::vector<T>& at(std::size_t k) { return layers_[k].values; }
  std::vector<train::Param> params() {
    std::vector<train::Param> all;
    for (Layer& l : layers_) all.push_back({.name = l.name, .value = std::span<T>(l.values), .grad = {}});
    return all;
  }

 private:
  struct Layer {
    std::string name;
    std::vector<T> values;
  };
  std::deque<Layer> layers_;
};

/// Stands for one round of training of a site: any function of site and round will do.
inline double moved(double x, int site, int round, std::size_t i) {
  return x + 0.1 * std::sin(1.0 + site + 0.7 * round + static_cast<double>(i));
}

}  // namespace ouro::test
