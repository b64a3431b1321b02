// The functions of the CUDA runtime that PyTorch calls.  They are found before those of libcudart, which needs a driver.

#include "device.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

// The header renames these two to versions of their own.
#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo

using namespace null_gpu;

namespace {

// Streams, events and graphs are told apart by numbers alone.
template <typename Handle>
cudaError_t create(Handle* handle) {
    static std::atomic<std::size_t> last{0x1000};
    *handle = reinterpret_cast<Handle>(last += 16);
    return cudaSuccess;
}

cudaError_t refuse_host_memory(cudaStream_t stream, const std::string& what) {
    note(what);
    return refuse_on(stream, what);  // a replay would read and write memory that is no longer there
}

}  // namespace

// ---- kernels -----------------------------------------------------------------------------------------------

struct LaunchConfiguration {
    dim3 grid, block;
    std::size_t shared_memory;
    void* stream;
};
static thread_local LaunchConfiguration pushed;

EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_memory, void* stream) {
    pushed = {grid, block, shared_memory, stream};
    return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_memory, void* stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_memory = pushed.shared_memory;
    *static_cast<void**>(stream) = pushed.stream;
    return cudaSuccess;
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    return give(kernel, reinterpret_cast<cudaKernel_t>(const_cast<void*>(function)));
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
    return enqueue(stream, "kernel");
}
EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
    return enqueue(stream, "kernel");
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
    return enqueue(config->stream, "kernel");
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    function(data);
    return enqueue(stream, "host function");
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    if (cudaError_t error = refuse_on(stream, "cudaStreamAddCallback")) return error;
    function(stream, cudaSuccess, data);
    return enqueue(stream, "host function");
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = THREADS_PER_BLOCK;
    attributes->numRegs = WARP;
    attributes->ptxVersion = attributes->binaryVersion = CAPABILITY;
    attributes->maxDynamicSharedSizeBytes = SHARED_MEMORY_PER_BLOCK_OPT_IN;
    return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                          std::size_t, unsigned) {
    return give(blocks, THREADS_PER_MULTIPROCESSOR / (threads > 0 ? threads : 1));
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                 std::size_t bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, bytes, 0);
}
EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void*) {
    static char symbol[1 << 16];
    *address = symbol;
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
    return cudaSuccess;
}

// ---- the device --------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaGetDeviceCount(int* devices) { return give(devices, 1); }
EXPORT cudaError_t cudaGetDevice(int* device) { return give(device, 0); }
EXPORT cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    std::strcpy(properties->name, "null GPU (NVIDIA H200)");
    int process = getpid();  // each has a GPU of its own
    std::memcpy(&properties->uuid, &process, sizeof process);
    properties->totalGlobalMem = total_bytes();
    properties->major = CAPABILITY / 10;
    properties->minor = CAPABILITY % 10;
    properties->multiProcessorCount = MULTIPROCESSORS;
    properties->warpSize = WARP;
    properties->maxThreadsPerBlock = THREADS_PER_BLOCK;
    properties->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
    properties->maxBlocksPerMultiProcessor = 32;
    int threads[] = {1024, 1024, 64}, blocks[] = {2147483647, 65535, 65535};
    std::memcpy(properties->maxThreadsDim, threads, sizeof threads);
    std::memcpy(properties->maxGridSize, blocks, sizeof blocks);
    properties->regsPerBlock = properties->regsPerMultiprocessor = REGISTERS;
    properties->sharedMemPerBlock = SHARED_MEMORY_PER_BLOCK;
    properties->sharedMemPerBlockOptin = SHARED_MEMORY_PER_BLOCK_OPT_IN;
    properties->sharedMemPerMultiprocessor = SHARED_MEMORY_PER_MULTIPROCESSOR;
    properties->totalConstMem = 65536;
    properties->l2CacheSize = L2_CACHE;
    properties->memPitch = 2147483647;
    properties->unifiedAddressing = properties->concurrentKernels = properties->cooperativeLaunch = 1;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = CAPABILITY / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = CAPABILITY % 10; break;
        case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
        case cudaDevAttrWarpSize: *value = WARP; break;
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: *value = THREADS_PER_BLOCK; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = THREADS_PER_MULTIPROCESSOR; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = REGISTERS; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_MEMORY_PER_BLOCK; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_MEMORY_PER_BLOCK_OPT_IN; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = SHARED_MEMORY_PER_MULTIPROCESSOR; break;
        case cudaDevAttrL2CacheSize: *value = L2_CACHE; break;
        default: *value = 1;
    }
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
    std::snprintf(text, length, "0000:01:00.0");
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return give(can, 0); }
EXPORT cudaError_t cudaDriverGetVersion(int* version) { return give(version, CUDART_VERSION); }
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
    *function = dlsym(RTLD_DEFAULT, symbol);  // driver.cpp
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
EXPORT cudaError_t cudaGetLastError() { return last_error(true); }
EXPORT cudaError_t cudaPeekAtLastError() { return last_error(false); }
EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- streams and events --------------------------------------------------------------------------------------

EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream); }
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return create(stream); }
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return create(stream); }
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return give(priority, 0); }
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) { return refuse_on(stream, "cudaStreamQuery"); }
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    note("wait: cudaStreamSynchronize");
    return refuse_on(stream, "cudaStreamSynchronize");
}
EXPORT cudaError_t cudaDeviceSynchronize() {
    note("wait: cudaDeviceSynchronize");
    return refuse_everywhere("cudaDeviceSynchronize");
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return wait_for(stream, event);
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return create(event); }
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return create(event); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    forget(event);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return record(event, stream); }
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return record(event, stream);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (cudaError_t error = refuse_captured(event, "cudaEventQuery")) return error;
    return refuse_in_mode("cudaEventQuery");
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    note("wait: cudaEventSynchronize");
    if (cudaError_t error = refuse_captured(event, "cudaEventSynchronize")) return error;
    return refuse_in_mode("cudaEventSynchronize");
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { return give(milliseconds, 1); }

// ---- graphs --------------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return begin_capture(stream, mode);
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) { return end_capture(stream, graph); }
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return give(status, capture_status(stream));
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                            const cudaGraphEdgeData** edges, std::size_t* count) {
    unsigned long long found = 0;
    *status = capture_status(stream, &found);
    if (id) *id = found;
    if (graph) *graph = reinterpret_cast<cudaGraph_t>(found << 4);
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return give(mode, exchange_mode(*mode));
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
    return give(count, nodes_of(graph));
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    count("graph nodes", nodes_of(graph));
    create(executable);
    instantiate(*executable, graph);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) { return enqueue(stream, "graph launch"); }
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    destroy(graph);
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    destroy(executable);
    return cudaSuccess;
}
EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
    return create(object);
}
EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }

// ---- memory ----------------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaMalloc(void** address, std::size_t bytes) {
    note("cudaMalloc");
    if (cudaError_t error = refuse_in_mode("cudaMalloc")) return error;
    *address = allocate(bytes);
    return *address ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaFree(void* address) {
    if (!address) return cudaSuccess;
    note("cudaFree");
    if (cudaError_t error = refuse_in_mode("cudaFree")) return error;
    release(address);
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* total) {
    *unused = free_bytes();
    *total = total_bytes();
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
    note("cudaHostAlloc");
    if (cudaError_t error = refuse_in_mode("cudaHostAlloc")) return error;
    *address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*address == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    add_pinned(*address, bytes);
    return cudaSuccess;
}
EXPORT cudaError_t cudaMallocHost(void** address, std::size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
EXPORT cudaError_t cudaFreeHost(void* address) {
    if (std::size_t bytes = remove_pinned(address)) munmap(address, bytes);
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
    return add_pinned(address, bytes) ? cudaSuccess : failed(cudaErrorHostMemoryAlreadyRegistered);
}
EXPORT cudaError_t cudaHostUnregister(void* address) {
    return remove_pinned(address) ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    *attributes = {};
    attributes->type = is_device_memory(address) ? cudaMemoryTypeDevice
                       : is_pinned(address)      ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
    if (attributes->type != cudaMemoryTypeUnregistered) attributes->devicePointer = const_cast<void*>(address);
    if (attributes->type == cudaMemoryTypeHost) attributes->hostPointer = attributes->devicePointer;
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    bool to_device = is_device_memory(to), from_device = is_device_memory(from);
    cudaMemcpyKind found = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                     : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    if (kind != cudaMemcpyDefault && kind != found) return failed(cudaErrorInvalidValue);
    if (found == cudaMemcpyDeviceToDevice) return enqueue(stream, "copy on the device");
    bool pinned = is_pinned(to_device ? from : to);
    if (found == cudaMemcpyHostToDevice) {
        if (pinned) return enqueue(stream, "copy to the device");
        return refuse_host_memory(stream, "pageable copy to the device");
    }
    if (found == cudaMemcpyHostToHost) {
        std::memmove(to, from, bytes);
        return cudaSuccess;
    }
    std::memset(to, 0, bytes);  // every number on the device is 0
    if (pinned) return enqueue(stream, "copy to the host");
    return refuse_host_memory(stream, "wait: pageable copy to the host");
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    note("wait: cudaMemcpy");
    if (cudaError_t error = refuse_in_mode("cudaMemcpy")) return error;
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
EXPORT cudaError_t cudaMemsetAsync(void* address, int, std::size_t, cudaStream_t stream) {
    return is_device_memory(address) ? enqueue(stream, "memset") : failed(cudaErrorInvalidValue);
}
EXPORT cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
    if (cudaError_t error = refuse_in_mode("cudaMemset")) return error;
    return cudaMemsetAsync(address, value, bytes, nullptr);
}
