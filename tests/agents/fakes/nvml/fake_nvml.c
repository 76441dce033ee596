/* A fake for libnvidia-ml.so.1: GPUs that live in a file, so that tests and several processes see the same ones.
 *
 * FAKE_NVML_STATE names the file; fake_gpus.py lays it out with the same structures and sets what a test needs. Every
 * call takes the file's lock (flock, gone with its holder even after SIGKILL), so that processes may be killed anywhere.
 *
 * Faithful where callers can tell: writes need permission (4), values outside the range are refused (2), clocks are
 * rounded down to a step, the clock follows load, lock and power limit, energy only grows until the driver is loaded
 * again, which also forgets locks and limits and ends every session (reload_code). Lists are asked for twice, the
 * first time with room for none (7). `faults` makes any one function fail, a number of times or always; the codes
 * KILL_BEFORE and KILL_AFTER kill the caller in the middle of a write.
 */
#include "fake_gpus.h"
#include "fake_mig.h"

/* ---- Start, identity ------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&in_process);
    int code = users && state ? OK : map_state();
    pthread_mutex_unlock(&in_process);
    if (code != OK) return code;
    take();
    code = state->is_loaded ? fault_of(__func__, 0) : NOT_LOADED;
    if (code != OK) return finish(code);
    session = state->loads;
    users++;
    for (uint32_t g = 0; g < MAX_GPUS; g++)
        for (uint32_t s = 0; s <= MAX_SLICES; s++) handles[g][s] = (handle_t){g, s, session};
    return finish(OK);
}

int nvmlShutdown(void) {
    take();
    if (!users) return finish(UNINITIALIZED);
    if (--users == 0) session = 0;
    return finish(OK);
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned room) {
    int code = enter(__func__, NULL);
    if (code != OK) return code;
    snprintf(text, room, "%s", state->driver_version);
    return finish(OK);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter(__func__, NULL);
    if (code != OK) return code;
    *count = state->gpu_count;
    return finish(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **handle) {
    int code = enter(__func__, NULL);
    if (code != OK) return code;
    if (index >= state->gpu_count) return finish(INVALID);
    *handle = &handles[index][0];
    return finish(state->gpus[index].lost);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t **handle) {
    int code = enter(__func__, NULL);
    if (code != OK) return code;
    for (uint32_t g = 0; g < state->gpu_count; g++) {
        gpu_t *gpu = &state->gpus[g];
        *handle = &handles[g][0];
        if (strcmp(gpu->uuid, uuid) == 0) return finish(gpu->lost);
        for (uint32_t s = 0; s < gpu->slice_count; s++) {
            *handle = &handles[g][s + 1];
            if (gpu->slices[s].in_use && strcmp(gpu->slices[s].uuid, uuid) == 0) return finish(gpu->lost);
        }
    }
    return finish(NOT_FOUND);
}

int nvmlDeviceGetUUID(handle_t *h, char *text, unsigned room) {
    ON(h, 0);
    snprintf(text, room, "%s", h->slice ? gpu->slices[h->slice - 1].uuid : gpu->uuid);
    return finish(OK);
}

int nvmlDeviceGetName(handle_t *h, char *text, unsigned room) {
    ON(h, 0);
    snprintf(text, room, "%s", h->slice ? gpu->slices[h->slice - 1].name : gpu->name);
    return finish(OK);
}

int nvmlDeviceGetPersistenceMode(handle_t *h, unsigned *is_on) {
    ON(h, 0);
    *is_on = !(gpu->without & NO_PERSISTENCE);
    return finish(OK);
}

/* 132 SMs of 128 cores, as an H100 or H200 has. */
int nvmlDeviceGetNumGpuCores(handle_t *h, unsigned *cores) {
    ON(h, 0);
    if (gpu->mig_mode) return finish(NOT_SUPPORTED);
    *cores = 132 * 128;
    return finish(OK);
}

