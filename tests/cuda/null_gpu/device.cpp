// The state of the null GPU, and how the programs that watch it read and set it.

#include "device.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace null_gpu {
namespace {

constexpr std::size_t H200_BYTES = 150754820096;

using Guard = std::lock_guard<std::mutex>;
using Clock = std::map<cudaStream_t, long>;  // how much of each stream's work comes before a point

struct Capture {
    cudaStream_t origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    unsigned long long id;
    long nodes = 0;
    bool active = true;
    std::string refused = {};               // what has invalidated it
    std::map<cudaStream_t, Clock> clocks = {};  // of the streams that belong to it
    std::set<const void*> communicators = {};   // of NCCL, whose collectives are in it
};

struct Event {
    std::shared_ptr<Capture> capture;  // in which it was recorded
    Clock clock;
};

std::mutex mutex;  // of everything below
std::map<std::string, long> counts;
std::map<const char*, std::size_t> device_memory, pinned_memory;  // bytes by first address
std::size_t used = 0;
std::size_t total = std::getenv("NULL_GPU_BYTES") ? std::strtoull(std::getenv("NULL_GPU_BYTES"), nullptr, 10) : H200_BYTES;
std::map<cudaStream_t, std::shared_ptr<Capture>> captures;  // by stream
std::map<cudaEvent_t, Event> events;
std::map<cudaGraph_t, std::shared_ptr<Capture>> graphs;
std::map<cudaGraphExec_t, std::shared_ptr<Capture>> executables;
unsigned long long captures_begun = 0;

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t thread_error = cudaSuccess;

using Watcher = void (*)(const char*);
Watcher watcher = nullptr;

bool contains(const std::map<const char*, std::size_t>& blocks, const void* address) {
    const char* place = static_cast<const char*>(address);
    auto block = blocks.upper_bound(place);
    return block != blocks.begin() && place < (--block)->first + block->second;
}

cudaError_t invalidate(Capture& capture, const std::string& what, cudaError_t error = cudaErrorStreamCaptureUnsupported) {
    if (capture.refused.empty()) capture.refused = what;
    ++counts["refused: " + what];
    return failed(error);
}

std::shared_ptr<Capture> capture_of(cudaStream_t stream) {
    auto found = captures.find(stream);
    return found == captures.end() ? nullptr : found->second;
}

}  // namespace

// ---- counts ------------------------------------------------------------------------------------------------

void count(const std::string& what, long amount) {
    Guard guard(mutex);
    counts[what] += amount;
}

void note(const std::string& what) {
    count(what);
    if (watcher) watcher(what.c_str());  // not under the lock: it may wait for Python's
}

// ---- memory ------------------------------------------------------------------------------------------------

void* allocate(std::size_t bytes) {
    Guard guard(mutex);
    if (used + bytes > total) return nullptr;
    void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    device_memory[static_cast<char*>(address)] = bytes;
    used += bytes;
    return address;
}

void release(void* address) {
    Guard guard(mutex);
    auto block = device_memory.find(static_cast<char*>(address));
    if (block == device_memory.end()) return;
    munmap(address, block->second);
    used -= block->second;
    device_memory.erase(block);
}

bool is_device_memory(const void* address) {
    Guard guard(mutex);
    return contains(device_memory, address);
}

const int CAPABILITY = std::getenv("NULL_GPU_CAPABILITY") ? std::atoi(std::getenv("NULL_GPU_CAPABILITY")) : 90;

std::size_t total_bytes() {
    Guard guard(mutex);
    return total;
}

std::size_t free_bytes() {
    Guard guard(mutex);
    return total - std::min(used, total);
}

bool add_pinned(void* address, std::size_t bytes) {
    Guard guard(mutex);
    return pinned_memory.emplace(static_cast<char*>(address), bytes).second;
}

std::size_t remove_pinned(void* address) {
    Guard guard(mutex);
    auto block = pinned_memory.find(static_cast<char*>(address));
    if (block == pinned_memory.end()) return 0;
    std::size_t bytes = block->second;
    pinned_memory.erase(block);
    return bytes;
}

bool is_pinned(const void* address) {
    Guard guard(mutex);
    return contains(pinned_memory, address);
}

// ---- streams and captures ------------------------------------------------------------------------------------

cudaError_t enqueue(cudaStream_t stream, const std::string& what) {
    Guard guard(mutex);
    ++counts[what];
    if (auto capture = capture_of(stream)) {
        ++capture->nodes;
        ++capture->clocks[stream][stream];
    }
    return cudaSuccess;
}

cudaError_t enqueue_collective(cudaStream_t stream, const std::string& what, const void* communicator) {
    {
        Guard guard(mutex);
        if (auto capture = capture_of(stream)) capture->communicators.insert(communicator);
    }
    return enqueue(stream, what);
}

cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
    Guard guard(mutex);
    auto capture = capture_of(stream);
    events[event] = {capture, capture ? capture->clocks[stream] : Clock()};
    return cudaSuccess;
}

