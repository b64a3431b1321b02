// What the files of the null GPU share: its counts, its memory, and the rules of stream capture.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace null_gpu {

// The device that is imitated: an H200.
extern const int CAPABILITY;  // 90, or what NULL_GPU_CAPABILITY says
constexpr int MULTIPROCESSORS = 132;
constexpr int THREADS_PER_BLOCK = 1024;
constexpr int THREADS_PER_MULTIPROCESSOR = 2048;
constexpr int REGISTERS = 65536;
constexpr int WARP = 32;
constexpr int SHARED_MEMORY_PER_BLOCK = 48 << 10;  // bytes, as the next two
constexpr int SHARED_MEMORY_PER_BLOCK_OPT_IN = 227 << 10;
constexpr int SHARED_MEMORY_PER_MULTIPROCESSOR = 228 << 10;
constexpr int L2_CACHE = 60 << 20;  // bytes

// ---- counts: what the program has asked of the device, by name -----------------------------------------------

void count(const std::string& what, long amount = 1);
// Counts something that costs the host time, and calls the watcher, which notes the line that asked for it.
void note(const std::string& what);

// ---- memory: addresses that can't be read or written by the host -----------------------------------------------

void* allocate(std::size_t bytes);  // nullptr when the card is full
void release(void* address);
bool is_device_memory(const void* address);
std::size_t total_bytes();
std::size_t free_bytes();
bool add_pinned(void* address, std::size_t bytes);
std::size_t remove_pinned(void* address);
bool is_pinned(const void* address);

// ---- streams: nothing is queued, because nothing takes time, except in a capture, where it is counted ------------

cudaError_t enqueue(cudaStream_t stream, const std::string& what);  // a node of the graph, where the stream captures
cudaError_t enqueue_collective(cudaStream_t stream, const std::string& what, const void* communicator);
bool is_in_graphs(const void* communicator);  // whether a graph that can be launched has a collective of it
cudaError_t record(cudaEvent_t event, cudaStream_t stream);
cudaError_t wait_for(cudaStream_t stream, cudaEvent_t event);
void forget(cudaEvent_t event);

cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph);
cudaStreamCaptureStatus capture_status(cudaStream_t stream, unsigned long long* id = nullptr);
long nodes_of(cudaGraph_t graph);
void destroy(cudaGraph_t graph);
void instantiate(cudaGraphExec_t executable, cudaGraph_t graph);
void destroy(cudaGraphExec_t executable);
cudaStreamCaptureMode exchange_mode(cudaStreamCaptureMode mode);

// Refusals, which end captures: an error if what the program does now is not allowed.
cudaError_t refuse_on(cudaStream_t stream, const std::string& what);  // if this stream is being captured
cudaError_t refuse_in_mode(const std::string& what);  // if a capture forbids this thread unsafe calls
cudaError_t refuse_everywhere(const std::string& what);  // if anything is being captured
cudaError_t refuse_captured(cudaEvent_t event, const std::string& what);  // if the event was recorded in a capture

cudaError_t failed(cudaError_t error);  // remembered for cudaGetLastError
cudaError_t last_error(bool forget);

// ---- answers ---------------------------------------------------------------------------------------------------

struct Success {  // 0 in every one of NVIDIA's interfaces
    template <typename Status>
    operator Status() const {
        return Status(0);
    }
};

// How most functions end that tell a program something.
template <typename Place, typename Value>
Success give(Place* place, Value value) {
    *place = value;
    return {};
}

}  // namespace null_gpu
