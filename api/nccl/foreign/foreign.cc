// OpenSSL and hwloc, opened when one of their functions is first called: libnccl.so.2 must load on machines
// without them, and a linked-in OpenSSL would be most of its size. Part of libnccl.so.2 only; x86-64.
#include <dlfcn.h>

#include <atomic>

namespace {

enum Library : int { crypto, ssl, hwloc };

/// A function of a library that may be missing.
struct Function {
  std::atomic<void*> address;  ///< must be the first member: the stubs jump through it
  Library library;
  const char* name;
};

extern "C" long ouro_nccl_absent_zero() { return 0; }
extern "C" long ouro_nccl_absent_minus_one() { return -1; }

void* open(Library library) {
  static constexpr const char* kNames[] = {"libcrypto.so.3", "libssl.so.3", "libhwloc.so.15"};
  return ::dlopen(kNames[library], RTLD_NOW | RTLD_LOCAL);  // repeated calls return the same handle
}

}  // namespace

/// Resolves a function; if it is missing, yields a stand-in that reports failure: 0 for OpenSSL, -1 for
/// hwloc. The callers check for both: without OpenSSL no random numbers are available, without hwloc the
/// machine counts as flat.
extern "C" __attribute__((visibility("hidden"), used)) void* ouro_nccl_find(Function* f) {
  void* const library = open(f->library);
  void* address = library ? ::dlsym(library, f->name) : nullptr;
  if (!address)
    address =
        reinterpret_cast<void*>(f->library == hwloc ? &ouro_nccl_absent_minus_one : &ouro_nccl_absent_zero);
  f->address.store(address, std::memory_order_release);
  return address;
}

// Preserves all registers that may hold arguments, as the dynamic linker does in its own stubs.
asm(R"(
  .text
  .type ouro_nccl_resolve, @function
ouro_nccl_resolve:
  endbr64
  push %rbp
  mov %rsp, %rbp
  and $-16, %rsp
  sub $192, %rsp
  mov %rax, 0(%rsp)
  mov %rdi, 8(%rsp)
  mov %rsi, 16(%rsp)
  mov %rdx, 24(%rsp)
  mov %rcx, 32(%rsp)
  mov %r8, 40(%rsp)
  mov %r9, 48(%rsp)
  mov %r10, 56(%rsp)
  movaps %xmm0, 64(%rsp)
  movaps %xmm1, 80(%rsp)
  movaps %xmm2, 96(%rsp)
  movaps %xmm3, 112(%rsp)
  movaps %xmm4, 128(%rsp)
  movaps %xmm5, 144(%rsp)
  movaps %xmm6, 160(%rsp)
  movaps %xmm7, 176(%rsp)
  mov %r11, %rdi
  call ouro_nccl_find
  mov %rax, %r11
  mov 0(%rsp), %rax
  mov 8(%rsp), %rdi
  mov 16(%rsp), %rsi
  mov 24(%rsp), %rdx
  mov 32(%rsp), %rcx
  mov 40(%rsp), %r8
  mov 48(%rsp), %r9
  mov 56(%rsp), %r10
  movaps 64(%rsp), %xmm0
  movaps 80(%rsp), %xmm1
  movaps 96(%rsp), %xmm2
  movaps 112(%rsp), %xmm3
  movaps 128(%rsp), %xmm4
  movaps 144(%rsp), %xmm5
  movaps 160(%rsp), %xmm6
  movaps 176(%rsp), %xmm7
  mov %rbp, %rsp
  pop %rbp
  jmp *%r11
)");

#define OURO_FOREIGN(lib, function)                                                                         \
  extern "C" {                                                                                              \
  __attribute__((visibility("hidden"), used)) Function ouro_nccl_at_##function = {nullptr, lib, #function}; \
  }                                                                                                         \
  asm(".text\n.globl " #function "\n.hidden " #function "\n.type " #function ", @function\n" #function      \
      ":\n  endbr64\n  mov ouro_nccl_at_" #function                                                         \
      "(%rip), %r11\n"                                                                                      \
      "  test %r11, %r11\n  jz 1f\n  jmp *%r11\n1:\n  lea ouro_nccl_at_" #function                          \
      "(%rip), %r11\n  jmp ouro_nccl_resolve\n");

