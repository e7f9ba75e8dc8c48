// Registration and launch of kernels. Functions of the tests' CUDA runtime.
#include "kernels.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "world.h"

namespace ouro::test::cudart {
namespace {

/// Kernels of the program, by the address with which it launches them. Programs may register kernels before
/// the constructors of this library have run.
struct Registered {
  std::mutex mutex;
  std::map<const void*, std::string> names;
};
Registered& registered() {
  static auto& all = *new Registered;
  return all;
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> t_configurations;

/// "void (anonymous namespace)::name<a, b>(...)" as {"name", "a", "b"}.
std::vector<std::string> parts_of(const std::string& mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string s = status == 0 ? text : mangled;
  std::free(text);
  constexpr const char kNowhere[] = "(anonymous namespace)::";
  for (auto at = s.find(kNowhere); at != s.npos; at = s.find(kNowhere)) s.erase(at, sizeof kNowhere - 1);
  const auto open = s.find('<');
  const auto begin = s.rfind(' ', std::min(open, s.find('('))) + 1;
  if (open == s.npos) return {s.substr(begin, s.find('(') - begin)};
  std::vector<std::string> parts{s.substr(begin, open - begin)};
  int depth = 0;
  std::string part;
  for (auto i = open; i < s.size(); ++i) {
    const char c = s[i];
    if (c == '<' && depth++ == 0) continue;
    if (c == '>' && --depth == 0) break;
    if (c == ',' && depth == 1) {
      parts.push_back(std::exchange(part, ""));
    } else if (c != ' ' || !part.empty()) {
      part += c;
    }
  }
  parts.push_back(part);
  return parts;
}

struct Launch {
  Body* body;
};

cudaError_t launch(const char* function, const void* kernel, void** args, cudaStream_t stream) {
  std::string mangled;
  {
    std::lock_guard lock(registered().mutex);
    const auto found = registered().names.find(kernel);
    if (found == registered().names.end()) return keep(cudaErrorInvalidDeviceFunction);
    mangled = found->second;
  }
  std::vector<std::string> parts = parts_of(mangled);
  const KnownKernel* const known = known_kernel(parts.front());
  const Body body = known && parts.size() == 1 + known->types
                        ? known->bind(args, {parts.begin() + 1, parts.end()})
                        : Body();
  if (!body) return not_supported(function, ("kernel " + mangled).c_str());
  return serve(function, stream, [&](gpu::FakeGpu& g, gpu::Stream s) {
    // A captured launch may run many times, so its body is never freed.
    const Launch l{new Body(body)};
    gpu::Kernel k;
    k.name = known->name;
    k.host = [](const void* a, int, int) { (*static_cast<const Launch*>(a)->body)(); };
    k.arg_bytes = sizeof l;
    return g.launch(k, {}, &l, s);
  });
}

}  // namespace
}  // namespace ouro::test::cudart

using namespace ouro::test::cudart;

#define OURO_HIDDEN_CUDART(type, name, ...) \
  extern "C" __attribute__((visibility("default"))) type CUDARTAPI name(__VA_ARGS__)

OURO_HIDDEN_CUDART(void**, __cudaRegisterFatBinary, void*) {
  static void* handle = nullptr;
  return &handle;
}
OURO_HIDDEN_CUDART(void, __cudaRegisterFatBinaryEnd, void**) {}
OURO_HIDDEN_CUDART(void, __cudaUnregisterFatBinary, void**) {}
OURO_HIDDEN_CUDART(char, __cudaInitModule, void**) { return 1; }
OURO_HIDDEN_CUDART(void, __cudaRegisterVar, void**, char*, char*, const char*, int, size_t, int, int) {}
OURO_HIDDEN_CUDART(void, __cudaRegisterManagedVar, void**, void**, char*, const char*, int, size_t, int,
                   int) {}
OURO_HIDDEN_CUDART(void, __cudaRegisterFunction, void**, const char* host, char*, const char* name, int,
                   uint3*, uint3*, dim3*, dim3*, int*) {
  std::lock_guard lock(registered().mutex);
  registered().names[host] = name;
}
OURO_HIDDEN_CUDART(unsigned, __cudaPushCallConfiguration, dim3 grid, dim3 block, size_t shared,
                   CUstream_st* stream) {
  t_configurations.push_back({grid, block, shared, stream});
  return 0;
}
OURO_HIDDEN_CUDART(cudaError_t, __cudaPopCallConfiguration, dim3* grid, dim3* block, size_t* shared,
                   void* stream) {
  if (t_configurations.empty()) return keep(cudaErrorInvalidConfiguration);
  const Configuration c = t_configurations.back();
  t_configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
OURO_HIDDEN_CUDART(cudaError_t, __cudaGetKernel, cudaKernel_t* out, const void* host) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
OURO_HIDDEN_CUDART(cudaError_t, __cudaLaunchKernel, cudaKernel_t kernel, dim3, dim3, void** args, size_t,
                   cudaStream_t stream) {
  return launch("a launch", kernel, args, stream);
}
OURO_CUDART(cudaLaunchKernel, const void* kernel, dim3, dim3, void** args, size_t, cudaStream_t stream) {
  return launch("cudaLaunchKernel", kernel, args, stream);
}
