/* What PyTorch asks of CUDA before it computes anything. It is told of one GPU, an H100 or, with SM=80, an A100. Memory is the
   CPU's, and there are no kernels. LD_PRELOAD puts these functions before those of the CUDA runtime. */
#include <stdlib.h>
#include <string.h>
#include "cuda_runtime_api.h"

static int sm(void) { return atoi(getenv("SM")); }

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    int a100 = sm() == 80;
    memset(p, 0, sizeof *p);
    strcpy(p->name, a100 ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H100 80GB HBM3");
    p->major = sm() / 10;
    p->minor = sm() % 10;
    p->multiProcessorCount = a100 ? 108 : 132;
    p->totalGlobalMem = 80ull << 30;
    p->l2CacheSize = (a100 ? 40 : 50) << 20;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = (a100 ? 163 : 227) << 10;
    p->sharedMemPerMultiprocessor = (a100 ? 164 : 228) << 10;
    return cudaSuccess;
}

/* memory, and constants that are copied to it */
cudaError_t cudaMalloc(void **memory, size_t size) {
    *memory = malloc(size);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    memcpy(to, from, size);
    return cudaSuccess;
}

/* the state of a GPU that has nothing to do */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }
cudaError_t cudaSetDevice(int device) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