cudaError_t wait_for(cudaStream_t stream, cudaEvent_t event) {
    Guard guard(mutex);
    auto capture = capture_of(stream);
    const Event& recorded = events[event];
    if (capture && recorded.capture != capture) {
        return invalidate(*capture, "wait for an event from outside", cudaErrorStreamCaptureIsolation);
    }
    if (!recorded.capture) return cudaSuccess;
    if (!recorded.capture->active) return failed(cudaErrorCapturedEvent);
    captures[stream] = recorded.capture;  // a stream that waits for a capture becomes a part of it
    Clock& clock = recorded.capture->clocks[stream];
    for (auto [other, work] : recorded.clock) clock[other] = std::max(clock[other], work);
    return cudaSuccess;
}

void forget(cudaEvent_t event) {
    Guard guard(mutex);
    events.erase(event);
}

cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    Guard guard(mutex);
    if (!stream || capture_of(stream)) return failed(cudaErrorStreamCaptureUnsupported);  // not the default stream
    captures[stream] = std::make_shared<Capture>(Capture{stream, mode, std::this_thread::get_id(), ++captures_begun});
    return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph) {
    Guard guard(mutex);
    auto capture = capture_of(stream);
    *graph = nullptr;
    if (!capture) return failed(cudaErrorIllegalState);
    if (capture->origin != stream) return failed(cudaErrorStreamCaptureUnmatched);
    bool joined = true;
    for (auto& [other, clock] : capture->clocks) joined &= capture->clocks[stream][other] >= clock[other];
    capture->active = false;
    for (auto& [other, clock] : capture->clocks) captures.erase(other);
    captures.erase(stream);
    if (!capture->refused.empty()) return failed(cudaErrorStreamCaptureInvalidated);
    if (!joined) return failed(cudaErrorStreamCaptureUnjoined);
    *graph = reinterpret_cast<cudaGraph_t>(capture->id << 4);
    graphs[*graph] = capture;
    return cudaSuccess;
}

cudaStreamCaptureStatus capture_status(cudaStream_t stream, unsigned long long* id) {
    Guard guard(mutex);
    auto capture = capture_of(stream);
    if (id) *id = capture ? capture->id : 0;
    if (!capture) return cudaStreamCaptureStatusNone;
    return capture->refused.empty() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
}

long nodes_of(cudaGraph_t graph) {
    Guard guard(mutex);
    auto found = graphs.find(graph);
    return found == graphs.end() ? 0 : found->second->nodes;
}

void destroy(cudaGraph_t graph) {
    Guard guard(mutex);
    graphs.erase(graph);
}

void instantiate(cudaGraphExec_t executable, cudaGraph_t graph) {
    Guard guard(mutex);
    executables[executable] = graphs[graph];
}

void destroy(cudaGraphExec_t executable) {
    Guard guard(mutex);
    executables.erase(executable);
}

bool is_in_graphs(const void* communicator) {
    Guard guard(mutex);
    return std::any_of(executables.begin(), executables.end(),
                       [&](auto& one) { return one.second && one.second->communicators.count(communicator); });
}

cudaStreamCaptureMode exchange_mode(cudaStreamCaptureMode mode) {
    std::swap(mode, thread_mode);
    return mode;
}

// ---- refusals (CUDA Programming Guide, "Creating a Graph Using Stream Capture", and cudaStreamCaptureMode) ------

cudaError_t refuse_on(cudaStream_t stream, const std::string& what) {
    Guard guard(mutex);
    auto capture = capture_of(stream);
    return capture ? invalidate(*capture, what) : cudaSuccess;
}

cudaError_t refuse_in_mode(const std::string& what) {
    Guard guard(mutex);
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (auto& [stream, capture] : captures) {
        bool here = capture->thread == std::this_thread::get_id();
        bool everywhere = capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if (capture->mode != cudaStreamCaptureModeRelaxed && (here || everywhere)) return invalidate(*capture, what);
    }
    return cudaSuccess;
}

cudaError_t refuse_everywhere(const std::string& what) {
    Guard guard(mutex);
    if (captures.empty()) return cudaSuccess;
    for (auto& [stream, capture] : captures) invalidate(*capture, what);
    return failed(cudaErrorStreamCaptureUnsupported);
}

cudaError_t refuse_captured(cudaEvent_t event, const std::string& what) {
    Guard guard(mutex);
    auto found = events.find(event);
    if (found == events.end() || !found->second.capture) return cudaSuccess;
    if (found->second.capture->active) invalidate(*found->second.capture, what);
    return failed(cudaErrorCapturedEvent);
}

cudaError_t failed(cudaError_t error) {
    thread_error = error;
    return error;
}

cudaError_t last_error(bool forget) {
    cudaError_t error = thread_error;
    if (forget) thread_error = cudaSuccess;
    return error;
}

}  // namespace null_gpu

// ---- for programs that watch (session.py) ----------------------------------------------------------------------

using namespace null_gpu;

EXPORT void null_gpu_watch(Watcher function) { watcher = function; }

EXPORT void null_gpu_set_total_bytes(std::size_t bytes) {
    Guard guard(mutex);
    total = bytes;
}

EXPORT void null_gpu_reset() {
    Guard guard(mutex);
    counts.clear();
}

// Lines of "NAME\tNUMBER"; valid until the next call.
EXPORT const char* null_gpu_report() {
    static std::string lines;
    Guard guard(mutex);
    lines.clear();
    for (auto& [name, number] : counts) lines += name + "\t" + std::to_string(number) + "\n";
    return lines.c_str();
}

// A convolution, whose memory session.py has reserved.
EXPORT void null_gpu_convolution(cudaStream_t stream) { enqueue(stream, "product"); }
