// Whether a block of a Python program has been left. See python_block.h.
#include "python_block.h"

#include <pybind11/pybind11.h>

namespace ouro::adapter {

void PythonBlock::enter() {
#if PY_VERSION_HEX >= 0x030B0000
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire held;
  generator_.reset();
  const auto frame = pybind11::reinterpret_steal<pybind11::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  if (!frame) return;
  const auto generator = pybind11::reinterpret_steal<pybind11::object>(
      PyFrame_GetGenerator(reinterpret_cast<PyFrameObject*>(frame.ptr())));
  if (!generator) return;
  generator_ = std::shared_ptr<void>(PyWeakref_NewRef(generator.ptr(), nullptr), [](void* reference) {
    if (!reference || !Py_IsInitialized()) return;
    const pybind11::gil_scoped_acquire locked;
    Py_DECREF(static_cast<PyObject*>(reference));
  });
  if (!generator_) PyErr_Clear();
#endif
}

bool PythonBlock::left() const {
  if (!Py_IsInitialized()) return false;
  const pybind11::gil_scoped_acquire held;
  if (!generator_) return false;
  const auto generator = pybind11::handle(static_cast<PyObject*>(generator_.get()))();  // None: destroyed
  return generator.is_none() || generator.attr("gi_frame").is_none();
}

}  // namespace ouro::adapter
