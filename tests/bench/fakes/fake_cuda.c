/* The fake libcuda.so.1, as far as bench.real_gpu.client asks: 52 SMs, 1 GiB for this process, and an error that
 * sticks once FAKE_CUDA_FAILS_AFTER waits were done. Addresses are above 4 GiB, so that a caller that cuts them fails. */
#include <stddef.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, TERMINATED = 810 };

static int has_context, waits;
static size_t taken;
static const size_t limit = (size_t)1 << 30, block = (size_t)64 << 20;
static const unsigned long long first = 0x7f0000000000ULL;

int cuInit(unsigned flags) { return flags ? INVALID : SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? INVALID : SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &taken; return device == 7 ? SUCCESS : INVALID; }
int cuCtxSetCurrent(void *context) { has_context = context == &taken; return has_context ? SUCCESS : INVALID; }

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = 52;
    return has_context && attribute == 16 && device == 7 ? SUCCESS : INVALID;
}

int cuMemAlloc_v2(unsigned long long *address, size_t size)
{
    if (size != block)
        return INVALID;
    if (taken + size > limit)
        return OUT_OF_MEMORY;
    *address = first + taken;
    taken += size;
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long address)
{
    if (address < first || address >= first + limit)
        return INVALID;
    taken -= block;
    return SUCCESS;
}

int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t size)
{
    (void)value;
    return address >= first && address < first + limit && size == block ? SUCCESS : INVALID;
}

int cuCtxSynchronize(void)
{
    const char *most = getenv("FAKE_CUDA_FAILS_AFTER");
    return most && waits++ >= atoi(most) ? TERMINATED : SUCCESS;
}
