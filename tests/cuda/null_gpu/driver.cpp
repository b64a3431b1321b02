// The functions of the CUDA driver that Triton calls: launches of kernels are counted.

#include "device.hpp"

#include <cuda.h>

using namespace null_gpu;

namespace {

const auto CONTEXT = reinterpret_cast<CUcontext>(1);
const auto MODULE = reinterpret_cast<CUmodule>(1);
const auto FUNCTION = reinterpret_cast<CUfunction>(1);

CUresult launch(CUstream stream) {
    return enqueue(stream, "triton kernel") == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

}  // namespace

EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
EXPORT CUresult cuDriverGetVersion(int* version) { return give(version, CUDA_VERSION); }
EXPORT CUresult cuGetErrorString(CUresult, const char** text) { return give(text, "error of the null GPU"); }
EXPORT CUresult cuGetErrorName(CUresult, const char** text) { return cuGetErrorString(CUDA_SUCCESS, text); }
EXPORT CUresult cuDeviceGetCount(int* devices) { return give(devices, 1); }
EXPORT CUresult cuDeviceGet(CUdevice* device, int number) { return give(device, number); }
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    // Both interfaces number the attributes alike.
    cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), 0);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return give(context, CONTEXT); }
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) { return give(context, CONTEXT); }
EXPORT CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetDevice(CUdevice* device) { return give(device, 0); }
EXPORT CUresult cuCtxGetLimit(std::size_t* bytes, CUlimit) { return give(bytes, 1 << 20); }
EXPORT CUresult cuCtxSetLimit(CUlimit, std::size_t) { return CUDA_SUCCESS; }

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void*) { return give(module, MODULE); }
EXPORT CUresult cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }
EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) { return give(function, FUNCTION); }
EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? THREADS_PER_BLOCK
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? WARP
                                                                  : 0;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    return give(clusters, MULTIPROCESSORS);
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void**) {
    return launch(config->hStream);
}
EXPORT CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               CUstream stream, void**, void**) {
    return launch(stream);
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return give(status, static_cast<CUstreamCaptureStatus>(capture_status(stream)));
}
EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (!is_device_memory(reinterpret_cast<void*>(address))) return CUDA_ERROR_INVALID_VALUE;  // Triton refuses it then
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
        *static_cast<CUdeviceptr*>(value) = address;
    } else {
        *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
    }
    return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                       CUdeviceptr address) {
    for (unsigned index = 0; index < count; ++index) cuPointerGetAttribute(values[index], attributes[index], address);
    return CUDA_SUCCESS;
}
