/* The structs of DLPack 1.1 (github.com/dmlc/dlpack), a binary interface for exchanging arrays between
   libraries, under the standard's names. For users of ouro/dlpack.hpp who have no dlpack.h, and for
   dlpack.cc; C and C++. */
/* Together with a dlpack.h of the user's, include that one first, whatever its version; this header then adds
   what it lacks (before 1.0: the versioned tensor). This header defines dlpack.h's guard, so a dlpack.h that
   is included later adds nothing: neither the enumerators of devices that ouro does not know nor macros such
   as DLPACK_DLL. ouro/dlpack.hpp needs neither. */
#ifndef OURO_DLPACK_ABI_H_
#define OURO_DLPACK_ABI_H_
#include <stdint.h>

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#ifdef __cplusplus
#define OURO_DLPACK_INT32 : int32_t
#else
#define OURO_DLPACK_INT32
#endif

typedef enum OURO_DLPACK_INT32 {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,     /* pinned memory of the host */
  kDLCUDAManaged = 13, /* one address for host and devices; device_id is 0 as a rule */
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6, /* one byte */
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e5m2 = 12,
} DLDataTypeCode;

typedef struct {
  uint8_t code; /* a DLDataTypeCode */
  uint8_t bits;
  uint16_t lanes; /* for vector types; else 1 */
} DLDataType;

typedef struct {
  void* data; /* may be null if there are no elements */
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;       /* ndim elements */
  int64_t* strides;     /* in elements; null: row-major without gaps */
  uint64_t byte_offset; /* distance of the first element from data */
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;                             /* the producer's private data */
  void (*deleter)(struct DLManagedTensor* self); /* the consumer calls it once; may be null */
} DLManagedTensor;

#undef OURO_DLPACK_INT32
#endif /* DLPACK_DLPACK_H_ */

#ifndef DLPACK_MAJOR_VERSION /* was introduced with the versioned tensor */
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)

typedef struct {
  uint32_t major; /* if another major version: nothing after `deleter` may be read */
  uint32_t minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

#endif /* OURO_DLPACK_ABI_H_ */
