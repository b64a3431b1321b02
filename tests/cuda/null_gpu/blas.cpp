// The functions of cuBLAS by which PyTorch multiplies matrices of floating-point numbers: each product is counted as one
// piece of work of its stream, and calculates nothing.  On x86-64 a function may leave out arguments that it does not read.

#include "device.hpp"

using namespace null_gpu;

namespace {

struct Handle {
    cudaStream_t stream = nullptr;
    int math = 0, pointers = 0;  // CUBLAS_DEFAULT_MATH, CUBLAS_POINTER_MODE_HOST
};

}  // namespace

#define NOTHING(name) \
    EXPORT int name() { return 0; }
#define PRODUCT(name) \
    EXPORT int name(Handle* handle) { return enqueue(handle->stream, "product"); }

EXPORT int cublasCreate_v2(Handle** handle) { return give(handle, new Handle); }
EXPORT int cublasDestroy_v2(Handle* handle) {
    delete handle;
    return 0;
}
EXPORT int cublasSetStream_v2(Handle* handle, cudaStream_t stream) { return give(&handle->stream, stream); }
EXPORT int cublasSetMathMode(Handle* handle, int mode) { return give(&handle->math, mode); }
EXPORT int cublasGetMathMode(Handle* handle, int* mode) { return give(mode, handle->math); }
EXPORT int cublasSetPointerMode_v2(Handle* handle, int mode) { return give(&handle->pointers, mode); }
EXPORT int cublasGetPointerMode_v2(Handle* handle, int* mode) { return give(mode, handle->pointers); }
NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasSetSmCountTarget)

PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasSdot_v2)
PRODUCT(cublasDotEx)

// ---- cuBLASLt: descriptors are never looked into, and may be nullptr --------------------------------------------

NOTHING(cublasLtMatmulDescCreate)
NOTHING(cublasLtMatmulDescDestroy)
NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatrixLayoutCreate)
NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute)
NOTHING(cublasLtMatmulPreferenceCreate)
NOTHING(cublasLtMatmulPreferenceDestroy)
NOTHING(cublasLtMatmulPreferenceSetAttribute)
EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* found) {
    return give(found, 1);
}
EXPORT int cublasLtMatmul(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                          std::size_t, cudaStream_t stream) {
    return enqueue(stream, "product");
}
