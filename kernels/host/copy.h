// Copies that say what will happen to their destination. Used by the host executor.
#pragma once
#include <cstddef>

namespace ouro::kernels {

/// Into memory that another core has in its cache, or will read next: the core takes whole lines without
/// fetching what they held (`rep movsb`).
void copy_shared(void* to, const void* from, std::size_t bytes);

/// Into memory that nobody reads soon: non-temporal stores, past the caches and without reading what they
/// replace. Before anybody else is told of them: stream_fence().
void copy_stream(void* to, const void* from, std::size_t bytes);
void stream_fence();

}  // namespace ouro::kernels
