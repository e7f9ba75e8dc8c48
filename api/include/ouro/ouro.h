/** ouro: collectives among ranks. The C interface, for other languages and for C programs; pure C99. The C++
 * interface is ouro.hpp; one program may use both.
 *
 * Every function that returns `int` returns an ouro_code unless its comment says otherwise: 0 is success,
 * anything else a failure that ouro_last_error() describes. Out-parameters are written on success only. A
 * null pointer where one is required is OURO_CODE_INVALID. Counts are in elements, sizes in bytes, times in
 * milliseconds. Handles may be used from any thread; a handle must not be destroyed while another thread
 * uses it. Buffers are host memory or memory of the rank's own GPU; see ouro_memory_t.
 *
 * ouro.hpp offers the following, which this interface does not: hosts that meet without a launcher's help
 * (InitOptions::address, port, rendezvous, host_id, generation; the environment variables OURO_RENDEZVOUS
 * and OURO_HOSTID do work here), one_gpu_each, gpu_blocks, the generation and the deadline of a group, the
 * hosts of ranks, alloc_shared, matched messages, messages of an exact length, waits that poll a callback or
 * can be cancelled by another thread, caller-supplied functions in streams, events, pools of streams,
 * in_batch, log_warning, the device and numerics arguments of explain, mix, and everything else in
 * ouro/train.
 *
 * @file */
#ifndef OURO_OURO_H
#define OURO_OURO_H

#include <stddef.h>
#include <stdint.h>

#include "ouro/ouro_values.h"

#ifndef OURO_API
#define OURO_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ouro_context* ouro_context_t; /**< one rank's membership in a job */
typedef struct ouro_group* ouro_group_t;     /**< an ordered set of ranks that communicate */
typedef struct ouro_stream* ouro_stream_t;   /**< an ordered queue of operations, on the host or on a GPU */
typedef struct ouro_work* ouro_work_t;       /**< an operation in flight */
typedef struct ouro_registration* ouro_registration_t; /**< registered memory of a GPU */

/** @defgroup c_errors C: library and errors
 * @{ */

/** Library version, "0.1.0". Never fails. */
OURO_API const char* ouro_version(void);
/** The name of a code: "ok", "invalid", ...; "unknown" for a number that is not a code. */
OURO_API const char* ouro_code_name(int code);
/** One line that describes the failure of this thread's last failing call; "" if no call has failed. A
 * successful call does not clear it. Valid until the next failing call of this thread. */
OURO_API const char* ouro_last_error(void);
/** The same failure as one JSON object: reason, culprit rank, host, pid, operation, sequence number, dead
 * ranks. */
OURO_API const char* ouro_last_error_json(void);

/** Number of GPUs that this process can use; 0 without a driver. Never fails. */
OURO_API int ouro_device_count(void);

/** @}
 * @defgroup c_contexts C: contexts
 * @{ */

/** Creates the name of a new job. Errors: system (no random numbers). */
OURO_API int ouro_unique_id_create(ouro_unique_id_t* id);
/** Joins with rank and size from the launcher's variables: ouro-run, torchrun, Open MPI, PMIx, PMI (MPICH,
 * Intel MPI), MVAPICH, SLURM; without any of them, a job of one rank. Collective over the job. Errors:
 * invalid, timeout (some ranks never joined), system. */
OURO_API int ouro_context_from_env(const ouro_init_options_t* options, ouro_context_t* context);
/** Collective over options->world_size ranks that share options->id. Errors as above. */
OURO_API int ouro_context_create(const ouro_init_options_t* options, ouro_context_t* context);
/** Creates n ranks in this process, 1 to 256: writes n contexts; drive each from its own thread. */
OURO_API int ouro_context_threads(int n, const ouro_init_options_t* options, ouro_context_t* contexts);
/** Leaves the job cleanly. Idempotent. Groups of the context are unusable afterwards. */
OURO_API int ouro_context_close(ouro_context_t context);
/** Frees the handle, its world group and its memory; never waits for peers. Null is a no-op. */
OURO_API void ouro_context_destroy(ouro_context_t context);
/* The following return the requested number, or -1 for a null handle (ouro_last_error then says so). */
/** This rank in the job; -1 for a null handle. */
OURO_API int ouro_context_rank(ouro_context_t context);
/** Number of ranks in the job; -1 for a null handle. */
OURO_API int ouro_context_size(ouro_context_t context);
/** This rank among the ranks of its host; -1 for a null handle. */
OURO_API int ouro_context_local_rank(ouro_context_t context);
/** Number of ranks on this host; -1 for a null handle. */
OURO_API int ouro_context_local_size(ouro_context_t context);
/** Index of this rank's GPU as seen by its process; -1: none. */
OURO_API int ouro_context_device(ouro_context_t context);
/** Allocates `bytes` of zero-filled memory that all ranks of the host can map; operations on it need no
 * copy. */
