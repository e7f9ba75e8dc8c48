// The block of a Python program in which a batch began: whether it has been left. Used by backend.h.
#pragma once
#include <memory>

namespace ouro::adapter {

/// A context manager of Python that is a generator, as PyTorch's _coalescing_manager: it ends with the block,
/// also by an exception, which PyTorch does not report. Calls take Python's lock.
class PythonBlock {
 public:
  void enter();       ///< remembers the generator that calls, if one does; from Python 3.11 on
  bool left() const;  ///< whether that generator has ended

 private:
  std::shared_ptr<void> generator_;  // a weak reference of Python
};

}  // namespace ouro::adapter