// All functions that are used; the linker reports a missing entry.
// clang-format off
OURO_FOREIGN(crypto, BIO_clear_flags)        OURO_FOREIGN(crypto, BIO_free)
OURO_FOREIGN(crypto, BIO_get_data)           OURO_FOREIGN(crypto, BIO_get_new_index)
OURO_FOREIGN(crypto, BIO_meth_new)           OURO_FOREIGN(crypto, BIO_meth_set_ctrl)
OURO_FOREIGN(crypto, BIO_meth_set_read)      OURO_FOREIGN(crypto, BIO_meth_set_write)
OURO_FOREIGN(crypto, BIO_new)                OURO_FOREIGN(crypto, BIO_set_data)
OURO_FOREIGN(crypto, BIO_set_flags)          OURO_FOREIGN(crypto, BIO_set_init)
OURO_FOREIGN(crypto, CRYPTO_memcmp)          OURO_FOREIGN(crypto, ERR_clear_error)
OURO_FOREIGN(crypto, ERR_peek_error)         OURO_FOREIGN(crypto, ERR_reason_error_string)
OURO_FOREIGN(crypto, EVP_MAC_CTX_free)       OURO_FOREIGN(crypto, EVP_MAC_CTX_new)
OURO_FOREIGN(crypto, EVP_MAC_fetch)          OURO_FOREIGN(crypto, EVP_MAC_final)
OURO_FOREIGN(crypto, EVP_MAC_init)           OURO_FOREIGN(crypto, EVP_MAC_update)
OURO_FOREIGN(crypto, OPENSSL_cleanse)        OURO_FOREIGN(crypto, OSSL_PARAM_construct_end)
OURO_FOREIGN(crypto, OSSL_PARAM_construct_utf8_string)
OURO_FOREIGN(crypto, SHA256)
OURO_FOREIGN(ssl, SSL_CIPHER_find)           OURO_FOREIGN(ssl, SSL_CTX_ctrl)
OURO_FOREIGN(ssl, SSL_CTX_free)              OURO_FOREIGN(ssl, SSL_CTX_new)
OURO_FOREIGN(ssl, SSL_CTX_set_ciphersuites)  OURO_FOREIGN(ssl, SSL_CTX_set_default_read_buffer_len)
OURO_FOREIGN(ssl, SSL_CTX_set_num_tickets)   OURO_FOREIGN(ssl, SSL_CTX_set_psk_find_session_callback)
OURO_FOREIGN(ssl, SSL_CTX_set_psk_use_session_callback)
OURO_FOREIGN(ssl, SSL_SESSION_free)          OURO_FOREIGN(ssl, SSL_SESSION_new)
OURO_FOREIGN(ssl, SSL_SESSION_set1_master_key)
OURO_FOREIGN(ssl, SSL_SESSION_set_cipher)    OURO_FOREIGN(ssl, SSL_SESSION_set_protocol_version)
OURO_FOREIGN(ssl, SSL_do_handshake)          OURO_FOREIGN(ssl, SSL_free)
OURO_FOREIGN(ssl, SSL_get_error)             OURO_FOREIGN(ssl, SSL_get_ex_data)
OURO_FOREIGN(ssl, SSL_key_update)            OURO_FOREIGN(ssl, SSL_new)
OURO_FOREIGN(ssl, SSL_read_ex)               OURO_FOREIGN(ssl, SSL_session_reused)
OURO_FOREIGN(ssl, SSL_set_accept_state)      OURO_FOREIGN(ssl, SSL_set_bio)
OURO_FOREIGN(ssl, SSL_set_connect_state)     OURO_FOREIGN(ssl, SSL_set_ex_data)
OURO_FOREIGN(ssl, SSL_set_verify)            OURO_FOREIGN(ssl, SSL_write_ex)
OURO_FOREIGN(ssl, TLS_method)
OURO_FOREIGN(hwloc, hwloc_bitmap_first)      OURO_FOREIGN(hwloc, hwloc_get_nbobjs_by_depth)
OURO_FOREIGN(hwloc, hwloc_get_obj_by_depth)  OURO_FOREIGN(hwloc, hwloc_get_type_depth)
OURO_FOREIGN(hwloc, hwloc_topology_destroy)  OURO_FOREIGN(hwloc, hwloc_topology_init)
OURO_FOREIGN(hwloc, hwloc_topology_is_thissystem)
OURO_FOREIGN(hwloc, hwloc_topology_load)     OURO_FOREIGN(hwloc, hwloc_topology_set_all_types_filter)
OURO_FOREIGN(hwloc, hwloc_topology_set_components)
OURO_FOREIGN(hwloc, hwloc_topology_set_synthetic)
OURO_FOREIGN(hwloc, hwloc_topology_set_type_filter)
    // clang-format on