int nvmlDeviceGetCudaComputeCapability(handle_t *h, int *major, int *minor) {
    ON(h, 0);
    *major = 9;
    *minor = 0;
    return finish(OK);
}

int nvmlDeviceGetArchitecture(handle_t *h, unsigned *architecture) {
    ON(h, 0);
    *architecture = gpu->architecture;
    return finish(OK);
}

/* ---- Readings -------------------------------------------------------------------------------------------------- */

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } use_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } listed_t;

int nvmlDeviceGetMemoryInfo(handle_t *h, memory_v1 *m) {
    ON(h, NO_MEMORY); /* the first version counts the driver's reserve as used */
    if (h->slice) return finish(NOT_SUPPORTED);
    uint64_t used = gpu->memory_used + gpu->memory_reserved;
    *m = (memory_v1){gpu->memory_total, gpu->memory_total - used, used};
    return finish(OK);
}

int nvmlDeviceGetMemoryInfo_v2(handle_t *h, memory_v2 *m) {
    ON(h, NO_MEMORY);
    if (m->version != 0x02000028) return finish(25);
    if (h->slice) {
        const slice_t *slice = &gpu->slices[h->slice - 1];
        uint64_t total = slice->memory_mib << 20;
        *m = (memory_v2){m->version, total, 0, total - slice->memory_used, slice->memory_used};
        return finish(OK);
    }
    uint64_t free = gpu->memory_total - gpu->memory_reserved - gpu->memory_used;
    *m = (memory_v2){m->version, gpu->memory_total, gpu->memory_reserved, free, gpu->memory_used};
    return finish(OK);
}

typedef struct { unsigned field, scope; long long at_us, latency_us; unsigned kind; int code; unsigned long long value; } field_t;

/* The recovery action alone; each field has a code of its own. */
int nvmlDeviceGetFieldValues(handle_t *h, int count, field_t *fields) {
    ON(h, 0);
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].field == 230 ? OK : NOT_SUPPORTED;
        fields[i].value = gpu->recovery;
    }
    return finish(OK);
}

int nvmlDeviceGetPowerUsage(handle_t *h, unsigned *mw) { ON(h, NO_POWER); if (h->slice) return finish(NOT_SUPPORTED); *mw = power_now(gpu); return finish(OK); }

int nvmlDeviceGetTotalEnergyConsumption(handle_t *h, unsigned long long *mj) {
    ON(h, NO_ENERGY);
    if (h->slice) return finish(NOT_SUPPORTED); /* of the whole board alone */
    count_energy(gpu);
    *mj = gpu->energy_mj;
    return finish(OK);
}

int nvmlDeviceGetClockInfo(handle_t *h, int kind, unsigned *mhz) {
    ON(h, 0);
    *mhz = kind == 2 ? gpu->clock_memory : clock_now(gpu);
    return finish(OK);
}

int nvmlDeviceGetMaxClockInfo(handle_t *h, int kind, unsigned *mhz) {
    ON(h, 0);
    *mhz = kind == 2 ? gpu->clock_memory : gpu->clock_high;
    return finish(OK);
}

int nvmlDeviceGetCurrentClocksEventReasons(handle_t *h, unsigned long long *reasons) {
    ON(h, 0);
    *reasons = gpu->reasons | (gpu->load_percent ? 0 : 1) | (is_power_capped(gpu) ? 4 : 0);
    return finish(OK);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t *h, unsigned long long *reasons) {
    int code = enter(__func__, h);
    if (code != OK) return code;
    leave();
    return nvmlDeviceGetCurrentClocksEventReasons(h, reasons);
}

int nvmlDeviceGetUtilizationRates(handle_t *h, utilization *u) {
    ON(h, 0);
    if (gpu->mig_mode) return finish(NOT_SUPPORTED);
    *u = (utilization){gpu->load_percent ? 100 : 0, 0}; /* some kernel ran: that is all that it says */
    return finish(OK);
}

