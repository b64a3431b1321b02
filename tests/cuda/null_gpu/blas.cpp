// The functions of cuBLAS by which PyTorch multiplies matrices of floating-point numbers: each product is counted as one
// piece of work of its stream, and calculates nothing.

#include "device.hpp"

#include <cublasLt.h>
#include <cublas_v2.h>

using namespace null_gpu;

namespace {

struct Handle {
    cudaStream_t stream = nullptr;
    cublasMath_t math = CUBLAS_DEFAULT_MATH;
    cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

Handle& of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

cublasStatus_t product(cudaStream_t stream) {
    enqueue(stream, "product");
    return CUBLAS_STATUS_SUCCESS;
}

template <typename Descriptor>
cublasStatus_t make(Descriptor** descriptor) {
    *descriptor = new Descriptor;
    return CUBLAS_STATUS_SUCCESS;
}

template <typename Descriptor>
cublasStatus_t drop(Descriptor* descriptor) {
    delete descriptor;
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    *handle = reinterpret_cast<cublasHandle_t>(new Handle);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete &of(handle);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    of(handle).stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, std::size_t) { return CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetSmCountTarget(cublasHandle_t, int) { return CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    of(handle).math = mode;
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
    *mode = of(handle).math;
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    of(handle).pointers = mode;
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
    *mode = of(handle).pointers;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                     const float*, const float*, int, const float*, int, const float*, float*, int) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                     const double*, const double*, int, const double*, int, const double*, double*,
                                     int) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                    const float*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                    const float*, void*, cudaDataType, int) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                   const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                   const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                                                int, const float*, const float*, int, long long, const float*, int,
                                                long long, const float*, float*, int, long long, int) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                                                 int, const void*, const void*, cudaDataType, int, long long,
                                                 const void*, cudaDataType, int, long long, const void*, void*,
                                                 cudaDataType, int, long long, int, cublasComputeType_t,
                                                 cublasGemmAlgo_t) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t, int, int, const float*, const float*,
                                     int, const float*, int, const float*, float*, int) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int, const float*, int, const float*, int, float*) {
    return product(of(handle).stream);
}
EXPORT cublasStatus_t cublasDotEx(cublasHandle_t handle, int, const void*, cudaDataType, int, const void*, cudaDataType,
                                  int, void*, cudaDataType, cudaDataType) {
    return product(of(handle).stream);
}

// ---- cuBLASLt ------------------------------------------------------------------------------------------------

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t, cudaDataType_t) {
    return make(descriptor);
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) { return drop(descriptor); }
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*,
                                                     std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType, std::uint64_t,
                                                 std::uint64_t, std::int64_t) {
    return make(layout);
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return drop(layout); }
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
                                                       const void*, std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return make(preference);
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return drop(preference); }
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                           cublasLtMatmulPreferenceAttributes_t, const void*,
                                                           std::size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                                     cublasLtMatmulHeuristicResult_t* results, int* found) {
    results[0] = {};
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                                     cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*,
                                     const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                                     const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t stream) {
    return product(stream);
}
