// The functions of CUPTI that PyTorch's profiler calls.  NVIDIA's library would look for a driver without end; here it is
// said not to be available, and profiles are of the host alone.

#include "device.hpp"

namespace {

constexpr int NOT_INITIALIZED = 15;  // CUPTI_ERROR_NOT_INITIALIZED

}  // namespace

#define UNAVAILABLE(name) \
    EXPORT int name() { return NOT_INITIALIZED; }

UNAVAILABLE(cuptiActivityDisable)
UNAVAILABLE(cuptiActivityEnable)
UNAVAILABLE(cuptiActivityEnableCudaEventDeviceTimestamps)
UNAVAILABLE(cuptiActivityEnableDriverApi)
UNAVAILABLE(cuptiActivityEnableRuntimeApi)
UNAVAILABLE(cuptiActivityFlushAll)
UNAVAILABLE(cuptiActivityGetNextRecord)
UNAVAILABLE(cuptiActivityGetNumDroppedRecords)
UNAVAILABLE(cuptiActivityPopExternalCorrelationId)
UNAVAILABLE(cuptiActivityPushExternalCorrelationId)
UNAVAILABLE(cuptiActivityRegisterCallbacks)
UNAVAILABLE(cuptiActivityRegisterTimestampCallback)
UNAVAILABLE(cuptiActivitySetAttribute)
UNAVAILABLE(cuptiEnableCallback)
UNAVAILABLE(cuptiEnableDomain)
UNAVAILABLE(cuptiFinalize)
UNAVAILABLE(cuptiGetCallbackName)
UNAVAILABLE(cuptiGetVersion)
UNAVAILABLE(cuptiSubscribe)
UNAVAILABLE(cuptiUnsubscribe)

EXPORT int cuptiGetResultString(int, const char** text) {
    *text = "the null GPU has no CUPTI";
    return 0;
}