OURO_API int ouro_alloc(ouro_context_t context, size_t bytes, void** data);
/** The same on this rank's GPU. Errors: invalid (the rank has no GPU), system. */
OURO_API int ouro_alloc_device(ouro_context_t context, size_t bytes, void** data);
/** Frees memory from ouro_alloc or ouro_alloc_device of the same context; operations on it must have ended.
 * Null is a no-op. */
OURO_API int ouro_free(ouro_context_t context, void* data);
/** Registers `bytes` bytes at `data`, memory of this rank's GPU that the program has allocated (cudaMalloc,
 * cuMemMap) and keeps allocated until ouro_deregister: operations read and write it in place, as they do
 * memory of ouro_alloc_device. Local. Ranges may overlap and need not be whole allocations. Errors: invalid
 * (the rank has no GPU, not memory of it or not all of it), unsupported (other processes cannot map it;
 * ouro_last_error says why), system. */
OURO_API int ouro_register(ouro_context_t context, const void* data, size_t bytes,
                           ouro_registration_t* registration);
/** Ends a registration, at once for operations that are called later, and frees the handle. Operations in
 * flight must have ended before the memory is freed. Memory of cudaMalloc must not be freed either while
 * another process has it open: for it this waits up to `wait_ms` (negative: 2,000; 0: it asks them once).
 * Error timeout: a rank still has it open, or has not confirmed that it has closed it. The handle then
 * remains, for another call, unless `wait_ms` was 0, which frees it in any case. Null is ignored. */
OURO_API int ouro_deregister(ouro_registration_t registration, int64_t wait_ms);

/** @}
 * @defgroup c_groups C: groups
 * @{ */

/** Returns the group of all ranks. Borrowed: it lives as long as the context and must not be destroyed. */
OURO_API int ouro_context_world(ouro_context_t context, ouro_group_t* group);
/** Creates a group of the given world ranks, in that order. Only the members call this; it does not
 * communicate. Members match groups with equal ranks and tag by creation order: the k-th on one rank is the
 * k-th on every other. `tag` and `options` may be null. */
OURO_API int ouro_context_group(ouro_context_t context, const int* ranks, int count, const char* tag,
                                const ouro_group_options_t* options, ouro_group_t* group);
/** Collective: members with the same color form a group, ordered by key, then by rank. Color -1: no group
 * (*out is set to null). Other negative colors are invalid. */
OURO_API int ouro_group_split(ouro_group_t group, int color, int key, const ouro_group_options_t* options,
                              ouro_group_t* out);
/** Collective over the survivors of a failure: creates a group without the dead ranks. `report` may be
 * null. */
OURO_API int ouro_group_shrink(ouro_group_t group, ouro_shrink_report_t* report, ouro_group_t* out);
/** This rank in the group; -1 for a null handle (ouro_last_error says so). */
OURO_API int ouro_group_rank(ouro_group_t group);
/** Number of members; -1 for a null handle. */
OURO_API int ouro_group_size(ouro_group_t group);
/** Writes the world rank of each member into `ranks`, an array of ouro_group_size(group) elements. */
OURO_API int ouro_group_ranks(ouro_group_t group, int* ranks);
/** The group's name, valid as long as the handle; null for a null handle. */
OURO_API const char* ouro_group_name(ouro_group_t group);
/** The first error of this group, as a code. Never blocks. */
OURO_API int ouro_group_status(ouro_group_t group);
/** Ends all pending and later operations of this group on every rank within a second. `why` may be null. */
OURO_API int ouro_group_abort(ouro_group_t group, const char* why);
/** Drains submitted operations and leaves the group. Idempotent. Invalid in a callback of ouro_work_then
 * while operations are in flight, because they may be queued behind the callback. The same holds for
 * ouro_group_shrink and ouro_context_close. */
OURO_API int ouro_group_close(ouro_group_t group);
/** Frees the handle; never waits for peers. Null is a no-op; a world group is invalid. */
OURO_API int ouro_group_destroy(ouro_group_t group);
/** Describes which algorithm would run, over which transport, and why. Writes zero-terminated text of at
 * most `capacity` bytes; a capacity that is too small is OURO_CODE_INVALID. */
OURO_API int ouro_group_explain(ouro_group_t group, ouro_collective_t collective, size_t count,
                                ouro_dtype_t dtype, ouro_op_t op, char* text, size_t capacity);

