"""Compiles the device half of one .cu file with NVRTC of CUDA 12. Called by tools/gate cuda12.

Usage: nvrtc.py HOME SOURCE ARCHITECTURE PTX, in the repository's root. HOME holds CUDA 12 as
its packages unpack. Ends with 1 and the compiler's log if it refuses the source.

NVRTC is a compiler without a host side: it has no standard library of the host, and takes all
functions for device code. For what device code only names in signatures and members,
declarations are enough; the rest is CUDA's own (cuda::std)."""
import ctypes
import pathlib
import sys

STANDARD = r"""
#include <cuda/std/array>
#include <cuda/std/atomic>
#include <cuda/std/bit>
#include <cuda/std/chrono>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <cuda/std/variant>
using namespace cuda::std;
namespace std {
using namespace cuda::std;
using cuda::std::size_t;
using cuda::std::uintptr_t;
template <class T>
class vector {
 public:
  using value_type = T;
  vector();
  explicit vector(size_t);
  vector(const vector&);
  vector& operator=(const vector&);
  ~vector();
  T* begin();
  T* end();
  const T* begin() const;
  const T* end() const;
  size_t size() const;
  bool empty() const;
  T& operator[](size_t);
  const T& operator[](size_t) const;
  T& back();
  const T& back() const;
  void push_back(const T&);
  void assign(size_t, const T&);
  void resize(size_t);
};
class string {
 public:
  string();
  string(const char*);
  string(const string&);
  string& operator=(const string&);
  ~string();
};
class string_view {
 public:
  constexpr string_view(const char* text) : text_(text) {}
  constexpr bool empty() const { return *text_ == 0; }
  friend constexpr bool operator==(string_view a, string_view b) {
    while (*a.text_ != 0 && *a.text_ == *b.text_) ++a.text_, ++b.text_;
    return *a.text_ == *b.text_;
  }

 private:
  const char* text_;
};
template <class T>
class shared_ptr {
 public:
  shared_ptr();
  shared_ptr(const shared_ptr&);
  shared_ptr& operator=(const shared_ptr&);
  ~shared_ptr();
  T* get() const;
  T* operator->() const;
  explicit operator bool() const;
  bool operator==(decltype(nullptr)) const;
};
template <class T, class... A>
shared_ptr<T> make_shared(A&&...);
template <class T>
class unique_ptr {
 public:
  unique_ptr();
  ~unique_ptr();
};
template <class I, class T>
I find(I, I, const T&);
template <class I>
I min_element(I, I);
}
int close(int);
"""
NAMES = ("algorithm array atomic chrono cstddef cstdint limits memory optional span string string_view thread type_traits "
         "unistd.h utility variant vector").split()


def in_memory():
    """Headers by name: those of the host, and one of ouro without its constants, which would become device variables."""
    once = "#pragma once\n"
    headers = {"ouro_standard": once + STANDARD}
    headers |= {name: once + "#include <ouro_standard>\n" for name in NAMES}
    gpu = "kernels/device/gpu.h"
    lines = pathlib.Path(gpu).read_text().splitlines(keepends=True)
    headers[gpu] = "".join(line for line in lines if not line.startswith("inline void* const k"))
    return headers


def main():
    home, source, architecture, ptx = sys.argv[1:]
    nvidia = pathlib.Path(home) / "nvidia"
    nvrtc = ctypes.CDLL(nvidia / "cuda_nvrtc/lib/libnvrtc.so.12")
    headers = in_memory()
    texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
    names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
    program = ctypes.c_void_p()
    text = pathlib.Path(source).read_bytes()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), len(headers), texts, names) != 0:
        sys.exit("nvrtc.py: no program")
    options = [f"--gpu-architecture={architecture}", "--std=c++20", "--fmad=false", "--device-int128",
               "--device-as-default-execution-space", "-D__extension__=", "-D__builtin_memcpy=memcpy", "-I.",
               f"-I{nvidia}/cuda_cccl/include", f"-I{nvidia}/cuda_runtime/include"]
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    outcome = nvrtc.nvrtcCompileProgram(program, len(options), given)

    def text_of(what):
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, room)
        return room.value.decode()

    if outcome != 0:
        sys.exit(text_of("ProgramLog"))
    pathlib.Path(ptx).write_text(text_of("PTX"))


main()
