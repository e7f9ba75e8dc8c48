// Registers the expandable segments of PyTorch's caching allocator, which the allocator maps and unmaps piece
// by piece. Used by backend.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// As long as it lives, keeps the memory registered in a job that the allocator has mapped on the job's GPU.
/// Excludes memory of cudaMalloc, because PyTorch would have to wait for other ranks when it frees that. The
/// allocator calls mapped() and unmapped() under its lock, so they take no lock of PyTorch or Python.
class Segments {
 public:
  /// nullptr if the context has no GPU, this adapter was compiled without the headers of CUDA, or
  /// OURO_TORCH_REGISTER is 0. The context outlives it.
  static std::unique_ptr<Segments> follow(Context&);
  /// Follows no allocator: mapped() and unmapped() are its only input. The context has a GPU and outlives it.
  explicit Segments(Context& c) : context_(c), device_(c.device().index) {}
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  int device() const { return device_; }
  void mapped(std::uintptr_t address, std::size_t bytes);
  void unmapped(std::uintptr_t address, std::size_t bytes);
  std::size_t bytes();  ///< number of registered bytes

 private:
  void add(std::uintptr_t address, std::size_t bytes);  // with mutex_ held

  struct Piece {
    std::size_t bytes;
    Registration registration;
  };
  Context& context_;
  const int device_;
  std::mutex mutex_;
  std::map<std::uintptr_t, Piece> pieces_;  // by address, disjoint
  bool told_ = false;                       // a warning has said why a piece could not be registered
};

}  // namespace ouro::adapter