/** @}
 * @defgroup c_streams C: streams and work
 * @{ */

/** Creates a host stream with its own thread. `name` may be null. Errors: system (no thread). */
OURO_API int ouro_stream_create(ouro_priority_t priority, const char* name, ouro_stream_t* stream);
/** Creates a stream of GPU `device`. Errors: invalid (no such device), cuda. */
OURO_API int ouro_stream_create_device(int device, ouro_priority_t priority, ouro_stream_t* stream);
/** Wraps the caller's own cudaStream_t of GPU `device` (null: the legacy default stream), which must outlive
 * the handle. Operations on it run after work the caller has already enqueued there and before work
 * enqueued later. They may be captured into a graph together with the stream if all ranks do so. */
OURO_API int ouro_stream_cuda(void* cuda_stream, int device, ouro_stream_t* stream);
/** The GPU of a stream; -1 for a host stream. */
OURO_API int ouro_stream_device(ouro_stream_t stream);
/** The cudaStream_t of a GPU stream; null for a host stream. */
OURO_API void* ouro_stream_handle(ouro_stream_t stream);
/** Waits for everything enqueued so far. Returns the first failure of any operation that ran on the stream
 * since this function last returned a failure or success, even if a work handle has already reported it. A
 * timeout (`deadline_ms` passed) consumes no failure. Negative `deadline_ms`: no additional deadline. */
OURO_API int ouro_stream_synchronize(ouro_stream_t stream, int64_t deadline_ms);
/** Runs the queued operations, then frees the handle. Null is a no-op. */
OURO_API void ouro_stream_destroy(ouro_stream_t stream);

/** Blocks until the operation has ended and returns its outcome; returns timeout if `deadline_ms` passes
 * first (the operation continues). May be called any number of times, from any thread. Negative: only the
 * group's deadline applies. */
OURO_API int ouro_work_wait(ouro_work_t work, int64_t deadline_ms);
/** Returns 1 if the operation has ended (successfully or not), 0 if not, -1 for a null handle. Never
 * blocks. */
OURO_API int ouro_work_test(ouro_work_t work);
/** OURO_CODE_OK while the operation is in flight; its outcome afterwards. */
OURO_API int ouro_work_status(ouro_work_t work);
/** Calls f(code, message, argument) once the operation has ended: immediately in this thread if it already
 * has, else in the stream's thread. `message` is valid during the call. f must not throw, and must not wait
 * for anything queued behind it. It may destroy groups and contexts; their queued operations then end as
 * aborted. */
OURO_API int ouro_work_then(ouro_work_t work, void (*f)(int code, const char* message, void* argument),
                            void* argument);
/** Frees the handle; the operation continues. Null is a no-op. */
OURO_API void ouro_work_destroy(ouro_work_t work);

/** @}
 * @defgroup c_operations C: operations
 * Collective over the group. `options` may be null. Without a stream (null), a call blocks and runs in the
 * calling thread. With a stream, it is enqueued in order and returns immediately; buffers must live until
 * it has ended. Operations on buffers of the rank's GPU run in a stream of that GPU: the given one, or one
 * of the group's own; for the latter, the buffers must be ready when the call is made. Input and output
 * must be on one device. `work` may be null; otherwise it receives a handle, with or without a stream,
 * which the caller must destroy. Between ouro_group_start and ouro_group_end calls are deferred. In place:
 * out == in exactly (all_gather: in is the caller's block of out; reduce_scatter: out is the caller's block
 * of in). Zero counts are legal, and buffers may then be null. `count` is per rank, as each function
 * states; `size` is ouro_group_size(group); array parameters have `size` elements.
 * @{ */

/** out[i] = in_0[i] (+) ... (+) in_{size-1}[i]; count elements each. */
OURO_API int ouro_all_reduce(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                             ouro_op_t op, const ouro_call_options_t* options, ouro_stream_t stream,
                             ouro_work_t* work);
/** As ouro_all_reduce, but only `root` receives the result; out is ignored elsewhere. */
OURO_API int ouro_reduce(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                         ouro_op_t op, int root, const ouro_call_options_t* options, ouro_stream_t stream,
                         ouro_work_t* work);
/** in: size * count elements; out: count elements, block `rank` of the reduction. */
OURO_API int ouro_reduce_scatter(ouro_group_t group, const void* in, void* out, size_t count,
                                 ouro_dtype_t dtype, ouro_op_t op, const ouro_call_options_t* options,
                                 ouro_stream_t stream, ouro_work_t* work);
/** Block r has counts[r] elements (the same array on all ranks); in holds all blocks, out is the caller's
 * block. */
