// The functions of NCCL that PyTorch calls: communicators of any number of ranks, which never meet, and collectives, each
// counted as one piece of work of its stream, which send nothing.

#include "device.hpp"

#include <nccl.h>

using namespace null_gpu;

namespace {

struct Communicator {
    int rank, ranks;
};

Communicator& of(ncclComm_t communicator) { return *reinterpret_cast<Communicator*>(communicator); }

}  // namespace

EXPORT ncclResult_t ncclGetVersion(int* version) { return give(version, NCCL_VERSION_CODE); }
EXPORT const char* ncclGetErrorString(ncclResult_t) { return "error of the null GPU"; }
EXPORT const char* ncclGetLastError(ncclComm_t) { return ""; }

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return give(id, ncclUniqueId()); }
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId, int rank, ncclConfig_t*) {
    return give(communicator, reinterpret_cast<ncclComm_t>(new Communicator{rank, ranks}));
}
EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int ranks, int rank, int, ncclUniqueId*,
                                             ncclConfig_t*) {
    return ncclCommInitRankConfig(communicator, ranks, {}, rank, nullptr);
}
EXPORT ncclResult_t ncclCommSplit(ncclComm_t whole, int, int, ncclComm_t* communicator, ncclConfig_t*) {
    return ncclCommInitRankConfig(communicator, of(whole).ranks, {}, of(whole).rank, nullptr);
}
EXPORT ncclResult_t ncclCommCount(const ncclComm_t communicator, int* ranks) {
    return give(ranks, of(communicator).ranks);
}
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
    return give(rank, of(communicator).rank);
}
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) { return give(error, ncclSuccess); }
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    // NCCL waits here until the last graph is gone that has a collective of the communicator.
    if (is_in_graphs(communicator)) note("hang: ncclCommDestroy");
    delete &of(communicator);
    return ncclSuccess;
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t communicator) { return ncclCommDestroy(communicator); }

EXPORT ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, std::size_t, void** handle) {
    return give(handle, memory);
}
EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

EXPORT ncclResult_t ncclGroupStart() { return ncclSuccess; }
EXPORT ncclResult_t ncclGroupEnd() { return ncclSuccess; }

#define COLLECTIVE(name, ...)                                                             \
    EXPORT ncclResult_t name(__VA_ARGS__, ncclComm_t communicator, cudaStream_t stream) { \
        enqueue_collective(stream, "collective", communicator);                           \
        return ncclSuccess;                                                               \
    }
COLLECTIVE(ncclAllReduce, const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t)
COLLECTIVE(ncclBroadcast, const void*, void*, std::size_t, ncclDataType_t, int)
COLLECTIVE(ncclAllGather, const void*, void*, std::size_t, ncclDataType_t)
COLLECTIVE(ncclReduceScatter, const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t)
COLLECTIVE(ncclSend, const void*, std::size_t, ncclDataType_t, int)
COLLECTIVE(ncclRecv, void*, std::size_t, ncclDataType_t, int)