int nvmlDeviceGetProcessUtilization(handle_t *h, use_t *list, unsigned *count, unsigned long long since_us) {
    ON(h, NO_USE);
    if (gpu->mig_mode) return finish(NOT_SUPPORTED);
    if (!gpu->load_percent || !gpu->process_count || since_us >= now_ns() / 1000) return finish(NOT_FOUND);
    unsigned room = *count;
    *count = gpu->process_count;
    if (!list || room < *count) return finish(TOO_SMALL);
    for (uint32_t i = 0; i < gpu->process_count; i++)
        list[i] = (use_t){gpu->processes[i].pid, now_ns() / 1000, gpu->processes[i].sm_percent, 0, 0, 0};
    return finish(OK);
}

/* Of all processes on the GPU, or of the MPS clients alone. */
static int list_processes(const handle_t *h, gpu_t *gpu, int only_mps, unsigned *count, listed_t *list) {
    unsigned room = list ? *count : 0, found = 0;
    for (uint32_t i = 0; i < gpu->process_count; i++) {
        const process_t *each = &gpu->processes[i];
        if (only_mps && !each->is_mps) continue;
        if (h->slice && each->gpu_instance != gpu->slices[h->slice - 1].gpu_instance) continue;
        if (found < room) list[found] = (listed_t){each->pid, each->memory, each->gpu_instance, ~0U};
        found++;
    }
    *count = found;
    return finish(found > room ? TOO_SMALL : OK);
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle_t *h, unsigned *count, listed_t *list) {
    ON(h, 0);
    return list_processes(h, gpu, 0, count, list);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(handle_t *h, unsigned *count, listed_t *list) {
    ON(h, NO_MPS_LIST);
    return list_processes(h, gpu, 1, count, list);
}

/* ---- Power limit and clocks ------------------------------------------------------------------------------------ */

int nvmlDeviceGetPowerManagementLimit(handle_t *h, unsigned *mw) { ON(h, NO_POWER); *mw = gpu->power_limit; return finish(OK); }

int nvmlDeviceGetPowerManagementDefaultLimit(handle_t *h, unsigned *mw) {
    ON(h, NO_POWER);
    *mw = gpu->power_default;
    return finish(OK);
}

int nvmlDeviceGetEnforcedPowerLimit(handle_t *h, unsigned *mw) { ON(h, NO_POWER); *mw = limit_of(gpu); return finish(OK); }

int nvmlDeviceGetPowerManagementLimitConstraints(handle_t *h, unsigned *low, unsigned *high) {
    ON(h, NO_POWER);
    *low = gpu->power_low;
    *high = gpu->power_high;
    return finish(OK);
}

int nvmlDeviceSetPowerManagementLimit(handle_t *h, unsigned mw) {
    ON(h, NO_POWER);
    if (!state->may_write) return finish(NO_PERMISSION);
    if (mw < gpu->power_low || mw > gpu->power_high) return finish(INVALID);
    count_energy(gpu);
    gpu->power_limit = mw;
    return end_write(__func__);
}

int nvmlDeviceGetSupportedMemoryClocks(handle_t *h, unsigned *count, unsigned *list) {
    ON(h, NO_CLOCK_LIST);
    unsigned room = list ? *count : 0;
    *count = 1;
    if (room < 1) return finish(TOO_SMALL);
    list[0] = gpu->clock_memory;
    return finish(OK);
}

int nvmlDeviceGetSupportedGraphicsClocks(handle_t *h, unsigned memory, unsigned *count, unsigned *list) {
    ON(h, NO_CLOCK_LIST);
    if (memory != gpu->clock_memory) return finish(NOT_FOUND);
    unsigned room = list ? *count : 0, found = 0;
    for (uint32_t mhz = gpu->clock_high; mhz >= gpu->clock_low; mhz -= gpu->clock_step) {
        if (found < room) list[found] = mhz;
        found++;
    }
    *count = found;
    return finish(found > room ? TOO_SMALL : OK);
}

static uint32_t step_of(const gpu_t *gpu, uint32_t mhz) {
    return gpu->clock_low + (mhz - gpu->clock_low) / gpu->clock_step * gpu->clock_step;
}

int nvmlDeviceSetGpuLockedClocks(handle_t *h, unsigned low, unsigned high) {
    ON(h, NO_LOCK);
    if (!state->may_write) return finish(NO_PERMISSION);
    if (low > high || low < gpu->clock_low || high > gpu->clock_high) return finish(INVALID);
    count_energy(gpu);
    gpu->lock_low = step_of(gpu, low);
    gpu->lock_high = step_of(gpu, high);
    return end_write(__func__);
}

int nvmlDeviceResetGpuLockedClocks(handle_t *h) {
    ON(h, NO_LOCK);
    if (!state->may_write) return finish(NO_PERMISSION);
    count_energy(gpu);
    gpu->lock_low = gpu->lock_high = 0;
    return end_write(__func__);
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

typedef struct { handle_t *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } event_data;
typedef struct { uint32_t seen, load; uint64_t masks[MAX_GPUS]; } event_set;

int nvmlEventSetCreate(event_set **set) {
    int code = enter(__func__, NULL);
    if (code != OK) return code;
    *set = calloc(1, sizeof(event_set));
    (*set)->seen = state->event_count;
    (*set)->load = state->loads;
    return finish(OK);
}

int nvmlEventSetFree(event_set *set) { free(set); return OK; }

int nvmlDeviceGetSupportedEventTypes(handle_t *h, unsigned long long *kinds) {
    ON(h, NO_EVENTS);
    *kinds = 0x8 | 0x2 | 0x1;
    return finish(OK);
}

int nvmlDeviceRegisterEvents(handle_t *h, unsigned long long kinds, event_set *set) {
    ON(h, NO_EVENTS);
    set->masks[h->gpu] |= kinds;
    return finish(OK);
}

int nvmlEventSetWait_v2(event_set *set, event_data *found, unsigned wait_ms) {
    for (unsigned waited_ms = 0;; waited_ms += 10) {
        int code = enter(__func__, NULL);
        if (code != OK) return code;
        if (set->load != state->loads) return finish(UNINITIALIZED);
        while (set->seen != state->event_count) {
            const event_t *event = &state->events[set->seen++ % MAX_EVENTS];
            if (!(set->masks[event->gpu] & event->kind)) continue;
            *found = (event_data){&handles[event->gpu][0], event->kind, event->data, event->instance, ~0U};
            return finish(OK);
        }
        leave();
        if (waited_ms >= wait_ms) return TIMEOUT;
        usleep(10000);
    }
}

/* ---- GPM ------------------------------------------------------------------------------------------------------- */

typedef struct { unsigned version, is_supported; } gpm_support;
typedef struct { uint32_t load_percent; } gpm_sample;
typedef struct { unsigned id; int code; double value; const char *info[3]; } gpm_metric;
typedef struct { unsigned version, count; gpm_sample *first, *second; gpm_metric metrics[]; } gpm_metrics;

int nvmlGpmQueryDeviceSupport(handle_t *h, gpm_support *support) {
    ON(h, 0);
    support->is_supported = !(gpu->without & NO_GPM);
    return finish(OK);
}

int nvmlGpmSampleAlloc(gpm_sample **sample) { *sample = calloc(1, sizeof(gpm_sample)); return OK; }

int nvmlGpmSampleFree(gpm_sample *sample) { free(sample); return OK; }

int nvmlGpmSampleGet(handle_t *h, gpm_sample *sample) {
    ON(h, NO_GPM);
    sample->load_percent = gpu->load_percent;
    return finish(OK);
}

int nvmlGpmMetricsGet(gpm_metrics *asked) {
    for (unsigned i = 0; i < asked->count; i++) {
        asked->metrics[i].code = asked->metrics[i].id == 2 ? OK : NOT_SUPPORTED;
        asked->metrics[i].value = (asked->first->load_percent + asked->second->load_percent) / 2.0;
    }
    return OK;
}