OURO_API int ouro_reduce_scatter_v(ouro_group_t group, const void* in, void* out, const size_t* counts,
                                   ouro_dtype_t dtype, ouro_op_t op, const ouro_call_options_t* options,
                                   ouro_stream_t stream, ouro_work_t* work);
/** in: count elements; out: size * count elements, where block r is rank r's input. */
OURO_API int ouro_all_gather(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                             const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work);
/** Block r has counts[r] elements (the same array on all ranks); in is the caller's block, out holds all
 * blocks. */
OURO_API int ouro_all_gather_v(ouro_group_t group, const void* in, void* out, const size_t* counts,
                               ouro_dtype_t dtype, const ouro_call_options_t* options, ouro_stream_t stream,
                               ouro_work_t* work);
/** Copies count elements from root's in to out on all ranks; in is ignored elsewhere. */
OURO_API int ouro_broadcast(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                            int root, const ouro_call_options_t* options, ouro_stream_t stream,
                            ouro_work_t* work);
/** in: count elements; root's out: size * count elements, ignored elsewhere. */
OURO_API int ouro_gather(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                         int root, const ouro_call_options_t* options, ouro_stream_t stream,
                         ouro_work_t* work);
/** Root's in: size * count elements, ignored elsewhere; out: count elements. */
OURO_API int ouro_scatter(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                          int root, const ouro_call_options_t* options, ouro_stream_t stream,
                          ouro_work_t* work);
/** in, out: size * count elements; block j of in goes to rank j, block i of out comes from rank i. */
OURO_API int ouro_all_to_all(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                             const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work);
/** send_counts[j] elements, in order, go to rank j; recv_counts[i] come from rank i. */
OURO_API int ouro_all_to_all_v(ouro_group_t group, const void* in, void* out, const size_t* send_counts,
                               const size_t* recv_counts, ouro_dtype_t dtype,
                               const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work);
/** Returns (or, with a stream, completes) on each rank after all ranks have entered. */
OURO_API int ouro_barrier(ouro_group_t group, ouro_stream_t stream, ouro_work_t* work);

/** @}
 * @defgroup c_messages C: messages and batches
 * Between two ranks of a group; not collective. Messages with equal (source, destination, tag) arrive in
 * order. Tags: 0..2^31-1.
 * @{ */

/** Returns once the buffer may be reused. A message of zero elements is still sent. */
OURO_API int ouro_send(ouro_group_t group, const void* data, size_t count, ouro_dtype_t dtype, int dst,
                       int tag, ouro_stream_t stream, ouro_work_t* work);
/** Receives one message of at most `count` elements; a longer one is invalid and stays queued. `deadline_ms`
 * 0: the group's. `received` may be null. With a stream, and between ouro_group_start and ouro_group_end,
 * `received` must be null and `deadline_ms` 0, because the call returns before the message arrives. */
OURO_API int ouro_recv(ouro_group_t group, void* data, size_t count, ouro_dtype_t dtype, int src, int tag,
                       int64_t deadline_ms, ouro_received_t* received, ouro_stream_t stream,
                       ouro_work_t* work);
/** One message of an exchange, at one of its ends. */
typedef struct ouro_transfer {
  int peer;           /**< rank of the other end; may be the caller's */
  int sends;          /**< not 0: `data` is sent; 0: it is received */
  void* data;         /**< not written if it is sent */
  size_t count;       /**< elements */
  ouro_dtype_t dtype; /**< of the elements */
} ouro_transfer_t;
/** Sends and receives `n` messages at the same time. The k-th message from one rank to another in exchanges
 * meets the k-th receive there, of exactly the same length; else the group fails with a mismatch. Messages of
 * exchanges have no tags and never meet those of ouro_send. Only the ranks that are named take part. All
 * buffers are on the rank's GPU, or all in memory of the host, at both ends. Between ouro_group_start and
 * ouro_group_end, exchanges of one group on one stream become one. */
OURO_API int ouro_exchange(ouro_group_t group, const ouro_transfer_t* transfers, size_t n,
                           ouro_stream_t stream, ouro_work_t* work);
/** If a message that ouro_recv(src, tag) would take is here, sets *found = 1 and describes it in *received;
 * else sets *found = 0. Never blocks. */
OURO_API int ouro_probe(ouro_group_t group, int src, int tag, int* found, ouro_received_t* received);

/** Operations that this thread calls until the matching ouro_group_end are deferred and submitted together.
 * Nests. */
OURO_API int ouro_group_start(void);
/** Submits the deferred operations. Blocks unless every operation was given a stream. Returns the first
 * error; an argument error drops all operations. */
OURO_API int ouro_group_end(void);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
