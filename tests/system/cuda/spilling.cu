// A kernel that needs local memory, and one that does not: kernel-report must tell them apart. They are
// never run.

namespace ouro {

__global__ void indexes_an_array(float* values, int n) {
  float mine[64];
  for (int i = 0; i < 64; ++i) mine[i] = values[i * n];
  for (int i = 0; i < n; ++i) values[i] = mine[i * 7 % 64];  // the index is known only at run time
}

__global__ void stays_in_registers(float* values) {
  __shared__ float row[32];
  row[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = row[31 - threadIdx.x];
}

}  // namespace ouro
