/* A driver's library with one GPU, as far as modeld calls it; with MISMATCH, one that does not fit its module.
   The structures are those of nvml.h. */

#include <string.h>

#define MIB (1ull << 20)

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} Pci;
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;

static int sessions = 0;

int nvmlInitWithFlags(unsigned flags) {
#ifdef MISMATCH
    return 18;
#endif
    sessions++;
    return 0;
}
int nvmlShutdown(void) { return sessions-- > 0 ? 0 : 1; }
const char *nvmlErrorString(int code) { return "stub error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return sessions > 0 ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &sessions; return index ? 2 : 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strncpy(text, "GPU-stub", size); return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strncpy(text, "Stub GPU", size); return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 1;
    strcpy(pci->busId, "00000000:01:00.0");
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) { return 3; }
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory *memory) {
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    memory->total = 1000 * MIB;
    memory->reserved = 40 * MIB;
    memory->free = 800 * MIB;
    memory->used = 160 * MIB;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    if (*count < 2) { *count = 2; return 7; }
    *count = 2;
    found[0] = (Process){7, 100 * MIB, ~0u, ~0u};
    found[1] = (Process){8, ~0ull, ~0u, ~0u};
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    if (*count < 1) { *count = 1; return 7; }
    *count = 1;
    found[0] = (Process){7, 100 * MIB, ~0u, ~0u};
    return 0;
}
